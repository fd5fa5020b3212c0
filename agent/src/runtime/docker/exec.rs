//! One command in a container: what the daemon says of it, how it ended, and how it is stopped.
//!
//! Docker can start a command in a container and cannot signal it. [`Exec::stop`] takes the first
//! way that is open:
//!
//! 1. The daemon's pid is seen here, and `/proc` says that it is in this very container: signals
//!    to its group from here, with a pidfd that no recycled pid can deceive.
//! 2. It is seen here, and the agent may not signal it: `kill`, run inside the container.
//! 3. It is not seen here (the agent or the daemon is in a pid namespace of its own, or the daemon
//!    in a virtual machine): it may still run, and the answer says so.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::exec::{CreateExecOptions, ResizeExecOptions, StartExecOptions};
use bollard::models::ExecInspectResponse;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hub_protocol::kind::exec::Size;
use tokio::time::{Instant, sleep, timeout};

use super::super::group::{Bond, Leader, StopError};
use super::super::leftovers::{self, Instance, Kept, Record};
use super::super::{
    DEFAULT_GRACE, ExitStatus, MayStillRun, ProcessHandle, Stopped, WaitError, proc,
};

/// How long a command may take to get its pid. After that it counts as started, so that it is
/// waited for and can be stopped.
const START: Duration = Duration::from_secs(30);

/// How long the daemon may take to tell the code of a process that is gone, or not answer at all.
const SETTLE: Duration = Duration::from_secs(10);

/// How long the daemon may take to begin a start that it was asked for by an agent that has died since;
/// it marks the command as running before it does anything else.
const UNDERWAY: Duration = Duration::from_secs(2);

/// Pauses between two questions: from the first, doubling, to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(500));

/// What the daemon knows of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Not started yet.
    Pending,
    /// It runs, with this pid in the daemon's own pid namespace.
    Running(i32),
    /// It has ended.
    Ended(i32),
    /// It never ran; the code is the daemon's.
    Refused(i32),
}

fn phase(seen: &ExecInspectResponse) -> Phase {
    let pid = seen
        .pid
        .and_then(|pid| i32::try_from(pid).ok())
        .filter(|pid| *pid > 0);
    let code = seen.exit_code.and_then(|code| i32::try_from(code).ok());
    match (seen.running.unwrap_or(false), pid, code) {
        (false, None, Some(code @ 126..=128)) => Phase::Refused(code),
        (false, _, Some(code)) => Phase::Ended(code),
        (true, Some(pid), _) => Phase::Running(pid),
        _ => Phase::Pending,
    }
}

/// Whether a command came to run.
pub(super) enum Started {
    /// It runs or has run, or the daemon does not say.
    Runs,
    /// It could not be started; the code that the daemon gave it.
    Refused(i32),
}

/// One command, known to the daemon by its id.
#[derive(Debug)]
pub(super) struct Exec {
    docker: Docker,
    pub(super) id: String,
    container: String,
    command: String,
    leader: OnceLock<Leader>,
    code: OnceLock<i32>,
    kept: OnceLock<Kept>,
    /// Nothing of it runs any more.
    over: AtomicBool,
}

impl Exec {
    pub(super) fn new(docker: Docker, id: String, container: &str, command: &str) -> Self {
        Self {
            docker,
            id,
            container: container.into(),
            command: command.into(),
            leader: OnceLock::new(),
            code: OnceLock::new(),
            kept: OnceLock::new(),
            over: AtomicBool::new(false),
        }
    }

    /// Its process, once it was seen to run from here.
    pub(super) fn leader(&self) -> Option<&Leader> {
        self.leader.get()
    }

