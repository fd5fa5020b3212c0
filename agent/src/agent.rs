//! The agent as one thing: makes sure of an identity, then keeps the uplink.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hub_protocol::enroll::JoinToken;
use hub_protocol::session::Platform;
use hub_protocol::{Fingerprint, NodeName};
use hub_quic::endpoint::Network;
use rustls::time_provider::TimeProvider;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::dial::HubAddress;
use crate::engine::Engine;
use crate::identity::{Identity, IdentityError, IdentityStore, State};
use crate::join::{self, JoinError, JoinOptions};
use crate::journal::Journal;
use crate::link::is_set;
use crate::operations::Tools;
use crate::operations::exec::Lingering;
use crate::operations::http::{Connections, Dial};
use crate::operations::kept::Kept;
use crate::policy::Policy;
use crate::random::Random;
use crate::runtime::Runtime;
use crate::targets::{Places, Targets};
use crate::uplink::{Uplink, UplinkError};

/// How to join, for an agent that has no identity yet.
#[derive(Debug, Clone)]
pub struct Joining {
    /// The hub's enrollment endpoint.
    pub enrollment: HubAddress,
    /// The fingerprint of the hub's CA.
    pub pin: Fingerprint,
    /// What entitles this machine to join.
    pub token: JoinToken,
    /// The name to ask for.
    pub name: Option<NodeName>,
}

/// What an agent is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it keeps its identity.
    pub data_dir: PathBuf,
    /// Where the hub is.
    pub hub: HubAddress,
    /// How to join; not needed once it has.
    pub joining: Option<Joining>,
    /// What it says of the machine.
    pub platform: Platform,
    /// SHA-256 of its program, in hex; may be empty.
    pub digest: String,
    /// What it lets the hub do.
    pub policy: Arc<Policy>,
}

/// What an agent stands on: the system's, or a simulation's.
#[derive(Clone)]
pub struct Parts {
    /// What sockets are made of.
    pub network: Arc<dyn Network>,
    /// Tells the time of day.
    pub time: Arc<dyn TimeProvider>,
    /// Random bytes.
    pub random: Random,
    /// What runs commands.
    pub runtime: Arc<dyn Runtime>,
    /// The Docker Engine, where the node has one.
    pub engine: Option<Engine>,
    /// How exposed targets are connected to.
    pub dial: Arc<dyn Dial>,
}

impl Parts {
    /// What operations work with that do what `policy` allows.
    pub(crate) fn tools(&self, policy: Arc<Policy>) -> Tools {
        let journal = self.engine.clone();
        let places = Places::new(self.engine.clone(), policy.clone());
        Tools {
            journal: journal.map(|engine| Journal::start(engine, self.random.clone())),
            engine: self.engine.clone(),
            runtime: self.runtime.clone(),
            targets: Targets::default(),
            connections: Connections::to(places, self.dial.clone()),
            kept: Kept::new(self.random.clone(), self.time.clone()),
            lingering: Lingering::default(),
            policy,
        }
    }
}

/// Why an agent ended, or never began.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Its identity can't be read.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// It has none, and was not told how to get one.
    #[error(
        "this machine has no identity yet: to join, give the hub's fingerprint with --ca and a \
         token with HUB_JOIN_TOKEN or --token-file (`hub token create` prints both)"
    )]
    NotJoined,
    /// It could not join.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The hub refused it for good, or its identity is of no use.
    #[error(transparent)]
    Uplink(#[from] UplinkError),
}

/// Joins if there is no identity yet, then serves the hub until `stop` says otherwise.
///
/// # Errors
/// [`AgentError`]. A hub that can't be reached is none: it is dialled for ever.
pub async fn run(
    config: Config,
    parts: Parts,
    stop: watch::Receiver<bool>,
) -> Result<(), AgentError> {
    let store = IdentityStore::open(&config.data_dir)?;
    let identity = match (store.load()?, config.joining) {
        (State::Joined(identity), _) => *identity,
        (_, None) => return Err(AgentError::NotJoined),
        (_, Some(joining)) => {
            let options = JoinOptions {
                hub: joining.enrollment,
                pin: joining.pin,
                token: joining.token,
                name: joining.name,
                platform: config.platform.clone(),
            };
            let Some(identity) = keep_joining(&store, &parts, &options, stop.clone()).await? else {
                return Ok(());
            };
            tracing::info!(name = %identity.name(), node = %identity.node_id(), "joined");
            identity
        }
    };
    let tools = parts.tools(config.policy);
    let uplink = Uplink {
        hub: config.hub,
        identity: Arc::new(identity),
        network: parts.network,
        time: parts.time,
        random: parts.random,
        digest: config.digest,
        platform: config.platform,
        tools,
    };
    Ok(uplink.run(stop).await?)
}

/// Joins, trying again for as long as that helps; `None` when told to stop.
async fn keep_joining(
    store: &IdentityStore,
    parts: &Parts,
    options: &JoinOptions,
    mut stop: watch::Receiver<bool>,
) -> Result<Option<Identity>, JoinError> {
    let mut backoff = Backoff::default();
    loop {
        let joined = tokio::select! {
            biased;
            () = is_set(&mut stop) => return Ok(None),
            joined = join::join(store, &*parts.network, options, parts.time.clone()) => joined,
        };
        let error = match joined {
            Ok(identity) => return Ok(Some(identity)),
            Err(error) if error.retry_helps() => error,
            Err(error) => return Err(error),
        };
        let asked = match &error {
            JoinError::Refused(refused) => refused.retry_after_ms.map(Duration::from_millis),
            _ => None,
        };
        let mut random = [0; 4];
        (parts.random)(&mut random);
        let random = u32::from_le_bytes(random);
        let wait = backoff.next(Duration::ZERO, random, asked.unwrap_or_default());
        tracing::warn!("{error}; trying again in {:.1} s", wait.as_secs_f64());
        tokio::select! {
            biased;
            () = is_set(&mut stop) => return Ok(None),
            () = sleep(wait) => {}
        }
    }
}
