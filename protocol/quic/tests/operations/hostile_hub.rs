//! A hostile hub on bare streams against the agent's side of a session.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use hub_netsim::LinkConfig;
use hub_protocol::code::ResetCode;
use hub_protocol::kind::exec;
use hub_quic::operation::{Ended, Operation};
use hub_quic::session::{MAX_VIOLATIONS, Session};
use hub_quic::transport::{Connection, RecvStream, SendStream};
use quinn::ConnectionError;
use tokio::time::{Instant, sleep};

use crate::breach::*;
use crate::raw::*;
use crate::support::{Ends, Write as _, over_both, settle, simulated_over_both};

fn breaches() -> Vec<Breach> {
    let full = data(STDIN, &vec![0; 65536]);
    vec![
        breach(
            "a byte beyond the credit",
            "beyond_credit",
            WINDOW,
            &[&full, &data(STDIN, b"x")],
        ),
        breach(
            "endless bytes",
            "beyond_credit",
            WINDOW,
            &[&data(STDIN, b"x").repeat(100_000)],
        ),
        breach(
            "endless empty messages",
            "beyond_credit",
            WINDOW,
            &[&message(b"").repeat(2049)],
        ),
        // Two channels share what the agent's hub announced: 384 KiB each, 64 KiB of it at first.
        breach(
            "credit beyond the limit",
            "beyond_limit",
            WINDOW,
            &[&credit(STDOUT, 320 * 1024 + 1)],
        ),
        breach(
            "all the credit there is",
            "beyond_limit",
            WINDOW,
            &[&credit(STDERR, MOST)],
        ),
        breach(
            "credit for messages",
            "beyond_limit",
            WINDOW,
            &[&credit(MESSAGES, 1)],
        ),
        breach(
            "data on an unknown channel",
            "unknown_channel",
            PROTOCOL,
            &[&data(7, b"x")],
        ),
        breach(
            "data in the wrong direction",
            "unknown_channel",
            PROTOCOL,
            &[&data(STDOUT, b"x")],
        ),
        breach(
            "credit in the wrong direction",
            "unknown_channel",
            PROTOCOL,
            &[&credit(STDIN, 1)],
        ),
        breach(
            "stop in the wrong direction",
            "unknown_channel",
            PROTOCOL,
            &[&stop(STDIN)],
        ),
        breach(
            "end in the wrong direction",
            "unknown_channel",
            PROTOCOL,
            &[&end(STDERR)],
        ),
        breach(
            "stop of the messages",
            "unknown_channel",
            PROTOCOL,
            &[&stop(MESSAGES)],
        ),
        breach(
            "data after the end",
            "after_end",
            PROTOCOL,
            &[&end(STDIN), &data(STDIN, b"x")],
        ),
        breach(
            "a second end",
            "after_end",
            PROTOCOL,
            &[&end(STDIN), &end(STDIN)],
        ),
        breach("accepted", "misplaced", PROTOCOL, &[ACCEPTED]),
        breach(
            "failed",
            "misplaced",
            PROTOCOL,
            &[&frame(7, b"\x00\x00\x00")],
        ),
        breach("done", "misplaced", PROTOCOL, &[DONE]),
        breach(
            "oversized data",
            "oversized",
            PROTOCOL,
            &[b"\x01", &varint(65538)],
        ),
        breach(
            "a stop with a tail",
            "oversized",
            PROTOCOL,
            &[&frame(4, b"\x01\x01")],
        ),
        breach("a second open", "malformed", PROTOCOL, &[&frame(0x3e, b"")]),
        breach("garbage", "malformed", PROTOCOL, &[&[0xa5; 5000]]),
        breach("stop of nothing", "malformed", PROTOCOL, &[&frame(4, b"")]),
        breach(
            "endless empty data",
            "idle",
            PROTOCOL,
            &[&data(STDIN, b"").repeat(10_000)],
        ),
        breach(
            "endless empty credit",
            "idle",
            PROTOCOL,
            &[&credit(STDOUT, 0).repeat(10_000)],
        ),
        breach(
            "endless stops",
            "idle",
            PROTOCOL,
            &[&stop(STDOUT).repeat(10_000)],
        ),
        early_fin("a stream that ends at once", &[]),
        early_fin(
            "a stream that ends after data",
            &[&data(STDIN, b"x"), &end(STDIN)],
        ),
        early_fin("a stream that ends inside a frame", &[b"\x01\x09\x00half"]),
    ]
}

