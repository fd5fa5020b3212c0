//! From the name or token in a request to the sessions of nodes and targets behind them.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use hub_ledger::{Exposure, ExposureId, ExposureName, ExposureTokenHash, Replica, Timestamp};
use hub_protocol::NodeName;
use hub_protocol::target::Target;
use hub_quic::session::Session;

use crate::clock::Clock;
use crate::hub::Hub;
use crate::sessions::Sessions;
use crate::store::{Home, Located, Store, StoreError};

/// How a request names an exposure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// By its token.
    Token(ExposureTokenHash),
    /// By its name.
    Name(ExposureName),
}

/// An exposure, and which of its replicas can be reached. Whether the one who asks may is for the
/// caller to find out: all that was checked is that a token by which it was found holds.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The exposure.
    pub exposure: Arc<Exposure>,
    /// The replicas whose nodes are connected, in their order. There may be none.
    pub replicas: Vec<Live>,
    /// The nodes of the others, each once.
    pub away: Vec<NodeName>,
    /// When the ledger was asked. By this time a token is judged that the request shows.
    pub at: Timestamp,
}

/// A replica whose node is connected.
#[derive(Debug, Clone)]
pub struct Live {
    /// The node's name.
    pub node_name: NodeName,
    /// Its session.
    pub session: Session,
    /// What to connect to there.
    pub target: Target,
    /// The revision of the node's list of targets that has this one.
    pub revision: u64,
}

/// Why a request cannot be carried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// There is no such exposure, or the token holds no longer.
    #[error("there is no such exposure")]
    Unknown,
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
/// removed, expired or went away holds no longer. All that the ledger is asked is one statement.
#[derive(Clone)]
pub struct LedgerRoutes {
    store: Store,
    sessions: Sessions,
    clock: Clock,
}

impl LedgerRoutes {
    /// Routes to what the ledger of `hub` has and its sessions reach.
    pub fn new(hub: &Hub) -> Self {
        Self {
            store: hub.store().clone(),
            sessions: hub.sessions().clone(),
            clock: hub.clock().clone(),
        }
    }

    /// The exposure of this number.
    ///
    /// # Errors
    /// There is none, or the ledger can't answer.
    pub async fn of(&self, id: ExposureId) -> Result<Resolved, RouteError> {
        let now = self.clock.now();
        let located = self.store.locate(id).await?;
        let located = located.ok_or(RouteError::Unknown)?;
        Ok(self.live(located, now))
    }

    /// The time by which routes are judged.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn live(&self, located: Located, at: Timestamp) -> Resolved {
        let Located { exposure, homes } = located;
        let mut replicas = Vec::with_capacity(homes.len());
        let mut away = Vec::new();
        for (Replica { target, .. }, home) in exposure.replicas.iter().zip(homes) {
            let Home {
                id,
                name: node_name,
                revoked,
                revision,
            } = home;
            match self.sessions.of(&id, revoked.is_some()) {
                Some(session) => replicas.push(Live {
                    node_name,
                    session,
                    target: target.clone(),
                    revision,
                }),
                None if away.contains(&node_name) => {}
                None => away.push(node_name),
            }
        }
        Resolved {
            exposure: Arc::new(exposure),
            replicas,
            away,
            at,
        }
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
            let now = self.clock.now();
            let located = match route {
                Route::Token(hash) => self.store.locate_token(hash, now).await?,
                Route::Name(name) => self.store.locate_name(name).await?,
            };
            // An exposure goes with the nodes that it is on; one without is as good as none.
            let located = located.ok_or(RouteError::Unknown)?;
            Ok(self.live(located, now))
        })
    }
}
