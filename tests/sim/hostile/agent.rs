//! A hostile agent: it joined as every agent does, and then breaks the rules of operations.

use std::collections::BTreeMap;

use bytes::Bytes;
use hub_agent::identity::{Identity, IdentityStore};
use hub_agent::join::{self, JoinOptions};
use hub_netsim::HostId;
use hub_protocol::kind::exec::{Outcome, STDIN as IN};
use hub_protocol::session::Platform;
use hub_quic::operation::{Ended, Operation};
use hub_quic::session::MAX_VIOLATIONS;
use hub_quic::tls;
use hub_server::hub::AskError;
use quinn::{Connection, ConnectionError, SendStream, TransportConfig};
use serde_json::Value;

use super::log::{Line, Log};
use super::raw::*;
use crate::commands::pattern;
use crate::world::{SimNetwork, World, finish, run};

/// Bytes that each neighbour of a breach carries both ways: more than a window.
const LEN: usize = 200_000;

/// A machine with the identity of a node, and no agent.
pub struct Node {
    pub identity: Identity,
    pub network: SimNetwork,
}

impl Node {
    /// Joins as an agent does.
    pub async fn join(world: &World, name: &str) -> Self {
        let host = world.net.host(name, "198.51.100.66");
        Self::join_on(world, host, name).await
    }

    pub async fn join_on(world: &World, host: HostId, name: &str) -> Self {
        let network = SimNetwork::new(&world.net, host);
        let directory = tempfile::tempdir().unwrap();
        let store = IdentityStore::open(directory.path()).unwrap();
        let joining = world.joining(name).await;
        let options = JoinOptions {
            hub: joining.enrollment,
            pin: joining.pin,
            token: joining.token,
            name: joining.name,
            platform: Platform::default(),
        };
        let time = std::sync::Arc::new(world.clock.clone());
        let identity = join::join(&store, &network, &options, time).await.unwrap();
        Self { identity, network }
    }

    /// Dials the hub with its certificate.
    pub async fn dial(&self, world: &World) -> Connection {
        self.dial_with(world, transport()).await.unwrap()
    }

    pub async fn dial_with(
        &self,
        world: &World,
        transport: TransportConfig,
    ) -> Result<Connection, ConnectionError> {
        let (credentials, trust) = (self.identity.credentials(), self.identity.trust());
        let time = std::sync::Arc::new(world.clock.clone());
        let tls = tls::operational_client(credentials, trust, time).unwrap();
        dial(&self.network, world.server.bound().agents, tls, transport).await
    }
}

/// The text of a Hello; the number stands for one run of an agent.
pub fn hello(run: u8) -> String {
    hello_of("07070707070707070707070707070707", (1, 1), run)
}

pub fn hello_of(deployment: &str, (min, max): (u32, u32), run: u8) -> String {
    let incarnation = format!("{run:02x}").repeat(16);
    format!(
        r#"{{"versions":{{"min":{min},"max":{max}}},"deployment":"{deployment}",
            "release":"hostile","incarnation":"{incarnation}","clock_ms":1780000000000,
            "limits":{{"initial_window":65536,"max_window":786432}}}}"#
    )
}

/// Says Hello; gives the control stream and the hub's answer.
pub async fn greet(connection: &Connection, hello: &str) -> (SendStream, Reader, (u64, Value)) {
    let (mut send, recv) = connection.open_bi().await.unwrap();
    let mut reader = Reader::new(recv);
    send.write_all(&frame(HELLO, hello.as_bytes()))
        .await
        .unwrap();
    let (tag, payload) = reader.expect().await;
    let answer = serde_json::from_slice(&payload).unwrap();
    (send, reader, (tag, answer))
}

/// A session that the hub has taken.
pub struct Hostile {
    pub connection: Connection,
    pub control: SendStream,
    /// Keeps the hub from being told that nobody listens.
    pub _reader: Reader,
}

impl Hostile {
    pub async fn connect(world: &World, node: &Node, run: u8) -> Self {
        let connection = node.dial(world).await;
        let (control, mut reader, (tag, welcome)) = greet(&connection, &hello(run)).await;
        assert_eq!(tag, u64::from(WELCOME));
        assert_eq!(welcome["node_id"], node.identity.node_id().to_string());
        assert_eq!(reader.expect().await.0, u64::from(TARGETS));
        world.connected(node.identity.name().as_str()).await;
        Self {
            connection,
            control,
            _reader: reader,
        }
    }

