//! A hostile hub: it has the certificate that the agent trusts, and then breaks the rules of
//! operations.

use std::net::SocketAddr;
use std::sync::Arc;

use hub_agent::identity::{Identity, IdentityStore, NodeKey};
use hub_ledger::{Serial, Timestamp};
use hub_netsim::{Network, TraceMode};
use hub_protocol::enroll::{Der, Joined};
use hub_protocol::{Deployment, NodeId};
use hub_quic::session::MAX_VIOLATIONS;
use hub_quic::tls::{self, Credentials, HubCertificate, TrustBundle};
use hub_server::ca::{Ca, CaOptions, NODE_VALIDITY};
use hub_server::clock::Clock;
use hub_server::secret::HubSecret;
use hub_server::store::{Execution, Store};
use quinn::{Connection, Endpoint, SendStream, ServerConfig};
use serde_json::Value;

use super::log::{Line, Log};
use super::raw::*;
use crate::commands::pattern;
use crate::world::{SimAgent, SimNetwork, config, parts, run};

const HUB: &str = "203.0.113.1";
const NODE: NodeId = NodeId::from_bytes([0x4e; 16]);
const DEPLOYMENT: Deployment = Deployment::from_bytes([7; 16]);

/// Bytes that each neighbour of a breach carries both ways: more than a window.
const LEN: usize = 200_000;

/// A certificate authority and a machine that trusts it.
pub struct Authority {
    pub net: Network,
    pub clock: Clock,
    pub ca: Ca,
}

impl Authority {
    pub async fn new(seed: u64) -> Self {
        let net = Network::with_trace(seed, TraceMode::Digest);
        let clock = Clock::simulated(Timestamp::from_millis(1_780_000_000_000));
        Self {
            ca: ca(&clock).await,
            net,
            clock,
        }
    }

    /// An agent of a hub that listens where [`listen`](Self::listen) does.
    pub fn agent(&self) -> SimAgent {
        let directory = tempfile::tempdir().unwrap();
        let store = IdentityStore::open(directory.path()).unwrap();
        store.save_identity(&self.identity()).unwrap();
        drop(store);
        let host = self.net.host("node", "198.51.100.1");
        let parts = parts(&self.net, &self.clock, host, "node");
        SimAgent::start(
            host,
            config(SocketAddr::new(HUB.parse().unwrap(), 7443)),
            parts,
            directory,
        )
    }

    fn identity(&self) -> Identity {
        let key = NodeKey::generate().unwrap();
        let request = key.certificate_request().unwrap();
        let serial = Serial::from_random([3; 16]);
        let now = self.clock.now();
        let issued = self
            .ca
            .sign_node(&request, NODE, serial, now, NODE_VALIDITY)
            .unwrap();
        let joined = Joined {
            node_id: NODE,
            name: "victim".parse().unwrap(),
            deployment: DEPLOYMENT,
            chain: vec![Der(issued.der.to_vec())],
            trust: vec![Der(self.ca.certificate_der().to_vec())],
            operational: None,
        };
        Identity::new(key, joined).unwrap()
    }

    /// A hub's credentials, as a hub makes them.
    pub fn hub_credentials(&self) -> Credentials {
        let identity = self.ca.sign_hub(&[HUB.into()], self.clock.now()).unwrap();
        Credentials::new(identity.chain, identity.key).unwrap()
    }

    /// A bare endpoint in the place of a hub.
    pub fn listen(&self, tls: Arc<dyn quinn::crypto::ServerConfig>) -> Endpoint {
        let network = SimNetwork::new(&self.net, self.net.host("hub", HUB));
        let mut server = ServerConfig::with_crypto(tls);
        server.transport_config(Arc::new(transport()));
        hub_quic::endpoint::Network::seed_server(&network, &mut server);
        endpoint(&network, 7443, Some(server))
    }
}

/// A fresh CA, as every hub makes one.
pub async fn ca(clock: &Clock) -> Ca {
    let store = Store::in_memory(Execution::Inline, DEPLOYMENT)
        .await
        .unwrap();
    let secret = HubSecret::from_bytes([9; 32]);
    let options = CaOptions::default();
    Ca::load_or_create(&store, &secret, &options, clock.now())
        .await
        .unwrap()
}

/// A hub that the agent takes for its own.
pub struct HostileHub {
    pub endpoint: Endpoint,
    pub agent: SimAgent,
}

