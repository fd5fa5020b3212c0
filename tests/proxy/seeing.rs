//! What operators see: what is under way and waits for whom, how long things took, the access log.

use std::path::Path;
use std::sync::{Arc, Mutex};

use hub_server::proxy::{Kind, Seeing, SeeingConfig, Text, Underway, WaitsFor};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::peers::{Target, ask, fetch, read_head};
use crate::world::{DOMAIN, EXPOSED, World, run};

async fn world(port: u16, config: SeeingConfig) -> (World, Seeing) {
    let seeing = Seeing::new(config).unwrap();
    let seen = seeing.clone();
    let world = World::real_with(port, |config| config.seeing = seen).await;
    (world, seeing)
}

/// Waits until the only stream under way is like this.
async fn until(seeing: &Seeing, mut is: impl FnMut(&Underway) -> bool) -> Underway {
    loop {
        if let [stream] = &seeing.underway()[..]
            && is(stream)
        {
            return stream.clone();
        }
        tokio::task::yield_now().await;
    }
}

/// What was counted of the exposure.
fn metric(seeing: &Seeing, name: &str, more: &str) -> u64 {
    let mut text = Text::default();
    seeing.write_metrics(&mut text, &[1]);
    let series = format!("{name}{{exposure=\"1\",name=\"{EXPOSED}\"{more}}} ");
    let text = text.into_string();
    let value = text.lines().find_map(|line| line.strip_prefix(&series));
    value.unwrap().parse().unwrap()
}

/// A target that reads a head and then nothing, and says nothing.
async fn silent_target() -> Target {
    Target::start(|mut stream, _| async move {
        read_head(&mut stream).await.unwrap();
        std::future::pending::<()>().await;
    })
    .await
}

#[test]
fn a_silent_target_a_browser_that_halts_and_a_full_upload_are_told_apart() {
    run(async {
        let silent = silent_target().await;
        let (world, seeing) = world(silent.port, SeeingConfig::default()).await;
        let request =
            |rest: &str| format!("POST {}/ HTTP/1.1\r\nHost: hub\r\n{rest}", world.prefix());

        let mut browser = world.browser().await;
        let empty = request("Content-Length: 0\r\n\r\n");
        browser.write_all(empty.as_bytes()).await.unwrap();
        let seen = until(&seeing, |stream| stream.waits_for == WaitsFor::Target).await;
        assert_eq!(seen.name.as_deref(), Some(EXPOSED));
        assert_eq!(seen.node.as_deref(), Some("far"));
        assert_eq!((seen.kind, seen.status), (Kind::Http, None));
        assert_eq!(seen.client, "127.0.0.1");
        drop(browser);
        while !seeing.underway().is_empty() {
            tokio::task::yield_now().await;
        }

        let mut browser = world.browser().await;
        let half = request("Content-Length: 10\r\n\r\nhalf");
        browser.write_all(half.as_bytes()).await.unwrap();
        let waits = |stream: &Underway| stream.waits_for == WaitsFor::Browser;
        let seen = until(&seeing, |stream| stream.bytes_in == 4 && waits(stream)).await;
        assert_eq!(seen.bytes_out, 0);
        drop(browser);
        while !seeing.underway().is_empty() {
            tokio::task::yield_now().await;
        }

        let browser = world.browser().await;
        let (mut read, mut write) = browser.into_split();
        let large = request("Content-Length: 1000000000\r\n\r\n");
        let upload = tokio::spawn(async move {
            write.write_all(large.as_bytes()).await.unwrap();
            let piece = vec![0; 64 * 1024];
            while write.write_all(&piece).await.is_ok() {}
        });
        until(&seeing, |stream| stream.waits_for == WaitsFor::Credit).await;
        upload.abort();
        assert!(metric(&seeing, "hub_exposure_credit_waits_total", "") > 0);
        // The upload that broke off may have been answered before its browser was missed.
        let requests = "hub_exposure_requests_total";
        assert!(metric(&seeing, requests, ",code=\"none\"") >= 1);
        let _ = read.read(&mut [0]).await;
    });
}

#[test]
fn a_browser_that_does_not_read_is_waited_for_and_an_upgrade_for_its_target() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            let head = read_head(&mut stream).await.unwrap();
            if head.all("upgrade").is_empty() {
                let length = "HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n";
                stream.write_all(length.as_bytes()).await.unwrap();
                let piece = vec![0; 64 * 1024];
                while stream.write_all(&piece).await.is_ok() {}
            } else {
                let switched = "HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: line\r\n\r\nabc";
                stream.write_all(switched.as_bytes()).await.unwrap();
                let _ = stream.read(&mut [0; 8]).await;
                std::future::pending::<()>().await;
            }
        })
        .await;
        let (world, seeing) = world(target.port, SeeingConfig::default()).await;
        let prefix = world.prefix();
        let mut browser = world.browser().await;
        let get = format!("GET {prefix}/ HTTP/1.1\r\nHost: hub\r\n\r\n");
        assert_eq!(ask(&mut browser, &get).await.status(), 200);
        let mut before = 0;
        // It goes on until what is on the way is full, and then waits.
        let stuck = until(&seeing, |stream| {
            let more = stream.bytes_out > std::mem::replace(&mut before, stream.bytes_out);
            !more && stream.waits_for == WaitsFor::Browser && stream.bytes_out > 0
        });
        let seen = stuck.await;
        assert_eq!(seen.status, Some(200));
        drop(browser);
        while !seeing.underway().is_empty() {
            tokio::task::yield_now().await;
        }

        let mut browser = world.browser().await;
        let upgrade = format!(
            "GET {prefix}/ HTTP/1.1\r\nHost: hub\r\nConnection: upgrade\r\nUpgrade: line\r\n\r\nearly"
        );
        assert_eq!(ask(&mut browser, &upgrade).await.status(), 101);
        let all = |stream: &Underway| (stream.bytes_in, stream.bytes_out) == (5, 3);
        let waits = |stream: &Underway| stream.waits_for == WaitsFor::Target;
        let seen = until(&seeing, |stream| all(stream) && waits(stream)).await;
        assert_eq!((seen.kind, seen.status), (Kind::Upgrade, Some(101)));
    });
}

