//! Calls through operations: what is refused, what is answered, and what is undone.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use hub_protocol::kind::call::container::{Create, Created, Inspect, List, State, Stop};
use hub_protocol::kind::call::image::{self, Pull};
use hub_protocol::kind::call::{Call, Change, Open};
use tokio::sync::{Notify, mpsc};

use super::*;
use crate::engine::Engine;
use crate::engine::fake::{self, Asked};
use crate::engine::registry::{Registry, Stall};
use crate::operations::testing::{Node, ending, read_all, tools};

/// The reply of a call that goes well.
async fn reply<C: Call>(node: &Node, params: &C) -> C::Reply {
    let (operation, accepted) = node.begin(&Open::new(params)).await;
    assert!(accepted.is_empty());
    let reply = read_all(&operation, REPLY).await;
    assert_eq!(ending(&operation).await, Ending::Complete(()));
    serde_json::from_slice(&reply).unwrap()
}

/// Why a call fails that was begun.
async fn failed<C: Call>(node: &Node, params: &C) -> Failure {
    let (operation, _) = node.begin(&Open::new(params)).await;
    match ending::<()>(&operation).await {
        Ending::Failed(failure) => failure,
        Ending::Complete(()) => panic!("it goes well"),
    }
}

#[tokio::test]
async fn what_is_not_known_is_refused_by_name() {
    let engine = fake::engine(|_| async { (500, String::new()) }.boxed()).await;
    let node = Node::new(tools(Some(engine))).await;
    let ask = |method: &str, params: &'static str| Open {
        method: method.into(),
        params: Bytes::from_static(params.as_bytes()),
    };
    let refused = node.refused(&ask("container.fly", "{}")).await;
    assert_eq!(refused.code, FailureCode::UNSUPPORTED);
    assert!(refused.message.contains("\"container.fly\""), "{refused}");
    for (params, field) in [
        (r#"{"container": "a", "colour": "s3cret"}"#, "colour"),
        ("{}", "container"),
        ("no json", "container.start"),
    ] {
        let refused = node.refused(&ask("container.start", params)).await;
        assert_eq!(refused.code, FailureCode::INVALID);
        assert!(refused.message.contains(field), "{refused}");
        assert!(!refused.message.contains("s3cret"), "{refused}");
    }
}

#[tokio::test]
async fn without_an_engine_every_call_to_it_says_so() {
    let node = Node::new(tools(None)).await;
    let calls = call::METHODS
        .iter()
        .filter(|method| !method.starts_with("exec."));
    for method in calls {
        let params = match *method {
            "network.connect" | "network.disconnect" => r#"{"network": "n", "container": "c"}"#,
            "container.create" => r#"{"name": "nn", "image": "i"}"#,
            "container.update" => r#"{"container": "c", "resources": {}}"#,
            "network.remove" => r#"{"network": "n"}"#,
            "network.ensure" | "volume.ensure" | "volume.remove" => r#"{"name": "n"}"#,
            "container.list" | "image.list" | "network.list" | "volume.list" => "{}",
            method if method.starts_with("image.") => r#"{"image": "i"}"#,
            _ => r#"{"container": "c"}"#,
        };
        let open = Open {
            method: (*method).into(),
            params: params.into(),
        };
        let refused = node.refused(&open).await;
        assert_eq!(
            refused.code,
            FailureCode::UNSUPPORTED,
            "{method}: {refused}"
        );
        assert!(refused.message.contains("no container engine"), "{refused}");
    }
}

