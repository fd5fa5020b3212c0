//! What may become of an exposure, beside the others that there are.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use hub_protocol::session::Targets;
use hub_protocol::target::{Selector, Target};
use hub_protocol::{NodeId, NodeName};

use super::shape::{self, Misshapen, overlap};
use super::token::{self, NewExposureToken, Rotation};
use super::{
    Access, Edit, Exposure, ExposureId, ExposureName, MAX_LIST, MAX_PER_NODE, Protocol, Replica,
    Settings, SettingsEdit,
};
use crate::node::Node;
use crate::time::Timestamp;

/// What an operator asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewExposure {
    /// The name, if it is to have one.
    pub name: Option<ExposureName>,
    /// The token, if it is to have one.
    pub token: Option<NewExposureToken>,
    /// Who gets in.
    pub access: Access,
    /// What the targets speak.
    pub protocol: Protocol,
    /// Where its requests go.
    pub replicas: Vec<Replica>,
    /// For TCP and UDP, where the hub listens.
    pub listen: Option<SocketAddr>,
    /// Its limits.
    pub settings: Settings,
}

/// What an operator changes. The token has [rules of its own](rotate_token).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExposureEdit {
    /// The name.
    pub name: Edit<Option<ExposureName>>,
    /// Who gets in.
    pub access: Edit<Access>,
    /// What the targets speak: another version of HTTP, where they speak that.
    pub protocol: Edit<Protocol>,
    /// Where its requests go.
    pub replicas: Edit<Vec<Replica>>,
    /// For TCP and UDP, where the hub listens.
    pub listen: Edit<Option<SocketAddr>>,
    /// The limits.
    pub settings: SettingsEdit,
}

/// A node and what is exposed on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnNode {
    /// The node.
    pub node: Node,
    /// All exposures with a replica on it.
    pub exposures: Vec<Exposure>,
}

/// The rows that [`create`] decides on.
#[derive(Debug, Clone, Default)]
pub struct CreateRows {
    /// The nodes of the replicas, as far as there are such nodes.
    pub nodes: BTreeMap<NodeId, OnNode>,
    /// The exposure of that name.
    pub same_name: Option<ExposureId>,
    /// Where the hub listens for exposures of the same transport.
    pub listeners: Vec<(ExposureId, SocketAddr)>,
}

/// The rows that [`update`] decides on.
#[derive(Debug, Clone, Default)]
pub struct UpdateRows {
    /// The exposure.
    pub exposure: Option<Exposure>,
    /// Those that [`create`] would decide on for the exposure as it is to be, with the nodes of the
    /// replicas that it had.
    pub others: CreateRows,
}

/// A change that stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExposureChange {
    /// The exposure as it is now; one that was removed, as it was.
    pub exposure: Exposure,
    /// The nodes whose lists changed.
    pub told: Vec<Told>,
}

/// A node whose agent is to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// The node, with the next revision.
    pub node: Node,
    /// Its list.
    pub targets: Targets,
}

/// Why an exposure is not created, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExposureRefusal {
    /// No such exposure.
    #[error("there is no exposure {id}; look for it in the list of exposures")]
    Unknown {
        /// The number asked for.
        id: ExposureId,
    },
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
    /// Another exposure has this name.
    #[error("the name {name} is that of exposure {holder}; choose another, or remove that one")]
    NameTaken {
        /// The name.
        name: ExposureName,
        /// The exposure that has it.
        holder: ExposureId,
    },
    /// The hub listens there for another exposure.
    #[error(
        "the hub listens on {taken} for exposure {holder}, which leaves no room for {address}; choose another port, or remove that one"
    )]
    AddressTaken {
        /// What was asked for.
        address: SocketAddr,
        /// Where the other one is.
        taken: SocketAddr,
        /// The exposure that has it.
        holder: ExposureId,
    },
    /// The node has as many as it may have.
    #[error(
        "node {name} has {MAX_PER_NODE} replicas of exposures, which is the most; remove some first"
    )]
    TooMany {
        /// The node's name.
        name: NodeName,
    },
    /// The node's agent could not be told of all.
    #[error(
        "the containers exposed on node {name} have names and labels of more than {MAX_LIST} bytes in all, which is the most; remove some first"
    )]
    ListTooLong {
        /// The node's name.
        name: NodeName,
    },
    /// It is no exposure.
    #[error(transparent)]
    Misshapen(#[from] Misshapen),
}