#[test]
fn trace_context_crosses_untouched_and_timing_is_for_who_asks() {
    run(async {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let heads = seen.clone();
        let target = Target::start(move |mut stream, _| {
            let heads = heads.clone();
            async move {
                while let Some(head) = read_head(&mut stream).await {
                    heads.lock().unwrap().push(head);
                    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nserver-timing: db;dur=1\r\n\
                         traceresponse: 00-a-b-01\r\n\r\n";
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            }
        })
        .await;
        let (world, _) = world(target.port, SeeingConfig::default()).await;
        let mut browser = world.browser().await;
        let (parent, state) = (
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
        );
        let host = format!("Host: {EXPOSED}.{DOMAIN}\r\n");
        let traced = format!(
            "GET / HTTP/1.1\r\n{host}traceparent: {parent}\r\ntracestate: {state}\r\nbaggage: a=b\r\n\r\n"
        );
        let (head, _) = fetch(&mut browser, &traced).await;
        assert_eq!(head.all("server-timing"), ["db;dur=1"]);
        assert_eq!(head.all("traceresponse"), ["00-a-b-01"]);
        let timed = format!("GET / HTTP/1.1\r\n{host}X-Hub-Timing: 1\r\n\r\n");
        let (head, _) = fetch(&mut browser, &timed).await;
        let timing = head.all("server-timing");
        assert_eq!(timing[0], "db;dur=1");
        for part in ["hub;dur=", ", connect;dur=", ", target;dur="] {
            assert!(timing[1].contains(part), "{timing:?}");
        }
        let seen = seen.lock().unwrap();
        assert_eq!(seen[0].all("traceparent"), [parent]);
        assert_eq!(seen[0].all("tracestate"), [state]);
        assert_eq!(seen[0].all("baggage"), ["a=b"]);
        assert!(seen[1].all("x-hub-timing").is_empty());
        assert!(seen[1].all("traceparent").is_empty());
    });
}

async fn lines(seeing: &Seeing, path: &Path) -> Vec<serde_json::Value> {
    while !seeing.underway().is_empty() {
        tokio::task::yield_now().await;
    }
    seeing.flush().await;
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

#[test]
fn the_access_log_tells_of_each_request_and_of_no_secret() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.log");
        let target = Target::answering(
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nset-cookie: s=hunter2\r\n\r\nhi",
        )
        .await;
        let config = SeeingConfig {
            access_log: Some(path.clone()),
            access_log_query: true,
            ..SeeingConfig::default()
        };
        let (world, seeing) = world(target.port, config).await;
        let mut browser = world.browser().await;
        let (prefix, operator) = (world.prefix(), &world.operator);
        let secrets = format!(
            "Cookie: hub_session=hunter2; a=hunter2\r\nAuthorization: Bearer hunter2\r\n\
             Hub-Token: {operator}\r\n"
        );
        for target in [
            format!("{prefix}/a%2Fb?c=d&to={prefix}/"),
            format!("/{prefix}/"),
            "/elsewhere".to_owned(),
        ] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: hub\r\n{secrets}\r\n");
            fetch(&mut browser, &request).await;
        }
        let lines = lines(&seeing, &path).await;
        let text = std::fs::read_to_string(&path).unwrap();
        for secret in [&world.token[..], operator, "hunter2"] {
            assert!(!text.contains(secret), "{text}");
        }
        let [first, second, third] = &lines[..] else {
            panic!("{text}");
        };
        let expected = serde_json::json!({
            "kind": "http", "exposure": 1, "name": EXPOSED, "node": "far", "client": "127.0.0.1",
            "method": "GET", "path": "/v1/data/-/a%2Fb?c=d&to=/v1/data/-/", "version": "HTTP/1.1",
            "status": 200, "bytes_in": 0, "bytes_out": 2, "whole": true,
        });
        for (field, expected) in expected.as_object().unwrap() {
            assert_eq!(first[field], *expected, "{field} in {first}");
        }
        let times = ["target_first_byte_ms", "first_byte_ms", "duration_ms"];
        let [target, hub, all] = times.map(|time| first[time].as_f64().unwrap());
        assert!(0.0 <= target && target <= hub && hub <= all, "{first}");
        for line in [second, third] {
            assert_eq!(line["status"], 404, "{line}");
            assert_eq!(line.get("exposure"), None, "{line}");
        }
    });
}
