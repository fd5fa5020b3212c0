//! Random histories of the whole ledger, held against invariants with names.
//!
//! A [`World`] keeps rows in ordered maps and hands them to the rules as a store does. After every
//! command each invariant is asked about the step from the world before to the world after.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hub_ledger::certificate::{self, RecordRows};
use hub_ledger::exposure::{self, CreateRows};
use hub_ledger::node::{self, LocalRows, RegisterRows};
use hub_ledger::token::{self, RedeemRows};
use hub_ledger::{
    Certificate, CreateTokenRefusal, Distrust, Exposure, ExposureId, ExposureTokenHash, Join,
    JoinRefusal, JoinToken, JoinTokenHash, Joined, JoinedHow, LocalRefusal, NewCertificate,
    NewExposure, NewToken, Node, Origin, OutsideRefusal, Presence, Process, RegisterRefusal,
    Registration, Serial, Timestamp,
};
use hub_protocol::{Epoch, Fingerprint, Generation, Incarnation, NodeId, NodeName};
use proptest::prelude::*;

/// The ways of the outside world to the ledger. Small numbers pick names, keys and so on from
/// small sets, so that they meet often.
#[derive(Debug, Clone)]
enum Command {
    Wait {
        seconds: u64,
    },
    CreateToken {
        token: u8,
        uses: u32,
        ttl: u64,
    },
    Join {
        token: u8,
        name: u8,
        key: u8,
    },
    Certify {
        name: u8,
        key: u8,
        lasts: u64,
    },
    Register {
        name: u8,
        key: u8,
        incarnation: u8,
        last_generation: Option<u64>,
    },
    EnsureLocal {
        name: u8,
    },
    RegisterLocal {
        name: u8,
        incarnation: u8,
    },
    Seen {
        name: u8,
        epochs_ago: u64,
    },
    Away {
        name: u8,
        epochs_ago: u64,
    },
    Revoke {
        name: u8,
    },
    Expose {
        name: u8,
        port: u16,
        label: Option<u8>,
    },
    Unexpose {
        id: u64,
    },
}

fn command() -> impl Strategy<Value = Command> {
    use Command::{
        Away, Certify, CreateToken, EnsureLocal, Expose, Join, Register, RegisterLocal, Revoke,
        Seen, Unexpose, Wait,
    };
    let generation = prop_oneof![
        3 => Just(None),
        6 => (0..4_u64).prop_map(Some),
        1 => Just(Some(u64::MAX)),
    ];
    prop_oneof![
        2 => (0..2000_u64).prop_map(|seconds| Wait { seconds }),
        3 => (0..4_u8, 0..4_u32, 0..3000_u64)
            .prop_map(|(token, uses, ttl)| CreateToken { token, uses, ttl }),
        8 => (0..5_u8, 0..4_u8, 0..4_u8).prop_map(|(token, name, key)| Join { token, name, key }),
        6 => (0..4_u8, 0..5_u8, 0..5000_u64)
            .prop_map(|(name, key, lasts)| Certify { name, key, lasts }),
        8 => (0..4_u8, 0..5_u8, 0..4_u8, generation).prop_map(
            |(name, key, incarnation, last_generation)| {
                Register { name, key, incarnation, last_generation }
            }
        ),
        2 => (0..5_u8).prop_map(|name| EnsureLocal { name }),
        3 => (0..5_u8, 0..4_u8)
            .prop_map(|(name, incarnation)| RegisterLocal { name, incarnation }),
        3 => (0..4_u8, 0..3_u64).prop_map(|(name, epochs_ago)| Seen { name, epochs_ago }),
        3 => (0..4_u8, 0..3_u64).prop_map(|(name, epochs_ago)| Away { name, epochs_ago }),
        1 => (0..4_u8).prop_map(|name| Revoke { name }),
        5 => (0..5_u8, 0..4_u16, proptest::option::of(0..3_u8))
            .prop_map(|(name, port, label)| Expose { name, port, label }),
        3 => (0..8_u64).prop_map(|id| Unexpose { id }),
    ]
}

#[derive(Debug, Clone, Default)]
struct World {
    now: u64,
    drawn: u8,
    tokens: BTreeMap<JoinTokenHash, JoinToken>,
    nodes: BTreeMap<NodeId, Node>,
    superseded: BTreeSet<(NodeId, Incarnation)>,
    certificates: BTreeMap<Serial, Certificate>,
    exposures: BTreeMap<ExposureId, Exposure>,
    last_exposure: u64,
}

