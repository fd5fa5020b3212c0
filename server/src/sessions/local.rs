//! The hub's own machine as a node: its connections come from within the process.

use hub_protocol::{Deployment, NodeId, NodeName};
use hub_quic::transport::memory::{self, Streams};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::Instrument as _;

use super::Context;
use super::admission::Peer;
use super::listen::register;

/// Connections that may wait to be taken.
const WAITING: usize = 4;

/// The hub's own machine, for whoever serves it: see [`Server::local_node`](crate::Server::local_node).
#[derive(Debug)]
pub struct LocalNode {
    pub(crate) id: NodeId,
    pub(crate) name: NodeName,
    pub(crate) deployment: Deployment,
    pub(crate) connections: mpsc::Sender<(NodeId, memory::Connection)>,
}

impl LocalNode {
    /// The name of the node.
    pub fn name(&self) -> &NodeName {
        &self.name
    }

    /// The deployment that its Hello has to name.
    pub fn deployment(&self) -> Deployment {
        self.deployment
    }

    /// A connection to the hub, on which the hub waits for a Hello. `None` once it has stopped.
    pub async fn connect(&self) -> Option<memory::Connection> {
        let (hub, agent) = memory::pair(Streams::default());
        self.connections.send((self.id, hub)).await.ok()?;
        Some(agent)
    }
}

/// Connections that come from within the process, each with the node that it is from.
pub(crate) type Connections = mpsc::Receiver<(NodeId, memory::Connection)>;

/// The way of connections from [`LocalNode`]s to where sessions are made of them.
pub(crate) fn channel() -> (mpsc::Sender<(NodeId, memory::Connection)>, Connections) {
    mpsc::channel(WAITING)
}

/// Makes sessions of the connections that come. Never returns; dropped, it ends them all.
pub(super) async fn accept(context: &Context, mut connections: Connections) {
    let mut sessions = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = sessions.join_next() => {}
            Some((node, connection)) = connections.recv() => {
                let span = tracing::info_span!("session", id = %node);
                let session = register(context.clone(), connection.into(), Peer::Local(node));
                sessions.spawn(session.instrument(span));
            }
            // Nobody is left who could connect.
            else => std::future::pending().await,
        }
    }
}
