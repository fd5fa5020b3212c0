//! How fast requests go through Hub on loopback, beside what they could be measured against, in one
//! run: `cargo bench --bench loopback`.
//!
//! - *bulk*: one response of 512 MiB through an exposure, beside the same through a bare tunnel: TCP
//!   spliced to one quinn stream per connection, no framing, no HTTP, the same provider, transport
//!   settings and runtimes (one single-threaded runtime for each end).
//! - *small*: requests of a few bytes on kept-alive connections through an exposure, beside the same
//!   nginx directly (Debian's `nginx-light`, or a plain hyper server where nginx is not installed).
//!
//! Pairs alternate, and ratios are medians, so that a machine that is busy is busy for both.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::cast_precision_loss)]

use std::net::SocketAddr;
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hub_agent::agent::{self, Joining};
use hub_agent::dial::HubAddress;
use hub_agent::runtime::process::ProcessRuntime;
use hub_quic::endpoint::{self, Handshakes, Transport, UdpNetwork};
use hub_quic::session::windows;
use hub_server::{Config, Parts, Server};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

const BULK: u64 = 512 << 20;
const PAIRS: usize = 5;
const CONNECTIONS: [usize; 3] = [1, 32, 256];
const REQUESTS: usize = 20_000;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// Runs a future on a thread and a runtime of its own; gives what it says when it is ready.
fn on_its_own<T: Send + 'static, F: Future<Output = ()> + 'static>(
    name: &str,
    work: impl FnOnce(oneshot::Sender<T>) -> F + Send + 'static,
) -> T {
    let (ready, is_ready) = oneshot::channel();
    thread::Builder::new()
        .name(name.into())
        .spawn(move || runtime().block_on(work(ready)))
        .unwrap();
    is_ready.blocking_recv().unwrap()
}

const LOOPBACK: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// A server that answers every connection's first request with [`BULK`] bytes.
fn bulk_target() -> SocketAddr {
    on_its_own("target", |ready| async move {
        let listener = TcpListener::bind(SocketAddr::from(LOOPBACK)).await.unwrap();
        ready.send(listener.local_addr().unwrap()).unwrap();
        let block = vec![0x5a; 256 << 10];
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let block = block.clone();
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {BULK}\r\n\r\n");
                let _ = stream.write_all(head.as_bytes()).await;
                let mut left = BULK as usize;
                while left > 0 {
                    let now = left.min(block.len());
                    if stream.write_all(&block[..now]).await.is_err() {
                        return;
                    }
                    left -= now;
                }
            });
        }
    })
}

