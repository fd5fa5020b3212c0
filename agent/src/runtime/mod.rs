//! What runs a command on this machine.
//!
//! A [`Runtime`] takes an [`ExecSpec`] and answers with a [`Process`]: a writer for standard input,
//! one pull-based stream each for standard output and standard error, and a handle that gives the
//! exit status or stops what runs. Nothing here knows the wire: operations read the streams as fast
//! as their credit allows, and a reader that stops makes the command block.
//!
//! ```text
//!            exec(spec)                ┌─ stdin   writer; shutting it down or dropping it is EOF
//! operation ───────────► Runtime ────► ├─ stdout  ≤ 64 KiB a chunk, read only when polled
//!                                      ├─ stderr  the same, apart
//!                                      └─ handle  wait() · stop(grace)
//! ```
//!
//! The order of use: poll both streams together until they end, then [`ProcessHandle::wait`]. The
//! streams must be polled together, never one after the other: Docker sends both on one
//! connection, so one that nobody reads holds up the other.
//!
//! Two runtimes stand: [`docker`] runs commands in containers that exist, [`process`] runs them
//! straight on the machine as the agent's user.

pub mod docker;
pub mod process;

mod group;
mod leftovers;
mod proc;

#[cfg(test)]
mod process_tests;
#[cfg(test)]
mod suite;

use std::fmt;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::future::BoxFuture;
use hub_protocol::kind::exec::Size;
use tokio::io::AsyncWrite;

/// The most bytes in one chunk of a [`ByteStream`].
pub const MAX_CHUNK: usize = 64 * 1024;

/// How long a process has between TERM and KILL unless the caller says otherwise.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// How many running containers an error names at most.
pub const MAX_NAMED: usize = 10;

/// One command to run.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ExecSpec {
    /// Name or id of the container; `None` means the machine itself.
    pub container: Option<String>,
    /// The command and its arguments. Must not be empty.
    pub argv: Vec<String>,
    /// Variables added to the environment, in order; a later one replaces an earlier one.
    pub env: Vec<(String, String)>,
    /// Absolute directory to run in. Each runtime has its own default.
    pub cwd: Option<String>,
    /// User to run as: a name, a uid, or either with `:group`.
    pub user: Option<String>,
    /// Whether the command gets a standard input. Without, it reads EOF at once; on a terminal,
    /// which has no end, it waits.
    pub stdin: bool,
    /// A terminal of this size for the command: it has it before its first look. All output comes
    /// on standard output then, and `TERM` is `xterm` if the environment has none.
    pub tty: Option<Size>,
}

/// Values of variables and arguments may be secret: only what is needed to tell one exec from
/// another is shown.
impl fmt::Debug for ExecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecSpec")
            .field("container", &self.container)
            .field("command", &self.argv.first())
            .field("arguments", &self.argv.len().saturating_sub(1))
            .field("variables", &self.env.len())
            .field("tty", &self.tty)
            .finish_non_exhaustive()
    }
}

impl ExecSpec {
    /// Refuses what no runtime could run: an empty command, NUL bytes, variable names that are
    /// empty or hold `=`, a relative directory.
    pub fn check(&self) -> Result<(), ExecError> {
        let invalid = |what: String| Err(ExecError::Invalid { what });
        if self.argv.first().is_none_or(String::is_empty) {
            return invalid("there is no command to run".into());
        }
        if let Some(arg) = self.argv.iter().position(|arg| arg.contains('\0')) {
            return invalid(format!("argument {arg} of the command holds a NUL byte"));
        }
        for (name, value) in &self.env {
            if name.is_empty() {
                return invalid("a variable has an empty name".into());
            }
            if name.contains('=') || name.contains('\0') {
                return invalid(format!("{name:?} cannot be the name of a variable"));
            }
            if value.contains('\0') {
                return invalid(format!("the value of {name} holds a NUL byte"));
            }
        }
        if let Some(cwd) = &self.cwd
            && (!cwd.starts_with('/') || cwd.contains('\0'))
        {
            return invalid(format!("the directory {cwd:?} is not an absolute path"));
        }
        if let Some(user) = &self.user
            && (user.is_empty() || user.contains('\0'))
        {
            return invalid(format!("{user:?} cannot be a user"));
        }
        Ok(())
    }
}

