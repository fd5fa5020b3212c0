//! What the hub can ask of this agent: one module per kind of operation.
//!
//! Each is a function from an [`Operation`] that was opened to its last frame. It ends early when
//! the operation does, and stops what it started before it returns. Before any of them, the node's
//! [policy](crate::policy) judges what is asked.

pub mod attach;
pub mod build;
pub mod call;
pub mod copy;
pub mod events;
pub mod exec;
pub mod http;
pub mod kept;
pub mod logs;
pub mod socket;
pub mod stats;
pub mod tcp;
#[cfg(test)]
pub(crate) mod testing;
pub mod transfer;
pub mod udp;

use std::sync::Arc;

use hub_protocol::frame::RawFrame;
use hub_protocol::kind::{Failure, FailureCode, OperationKind, Request};
use hub_quic::operation::Operation;

use crate::engine::Engine;
use crate::journal::Journal;
use crate::policy::{Guard, Policy};
use crate::runtime::Runtime;
use crate::targets::Targets;

/// What operations work with.
#[derive(Clone)]
pub struct Tools {
    /// The Docker Engine, where the node has one.
    pub engine: Option<Engine>,
    /// What has happened at the Docker Engine.
    pub journal: Option<Journal>,
    /// What runs commands.
    pub runtime: Arc<dyn Runtime>,
    /// What may be connected to.
    pub targets: Targets,
    /// How it is connected to.
    pub connections: http::Connections,
    /// Commands that outlive their clients.
    pub kept: kept::Kept,
    /// Commands that could not be seen to have stopped.
    pub lingering: exec::Lingering,
    /// What may be done at all.
    pub policy: Arc<Policy>,
}

/// Carries out one operation, if this node's policy allows it.
pub async fn run(tools: Tools, operation: Operation, mut open: RawFrame) {
    let guard = Guard {
        policy: &tools.policy,
        engine: tools.engine.as_ref(),
    };
    let admitted = tokio::select! {
        biased;
        _ = operation.ended() => return,
        admitted = guard.admit(operation.kind(), &open.payload) => admitted,
    };
    match admitted {
        Ok(body) => open.payload = body,
        Err(failure) => return operation.fail(&failure),
    }
    let engine = tools.engine.as_ref();
    let body = &open.payload;
    match operation.kind() {
        OperationKind::Exec => {
            opened(operation, body, |operation, open| {
                let Tools {
                    kept, lingering, ..
                } = &tools;
                exec::run(operation, open, &*tools.runtime, kept, lingering)
            })
            .await;
        }
        OperationKind::Attach => {
            let run = |operation, open| attach::run(operation, open, &tools.kept);
            opened(operation, body, run).await;
        }
        OperationKind::Http => {
            let (targets, connections) = (&tools.targets, &tools.connections);
            let run = |operation, open| http::run(operation, open, targets, connections);
            opened(operation, body, run).await;
        }
        OperationKind::Tcp => {
            let (targets, connections) = (&tools.targets, &tools.connections);
            let run = |operation, open| tcp::run(operation, open, targets, connections);
            opened(operation, body, run).await;
        }
        OperationKind::Udp => {
            let (targets, connections) = (&tools.targets, &tools.connections);
            let run = |operation, open| udp::run(operation, open, targets, connections);
            opened(operation, body, run).await;
        }
        OperationKind::Call => {
            opened(operation, body, |operation, open| {
                call::run(operation, open, &tools)
            })
            .await;
        }
        OperationKind::Build => {
            opened(operation, body, |operation, open| {
                build::run(operation, open, engine)
            })
            .await;
        }
        OperationKind::Logs => {
            opened(operation, body, |operation, open| {
                logs::run(operation, open, engine)
            })
            .await;
        }
        OperationKind::Events => {
            opened(operation, body, |operation, open| {
                events::run(operation, open, &tools)
            })
            .await;
        }
        OperationKind::Stats => {
            opened(operation, body, |operation, open| {
                stats::run(operation, open, engine)
            })
            .await;
        }
        OperationKind::CopyOut => {
            opened(operation, body, |operation, open| {
                copy::run_out(operation, open, engine)
            })
            .await;
        }
        OperationKind::CopyIn => {
            opened(operation, body, |operation, open| {
                copy::run_in(operation, open, engine)
            })
            .await;
        }
        OperationKind::Save => {
            opened(operation, body, |operation, open| {
                transfer::save(operation, open, engine)
            })
            .await;
        }
        OperationKind::Load => {
            opened(operation, body, |operation, open| {
                transfer::load(operation, open, engine)
            })
            .await;
        }
        OperationKind::DockerSocket => {
            opened(operation, body, |operation, open| {
                socket::run(operation, open, engine)
            })
            .await;
        }
    }
}

/// Carries out an operation whose `Open` can be read.
async fn opened<R: Request, F: Future<Output = ()>>(
    operation: Operation,
    body: &[u8],
    run: impl FnOnce(Operation, R) -> F,
) {
    match R::from_body(body) {
        Ok(open) => run(operation, open).await,
        Err(error) => operation.fail(&error.into()),
    }
}

/// What a node says that has no container engine.
pub(crate) fn no_engine(what: &str) -> Failure {
    let message = format!(
        "this node cannot do {what}: it has no container engine, its agent runs plain processes"
    );
    Failure::new(FailureCode::UNSUPPORTED, message)
}
