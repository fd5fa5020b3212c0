//! Volumes of a node.

use std::collections::BTreeMap;

use clap::Subcommand;
use hub_protocol::kind::call::Change;
use hub_protocol::kind::call::volume::{Ensure, List, Remove, Volume};

use super::show::time;
use super::table::table;
use super::units::parse_pair;
use super::{CliError, Context};

#[derive(Debug, Subcommand)]
pub(super) enum VolumeCommand {
    /// List the volumes of a node
    Ls {
        /// Only names that begin so
        #[arg(long)]
        prefix: Option<String>,
        /// The node's name or id
        node: String,
    },
    /// Make sure that a volume is there
    Create {
        /// Add a label, where it is made
        #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_pair)]
        labels: Vec<(String, String)>,
        /// The node's name or id
        node: String,
        /// The volume's name
        name: String,
    },
    /// Remove a volume that no container uses
    Rm {
        /// The node's name or id
        node: String,
        /// The volume's name
        name: String,
    },
}

pub(super) async fn run(context: &Context, command: VolumeCommand) -> Result<i32, CliError> {
    let client = context.client()?;
    match command {
        VolumeCommand::Ls { prefix, node } => {
            let found = client.call(&node, &List { prefix }).await?;
            context.print(&found, |found| volumes(found))?;
        }
        VolumeCommand::Create { labels, node, name } => {
            let labels = BTreeMap::from_iter(labels);
            let volume = client.call(&node, &Ensure { name, labels }).await?;
            context.print(&volume, |volume| volume.name.clone())?;
        }
        VolumeCommand::Rm { node, name } => {
            let change = client.call(&node, &Remove { name: name.clone() }).await?;
            if change == Change::NotFound {
                return Err(CliError::NotThere(format!(
                    "there is no volume {name} on node {node}; `hub volume ls {node}` lists those \
                     there are"
                )));
            }
            context.print(&change, |_| name)?;
        }
    }
    Ok(0)
}

fn volumes(found: &[Volume]) -> String {
    let rows: Vec<_> = found
        .iter()
        .map(|volume| {
            let created = volume.created.as_deref().map_or_else(|| "-".into(), time);
            [volume.name.clone(), volume.driver.clone(), created]
        })
        .collect();
    table(["NAME", "DRIVER", "CREATED"], &rows)
}