impl HostileHub {
    pub async fn new(seed: u64) -> Self {
        let authority = Authority::new(seed).await;
        let certificate = HubCertificate::new(authority.hub_credentials()).unwrap();
        let trust = TrustBundle::new(vec![authority.ca.certificate_der().clone()]).unwrap();
        let time = Arc::new(authority.clock.clone());
        let tls = tls::operational_server(&certificate, &trust, time).unwrap();
        Self {
            endpoint: authority.listen(tls),
            agent: authority.agent(),
        }
    }

    /// The agent's next connection, with the Hello on it.
    pub async fn greeted(&self) -> Greeted {
        let connection = self.endpoint.accept().await.unwrap().await.unwrap();
        let (control, recv) = connection.accept_bi().await.unwrap();
        let mut reader = Reader::new(recv);
        let (tag, hello) = reader.expect().await;
        assert_eq!(tag, u64::from(HELLO));
        Greeted {
            connection,
            control,
            reader,
            hello: serde_json::from_slice(&hello).unwrap(),
        }
    }

    /// The agent's next session.
    pub async fn session(&self) -> Greeted {
        let mut greeted = self.greeted().await;
        let welcome = frame(WELCOME, welcome().as_bytes());
        greeted.control.write_all(&welcome).await.unwrap();
        greeted
    }
}

pub fn welcome() -> String {
    format!(
        r#"{{"version":1,"node_id":"{NODE}","epoch":1,"generation":0,"clock_ms":1780000000000,
            "heartbeat_ms":10000,"limits":{{"initial_window":65536,"max_window":786432}}}}"#
    )
}

/// A connection of the agent, of which it has said who it is.
pub struct Greeted {
    pub connection: Connection,
    pub control: SendStream,
    pub reader: Reader,
    pub hello: Value,
}

impl Greeted {
    /// Opens a stream with these bytes on it.
    pub async fn open(&self, wire: &[u8]) -> (SendStream, Reader) {
        let (mut send, recv) = self.connection.open_bi().await.unwrap();
        send.write_all(wire).await.unwrap();
        (send, Reader::new(recv))
    }

    /// An operation that the agent has accepted.
    pub async fn accepted(&self, open: &[u8]) -> (SendStream, Reader) {
        let (send, mut reader) = self.open(open).await;
        // Its body names the command.
        assert_eq!(reader.expect().await.0, u64::from(ACCEPTED[0]));
        (send, reader)
    }
}

