//! What the daemon's errors mean to whoever reads a log.

use hub_protocol::kind::{Failure, FailureCode};

use crate::engine::stream::StreamError;

/// Whether asking again may help: the daemon is away, or in trouble.
pub(super) fn may_come_back(error: &StreamError) -> bool {
    match error {
        StreamError::Unreachable(_) => true,
        StreamError::Refused { status, .. } => *status >= 500 && *status != 501,
        StreamError::Malformed(_) => false,
    }
}

/// Whether the container is no more.
pub(super) fn is_gone(error: &StreamError) -> bool {
    match error {
        StreamError::Refused { status: 404, .. } => true,
        StreamError::Refused {
            status: 409,
            message,
        } => message.contains("marked for removal"),
        _ => false,
    }
}

/// What the hub is told.
pub(super) fn failure(error: &StreamError, container: &str) -> Failure {
    let code = match error {
        StreamError::Unreachable(_) => FailureCode::RUNTIME_UNAVAILABLE,
        StreamError::Malformed(_) => FailureCode::INTERNAL,
        StreamError::Refused { status, message } => match status {
            404 => FailureCode::NO_SUCH_CONTAINER,
            400 => FailureCode::INVALID,
            _ if message.contains("does not support reading") => FailureCode::UNSUPPORTED,
            501 => FailureCode::UNSUPPORTED,
            _ => FailureCode::INTERNAL,
        },
    };
    let failure = Failure::new(code, format!("the log of {container}: {error}"));
    if may_come_back(error) {
        failure.retry()
    } else {
        failure
    }
}
