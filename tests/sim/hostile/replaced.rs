//! A newer session of a node replaces an older one, in whatever order their beginnings and ends
//! come.

use std::fs;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use hub_agent::agent::AgentError;
use hub_agent::uplink::UplinkError;
use hub_ledger::Presence;
use hub_protocol::code::CloseCode;
use quinn::VarInt;
use tokio::time::{Instant, timeout};

use super::agent::{Hostile, Node, greet, hello, works};
use super::log::Log;
use super::raw::*;
use crate::commands::pattern;
use crate::world::{SimAgent, World, finish, parts, run};

const SUPERSEDED: u64 = CloseCode::SUPERSEDED.0 as u64;

/// A copy of an agent's directory, as by an image of its disk.
fn copy(agent: &SimAgent) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let identity = directory.path().join("identity");
    fs::create_dir(&identity).unwrap();
    let file = "identity.json";
    let bytes = fs::read(agent.config.data_dir.join("identity").join(file)).unwrap();
    let mut options = fs::OpenOptions::new();
    let copy = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(identity.join(file));
    std::io::Write::write_all(&mut copy.unwrap(), &bytes).unwrap();
    directory
}

#[test]
fn of_two_agents_with_one_identity_the_newest_holds_the_node() {
    run(async {
        let world = World::without_records(71).await;
        let old = world.agent("node", 1).await;
        let id = world.hub().find("node").await.unwrap().unwrap().id;
        let before = world.hub().sessions().connected(&id).unwrap();
        let operation = world.start("node", &["sleep"], true).await.unwrap();
        let host = world.net.host("copy", "198.51.100.9");
        let stands_on = parts(&world.net, &world.clock, host, "copy");
        let new = SimAgent::start(host, old.config.clone(), stands_on, copy(&old));
        // The old one is told so, stops what it ran, and ends.
        let ended = old.task.await.unwrap();
        let Err(AgentError::Uplink(UplinkError::Refused(refused))) = ended else {
            panic!("{ended:?}");
        };
        assert_eq!((&*refused.code, refused.permanent), ("superseded", true));
        operation.ended().await;
        old.commands.until_alive(0).await;
        let after = world.hub().sessions().connected(&id).unwrap();
        assert_eq!(after.epoch.0, before.epoch.0 + 1);
        assert_eq!(after.remote().unwrap().ip().to_string(), "198.51.100.9");
        let operation = world
            .start("node", &["bytes", "1000", "3", "0"], false)
            .await
            .unwrap();
        let (output, _) = finish(&operation).await.unwrap();
        assert_eq!(output, pattern(3, 0, 1000));
        // And it stays so.
        tokio::time::sleep(Duration::from_secs(120)).await;
        let later = world.hub().sessions().connected(&id).unwrap();
        assert_eq!(later.epoch, after.epoch);
        assert!(!new.task.is_finished());
        new.stop().await;
    });
}

/// What the hub has for the node while a session of this epoch stands.
async fn holds(world: &World, node: &Node, epoch: u64) {
    let id = node.identity.node_id();
    let standing = world.hub().sessions().connected(&id).unwrap();
    assert_eq!(standing.epoch.0, epoch);
    let row = world.hub().store().node(id).await.unwrap().unwrap();
    assert_eq!((row.epoch.0, row.presence), (epoch, Presence::Connected));
}

/// Waits until the hub has cleaned up after a session that was replaced.
async fn cleaned_up(log: &Log, epoch: u64) {
    let cleaned = async {
        while !log
            .saying("replaced by a newer session")
            .iter()
            .any(|line| line["fields"]["epoch"] == epoch)
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(60), cleaned).await.unwrap();
}

#[test]
fn the_end_of_an_older_session_never_removes_a_newer() {
    run(async {
        let log = Log::hear();
        let world = World::without_records(72).await;
        let node = Node::join(&world, "node").await;
        // Each session's end comes after the next one's beginning: it is the beginning that ends it.
        let mut older = Hostile::connect(&world, &node, 1).await;
        for epoch in 2..6 {
            let newer = Hostile::connect(&world, &node, epoch as u8).await;
            assert_eq!(close_code(&older.connection).await, SUPERSEDED);
            cleaned_up(&log, epoch - 1).await;
            holds(&world, &node, epoch).await;
            older = newer;
        }
        // The last one's end does remove it.
        older.connection.close(VarInt::from_u32(0), b"");
        let mut changes = world.hub().sessions().changes();
        while world
            .hub()
            .sessions()
            .get(&node.identity.node_id())
            .is_some()
        {
            changes.changed().await.unwrap();
        }
    });
}

