//! Who gets in, how much they may have, and which replica answers.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use hub_ledger::{Access, Exposure, Timestamp};
use hub_protocol::session;
use hub_protocol::target;
use hub_server::proxy::{Live, Quotas, Rate};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::peers::{Head, Target, ask, closed_port, fetch, read_head, read_to};
use crate::world::{InMemory, World, run, run_simulated};

const HTML: &str = "Accept: text/html,*/*;q=0.8\r\n";
const FROM_HERE: &str = "Origin: http://shop.hub.test\r\n";

impl World {
    /// Changes the exposure.
    pub fn set(&self, change: impl FnOnce(&mut Exposure)) {
        self.reroute(|to| change(Arc::make_mut(&mut to.exposure)));
    }

    /// Adds a replica on this port of the same node.
    fn add_replica(&self, port: u16) {
        self.reroute(|to| {
            let first = &to.replicas[0];
            to.replicas.push(Live {
                target: target::Target::tcp(port),
                ..first.clone()
            });
            self.targets.update(session::Targets {
                revision: to.replicas.len() as u64,
                targets: to.replicas.iter().map(|live| live.target.clone()).collect(),
            });
        });
    }

    /// How often this limit has held somebody back.
    fn refused(&self, limit: &str) -> u64 {
        let mut all = self.proxy.refusals();
        all.find(|(name, _)| *name == limit).unwrap().1
    }

    /// The cookie of whoever logs in as the operator.
    async fn log_in(&self, browser: &mut TcpStream) -> String {
        let operator = &self.operator;
        let form = format!("user=operator&secret={operator}&to=%2Fdeep%3Fa%3Db");
        let (head, _) = fetch(browser, &post("/.hub/login", FROM_HERE, &form)).await;
        assert_eq!(
            (head.status(), head.all("location")),
            (303, vec!["/deep?a=b"])
        );
        cookie(&head, "hub_session")
    }
}

