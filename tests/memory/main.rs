//! Memory of an exec whose bytes go nowhere: hub, agent and client in one process, over real
//! sockets, with an allocator that counts all that the process holds.
//!
//! ```text
//! client library <--WebSocket--> API - hub <--QUIC--> agent <--pipes--> command
//! ```
//!
//! 8 MiB are offered at one end, and one hop takes none of them: the client, the hub, or the command
//! on the agent's side; from the first byte on, or after a flow in which windows have grown. What
//! the three hold together is then within twice the operation's window, others are served, and when
//! the hop goes on everything arrives.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    missing_docs,
    unreachable_pub
)]

mod house;

use std::alloc::System;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hub::client::exec::{Event, Output, Request};
use hub_protocol::kind::exec;
use hub_protocol::limits::Limits;
use hub_server::api::channel::LastWord;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::time::{Instant, sleep};

use house::{House, NODE};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What is offered and not taken, in bytes.
const OFFERED: usize = 8 << 20;

/// What is taken before that, in bytes: nothing, or enough for windows to grow.
const TAKEN: [usize; 2] = [0, 64 << 20];

/// How many requests of browsers are served beside it.
const REQUESTS: usize = 200;

/// Tests of one process take turns: there is one allocator.
static TURN: Mutex<()> = Mutex::new(());

fn live() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// What the process holds once nothing moves any more: half a second long, not by more than what
/// heartbeats need.
async fn settled() -> usize {
    const STEP: Duration = Duration::from_millis(20);
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut steady, mut before) = (0, live());
    while steady < 25 {
        assert!(Instant::now() < deadline, "it never comes to rest");
        sleep(STEP).await;
        let now = live();
        steady = if now.abs_diff(before) <= 4096 {
            steady + 1
        } else {
            0
        };
        before = now;
    }
    before
}

fn run(scenario: impl Future<Output = ()>) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(120), scenario)
            .await
            .expect("it hangs");
    });
}

fn request(command: Vec<String>, stdin: bool) -> Request {
    Request {
        node: NODE.into(),
        container: None,
        command,
        env: Vec::new(),
        cwd: None,
        user: None,
        stdin,
        tty: None,
        on_disconnect: exec::OnDisconnect::Kill,
    }
}

/// How many zeros still come, and how the command ended.
async fn rest(output: &mut Output) -> (usize, LastWord) {
    let mut zeros = 0;
    loop {
        match output.next().await {
            Event::Stdout(bytes) => {
                assert!(bytes.iter().all(|byte| *byte == 0));
                zeros += bytes.len();
            }
            Event::Ended(word) => return (zeros, word),
            other => panic!("{other:?}"),
        }
    }
}

/// Whether what is held while an operation is stalled is within bounds, and others are served.
async fn check(house: &House, hop: &str, taken: usize, before: usize) {
    let stalled = settled().await;
    // It has not simply gone through: somewhere it waits.
    assert_eq!(house.operations(), 1);
    house.requests(REQUESTS).await;
    let beside = settled().await;
    assert_eq!(house.operations(), 1);
    let grown = |now: usize| now.saturating_sub(before);
    eprintln!(
        "the {hop} stopped after {} MiB: {before} bytes held before, {} more while it is stopped, {} \
         after {REQUESTS} requests",
        taken >> 20,
        grown(stalled),
        grown(beside)
    );
    let bound = 2 * Limits::default().max_window as usize;
    for now in [stalled, beside] {
        assert!(grown(now) <= bound, "{} of {bound}", grown(now));
    }
}

/// A command that prints this many zeros.
fn zeros(number: usize) -> Vec<String> {
    ["head", "-c", &number.to_string(), "/dev/zero"]
        .map(Into::into)
        .into()
}

/// Builds the house and serves everything once: what that takes, and stays, is counted before.
async fn house() -> (House, usize) {
    let house = House::build().await;
    let running = house
        .client
        .exec(&request(zeros(OFFERED), false))
        .await
        .unwrap();
    let (input, mut output) = running.split();
    assert_eq!(rest(&mut output).await.0, OFFERED);
    drop((input, output));
    house.requests(REQUESTS).await;
    let before = settled().await;
    (house, before)
}

