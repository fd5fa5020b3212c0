//! Join tokens: how a stranger becomes a node.
//!
//! A token is a secret that the operator carries to a new machine; only its hash is known here.
//! [`redeem`] checks it, counts it down and creates the node in one decision. Asking again with
//! the same key and name gives the same node and costs nothing, so that an agent whose answer was
//! lost on the way can simply ask again.

use std::fmt;
use std::time::Duration;

use hub_protocol::{Fingerprint, NodeId, NodeName};

use crate::node::{Node, Origin};
use crate::time::Timestamp;

/// How long a token holds unless the operator says otherwise.
pub const DEFAULT_TTL: Duration = Duration::from_secs(15 * 60);
/// The longest time a token may hold.
pub const MAX_TTL: Duration = Duration::from_secs(30 * 86_400);
/// How long an expired token is remembered, so that a log can say "expired" and not "unknown".
pub const KEPT_AFTER_EXPIRY: Duration = Duration::from_secs(7 * 86_400);

/// The hash of a join token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JoinTokenHash(pub [u8; 32]);

/// Its first bytes: enough to tell tokens apart in a log.
impl fmt::Debug for JoinTokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_short(&self.0, f)
    }
}

/// The first bytes of a token's hash, as a log has it.
pub(crate) fn write_short(hash: &[u8; 32], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    hash[..4]
        .iter()
        .try_for_each(|byte| write!(f, "{byte:02x}"))?;
    f.write_str("…")
}

/// What a token admits to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A new node may join.
    Join,
}

/// A join token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// The hash of the secret.
    pub hash: JoinTokenHash,
    /// What it admits to.
    pub purpose: Purpose,
    /// Whether a node that it admits needs no other approval.
    pub automatic_approval: bool,
    /// When it was created.
    pub created: Timestamp,
    /// From when on it admits nobody.
    pub expires: Timestamp,
    /// How many nodes it was made for.
    pub uses: u32,
    /// How many it may still admit.
    pub uses_left: u32,
}

/// What an operator asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewToken {
    /// How many nodes it may admit: at least 1.
    pub uses: u32,
    /// How long it holds: [`MAX_TTL`] at most.
    pub ttl: Duration,
}

impl Default for NewToken {
    fn default() -> Self {
        Self {
            uses: 1,
            ttl: DEFAULT_TTL,
        }
    }
}

/// Why a token is not created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CreateTokenRefusal {
    /// It could admit nobody.
    #[error("a token of no uses admits nobody; ask for 1 or more")]
    NoUses,
    /// It would hold no time at all.
    #[error("a token that holds for less than a second cannot be used; ask for a longer time")]
    TtlTooShort,
    /// It would hold too long.
    #[error("a token holds for 30 days at most; ask for a shorter time")]
    TtlTooLong,
}

/// Creates a token.
pub fn create(
    hash: JoinTokenHash,
    new: NewToken,
    now: Timestamp,
) -> Result<JoinToken, CreateTokenRefusal> {
    if new.uses == 0 {
        return Err(CreateTokenRefusal::NoUses);
    }
    if new.ttl < Duration::from_secs(1) {
        return Err(CreateTokenRefusal::TtlTooShort);
    }
    if new.ttl > MAX_TTL {
        return Err(CreateTokenRefusal::TtlTooLong);
    }
    Ok(JoinToken {
        hash,
        purpose: Purpose::Join,
        automatic_approval: true,
        created: now,
        expires: now.saturating_add(new.ttl),
        uses: new.uses,
        uses_left: new.uses,
    })
}

/// What a stranger asks for. That it holds the key is proven before, by the signature on its
/// certificate request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    /// The hash of the token that it sent.
    pub token: JoinTokenHash,
    /// The name that it is to have.
    pub name: NodeName,
    /// Its key.
    pub key: Fingerprint,
    /// The id that it gets if it is new: drawn at random by the caller.
    pub new_id: NodeId,
}

/// The rows that [`redeem`] decides on.
#[derive(Debug, Clone, Default)]
pub struct RedeemRows {
    /// The token of that hash.
    pub token: Option<JoinToken>,
    /// The node of that name.
    pub named: Option<Node>,
    /// The node that joined with that key.
    pub keyed: Option<Node>,
}

/// A join that stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The node.
    pub node: Node,
    /// What has to be written.
    pub how: JoinedHow,
}

/// Whether a join spent anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinedHow {
    /// The node is new; this is its token, counted down by one.
    Admitted(JoinToken),
    /// It joined before with this key; nothing is spent and nothing changes.
    Repeated,
}

