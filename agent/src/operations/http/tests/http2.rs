//! Targets that speak HTTP/2, on a server that does as the test says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::sync::mpsc;

use super::*;

/// A target on a port of this machine. Each request is handed to `serve`.
async fn serving<F>(
    builder: Builder,
    serve: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Clone + Send + Sync + 'static,
) -> (u16, Arc<AtomicUsize>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    let port = target(move |stream| {
        count.fetch_add(1, Ordering::Relaxed);
        let (builder, serve) = (builder.clone(), serve.clone());
        async move {
            let mut connection = builder.handshake(stream).await.unwrap();
            while let Some(Ok((request, respond))) = connection.accept().await {
                tokio::spawn(serve(request, respond));
            }
        }
    })
    .await;
    (port, connections)
}

fn open(port: u16, method: &str, headers: &[(&str, &str)], body: Body) -> Open {
    Open {
        protocol: Protocol::Http2,
        ..request(port, method, headers, body)
    }
}

fn ok() -> Response<()> {
    Response::new(())
}

/// Gives the body back as it comes, then its trailers.
async fn echo(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let (head, mut body) = request.into_parts();
    let mut response = ok();
    let seen = format!("{} {} {:?}", head.method, head.uri, head.headers.get("te"));
    let seen = HeaderValue::try_from(seen).unwrap();
    response.headers_mut().insert("x-seen", seen);
    let mut stream = respond.send_response(response, false).unwrap();
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        stream.send_data(data, false).unwrap();
    }
    let mut trailers = body.trailers().await.unwrap().unwrap_or_default();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    stream.send_trailers(trailers).unwrap();
}

