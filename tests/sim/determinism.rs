//! The same seed gives the same packets: the foundation of every other simulated test.

use std::time::Duration;

use hub_netsim::{LinkConfig, Trace};
use hub_protocol::kind::exec::Outcome;
use hyper::Request;

use crate::commands::pattern;
use crate::pages::collect;
use crate::world::{World, finish, run};

/// Join, 50 execs and 50 proxied requests at 40 ms and 2 % loss.
fn scenario(seed: u64) -> Trace {
    run(async {
        let world = World::new(seed).await;
        let nat = hub_netsim::NatConfig::new(hub_netsim::NatKind::PortRestricted);
        let host = world
            .net
            .host_behind_nat("node", "10.0.0.2", nat, "198.51.100.1");
        let link = LinkConfig::perfect()
            .delay(Duration::from_millis(20))
            .loss(0.02);
        world.net.set_links(host, &link);
        let agent = world.agent_on(host, "node").await;
        let path = world.expose("node", 80).await;
        for n in 0..50u64 {
            let len = (n * 997).to_string();
            let operation = world
                .start("node", &["bytes", &len, "3", "7"], false)
                .await
                .unwrap();
            let (output, outcome) = finish(&operation).await.unwrap();
            assert_eq!(output, pattern(3, 0, (n * 997) as usize));
            assert_eq!(outcome, Outcome::Exited(7));
            let mut browser = world.browser().await;
            let request = Request::get(format!("{path}bytes/{len}/5")).header("host", "x");
            let response = browser
                .send_request(request.body("".into()).unwrap())
                .await
                .unwrap();
            assert_eq!(response.status(), 200);
            let body = collect(response.into_body()).await.unwrap();
            assert_eq!(body, pattern(5, 0, (n * 997) as usize));
        }
        agent.stop().await;
        world.net.take_trace()
    })
}

#[test]
fn same_seed_same_trace() {
    let first = scenario(1);
    assert!(first.counts().dropped > 0, "{:?}", first.counts());
    for again in 1..20 {
        let trace = scenario(1);
        let difference = Trace::first_difference(&first, &trace);
        assert!(difference.is_none(), "run {again}: {difference:#?}");
    }
    assert_ne!(first.digest(), scenario(2).digest());
}