/// A target that answers with the head that it got.
async fn reflecting() -> Target {
    Target::start(|mut stream, _| async move {
        while let Some(head) = read_head(&mut stream).await {
            let seen = head.lines.join("\n");
            let answer = format!(
                "HTTP/1.1 200 OK\r\nX-Hub-User: root\r\nSet-Cookie: hub_session=evil\r\n\
                 Set-Cookie: mine=1\r\nContent-Length: {}\r\n\r\n{seen}",
                seen.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await
}

/// A target that says which it is.
async fn named(name: &'static str) -> Target {
    Target::start(move |mut stream, _| async move {
        while read_head(&mut stream).await.is_some() {
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}",
                name.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await
}

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: shop.hub.test\r\n{headers}\r\n")
}

fn post(path: &str, headers: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: shop.hub.test\r\n{headers}\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// What a browser sends back of a cookie that it was given.
fn cookie(head: &Head, name: &str) -> String {
    let set = head.all("set-cookie");
    let set = set.iter().find(|line| line.starts_with(name)).unwrap();
    set.split(';').next().unwrap().to_owned()
}

#[test]
fn a_login_opens_the_page_and_names_who_asks() {
    run(async {
        let world = World::real(reflecting().await.port).await;
        world.set(|exposure| exposure.access = Access::Login);
        let mut browser = world.browser().await;
        // A page to whoever reads it, with a way back; words to programs.
        let (head, page) = fetch(&mut browser, &get("/deep?a=b", HTML)).await;
        assert_eq!(
            (head.status(), head.all("cache-control")),
            (401, vec!["no-store"])
        );
        assert_eq!(head.all("x-frame-options"), ["DENY"]);
        assert!(head.all("content-security-policy")[0].contains("default-src 'none'"));
        assert!(page.contains("action=\"/.hub/login\""), "{page}");
        assert!(page.contains("name=\"to\" value=\"/deep?a=b\""), "{page}");
        let (head, text) = fetch(&mut browser, &get("/deep", "Sec-Fetch-Mode: cors\r\n")).await;
        assert_eq!(
            (head.status(), head.all("www-authenticate")),
            (401, vec!["Hub-Token"])
        );
        assert!(text.contains("only who is logged in"), "{text}");

        let (head, page) = fetch(&mut browser, &post("/.hub/login", FROM_HERE, "secret=x")).await;
        assert_eq!((head.status(), head.all("set-cookie").len()), (401, 0));
        assert!(page.contains("role=\"alert\""), "{page}");
        let elsewhere = "Origin: http://evil.hub.test\r\n";
        let form = format!("user=operator&secret={}", world.operator);
        for headers in [elsewhere, ""] {
            let (head, _) = fetch(&mut browser, &post("/.hub/login", headers, &form)).await;
            assert_eq!((head.status(), head.all("set-cookie").len()), (403, 0));
        }

        let session = world.log_in(&mut browser).await;
        let headers = format!(
            "X-Hub-User: root\r\nX_Hub_User: root\r\nAuthorization: Basic abc\r\n\
             Cookie: a=1; {session}; b=2\r\n"
        );
        let (head, seen) = fetch(&mut browser, &get("/deep?a=b", &headers)).await;
        assert_eq!(
            (head.status(), head.all("set-cookie")),
            (200, vec!["mine=1"])
        );
        assert!(head.all("x-hub-user").is_empty());
        let lines: Vec<&str> = seen.split('\n').collect();
        assert_eq!(lines[0], "GET /deep?a=b HTTP/1.1");
        assert!(lines.contains(&"cookie: a=1; b=2"), "{seen}");
        assert!(lines.contains(&"authorization: Basic abc"), "{seen}");
        let users = lines
            .iter()
            .filter(|line| line.to_lowercase().contains("hub"));
        let users: Vec<&&str> = users.filter(|line| !line.contains("hub.test")).collect();
        assert_eq!(users, [&"x-hub-user: operator"], "{seen}");

        // Another exposure's page does nothing in the operator's name.
        let headers = format!("{elsewhere}Cookie: {session}\r\n");
        let (head, _) = fetch(&mut browser, &post("/", &headers, "x")).await;
        assert_eq!(head.status(), 401);

        let headers = format!("{FROM_HERE}Cookie: {session}\r\n");
        let (head, _) = fetch(&mut browser, &post("/.hub/logout", &headers, "")).await;
        assert_eq!((head.status(), head.all("location")), (303, vec!["/"]));
        assert!(head.all("set-cookie")[0].starts_with("hub_session=;"));
        assert!(head.all("set-cookie")[0].contains("Max-Age=0"));
    });
}

#[test]
fn a_session_in_use_goes_on() {
    run(async {
        let world = World::real(reflecting().await.port).await;
        world.set(|exposure| exposure.access = Access::Login);
        let mut browser = world.browser().await;
        let session = format!("Cookie: {}\r\n", world.log_in(&mut browser).await);
        let minutes = |minutes: u64| Timestamp::from_millis(minutes * 60_000);
        world.reroute(|to| to.at = minutes(59));
        let (head, _) = fetch(&mut browser, &get("/", &session)).await;
        let renewed = format!("Cookie: {}\r\n", cookie(&head, "hub_session"));
        world.reroute(|to| to.at = minutes(60));
        let (head, _) = fetch(&mut browser, &get("/", &session)).await;
        assert_eq!(head.status(), 401, "the first one is over");
        let (head, _) = fetch(&mut browser, &get("/", &renewed)).await;
        assert_eq!(head.status(), 200);
    });
}

#[test]
fn websockets_are_asked_for_the_session_too() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            let head = read_head(&mut stream).await.unwrap();
            assert_eq!(head.all("x-hub-user"), ["operator"]);
            let answer = b"HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
            stream.write_all(answer).await.unwrap();
        })
        .await;
        let world = World::real(target.port).await;
        world.set(|exposure| exposure.access = Access::Login);
        let mut browser = world.browser().await;
        let session = world.log_in(&mut browser).await;
        let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-Fetch-Mode: websocket\r\n";
        for headers in [
            upgrade.to_owned(),
            format!("{upgrade}{HTML}"),
            format!("{upgrade}Origin: http://evil.hub.test\r\nCookie: {session}\r\n"),
        ] {
            let (head, _) = fetch(&mut browser, &get("/", &headers)).await;
            assert_eq!(head.status(), 401, "{headers}");
        }
        let headers = format!("{upgrade}{FROM_HERE}Cookie: {session}\r\n");
        assert_eq!(ask(&mut browser, &get("/", &headers)).await.status(), 101);
    });
}

#[test]
fn a_token_opens_by_path_by_header_and_by_form() {
    run(async {
        let world = World::real(reflecting().await.port).await;
        world.set(|exposure| exposure.access = Access::Token);
        let mut browser = world.browser().await;
        let (token, prefix) = (&world.token, world.prefix());
        let by_path = format!("GET {prefix}/.hub/x HTTP/1.1\r\nHost: hub\r\n\r\n");
        let (head, seen) = fetch(&mut browser, &by_path).await;
        assert_eq!(
            head.status(),
            200,
            "it is proof enough, and no path is reserved"
        );
        assert!(seen.starts_with("GET /.hub/x "), "{seen}");
        let (head, seen) = fetch(&mut browser, &get("/", &format!("Hub-Token: {token}\r\n"))).await;
        assert_eq!(head.status(), 200);
        assert!(
            !seen.contains(token.as_str()) && !seen.contains("x-hub-user"),
            "{seen}"
        );
        for headers in [
            String::new(),
            format!("Authorization: Bearer {token}\r\n"),
            format!("Hub-Token: {}\r\n", world.operator),
        ] {
            let (head, text) = fetch(&mut browser, &get("/", &headers)).await;
            assert_eq!(head.status(), 401, "{headers}");
            assert!(text.contains("Hub-Token") && !text.contains(token.as_str()));
        }
        let (head, page) = fetch(&mut browser, &get("/", HTML)).await;
        assert_eq!(head.status(), 401);
        assert!(page.contains("Token of this page") && !page.contains("name=\"user\""));
        let form = format!("secret={token}&to=%2F%2Fevil.com");
        let (head, _) = fetch(&mut browser, &post("/.hub/login", FROM_HERE, &form)).await;
        assert_eq!((head.status(), head.all("location")), (303, vec!["/"]));
        let session = format!("Cookie: {}\r\n", cookie(&head, "hub_session"));
        let (head, seen) = fetch(&mut browser, &get("/", &session)).await;
        assert_eq!(head.status(), 200);
        assert!(!seen.contains("hub_session"), "{seen}");
        // A token that is rotated ends the sessions that it began.
        let other = hub_server::secret::Token::from_bytes([1; 32]);
        world.set(|exposure| {
            exposure.token.as_mut().unwrap().hash = other.exposure_hash();
        });
        let (head, _) = fetch(&mut browser, &get("/", &session)).await;
        assert_eq!(head.status(), 401);
    });
}

#[test]
fn beneath_a_prefix_everything_stays_beneath_it() {
    run(async {
        let world = World::real(reflecting().await.port).await;
        world.set(|exposure| exposure.access = Access::Login);
        let mut browser = world.browser().await;
        let prefix = world.prefix();
        let request = format!("GET {prefix}/a HTTP/1.1\r\nHost: hub\r\n{HTML}\r\n");
        let (head, page) = fetch(&mut browser, &request).await;
        assert_eq!(head.status(), 401);
        assert!(
            page.contains(&format!("action=\"{prefix}/.hub/login\"")),
            "{page}"
        );
        assert!(page.contains("name=\"to\" value=\"/a\""), "{page}");
        let form = format!("user=operator&secret={}&to=%2Fa", world.operator);
        let request = format!(
            "POST {prefix}/.hub/login HTTP/1.1\r\nHost: hub\r\nOrigin: http://hub\r\n\
             Content-Length: {}\r\n\r\n{form}",
            form.len()
        );
        let (head, _) = fetch(&mut browser, &request).await;
        assert_eq!(
            (head.status(), head.all("location")),
            (303, vec![&*format!("{prefix}/a")])
        );
        assert!(head.all("set-cookie")[0].contains(&format!("; Path={prefix}/;")));
        let session = cookie(&head, "hub_session");
        let request = format!("GET {prefix}/a HTTP/1.1\r\nHost: hub\r\nCookie: {session}\r\n\r\n");
        let (head, seen) = fetch(&mut browser, &request).await;
        assert_eq!(head.status(), 200);
        assert!(seen.contains("x-hub-user: operator"), "{seen}");
    });
}

#[test]
fn wrong_credentials_are_not_tried_for_ever() {
    run(async {
        let attempts = Rate {
            every: Duration::from_secs(3600),
            burst: NonZeroU32::new(2).unwrap(),
        };
        let quotas = Quotas {
            attempts,
            ..Quotas::default()
        };
        let world = World::guarded(reflecting().await.port, quotas).await;
        world.set(|exposure| exposure.access = Access::Login);
        let mut browser = world.browser().await;
        let wrong = post("/.hub/login", FROM_HERE, "secret=wrong");
        for expected in [401, 401, 429] {
            let (head, _) = fetch(&mut browser, &wrong).await;
            assert_eq!(head.status(), expected);
        }
        let (head, text) = fetch(&mut browser, &get("/", "Hub-Token: wrong\r\n")).await;
        assert_eq!((head.status(), head.all("retry-after").len()), (429, 1));
        assert!(text.contains("too many wrong credentials"), "{text}");
        assert_eq!(world.refused("attempts"), 2);
        // Who has the right one in a header does not guess.
        let right = format!("Hub-Token: {}\r\n", world.operator);
        let (head, _) = fetch(&mut browser, &get("/", &right)).await;
        assert_eq!(head.status(), 200);
    });
}

#[test]
fn an_address_asks_as_often_as_the_exposure_allows() {
    run(async {
        let world = World::real(named("a").await.port).await;
        world.set(|exposure| exposure.settings.rate = Some(1));
        let mut browser = world.browser().await;
        let (first, _) = fetch(&mut browser, &get("/", "")).await;
        assert_eq!(first.status(), 200);
        let (head, text) = fetch(&mut browser, &get("/", "")).await;
        assert_eq!((head.status(), head.all("retry-after")), (429, vec!["1"]));
        assert!(text.contains("more often than is allowed"), "{text}");
        assert_eq!(world.refused("client_rate"), 1);
    });
}

#[test]
fn connections_of_one_address_are_counted_until_they_end() {
    run(async {
        let quotas = Quotas {
            connections_per_client: 1,
            ..Quotas::default()
        };
        let world = World::guarded(named("a").await.port, quotas).await;
        let mut first = world.browser().await;
        let (head, _) = fetch(&mut first, &get("/", "")).await;
        assert_eq!(head.status(), 200);
        let mut second = world.browser().await;
        let mut told = String::new();
        second.read_to_string(&mut told).await.unwrap();
        assert!(
            told.starts_with("HTTP/1.1 429 ") && told.contains("retry-after: 1"),
            "{told}"
        );
        assert_eq!(world.refused("client_connections"), 1);
        drop((first, second));
        loop {
            let mut third = world.browser().await;
            third.write_all(get("/", "").as_bytes()).await.unwrap();
            if read_head(&mut third)
                .await
                .is_some_and(|head| head.status() == 200)
            {
                break;
            }
        }
    });
}

/// A target whose first answer waits for a word on another connection.
async fn waiting() -> Target {
    let go = Arc::new(tokio::sync::Semaphore::new(0));
    Target::start(move |mut stream, _| {
        let go = go.clone();
        async move {
            while let Some(head) = read_head(&mut stream).await {
                if head.first().contains("/go") {
                    go.add_permits(1);
                } else {
                    go.acquire().await.unwrap().forget();
                }
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                stream.write_all(answer).await.unwrap();
            }
        }
    })
    .await
}

#[test]
fn requests_under_way_are_counted_until_they_are_answered() {
    run(async {
        let target = waiting().await;
        let world = World::real(target.port).await;
        world.set(|exposure| exposure.settings.max_requests = Some(1));
        let [mut first, mut second] = [world.browser().await, world.browser().await];
        first.write_all(get("/", "").as_bytes()).await.unwrap();
        while target.connections() == 0 {
            tokio::task::yield_now().await;
        }
        let (head, text) = fetch(&mut second, &get("/go", "")).await;
        assert_eq!((head.status(), head.all("retry-after")), (503, vec!["1"]));
        assert!(text.contains("allowed here at once"), "{text}");
        assert_eq!(world.refused("exposure_requests"), 1);
        world.set(|exposure| exposure.settings.max_requests = Some(2));
        let (head, _) = fetch(&mut second, &get("/go", "")).await;
        assert_eq!(head.status(), 200);
        assert_eq!(read_head(&mut first).await.unwrap().status(), 200);
        world.idle().await;
        world.set(|exposure| exposure.settings.max_requests = Some(1));
        let (head, _) = fetch(&mut first, &get("/go", "")).await;
        assert_eq!(head.status(), 200);
    });
}

#[test]
fn a_node_has_a_limit_of_its_own() {
    run(async {
        let quotas = Quotas {
            requests_per_node: 0,
            ..Quotas::default()
        };
        let world = World::guarded(named("a").await.port, quotas).await;
        let mut browser = world.browser().await;
        let (head, text) = fetch(&mut browser, &get("/", "")).await;
        assert_eq!((head.status(), head.all("retry-after")), (503, vec!["1"]));
        assert!(text.contains("browser --- hub -X- agent"), "{text}");
        assert_eq!(world.refused("node_requests"), 1);
    });
}

#[test]
fn bodies_are_as_large_as_the_exposure_allows() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            let mut all = Vec::new();
            let _ = stream.read_to_end(&mut all).await;
        })
        .await;
        let world = World::real(target.port).await;
        world.set(|exposure| exposure.settings.max_body = Some(10));
        // Said beforehand: the target hears nothing of it.
        let mut browser = world.browser().await;
        let (head, text) = fetch(&mut browser, &post("/", "", "12345678901")).await;
        assert_eq!(head.status(), 413);
        assert!(text.contains("larger than 10 bytes"), "{text}");
        assert_eq!(target.connections(), 0);
        // In chunks: it turns out on the way.
        let mut browser = world.browser().await;
        let request = "POST / HTTP/1.1\r\nHost: shop.hub.test\r\nTransfer-Encoding: chunked\r\n\r\n\
                       6\r\n123456\r\n5\r\n12345\r\n";
        let head = ask(&mut browser, request).await;
        assert_eq!(head.status(), 413);
        assert_eq!(world.refused("body_size"), 2);
        world.idle().await;
    });
}

