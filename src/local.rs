//! The hub's own machine as a node: an agent in the hub's process, on connections that stay in it.
//!
//! ```text
//! Server::local_node --LocalNode::connect--> hub_agent::local::serve --> Docker, or plain processes
//! ```

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use futures_util::FutureExt as _;
use hub_agent::agent::Parts;
use hub_agent::local::{Config, Connect, serve};
use hub_agent::policy::Policy;
use hub_protocol::NodeName;
use hub_server::Server;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::Instrument as _;

use crate::settings::{self, RuntimeKind};

/// What is to be served of the hub's own machine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of the node.
    pub name: NodeName,
    /// What runs commands.
    pub runtime: RuntimeKind,
    /// What may be done at all.
    pub policy: Arc<Policy>,
}

/// The hub's own machine, being served. Dropped, it goes on until the process ends.
#[derive(Debug)]
pub struct Local {
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Local {
    /// Makes this machine a node of the hub and serves it; records of what runs are kept below
    /// `data_dir`, the hub's own.
    ///
    /// # Errors
    /// The runtime does not answer, or the hub does not take the node: see [`Server::local_node`].
    pub async fn start(
        server: &Server,
        settings: Settings,
        data_dir: &Path,
    ) -> anyhow::Result<Self> {
        let data_dir = data_dir.join("local");
        settings::create_private(&data_dir)
            .with_context(|| format!("the directory {}", data_dir.display()))?;
        let (runtime, engine) = settings::runtime(settings.runtime, &data_dir)
            .await
            .context("the node of --local-node")?;
        let parts = Parts {
            engine,
            ..settings::system_parts(runtime)
        };
        Self::with(server, settings.name, settings.policy, parts).await
    }

    /// The same on parts of the caller's.
    ///
    /// # Errors
    /// The hub does not take the node: see [`Server::local_node`].
    pub async fn with(
        server: &Server,
        name: NodeName,
        policy: Arc<Policy>,
        parts: Parts,
    ) -> anyhow::Result<Self> {
        let node = Arc::new(server.local_node(name).await?);
        let config = Config {
            name: node.name().clone(),
            deployment: node.deployment(),
            platform: settings::platform(),
            digest: settings::program_digest(),
            policy,
        };
        let connect: Connect = Arc::new(move || {
            let node = node.clone();
            async move { node.connect().await }.boxed()
        });
        let (stop, stopping) = watch::channel(false);
        let span = tracing::info_span!("local", node = %config.name);
        let serving = async move {
            if let Err(refused) = serve(config, parts, connect, stopping).await {
                tracing::error!("this machine is no node any more: {refused}");
            }
        };
        let serving = tokio::spawn(serving.instrument(span));
        Ok(Self { stop, serving })
    }

    /// Stops: what runs is stopped as by any agent that leaves, TERM and after 10 s KILL. Stop the
    /// server first, so that what operators have under way comes to its end.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        if let Err(error) = self.serving.await {
            tracing::error!(%error, "the local node did not end in good order");
        }
    }
}
