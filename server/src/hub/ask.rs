//! Asking something of a node: one operation, and honest answers about whether it began.

use std::time::Duration;

use bytes::Bytes;
use hub_ledger::{Node, Timestamp};
use hub_protocol::NodeName;
use hub_protocol::kind::{Failure, Request, exec};
use hub_protocol::outcome::Outcome;
use hub_quic::operation::{Answer, Ended, Operation};
use hub_quic::session::OpenError;
use tokio::time::timeout;

use super::Hub;

/// How long an agent may take to say whether it begins. Longer than Docker's own worst case for the
/// steps of an exec, about 150 s, so that whoever is slow still says so itself.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(180);

/// Something asked of a node that it did not do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// No node has this name or id.
    #[error("there is no node {node:?}; `hub node ls` shows those there are")]
    NoSuchNode {
        /// What was asked for.
        node: String,
    },
    /// The node has no session.
    #[error("node {node} is away{}; nothing was begun: try again when its agent is back", heard(*.last_seen))]
    Away {
        /// Its name.
        node: NodeName,
        /// When it was last heard of.
        last_seen: Option<Timestamp>,
    },
    /// The node was revoked.
    #[error("node {node} was revoked: nothing runs on it any more")]
    Revoked {
        /// Its name.
        node: NodeName,
    },
    /// All the operations that the node allows are under way.
    #[error("node {node} is busy: all the operations it allows are under way; try again later")]
    Busy {
        /// Its name.
        node: NodeName,
    },
    /// The agent said no.
    #[error("node {node}: {failure}")]
    Failed {
        /// The node's name.
        node: NodeName,
        /// The agent's reason.
        failure: Failure,
    },
    /// The node went silent after it was asked, or gave no answer within [`ANSWER_TIMEOUT`].
    #[error("node {node} went silent ({reason}): what was asked may have begun")]
    Unknown {
        /// The node's name.
        node: NodeName,
        /// What became of the operation.
        reason: String,
    },
    /// The ledger can't answer.
    #[error("the ledger: {0}")]
    Ledger(String),
}

fn heard(last_seen: Option<Timestamp>) -> String {
    last_seen.map_or_else(
        || " and was never here".into(),
        |seen| format!(", last heard of at {seen}"),
    )
}

impl AskError {
    /// Whether the same request may succeed later without anybody changing anything. Not where it
    /// may have begun: whoever repeats on its own must not start it twice.
    pub fn retry_helps(&self) -> bool {
        match self {
            Self::NoSuchNode { .. } | Self::Revoked { .. } | Self::Unknown { .. } => false,
            Self::Failed { failure, .. } => failure.retry,
            Self::Away { .. } | Self::Busy { .. } | Self::Ledger(_) => true,
        }
    }

    /// Whether nothing can have happened on the node.
    pub fn not_started(&self) -> bool {
        !matches!(self, Self::Unknown { .. })
    }
}

/// Why an operation that was opened is not known to run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotBegun {
    /// The agent said no: nothing has happened.
    #[error("{0}")]
    Failed(Failure),
    /// It said nothing for this long, and may have begun.
    #[error("no answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The operation ended without an answer, and may have begun.
    #[error("{0}")]
    Ended(Ended),
}

/// An operation that an agent has begun.
#[derive(Debug)]
pub struct Begun {
    /// The operation.
    pub operation: Operation,
    /// The node's name.
    pub node: NodeName,
    /// The body of its `Accepted`.
    pub accepted: Bytes,
}

/// Waits until an agent has begun an operation, for `patience` at most.
pub(crate) async fn begun(operation: &Operation, patience: Duration) -> Result<Bytes, NotBegun> {
    match timeout(patience, operation.answer()).await {
        Ok(Ok(Answer::Accepted(body))) => Ok(body),
        Ok(Ok(Answer::Failed(failure))) => Err(NotBegun::Failed(failure)),
        Ok(Err(ended)) => Err(NotBegun::Ended(ended)),
        Err(_) => Err(NotBegun::Silent(patience)),
    }
}

impl Hub {
    /// The node of this name or id, which is not revoked.
    ///
    /// # Errors
    /// There is none.
    pub async fn known(&self, node: &str) -> Result<Node, AskError> {
        match self.find(node).await {
            Ok(Some(found)) if found.revoked.is_some() => {
                Err(AskError::Revoked { node: found.name })
            }
            Ok(Some(found)) => Ok(found),
            Ok(None) => Err(AskError::NoSuchNode {
                node: node.to_owned(),
            }),
            Err(error) => Err(AskError::Ledger(error.to_string())),
        }
    }

    /// Runs a command on a node: gives the operation once the agent has begun it.
    ///
    /// # Errors
    /// See [`AskError`]: only after [`AskError::Unknown`] may it be running.
    pub async fn ask_exec(&self, node: &str, open: exec::Open) -> Result<Operation, AskError> {
        let begun = self.ask(node, &open).await.answered()?;
        Ok(begun.operation)
    }

    /// Asks something of a node: gives the operation once the agent has begun it.
    pub async fn ask<R: Request>(&self, node: &str, request: &R) -> Outcome<Begun, AskError> {
        let found = match self.find(node).await {
            Ok(Some(found)) => found,
            Ok(None) => {
                return Outcome::NotStarted(AskError::NoSuchNode {
                    node: node.to_owned(),
                });
            }
            Err(error) => return Outcome::NotStarted(AskError::Ledger(error.to_string())),
        };
        let session = self.inner.sessions.of(&found.id, found.revoked.is_some());
        let node = found.name;
        if found.revoked.is_some() {
            return Outcome::NotStarted(AskError::Revoked { node });
        }
        let Some(session) = session else {
            let last_seen = found.last_seen;
            return Outcome::NotStarted(AskError::Away { node, last_seen });
        };
        let operation = match session.request(request).await {
            Ok(operation) => operation,
            Err(OpenError::Busy) => return Outcome::NotStarted(AskError::Busy { node }),
            Err(OpenError::Lost(reason)) => {
                tracing::info!(%node, %reason, "lost before anything was asked of it");
                let last_seen = found.last_seen;
                return Outcome::NotStarted(AskError::Away { node, last_seen });
            }
        };
        match begun(&operation, ANSWER_TIMEOUT).await {
            Ok(accepted) => Outcome::Answered(Begun {
                operation,
                node,
                accepted,
            }),
            Err(NotBegun::Failed(failure)) => {
                Outcome::NotStarted(AskError::Failed { node, failure })
            }
            Err(silence) => Outcome::Unknown(AskError::Unknown {
                node,
                reason: silence.to_string(),
            }),
        }
    }
}
