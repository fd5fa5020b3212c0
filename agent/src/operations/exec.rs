//! Runs a command and carries its standard streams.
//!
//! ```text
//! stdin   Receiver --chunks--> process        (credit is granted as the process reads)
//! stdout  process  --chunks--> Sender         (the process blocks while there is no credit)
//! stderr  process  --chunks--> Sender
//! then    both outputs at their end --> exit status --> Done
//! ```
//!
//! Whatever ends the operation early (the client's Ctrl-C, a lost session, a violation) stops the
//! process: TERM, then KILL.

use std::future::pending;
use std::io;

use bytes::Bytes;
use futures_util::StreamExt as _;
use hub_protocol::kind::exec::{Accepted, ExecId, Offsets, Open, Outcome, STDERR, STDIN, STDOUT};
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_quic::operation::{Ended, Operation, Receiver, Sender};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::watch;

use crate::kill::{self, Point};
use crate::runtime::{
    ByteSink, ByteStream, DEFAULT_GRACE, ExecError, ExecSpec, ExitStatus, MayStillRun, Process,
    ProcessHandle, Runtime,
};

/// Commands that could not be seen to have stopped, for people to look after: oldest first, told to
/// the hub whenever there is one more.
#[derive(Debug, Clone, Default)]
pub struct Lingering(watch::Sender<Vec<MayStillRun>>);

impl Lingering {
    /// The most that are remembered; beyond, only the log tells.
    const KEPT: usize = 100;

    fn add(&self, lingering: MayStillRun) {
        self.0.send_if_modified(|list| {
            let room = list.len() < Self::KEPT;
            if room {
                list.push(lingering);
            }
            room
        });
    }

    /// The list, as it is and whenever it changes.
    pub fn watch(&self) -> watch::Receiver<Vec<MayStillRun>> {
        self.0.subscribe()
    }
}

/// Carries out one exec.
pub async fn run(operation: Operation, open: Open, runtime: &dyn Runtime, lingering: &Lingering) {
    let spec = ExecSpec {
        container: open.container,
        argv: open.argv,
        env: open.env,
        cwd: open.cwd,
        user: open.user,
        stdin: open.stdin,
        tty: open.tty,
    };
    let what = spec.argv.first().cloned().unwrap_or_default();
    let place = spec.container.clone();
    kill::at(Point::ExecOpened);
    // Not given up half-way when the operation ends: then nobody would know what has started.
    let process = match runtime.exec(spec).await {
        Ok(process) => process,
        Err(ExecError::Unknown { why }) => {
            // Not `Failed`, which would promise that nothing had begun.
            operation.accept(accepted());
            tracing::warn!(command = what, "it may have started: {why}");
            let place = place.map(|container| format!(" in container {container}"));
            let what = format!("{what}{}", place.unwrap_or_default());
            lingering.add(MayStillRun { what, why });
            operation.finish(kind::encode(&Outcome::Unknown));
            return;
        }
        Err(error) => {
            operation.fail(&failure(&error));
            return;
        }
    };
    kill::at(Point::ExecStarted);
    operation.accept(accepted());
    let Process {
        stdin,
        stdout,
        stderr,
        handle,
    } = process;
    let streams = async {
        let stdin = feed(operation.receiver(STDIN), stdin);
        let outputs = async {
            let (stdout, stderr) = tokio::join!(
                biased;
                drain(stdout, operation.sender(STDOUT)),
                drain(stderr, operation.sender(STDERR)),
            );
            stdout.and(stderr)
        };
        tokio::pin!(stdin, outputs);
        // Once the outputs are at their end nobody is left to read stdin.
        tokio::select! {
            biased;
            outputs = &mut outputs => outputs,
            () = stdin => outputs.await,
        }
    };
    let outputs = tokio::select! {
        biased;
        ended = operation.ended() => return stop(&*handle, &what, &ended, lingering).await,
        outputs = streams => outputs,
    };
    kill::at(Point::ExecDrained);
    // The outputs may end long before the process does.
    let status = tokio::select! {
        biased;
        status = handle.wait() => status,
        ended = operation.ended() => return stop(&*handle, &what, &ended, lingering).await,
    };
    let outcome = match (outputs, status) {
        // With a real status, what is left of the output would pass for all of it.
        (Err(error), _) => {
            tracing::warn!(command = what, "an output of it broke off: {error}");
            Outcome::Unknown
        }
        (Ok(()), Ok(ExitStatus::Code(code))) => Outcome::Exited(code),
        (Ok(()), Ok(ExitStatus::Signal(signal))) => Outcome::Signaled(signal),
        (Ok(()), Err(error)) => {
            tracing::warn!(command = what, "{error}");
            Outcome::Unknown
        }
    };
    kill::at(Point::ExecExited);
    operation.finish(kind::encode(&outcome));
}

/// What is said of a command that has begun.
fn accepted() -> Bytes {
    kind::encode(&Accepted {
        id: ExecId(String::new()),
        offsets: Offsets::default(),
    })
}

/// Stops a command whose operation has ended early.
async fn stop(handle: &dyn ProcessHandle, what: &str, ended: &Ended, lingering: &Lingering) {
    tracing::info!(command = what, "stopping it: {ended}");
    kill::at(Point::ExecStopping);
    if let Err(error) = handle.stop(DEFAULT_GRACE).await {
        tracing::warn!("{error}");
        lingering.add(error);
    }
}

/// Carries stdin until its end. A process that reads no more stops the channel.
async fn feed(mut channel: Receiver, stdin: Option<ByteSink>) {
    let Some(mut stdin) = stdin else {
        drop(channel);
        return pending().await;
    };
    loop {
        match channel.chunk().await {
            Ok(Some(bytes)) => {
                let written = async {
                    stdin.write_all(&bytes).await?;
                    stdin.flush().await
                };
                if written.await.is_err() {
                    return;
                }
            }
            Ok(None) => {
                // An error says that the process has closed it already.
                let _ = stdin.shutdown().await;
                return;
            }
            // The operation has ended, and with it this function's caller.
            Err(_) => return pending().await,
        }
    }
}

/// Carries an output until its end. A client that wants no more of it closes it for the process,
/// as a broken pipe would.
///
/// # Errors
/// The output can't be read. The channel is left without an end: what came is not all of it.
async fn drain(mut output: ByteStream, mut channel: Sender) -> io::Result<()> {
    loop {
        let chunk = tokio::select! {
            biased;
            chunk = output.next() => chunk,
            () = channel.stopped() => return Ok(()),
        };
        let Some(bytes) = chunk.transpose()? else {
            channel.finish();
            return Ok(());
        };
        if channel.send(bytes).await.is_err() {
            return Ok(());
        }
    }
}

fn failure(error: &ExecError) -> Failure {
    let code = match error {
        ExecError::NotFound { .. } => FailureCode::COMMAND_NOT_FOUND,
        ExecError::NotExecutable { .. } => FailureCode::NOT_EXECUTABLE,
        ExecError::NoSuchContainer { .. } => FailureCode::NO_SUCH_CONTAINER,
        ExecError::NotRunning { .. } => FailureCode::NOT_RUNNING,
        ExecError::Unsupported { .. } => FailureCode::UNSUPPORTED,
        ExecError::Unavailable { .. } => FailureCode::RUNTIME_UNAVAILABLE,
        ExecError::Invalid { .. } => FailureCode::INVALID,
        ExecError::Unknown { .. } => FailureCode::INTERNAL,
    };
    Failure {
        code,
        message: error.to_string(),
        retry: error.retryable(),
    }
}
