//! Upgraded connections: bytes as they are, both ways, with ends of their own.

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_tungstenite::tungstenite::Message;

use crate::peers::{Target, ask, fetch, read_head, read_to};
use crate::world::{World, run};

#[test]
fn websockets_echo() {
    run(async {
        let target = Target::start(|stream, _| async move {
            let socket = tokio_tungstenite::accept_async(stream).await.unwrap();
            let (mut write, mut read) = socket.split();
            while let Some(Ok(message)) = read.next().await {
                if message.is_close() {
                    break;
                }
                write.send(message).await.unwrap();
            }
        })
        .await;
        let world = World::real(target.port).await;
        let browser = world.browser().await;
        let url = format!("ws://hub{}/socket", world.prefix());
        let (mut socket, response) = tokio_tungstenite::client_async(url, browser).await.unwrap();
        assert_eq!(response.status(), 101);
        for message in [
            Message::text("hello"),
            Message::binary(vec![0xff; 1_000_000]),
            Message::text(""),
        ] {
            socket.send(message.clone()).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), message);
        }
        socket.close(None).await.unwrap();
        while let Some(Ok(_)) = socket.next().await {}
        drop(socket);
        world.idle().await;
    });
}

/// A target that upgrades to `line`, says hello with it, and sends back all it gets in capitals.
async fn shouting() -> Target {
    Target::start(|mut stream, _| async move {
        let head = read_head(&mut stream).await.unwrap();
        assert_eq!(head.all("upgrade"), ["line"]);
        assert_eq!(head.all("connection"), ["upgrade"]);
        assert!(head.rest.is_empty(), "nothing may come before the answer");
        let answer =
            b"HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: line\r\nX-A: b\r\n\r\nHELLO ";
        stream.write_all(answer).await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        stream.write_all(&all.to_ascii_uppercase()).await.unwrap();
    })
    .await
}

/// Bytes that go out with the request and come back with the answer, and an end in one direction
/// that leaves the other open.
#[test]
fn any_protocol_with_early_bytes_and_half_closes() {
    run(async {
        let world = World::real(shouting().await.port).await;
        let mut browser = world.browser().await;
        let request = format!(
            "GET {}/ HTTP/1.1\r\nHost: hub\r\nConnection: upgrade\r\nUpgrade: line\r\n\r\nearly ",
            world.prefix()
        );
        let head = ask(&mut browser, &request).await;
        assert_eq!(head.status(), 101);
        assert_eq!(head.all("upgrade"), ["line"]);
        assert_eq!(head.all("connection"), ["upgrade"]);
        assert_eq!(head.all("x-a"), ["b"]);
        browser.write_all(b"late").await.unwrap();
        browser.shutdown().await.unwrap();
        let mut all = head.rest;
        browser.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"HELLO EARLY LATE");
        world.idle().await;
    });
}

/// A target that does not want to upgrade answers as to any request.
#[test]
fn an_upgrade_that_is_declined() {
    run(async {
        let target = Target::answering("HTTP/1.1 400 No\r\nContent-Length: 2\r\n\r\nno").await;
        let world = World::real(target.port).await;
        let mut browser = world.browser().await;
        let request = format!(
            "GET {}/ HTTP/1.1\r\nHost: hub\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            world.prefix()
        );
        for _ in 0..2 {
            let (head, body) = fetch(&mut browser, &request).await;
            assert_eq!((head.status(), &body[..]), (400, "no"));
            world.idle().await;
        }
        assert_eq!(target.connections(), 1);
    });
}

/// A request with a body is no upgrade: the channel carries the body.
#[test]
fn an_upgrade_with_a_body_is_an_ordinary_request() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            let mut head = read_head(&mut stream).await.unwrap();
            assert!(head.all("upgrade").is_empty());
            read_to(&mut stream, &mut head.rest, 2).await;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                .await
                .unwrap();
        })
        .await;
        let world = World::real(target.port).await;
        let request = format!(
            "POST {}/ HTTP/1.1\r\nHost: hub\r\nConnection: Upgrade\r\nUpgrade: line\r\n\
             Content-Length: 2\r\n\r\nhi",
            world.prefix()
        );
        let (head, _) = fetch(&mut world.browser().await, &request).await;
        assert_eq!(head.status(), 200);
    });
}

/// Whichever side of a tunnel goes away, the other learns it.
#[test]
fn both_sides_of_a_tunnel_end_together() {
    run(async {
        let request = |world: &World| {
            format!(
                "GET {}/ HTTP/1.1\r\nHost: hub\r\nConnection: upgrade\r\nUpgrade: line\r\n\r\n",
                world.prefix()
            )
        };
        let go = b"HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: line\r\n\r\n";

        // The target breaks off.
        let target = Target::start(move |mut stream, _| async move {
            read_head(&mut stream).await.unwrap();
            stream.write_all(go).await.unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).await.unwrap();
            stream.set_zero_linger().unwrap();
        })
        .await;
        let world = World::real(target.port).await;
        let mut browser = world.browser().await;
        assert_eq!(ask(&mut browser, &request(&world)).await.status(), 101);
        browser.write_all(b"x").await.unwrap();
        let mut rest = Vec::new();
        let _ = browser.read_to_end(&mut rest).await;
        assert!(rest.is_empty());
        world.idle().await;

        // The browser breaks off.
        let (say, mut gone) = tokio::sync::mpsc::unbounded_channel();
        let target = Target::start(move |mut stream, _| {
            let say = say.clone();
            async move {
                read_head(&mut stream).await.unwrap();
                stream.write_all(go).await.unwrap();
                let mut rest = Vec::new();
                let _ = stream.read_to_end(&mut rest).await;
                say.send(()).unwrap();
            }
        })
        .await;
        let world = World::real(target.port).await;
        let mut browser = world.browser().await;
        assert_eq!(ask(&mut browser, &request(&world)).await.status(), 101);
        browser.set_zero_linger().unwrap();
        drop(browser);
        gone.recv().await.unwrap();
        world.idle().await;
    });
}
