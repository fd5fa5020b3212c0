//! Corners of HTTP/1.1 at the browser's side.

use std::time::Duration;

use bytes::Bytes;
use hub_protocol::kind;
use hub_protocol::kind::http::{Body, Message, Outcome, REQUEST, RESPONSE};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use crate::hostile::{alone, head, next, say};
use crate::peers::{Target, ask, fetch, read_head, read_to};
use crate::world::{World, run, run_simulated};

/// A target that answers with the first line of what it is asked.
async fn telling() -> Target {
    Target::start(|mut stream, _| async move {
        while let Some(mut head) = read_head(&mut stream).await {
            let length = head
                .all("content-length")
                .first()
                .map(|n| n.parse().unwrap());
            read_to(&mut stream, &mut head.rest, length.unwrap_or(0)).await;
            let text = format!("{} {}", head.first(), String::from_utf8_lossy(&head.rest));
            let answer = format!(
                "HTTP/1.1 200 OK\r\nDate: never\r\nContent-Length: {}\r\n\r\n{text}",
                text.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await
}

#[test]
fn odd_paths_arrive_as_they_are() {
    run(async {
        let world = World::real(telling().await.port).await;
        let mut browser = world.browser().await;
        for path in [
            "/%2F/%2f/a%2Fb",
            "//",
            "//evil.example/a",
            "/./../a/..",
            "/..%2f..%2Fetc",
            "/%00%0d%0a",
            "/a;b=c,d",
            "/?",
            "/??a=/?b",
            "/a?b=%7B%22%7D&c=d+e&&",
            "/%",
            "/%zz",
            "/~a!$&'()*+,;=:@",
        ] {
            for request in [
                format!("GET {path} HTTP/1.1\r\nHost: shop.hub.test\r\n\r\n"),
                format!("GET http://shop.hub.test{path} HTTP/1.1\r\nHost: a\r\n\r\n"),
                format!("GET {}{path} HTTP/1.1\r\nHost: hub\r\n\r\n", world.prefix()),
            ] {
                let (_, body) = fetch(&mut browser, &request).await;
                assert_eq!(body, format!("GET {path} HTTP/1.1 "), "{request}");
            }
        }
    });
}

#[test]
fn parts_of_a_file() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            let head = read_head(&mut stream).await.unwrap();
            assert_eq!(head.all("range"), ["bytes=0-1,4-5"]);
            assert_eq!(head.all("if-range"), ["\"x\""]);
            stream.write_all(PARTS.as_bytes()).await.unwrap();
        })
        .await;
        let world = World::real(target.port).await;
        let request = format!(
            "GET {}/ HTTP/1.1\r\nHost: hub\r\nRange: bytes=0-1,4-5\r\nIf-Range: \"x\"\r\n\r\n",
            world.prefix()
        );
        let (head, body) = fetch(&mut world.browser().await, &request).await;
        assert_eq!(head.first(), "HTTP/1.1 206 Partial Content");
        let kind = "multipart/byteranges; boundary=b";
        assert_eq!(head.all("content-type"), [kind]);
        assert_eq!(
            Some(&body[..]),
            PARTS.split_once("\r\n\r\n").map(|(_, body)| body)
        );
    });
}

const PARTS: &str = "HTTP/1.1 206 Partial Content\r\nContent-Length: 85\r\n\
    Content-Type: multipart/byteranges; boundary=b\r\n\r\n\
    --b\r\nContent-Range: bytes 0-1/6\r\n\r\nab\r\n--b\r\nContent-Range: bytes 4-5/6\r\n\r\nef\r\n\
    --b--\r\n";

#[test]
fn dates_are_the_targets_own_or_added() {
    run(async {
        let world = World::real(telling().await.port).await;
        let request = format!("GET {}/ HTTP/1.1\r\nHost: hub\r\n\r\n", world.prefix());
        let (head, _) = fetch(&mut world.browser().await, &request).await;
        assert_eq!(head.all("date"), ["never"]);
        let (head, _) = fetch(
            &mut world.browser().await,
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        )
        .await;
        let date = head.all("date");
        assert!(date.len() == 1 && date[0].ends_with(" GMT"), "{date:?}");
    });
}

/// Bodies and requests in one piece: each byte is where it belongs.
#[test]
fn pipelined_bodies() {
    run(async {
        let world = World::real(telling().await.port).await;
        let mut browser = world.browser().await;
        let path = world.prefix();
        let all = format!(
            "POST {path}/1 HTTP/1.1\r\nHost: hub\r\nContent-Length: 3\r\n\r\nabc\
             \r\nPUT {path}/2 HTTP/1.1\r\nHost: hub\r\nContent-Length: 0\r\n\r\n\
             GET {path}/3 HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n\r\n\
             GET {path}/4 HTTP/1.1\r\nHost: hub\r\n\r\n"
        );
        browser.write_all(all.as_bytes()).await.unwrap();
        let mut answers = Vec::new();
        browser.read_to_end(&mut answers).await.unwrap();
        let answers = String::from_utf8(answers).unwrap();
        let bodies: Vec<_> = answers
            .split("\r\n\r\n")
            .skip(1)
            .map(|body| body.split("HTTP/1.1 200").next().unwrap())
            .collect();
        assert_eq!(
            bodies,
            [
                "POST /1 HTTP/1.1 abc",
                "PUT /2 HTTP/1.1 ",
                "GET /3 HTTP/1.1 "
            ]
        );
        let closes = answers.matches("connection: close").count();
        assert_eq!(closes, 1, "nothing is answered after it: {answers}");
    });
}

