//! Starts the process of a command: its streams, what it inherits, and the gate it begins as.

use std::env;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::process::{Child, Command};

use super::super::{ExecError, ExecSpec};
use super::gate::{Closed, Gate, Order};
use super::terminal::{self, Terminal};

/// Where commands are looked for if the agent has no `PATH` itself.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a command reads and prints by.
pub(super) enum Streams {
    Pipes {
        stdin: Option<Sender>,
        stdout: Receiver,
        stderr: Receiver,
    },
    Terminal(Terminal),
}

/// A process that was started.
pub(super) struct Begun {
    pub(super) child: Child,
    pub(super) streams: Streams,
    /// What it waits for, unless it is the command already.
    pub(super) closed: Option<Closed>,
}

/// Starts the process of a command: with pipes in a group of its own, with a terminal in a session.
pub(super) fn begin(gate: Option<&Gate>, spec: &ExecSpec, dir: &Path) -> io::Result<Begun> {
    let (streams, its, terminal) = match spec.tty {
        None => {
            let (streams, its) = pipes(spec.stdin)?;
            (streams, its, None)
        }
        Some(size) => {
            let (terminal, commands, its) = Terminal::open(size)?;
            (Streams::Terminal(terminal), its, Some(commands))
        }
    };
    let order = order(spec);
    let (command, stdio, closed) = match gate {
        None => (order.command(), its.map(Stdio::from), None),
        Some(gate) => {
            let (command, stdio, closed) = gate.before(order, its)?;
            (command, stdio, Some(closed))
        }
    };
    let mut command = Command::from(command);
    command.current_dir(dir).kill_on_drop(true);
    let child = if let Some(commands) = terminal {
        terminal::spawn(command, stdio, commands)?
    } else {
        let [stdin, stdout, stderr] = stdio;
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        command.process_group(0).spawn()?
    };
    Ok(Begun {
        child,
        streams,
        closed,
    })
}

/// Pipes for a command: our ends, and its own.
fn pipes(stdin: bool) -> io::Result<(Streams, [OwnedFd; 3])> {
    let (stdin, its_stdin): (_, OwnedFd) = if stdin {
        let (reader, writer) = io::pipe()?;
        (Some(Sender::from_owned_fd(writer.into())?), reader.into())
    } else {
        (None, File::open("/dev/null")?.into())
    };
    let (stdout, its_stdout) = io::pipe()?;
    let (stderr, its_stderr) = io::pipe()?;
    let streams = Streams::Pipes {
        stdin,
        stdout: Receiver::from_owned_fd(stdout.into())?,
        stderr: Receiver::from_owned_fd(stderr.into())?,
    };
    Ok((streams, [its_stdin, its_stdout.into(), its_stderr.into()]))
}

/// The command with its environment.
fn order(spec: &ExecSpec) -> Order {
    let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let own = ["HOME", "USER", "LANG"]
        .iter()
        .filter_map(|&name| Some((name.into(), env::var_os(name)?)));
    let asked = spec
        .env
        .iter()
        .map(|(name, value)| (name.into(), value.into()));
    Order {
        argv: spec.argv.iter().map(Into::into).collect(),
        env: [("PATH".into(), path)]
            .into_iter()
            .chain(own)
            .chain(spec.tty.map(|_| ("TERM".into(), "xterm".into())))
            .chain(asked)
            .collect(),
    }
}

/// The directory that it runs in.
pub(super) fn directory(spec: &ExecSpec) -> Result<PathBuf, ExecError> {
    let Some(dir) = &spec.cwd else {
        let home = env::var_os("HOME").map(PathBuf::from);
        return Ok(home.filter(|home| home.is_dir()).unwrap_or("/".into()));
    };
    // Asked beforehand, because the error of a spawn does not tell the two apart.
    match std::fs::metadata(dir) {
        Ok(meta) if meta.is_dir() => Ok(dir.into()),
        Ok(_) => Err(ExecError::Invalid {
            what: format!("{dir:?} is not a directory"),
        }),
        Err(error) => Err(ExecError::Invalid {
            what: format!("directory {dir:?}: {error}"),
        }),
    }
}
