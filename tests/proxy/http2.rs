//! Browsers that speak HTTP/2, over TLS and in the clear.

use std::sync::Arc;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::ext::Protocol;
use h2::{Reason, RecvStream};
use http::header::HeaderMap;
use http::{Method, Request, Response, Version};
use hub_protocol::kind;
use hub_protocol::kind::http::{Body, Informational, Message, Outcome, RESPONSE, ResponseHead};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

use crate::peers::{Target, read_head, read_to};
use crate::secured::Made;
use crate::world::{World, run};

/// A browser's side of a connection, whose requests may be answered by 1 MiB each before they are
/// read.
async fn browser<I>(io: I) -> SendRequest<Bytes>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (requests, connection) = Builder::new()
        .initial_window_size(64 * 1024)
        .initial_connection_window_size(4 * 1024 * 1024)
        .handshake(io)
        .await
        .unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    requests.ready().await.unwrap()
}

async fn plain(world: &World) -> SendRequest<Bytes> {
    browser(world.browser().await).await
}

fn request(method: Method, path: &str, headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("http://shop.hub.test:7480{path}"))
        .version(Version::HTTP_2);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap()
}

fn get(path: &str) -> Request<()> {
    request(Method::GET, path, &[])
}

/// Sends a request without a body.
async fn ask(requests: &mut SendRequest<Bytes>, request: Request<()>) -> Response<RecvStream> {
    let (response, _) = requests.send_request(request, true).unwrap();
    response.await.unwrap()
}

/// Reads a body to its end.
async fn read(body: &mut RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut all = Vec::new();
    while let Some(bytes) = body.data().await {
        let bytes = bytes?;
        body.flow_control().release_capacity(bytes.len()).unwrap();
        all.extend_from_slice(&bytes);
    }
    Ok(all)
}

#[test]
fn requests_cross_over_tls_and_in_the_clear() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            while let Some(head) = read_head(&mut stream).await {
                assert_eq!(head.all("host"), ["shop.hub.test:7480"]);
                assert_eq!(head.all("cookie"), ["a=b; c=d"]);
                let body = format!("{} {}", head.first(), head.all("x-forwarded-proto")[0]);
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\
                     Keep-Alive: timeout=5\r\nX-End: 2\r\n\r\n",
                    body.len()
                );
                let body = if head.first().starts_with("HEAD") {
                    ""
                } else {
                    &body
                };
                stream.write_all(answer.as_bytes()).await.unwrap();
                stream.write_all(body.as_bytes()).await.unwrap();
            }
        })
        .await;
        let made = Made::new();
        let certificate = Arc::new(made.served());
        let secure = World::real_with(target.port, |config| {
            config.certificates = Some(certificate.clone());
        })
        .await;
        let address = secure.serve().await;
        let stream = made.browser(address, &[b"h2", b"http/1.1"]).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let clear = World::real(target.port).await;
        for (mut requests, scheme) in [
            (browser(stream).await, "https"),
            (plain(&clear).await, "http"),
        ] {
            let crumbs = [("cookie", "a=b"), ("cookie", "c=d")];
            for (method, path) in [("GET", "/a%2Fb?c"), ("OPTIONS", "/"), ("HEAD", "/x")] {
                let asked = request(method.parse().unwrap(), path, &crumbs);
                let mut response = ask(&mut requests, asked).await;
                assert_eq!(response.status(), 200);
                let headers = response.headers();
                assert_eq!(headers["x-end"], "2");
                for name in ["x-hop", "connection", "keep-alive"] {
                    assert!(!headers.contains_key(name), "{name}");
                }
                let body = read(response.body_mut()).await.unwrap();
                let body = String::from_utf8(body).unwrap();
                if method == "HEAD" {
                    assert_eq!(body, "");
                } else {
                    assert_eq!(body, format!("{method} {path} HTTP/1.1 {scheme}"));
                }
            }
        }
    });
}

