//! Bodies: streamed both ways at once, whole, and as fast as the slower side.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use ring::digest::{Context, SHA256};
use tokio::io::{AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc;

use crate::peers::{Target, ask, fetch, read_head, read_to};
use crate::world::{InMemory, World, run, run_simulated};

const MIB: usize = 1024 * 1024;

/// Bytes that repeat after no power of two.
fn pattern(len: usize) -> Bytes {
    (0..len).map(|n| (n % 251) as u8).collect()
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    ring::digest::digest(&SHA256, bytes).as_ref().to_vec()
}

/// A target that sends back what it is sent, as it comes.
async fn echo() -> Target {
    Target::start(|stream, _| async move {
        let echo = |request: Request<Incoming>| async {
            let method = request.method().to_string();
            let mut response = Response::new(request.into_body());
            response
                .headers_mut()
                .insert("x-method", method.parse().unwrap());
            Ok::<_, Infallible>(response)
        };
        let server = hyper::server::conn::http1::Builder::new();
        let _ = server
            .serve_connection(TokioIo::new(stream), service_fn(echo))
            .await;
    })
    .await
}

#[test]
fn bodies_of_all_methods_come_back() {
    run(async {
        let world = World::real(echo().await.port).await;
        let mut browser = world.browser().await;
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let head = format!("{method} {}/ HTTP/1.1\r\nHost: hub\r\n", world.prefix());
            let request = format!("{head}Content-Length: 5\r\n\r\nhello");
            let (response, body) = fetch(&mut browser, &request).await;
            assert_eq!(response.all("x-method"), [method]);
            assert_eq!(
                (response.all("content-length"), &body[..]),
                (vec!["5"], "hello")
            );

            let request =
                format!("{head}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
            let mut response = ask(&mut browser, &request).await;
            assert_eq!(response.all("transfer-encoding"), ["chunked"]);
            let all = b"5\r\nhello\r\n0\r\n\r\n";
            read_to(&mut browser, &mut response.rest, all.len()).await;
            assert_eq!(response.rest, all);
        }
    });
}

#[test]
fn twenty_mebibytes_each_way() {
    run(async {
        let world = World::real(echo().await.port).await;
        for announced in [true, false] {
            let stream = world.browser().await;
            let (mut requests, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream))
                    .await
                    .unwrap();
            tokio::spawn(connection);
            let sent = pattern(20 * MIB + 1);
            let expected = sha256(&sent);
            let body = if announced {
                Full::new(sent).boxed()
            } else {
                let (pieces, body) = mpsc::unbounded_channel();
                for at in (0..sent.len()).step_by(100_000) {
                    let piece = sent.slice(at..sent.len().min(at + 100_000));
                    pieces.send(Ok(Frame::data(piece))).unwrap();
                }
                StreamBody::new(stream_of(body)).boxed()
            };
            let request = Request::post(format!("{}/", world.prefix()))
                .header("host", "hub")
                .body(body)
                .unwrap();
            let mut response = requests.send_request(request).await.unwrap();
            assert_eq!(response.headers().contains_key("content-length"), announced);
            let mut sum = Context::new(&SHA256);
            while let Some(frame) = response.frame().await {
                sum.update(frame.unwrap().data_ref().unwrap());
            }
            assert_eq!(sum.finish().as_ref(), expected);
        }
    });
}

fn stream_of<T>(mut pieces: mpsc::UnboundedReceiver<T>) -> impl futures_util::Stream<Item = T> {
    futures_util::stream::poll_fn(move |cx| pieces.poll_recv(cx))
}

#[test]
fn trailers_cross_both_ways() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            let mut head = read_head(&mut stream).await.unwrap();
            assert_eq!(head.all("trailer"), ["x-sum"]);
            let all = "5\r\nhello\r\n0\r\nx-sum: up\r\n\r\n";
            read_to(&mut stream, &mut head.rest, all.len()).await;
            assert_eq!(String::from_utf8(head.rest).unwrap(), all);
            let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n\
                          2\r\nhi\r\n0\r\nX-Sum: down\r\n\r\n";
            stream.write_all(answer.as_bytes()).await.unwrap();
        })
        .await;
        let world = World::real(target.port).await;
        let mut browser = world.browser().await;
        let request = format!(
            "POST {}/ HTTP/1.1\r\nHost: hub\r\nTE: trailers\r\nConnection: TE\r\nTrailer: x-sum\r\n\
             Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: up\r\n\r\n",
            world.prefix()
        );
        let mut head = ask(&mut browser, &request).await;
        let all = "2\r\nhi\r\n0\r\nx-sum: down\r\n\r\n";
        read_to(&mut browser, &mut head.rest, all.len()).await;
        assert_eq!(String::from_utf8(head.rest).unwrap(), all);
    });
}