#[test]
fn a_client_that_stops_reading_holds_little() {
    for taken in TAKEN {
        run(async {
            let (house, before) = house().await;
            let command = zeros(taken + OFFERED);
            let running = house.client.exec(&request(command, false)).await.unwrap();
            let (_input, mut output) = running.split();
            let mut printed = 0;
            while printed < taken {
                let Event::Stdout(bytes) = output.next().await else {
                    panic!("no output");
                };
                printed += bytes.len();
            }
            check(&house, "client", taken, before).await;
            let (after, word) = rest(&mut output).await;
            assert_eq!(
                (printed + after, word),
                (taken + OFFERED, LastWord::Exited(0))
            );
            house.stop().await;
        });
    }
}

#[test]
fn a_hub_that_stops_reading_holds_little() {
    for taken in TAKEN {
        run(async {
            let (house, before) = house().await;
            let open = exec::Open {
                container: None,
                argv: zeros(taken + OFFERED),
                env: Vec::new(),
                cwd: None,
                user: None,
                stdin: false,
                tty: None,
                on_disconnect: exec::OnDisconnect::Kill,
            };
            let operation = house.server.hub().ask_exec(NODE, open).await.unwrap();
            let mut stdout = operation.receiver(exec::STDOUT);
            let mut printed = 0;
            while printed < taken {
                printed += stdout.chunk().await.unwrap().unwrap().len();
            }
            check(&house, "hub", taken, before).await;
            while let Some(chunk) = stdout.chunk().await.unwrap() {
                assert!(chunk.iter().all(|byte| *byte == 0));
                printed += chunk.len();
            }
            assert_eq!(printed, taken + OFFERED);
            let done = operation.done().await.unwrap();
            let outcome: exec::Outcome = hub_protocol::kind::decode("outcome", &done).unwrap();
            assert_eq!(outcome, exec::Outcome::Exited(0));
            house.stop().await;
        });
    }
}

#[test]
fn an_agent_whose_command_stops_reading_holds_little() {
    for taken in TAKEN {
        run(async {
            let (house, _) = house().await;
            let offer = vec![b'x'; taken + OFFERED];
            let before = settled().await;
            // It takes what it takes, and the rest once it is told to.
            let (here, go) = (
                house.scratch.path().join("here"),
                house.scratch.path().join("go"),
            );
            let script = "dd bs=65536 count=$2 iflag=fullblock of=/dev/null status=none; : > \"$0\"; \
                          while [ ! -e \"$1\" ]; do sleep 0.05; done; exec wc -c";
            let blocks = (taken / 65_536).to_string();
            let command = [
                "sh",
                "-c",
                script,
                here.to_str().unwrap(),
                go.to_str().unwrap(),
                &blocks,
            ];
            let request = request(command.map(Into::into).into(), true);
            let running = house.client.exec(&request).await.unwrap();
            let (mut input, mut output) = running.split();
            let feeding = tokio::spawn(async move {
                input.send(&offer).await.unwrap();
                input.finish().await.unwrap();
                // Dropped, it would end the connection; the offer was counted before.
                (input, offer)
            });
            while !here.exists() {
                sleep(Duration::from_millis(5)).await;
            }
            check(&house, "agent", taken, before).await;
            assert!(!feeding.is_finished());
            std::fs::write(&go, "").unwrap();
            let (mut printed, mut word) = (String::new(), None);
            while word.is_none() {
                match output.next().await {
                    Event::Stdout(bytes) => printed += std::str::from_utf8(&bytes).unwrap(),
                    Event::Ended(ended) => word = Some(ended),
                    Event::Lost(why) => panic!("{why}"),
                    _ => {}
                }
            }
            assert_eq!(printed.trim(), OFFERED.to_string());
            assert_eq!(word, Some(LastWord::Exited(0)));
            drop(feeding.await.unwrap());
            house.stop().await;
        });
    }
}
