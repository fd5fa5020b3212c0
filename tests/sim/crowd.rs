//! Many operations at once on one agent: each byte-exact, and none in the way of a keystroke.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hub_netsim::LinkConfig;
use hub_protocol::kind::exec::{Outcome, STDIN, STDOUT};
use hub_protocol::kind::records::{EventRecord, Events, LogRecord, Logs, Output};
use hub_protocol::kind::transfer::{Ending, OUT};
use hub_protocol::kind::{Request, build, decode};
use hub_protocol::limits::Limits;
use hub_quic::operation::Operation;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::commands::pattern;
use crate::cycles::live_bytes;
use crate::daemon::{EVENT_EVERY_NS, Image, engine, line_text};
use crate::sized;
use crate::world::{SimAgent, World, config, parts, run};

const LOGS: u64 = 64;
const BUILDS: u64 = 16;
const EXECS: u64 = 32;

/// A line of a log is about 100 bytes: the logs are as long as a context and an output.
const LINE: u64 = 100;

/// Bytes of a context, an output and, about, a log.
fn size() -> u64 {
    sized(256 * 1024, 1024 * 1024)
}

async fn ask<R: Request>(world: &World, request: &R) -> Operation {
    let begun = world.hub().ask("node", request).await.answered();
    begun.unwrap().operation
}

/// All of a log, line by line as it comes.
async fn log(operation: Operation, seed: u64) {
    let mut lines = 0;
    records(&operation, |record: LogRecord| {
        let LogRecord::Line { output, text, .. } = record else {
            panic!("{record:?}");
        };
        let expected = if lines % 3 == 2 {
            Output::Stderr
        } else {
            Output::Stdout
        };
        assert_eq!(output, expected);
        assert_eq!(text.unwrap(), format!("{}\n", line_text(seed, lines)));
        lines += 1;
        true
    })
    .await;
    let done: Ending<()> = decode("Done", &operation.done().await.unwrap()).unwrap();
    assert_eq!((done, lines), (Ending::Complete(()), size() / LINE));
}

/// Hands over the records of an operation as long as `take` wants more.
async fn records<T: serde::de::DeserializeOwned>(
    operation: &Operation,
    mut take: impl FnMut(T) -> bool,
) {
    let mut out = operation.receiver(OUT);
    let mut rest = Vec::new();
    while let Some(chunk) = out.chunk().await.unwrap() {
        rest.extend_from_slice(&chunk);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            if !take(serde_json::from_slice(&line).unwrap()) {
                return;
            }
        }
    }
    assert!(rest.is_empty());
}

async fn image(operation: Operation, seed: u64) {
    let mut expected = Image::new();
    let mut sender = operation.sender(build::CONTEXT);
    let mut progress = operation.receiver(build::PROGRESS);
    let send = async {
        for offset in (0..size()).step_by(16 * 1024) {
            let piece = pattern(seed, offset, 16 * 1024);
            expected.update(&piece);
            sender.send(piece).await.unwrap();
        }
        sender.finish();
    };
    let read = async {
        let mut text = Vec::new();
        while let Some(chunk) = progress.chunk().await.unwrap() {
            text.extend_from_slice(&chunk);
        }
        String::from_utf8(text).unwrap()
    };
    let ((), text) = tokio::join!(send, read);
    let steps = (1..=20).all(|step| text.contains(&format!("Step {step}/20")));
    assert!(steps, "{text}");
    let done: Ending<build::Built> = decode("Done", &operation.done().await.unwrap()).unwrap();
    let image = expected.id();
    assert_eq!(done, Ending::Complete(build::Built { image }));
}

/// All that a command prints.
async fn output(operation: Operation, seed: u64) {
    let mut stdout = operation.receiver(STDOUT);
    let mut offset = 0;
    while let Some(chunk) = stdout.chunk().await.unwrap() {
        assert!(chunk == pattern(seed, offset, chunk.len()));
        offset += chunk.len() as u64;
    }
    assert_eq!(offset, size());
    let outcome: Outcome = decode("Done", &operation.done().await.unwrap()).unwrap();
    assert_eq!(outcome, Outcome::Exited(7));
}

/// How long each of some keystrokes took to come back.
async fn echoes(world: &World, number: usize) -> Vec<Duration> {
    let operation = world.start("node", &["cat"], true).await.unwrap();
    let mut stdin = operation.sender(STDIN);
    let mut stdout = operation.receiver(STDOUT);
    let mut took = Vec::with_capacity(number);
    for n in 0..number {
        let key = Bytes::from(vec![n as u8]);
        let pressed = Instant::now();
        stdin.send(key.clone()).await.unwrap();
        assert_eq!(stdout.chunk().await.unwrap(), Some(key));
        took.push(pressed.elapsed());
        sleep(Duration::from_millis(7)).await;
    }
    took.sort_unstable();
    took
}

