"""A gRPC service without generated code: bytes in, bytes out. Prints its port."""

import concurrent.futures
import time

import grpc


def unary(request, context):
    context.send_initial_metadata((("x-initial", "1"),))
    context.set_trailing_metadata((("x-trailing", "2"), ("x-bin", b"\x00\xff")))
    return request[::-1]


def fail(request, context):
    context.set_trailing_metadata((("x-why", "because"),))
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no: " + request.decode() + " \u00e4")


def fail_in_stream(request, context):
    yield b"one"
    yield b"two"
    context.abort(grpc.StatusCode.DATA_LOSS, "after two")


def down(request, context):
    for n in range(int(request)):
        yield b"%d" % n


def up(requests, context):
    return b",".join(b"%d" % len(r) for r in requests)


def both(requests, context):
    for request in requests:
        yield b"<" + request + b">"


def slow(request, context):
    while context.is_active():
        time.sleep(0.01)
    return b""


class Service(grpc.GenericRpcHandler):
    def service(self, details):
        return {
            "/t.T/Unary": grpc.unary_unary_rpc_method_handler(unary),
            "/t.T/Fail": grpc.unary_unary_rpc_method_handler(fail),
            "/t.T/Slow": grpc.unary_unary_rpc_method_handler(slow),
            "/t.T/FailInStream": grpc.unary_stream_rpc_method_handler(fail_in_stream),
            "/t.T/Down": grpc.unary_stream_rpc_method_handler(down),
            "/t.T/Up": grpc.stream_unary_rpc_method_handler(up),
            "/t.T/Both": grpc.stream_stream_rpc_method_handler(both),
        }.get(details.method)


server = grpc.server(
    concurrent.futures.ThreadPoolExecutor(max_workers=16),
    handlers=[Service()],
    options=[("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)],
)
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
