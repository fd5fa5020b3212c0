//! Browsers and targets that speak HTTP/1.1 byte by byte.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A head as it came, and what came behind it.
#[derive(Debug)]
pub struct Head {
    /// Its lines, the empty one left out.
    pub lines: Vec<String>,
    /// Bytes that came in the same read.
    pub rest: Vec<u8>,
}

impl Head {
    /// The values of a header.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let lines = self
            .lines
            .iter()
            .skip(1)
            .filter_map(|line| line.split_once(": "));
        lines
            .filter(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .collect()
    }

    /// The first line.
    pub fn first(&self) -> &str {
        &self.lines[0]
    }

    /// The status of a response.
    pub fn status(&self) -> u16 {
        self.lines[0].split(' ').nth(1).unwrap().parse().unwrap()
    }
}

/// Reads a head; `None` at the connection's end.
pub async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Option<Head> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            let text = String::from_utf8(bytes).unwrap();
            let lines = text.split("\r\n").filter(|line| !line.is_empty());
            let lines = lines.map(str::to_owned).collect();
            return Some(Head { lines, rest });
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            assert!(bytes.is_empty(), "the connection ends within a head");
            return None;
        }
    }
}

/// Reads until there are `len` bytes, of which `bytes` are there.
pub async fn read_to(stream: &mut (impl AsyncRead + Unpin), bytes: &mut Vec<u8>, len: usize) {
    while bytes.len() < len {
        assert!(stream.read_buf(bytes).await.unwrap() > 0, "it ends early");
    }
}

/// Sends a request, and reads the head of the response.
pub async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> Head {
    stream.write_all(request.as_bytes()).await.unwrap();
    read_head(stream).await.unwrap()
}

/// Sends a request, and reads a response whose length is announced.
pub async fn fetch(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    request: &str,
) -> (Head, String) {
    let mut head = ask(stream, request).await;
    let length = head.all("content-length")[0].parse().unwrap();
    let mut body = std::mem::take(&mut head.rest);
    read_to(stream, &mut body, length).await;
    assert_eq!(body.len(), length);
    (head, String::from_utf8(body).unwrap())
}

/// A target on a TCP port of this machine. Counts its connections.
pub struct Target {
    pub port: u16,
    connections: Arc<AtomicUsize>,
}

impl Target {
    /// Each connection is handed to `serve`, with its number from 0.
    pub async fn start<F>(serve: impl Fn(TcpStream, usize) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let number = count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(stream, number));
            }
        });
        Self { port, connections }
    }

    /// Answers each request without a body with `answer`, over and over.
    pub async fn answering(answer: &'static str) -> Self {
        Self::start(move |mut stream, _| async move {
            while read_head(&mut stream).await.is_some() {
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        })
        .await
    }

    /// How many connections there have been.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

/// A port of this machine where nothing listens.
pub async fn closed_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}
