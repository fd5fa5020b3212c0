//! Random histories of the whole ledger, held against invariants with names.
//!
//! A [`World`] keeps rows in ordered maps and hands them to the rules as a store does. After every
//! command each invariant is asked about the step from the world before to the world after.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hub_ledger::certificate::{self, RecordRows};
use hub_ledger::exposure::{
    self, CreateRows, Edit, ExposureEdit, Lifetime, NewExposureToken, OnNode, Rotation,
    SettingsEdit, Told, UpdateRows, overlap,
};
use hub_ledger::node::{self, LocalRows, RegisterRows};
use hub_ledger::token::{self, RedeemRows};
use hub_ledger::{
    Access, Certificate, CreateTokenRefusal, Distrust, Exposure, ExposureId, ExposureRefusal,
    ExposureTokenHash, Join, JoinRefusal, JoinToken, JoinTokenHash, Joined, JoinedHow,
    LocalRefusal, NewCertificate, NewExposure, NewToken, Node, Origin, OutsideRefusal, Presence,
    Process, Protocol, RegisterRefusal, Registration, Replica, Serial, Timestamp,
};
use hub_protocol::target::{Target, Transport};
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
        on: Vec<(u8, u16)>,
        label: Option<u8>,
        ttl: Option<u64>,
        access: Access,
    },
    /// TCP or UDP.
    Listen {
        on: Vec<(u8, u16)>,
        protocol: Protocol,
        address: u8,
    },
    Change {
        id: u64,
        on: Option<Vec<(u8, u16)>>,
        label: Edit<Option<u8>>,
        address: Option<u8>,
        rate: Edit<Option<u32>>,
    },
    Rotate {
        id: u64,
        ttl: Option<u64>,
        grace: u64,
    },
    RevokeToken {
        id: u64,
    },
    Unexpose {
        id: u64,
    },
}

/// Places of replicas: a node and a port each.
fn places() -> impl Strategy<Value = Vec<(u8, u16)>> {
    proptest::collection::vec((0..5_u8, 0..4_u16), 0..4)
}

/// A change of what may be missing.
fn edit<T: std::fmt::Debug + Clone>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Edit<Option<T>>> {
    use proptest::option::of;
    of(of(value)).prop_map(Edit::from)
}

fn command() -> impl Strategy<Value = Command> {
    use Command::{
        Away, Certify, Change, CreateToken, EnsureLocal, Expose, Join, Listen, Register,
        RegisterLocal, Revoke, RevokeToken, Rotate, Seen, Unexpose, Wait,
    };
    use proptest::option::of;
    let access = prop_oneof![
        Just(Access::Public),
        Just(Access::Token),
        Just(Access::Login)
    ];
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
        5 => (places(), of(0..3_u8), of(0..2000_u64), access)
            .prop_map(|(on, label, ttl, access)| Expose { on, label, ttl, access }),
        2 => (places(), prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)], 0..4_u8)
            .prop_map(|(on, protocol, address)| Listen { on, protocol, address }),
        4 => (0..8_u64, of(places()), edit(0..3_u8), of(0..4_u8), edit(0..3_u32)).prop_map(
            |(id, on, label, address, rate)| Change { id, on, label, address, rate }
        ),
        3 => (0..8_u64, of(0..2000_u64), 0..2000_u64)
            .prop_map(|(id, ttl, grace)| Rotate { id, ttl, grace }),
        1 => (0..8_u64).prop_map(|id| RevokeToken { id }),
        3 => (0..8_u64).prop_map(|id| Unexpose { id }),
    ]
}