/// A stream at the hostile hub, and the operation that the agent makes of it.
async fn open(hub: &Connection, agent: &Session) -> (Operation, SendStream, RecvStream) {
    let (mut send, recv) = hub.open().await.unwrap();
    send.write_all(OPEN).await.unwrap();
    let (operation, _) = agent.accept().await.unwrap().operation().await.unwrap();
    (operation, send, recv)
}

/// The rest of an honest operation, by hand.
async fn finish((agent, mut send, mut recv): (Operation, SendStream, RecvStream)) {
    agent.accept(Bytes::new());
    send.write_all(&data(STDIN, b"in")).await.unwrap();
    let mut stdin = agent.receiver(exec::STDIN);
    assert_eq!(stdin.chunk().await, Ok(Some("in".into())));
    agent.sender(exec::STDOUT).send("out".into()).await.unwrap();
    agent.finish(Bytes::from_static(b"\0\0"));
    expect(&mut recv, &all(&[ACCEPTED, &data(STDOUT, b"out"), DONE])).await;
    assert_eq!(to_end(&mut recv).await, Ok(vec![]));
    send.finish().unwrap();
}

#[test]
fn each_breach_costs_its_operation_and_nothing_else() {
    for breach in breaches() {
        println!("{}", breach.name);
        for accepted in [false, true] {
            over_both(async |ends: Ends| {
                let agent = ends.agent_session();
                let mut neighbours = Vec::new();
                for _ in 0..3 {
                    neighbours.push(open(&ends.hub, &agent).await);
                }
                let (victim, mut send, mut recv) = open(&ends.hub, &agent).await;
                if accepted {
                    victim.accept(Bytes::new());
                }
                let write = async {
                    write_what_goes(&mut send, &breach.wire).await;
                    if breach.fin {
                        let _ = send.finish();
                    }
                };
                let ((), ended) = tokio::join!(write, victim.ended());
                assert!(matches!(ended, Ended::Violated(_)), "{ended:?}");
                assert_eq!(reset_code(&mut recv).await, breach.code);
                let stopped = stop_code(&send).await;
                assert!(stopped == Some(breach.code) || breach.fin, "{stopped:?}");
                for neighbour in neighbours {
                    finish(neighbour).await;
                }
                assert_eq!(agent.violations(), BTreeMap::from([(breach.kind, 1)]));
            });
        }
    }
}

/// Streams that never become an operation.
#[test]
fn a_broken_open_costs_its_stream_and_nothing_else() {
    let cases: [(Vec<u8>, bool, &str); 5] = [
        (all(&[b"\x01", &varint(128 * 1024 + 1)]), false, "oversized"),
        (all(&[b"\x01", &varint(MOST)]), false, "oversized"),
        (vec![], true, "early_fin"),
        (vec![1], true, "early_fin"),
        (OPEN[..OPEN.len() - 1].to_vec(), true, "early_fin"),
    ];
    for (wire, fin, kind) in cases {
        over_both(async |ends: Ends| {
            let agent = ends.agent_session();
            let neighbour = open(&ends.hub, &agent).await;
            let (mut send, mut recv) = ends.hub.open().await.unwrap();
            send.write_all(&wire).await.unwrap();
            if fin {
                send.finish().unwrap();
            }
            let incoming = agent.accept().await.unwrap();
            assert!(incoming.operation().await.is_none());
            assert_eq!(reset_code(&mut recv).await, PROTOCOL);
            assert!(fin || stop_code(&send).await == Some(PROTOCOL));
            assert_eq!(agent.violations(), BTreeMap::from([(kind, 1)]));
            finish(neighbour).await;
        });
    }
}

/// Slowness is no breach: the stream is given up, and nothing is counted.
#[test]
fn a_stream_without_an_open_times_out() {
    simulated_over_both(&LinkConfig::perfect(), async |ends: Ends| {
        let agent = ends.agent_session();
        for wire in [&b"\x01"[..], &OPEN[..5]] {
            let (mut send, mut recv) = ends.hub.open().await.unwrap();
            send.write_all(wire).await.unwrap();
            let incoming = agent.accept().await.unwrap();
            let started = Instant::now();
            assert!(incoming.operation().await.is_none());
            assert!(started.elapsed() >= Duration::from_secs(10));
            assert_eq!(reset_code(&mut recv).await, CANCELLED);
            assert_eq!(stop_code(&send).await, Some(CANCELLED));
        }
        assert_eq!(agent.violations(), BTreeMap::new());
        finish(open(&ends.hub, &agent).await).await;
    });
}

