//! The agent of the hub's own machine: it joins nothing and dials nobody. Whoever runs hub and agent in
//! one process gives it connections that stay there; the rest is the same code as anywhere.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hub_protocol::session::{Platform, Refused};
use hub_protocol::{Deployment, NodeName};
use hub_quic::transport::memory;
use tokio::sync::watch;

use crate::agent::Parts;
use crate::link::{Line, Link, SessionError};
use crate::policy::Policy;

/// What the agent of the hub's own machine is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// The name of the node.
    pub name: NodeName,
    /// The hub's deployment.
    pub deployment: Deployment,
    /// What it says of the machine.
    pub platform: Platform,
    /// SHA-256 of its program, in hex; may be empty.
    pub digest: String,
    /// What it lets the hub do.
    pub policy: Arc<Policy>,
}

/// Makes a connection to the hub; `None` once that has stopped.
pub type Connect = Arc<dyn Fn() -> BoxFuture<'static, Option<memory::Connection>> + Send + Sync>;

/// Serves the hub on connections of `connect` until `stop` says otherwise: one, and another when that
/// is lost. Returns once what operations ran has stopped: TERM, KILL after 10 s.
///
/// # Errors
/// The hub refuses this node for good: it was revoked.
pub async fn serve(
    config: Config,
    parts: Parts,
    connect: Connect,
    stop: watch::Receiver<bool>,
) -> Result<(), Refused> {
    let link = Link {
        name: config.name,
        deployment: config.deployment,
        time: parts.time.clone(),
        random: parts.random.clone(),
        digest: config.digest,
        platform: config.platform,
        tools: parts.tools(config.policy),
    };
    let connect = || {
        let connection = connect();
        async {
            let connection = connection.await.ok_or(SessionError::NoHub)?;
            Ok(Line {
                connection: connection.into(),
                hub: "this process".into(),
                endpoint: None,
            })
        }
        .boxed()
    };
    link.keep(&connect, stop).await
}