#[derive(Debug, Clone, Default)]
struct World {
    now: u64,
    drawn: u8,
    /// Tokens of exposures that were ever drawn.
    shown: Vec<ExposureTokenHash>,
    drawn_tokens: u64,
    /// Tokens that were revoked, went with their exposure, or were replaced without a grace.
    burnt: BTreeSet<ExposureTokenHash>,
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
        let on = |held: &&Exposure| held.replicas.iter().any(|replica| replica.node == node);
        self.exposures.values().filter(on).cloned().collect()
    }

    /// What each exposure has on a node.
    fn placed(&self, node: NodeId) -> BTreeMap<ExposureId, BTreeSet<Target>> {
        let targets = |held: &Exposure| {
            let replicas = held.replicas.iter();
            let on = replicas.filter(|replica| replica.node == node);
            on.map(|replica| replica.target.clone()).collect()
        };
        let exposures = self.exposures_of(node);
        exposures
            .iter()
            .map(|held| (held.id, targets(held)))
            .collect()
    }

    fn targets(&self, node: NodeId) -> BTreeSet<Target> {
        self.placed(node).into_values().flatten().collect()
    }

    /// The nodes of these replicas, with what is exposed on them.
    fn on_nodes(&self, replicas: &[Replica]) -> BTreeMap<NodeId, OnNode> {
        let nodes = replicas.iter().filter_map(|replica| {
            let node = self.nodes.get(&replica.node)?.clone();
            let exposures = self.exposures_of(node.id);
            Some((node.id, OnNode { node, exposures }))
        });
        nodes.collect()
    }

    fn replicas(&self, on: &[(u8, u16)], transport: Transport) -> Vec<Replica> {
        let replicas = on.iter().map(|(name, port)| Replica {
            node: self.id(*name),
            target: Target {
                transport,
                ..Target::tcp(*port)
            },
        });
        replicas.collect()
    }

    /// What stands beside an exposure of these replicas, this name and this protocol.
    fn beside(
        &self,
        replicas: &[Replica],
        label: Option<&hub_ledger::ExposureName>,
        protocol: Protocol,
    ) -> CreateRows {
        let named = |held: &&Exposure| label.is_some() && held.name.as_ref() == label;
        let listening = self.exposures.values().filter_map(|held| {
            let same = !protocol.is_http() && held.protocol == protocol;
            held.listen.filter(|_| same).map(|at| (held.id, at))
        });
        CreateRows {
            nodes: self.on_nodes(replicas),
            same_name: self.exposures.values().find(named).map(|held| held.id),
            listeners: listening.collect(),
        }
    }

    fn new_token(&mut self) -> ExposureTokenHash {
        self.drawn_tokens += 1;
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&self.drawn_tokens.to_be_bytes());
        self.shown.push(ExposureTokenHash(hash));
        ExposureTokenHash(hash)
    }

    /// The exposures that a token opens.
    fn opened(&self, token: ExposureTokenHash, now: Timestamp) -> Vec<ExposureId> {
        let opens = |held: &&Exposure| held.token.is_some_and(|held| held.admits(token, now));
        let exposures = self.exposures.values().filter(opens);
        exposures.map(|held| held.id).collect()
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
            Command::Expose {
                ref on,
                label,
                ttl,
                access,
            } => {
                let token = NewExposureToken {
                    hash: self.new_token(),
                    ttl: ttl.map(Duration::from_secs),
                };
                self.expose(NewExposure {
                    name: label.map(app),
                    token: Some(token),
                    access,
                    replicas: self.replicas(on, Transport::Tcp),
                    ..NewExposure::default()
                });
            }
            Command::Listen {
                ref on,
                protocol,
                address,
            } => self.expose(NewExposure {
                protocol,
                replicas: self.replicas(on, protocol.transport()),
                listen: Some(listener(address)),
                ..NewExposure::default()
            }),
            Command::Change {
                id,
                ref on,
                label,
                address,
                rate,
            } => self.change(ExposureId(id), on.as_deref(), label, address, rate),
            Command::Rotate { id, ttl, grace } => self.rotate(ExposureId(id), ttl, grace),
            Command::RevokeToken { id } => {
                let id = ExposureId(id);
                let held = self.exposures.get(&id).cloned();
                match exposure::revoke_token(held.clone(), id) {
                    Ok(revoked) => {
                        self.burn(held.as_ref());
                        self.exposures.insert(id, revoked);
                    }
                    Err(_) => assert_eq!(held, None, "a token can always be revoked"),
                }
            }
            Command::Unexpose { id } => {
                let id = ExposureId(id);
                let held = self.exposures.get(&id).cloned();
                let nodes = held.as_ref().map(|held| self.on_nodes(&held.replicas));
                match exposure::remove(held.clone(), nodes.unwrap_or_default(), id) {
                    Ok(change) => {
                        assert_eq!(Some(change.exposure), held);
                        self.burn(held.as_ref());
                        self.exposures.remove(&id);
                        self.tell(change.told);
                    }
                    Err(_) => assert_eq!(held, None),
                }
            }
        }
    }

    fn burn(&mut self, held: Option<&Exposure>) {
        let token = held.and_then(|held| held.token);
        let previous = token.and_then(|token| token.previous);
        self.burnt.extend(token.map(|token| token.hash));
        self.burnt.extend(previous.map(|previous| previous.hash));
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

    fn expose(&mut self, new: NewExposure) {
        let rows = self.beside(&new.replicas, new.name.as_ref(), new.protocol);
        let id = ExposureId(self.last_exposure + 1);
        if let Ok(change) = exposure::create(rows, id, new, self.now()) {
            self.last_exposure += 1;
            for told in &change.told {
                assert_eq!(
                    told.node.revoked, None,
                    "nothing is exposed on a revoked node"
                );
            }
            self.exposures.insert(id, change.exposure);
            self.tell(change.told);
        }
    }

    fn change(
        &mut self,
        id: ExposureId,
        on: Option<&[(u8, u16)]>,
        label: Edit<Option<u8>>,
        address: Option<u8>,
        rate: Edit<Option<u32>>,
    ) {
        let held = self.exposures.get(&id).cloned();
        let protocol = held
            .as_ref()
            .map_or_else(Protocol::default, |held| held.protocol);
        let replicas = on.map(|on| self.replicas(on, protocol.transport()));
        let edit = ExposureEdit {
            name: label.map(|label| label.map(app)),
            listen: address.map(|address| Some(listener(address))).into(),
            replicas: replicas.clone().into(),
            settings: SettingsEdit {
                rate,
                ..SettingsEdit::default()
            },
            ..ExposureEdit::default()
        };
        let mut concerned = held
            .as_ref()
            .map(|held| held.replicas.clone())
            .unwrap_or_default();
        concerned.extend(replicas.into_iter().flatten());
        let name = match &edit.name {
            Edit::Set(name) => name.clone(),
            Edit::Keep => held.as_ref().and_then(|held| held.name.clone()),
        };
        let rows = UpdateRows {
            exposure: held.clone(),
            others: self.beside(&concerned, name.as_ref(), protocol),
        };
        match exposure::update(rows, id, edit) {
            Ok(change) => {
                let before = held.expect("only what is there changes");
                assert_eq!(
                    change.exposure.token, before.token,
                    "a change leaves the token"
                );
                let gains = |told: &Told| {
                    let had = self.placed(told.node.id).remove(&id).unwrap_or_default();
                    let has = change.exposure.replicas.iter();
                    has.filter(|replica| replica.node == told.node.id)
                        .any(|replica| !had.contains(&replica.target))
                };
                for told in change.told.iter().filter(|told| gains(told)) {
                    assert_eq!(told.node.revoked, None, "nor moved to a revoked one");
                }
                self.exposures.insert(id, change.exposure);
                self.tell(change.told);
            }
            Err(ExposureRefusal::Unknown { .. }) => assert_eq!(held, None),
            Err(_) => {}
        }
    }

    fn rotate(&mut self, id: ExposureId, ttl: Option<u64>, grace: u64) {
        let held = self.exposures.get(&id).cloned();
        let rotation = Rotation {
            hash: self.new_token(),
            lifetime: ttl.map_or(Lifetime::AsBefore, |ttl| {
                Lifetime::For(Duration::from_secs(ttl))
            }),
            grace: Duration::from_secs(grace),
        };
        let now = self.now();
        let Ok(rotated) = exposure::rotate_token(held.clone(), id, rotation, now) else {
            return;
        };
        let before = held.and_then(|held| held.token);
        self.exposures.insert(id, rotated);
        assert_eq!(
            self.opened(rotation.hash, now),
            [id],
            "a new token opens at once"
        );
        if let Some(before) = before {
            let good = before.admits(before.hash, now) && grace > 0;
            assert_eq!(
                !self.opened(before.hash, now).is_empty(),
                good,
                "the old one goes on for its grace if it was good"
            );
            let until = now.saturating_add(rotation.grace);
            assert_eq!(self.opened(before.hash, until), [], "and no longer");
            if !good {
                self.burnt.insert(before.hash);
            }
            self.burnt
                .extend(before.previous.map(|previous| previous.hash));
        }
    }

    fn tell(&mut self, told: Vec<Told>) {
        for Told { node, targets } in told {
            assert_eq!(targets.revision, node.targets_revision);
            let expected = self.targets(node.id);
            assert!(
                targets.targets.iter().eq(&expected),
                "ascending, each once, and on the list iff some exposure has it"
            );
            self.put(node);
        }
    }
}

