//! From the name or token in a request to the sessions of nodes and targets behind them.

mod known;

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use hub_ledger::{Exposure, ExposureId, ExposureName, ExposureTokenHash, Replica, Timestamp};
use hub_protocol::NodeName;
use hub_protocol::target::Target;
use hub_quic::session::Session;
use tokio::time::Instant;

use self::known::{Found, Known, When};
use crate::clock::Clock;
use crate::hub::Hub;
use crate::sessions::Sessions;
use crate::store::{Home, Store, StoreError};

/// How a request names an exposure.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
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

/// Routes by the ledger and the sessions there are. Each request is judged by how both stand: what
/// was removed, expired or went away holds no longer. What this program did not write since is not
/// asked of the ledger again; all that it is asked is one statement.
#[derive(Clone)]
pub struct LedgerRoutes {
    store: Store,
    sessions: Sessions,
    clock: Clock,
    known: Arc<Known>,
}

impl LedgerRoutes {
    /// Routes to what the ledger of `hub` has and its sessions reach.
    pub fn new(hub: &Hub) -> Self {
        Self {
            store: hub.store().clone(),
            sessions: hub.sessions().clone(),
            clock: hub.clock().clone(),
            known: Arc::default(),
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
        Ok(self.live(&located.into(), now))
    }

    /// The time by which routes are judged.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Asks the ledger, and keeps what it says.
    async fn find(
        &self,
        route: &Route,
        now: Timestamp,
        when: When,
    ) -> Result<Arc<Found>, RouteError> {
        let located = match route {
            Route::Token(hash) => self.store.locate_token(*hash, now).await?,
            Route::Name(name) => self.store.locate_name(name.clone()).await?,
        };
        // An exposure goes with the nodes that it is on; one without is as good as none.
        let found = Arc::new(Found::from(located.ok_or(RouteError::Unknown)?));
        self.known.keep(route.clone(), when, found.clone());
        Ok(found)
    }

    fn live(&self, found: &Found, at: Timestamp) -> Resolved {
        let Found { exposure, homes } = found;
        let mut replicas = Vec::with_capacity(homes.len());
        let mut away = Vec::new();
        for (Replica { target, .. }, home) in exposure.replicas.iter().zip(homes) {
            let Home {
                id,
                name: node_name,
                revoked,
                revision,
            } = home;
            match self.sessions.of(id, revoked.is_some()) {
                Some(session) => replicas.push(Live {
                    node_name: node_name.clone(),
                    session,
                    target: target.clone(),
                    revision: *revision,
                }),
                None if away.contains(node_name) => {}
                None => away.push(node_name.clone()),
            }
        }
        Resolved {
            exposure: exposure.clone(),
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
            let when = When {
                revision: self.store.revision(),
                at: Instant::now(),
            };
            let found = match self.known.get(&route, when) {
                Some(found) => found,
                None => self.find(&route, now, when).await?,
            };
            if let Route::Token(hash) = route {
                let held = found.exposure.token;
                if !held.is_some_and(|held| held.admits(hash, now)) {
                    return Err(RouteError::Unknown);
                }
            }
            Ok(self.live(&found, now))
        })
    }
}
