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
//! process: TERM, then KILL. One that is [kept](super::kept) goes on instead, and its client may come
//! back to it.

mod command;
mod streams;

use hub_protocol::kind::call::exec::{Kept as Info, KeptState};
use hub_protocol::kind::exec::{Accepted, Offsets, OnDisconnect, Open, Outcome};
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_quic::operation::Operation;
use tokio::sync::watch;

use self::command::Command;
use super::kept::Kept;
use crate::kill::{self, Point};
use crate::runtime::{ExecError, ExecSpec, MayStillRun, Runtime};

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
pub async fn run(
    operation: Operation,
    open: Open,
    runtime: &dyn Runtime,
    kept: &Kept,
    lingering: &Lingering,
) {
    let id = kept.new_id();
    let info = Info {
        id: id.0.clone(),
        container: open.container.clone(),
        command: open.argv.first().cloned().unwrap_or_default(),
        tty: open.tty.is_some(),
        started_ms: kept.now_ms(),
        attached: true,
        state: KeptState::Running,
    };
    // Before anything is started: there may be no room.
    let place = match open.on_disconnect {
        OnDisconnect::Kill => None,
        OnDisconnect::Keep => match kept.place(info.clone()) {
            Ok(place) => Some(place),
            Err(full) => return operation.fail(&full),
        },
    };
    let spec = ExecSpec {
        container: open.container,
        argv: open.argv,
        env: open.env,
        cwd: open.cwd,
        user: open.user,
        stdin: open.stdin,
        tty: open.tty,
    };
    kill::at(Point::ExecOpened);
    let accepted = kind::encode(&Accepted {
        id,
        offsets: Offsets::default(),
    });
    // Not given up half-way when the operation ends: then nobody would know what has started.
    let process = match runtime.exec(spec).await {
        Ok(process) => process,
        Err(ExecError::Unknown { why }) => {
            // Not `Failed`, which would promise that nothing had begun.
            operation.accept(accepted);
            tracing::warn!(command = info.command, "it may have started: {why}");
            let place = info
                .container
                .map(|container| format!(" in container {container}"));
            let what = format!("{}{}", info.command, place.unwrap_or_default());
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
    operation.accept(accepted);
    Command::new(info, process, operation, place, kept, lingering)
        .run()
        .await;
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