/// Bytes of one output, in order; ends at EOF. Reads only when polled.
pub type ByteStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// Bytes into a command. `shutdown` (or dropping it) is EOF for the command; a terminal stays open,
/// and nothing more comes from it.
pub type ByteSink = Box<dyn AsyncWrite + Send + Unpin>;

/// A command that was started.
pub struct Process {
    /// Present if the spec asked for it. A write fails with `BrokenPipe` once the command reads no
    /// more; that is no error of the operation.
    pub stdin: Option<ByteSink>,
    /// Standard output; of a command with a terminal all that it prints.
    pub stdout: ByteStream,
    /// Standard error.
    pub stderr: ByteStream,
    /// Status and stop. Dropping it before the command has ended stops the command in the
    /// background, with [`DEFAULT_GRACE`].
    pub handle: Box<dyn ProcessHandle>,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("stdin", &self.stdin.is_some())
            .finish_non_exhaustive()
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// It exited with this code, 0 to 255. From Docker, a death by signal n reads 128 + n.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// The status and the life of a running command. Both calls may be made at the same time, any
/// number of times, and dropping either future does no harm.
pub trait ProcessHandle: Send + Sync {
    /// Waits for the end. A status that cannot be had is an error, never a code of 0.
    fn wait(&self) -> BoxFuture<'_, Result<ExitStatus, WaitError>>;

    /// Sends TERM (HUP and TERM where there is a terminal), and KILL after `grace` to what is left,
    /// and returns once all of it is seen dead.
    fn stop(&self, grace: Duration) -> BoxFuture<'_, Result<Stopped, MayStillRun>>;

    /// Gives the terminal another size; the kernel tells the command by WINCH. Fails without a
    /// terminal.
    fn resize(&self, size: Size) -> BoxFuture<'_, io::Result<()>>;

    /// Sends a signal, by its number, to the command's process group. One that has ended is none
    /// the worse for it. Fails with `InvalidInput` for numbers that are no standard signal's.
    fn signal(&self, number: i32) -> BoxFuture<'_, io::Result<()>>;
}

/// What a [`ProcessHandle::stop`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// Nothing ran any more.
    AlreadyEnded,
    /// It ended within the grace period.
    Terminated,
    /// It outlived the grace period and was killed.
    Killed,
}

/// There is no exit status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the command's exit status is unknown: {why}")]
pub struct WaitError {
    /// What stood in the way.
    pub why: String,
}

/// A stop that could not be confirmed: something may still be running.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} may still be running: {why}")]
pub struct MayStillRun {
    /// What it is, so that a person finds it: command, pid, container.
    pub what: String,
    /// Why it could not be stopped or seen to have stopped.
    pub why: String,
}

/// A command that was not started, except for [`ExecError::Unknown`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecError {
    /// No such command. Shells say 127.
    #[error("{command:?} was not found: {detail}")]
    NotFound {
        /// First word of the command.
        command: String,
        /// What the system said.
        detail: String,
    },
    /// The command is there and cannot be run. Shells say 126.
    #[error("{command:?} cannot be run: {detail}")]
    NotExecutable {
        /// First word of the command.
        command: String,
        /// What the system said.
        detail: String,
    },
    /// No container has that name or id.
    #[error("there is no container {name:?}; {}", named(.running, *.total))]
    NoSuchContainer {
        /// What was asked for.
        name: String,
        /// Names of containers that run, at most [`MAX_NAMED`].
        running: Vec<String>,
        /// How many containers run.
        total: usize,
    },
    /// The container exists and does not run, or is paused.
    #[error("container {name:?} does not run commands now: {detail}")]
    NotRunning {
        /// What was asked for.
        name: String,
        /// What the daemon said.
        detail: String,
    },
    /// This runtime cannot do that at all.
    #[error("{what}")]
    Unsupported {
        /// What cannot be done, and what to do instead.
        what: String,
    },
    /// The runtime does not answer or has no room. Trying again may help.
    #[error("the {runtime} runtime is not available: {why}")]
    Unavailable {
        /// Name of the runtime.
        runtime: &'static str,
        /// What went wrong.
        why: String,
    },
    /// The runtime fell silent in the middle: the command may have been started. It is stopped if
    /// it is found.
    #[error("whether the command was started is unknown: {why}")]
    Unknown {
        /// What went wrong.
        why: String,
    },
    /// The spec makes no sense; the same spec will fail again.
    #[error("the command cannot be started as asked: {what}")]
    Invalid {
        /// What is wrong with it.
        what: String,
    },
}

