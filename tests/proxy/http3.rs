//! Browsers that speak HTTP/3.

use std::future::{pending, poll_fn};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use h3::client::SendRequest;
use h3::error::StreamError;
use h3_quinn::OpenStreams;
use http::header::HeaderMap;
use http::{Method, Request};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot};

use crate::peers::{Target, fetch, read_head, read_to};
use crate::secured::Made;
use crate::world::{World, run};

type Requests = SendRequest<OpenStreams, Bytes>;
type Stream = h3::client::RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;

/// A data plane that serves HTTP/3 at this address.
async fn world(port: u16, made: &Made) -> (World, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let certificate = Arc::new(made.served());
    let world = World::real_with(port, |config| {
        config.certificates = Some(certificate.clone());
        config.http3 = Some(address.port());
    })
    .await;
    let proxy = world.proxy.clone();
    tokio::spawn(async move { proxy.serve_http3(socket, pending()).await.unwrap() });
    (world, address)
}

async fn browser(address: SocketAddr, made: &Made) -> Requests {
    let crypto = QuicClientConfig::try_from(made.client(&[b"h3"])).unwrap();
    let config = ClientConfig::new(Arc::new(crypto));
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let connecting = endpoint.connect_with(config, address, "shop.hub.test");
    let connection = h3_quinn::Connection::new(connecting.unwrap().await.unwrap());
    let (mut connection, requests) = h3::client::new(connection).await.unwrap();
    tokio::spawn(async move {
        // The connection lives as long as its endpoint.
        let _endpoint = endpoint;
        poll_fn(|cx| connection.poll_close(cx)).await
    });
    requests
}

fn request(method: Method, path: &str, headers: &[(&str, &str)]) -> Request<()> {
    let uri = format!("https://shop.hub.test{path}");
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap()
}

async fn read(stream: &mut Stream) -> Result<Vec<u8>, StreamError> {
    let mut all = Vec::new();
    while let Some(mut bytes) = stream.recv_data().await? {
        all.extend_from_slice(&bytes.copy_to_bytes(bytes.remaining()));
    }
    Ok(all)
}

/// The status of the response to a request without a body, and the body.
async fn ask(requests: &mut Requests, request: Request<()>) -> (u16, String) {
    let mut stream = requests.send_request(request).await.unwrap();
    stream.finish().await.unwrap();
    let response = stream.recv_response().await.unwrap();
    let body = read(&mut stream).await.unwrap();
    (response.status().as_u16(), String::from_utf8(body).unwrap())
}

#[test]
fn requests_cross_over_http3() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            while let Some(mut head) = read_head(&mut stream).await {
                assert_eq!(head.all("host"), ["shop.hub.test"]);
                assert_eq!(head.all("x-forwarded-proto"), ["https"]);
                let mut body = std::mem::take(&mut head.rest);
                if let [length] = head.all("content-length")[..] {
                    read_to(&mut stream, &mut body, length.parse().unwrap()).await;
                } else {
                    assert!(head.all("transfer-encoding").is_empty());
                }
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
                if !head.first().starts_with("HEAD") {
                    stream.write_all(&body).await.unwrap();
                }
                stream.shutdown().await.unwrap();
            }
        })
        .await;
        let made = Made::new();
        let (_world, address) = world(target.port, &made).await;
        let mut requests = browser(address, &made).await;
        for method in [Method::GET, Method::HEAD, Method::DELETE] {
            let answer = ask(&mut requests, request(method, "/a%2Fb?c", &[])).await;
            assert_eq!(answer, (200, String::new()));
        }
        let sent = vec![b'x'; 1_000_000];
        let asked = request(Method::POST, "/", &[("content-length", "1000000")]);
        let mut stream = requests.send_request(asked).await.unwrap();
        stream.send_data(Bytes::from(sent.clone())).await.unwrap();
        stream.finish().await.unwrap();
        let response = stream.recv_response().await.unwrap();
        assert!(!response.headers().contains_key("connection"));
        assert_eq!(response.headers()["content-length"], "1000000");
        assert!(read(&mut stream).await.unwrap() == sent);
    });
}

/// Browsers that come over TLS learn where HTTP/3 is, and only those.
#[test]
fn where_it_is_served_is_announced() {
    run(async {
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nAlt-Svc: h3=\":1\"\r\n\r\nhi";
        let target = Target::answering(answer).await;
        let made = Made::new();
        let (world, address) = world(target.port, &made).await;
        let serving = world.serve().await;
        let mut secured = made.browser(serving, &[b"http/1.1"]).await.unwrap();
        let line = "GET / HTTP/1.1\r\nHost: shop.hub.test\r\n\r\n";
        let (head, _) = fetch(&mut secured, line).await;
        let expected = format!("h3=\":{}\"; ma=86400", address.port());
        assert_eq!(head.all("alt-svc"), [expected]);
        let mut plain = tokio::net::TcpStream::connect(serving).await.unwrap();
        let (head, _) = fetch(&mut plain, line).await;
        assert!(head.all("alt-svc").is_empty());
    });
}