#[tokio::test]
async fn a_call_has_its_reply_and_not_there_is_one() {
    let engine = fake::engine(|asked: Asked| {
        async move {
            match &*asked.path {
                "/containers/web/stop?t=-7" => (204, String::new()),
                "/containers/idle/stop" => (304, String::new()),
                "/containers/sick/stop" => (500, r#"{"message": "boom"}"#.into()),
                path if path.starts_with("/containers/json") => (200, "[]".into()),
                _ => (404, r#"{"message": "No such container: x"}"#.into()),
            }
        }
        .boxed()
    })
    .await;
    let node = Node::new(tools(Some(engine))).await;
    let stop = |container: &str, timeout_s| Stop {
        container: container.into(),
        timeout_s,
    };
    // A timeout goes to the daemon as it is.
    assert_eq!(reply(&node, &stop("web", Some(-7))).await, Change::Changed);
    assert_eq!(reply(&node, &stop("idle", None)).await, Change::Unchanged);
    assert_eq!(reply(&node, &stop("gone", None)).await, Change::NotFound);
    assert_eq!(reply(&node, &stop("a/../b", None)).await, Change::NotFound);
    let sick = failed(&node, &stop("sick", None)).await;
    assert_eq!((sick.code, &*sick.message), (FailureCode::INTERNAL, "boom"));
    let gone = || "gone".to_owned();
    assert_eq!(reply(&node, &Inspect { container: gone() }).await, None);
    assert_eq!(reply(&node, &State { container: gone() }).await, None);
    assert_eq!(reply(&node, &List::default()).await, vec![]);
}

/// A daemon that is slow to create: tells what it is asked, and goes on when it is told to.
async fn slow_to_create() -> (Node, mpsc::UnboundedReceiver<String>, Arc<Notify>) {
    let (tell, told) = mpsc::unbounded_channel();
    let go_on = Arc::new(Notify::new());
    let wait = go_on.clone();
    let engine = fake::engine(move |asked: Asked| {
        let (tell, wait) = (tell.clone(), wait.clone());
        async move {
            tell.send(format!("{} {}", asked.method, asked.path))
                .unwrap();
            match &*asked.path {
                "/images/i/json" => (200, "{}".into()),
                "/containers/create?name=web&platform=" => {
                    wait.notified().await;
                    (201, r#"{"Id": "0123", "Warnings": ["w"]}"#.into())
                }
                path if path.starts_with("/containers/0123?") => (204, String::new()),
                _ => (404, r#"{"message": "No such container: x"}"#.into()),
            }
        }
        .boxed()
    })
    .await;
    (Node::new(tools(Some(engine))).await, told, go_on)
}

fn web() -> Create {
    Create {
        name: "web".into(),
        image: "i".into(),
        ..Create::default()
    }
}

#[tokio::test]
async fn a_container_that_nobody_waits_for_is_removed_again() {
    let (node, mut told, go_on) = slow_to_create().await;
    let (operation, _) = node.begin(&Open::new(&web())).await;
    while !told
        .recv()
        .await
        .unwrap()
        .starts_with("POST /containers/create?")
    {}
    drop(operation);
    // An answer to something later: by then the agent knows that nobody waits.
    let unknown = Open {
        method: "x".into(),
        params: Bytes::new(),
    };
    node.refused(&unknown).await;
    // The daemon goes on although nobody waits, as the real one does.
    go_on.notify_one();
    let removed = told.recv().await.unwrap();
    assert!(removed.starts_with("DELETE /containers/0123?"), "{removed}");
    assert!(removed.contains("v=true") && removed.contains("force=true"));
}

#[tokio::test]
async fn a_container_that_is_waited_for_stays() {
    let (node, mut told, go_on) = slow_to_create().await;
    go_on.notify_one();
    let created = Created {
        id: "0123".into(),
        warnings: vec!["w".into()],
    };
    assert_eq!(reply(&node, &web()).await, created);
    drop(node);
    let mut asked = Vec::new();
    while let Ok(one) = told.try_recv() {
        asked.push(one);
    }
    assert!(
        asked.iter().all(|one| !one.starts_with("DELETE")),
        "{asked:?}"
    );
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_pull_that_is_cancelled_at_the_hub_stops_at_the_daemon() {
    let engine = Engine::connect().await.unwrap();
    let node = Node::new(tools(Some(engine))).await;
    let mut registry = Registry::new(None, true).await;
    let pull = Pull {
        image: registry.image.clone(),
        platform: None,
        registry: None,
    };
    let (operation, _) = node.begin(&Open::new(&pull)).await;
    // Its progress comes, and says of what it is.
    let progress = operation.message().await.unwrap().unwrap();
    let progress: Progress = kind::decode("progress", &progress).unwrap();
    assert!(progress.status.starts_with("Pulling"), "{progress:?}");
    registry.reached(Stall::Stalled).await;
    drop(operation);
    registry.reached(Stall::GivenUp).await;
    let image = registry.image.clone();
    assert_eq!(reply(&node, &image::Inspect { image }).await, None);
}