#[test]
fn trailers_cross_both_ways_over_http2() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            let mut head = read_head(&mut stream).await.unwrap();
            let all = "5\r\nhello\r\n0\r\nx-sum: up\r\n\r\n";
            read_to(&mut stream, &mut head.rest, all.len()).await;
            assert_eq!(String::from_utf8(head.rest).unwrap(), all);
            let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n\
                          2\r\nhi\r\n0\r\nX-Sum: down\r\n\r\n";
            stream.write_all(answer.as_bytes()).await.unwrap();
        })
        .await;
        let world = World::real(target.port).await;
        let mut requests = plain(&world).await;
        let headers = [("te", "trailers"), ("trailer", "x-sum")];
        let asked = request(Method::POST, "/", &headers);
        let (response, mut body) = requests.send_request(asked, false).unwrap();
        body.send_data(Bytes::from_static(b"hello"), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "up".parse().unwrap());
        body.send_trailers(trailers).unwrap();
        let mut response = response.await.unwrap();
        assert_eq!(read(response.body_mut()).await.unwrap(), b"hi");
        let trailers = response.body_mut().trailers().await.unwrap().unwrap();
        assert_eq!(trailers["x-sum"], "down");
    });
}

/// Early hints are there before the response is.
#[test]
fn informational_responses_go_first() {
    run(async {
        let world = World::real_alone(80, |_| {}).await;
        let mut requests = plain(&world).await;
        let (mut response, _) = requests.send_request(get("/"), true).unwrap();
        let incoming = world.agent.accept().await.unwrap();
        let (operation, _) = incoming.operation().await.unwrap();
        operation.accept(Bytes::new());
        let hint = Message::Informational(Informational {
            status: 103,
            headers: vec![("link".into(), "</a.css>".into())],
        });
        operation.send_message(kind::encode(&hint)).await.unwrap();
        let early = std::future::poll_fn(|cx| response.poll_informational(cx)).await;
        let early = early.unwrap().unwrap();
        assert_eq!(early.status(), 103);
        assert_eq!(early.headers()["link"], "</a.css>");
        let head = Message::Head(ResponseHead {
            status: 200,
            headers: vec![],
            upgrade: None,
            body: Body::Length(2),
        });
        operation.send_message(kind::encode(&head)).await.unwrap();
        let mut sender = operation.sender(RESPONSE);
        sender.send(Bytes::from_static(b"ok")).await.unwrap();
        sender.finish();
        operation.finish(kind::encode(&Outcome::Complete));
        let mut response = response.await.unwrap();
        assert_eq!(read(response.body_mut()).await.unwrap(), b"ok");
    });
}

/// Browsers that do not read one answer, and targets that do not read one upload, cost the other
/// streams of the connection nothing.
#[test]
fn a_stream_that_stands_still_holds_up_no_other() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            let mut head = read_head(&mut stream).await.unwrap();
            if head.first().contains("/endless") {
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
                    .await
                    .unwrap();
                while stream.write_all(&[0; 8192]).await.is_ok() {}
            } else if head.first().contains("/deaf") {
                std::future::pending::<()>().await;
            } else {
                let length: usize = head.all("content-length")[0].parse().unwrap();
                let mut rest = std::mem::take(&mut head.rest);
                read_to(&mut stream, &mut rest, length).await;
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
                stream.write_all(&rest).await.unwrap();
            }
        })
        .await;
        let world = World::real(target.port).await;
        let mut requests = plain(&world).await;
        let unread = ask(&mut requests, get("/endless")).await;
        assert_eq!(unread.status(), 200);
        let asked = request(Method::POST, "/deaf", &[("content-length", "100000000")]);
        let (deaf, mut upload) = requests.send_request(asked, false).unwrap();
        // As far as all windows on the way allow.
        let pushing = tokio::spawn(async move {
            loop {
                upload.reserve_capacity(65536);
                let room = std::future::poll_fn(|cx| upload.poll_capacity(cx)).await;
                let Some(Ok(room)) = room else { return };
                let piece = Bytes::from(vec![0; room.min(65536)]);
                if upload.send_data(piece, false).is_err() {
                    return;
                }
            }
        });
        for _ in 0..3 {
            let length = 1_000_000.to_string();
            let asked = request(Method::POST, "/echo", &[("content-length", &length)]);
            let (response, mut body) = requests.send_request(asked, false).unwrap();
            body.send_data(Bytes::from(vec![7; 1_000_000]), true)
                .unwrap();
            let mut response = response.await.unwrap();
            assert_eq!(response.status(), 200);
            assert_eq!(read(response.body_mut()).await.unwrap().len(), 1_000_000);
        }
        assert!(!pushing.is_finished());
        // Taken back, both leave nothing behind.
        pushing.abort();
        drop((unread, deaf, pushing));
        world.idle().await;
    });
}