fn name(name: u8) -> NodeName {
    format!("node-{name}").parse().expect("a node name")
}

fn key(key: u8) -> Fingerprint {
    Fingerprint::from_digest([key; 32])
}

fn token_hash(token: u8) -> JoinTokenHash {
    JoinTokenHash([token; 32])
}

fn process(incarnation: u8, last_generation: Option<u64>) -> Process {
    Process {
        incarnation: Incarnation::from_bytes([incarnation; 16]),
        last_generation: last_generation.map(Generation),
    }
}

impl World {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_700_000_000_000 + 1000 * self.now)
    }

    fn draw(&mut self) -> [u8; 16] {
        self.drawn += 1;
        [self.drawn; 16]
    }

    fn named(&self, called: u8) -> Option<Node> {
        self.nodes
            .values()
            .find(|node| node.name == name(called))
            .cloned()
    }

    /// The node of that name, or one that does not exist.
    fn id(&self, called: u8) -> NodeId {
        self.named(called)
            .map_or(NodeId::from_bytes([0xff; 16]), |node| node.id)
    }

    fn of_key(&self, key: Fingerprint) -> Vec<Certificate> {
        self.certificates
            .values()
            .filter(|held| held.key == key)
            .cloned()
            .collect()
    }

    fn exposures_of(&self, node: NodeId) -> Vec<Exposure> {
        self.exposures
            .values()
            .filter(|held| held.node == node)
            .cloned()
            .collect()
    }

    fn ports(&self, node: NodeId) -> BTreeSet<u16> {
        self.exposures_of(node)
            .iter()
            .map(|exposure| exposure.port)
            .collect()
    }

    fn put(&mut self, node: Node) {
        self.nodes.insert(node.id, node);
    }

    fn join(&mut self, join: &Join) -> Result<Joined, JoinRefusal> {
        let rows = RedeemRows {
            token: self.tokens.get(&join.token).cloned(),
            named: self
                .nodes
                .values()
                .find(|node| node.name == join.name)
                .cloned(),
            keyed: self
                .nodes
                .values()
                .find(|node| node.key() == Some(join.key))
                .cloned(),
        };
        let joined = token::redeem(rows, join, self.now())?;
        if let JoinedHow::Admitted(token) = &joined.how {
            self.tokens.insert(token.hash, token.clone());
            self.put(joined.node.clone());
        }
        Ok(joined)
    }

    fn trusted(&self, id: NodeId, key: Fingerprint) -> Result<(), Distrust> {
        let certificates = self.of_key(key);
        certificate::trusted(self.nodes.get(&id), &certificates, id, key, self.now()).map(|_| ())
    }

    /// Carries a command out and checks what its own answer promises.
    fn apply(&mut self, command: &Command) {
        match *command {
            Command::Wait { seconds } => self.now += seconds,
            Command::CreateToken { token, uses, ttl } => self.create_token(token, uses, ttl),
            Command::Join {
                token,
                name: called,
                key: with,
            } => {
                self.apply_join(token, called, with);
            }
            Command::Certify {
                name,
                key: with,
                lasts,
            } => self.certify(name, with, lasts),
            Command::Register {
                name,
                key: with,
                incarnation,
                last_generation,
            } => {
                let registration = Registration {
                    node: self.id(name),
                    key: key(with),
                    process: process(incarnation, last_generation),
                };
                self.register(&registration);
            }
            Command::EnsureLocal { name: called } => self.ensure_local(called),
            Command::RegisterLocal { name, incarnation } => {
                self.register_local(name, &process(incarnation, None));
            }
            Command::Seen { name, epochs_ago } => {
                let Some(node) = self.named(name) else { return };
                let epoch = Epoch(node.epoch.0.saturating_sub(epochs_ago));
                if let Some(seen) = node::seen(&node, epoch, self.now()) {
                    assert_eq!(epoch, node.epoch, "an old session speaks for nobody");
                    assert_eq!(
                        seen,
                        Node {
                            last_seen: Some(self.now()),
                            ..node
                        }
                    );
                    self.put(seen);
                }
            }
            Command::Away { name, epochs_ago } => {
                let Some(node) = self.named(name) else { return };
                let epoch = Epoch(node.epoch.0.saturating_sub(epochs_ago));
                let away = node::away(&node, epoch, self.now(), self.now());
                let current = epoch == node.epoch && node.presence == Presence::Connected;
                assert_eq!(
                    away.is_some(),
                    current,
                    "only the current session's end counts"
                );
                if let Some(away) = away {
                    assert_eq!(away.presence, Presence::Away);
                    self.put(away);
                }
            }
            Command::Revoke { name } => {
                let id = self.id(name);
                let known = self.nodes.get(&id).cloned();
                match node::revoke(known.clone(), id, self.now()) {
                    Ok(node) => {
                        let again = node::revoke(Some(node.clone()), id, self.now());
                        assert_eq!(again.as_ref(), Ok(&node), "again changes nothing");
                        self.put(node);
                    }
                    Err(_) => assert_eq!(known, None),
                }
            }
            Command::Expose { name, port, label } => self.expose(name, port, label),
            Command::Unexpose { id } => {
                let id = ExposureId(id);
                let held = self.exposures.get(&id).cloned();
                let node = held
                    .as_ref()
                    .and_then(|held| self.nodes.get(&held.node))
                    .cloned();
                let of_node = held.as_ref().map(|held| self.exposures_of(held.node));
                match exposure::remove(node, of_node.unwrap_or_default(), id) {
                    Ok(change) => {
                        assert_eq!(Some(change.exposure), held);
                        self.exposures.remove(&id);
                        self.put(change.node.clone());
                        self.targets_are(&change.node, &change.targets);
                    }
                    Err(_) => assert_eq!(held, None),
                }
            }
        }
    }

    fn create_token(&mut self, token: u8, uses: u32, ttl: u64) {
        let new = NewToken {
            uses,
            ttl: Duration::from_secs(ttl),
        };
        let hash = token_hash(token);
        if self.tokens.contains_key(&hash) {
            // A caller draws tokens at random; the same one never comes twice.
            return;
        }
        match token::create(hash, new, self.now()) {
            Ok(token) => {
                assert!(token.uses_left == uses && uses > 0);
                assert!(token.expires > self.now());
                self.tokens.insert(hash, token);
            }
            Err(CreateTokenRefusal::NoUses) => assert_eq!(uses, 0),
            Err(CreateTokenRefusal::TtlTooShort) => assert_eq!(ttl, 0),
            Err(CreateTokenRefusal::TtlTooLong) => unreachable!("ttl {ttl} is below 30 days"),
        }
    }

    fn apply_join(&mut self, token: u8, called: u8, with: u8) {
        let new_id = NodeId::from_bytes(self.draw());
        let join = Join {
            token: token_hash(token),
            name: name(called),
            key: key(with),
            new_id,
        };
        let before = self.clone();
        let expired = before
            .tokens
            .get(&join.token)
            .is_some_and(|token| self.now() >= token.expires);
        match self.join(&join) {
            Ok(joined) => {
                assert!(!expired, "an expired token never admits");
                let node = &joined.node;
                assert_eq!((&node.name, node.key()), (&join.name, Some(join.key)));
                assert_eq!(
                    joined.node.revoked, None,
                    "a revoked node never joins again"
                );
                // The answer was lost on the way: the agent asks again, with a new id drawn.
                let after = self.clone();
                let again = Join {
                    new_id: NodeId::from_bytes(self.draw()),
                    ..join
                };
                let repeated = self
                    .join(&again)
                    .expect("what was granted is granted again");
                assert_eq!(
                    repeated.node.id, joined.node.id,
                    "the same key and name, one node"
                );
                assert_eq!(repeated.how, JoinedHow::Repeated);
                assert_eq!(self.tokens, after.tokens, "a repeat never spends");
                assert_eq!(self.nodes, after.nodes);
            }
            Err(refusal) => {
                assert_eq!(self.tokens, before.tokens, "a refusal never spends");
                assert_eq!(self.nodes, before.nodes);
                let invalid = refusal.outside() == OutsideRefusal::InvalidToken;
                let token = before.tokens.get(&join.token);
                let valid = token.is_some_and(|token| token.uses_left > 0) && !expired;
                assert!(!(invalid && valid), "a valid token is not called invalid");
                if token.is_none() || expired {
                    assert!(
                        invalid,
                        "names and keys show to nobody without a valid token"
                    );
                }
            }
        }
    }

    fn certify(&mut self, called: u8, with: u8, lasts: u64) {
        let new = NewCertificate {
            serial: Serial::from_random(self.draw()),
            node: self.id(called),
            key: key(with),
            not_before: self.now().saturating_sub(Duration::from_secs(100)),
            not_after: self.now().saturating_add(Duration::from_secs(lasts)),
        };
        let rows = RecordRows {
            node: self.nodes.get(&new.node).cloned(),
            same_serial: self.certificates.get(&new.serial).cloned(),
            same_key: self.of_key(new.key),
        };
        if let Ok(certificate) = certificate::record(&rows, &new, self.now()) {
            self.certificates.insert(certificate.serial, certificate);
            assert_eq!(
                self.trusted(new.node, new.key),
                Ok(()),
                "what is recorded is trusted"
            );
        }
    }

    fn register(&mut self, registration: &Registration) {
        let &Registration {
            node: id,
            key,
            process:
                Process {
                    incarnation,
                    last_generation,
                },
        } = registration;
        let superseded = self.superseded.contains(&(id, incarnation));
        let rows = RegisterRows {
            node: self.nodes.get(&id).cloned(),
            certificates: self.of_key(key),
            superseded,
        };
        match node::register(rows, registration, self.now()) {
            Ok(registered) => {
                assert_eq!(self.trusted(id, key), Ok(()), "only the trusted register");
                assert!(
                    !superseded,
                    "a superseded process never becomes current again"
                );
                let before = &self.nodes[&id];
                assert_eq!(registered.node.epoch.0, before.epoch.0 + 1);
                assert_eq!(registered.node.incarnation, Some(incarnation));
                assert_eq!(registered.node.presence, Presence::Connected);
                let known = last_generation.unwrap_or_default();
                assert_eq!(registered.fenced, known != registered.node.generation);
                assert!(
                    registered.fenced || known <= before.generation,
                    "an agent ahead of the ledger is fenced"
                );
                if let Some(old) = registered.superseded {
                    assert_ne!(old, incarnation);
                    self.superseded.insert((id, old));
                }
                self.put(registered.node);
            }
            Err(RegisterRefusal::Superseded { .. }) => assert!(superseded),
            Err(RegisterRefusal::Distrusted(distrust)) => {
                assert_eq!(self.trusted(id, key), Err(distrust));
            }
        }
    }

    fn ensure_local(&mut self, called: u8) {
        let new_id = NodeId::from_bytes(self.draw());
        let locals = || self.nodes.values().filter(|node| node.is_local());
        let rows = LocalRows {
            named: self.named(called),
            local: locals().find(|node| node.revoked.is_none()).cloned(),
        };
        let (named, local) = (rows.named.clone(), rows.local.clone());
        match node::ensure_local(rows, name(called), new_id, self.now()) {
            Ok(node) => {
                assert!(node.is_local() && node.revoked.is_none());
                assert_eq!(node.name, name(called));
                if let Some(local) = local {
                    assert_eq!(node.id, local.id, "the machine stays the node that it was");
                }
                self.put(node);
            }
            Err(LocalRefusal::NameTaken { .. }) => {
                assert!(named.is_some_and(|node| !node.is_local()));
            }
            Err(LocalRefusal::Revoked { revoked, .. }) => {
                assert_eq!(named.and_then(|node| node.revoked), Some(revoked));
            }
        }
    }

    fn register_local(&mut self, called: u8, process: &Process) {
        let id = self.id(called);
        let superseded = self.superseded.contains(&(id, process.incarnation));
        let node = self.nodes.get(&id).cloned();
        let registered = node::register_local(node.clone(), superseded, id, process, self.now());
        match registered {
            Ok(registered) => {
                let before = node.expect("only a node registers");
                assert!(before.is_local() && before.revoked.is_none() && !superseded);
                assert_eq!(registered.node.epoch.0, before.epoch.0 + 1);
                if let Some(old) = registered.superseded {
                    self.superseded.insert((id, old));
                }
                self.put(registered.node);
            }
            Err(RegisterRefusal::Superseded { .. }) => assert!(superseded),
            Err(RegisterRefusal::Distrusted(Distrust::Revoked { .. })) => {
                assert!(node.is_some_and(|node| node.is_local() && node.revoked.is_some()));
            }
            Err(RegisterRefusal::Distrusted(distrust)) => {
                assert_eq!(distrust, Distrust::UnknownNode { node: id });
                assert!(!node.is_some_and(|node| node.is_local()));
            }
        }
    }

    fn expose(&mut self, called: u8, port: u16, label: Option<u8>) {
        let node = self.id(called);
        let label = label.map(|label| format!("app-{label}").parse().expect("a DNS label"));
        let token = ExposureTokenHash([self.draw()[0]; 32]);
        let new = NewExposure {
            node,
            port,
            name: label.clone(),
            token,
        };
        let rows = CreateRows {
            node: self.nodes.get(&node).cloned(),
            of_node: self.exposures_of(node),
            same_name: label
                .and_then(|label| {
                    self.exposures
                        .values()
                        .find(|held| held.name.as_ref() == Some(&label))
                })
                .cloned(),
        };
        let id = ExposureId(self.last_exposure + 1);
        if let Ok(change) = exposure::create(rows, id, new, self.now()) {
            self.last_exposure += 1;
            assert_ne!(port, 0, "port 0 is never exposed");
            assert_eq!(
                change.node.revoked, None,
                "nothing is exposed on a revoked node"
            );
            self.exposures.insert(id, change.exposure);
            self.put(change.node.clone());
            self.targets_are(&change.node, &change.targets);
        }
    }

    fn targets_are(&self, node: &Node, targets: &hub_ledger::Targets) {
        assert_eq!(targets.revision, node.targets_revision);
        assert!(
            targets.ports.iter().copied().eq(self.ports(node.id)),
            "ascending, each once"
        );
    }
}

