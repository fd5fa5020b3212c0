//! A hostile agent on bare streams against the hub's side of a session.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use hub_netsim::LinkConfig;
use hub_protocol::kind::{OperationKind, exec};
use hub_quic::operation::{Ended, Operation};
use hub_quic::session::{MAX_VIOLATIONS, Session};
use hub_quic::transport::{Connection, RecvStream, SendStream};
use quinn::ConnectionError;
use tokio::time::Instant;

use crate::breach::*;
use crate::raw::*;
use crate::support::{
    Ends, Write as _, open_body, over_both, read_all, settle, simulated_over_both,
};

fn breaches() -> Vec<Breach> {
    let full = data(STDOUT, &vec![0; 65536]);
    let a = ACCEPTED;
    vec![
        // Windows. What is announced: 64 KiB for each channel at first, 768 KiB at most for all of
        // a direction, 128 KiB for messages, of which each costs 64 bytes beside its own.
        breach(
            "a byte beyond the credit",
            "beyond_credit",
            WINDOW,
            &[a, &full, &data(STDOUT, b"x")],
        ),
        breach(
            "twice the credit",
            "beyond_credit",
            WINDOW,
            &[a, &full, &full],
        ),
        breach(
            "endless bytes",
            "beyond_credit",
            WINDOW,
            &[a, &data(STDERR, b"x").repeat(100_000)],
        ),
        breach(
            "endless empty messages",
            "beyond_credit",
            WINDOW,
            &[a, &message(b"").repeat(2049)],
        ),
        breach(
            "large messages",
            "beyond_credit",
            WINDOW,
            &[a, &message(&vec![0; 90_000]).repeat(2)],
        ),
        breach(
            "credit beyond the limit",
            "beyond_limit",
            WINDOW,
            &[a, &credit(STDIN, 704 * 1024 + 1)],
        ),
        breach(
            "all the credit there is",
            "beyond_limit",
            WINDOW,
            &[a, &credit(STDIN, MOST)],
        ),
        breach(
            "more than fits",
            "beyond_limit",
            WINDOW,
            &[a, &credit(STDIN, MOST).repeat(9)],
        ),
        breach(
            "credit in small change",
            "beyond_limit",
            WINDOW,
            &[a, &credit(STDIN, 1).repeat(704 * 1024 + 1)],
        ),
        breach(
            "credit for messages",
            "beyond_limit",
            WINDOW,
            &[a, &credit(MESSAGES, 1)],
        ),
        // Channels.
        breach(
            "data on an unknown channel",
            "unknown_channel",
            PROTOCOL,
            &[a, &data(9, b"x")],
        ),
        breach(
            "credit for an unknown channel",
            "unknown_channel",
            PROTOCOL,
            &[a, &credit(255, 1)],
        ),
        breach(
            "data in the wrong direction",
            "unknown_channel",
            PROTOCOL,
            &[a, &data(STDIN, b"x")],
        ),
        breach(
            "end in the wrong direction",
            "unknown_channel",
            PROTOCOL,
            &[a, &end(STDIN)],
        ),
        breach(
            "credit in the wrong direction",
            "unknown_channel",
            PROTOCOL,
            &[a, &credit(STDOUT, 1)],
        ),
        breach(
            "stop in the wrong direction",
            "unknown_channel",
            PROTOCOL,
            &[a, &stop(STDOUT)],
        ),
        breach(
            "data on the messages",
            "unknown_channel",
            PROTOCOL,
            &[a, &data(MESSAGES, b"x")],
        ),
        breach(
            "end of the messages",
            "unknown_channel",
            PROTOCOL,
            &[a, &end(MESSAGES)],
        ),
        breach(
            "stop of the messages",
            "unknown_channel",
            PROTOCOL,
            &[a, &stop(MESSAGES)],
        ),
        breach(
            "data after the end",
            "after_end",
            PROTOCOL,
            &[a, &end(STDOUT), &data(STDOUT, b"x")],
        ),
        breach(
            "a second end",
            "after_end",
            PROTOCOL,
            &[a, &end(STDERR), &end(STDERR)],
        ),
        // Phases.
        breach("done before accepted", "misplaced", PROTOCOL, &[DONE]),
        breach(
            "data before accepted",
            "misplaced",
            PROTOCOL,
            &[&data(STDOUT, b"x")],
        ),
        breach(
            "credit before accepted",
            "misplaced",
            PROTOCOL,
            &[&credit(STDIN, 1)],
        ),
        breach("accepted twice", "misplaced", PROTOCOL, &[a, a]),
        breach(
            "failed after accepted",
            "misplaced",
            PROTOCOL,
            &[a, &frame(7, b"\x00\x00\x00")],
        ),
        breach(
            "data after done",
            "after_done",
            PROTOCOL,
            &[a, DONE, &data(STDOUT, b"x")],
        ),
        breach("done twice", "after_done", PROTOCOL, &[a, DONE, DONE]),
        breach(
            "accepted after failed",
            "after_done",
            PROTOCOL,
            &[&frame(7, b"\x00\x00\x00"), a],
        ),
        // Frames.
        breach(
            "oversized data",
            "oversized",
            PROTOCOL,
            &[a, b"\x01", &varint(65538)],
        ),
        breach(
            "an oversized message",
            "oversized",
            PROTOCOL,
            &[a, b"\x05", &varint(96 * 1024 + 1)],
        ),
        breach(
            "an oversized answer",
            "oversized",
            PROTOCOL,
            &[b"\x06", &varint(16 * 1024 + 1)],
        ),
        breach(
            "a length of all there is",
            "oversized",
            PROTOCOL,
            &[a, b"\x08", &varint(MOST)],
        ),
        breach(
            "an end with a tail",
            "oversized",
            PROTOCOL,
            &[a, &frame(3, b"\x01\x01")],
        ),
        breach(
            "an unknown tag",
            "malformed",
            PROTOCOL,
            &[a, &frame(0x30, b"?")],
        ),
        breach("garbage", "malformed", PROTOCOL, &[&[0xa5; 5000]]),
        breach(
            "data without a channel",
            "malformed",
            PROTOCOL,
            &[a, &frame(1, b"")],
        ),
        breach(
            "credit without an amount",
            "malformed",
            PROTOCOL,
            &[a, &frame(2, b"\x00")],
        ),
        breach(
            "credit cut short",
            "malformed",
            PROTOCOL,
            &[a, &frame(2, b"\x00\xc0\x01")],
        ),
        breach(
            "credit with a tail",
            "malformed",
            PROTOCOL,
            &[a, &frame(2, b"\x00\x01\x01")],
        ),
        breach(
            "end of nothing",
            "malformed",
            PROTOCOL,
            &[a, &frame(3, b"")],
        ),
        // Frames that say nothing.
        breach(
            "endless empty data",
            "idle",
            PROTOCOL,
            &[a, &data(STDOUT, b"").repeat(10_000)],
        ),
        breach(
            "endless empty credit",
            "idle",
            PROTOCOL,
            &[a, &credit(STDIN, 0).repeat(10_000)],
        ),
        breach(
            "endless stops",
            "idle",
            PROTOCOL,
            &[a, &stop(STDIN).repeat(10_000)],
        ),
        // Ends of the stream.
        early_fin("a stream without an answer", &[]),
        early_fin("a stream without an outcome", &[a, &data(STDOUT, b"x")]),
        early_fin("a stream that ends inside a header", &[a, b"\x01"]),
        early_fin("a stream that ends inside data", &[a, b"\x01\x09\x01half"]),
        early_fin(
            "a stream that ends inside its outcome",
            &[a, b"\x08\x02\x00"],
        ),
        early_fin(
            "a stream that ends inside a frame after done",
            &[a, DONE, b"\x01"],
        ),
    ]
}

