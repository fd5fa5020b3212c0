//! Heads: what of them crosses, what does not, and what is added.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::peers::{Target, ask, fetch, read_head, read_to};
use crate::world::{World, run};

/// What reached a target that answers `answer`.
async fn seen(answer: &'static str) -> (World, Arc<Mutex<Vec<crate::peers::Head>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let heads = seen.clone();
    let target = Target::start(move |mut stream, _| {
        let heads = heads.clone();
        async move {
            while let Some(mut head) = read_head(&mut stream).await {
                let length = head
                    .all("content-length")
                    .first()
                    .map(|n| n.parse().unwrap());
                read_to(&mut stream, &mut head.rest, length.unwrap_or(0)).await;
                heads.lock().unwrap().push(head);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    (World::real(target.port).await, seen)
}

#[test]
fn a_request_by_token_loses_its_prefix_and_says_where_it_came_from() {
    run(async {
        let (world, seen) = seen("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await;
        let mut browser = world.browser().await;
        let prefix = world.prefix();
        let request = format!(
            "GET {prefix}/a%2Fb//c?d=%7B&e HTTP/1.1\r\nHost: hub:7480\r\nX-One: 1\r\nx-one: 2\r\n\
             X-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\nX-Real-IP: 1.2.3.4\r\n\
             X-Forwarded-Host: evil\r\nX-Forwarded-Prefix: /evil\r\nCookie: a=b\r\n\r\n"
        );
        let (head, body) = fetch(&mut browser, &request).await;
        assert_eq!((head.status(), &body[..]), (200, "hi"));
        let seen = seen.lock().unwrap();
        assert_eq!(seen[0].first(), "GET /a%2Fb//c?d=%7B&e HTTP/1.1");
        for (name, values) in [
            ("host", &["hub:7480"][..]),
            ("x-one", &["1", "2"]),
            ("cookie", &["a=b"]),
            ("x-forwarded-for", &["127.0.0.1"]),
            ("x-forwarded-host", &["hub:7480"]),
            ("x-forwarded-proto", &["http"]),
            ("x-forwarded-prefix", &[&prefix]),
            ("forwarded", &["for=127.0.0.1;host=\"hub:7480\";proto=http"]),
            ("x-real-ip", &["127.0.0.1"]),
            ("content-length", &[]),
            ("transfer-encoding", &[]),
        ] {
            assert_eq!(seen[0].all(name), values, "{name}");
        }
    });
}

#[test]
fn a_request_by_name_keeps_path_and_host() {
    run(async {
        let (world, seen) = seen("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        let mut browser = world.browser().await;
        for request in [
            "GET /v1/data/x HTTP/1.1\r\nHost: SHOP.hub.test:7480\r\n\r\n",
            "GET http://shop.hub.test/y HTTP/1.1\r\nHost: other\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nHost: shop.hub.test\r\n\r\n",
        ] {
            let (head, body) = fetch(&mut browser, request).await;
            assert_eq!((head.status(), &body[..]), (200, ""));
        }
        let seen = seen.lock().unwrap();
        let lines: Vec<_> = seen
            .iter()
            .map(|head| (head.first(), head.all("host")[0]))
            .collect();
        assert_eq!(
            lines,
            [
                ("GET /v1/data/x HTTP/1.1", "SHOP.hub.test:7480"),
                ("GET /y HTTP/1.1", "shop.hub.test"),
                ("OPTIONS * HTTP/1.1", "shop.hub.test"),
            ]
        );
        assert!(seen[0].all("x-forwarded-prefix").is_empty());
    });
}

#[test]
fn headers_of_one_connection_do_not_cross() {
    run(async {
        let (world, seen) = seen(
            "HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop\r\nKeep-Alive: timeout=5\r\n\
             X-Hop: 1\r\nProxy-Authenticate: Basic\r\nX-End: 1\r\nSet-Cookie: a=1\r\n\
             Set-Cookie: b=2\r\nContent-Length: 2\r\n\r\nhi",
        )
        .await;
        let mut browser = world.browser().await;
        let request = format!(
            "GET {}/ HTTP/1.1\r\nHost: hub\r\nConnection: X-Hop, keep-alive, TE\r\nX-Hop: 1\r\n\
             Keep-Alive: 5\r\nProxy-Authorization: Basic x\r\nProxy-Connection: close\r\n\
             TE: gzip, trailers\r\nUpgrade: h2c\r\nX-End: 1\r\n\r\n",
            world.prefix()
        );
        let (head, _) = fetch(&mut browser, &request).await;
        for (name, values) in [
            ("x-end", &["1"][..]),
            ("set-cookie", &["a=1", "b=2"]),
            ("x-hop", &[]),
            ("connection", &[]),
            ("keep-alive", &[]),
            ("proxy-authenticate", &[]),
        ] {
            assert_eq!(head.all(name), values, "{name}");
        }
        let seen = seen.lock().unwrap();
        for (name, values) in [
            ("x-end", &["1"][..]),
            ("te", &["trailers"]),
            ("connection", &["te"]),
            ("x-hop", &[]),
            ("keep-alive", &[]),
            ("proxy-authorization", &[]),
            ("proxy-connection", &[]),
            ("upgrade", &[]),
        ] {
            assert_eq!(seen[0].all(name), values, "{name}");
        }
    });
}

#[test]
fn an_empty_body_is_said_to_be_empty() {
    run(async {
        let (world, seen) = seen("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        let mut browser = world.browser().await;
        for (method, line, expected) in [
            ("POST", "Content-Length: 0\r\n", &["0"][..]),
            ("PUT", "Content-Length: 0\r\n", &["0"]),
            ("POST", "", &[]),
            ("GET", "Content-Length: 0\r\n", &["0"]),
            ("DELETE", "Content-Length: 3\r\n", &["3"]),
        ] {
            let body = if line.contains('3') { "abc" } else { "" };
            let head = format!(
                "{method} {}/ HTTP/1.1\r\nHost: hub\r\n{line}\r\n",
                world.prefix()
            );
            fetch(&mut browser, &(head + body)).await;
            let seen = seen.lock().unwrap();
            let last = seen.last().unwrap();
            assert_eq!(last.all("content-length"), expected, "{method} {line}");
            assert!(last.all("transfer-encoding").is_empty());
            assert_eq!(last.rest, body.as_bytes());
        }
    });
}

/// Answers that have no body, whatever their heads say of it, and leave the connection usable.
#[test]
fn answers_without_a_body() {
    run(async {
        for (method, answer, length) in [
            (
                "HEAD",
                "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n",
                &["12"][..],
            ),
            (
                "HEAD",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                &[],
            ),
            (
                "GET",
                "HTTP/1.1 304 Not Modified\r\nContent-Length: 12\r\nETag: x\r\n\r\n",
                &["12"],
            ),
            ("GET", "HTTP/1.1 304 Not Modified\r\n\r\n", &[]),
            ("DELETE", "HTTP/1.1 204 No Content\r\n\r\n", &[]),
            (
                "POST",
                "HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n",
                &["0"],
            ),
            (
                "GET",
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                &["0"],
            ),
        ] {
            let target = Target::answering(answer).await;
            let world = World::real(target.port).await;
            let mut browser = world.browser().await;
            let request = format!("{method} {}/ HTTP/1.1\r\nHost: hub\r\n\r\n", world.prefix());
            // Twice: bytes that do not belong there would spoil the second answer.
            for _ in 0..2 {
                let head = ask(&mut browser, &request).await;
                assert_eq!(head.first(), answer.lines().next().unwrap());
                assert_eq!(head.all("content-length"), length, "{answer}");
                assert!(head.all("transfer-encoding").is_empty(), "{answer}");
                assert!(head.rest.is_empty(), "{answer}");
            }
            world.idle().await;
            assert_eq!(target.connections(), 1, "{answer}");
        }
    });
}

/// A browser of HTTP/1.0 gets a body that ends with the connection.
#[test]
fn an_old_browser_reads_to_the_end() {
    run(async {
        let target = Target::answering(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        )
        .await;
        let world = World::real(target.port).await;
        let mut browser = world.browser().await;
        let head = ask(
            &mut browser,
            &format!("GET {}/ HTTP/1.0\r\n\r\n", world.prefix()),
        )
        .await;
        assert!(head.all("transfer-encoding").is_empty());
        let mut body = head.rest;
        browser.read_to_end(&mut body).await.unwrap();
        assert_eq!(body, b"hi");
    });
}

/// So does one whose target ends its answer with the connection: it arrives in chunks.
#[test]
fn an_old_target_ends_with_its_connection() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            read_head(&mut stream).await.unwrap();
            stream
                .write_all(b"HTTP/1.0 200 OK\r\n\r\nall of it")
                .await
                .unwrap();
        })
        .await;
        let world = World::real(target.port).await;
        let mut browser = world.browser().await;
        let request = format!("GET {}/ HTTP/1.1\r\nHost: hub\r\n\r\n", world.prefix());
        let mut head = ask(&mut browser, &request).await;
        assert_eq!(head.all("transfer-encoding"), ["chunked"]);
        let all = b"9\r\nall of it\r\n0\r\n\r\n";
        read_to(&mut browser, &mut head.rest, all.len()).await;
        assert_eq!(head.rest, all);
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    run(async {
        let (world, seen) = seen("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await;
        let mut browser = world.browser().await;
        let requests: Vec<_> = (0..5)
            .map(|n| format!("GET {}/{n} HTTP/1.1\r\nHost: hub\r\n\r\n", world.prefix()))
            .collect();
        let requests = requests.concat();
        browser.write_all(requests.as_bytes()).await.unwrap();
        let mut all = Vec::new();
        while all
            .windows(6)
            .filter(|window| window == b"\r\n\r\nhi")
            .count()
            < 5
        {
            assert!(browser.read_buf(&mut all).await.unwrap() > 0);
        }
        let seen = seen.lock().unwrap();
        let paths: Vec<_> = seen.iter().map(|head| head.first().to_owned()).collect();
        let expected: Vec<_> = (0..5).map(|n| format!("GET /{n} HTTP/1.1")).collect();
        assert_eq!(paths, expected);
    });
}
