//! A gate before every command: nothing of it runs before its record stands.
//!
//! An agent that dies by SIGKILL after it has started a command and before it has written down what
//! would leave a command that nobody can find. So the process of a command begins as this very
//! program, which knows nothing of the command, and becomes it when it is told to:
//!
//! ```text
//! agent                                          gate, in the command's place
//!  | ------------------- start -------------------> |  waits
//!  | writes the record: pid, start                  |
//!  | --- what the command is, and its streams ----> |
//!  | <------------------ READY -------------------- |  exec
//!  | <- end of file: it is the command; else errno  |
//! ```
//!
//! The gate's standard input is a socket, the other end of which is the agent's alone. It closes with
//! the agent, at whatever moment that dies, and a gate that reads its end before all of the command
//! ends itself. A process that becomes another keeps its pid and its start, so the record is the
//! command's.
//!
//! Programs whose `main` calls [`enter`] can be gates of their own commands. In others, tests and
//! benches within one process, commands start without: there a record follows the start.

use std::convert::Infallible;
use std::env;
use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use hub_protocol::kind;
use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};

/// The only argument of a program that is to be a gate.
const ARGUMENT: &str = "exec-gate";

/// What a gate says when it has all that it needs.
const READY: u8 = 1;

/// This program can be a gate.
static ABLE: AtomicBool = AtomicBool::new(false);

/// Lets this program be the gate of its commands; the first thing that its `main` does. In a process
/// that was started as a gate it does not return.
pub fn enter() {
    if env::args_os().nth(1).is_some_and(|word| word == ARGUMENT) {
        let Err(error) = pass();
        // Nobody reads it but a person who called this.
        let _ = writeln!(io::stderr(), "{ARGUMENT} is for agents to call: {error}");
        std::process::exit(1);
    }
    ABLE.store(true, Ordering::Relaxed);
}

/// The program that is a gate.
#[derive(Debug)]
pub(in crate::runtime) struct Gate {
    program: PathBuf,
    arguments: Vec<String>,
}

impl Gate {
    /// This very program, if it can be one.
    pub(super) fn own() -> Option<Self> {
        // The link names what runs, even after an upgrade has put another file in its place.
        ABLE.load(Ordering::Relaxed)
            .then(|| Self::by("/proc/self/exe", &[ARGUMENT]))
    }

    pub(in crate::runtime) fn by(program: impl Into<PathBuf>, arguments: &[&str]) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.iter().map(ToString::to_string).collect(),
        }
    }

    /// A gate that is to be started with these streams, and what opens it.
    pub(super) fn before(
        &self,
        order: Order,
        streams: [OwnedFd; 3],
    ) -> io::Result<(Command, [Stdio; 3], Closed)> {
        let (ours, its) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut command = Command::new(&self.program);
        // Not the command's environment either, which may be full of advice to a program's loader.
        command.args(&self.arguments).env_clear();
        let closed = Closed {
            socket: tokio::net::UnixStream::from_std(ours)?,
            order,
            streams,
        };
        let stdio = [OwnedFd::from(its).into(), Stdio::null(), Stdio::null()];
        Ok((command, stdio, closed))
    }
}

/// A command and its environment.
#[derive(Serialize, Deserialize)]
pub(super) struct Order {
    /// Not empty.
    pub(super) argv: Vec<OsString>,
    /// All of it; a later variable replaces an earlier one.
    pub(super) env: Vec<(OsString, OsString)>,
}

impl Order {
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.argv[0]);
        command
            .args(&self.argv[1..])
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Why a process did not become its command.
#[derive(Debug)]
pub(super) enum Shut {
    /// The system refuses to run the command.
    Refused(io::Error),
    /// The gate is gone.
    Broken(io::Error),
}

/// A gate that was started and waits.
pub(super) struct Closed {
    socket: tokio::net::UnixStream,
    order: Order,
    streams: [OwnedFd; 3],
}

