//! The tunnel to a daemon: a played one for its rules, the real one for what docker does with it.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use hub_protocol::kind::FailureCode;
use hub_protocol::kind::transfer::{DockerSocket, Ending, IN, OUT};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::engine::Engine;
use crate::operations::Tools;
use crate::operations::testing::{Node, ending, played, read_all, send_all, tools};
use crate::runtime::docker::DockerRuntime;

const PING: &[u8] = b"GET /_ping HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n";

/// A node whose file says nothing.
fn closed(engine: Option<Engine>) -> Tools {
    Tools {
        policy: Arc::default(),
        ..tools(engine)
    }
}

#[tokio::test]
async fn an_agent_that_was_not_told_to_keeps_its_socket() {
    let (engine, mut connections) = played().await;
    let node = Node::new(closed(Some(engine))).await;
    let refused = node.refused(&DockerSocket {}).await;
    assert_eq!(refused.code, FailureCode::FORBIDDEN);
    assert!(refused.message.contains("allow_docker_api"));
    assert!(connections.try_recv().is_err(), "the daemon was dialled");
    let node = Node::new(tools(None)).await;
    let refused = node.refused(&DockerSocket {}).await;
    assert_eq!(refused.code, FailureCode::UNSUPPORTED);
}

#[tokio::test]
async fn each_direction_ends_by_itself() {
    let (engine, mut connections) = played().await;
    let node = Node::new(tools(Some(engine))).await;
    let (operation, _) = node.begin(&DockerSocket {}).await;
    let mut daemon = connections.recv().await.unwrap();
    // Bytes that are no HTTP, and the client's end before a byte came back.
    let sent = Bytes::from_static(b"\0\xffPRI * HTTP/2.0\r\n");
    send_all(&operation, IN, sent.clone()).await;
    let mut taken = Vec::new();
    daemon.read_to_end(&mut taken).await.unwrap();
    assert_eq!(taken, sent);
    daemon.write_all(b"late answer").await.unwrap();
    drop(daemon);
    assert_eq!(read_all(&operation, OUT).await, "late answer");
    assert_eq!(ending::<()>(&operation).await, Ending::Complete(()));

    // And the other way round.
    let (operation, _) = node.begin(&DockerSocket {}).await;
    let mut daemon = connections.recv().await.unwrap();
    daemon.shutdown().await.unwrap();
    assert_eq!(read_all(&operation, OUT).await, "");
    send_all(&operation, IN, "more".into()).await;
    let mut taken = Vec::new();
    daemon.read_to_end(&mut taken).await.unwrap();
    assert_eq!(taken, b"more");
    assert_eq!(ending::<()>(&operation).await, Ending::Complete(()));
}

#[tokio::test]
async fn a_client_that_is_gone_closes_the_socket() {
    let (engine, mut connections) = played().await;
    let node = Node::new(tools(Some(engine))).await;
    let (operation, _) = node.begin(&DockerSocket {}).await;
    let mut daemon = connections.recv().await.unwrap();
    drop(operation);
    let mut taken = Vec::new();
    daemon.read_to_end(&mut taken).await.unwrap();
    assert!(taken.is_empty());
    assert!(daemon.write_all(b"x").await.is_err());
}

#[tokio::test]
async fn a_daemon_that_hangs_up_stops_the_channel() {
    let (engine, mut connections) = played().await;
    let node = Node::new(tools(Some(engine))).await;
    let (operation, _) = node.begin(&DockerSocket {}).await;
    drop(connections.recv().await.unwrap());
    assert_eq!(read_all(&operation, OUT).await, "");
    let endless = Bytes::from(vec![0; 4 << 20]);
    assert!(send_all(&operation, IN, endless.clone()).await < endless.len());
    assert_eq!(ending::<()>(&operation).await, Ending::Complete(()));
}