/// What holds in every world.
fn check_state(world: &World) {
    for token in world.tokens.values() {
        let admitted = world
            .nodes
            .values()
            .filter(|node| matches!(node.origin, Origin::Joined { by, .. } if by == token.hash))
            .count() as u32;
        assert!(token.uses_left <= token.uses, "uses never below zero");
        assert_eq!(
            token.uses - token.uses_left,
            admitted,
            "never spent without a node"
        );
    }
    let names: BTreeSet<_> = world.nodes.values().map(|node| &node.name).collect();
    let keys: BTreeSet<_> = world.nodes.values().filter_map(Node::key).collect();
    let locals = || world.nodes.values().filter(|node| node.is_local());
    assert_eq!(names.len(), world.nodes.len(), "a name never has two nodes");
    assert_eq!(
        keys.len() + locals().count(),
        world.nodes.len(),
        "a key never has two nodes"
    );
    let standing = locals().filter(|node| node.revoked.is_none());
    assert!(standing.count() <= 1, "the hub has one machine");
    for local in locals() {
        let certified = world
            .certificates
            .values()
            .any(|held| held.node == local.id);
        assert!(
            !certified,
            "nobody holds a certificate of the hub's machine"
        );
    }
    let labels: Vec<_> = world
        .exposures
        .values()
        .filter_map(|held| held.name.as_ref())
        .collect();
    assert_eq!(
        labels.iter().collect::<BTreeSet<_>>().len(),
        labels.len(),
        "names are unique"
    );
    for node in world.nodes.values() {
        for key in (0..5).map(key) {
            let trusted = world.trusted(node.id, key).is_ok();
            let reasons = node.revoked.is_none()
                && world.of_key(key).iter().any(|held| {
                    held.node == node.id
                        && world.now() <= held.not_after
                        && world.now() >= held.not_before
                });
            assert!(
                !trusted || reasons,
                "trusted: recorded, of this node, valid, not revoked"
            );
        }
    }
}