/// nginx, if it is installed, with a page of a few bytes.
struct Nginx {
    child: Child,
    _dir: tempfile::TempDir,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn nginx() -> Option<(Nginx, SocketAddr)> {
    let dir = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind(SocketAddr::from(LOOPBACK))
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let root = dir.path().display();
    std::fs::write(dir.path().join("index.html"), "hello from nginx\n").unwrap();
    let user = if rustix::process::getuid().is_root() {
        "user root;"
    } else {
        ""
    };
    let config = format!(
        "{user} daemon off; worker_processes 1; pid {root}/pid; error_log {root}/error.log;\
         events {{ worker_connections 1024; }}\
         http {{ access_log off; keepalive_requests 1000000; server {{ listen 127.0.0.1:{port}; root {root}; }}\
         client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c;\
         uwsgi_temp_path {root}/d; scgi_temp_path {root}/e; }}"
    );
    let path = dir.path().join("nginx.conf");
    std::fs::write(&path, config).unwrap();
    let nginx = ["nginx", "/usr/sbin/nginx"]
        .into_iter()
        .find_map(|program| {
            Command::new(program)
                .arg("-c")
                .arg(&path)
                .arg("-p")
                .arg(dir.path())
                .spawn()
                .ok()
        })?;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    while std::net::TcpStream::connect(address).is_err() {
        thread::sleep(Duration::from_millis(10));
    }
    Some((
        Nginx {
            child: nginx,
            _dir: dir,
        },
        address,
    ))
}

/// Where the hub listens and how to ask it: `expose(port)` gives the path of an exposure.
struct Hub {
    proxy: SocketAddr,
    paths: Vec<String>,
}

/// A hub and an agent, each on a thread of its own, with these ports exposed.
fn hub(ports: Vec<u16>) -> Hub {
    let dir = Box::leak(Box::new(tempfile::tempdir().unwrap())).path();
    let (joined, is_joined) = oneshot::channel::<()>();
    let (bound, token, paths_asked) = on_its_own("hub", move |ready| async move {
        let config = Config {
            api_listen: None,
            ..Config::loopback(dir.join("hub"))
        };
        let parts = Parts::system(&config).await.unwrap();
        let server = Server::start(config, parts).await.unwrap();
        let fresh = server
            .hub()
            .create_token(1, Duration::from_secs(60))
            .await
            .unwrap();
        let (paths, paths_asked) = oneshot::channel();
        let mut changes = server.hub().sessions().changes();
        ready
            .send((server.bound().clone(), fresh.token, paths_asked))
            .ok()
            .unwrap();
        changes.changed().await.unwrap();
        let mut exposed = Vec::new();
        for port in ports {
            let url = server
                .hub()
                .expose("bench", port, None)
                .await
                .unwrap()
                .urls
                .remove(0);
            exposed.push(url[url.find("/v1/").unwrap()..].to_owned());
        }
        paths.send(exposed).unwrap();
        let _ = is_joined.await;
        std::future::pending::<()>().await;
    });
    let agents = HubAddress::from(bound.agents);
    let (enrollment, pin) = (HubAddress::from(bound.enrollment), bound.ca);
    on_its_own("agent", move |ready| async move {
        let config = agent::Config {
            data_dir: dir.join("agent"),
            hub: agents,
            joining: Some(Joining {
                enrollment,
                pin,
                token,
                name: Some("bench".parse().unwrap()),
            }),
            platform: hub::settings::platform(),
            digest: String::new(),
            policy: Arc::default(),
        };
        let runtime = ProcessRuntime::open(&dir.join("agent")).await.unwrap();
        let parts = hub::settings::system_parts(Arc::new(runtime));
        let (stop, stopping) = watch::channel(false);
        ready.send(()).unwrap();
        agent::run(config, parts, stopping).await.unwrap();
        drop(stop);
    });
    let paths = paths_asked.blocking_recv().unwrap();
    joined.send(()).unwrap();
    Hub {
        proxy: bound.proxy.unwrap(),
        paths,
    }
}

/// A bare tunnel to `target`: gives the address to connect to.
fn tunnel(target: SocketAddr) -> SocketAddr {
    let certified = rcgen::generate_simple_self_signed(vec!["tunnel".into()]).unwrap();
    let certificate = certified.cert.der().clone();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let server_tls = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .unwrap();
    let client_tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (front, quic) = on_its_own("tunnel front", move |ready| async move {
        let network = UdpNetwork::default();
        let tls = Arc::new(QuicServerConfig::try_from(server_tls).unwrap());
        let transport = Transport::hub(windows());
        let config = endpoint::server_config(&network, tls, &transport, &Handshakes::default());
        let listener = endpoint::listener(&network, LOOPBACK.into(), &transport, config).unwrap();
        let front = TcpListener::bind(SocketAddr::from(LOOPBACK)).await.unwrap();
        let quic = listener.local_addr().unwrap();
        ready.send((front.local_addr().unwrap(), quic)).unwrap();
        let connection = listener.accept().await.unwrap().await.unwrap();
        loop {
            let (mut tcp, _) = front.accept().await.unwrap();
            let connection = connection.clone();
            tokio::spawn(async move {
                let (send, receive) = connection.open_bi().await.unwrap();
                let _ = copy_bidirectional(&mut tcp, &mut tokio::io::join(receive, send)).await;
            });
        }
    });
    on_its_own("tunnel back", move |ready| async move {
        let network = UdpNetwork::default();
        let tls = Arc::new(QuicClientConfig::try_from(client_tls).unwrap());
        let transport = Transport::agent(windows());
        let config = endpoint::client_config(&network, tls, &transport);
        let dialler = endpoint::dialler(&network, LOOPBACK.into(), &transport).unwrap();
        let connection = dialler
            .connect_with(config, quic, "tunnel")
            .unwrap()
            .await
            .unwrap();
        ready.send(()).unwrap();
        while let Ok((send, receive)) = connection.accept_bi().await {
            tokio::spawn(async move {
                let mut tcp = TcpStream::connect(target).await.unwrap();
                let _ = copy_bidirectional(&mut tcp, &mut tokio::io::join(receive, send)).await;
            });
        }
    });
    front
}

/// Fetches the bulk once; gives MiB per second.
fn bulk(address: SocketAddr, path: &str) -> f64 {
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
type Small = (f64, Duration);

/// Many small requests on kept-alive connections; gives requests per second and the 99th percentile.
fn small(address: SocketAddr, path: &str, connections: usize) -> Small {
    runtime().block_on(async {
        let each = REQUESTS / connections;
        let mut running = tokio::task::JoinSet::new();
        let started = Instant::now();
        for _ in 0..connections {
            let path = path.to_owned();
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

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    // `cargo test --benches` and the like only ask whether it builds.
    if std::env::args().any(|arg| arg == "--list" || arg == "--test") {
        return;
    }
    let target = bulk_target();
    let nginx = nginx();
    let web = nginx.as_ref().map_or(target, |(_, address)| *address);
    let hub = hub(vec![target.port(), web.port()]);
    let bare = tunnel(target);

    let mut ratios = Vec::new();
    println!(
        "bulk, {} MiB, MiB/s       bare tunnel        Hub   ratio",
        BULK >> 20
    );
    for pair in 0..PAIRS {
        let (bare, through) = (bulk(bare, "/"), bulk(hub.proxy, &hub.paths[0]));
        println!(
            "  pair {}                     {bare:8.0}   {through:8.0}   {:5.2}",
            pair + 1,
            through / bare
        );
        ratios.push(through / bare);
    }
    println!(
        "  median ratio: {:.2} (at least 0.50 is wanted)\n",
        median(ratios)
    );

    if nginx.is_none() {
        println!("small requests: skipped, nginx is not installed");
        return;
    }
    println!("small requests, {REQUESTS}     nginx/s      p99        Hub/s      p99   rate ratio");
    for connections in CONNECTIONS {
        let mut rows = Vec::new();
        for _ in 0..3 {
            rows.push((
                small(web, "/", connections),
                small(hub.proxy, &hub.paths[1], connections),
            ));
        }
        let rate = |pick: fn(&(Small, Small)) -> f64| median(rows.iter().map(pick).collect());
        let (direct, through) = (rate(|row| row.0.0), rate(|row| row.1.0));
        let (p99, through_p99) = (
            rate(|row| row.0.1.as_secs_f64()),
            rate(|row| row.1.1.as_secs_f64()),
        );
        println!(
            "  {connections:4} connections     {direct:8.0}  {:6.2} ms   {through:8.0}  {:6.2} ms   {:8.2}",
            p99 * 1e3,
            through_p99 * 1e3,
            through / direct,
        );
    }
}
