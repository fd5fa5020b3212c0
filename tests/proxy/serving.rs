//! The listener: how it stops, and what it says about whom.

use std::io;
use std::sync::{Arc, Mutex};

use tokio::io::AsyncReadExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

use crate::peers::{Target, ask, closed_port, fetch, read_head, read_to};
use crate::world::{World, run};

/// Requests under way come to their end, connections that carry none are closed, and no new ones
/// are taken.
#[test]
fn it_stops_in_good_order() {
    run(async {
        let (go_on, wait) = mpsc::unbounded_channel::<()>();
        let wait = Arc::new(tokio::sync::Mutex::new(wait));
        let target = Target::start(move |mut stream, _| {
            let wait = wait.clone();
            async move {
                read_head(&mut stream).await.unwrap();
                let half = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf";
                stream.write_all(half).await.unwrap();
                wait.lock().await.recv().await.unwrap();
                stream.write_all(b"half").await.unwrap();
            }
        })
        .await;
        let world = World::real(target.port).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let proxy = world.proxy.clone();
        let served =
            tokio::spawn(async move { proxy.serve(listener, async { _ = stopped.await }).await });

        let mut busy = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {}/ HTTP/1.1\r\nHost: hub\r\n\r\n", world.prefix());
        let mut head = ask(&mut busy, &request).await;
        let mut idle = TcpStream::connect(address).await.unwrap();
        fetch(&mut idle, "GET / HTTP/1.1\r\nHost: hub\r\n\r\n").await;

        stop.send(()).unwrap();
        assert_eq!(idle.read(&mut [0]).await.unwrap(), 0);
        assert!(TcpStream::connect(address).await.is_err());
        go_on.send(()).unwrap();
        read_to(&mut busy, &mut head.rest, 8).await;
        assert_eq!(head.rest, b"halfhalf");
        served.await.unwrap();
    });
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whatever becomes of a request, its token and path are in no log, at no level.
#[test]
fn logs_hold_no_secrets() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    // For the whole program: what other tests log meanwhile is welcome, and has the same token.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let token = run(async {
        let world = World::real(closed_port().await).await;
        for (path, status) in [
            (format!("{}/private?key", world.prefix()), 502),
            (format!("{}?private", world.prefix()), 308),
            (format!("/v1/data/{}private/", world.token), 404),
            ("/private".to_owned(), 404),
        ] {
            let mut browser = world.browser().await;
            let request = format!("GET {path} HTTP/1.1\r\nHost: hub\r\nCookie: private\r\n\r\n");
            let (head, _) = fetch(&mut browser, &request).await;
            assert_eq!(head.status(), status);
        }
        world.token
    });
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("refused the connection"), "{log}");
    for secret in [&token[..], "private"] {
        assert!(!log.contains(secret), "{log}");
    }
}
