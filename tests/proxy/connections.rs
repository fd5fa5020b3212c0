//! Connections to targets: kept, replaced, given up.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;

use crate::peers::{Target, fetch, read_head, read_to};
use crate::world::{World, run};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";

#[test]
fn one_connection_carries_many_requests() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            while let Some(mut head) = read_head(&mut stream).await {
                let length = head
                    .all("content-length")
                    .first()
                    .map(|n| n.parse().unwrap());
                read_to(&mut stream, &mut head.rest, length.unwrap_or(0)).await;
                stream.write_all(OK.as_bytes()).await.unwrap();
            }
        })
        .await;
        let world = World::real(target.port).await;
        // From one browser and from others.
        let mut browser = world.browser().await;
        for n in 0..20 {
            if n % 5 == 0 {
                browser = world.browser().await;
            }
            let line = format!("{}/ HTTP/1.1\r\nHost: hub\r\n", world.prefix());
            let request = if n % 2 == 0 {
                format!("GET {line}\r\n")
            } else {
                format!("POST {line}Content-Length: 5\r\n\r\nhello")
            };
            let (_, body) = fetch(&mut browser, &request).await;
            assert_eq!(body, "hi");
            world.idle().await;
        }
        assert_eq!(target.connections(), 1);
        assert_eq!(world.connections.idle(), 1);
    });
}

/// A target that closes after each answer, and does not say so: nobody notices.
#[test]
fn a_connection_that_went_stale_is_replaced() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            read_head(&mut stream).await.unwrap();
            stream.write_all(OK.as_bytes()).await.unwrap();
        })
        .await;
        let world = World::real(target.port).await;
        let mut browser = world.browser().await;
        let request = format!("GET {}/ HTTP/1.1\r\nHost: hub\r\n\r\n", world.prefix());
        for n in 1..=20 {
            let (head, body) = fetch(&mut browser, &request).await;
            assert_eq!((head.status(), &body[..]), (200, "hi"));
            assert_eq!(target.connections(), n);
        }
    });
}

/// The first connection takes a second request and closes without a byte of answer.
#[test]
fn what_may_be_sent_twice_is_and_the_rest_is_not() {
    run(async {
        for (method, status) in [("GET", 200), ("DELETE", 200), ("POST", 502), ("PATCH", 502)] {
            let target = Target::start(|mut stream, number| async move {
                read_head(&mut stream).await.unwrap();
                stream.write_all(OK.as_bytes()).await.unwrap();
                read_head(&mut stream).await.unwrap();
                if number > 0 {
                    stream.write_all(OK.as_bytes()).await.unwrap();
                }
            })
            .await;
            let world = World::real(target.port).await;
            let mut browser = world.browser().await;
            let line = format!("{}/ HTTP/1.1\r\nHost: hub\r\n\r\n", world.prefix());
            fetch(&mut browser, &format!("GET {line}")).await;
            world.idle().await;
            let (head, _) = fetch(&mut browser, &format!("{method} {line}")).await;
            assert_eq!(head.status(), status, "{method}");
            let connections = if status == 200 { 2 } else { 1 };
            assert_eq!(target.connections(), connections, "{method}");
        }
    });
}

/// Connections that nobody needs are closed in time.
#[test]
fn idle_connections_are_closed() {
    crate::world::run_simulated(async {
        let serve = |mut stream: tokio::io::DuplexStream| {
            tokio::spawn(async move {
                while read_head(&mut stream).await.is_some() {
                    stream.write_all(OK.as_bytes()).await.unwrap();
                }
            });
            Ok(())
        };
        let world = World::simulated(std::sync::Arc::new(crate::world::InMemory(serve))).await;
        let mut browser = world.browser_in_memory();
        let request = format!("GET {}/ HTTP/1.1\r\nHost: hub\r\n\r\n", world.prefix());
        for _ in 0..2 {
            fetch(&mut browser, &request).await;
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert_eq!(world.connections.idle(), 1);
        }
        tokio::time::sleep(Duration::from_secs(26)).await;
        assert_eq!(world.connections.idle(), 0);
    });
}
