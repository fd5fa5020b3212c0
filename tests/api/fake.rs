//! A hub of the test's own making: what the client does with answers that no hub gives on demand.

use futures_util::stream;
use hub::client::records::{Events, Logs, Next};
use hub::client::{Client, ClientError};
use hub_protocol::kind::call::image;
use hub_protocol::kind::records::LogRecord;
use hub_server::api::ApiToken;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

struct Fake {
    listener: TcpListener,
}

impl Fake {
    async fn start() -> (Self, Client) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let client = Client::new(&url, &ApiToken::random().unwrap(), None).unwrap();
        (Self { listener }, client)
    }

    /// The next request: its first line, and where the answer goes.
    async fn request(&self) -> (String, TcpStream) {
        let (mut stream, _) = self.listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        let line = head.lines().next().unwrap().replace(" HTTP/1.1", "");
        (line, stream)
    }

    /// Answers with the beginning of a body.
    async fn begin(&self) -> (String, TcpStream) {
        let (line, mut stream) = self.request().await;
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head).await.unwrap();
        (line, stream)
    }
}

async fn chunk(stream: &mut TcpStream, text: &str) {
    let chunk = format!("{:x}\r\n{text}\r\n", text.len());
    stream.write_all(chunk.as_bytes()).await.unwrap();
}

fn line(text: &str, cursor: &str) -> String {
    format!(
        r#"{{"type":"line","output":"stdout","time":"T","text":"{text}","cursor":"{cursor}","new":1}}"#
    ) + "\n"
}

