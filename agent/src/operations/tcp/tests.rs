//! Connections to real sockets, and what becomes of each end when the other goes.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hub_protocol::session;
use hub_protocol::target::{Grant, Selector};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::operations::Tools;
use crate::operations::testing::{Node, ending, read_all, send_all, tools};
use crate::policy::{Policy, Rules, Source};

fn open(port: u16) -> Open {
    Open {
        target: Target::tcp(port),
        grant: Grant::Operator,
    }
}

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// An operation, and the target's end of its connection.
async fn connected(node: &Node) -> (Operation, TcpStream) {
    let (listener, port) = listener().await;
    let open = open(port);
    let ((operation, _), target) = tokio::join!(node.begin(&open), listener.accept());
    (operation, target.unwrap().0)
}

#[tokio::test]
async fn each_direction_has_its_own_end() {
    let node = Node::new(tools(None)).await;
    // The asking side ends first, and reads on.
    let (operation, mut target) = connected(&node).await;
    let asked = send_all(&operation, IN, Bytes::from_static(b"question"));
    let serve = async {
        let mut question = String::new();
        target.read_to_string(&mut question).await.unwrap();
        target.write_all(question.as_bytes()).await.unwrap();
        target.write_all(&vec![7; 3_000_000]).await.unwrap();
        target.shutdown().await.unwrap();
    };
    let (_, (), read) = tokio::join!(asked, serve, read_all(&operation, OUT));
    assert_eq!(read.len(), 3_000_008);
    assert!(read.starts_with(b"question\x07"));
    assert_eq!(ending::<()>(&operation).await, Ending::Complete(()));
    // The target ends first, and reads on.
    let (operation, mut target) = connected(&node).await;
    target.shutdown().await.unwrap();
    assert!(read_all(&operation, OUT).await.is_empty());
    send_all(&operation, IN, vec![8; 3_000_000].into()).await;
    let mut all = Vec::new();
    target.read_to_end(&mut all).await.unwrap();
    assert_eq!(all.len(), 3_000_000);
    assert_eq!(ending::<()>(&operation).await, Ending::Complete(()));
}

#[tokio::test]
async fn what_breaks_does_not_look_whole() {
    let node = Node::new(tools(None)).await;
    let (operation, mut target) = connected(&node).await;
    target.write_all(b"half").await.unwrap();
    let mut receiver = operation.receiver(OUT);
    assert_eq!(receiver.chunk().await.unwrap().unwrap(), "half");
    target.break_off();
    drop(target);
    let Ending::<()>::Failed(failure) = ending(&operation).await else {
        panic!("a reset passes for an end");
    };
    assert_eq!(failure.code, FailureCode::TARGET_BROKEN);
    assert!(failure.message.contains("broke"), "{failure}");
    // And the other way: an operation that is given up.
    let (operation, mut target) = connected(&node).await;
    let mut sender = operation.sender(IN);
    sender.send(Bytes::from_static(b"half")).await.unwrap();
    assert_eq!(target.read(&mut [0; 9]).await.unwrap(), 4);
    drop(operation);
    let read = target.read(&mut [0; 9]).await;
    assert_eq!(
        read.unwrap_err().kind(),
        std::io::ErrorKind::ConnectionReset
    );
}

#[tokio::test]
async fn only_what_may_be_reached_is() {
    let (listener, port) = listener().await;
    let exposed = tools(None);
    exposed.targets.update(session::Targets {
        revision: 1,
        targets: vec![Target::tcp(port)],
    });
    let node = Node::new(exposed.clone()).await;
    let granted = |port| Open {
        grant: Grant::Exposed { revision: 1 },
        ..open(port)
    };
    node.begin(&granted(port)).await;
    let other = node.refused(&granted(port ^ 1)).await;
    assert_eq!(other.code, FailureCode::NOT_EXPOSED);
    drop(listener);
    let refused = node.refused(&open(port)).await;
    assert_eq!(refused.code, FailureCode::TARGET_REFUSED);
    assert!(refused.message.contains(&port.to_string()), "{refused}");
    let mut udp = open(port);
    udp.target.transport = Transport::Udp;
    assert_eq!(node.refused(&udp).await.code, FailureCode::INVALID);
    let mut container = open(port);
    container.target.container = Some(Selector::Name("web".into()));
    let no_engine = node.refused(&container).await;
    assert_eq!(no_engine.code, FailureCode::UNSUPPORTED);
    // The node's own rules come before all of it.
    let rules = Rules {
        forward: Some(false),
        ..Rules::default()
    };
    let policy = Policy::new(rules, false, Source::default()).unwrap();
    let node = Node::new(Tools {
        policy: Arc::new(policy),
        ..exposed
    })
    .await;
    let forbidden = node.refused(&open(port)).await;
    assert_eq!(forbidden.code, FailureCode::FORBIDDEN);
    assert!(forbidden.message.contains("policy.forward"), "{forbidden}");
    let still = node.refused(&granted(port)).await;
    assert_eq!(still.code, FailureCode::TARGET_REFUSED);
}
