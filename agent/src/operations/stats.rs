//! Follows what a container uses: a line of JSON about once a second, until it stops.

use bytes::Bytes;
use futures_util::StreamExt as _;
use hub_protocol::kind;
use hub_protocol::kind::records::FollowStats;
use hub_protocol::kind::transfer::{Ending, OUT};
use hub_quic::operation::Operation;

use super::Tools;
use super::call::no_engine;

/// Carries out one watch.
pub async fn run(operation: Operation, open: FollowStats, tools: &Tools) {
    let Some(engine) = &tools.engine else {
        return operation.fail(&no_engine("statistics of containers"));
    };
    let calls = engine.calls(&|_| ());
    let looks = tokio::select! {
        biased;
        _ = operation.ended() => return,
        looks = calls.stats_follow(&open.container) => looks,
    };
    let mut looks = match looks {
        Ok(looks) => looks,
        Err(failure) => return operation.fail(&failure),
    };
    operation.accept(Bytes::new());
    let mut channel = operation.sender(OUT);
    let ending = loop {
        // While the reader is behind the daemon waits, too: nothing is gathered here.
        let look = tokio::select! {
            biased;
            _ = operation.ended() => return,
            () = channel.stopped() => break Ending::Complete(()),
            look = looks.next() => look,
        };
        match look {
            Some(Ok(look)) => {
                let mut line = kind::to_json(&look).to_vec();
                line.push(b'\n');
                if channel.send(line.into()).await.is_err() {
                    break Ending::Complete(());
                }
            }
            // An end that does not come from the container is the daemon's.
            Some(Err(failure)) => break Ending::Failed(failure),
            None => break Ending::Complete(()),
        }
    };
    channel.finish();
    operation.finish(kind::encode(&ending));
}