fn text(next: Option<Next<LogRecord>>) -> String {
    match next {
        Some(Next::Record {
            record: Some(LogRecord::Line { text, .. }),
            ..
        }) => text.unwrap(),
        Some(Next::Record { json, record: None }) => format!("{json:?}"),
        Some(Next::Lost(_)) => "lost".into(),
        Some(Next::Back) => "back".into(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_log_that_is_followed_goes_on_where_it_broke() {
    let (fake, client) = Fake::start().await;
    let mut records = client.watch(Logs {
        node: "n".into(),
        container: "web".into(),
        follow: true,
        tail: Some(5),
        ..Logs::default()
    });
    let hub = async {
        let (asked, mut stream) = fake.begin().await;
        assert_eq!(
            asked,
            "GET /v1/nodes/n/logs?container=web&follow=true&tail=5"
        );
        chunk(&mut stream, &line("one", "c1")).await;
        chunk(&mut stream, "{\"type\":\"later\",\"cursor\":\"c2\"}\n").await;
        // A part of a record does not count.
        chunk(&mut stream, r#"{"type":"line","cursor":"c3","#).await;
        drop(stream);
        // A hub that starts again does not know its nodes at once.
        let (_, mut stream) = fake.request().await;
        let away = r#"{"type":"urn:hub:problem:node-away","title":"","status":503,"detail":"away","retry":true}"#;
        let head = format!(
            "HTTP/1.1 503 Away\r\nContent-Length: {}\r\n\r\n",
            away.len()
        );
        stream.write_all((head + away).as_bytes()).await.unwrap();
        let (asked, mut stream) = fake.begin().await;
        assert_eq!(
            asked,
            "GET /v1/nodes/n/logs?container=web&follow=true&cursor=c2"
        );
        chunk(&mut stream, &line("three", "c3")).await;
        chunk(&mut stream, "").await;
    };
    let reader = async {
        let mut seen = Vec::new();
        while let Some(next) = records.next().await.unwrap() {
            seen.push(text(Some(next)));
        }
        assert_eq!(seen.len(), 5, "{seen:?}");
        assert_eq!(
            (&*seen[0], &*seen[2], &*seen[3], &*seen[4]),
            ("one", "lost", "back", "three")
        );
        assert!(seen[1].contains("later"), "{seen:?}");
    };
    tokio::join!(hub, reader);
}

#[tokio::test]
async fn what_does_not_follow_breaks_off_with_an_error() {
    let (fake, client) = Fake::start().await;
    let mut records = client.watch(Logs {
        node: "n".into(),
        container: "web".into(),
        ..Logs::default()
    });
    let hub = async {
        let (_, mut stream) = fake.begin().await;
        chunk(&mut stream, &line("one", "c1")).await;
    };
    let reader = async {
        assert_eq!(text(records.next().await.unwrap()), "one");
        let error = records.next().await.unwrap_err();
        assert!(matches!(error, ClientError::Broken { .. }), "{error}");
    };
    tokio::join!(hub, reader);
}

#[tokio::test]
async fn a_watch_that_cannot_go_on_ends_with_the_reason() {
    let (fake, client) = Fake::start().await;
    let mut records = client.watch(Events::default());
    let hub = async {
        drop(fake.begin().await);
        let (_, mut stream) = fake.request().await;
        let gone = r#"{"type":"urn:hub:problem:no-such-node","title":"","status":404,"detail":"no node n","retry":false}"#;
        let head = format!(
            "HTTP/1.1 404 Gone\r\nContent-Length: {}\r\n\r\n",
            gone.len()
        );
        stream.write_all((head + gone).as_bytes()).await.unwrap();
    };
    let reader = async {
        assert!(matches!(records.next().await, Ok(Some(Next::Lost(_)))));
        let error = records.next().await.unwrap_err();
        assert_eq!(error.to_string(), "no node n");
    };
    tokio::join!(hub, reader);
}

#[tokio::test]
async fn records_that_are_too_long_end_the_watch() {
    let (fake, client) = Fake::start().await;
    let mut records = client.watch(Events::default());
    let hub = async {
        let (_, mut stream) = fake.begin().await;
        let endless = "x".repeat(64 * 1024);
        let size = format!("{:x}\r\n", 1 << 30);
        stream.write_all(size.as_bytes()).await.unwrap();
        while stream.write_all(endless.as_bytes()).await.is_ok() {}
    };
    let reader = async {
        let error = records.next().await.unwrap_err();
        assert!(error.to_string().contains("longer than"), "{error}");
        drop(records);
    };
    tokio::join!(hub, reader);
}

#[tokio::test]
async fn a_call_tells_how_far_it_is_and_what_came_of_it() {
    let (fake, client) = Fake::start().await;
    let pull = image::Pull {
        image: "app".into(),
        platform: None,
        registry: None,
    };
    let progress =
        "{\"progress\":{\"id\":\"a\",\"status\":\"Downloading\",\"current\":1,\"total\":2}}\n";
    let endings = [
        ("{\"reply\":{\"id\":\"sha256:1\"}}\n", "sha256:1"),
        (
            "{\"problem\":{\"type\":\"urn:hub:problem:node-failed\",\"title\":\"\",\"status\":502,\"detail\":\"no space\",\"retry\":false}}\n",
            "no space",
        ),
        ("", "nobody knows whether image.pull was done"),
    ];
    for (ending, expected) in endings {
        let hub = async {
            let (asked, mut stream) = fake.begin().await;
            assert_eq!(asked, "POST /v1/nodes/n/call/image.pull");
            chunk(&mut stream, progress).await;
            if !ending.is_empty() {
                chunk(&mut stream, ending).await;
            }
        };
        let mut seen = Vec::new();
        let asked = client.call_with_progress("n", &pull, |progress| seen.push(progress.current));
        let ((), answer) = tokio::join!(hub, asked);
        let text = answer.map_or_else(|error| error.to_string(), |pulled| pulled.id);
        assert!(text.contains(expected), "{text}");
        assert_eq!(seen, [Some(1)]);
    }
}

#[tokio::test]
async fn an_archive_that_breaks_off_is_not_whole() {
    let (fake, client) = Fake::start().await;
    let hub = async {
        let (asked, mut stream) = fake.begin().await;
        assert_eq!(asked, "GET /v1/nodes/n/images/save?image=a%3A1&image=b");
        chunk(&mut stream, "tar").await;
    };
    let reader = async {
        let images = ["a:1", "b"].map(str::to_owned);
        let mut download = client.save("n", &images).await.unwrap();
        assert_eq!(download.next().await.unwrap().unwrap(), "tar");
        let error = download.next().await.unwrap_err();
        assert!(error.to_string().contains("not all"), "{error}");
    };
    tokio::join!(hub, reader);
}

#[tokio::test]
async fn an_archive_that_cannot_be_read_never_looks_whole() {
    let (fake, client) = Fake::start().await;
    let hub = async {
        let (mut stream, _) = fake.listener.accept().await.unwrap();
        let mut request = Vec::new();
        let ended = stream.read_to_end(&mut request).await;
        let request = String::from_utf8_lossy(&request);
        assert!(!request.ends_with("0\r\n\r\n"), "{request:?} {ended:?}");
    };
    let pieces = [
        Ok(bytes::Bytes::from_static(b"tar")),
        Err(std::io::Error::other("the disk is gone")),
    ];
    let load = client.load("n", stream::iter(pieces));
    let ((), answer) = tokio::join!(hub, load);
    let error = answer.unwrap_err();
    assert!(
        matches!(&error, ClientError::Request(text) if text.contains("the disk is gone")),
        "{error}"
    );
}