#[test]
fn an_upload_that_brings_nothing_is_given_up() {
    run_simulated(async {
        let dial = InMemory(|mut stream: tokio::io::DuplexStream| {
            tokio::spawn(async move {
                let mut all = Vec::new();
                let _ = stream.read_to_end(&mut all).await;
            });
            Ok(())
        });
        let world = World::simulated(Arc::new(dial)).await;
        let mut browser = world.browser_in_memory();
        let request = "POST / HTTP/1.1\r\nHost: shop.hub.test\r\nContent-Length: 100\r\n\r\nslow";
        let head = ask(&mut browser, request).await;
        assert_eq!((head.status(), head.all("retry-after")), (408, vec!["1"]));
        assert_eq!(world.refused("upload_idle"), 1);
    });
}

#[test]
fn a_response_that_nobody_takes_is_given_up() {
    run_simulated(async {
        let dial = InMemory(|mut stream: tokio::io::DuplexStream| {
            tokio::spawn(async move {
                read_head(&mut stream).await.unwrap();
                let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n";
                let _ = stream.write_all(head).await;
                while stream.write_all(&[b'x'; 10_000]).await.is_ok() {}
            });
            Ok(())
        });
        let world = World::simulated(Arc::new(dial)).await;
        let mut browser = world.browser_in_memory();
        let head = ask(&mut browser, &get("/", "")).await;
        assert_eq!(head.status(), 200);
        // Slow is good enough: each of these is less than the limit.
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(250)).await;
            read_to(&mut browser, &mut Vec::new(), 1).await;
        }
        assert_eq!(world.refused("response_idle"), 0);
        tokio::time::sleep(Duration::from_secs(301)).await;
        assert_eq!(world.refused("response_idle"), 1);
        let mut rest = Vec::new();
        let _ = browser.read_to_end(&mut rest).await;
        assert!(rest.len() < 1_000_000, "it ends early");
    });
}

