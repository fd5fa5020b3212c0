"""Calls the service at ADDRESS under the name AUTHORITY, and prints what comes of it."""

import queue
import sys

import grpc

address, authority = sys.argv[1:]
channel = grpc.insecure_channel(
    address,
    options=[
        ("grpc.default_authority", authority),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.enable_http_proxy", 0),
    ],
)


def metadata(pairs):
    return sorted((k, v) for k, v in pairs or () if k.startswith("x-"))


def tell(what, call):
    """What a call that has ended says of itself."""
    print(what, call.code(), repr(call.details()), metadata(call.trailing_metadata()))


def one(name, method, request, **more):
    try:
        answer, call = method.with_call(request, **more)
        print(name, len(answer), answer[:40], metadata(call.initial_metadata()))
        tell(name, call)
    except grpc.RpcError as error:
        tell(name, error)


def many(name, call):
    got = []
    try:
        for message in call:
            got.append(message)
    except grpc.RpcError:
        pass
    print(name, len(got), [len(g) for g in got[:3]], got[-1:][0][:40] if got else None)
    tell(name, call)


unary = channel.unary_unary("/t.T/Unary")
one("unary", unary, b"hello", metadata=(("x-in", "1"),))
one("empty", unary, b"")
one("big", unary, b"ab" * (2 << 20))
one("fail", channel.unary_unary("/t.T/Fail"), b"x")
one("unknown", channel.unary_unary("/t.T/Nothing"), b"x")
one("deadline", channel.unary_unary("/t.T/Slow"), b"", timeout=0.5)
many("down", channel.unary_stream("/t.T/Down")(b"2000"))
many("down none", channel.unary_stream("/t.T/Down")(b"0"))
many("fail in stream", channel.unary_stream("/t.T/FailInStream")(b""))
one("up", channel.stream_unary("/t.T/Up"), iter([b"a" * n for n in range(300)]))
one("up none", channel.stream_unary("/t.T/Up"), iter([]))
many("both", channel.stream_stream("/t.T/Both")(iter([b"%d" % n for n in range(500)])))


# Each message waits for the answer to the last one: nothing on the way may hold one back.
asked = queue.Queue()
call = channel.stream_stream("/t.T/Both")(iter(asked.get, None))
asked.put(b"0")
for n, message in enumerate(call, 1):
    if n == 50:
        asked.put(None)
        print("in turns", n, message)
    elif n < 50:
        asked.put(b"%d" % n)
tell("in turns", call)
calls = [unary.future(b"%d" % n) for n in range(200)]
print("at once", sorted(call.result() for call in calls)[:5], len(calls))
cancelled = channel.unary_unary("/t.T/Slow").future(b"")
cancelled.cancel()
print("cancelled", cancelled.cancelled())