/// Puts bytes through a `cat` that runs, by hand and within the credit that the agent gives, and
/// checks every one of them.
pub async fn works((mut send, mut reader): (SendStream, Reader), seed: u64) {
    let input = pattern(seed, 0, LEN);
    let (mut rest, mut allowed) = (input.clone(), INITIAL as usize);
    let mut output = Vec::new();
    loop {
        let now = rest.len().min(allowed).min(65_536);
        if now > 0 {
            allowed -= now;
            send.write_all(&data(STDIN, &rest.split_to(now)))
                .await
                .unwrap();
            if rest.is_empty() {
                send.write_all(&end(STDIN)).await.unwrap();
            }
            continue;
        }
        match reader.expect().await {
            (DATA, payload) => {
                assert_eq!(payload[0], STDOUT);
                output.extend_from_slice(&payload[1..]);
                let more = credit(STDOUT, payload.len() as u64 - 1);
                send.write_all(&more).await.unwrap();
            }
            (CREDIT, payload) => match read_credit(&payload) {
                (STDIN, bytes) => allowed += bytes as usize,
                other => panic!("credit {other:?}"),
            },
            (END, _) => {}
            (FINISHED, outcome) => {
                assert_eq!(outcome[..], DONE[2..]);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(output == input, "not what went in");
    assert_eq!(reader.frame().await.unwrap(), None);
    send.finish().unwrap();
}

fn breaches() -> Vec<Breach> {
    let full = data(STDIN, &vec![0; INITIAL as usize]);
    let rule = |kind| (kind, "-", PROTOCOL);
    let on = |kind, channel| (kind, channel, PROTOCOL);
    vec![
        // What the command's pipe takes, and all that the window may have grown to, and more.
        breach(
            "data beyond the credit",
            ("beyond_credit", "stdin", WINDOW),
            &[&full.repeat(16)],
        ),
        breach(
            "credit beyond the limit",
            ("beyond_limit", "stdout", WINDOW),
            &[&credit(STDOUT, MOST)],
        ),
        breach(
            "messages beyond their window",
            ("beyond_credit", "messages", WINDOW),
            &[&message(b"").repeat(2049)],
        ),
        breach(
            "an unknown channel",
            on("unknown_channel", "?"),
            &[&credit(9, 1)],
        ),
        breach(
            "data in the wrong direction",
            on("unknown_channel", "stdout"),
            &[&data(STDOUT, b"x")],
        ),
        breach(
            "a stop in the wrong direction",
            on("unknown_channel", "stdin"),
            &[&stop(STDIN)],
        ),
        breach(
            "data after the end",
            on("after_end", "stdin"),
            &[&end(STDIN), &data(STDIN, b"x")],
        ),
        breach(
            "an oversized frame",
            rule("oversized"),
            &[b"\x05", &varint(1 << 30)],
        ),
        breach("accepted by the hub", rule("misplaced"), &[ACCEPTED]),
        breach("done by the hub", rule("misplaced"), &[DONE]),
        breach("an unknown tag", rule("malformed"), &[&frame(0x30, b"?")]),
        breach(
            "a malformed payload",
            rule("malformed"),
            &[&frame(2, b"\x01\xc0\x01")],
        ),
        breach(
            "data without a channel",
            rule("malformed"),
            &[&frame(1, b"")],
        ),
        breach("garbage", rule("malformed"), &[&[0xa5; 5000]]),
        breach("credit for nothing", rule("idle"), &[&credit(STDOUT, 0)]),
        Breach {
            fin: true,
            ..breach("an end of the stream before done", rule("early_fin"), &[])
        },
    ]
}

async fn commit_one(breach: Breach) {
    let log = Log::hear();
    let hub = HostileHub::new(31).await;
    let commands = hub.agent.commands.clone();
    let session = hub.session().await;
    let mut neighbours = Vec::new();
    for _ in 0..3 {
        neighbours.push(session.accepted(OPEN_CAT).await);
    }
    let (mut send, mut reader) = session.accepted(OPEN_SLEEP).await;
    assert_eq!(commands.alive(), 4);
    commit(&breach.wire, breach.fin, &mut send).await;
    assert_eq!(reader.reset_code().await, breach.code);
    let stopped = stop_code(&send).await;
    assert!(stopped == Some(breach.code) || breach.fin, "{stopped:?}");
    // What it ran is stopped, and nothing else.
    commands.until_alive(3).await;
    for (seed, neighbour) in (1..).zip(neighbours) {
        works(neighbour, seed).await;
    }
    works(session.accepted(OPEN_CAT).await, 4).await;
    commands.until_alive(0).await;
    let line = Line {
        node: "victim".into(),
        operation: "exec".into(),
        channel: breach.channel.into(),
        kind: breach.kind.into(),
        total: 1,
    };
    assert_eq!(log.breaches(), [line]);
}

#[test]
fn each_breach_of_a_hub_costs_its_operation_and_nothing_else() {
    for breach in breaches() {
        eprintln!("{}", breach.name);
        run(commit_one(breach));
    }
}

#[test]
fn a_hub_that_keeps_breaking_the_rules_loses_the_session() {
    run(async {
        let log = Log::hear();
        let hub = HostileHub::new(32).await;
        let session = hub.session().await;
        let commands = &hub.agent.commands;
        let _neighbour = session.accepted(OPEN_SLEEP).await;
        for _ in 0..MAX_VIOLATIONS {
            assert_eq!(session.connection.close_reason(), None);
            let (mut send, mut reader) = session.accepted(OPEN_SLEEP).await;
            send.write_all(&data(STDOUT, b"x")).await.unwrap();
            if session.connection.close_reason().is_none() {
                let _ = reader.recv.read_chunk(1, true).await;
            }
        }
        assert_eq!(close_code(&session.connection).await, 4);
        commands.until_alive(0).await;
        assert_eq!(log.breaches().len() as u64, MAX_VIOLATIONS);
        // The agent dials again: there is only this hub.
        let session = hub.session().await;
        works(session.accepted(OPEN_CAT).await, 5).await;
    });
}

/// What crosses the agent's last frame is no breach.
#[test]
fn a_hub_that_goes_on_after_done_is_not_heard() {
    run(async {
        let log = Log::hear();
        let hub = HostileHub::new(33).await;
        let session = hub.session().await;
        let (mut send, mut reader) = session.accepted(OPEN_CAT).await;
        send.write_all(&end(STDIN)).await.unwrap();
        while reader.frame().await.unwrap().is_some() {}
        for wire in [data(STDIN, b"x"), credit(9, MOST), DONE.to_vec()] {
            send.write_all(&wire).await.unwrap();
        }
        send.finish().unwrap();
        works(session.accepted(OPEN_CAT).await, 6).await;
        assert_eq!(log.breaches(), []);
    });
}
