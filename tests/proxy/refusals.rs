//! What the hub answers itself: each time with the hop that failed.

use hub_protocol::session;
use hub_protocol::target;
use hub_server::proxy::RouteError;

use crate::peers::{Target, closed_port, fetch, read_head};
use crate::world::{InMemory, World, run, run_simulated};

const CHAIN_HUB: &str = "browser -X- hub --- agent --- target";
const CHAIN_AGENT: &str = "browser --- hub -X- agent --- target";
const CHAIN_TARGET: &str = "browser --- hub --- agent -X- target";

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: hub\r\n\r\n")
}

#[test]
fn unknown_tokens_names_and_places() {
    run(async {
        let world = World::real(closed_port().await).await;
        let mut browser = world.browser().await;
        let other = "A".repeat(43);
        for (request, reason) in [
            (
                get(&format!("/v1/data/{other}/")),
                "no exposure has this token",
            ),
            (get("/v1/data/short/"), "no exposure has this token"),
            (get("/"), "nothing is here"),
            (
                "GET / HTTP/1.1\r\nHost: no.hub.test\r\n\r\n".into(),
                "no exposure has this name",
            ),
            (
                "GET / HTTP/1.1\r\nHost: a.b.hub.test\r\n\r\n".into(),
                "no exposure has this name",
            ),
        ] {
            let (head, body) = fetch(&mut browser, &request).await;
            assert_eq!(head.status(), 404, "{request}");
            assert_eq!(head.all("content-type"), ["text/plain; charset=utf-8"]);
            assert!(body.contains(reason) && body.contains(CHAIN_HUB), "{body}");
            assert!(!body.contains(&other));
        }
    });
}

#[test]
fn a_missing_slash_is_added() {
    run(async {
        let world = World::real(closed_port().await).await;
        let mut browser = world.browser().await;
        for (query, to) in [("", "/"), ("?a=b", "/?a=b")] {
            let (head, _) = fetch(&mut browser, &get(&format!("{}{query}", world.prefix()))).await;
            assert_eq!(head.status(), 308);
            assert_eq!(head.all("location"), [format!("{}{to}", world.prefix())]);
        }
    });
}

#[test]
fn nodes_that_are_away() {
    run(async {
        let world = World::real(closed_port().await).await;
        let mut browser = world.browser().await;
        world.reroute(|to| {
            to.replicas.clear();
            to.away.push("far".parse().unwrap());
        });
        let (head, body) = fetch(&mut browser, &get(&format!("{}/", world.prefix()))).await;
        assert_eq!((head.status(), head.all("retry-after")), (503, vec!["5"]));
        assert!(
            body.contains("node far is away") && body.contains(CHAIN_AGENT),
            "{body}"
        );

        *world.routes.to.lock().unwrap() = Err(RouteError::Ledger("secret".into()));
        let (head, body) = fetch(&mut browser, &get(&format!("{}/", world.prefix()))).await;
        assert_eq!((head.status(), head.all("retry-after")), (503, vec!["1"]));
        assert!(!body.contains("secret"), "{body}");
    });
}

/// A session that has just ended, and is still in the list.
#[test]
fn a_session_that_is_gone() {
    run(async {
        let world = World::real(closed_port().await).await;
        let mut browser = world.browser().await;
        world
            .agent
            .close(hub_protocol::code::CloseCode::DONE, "gone");
        world.hub.connection().closed().await;
        let (head, body) = fetch(&mut browser, &get(&format!("{}/", world.prefix()))).await;
        assert_eq!((head.status(), head.all("retry-after")), (503, vec!["5"]));
        assert!(body.contains(CHAIN_AGENT), "{body}");
    });
}

#[test]
fn a_target_that_refuses() {
    run(async {
        let port = closed_port().await;
        let world = World::real(port).await;
        let mut browser = world.browser().await;
        // With a body on its way, too: the answer comes all the same, and the connection lives.
        for request in [
            get(&format!("{}/", world.prefix())),
            format!(
                "POST {}/ HTTP/1.1\r\nHost: hub\r\nContent-Length: 100000\r\n\r\n{}",
                world.prefix(),
                "x".repeat(100_000)
            ),
            get(&format!("{}/", world.prefix())),
        ] {
            let (head, body) = fetch(&mut browser, &request).await;
            assert_eq!(head.status(), 502);
            assert!(body.contains(&format!("port {port} on node far")), "{body}");
            assert!(body.contains(CHAIN_TARGET), "{body}");
        }
        world.idle().await;
    });
}

/// The hub asks for what was never exposed: the agent keeps to its own list.
#[test]
fn a_port_that_is_not_exposed() {
    run(async {
        let target = Target::answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        let world = World::real(target.port).await;
        world.targets.update(session::Targets {
            revision: 2,
            targets: vec![target::Target::tcp(1)],
        });
        let mut browser = world.browser().await;
        let (head, body) = fetch(&mut browser, &get(&format!("{}/", world.prefix()))).await;
        assert_eq!(head.status(), 502);
        assert!(
            body.contains("does not hold port") && body.contains(CHAIN_TARGET),
            "{body}"
        );
        assert_eq!(target.connections(), 0);
    });
}