/// An operation as the hub holds it, and its stream at the hostile agent, which has read `Open`.
async fn open(hub: &Session, agent: &Connection) -> (Operation, SendStream, RecvStream) {
    let operation = hub.open(OperationKind::Exec, &open_body()).await.unwrap();
    let (send, mut recv) = agent.accept().await.unwrap();
    expect(&mut recv, OPEN).await;
    (operation, send, recv)
}

/// The rest of an honest operation, by hand.
async fn finish((hub, mut send, mut recv): (Operation, SendStream, RecvStream)) {
    hub.sender(exec::STDIN).send("in".into()).await.unwrap();
    hub.sender(exec::STDIN).finish();
    expect(&mut recv, &all(&[&data(STDIN, b"in"), &end(STDIN)])).await;
    let answer = all(&[ACCEPTED, &data(STDOUT, b"out"), &end(STDOUT), DONE]);
    send.write_all(&answer).await.unwrap();
    send.finish().unwrap();
    assert_eq!(hub.done().await, Ok(Bytes::from_static(b"\0\0")));
    assert_eq!(read_all(&mut hub.receiver(exec::STDOUT)).await, b"out");
    // The hub ends its direction, too.
    assert_eq!(to_end(&mut recv).await, Ok(vec![]));
}

#[test]
fn each_breach_costs_its_operation_and_nothing_else() {
    for breach in breaches() {
        println!("{}", breach.name);
        over_both(async |ends: Ends| {
            let hub = ends.hub_session();
            let mut neighbours = Vec::new();
            for _ in 0..3 {
                neighbours.push(open(&hub, &ends.agent).await);
            }
            let (victim, mut send, mut recv) = open(&hub, &ends.agent).await;
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
            assert_eq!(hub.violations(), BTreeMap::from([(breach.kind, 1)]));
            assert_eq!(hub.operation_counts().0, 4);
        });
    }
}

