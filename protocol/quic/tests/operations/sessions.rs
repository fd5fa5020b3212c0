//! What the operations of a session share: streams and their limit, and the books.

use std::time::Duration;

use bytes::Bytes;
use hub_netsim::LinkConfig;
use hub_protocol::kind::{Failure, FailureCode, OperationKind, exec};
use hub_protocol::limits::AGENT_STREAMS;
use hub_quic::endpoint::Transport;
use hub_quic::session::{OPEN_TIMEOUT, OpenError, windows};
use hub_quic::transport::memory;
use tokio::time::{Instant, timeout};

use crate::raw;
use crate::support::{
    Ends, Write as _, open_body, over_both, read_all, run_simulated, settle, simulated_over_both,
};

const EXEC: OperationKind = OperationKind::Exec;

#[test]
fn at_the_limit_of_streams_the_node_is_busy() {
    let test = async |ends: Ends| {
        let pair = ends.sessions();
        let mut under_way = Vec::new();
        for _ in 0..4 {
            under_way.push(pair.running(EXEC).await);
        }
        let started = Instant::now();
        let fifth = pair.hub.open(EXEC, &open_body()).await;
        assert_eq!(fifth.err(), Some(OpenError::Busy));
        assert!(started.elapsed() >= OPEN_TIMEOUT);
        // One that waits gets the stream that becomes free.
        let (hub, agent) = under_way.remove(0);
        let free = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            agent.finish(Bytes::new());
            hub.done().await.unwrap();
        };
        let (_opened, ()) = tokio::join!(biased; pair.running(EXEC), free);
    };
    let transport = Transport {
        incoming_streams: 4,
        ..Transport::agent(windows())
    };
    let streams = memory::Streams { hub: 4, agent: 1 };
    run_simulated(async {
        test(Ends::simulated_with(&LinkConfig::perfect(), &transport).await).await;
        test(Ends::memory(streams)).await;
    });
}

#[test]
fn streams_are_allowed_as_they_are_used() {
    over_both(async |ends: Ends| {
        let pair = ends.sessions();
        let mut under_way = Vec::new();
        for _ in 0..1000 {
            under_way.push(pair.running(EXEC).await);
        }
        assert_eq!(pair.hub.operations(), 1000);
        assert_eq!(pair.agent.operations(), 1000);
        for (hub, agent) in under_way {
            agent.finish(Bytes::new());
            hub.done().await.unwrap();
        }
        pair.assert_works().await;
    });
}

/// What the hub has under way is no reason to let an agent open more streams than its share.
#[test]
fn an_agent_is_allowed_no_more_than_its_share() {
    let link = LinkConfig::perfect().delay(Duration::from_millis(1));
    simulated_over_both(&link, async |ends: Ends| {
        let pair = ends.sessions();
        let mut under_way = Vec::new();
        for _ in 0..300 {
            under_way.push(pair.running(EXEC).await);
        }
        let mut streams = Vec::new();
        for _ in 0..AGENT_STREAMS {
            let mut stream = pair.ends.agent.open().await.unwrap();
            stream.0.write_all(b"\x01").await.unwrap();
            streams.push((stream, pair.hub.accept().await.unwrap()));
        }
        let one_more = pair.ends.agent.open();
        assert!(timeout(Duration::from_secs(5), one_more).await.is_err());
    });
}

/// A connection that is lost after the outcome takes nothing from it.
#[test]
fn an_operation_that_has_its_outcome_cannot_be_lost() {
    simulated_over_both(&LinkConfig::perfect(), async |ends: Ends| {
        let hub = ends.hub_session();
        let operation = hub.open(EXEC, &open_body()).await.unwrap();
        let (mut send, _recv) = ends.agent.accept().await.unwrap();
        let answer = raw::all(&[raw::ACCEPTED, &raw::data(raw::STDOUT, b"out"), raw::DONE]);
        send.write_all(&answer).await.unwrap();
        assert_eq!(operation.done().await, Ok("\0\0".into()));
        // Before it has said good-bye on the stream.
        ends.agent.close(1_u32.into(), b"");
        ends.hub.closed().await;
        assert!(
            timeout(Duration::from_secs(5), operation.ended())
                .await
                .is_err()
        );
        assert_eq!(operation.done().await, Ok("\0\0".into()));
        assert_eq!(
            read_all(&mut operation.receiver(exec::STDOUT)).await,
            b"out"
        );
        assert_eq!(hub.operation_counts(), (1, 1));
    });
}

/// Operations that end in every way there is leave nothing behind.
#[test]
fn every_operation_that_was_opened_is_closed() {
    let link = LinkConfig::perfect().delay(Duration::from_millis(1));
    simulated_over_both(&link, async |ends: Ends| {
        let pair = ends.sessions();
        let failure = Failure {
            code: FailureCode::BUSY,
            message: "busy".into(),
            retry: true,
        };
        for n in 0..1000 {
            let (hub, agent) = pair.open(EXEC).await;
            if n % 2 == 0 {
                agent.accept(Bytes::new());
                hub.answer().await.unwrap();
            }
            match n % 6 {
                0 | 2 => {
                    agent.finish(Bytes::new());
                    hub.done().await.unwrap();
                }
                1 | 3 => {
                    agent.fail(&failure);
                    hub.answer().await.unwrap();
                }
                4 => {
                    drop(hub);
                    agent.ended().await;
                }
                _ => {
                    drop(agent);
                    hub.ended().await;
                }
            }
        }
        // The last of them may still be saying good-bye.
        settle().await;
        assert_eq!(pair.hub.operation_counts(), (1000, 1000));
        assert_eq!(pair.agent.operation_counts(), (1000, 1000));
    });
}
