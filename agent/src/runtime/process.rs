//! Commands straight on the machine, for machines without containers. They run as the agent's own
//! user, with all that this user may do; the agent offers this only when told to.
//!
//! Each command leads a process group of its own. A task, its *warden*, owns the child: it tells
//! the output streams when the command has ended, stops the group, and reaps the command only when
//! its status is asked for, so that until then the pid and the group cannot be anybody else's.
//!
//! ```text
//! stdout, stderr ◄── pipes ── command ◄── pipe ── stdin
//!      ▲ ended?                  │ pidfd
//!      └────────────────────── warden ◄── wait, stop ── handle
//! ```
//!
//! * **Environment:** `PATH` (or a plain default), `HOME`, `USER` and `LANG` of the agent, and
//!   what the spec adds. Nothing else of the agent's environment reaches a command.
//! * **Directory:** the spec's, else `HOME`, else `/`.
//! * **Terminal:** a pseudo-terminal in place of the three pipes; the command leads a session of its
//!   own and the terminal controls it. See `terminal`.
//! * **Background processes:** a command may leave some behind; they live on, as after a remote
//!   shell. If they hold its output open, the streams go on while data comes and end once nothing
//!   came for [`QUIET`] after the command's own end. A stop ends all of the group.
//! * **The agent's end:** if the agent's runtime goes away the group is killed. If the agent is
//!   killed with SIGKILL, the `leftovers` module does that at its next start; no command runs before
//!   it has the record for that, see [`gate`].
//!
//! Needs Linux 5.4 or later, for pidfds.

pub mod gate;

mod start;
mod terminal;

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, stream};
use hub_protocol::kind::exec::Size;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::unix::pipe::Sender;
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

use self::gate::{Gate, Shut};
use self::start::{Begun, Streams};
use self::terminal::Screen;
use super::group::{Bond, Leader, StopError};
use super::leftovers::{self, Instance, Kept, Record};
use super::{
    ByteSink, ByteStream, DEFAULT_GRACE, ExecError, ExecSpec, ExitStatus, MAX_CHUNK, MayStillRun,
    Process, ProcessHandle, Runtime, Stopped, WaitError, proc,
};
use crate::kill::{self, Point};

/// How long the outputs of a command that has ended stay open with nothing coming: somebody else
/// holds them. What the command itself wrote is in the pipe by then and always read first.
pub const QUIET: Duration = Duration::from_millis(500);

/// A pipe's buffer is asked to hold at least this much more before each read.
const LEAST_READ: usize = 4 * 1024;

const NAME: &str = "process";

/// Runs commands on the machine itself.
#[derive(Debug)]
pub struct ProcessRuntime {
    records: PathBuf,
    boot: String,
    gate: Option<Gate>,
}

impl ProcessRuntime {
    /// Makes `DIR/execs` if needed and stops what an earlier run of the agent left running, which
    /// takes a few seconds at most. No two agents may use one directory.
    pub async fn open(state_dir: &Path) -> io::Result<Self> {
        let records = state_dir.join("execs");
        leftovers::prepare(&records)?;
        let boot = proc::boot_id()?;
        leftovers::sweep(&records, async |record| {
            match leftovers::stop(record, &boot).await {
                Some(stopped) => stopped,
                None if record.process.is_none() && record.boot == boot => {
                    Err("the Docker daemon alone can tell; start the agent with its runtime".into())
                }
                None => Ok(Stopped::AlreadyEnded),
            }
        })
        .await?;
        Ok(Self {
            records,
            boot,
            gate: Gate::own(),
        })
    }

    /// The same with another program as the [`gate`].
    #[cfg(test)]
    pub(super) fn behind(mut self, gate: Gate) -> Self {
        self.gate = Some(gate);
        self
    }

