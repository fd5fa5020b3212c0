//! What can go wrong with the ledger.

use std::path::PathBuf;

use hub_ledger::{
    CreateTokenRefusal, ExposureRefusal, JoinRefusal, LocalRefusal, RecordRefusal, RegisterRefusal,
    RevokeRefusal,
};
use hub_protocol::NodeId;
use rusqlite::ErrorCode;

/// Why the ledger did not do what was asked. Nothing was changed, whichever it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Another connection held the ledger for too long, or too many calls wait for it.
    #[error("the ledger is busy: another program holds it, or its disk is slow; try again")]
    Busy,
    /// The file was written by a later release.
    #[error(
        "{path} has schema {found}, written by a newer hub; this program knows schemas up to \
         {known}. Run that release, or a newer one"
    )]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// Its schema version.
        found: i64,
        /// The newest schema version that this program knows.
        known: i64,
    },
    /// The file is something else. It was left as it is.
    #[error("{path} is no ledger of Hub: {reason}. It was left as it is; choose another path")]
    NotALedger {
        /// The file.
        path: PathBuf,
        /// What it is, or what is missing.
        reason: &'static str,
    },
    /// The file was a ledger once, or holds what no hub wrote.
    #[error(
        "the ledger is damaged: {0}. Stop the hub, remove hub.db-wal and hub.db-shm, and restore hub.db from a backup"
    )]
    Corrupt(String),
    /// The file, or the disk below it.
    #[error("the ledger cannot be used: {0}. Check path, permissions and free space")]
    Io(String),
    /// It was closed, or its thread is gone.
    #[error("the ledger is closed")]
    Closed,
    /// A statement failed in a way that no input explains.
    #[error("the ledger refused a statement: {0}. This is a defect of the hub; please report it")]
    Internal(String),
    /// There is no such node.
    #[error("there is no node {0}")]
    UnknownNode(NodeId),
    /// The rule for new tokens says no.
    #[error(transparent)]
    Token(#[from] CreateTokenRefusal),
    /// The rule for joins says no.
    #[error(transparent)]
    Join(#[from] JoinRefusal),
    /// The rule for new certificates says no.
    #[error(transparent)]
    Record(#[from] RecordRefusal),
    /// The rule for the hub's own machine says no.
    #[error(transparent)]
    Local(#[from] LocalRefusal),
    /// The rule for registrations says no.
    #[error(transparent)]
    Register(#[from] RegisterRefusal),
    /// The rule for revocations says no.
    #[error(transparent)]
    Revoke(#[from] RevokeRefusal),
    /// A rule for exposures says no.
    #[error(transparent)]
    Expose(#[from] ExposureRefusal),
}

impl StoreError {
    /// Whether the same call may succeed a moment later.
    pub fn retry_helps(&self) -> bool {
        matches!(self, Self::Busy)
    }

    /// Whether a rule said no, as opposed to the ledger being unable to answer.
    pub fn is_refusal(&self) -> bool {
        !matches!(
            self,
            Self::Busy
                | Self::NewerSchema { .. }
                | Self::NotALedger { .. }
                | Self::Corrupt(_)
                | Self::Io(_)
                | Self::Closed
                | Self::Internal(_)
        )
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        let text = error.to_string();
        match error {
            rusqlite::Error::SqliteFailure(failure, _) => match failure.code {
                ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Self::Busy,
                ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Self::Corrupt(text),
                ErrorCode::CannotOpen
                | ErrorCode::DiskFull
                | ErrorCode::FileLockingProtocolFailed
                | ErrorCode::NoLargeFileSupport
                | ErrorCode::PermissionDenied
                | ErrorCode::ReadOnly
                | ErrorCode::SystemIoFailure => Self::Io(text),
                _ => Self::Internal(text),
            },
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::Utf8Error(..) => Self::Corrupt(text),
            _ => Self::Internal(text),
        }
    }
}