#[test]
fn whoever_keeps_breaking_the_rules_loses_the_session() {
    over_both(async |ends: Ends| {
        let hub = ends.hub_session();
        let neighbour = open(&hub, &ends.agent).await;
        for n in 1..=MAX_VIOLATIONS {
            assert_eq!(ends.agent.close_reason(), None, "before {n}");
            let (victim, mut send, _recv) = open(&hub, &ends.agent).await;
            write_what_goes(&mut send, &data(9, b"x")).await;
            assert!(matches!(victim.ended().await, Ended::Violated(_)));
            assert_eq!(hub.violations(), BTreeMap::from([("misplaced", n)]));
        }
        let ConnectionError::ApplicationClosed(close) = ends.agent.closed().await else {
            panic!("not closed by the hub");
        };
        assert_eq!(close.error_code.into_inner(), 4);
        assert!(matches!(neighbour.0.ended().await, Ended::Lost(_)));
    });
}

/// A frame may come in any pieces; a breach is one however it is cut.
#[test]
fn a_breach_that_trickles_in_is_one() {
    over_both(async |ends: Ends| {
        let hub = ends.hub_session();
        let (victim, mut send, mut recv) = open(&hub, &ends.agent).await;
        let wire = all(&[ACCEPTED, &data(STDOUT, b"honest"), &data(STDIN, b"not")]);
        let trickle = async {
            for byte in wire.chunks(1) {
                write_what_goes(&mut send, byte).await;
                tokio::task::yield_now().await;
            }
        };
        let mut stdout = victim.receiver(exec::STDOUT);
        let ((), code) = tokio::join!(trickle, reset_code(&mut recv));
        assert_eq!(code, PROTOCOL);
        // What came before it is there, and then the end is not clean.
        let mut got = Vec::new();
        let end = loop {
            match stdout.chunk().await {
                Ok(Some(chunk)) => got.extend_from_slice(&chunk),
                end => break end,
            }
        };
        assert_eq!(got, b"honest");
        assert!(matches!(end, Err(Ended::Violated(_))), "{end:?}");
    });
}

/// A body that can't be read is no breach of the stream's rules: it is an answer without sense.
#[test]
fn a_failure_that_cannot_be_read_is_still_a_failure() {
    over_both(async |ends: Ends| {
        let hub = ends.hub_session();
        let (operation, mut send, _recv) = open(&hub, &ends.agent).await;
        send.write_all(&frame(7, b"\xff\xff\xff\xff"))
            .await
            .unwrap();
        send.finish().unwrap();
        let answer = operation.answer().await.unwrap();
        let hub_quic::operation::Answer::Failed(failure) = answer else {
            panic!("{answer:?}")
        };
        assert!(failure.message.contains("can't be read"), "{failure}");
    });
}

#[test]
fn an_agent_that_never_ends_its_direction_holds_no_stream() {
    simulated_over_both(&LinkConfig::perfect(), async |ends: Ends| {
        let hub = ends.hub_session();
        let (operation, mut send, mut recv) = open(&hub, &ends.agent).await;
        send.write_all(&all(&[ACCEPTED, DONE])).await.unwrap();
        assert_eq!(operation.done().await, Ok(Bytes::from_static(b"\0\0")));
        // The hub has nothing more to say, and says so.
        assert_eq!(to_end(&mut recv).await, Ok(vec![]));
        assert_eq!(hub.operations(), 1);
        let over = Instant::now();
        assert_eq!(stop_code(&send).await, Some(CANCELLED));
        assert!(over.elapsed() < Duration::from_secs(11));
        settle().await;
        assert_eq!(hub.operations(), 0);
        assert_eq!(hub.violations(), BTreeMap::new());
        finish(open(&hub, &ends.agent).await).await;
    });
}
