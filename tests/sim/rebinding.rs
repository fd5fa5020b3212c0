//! A NAT that forgets its mappings costs a path validation, not the session.

use std::time::Duration;

use hub_netsim::LinkConfig;
use hub_protocol::kind::exec::{Outcome, STDOUT};

use crate::commands::pattern;
use crate::world::{World, run};

const LEN: usize = 64 << 20;

#[test]
fn a_transfer_goes_on_across_a_rebinding() {
    run(async {
        let world = World::without_records(5).await;
        let agent = world.agent("node", 1).await;
        world.net.set_links(
            agent.host,
            &LinkConfig::perfect().delay(Duration::from_millis(10)),
        );
        let node = world.hub().find("node").await.unwrap().unwrap();
        let before = world.hub().sessions().connected(&node.id).unwrap();
        let address = before.remote();
        let operation = world
            .start("node", &["bytes", &LEN.to_string(), "9", "0"], false)
            .await
            .unwrap();
        let mut stdout = operation.receiver(STDOUT);
        let mut received = 0;
        let mut rebound = 0;
        while let Some(chunk) = stdout.chunk().await.unwrap() {
            assert!(
                chunk == pattern(9, received as u64, chunk.len()),
                "at {received}"
            );
            received += chunk.len();
            if received >= LEN / 4 * (rebound + 1) && rebound < 3 {
                world.net.rebind_nat(agent.host);
                rebound += 1;
            }
        }
        assert_eq!((received, rebound), (LEN, 3));
        let done = operation.done().await.unwrap();
        let outcome: Outcome = hub_protocol::kind::decode("outcome", &done).unwrap();
        assert_eq!(outcome, Outcome::Exited(0));
        let after = world.hub().sessions().connected(&node.id).unwrap();
        assert_eq!(before.epoch, after.epoch);
        assert_ne!(address, after.remote());
    });
}
