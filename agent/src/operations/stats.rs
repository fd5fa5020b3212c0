//! Follows what a container uses: a line of JSON about once a second, until it stops.

use bytes::Bytes;
use futures_util::StreamExt as _;
use hub_protocol::kind;
use hub_protocol::kind::records::FollowStats;
use hub_protocol::kind::transfer::{Ending, OUT};
use hub_quic::operation::Operation;

use super::no_engine;
use crate::engine::Engine;

/// Carries out one watch.
pub async fn run(operation: Operation, open: FollowStats, engine: Option<&Engine>) {
    let Some(engine) = engine else {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use hub_protocol::kind::FailureCode;
    use hub_protocol::kind::call::stats::Stats;

    use super::*;
    use crate::engine::Engine;
    use crate::operations::testing::{Node, ending, read_all, tools};
    use crate::runtime::docker::DockerRuntime;

    #[tokio::test]
    #[ignore = "needs a Docker daemon"]
    async fn docker_a_watch_has_lines_until_the_container_stops_or_the_reader_goes() {
        let engine = Engine::connect().await.unwrap();
        let container = DockerRuntime::new(&engine).demo_container().await.unwrap();
        let node = Node::new(tools(Some(engine))).await;
        let watch = FollowStats {
            container: container.name.clone(),
        };
        // A reader that wants no more of it.
        let (operation, _) = node.begin(&watch).await;
        let mut reader = operation.receiver(OUT);
        reader.chunk().await.unwrap().unwrap();
        drop(reader);
        assert_eq!(ending(&operation).await, Ending::Complete(()));

        let (operation, _) = node.begin(&watch).await;
        let mut reader = operation.receiver(OUT);
        let first = reader.chunk().await.unwrap().unwrap();
        container.remove().await.unwrap();
        let mut all = first.to_vec();
        while let Some(more) = reader.chunk().await.unwrap() {
            all.extend_from_slice(&more);
        }
        assert_eq!(ending(&operation).await, Ending::Complete(()));
        let lines = all
            .strip_suffix(b"\n")
            .unwrap()
            .split(|byte| *byte == b'\n');
        for line in lines {
            let stats: Stats = serde_json::from_slice(line).unwrap();
            assert_eq!(stats.name, watch.container);
        }
        let refused = node.refused(&watch).await;
        assert_eq!(refused.code, FailureCode::NO_SUCH_CONTAINER);
        let gone = node.ask(&watch).await;
        assert!(read_all(&gone, OUT).await.is_empty());
    }
}