#[test]
fn trailers_cross_both_ways_over_http3() {
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
        let made = Made::new();
        let (_world, address) = world(target.port, &made).await;
        let mut requests = browser(address, &made).await;
        let asked = request(
            Method::POST,
            "/",
            &[("te", "trailers"), ("trailer", "x-sum")],
        );
        let mut stream = requests.send_request(asked).await.unwrap();
        stream
            .send_data(Bytes::from_static(b"hello"))
            .await
            .unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "up".parse().unwrap());
        stream.send_trailers(trailers).await.unwrap();
        stream.finish().await.unwrap();
        stream.recv_response().await.unwrap();
        assert_eq!(read(&mut stream).await.unwrap(), b"hi");
        let trailers = stream.recv_trailers().await.unwrap().unwrap();
        assert_eq!(trailers["x-sum"], "down");
    });
}

#[test]
fn a_browser_that_does_not_read_holds_up_nothing() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            let head = read_head(&mut stream).await.unwrap();
            if head.first().contains("/endless") {
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n";
                stream.write_all(answer).await.unwrap();
                while stream.write_all(&[0; 8192]).await.is_ok() {}
            } else {
                let answer =
                    b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nConnection: close\r\n\r\n";
                stream.write_all(answer).await.unwrap();
                stream.write_all(&vec![b'x'; 1_000_000]).await.unwrap();
            }
        })
        .await;
        let made = Made::new();
        let (world, address) = world(target.port, &made).await;
        let mut requests = browser(address, &made).await;
        let mut unread = requests
            .send_request(request(Method::GET, "/endless", &[]))
            .await
            .unwrap();
        unread.finish().await.unwrap();
        unread.recv_response().await.unwrap();
        for _ in 0..3 {
            let (status, body) = ask(&mut requests, request(Method::GET, "/", &[])).await;
            assert_eq!((status, body.len()), (200, 1_000_000));
        }
        // The browser leaves: nothing stays behind.
        drop((unread, requests));
        world.idle().await;
    });
}

#[test]
fn an_answer_that_breaks_off_over_http3_does_not_look_whole() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            read_head(&mut stream).await.unwrap();
            let half = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n";
            stream.write_all(half).await.unwrap();
        })
        .await;
        let made = Made::new();
        let (world, address) = world(target.port, &made).await;
        let mut requests = browser(address, &made).await;
        let asked = request(Method::GET, "/", &[]);
        let mut stream = requests.send_request(asked).await.unwrap();
        stream.finish().await.unwrap();
        // The reset may overtake what was sent.
        if stream.recv_response().await.is_ok() {
            read(&mut stream).await.unwrap_err();
        }
        world.idle().await;
    });
}

#[test]
fn what_is_no_request_over_http3_is_refused() {
    run(async {
        let target = Target::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await;
        let made = Made::new();
        let (_world, address) = world(target.port, &made).await;
        let mut requests = browser(address, &made).await;
        let large = "x".repeat(70_000);
        for (headers, status, word) in [
            (&[("x-large", &large[..])][..], 431, "browser -X- hub"),
            (&[("connection", "close")], 400, "HTTP/1.1 connections"),
            (&[("content-length", "7")], 400, "broke off"),
        ] {
            let (found, body) = ask(&mut requests, request(Method::GET, "/", headers)).await;
            assert_eq!(found, status);
            assert!(body.contains(word), "{body}");
        }
        let answer = ask(&mut requests, request(Method::GET, "/", &[])).await;
        assert_eq!(answer, (200, "hi".into()));
    });
}

/// What is under way comes to its end once the hub stops, and nothing new is begun.
#[test]
fn it_says_goodbye_over_http3() {
    run(async {
        let (say, mut begun) = mpsc::unbounded_channel();
        let (go_on, wait) = mpsc::unbounded_channel::<()>();
        let wait = Arc::new(tokio::sync::Mutex::new(wait));
        let target = Target::start(move |mut stream, _| {
            let (say, wait) = (say.clone(), wait.clone());
            async move {
                read_head(&mut stream).await.unwrap();
                say.send(()).unwrap();
                wait.lock().await.recv().await.unwrap();
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate";
                stream.write_all(answer).await.unwrap();
                let _ = stream.read(&mut [0]).await;
            }
        })
        .await;
        let made = Made::new();
        let (world, _) = world(target.port, &made).await;
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let proxy = world.proxy.clone();
        let stopped = async move { drop(stopped.await) };
        let served = tokio::spawn(async move { proxy.serve_http3(socket, stopped).await });
        let mut requests = browser(address, &made).await;
        let asked = request(Method::GET, "/", &[]);
        let mut stream = requests.send_request(asked).await.unwrap();
        stream.finish().await.unwrap();
        begun.recv().await.unwrap();
        stop.send(()).unwrap();
        go_on.send(()).unwrap();
        assert_eq!(stream.recv_response().await.unwrap().status(), 200);
        assert_eq!(read(&mut stream).await.unwrap(), b"late");
        drop((stream, requests));
        served.await.unwrap().unwrap();
    });
}
