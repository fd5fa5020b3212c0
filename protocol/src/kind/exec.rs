//! Run a command, and come back to one that was kept.
//!
//! ```text
//! hub                                          agent
//!  | Open{argv, tty, on_disconnect, ..} -------> |  starts it
//!  |  <-- Accepted{id, offsets} | Failed         |
//!  | Data(STDIN).. End, Message(Resize) ------>  |
//!  |  <---- Data(STDOUT).., Data(STDERR)..       |
//!  |  <------------------------ Done(Outcome)    |
//! ```
//!
//! A command with a terminal prints everything on [`STDOUT`]. One that is *kept* outlives the
//! operation: its agent drains it, remembers the last [`KEPT_OUTPUT`] bytes, and [`Attach`] carries
//! on from the bytes that the client has seen.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{Channel, ChannelSpec, Direction};

/// What the command reads.
pub const STDIN: Channel = Channel(0);
/// What it prints.
pub const STDOUT: Channel = Channel(1);
/// What it prints as errors.
pub const STDERR: Channel = Channel(2);

pub(super) const CHANNELS: [ChannelSpec; 3] = [
    ChannelSpec {
        channel: STDIN,
        name: "stdin",
        direction: Direction::ToAgent,
    },
    ChannelSpec {
        channel: STDOUT,
        name: "stdout",
        direction: Direction::ToHub,
    },
    ChannelSpec {
        channel: STDERR,
        name: "stderr",
        direction: Direction::ToHub,
    },
];

/// Bytes of output that are remembered of a kept command: 256 KiB, both outputs together.
pub const KEPT_OUTPUT: usize = 256 * 1024;

/// The size of a terminal, in characters. A side of 0 is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Its width.
    pub cols: u16,
    /// Its height.
    pub rows: u16,
}

/// What becomes of a command whose client is gone without having said so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnDisconnect {
    /// It is stopped.
    #[default]
    Kill,
    /// It goes on, and a client may come back to it with [`Attach`].
    Keep,
}

/// The body of `Open`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// The container's name or id; the machine itself where there is none.
    pub container: Option<String>,
    /// The command and its arguments, at least one.
    pub argv: Vec<String>,
    /// Environment variables beside those that are there anyway.
    pub env: Vec<(String, String)>,
    /// The working directory.
    pub cwd: Option<String>,
    /// The user, as the container runtime takes it: name or uid, with or without group.
    pub user: Option<String>,
    /// Whether the stdin channel carries anything; without, the command reads end-of-file.
    pub stdin: bool,
    /// A terminal of this size; none without.
    pub tty: Option<Size>,
    /// What becomes of it when its client is gone.
    pub on_disconnect: OnDisconnect,
}

/// Values of variables and arguments may be secret: only what is needed to tell one exec from
/// another is shown.
impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("exec::Open")
            .field("container", &self.container)
            .field("command", &self.argv.first())
            .field("arguments", &self.argv.len().saturating_sub(1))
            .field("variables", &self.env.len())
            .field("tty", &self.tty)
            .field("on_disconnect", &self.on_disconnect)
            .finish_non_exhaustive()
    }
}

/// A command, within one process of an agent: 16 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExecId(pub String);

impl fmt::Display for ExecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How many bytes of each output came before a point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offsets {
    /// Of [`STDOUT`].
    pub stdout: u64,
    /// Of [`STDERR`].
    pub stderr: u64,
}

/// The body of `Accepted`, for `Open` and [`Attach`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// What to call the command by.
    pub id: ExecId,
    /// Where the channels begin. Of a new command that is 0; of one that was kept, what a client
    /// asked for and is before that is lost: a gap that it has to show.
    pub offsets: Offsets,
}

/// The body of `Open` that comes back to a kept command. Where another client is attached, that one
/// is let go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// Which.
    pub id: ExecId,
    /// What the client has seen; without, it begins with the oldest that is remembered.
    pub seen: Option<Offsets>,
    /// The terminal's size, if the command has one.
    pub size: Option<Size>,
}

/// A message from the hub.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The client's terminal has another size. Only the newest counts.
    Resize(Size),
    /// Signals the command: one of [`SIGNALS`].
    Signal(#[serde(deserialize_with = "signal")] i32),
    /// The client leaves and the command goes on, whatever was asked before: answered with
    /// [`Outcome::Detached`].
    Detach,
}

/// The numbers that a signal can have.
pub const SIGNALS: RangeInclusive<i32> = 1..=127;

fn signal<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    let number = i32::deserialize(deserializer)?;
    if SIGNALS.contains(&number) {
        Ok(number)
    } else {
        Err(serde::de::Error::custom("no signal has this number"))
    }
}

/// The body of `Done`: how the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It exited with this code.
    Exited(i32),
    /// It was killed by this signal, one of [`SIGNALS`]: a body with another can't be read.
    #[serde(deserialize_with = "signal")]
    Signaled(i32),
    /// It ended or may still run: nobody can say how.
    Unknown,
    /// It goes on without this client: it was detached, or another client took its place.
    Detached,
}
