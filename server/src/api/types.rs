//! What the API says and is told, as JSON. The client reads the same types.
//!
//! Points in time are RFC 3339 in UTC with milliseconds. A field that the hub does not know is an
//! error in what it is told; a client passes over fields that it does not know.

mod exposures;

use std::fmt;

use hub_protocol::kind::records::EventRecord;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::problem::Problem;
pub use crate::proxy::{Kind as StreamKind, Underway, WaitsFor};
pub use exposures::{
    Access, CreatedExposure, EditExposure, EditSettings, Exposure, ExposureReplica,
    ExposureSettings, ExposureToken, Exposures, NewExposure, NewReplica, Protocol, RotateToken,
};
pub use hub_ledger::exposure::Edit;

/// A text that is shown to the one who asked for it, and to nobody else: it redacts itself in
/// `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = String)]
pub struct Secret(String);

impl Secret {
    /// Takes the text out.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// How the hub is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// The release of the program.
    pub release: String,
    /// Since when it runs.
    #[schema(format = DateTime)]
    pub started: String,
    /// The fingerprint of the CA that agents pin: `SHA256:…`.
    pub ca: String,
    /// Nodes that it knows.
    pub nodes: usize,
    /// Nodes that are connected.
    pub connected: usize,
    /// Operations under way.
    pub operations: u64,
    /// How often agents broke the protocol since it runs.
    pub violations: u64,
    /// `HOST:PORT` that agents dial, over UDP.
    pub agents: String,
    /// `HOST:PORT` where machines join, over UDP.
    pub enrollment: String,
    /// Where browsers reach exposures: `http://HOST:PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_plane: Option<String>,
    /// The domain under which exposures with a name are reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}

/// Whether work can be given to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Its agent has a session.
    Connected,
    /// Its agent has none.
    Away,
    /// It was revoked, for good.
    Revoked,
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Connected => "connected",
            Self::Away => "away",
            Self::Revoked => "revoked",
        })
    }
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its id, for life: 32 hex digits.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Whether it is the hub's own machine, served within the hub's process.
    #[serde(default)]
    pub local: bool,
    /// Whether work can be given to it.
    pub state: NodeState,
    /// Since when it is in that state.
    #[schema(format = DateTime)]
    pub since: String,
    /// When it joined.
    #[schema(format = DateTime)]
    pub created: String,
    /// When it was last heard of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub last_seen: Option<String>,
    /// What is known of its session; absent while it is away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<NodeSession>,
}

/// A node's session. What the agent says of itself are claims, not facts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeSession {
    /// Where its packets come from: `IP:PORT`. A NAT may change it. Absent for the hub's own node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The round-trip time, in microseconds.
    pub rtt_us: u64,
    /// Operations under way.
    pub operations: u64,
    /// The agent's release.
    pub release: String,
    /// Its operating system.
    pub os: String,
    /// Its processor.
    pub arch: String,
    /// The machine's own name.
    pub hostname: String,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// What may still be running on it although it was stopped, with the reason; oldest first.
    #[serde(default)]
    pub lingering: Vec<String>,
}

/// All nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Nodes {
    /// By name.
    pub nodes: Vec<Node>,
}

/// What the data plane carries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Top {
    /// Requests and streams under way, the longest first.
    pub streams: Vec<Underway>,
}

/// Asks for a join token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// How many nodes it may admit.
    #[serde(default = "one")]
    #[schema(minimum = 1)]
    pub uses: u32,
    /// How long it holds, in seconds: 30 days at most.
    #[serde(default = "default_ttl")]
    #[schema(minimum = 1, maximum = 2_592_000)]
    pub ttl_s: u64,
}

const fn one() -> u32 {
    1
}

const fn default_ttl() -> u64 {
    hub_ledger::token::DEFAULT_TTL.as_secs()
}

impl Default for NewToken {
    /// One use, 15 minutes.
    fn default() -> Self {
        Self {
            uses: one(),
            ttl_s: default_ttl(),
        }
    }
}

/// A join token, shown this once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// The token.
    #[schema(value_type = String)]
    pub token: Secret,
    /// How many nodes it admits.
    pub uses: u32,
    /// Until when it holds.
    #[schema(format = DateTime)]
    pub expires: String,
    /// The command for the new machine, for a POSIX shell. It hands the token over as an
    /// environment variable, where other users of that machine do not see it.
    #[schema(value_type = String)]
    pub join_command: Secret,
}

/// A line of a watch of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeRecord {
    /// The node's name.
    pub node: String,
    /// What is said of it.
    #[serde(flatten)]
    pub record: Record,
}

/// What a watch of events says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Record {
    /// By the node itself.
    Node(EventRecord),
    /// By the hub.
    Hub(HubRecord),
}

/// What the hub says in a watch of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum HubRecord {
    /// The node is away: its events are waited for.
    Away,
    /// It is back, and its events go on where they stopped.
    Back,
    /// It can't be watched any more; the others are.
    Failed {
        /// Why.
        problem: Problem,
    },
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn debug_shows_no_secret() {
        let token = Token {
            token: "hunter2".to_owned().into(),
            uses: 1,
            expires: "2026-01-01T00:00:00.000Z".into(),
            join_command: "HUB_JOIN_TOKEN=hunter2 hub-agent".to_owned().into(),
        };
        assert!(!format!("{token:?}").contains("hunter2"));
        assert_eq!(serde_json::to_value(&token).unwrap()["token"], "hunter2");
    }

    #[test]
    fn what_the_hub_does_not_know_is_an_error_and_what_is_missing_has_a_default() {
        assert_eq!(
            serde_json::from_str::<NewToken>("{}").unwrap(),
            NewToken::default()
        );
        assert_eq!(
            NewToken::default(),
            NewToken {
                uses: 1,
                ttl_s: 900
            }
        );
        assert!(serde_json::from_str::<NewToken>(r#"{"use":2}"#).is_err());
        assert!(serde_json::from_str::<NewExposure>(r#"{"node":"a","port":0,"x":1}"#).is_err());
    }
}