#[test]
fn replicas_take_turns_and_one_that_refuses_is_tried_past() {
    run(async {
        let [a, b] = [named("a").await, named("b").await];
        let world = World::real(a.port).await;
        world.add_replica(b.port);
        let mut browser = world.browser().await;
        let mut seen = Vec::new();
        for _ in 0..4 {
            let (_, body) = fetch(&mut browser, &get("/", "")).await;
            world.idle().await;
            seen.push(body);
        }
        assert!(
            seen == ["a", "b", "a", "b"] || seen == ["b", "a", "b", "a"],
            "{seen:?}"
        );

        // With a body, too: it is whole until one has taken the request.
        let closed = closed_port().await;
        world.reroute(|to| to.replicas[0].target = target::Target::tcp(closed));
        world.targets.update(session::Targets {
            revision: 9,
            targets: [closed, b.port].map(target::Target::tcp).to_vec(),
        });
        let whole = Target::start(|mut stream, _| async move {
            let mut head = read_head(&mut stream).await.unwrap();
            read_to(&mut stream, &mut head.rest, 100_000).await;
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole";
            stream.write_all(answer).await.unwrap();
        })
        .await;
        for _ in 0..4 {
            let (head, body) = fetch(&mut browser, &get("/", "")).await;
            assert_eq!((head.status(), &*body), (200, "b"));
        }
        world.reroute(|to| to.replicas[1].target = target::Target::tcp(whole.port));
        world.targets.update(session::Targets {
            revision: 10,
            targets: [closed, whole.port].map(target::Target::tcp).to_vec(),
        });
        for _ in 0..2 {
            let request = post("/", "Connection: keep-alive\r\n", &"x".repeat(100_000));
            let (head, body) = fetch(&mut browser, &request).await;
            assert_eq!((head.status(), &*body), (200, "whole"));
        }
        // None is left: the last one's reason.
        world.reroute(|to| to.replicas[1].target = target::Target::tcp(closed));
        let (head, text) = fetch(&mut browser, &get("/", "")).await;
        assert_eq!(head.status(), 502);
        assert!(text.contains("refused the connection"), "{text}");
    });
}