    /// The hub asks for an exec, and is answered so. Gives what it makes of that, and this side.
    async fn asked(
        &self,
        world: &World,
        answer: &[u8],
        fin: bool,
    ) -> (Result<Operation, AskError>, SendStream, Reader) {
        let ask = world.start("mallory", &["cat"], true);
        let take = async {
            let (mut send, recv) = self.connection.accept_bi().await.unwrap();
            let mut reader = Reader::new(recv);
            let open = (u64::from(EXEC), Bytes::from_static(&OPEN_CAT[2..]));
            assert_eq!(reader.expect().await, open);
            commit(answer, fin, &mut send).await;
            (send, reader)
        };
        let (asked, (send, reader)) = tokio::join!(ask, take);
        (asked, send, reader)
    }

    pub async fn accept(&self, world: &World) -> (Operation, SendStream, Reader) {
        let (operation, send, reader) = self.asked(world, ACCEPTED, false).await;
        (operation.unwrap(), send, reader)
    }
}

/// What `cat` does, by hand, within the credit that the hub gives.
async fn cat(mut send: SendStream, mut reader: Reader) {
    let (mut allowed, mut waiting, mut ended) = (INITIAL as usize, Vec::new(), false);
    loop {
        let now = waiting.len().min(allowed).min(65_536);
        if now > 0 {
            allowed -= now;
            let echo: Vec<u8> = waiting.drain(..now).collect();
            send.write_all(&data(STDOUT, &echo)).await.unwrap();
            continue;
        }
        if ended && waiting.is_empty() {
            break;
        }
        match reader.expect().await {
            (DATA, payload) => {
                assert_eq!(payload[0], STDIN);
                waiting.extend_from_slice(&payload[1..]);
                let more = credit(STDIN, payload.len() as u64 - 1);
                send.write_all(&more).await.unwrap();
            }
            (CREDIT, payload) => match read_credit(&payload) {
                (STDOUT, bytes) => allowed += bytes as usize,
                other => panic!("credit {other:?}"),
            },
            (END, payload) => {
                assert_eq!(payload[..], [STDIN]);
                ended = true;
            }
            other => panic!("{other:?}"),
        }
    }
    let last = [&end(STDOUT)[..], &end(STDERR), DONE].concat();
    send.write_all(&last).await.unwrap();
    send.finish().unwrap();
    // The hub ends its direction, too.
    while let Some((tag, _)) = reader.frame().await.unwrap() {
        assert_eq!(tag, CREDIT);
    }
}

/// An operation from its start to its end, every byte of it checked.
pub async fn works((operation, send, reader): (Operation, SendStream, Reader), seed: u64) {
    let input = pattern(seed, 0, LEN);
    let feed = async {
        let mut stdin = operation.sender(IN);
        stdin.send(input.clone()).await.unwrap();
        stdin.finish();
    };
    let ((), (), finished) = tokio::join!(cat(send, reader), feed, finish(&operation));
    let (output, outcome) = finished.unwrap();
    assert!(output == input, "not what went in");
    assert_eq!(outcome, Outcome::Exited(0));
}

fn breaches() -> Vec<Breach> {
    let full = data(STDOUT, &vec![0; INITIAL as usize]);
    let rule = |kind| (kind, "-", PROTOCOL);
    let on = |kind, channel| (kind, channel, PROTOCOL);
    let unaccepted = |breach| Breach {
        unaccepted: true,
        ..breach
    };
    let fin = |breach| Breach {
        fin: true,
        ..breach
    };
    vec![
        breach(
            "data beyond the credit",
            ("beyond_credit", "stdout", WINDOW),
            &[&full, &data(STDOUT, b"x")],
        ),
        breach(
            "credit beyond the limit",
            ("beyond_limit", "stdin", WINDOW),
            &[&credit(STDIN, MOST)],
        ),
        breach(
            "messages beyond their window",
            ("beyond_credit", "messages", WINDOW),
            &[&message(&[0; 90_000]).repeat(2)],
        ),
        breach(
            "an unknown channel",
            on("unknown_channel", "?"),
            &[&data(9, b"x")],
        ),
        breach(
            "data in the wrong direction",
            on("unknown_channel", "stdin"),
            &[&data(STDIN, b"x")],
        ),
        breach(
            "an end of the messages",
            on("unknown_channel", "messages"),
            &[&end(MESSAGES)],
        ),
        breach(
            "data after the end",
            on("after_end", "stderr"),
            &[&end(STDERR), &data(STDERR, b"x")],
        ),
        breach(
            "an oversized frame",
            rule("oversized"),
            &[b"\x01", &varint(1 << 30)],
        ),
        breach(
            "data after done",
            rule("after_done"),
            &[DONE, &data(STDOUT, b"x")],
        ),
        breach("done twice", rule("after_done"), &[DONE, DONE]),
        breach(
            "a failure after it was accepted",
            rule("misplaced"),
            &[FAIL],
        ),
        breach("an unknown tag", rule("malformed"), &[&frame(0x30, b"?")]),
        breach(
            "a malformed payload",
            rule("malformed"),
            &[&frame(2, b"\x00\xc0\x01")],
        ),
        breach("garbage", rule("malformed"), &[&[0xa5; 5000]]),
        breach("endless stops", rule("idle"), &[&stop(STDIN).repeat(1000)]),
        fin(breach(
            "an end of the stream before done",
            rule("early_fin"),
            &[&data(STDOUT, b"x")],
        )),
        unaccepted(breach("done before accepted", rule("misplaced"), &[DONE])),
        unaccepted(breach(
            "data before accepted",
            rule("misplaced"),
            &[&data(STDOUT, b"x")],
        )),
        unaccepted(breach(
            "garbage for an answer",
            rule("malformed"),
            &[&[0xa5; 64]],
        )),
        unaccepted(fin(breach("no answer at all", rule("early_fin"), &[]))),
    ]
}