/// Each event arrives before the target makes the next.
#[test]
fn events_come_one_by_one() {
    run(async {
        let (next, wait) = mpsc::unbounded_channel();
        let wait = Arc::new(tokio::sync::Mutex::new(wait));
        let target = Target::start(move |mut stream, _| {
            let wait = wait.clone();
            async move {
                read_head(&mut stream).await.unwrap();
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                            Transfer-Encoding: chunked\r\n\r\n";
                stream.write_all(head.as_bytes()).await.unwrap();
                let mut wait = wait.lock().await;
                while let Some(event) = wait.recv().await {
                    let event: &str = event;
                    stream.write_all(event.as_bytes()).await.unwrap();
                }
                stream.write_all(b"0\r\n\r\n").await.unwrap();
            }
        })
        .await;
        let world = World::real(target.port).await;
        let mut browser = world.browser().await;
        let request = format!("GET {}/ HTTP/1.1\r\nHost: hub\r\n\r\n", world.prefix());
        // The head comes before any event does.
        let mut head = ask(&mut browser, &request).await;
        assert!(head.rest.is_empty());
        for event in ["6\r\ndata:1\r\n", "7\r\ndata:22\r\n", "1\r\n\n\r\n"] {
            next.send(event).unwrap();
            head.rest.clear();
            read_to(&mut browser, &mut head.rest, event.len()).await;
            assert_eq!(head.rest, event.as_bytes());
        }
        drop(next);
        head.rest.clear();
        read_to(&mut browser, &mut head.rest, 5).await;
        assert_eq!(head.rest, b"0\r\n\r\n");
    });
}

/// An answer that comes while the body is still on its way; the target wants the rest of it.
#[test]
fn an_early_answer_and_the_rest_of_the_body() {
    run(async {
        let (say, whole) = mpsc::unbounded_channel();
        let target = Target::start(move |mut stream, _| {
            let say = say.clone();
            async move {
                let mut head = read_head(&mut stream).await.unwrap();
                read_to(&mut stream, &mut head.rest, 3).await;
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly";
                stream.write_all(answer).await.unwrap();
                read_to(&mut stream, &mut head.rest, 6).await;
                say.send(head.rest).unwrap();
                // And the connection is good for another request.
                read_head(&mut stream).await.unwrap();
                stream.write_all(answer).await.unwrap();
            }
        })
        .await;
        let mut whole = whole;
        let world = World::real(target.port).await;
        let mut browser = world.browser().await;
        let line = format!("{}/ HTTP/1.1\r\nHost: hub\r\n", world.prefix());
        let request = format!("POST {line}Content-Length: 6\r\n\r\nabc");
        let (head, body) = fetch(&mut browser, &request).await;
        assert_eq!((head.status(), &body[..]), (200, "early"));
        browser.write_all(b"def").await.unwrap();
        assert_eq!(whole.recv().await.unwrap(), b"abcdef");
        let (_, body) = fetch(&mut browser, &format!("GET {line}\r\n")).await;
        assert_eq!(body, "early");
        world.idle().await;
        assert_eq!(target.connections(), 1);
    });
}

