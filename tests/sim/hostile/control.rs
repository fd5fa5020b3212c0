//! What either side says on the control stream against its rules, and streams beside it.

use std::time::Duration;

use bytes::Bytes;
use hub_ledger::Presence;
use hub_server::hub::AskError;
use quinn::{Connection, SendStream, VarInt};
use tokio::time::{Instant, timeout};

use super::agent::{Hostile, Node, greet, hello, hello_of, works};
use super::hub::{self, HostileHub};
use super::log::{Line, Log};
use super::raw::*;
use crate::world::{World, run};

const OURS: &str = "07070707070707070707070707070707";

/// Frames of the control stream that neither side takes, at any time.
fn nonsense() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("garbage", vec![0xa5; 5000]),
        (
            "a length of 1 GiB",
            [&b"\x01"[..], &varint(1 << 30)].concat(),
        ),
        (
            "a length of all there is",
            [&b"\x10"[..], &varint(MOST)].concat(),
        ),
        ("text that is no JSON", frame(HELLO, b"hello?")),
        ("JSON that is no Hello", frame(HELLO, b"{}")),
        ("a malformed heartbeat", frame(HEARTBEAT, b"\xff")),
    ]
}

async fn is_away(world: &World, name: &str) {
    let node = world.hub().find(name).await.unwrap().unwrap();
    let mut changes = world.hub().sessions().changes();
    while world.hub().sessions().get(&node.id).is_some() {
        changes.changed().await.unwrap();
    }
}

/// How the hub ends a connection on which this was said first.
async fn first_words(connection: &Connection, words: &[u8]) -> u64 {
    let (mut send, _recv) = connection.open_bi().await.unwrap();
    let _ = send.write_all(words).await;
    close_code(connection).await
}

#[test]
fn an_agent_has_to_say_hello_first_and_in_time() {
    run(async {
        let world = World::without_records(41).await;
        let node = Node::join(&world, "mallory").await;
        // Nothing at all, and a Hello that never ends.
        for words in [None, Some(&b"\x01\x40\xff{"[..])] {
            let connection = node.dial(&world).await;
            let asked = Instant::now();
            let code = match words {
                None => close_code(&connection).await,
                Some(words) => first_words(&connection, words).await,
            };
            assert_eq!(code, 5);
            assert!(asked.elapsed() <= Duration::from_secs(11));
        }
        let mut words = nonsense();
        words.push(("a heartbeat", frame(HEARTBEAT, b"\x00")));
        words.push(("an exec", OPEN_CAT.to_vec()));
        words.push(("targets", frame(TARGETS, b"\x01\x01\x50")));
        words.push(("something unknown", frame(0x3f, b"?")));
        for (what, words) in words {
            let connection = node.dial(&world).await;
            assert_eq!(first_words(&connection, &words).await, 4, "{what}");
        }
        let found = world.hub().find("mallory").await.unwrap().unwrap();
        assert_eq!(found.epoch.0, 0);
        assert!(world.hub().sessions().all().is_empty());
        // None of which is held against it.
        let agent = Hostile::connect(&world, &node, 1).await;
        works(agent.accept(&world).await, 1).await;
    });
}

#[test]
fn an_agent_that_breaks_the_rules_of_the_control_stream_loses_the_session() {
    run(async {
        let world = World::without_records(42).await;
        let node = Node::join(&world, "mallory").await;
        let mut words = nonsense();
        words.push(("a second Hello", frame(HELLO, hello(1).as_bytes())));
        words.push(("targets", frame(TARGETS, b"\x01\x01\x50")));
        words.push(("a welcome", frame(WELCOME, hub::welcome().as_bytes())));
        for (what, words) in words {
            let mut agent = Hostile::connect(&world, &node, 1).await;
            let (operation, _send, _reader) = agent.accept(&world).await;
            let _ = agent.control.write_all(&words).await;
            assert_eq!(close_code(&agent.connection).await, 4, "{what}");
            operation.ended().await;
            is_away(&world, "mallory").await;
        }
        // What it does not know it passes over: a newer agent may say it.
        let mut agent = Hostile::connect(&world, &node, 1).await;
        agent.control.write_all(&frame(0x3f, b"?")).await.unwrap();
        works(agent.accept(&world).await, 1).await;
    });
}

#[test]
fn an_agent_of_another_deployment_or_version_is_told_why_and_gets_nothing() {
    run(async {
        let world = World::without_records(43).await;
        let node = Node::join(&world, "mallory").await;
        let foreign = hello_of(&"ab".repeat(16), (1, 1), 1);
        let newer = hello_of(OURS, (7, 9), 1);
        let nobody = hello_of(OURS, (9, 7), 1);
        for (hello, code) in [
            (foreign, "foreign_deployment"),
            (newer, "version"),
            (nobody, "version"),
        ] {
            let connection = node.dial(&world).await;
            let (_send, _reader, (tag, refused)) = greet(&connection, &hello).await;
            assert_eq!(tag, u64::from(REFUSED));
            assert_eq!(refused["code"], code);
            assert_eq!(refused["permanent"], true);
            assert!(!refused["message"].as_str().unwrap().is_empty());
            assert_eq!(close_code(&connection).await, 2);
        }
        let found = world.hub().find("mallory").await.unwrap().unwrap();
        assert_eq!(found.epoch.0, 0);
        assert!(world.start("mallory", &["cat"], true).await.is_err());
    });
}