fn app(label: u8) -> hub_ledger::ExposureName {
    format!("app-{label}").parse().expect("a DNS label")
}

/// One of a few addresses that are in each other's way, or not.
fn listener(address: u8) -> std::net::SocketAddr {
    let text = ["0.0.0.0:80", "127.0.0.1:80", "[::1]:80", "127.0.0.1:0"];
    text[usize::from(address)].parse().expect("an address")
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
    check_exposures(world);
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

/// What holds of exposures in every world.
fn check_exposures(world: &World) {
    let now = world.now();
    for held in world.exposures.values() {
        let places: BTreeSet<_> = held.replicas.iter().collect();
        assert!((1..=16).contains(&places.len()), "there is somewhere to go");
        assert_eq!(places.len(), held.replicas.len(), "each replica is another");
        for replica in places {
            assert!(world.nodes.contains_key(&replica.node), "on a node");
            assert_ne!(replica.target.port, 0, "port 0 is never exposed");
            let transport = replica.target.transport;
            assert_eq!(transport, held.protocol.transport(), "in its own way");
        }
        assert_ne!(held.protocol.is_http(), held.listen.is_some(), "one way in");
        assert!(
            held.protocol.is_http() || (held.name.is_none() && held.token.is_none()),
            "bytes have neither name nor token"
        );
        assert_eq!(held.settings.check(), Ok(()), "settings are within bounds");
        for other in world.exposures.values().filter(|other| other.id != held.id) {
            if let (Some(one), Some(two)) = (held.listen, other.listen)
                && held.protocol == other.protocol
            {
                assert!(!overlap(one, two), "listeners are not in each other's way");
            }
        }
        if let Some(token) = held.token {
            if token.expires.is_some_and(|expires| expires <= now) {
                assert_eq!(
                    world.opened(token.hash, now),
                    [],
                    "expired tokens open nothing"
                );
            }
            if let Some(previous) = token.previous.filter(|previous| previous.until <= now) {
                let opened = world.opened(previous.hash, now);
                assert_eq!(opened, [], "nor do old ones after their grace");
            }
        }
    }
    for token in &world.shown {
        let opened = world.opened(*token, now);
        assert!(opened.len() <= 1, "a token opens one exposure");
        assert!(
            opened.is_empty() || !world.burnt.contains(token),
            "a token that was revoked never opens again"
        );
    }
    for node in world.nodes.values() {
        let listed = exposure::targets(node, &world.exposures_of(node.id));
        for target in &listed.targets {
            let has = |held: &Exposure| {
                let mut replicas = held.replicas.iter();
                replicas.any(|replica| replica.node == node.id && replica.target == *target)
            };
            assert!(
                world.exposures.values().any(has),
                "listed is what is exposed"
            );
        }
        let all = world.targets(node.id);
        assert_eq!(listed.targets.len(), all.len(), "exposed is what is listed");
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
        let (was, is) = (before.placed(*id), after.placed(*id));
        let moved = new.targets_revision - old.targets_revision;
        assert_eq!(
            moved,
            u64::from(was != is),
            "the revision moves by one with each change"
        );
        if before.targets(*id) != after.targets(*id) {
            assert!(moved > 0, "other targets, higher revision");
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
        on: vec![(0, 80)],
        label: Some(1),
        ttl: None,
        access: Access::Public,
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

/// The same of exposures.
#[test]
fn the_plain_history_of_exposures_goes_through() {
    let mut world = World::default();
    world.apply(&Command::CreateToken {
        token: 0,
        uses: 2,
        ttl: 900,
    });
    for name in 0..2 {
        world.apply(&Command::Join {
            token: 0,
            name,
            key: name,
        });
    }
    let revisions =
        |world: &World| [0, 1].map(|name| world.named(name).expect("it joined").targets_revision);
    world.apply(&Command::Expose {
        on: vec![(0, 1), (1, 1)],
        label: Some(0),
        ttl: Some(100),
        access: Access::Token,
    });
    let first = world.shown[0];
    assert_eq!(world.opened(first, world.now()), [ExposureId(1)]);
    assert_eq!(revisions(&world), [1, 1]);
    world.apply(&Command::Rotate {
        id: 1,
        ttl: Some(1000),
        grace: 50,
    });
    let second = *world.shown.last().expect("it was drawn");
    world.apply(&Command::Wait { seconds: 49 });
    for token in [first, second] {
        assert_eq!(world.opened(token, world.now()), [ExposureId(1)]);
    }
    world.apply(&Command::Wait { seconds: 1 });
    assert_eq!(world.opened(first, world.now()), []);
    world.apply(&Command::Change {
        id: 1,
        on: Some(vec![(1, 2), (1, 1)]),
        label: Edit::Set(Some(1)),
        address: None,
        rate: Edit::Set(Some(2)),
    });
    let held = &world.exposures[&ExposureId(1)];
    assert_eq!(held.name, Some(app(1)));
    assert_eq!(held.settings.rate, Some(2));
    assert_eq!(revisions(&world), [2, 2]);
    world.apply(&Command::RevokeToken { id: 1 });
    assert_eq!(world.opened(second, world.now()), []);
    assert_eq!(revisions(&world), [2, 2]);
    world.apply(&Command::Listen {
        on: vec![(0, 3)],
        protocol: Protocol::Tcp,
        address: 0,
    });
    let held = &world.exposures[&ExposureId(2)];
    assert_eq!(held.listen, Some(listener(0)));
    world.apply(&Command::Unexpose { id: 1 });
    assert_eq!(revisions(&world), [3, 3]);
    assert_eq!(world.exposures.len(), 1);
}