/// The hub has registered a session and is still saying Welcome, to an agent that does not listen,
/// when a newer one comes: the older one never takes the node, however late it is ready.
#[test]
fn a_registration_that_comes_late_never_replaces_a_newer_session() {
    run(async {
        let log = Log::hear();
        let world = World::without_records(73).await;
        let node = Node::join(&world, "mallory").await;
        let mut deaf = transport();
        deaf.stream_receive_window(VarInt::from_u32(16));
        let late = node.dial_with(&world, deaf).await.unwrap();
        let (mut send, recv) = late.open_bi().await.unwrap();
        let mut late_reader = Reader::new(recv);
        send.write_all(&frame(HELLO, hello(1).as_bytes()))
            .await
            .unwrap();
        let id = node.identity.node_id();
        // Registered in the ledger, and not yet a session.
        while world.hub().store().node(id).await.unwrap().unwrap().epoch.0 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(world.hub().sessions().get(&id).is_none());
        let newer = Hostile::connect(&world, &node, 2).await;
        holds(&world, &node, 2).await;
        assert_eq!(late.close_reason(), None);
        // Now it listens.
        while let Ok(Some(_)) = late_reader.recv.read_chunk(16, true).await {}
        assert_eq!(close_code(&late).await, SUPERSEDED);
        holds(&world, &node, 2).await;
        works(newer.accept(&world).await, 1).await;
        assert_eq!(newer.connection.close_reason(), None);
        // Nor does the older process ever take it back.
        let again = node.dial(&world).await;
        let (_send, _reader, (tag, refused)) = greet(&again, &hello(1)).await;
        assert_eq!(tag, u64::from(REFUSED));
        assert_eq!(refused["code"], "superseded");
        holds(&world, &node, 2).await;
        assert!(log.saying("away").is_empty());
    });
}

/// A path that dies is noticed late. The agent that comes back by another one does not wait for it.
#[test]
fn a_session_on_a_dead_path_is_replaced_at_once() {
    run(async {
        let log = Log::hear();
        let world = World::without_records(74).await;
        let host = world.net.host("dead", "198.51.100.7");
        let node = Node::join_on(&world, host, "mallory").await;
        let older = Hostile::connect(&world, &node, 1).await;
        world.net.cut(host);
        let alive = world.net.host("alive", "198.51.100.8");
        let moved = Node {
            identity: node.identity.clone(),
            network: crate::world::SimNetwork::new(&world.net, alive),
        };
        let newer = Hostile::connect(&world, &moved, 1).await;
        holds(&world, &node, 2).await;
        cleaned_up(&log, 1).await;
        // The older peer finds out by itself, long after.
        older.connection.closed().await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        holds(&world, &node, 2).await;
        works(newer.accept(&world).await, 1).await;
    });
}

/// A machine that lost its power says nothing; its agent is back before the hub knows.
#[test]
fn an_agent_that_was_killed_takes_the_node_back_at_once() {
    run(async {
        let log = Log::hear();
        let world = World::without_records(75).await;
        let agent = world.agent("node", 1).await;
        let id = world.hub().find("node").await.unwrap().unwrap().id;
        let before = world.hub().sessions().connected(&id).unwrap();
        let operation = world.start("node", &["sleep"], true).await.unwrap();
        let (host, config, parts) = (agent.host, agent.config.clone(), agent.parts.clone());
        let commands = agent.commands.clone();
        world.net.cut(host);
        let directory = agent.kill().await;
        assert_eq!(commands.alive(), 0);
        world.net.heal(host);
        let started = Instant::now();
        let again = SimAgent::start(host, config, (parts, commands), directory);
        operation.ended().await;
        assert!(started.elapsed() < Duration::from_secs(5));
        cleaned_up(&log, before.epoch.0).await;
        let after = world.hub().sessions().connected(&id).unwrap();
        assert_eq!(after.epoch.0, before.epoch.0 + 1);
        let operation = world
            .start("node", &["bytes", "1000", "3", "0"], false)
            .await;
        let (output, _) = finish(&operation.unwrap()).await.unwrap();
        assert_eq!(output, pattern(3, 0, 1000));
        again.stop().await;
    });
}
