//! Nodes: who they are, whether they are connected, and which registration is current.
//!
//! A node row is made by [`crate::token::redeem`], or by [`ensure_local`] for the hub's own machine.
//! Each Hello of its agent is a registration and
//! moves the epoch; whatever speaks for a registration names its epoch, so that the cleanup of an
//! old session can never touch a newer one.

use hub_protocol::{Epoch, Fingerprint, Generation, Incarnation, NodeId, NodeName};

use crate::certificate::{self, Certificate, Distrust};
use crate::time::Timestamp;
use crate::token::JoinTokenHash;

/// The newest generation that a ledger counts to.
pub const MAX_GENERATION: Generation = Generation(i64::MAX as u64);

/// The newest generation that an agent is believed to have been told. One that claims a later one
/// makes it up, and must leave room for the fences to come.
pub const MAX_CLAIM: Generation = Generation(MAX_GENERATION.0 / 2);

/// How many superseded agent processes of a node are remembered, newest first. One that comes back
/// after so many others is taken for a new one.
pub const SUPERSEDED_KEPT: u32 = 64;

/// Whether a node's agent has a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Its current registration has a session.
    Connected,
    /// It has none: it never registered, or its session ended.
    Away,
}

/// How a node came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A machine joined.
    Joined {
        /// The key that it joined with. Certificates of later keys are recorded beside it.
        key: Fingerprint,
        /// The join token that admitted it.
        by: JoinTokenHash,
    },
    /// It is the hub's own machine, served within the hub's process: it has neither key nor
    /// certificate, and nobody can join as it.
    Local,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Issued at join, for life.
    pub id: NodeId,
    /// Given by the operator; no other node has it.
    pub name: NodeName,
    /// How it came to be.
    pub origin: Origin,
    /// When it joined.
    pub created: Timestamp,
    /// How often it has registered.
    pub epoch: Epoch,
    /// Moves when the hub took all of its work away.
    pub generation: Generation,
    /// The agent process of the current registration; `None` before the first.
    pub incarnation: Option<Incarnation>,
    /// Whether it has a session.
    pub presence: Presence,
    /// Since when that is so.
    pub presence_since: Timestamp,
    /// When it was last known to be alive; `None` before its first registration.
    pub last_seen: Option<Timestamp>,
    /// When it was revoked, if it was.
    pub revoked: Option<Timestamp>,
    /// Counts the changes of its exposures: see [`crate::exposure::targets`].
    pub targets_revision: u64,
}

impl Node {
    /// A node that has never registered.
    pub(crate) fn new(id: NodeId, name: NodeName, origin: Origin, now: Timestamp) -> Self {
        Self {
            id,
            name,
            origin,
            created: now,
            epoch: Epoch(0),
            generation: Generation(0),
            incarnation: None,
            presence: Presence::Away,
            presence_since: now,
            last_seen: None,
            revoked: None,
            targets_revision: 0,
        }
    }

    /// Whether it is the hub's own machine.
    pub fn is_local(&self) -> bool {
        self.origin == Origin::Local
    }

    /// The key that it joined with, if it did.
    pub fn key(&self) -> Option<Fingerprint> {
        match self.origin {
            Origin::Joined { key, .. } => Some(key),
            Origin::Local => None,
        }
    }
}

/// Why the hub's own machine does not become a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocalRefusal {
    /// A machine that joined has the name.
    #[error(
        "the hub's own machine cannot be node {name}: a machine that joined is called so; \
         choose another name for --local-node"
    )]
    NameTaken {
        /// The name.
        name: NodeName,
    },
    /// The hub's own machine was a node of that name, and was revoked.
    #[error(
        "the hub's own machine cannot be node {name} again: that was revoked at {revoked}, for \
         good; choose another name for --local-node"
    )]
    Revoked {
        /// The name.
        name: NodeName,
        /// When.
        revoked: Timestamp,
    },
}

/// The rows that [`ensure_local`] decides on.
#[derive(Debug, Clone, Default)]
pub struct LocalRows {
    /// The node of the name asked for.
    pub named: Option<Node>,
    /// The hub's own machine, if it is a node already and was not revoked.
    pub local: Option<Node>,
}

/// Makes the hub's own machine a node of this name, or finds that it is. One that had another name
/// gets the new one; there is never more than one.
pub fn ensure_local(
    rows: LocalRows,
    name: NodeName,
    new_id: NodeId,
    now: Timestamp,
) -> Result<Node, LocalRefusal> {
    if let Some(named) = rows.named {
        return match (named.origin, named.revoked) {
            (Origin::Joined { .. }, _) => Err(LocalRefusal::NameTaken { name }),
            (Origin::Local, Some(revoked)) => Err(LocalRefusal::Revoked { name, revoked }),
            (Origin::Local, None) => Ok(named),
        };
    }
    Ok(match rows.local {
        Some(local) => Node { name, ..local },
        None => Node::new(new_id, name, Origin::Local, now),
    })
}

/// What a Hello says that the ledger needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The node that the client certificate names.
    pub node: NodeId,
    /// The key of that certificate.
    pub key: Fingerprint,
    /// Who says Hello.
    pub process: Process,
}

