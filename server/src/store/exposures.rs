//! What the ledger is asked about exposures.

use std::collections::BTreeMap;

use hub_ledger::exposure::{self, CreateRows, Edit, ExposureEdit, OnNode, Rotation, UpdateRows};
use hub_ledger::{
    Exposure, ExposureChange, ExposureId, ExposureName, ExposureTokenHash, NewExposure, Protocol,
    Replica, Timestamp,
};
use hub_protocol::NodeId;
use hub_protocol::session::Targets;

use super::rows::{Located, Rows};
use super::{Store, StoreError};

impl Store {
    /// Creates an exposure. The effect is what the agents of its nodes are to be told.
    pub async fn create_exposure(
        &self,
        new: NewExposure,
        now: Timestamp,
    ) -> Result<ExposureChange, StoreError> {
        self.write(move |rows| {
            let loaded = CreateRows {
                nodes: rows.on_nodes(&new.replicas)?,
                ..rows.beside(new.name.as_ref(), new.protocol)?
            };
            let change = exposure::create(loaded, rows.next_exposure_id()?, new, now)?;
            rows.put_change(&change)?;
            Ok(change)
        })
        .await
    }

    /// Changes an exposure. The effect is what the agents of its nodes are to be told.
    pub async fn update_exposure(
        &self,
        id: ExposureId,
        edit: ExposureEdit,
    ) -> Result<ExposureChange, StoreError> {
        self.write(move |rows| {
            let loaded = match rows.exposure(id)? {
                Some(exposure) => {
                    let mut replicas = exposure.replicas.clone();
                    if let Edit::Set(others) = &edit.replicas {
                        replicas.extend_from_slice(others);
                    }
                    let name = match &edit.name {
                        Edit::Set(name) => name.as_ref(),
                        Edit::Keep => exposure.name.as_ref(),
                    };
                    UpdateRows {
                        others: CreateRows {
                            nodes: rows.on_nodes(&replicas)?,
                            ..rows.beside(name, exposure.protocol)?
                        },
                        exposure: Some(exposure),
                    }
                }
                None => UpdateRows::default(),
            };
            let change = exposure::update(loaded, id, edit)?;
            rows.put_change(&change)?;
            Ok(change)
        })
        .await
    }

    /// Removes an exposure. The effect is what the agents of its nodes are to be told.
    pub async fn remove_exposure(&self, id: ExposureId) -> Result<ExposureChange, StoreError> {
        self.write(move |rows| {
            let exposure = rows.exposure(id)?;
            let nodes = match &exposure {
                Some(exposure) => rows.on_nodes(&exposure.replicas)?,
                None => BTreeMap::new(),
            };
            let change = exposure::remove(exposure, nodes, id)?;
            rows.remove_exposure(id)?;
            rows.put_told(&change)?;
            Ok(change)
        })
        .await
    }

    /// Gives an exposure a new token.
    pub async fn rotate_exposure_token(
        &self,
        id: ExposureId,
        rotation: Rotation,
        now: Timestamp,
    ) -> Result<Exposure, StoreError> {
        self.write(move |rows| {
            let exposure = exposure::rotate_token(rows.exposure(id)?, id, rotation, now)?;
            rows.put_exposure(&exposure)?;
            Ok(exposure)
        })
        .await
    }

    /// Takes an exposure its token.
    pub async fn revoke_exposure_token(&self, id: ExposureId) -> Result<Exposure, StoreError> {
        self.write(move |rows| {
            let exposure = exposure::revoke_token(rows.exposure(id)?, id)?;
            rows.put_exposure(&exposure)?;
            Ok(exposure)
        })
        .await
    }

    /// All exposures, oldest first.
    pub async fn exposures(&self) -> Result<Vec<Exposure>, StoreError> {
        self.read(|rows| Ok(rows.exposures()?)).await
    }

    /// All exposures with the nodes of their replicas, oldest first.
    pub async fn locate_all(&self) -> Result<Vec<Located>, StoreError> {
        self.read(|rows| Ok(rows.locate_all()?)).await
    }

    /// The exposure that the token of this hash opens now, with the nodes of its replicas.
    pub async fn locate_token(
        &self,
        token: ExposureTokenHash,
        now: Timestamp,
    ) -> Result<Option<Located>, StoreError> {
        self.read(move |rows| {
            let located = rows.locate_token(token)?;
            Ok(located.filter(|located| {
                let held = located.exposure.token;
                held.is_some_and(|held| held.admits(token, now))
            }))
        })
        .await
    }

    /// The exposure of this name, with the nodes of its replicas.
    pub async fn locate_name(&self, name: ExposureName) -> Result<Option<Located>, StoreError> {
        self.read(move |rows| Ok(rows.locate_name(&name)?)).await
    }

    /// The exposure of this number, with the nodes of its replicas.
    pub async fn locate(&self, id: ExposureId) -> Result<Option<Located>, StoreError> {
        self.read(move |rows| Ok(rows.locate(id)?)).await
    }

    /// The targets that a node's agent may connect to.
    pub async fn targets(&self, id: NodeId) -> Result<Targets, StoreError> {
        self.read(move |rows| {
            let node = rows.node(id)?.ok_or(StoreError::UnknownNode(id))?;
            Ok(exposure::targets(&node, &rows.exposures_of(id)?))
        })
        .await
    }
}

impl Rows<'_> {
    /// The nodes of these replicas, as far as there are such nodes, and what is exposed on them.
    fn on_nodes(&self, replicas: &[Replica]) -> rusqlite::Result<BTreeMap<NodeId, OnNode>> {
        let mut nodes = BTreeMap::new();
        for Replica { node: id, .. } in replicas {
            if !nodes.contains_key(id)
                && let Some(node) = self.node(*id)?
            {
                let exposures = self.exposures_of(*id)?;
                nodes.insert(*id, OnNode { node, exposures });
            }
        }
        Ok(nodes)
    }

    /// Whatever may be in the way of an exposure of this name and protocol, but for its nodes.
    fn beside(
        &self,
        name: Option<&ExposureName>,
        protocol: Protocol,
    ) -> rusqlite::Result<CreateRows> {
        Ok(CreateRows {
            nodes: BTreeMap::new(),
            same_name: match name {
                Some(name) => self.id_of_exposure_named(name)?,
                None => None,
            },
            listeners: if protocol.is_http() {
                Vec::new()
            } else {
                self.listeners(protocol.transport())?
            },
        })
    }

    fn put_change(&self, change: &ExposureChange) -> rusqlite::Result<()> {
        self.put_exposure(&change.exposure)?;
        self.put_told(change)
    }

    fn put_told(&self, change: &ExposureChange) -> rusqlite::Result<()> {
        let mut told = change.told.iter();
        told.try_for_each(|told| self.put_node(&told.node))
    }
}