    async fn start(&self, spec: &ExecSpec) -> Result<Process, ExecError> {
        spec.check()?;
        if let Some(name) = &spec.container {
            return Err(ExecError::Unsupported {
                what: format!(
                    "this node runs commands without containers, so there is no {name:?}; leave \
                     the container out, or run the agent with the docker runtime"
                ),
            });
        }
        if let Some(user) = &spec.user
            && !is_own_user(user)
        {
            return Err(ExecError::Unsupported {
                what: format!(
                    "this node runs commands as the agent's own user and not as {user:?}; leave \
                     the user out"
                ),
            });
        }
        let dir = start::directory(spec)?;
        let Begun {
            child,
            streams,
            closed,
        } = start::begin(self.gate.as_ref(), spec, &dir)
            .map_err(|error| refused(&spec.argv[0], &error))?;
        let leader = child
            .id()
            .ok_or(io::ErrorKind::NotFound.into())
            .and_then(|pid| Leader::open(pid.cast_signed(), None, Bond::Child))
            // Dropping the child kills it.
            .map_err(|error| unavailable(format!("the new process cannot be watched: {error}")))?;
        kill::at(Point::ExecCreated);
        let record = Record {
            boot: self.boot.clone(),
            process: Some(Instance {
                pid: leader.pid(),
                start: leader.start(),
            }),
            command: spec.argv[0].clone(),
            container: None,
            exec: None,
        };
        let kept = leftovers::keep(&self.records, &record).inspect_err(|error| {
            // Refusing would keep people from the very command that makes room on the disk.
            tracing::warn!(%error, "a command runs without a record; it is not cleaned up after if the agent is killed");
        });
        kill::at(Point::ExecRecorded);

        let (requests, received) = mpsc::channel(4);
        let (ended, is_ended) = watch::channel(false);
        let (status, known) = watch::channel(None);
        let what = format!("{:?}, pid {}", spec.argv[0], leader.pid());
        let warden = Warden {
            child,
            leader,
            kept: kept.ok(),
            ended,
            status,
            reaped: false,
        };
        tokio::spawn(warden.run(received));
        let handle = Handle {
            what,
            requests,
            known,
            screen: match &streams {
                Streams::Pipes { .. } => None,
                Streams::Terminal(terminal) => Some(terminal.screen()),
            },
        };
        if let Some(closed) = closed
            && let Err(shut) = closed.open().await
        {
            // Nothing of it is left once this is answered.
            let _ = handle.wait().await;
            return Err(match shut {
                Shut::Refused(error) => refused(&spec.argv[0], &error),
                Shut::Broken(error) => unavailable(format!(
                    "the process ended before it was the command: {error}"
                )),
            });
        }
        kill::at(Point::ExecReleased);
        let (stdin, stdout, stderr): (Option<ByteSink>, _, _) = match streams {
            Streams::Pipes {
                stdin,
                stdout,
                stderr,
            } => (
                stdin.map(|pipe| Box::new(Stdin(Some(pipe))) as _),
                output(stdout, is_ended.clone()),
                output(stderr, is_ended),
            ),
            Streams::Terminal(terminal) => (
                spec.stdin.then(|| Box::new(terminal.keyboard()) as _),
                output(terminal, is_ended),
                Box::pin(stream::empty()),
            ),
        };
        Ok(Process {
            stdin,
            stdout,
            stderr,
            handle: Box::new(handle),
        })
    }
}

impl Runtime for ProcessRuntime {
    fn name(&self) -> &'static str {
        NAME
    }

    fn exec(&self, spec: ExecSpec) -> BoxFuture<'_, Result<Process, ExecError>> {
        async move { self.start(&spec).await }.boxed()
    }
}

fn unavailable(why: String) -> ExecError {
    ExecError::Unavailable { runtime: NAME, why }
}