/// A request overtakes the list that allows it, and waits.
#[test]
fn a_request_ahead_of_its_exposure() {
    run(async {
        let target = Target::answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await;
        let world = World::real(target.port).await;
        world.reroute(|to| to.replicas[0].revision = 2);
        let mut browser = world.browser().await;
        let request = get(&format!("{}/", world.prefix()));
        let answered = fetch(&mut browser, &request);
        let exposed = async {
            // The agent has the operation, and what it needs has not come.
            while world.agent.operations() == 0 {
                tokio::task::yield_now().await;
            }
            world.targets.update(session::Targets {
                revision: 2,
                targets: vec![target::Target::tcp(target.port)],
            });
        };
        let ((head, body), ()) = tokio::join!(answered, exposed);
        assert_eq!((head.status(), &body[..]), (200, "hi"));
    });
}

#[test]
fn targets_that_answer_no_http() {
    run(async {
        for answer in [
            "SSH-2.0-x\r\n\r\n",
            "",
            "HTTP/1.1 2",
            "HTTP/1.1 101 Up\r\nUpgrade: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        ] {
            let target = Target::start(move |mut stream, _| async move {
                read_head(&mut stream).await.unwrap();
                tokio::io::AsyncWriteExt::write_all(&mut stream, answer.as_bytes())
                    .await
                    .unwrap();
            })
            .await;
            let world = World::real(target.port).await;
            let mut browser = world.browser().await;
            let (head, body) = fetch(&mut browser, &get(&format!("{}/", world.prefix()))).await;
            assert_eq!(head.status(), 502, "{answer:?}");
            assert!(body.contains(CHAIN_TARGET), "{body}");
        }
    });
}

/// A target that does not accept within the agent's time, and an agent that says nothing at all.
#[test]
fn what_takes_too_long() {
    run_simulated(async {
        struct Never;
        impl hub_agent::operations::http::Dial for Never {
            fn connect(
                &self,
                _: hub_agent::targets::Address,
            ) -> futures_util::future::BoxFuture<
                '_,
                std::io::Result<Box<dyn hub_agent::operations::http::Stream>>,
            > {
                Box::pin(std::future::pending())
            }
        }
        let world = World::simulated(std::sync::Arc::new(Never)).await;
        let request = get(&format!("{}/", world.prefix()));
        let (head, body) = fetch(&mut world.browser_in_memory(), &request).await;
        assert_eq!(head.status(), 504);
        assert!(body.contains(CHAIN_TARGET), "{body}");

        let world = World::simulated_alone(std::sync::Arc::new(Never)).await;
        let (head, body) = fetch(&mut world.browser_in_memory(), &request).await;
        assert_eq!(head.status(), 504);
        assert!(body.contains(CHAIN_AGENT), "{body}");
    });
}

#[test]
fn requests_that_are_wrong_in_themselves() {
    run_simulated(async {
        let world = World::simulated(std::sync::Arc::new(InMemory(|_| Ok(())))).await;
        let prefix = world.prefix();
        let much = "x".repeat(70_000);
        let host = "h".repeat(300);
        for (request, status) in [
            (format!("GET {prefix}/ HTTP/1.1\r\n\r\n"), 400),
            (
                format!("GET {prefix}/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
                400,
            ),
            (
                format!("GET {prefix}/ HTTP/1.1\r\nHost: {host}\r\n\r\n"),
                400,
            ),
            (
                format!("GET {prefix}/ HTTP/1.1\r\nHost: a\r\nX: {much}\r\n\r\n"),
                431,
            ),
            (
                format!(
                    "GET {prefix}/ HTTP/1.1\r\nHost: a\r\n{}\r\n",
                    "X: \r\n".repeat(300)
                ),
                431,
            ),
            (
                "CONNECT elsewhere:80 HTTP/1.1\r\nHost: elsewhere:80\r\n\r\n".into(),
                405,
            ),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n".into(),
                400,
            ),
            ("\u{1}\r\n\r\n".into(), 400),
        ] {
            let mut browser = world.browser_in_memory();
            let (mut read, mut write) = tokio::io::split(&mut browser);
            // The hub does not read on once it has seen enough.
            let write = async {
                _ = tokio::io::AsyncWriteExt::write_all(&mut write, request.as_bytes()).await;
            };
            let (head, ()) = tokio::join!(read_head(&mut read), write);
            assert_eq!(
                head.unwrap().status(),
                status,
                "{}",
                &request[..40.min(request.len())]
            );
        }
        assert_eq!(world.hub.operation_counts().0, 0);
    });
}

/// A head that does not come costs its connection, in the time that is configured.
#[test]
fn a_browser_that_says_nothing() {
    run_simulated(async {
        let world = World::simulated(std::sync::Arc::new(InMemory(|_| Ok(())))).await;
        let began = tokio::time::Instant::now();
        let mut browser = world.browser_in_memory();
        tokio::io::AsyncWriteExt::write_all(&mut browser, b"GET / HT")
            .await
            .unwrap();
        assert!(read_head(&mut browser).await.is_none());
        assert_eq!(began.elapsed().as_secs(), 10);
    });
}