#[tokio::test]
async fn both_bodies_stream_and_have_trailers() {
    let (port, _) = serving(Builder::new(), echo).await;
    let node = Node::new(tools(None)).await;
    let headers = [
        ("host", "a.test"),
        ("te", "trailers"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
    ];
    let (operation, _) = node
        .begin(&open(port, "POST", &headers, Body::Chunked))
        .await;
    let mut sender = operation.sender(REQUEST);
    let mut receiver = operation.receiver(RESPONSE);
    let Some(Message::Head(head)) = message(&operation).await else {
        panic!("no head");
    };
    let seen = "POST http://a.test/a%2Fb?c Some(\"trailers\")";
    assert_eq!(head.headers[0], ("x-seen".into(), seen.into()));
    assert_eq!(head.body, Body::Chunked);
    // Ping, pong.
    for ping in ["one", "two", "three"] {
        sender.send(ping.into()).await.unwrap();
        assert_eq!(receiver.chunk().await.unwrap().unwrap(), ping);
    }
    let trailers = vec![("x-sum".into(), "1".into())];
    let message = kind::encode(&Message::Trailers(trailers));
    operation.send_message(message).await.unwrap();
    sender.finish();
    assert_eq!(receiver.chunk().await.unwrap(), None);
    let Some(Message::Trailers(mut trailers)) = self::message(&operation).await else {
        panic!("no trailers");
    };
    trailers.sort();
    let expected = [
        ("grpc-status".into(), "0".into()),
        ("x-sum".into(), "1".into()),
    ];
    assert_eq!(trailers, expected);
    let outcome: Outcome = kind::decode("outcome", &operation.done().await.unwrap()).unwrap();
    assert_eq!(outcome, Outcome::Complete);
    // All of a large one.
    let body: &'static [u8] = vec![7; 3_000_000].leak();
    let put = open(port, "PUT", &[], Body::Length(3_000_000));
    let large = exchange(&node, &put, body).await.unwrap();
    assert_eq!(
        (large.body.len(), large.outcome),
        (3_000_000, Outcome::Complete)
    );
}

#[tokio::test]
async fn requests_share_connections_as_far_as_the_target_goes() {
    for (most, connections) in [(None, 1), (Some(8), 3), (Some(1), 20)] {
        let mut builder = Builder::new();
        if let Some(most) = most {
            builder.max_concurrent_streams(most);
        }
        // Each waits until all are there.
        let all = Arc::new(tokio::sync::Barrier::new(20));
        let (port, count) = serving(builder, move |_, mut respond: SendResponse<Bytes>| {
            let all = all.clone();
            async move {
                all.wait().await;
                respond.send_response(ok(), true).unwrap();
            }
        })
        .await;
        let tools = tools(None);
        let shared = tools.connections.clone();
        let node = Node::new(tools).await;
        let open = open(port, "GET", &[], Body::None);
        for _ in 0..2 {
            for seen in join_all((0..20).map(|_| exchange(&node, &open, b""))).await {
                let seen = seen.unwrap();
                assert_eq!(seen.outcome, Outcome::Complete);
                assert_eq!((seen.head.status, seen.head.body), (200, Body::Length(0)));
            }
            assert_eq!(count.load(Ordering::Relaxed), connections, "{most:?}");
            assert_eq!(shared.shared(), connections);
        }
    }
}

/// What nobody reads fills its own windows, and holds up nobody.
#[tokio::test]
async fn a_stream_that_is_not_read_costs_only_itself() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let (port, connections) = serving(
        Builder::new(),
        move |request, mut respond: SendResponse<Bytes>| {
            let sent = count.clone();
            async move {
                if request.method() == "PUT" {
                    return echo(request, respond).await;
                }
                let mut stream = respond.send_response(ok(), false).unwrap();
                loop {
                    stream.reserve_capacity(16 * 1024);
                    let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
                    let Some(Ok(room)) = room else { return };
                    let data = Bytes::from(vec![7; room]);
                    stream.send_data(data, false).unwrap();
                    sent.fetch_add(room, Ordering::Relaxed);
                }
            }
        },
    )
    .await;
    let node = Node::new(tools(None)).await;
    let mut stuck = Vec::new();
    for _ in 0..10 {
        let (operation, _) = node.begin(&open(port, "GET", &[], Body::None)).await;
        assert!(matches!(message(&operation).await, Some(Message::Head(_))));
        stuck.push(operation);
    }
    let body: &'static [u8] = vec![7; 1_000_000].leak();
    for _ in 0..5 {
        let put = open(port, "PUT", &[], Body::Length(1_000_000));
        let seen = exchange(&node, &put, body).await.unwrap();
        assert_eq!(seen.body.len(), 1_000_000);
    }
    // An operation's window and the stream's, and the one piece between them.
    let most = stuck.len() * (1024 + 128 + 64) * 1024;
    assert!(sent.load(Ordering::Relaxed) <= most);
    assert_eq!(connections.load(Ordering::Relaxed), 1);
    // Whoever reads on gets on.
    let mut receiver = stuck[0].receiver(RESPONSE);
    let mut read = 0;
    while read < 4 * 1024 * 1024 {
        read += receiver.chunk().await.unwrap().unwrap().len();
    }
}

#[tokio::test]
async fn a_target_of_http1_is_told_apart() {
    let node = Node::new(tools(None)).await;
    for (answer, closes) in [("HTTP/1.1 400 Bad Request\r\n\r\n", false), ("", true)] {
        let port = answering(answer, closes).await;
        let refused = node.refused(&open(port, "GET", &[], Body::None)).await;
        assert_eq!(refused.code, FailureCode::TARGET_BROKEN);
        assert!(refused.message.contains("expose it as that"), "{refused}");
    }
    let mut upgrade = open(1, "GET", &[], Body::None);
    upgrade.head.upgrade = Some(Bytes::from_static(b"WebSocket"));
    assert_eq!(node.refused(&upgrade).await.code, FailureCode::UNSUPPORTED);
}

#[tokio::test]
async fn hints_and_a_100_come_before_the_head() {
    let serve = |mut request: Request<RecvStream>, mut respond: SendResponse<Bytes>| async move {
        let hint = Response::builder().status(103).header("link", "</a>");
        respond.send_informational(hint.body(()).unwrap()).unwrap();
        let go_on = Response::builder().status(100).body(()).unwrap();
        respond.send_informational(go_on).unwrap();
        let body = request.body_mut().data().await.unwrap().unwrap();
        let mut stream = respond.send_response(ok(), false).unwrap();
        stream.send_data(body, true).unwrap();
    };
    let (port, _) = serving(Builder::new(), serve).await;
    let node = Node::new(tools(None)).await;
    let expect = [("expect", "100-continue")];
    let (operation, _) = node
        .begin(&open(port, "POST", &expect, Body::Length(5)))
        .await;
    for expected in [103, 100] {
        let Some(Message::Informational(one)) = message(&operation).await else {
            panic!("no {expected} comes");
        };
        assert_eq!(one.status, expected);
    }
    let sent = send_all(&operation, REQUEST, Bytes::from_static(b"hello"));
    let (_, seen) = tokio::join!(sent, answer(&operation));
    assert_eq!(seen.unwrap().body, "hello");
}

