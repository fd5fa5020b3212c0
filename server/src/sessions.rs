//! Sessions: which node has one, and what becomes of a connection until it is one.
//!
//! ```text
//! Endpoint --Incoming--> listen --handshake, certificate--> admission --Hello, ledger--> Sessions
//! LocalNode --connect---------------------------------------^   |                           ^
//!                                                               `- Refused, close           | get
//!                                                                          API, data plane -'
//! ```
//!
//! The hub's own machine is no different once its connection, which stays within the process, has
//! come in: it says Hello, and has its session and its control stream like any other.
//!
//! [`Sessions`] is the list of who is connected now. The ledger decides who may be; a newer
//! registration replaces an older one here at once, and the end of an older one never removes a
//! newer.

mod admission;
mod listen;
mod local;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hub_ledger::Timestamp;
use hub_protocol::code::CloseCode;
use hub_protocol::session::{Control, Hello, Lingering, Targets, shown};
use hub_protocol::{Epoch, NodeId};
use hub_quic::session::Session;
use tokio::sync::{mpsc, watch};

pub use listen::SessionConfig;
pub(crate) use listen::serve;
pub use local::LocalNode;
pub(crate) use local::channel as local_connections;

use crate::clock::Clock;
use crate::store::Store;

/// How much of what a node could not see stop is kept; its own log has the rest.
const MAX_LINGERING: usize = 100;

