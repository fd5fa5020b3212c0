//! Commands in Docker containers that exist, through the daemon's API on its Unix socket.
//!
//! ```text
//!            create, start (hijacked connection)
//! exec() ───────────────────────────────────────► dockerd ──► containerd ──► command
//!   stdin  ───────────── half-closed at EOF ────►    │
//!   stdout ◄─┐  one task parts the two, and          │
//!   stderr ◄─┴─ waits while either is full ◄─────────┘
//!   wait()  ── inspect until there is a code
//!   stop()  ── signals from here, else from inside the container
//! ```
//!
//! The daemon answers a start before the command runs, and reports one that cannot run as if it
//! had printed the reason and exited with 126 or 127. What tells such a failure from a command that
//! exits so itself is the pid: a command that never ran has none. [`DockerRuntime::exec`] therefore
//! returns only when the pid is known, which it also needs for a later stop.
//!
//! Both outputs come on one connection, so a reader that stops reading one of them holds up the
//! other too. An output that is dropped is read and thrown away; when both are dropped the
//! connection is closed.
//!
//! A command with a terminal has one output and takes a connection of its own, see `terminal`. It
//! finds the terminal's size set, see `gate`.
//!
//! If the agent is killed its commands go on in their containers, with EOF as input. With
//! [`DockerRuntime::keeping_records`] its next start stops them.

mod demo;
mod exec;
mod gate;
mod output;
mod refusal;
mod terminal;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use bollard::query_parameters::ListContainersOptionsBuilder;
use bytes::BytesMut;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use hub_protocol::kind::exec::Size;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

pub use self::demo::{DemoContainer, DemoError};
use self::exec::{DockerHandle, Exec, Started};
use self::gate::Verdict;
use self::output::Frames;
use self::terminal::{Input, Keyboard};
use super::leftovers;
use super::{
    ByteSink, Container, ExecError, ExecSpec, MAX_CHUNK, MAX_NAMED, Process, ProcessHandle,
    Runtime, Stopped, proc,
};
use crate::engine::{Engine, names};
use crate::kill::{self, Point};

/// How long the daemon may take to say that it is there.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the shell of a [`gate`] may take to say something.
const GATE: Duration = Duration::from_secs(30);

/// The keys that detach a client at the daemon; there is no setting for none, and those that there
/// are unless others are named, Ctrl-P and Ctrl-Q, are held back while they may be the beginning.
/// Whoever detaches from us does it elsewhere.
const NO_DETACH: &str = "ctrl-^,ctrl-@,ctrl-^,ctrl-@,ctrl-^,ctrl-@,ctrl-^,ctrl-@";

const NAME: &str = "docker";

/// A command that runs.
struct Opened {
    exec: Arc<Exec>,
    handle: DockerHandle,
    frames: Frames,
    input: Input,
}

/// Runs commands in the containers of one Docker daemon.
#[derive(Debug, Clone)]
pub struct DockerRuntime {
    engine: Engine,
    records: Option<PathBuf>,
}

impl DockerRuntime {
    /// Runs commands by this daemon.
    pub fn new(engine: &Engine) -> Self {
        Self {
            engine: engine.clone(),
            records: None,
        }
    }

    fn docker(&self) -> &Docker {
        self.engine.docker()
    }

    /// Keeps a record of every command in `DIR/execs` from before its start, after stopping what an
    /// earlier run of the agent recorded there and left behind. Only processes that this machine sees
    /// can be stopped so; of others a warning tells.
    pub async fn keeping_records(mut self, state_dir: &Path) -> io::Result<Self> {
        let records = state_dir.join("execs");
        leftovers::prepare(&records)?;
        let (docker, boot) = (self.docker().clone(), proc::boot_id()?);
        leftovers::sweep(&records, async |record| {
            let asked = match Exec::of_record(&docker, record).filter(|_| record.boot == boot) {
                Some(exec) => exec.stop_left(leftovers::GRACE).await,
                None => Ok(Stopped::AlreadyEnded),
            };
            match asked {
                // A daemon that was restarted knows nothing of what it left running.
                Ok(Stopped::AlreadyEnded) => leftovers::stop(record, &boot)
                    .await
                    .unwrap_or(Ok(Stopped::AlreadyEnded)),
                Ok(stopped) => Ok(stopped),
                Err(left) => Err(left.to_string()),
            }
        })
        .await?;
        self.records = Some(records);
        Ok(self)
    }

