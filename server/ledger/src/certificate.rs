//! Certificates of nodes: which ones the hub signed, and whether one is trusted now.
//!
//! A signature of the CA alone does not admit: the certificate must be recorded here too, its
//! node must exist and must not be revoked. That is asked at every Hello; the handshake before it
//! knows signatures and dates alone.

use std::fmt;
use std::time::Duration;

use hub_protocol::{Fingerprint, NodeId, NodeName};

use crate::node::Node;
use crate::time::Timestamp;

/// How long an expired certificate is remembered, so that a log can say "expired".
pub const KEPT_AFTER_EXPIRY: Duration = Duration::from_secs(30 * 86_400);

/// A certificate's serial number: 16 bytes, read as one big-endian number.
///
/// Its first two bits are 01, so that DER writes every serial with exactly 16 bytes: positive,
/// and without a leading zero. 126 random bits remain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial([u8; 16]);

impl Serial {
    /// The serial made of 16 random bytes.
    pub const fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[0] = bytes[0] & 0x3f | 0x40;
        Self(bytes)
    }

    /// A serial that was made before. `None`: these bytes are none of ours.
    pub const fn from_bytes(bytes: [u8; 16]) -> Option<Self> {
        if bytes[0] & 0xc0 == 0x40 {
            Some(Self(bytes))
        } else {
            None
        }
    }

    /// The 16 bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Hexadecimal, as other tools print serials.
impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What the CA signed, to be recorded before anybody gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCertificate {
    /// Its serial number.
    pub serial: Serial,
    /// The node it names.
    pub node: NodeId,
    /// The key it certifies.
    pub key: Fingerprint,
    /// From when on it is valid.
    pub not_before: Timestamp,
    /// Until when, inclusive.
    pub not_after: Timestamp,
}

/// A recorded certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Its serial number.
    pub serial: Serial,
    /// The node it names.
    pub node: NodeId,
    /// The key it certifies.
    pub key: Fingerprint,
    /// From when on it is valid.
    pub not_before: Timestamp,
    /// Until when, inclusive.
    pub not_after: Timestamp,
    /// When it was recorded.
    pub recorded: Timestamp,
}

/// Why a certificate is not recorded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordRefusal {
    /// Its node does not exist.
    #[error("there is no node {node} to give a certificate to")]
    UnknownNode {
        /// The id it names.
        node: NodeId,
    },
    /// Its node is revoked.
    #[error("node {name} was revoked at {revoked}; it gets no certificate")]
    Revoked {
        /// The node's name.
        name: NodeName,
        /// When it was revoked.
        revoked: Timestamp,
    },
    /// Its serial number is that of another.
    #[error("serial {serial} is that of another certificate; sign it again with a new one")]
    SerialTaken {
        /// The serial.
        serial: Serial,
    },
    /// Its key is that of another node.
    #[error("this key has a certificate of node {node}; make a new key")]
    KeyTaken {
        /// The other node.
        node: NodeId,
    },
    /// It is valid at no time that is still to come.
    #[error("a certificate from {not_before} to {not_after} is of no use now")]
    Useless {
        /// Its beginning.
        not_before: Timestamp,
        /// Its end.
        not_after: Timestamp,
    },
}

/// The rows that [`record`] decides on.
#[derive(Debug, Clone, Default)]
pub struct RecordRows {
    /// The node that the certificate names.
    pub node: Option<Node>,
    /// The recorded certificate with this serial.
    pub same_serial: Option<Certificate>,
    /// The recorded certificates with this key, of any node.
    pub same_key: Vec<Certificate>,
}

/// Records a certificate.
pub fn record(
    rows: &RecordRows,
    new: &NewCertificate,
    now: Timestamp,
) -> Result<Certificate, RecordRefusal> {
    // The hub's own machine has none.
    let Some(node) = rows.node.as_ref().filter(|node| !node.is_local()) else {
        return Err(RecordRefusal::UnknownNode { node: new.node });
    };
    if let Some(revoked) = node.revoked {
        return Err(RecordRefusal::Revoked {
            name: node.name.clone(),
            revoked,
        });
    }
    if rows.same_serial.is_some() {
        return Err(RecordRefusal::SerialTaken { serial: new.serial });
    }
    if let Some(other) = rows.same_key.iter().find(|other| other.node != new.node) {
        return Err(RecordRefusal::KeyTaken { node: other.node });
    }
    let &NewCertificate {
        serial,
        node,
        key,
        not_before,
        not_after,
    } = new;
    if not_before > not_after || not_after < now {
        return Err(RecordRefusal::Useless {
            not_before,
            not_after,
        });
    }
    Ok(Certificate {
        serial,
        node,
        key,
        not_before,
        not_after,
        recorded: now,
    })
}

/// Why a client certificate is not trusted, although the CA signed it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// No such node.
    #[error("there is no node {node}: it was removed, or this ledger is older than the node")]
    UnknownNode {
        /// The id that the certificate names.
        node: NodeId,
    },
    /// The node was revoked.
    #[error("node {name} was revoked at {revoked}; join it anew under a new name and key")]
    Revoked {
        /// The node's name.
        name: NodeName,
        /// When it was revoked.
        revoked: Timestamp,
    },
    /// No certificate of this node with this key is recorded.
    #[error("the key {key} is none that node {name} has a recorded certificate for")]
    UnknownKey {
        /// The node's name.
        name: NodeName,
        /// The presented key.
        key: Fingerprint,
    },
    /// All certificates of this key are expired.
    #[error("the certificate of node {name} expired at {expired}; join it anew")]
    Expired {
        /// The node's name.
        name: NodeName,
        /// When the last one expired.
        expired: Timestamp,
    },
    /// The certificate is not valid yet: the hub's clock stands before the day it was signed on.
    #[error("the certificate of node {name} is valid from {from}; is the hub's clock right?")]
    NotYetValid {
        /// The node's name.
        name: NodeName,
        /// From when on it is valid.
        from: Timestamp,
    },
}

/// Whether the holder of `key` is node `id` now. `certificates` are those recorded with that key;
/// the one that lasts longest is returned.
pub fn trusted<'c>(
    node: Option<&Node>,
    certificates: &'c [Certificate],
    id: NodeId,
    key: Fingerprint,
    now: Timestamp,
) -> Result<&'c Certificate, Distrust> {
    let node = node
        .filter(|node| node.id == id && !node.is_local())
        .ok_or(Distrust::UnknownNode { node: id })?;
    let name = || node.name.clone();
    if let Some(revoked) = node.revoked {
        return Err(Distrust::Revoked {
            name: name(),
            revoked,
        });
    }
    let last = certificates
        .iter()
        .filter(|certificate| certificate.node == id && certificate.key == key)
        .max_by_key(|certificate| certificate.not_after)
        .ok_or_else(|| Distrust::UnknownKey { name: name(), key })?;
    if now > last.not_after {
        return Err(Distrust::Expired {
            name: name(),
            expired: last.not_after,
        });
    }
    if now < last.not_before {
        return Err(Distrust::NotYetValid {
            name: name(),
            from: last.not_before,
        });
    }
    Ok(last)
}
