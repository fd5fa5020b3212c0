//! What the hub can ask of this agent: one module per kind of operation.
//!
//! Each is a function from an [`Operation`] that was opened to its last frame. It ends early when
//! the operation does, and stops what it started before it returns.

pub mod exec;
pub mod http;

use std::sync::Arc;

use hub_protocol::frame::RawFrame;
use hub_protocol::kind::{self, Failure, FailureCode, OperationKind};
use hub_quic::operation::Operation;

use crate::runtime::Runtime;
use crate::targets::Targets;

/// What operations work with.
#[derive(Clone)]
pub struct Tools {
    /// What runs commands.
    pub runtime: Arc<dyn Runtime>,
    /// What may be connected to.
    pub targets: Targets,
    /// How it is connected to.
    pub connections: http::Connections,
    /// Commands that could not be seen to have stopped.
    pub lingering: exec::Lingering,
}

/// Carries out one operation.
pub async fn run(tools: Tools, operation: Operation, open: RawFrame) {
    match operation.kind() {
        OperationKind::Exec => match kind::decode("exec", &open.payload) {
            Ok(open) => exec::run(operation, open, &*tools.runtime, &tools.lingering).await,
            Err(error) => operation.fail(&invalid(&error)),
        },
        OperationKind::Http => match kind::decode("http", &open.payload) {
            Ok(open) => http::run(operation, open, &tools.targets, &tools.connections).await,
            Err(error) => operation.fail(&invalid(&error)),
        },
    }
}

fn invalid(error: &kind::BodyError) -> Failure {
    Failure {
        code: FailureCode::INVALID,
        message: error.to_string(),
        retry: false,
    }
}
