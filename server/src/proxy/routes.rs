//! From the name or token in a request to the session of a node and a port behind it.

use std::fmt;

use futures_util::future::BoxFuture;
use hub_ledger::{ExposureName, ExposureTokenHash};
use hub_protocol::NodeName;
use hub_protocol::target::Target;
use hub_quic::session::Session;

use crate::sessions::Sessions;
use crate::store::{Store, StoreError};

/// How a request names an exposure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// By its token.
    Token(ExposureTokenHash),
    /// By its name.
    Name(ExposureName),
}

/// An exposure whose node is connected.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The node's name.
    pub node_name: NodeName,
    /// Its session.
    pub session: Session,
    /// What to connect to there.
    pub target: Target,
    /// The revision of the node's list of exposures that has this one.
    pub targets_revision: u64,
}

/// Why a request cannot be carried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// There is no such exposure.
    #[error("there is no such exposure")]
    Unknown,
    /// Its node has no session.
    #[error("node {node} is away")]
    Away {
        /// The node's name.
        node: NodeName,
    },
    /// The ledger can't answer.
    #[error("the ledger: {0}")]
    Ledger(String),
}

impl From<StoreError> for RouteError {
    fn from(error: StoreError) -> Self {
        Self::Ledger(error.to_string())
    }
}

/// Finds out where requests go.
pub trait Routes: Send + Sync {
    /// The exposure of a route.
    fn resolve(&self, route: Route) -> BoxFuture<'_, Result<Resolved, RouteError>>;
}

/// Routes by the ledger and the sessions there are. Asks both anew for each request: what was
/// removed or went away holds no longer.
#[derive(Clone)]
pub struct LedgerRoutes {
    store: Store,
    sessions: Sessions,
}

impl LedgerRoutes {
    /// Routes to what `store` has and `sessions` reaches.
    pub fn new(store: Store, sessions: Sessions) -> Self {
        Self { store, sessions }
    }
}

impl fmt::Debug for LedgerRoutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerRoutes").finish_non_exhaustive()
    }
}

impl Routes for LedgerRoutes {
    fn resolve(&self, route: Route) -> BoxFuture<'_, Result<Resolved, RouteError>> {
        Box::pin(async move {
            let exposure = match route {
                Route::Token(hash) => self.store.exposure_of_token(hash).await?,
                Route::Name(name) => self.store.exposure_named(name).await?,
            };
            let exposure = exposure.ok_or(RouteError::Unknown)?;
            // Exposures go with their node; one without is as good as none.
            let node = self.store.node(exposure.node).await?;
            let node = node.ok_or(RouteError::Unknown)?;
            let session = self.sessions.of(&node);
            let session = session.ok_or_else(|| RouteError::Away {
                node: node.name.clone(),
            })?;
            Ok(Resolved {
                node_name: node.name,
                session,
                target: Target::tcp(exposure.port),
                targets_revision: node.targets_revision,
            })
        })
    }
}