    /// Whether the daemon answers within 10 s.
    pub async fn ping(&self) -> Result<(), ExecError> {
        match timeout(PING_TIMEOUT, self.docker().ping()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(unavailable(&error)),
            Err(_) => Err(no_answer()),
        }
    }

    /// The containers that run, by name.
    pub async fn containers(&self) -> Result<Vec<Container>, ExecError> {
        let options = ListContainersOptionsBuilder::new().all(false).build();
        let found = self
            .docker()
            .list_containers(Some(options))
            .await
            .map_err(|error| unavailable(&error))?;
        let mut containers: Vec<_> = found
            .into_iter()
            .filter_map(|summary| {
                let names = summary.names.unwrap_or_default();
                let name = names::own(&names)?.to_owned();
                Some(Container {
                    name,
                    id: summary.id?,
                    image: summary.image.unwrap_or_default(),
                })
            })
            .collect();
        containers.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(containers)
    }

    async fn launch(&self, spec: ExecSpec) -> Result<(Process, Arc<Exec>), ExecError> {
        spec.check()?;
        let Some(name) = spec.container.as_deref() else {
            return Err(ExecError::Unsupported {
                what: "this node runs commands in containers only; name one, as NODE/CONTAINER"
                    .into(),
            });
        };
        let Some(name) = names::container(name) else {
            return Err(self.no_such_container(names::bare(name)).await);
        };
        let opened = match spec.tty {
            Some(size) if !terminal::takes_size(terminal::version(&self.engine)) => {
                self.open_gated(&spec, name, size).await?
            }
            _ => self.open(&spec, name, spec.argv.clone()).await?,
        };
        let Opened {
            exec,
            handle,
            frames,
            input,
        } = opened;
        let (stdout, stderr) = output::part(frames, Arc::clone(&exec));
        let stdin: Option<ByteSink> = match spec.tty {
            _ if !spec.stdin => None,
            Some(_) => Some(Box::new(Keyboard(input))),
            None => Some(Box::new(output::Stdin(Some(input)))),
        };
        let process = Process {
            stdin,
            stdout,
            stderr,
            handle: Box::new(handle),
        };
        Ok((process, exec))
    }

    /// Creates and starts a command, and waits until it runs.
    async fn open(
        &self,
        spec: &ExecSpec,
        name: &str,
        argv: Vec<String>,
    ) -> Result<Opened, ExecError> {
        let command = argv[0].clone();
        let variables = spec.env.iter();
        let config = ExecConfig {
            // With a terminal, which has an input in any case, it is only a question of who feeds it.
            attach_stdin: Some(spec.stdin || spec.tty.is_some()),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            tty: Some(spec.tty.is_some()),
            console_size: spec.tty.map(terminal::console_size),
            detach_keys: spec.tty.map(|_| NO_DETACH.into()),
            env: Some(
                variables
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect(),
            ),
            cmd: Some(argv),
            user: spec.user.clone(),
            working_dir: spec.cwd.clone(),
            ..ExecConfig::default()
        };
        let created = match self.docker().create_exec(name, config).await {
            Ok(created) => created,
            Err(Error::DockerResponseServerError {
                status_code: 404, ..
            }) => {
                return Err(self.no_such_container(name).await);
            }
            Err(error) => return Err(refusal::of_api(&error, name, &command)),
        };
        let exec = Arc::new(Exec::new(
            self.docker().clone(),
            created.id,
            name,
            &spec.argv[0],
        ));
        // From here on a call that is given up stops what it started.
        let handle = DockerHandle(Arc::clone(&exec));
        kill::at(Point::ExecCreated);
        if let Some(dir) = &self.records {
            exec.keep_record(dir);
        }
        kill::at(Point::ExecRecorded);
        let started = match spec.tty {
            Some(size) => terminal::start(&self.engine, &exec.id, size).await,
            None => self.attach(&exec.id).await,
        };
        let (mut frames, input) = match started {
            Ok(streams) => streams,
            Err(error @ Error::DockerResponseServerError { .. }) => {
                exec.set_over();
                return Err(refusal::of_api(&error, name, &command));
            }
            Err(error) => {
                return Err(ExecError::Unknown {
                    why: error.to_string(),
                });
            }
        };
        kill::at(Point::ExecReleased);
        let started = exec.started().await;
        exec.complete_record();
        match started {
            Started::Refused(code) => {
                exec.set_over();
                let text = output::text(&mut frames).await;
                Err(refusal::of_start(code, &text, name, &command))
            }
            Started::Runs => Ok(Opened {
                exec,
                handle,
                frames,
                input,
            }),
        }
    }

