//! The agent's line to the hub: dials, says Hello, serves one session, dials again. For ever.
//!
//! Only a permanent refusal (revoked, superseded, no common version) or the order to stop ends it.
//! What is said on the line is the same for the hub's own machine, which dials nobody: `link`.

use std::sync::Arc;

use futures_util::FutureExt as _;
use hub_protocol::session::{Platform, Refused};
use hub_quic::endpoint::{self, Network, Transport};
use hub_quic::session::windows;
use hub_quic::tls::{self, TlsError};
use rustls::time_provider::TimeProvider;
use tokio::sync::watch;

use crate::dial::{self, HubAddress};
use crate::identity::Identity;
use crate::link::{Line, Link};
use crate::operations::Tools;
use crate::random::Random;

/// What an uplink needs.
#[derive(Clone)]
pub struct Uplink {
    /// Where the hub is.
    pub hub: HubAddress,
    /// Who this node is.
    pub identity: Arc<Identity>,
    /// What sockets are made of.
    pub network: Arc<dyn Network>,
    /// Tells the time of day.
    pub time: Arc<dyn TimeProvider>,
    /// For jitter and the incarnation.
    pub random: Random,
    /// SHA-256 of the agent's program, in hex; empty where it cannot be read.
    pub digest: String,
    /// What it says of the machine.
    pub platform: Platform,
    /// What operations work with.
    pub tools: Tools,
}

/// Why an uplink ended.
#[derive(Debug, thiserror::Error)]
pub enum UplinkError {
    /// The hub wants no more of this node. Dialling again is of no use.
    #[error("the hub refuses this node for good: {0}")]
    Refused(Refused),
    /// The identity makes no TLS configuration.
    #[error("this node's identity can't be used: {0}; remove it and join again")]
    Identity(#[from] TlsError),
}

impl Uplink {
    /// Serves the hub until `stop` says otherwise or the hub refuses for good.
    ///
    /// # Errors
    /// [`UplinkError`].
    pub async fn run(self, stop: watch::Receiver<bool>) -> Result<(), UplinkError> {
        let Self {
            hub,
            identity,
            network,
            ..
        } = &self;
        let transport = Transport::agent(windows());
        let credentials = identity.credentials();
        let tls = tls::operational_client(credentials, identity.trust(), self.time.clone())?;
        let client = endpoint::client_config(&**network, tls, &transport);
        let link = Link {
            name: identity.name().clone(),
            deployment: identity.deployment(),
            time: self.time.clone(),
            random: self.random.clone(),
            digest: self.digest.clone(),
            platform: self.platform.clone(),
            tools: self.tools.clone(),
        };
        let connect = || {
            async {
                let dialled = dial::dial(&**network, hub, &transport, &client).await?;
                Ok(Line {
                    connection: dialled.connection.into(),
                    hub: format!("{hub} at {}", dialled.address),
                    endpoint: Some(dialled.endpoint),
                })
            }
            .boxed()
        };
        link.keep(&connect, stop)
            .await
            .map_err(UplinkError::Refused)
    }
}
