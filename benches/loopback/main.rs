//! How fast requests go through Hub on loopback, beside what it could be measured against, in one
//! run: `cargo bench --bench loopback`. Words after `--` choose: `bulk`, `small`, `stuck`.
//!
//! - *bulk*: one response of 1 GiB.
//! - *small*: requests of a few bytes on kept-alive connections.
//! - *stuck*: fifty browsers that work, with and without two hundred that never read 1 GiB.
//!
//! Ways beside Hub's: nginx itself (`nginx-light`, or the bulk target where it is not installed), a
//! bare QUIC tunnel, and the programs of [`peers`]. All take turns, and what is told are medians of
//! ratios within a turn, so that a machine that is busy is busy for all.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    missing_docs,
    unreachable_pub
)]

mod hub;
mod loads;
mod peers;
mod targets;
mod threads;
mod tunnel;

use std::net::SocketAddr;

use loads::{Way, bulk, median, resident, small, stuck};
use peers::Peer;

const TURNS: usize = 5;
const CONNECTIONS: [usize; 3] = [1, 32, 256];
const REQUESTS: usize = 20_000;
const PAIRS: usize = 20;
const WORKING: usize = 50;
const STUCK: usize = 200;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` and the like only ask whether it builds.
    if words
        .iter()
        .any(|word| word == "--list" || word == "--test")
    {
        return;
    }
    let chosen: Vec<&String> = words
        .iter()
        .filter(|word| !word.starts_with("--"))
        .collect();
    let wanted = |name: &str| chosen.is_empty() || chosen.iter().any(|word| *word == name);

    let target = targets::bulk_target();
    let nginx = targets::nginx();
    let web = nginx.as_ref().map_or(target, |(_, address)| *address);
    let hub = hub::hub(&[target, web]);
    if wanted("bulk") {
        println!(
            "bulk, {} MiB; ratios to the bare tunnel",
            targets::BULK >> 20
        );
        let (ways, _peers) = ways(target, &hub.bulk);
        let turns: Vec<Vec<f64>> = (0..TURNS)
            .map(|_| ways.iter().map(bulk).collect())
            .collect();
        table(&ways, "MiB/s", &turns);
    }
    if wanted("small") {
        let (ways, _peers) = ways(web, &hub.small);
        for connections in CONNECTIONS {
            println!("small requests, {connections} connections; ratios to the bare tunnel");
            let mut p99 = vec![Vec::new(); ways.len()];
            let mut turn = || {
                let told = |(way, p99): (&Way, &mut Vec<f64>)| {
                    let (rate, slow) = small(way, connections, REQUESTS);
                    p99.push(slow.as_secs_f64() * 1e3);
                    rate
                };
                ways.iter().zip(&mut p99).map(told).collect()
            };
            let turns: Vec<Vec<f64>> = (0..3).map(|_| turn()).collect();
            table(&ways, "requests/s", &turns);
            for (way, p99) in ways.iter().zip(p99) {
                println!("  {:<20} p99 {:8.2} ms", way.name, median(p99));
            }
            println!();
        }
    }
    if wanted("stuck") {
        besides_stuck(&hub);
    }
}

/// All ways to a target: straight, through a bare tunnel, Hub's own, and those of others, which run as
/// long as they are held.
fn ways(target: SocketAddr, hub: &[Way]) -> (Vec<Way>, Vec<Peer>) {
    let way = |name: &str, address| Way {
        name: name.to_owned(),
        address,
        path: "/".to_owned(),
    };
    let mut ways = vec![
        way("bare tunnel", tunnel::tunnel(target)),
        way("straight", target),
    ];
    ways.extend(hub.iter().cloned());
    let (peers, missing) = peers::all(target);
    ways.extend(peers.iter().map(|peer| way(peer.name, peer.address)));
    for name in missing {
        println!("  left out, not installed: {name}");
    }
    (ways, peers)
}

/// What each way brought in each turn, against the first way in the same turn.
fn table(ways: &[Way], unit: &str, turns: &[Vec<f64>]) {
    for (n, way) in ways.iter().enumerate() {
        let of = |pick: &dyn Fn(&Vec<f64>) -> f64| turns.iter().map(pick).collect::<Vec<f64>>();
        let ratios = of(&|turn| turn[n] / turn[0]);
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        println!(
            "  {:<20} {:10.0} {unit}   ratio {:5.2}  ({least:.2} to {most:.2})",
            way.name,
            median(of(&|turn| turn[n])),
            median(ratios),
        );
    }
    println!();
}

/// What browsers that never read cost those that do.
fn besides_stuck(hub: &hub::Hub) {
    let (working, asked) = (&hub.small[0], &hub.bulk[0]);
    let before = resident();
    let mut ratios = Vec::new();
    let mut most = before;
    for _ in 0..PAIRS {
        let (alone, _) = small(working, WORKING, REQUESTS);
        let held = stuck(asked, STUCK);
        let (beside, _) = small(working, WORKING, REQUESTS);
        most = most.max(resident());
        drop(held);
        ratios.push(beside / alone);
    }
    let (least, greatest) = (
        ratios.iter().copied().fold(f64::INFINITY, f64::min),
        ratios.iter().copied().fold(0.0, f64::max),
    );
    println!(
        "{WORKING} browsers beside {STUCK} that never read: {PAIRS} pairs, median ratio {:.2} \
         ({least:.2} to {greatest:.2}; at least 0.90 is wanted)",
        median(ratios)
    );
    println!(
        "memory of hub, agent, target and browsers together: {} MiB more at most, {} KiB for each \
         stuck one",
        (most - before) >> 10,
        (most - before) / STUCK as u64
    );
}
