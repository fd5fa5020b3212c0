//! What is asked, and how fast the answers come.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::targets::BULK;
use crate::threads::runtime;

/// A way to a target, and the path that a request takes there.
#[derive(Debug, Clone)]
pub struct Way {
    /// What it is called in the tables.
    pub name: String,
    /// Where it takes connections.
    pub address: SocketAddr,
    /// The path to ask for.
    pub path: String,
}

/// Fetches the bulk once; gives MiB per second.
pub fn bulk(way: &Way) -> f64 {
    let Way { address, path, .. } = way.clone();
    runtime().block_on(async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let started = Instant::now();
        let request = format!("GET {path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut block = vec![0; 256 << 10];
        let mut received = 0;
        while received < BULK {
            let now = stream.read(&mut block).await.unwrap();
            assert!(now > 0, "the response ended after {received} bytes");
            received += now as u64;
        }
        (received >> 20) as f64 / started.elapsed().as_secs_f64()
    })
}

/// Requests per second, and the 99th percentile of how long one takes.
pub type Small = (f64, Duration);

/// Many small requests on kept-alive connections.
pub fn small(way: &Way, connections: usize, requests: usize) -> Small {
    let Way { address, path, .. } = way.clone();
    runtime().block_on(async {
        let each = requests / connections;
        let mut running = tokio::task::JoinSet::new();
        let started = Instant::now();
        for _ in 0..connections {
            let path = path.clone();
            running.spawn(async move {
                let stream = TcpStream::connect(address).await.unwrap();
                stream.set_nodelay(true).unwrap();
                let io = hyper_util::rt::TokioIo::new(stream);
                let (mut sender, connection) =
                    hyper::client::conn::http1::handshake(io).await.unwrap();
                tokio::spawn(connection);
                let mut took = Vec::with_capacity(each);
                for _ in 0..each {
                    let began = Instant::now();
                    let request = hyper::Request::get(&path).header("host", "bench");
                    let request = request.body(http_body_util::Empty::<Bytes>::new()).unwrap();
                    let response = sender.send_request(request).await.unwrap();
                    assert_eq!(response.status(), 200);
                    http_body_util::BodyExt::collect(response.into_body())
                        .await
                        .unwrap();
                    took.push(began.elapsed());
                }
                took
            });
        }
        let mut took = running.join_all().await.concat();
        let rate = took.len() as f64 / started.elapsed().as_secs_f64();
        took.sort_unstable();
        (rate, took[took.len() * 99 / 100])
    })
}

/// Connections that ask for the bulk and never read the answer; closed when dropped.
pub fn stuck(way: &Way, connections: usize) -> Vec<std::net::TcpStream> {
    use std::io::{Read as _, Write as _};
    (0..connections)
        .map(|_| {
            let mut stream = std::net::TcpStream::connect(way.address).unwrap();
            let request = format!("GET {} HTTP/1.1\r\nhost: bench\r\n\r\n", way.path);
            stream.write_all(request.as_bytes()).unwrap();
            // The answer has begun.
            stream.read_exact(&mut [0; 64]).unwrap();
            stream
        })
        .collect()
}

/// Kilobytes of memory that this process holds.
pub fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let words = line.and_then(|line| line.split_whitespace().nth(1));
    words.and_then(|word| word.parse().ok()).unwrap_or(0)
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