/// The agent process that says Hello, by its own word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Which run of it.
    pub incarnation: Incarnation,
    /// The generation that the agent was told last; `None` if it remembers none.
    pub last_generation: Option<Generation>,
}

/// A registration that stands. It is current until the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// The node with its new epoch.
    pub node: Node,
    /// The agent's generation is not that of the node: it stops what it runs before anything else.
    pub fenced: bool,
    /// The agent process that this registration puts out of office, if there was another.
    pub superseded: Option<Incarnation>,
}

/// Why a Hello is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegisterRefusal {
    /// The certificate is not trusted, or the node is gone.
    #[error(transparent)]
    Distrusted(#[from] Distrust),
    /// A later process of this node's agent took over; this one never becomes current again.
    #[error(
        "another process of node {name} took over from this one; \
         if two machines share one identity, join one of them anew"
    )]
    Superseded {
        /// The node's name.
        name: NodeName,
    },
}

/// The rows that [`register`] decides on.
#[derive(Debug, Clone, Default)]
pub struct RegisterRows {
    /// The node of that id.
    pub node: Option<Node>,
    /// The recorded certificates with the presented key.
    pub certificates: Vec<Certificate>,
    /// Whether the incarnation was superseded before.
    pub superseded: bool,
}

/// Registers an agent: counts the epoch, records its incarnation, and says whether it is fenced.
///
/// A generation ahead of the ledger's means that the ledger was restored from an older copy: it
/// moves past the agent's, so that whatever the lost history started is stopped.
pub fn register(
    rows: RegisterRows,
    registration: &Registration,
    now: Timestamp,
) -> Result<Registered, RegisterRefusal> {
    let certificates = &rows.certificates;
    certificate::trusted(
        rows.node.as_ref(),
        certificates,
        registration.node,
        registration.key,
        now,
    )?;
    let Some(node) = rows.node else {
        return Err(Distrust::UnknownNode {
            node: registration.node,
        }
        .into());
    };
    enter(node, rows.superseded, &registration.process, now)
}

/// Registers the agent of the hub's own machine, which the hub's process itself vouches for.
pub fn register_local(
    node: Option<Node>,
    superseded: bool,
    id: NodeId,
    process: &Process,
    now: Timestamp,
) -> Result<Registered, RegisterRefusal> {
    let local = node.filter(|node| node.id == id && node.is_local());
    let node = local.ok_or(Distrust::UnknownNode { node: id })?;
    if let Some(revoked) = node.revoked {
        let name = node.name;
        return Err(Distrust::Revoked { name, revoked }.into());
    }
    enter(node, superseded, process, now)
}

fn enter(
    mut node: Node,
    superseded: bool,
    process: &Process,
    now: Timestamp,
) -> Result<Registered, RegisterRefusal> {
    let current = node.incarnation;
    if superseded {
        return Err(RegisterRefusal::Superseded { name: node.name });
    }
    // An agent without memory counts as one of the first generation: it is fenced if there was a
    // fence that it may have forgotten.
    let told = process.last_generation.unwrap_or_default();
    let claimed = told.min(MAX_CLAIM);
    if claimed > node.generation {
        node.generation = next(claimed);
    }
    node.epoch = Epoch(node.epoch.0 + 1);
    node.incarnation = Some(process.incarnation);
    node.presence = Presence::Connected;
    node.presence_since = now;
    node.last_seen = node.last_seen.max(Some(now));
    Ok(Registered {
        fenced: told != node.generation,
        superseded: current.filter(|current| *current != process.incarnation),
        node,
    })
}

/// The node was heard of on the session of this epoch. `None`: that session is not current, or
/// there is nothing to write.
pub fn seen(node: &Node, epoch: Epoch, now: Timestamp) -> Option<Node> {
    let current = node.epoch == epoch && node.presence == Presence::Connected;
    (current && node.last_seen < Some(now)).then(|| Node {
        last_seen: Some(now),
        ..node.clone()
    })
}

/// The session of this epoch ended. `None`: it was not current, and nothing changes.
///
/// `last_seen` is when the agent was last heard of, which an idle timeout puts before `now`.
pub fn away(node: &Node, epoch: Epoch, last_seen: Timestamp, now: Timestamp) -> Option<Node> {
    let current = node.epoch == epoch && node.presence == Presence::Connected;
    current.then(|| Node {
        presence: Presence::Away,
        presence_since: now,
        last_seen: node.last_seen.max(Some(last_seen.min(now))),
        ..node.clone()
    })
}

/// A node that does not exist cannot be revoked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no node {node}; look for it in the list of nodes")]
pub struct RevokeRefusal {
    /// The id asked for.
    pub node: NodeId,
}

/// Revokes a node for good: none of its certificates is trusted from now on, and its generation
/// moves, so that an agent which still runs something must stop it. Doing it again changes nothing.
pub fn revoke(node: Option<Node>, id: NodeId, now: Timestamp) -> Result<Node, RevokeRefusal> {
    let node = node.ok_or(RevokeRefusal { node: id })?;
    if node.revoked.is_some() {
        return Ok(node);
    }
    Ok(Node {
        revoked: Some(now),
        generation: next(node.generation),
        ..node
    })
}

fn next(generation: Generation) -> Generation {
    Generation(generation.0 + 1).min(MAX_GENERATION)
}
