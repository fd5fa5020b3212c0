//! Exposures: the ports behind agents that browsers may reach, by token or by name.
//!
//! An agent connects only to ports that were exposed on it. Every change of a node's exposures
//! moves the node's targets revision by one, and the agent is sent [`Targets`]: of two lists the
//! one with the higher revision holds.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use hub_protocol::{NodeId, NodeName};
use serde::{Deserialize, Serialize};

use crate::node::Node;
use crate::time::Timestamp;

/// How many exposures one node may have, so that a list of targets stays a small message.
pub const MAX_PER_NODE: usize = 1024;

/// Identifies an exposure. Counted from 1; a removed one's number is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExposureId(pub u64);

impl fmt::Display for ExposureId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The hash of the token in an exposure's URL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExposureTokenHash(pub [u8; 32]);

/// Its first bytes: enough to tell tokens apart in a log.
impl fmt::Debug for ExposureTokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4]
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("…")
    }
}

/// The name of an exposure: a DNS label, `[a-z0-9-]`, 1 to 63 characters, with `-` neither first
/// nor last. It becomes the first label of a host name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ExposureName(String);

impl ExposureName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text that is no exposure name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no exposure name: it takes 1 to 63 of a-z 0-9 -, and - neither first nor last"
)]
pub struct ExposureNameError {
    text: String,
}

impl FromStr for ExposureName {
    type Err = ExposureNameError;

    fn from_str(text: &str) -> Result<Self, ExposureNameError> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let well_formed = (1..=63).contains(&text.len())
            && text.bytes().all(allowed)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if well_formed {
            Ok(Self(text.to_owned()))
        } else {
            // Anybody may choose the text; an error must not become a way to fill a log.
            Err(ExposureNameError {
                text: text.chars().take(80).collect(),
            })
        }
    }
}

impl TryFrom<String> for ExposureName {
    type Error = ExposureNameError;

    fn try_from(text: String) -> Result<Self, ExposureNameError> {
        text.parse()
    }
}

impl From<ExposureName> for String {
    fn from(name: ExposureName) -> Self {
        name.0
    }
}

impl fmt::Display for ExposureName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for ExposureName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What an operator asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewExposure {
    /// The node that the port is reached from.
    pub node: NodeId,
    /// The TCP port: 1 to 65535.
    pub port: u16,
    /// The name, if it is to have one; no other exposure has it.
    pub name: Option<ExposureName>,
    /// The hash of its token.
    pub token: ExposureTokenHash,
}

/// An exposure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exposure {
    /// Its number.
    pub id: ExposureId,
    /// The node that the port is reached from.
    pub node: NodeId,
    /// The TCP port: 1 to 65535.
    pub port: u16,
    /// Its name, if it has one.
    pub name: Option<ExposureName>,
    /// The hash of its token.
    pub token: ExposureTokenHash,
    /// When it was created.
    pub created: Timestamp,
}

/// The ports that a node's agent may connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Targets {
    /// Counts the changes: the list with the higher revision holds.
    pub revision: u64,
    /// TCP ports, in ascending order, each once.
    pub ports: Vec<u16>,
}

/// A change that stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExposureChange {
    /// The exposure that was created or removed.
    pub exposure: Exposure,
    /// Its node, with the next revision.
    pub node: Node,
    /// What the node's agent is to be told.
    pub targets: Targets,
}

/// The rows that [`create`] decides on.
#[derive(Debug, Clone, Default)]
pub struct CreateRows {
    /// The node.
    pub node: Option<Node>,
    /// All exposures of that node.
    pub of_node: Vec<Exposure>,
    /// The exposure of that name, on whatever node.
    pub same_name: Option<Exposure>,
}

