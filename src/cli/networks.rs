//! Networks of a node.

use std::collections::BTreeMap;

use clap::Subcommand;
use hub_protocol::kind::call::Change;
use hub_protocol::kind::call::network::{Connect, Disconnect, Ensure, List, Network, Remove};

use super::table::table;
use super::units::parse_pair;
use super::{CliError, Context};

#[derive(Debug, Subcommand)]
pub(super) enum NetworkCommand {
    /// List the networks of a node
    Ls {
        /// Only names that begin so
        #[arg(long)]
        prefix: Option<String>,
        /// The node's name or id
        node: String,
    },
    /// Make sure that a network is there
    Create {
        /// Without a way out, where it is made
        #[arg(long)]
        internal: bool,
        /// Add a label, where it is made
        #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_pair)]
        labels: Vec<(String, String)>,
        /// The node's name or id
        node: String,
        /// The network's name
        name: String,
    },
    /// Detach whatever is attached to a network, and remove it
    Rm {
        /// The node's name or id
        node: String,
        /// The network's name or id
        name: String,
    },
    /// Connect a container to a network
    Connect {
        /// A further name of the container in it
        #[arg(long = "alias", value_name = "NAME")]
        aliases: Vec<String>,
        /// The node's name or id
        node: String,
        /// The network's name or id
        network: String,
        /// The container's name or id
        container: String,
    },
    /// Disconnect a container from a network
    Disconnect {
        /// Even if the container does not answer
        #[arg(short = 'f', long)]
        force: bool,
        /// The node's name or id
        node: String,
        /// The network's name or id
        network: String,
        /// The container's name or id
        container: String,
    },
}

pub(super) async fn run(context: &Context, command: NetworkCommand) -> Result<i32, CliError> {
    let client = context.client()?;
    let (change, what, done) = match command {
        NetworkCommand::Ls { prefix, node } => {
            let found = client.call(&node, &List { prefix }).await?;
            context.print(&found, |found| networks(found))?;
            return Ok(0);
        }
        NetworkCommand::Create {
            internal,
            labels,
            node,
            name,
        } => {
            let ensure = Ensure {
                name,
                internal,
                labels: BTreeMap::from_iter(labels),
            };
            let network = client.call(&node, &ensure).await?;
            context.print(&network, |network| network.id.clone())?;
            return Ok(0);
        }
        NetworkCommand::Rm { node, name } => {
            let remove = Remove {
                network: name.clone(),
            };
            let change = client.call(&node, &remove).await?;
            (change, format!("network {name} on node {node}"), name)
        }
        NetworkCommand::Connect {
            aliases,
            node,
            network,
            container,
        } => {
            let what = format!("network {network} or container {container} on node {node}");
            let done = container.clone();
            let connect = Connect {
                network,
                container,
                aliases,
            };
            (client.call(&node, &connect).await?, what, done)
        }
        NetworkCommand::Disconnect {
            force,
            node,
            network,
            container,
        } => {
            let what = format!("network {network} or container {container} on node {node}");
            let done = container.clone();
            let disconnect = Disconnect {
                network,
                container,
                force,
            };
            (client.call(&node, &disconnect).await?, what, done)
        }
    };
    if change == Change::NotFound {
        return Err(CliError::NotThere(format!(
            "there is no {what}; `hub network ls` and `hub ps -a` list those there are"
        )));
    }
    context.print(&change, |_| done)?;
    Ok(0)
}

fn networks(found: &[Network]) -> String {
    let rows: Vec<_> = found
        .iter()
        .map(|network| {
            [
                network.id.chars().take(12).collect(),
                network.name.clone(),
                network.driver.clone(),
                if network.internal { "yes" } else { "no" }.to_owned(),
            ]
        })
        .collect();
    table(["NETWORK ID", "NAME", "DRIVER", "INTERNAL"], &rows)
}
