//! What targets do at the edges of HTTP, byte by byte, and what of it reaches the hub.
#![allow(clippy::unwrap_used)]

mod http2;

use bytes::Bytes;
use hub_protocol::kind::http::{
    Body, Header, Informational, Message, REQUEST, RESPONSE, RequestHead, ResponseHead,
};
use hub_protocol::target::Grant;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::operations::testing::{Node, read_all, send_all, tools};

/// A request to a port of this machine.
fn request(port: u16, method: &str, headers: &[(&str, &str)], body: Body) -> Open {
    let header = |(name, value): &(&str, &str)| -> Header {
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        (bytes(name), bytes(value))
    };
    Open {
        target: Target::tcp(port),
        grant: Grant::Operator,
        protocol: Protocol::Http1,
        head: RequestHead {
            method: method.into(),
            target: Bytes::from_static(b"/a%2Fb?c"),
            headers: headers.iter().map(header).collect(),
            upgrade: None,
            body,
        },
    }
}

/// What came of a request.
struct Seen {
    interim: Vec<Informational>,
    head: ResponseHead,
    body: Bytes,
    trailers: Vec<Header>,
    outcome: Outcome,
}

impl Seen {
    fn header(&self, name: &str) -> Vec<&str> {
        let headers = self.head.headers.iter();
        let named = headers.filter(|(other, _)| other.eq_ignore_ascii_case(name.as_bytes()));
        let values = named.map(|(_, value)| std::str::from_utf8(value).unwrap());
        values.collect()
    }
}

/// The next message.
async fn message(operation: &Operation) -> Option<Message> {
    let message = operation.message().await.unwrap()?;
    Some(kind::decode("message", &message).unwrap())
}

/// Reads an answer to its end; an error if it breaks off before its head.
async fn answer(operation: &Operation) -> Result<Seen, Failure> {
    let outcome =
        async || -> Outcome { kind::decode("outcome", &operation.done().await.unwrap()).unwrap() };
    let mut interim = Vec::new();
    let head = loop {
        match message(operation).await {
            Some(Message::Informational(one)) => interim.push(one),
            Some(Message::Head(head)) => break head,
            Some(Message::Trailers(_)) => panic!("trailers before a head"),
            None => match outcome().await {
                Outcome::Broken(failure) => return Err(failure),
                Outcome::Complete => panic!("complete without a head"),
            },
        }
    };
    let body = read_all(operation, RESPONSE).await;
    let mut trailers = Vec::new();
    while let Some(message) = message(operation).await {
        match message {
            Message::Trailers(lines) => trailers = lines,
            _ => panic!("a second head"),
        }
    }
    Ok(Seen {
        interim,
        head,
        body,
        trailers,
        outcome: outcome().await,
    })
}

/// Asks, sends this body, and reads the answer.
async fn exchange(node: &Node, open: &Open, body: &'static [u8]) -> Result<Seen, Failure> {
    let (operation, _) = node.begin(open).await;
    let sent = send_all(&operation, REQUEST, Bytes::from_static(body));
    tokio::join!(sent, answer(&operation)).1
}

async fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).unwrap())
}

/// A port of this machine, each connection to which is handed to `serve`.
async fn target<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> u16
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    port
}

/// A target that answers each request so; `closes` ends the connection behind the first.
async fn answering(answer: &'static str, closes: bool) -> u16 {
    target(move |mut stream| async move {
        while read_head(&mut stream).await.is_some() {
            stream.write_all(answer.as_bytes()).await.unwrap();
            if closes {
                return;
            }
        }
    })
    .await
}

