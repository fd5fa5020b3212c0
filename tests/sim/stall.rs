//! A consumer that stops reading costs its own operation its window, and others nothing.

use std::time::Duration;

use hub_netsim::LinkConfig;
use hub_protocol::kind::exec::STDOUT;
use hyper::Request;
use tokio::time::Instant;

use crate::commands::pattern;
use crate::pages::collect;
use crate::world::{World, run};

const RTT: Duration = Duration::from_millis(40);
const REQUESTS: usize = 200;

/// How long each of 200 concurrent requests took, with or without a stalled exec beside them.
fn requests(stalled: bool) -> Vec<Duration> {
    run(async {
        let world = World::without_records(3).await;
        let agent = world.agent("node", 1).await;
        world
            .net
            .set_links(agent.host, &LinkConfig::perfect().delay(RTT / 2));
        let path = world.expose("node", 80).await;
        let stall = if stalled {
            let argv = ["bytes", "8388608", "1", "0"];
            let operation = world.start("node", &argv, false).await.unwrap();
            // Nothing is read, until all that can come has come.
            let mut stdout = operation.receiver(STDOUT);
            let first = stdout.chunk().await.unwrap().unwrap();
            assert!(!first.is_empty());
            Some((operation, stdout))
        } else {
            None
        };
        let mut running = tokio::task::JoinSet::new();
        for n in 0..REQUESTS {
            let mut browser = world.browser().await;
            let uri = format!("{path}bytes/2000/{n}");
            running.spawn(async move {
                let started = Instant::now();
                let request = Request::get(uri)
                    .header("host", "x")
                    .body("".into())
                    .unwrap();
                let response = browser.send_request(request).await.unwrap();
                let body = collect(response.into_body()).await.unwrap();
                assert_eq!(body, pattern(n as u64, 0, 2000));
                (n, started.elapsed())
            });
        }
        let mut took = running.join_all().await;
        took.sort_unstable();
        // The stalled exec is as alive as before: whoever reads on gets all of it.
        if let Some((operation, mut stdout)) = stall {
            let mut rest = 0;
            while let Some(chunk) = stdout.chunk().await.unwrap() {
                rest += chunk.len();
            }
            assert!(rest > 8_000_000);
            operation.done().await.unwrap();
        }
        took.into_iter().map(|(_, took)| took).collect()
    })
}

#[test]
fn two_hundred_requests_beside_a_stalled_exec() {
    let (without, with) = (requests(false), requests(true));
    assert_eq!((without.len(), with.len()), (REQUESTS, REQUESTS));
    let later = with
        .iter()
        .zip(&without)
        .map(|(with, without)| with.saturating_sub(*without));
    let latest = later.max().unwrap();
    eprintln!(
        "slowest {:?} without, {:?} with; at most {latest:?} later",
        without.iter().max(),
        with.iter().max()
    );
    assert!(latest <= 3 * RTT, "{latest:?}");
}
