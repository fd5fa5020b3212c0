//! Records as they happen: logs, events, statistics. One JSON object a line, on
//! [`OUT`](super::transfer::OUT).
//!
//! Each record of a log or an event watch carries a cursor. Whoever lost the stream opens it again
//! from the last cursor that came, and misses nothing that a [`Gap`](EventRecord::Gap) does not
//! name.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The most bytes of one record's line, without its newline: 1 MiB. Lines of a log come in parts of
/// 16 KiB. Who reads takes a longer line for a broken stream.
pub const MAX_RECORD: usize = 1024 * 1024;

/// Asks for a container's log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logs {
    /// The container's name or id.
    pub container: String,
    /// Whether to go on when the end of what there is has been reached.
    #[serde(default)]
    pub follow: bool,
    /// The last lines only. Not together with a cursor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<u64>,
    /// From this time on: nanoseconds since 1970 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ns: Option<i64>,
    /// Until this time: nanoseconds since 1970 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ns: Option<i64>,
    /// Without standard output.
    #[serde(default)]
    pub no_stdout: bool,
    /// Without standard error.
    #[serde(default)]
    pub no_stderr: bool,
    /// From behind the record with this cursor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// An output of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Output {
    /// Standard output; everything of a container with a terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A record of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum LogRecord {
    /// A line, or a part of one where the daemon cut it: bytes as they were, with their newline.
    Line {
        /// Where it was printed.
        output: Output,
        /// When, as RFC 3339 with nanoseconds.
        time: String,
        /// Its text; absent where the bytes are no UTF-8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// Its bytes in base64, where they are no UTF-8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
        /// How to go on behind it.
        cursor: String,
    },
    /// Lines are missing here: the daemon has thrown them away.
    Gap {
        /// Why, for people.
        why: String,
    },
}

/// Asks for the events of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Events {
    /// From this time on: nanoseconds since 1970 UTC. Without it and without a cursor, from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ns: Option<i64>,
    /// Until this time: nanoseconds since 1970 UTC; without, for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ns: Option<i64>,
    /// Only events that match: for each key, one of its values. Keys are those of `docker events
    /// --filter`: `type`, `event`, `container`, `image`, `label`, `volume`, `network`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub filters: BTreeMap<String, Vec<String>>,
    /// From behind the record with this cursor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A record of an event watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum EventRecord {
    /// Something happened.
    Event {
        /// When, by the daemon's clock: nanoseconds since 1970 UTC.
        time_ns: i64,
        /// What it happened to: `container`, `image`, `volume`, `network`, ….
        #[serde(rename = "type")]
        kind: String,
        /// What: `start`, `die`, `oom`, `health_status: healthy`, ….
        action: String,
        /// Its id or name.
        id: String,
        /// What the daemon says of it: `name`, `image`, `exitCode`, labels.
        #[serde(default)]
        attributes: BTreeMap<String, String>,
        /// How to go on behind it.
        cursor: String,
    },
    /// Events are missing here; a [`State`](Self::State) for each container follows.
    Gap {
        /// From when on they are missing: nanoseconds since 1970 UTC; unknown without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from_ns: Option<i64>,
        /// Until when.
        to_ns: i64,
        /// Why, for people.
        why: String,
        /// How to go on behind it.
        cursor: String,
    },
    /// What a container is after a gap.
    State {
        /// Its id.
        id: String,
        /// Its name.
        name: String,
        /// `created`, `running`, `exited`, ….
        state: String,
        /// How to go on behind it.
        cursor: String,
    },
    /// This reader was too slow: so many events were left out for it.
    Lagged {
        /// How many.
        events: u64,
        /// How to go on behind them.
        cursor: String,
    },
}

/// Asks for a container's statistics, about one record a second until it stops.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FollowStats {
    /// The container's name or id.
    pub container: String,
}
