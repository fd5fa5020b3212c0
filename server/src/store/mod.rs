//! The ledger on disk.
//!
//! A [`Store`] loads the rows that a rule of `hub-ledger` needs, lets the rule decide, writes what
//! it returned and commits, all in one transaction that took the write lock first; the caller acts
//! on the effects afterwards. It decides nothing itself.
//!
//! ```text
//! caller --command, now--> Store --rows--> rule --rows + effects--> Store --commit--> effects
//! ```
//!
//! The file is SQLite with a write-ahead log. It lives on a thread of its own, or on the caller in
//! simulated time ([`Execution`]); both look the same from outside. Several programs may use one
//! file.

mod error;
mod executor;
mod exposures;
mod rows;
mod sqlite;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod conformance;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hub_ledger::node::{self, LocalRows, RegisterRows};
use hub_ledger::token::RedeemRows;
use hub_ledger::{
    Certificate, Join, JoinToken, JoinTokenHash, Joined, JoinedHow, NewCertificate, NewToken, Node,
    Process, Registered, Registration, Timestamp, certificate, token,
};
use hub_protocol::{Deployment, Epoch, NodeId, NodeName};
use rusqlite::{Connection, TransactionBehavior};

pub use error::StoreError;
pub use executor::Execution;
use executor::Executor;
use rows::Rows;
pub use rows::{Home, Located};

/// The CA, as the ledger keeps it.
#[derive(Clone, PartialEq, Eq)]
pub struct CaRecord {
    /// Its certificate, DER.
    pub certificate: Vec<u8>,
    /// Its private key, sealed under the hub's secret.
    pub sealed_key: Vec<u8>,
}

/// Without the key, sealed as it is.
impl fmt::Debug for CaRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaRecord")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// A handle of the ledger. Cheap to clone; clones share one connection.
///
/// Every method is one transaction and fails with a [`StoreError`]: one of the ledger itself, or
/// the refusal of the rule that it names. A future that is dropped may have been carried out.
#[derive(Clone)]
pub struct Store {
    executor: Executor,
    deployment: Deployment,
    revision: Arc<AtomicU64>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("deployment", &self.deployment)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the ledger at `path`, or creates it, readable by its owner alone. A new ledger becomes
    /// that of the deployment `fresh`, drawn at random by the caller; an old one keeps its own.
    pub async fn open(
        path: impl Into<PathBuf>,
        execution: Execution,
        fresh: Deployment,
    ) -> Result<Self, StoreError> {
        let path = path.into();
        let open = move || sqlite::open(&path, fresh);
        let (executor, deployment) = Executor::start(execution, open).await?;
        Ok(Self {
            executor,
            deployment,
            revision: Arc::default(),
        })
    }

    /// A ledger in memory, gone with its last handle.
    pub async fn in_memory(execution: Execution, fresh: Deployment) -> Result<Self, StoreError> {
        let open = move || sqlite::open_in_memory(fresh);
        let (executor, deployment) = Executor::start(execution, open).await?;
        Ok(Self {
            executor,
            deployment,
            revision: Arc::default(),
        })
    }

    /// Closes the ledger once every call before this one is done. All handles find it closed.
    pub async fn close(self) -> Result<(), StoreError> {
        self.executor.close().await
    }

    /// Counts what was written through this handle and its clones. Whatever was read at an earlier
    /// revision may not be so any more; what other programs write is not counted.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// The deployment that this ledger is of.
    pub fn deployment(&self) -> Deployment {
        self.deployment
    }

    /// Creates a join token, and forgets those that expired long ago.
    pub async fn create_token(
        &self,
        hash: JoinTokenHash,
        new: NewToken,
        now: Timestamp,
    ) -> Result<JoinToken, StoreError> {
        self.write(move |rows| {
            let token = token::create(hash, new, now)?;
            rows.forget_tokens_expired_before(now.saturating_sub(token::KEPT_AFTER_EXPIRY))?;
            rows.add_token(&token)?;
            Ok(token)
        })
        .await
    }

    /// Redeems a join token: admits a node, or finds the one that this name and key already have.
    pub async fn join(&self, join: Join, now: Timestamp) -> Result<Joined, StoreError> {
        self.write(move |rows| {
            let loaded = RedeemRows {
                token: rows.token(join.token)?,
                named: rows.node_named(&join.name)?,
                keyed: rows.node_keyed(join.key)?,
            };
            let joined = token::redeem(loaded, &join, now)?;
            if let JoinedHow::Admitted(token) = &joined.how {
                rows.set_token_uses(token)?;
                rows.put_node(&joined.node)?;
            }
            Ok(joined)
        })
        .await
    }

    /// Records a certificate that the CA signed; only then may it leave the hub. Forgets those of
    /// the node that expired long ago.
    pub async fn record_certificate(
        &self,
        new: NewCertificate,
        now: Timestamp,
    ) -> Result<Certificate, StoreError> {
        self.write(move |rows| {
            let loaded = certificate::RecordRows {
                node: rows.node(new.node)?,
                same_serial: rows.certificate(new.serial)?,
                same_key: rows.certificates_of_key(new.key)?,
            };
            let certificate = certificate::record(&loaded, &new, now)?;
            let then = now.saturating_sub(certificate::KEPT_AFTER_EXPIRY);
            rows.forget_certificates_expired_before(new.node, then)?;
            rows.add_certificate(&certificate)?;
            Ok(certificate)
        })
        .await
    }

    /// Registers an agent that said Hello.
    pub async fn register(
        &self,
        registration: Registration,
        now: Timestamp,
    ) -> Result<Registered, StoreError> {
        self.write(move |rows| {
            let loaded = RegisterRows {
                node: rows.node(registration.node)?,
                certificates: rows.certificates_of_key(registration.key)?,
                superseded: rows
                    .is_superseded(registration.node, registration.process.incarnation)?,
            };
            let registered = node::register(loaded, &registration, now)?;
            registers(rows, &registered)?;
            Ok(registered)
        })
        .await
    }