/// A server that has answered and wants no more of the body says so with a reset that is no error.
#[tokio::test]
async fn an_early_answer_stops_the_upload() {
    let serve = |_request, mut respond: SendResponse<Bytes>| async move {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("8"));
        let mut stream = respond.send_response(ok(), false).unwrap();
        stream.send_trailers(trailers).unwrap();
        // The server resets the stream when what is left of the request is dropped.
    };
    let (port, _) = serving(Builder::new(), serve).await;
    let node = Node::new(tools(None)).await;
    let (operation, _) = node.begin(&open(port, "POST", &[], Body::Chunked)).await;
    let endless = async {
        let mut sender = operation.sender(REQUEST);
        while sender.send(Bytes::from_static(&[7; 4096])).await.is_ok() {}
    };
    let (seen, ()) = tokio::join!(answer(&operation), endless);
    let seen = seen.unwrap();
    assert_eq!(seen.trailers, [("grpc-status".into(), "8".into())]);
    assert_eq!(seen.outcome, Outcome::Complete);
}

#[tokio::test]
async fn what_is_reset_is_not_whole_and_what_is_refused_is_asked_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let (say, mut resets) = mpsc::unbounded_channel();
    let (port, connections) = serving(
        Builder::new(),
        move |request: Request<RecvStream>, mut respond: SendResponse<Bytes>| {
            let (first, say) = (count.fetch_add(1, Ordering::Relaxed) == 0, say.clone());
            async move {
                if request.method() == "POST" && first {
                    return respond.send_reset(Reason::REFUSED_STREAM);
                }
                if request.method() == "POST" {
                    return echo(request, respond).await;
                }
                let mut stream = respond.send_response(ok(), false).unwrap();
                stream
                    .send_data(Bytes::from_static(b"half"), false)
                    .unwrap();
                if request.method() == "GET" {
                    // Once the data are out.
                    tokio::task::yield_now().await;
                    return stream.send_reset(Reason::INTERNAL_ERROR);
                }
                let reset = std::future::poll_fn(|cx| stream.poll_reset(cx)).await;
                say.send(reset.unwrap()).unwrap();
            }
        },
    )
    .await;
    let node = Node::new(tools(None)).await;
    // Refused, and sent again: nothing of the body was gone.
    let post = open(port, "POST", &[], Body::Length(5));
    let (operation, _) = node.begin(&post).await;
    while asked.load(Ordering::Relaxed) < 2 {
        tokio::task::yield_now().await;
    }
    let sent = send_all(&operation, REQUEST, Bytes::from_static(b"hello"));
    let (_, seen) = tokio::join!(sent, answer(&operation));
    let seen = seen.unwrap();
    assert_eq!(
        (&seen.body[..], seen.outcome),
        (&b"hello"[..], Outcome::Complete)
    );
    assert_eq!(connections.load(Ordering::Relaxed), 2);
    // Broken off.
    match exchange(&node, &open(port, "GET", &[], Body::None), b"").await {
        Ok(seen) => assert!(matches!(seen.outcome, Outcome::Broken(_))),
        Err(failure) => assert_eq!(failure.code, FailureCode::TARGET_BROKEN),
    }
    // Given up: the target learns of it, and the connection goes on.
    let (operation, _) = node.begin(&open(port, "DELETE", &[], Body::None)).await;
    assert!(matches!(message(&operation).await, Some(Message::Head(_))));
    drop(operation);
    assert_eq!(resets.recv().await.unwrap(), Reason::CANCEL);
    let again = exchange(&node, &post, b"hello").await.unwrap();
    assert_eq!(again.body, "hello");
    assert_eq!(connections.load(Ordering::Relaxed), 2);
}