#[test]
fn a_browser_stays_with_its_replica() {
    run(async {
        let [a, b] = [named("a").await, named("b").await];
        let world = World::real(a.port).await;
        world.add_replica(b.port);
        world.set(|exposure| exposure.settings.sticky = true);
        let mut browser = world.browser().await;
        let (head, first) = fetch(&mut browser, &get("/", "")).await;
        assert!(!head.all("set-cookie")[0].contains("Max-Age"));
        let stays = format!("Cookie: {}\r\n", cookie(&head, "hub_replica"));
        for _ in 0..5 {
            let (head, body) = fetch(&mut browser, &get("/", &stays)).await;
            assert_eq!((&body, head.all("set-cookie").len()), (&first, 0));
        }
        // Without its replica it is given another, and stays with that.
        world.reroute(|to| {
            to.replicas.retain(|live| {
                let gone = if first == "a" { a.port } else { b.port };
                live.target.port != gone
            });
        });
        let (head, body) = fetch(&mut browser, &get("/", &stays)).await;
        assert_ne!(body, first);
        assert_eq!(head.all("set-cookie").len(), 1);
    });
}

#[test]
fn a_tunnel_holds_a_session_of_its_replica() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            while let Some(head) = read_head(&mut stream).await {
                if head.all("upgrade").is_empty() {
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                    stream.write_all(answer).await.unwrap();
                    continue;
                }
                let answer = b"HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: line\r\n\r\n";
                stream.write_all(answer).await.unwrap();
                let _ = stream.read_to_end(&mut Vec::new()).await;
                return;
            }
        })
        .await;
        let world = World::real(target.port).await;
        world.set(|exposure| exposure.settings.max_sessions = Some(1));
        let upgrade = get("/", "Connection: Upgrade\r\nUpgrade: line\r\n");
        let mut first = world.browser().await;
        assert_eq!(ask(&mut first, &upgrade).await.status(), 101);
        let mut second = world.browser().await;
        let (head, text) = fetch(&mut second, &upgrade).await;
        assert_eq!((head.status(), head.all("retry-after")), (503, vec!["5"]));
        assert!(text.contains("all the sessions"), "{text}");
        assert_eq!(world.refused("replica_sessions"), 1);
        let (head, _) = fetch(&mut second, &get("/", "")).await;
        assert_eq!(head.status(), 200, "requests are no sessions");
        drop(first);
        world.idle().await;
        assert_eq!(ask(&mut second, &upgrade).await.status(), 101);
    });
}