/// The browser takes a request back: the target's connection is closed.
#[test]
fn what_a_browser_takes_back_is_cancelled() {
    run(async {
        let (say, mut gone) = mpsc::unbounded_channel();
        let target = Target::start(move |mut stream, _| {
            let say = say.clone();
            async move {
                read_head(&mut stream).await.unwrap();
                let _ = stream.read(&mut [0]).await;
                say.send(()).unwrap();
            }
        })
        .await;
        let world = World::real(target.port).await;
        let mut requests = plain(&world).await;
        let (response, mut stream) = requests.send_request(get("/"), true).unwrap();
        while target.connections() == 0 {
            tokio::task::yield_now().await;
        }
        stream.send_reset(Reason::CANCEL);
        gone.recv().await.unwrap();
        assert!(response.await.is_err());
        world.idle().await;
    });
}

/// Opening and taking back over and over ends the connection, and no other.
#[test]
fn rapid_resets_are_stopped() {
    run(async {
        let target = Target::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await;
        let world = World::real(target.port).await;
        let (requests, mut other) = (plain(&world).await, plain(&world).await);
        let mut sent = 0;
        while sent < 10_000 {
            let Ok(mut ready) = requests.clone().ready().await else {
                break;
            };
            let Ok((_, mut stream)) = ready.send_request(get("/"), false) else {
                break;
            };
            // Lets the request go out.
            tokio::task::yield_now().await;
            stream.send_reset(Reason::CANCEL);
            sent += 1;
            tokio::task::yield_now().await;
        }
        assert!(sent < 10_000, "nobody stops it");
        assert_eq!(ask(&mut other, get("/")).await.status(), 200);
    });
}

#[test]
fn an_answer_that_breaks_off_does_not_look_whole() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            read_head(&mut stream).await.unwrap();
            let half = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n";
            stream.write_all(half).await.unwrap();
        })
        .await;
        let world = World::real(target.port).await;
        let mut requests = plain(&world).await;
        let mut response = ask(&mut requests, get("/")).await;
        let error = read(response.body_mut()).await.unwrap_err();
        assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR));
        world.idle().await;
    });
}

#[test]
fn what_is_no_request_is_refused() {
    run(async {
        let target = Target::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await;
        let world = World::real(target.port).await;
        let mut requests = plain(&world).await;
        let large = "x".repeat(70_000);
        for (headers, status, word) in [
            (&[("host", "other.test")][..], 400, "another in Host"),
            (&[("x-large", &large[..])], 431, "browser -X- hub"),
        ] {
            let mut response = ask(&mut requests, request(Method::GET, "/", headers)).await;
            assert_eq!(response.status(), status);
            let body = read(response.body_mut()).await.unwrap();
            let body = String::from_utf8(body).unwrap();
            assert!(body.contains(word), "{body}");
        }
        let lie = request(Method::GET, "/", &[("content-length", "7")]);
        let (response, _) = requests.send_request(lie, true).unwrap();
        let error = response.await.unwrap_err();
        assert_eq!(error.reason(), Some(Reason::PROTOCOL_ERROR));
        let connect = Request::builder()
            .method(Method::CONNECT)
            .uri("shop.hub.test:443");
        let connect = connect.body(()).unwrap();
        let (response, _stream) = requests.send_request(connect, false).unwrap();
        assert_eq!(response.await.unwrap().status(), 405);
        assert_eq!(ask(&mut requests, get("/")).await.status(), 200);
        assert_eq!(target.connections(), 1);
    });
}