/// A hub that only resets or only stops the stream cancels the operation. A lone stop is noticed
/// with the next byte for it; a reset at once.
#[test]
fn either_half_cancels() {
    over_both(async |ends: Ends| {
        let agent = ends.agent_session();
        let cancelled = Ended::Reset(ResetCode::CANCELLED);
        let (operation, mut send, _recv) = open(&ends.hub, &agent).await;
        operation.accept(Bytes::new());
        send.reset(ResetCode::CANCELLED).unwrap();
        assert_eq!(operation.ended().await, cancelled);

        let (operation, _send, mut recv) = open(&ends.hub, &agent).await;
        operation.accept(Bytes::new());
        expect(&mut recv, ACCEPTED).await;
        recv.stop(ResetCode::CANCELLED).unwrap();
        finish(open(&ends.hub, &agent).await).await;
        operation
            .sender(exec::STDOUT)
            .send("x".into())
            .await
            .unwrap();
        assert_eq!(operation.ended().await, cancelled);
        assert_eq!(agent.violations(), BTreeMap::new());
    });
}

#[test]
fn whoever_keeps_breaking_the_rules_loses_the_session() {
    over_both(async |ends: Ends| {
        let agent = ends.agent_session();
        let neighbour = open(&ends.hub, &agent).await;
        for n in 1..=MAX_VIOLATIONS {
            assert_eq!(ends.hub.close_reason(), None, "after {n}");
            let (victim, mut send, _recv) = open(&ends.hub, &agent).await;
            write_what_goes(&mut send, DONE).await;
            assert!(matches!(victim.ended().await, Ended::Violated(_)));
        }
        let ConnectionError::ApplicationClosed(close) = ends.hub.closed().await else {
            panic!("not closed by the agent");
        };
        assert_eq!(close.error_code.into_inner(), 4);
        assert!(matches!(neighbour.0.ended().await, Ended::Lost(_)));
        assert!(agent.accept().await.is_err());
    });
}

/// What a hub sends after the outcome is dropped, whatever it is, as long as it is frames.
#[test]
fn a_hub_that_goes_on_after_the_outcome_is_not_heard() {
    over_both(async |ends: Ends| {
        let agent = ends.agent_session();
        let (operation, mut send, mut recv) = open(&ends.hub, &agent).await;
        operation.accept(Bytes::new());
        operation.finish(Bytes::from_static(b"\0\0"));
        expect(&mut recv, &all(&[ACCEPTED, DONE])).await;
        let noise = all(&[
            &data(STDIN, &vec![0; 60_000]),
            &stop(STDOUT),
            &credit(STDOUT, 9),
        ]);
        send.write_all(&noise.repeat(40)).await.unwrap();
        send.finish().unwrap();
        assert_eq!(send.stopped().await, Ok(None));
        assert_eq!(to_end(&mut recv).await, Ok(vec![]));
        assert_eq!(agent.violations(), BTreeMap::new());
        finish(open(&ends.hub, &agent).await).await;
    });
}

/// A hub that never ends its direction holds a stream for 10 s and no longer, whatever it goes on
/// to send.
#[test]
fn a_hub_that_never_ends_its_direction_holds_no_stream() {
    for noise in [false, true] {
        simulated_over_both(&LinkConfig::perfect(), async |ends: Ends| {
            let agent = ends.agent_session();
            let (operation, mut send, mut recv) = open(&ends.hub, &agent).await;
            operation.accept(Bytes::new());
            operation.finish(Bytes::from_static(b"\0\0"));
            expect(&mut recv, &all(&[ACCEPTED, DONE])).await;
            assert_eq!(to_end(&mut recv).await, Ok(vec![]));
            let over = Instant::now();
            while noise && send.write_all(&credit(STDOUT, 9)).await.is_ok() {
                sleep(Duration::from_millis(100)).await;
            }
            assert_eq!(stop_code(&send).await, Some(CANCELLED));
            assert!(over.elapsed() < Duration::from_secs(11));
            settle().await;
            assert_eq!(agent.operations(), 0);
            assert_eq!(agent.violations(), BTreeMap::new());
            finish(open(&ends.hub, &agent).await).await;
        });
    }
}