#[test]
fn limits_that_make_no_sense_are_clipped() {
    run(async {
        let world = World::without_records(44).await;
        let node = Node::join(&world, "mallory").await;
        let connection = node.dial(&world).await;
        let most = u64::MAX.to_string();
        let hello = hello(1).replace("65536", &most).replace("786432", &most);
        let (control, reader, (tag, _)) = greet(&connection, &hello).await;
        assert_eq!(tag, u64::from(WELCOME));
        world.connected("mallory").await;
        let agent = Hostile {
            connection,
            control,
            _reader: reader,
        };
        let (operation, _send, mut reader) = agent.accept(&world).await;
        // Nothing is taken: the hub sends as much as it would send any agent at most.
        let mut stdin = operation.sender(hub_protocol::kind::exec::STDIN);
        let offer = Bytes::from(vec![0; 16 << 20]);
        let sending = timeout(Duration::from_secs(60), stdin.send(offer));
        let mut sent = 0;
        let reading = async {
            while let Ok(Some((DATA, payload))) = reader.frame().await {
                sent += payload.len() - 1;
            }
        };
        tokio::select! {
            sending = sending => assert!(sending.is_err()),
            () = reading => {}
        }
        assert_eq!(sent, 768 * 1024);
    });
}

#[test]
fn an_agent_that_takes_no_welcome_is_away() {
    run(async {
        let world = World::without_records(50).await;
        let node = Node::join(&world, "mallory").await;
        let mut transport = transport();
        transport.stream_receive_window(VarInt::from_u32(0));
        let connection = node.dial_with(&world, transport).await.unwrap();
        let words = frame(HELLO, hello(1).as_bytes());
        assert_eq!(first_words(&connection, &words).await, 5);
        let found = world.hub().find("mallory").await.unwrap().unwrap();
        assert_eq!((found.epoch.0, found.presence), (1, Presence::Away));
        assert!(world.hub().sessions().all().is_empty());
    });
}

#[test]
fn an_agent_that_never_answers_leaves_an_unknown_end() {
    run(async {
        let world = World::without_records(51).await;
        let node = Node::join(&world, "mallory").await;
        let agent = Hostile::connect(&world, &node, 1).await;
        let asked = world.start("mallory", &["cat"], true).await.unwrap_err();
        assert!(matches!(asked, AskError::Unknown { .. }), "{asked}");
        assert!(asked.to_string().contains("180 s"), "{asked}");
        assert!(!asked.retry_helps() && !asked.not_started());
        let (_send, recv) = agent.connection.accept_bi().await.unwrap();
        assert_eq!(Reader::new(recv).reset_code().await, 0, "it is cancelled");
    });
}

/// What is under way goes on, and nothing new begins until it is back.
#[test]
fn an_agent_that_says_it_leaves_gets_nothing_new() {
    run(async {
        let world = World::without_records(48).await;
        let node = Node::join(&world, "mallory").await;
        let mut agent = Hostile::connect(&world, &node, 1).await;
        let running = agent.accept(&world).await;
        let words = frame(GO_AWAY, b"\x07leaving");
        agent.control.write_all(&words).await.unwrap();
        is_away(&world, "mallory").await;
        let refused = world.start("mallory", &["cat"], true).await;
        assert!(matches!(refused, Err(AskError::Away { .. })));
        works(running, 1).await;
        assert_eq!(world.hub().sessions().all().len(), 1);
        let agent = Hostile::connect(&world, &node, 1).await;
        works(agent.accept(&world).await, 1).await;
    });
}

/// An agent is asked; it asks for nothing. The hub runs nothing, and tells it so.
#[test]
fn an_agent_that_opens_operations_is_turned_away_stream_by_stream() {
    run(async {
        let log = Log::hear();
        let world = World::without_records(45).await;
        let honest = world.agent("honest", 1).await;
        let node = Node::join(&world, "mallory").await;
        let agent = Hostile::connect(&world, &node, 1).await;
        let open = async |wire: &[u8]| -> (SendStream, Reader) {
            let (mut send, recv) = agent.connection.open_bi().await.unwrap();
            let _ = send.write_all(wire).await;
            (send, Reader::new(recv))
        };
        let neighbour = agent.accept(&world).await;
        let wires = [
            OPEN_CAT,
            &[0xa5; 5000],
            &frame(HELLO, hello(2).as_bytes()),
            b"\x01",
        ];
        for wire in wires {
            let (send, mut reader) = open(wire).await;
            assert_eq!(reader.reset_code().await, PROTOCOL);
            assert_eq!(stop_code(&send).await, Some(PROTOCOL));
        }
        works(neighbour, 1).await;
        assert_eq!(world.hub().sessions().violations(), 4);
        let line = |total| Line {
            node: "mallory".into(),
            operation: "unopened".into(),
            channel: "-".into(),
            kind: "misplaced".into(),
            total,
        };
        assert_eq!(log.breaches(), [1, 2, 3, 4].map(line));
        // All at once: the streams that it may have beside the control stream.
        let mut held = Vec::new();
        for _ in 0..12 {
            held.push(open(&[OPEN_CAT, &data(STDIN, &vec![0; 60_000])].concat()).await);
        }
        assert_eq!(close_code(&agent.connection).await, 4);
        is_away(&world, "mallory").await;
        assert_eq!(world.hub().sessions().violations(), 16);
        assert_eq!(honest.commands.alive(), 0);
        assert!(honest.commands.started().is_empty());
    });
}