/// Why a join is refused, for the operator's log. A stranger is told [`JoinRefusal::outside`].
/// Nothing is spent by any of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinRefusal {
    /// No token has this hash.
    #[error("the join token is unknown: mistyped, of another hub, or expired long ago")]
    UnknownToken,
    /// The token's time is over.
    #[error("the join token expired at {expired}; create a new one")]
    ExpiredToken {
        /// Since when.
        expired: Timestamp,
    },
    /// The token has admitted as many nodes as it may.
    #[error("the join token is spent: it admitted {uses} of {uses} nodes; create a new one")]
    SpentToken {
        /// How many it was made for.
        uses: u32,
    },
    /// The token asks for an approval that nobody gave.
    #[error("the join token asks for an operator's approval of the node's key")]
    ApprovalNeeded,
    /// Another key has this name.
    #[error("the name {name} belongs to a node with another key; choose another name")]
    NameTaken {
        /// The name.
        name: NodeName,
    },
    /// This key has another name.
    #[error("this key joined as {name} already; use that name, or a fresh data directory")]
    KeyTaken {
        /// The name it joined under.
        name: NodeName,
    },
    /// The node was revoked, and its key with it.
    #[error(
        "node {name} was revoked at {revoked}, and its key with it; join under a new name and key"
    )]
    Revoked {
        /// The node's name.
        name: NodeName,
        /// When it was revoked.
        revoked: Timestamp,
    },
}

/// What a stranger learns of a refusal: nothing that would help to guess tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutsideRefusal {
    /// Unknown, expired and spent alike.
    #[error("the join token is not valid; ask the operator for a new one")]
    InvalidToken,
    /// The token is good, but needs an approval.
    #[error("an operator has to approve this node's key first")]
    ApprovalNeeded,
    /// The token is good, the name is not.
    #[error("another node has this name; choose another")]
    NameTaken,
    /// The token is good, the key has another name.
    #[error("this key joined under another name; use that name, or a fresh data directory")]
    KeyTaken,
    /// The token is good, the node is revoked.
    #[error("this node was revoked; it cannot join with this key again")]
    Revoked,
}

impl JoinRefusal {
    /// What the stranger is told.
    pub fn outside(&self) -> OutsideRefusal {
        match self {
            Self::UnknownToken | Self::ExpiredToken { .. } | Self::SpentToken { .. } => {
                OutsideRefusal::InvalidToken
            }
            Self::ApprovalNeeded => OutsideRefusal::ApprovalNeeded,
            Self::NameTaken { .. } => OutsideRefusal::NameTaken,
            Self::KeyTaken { .. } => OutsideRefusal::KeyTaken,
            Self::Revoked { .. } => OutsideRefusal::Revoked,
        }
    }
}

/// Admits a node, or gives the one that this key and name already have.
///
/// The token is judged first: who holds no valid one learns nothing about names and keys.
pub fn redeem(rows: RedeemRows, join: &Join, now: Timestamp) -> Result<Joined, JoinRefusal> {
    let mut token = rows.token.ok_or(JoinRefusal::UnknownToken)?;
    if now >= token.expires {
        return Err(JoinRefusal::ExpiredToken {
            expired: token.expires,
        });
    }
    // A spent token still answers the node that it admitted, and nobody else.
    let admitted = |node: &Node| {
        node.origin
            == Origin::Joined {
                key: join.key,
                by: token.hash,
            }
    };
    if token.uses_left == 0 && !rows.named.as_ref().is_some_and(admitted) {
        return Err(JoinRefusal::SpentToken { uses: token.uses });
    }
    match (rows.named, rows.keyed) {
        (Some(node), _) if node.key() != Some(join.key) => {
            return Err(JoinRefusal::NameTaken { name: node.name });
        }
        (Some(node), _) => {
            return match node.revoked {
                Some(revoked) => Err(JoinRefusal::Revoked {
                    name: node.name,
                    revoked,
                }),
                None => Ok(Joined {
                    node,
                    how: JoinedHow::Repeated,
                }),
            };
        }
        (None, Some(node)) => return Err(JoinRefusal::KeyTaken { name: node.name }),
        (None, None) => {}
    }
    if !token.automatic_approval {
        return Err(JoinRefusal::ApprovalNeeded);
    }
    token.uses_left -= 1;
    let origin = Origin::Joined {
        key: join.key,
        by: token.hash,
    };
    let node = Node::new(join.new_id, join.name.clone(), origin, now);
    Ok(Joined {
        node,
        how: JoinedHow::Admitted(token),
    })
}
