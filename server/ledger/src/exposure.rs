//! Exposures: what stands behind agents and may be reached from outside, by a token, a name or a
//! port of the hub.
//!
//! ```text
//! NAME.DOMAIN ---------.                      .-> replica: node, target
//! /v1/data/TOKEN/ ------> exposure: access, --+-> replica: node, target
//! ADDRESS:PORT --------'  protocol, settings  `-> …
//! ```
//!
//! HTTP is reached by name, by token or both; TCP and UDP by the address that the hub listens on for
//! them, and by nothing else. An HTTP exposure that has lost its token and has no name is reached by
//! nobody, until it gets a new one.
//!
//! An agent connects only to targets of exposures. Every change of the replicas that an exposure has
//! on a node moves the node's targets revision by one, and the agent is sent the [list](targets()): of
//! two lists the one with the higher revision holds.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `name`, `token`, `settings` | parts of an exposure, and their own bounds |
//! | `shape` | what one exposure must be in itself |
//! | `rules` | what may become of it beside the others |

mod name;
mod rules;
mod settings;
mod shape;
mod token;

use std::fmt;
use std::net::SocketAddr;

use hub_protocol::NodeId;
use hub_protocol::target::{Target, Transport};
use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

pub use name::{ExposureName, ExposureNameError};
pub use rules::{
    CreateRows, ExposureChange, ExposureEdit, ExposureRefusal, NewExposure, OnNode, Told,
    UpdateRows, create, remove, revoke_token, rotate_token, targets, update,
};
pub use settings::{
    MAX_BODY, MAX_RATE, MAX_REQUESTS, MAX_SESSIONS, SettingOutOfBounds, Settings, SettingsEdit,
};
pub use shape::{Misshapen, overlap};
pub use token::{
    ExposureToken, ExposureTokenHash, Lifetime, MAX_GRACE, MAX_TOKEN_TTL, NewExposureToken,
    PreviousToken, Rotation, TokenOutOfBounds,
};

/// How many replicas of exposures one node may have.
pub const MAX_PER_NODE: usize = 1024;

/// How many replicas one exposure may have.
pub const MAX_REPLICAS: usize = 16;

/// The longest container name or label that selects a target, in bytes.
pub const MAX_SELECTOR: usize = 255;

/// How long a node's list of targets may be on the wire, in bytes: a frame of the control stream
/// has it, with room to spare.
pub const MAX_LIST: usize = 192 * 1024;

/// Identifies an exposure. Counted from 1; a removed one's number is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExposureId(pub u64);

impl fmt::Display for ExposureId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Who gets in.
///
/// The path route `/v1/data/TOKEN/` is its own proof where the token is one. It needs the login,
/// too, where that is asked for: the token alone opens nothing then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Who knows the name, the token or the address.
    #[default]
    Public,
    /// Who shows the token, on the host route, too.
    Token,
    /// Who is logged in as an operator.
    Login,
}

/// What the targets speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http,
    /// HTTP/2 in the clear, known beforehand.
    Http2,
    /// Bytes of a TCP connection.
    Tcp,
    /// Datagrams.
    Udp,
}

impl Protocol {
    /// Whether requests are carried, as opposed to bytes or datagrams.
    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Http2)
    }

    /// What carries it to the target, and from the client to the hub.
    pub fn transport(self) -> Transport {
        match self {
            Self::Http | Self::Http2 | Self::Tcp => Transport::Tcp,
            Self::Udp => Transport::Udp,
        }
    }
}

/// As in "an exposure of HTTP/2".
impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Http => "HTTP",
            Self::Http2 => "HTTP/2",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

/// One of the places that an exposure's requests go to. Any of them can answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Replica {
    /// The node that reaches the target.
    pub node: NodeId,
    /// What to connect to there.
    pub target: Target,
}

/// An exposure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exposure {
    /// Its number.
    pub id: ExposureId,
    /// Its name, if it has one. No other exposure has it.
    pub name: Option<ExposureName>,
    /// Its token, if it has one.
    pub token: Option<ExposureToken>,
    /// Who gets in.
    pub access: Access,
    /// What the targets speak.
    pub protocol: Protocol,
    /// Where its requests go: 1 to [`MAX_REPLICAS`], each once.
    pub replicas: Vec<Replica>,
    /// For TCP and UDP, where the hub listens. No other exposure listens there. Port 0 is any that
    /// is free when the hub begins to listen.
    pub listen: Option<SocketAddr>,
    /// Its limits.
    pub settings: Settings,
    /// When it was created.
    pub created: Timestamp,
}

/// What becomes of a value in a change: it stays, or is another.
///
/// In JSON a value that stays is absent; `null` is a value like any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Edit<T> {
    /// It stays.
    #[default]
    Keep,
    /// It is this from now on.
    Set(T),
}

impl<T> Edit<T> {
    /// Whether it stays.
    pub fn is_keep(&self) -> bool {
        matches!(self, Self::Keep)
    }

    /// Puts the value in its place.
    pub fn apply(self, place: &mut T) {
        if let Self::Set(value) = self {
            *place = value;
        }
    }

    /// The same of a value that is made of this one.
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Edit<U> {
        match self {
            Self::Keep => Edit::Keep,
            Self::Set(value) => Edit::Set(make(value)),
        }
    }
}

impl<T> From<Option<T>> for Edit<T> {
    /// `None` stays.
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Keep, Self::Set)
    }
}

impl<T: Serialize> Serialize for Edit<T> {
    /// A value that stays is `null`: leave the field out with [`Edit::is_keep`].
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Keep => serializer.serialize_none(),
            Self::Set(value) => value.serialize(serializer),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Edit<T> {
    /// Whatever is said is set: what stays is a field with a default.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::Set)
    }
}