    /// Makes the hub's own machine a node of this name, or finds that it is.
    pub async fn ensure_local(
        &self,
        name: NodeName,
        new_id: NodeId,
        now: Timestamp,
    ) -> Result<Node, StoreError> {
        self.write(move |rows| {
            let loaded = LocalRows {
                named: rows.node_named(&name)?,
                local: rows.local_node()?,
            };
            let node = node::ensure_local(loaded, name, new_id, now)?;
            rows.put_node(&node)?;
            Ok(node)
        })
        .await
    }

    /// Registers the agent of the hub's own machine.
    pub async fn register_local(
        &self,
        id: NodeId,
        process: Process,
        now: Timestamp,
    ) -> Result<Registered, StoreError> {
        self.write(move |rows| {
            let superseded = rows.is_superseded(id, process.incarnation)?;
            let registered = node::register_local(rows.node(id)?, superseded, id, &process, now)?;
            registers(rows, &registered)?;
            Ok(registered)
        })
        .await
    }

    /// Notes when these registrations were last heard of: many in one commit, so that a fleet's
    /// heartbeats cost one write. Those that are not current any more are passed over.
    pub async fn seen(&self, sightings: Vec<(NodeId, Epoch, Timestamp)>) -> Result<(), StoreError> {
        self.write(move |rows| {
            for (id, epoch, heard) in sightings {
                let known = rows.node(id)?;
                if let Some(node) = known.and_then(|node| node::seen(&node, epoch, heard)) {
                    rows.put_node(&node)?;
                }
            }
            Ok(())
        })
        .await
    }

    /// Notes that the session of this registration ended; `last_seen` is when its agent was last
    /// heard of. `false`: a newer registration stands, and nothing changed.
    pub async fn mark_away(
        &self,
        id: NodeId,
        epoch: Epoch,
        last_seen: Timestamp,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        self.write(move |rows| {
            let known = rows.node(id)?;
            let away = known.and_then(|node| node::away(&node, epoch, last_seen, now));
            if let Some(node) = &away {
                rows.put_node(node)?;
            }
            Ok(away.is_some())
        })
        .await
    }

    /// Marks every node away: for the start of a hub that alone uses this ledger, when whatever
    /// its predecessor left as connected cannot be.
    pub async fn mark_all_away(&self, now: Timestamp) -> Result<(), StoreError> {
        self.write(move |rows| {
            for node in rows.connected_nodes()? {
                let last_seen = node.last_seen.unwrap_or(node.created);
                if let Some(node) = node::away(&node, node.epoch, last_seen, now) {
                    rows.put_node(&node)?;
                }
            }
            Ok(())
        })
        .await
    }

    /// Revokes a node for good. The caller ends its session.
    pub async fn revoke_node(&self, id: NodeId, now: Timestamp) -> Result<Node, StoreError> {
        self.write(move |rows| {
            let node = node::revoke(rows.node(id)?, id, now)?;
            rows.put_node(&node)?;
            Ok(node)
        })
        .await
    }

    /// All nodes, by name.
    pub async fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        self.read(|rows| Ok(rows.nodes()?)).await
    }

    /// The node of this id.
    pub async fn node(&self, id: NodeId) -> Result<Option<Node>, StoreError> {
        self.read(move |rows| Ok(rows.node(id)?)).await
    }

    /// The node of this name.
    pub async fn node_named(&self, name: NodeName) -> Result<Option<Node>, StoreError> {
        self.read(move |rows| Ok(rows.node_named(&name)?)).await
    }

    /// The CA, if there is one.
    pub async fn ca(&self) -> Result<Option<CaRecord>, StoreError> {
        self.read(|rows| Ok(rows.ca()?)).await
    }

    /// Keeps this CA if there is none. Returns the one that there is now: of hubs that race to
    /// create it, all go on with the winner's.
    pub async fn put_ca_if_absent(&self, ca: CaRecord) -> Result<CaRecord, StoreError> {
        self.write(move |rows| {
            if let Some(standing) = rows.ca()? {
                return Ok(standing);
            }
            rows.add_ca(&ca)?;
            Ok(ca)
        })
        .await
    }

    /// One transaction that took the write lock before it read anything.
    async fn write<T: Send + 'static>(
        &self,
        decide: impl FnOnce(&Rows<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let revision = self.revision.clone();
        self.executor
            .run(move |connection| {
                let done = transact(connection, TransactionBehavior::Immediate, decide);
                // Before anybody learns that it is done. One that failed may be in the file.
                revision.fetch_add(1, Ordering::Release);
                done
            })
            .await
    }

    /// One transaction that sees one state of all rows.
    async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Rows<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.executor
            .run(move |connection| transact(connection, TransactionBehavior::Deferred, look))
            .await
    }
}

fn transact<T>(
    connection: &mut Connection,
    behavior: TransactionBehavior,
    work: impl FnOnce(&Rows<'_>) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    // Dropped without a commit, it is rolled back.
    let transaction = connection.transaction_with_behavior(behavior)?;
    let done = work(&Rows(&transaction))?;
    transaction.commit()?;
    Ok(done)
}

/// Writes down a registration that stands.
fn registers(rows: &Rows<'_>, registered: &Registered) -> rusqlite::Result<()> {
    let node = &registered.node;
    rows.put_node(node)?;
    if let Some(incarnation) = registered.superseded {
        rows.supersede(node.id, incarnation, node.epoch, node::SUPERSEDED_KEPT)?;
    }
    Ok(())
}
