//! Outcomes that a node cannot vouch for are told as unknown, never as a success.

use hub_protocol::kind::exec::Outcome;

use crate::world::{World, finish, run};

#[test]
fn an_output_that_broke_off_has_no_exit_code() {
    run(async {
        let world = World::without_records(61).await;
        let agent = world.agent("node", 1).await;
        let whole = world.start("node", &["bytes", "200000", "0", "0"], false);
        let (output, outcome) = finish(&whole.await.unwrap()).await.unwrap();
        assert_eq!(outcome, Outcome::Exited(0));
        let broken = world.start("node", &["broken", "200000"], false);
        let same = finish(&broken.await.unwrap()).await.unwrap();
        assert_eq!(same, (output, Outcome::Unknown));
        assert_eq!(agent.commands.alive(), 0);
    });
}

#[test]
fn a_command_that_may_have_started_has_no_exit_code() {
    run(async {
        let world = World::without_records(62).await;
        let _agent = world.agent("node", 1).await;
        let lost = world.start("node", &["lost"], false).await.unwrap();
        let seen = finish(&lost).await.unwrap();
        assert_eq!(seen, (vec![], Outcome::Unknown));
        // And the hub lists it, for a person to look after.
        let node = world.hub().find("node").await.unwrap().unwrap();
        let mut changes = world.hub().sessions().changes();
        let list = loop {
            let list = world
                .hub()
                .sessions()
                .connected(&node.id)
                .unwrap()
                .lingering;
            if !list.is_empty() {
                break list;
            }
            changes.changed().await.unwrap();
        };
        assert_eq!((list.len(), list[0].what.as_str()), (1, "lost"));
    });
}