/// Creates an exposure under the number `id`, which was never used before.
pub fn create(
    rows: CreateRows,
    id: ExposureId,
    new: NewExposure,
    now: Timestamp,
) -> Result<ExposureChange, ExposureRefusal> {
    let token = new.token.map(|new| token::first(new, now)).transpose();
    let exposure = Exposure {
        id,
        name: new.name,
        token: token.map_err(Misshapen::from)?,
        access: new.access,
        protocol: new.protocol,
        replicas: new.replicas,
        listen: new.listen,
        settings: new.settings,
        created: now,
    };
    shape::check(&exposure)?;
    shape::check_ways_in(&exposure)?;
    among(&rows, &exposure)?;
    changed(rows.nodes, None, Some(&exposure)).map(|told| ExposureChange { exposure, told })
}

/// Changes an exposure. A change that leaves the replicas as they are concerns no agent.
pub fn update(
    rows: UpdateRows,
    id: ExposureId,
    edit: ExposureEdit,
) -> Result<ExposureChange, ExposureRefusal> {
    let before = rows.exposure.ok_or(ExposureRefusal::Unknown { id })?;
    let mut after = before.clone();
    // One that lost its token to a revocation may be changed as it is, and then made reachable.
    let ways_in = matches!(edit.name, Edit::Set(None)) || matches!(edit.access, Edit::Set(_));
    edit.name.apply(&mut after.name);
    edit.access.apply(&mut after.access);
    edit.protocol.apply(&mut after.protocol);
    edit.replicas.apply(&mut after.replicas);
    edit.listen.apply(&mut after.listen);
    edit.settings.apply(&mut after.settings);
    let kind = |protocol: Protocol| (protocol.is_http(), protocol.transport());
    if kind(before.protocol) != kind(after.protocol) {
        return Err(Misshapen::OtherKind(id).into());
    }
    shape::check(&after)?;
    if ways_in {
        shape::check_ways_in(&after)?;
    }
    among(&rows.others, &after)?;
    let told = changed(rows.others.nodes, Some(&before), Some(&after))?;
    Ok(ExposureChange {
        exposure: after,
        told,
    })
}

/// Removes an exposure. `nodes` are those of its replicas.
pub fn remove(
    exposure: Option<Exposure>,
    nodes: BTreeMap<NodeId, OnNode>,
    id: ExposureId,
) -> Result<ExposureChange, ExposureRefusal> {
    let exposure = exposure.ok_or(ExposureRefusal::Unknown { id })?;
    changed(nodes, Some(&exposure), None).map(|told| ExposureChange { exposure, told })
}

/// Gives an exposure a new token in the place of the one that it has, if it has one.
pub fn rotate_token(
    exposure: Option<Exposure>,
    id: ExposureId,
    rotation: Rotation,
    now: Timestamp,
) -> Result<Exposure, ExposureRefusal> {
    let mut exposure = exposure.ok_or(ExposureRefusal::Unknown { id })?;
    let token = token::rotate(exposure.token, rotation, now).map_err(Misshapen::from)?;
    exposure.token = Some(token);
    shape::check(&exposure)?;
    Ok(exposure)
}

/// Takes an exposure its token, and the one before that: neither gets in any more. The name stays,
/// and with it whoever gets in by that. Doing it again changes nothing.
pub fn revoke_token(
    exposure: Option<Exposure>,
    id: ExposureId,
) -> Result<Exposure, ExposureRefusal> {
    let exposure = exposure.ok_or(ExposureRefusal::Unknown { id })?;
    Ok(Exposure {
        token: None,
        ..exposure
    })
}