impl Closed {
    /// Lets the command run; returns once it does.
    pub(super) async fn open(self) -> Result<(), Shut> {
        let answer = self.exchange().await.map_err(Shut::Broken)?;
        match *answer {
            [READY] => Ok(()),
            [READY, a, b, c, d] => {
                let number = i32::from_le_bytes([a, b, c, d]);
                Err(Shut::Refused(io::Error::from_raw_os_error(number)))
            }
            _ => Err(Shut::Broken(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    async fn exchange(self) -> io::Result<Vec<u8>> {
        let Self {
            mut socket,
            order,
            streams,
        } = self;
        let body = kind::encode(&order);
        let head = u32::try_from(body.len())
            .map_err(|_| io::Error::from(io::ErrorKind::ArgumentListTooLong))?
            .to_le_bytes();
        send(&socket, head, streams).await?;
        socket.write_all(&body).await?;
        let mut answer = Vec::new();
        socket.take(8).read_to_end(&mut answer).await?;
        Ok(answer)
    }
}

/// Sends the first word, the body's length, and the command's streams with it. They are closed here
/// then: outputs end when the command's own descriptors do.
async fn send(
    socket: &tokio::net::UnixStream,
    head: [u8; 4],
    streams: [OwnedFd; 3],
) -> io::Result<()> {
    let send = || {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = streams.each_ref().map(OwnedFd::as_fd);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let head = [IoSlice::new(&head)];
        Ok(sendmsg(socket, &head, &mut control, SendFlags::NOSIGNAL)?)
    };
    if socket.async_io(Interest::WRITABLE, send).await? < head.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(())
}

/// The gate: waits for the command at standard input and becomes it.
fn pass() -> io::Result<Infallible> {
    // A duplicate, which closes when the command takes over, as the streams that come do.
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut head = [0; 4];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let into = &mut [IoSliceMut::new(&mut head)];
    if recvmsg(&socket, into, &mut control, flags)?.bytes < 4 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut streams = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            streams.extend(descriptors);
        }
    }
    let [stdin, stdout, stderr] = <[OwnedFd; 3]>::try_from(streams)
        .map_err(|_| io::Error::other("its streams did not come"))?;
    let mut body = vec![0; u32::from_le_bytes(head) as usize];
    socket.read_exact(&mut body)?;
    let order: Order = kind::decode("command", &body).map_err(io::Error::other)?;
    let mut command = order.command();
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    socket.write_all(&[READY])?;
    let error = command.exec();
    let number = error
        .raw_os_error()
        .unwrap_or(rustix::io::Errno::INVAL.raw_os_error());
    socket.write_all(&number.to_le_bytes())?;
    Err(error)
}

#[cfg(test)]
pub(in crate::runtime) mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// This test program as a gate.
    pub(in crate::runtime) fn gate() -> Gate {
        let path = "runtime::process::gate::tests::it_is_no_command_of_its_own";
        Gate::by("/proc/self/exe", &["--exact", path])
    }

    /// A started gate, whose command prints into the pipe.
    fn started(command: &str) -> (std::process::Child, Closed, io::PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        let (input, _) = io::pipe().unwrap();
        let errors = writer.try_clone().unwrap();
        let order = Order {
            argv: ["/bin/echo", command].map(OsString::from).to_vec(),
            env: Vec::new(),
        };
        let streams = [input.into(), writer.into(), errors.into()];
        let (mut gate, stdio, closed) = gate().before(order, streams).unwrap();
        let [stdin, stdout, stderr] = stdio;
        gate.stdin(stdin).stdout(stdout).stderr(stderr);
        (gate.spawn().unwrap(), closed, reader)
    }

    /// All that came until the command's end.
    fn printed(mut reader: io::PipeReader) -> String {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    }

    #[tokio::test]
    async fn a_gate_becomes_its_command() {
        let (mut child, closed, reader) = started("x");
        closed.open().await.unwrap();
        assert_eq!(printed(reader), "x\n");
        assert!(child.wait().unwrap().success());
    }

    #[tokio::test]
    async fn a_gate_ends_with_its_agent() {
        let (mut child, closed, reader) = started("x");
        drop(closed);
        child.wait().unwrap();
        assert_eq!(printed(reader), "");
    }

    /// An agent may die with half of the command said.
    #[tokio::test]
    async fn half_a_command_is_none() {
        let (mut child, closed, reader) = started("x");
        let Closed {
            mut socket,
            order,
            streams,
        } = closed;
        let body = kind::encode(&order);
        let head = u32::try_from(body.len()).unwrap().to_le_bytes();
        send(&socket, head, streams).await.unwrap();
        socket.write_all(&body[1..]).await.unwrap();
        drop(socket);
        child.wait().unwrap();
        assert_eq!(printed(reader), "");
    }

    /// What is not started by an agent has no command to become. One that is, by the other tests,
    /// becomes it here.
    #[test]
    fn it_is_no_command_of_its_own() {
        let Err(error) = pass();
        assert!(!error.to_string().is_empty());
    }
}
