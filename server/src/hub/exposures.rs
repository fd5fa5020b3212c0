//! What is asked of the hub about exposures: the ledger decides, and the agents of the nodes
//! concerned are told.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use hub_ledger::exposure::{
    Edit, ExposureEdit, Lifetime, NewExposureToken, Rotation, Settings, SettingsEdit,
};
use hub_ledger::{
    Access, Exposure, ExposureChange, ExposureId, ExposureName, ExposureRefusal, NewExposure,
    Protocol, Replica,
};
use hub_protocol::target::Target;

use super::{CommandError, Hub};
use crate::secret::Token;
use crate::store::{Located, StoreError};
use crate::wires::Listening;

/// How long to wait for a new exposure's listener before it is shown without one.
const LISTENING: Duration = Duration::from_secs(2);

/// A replica that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedReplica {
    /// The node's name or id.
    pub node: String,
    /// What to connect to there.
    pub target: Target,
}

/// An exposure that is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WantedExposure {
    /// The name, if it is to have one.
    pub name: Option<ExposureName>,
    /// Who gets in.
    pub access: Access,
    /// What the targets speak.
    pub protocol: Protocol,
    /// Where its requests go.
    pub replicas: Vec<WantedReplica>,
    /// For TCP and UDP, where the hub listens.
    pub listen: Option<SocketAddr>,
    /// Whether it gets a token; without saying so, it does if a token is of use.
    pub token: Option<bool>,
    /// How long the token holds; without, until it is revoked.
    pub token_ttl: Option<Duration>,
    /// Its limits.
    pub settings: Settings,
}

/// A change that is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WantedEdit {
    /// The name.
    pub name: Edit<Option<ExposureName>>,
    /// Who gets in.
    pub access: Edit<Access>,
    /// What the targets speak.
    pub protocol: Edit<Protocol>,
    /// Where its requests go. They are reached in the exposure's way, whatever they say of it.
    pub replicas: Edit<Vec<WantedReplica>>,
    /// For TCP and UDP, where the hub listens.
    pub listen: Edit<Option<SocketAddr>>,
    /// The limits.
    pub settings: SettingsEdit,
}

/// An exposure that was just made or got a new token. The token is shown once.
pub struct FreshExposure {
    /// The exposure, and where it is.
    pub located: Located,
    /// What it is reached by; one holds the token: a secret.
    pub urls: Vec<String>,
}

/// Without the URLs: one is a secret.
impl fmt::Debug for FreshExposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FreshExposure")
            .field("located", &self.located)
            .finish_non_exhaustive()
    }
}

impl Hub {
    /// Makes an exposure of a TCP port of a node that speaks HTTP/1.1, with a token.
    ///
    /// # Errors
    /// As [`Hub::expose_wanted`].
    pub async fn expose(
        &self,
        node: &str,
        port: u16,
        name: Option<ExposureName>,
    ) -> Result<FreshExposure, CommandError> {
        let replica = WantedReplica {
            node: node.to_owned(),
            target: Target::tcp(port),
        };
        self.expose_wanted(WantedExposure {
            name,
            replicas: vec![replica],
            ..WantedExposure::default()
        })
        .await
    }

    /// Makes an exposure, and tells the agents of its nodes.
    ///
    /// # Errors
    /// There is no such node, or the ledger's rules for exposures say no.
    pub async fn expose_wanted(
        &self,
        wanted: WantedExposure,
    ) -> Result<FreshExposure, CommandError> {
        let token = match wanted.token.unwrap_or(wanted.protocol.is_http()) {
            true => Some(Token::random()?),
            false if wanted.token_ttl.is_some() => return Err(CommandError::NothingExpires),
            false => None,
        };
        let new = NewExposure {
            name: wanted.name,
            token: token.as_ref().map(|token| NewExposureToken {
                hash: token.exposure_hash(),
                ttl: wanted.token_ttl,
            }),
            access: wanted.access,
            protocol: wanted.protocol,
            replicas: self.replicas(wanted.replicas).await?,
            listen: wanted.listen,
            settings: wanted.settings,
        };
        let now = self.clock().now();
        let change = self.store().create_exposure(new, now).await?;
        let id = self.tell(change).id;
        self.fresh(id, token.as_ref()).await
    }