/// What holds between a world and the next.
fn check_step(before: &World, after: &World) {
    for (id, old) in &before.nodes {
        let new = &after.nodes[id];
        assert_eq!(new.origin, old.origin, "a name never has two keys");
        assert!(
            new.name == old.name || old.is_local(),
            "only the hub's machine is renamed"
        );
        assert!(new.epoch >= old.epoch, "epochs never go back");
        if new.incarnation != old.incarnation {
            assert!(new.epoch > old.epoch, "another process has another epoch");
        }
        assert!(
            new.generation >= old.generation,
            "generations never go back"
        );
        assert!(new.last_seen >= old.last_seen, "last seen never goes back");
        if old.revoked.is_some() {
            assert_eq!(new.revoked, old.revoked, "revoked for good");
            assert_eq!(new.epoch, old.epoch, "a revoked node never registers");
        } else if new.revoked.is_some() {
            assert!(
                new.generation > old.generation,
                "revocation moves the fence"
            );
        }
        let (was, is) = (before.exposures_of(*id), after.exposures_of(*id));
        let moved = new.targets_revision - old.targets_revision;
        assert_eq!(
            moved,
            u64::from(was != is),
            "the revision moves by one with each change"
        );
        if before.ports(*id) != after.ports(*id) {
            assert!(moved > 0, "other ports, higher revision");
        }
    }
    assert!(
        after.last_exposure >= before.last_exposure,
        "numbers are never used again"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_history_keeps_the_invariants(commands in proptest::collection::vec(command(), 1..80)) {
        let mut world = World::default();
        for command in &commands {
            let before = world.clone();
            world.apply(command);
            check_step(&before, &world);
            check_state(&world);
        }
    }
}

/// A history that reaches every ending at least once, so that the invariants above are not kept
/// by never getting anywhere.
#[test]
fn the_plain_history_goes_through() {
    let mut world = World::default();
    world.apply(&Command::CreateToken {
        token: 0,
        uses: 1,
        ttl: 900,
    });
    world.apply(&Command::Join {
        token: 0,
        name: 0,
        key: 0,
    });
    world.apply(&Command::Certify {
        name: 0,
        key: 0,
        lasts: 1000,
    });
    world.apply(&Command::Register {
        name: 0,
        key: 0,
        incarnation: 1,
        last_generation: None,
    });
    world.apply(&Command::Register {
        name: 0,
        key: 0,
        incarnation: 2,
        last_generation: Some(0),
    });
    world.apply(&Command::Expose {
        name: 0,
        port: 80,
        label: Some(1),
    });
    let node = world.named(0).expect("it joined");
    assert_eq!((node.epoch, node.targets_revision), (Epoch(2), 1));
    assert_eq!(world.superseded.len(), 1);

    world.apply(&Command::Register {
        name: 0,
        key: 0,
        incarnation: 1,
        last_generation: None,
    });
    assert_eq!(
        world.named(0).expect("it is there").epoch,
        Epoch(2),
        "the old process is refused"
    );
    world.apply(&Command::Away {
        name: 0,
        epochs_ago: 1,
    });
    assert_eq!(
        world.named(0).expect("it is there").presence,
        Presence::Connected
    );
    world.apply(&Command::Away {
        name: 0,
        epochs_ago: 0,
    });
    assert_eq!(
        world.named(0).expect("it is there").presence,
        Presence::Away
    );

    let join = |token, called, with, id| Join {
        token: token_hash(token),
        name: name(called),
        key: key(with),
        new_id: NodeId::from_bytes([id; 16]),
    };
    assert_eq!(
        world.join(&join(0, 1, 1, 0xa0)),
        Err(JoinRefusal::SpentToken { uses: 1 })
    );
    assert_eq!(
        world.join(&join(3, 1, 1, 0xa1)),
        Err(JoinRefusal::UnknownToken)
    );
    world.apply(&Command::CreateToken {
        token: 1,
        uses: 2,
        ttl: 100,
    });
    assert_eq!(
        world.join(&join(1, 0, 1, 0xa2)),
        Err(JoinRefusal::NameTaken { name: name(0) })
    );
    assert_eq!(
        world.join(&join(1, 1, 0, 0xa3)),
        Err(JoinRefusal::KeyTaken { name: name(0) })
    );
    world.apply(&Command::Wait { seconds: 100 });
    let expired = world.now();
    assert_eq!(
        world.join(&join(1, 1, 1, 0xa4)),
        Err(JoinRefusal::ExpiredToken { expired })
    );

    world.apply(&Command::Revoke { name: 0 });
    assert!(matches!(
        world.trusted(node.id, key(0)),
        Err(Distrust::Revoked { .. })
    ));
    let revoked = world.named(0).expect("it is there");
    assert_eq!(revoked.generation, Generation(1));
    let refusal = world
        .join(&join(0, 0, 0, 0xa5))
        .expect_err("its key is burnt");
    assert_eq!(refusal.outside(), OutsideRefusal::Revoked);
}

/// A ledger restored from an older copy counts past what an agent was told before.
#[test]
fn an_agent_ahead_of_the_ledger_moves_its_generation() {
    let mut world = World::default();
    world.apply(&Command::CreateToken {
        token: 0,
        uses: 1,
        ttl: 900,
    });
    world.apply(&Command::Join {
        token: 0,
        name: 0,
        key: 0,
    });
    world.apply(&Command::Certify {
        name: 0,
        key: 0,
        lasts: 1000,
    });
    world.apply(&Command::Register {
        name: 0,
        key: 0,
        incarnation: 1,
        last_generation: Some(3),
    });
    assert_eq!(world.named(0).expect("it joined").generation, Generation(4));
    let max = Some(u64::MAX);
    world.apply(&Command::Register {
        name: 0,
        key: 0,
        incarnation: 1,
        last_generation: max,
    });
    let claimed = world.named(0).expect("it joined").generation;
    assert_eq!(claimed, Generation(node::MAX_CLAIM.0 + 1));
    world.apply(&Command::Revoke { name: 0 });
    let fenced = world.named(0).expect("it joined").generation;
    assert!(fenced > claimed, "there is room for a fence");
}
