//! Informational responses, and browsers that ask before they send a body. The agent is the test.

use bytes::Bytes;
use hub_protocol::kind;
use hub_protocol::kind::http::{
    Body, Header, Informational, Message, Open, Outcome, REQUEST, RESPONSE,
};
use hub_quic::operation::Operation;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::hostile::{alone, head, next, say};
use crate::peers::{Target, ask, closed_port, fetch, read_head, read_to};
use crate::world::{World, run, run_simulated};

fn informational(status: u16, headers: &[(&'static str, &'static str)]) -> Message {
    let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
    let headers: Vec<Header> = headers.iter().map(|(n, v)| (bytes(n), bytes(v))).collect();
    Message::Informational(Informational { status, headers })
}

/// Answers `hi` for good.
async fn answer(operation: Operation) {
    say(&operation, &head(200, &[], Body::Length(2))).await;
    let mut sender = operation.sender(RESPONSE);
    sender.send("hi".into()).await.unwrap();
    sender.finish();
    operation.finish(kind::encode(&Outcome::Complete));
}

#[test]
fn hints_come_before_their_response() {
    run_simulated(async {
        let world = alone().await;
        let mut browser = world.browser_in_memory();
        let get = format!("GET {}/ HTTP/1.1\r\nHost: hub\r\n\r\n", world.prefix());
        // Twice: the connection lives on.
        for _ in 0..2 {
            let hint = [
                ("link", "</a.css>; rel=preload"),
                ("content-length", "7"),
                ("connection", "x"),
                ("x", "1"),
            ];
            // The first arrives before there is anything else.
            let agent = async {
                let operation = next(&world).await;
                say(&operation, &informational(103, &hint)).await;
                operation
            };
            let (mut first, operation) = tokio::join!(ask(&mut browser, &get), agent);
            assert_eq!(first.status(), 103);
            assert_eq!(first.lines.len(), 2, "{first:?}");
            assert_eq!(first.all("link"), ["</a.css>; rel=preload"]);
            assert!(first.rest.is_empty());
            for status in [102, 103, 199] {
                say(&operation, &informational(status, &[])).await;
            }
            answer(operation).await;
            let end = b"\r\n\r\nhi";
            while !first.rest.ends_with(end) {
                assert!(browser.read_buf(&mut first.rest).await.unwrap() > 0);
            }
            let text = String::from_utf8(first.rest).unwrap();
            let statuses: Vec<_> = text
                .lines()
                .filter_map(|line| line.strip_prefix("HTTP/1.1 "))
                .map(|line| &line[..3])
                .collect();
            assert_eq!(statuses, ["102", "103", "199", "200"]);
        }
    });
}

#[test]
fn an_old_browser_gets_no_hints() {
    run_simulated(async {
        let world = alone().await;
        let mut browser = world.browser_in_memory();
        let request = format!(
            "POST {}/ HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
            world.prefix()
        );
        let agent = async {
            let incoming = world.agent.accept().await.unwrap();
            let (operation, open) = incoming.operation().await.unwrap();
            operation.accept(Bytes::new());
            let open: Open = kind::decode("http", &open.payload).unwrap();
            assert!(
                open.head
                    .headers
                    .iter()
                    .all(|(name, _)| &name[..] != b"expect")
            );
            for status in [100, 103, 103, 103, 103, 103, 103] {
                say(&operation, &informational(status, &[])).await;
            }
            answer(operation).await;
        };
        let ((head, body), ()) = tokio::join!(fetch(&mut browser, &request), agent);
        assert_eq!((head.status(), &body[..]), (200, "hi"));
    });
}

#[test]
fn what_is_no_informational_response() {
    run_simulated(async {
        let world = alone().await;
        for message in [
            informational(101, &[]),
            informational(200, &[]),
            informational(99, &[]),
            informational(103, &[("x y", "1")]),
            informational(103, &[("x", "1\r\n\r\n")]),
        ] {
            let mut browser = world.browser_in_memory();
            let get = format!("GET {}/ HTTP/1.1\r\nHost: hub\r\n\r\n", world.prefix());
            let agent = async {
                let operation = next(&world).await;
                say(&operation, &message).await;
                operation.ended().await;
            };
            let ((head, body), ()) = tokio::join!(fetch(&mut browser, &get), agent);
            assert_eq!(head.status(), 502);
            assert!(body.contains("an answer that is no HTTP"), "{body}");
        }
    });
}

fn expecting(world: &World) -> String {
    format!(
        "POST {}/ HTTP/1.1\r\nHost: hub\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
        world.prefix()
    )
}