    /// Nothing has to be stopped any more.
    pub(super) fn set_over(&self) {
        self.over.store(true, Ordering::Release);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Waits for the command to come to run, and takes hold of its process if it is seen here.
    pub(super) async fn started(&self) -> Started {
        let deadline = Instant::now() + START;
        let mut pause = PAUSES.0;
        loop {
            match self.look().await {
                Ok(Phase::Refused(code)) => return Started::Refused(code),
                Ok(Phase::Pending) if Instant::now() < deadline => {}
                // It has started, or something is wrong and it may have.
                Ok(_) | Err(_) => return Started::Runs,
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Asks the daemon, and keeps what passes: the process while it runs, the code once it is there.
    async fn look(&self) -> Result<Phase, Error> {
        let seen = self.docker.inspect_exec(&self.id).await?;
        let phase = phase(&seen);
        match (phase, seen.container_id) {
            (Phase::Running(pid), Some(container)) if self.leader().is_none() => {
                match Leader::open(pid, None, Bond::Container(container)) {
                    Ok(leader) => drop(self.leader.set(leader)),
                    Err(error) => {
                        tracing::debug!(pid, %error, "a container's process is not seen here");
                    }
                }
            }
            (Phase::Ended(code) | Phase::Refused(code), _) => {
                self.code.get_or_init(|| code);
            }
            _ => {}
        }
        Ok(phase)
    }

    /// Keeps the code if the command has ended, before the daemon forgets it.
    pub(super) async fn note_end(&self) {
        if self.code.get().is_none() {
            // The next time or the wait itself will tell.
            let _ = self.look().await;
        }
    }

    /// Keeps a record for the next start of the agent: before the start, by what the daemon knows the
    /// command by.
    pub(super) fn keep_record(&self, dir: &Path) {
        let kept = self
            .record()
            .and_then(|record| leftovers::keep(dir, &record));
        match kept {
            Ok(kept) => drop(self.kept.set(kept)),
            Err(error) => {
                tracing::warn!(%error, "a command runs without a record; it is not cleaned up after if the agent is killed");
            }
        }
    }

    /// Adds the process to the record, if it is seen here.
    pub(super) fn complete_record(&self) {
        if let Some(kept) = self.kept.get()
            && self.leader().is_some()
            && let Err(error) = self.record().and_then(|record| kept.write(&record))
        {
            tracing::debug!(%error, "a command's record stays without its process");
        }
    }

    fn record(&self) -> io::Result<Record> {
        let leader = self.leader();
        let container = leader.and_then(Leader::container);
        Ok(Record {
            boot: proc::boot_id()?,
            process: leader.map(|leader| Instance {
                pid: leader.pid(),
                start: leader.start(),
            }),
            command: self.command.clone(),
            container: Some(container.unwrap_or(&self.container).to_owned()),
            exec: Some(self.id.clone()),
        })
    }

    /// The command of a record, if it is one of the daemon's.
    pub(super) fn of_record(docker: &Docker, record: &Record) -> Option<Self> {
        let (id, container) = (record.exec.clone()?, record.container.as_deref()?);
        Some(Self::new(docker.clone(), id, container, &record.command))
    }

    /// Stops what an earlier run of the agent left. That may have died before it asked for the start,
    /// or while it did: a command that nobody has begun to start within [`UNDERWAY`] never runs.
    pub(super) async fn stop_left(&self, grace: Duration) -> Result<Stopped, MayStillRun> {
        let deadline = Instant::now() + UNDERWAY;
        let mut pause = PAUSES.0;
        loop {
            let seen = match self.docker.inspect_exec(&self.id).await {
                Ok(seen) => seen,
                // Its container has ended, or the daemon.
                Err(Error::DockerResponseServerError {
                    status_code: 404, ..
                }) => return Ok(Stopped::AlreadyEnded),
                Err(error) => return Err(self.may_still_run(format!("the daemon says: {error}"))),
            };
            if phase(&seen) != Phase::Pending || seen.running == Some(true) {
                return self.stop(grace).await;
            }
            if Instant::now() >= deadline {
                return Ok(Stopped::AlreadyEnded);
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Gives the terminal a size.
    async fn resize(&self, size: Size) -> Result<(), Error> {
        let options = ResizeExecOptions {
            height: size.rows,
            width: size.cols,
        };
        self.docker.resize_exec(&self.id, options).await
    }

    /// Gives the terminal its first size, again until it holds: the daemon can be a little behind a
    /// process that runs.
    pub(super) async fn settle_size(&self, size: Size) {
        let deadline = Instant::now() + SETTLE;
        let mut pause = PAUSES.0;
        while let Err(error) = self.resize(size).await {
            let ended = matches!(self.look().await, Ok(Phase::Ended(_) | Phase::Refused(_)));
            if ended || Instant::now() >= deadline {
                tracing::debug!("a terminal stays without a size: {error}");
                return;
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Sends a signal, from here or from inside the container.
    async fn signal(&self, number: i32) -> Result<(), String> {
        if self.is_over() {
            return Ok(());
        }
        let Some(leader) = self.leader() else {
            return Err("its process is not seen from here, and Docker has no call for it".into());
        };
        match leader.send(number).await {
            Err(StopError::NotPermitted { .. }) => match leader.inner_pid() {
                Some(pid) => {
                    let target = if leader.leads() { -pid } else { pid };
                    self.kill_inside(&number.to_string(), target).await
                }
                None => Ok(()),
            },
            sent => sent.map_err(|error| error.to_string()),
        }
    }

    async fn wait(&self) -> Result<ExitStatus, WaitError> {
        let mut pause = PAUSES.0;
        // Runs from when the process is gone, or the daemon fell silent.
        let mut deadline = None;
        loop {
            if let Some(&code) = self.code.get() {
                self.set_over();
                return Ok(ExitStatus::Code(code));
            }
            let why = match self.look().await {
                Ok(Phase::Ended(_) | Phase::Refused(_)) => continue,
                Ok(Phase::Running(_) | Phase::Pending) => match self.leader() {
                    Some(leader) if deadline.is_none() => {
                        deadline = match leader.exited().await {
                            Ok(()) => Some(Instant::now() + SETTLE),
                            Err(error) => {
                                return Err(WaitError {
                                    why: error.to_string(),
                                });
                            }
                        };
                        pause = PAUSES.0;
                        continue;
                    }
                    Some(_) => {
                        "its process is gone and the daemon still counts it as running".into()
                    }
                    None => {
                        deadline = None;
                        String::new()
                    }
                },
                Err(Error::DockerResponseServerError {
                    status_code: 404,
                    message,
                }) => {
                    return Err(WaitError {
                        why: format!("the daemon forgot it: {message}"),
                    });
                }
                Err(error) => {
                    deadline = deadline.or_else(|| Some(Instant::now() + SETTLE));
                    error.to_string()
                }
            };
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(WaitError { why });
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    async fn stop(&self, grace: Duration) -> Result<Stopped, MayStillRun> {
        if self.is_over() {
            return Ok(Stopped::AlreadyEnded);
        }
        let phase = match self.look().await {
            Ok(Phase::Pending) => match self.started().await {
                Started::Refused(code) => Ok(Phase::Refused(code)),
                Started::Runs => self.look().await,
            },
            other => other,
        };
        let ended = match &phase {
            Ok(Phase::Ended(_) | Phase::Refused(_)) => true,
            Ok(Phase::Running(_) | Phase::Pending) | Err(_) => false,
        };
        let Some(leader) = self.leader() else {
            if ended {
                self.set_over();
                return Ok(Stopped::AlreadyEnded);
            }
            return Err(self.may_still_run(match phase {
                Err(error) => format!("the daemon says: {error}"),
                Ok(_) => {
                    "its process is not seen from here, and Docker has no call that stops it".into()
                }
            }));
        };
        let stopped = match leader.terminate(grace).await {
            Ok(stopped) => stopped,
            Err(StopError::NotPermitted { .. }) => self.stop_inside(leader, grace).await?,
            Err(error) => return Err(self.may_still_run(error.to_string())),
        };
        self.confirm().await?;
        self.set_over();
        Ok(stopped)
    }

    /// The processes are gone; waits for the daemon to see it.
    async fn confirm(&self) -> Result<(), MayStillRun> {
        let settled = async {
            let mut pause = PAUSES.0;
            loop {
                match self.look().await {
                    Ok(Phase::Ended(_) | Phase::Refused(_))
                    | Err(Error::DockerResponseServerError {
                        status_code: 404, ..
                    }) => return,
                    _ => sleep(pause).await,
                }
                pause = (pause * 2).min(PAUSES.1);
            }
        };
        timeout(SETTLE, settled).await.map_err(|_| {
            self.may_still_run(
                "its process is gone and the daemon still counts it as running".into(),
            )
        })
    }

    /// Stops the process by commands inside its container.
    pub(super) async fn stop_inside(
        &self,
        leader: &Leader,
        grace: Duration,
    ) -> Result<Stopped, MayStillRun> {
        // A shell with a terminal ignores TERM.
        let hangup = leader.has_terminal().then_some("HUP");
        for (signal, patience, stopped) in [
            ("TERM", grace, Stopped::Terminated),
            ("KILL", SETTLE, Stopped::Killed),
        ] {
            let Some(pid) = leader.inner_pid() else {
                return Ok(Stopped::AlreadyEnded);
            };
            let target = if leader.leads() { -pid } else { pid };
            for signal in hangup.into_iter().chain([signal]) {
                self.kill_inside(signal, target)
                    .await
                    .map_err(|why| self.may_still_run(why))?;
            }
            if timeout(patience, leader.exited()).await.is_ok() {
                return Ok(stopped);
            }
        }
        Err(self.may_still_run("it outlived a KILL from inside its container".into()))
    }

    /// Runs `kill` in the container, as its root: the program if it has one, else a shell's own.
    async fn kill_inside(&self, signal: &str, target: i32) -> Result<(), String> {
        let program = ["kill", "-s", signal, "--", &target.to_string()]
            .map(String::from)
            .to_vec();
        let shell = ["/bin/sh", "-c", &program.join(" ")]
            .map(String::from)
            .to_vec();
        for argv in [program, shell] {
            let refused = self.run_inside(argv).await.map_err(|error| {
                format!("the agent may not signal it, and the daemon says: {error}")
            })?;
            if !refused {
                return Ok(());
            }
        }
        Err("the agent may not signal it, and its container has neither kill nor a shell".into())
    }

    /// Runs a command of our own to its end; whether it could not be started.
    async fn run_inside(&self, argv: Vec<String>) -> Result<bool, Error> {
        let options = CreateExecOptions {
            cmd: Some(argv),
            user: Some("0".into()),
            ..Default::default()
        };
        let created = self.docker.create_exec(&self.container, options).await?;
        let detached = StartExecOptions {
            detach: true,
            ..Default::default()
        };
        match self.docker.start_exec(&created.id, Some(detached)).await {
            Ok(_) => {}
            Err(Error::DockerResponseServerError { .. }) => return Ok(true),
            Err(error) => return Err(error),
        }
        let mut pause = PAUSES.0;
        let deadline = Instant::now() + SETTLE;
        loop {
            match phase(&self.docker.inspect_exec(&created.id).await?) {
                Phase::Refused(_) => return Ok(true),
                // A kill that found nothing to signal is a success as well.
                Phase::Ended(_) => return Ok(false),
                _ if Instant::now() >= deadline => return Err(Error::RequestTimeoutError),
                _ => sleep(pause).await,
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    fn may_still_run(&self, why: String) -> MayStillRun {
        let pid = self
            .leader
            .get()
            .map(|leader| format!(", pid {}", leader.pid()));
        let what = format!(
            "{:?} in container {}{}",
            self.command,
            self.container,
            pid.unwrap_or_default()
        );
        MayStillRun { what, why }
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        // What may run keeps its record, for the next start of the agent.
        if !self.is_over()
            && let Some(kept) = self.kept.take()
        {
            kept.leave();
        }
    }
}

/// The handle that an operation holds.
pub(super) struct DockerHandle(pub(super) Arc<Exec>);

impl ProcessHandle for DockerHandle {
    fn wait(&self) -> BoxFuture<'_, Result<ExitStatus, WaitError>> {
        self.0.wait().boxed()
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'_, Result<Stopped, MayStillRun>> {
        self.0.stop(grace).boxed()
    }

    fn resize(&self, size: Size) -> BoxFuture<'_, io::Result<()>> {
        async move { self.0.resize(size).await.map_err(io::Error::other) }.boxed()
    }

    fn signal(&self, number: i32) -> BoxFuture<'_, io::Result<()>> {
        async move { self.0.signal(number).await.map_err(io::Error::other) }.boxed()
    }
}

impl Drop for DockerHandle {
    fn drop(&mut self) {
        if self.0.is_over() {
            return;
        }
        // Outside a runtime nothing can be asked of the daemon; the record remains.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let exec = Arc::clone(&self.0);
        runtime.spawn(async move {
            if let Err(left) = exec.stop(DEFAULT_GRACE).await {
                tracing::warn!(%left, "an abandoned command");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_without_a_pid_never_ran() {
        let seen = |running, pid, exit_code| {
            phase(&ExecInspectResponse {
                running: Some(running),
                pid,
                exit_code,
                ..ExecInspectResponse::default()
            })
        };
        assert_eq!(seen(false, Some(0), None), Phase::Pending);
        assert_eq!(seen(true, Some(0), None), Phase::Pending);
        assert_eq!(seen(true, Some(7), None), Phase::Running(7));
        assert_eq!(seen(false, Some(7), Some(0)), Phase::Ended(0));
        assert_eq!(seen(false, Some(7), Some(127)), Phase::Ended(127));
        assert_eq!(seen(false, Some(0), Some(126)), Phase::Refused(126));
        assert_eq!(seen(false, None, Some(127)), Phase::Refused(127));
        assert_eq!(seen(false, Some(7), None), Phase::Pending);
        assert_eq!(phase(&ExecInspectResponse::default()), Phase::Pending);
    }
}
