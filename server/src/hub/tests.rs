//! Calls and watches of a hub whose nodes do what the test says.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use hub_protocol::kind::call::container::{Remove, State};
use hub_protocol::kind::call::{self, Change, Progress, REPLY};
use hub_protocol::kind::records::Events;
use hub_protocol::kind::transfer::{Ending, OUT};
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_quic::operation::Operation;
use tokio::sync::mpsc;

use super::*;
use crate::scripted::{connect, hub, join};

fn done<T: serde::Serialize>(operation: Operation, ending: &Ending<T>) {
    operation.finish(kind::encode(ending));
}

async fn send(operation: &Operation, bytes: &str) {
    let mut sender = operation.sender(OUT);
    sender.send(Bytes::from(bytes.to_owned())).await.unwrap();
}

fn remove() -> Remove {
    Remove {
        container: "web".into(),
        force: true,
        volumes: false,
    }
}

#[tokio::test]
async fn a_call_has_its_reply_and_its_progress() {
    let hub = hub().await;
    let agent = connect(&hub, &join(&hub, "n1", 1).await, 1);
    let (says, mut said) = mpsc::channel(1);
    let progress = Progress {
        id: "layer".into(),
        status: "Downloading".into(),
        current: Some(1),
        total: None,
    };
    let carry_out = async {
        let (operation, open) = agent.asked::<call::Open>().await;
        assert_eq!(open.params::<Remove>().unwrap(), remove());
        operation.accept(Bytes::new());
        let message = kind::encode(&progress);
        operation.send_message(message).await.unwrap();
        let mut reply = operation.sender(REPLY);
        reply.send(kind::to_json(&Change::Changed)).await.unwrap();
        reply.finish();
        done(operation, &Ending::Complete(()));
    };
    let params = remove();
    let call = hub.call("n1", &params, Some(says));
    let (reply, (), heard) = tokio::join!(call, carry_out, said.recv());
    assert_eq!(reply, Ok(Change::Changed));
    assert_eq!(heard, Some(progress));
}

#[tokio::test]
async fn only_a_call_that_reads_may_be_asked_again_after_a_lost_session() {
    let hub = hub().await;
    let node = join(&hub, "n1", 1).await;
    let params = State {
        container: "web".into(),
    };
    let agent = connect(&hub, &node, 1);
    let lose = async {
        let (operation, _) = agent.asked::<call::Open>().await;
        operation.accept(Bytes::new());
        agent.lose(&hub, &node, 1);
    };
    let (reads, ()) = tokio::join!(hub.call("n1", &params, None), lose);
    let error = reads.unwrap_err();
    assert!(matches!(error, CallError::Lost { .. }) && error.retry_helps());
    let agent = connect(&hub, &node, 2);
    let lose = async {
        let (operation, _) = agent.asked::<call::Open>().await;
        operation.accept(Bytes::new());
        agent.lose(&hub, &node, 2);
    };
    let params = remove();
    let (changes, ()) = tokio::join!(hub.call("n1", &params, None), lose);
    let error = changes.unwrap_err();
    // Whether the agent's first answer was still heard makes no difference.
    let unknown = matches!(
        error,
        CallError::Unknown { .. } | CallError::Ask(AskError::Unknown { .. })
    );
    assert!(unknown && !error.retry_helps(), "{error:?}");
}

#[tokio::test]
async fn a_call_that_goes_wrong_says_how() {
    let hub = hub().await;
    let agent = connect(&hub, &join(&hub, "n1", 1).await, 1);
    let failure = Failure::new(FailureCode::CONFLICT, "it is in use");
    let fail = async {
        let (operation, _) = agent.asked::<call::Open>().await;
        operation.accept(Bytes::new());
        done(operation, &Ending::<()>::Failed(failure.clone()));
    };
    let params = remove();
    let (failed, ()) = tokio::join!(hub.call("n1", &params, None), fail);
    let node = || "n1".parse().unwrap();
    let expected = CallError::Failed {
        node: node(),
        failure,
    };
    assert_eq!(failed, Err(expected));
    // A reply without end is not gathered without end.
    let flood = async {
        let (operation, _) = agent.asked::<call::Open>().await;
        operation.accept(Bytes::new());
        let mut reply = operation.sender(REPLY);
        let piece = Bytes::from(vec![b' '; 64 * 1024]);
        let mut sent = 0;
        while reply.send(piece.clone()).await.is_ok() {
            sent += piece.len();
        }
        sent
    };
    let (flooded, sent) = tokio::join!(hub.call("n1", &params, None), flood);
    assert!(matches!(flooded, Err(CallError::Nonsense { .. })));
    assert!((call::MAX_REPLY..call::MAX_REPLY + 2 * 1024 * 1024).contains(&sent));
    // Parameters that are too large are not sent.
    let params = Remove {
        container: "x".repeat(call::MAX_PARAMS),
        force: false,
        volumes: false,
    };
    let error = hub.call("n1", &params, None).await.unwrap_err();
    assert!(matches!(error, CallError::TooLarge { .. }));
    assert_eq!(agent.session.operations(), 0);
}

#[tokio::test]
async fn a_watch_goes_on_behind_the_last_line_when_the_node_is_back() {
    let hub = hub().await;
    let node = join(&hub, "n1", 1).await;
    let agent = connect(&hub, &node, 1);
    let began = hub.clock().now();
    let events = Events::default();
    let name = node.name.clone();
    let mut watch = Watch::new(hub.clone(), node.id, name, events, began);
    let line = |n: u8| format!("{{\"record\":\"lagged\",\"events\":1,\"cursor\":\"c{n}\"}}\n");
    let first = async {
        let (operation, asked) = agent.asked::<Events>().await;
        assert_eq!(asked, Events::default());
        operation.accept(Bytes::new());
        send(&operation, &format!("{}{}{{\"cut", line(1), line(2))).await;
        operation
    };
    let (piece, operation) = tokio::join!(watch.next(), first);
    let both = Bytes::from(format!("{}{}", line(1), line(2)));
    assert_eq!(piece, Ok(Some(Piece::Lines(both))));
    agent.lose(&hub, &node, 1);
    drop(operation);
    assert_eq!(watch.next().await, Ok(Some(Piece::Away)));
    let back = async {
        tokio::task::yield_now().await;
        let agent = connect(&hub, &node, 2);
        let (operation, asked) = agent.asked::<Events>().await;
        assert_eq!(asked.cursor.as_deref(), Some("c2"));
        operation.accept(Bytes::new());
        send(&operation, &line(3)).await;
        done(operation, &Ending::Complete(()));
        agent
    };
    let (piece, agent) = tokio::join!(watch.next(), back);
    assert_eq!(piece, Ok(Some(Piece::Back)));
    let third = Bytes::from(line(3));
    assert_eq!(watch.next().await, Ok(Some(Piece::Lines(third))));
    assert_eq!(watch.next().await, Ok(None));
    drop(agent);
}

#[tokio::test]
async fn a_watch_of_a_node_that_was_revoked_ends() {
    let hub = hub().await;
    let node = join(&hub, "n1", 1).await;
    let now = hub.clock().now();
    hub.store().revoke_node(node.id, now).await.unwrap();
    let name = node.name.clone();
    let mut watch = Watch::new(hub.clone(), node.id, name, Events::default(), now);
    let error = watch.next().await.unwrap_err();
    assert!(matches!(error, GaveUp::Refused(AskError::Revoked { .. })));
}