/// Which of our errors the system's refusal to start a command is.
fn refused(command: &str, error: &io::Error) -> ExecError {
    use io::ErrorKind as Kind;
    let (command, detail) = (command.to_owned(), error.to_string());
    match error.kind() {
        Kind::NotFound | Kind::NotADirectory => ExecError::NotFound { command, detail },
        Kind::ArgumentListTooLong | Kind::InvalidInput => ExecError::Invalid { what: detail },
        Kind::WouldBlock | Kind::OutOfMemory => unavailable(detail),
        _ if matches!(error.raw_os_error(), Some(code) if NO_ROOM.contains(&code)) => {
            unavailable(detail)
        }
        _ => ExecError::NotExecutable { command, detail },
    }
}

/// Too many open files, here or on the whole machine.
const NO_ROOM: [i32; 2] = [
    rustix::io::Errno::MFILE.raw_os_error(),
    rustix::io::Errno::NFILE.raw_os_error(),
];

/// Whether this is the name or the uid of the user that we are.
fn is_own_user(user: &str) -> bool {
    let uid = rustix::process::getuid().as_raw();
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    names(user, uid, &passwd)
}

/// Whether `user` names the uid, as a number or by the first entry of that name.
fn names(user: &str, uid: u32, passwd: &str) -> bool {
    if let Ok(number) = user.parse::<u32>() {
        return number == uid;
    }
    let entry = passwd
        .lines()
        .map(|line| line.split(':'))
        .find_map(|mut fields| {
            (fields.next() == Some(user))
                .then(|| fields.nth(1).map(str::to_owned))
                .flatten()
        });
    entry.is_some_and(|id| id.parse() == Ok(uid))
}

/// A stream over one output pipe. See [`QUIET`] for how it ends without EOF.
fn output(
    pipe: impl AsyncRead + Send + Unpin + 'static,
    ended: watch::Receiver<bool>,
) -> ByteStream {
    let buffer = BytesMut::new();
    Box::pin(stream::unfold(
        (pipe, ended, buffer),
        |(mut pipe, mut ended, mut buffer)| async move {
            buffer.reserve(if buffer.capacity() < LEAST_READ {
                MAX_CHUNK
            } else {
                LEAST_READ
            });
            let read = {
                let mut limited = (&mut buffer).limit(MAX_CHUNK);
                tokio::select! {
                    biased;
                    read = pipe.read_buf(&mut limited) => read,
                    () = quiet(&mut ended) => Ok(0),
                }
            };
            match read {
                Ok(0) => None,
                Ok(_) => {
                    let chunk = buffer.split().freeze();
                    Some((Ok(chunk), (pipe, ended, buffer)))
                }
                Err(error) => Some((Err(error), (pipe, ended, buffer))),
            }
        },
    ))
}

/// Returns [`QUIET`] after the command's end, or after the call if that is later.
async fn quiet(ended: &mut watch::Receiver<bool>) {
    // A warden that is gone has ended its command.
    let _ = ended.wait_for(|ended| *ended).await;
    sleep(QUIET).await;
}

/// A pipe into the command; its EOF is the end of the descriptor, so shutting down closes it.
struct Stdin(Option<Sender>);

impl AsyncWrite for Stdin {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Some(pipe) => Pin::new(pipe).poll_write(cx, data),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Some(pipe) => Pin::new(pipe).poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(pipe) = &mut self.0 {
            ready!(Pin::new(pipe).poll_shutdown(cx))?;
        }
        self.0 = None;
        Poll::Ready(Ok(()))
    }
}

/// What a handle asks of the warden.
enum Request {
    /// Make the status known as soon as there is one.
    Reap,
    /// Send a signal to the group.
    Signal {
        number: i32,
        answer: oneshot::Sender<Result<(), StopError>>,
    },
    /// Stop the group.
    Stop {
        grace: Duration,
        answer: oneshot::Sender<Result<Stopped, String>>,
    },
}

/// Owns a command from its start until it is reaped.
struct Warden {
    child: Child,
    leader: Leader,
    kept: Option<Kept>,
    ended: watch::Sender<bool>,
    status: watch::Sender<Option<Result<ExitStatus, WaitError>>>,
    reaped: bool,
}