#[tokio::test]
async fn a_side_that_does_not_read_holds_up_the_other() {
    let (engine, mut connections) = played().await;
    let node = Node::new(tools(Some(engine))).await;
    let (operation, _) = node.begin(&DockerSocket {}).await;
    let mut daemon = connections.recv().await.unwrap();
    let all = Bytes::from(vec![7; 8 << 20]);
    let mut sent = 0;
    let mut sender = operation.sender(IN);
    let fill = async {
        loop {
            sender.send(all.slice(..64 * 1024)).await.unwrap();
            sent += 64 * 1024;
        }
    };
    // The other direction still moves when this one is full: that is what ends the wait.
    let other = async {
        daemon.write_all(&all).await.unwrap();
        daemon
    };
    let drained = async {
        let mut receiver = operation.receiver(OUT);
        let mut got = 0;
        while got < all.len() {
            got += receiver.chunk().await.unwrap().unwrap().len();
        }
    };
    let daemon = tokio::select! {
        () = fill => unreachable!(),
        (daemon, ()) = async { tokio::join!(other, drained) } => daemon,
    };
    assert!(
        sent < 4 << 20,
        "{sent} bytes found room with nobody reading"
    );
    drop(daemon);
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_answers_through_the_socket() {
    let node = Node::new(tools(Some(Engine::connect().await.unwrap()))).await;
    let (operation, _) = node.begin(&DockerSocket {}).await;
    let (_, answer) = tokio::join!(
        send_all(&operation, IN, PING.into()),
        read_all(&operation, OUT)
    );
    let answer = String::from_utf8(answer.to_vec()).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("OK"),
        "{answer}"
    );
    assert_eq!(ending::<()>(&operation).await, Ending::Complete(()));
}

/// `docker exec -i … cat`: the connection is taken over without an upgrade, stdin ends while the
/// output has yet to come, and the output comes whole.
#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_exec_through_the_socket_ends_its_stdin() {
    let engine = Engine::connect().await.unwrap();
    let container = DockerRuntime::new(&engine).demo_container().await.unwrap();
    let node = Node::new(tools(Some(engine))).await;
    let post = |path: &str, body: &str, headers: &str| {
        Bytes::from(format!(
            "POST {path} HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n{headers}\r\n{body}",
            body.len()
        ))
    };
    let create = post(
        &format!("/v1.41/containers/{}/exec", container.name),
        r#"{"AttachStdin":true,"AttachStdout":true,"Cmd":["sh","-c","cat; echo done"]}"#,
        "Connection: close\r\n",
    );
    let (operation, _) = node.begin(&DockerSocket {}).await;
    let (_, created) = tokio::join!(send_all(&operation, IN, create), read_all(&operation, OUT));
    let created = String::from_utf8(created.to_vec()).unwrap();
    let id = created.split("\"Id\":\"").nth(1).unwrap();
    let id = id.split('"').next().unwrap();
    let start = post(
        &format!("/v1.41/exec/{id}/start"),
        r#"{"Detach":false,"Tty":false}"#,
        "",
    );
    let stdin: Bytes = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    let (operation, _) = node.begin(&DockerSocket {}).await;
    let mut output = operation.receiver(OUT);
    let mut sender = operation.sender(IN);
    sender.send(start).await.unwrap();
    // The daemon drops what comes before it has taken the connection over.
    let mut answer = BytesMut::new();
    let head = loop {
        answer.extend_from_slice(&output.chunk().await.unwrap().unwrap());
        if let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") {
            break answer.split_to(end + 4);
        }
    };
    assert!(head.starts_with(b"HTTP/1.1 200 OK\r\n"));
    let send = async {
        sender.send(stdin.clone()).await.unwrap();
        sender.finish();
    };
    let receive = async {
        while let Some(bytes) = output.chunk().await.unwrap() {
            answer.extend_from_slice(&bytes);
        }
    };
    tokio::join!(send, receive);
    assert_eq!(ending::<()>(&operation).await, Ending::Complete(()));
    container.remove().await.unwrap();
    assert!(unframed(&answer) == [&stdin[..], b"done\n"].concat());
}

/// The payload of Docker's frames: type, three zeros, length, bytes.
fn unframed(mut frames: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let [1, 0, 0, 0, a, b, c, d, rest @ ..] = frames {
        let (payload, rest) = rest.split_at(u32::from_be_bytes([*a, *b, *c, *d]) as usize);
        bytes.extend_from_slice(payload);
        frames = rest;
    }
    assert!(frames.is_empty());
    bytes
}
