//! The hub as its API and its data plane see it: what can be asked, and of whom.
//!
//! [`ask`] opens any operation on a node; [`call`] asks one question and has its answer. A watch goes
//! on through the loss of sessions, by the rules of `follow`. The rest is the ledger's.

pub mod ask;
pub mod call;
mod exposures;
mod follow;
mod incoming;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use hub_ledger::{NewToken, Node, Presence, Timestamp};
use hub_protocol::enroll::JoinToken;
use hub_protocol::{Fingerprint, NodeId, NodeName};

pub use ask::{ANSWER_TIMEOUT, AskError, Begun};
pub(crate) use ask::{NotBegun, begun};
pub use call::CallError;
pub use exposures::{FreshExposure, WantedEdit, WantedExposure, WantedReplica};
pub use follow::GaveUp;
pub use incoming::Broke;
pub(crate) use incoming::Incoming;
pub(crate) use watch::{Piece, Watch, nanos};

use crate::ca::Ca;
use crate::clock::Clock;
use crate::secret::Token;
use crate::sessions::{Connected, Sessions};
use crate::store::{Store, StoreError};
use crate::wires::Wires;

/// Where the hub is reached, for the commands and URLs that it prints.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    /// `HOST:PORT` that agents dial.
    pub agents: String,
    /// `HOST:PORT` where machines join.
    pub enrollment: String,
    /// `http://HOST:PORT` or `https://HOST:PORT` of the data plane, without a slash at the end; empty without one.
    pub data_plane: String,
    /// The domain under which exposures with a name are reached, with the data plane's port.
    pub domain: Option<String>,
}

impl Addresses {
    /// How the data plane is reached: `http` or `https`.
    fn scheme(&self) -> &str {
        let scheme = self.data_plane.split_once("://");
        scheme.map_or("http", |(scheme, _)| scheme)
    }
}

#[derive(Debug)]
struct Inner {
    store: Store,
    clock: Clock,
    sessions: Sessions,
    wires: Wires,
    ca: Arc<Ca>,
    addresses: Addresses,
    started: Timestamp,
}

/// The hub. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Hub {
    inner: Arc<Inner>,
}

/// A node, by the ledger and by its session.
#[derive(Debug, Clone)]
pub struct NodeStatus {
    /// The ledger's row.
    pub node: Node,
    /// Its session, if it has one.
    pub connected: Option<Connected>,
}

/// How the hub is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The release of the program.
    pub release: &'static str,
    /// Since when it runs.
    pub started: Timestamp,
    /// The CA that agents pin.
    pub ca: Fingerprint,
    /// Nodes that it knows.
    pub nodes: usize,
    /// Nodes that are connected.
    pub connected: usize,
    /// Operations under way.
    pub operations: u64,
    /// How often peers broke the protocol since it runs.
    pub violations: u64,
    /// Where it is reached.
    pub addresses: Addresses,
}

/// A join token that was just made. It is shown once.
#[derive(Debug)]
pub struct FreshToken {
    /// The token: a secret.
    pub token: JoinToken,
    /// Until when it holds.
    pub expires: Timestamp,
}

/// Something asked of the ledger that it refused.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// No node has this name or id.
    #[error("there is no node {node:?}; `hub node ls` shows those there are")]
    NoSuchNode {
        /// What was asked for.
        node: String,
    },
    /// A time was said for a token that is not made.
    #[error("only a token expires, and this exposure gets none; leave out until when it holds")]
    NothingExpires,
    /// The ledger, or one of its rules.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The operating system gives no random bytes.
    #[error("no random bytes can be had: {0}")]
    Random(#[from] std::io::Error),
}

impl Hub {
    /// A hub over its parts.
    pub fn new(
        store: Store,
        clock: Clock,
        sessions: Sessions,
        ca: Arc<Ca>,
        addresses: Addresses,
    ) -> Self {
        let started = clock.now();
        Self {
            inner: Arc::new(Inner {
                store,
                clock,
                sessions,
                wires: Wires::default(),
                ca,
                addresses,
                started,
            }),
        }
    }

    /// The ledger.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// Where TCP and UDP exposures are listened for.
    pub fn wires(&self) -> &Wires {
        &self.inner.wires
    }

    /// The time.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Who is connected.
    pub fn sessions(&self) -> &Sessions {
        &self.inner.sessions
    }

    /// The authority that agents pin.
    pub fn ca(&self) -> &Ca {
        &self.inner.ca
    }

    /// Where the hub is reached.
    pub fn addresses(&self) -> &Addresses {
        &self.inner.addresses
    }

    /// The node of this name or id.
    ///
    /// # Errors
    /// The ledger can't answer.
    pub async fn find(&self, node: &str) -> Result<Option<Node>, StoreError> {
        // Most names are no ids, and an id is a valid name: the name goes first.
        if let Ok(name) = node.parse::<NodeName>()
            && let Some(found) = self.inner.store.node_named(name).await?
        {
            return Ok(Some(found));
        }
        match node.parse::<NodeId>() {
            Ok(id) => self.inner.store.node(id).await,
            Err(_) => Ok(None),
        }
    }

    /// How the hub is.
    ///
    /// # Errors
    /// The ledger can't answer.
    pub async fn status(&self) -> Result<Status, StoreError> {
        let connected = self.inner.sessions.all();
        Ok(Status {
            release: env!("CARGO_PKG_VERSION"),
            started: self.inner.started,
            ca: self.inner.ca.fingerprint(),
            nodes: self.inner.store.nodes().await?.len(),
            connected: connected.len(),
            operations: connected
                .iter()
                .map(|(_, node)| node.session.operations())
                .sum(),
            violations: self.inner.sessions.violations(),
            addresses: self.inner.addresses.clone(),
        })
    }

    /// All nodes, by name.
    ///
    /// # Errors
    /// The ledger can't answer.
    pub async fn nodes(&self) -> Result<Vec<NodeStatus>, StoreError> {
        let nodes = self.inner.store.nodes().await?;
        let with_session = |mut node: Node| {
            let connected = self.inner.sessions.connected(&node.id);
            // The ledger hears of sessions a moment later, and of sightings in batches.
            if let Some(connected) = &connected {
                node.presence = Presence::Connected;
                node.last_seen = node.last_seen.max(Some(connected.last_heard));
            }
            NodeStatus { node, connected }
        };
        Ok(nodes.into_iter().map(with_session).collect())
    }

    /// Makes a join token.
    ///
    /// # Errors
    /// The ledger's rule for tokens says no.
    pub async fn create_token(&self, uses: u32, ttl: Duration) -> Result<FreshToken, CommandError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(std::io::Error::from)?;
        let token = Token::from_bytes(bytes);
        let new = NewToken { uses, ttl };
        let row = self
            .inner
            .store
            .create_token(token.join_hash(), new, self.inner.clock.now())
            .await?;
        Ok(FreshToken {
            token: JoinToken::from_bytes(bytes),
            expires: row.expires,
        })
    }
}

#[cfg(test)]
mod tests;