/// An address as people write it: one of IPv4 that came in over a socket of both families without
/// the prefix that says so.
fn shown_address(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// A node's session as the hub sees it.
#[derive(Debug, Clone)]
pub struct Connected {
    /// The session.
    pub session: Session,
    /// The registration it belongs to.
    pub epoch: Epoch,
    /// What its agent says of itself. Claims, not facts.
    pub hello: Arc<Hello>,
    /// Since when.
    pub since: Timestamp,
    /// When it was last heard of.
    pub last_heard: Timestamp,
    /// Its agent said that it leaves: what is under way may finish, and nothing new begins.
    pub draining: bool,
    /// What its agent could not see stop, oldest first. Its words, in short lines.
    pub lingering: Vec<Lingering>,
    /// What is to be said on its control stream.
    control: mpsc::Sender<Control>,
}

impl Connected {
    /// The address the agent's packets come from now; a NAT may change it. The hub's own node has
    /// none.
    pub fn remote(&self) -> Option<SocketAddr> {
        let remote = self.session.connection().remote_address();
        remote.map(shown_address)
    }
}

#[derive(Debug, Default)]
struct List {
    nodes: BTreeMap<NodeId, Connected>,
    violations: u64,
}

/// Who is connected now. Cheap to clone; clones share the list.
#[derive(Debug, Clone)]
pub struct Sessions {
    list: Arc<Mutex<List>>,
    changes: watch::Sender<u64>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            list: Arc::default(),
            changes: watch::Sender::new(0),
        }
    }
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, List> {
        // Whoever held it changed one entry at most, whole or not at all.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session of a node for new operations, if it has one that takes them.
    pub fn get(&self, node: &NodeId) -> Option<Session> {
        self.lock()
            .nodes
            .get(node)
            .filter(|connected| !connected.draining)
            .map(|connected| connected.session.clone())
    }

    /// The session for new operations of a node that the ledger has just told us of. One that was revoked has none,
    /// whoever wrote that into the ledger: a session that still stands is closed.
    pub(crate) fn of(&self, node: &NodeId, revoked: bool) -> Option<Session> {
        if revoked {
            self.close(node, CloseCode::REVOKED, "this node was revoked");
            return None;
        }
        self.get(node)
    }

    /// All there is to know of a node's session, if it has one.
    pub fn connected(&self, node: &NodeId) -> Option<Connected> {
        self.lock().nodes.get(node).cloned()
    }

    /// All sessions, by node.
    pub fn all(&self) -> Vec<(NodeId, Connected)> {
        self.lock()
            .nodes
            .iter()
            .map(|(id, connected)| (*id, connected.clone()))
            .collect()
    }

    /// Counts the changes of the list, for whoever waits for a node.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// How often peers broke the rules, in all sessions that there were.
    pub fn violations(&self) -> u64 {
        let list = self.lock();
        let living: u64 = list
            .nodes
            .values()
            .flat_map(|connected| connected.session.violations().into_values())
            .sum();
        list.violations + living
    }

    /// A registration stands: its session becomes the node's. `false` if a newer one is there.
    /// The session that it replaces is closed.
    fn install(&self, node: NodeId, connected: Connected) -> bool {
        let mut list = self.lock();
        if list
            .nodes
            .get(&node)
            .is_some_and(|standing| standing.epoch >= connected.epoch)
        {
            return false;
        }
        let replaced = list.nodes.insert(node, connected);
        if let Some(replaced) = &replaced {
            list.violations += replaced.session.violations().into_values().sum::<u64>();
        }
        drop(list);
        if let Some(replaced) = replaced {
            replaced
                .session
                .close(CloseCode::SUPERSEDED, "a newer session of this node stands");
        }
        self.changed();
        true
    }

    /// A session of a test, with nothing on its control stream.
    #[cfg(test)]
    pub(crate) fn connect(
        &self,
        node: NodeId,
        epoch: Epoch,
        session: Session,
        hello: Hello,
        now: Timestamp,
    ) {
        let connected = Connected {
            session,
            epoch,
            hello: Arc::new(hello),
            since: now,
            last_heard: now,
            draining: false,
            lingering: Vec::new(),
            control: mpsc::channel(1).0,
        };
        assert!(self.install(node, connected), "epochs grow");
    }

    /// The end of a session of a test.
    #[cfg(test)]
    pub(crate) fn disconnect(&self, node: NodeId, epoch: Epoch) {
        self.remove(node, epoch);
    }

    /// The session of this registration has ended. Gives when the node was last heard of, unless
    /// a newer session stands.
    fn remove(&self, node: NodeId, epoch: Epoch) -> Option<Timestamp> {
        let mut list = self.lock();
        if list.nodes.get(&node)?.epoch != epoch {
            return None;
        }
        let removed = list.nodes.remove(&node)?;
        list.violations += removed.session.violations().into_values().sum::<u64>();
        drop(list);
        self.changed();
        Some(removed.last_heard)
    }

    /// The agent of this registration said that it leaves: its session gets nothing new.
    fn drain(&self, node: NodeId, epoch: Epoch) {
        if let Some(connected) = self.lock().nodes.get_mut(&node)
            && connected.epoch == epoch
        {
            connected.draining = true;
        }
        self.changed();
    }

    fn heard(&self, node: NodeId, epoch: Epoch, now: Timestamp) {
        if let Some(connected) = self.lock().nodes.get_mut(&node)
            && connected.epoch == epoch
        {
            connected.last_heard = connected.last_heard.max(now);
        }
    }

    /// A node's agent says what it could not see stop: all of it.
    fn lingers(&self, node: NodeId, epoch: Epoch, lingering: &[Lingering]) {
        let short = |lingering: &Lingering| Lingering {
            what: shown(&lingering.what),
            why: shown(&lingering.why),
        };
        if let Some(connected) = self.lock().nodes.get_mut(&node)
            && connected.epoch == epoch
        {
            connected.lingering = lingering.iter().take(MAX_LINGERING).map(short).collect();
        }
        self.changed();
    }

    /// Tells a node's agent what it may connect to. Requests carry the revision they need and
    /// wait for it there, so nobody waits here; an agent that is away hears it when it is back.
    pub fn tell_targets(&self, node: &NodeId, targets: Targets) {
        let sender = self
            .lock()
            .nodes
            .get(node)
            .map(|connected| connected.control.clone());
        if let Some(sender) = sender
            && sender.try_send(Control::Targets(targets)).is_err()
        {
            // Its control stream is stuck. Coming back, it is told the newest list.
            tracing::warn!(%node, "the agent takes nothing on its control stream; closing its session");
            self.close(node, CloseCode::TIMED_OUT, "the control stream is stuck");
        }
    }

    /// Closes a node's session.
    pub fn close(&self, node: &NodeId, code: CloseCode, reason: &str) {
        if let Some(connected) = self.connected(node) {
            connected.session.close(code, reason);
        }
    }

    /// Says goodbye to all agents.
    pub fn go_away(&self, reason: &str) {
        for (_, connected) in self.all() {
            // A full queue is that of an agent that does not listen anyway.
            let _ = connected
                .control
                .try_send(Control::GoAway(reason.to_owned()));
        }
    }

    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }
}

/// What a session needs of the hub.
#[derive(Debug, Clone)]
struct Context {
    store: Store,
    clock: Clock,
    sessions: Sessions,
    config: Arc<SessionConfig>,
}
