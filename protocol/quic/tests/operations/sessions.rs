//! What the operations of a session share: streams and their limit, and the books.

use std::time::Duration;

use bytes::Bytes;
use hub_netsim::LinkConfig;
use hub_protocol::kind::{Failure, FailureCode, OperationKind};
use hub_quic::endpoint::Transport;
use hub_quic::session::{OPEN_TIMEOUT, OpenError, windows};
use tokio::time::Instant;

use crate::support::{Ends, Pair, open_body, run, run_simulated};

const EXEC: OperationKind = OperationKind::Exec;

#[test]
fn at_the_limit_of_streams_the_node_is_busy() {
    run_simulated(async {
        let transport = Transport {
            incoming_streams: 4,
            ..Transport::agent(windows())
        };
        let ends = Ends::simulated_with(&LinkConfig::perfect(), &transport).await;
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
    });
}

#[test]
fn streams_are_allowed_as_they_are_used() {
    run(async {
        let pair = Pair::loopback().await;
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

/// Operations that end in every way there is leave nothing behind.
#[test]
fn every_operation_that_was_opened_is_closed() {
    run(async {
        let pair = Pair::loopback().await;
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
        while pair.hub.operations() + pair.agent.operations() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(pair.hub.operation_counts(), (1000, 1000));
        assert_eq!(pair.agent.operation_counts(), (1000, 1000));
    });
}
