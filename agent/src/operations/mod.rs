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
#[cfg(test)]
pub(crate) mod testing;
pub mod transfer;

use std::sync::Arc;

use hub_protocol::frame::RawFrame;
use hub_protocol::kind::transfer::DockerSocket;
use hub_protocol::kind::{BodyError, Failure, FailureCode, OperationKind, Request};
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
    match operation.kind() {
        OperationKind::Exec => match Request::from_body(&open.payload) {
            Ok(open) => {
                let Tools {
                    kept, lingering, ..
                } = &tools;
                exec::run(operation, open, &*tools.runtime, kept, lingering).await;
            }
            Err(error) => operation.fail(&invalid(&error)),
        },
        OperationKind::Attach => match Request::from_body(&open.payload) {
            Ok(open) => attach::run(operation, open, &tools.kept).await,
            Err(error) => operation.fail(&invalid(&error)),
        },
        OperationKind::Http => match Request::from_body(&open.payload) {
            Ok(open) => http::run(operation, open, &tools.targets, &tools.connections).await,
            Err(error) => operation.fail(&invalid(&error)),
        },
        OperationKind::Build => match Request::from_body(&open.payload) {
            Ok(open) => build::run(operation, open, tools.engine.as_ref()).await,
            Err(error) => operation.fail(&invalid(&error)),
        },
        OperationKind::CopyOut => match Request::from_body(&open.payload) {
            Ok(open) => copy::run_out(operation, open, tools.engine.as_ref()).await,
            Err(error) => operation.fail(&invalid(&error)),
        },
        OperationKind::CopyIn => match Request::from_body(&open.payload) {
            Ok(open) => copy::run_in(operation, open, tools.engine.as_ref()).await,
            Err(error) => operation.fail(&invalid(&error)),
        },
        OperationKind::DockerSocket => match Request::from_body(&open.payload) {
            Ok(DockerSocket {}) => socket::run(operation, tools.engine.as_ref()).await,
            Err(error) => operation.fail(&invalid(&error)),
        },
        OperationKind::Call => match Request::from_body(&open.payload) {
            Ok(open) => call::run(operation, open, &tools).await,
            Err(error) => operation.fail(&invalid(&error)),
        },
        OperationKind::Stats => match Request::from_body(&open.payload) {
            Ok(open) => stats::run(operation, open, &tools).await,
            Err(error) => operation.fail(&invalid(&error)),
        },
        OperationKind::Save => match Request::from_body(&open.payload) {
            Ok(open) => transfer::save(operation, open, &tools).await,
            Err(error) => operation.fail(&invalid(&error)),
        },
        OperationKind::Load => match Request::from_body(&open.payload) {
            Ok(open) => transfer::load(operation, open, &tools).await,
            Err(error) => operation.fail(&invalid(&error)),
        },
        OperationKind::Logs => match Request::from_body(&open.payload) {
            Ok(open) => logs::run(operation, open, tools.engine.as_ref()).await,
            Err(error) => operation.fail(&invalid(&error)),
        },
        OperationKind::Events => match Request::from_body(&open.payload) {
            Ok(open) => events::run(operation, open, &tools).await,
            Err(error) => operation.fail(&invalid(&error)),
        },
    }
}

fn invalid(error: &BodyError) -> Failure {
    Failure::new(FailureCode::INVALID, error.to_string())
}
