//! What breaks in the middle: it never looks whole, and costs nobody else anything.

use std::io::ErrorKind;

use hub_protocol::code::CloseCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::peers::{Target, ask, fetch, read_head, read_to};
use crate::world::{World, run};

fn get(world: &World, version: &str) -> String {
    format!(
        "GET {}/ HTTP/{version}\r\nHost: hub\r\n\r\n",
        world.prefix()
    )
}

/// A target that closes after `answer`.
async fn breaking(answer: &'static str) -> Target {
    Target::start(move |mut stream, _| async move {
        read_head(&mut stream).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
    })
    .await
}

#[test]
fn a_target_that_breaks_off() {
    run(async {
        let target = breaking("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").await;
        let world = World::real(target.port).await;
        let mut browser = world.browser().await;
        let mut head = ask(&mut browser, &get(&world, "1.1")).await;
        assert_eq!(head.all("content-length"), ["10"]);
        let _ = browser.read_to_end(&mut head.rest).await;
        assert_eq!(head.rest, b"half");
        world.idle().await;

        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n";
        let target = breaking(chunked).await;
        let world = World::real(target.port).await;
        let mut browser = world.browser().await;
        let mut head = ask(&mut browser, &get(&world, "1.1")).await;
        let _ = browser.read_to_end(&mut head.rest).await;
        assert_eq!(head.rest, b"4\r\nhalf\r\n", "no last chunk");
        world.idle().await;

        // A browser that reads to the connection's end must get an error instead of that end.
        let target = breaking(chunked).await;
        let world = World::real(target.port).await;
        let mut browser = world.browser().await;
        let mut head = ask(&mut browser, &get(&world, "1.0")).await;
        let read = browser.read_to_end(&mut head.rest).await;
        assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
        world.idle().await;
    });
}

/// An agent that is lost in the middle of an answer, and before it.
#[test]
fn a_session_that_ends() {
    run(async {
        let (say, mut asked) = mpsc::unbounded_channel();
        let target = Target::start(move |mut stream, _| {
            let say = say.clone();
            async move {
                let head = read_head(&mut stream).await.unwrap();
                if head.first().contains("/begun") {
                    let begun =
                        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n";
                    stream.write_all(begun.as_bytes()).await.unwrap();
                }
                say.send(()).unwrap();
                std::future::pending::<()>().await;
            }
        })
        .await;
        let world = World::real(target.port).await;
        let line = "HTTP/1.1\r\nHost: hub\r\n\r\n";
        let mut begun = world.browser().await;
        let mut head = ask(&mut begun, &format!("GET {}/begun {line}", world.prefix())).await;
        let half = b"4\r\nhalf\r\n";
        read_to(&mut begun, &mut head.rest, half.len()).await;
        asked.recv().await.unwrap();
        let mut waiting = world.browser().await;
        let request = format!("GET {}/waiting {line}", world.prefix());
        let lost = async {
            asked.recv().await.unwrap();
            world.agent.close(CloseCode::DONE, "lost");
        };
        let ((answer, body), ()) = tokio::join!(fetch(&mut waiting, &request), lost);
        assert_eq!(answer.status(), 502);
        assert!(
            body.contains("browser --- hub -X- agent --- target"),
            "{body}"
        );
        assert!(body.contains("may have had the request"), "{body}");
        let _ = begun.read_to_end(&mut head.rest).await;
        assert_eq!(head.rest, half, "no last chunk");
    });
}

/// A browser that goes away closes its connection to the target, whatever was under way.
#[test]
fn a_browser_that_goes_away() {
    run(async {
        let (say, mut events) = mpsc::unbounded_channel();
        let target = Target::start(move |mut stream, _| {
            let say = say.clone();
            async move {
                let head = read_head(&mut stream).await.unwrap();
                if head.first().contains("/begun") {
                    let begun = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                    stream.write_all(begun.as_bytes()).await.unwrap();
                }
                say.send("asked").unwrap();
                let mut rest = Vec::new();
                let _ = stream.read_to_end(&mut rest).await;
                say.send("gone").unwrap();
            }
        })
        .await;
        let world = World::real(target.port).await;
        for (method, path, body) in [
            ("GET", "waiting", ""),
            ("GET", "begun", ""),
            ("POST", "waiting", "Content-Length: 10\r\n\r\nhalf"),
            ("POST", "begun", "Content-Length: 10\r\n\r\nhalf"),
        ] {
            let mut browser = world.browser().await;
            let end = if body.is_empty() { "\r\n" } else { body };
            let line = format!(
                "{method} {}/{path} HTTP/1.1\r\nHost: hub\r\n{end}",
                world.prefix()
            );
            browser.write_all(line.as_bytes()).await.unwrap();
            assert_eq!(events.recv().await.unwrap(), "asked");
            if path == "begun" {
                assert_eq!(read_head(&mut browser).await.unwrap().status(), 200);
            }
            drop(browser);
            assert_eq!(events.recv().await.unwrap(), "gone", "{method} {path}");
            world.idle().await;
        }
        assert_eq!(world.connections.idle(), 0);
    });
}

/// A body that is malformed costs its own request; the target never takes it for whole.
#[test]
fn an_upload_that_breaks() {
    run(async {
        let (say, mut uploads) = mpsc::unbounded_channel();
        let target = Target::start(move |mut stream, _| {
            let say = say.clone();
            async move {
                let mut head = read_head(&mut stream).await.unwrap();
                let _ = stream.read_to_end(&mut head.rest).await;
                say.send(head.rest).unwrap();
            }
        })
        .await;
        let world = World::real(target.port).await;
        let mut browser = world.browser().await;
        let request = format!(
            "POST {}/ HTTP/1.1\r\nHost: hub\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
            world.prefix()
        );
        browser.write_all(request.as_bytes()).await.unwrap();
        while world.connections.idle() + (world.agent.operations() as usize) == 0 {
            tokio::task::yield_now().await;
        }
        let head = ask(&mut browser, "no number\r\n").await;
        assert_eq!(head.status(), 400);
        let upload = uploads.recv().await.unwrap();
        assert!(!upload.ends_with(b"0\r\n\r\n"), "{upload:?}");
        world.idle().await;
    });
}