impl ExecError {
    /// Whether the same call may succeed later without anybody changing anything.
    pub fn retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// The half-sentence that helps a person who mistyped a container's name.
fn named(running: &[String], total: usize) -> String {
    if running.is_empty() {
        return "no container runs here".into();
    }
    let names = running.join(", ");
    match total.saturating_sub(running.len()) {
        0 => format!("running: {names}"),
        more => format!("running: {names} and {more} more"),
    }
}

/// A container that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Name without the leading slash.
    pub name: String,
    /// Full id.
    pub id: String,
    /// Image it was made from, as its maker named it.
    pub image: String,
}

/// Something that runs commands.
pub trait Runtime: Send + Sync + 'static {
    /// Its name, as in `--runtime`.
    fn name(&self) -> &'static str;

    /// Starts a command. When this returns a [`Process`], the command has started.
    fn exec(&self, spec: ExecSpec) -> BoxFuture<'_, Result<Process, ExecError>>;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn spec(argv: &[&str]) -> ExecSpec {
        ExecSpec {
            argv: argv.iter().map(ToString::to_string).collect(),
            ..ExecSpec::default()
        }
    }

    #[test]
    fn a_spec_that_cannot_be_run_is_refused_with_its_reason() {
        let bad = [
            (spec(&[]), "no command"),
            (spec(&[""]), "no command"),
            (spec(&["echo", "a\0b"]), "argument 1"),
            (
                ExecSpec {
                    env: vec![(String::new(), "x".into())],
                    ..spec(&["x"])
                },
                "empty name",
            ),
            (
                ExecSpec {
                    env: vec![("A=B".into(), "x".into())],
                    ..spec(&["x"])
                },
                "A=B",
            ),
            (
                ExecSpec {
                    env: vec![("A".into(), "\0".into())],
                    ..spec(&["x"])
                },
                "value of A",
            ),
            (
                ExecSpec {
                    cwd: Some("tmp".into()),
                    ..spec(&["x"])
                },
                "absolute",
            ),
            (
                ExecSpec {
                    user: Some(String::new()),
                    ..spec(&["x"])
                },
                "user",
            ),
        ];
        for (spec, word) in bad {
            let error = spec.check().unwrap_err();
            assert!(matches!(error, ExecError::Invalid { .. }), "{spec:?}");
            assert!(
                error.to_string().contains(word),
                "{error} should name {word}"
            );
            assert!(!error.retryable());
        }
        spec(&["true"]).check().unwrap();
    }

    #[test]
    fn secrets_of_a_spec_do_not_show() {
        let spec = ExecSpec {
            env: vec![("TOKEN".into(), "hunter2".into())],
            ..spec(&["curl", "--user", "me:hunter2"])
        };
        let shown = format!("{spec:?}");
        assert!(
            shown.contains("curl") && !shown.contains("hunter2"),
            "{shown}"
        );
    }

    #[test]
    fn a_missing_container_names_those_that_run() {
        let error = |running: &[&str], total| {
            ExecError::NoSuchContainer {
                name: "web".into(),
                running: running.iter().map(ToString::to_string).collect(),
                total,
            }
            .to_string()
        };
        assert_eq!(
            error(&[], 0),
            r#"there is no container "web"; no container runs here"#
        );
        assert_eq!(
            error(&["a", "b"], 2),
            r#"there is no container "web"; running: a, b"#
        );
        assert_eq!(
            error(&["a"], 3),
            r#"there is no container "web"; running: a and 2 more"#
        );
    }
}