#[test]
fn an_old_browser_may_keep_its_connection() {
    run(async {
        let world = World::real(telling().await.port).await;
        let mut browser = world.browser().await;
        let request = format!(
            "GET {}/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            world.prefix()
        );
        for _ in 0..2 {
            let (head, _) = fetch(&mut browser, &request).await;
            assert_eq!(head.all("connection"), ["keep-alive"]);
        }
    });
}

/// Trailers that nobody has announced pass. Those that would be believed once they are among the
/// headers do not, in either direction.
#[test]
fn trailers_that_must_not_be() {
    run_simulated(async {
        let world = alone().await;
        let mut browser = world.browser_in_memory();
        let request = format!(
            "POST {}/ HTTP/1.1\r\nHost: hub\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nup\r\n0\r\n\
             X-Sum: 1\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\nHost: evil\r\n\
             Authorization: x\r\nCookie: x\r\nX-Forwarded-For: x\r\n\r\n",
            world.prefix()
        );
        let agent = async {
            let operation = next(&world).await;
            let mut receiver = operation.receiver(REQUEST);
            assert_eq!(receiver.chunk().await.unwrap().unwrap(), "up");
            assert!(receiver.chunk().await.unwrap().is_none());
            let message = operation.message().await.unwrap().unwrap();
            let Ok(Message::Trailers(lines)) = kind::decode("message", &message) else {
                panic!("no trailers");
            };
            assert_eq!(lines, [(Bytes::from("x-sum"), Bytes::from("1"))]);
            say(&operation, &head(200, &[], Body::Chunked)).await;
            let mut sender = operation.sender(RESPONSE);
            sender.send("hi".into()).await.unwrap();
            let lines = [("x-sum", "2"), ("content-length", "9"), ("set-cookie", "x")];
            let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
            let lines = lines.map(|(name, value)| (bytes(name), bytes(value)));
            say(&operation, &Message::Trailers(lines.to_vec())).await;
            sender.finish();
            operation.finish(kind::encode(&Outcome::Complete));
        };
        let (mut head, ()) = tokio::join!(ask(&mut browser, &request), agent);
        let all = "2\r\nhi\r\n0\r\nx-sum: 2\r\n\r\n";
        read_to(&mut browser, &mut head.rest, all.len()).await;
        assert_eq!(String::from_utf8(head.rest).unwrap(), all);
    });
}

/// A browser that reads nothing before it has sent everything, although its answer came early.
#[test]
fn a_browser_that_sends_first_and_reads_then() {
    run_simulated(async {
        let world = alone().await;
        let mut browser = world.browser_in_memory();
        let length = 8 * 1024 * 1024;
        let request = format!(
            "POST {}/ HTTP/1.1\r\nHost: hub\r\nContent-Length: {length}\r\n\r\n",
            world.prefix()
        );
        browser.write_all(request.as_bytes()).await.unwrap();
        let operation = next(&world).await;
        // More than there is room for on the way, so that it is not all written either.
        let answer = vec![b'n'; 100_000];
        let agent = async {
            say(&operation, &head(413, &[], Body::Length(100_000))).await;
            drop(operation.receiver(REQUEST));
            let mut sender = operation.sender(RESPONSE);
            sender.send(answer.clone().into()).await.unwrap();
            sender.finish();
            operation.finish(kind::encode(&Outcome::Complete));
        };
        let browsing = async {
            browser.write_all(&vec![7; length]).await.unwrap();
            let mut head = read_head(&mut browser).await.unwrap();
            assert_eq!(head.status(), 413);
            read_to(&mut browser, &mut head.rest, answer.len()).await;
            assert_eq!(head.rest, answer);
        };
        tokio::join!(agent, browsing);
        // And the connection is good for another request.
        let (head, _) = fetch(&mut browser, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert_eq!(head.status(), 404);
    });
}

/// A browser that closes its side behind its request gets the answer that is there, and cannot
/// wait for long: it may as well be gone.
#[test]
fn a_browser_that_closes_its_side() {
    run(async {
        let world = World::real(telling().await.port).await;
        let mut browser = world.browser().await;
        let request = format!("GET {}/ HTTP/1.1\r\nHost: hub\r\n\r\n", world.prefix());
        browser
            .write_all(request.repeat(2).as_bytes())
            .await
            .unwrap();
        browser.shutdown().await.unwrap();
        let mut all = Vec::new();
        browser.read_to_end(&mut all).await.unwrap();
        let all = String::from_utf8(all).unwrap();
        assert_eq!(all.matches("GET / HTTP/1.1 ").count(), 2, "{all}");
        world.idle().await;
    });
    run_simulated(async {
        let world = alone().await;
        let mut browser = world.browser_in_memory();
        let request = format!("GET {}/ HTTP/1.1\r\nHost: hub\r\n\r\n", world.prefix());
        browser.write_all(request.as_bytes()).await.unwrap();
        let operation = next(&world).await;
        browser.shutdown().await.unwrap();
        let closed = Instant::now();
        operation.ended().await;
        assert!(closed.elapsed() >= Duration::from_secs(1));
        assert_eq!(browser.read(&mut [0]).await.unwrap(), 0);
    });
}

/// No tunnel to a protocol in which requests would pass unseen: the request is an ordinary one.
#[test]
fn no_upgrade_to_another_http() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            let head = read_head(&mut stream).await.unwrap();
            assert!(head.all("upgrade").is_empty() && head.all("http2-settings").is_empty());
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(answer).await.unwrap();
        })
        .await;
        let world = World::real(target.port).await;
        let request = format!(
            "GET {}/ HTTP/1.1\r\nHost: hub\r\nConnection: Upgrade, HTTP2-Settings\r\n\
             Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
            world.prefix()
        );
        let (head, _) = fetch(&mut world.browser().await, &request).await;
        assert_eq!(head.status(), 200);
    });
}