/// A WebSocket on a stream beside others (RFC 8441), byte for byte.
#[test]
fn websockets_ride_on_streams() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
            let head = read_head(&mut stream).await.unwrap();
            assert_eq!(head.first(), "GET /socket HTTP/1.1");
            assert_eq!(head.all("upgrade"), ["websocket"]);
            assert_eq!(head.all("sec-websocket-version"), ["13"]);
            let key = head.all("sec-websocket-key")[0].to_owned();
            let key = derive_accept_key(key.as_bytes());
            let answer = format!(
                "HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Protocol: chat\r\nSec-WebSocket-Accept: {key}\r\n\r\nearly "
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            stream.write_all(&all.to_ascii_uppercase()).await.unwrap();
        })
        .await;
        let world = World::real(target.port).await;
        let mut requests = plain(&world).await;
        let connect = || {
            let headers = [("sec-websocket-version", "13"), ("origin", "http://x.test")];
            let mut asked = request(Method::CONNECT, "/socket", &headers);
            let protocol = Protocol::from_static("websocket");
            asked.extensions_mut().insert(protocol);
            asked
        };
        // The browser may ask so once it knows that it may.
        while !requests.is_extended_connect_protocol_enabled() {
            tokio::task::yield_now().await;
        }
        let (response, mut stream) = requests.send_request(connect(), false).unwrap();
        let mut response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
        assert!(!response.headers().contains_key("sec-websocket-accept"));
        stream
            .send_data(Bytes::from_static(b"and "), false)
            .unwrap();
        stream.send_data(Bytes::from_static(b"late"), true).unwrap();
        let all = read(response.body_mut()).await.unwrap();
        assert_eq!(String::from_utf8(all).unwrap(), "early AND LATE");
        world.idle().await;

        // A target that knows nothing of it.
        let target = Target::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await;
        let world = World::real(target.port).await;
        let mut requests = plain(&world).await;
        while !requests.is_extended_connect_protocol_enabled() {
            tokio::task::yield_now().await;
        }
        let (response, _stream) = requests.send_request(connect(), false).unwrap();
        assert_eq!(response.await.unwrap().status(), 502);
    });
}

/// What is under way comes to its end, and the browser is told to ask nothing more.
#[test]
fn it_says_goodbye() {
    run(async {
        let (go_on, wait) = oneshot::channel::<()>();
        let wait = Arc::new(std::sync::Mutex::new(Some(wait)));
        let target = Target::start(move |mut stream, _| {
            let wait = wait.lock().unwrap().take().unwrap();
            async move {
                read_head(&mut stream).await.unwrap();
                let half = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf";
                stream.write_all(half).await.unwrap();
                wait.await.unwrap();
                stream.write_all(b"half").await.unwrap();
            }
        })
        .await;
        let world = World::real(target.port).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let proxy = world.proxy.clone();
        let served = async move { proxy.serve(listener, async { _ = stopped.await }).await };
        let served = tokio::spawn(served);
        let mut requests = browser(TcpStream::connect(address).await.unwrap()).await;
        let idle = browser(TcpStream::connect(address).await.unwrap()).await;
        let mut response = ask(&mut requests, get("/")).await;
        stop.send(()).unwrap();
        while idle.clone().ready().await.is_ok() {
            tokio::task::yield_now().await;
        }
        while requests.clone().ready().await.is_ok() {
            tokio::task::yield_now().await;
        }
        go_on.send(()).unwrap();
        assert_eq!(read(response.body_mut()).await.unwrap(), b"halfhalf");
        served.await.unwrap();
    });
}