/// The target's own go-ahead, and none before it.
#[test]
fn a_body_that_the_target_asks_for() {
    run_simulated(async {
        let world = alone().await;
        let mut browser = world.browser_in_memory();
        for _ in 0..2 {
            browser
                .write_all(expecting(&world).as_bytes())
                .await
                .unwrap();
            let incoming = world.agent.accept().await.unwrap();
            let (operation, open) = incoming.operation().await.unwrap();
            operation.accept(Bytes::new());
            let open: Open = kind::decode("http", &open.payload).unwrap();
            let expect = (Bytes::from("expect"), Bytes::from("100-continue"));
            assert!(open.head.headers.contains(&expect));
            assert_eq!(open.head.body, Body::Length(2));
            let a_while = std::time::Duration::from_secs(30);
            let early = tokio::time::timeout(a_while, read_head(&mut browser)).await;
            assert!(early.is_err(), "the hub says nothing of its own: {early:?}");
            say(&operation, &informational(100, &[])).await;
            assert_eq!(read_head(&mut browser).await.unwrap().status(), 100);
            browser.write_all(b"up").await.unwrap();
            let mut receiver = operation.receiver(REQUEST);
            assert_eq!(receiver.chunk().await.unwrap().unwrap(), "up");
            assert!(receiver.chunk().await.unwrap().is_none());
            answer(operation).await;
            let mut head = read_head(&mut browser).await.unwrap();
            assert!(head.all("connection").is_empty());
            read_to(&mut browser, &mut head.rest, 2).await;
        }
    });
}

/// A target that answers instead: the body is never asked for, and the connection ends, as what
/// comes next on it could be the body or a request.
#[test]
fn a_body_that_the_target_does_not_want() {
    run_simulated(async {
        let world = alone().await;
        let mut browser = world.browser_in_memory();
        let request = expecting(&world);
        let agent = async { answer(next(&world).await).await };
        let ((head, body), ()) = tokio::join!(fetch(&mut browser, &request), agent);
        assert_eq!((head.status(), &body[..]), (200, "hi"));
        assert_eq!(head.all("connection"), ["close"]);
        assert_eq!(browser.read(&mut [0]).await.unwrap(), 0);
    });
}

/// A browser that does not wait for long: its body goes on although there was no go-ahead.
#[test]
fn a_body_that_comes_unasked() {
    run_simulated(async {
        let world = alone().await;
        let mut browser = world.browser_in_memory();
        let request = expecting(&world) + "up";
        let agent = async {
            let operation = next(&world).await;
            let mut receiver = operation.receiver(REQUEST);
            assert_eq!(receiver.chunk().await.unwrap().unwrap(), "up");
            assert!(receiver.chunk().await.unwrap().is_none());
            answer(operation).await;
        };
        let ((head, _), ()) = tokio::join!(fetch(&mut browser, &request), agent);
        assert!(head.all("connection").is_empty(), "{head:?}");
    });
}

/// From end to end, with targets that decide each in its way.
#[test]
fn expectations_are_the_targets_to_answer() {
    run(async {
        let refusing = World::real(closed_port().await).await;
        let request = expecting(&refusing);
        let (head, _) = fetch(&mut refusing.browser().await, &request).await;
        assert_eq!(
            (head.status(), head.all("connection")),
            (502, vec!["close"])
        );

        let target = Target::start(|mut stream, number| async move {
            let mut head = read_head(&mut stream).await.unwrap();
            assert_eq!(head.all("expect"), ["100-continue"]);
            assert!(head.rest.is_empty(), "nobody has asked for the body");
            if number == 0 {
                let hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
                stream.write_all(hints).await.unwrap();
                let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
                stream.write_all(go_on).await.unwrap();
                read_to(&mut stream, &mut head.rest, 2).await;
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                stream.write_all(answer).await.unwrap();
            } else {
                let answer = b"HTTP/1.1 417 Expectation Failed\r\nConnection: close\r\n\
                    Content-Length: 0\r\n\r\n";
                stream.write_all(answer).await.unwrap();
            }
        })
        .await;
        let world = World::real(target.port).await;
        let mut browser = world.browser().await;
        let mut hints = ask(&mut browser, &expecting(&world)).await;
        assert_eq!((hints.status(), hints.all("link")), (103, vec!["</a>"]));
        let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
        read_to(&mut browser, &mut hints.rest, go_on.len()).await;
        assert_eq!(hints.rest, go_on);
        assert_eq!(ask(&mut browser, "up").await.status(), 200);
        world.idle().await;

        let mut browser = world.browser().await;
        let head = ask(&mut browser, &expecting(&world)).await;
        assert_eq!(
            (head.status(), head.all("connection")),
            (417, vec!["close"])
        );
        world.idle().await;
    });
}