#[tokio::test]
async fn answers_are_carried_as_what_they_are() {
    let multipart = "HTTP/1.1 206 Partial Content\r\nContent-Length: 20\r\n\
                     Content-Type: multipart/byteranges; boundary=b\r\n\r\n\
                     --b\r\n\r\nx\r\n--b\r\n\r\ny\r\n";
    // Method, answer, whether it ends the connection; body, Content-Length, whether it is used again.
    let cases = [
        (
            "GET",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n\
             2\r\nhi\r\n0\r\n\r\n",
            false,
            (Body::Chunked, "hi", None, false),
        ),
        (
            "GET",
            "HTTP/1.1 200 OK\r\n\r\nto the end",
            true,
            (Body::Chunked, "to the end", None, false),
        ),
        (
            "GET",
            "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
            true,
            (Body::Length(2), "hi", None, false),
        ),
        (
            "GET",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi",
            false,
            (Body::Length(2), "hi", None, true),
        ),
        (
            "POST",
            "HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n",
            false,
            (Body::Length(0), "", None, true),
        ),
        (
            "HEAD",
            "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n",
            false,
            (Body::None, "", Some("12"), true),
        ),
        (
            "GET",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 12\r\n\r\n",
            false,
            (Body::None, "", Some("12"), true),
        ),
        (
            "GET",
            "HTTP/1.1 204 No Content\r\n\r\n",
            false,
            (Body::None, "", None, true),
        ),
        (
            "GET",
            multipart,
            false,
            (
                Body::Length(20),
                "--b\r\n\r\nx\r\n--b\r\n\r\ny\r\n",
                None,
                true,
            ),
        ),
    ];
    for (method, answer, closes, (body, bytes, length, kept)) in cases {
        let port = answering(answer, closes).await;
        let tools = tools(None);
        let connections = tools.connections.clone();
        let node = Node::new(tools).await;
        let open = request(port, method, &[], Body::None);
        for _ in 0..2 {
            let seen = exchange(&node, &open, b"").await.unwrap();
            assert_eq!(seen.outcome, Outcome::Complete, "{answer:?}");
            assert_eq!(seen.head.body, body, "{answer:?}");
            assert_eq!(seen.body, bytes, "{answer:?}");
            let expected: Vec<_> = length.into_iter().collect();
            assert_eq!(seen.header("content-length"), expected, "{answer:?}");
            assert_eq!(connections.idle(), usize::from(kept), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn trailers_cross_without_being_announced() {
    let port = answering(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
         2\r\nhi\r\n0\r\nX-Sum: 1\r\nConnection: x\r\n\r\n",
        false,
    )
    .await;
    let node = Node::new(tools(None)).await;
    let open = request(port, "GET", &[], Body::None);
    let seen = exchange(&node, &open, b"").await.unwrap();
    assert_eq!(
        (&seen.body[..], seen.outcome),
        (&b"hi"[..], Outcome::Complete)
    );
    assert_eq!(seen.trailers, [("x-sum".into(), "1".into())]);
}

#[tokio::test]
async fn what_is_no_http_is_no_answer() {
    let node = Node::new(tools(None)).await;
    for answer in [
        "HTTP/1.1 200 OK\r\nX: a\r\n folded\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nhi",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX : a\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        "SSH-2.0-x\r\n",
        "",
    ] {
        let port = answering(answer, true).await;
        let open = request(port, "GET", &[], Body::None);
        let broken = exchange(&node, &open, b"").await.err();
        let broken = broken.unwrap_or_else(|| panic!("{answer:?} is answered"));
        assert_eq!(broken.code, FailureCode::TARGET_BROKEN, "{answer:?}");
    }
    // One that breaks off is not whole.
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nx\r\n",
    ] {
        let port = answering(answer, true).await;
        let open = request(port, "GET", &[], Body::None);
        let seen = exchange(&node, &open, b"").await.unwrap();
        assert_eq!(seen.body, "half");
        assert!(matches!(seen.outcome, Outcome::Broken(_)), "{answer:?}");
    }
}

#[tokio::test]
async fn informational_responses_go_before_the_head() {
    let port = answering(
        "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nConnection: x\r\n\r\n\
         HTTP/1.1 103 Early Hints\r\nLink: </b.css>\r\n\r\n\
         HTTP/1.1 102 Processing\r\n\r\n\
         HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        false,
    )
    .await;
    let node = Node::new(tools(None)).await;
    let open = request(port, "GET", &[], Body::None);
    for _ in 0..2 {
        let seen = exchange(&node, &open, b"").await.unwrap();
        let interim = seen.interim.iter();
        let interim: Vec<_> = interim
            .map(|one| (one.status, one.headers.clone()))
            .collect();
        let link = |to: &'static str| vec![("link".into(), to.into())];
        let expected = [
            (103, link("</a.css>")),
            (103, link("</b.css>")),
            (102, vec![]),
        ];
        assert_eq!(interim, expected);
        assert_eq!((seen.head.status, &seen.body[..]), (200, &b"hi"[..]));
    }
    // Without an end to them there is no answer.
    let port = target(|mut stream| async move {
        read_head(&mut stream).await.unwrap();
        let hint = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        while stream.write_all(hint).await.is_ok() {}
    })
    .await;
    let open = request(port, "GET", &[], Body::None);
    let broken = exchange(&node, &open, b"").await.err().unwrap();
    assert_eq!(broken.code, FailureCode::TARGET_BROKEN);
    assert!(broken.message.contains("without end"), "{broken}");
}

#[tokio::test]
async fn the_target_decides_whether_it_wants_a_body() {
    let port = target(|mut stream| async move {
        while let Some(head) = read_head(&mut stream).await {
            assert!(head.contains("expect: 100-continue\r\n"), "{head}");
            if head.starts_with("PUT") {
                let no = b"HTTP/1.1 417 No\r\nContent-Length: 2\r\n\r\nno";
                stream.write_all(no).await.unwrap();
                continue;
            }
            let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
            stream.write_all(go_on).await.unwrap();
            let mut body = [0; 5];
            stream.read_exact(&mut body).await.unwrap();
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
            stream.write_all(&[head, &body[..]].concat()).await.unwrap();
        }
    })
    .await;
    let tools = tools(None);
    let connections = tools.connections.clone();
    let node = Node::new(tools).await;
    let expect = [("expect", "100-continue")];
    // The body waits for the target's word, as a browser's does.
    let open = request(port, "POST", &expect, Body::Length(5));
    let (operation, _) = node.begin(&open).await;
    let Some(Message::Informational(go_on)) = message(&operation).await else {
        panic!("no 100 comes");
    };
    assert_eq!(go_on.status, 100);
    send_all(&operation, REQUEST, Bytes::from_static(b"hello")).await;
    let seen = answer(&operation).await.unwrap();
    assert_eq!((seen.head.status, &seen.body[..]), (200, &b"hello"[..]));
    assert_eq!(connections.idle(), 1);
    // One that does not want it: the upload is stopped, and the connection goes.
    let open = request(port, "PUT", &expect, Body::Length(5));
    let (operation, _) = node.begin(&open).await;
    let mut sender = operation.sender(REQUEST);
    let (seen, ()) = tokio::join!(answer(&operation), sender.stopped());
    let seen = seen.unwrap();
    assert_eq!((seen.head.status, &seen.body[..]), (417, &b"no"[..]));
    assert_eq!(seen.outcome, Outcome::Complete);
    assert_eq!(connections.idle(), 0);
}

/// An error behind the whole of an upload.
#[tokio::test]
async fn an_error_after_the_upload_is_an_answer_like_others() {
    let port = target(|mut stream| async move {
        while read_head(&mut stream).await.is_some() {
            stream.read_exact(&mut [0; 5]).await.unwrap();
            let no = b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno";
            stream.write_all(no).await.unwrap();
        }
    })
    .await;
    let node = Node::new(tools(None)).await;
    let open = request(port, "POST", &[], Body::Length(5));
    for _ in 0..3 {
        let seen = exchange(&node, &open, b"hello").await.unwrap();
        assert_eq!((seen.head.status, &seen.body[..]), (404, &b"no"[..]));
        assert_eq!(seen.outcome, Outcome::Complete);
    }
}

/// A target that refuses in the middle of an upload and keeps the connection open without reading.
#[tokio::test]
async fn an_error_stops_the_upload() {
    let port = target(|mut stream| async move {
        read_head(&mut stream).await.unwrap();
        let no = b"HTTP/1.1 413 Too Much\r\nContent-Length: 2\r\n\r\nno";
        stream.write_all(no).await.unwrap();
        let _open = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let node = Node::new(tools(None)).await;
    let open = request(port, "POST", &[], Body::Chunked);
    let (operation, _) = node.begin(&open).await;
    let endless = async {
        let mut sender = operation.sender(REQUEST);
        while sender.send(Bytes::from_static(&[7; 4096])).await.is_ok() {}
    };
    let (seen, ()) = tokio::join!(answer(&operation), endless);
    let seen = seen.unwrap();
    assert_eq!((seen.head.status, &seen.body[..]), (413, &b"no"[..]));
    assert_eq!(seen.outcome, Outcome::Complete);
}
