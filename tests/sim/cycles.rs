//! Nodes come and go: what a node used is given back when it leaves.

use std::alloc::System;
use std::time::Duration;

use hub_netsim::{NatConfig, NatKind};
use hub_protocol::kind::exec::Outcome;
use hyper::Request;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use crate::commands::pattern;
use crate::pages::collect;
use crate::sized;
use crate::world::{World, finish, run};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

pub fn live_bytes() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

async fn cycle(world: &World, number: usize) {
    let name = format!("node-{number}");
    let nat = NatConfig::new(NatKind::PortRestricted);
    let host = world
        .net
        .host_behind_nat(&name, "10.0.0.2", nat, "198.51.100.1");
    let agent = world.agent_on(host, &name).await;
    let operation = world
        .start(&name, &["bytes", "1000", "4", "0"], false)
        .await
        .unwrap();
    let (output, outcome) = finish(&operation).await.unwrap();
    assert_eq!(
        (output, outcome),
        (pattern(4, 0, 1000).to_vec(), Outcome::Exited(0))
    );
    drop(operation);
    let path = world.expose(&name, 80).await;
    let mut browser = world.browser().await;
    let request = Request::get(format!("{path}bytes/1000/6")).header("host", "x");
    let response = browser
        .send_request(request.body("".into()).unwrap())
        .await
        .unwrap();
    assert_eq!(
        collect(response.into_body()).await.unwrap(),
        pattern(6, 0, 1000)
    );
    drop(browser);
    for located in world.hub().exposures().await.unwrap() {
        let id = located.exposure.id;
        world.hub().unexpose(id).await.unwrap();
    }
    let node = world.hub().find(&name).await.unwrap().unwrap();
    let session = world.hub().sessions().get(&node.id).unwrap();
    agent.stop().await;
    let mut changes = world.hub().sessions().changes();
    while world.hub().sessions().get(&node.id).is_some() {
        changes.changed().await.unwrap();
    }
    // What was the node's drains: closed connections linger for a few round trips.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (opened, closed) = session.operation_counts();
    assert_eq!((opened, closed), (2, 2), "streams of cycle {number}");
    assert_eq!(world.net.open_sockets(host), 0);
    world.net.remove_host(host);
}

#[test]
fn what_a_node_used_is_given_back() {
    let (warm, all) = sized((50, 200), (1_000, 10_000));
    run(async {
        let world = World::without_records(8).await;
        for number in 0..warm {
            cycle(&world, number).await;
        }
        let before = live_bytes();
        for number in warm..all {
            cycle(&world, number).await;
        }
        let after = live_bytes();
        eprintln!("live after {warm} cycles {before} bytes, after {all} {after} bytes");
        // Less than a few bytes per cycle: a tenth of what the smallest leak of a node would be.
        assert!(after < before + 64 * 1024, "{before} -> {after}");
    });
}