/// The targets that a node's agent may connect to. `exposures` are all with a replica on it.
pub fn targets(node: &Node, exposures: &[Exposure]) -> Targets {
    let all = exposures.iter().flat_map(|held| on(held, node.id));
    let targets: BTreeSet<&Target> = all.collect();
    Targets {
        revision: node.targets_revision,
        targets: targets.into_iter().cloned().collect(),
    }
}

/// The targets of an exposure on a node.
fn on(exposure: &Exposure, node: NodeId) -> impl Iterator<Item = &Target> {
    let replicas = exposure.replicas.iter();
    replicas
        .filter(move |replica| replica.node == node)
        .map(|replica| &replica.target)
}

/// Whether there is room for it beside the others.
fn among(rows: &CreateRows, exposure: &Exposure) -> Result<(), ExposureRefusal> {
    if let (Some(name), Some(holder)) = (&exposure.name, rows.same_name)
        && holder != exposure.id
    {
        let name = name.clone();
        return Err(ExposureRefusal::NameTaken { name, holder });
    }
    let Some(address) = exposure.listen else {
        return Ok(());
    };
    let others = rows.listeners.iter();
    let mut others = others.filter(|(holder, _)| *holder != exposure.id);
    match others.find(|(_, taken)| overlap(*taken, address)) {
        Some((holder, taken)) => Err(ExposureRefusal::AddressTaken {
            address,
            taken: *taken,
            holder: *holder,
        }),
        None => Ok(()),
    }
}

/// The nodes whose lists are others once `before` is `after`.
fn changed(
    nodes: BTreeMap<NodeId, OnNode>,
    before: Option<&Exposure>,
    after: Option<&Exposure>,
) -> Result<Vec<Told>, ExposureRefusal> {
    let replicas = |exposure: Option<&Exposure>| {
        let replicas = exposure.map_or(&[][..], |exposure| &exposure.replicas);
        replicas.iter().cloned().collect::<BTreeSet<_>>()
    };
    let (old, new) = (replicas(before), replicas(after));
    let concerned: BTreeSet<NodeId> = old
        .symmetric_difference(&new)
        .map(|replica| replica.node)
        .collect();
    let gains: BTreeSet<NodeId> = new.difference(&old).map(|replica| replica.node).collect();
    let mut nodes = nodes;
    let mut told = Vec::with_capacity(concerned.len());
    for id in concerned {
        let Some(OnNode {
            node,
            mut exposures,
        }) = nodes.remove(&id)
        else {
            return Err(ExposureRefusal::UnknownNode { node: id });
        };
        exposures.retain(|held| Some(held.id) != before.map(|before| before.id));
        exposures.extend(after.cloned());
        if gains.contains(&id) {
            room_for_more(&node, &exposures)?;
        }
        let node = Node {
            targets_revision: node.targets_revision + 1,
            ..node
        };
        let targets = targets(&node, &exposures);
        told.push(Told { node, targets });
    }
    Ok(told)
}

/// Whether these may all be exposed on a node that gets another one.
fn room_for_more(node: &Node, exposures: &[Exposure]) -> Result<(), ExposureRefusal> {
    let name = || node.name.clone();
    if let Some(revoked) = node.revoked {
        let name = name();
        return Err(ExposureRefusal::Revoked { name, revoked });
    }
    let all = || exposures.iter().flat_map(|held| on(held, node.id));
    if all().count() > MAX_PER_NODE {
        return Err(ExposureRefusal::TooMany { name: name() });
    }
    if all().map(weight).sum::<usize>() > MAX_LIST {
        return Err(ExposureRefusal::ListTooLong { name: name() });
    }
    Ok(())
}

/// How long a target is on the wire at most, in bytes.
fn weight(target: &Target) -> usize {
    // Transport, port, and of a selector that there is one, which, and its length.
    const BARE: usize = 10;
    match &target.container {
        None => BARE,
        Some(Selector::Name(text) | Selector::Label(text)) => BARE + text.len(),
    }
}

#[cfg(test)]
mod tests;