#[test]
fn whoever_opens_a_page_waits_on_one() {
    run(async {
        let world = World::real(closed_port().await).await;
        let mut browser = world.browser().await;
        let (head, page) = fetch(&mut browser, &get("/", HTML)).await;
        assert_eq!((head.status(), head.all("retry-after")), (503, vec!["2"]));
        assert!(
            page.contains("http-equiv=\"refresh\" content=\"2\""),
            "{page}"
        );
        assert!(!page.contains("far"), "no stranger learns a node's name");
        let again = format!("{HTML}Cookie: {}\r\n", cookie(&head, "hub_waiting"));
        let (head, _) = fetch(&mut browser, &get("/", &again)).await;
        assert_eq!(head.all("retry-after"), ["3"]);
        for headers in ["", "Sec-Fetch-Mode: cors\r\n"] {
            let (head, text) = fetch(&mut browser, &get("/", headers)).await;
            assert_eq!(head.status(), 502);
            assert!(text.contains("refused the connection"), "{text}");
        }
        world.reroute(|to| {
            to.replicas.clear();
            to.away.push("far".parse().unwrap());
        });
        let (head, page) = fetch(&mut browser, &get("/", HTML)).await;
        assert_eq!(head.status(), 503);
        assert!(page.contains("Not there yet"), "{page}");
    });
}
