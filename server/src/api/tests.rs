//! The routes over loopback, as bytes on a socket, before nodes that do what the test says.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;

use bytes::Bytes;
use hub_protocol::kind::call::{self, Change, REPLY};
use hub_protocol::kind::records::{Events, Logs};
use hub_protocol::kind::transfer::{CopyIn, Ending, IN, OUT, Save};
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_quic::operation::Operation;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::api::types::{StreamKind, Top};
use crate::proxy::{Begins, Seeing};
use crate::scripted::{connect, hub, join};

struct World {
    hub: Hub,
    address: SocketAddr,
    token: ApiToken,
    seeing: Seeing,
}

impl World {
    async fn new() -> Self {
        let (hub, token) = (hub().await, ApiToken::random().unwrap());
        let seeing = Seeing::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = Api {
            hub: hub.clone(),
            token: token.clone(),
            tls: None,
            seeing: seeing.clone(),
        };
        let router = routes::router(api);
        tokio::spawn(serve::serve(listener, router, None, std::future::pending()));
        Self {
            hub,
            address,
            token,
            seeing,
        }
    }

    /// Sends the head of a request and the beginning of its body.
    async fn ask(&self, line: &str, headers: &str, body: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let token = self.token.expose();
        let head = format!(
            "{line} HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer {token}\r\n{headers}\r\n{body}"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        BufReader::new(stream)
    }
}

/// The status of a response, behind its whole head.
async fn status(stream: &mut BufReader<TcpStream>) -> u16 {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(stream.read_line(&mut head).await.unwrap(), 0, "{head}");
    }
    head[9..12].parse().unwrap()
}

/// All that a response with `Connection: close` has left.
async fn rest(stream: &mut BufReader<TcpStream>) -> String {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    String::from_utf8(rest).unwrap()
}

/// A piece of a chunked body: the last is empty, and one that breaks off has none.
async fn chunk(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut size = String::new();
    stream.read_line(&mut size).await.unwrap();
    let size = usize::from_str_radix(size.trim(), 16).ok()?;
    let mut piece = vec![0; size + 2];
    stream.read_exact(&mut piece).await.unwrap();
    piece.truncate(size);
    Some(String::from_utf8(piece).unwrap())
}

/// A chunked body, and whether it has its end.
async fn chunked(stream: &mut BufReader<TcpStream>) -> (String, bool) {
    let mut body = String::new();
    while let Some(piece) = chunk(stream).await {
        if piece.is_empty() {
            return (body, true);
        }
        body.push_str(&piece);
    }
    (body, false)
}

async fn send(operation: &Operation, bytes: &'static str) {
    let mut sender = operation.sender(OUT);
    sender
        .send(Bytes::from_static(bytes.as_bytes()))
        .await
        .unwrap();
}

fn done(operation: Operation, ending: &Ending<()>) {
    operation.finish(kind::encode(ending));
}

const CLOSE: &str = "Connection: close\r\n";

#[tokio::test]
async fn a_call_is_a_request() {
    let world = World::new().await;
    let agent = connect(&world.hub, &join(&world.hub, "n1", 1).await, 1);
    let line = "POST /v1/nodes/n1/call/container.start";
    let body = r#"{"container":"web"}"#;
    for (accept, expected) in [
        ("", "\"changed\""),
        (
            "Accept: application/x-ndjson\r\n",
            "{\"reply\":\"changed\"}\n",
        ),
    ] {
        let headers = format!("{accept}Content-Length: {}\r\n", body.len());
        let mut stream = world.ask(line, &headers, body).await;
        let (operation, open) = agent.asked::<call::Open>().await;
        assert_eq!(open.method, "container.start");
        operation.accept(Bytes::new());
        let mut reply = operation.sender(REPLY);
        reply.send(kind::to_json(&Change::Changed)).await.unwrap();
        done(operation, &Ending::Complete(()));
        assert_eq!(status(&mut stream).await, 200);
        if accept.is_empty() {
            let mut answer = vec![0; expected.len()];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(answer, expected.as_bytes());
        } else {
            assert_eq!(chunked(&mut stream).await, (expected.to_owned(), true));
        }
    }
}

