//! Many seeds, each with an impairment of its own. Whatever the network does that the session
//! outlives, an exec's bytes are exact and its outcome comes once; where the session is lost, the
//! client is told that nobody knows, or that nothing has begun.

use std::ops::Range;
use std::time::Duration;

use hub_netsim::LinkConfig;
use hub_protocol::kind::exec::{Outcome, STDIN};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use crate::commands::pattern;
use crate::sized;
use crate::world::{World, finish, run};

#[derive(Debug, Default)]
struct Tally {
    answered: usize,
    not_started: usize,
    unknown: usize,
}

/// Ten execs on a network of this seed, some of them in blackouts of this many milliseconds.
fn one(seed: u64, blackouts: &Range<u64>) -> Tally {
    run(async {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let world = World::without_records(seed).await;
        let agent = world.agent("node", 1).await;
        world
            .net
            .set_links(agent.host, &LinkConfig::random(&mut rng));
        if rng.random_bool(0.3) {
            world.net.rebind_nat(agent.host);
        }
        let mut tally = Tally::default();
        for n in 0..10u64 {
            if rng.random_bool(0.1) {
                let blackout = Duration::from_millis(rng.random_range(blackouts.clone()));
                world.net.blackout(agent.host, blackout);
            }
            let (len, mark) = (rng.random_range(0..200_000usize), format!("exec{n}"));
            let (text, code) = (len.to_string(), (n % 256).to_string());
            let echo = rng.random_bool(0.5);
            let argv: &[&str] = if echo {
                &["cat"]
            } else {
                &["bytes", &text, "11", &code]
            };
            let operation = match world.start_marked("node", argv, echo, &mark).await {
                Ok(operation) => operation,
                Err(error) => {
                    if error.not_started() {
                        assert_eq!(
                            agent.commands.started().get(&mark),
                            None,
                            "seed {seed}: {error}"
                        );
                        tally.not_started += 1;
                    } else {
                        tally.unknown += 1;
                    }
                    world.connected("node").await;
                    continue;
                }
            };
            let feed = async {
                if echo {
                    let mut stdin = operation.sender(STDIN);
                    // An error shows at the outcome as well.
                    let _ = stdin.send(pattern(11, 0, len)).await;
                    stdin.finish();
                }
            };
            let ((), ended) = tokio::join!(biased; feed, finish(&operation));
            match ended {
                Ok((output, outcome)) => {
                    assert!(
                        output == pattern(11, 0, len),
                        "seed {seed}: bytes of exec {n}"
                    );
                    let code = if echo { 0 } else { n as i32 };
                    assert_eq!(outcome, Outcome::Exited(code), "seed {seed}: exec {n}");
                    tally.answered += 1;
                }
                Err(_) => tally.unknown += 1,
            }
            assert!(
                agent
                    .commands
                    .started()
                    .get(&mark)
                    .is_none_or(|count| *count == 1)
            );
        }
        tally
    })
}

fn all(seeds: Range<u64>, blackouts: &Range<u64>) -> Tally {
    let mut sum = Tally::default();
    for seed in seeds {
        let tally = one(seed, blackouts);
        sum.answered += tally.answered;
        sum.not_started += tally.not_started;
        sum.unknown += tally.unknown;
    }
    eprintln!("{sum:?}");
    sum
}

#[test]
fn every_exec_is_exact() {
    let seeds = sized(20, 200);
    // QUIC doubles its pauses between probes: a blackout of 5 s on a slow path leaves it two or more
    // before the idle timeout of 30 s, one of 15 s may leave none.
    let sum = all(0..seeds, &(100..5_000));
    assert_eq!(
        (sum.answered, sum.not_started + sum.unknown),
        (10 * seeds as usize, 0)
    );
}

#[test]
fn every_exec_is_exact_or_honest_when_sessions_are_lost() {
    let sum = all(1_000..sized(1_010, 1_100), &(25_000..60_000));
    assert!(
        sum.unknown + sum.not_started > 0,
        "no session was lost: {sum:?}"
    );
    assert!(sum.answered > sum.unknown + sum.not_started, "{sum:?}");
}