    /// Changes an exposure, and tells the agents of the nodes where it comes or goes.
    ///
    /// # Errors
    /// There is none of this number, or no such node, or the ledger's rules say no.
    pub async fn change_exposure(
        &self,
        id: ExposureId,
        wanted: WantedEdit,
    ) -> Result<Located, CommandError> {
        let edit = ExposureEdit {
            name: wanted.name,
            access: wanted.access,
            protocol: wanted.protocol,
            replicas: match wanted.replicas {
                Edit::Set(mut replicas) => {
                    let transport = self.exposure(id).await?.exposure.protocol.transport();
                    for replica in &mut replicas {
                        replica.target.transport = transport;
                    }
                    Edit::Set(self.replicas(replicas).await?)
                }
                Edit::Keep => Edit::Keep,
            },
            listen: wanted.listen,
            settings: wanted.settings,
        };
        self.tell(self.store().update_exposure(id, edit).await?);
        self.exposure(id).await
    }

    /// Removes an exposure, and tells the agents of its nodes.
    ///
    /// # Errors
    /// There is none of this number.
    pub async fn unexpose(&self, id: ExposureId) -> Result<Exposure, CommandError> {
        Ok(self.tell(self.store().remove_exposure(id).await?))
    }

    /// Gives an exposure a new token. The old one is good for `grace` yet.
    ///
    /// # Errors
    /// There is none of this number, it can have no token, or a time is out of its bounds.
    pub async fn rotate_exposure_token(
        &self,
        id: ExposureId,
        lifetime: Lifetime,
        grace: Duration,
    ) -> Result<FreshExposure, CommandError> {
        let token = Token::random()?;
        let rotation = Rotation {
            hash: token.exposure_hash(),
            lifetime,
            grace,
        };
        let now = self.clock().now();
        let store = self.store();
        store.rotate_exposure_token(id, rotation, now).await?;
        self.fresh(id, Some(&token)).await
    }

    /// Takes an exposure its token: nobody gets in by it any more. What is under way goes on.
    ///
    /// # Errors
    /// There is none of this number.
    pub async fn revoke_exposure_token(&self, id: ExposureId) -> Result<(), CommandError> {
        self.store().revoke_exposure_token(id).await?;
        Ok(())
    }

    /// All exposures with the nodes that they are on, oldest first.
    ///
    /// # Errors
    /// The ledger can't answer.
    pub async fn exposures(&self) -> Result<Vec<Located>, StoreError> {
        self.store().locate_all().await
    }

    /// The exposure of this number with the nodes that it is on.
    ///
    /// # Errors
    /// There is none of this number.
    pub async fn exposure(&self, id: ExposureId) -> Result<Located, CommandError> {
        let located = self.store().locate(id).await?;
        located.ok_or_else(|| StoreError::from(ExposureRefusal::Unknown { id }).into())
    }

    /// What an exposure is reached by: the URL with its token, where that is at hand, the one of its
    /// name, the address that the hub listens on.
    pub(crate) fn urls(&self, exposure: &Exposure, token: Option<&Token>) -> Vec<String> {
        let addresses = self.addresses();
        let by_token = token.map(|token| {
            let token = token.to_text();
            format!("{}/v1/data/{}/", addresses.data_plane, &*token)
        });
        let by_name = match (&addresses.domain, &exposure.name) {
            (Some(domain), Some(name)) => {
                Some(format!("{}://{name}.{domain}/", addresses.scheme()))
            }
            _ => None,
        };
        let listening = match self.wires().listening(exposure.id) {
            Some(Listening::At(address)) => Some(address),
            _ => exposure.listen,
        };
        let by_address = listening.map(|address| match exposure.protocol {
            Protocol::Udp => format!("udp://{address}"),
            _ => format!("tcp://{address}"),
        });
        by_token
            .into_iter()
            .chain(by_name)
            .chain(by_address)
            .collect()
    }

    async fn fresh(
        &self,
        id: ExposureId,
        token: Option<&Token>,
    ) -> Result<FreshExposure, CommandError> {
        let located = self.exposure(id).await?;
        if !located.exposure.protocol.is_http() {
            // So that the port is known where any free one was asked for.
            self.wires().settled(id, LISTENING).await;
        }
        let urls = self.urls(&located.exposure, token);
        Ok(FreshExposure { located, urls })
    }

    async fn replicas(&self, wanted: Vec<WantedReplica>) -> Result<Vec<Replica>, CommandError> {
        let mut replicas = Vec::with_capacity(wanted.len());
        for WantedReplica { node, target } in wanted {
            let Some(found) = self.find(&node).await? else {
                return Err(CommandError::NoSuchNode { node });
            };
            replicas.push(Replica {
                node: found.id,
                target,
            });
        }
        Ok(replicas)
    }

    /// Tells the agents and whoever listens of a change that stands.
    fn tell(&self, change: ExposureChange) -> Exposure {
        for told in change.told {
            self.sessions().tell_targets(&told.node.id, told.targets);
        }
        // After the agents: what comes by a new listener names a list that is on its way.
        self.wires().changed();
        change.exposure
    }
}