#[tokio::test]
async fn a_call_that_makes_no_sense_reaches_no_node() {
    let world = World::new().await;
    let refused = async |method: &str, body: &str| {
        let line = format!("POST /v1/nodes/n1/call/{method}");
        let headers = format!("{CLOSE}Content-Length: {}\r\n", body.len());
        let mut stream = world.ask(&line, &headers, body).await;
        (status(&mut stream).await, rest(&mut stream).await)
    };
    let (status, problem) = refused("container.start", r#"{"container":"web","hunter2":1}"#).await;
    assert!(status == 400 && problem.contains("hunter2"), "{problem}");
    let (status, problem) = refused("container.start", r#"{"container":7}"#).await;
    assert_eq!(status, 400, "{problem}");
    assert_eq!(refused("container.explode", "{}").await.0, 404);
    let large = format!("{{\"container\":\"{}\"}}", "x".repeat(call::MAX_PARAMS));
    let (status, problem) = refused("container.start", &large).await;
    assert!(status == 413 && problem.contains("too-large"), "{problem}");
    let (status, problem) = refused("container.start", r#"{"container":"web"}"#).await;
    assert!(
        status == 404 && problem.contains("no-such-node"),
        "{problem}"
    );
}

/// A client that goes away cancels its call on the node.
#[tokio::test]
async fn a_client_that_goes_cancels_its_call() {
    let world = World::new().await;
    let agent = connect(&world.hub, &join(&world.hub, "n1", 1).await, 1);
    let headers = "Content-Length: 13\r\n";
    let stream = world
        .ask(
            "POST /v1/nodes/n1/call/image.pull",
            headers,
            r#"{"image":"x"}"#,
        )
        .await;
    let (operation, _) = agent.asked::<call::Open>().await;
    operation.accept(Bytes::new());
    drop(stream);
    operation.ended().await;
}

#[tokio::test]
async fn a_body_is_whole_only_if_its_operation_is() {
    let world = World::new().await;
    let agent = connect(&world.hub, &join(&world.hub, "n1", 1).await, 1);
    let failure = || Failure::new(FailureCode::INTERNAL, "the disk is gone");
    for (ending, whole) in [
        (Ending::Complete(()), true),
        (Ending::Failed(failure()), false),
    ] {
        let line = "GET /v1/nodes/n1/images/save?image=a&image=b";
        let mut stream = world.ask(line, "", "").await;
        let (operation, save) = agent.asked::<Save>().await;
        assert_eq!(save.images, ["a", "b"]);
        operation.accept(Bytes::new());
        send(&operation, "archive").await;
        assert_eq!(status(&mut stream).await, 200);
        done(operation, &ending);
        assert_eq!(chunked(&mut stream).await, ("archive".to_owned(), whole));
    }
    // What goes wrong before there is anything is a problem.
    let line = "GET /v1/nodes/n1/images/save?image=a";
    let mut stream = world.ask(line, CLOSE, "").await;
    let (operation, _) = agent.asked::<Save>().await;
    operation.accept(Bytes::new());
    done(operation, &Ending::Failed(failure()));
    assert_eq!(status(&mut stream).await, 502);
    assert!(rest(&mut stream).await.contains("the disk is gone"));
}

const PUT: &str = "PUT /v1/nodes/n1/archive?container=web&path=/etc";

/// The answer to an upload that the node refuses in its middle is read by a client that goes on
/// writing for a while.
#[tokio::test]
async fn an_upload_is_answered_early() {
    let world = World::new().await;
    let agent = connect(&world.hub, &join(&world.hub, "n1", 1).await, 1);
    let headers = "Content-Length: 100000000\r\n";
    let mut stream = world.ask(PUT, headers, "begin").await;
    let (operation, copy) = agent.asked::<CopyIn>().await;
    assert_eq!((&*copy.container, &*copy.path), ("web", "/etc"));
    operation.accept(Bytes::new());
    let mut input = operation.receiver(IN);
    assert_eq!(input.chunk().await.unwrap().unwrap(), "begin");
    let failure = Failure::new(FailureCode::NOT_FOUND, "there is no /etc");
    done(operation, &Ending::Failed(failure));
    // More than all buffers on the way take, before the answer is looked at.
    let piece = vec![0; 64 * 1024];
    for _ in 0..256 {
        stream.write_all(&piece).await.unwrap();
    }
    assert_eq!(status(&mut stream).await, 404);
}

#[tokio::test]
async fn an_upload_that_breaks_off_does_not_pass_for_whole() {
    let world = World::new().await;
    let agent = connect(&world.hub, &join(&world.hub, "n1", 1).await, 1);
    let stream = world.ask(PUT, "Content-Length: 100\r\n", "half").await;
    let (operation, _) = agent.asked::<CopyIn>().await;
    operation.accept(Bytes::new());
    let mut input = operation.receiver(IN);
    assert_eq!(input.chunk().await.unwrap().unwrap(), "half");
    drop(stream);
    input.chunk().await.unwrap_err();
}

/// Bytes that have no credit stay with the client.
#[tokio::test]
async fn an_upload_goes_as_far_as_there_is_credit() {
    let world = World::new().await;
    let agent = connect(&world.hub, &join(&world.hub, "n1", 1).await, 1);
    let length = 32 * 1024 * 1024;
    let headers = format!("{CLOSE}Content-Length: {length}\r\n");
    let mut stream = world.ask(PUT, &headers, "").await;
    let (operation, _) = agent.asked::<CopyIn>().await;
    operation.accept(Bytes::new());
    let mut input = operation.receiver(IN);
    let (mut read, mut write) = tokio::io::split(&mut stream);
    let upload = async {
        let piece = vec![7; 64 * 1024];
        for _ in 0..length / piece.len() {
            write.write_all(&piece).await.unwrap();
        }
    };
    tokio::pin!(upload);
    // Once nothing goes on though everybody had many turns, all on the way is full.
    tokio::select! {
        biased;
        () = &mut upload => panic!("it is taken without credit"),
        () = async { for _ in 0..20_000 { tokio::task::yield_now().await; } } => {}
    }
    let take = async {
        let mut taken = 0;
        while let Some(bytes) = input.chunk().await.unwrap() {
            taken += bytes.len();
        }
        done(operation, &Ending::Complete(()));
        taken
    };
    let ((), taken) = tokio::join!(upload, take);
    assert_eq!(taken, length);
    let mut answer = String::new();
    read.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
}

#[tokio::test]
async fn a_log_is_followed_through_a_lost_session() {
    let world = World::new().await;
    let node = join(&world.hub, "n1", 1).await;
    let agent = connect(&world.hub, &node, 1);
    let line = "GET /v1/nodes/n1/logs?container=web&follow=true&tail=3";
    let mut stream = world.ask(line, "", "").await;
    let (operation, logs) = agent.asked::<Logs>().await;
    assert_eq!((logs.tail, logs.cursor), (Some(3), None));
    operation.accept(Bytes::new());
    assert_eq!(status(&mut stream).await, 200);
    send(&operation, "{\"cursor\":\"1\"}\n{\"cur").await;
    assert_eq!(chunk(&mut stream).await.unwrap(), "{\"cursor\":\"1\"}\n");
    agent.lose(&world.hub, &node, 1);
    let agent = connect(&world.hub, &node, 2);
    let (operation, logs) = agent.asked::<Logs>().await;
    assert_eq!((logs.tail, logs.cursor.as_deref()), (None, Some("1")));
    operation.accept(Bytes::new());
    send(&operation, "{\"cursor\":\"2\"}\n").await;
    done(operation, &Ending::Complete(()));
    let expected = ("{\"cursor\":\"2\"}\n".to_owned(), true);
    assert_eq!(chunked(&mut stream).await, expected);
}

#[tokio::test]
async fn events_are_those_of_all_nodes_and_of_those_that_join() {
    let world = World::new().await;
    let agent = connect(&world.hub, &join(&world.hub, "n1", 1).await, 1);
    let mut stream = world
        .ask("GET /v1/events?filter=type%3Dcontainer", "", "")
        .await;
    let (first, events) = agent.asked::<Events>().await;
    assert_eq!(events.filters["type"], ["container"]);
    assert_eq!(events.since_ns, None);
    first.accept(Bytes::new());
    assert_eq!(status(&mut stream).await, 200);
    // What has happened on it since the watch began is wanted, too.
    let late = connect(&world.hub, &join(&world.hub, "n2", 2).await, 1);
    let (second, events) = late.asked::<Events>().await;
    assert!(events.since_ns.is_some());
    second.accept(Bytes::new());
    send(&second, "{\"record\":\"gap\",\"to_ns\":1}\n").await;
    let mut line = String::new();
    while !line.contains('}') {
        stream.read_line(&mut line).await.unwrap();
    }
    assert!(
        line.ends_with("{\"node\":\"n2\",\"record\":\"gap\",\"to_ns\":1}\n"),
        "{line}"
    );
    drop(stream);
    // The client is gone, and with it both operations.
    first.ended().await;
    second.ended().await;
}

#[tokio::test]
async fn what_is_under_way_and_what_was_counted_is_for_who_has_the_token() {
    let world = World::new().await;
    let node = join(&world.hub, "n1", 1).await;
    let _agent = connect(&world.hub, &node, 1);
    let track = world.seeing.begin(&Begins {
        kind: StreamKind::Tcp,
        client: [192, 0, 2, 1].into(),
        at: world.hub.clock().now(),
        method: None,
        target: None,
        version: None,
    });
    track.took(7);
    let mut top = world.ask("GET /v1/top", CLOSE, "").await;
    assert_eq!(status(&mut top).await, 200);
    let top: Top = serde_json::from_str(&rest(&mut top).await).unwrap();
    let [stream] = &top.streams[..] else {
        panic!("{top:?}");
    };
    assert_eq!((stream.bytes_in, &stream.client[..]), (7, "192.0.2.1"));
    let mut metrics = world.ask("GET /v1/metrics", CLOSE, "").await;
    assert_eq!(status(&mut metrics).await, 200);
    let metrics = rest(&mut metrics).await;
    for line in [
        "hub_nodes 1",
        "hub_sessions 1",
        "hub_exposure_streams{exposure=\"\",name=\"\",kind=\"tcp\"} 1",
        "hub_exposure_received_bytes_total{exposure=\"\",name=\"\"} 7",
    ] {
        assert!(metrics.lines().any(|has| has == line), "{line}\n{metrics}");
    }
    for path in ["/v1/top", "/v1/metrics"] {
        let mut stranger = TcpStream::connect(world.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: hub\r\n\r\n");
        stranger.write_all(request.as_bytes()).await.unwrap();
        assert_eq!(status(&mut BufReader::new(stranger)).await, 401);
    }
}