async fn commit_one(breach: Breach) {
    let log = Log::hear();
    let world = World::without_records(21).await;
    let node = Node::join(&world, "mallory").await;
    let agent = Hostile::connect(&world, &node, 1).await;
    let mut neighbours = Vec::new();
    for _ in 0..3 {
        neighbours.push(agent.accept(&world).await);
    }
    let (send, mut reader) = if breach.unaccepted {
        let (asked, send, reader) = agent.asked(&world, &breach.wire, breach.fin).await;
        // It says so, and that nobody knows what has begun.
        assert!(matches!(asked, Err(AskError::Unknown { .. })), "{asked:?}");
        (send, reader)
    } else {
        let (operation, mut send, reader) = agent.accept(&world).await;
        let breaking = commit(&breach.wire, breach.fin, &mut send);
        let ((), ended) = tokio::join!(breaking, operation.ended());
        assert!(matches!(ended, Ended::Violated(_)), "{ended:?}");
        (send, reader)
    };
    assert_eq!(reader.reset_code().await, breach.code);
    let stopped = stop_code(&send).await;
    assert!(stopped == Some(breach.code) || breach.fin, "{stopped:?}");
    for (seed, neighbour) in (1..).zip(neighbours) {
        works(neighbour, seed).await;
    }
    // The session is as good as before.
    works(agent.accept(&world).await, 4).await;
    assert_eq!(world.hub().sessions().violations(), 1);
    let session = world
        .hub()
        .sessions()
        .get(&node.identity.node_id())
        .unwrap();
    assert_eq!(session.violations(), BTreeMap::from([(breach.kind, 1)]));
    let line = Line {
        node: "mallory".into(),
        operation: "exec".into(),
        channel: breach.channel.into(),
        kind: breach.kind.into(),
        total: 1,
    };
    assert_eq!(log.breaches(), [line]);
}

#[test]
fn each_breach_of_an_agent_costs_its_operation_and_nothing_else() {
    for breach in breaches() {
        eprintln!("{}", breach.name);
        run(commit_one(breach));
    }
}

#[test]
fn an_agent_that_keeps_breaking_the_rules_loses_the_session() {
    run(async {
        let log = Log::hear();
        let world = World::without_records(22).await;
        let node = Node::join(&world, "mallory").await;
        let agent = Hostile::connect(&world, &node, 1).await;
        let (neighbour, _send, _reader) = agent.accept(&world).await;
        for _ in 0..MAX_VIOLATIONS {
            assert_eq!(agent.connection.close_reason(), None);
            let (operation, mut send, _reader) = agent.accept(&world).await;
            send.write_all(&data(STDIN, b"x")).await.unwrap();
            assert!(matches!(operation.ended().await, Ended::Violated(_)));
        }
        assert_eq!(close_code(&agent.connection).await, 4);
        assert!(matches!(neighbour.ended().await, Ended::Lost(_)));
        let mut changes = world.hub().sessions().changes();
        while world
            .hub()
            .sessions()
            .get(&node.identity.node_id())
            .is_some()
        {
            changes.changed().await.unwrap();
        }
        // The session is gone; what it did is not forgotten.
        assert_eq!(world.hub().sessions().violations(), MAX_VIOLATIONS);
        assert_eq!(log.breaches().len() as u64, MAX_VIOLATIONS);
        assert_eq!(log.saying("loses the session").len(), 1);
        // It may come back, and starts from nothing.
        let again = Hostile::connect(&world, &node, 1).await;
        works(again.accept(&world).await, 5).await;
    });
}
