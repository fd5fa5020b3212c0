//! Calls about kept commands.

use serde::{Deserialize, Serialize};

/// Asks for the kept commands, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = ListExecs))]
pub struct List {}

/// Asks for one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = ExecStatus))]
pub struct Status {
    /// Its id, or the beginning of it.
    pub id: String,
}

/// Stops one; forgets one that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = StopExec))]
pub struct Stop {
    /// Its id, or the beginning of it.
    pub id: String,
}

/// A command that outlives its client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = KeptExec))]
pub struct Kept {
    /// What to call it by: 16 hex digits.
    pub id: String,
    /// The container's name; absent for the machine itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The program, without its arguments, not even shortened: where a container's command is part
    /// of its configuration, which may be shown, those of an exec are where passwords are passed
    /// (`mysqldump -p…`), and this stands in errors and in what scripts print. The agent does not
    /// keep them. Who needs them looks at the processes, with `ps` where the command runs.
    pub command: String,
    /// Whether it has a terminal.
    pub tty: bool,
    /// When it was started: milliseconds since 1970 UTC.
    pub started_ms: i64,
    /// Whether a client is attached.
    pub attached: bool,
    /// How it is.
    #[serde(flatten)]
    pub state: KeptState,
}

/// How a kept command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum KeptState {
    /// It runs.
    Running,
    /// It exited.
    Exited {
        /// With this code.
        code: i32,
    },
    /// It was killed.
    Signaled {
        /// By this signal.
        signal: i32,
    },
    /// It ended or may still run: nobody can say how.
    Unknown,
}