/// The kinds of operations of the crowd, and how many of each are under way.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Log,
    Build,
    Exec,
}

const CROWD: [(Kind, u64); 3] = [
    (Kind::Log, LOGS),
    (Kind::Build, BUILDS),
    (Kind::Exec, EXECS),
];

/// Starts one of a kind; its bytes follow from the seed.
async fn start(world: &World, kind: Kind, seed: u64, under_way: &mut JoinSet<Kind>) {
    let exact: BoxFuture<'static, ()> = match kind {
        Kind::Log => {
            let request = Logs {
                container: format!("log-{}-{seed}", size() / LINE),
                follow: true,
                ..Logs::default()
            };
            log(ask(world, &request).await, seed).boxed()
        }
        Kind::Build => image(ask(world, &build::Build::default()).await, seed).boxed(),
        Kind::Exec => {
            let argv = ["bytes", &size().to_string(), &seed.to_string(), "7"];
            let operation = world.start("node", &argv, false).await.unwrap();
            output(operation, seed).boxed()
        }
    };
    under_way.spawn(async move {
        exact.await;
        kind
    });
}

/// Starts everything, each again when it is done, for as long as `meanwhile` lasts; then lets all of
/// it come to its end. Gives also how many were done, and the bytes that were held in between.
async fn crowd<T>(world: &World, meanwhile: impl Future<Output = T>) -> (T, usize, usize) {
    let before = live_bytes();
    let operation = ask(world, &Events::default()).await;
    let mut watch = tokio::spawn(async move {
        let mut next = None;
        records(&operation, |record: EventRecord| {
            let EventRecord::Event { time_ns, .. } = record else {
                panic!("{record:?}");
            };
            assert!(
                next.is_none_or(|next| time_ns == next),
                "{time_ns} {next:?}"
            );
            next = Some(time_ns + i64::try_from(EVENT_EVERY_NS).unwrap());
            true
        })
        .await;
    });
    let mut under_way = JoinSet::new();
    let mut seeds = 1..;
    for (kind, number) in CROWD {
        for seed in seeds.by_ref().take(number as usize) {
            start(world, kind, seed, &mut under_way).await;
        }
    }
    let mut done = 0;
    tokio::pin!(meanwhile);
    let result = loop {
        tokio::select! {
            biased;
            result = &mut meanwhile => break result,
            Some(kind) = under_way.join_next() => {
                done += 1;
                start(world, kind.unwrap(), seeds.next().unwrap(), &mut under_way).await;
            }
        }
    };
    let held = live_bytes().saturating_sub(before);
    while let Some(kind) = under_way.join_next().await {
        kind.unwrap();
        done += 1;
    }
    assert!((&mut watch).now_or_never().is_none(), "the watch goes on");
    watch.abort();
    (result, done, held)
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

#[test]
fn a_crowd_of_operations_is_exact_and_leaves_keystrokes_alone() {
    let keys = sized(600, 2_000);
    run(async {
        let world = World::without_records(21).await;
        let nat = hub_netsim::NatConfig::new(hub_netsim::NatKind::PortRestricted);
        let host = world
            .net
            .host_behind_nat("node", "10.0.0.2", nat, "198.51.100.1");
        let (mut parts, commands) = parts(&world.net, &world.clock, host, "node");
        parts.engine = Some(engine().await);
        let config = hub_agent::agent::Config {
            joining: Some(world.joining("node").await),
            ..config(world.server.bound().agents)
        };
        let dir = tempfile::tempdir().unwrap();
        let _agent = SimAgent::start(host, config, (parts, commands), dir);
        world.connected("node").await;
        let link = LinkConfig::perfect()
            .delay(Duration::from_millis(25))
            .loss(0.01);
        world.net.set_links(host, &link);

        let alone = echoes(&world, keys).await;
        let (beside, done, held) = crowd(&world, echoes(&world, keys)).await;
        let of = |took: &[Duration]| (percentile(took, 50), percentile(took, 99));
        let ((median, high), (median_beside, high_beside)) = (of(&alone), of(&beside));
        eprintln!(
            "echo alone {median:?}, p99 {high:?}; beside {LOGS} logs, {BUILDS} builds, {EXECS} execs and \
             a watch {median_beside:?}, p99 {high_beside:?}; {done} of them were done and exact; \
             {held} bytes held meanwhile"
        );
        assert!(median_beside <= median * 6 / 5);
        assert!(high_beside <= high * 6 / 5);
        // Of each: a window at the sender and one at the receiver, and as much again between the
        // agent and its daemon, in QUIC, and on the way; and what windows may grow by at both ends.
        let most = (LOGS + BUILDS + EXECS + 1) * 4 * Limits::default().initial_window;
        let most = most + 2 * 64 * 1024 * 1024;
        assert!((held as u64) < most, "{held} bytes held, {most} at most");
    });
}
