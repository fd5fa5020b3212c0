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
//! If the agent is killed its commands go on in their containers, with EOF as input. With
//! [`DockerRuntime::keeping_records`] its next start stops them.

mod demo;
mod exec;
mod output;
mod refusal;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use bollard::query_parameters::ListContainersOptionsBuilder;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::timeout;

pub use self::demo::{DemoContainer, DemoError};
use self::exec::{DockerHandle, Exec, Started};
use super::leftovers;
use super::{Container, ExecError, ExecSpec, MAX_CHUNK, MAX_NAMED, Process, Runtime};
use crate::engine::Engine;

/// How long the daemon may take to say that it is there.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

const NAME: &str = "docker";

/// Runs commands in the containers of one Docker daemon.
#[derive(Debug, Clone)]
pub struct DockerRuntime {
    docker: Docker,
    records: Option<PathBuf>,
}

impl DockerRuntime {
    /// Runs commands by this daemon.
    pub fn new(engine: &Engine) -> Self {
        Self {
            docker: engine.docker().clone(),
            records: None,
        }
    }

    /// Keeps a record of every running command in `DIR/execs`, after stopping what an earlier run
    /// of the agent recorded there and left behind. Only processes that this machine sees and the
    /// agent may signal can be stopped so.
    pub async fn keeping_records(mut self, state_dir: &Path) -> io::Result<Self> {
        let records = state_dir.join("execs");
        leftovers::prepare(&records)?;
        leftovers::sweep(&records).await?;
        self.records = Some(records);
        Ok(self)
    }

    /// Whether the daemon answers within 10 s.
    pub async fn ping(&self) -> Result<(), ExecError> {
        match timeout(PING_TIMEOUT, self.docker.ping()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(unavailable(&error)),
            Err(_) => Err(no_answer()),
        }
    }

    /// The containers that run, by name.
    pub async fn containers(&self) -> Result<Vec<Container>, ExecError> {
        let options = ListContainersOptionsBuilder::new().all(false).build();
        let found = self
            .docker
            .list_containers(Some(options))
            .await
            .map_err(|error| unavailable(&error))?;
        let mut containers: Vec<_> = found
            .into_iter()
            .filter_map(|summary| {
                let names = summary.names.unwrap_or_default();
                // A link gives a container more names, with a further slash in them.
                let mut own = names.iter().filter_map(|name| name.strip_prefix('/'));
                let name = own.find(|name| !name.contains('/'))?.to_owned();
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
        let name = name.strip_prefix('/').unwrap_or(name);
        if !is_container_name(name) {
            return Err(self.no_such_container(name).await);
        }
        let command = spec.argv[0].clone();
        let options = CreateExecOptions {
            attach_stdin: Some(spec.stdin),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            env: Some(
                spec.env
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect(),
            ),
            cmd: Some(spec.argv.clone()),
            user: spec.user.clone(),
            working_dir: spec.cwd.clone(),
            ..CreateExecOptions::default()
        };
        let created = match self.docker.create_exec(name, options).await {
            Ok(created) => created,
            Err(Error::DockerResponseServerError {
                status_code: 404, ..
            }) => {
                return Err(self.no_such_container(name).await);
            }
            Err(error) => return Err(refusal::of_api(&error, name, &command)),
        };
        let exec = Arc::new(Exec::new(self.docker.clone(), created.id, name, &command));
        // From here on a call that is given up stops what it started.
        let handle = DockerHandle(Arc::clone(&exec));
        let options = StartExecOptions {
            output_capacity: Some(MAX_CHUNK),
            ..Default::default()
        };
        let (mut output, input) = match self.docker.start_exec(&exec.id, Some(options)).await {
            Ok(StartExecResults::Attached { output, input }) => (output, input),
            Ok(StartExecResults::Detached) => {
                return Err(ExecError::Unknown {
                    why: "the daemon detached from it".into(),
                });
            }
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
        match exec.started().await {
            Started::Refused(code) => {
                exec.set_over();
                let text = output::text(&mut output).await;
                return Err(refusal::of_start(code, &text, name, &command));
            }
            Started::Runs => {}
        }
        if let Some(dir) = &self.records {
            exec.keep_record(dir);
        }
        let (stdout, stderr) = output::part(output, Arc::clone(&exec));
        let process = Process {
            stdin: spec
                .stdin
                .then(|| Box::new(output::Stdin(Some(input))) as _),
            stdout,
            stderr,
            handle: Box::new(handle),
        };
        Ok((process, exec))
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

/// Whether Docker could have a container of that name or id. It goes into a URL as it is.
fn is_container_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

#[cfg(test)]
mod pure_tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_place_in_the_url() {
        for good in ["web", "a.b-c_1", "1a00102f43f6"] {
            assert!(is_container_name(good), "{good}");
        }
        for bad in [
            "", "..", "../x", "a/b", "a?b", "a#b", "a%2fb", "a b", "-x", "ä", "a\0",
        ] {
            assert!(!is_container_name(bad), "{bad}");
        }
    }
}