/// A target that has seen enough answers and closes: the answer arrives all the same, and what
/// is left of the body goes nowhere.
#[test]
fn an_early_answer_of_a_target_that_closes() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            read_head(&mut stream).await.unwrap();
            let answer =
                b"HTTP/1.1 413 Too Much\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno";
            stream.write_all(answer).await.unwrap();
            stream.shutdown().await.unwrap();
            // Until the agent gives up.
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        })
        .await;
        let world = World::real(target.port).await;
        let mut browser = world.browser().await;
        let line = format!("{}/ HTTP/1.1\r\nHost: hub\r\n", world.prefix());
        let head = format!("POST {line}Content-Length: {}\r\n\r\n", 8 * MIB);
        let (mut read, mut write) = browser.split();
        let sent = async {
            write.write_all(head.as_bytes()).await.unwrap();
            write.write_all(&pattern(8 * MIB)).await.unwrap();
        };
        let answered = async {
            let mut head = read_head(&mut read).await.unwrap();
            read_to(&mut read, &mut head.rest, 2).await;
            (head.status(), head.rest)
        };
        let ((), (status, body)) = tokio::join!(sent, answered);
        assert_eq!((status, &body[..]), (413, &b"no"[..]));
        world.idle().await;
    });
}

/// A target that sends without end, counting.
fn endless(sent: Arc<AtomicU64>) -> impl Fn(DuplexStream) -> io::Result<()> + Send + Sync {
    move |mut stream| {
        let sent = sent.clone();
        tokio::spawn(async move {
            let head = read_head(&mut stream).await.unwrap();
            if head.first().contains("/small") {
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
                stream.write_all(answer).await.unwrap();
                return;
            }
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n";
            stream.write_all(answer).await.unwrap();
            let piece = [7; 1000];
            while stream.write_all(&piece).await.is_ok() {
                sent.fetch_add(1000, Ordering::Relaxed);
            }
        });
        Ok(())
    }
}

/// A browser that stops reading stops its target, within the windows; others notice nothing.
#[test]
fn a_slow_browser_stops_its_target() {
    run_simulated(async {
        let sent = Arc::new(AtomicU64::new(0));
        let world = World::simulated(Arc::new(InMemory(endless(sent.clone())))).await;
        let mut slow = world.browser_in_memory();
        let line = "HTTP/1.1\r\nHost: hub\r\n\r\n";
        let head = ask(&mut slow, &format!("GET {}/ {line}", world.prefix())).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let stalled = sent.load(Ordering::Relaxed);
        // The operation's window, HTTP buffers of 64 KiB at both ends, and the pipes.
        assert!(stalled <= 1024 * 1024, "{stalled}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(sent.load(Ordering::Relaxed), stalled);

        let request = format!("GET {}/small {line}", world.prefix());
        let (_, body) = fetch(&mut world.browser_in_memory(), &request).await;
        assert_eq!(body, "hi");

        let mut bytes = head.rest;
        read_to(&mut slow, &mut bytes, 4 * 1024 * 1024).await;
        assert!(bytes.iter().all(|byte| *byte == 7));
    });
}

/// The same the other way: a target that does not read stops its browser.
#[test]
fn a_slow_target_stops_its_browser() {
    run_simulated(async {
        let world = World::simulated(Arc::new(InMemory(|stream: DuplexStream| {
            tokio::spawn(async move {
                let _kept = stream;
                std::future::pending::<()>().await;
            });
            Ok(())
        })))
        .await;
        let mut browser = world.browser_in_memory();
        let head = format!(
            "POST {}/ HTTP/1.1\r\nHost: hub\r\nContent-Length: 1000000000\r\n\r\n",
            world.prefix()
        );
        browser.write_all(head.as_bytes()).await.unwrap();
        let mut sent = 0;
        let piece = [7; 1000];
        while let Ok(written) =
            tokio::time::timeout(Duration::from_secs(60), browser.write(&piece)).await
        {
            sent += written.unwrap();
        }
        assert!(sent <= MIB, "{sent}");
    });
}

#[test]
fn two_hundred_at_once() {
    run(async {
        let world = World::real(echo().await.port).await;
        let world = &world;
        let fetches = (0..200).map(|n| async move {
            let mut browser = world.browser().await;
            let body = format!("{n};").repeat(n);
            let request = format!(
                "POST {}/ HTTP/1.1\r\nHost: hub\r\nContent-Length: {}\r\n\r\n{body}",
                world.prefix(),
                body.len()
            );
            let (head, echoed) = fetch(&mut browser, &request).await;
            assert_eq!((head.status(), echoed), (200, body));
        });
        futures_util::future::join_all(fetches).await;
        world.idle().await;
        assert_eq!(
            world.hub.violations().len() + world.agent.violations().len(),
            0
        );
    });
}
