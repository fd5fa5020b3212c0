//! An agent that answers what no agent should: the browser gets an answer of the hub's, and other
//! requests go on.

use std::time::Duration;

use bytes::Bytes;
use hub_protocol::kind::http::{Body, Header, Message, Outcome, RESPONSE, ResponseHead};
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_quic::operation::Operation;
use tokio::io::AsyncReadExt as _;

use crate::peers::{ask, fetch, read_head, read_to};
use crate::world::{InMemory, World, run_simulated};

/// A hub whose agent is played by the test.
pub async fn alone() -> World {
    World::simulated_alone(std::sync::Arc::new(InMemory(|_| Ok(())))).await
}

/// The next operation, taken.
pub async fn next(world: &World) -> Operation {
    let incoming = world.agent.accept().await.unwrap();
    let (operation, _) = incoming.operation().await.unwrap();
    operation.accept(Bytes::new());
    operation
}

/// Sends a message to the hub.
pub async fn say(operation: &Operation, message: &Message) {
    operation.send_message(kind::encode(message)).await.unwrap();
}

/// The head of a response.
pub fn head(status: u16, headers: &[(&'static str, &'static str)], body: Body) -> Message {
    let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
    let headers: Vec<Header> = headers.iter().map(|(n, v)| (bytes(n), bytes(v))).collect();
    Message::Head(ResponseHead {
        status,
        headers,
        upgrade: None,
        body,
    })
}

fn request(world: &World, method: &str) -> String {
    format!("{method} {}/ HTTP/1.1\r\nHost: hub\r\n\r\n", world.prefix())
}

#[test]
fn heads_that_are_none() {
    run_simulated(async {
        let world = alone().await;
        for message in [
            kind::encode(&head(200, &[("x y", "1")], Body::None)),
            kind::encode(&head(200, &[("x", "1\r\ny: 2")], Body::None)),
            kind::encode(&head(200, &[("x", "1"); 300], Body::None)),
            kind::encode(&head(99, &[], Body::None)),
            kind::encode(&head(100, &[], Body::None)),
            kind::encode(&head(101, &[], Body::None)),
            kind::encode(&head(1000, &[], Body::None)),
            kind::encode(&Message::Trailers(vec![])),
            Bytes::from_static(b"\xff"),
            Bytes::new(),
        ] {
            let mut browser = world.browser_in_memory();
            let line = request(&world, "GET");
            let agent = async {
                let operation = next(&world).await;
                operation.send_message(message).await.unwrap();
                operation.ended().await;
            };
            let ((head, body), ()) = tokio::join!(fetch(&mut browser, &line), agent);
            assert_eq!(head.status(), 502);
            assert!(body.contains("an answer that is no HTTP"), "{body}");
        }
        assert_eq!(world.hub.operations(), 0);
    });
}

#[test]
fn an_end_without_a_head() {
    run_simulated(async {
        let world = alone().await;
        let broken = |code| {
            kind::encode(&Outcome::Broken(Failure {
                code,
                message: "words of the agent's own".into(),
                retry: false,
            }))
        };
        for (outcome, status) in [
            (kind::encode(&Outcome::Complete), 502),
            (broken(FailureCode::TARGET_TIMED_OUT), 504),
            (broken(FailureCode::BUSY), 503),
            (broken(FailureCode(4711)), 502),
            (Bytes::from_static(b"\xff"), 502),
        ] {
            let mut browser = world.browser_in_memory();
            let line = request(&world, "GET");
            let agent = async { next(&world).await.finish(outcome) };
            let ((head, body), ()) = tokio::join!(fetch(&mut browser, &line), agent);
            assert_eq!(head.status(), status);
            assert!(!body.contains("words"), "{body}");
        }
    });
}

/// Headers of framing in an agent's head change nothing: what it says of the body does.
#[test]
fn framing_is_the_hubs_own() {
    run_simulated(async {
        let world = alone().await;
        let smuggled = [
            ("content-length", "1"),
            ("Transfer-Encoding", "chunked"),
            ("connection", "close"),
            ("x", "1"),
        ];
        let mut browser = world.browser_in_memory();
        let line = request(&world, "GET");
        let agent = async {
            let operation = next(&world).await;
            say(&operation, &head(200, &smuggled, Body::Length(5))).await;
            // And more than it announced.
            operation
                .sender(RESPONSE)
                .send("hello, world".into())
                .await
                .unwrap();
            operation.finish(kind::encode(&Outcome::Complete));
        };
        let ((head, body), ()) = tokio::join!(fetch(&mut browser, &line), agent);
        assert_eq!(
            (head.all("content-length"), &body[..]),
            (vec!["5"], "hello")
        );
        assert!(head.all("transfer-encoding").is_empty() && head.all("connection").is_empty());
    });
}

/// Less than was announced, with an end that claims that all is well.
#[test]
fn an_answer_that_is_shorter_than_announced() {
    run_simulated(async {
        let world = alone().await;
        let mut browser = world.browser_in_memory();
        let line = request(&world, "GET");
        let browsing = async {
            tokio::io::AsyncWriteExt::write_all(&mut browser, line.as_bytes())
                .await
                .unwrap();
            let mut head = read_head(&mut browser).await.unwrap();
            // It ends there and then, with too few bytes.
            browser.read_to_end(&mut head.rest).await.unwrap();
            assert_eq!(
                (head.all("content-length"), &head.rest[..]),
                (vec!["5"], &b"hi"[..])
            );
        };
        let agent = async {
            let operation = next(&world).await;
            say(&operation, &head(200, &[], Body::Length(5))).await;
            let mut sender = operation.sender(RESPONSE);
            sender.send("hi".into()).await.unwrap();
            sender.finish();
            operation.finish(kind::encode(&Outcome::Complete));
        };
        tokio::join!(browsing, agent);
    });
}

/// An agent that has sent the whole response and not said its last word: the browser has its
/// answer, and the operation is not cancelled for it. In the end, it is.
#[test]
fn an_agent_that_is_late_with_its_last_word() {
    run_simulated(async {
        let world = alone().await;
        for (method, body) in [
            ("GET", Body::Length(2)),
            ("GET", Body::Length(0)),
            ("HEAD", Body::None),
        ] {
            let mut browser = world.browser_in_memory();
            let line = request(&world, method);
            let agent = async {
                let operation = next(&world).await;
                say(&operation, &head(200, &[("content-length", "2")], body)).await;
                if body == Body::Length(2) {
                    operation.sender(RESPONSE).send("hi".into()).await.unwrap();
                }
                operation
            };
            let (mut head, operation) = tokio::join!(ask(&mut browser, &line), agent);
            assert_eq!(head.status(), 200);
            let length = if body == Body::Length(2) { 2 } else { 0 };
            read_to(&mut browser, &mut head.rest, length).await;
            drop(browser);
            let second = Duration::from_secs(1);
            tokio::time::timeout(29 * second, operation.ended())
                .await
                .unwrap_err();
            tokio::time::timeout(2 * second, operation.ended())
                .await
                .unwrap();
        }
    });
}