/// Why an exposure is not created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CreateExposureRefusal {
    /// No such node.
    #[error("there is no node {node}; look for it in the list of nodes")]
    UnknownNode {
        /// The id asked for.
        node: NodeId,
    },
    /// The node was revoked.
    #[error("node {name} was revoked at {revoked}; nothing can be exposed on it")]
    Revoked {
        /// The node's name.
        name: NodeName,
        /// When it was revoked.
        revoked: Timestamp,
    },
    /// Port 0 cannot be connected to.
    #[error("0 is no port to connect to; choose one from 1 to 65535")]
    PortZero,
    /// Another exposure has this name.
    #[error("the name {name} is that of exposure {holder}; choose another, or remove that one")]
    NameTaken {
        /// The name.
        name: ExposureName,
        /// The exposure that has it.
        holder: ExposureId,
    },
    /// The node has as many as it may have.
    #[error("node {name} has {MAX_PER_NODE} exposures, which is the most; remove one first")]
    TooMany {
        /// The node's name.
        name: NodeName,
    },
}

/// Creates an exposure under the number `id`, which was never used before.
pub fn create(
    rows: CreateRows,
    id: ExposureId,
    new: NewExposure,
    now: Timestamp,
) -> Result<ExposureChange, CreateExposureRefusal> {
    let Some(node) = rows.node else {
        return Err(CreateExposureRefusal::UnknownNode { node: new.node });
    };
    if let Some(revoked) = node.revoked {
        return Err(CreateExposureRefusal::Revoked {
            name: node.name,
            revoked,
        });
    }
    if new.port == 0 {
        return Err(CreateExposureRefusal::PortZero);
    }
    if let (Some(name), Some(holder)) = (&new.name, rows.same_name) {
        return Err(CreateExposureRefusal::NameTaken {
            name: name.clone(),
            holder: holder.id,
        });
    }
    let mut of_node = rows.of_node;
    if of_node.len() >= MAX_PER_NODE {
        return Err(CreateExposureRefusal::TooMany { name: node.name });
    }
    let NewExposure {
        node: of,
        port,
        name,
        token,
    } = new;
    let exposure = Exposure {
        id,
        node: of,
        port,
        name,
        token,
        created: now,
    };
    of_node.push(exposure.clone());
    Ok(change(node, &of_node, exposure))
}

/// An exposure that does not exist cannot be removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no exposure {id}; look for it in the list of exposures")]
pub struct RemoveExposureRefusal {
    /// The number asked for.
    pub id: ExposureId,
}

/// Removes an exposure. `of_node` are all exposures of the node that has it.
pub fn remove(
    node: Option<Node>,
    mut of_node: Vec<Exposure>,
    id: ExposureId,
) -> Result<ExposureChange, RemoveExposureRefusal> {
    let refusal = RemoveExposureRefusal { id };
    let node = node.ok_or_else(|| refusal.clone())?;
    let at = of_node
        .iter()
        .position(|exposure| exposure.id == id)
        .ok_or(refusal)?;
    let exposure = of_node.remove(at);
    Ok(change(node, &of_node, exposure))
}

fn change(node: Node, of_node: &[Exposure], exposure: Exposure) -> ExposureChange {
    let node = Node {
        targets_revision: node.targets_revision + 1,
        ..node
    };
    ExposureChange {
        targets: targets(&node, of_node),
        exposure,
        node,
    }
}

/// The ports that a node's agent may connect to. `of_node` are all exposures of that node.
pub fn targets(node: &Node, of_node: &[Exposure]) -> Targets {
    let ports: BTreeSet<u16> = of_node.iter().map(|exposure| exposure.port).collect();
    Targets {
        revision: node.targets_revision,
        ports: ports.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_labels() {
        for text in ["a", "shop-4", "0", &"x".repeat(63)] {
            assert!(text.parse::<ExposureName>().is_ok(), "{text}");
        }
        for text in ["", "-a", "a-", "A", "a.b", "a_b", "ä", &"x".repeat(64)] {
            assert!(text.parse::<ExposureName>().is_err(), "{text}");
        }
    }
}
