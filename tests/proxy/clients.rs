//! Who the client is, by what proxies in front say: in headers, and in the PROXY protocol.

use hub_server::proxy::{Config, Trusted};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::peers::{Target, fetch, read_head};
use crate::world::{World, run};

fn trusting(networks: &[&str]) -> impl Fn(&mut Config) {
    let networks = networks.iter().map(|text| text.parse().unwrap());
    let trusted = Trusted::new(networks.collect());
    move |config| config.trusted = trusted.clone()
}

/// A target that answers with what it was told of the client.
async fn telling() -> Target {
    Target::start(|mut stream, _| async move {
        while let Some(head) = read_head(&mut stream).await {
            let told = ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-user"];
            let told = told.map(|name| head.all(name).join("|"));
            let body = told.join(" ");
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await
}

fn request(world: &World) -> String {
    format!(
        "GET {}/ HTTP/1.1\r\nHost: hub\r\nX-Forwarded-For: 6.6.6.6, 192.0.2.7\r\n\
         X-Forwarded-Proto: https\r\nX-Forwarded-User: me\r\n\r\n",
        world.prefix()
    )
}

#[test]
fn headers_count_from_trusted_proxies_only() {
    run(async {
        let target = telling().await;
        for (networks, told) in [
            (&[][..], "127.0.0.1 http "),
            (&["10.0.0.0/8"], "127.0.0.1 http "),
            (&["127.0.0.0/8"], "192.0.2.7, 127.0.0.1 https me"),
        ] {
            let world = World::real_with(target.port, trusting(networks)).await;
            let (_, body) = fetch(&mut world.browser().await, &request(&world)).await;
            assert_eq!(body, told);
        }
    });
}

const V1: &[u8] = b"PROXY TCP4 198.51.100.9 127.0.0.1 4711 443\r\n";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc6\x33\x64\x09\x7f\0\0\x01\x12\x67\x01\xbb";
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

#[test]
fn the_proxy_protocol_says_whose_connection_it_is() {
    run(async {
        let target = telling().await;
        let world = World::real_with(target.port, |config| {
            trusting(&["127.0.0.1"])(config);
            config.proxy_protocol = true;
        })
        .await;
        // The word of a client that no trusted proxy has seen counts for nothing.
        for (header, told) in [
            (V1, "198.51.100.9 http "),
            (V2, "198.51.100.9 http "),
            (LOCAL, "192.0.2.7, 127.0.0.1 https me"),
        ] {
            let mut browser = world.browser().await;
            browser.write_all(header).await.unwrap();
            for _ in 0..2 {
                let (_, body) = fetch(&mut browser, &request(&world)).await;
                assert_eq!(body, told);
            }
            // Byte by byte, and the request in the same packet as the last of them.
            let mut browser = world.browser().await;
            let (last, start) = header.split_last().unwrap();
            for byte in start {
                browser.write_all(&[*byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
            let rest = [&[*last], request(&world).as_bytes()].concat();
            browser.write_all(&rest).await.unwrap();
            assert_eq!(read_head(&mut browser).await.unwrap().status(), 200);
        }
    });
}

#[test]
fn whoever_does_not_speak_the_proxy_protocol_gets_no_answer() {
    run(async {
        let target = telling().await;
        for (trusted, start) in [
            ("127.0.0.1", &b"GET / HTTP/1.1\r\n\r\n"[..]),
            ("127.0.0.1", b"PROXY TCP4 1.2.3.4 nonsense\r\n"),
            ("192.0.2.1", V1),
        ] {
            let world = World::real_with(target.port, |config| {
                trusting(&[trusted])(config);
                config.proxy_protocol = true;
            })
            .await;
            let mut browser = world.browser().await;
            let _ = browser.write_all(start).await;
            let mut answer = Vec::new();
            // An end or a reset.
            let _ = browser.read_to_end(&mut answer).await;
            assert!(answer.is_empty());
        }
        assert_eq!(target.connections(), 0);
    });
}