#[test]
fn an_agent_dials_again_after_whatever_a_hub_says_in_the_place_of_welcome() {
    run(async {
        let hub = HostileHub::new(46).await;
        let mut words = nonsense();
        words.push(("its own Hello", frame(HELLO, hello(1).as_bytes())));
        words.push(("a heartbeat", frame(HEARTBEAT, b"\x00")));
        words.push(("targets", frame(TARGETS, b"\x01\x01\x50")));
        words.push(("a welcome cut short", frame(WELCOME, b"{\"version\":1")));
        for (what, words) in words {
            let mut greeted = hub.greeted().await;
            assert_eq!(greeted.hello["deployment"], OURS);
            // Operations before Welcome are not carried out.
            let _early = greeted.open(OPEN_CAT).await;
            let _ = greeted.control.write_all(&words).await;
            assert_eq!(close_code(&greeted.connection).await, 4, "{what}");
        }
        // Nothing at all.
        let greeted = hub.greeted().await;
        let asked = Instant::now();
        greeted.connection.closed().await;
        assert!(asked.elapsed() <= Duration::from_secs(16));
        // A refusal may ask for time, but not for all of it.
        let mut greeted = hub.greeted().await;
        let refused = br#"{"permanent":false,"code":"try_later","message":"",
            "retry_after_ms":18446744073709551615}"#;
        let refused = frame(REFUSED, refused);
        greeted.control.write_all(&refused).await.unwrap();
        greeted.connection.closed().await;
        let asked = Instant::now();
        let session = hub.session().await;
        assert!(asked.elapsed() <= Duration::from_secs(301));
        hub::works(session.accepted(OPEN_CAT).await, 1).await;
        assert_eq!(hub.agent.commands.alive(), 0);
    });
}

#[test]
fn a_hub_that_breaks_the_rules_of_the_control_stream_loses_the_session() {
    run(async {
        let hub = HostileHub::new(47).await;
        for (what, words) in nonsense() {
            let mut session = hub.session().await;
            let _running = session.accepted(OPEN_SLEEP).await;
            assert_eq!(hub.agent.commands.alive(), 1);
            let _ = session.control.write_all(&words).await;
            assert_eq!(close_code(&session.connection).await, 4, "{what}");
            hub.agent.commands.until_alive(0).await;
        }
    });
}

#[test]
fn an_agent_that_stops_says_so_before_it_leaves() {
    run(async {
        let hub = HostileHub::new(49).await;
        let mut session = hub.session().await;
        let _running = session.accepted(OPEN_SLEEP).await;
        let commands = hub.agent.commands.clone();
        let heard = async {
            loop {
                match session.reader.frame().await.unwrap() {
                    Some((tag, _)) if tag == u64::from(HEARTBEAT) => {}
                    Some(last) => {
                        assert_eq!(last.0, u64::from(GO_AWAY));
                        assert!(last.1.ends_with(b"the agent is stopping"));
                        break;
                    }
                    None => panic!("no word of leaving"),
                }
            }
            assert_eq!(session.reader.frame().await.unwrap(), None);
            assert_eq!(close_code(&session.connection).await, 1);
        };
        tokio::join!(heard, hub.agent.stop());
        assert_eq!(commands.alive(), 0);
    });
}

/// That is no breach: the agent leaves, and dials again.
#[test]
fn a_hub_may_end_the_control_stream() {
    run(async {
        let hub = HostileHub::new(50).await;
        for reset in [false, true] {
            let mut session = hub.session().await;
            let _running = session.accepted(OPEN_SLEEP).await;
            if reset {
                session.control.reset(0u8.into()).unwrap();
            } else {
                session.control.finish().unwrap();
            }
            assert_eq!(close_code(&session.connection).await, 1);
            hub.agent.commands.until_alive(0).await;
        }
    });
}

/// The hub says how often; an agent does not let itself be made to send without an end.
#[test]
fn an_agent_beats_once_a_second_at_most() {
    run(async {
        let hub = HostileHub::new(48).await;
        let mut greeted = hub.greeted().await;
        let welcome = hub::welcome().replace("10000", "0");
        greeted
            .control
            .write_all(&frame(WELCOME, welcome.as_bytes()))
            .await
            .unwrap();
        let started = Instant::now();
        for _ in 0..20 {
            assert_eq!(greeted.reader.expect().await.0, u64::from(HEARTBEAT));
        }
        assert!(started.elapsed() >= Duration::from_secs(18));
    });
}