impl Warden {
    async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let mut asked = false;
        loop {
            let ended = *self.ended.borrow();
            if ended && asked {
                return self.reap().await;
            }
            tokio::select! {
                biased;
                // An error means that the end cannot be seen; reaping then waits for it.
                _ = self.leader.exited(), if !ended => {
                    self.ended.send_replace(true);
                }
                request = requests.recv() => match request {
                    Some(Request::Reap) => asked = true,
                    Some(Request::Signal { number, answer }) => {
                        let _ = answer.send(self.leader.send(number).await);
                    }
                    Some(Request::Stop { grace, answer }) => {
                        let stopped = self.leader.terminate(grace).await;
                        // Whoever asked may have gone meanwhile.
                        let _ = answer.send(stopped.map_err(|error| error.to_string()));
                    }
                    None => {
                        if let Err(error) = self.leader.terminate(DEFAULT_GRACE).await {
                            tracing::warn!(pid = self.leader.pid(), %error, "an abandoned command may still be running");
                        }
                        return self.reap().await;
                    }
                },
            }
        }
    }

    async fn reap(&mut self) {
        let status = match self.child.wait().await {
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => Ok(ExitStatus::Code(code)),
                (None, Some(signal)) => Ok(ExitStatus::Signal(signal)),
                (None, None) => Err(WaitError {
                    why: format!("the system reports {status}"),
                }),
            },
            Err(error) => Err(WaitError {
                why: error.to_string(),
            }),
        };
        self.reaped = true;
        self.kept = None;
        self.status.send_replace(Some(status));
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        // Only when the runtime goes away before the command: nobody is left to wait for a grace.
        if !self.reaped {
            self.leader.kill_now();
        }
    }
}

struct Handle {
    what: String,
    requests: mpsc::Sender<Request>,
    known: watch::Receiver<Option<Result<ExitStatus, WaitError>>>,
    screen: Option<Screen>,
}

impl ProcessHandle for Handle {
    fn wait(&self) -> BoxFuture<'_, Result<ExitStatus, WaitError>> {
        async move {
            // Fails once the warden is done, and then the status is there.
            let _ = self.requests.send(Request::Reap).await;
            let mut known = self.known.clone();
            match known.wait_for(Option::is_some).await.as_deref() {
                Ok(Some(status)) => status.clone(),
                _ => Err(WaitError {
                    why: "the agent is shutting down".into(),
                }),
            }
        }
        .boxed()
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'_, Result<Stopped, MayStillRun>> {
        async move {
            let (answer, answered) = oneshot::channel();
            // Both fail only when the warden is done: the command was reaped, or killed with the
            // runtime.
            if self
                .requests
                .send(Request::Stop { grace, answer })
                .await
                .is_err()
            {
                return Ok(Stopped::AlreadyEnded);
            }
            match answered.await {
                Ok(stopped) => stopped.map_err(|why| MayStillRun {
                    what: self.what.clone(),
                    why,
                }),
                Err(_) => Ok(Stopped::AlreadyEnded),
            }
        }
        .boxed()
    }

    fn resize(&self, size: Size) -> BoxFuture<'_, io::Result<()>> {
        let resized = match &self.screen {
            Some(screen) => screen.resize(size),
            None => Err(io::Error::other("the command has no terminal")),
        };
        async { resized }.boxed()
    }

    fn signal(&self, number: i32) -> BoxFuture<'_, io::Result<()>> {
        async move {
            let (answer, answered) = oneshot::channel();
            let request = Request::Signal { number, answer };
            // Without a warden the command has ended, and there is nobody to signal.
            if self.requests.send(request).await.is_err() {
                return Ok(());
            }
            match answered.await {
                Ok(Err(StopError::Io(error))) => Err(error),
                Ok(Err(error)) => Err(io::Error::other(error)),
                Ok(Ok(())) | Err(_) => Ok(()),
            }
        }
        .boxed()
    }
}