    /// Starts a command without a terminal.
    async fn attach(&self, id: &str) -> Result<(Frames, Input), Error> {
        let options = StartExecOptions {
            output_capacity: Some(MAX_CHUNK),
            ..Default::default()
        };
        match self.docker().start_exec(id, Some(options)).await? {
            StartExecResults::Attached { output, input } => Ok((output, input)),
            StartExecResults::Detached => {
                Err(io::Error::other("the daemon detached from it").into())
            }
        }
    }

    /// The same behind a [`gate`], which opens once the terminal has its size.
    async fn open_gated(
        &self,
        spec: &ExecSpec,
        name: &str,
        size: Size,
    ) -> Result<Opened, ExecError> {
        let mut opened = match self.open(spec, name, gate::argv(&spec.argv)).await {
            Err(ExecError::NotFound { command, .. } | ExecError::NotExecutable { command, .. })
                if command == gate::SHELL =>
            {
                let opened = self.open(spec, name, spec.argv.clone()).await?;
                opened.exec.settle_size(size).await;
                return Ok(opened);
            }
            opened => opened?,
        };
        let command = spec.argv[0].clone();
        let mut output = BytesMut::new();
        let verdict = timeout(GATE, async {
            loop {
                if let Some(verdict) = gate::verdict(&mut output) {
                    return verdict;
                }
                match opened.frames.next().await {
                    Some(Ok(frame)) => output.extend_from_slice(&frame.into_bytes()),
                    Some(Err(error)) => return Verdict::Other(error.to_string()),
                    None => return Verdict::Other("nothing".into()),
                }
            }
        });
        let verdict = verdict.await;
        if matches!(verdict, Ok(Verdict::Missing | Verdict::Barred)) {
            // It ends by itself; nothing of it is left once this is answered.
            let _ = timeout(GATE, opened.handle.wait()).await;
        }
        let detail = match verdict {
            Ok(Verdict::Open) => {
                opened.exec.settle_size(size).await;
                let sent = async {
                    opened.input.write_all(gate::OPEN).await?;
                    opened.input.flush().await
                };
                if let Err(error) = sent.await {
                    return Err(unavailable(&error.into()));
                }
                opened.frames = gate::without_echo(output.freeze(), opened.frames);
                return Ok(opened);
            }
            Ok(Verdict::Missing) => {
                let detail = "there is no such file, or none in the container's PATH".into();
                return Err(ExecError::NotFound { command, detail });
            }
            Ok(Verdict::Barred) => {
                let detail = "it is no file that may be executed".into();
                return Err(ExecError::NotExecutable { command, detail });
            }
            Ok(Verdict::Other(said)) => format!("{said:?}"),
            Err(_) => "nothing in time".into(),
        };
        Err(ExecError::Unavailable {
            runtime: NAME,
            why: format!("the shell that sets up the terminal said {detail}"),
        })
    }

    async fn no_such_container(&self, name: &str) -> ExecError {
        // Without the list the error is still the right one.
        let mut running: Vec<_> = self.containers().await.unwrap_or_default();
        let total = running.len();
        running.truncate(MAX_NAMED);
        let running = running
            .into_iter()
            .map(|container| container.name)
            .collect();
        ExecError::NoSuchContainer {
            name: name.into(),
            running,
            total,
        }
    }
}

impl Runtime for DockerRuntime {
    fn name(&self) -> &'static str {
        NAME
    }

    fn exec(&self, spec: ExecSpec) -> BoxFuture<'_, Result<Process, ExecError>> {
        async move { Ok(self.launch(spec).await?.0) }.boxed()
    }
}

fn unavailable(error: &Error) -> ExecError {
    ExecError::Unavailable {
        runtime: NAME,
        why: error.to_string(),
    }
}

fn no_answer() -> ExecError {
    let why = format!(
        "the daemon did not answer within {} s",
        PING_TIMEOUT.as_secs()
    );
    ExecError::Unavailable { runtime: NAME, why }
}
