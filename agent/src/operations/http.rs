//! Carries one HTTP request to a target on this machine, and the response back.
//!
//! ```text
//! operation --REQUEST--> upload --> connection --> target
//!           <--RESPONSE-- download <-- connection <-- target
//! ```
//!
//! The target is connected first, so that an operation that fails has not begun. Then both bodies
//! run at their own pace, each byte as it comes, and each waits for the slower side. After a 101
//! the channels carry the connection's bytes (`tunnel`). A cancelled operation closes its
//! connection, or resets its stream; one that came to its end gives it back for the next
//! (`connections` for HTTP/1.1, `lines` for HTTP/2).
//!
//! What a target does at the edges of HTTP, and what becomes of it:
//!
//! - Informational responses (1xx but 101) cross before the head, 32 of one request at most
//!   (`interim`). `Expect: 100-continue` crosses to the target; its body is sent when it comes.
//! - An answer before the end of the request's body is relayed at once. Once it is whole, the rest of
//!   the body still goes to a target that may want it; not to one that closes, answers with an error,
//!   or was asked for a 100 and answered without: the upload is stopped, the connection closed.
//! - A body that ends with the connection is whole when the connection ends in order. With both
//!   `Transfer-Encoding` and `Content-Length` the chunks count, and the connection is not used again.
//!   Lengths that contradict each other, codings but `chunked`, folded header lines and what else is
//!   no HTTP/1.1 are `TARGET_BROKEN`.
//! - `Content-Length` in answers to `HEAD` and in a 304 crosses; nothing is read behind their heads,
//!   nor behind a 204. A 205 is carried as it comes. Trailers cross, announced or not.
//! - HTTP/2 has neither upgrades nor `CONNECT` here. A request whose stream was refused
//!   (`REFUSED_STREAM`) is sent once more on a new connection if nothing of its body is gone.

mod connections;
mod dial;
mod head;
mod http1;
mod http2;
mod interim;
mod lines;
mod respond;
pub(crate) mod tunnel;
mod upload;

use std::error::Error;
use std::sync::Arc;

use hub_protocol::kind::http::{Open, Outcome, Protocol};
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_protocol::target::{Target, Transport};
use hub_quic::operation::Operation;

use crate::targets::Targets;
pub use connections::Connections;
pub use dial::{Dial, Direct, Stream};

/// How an operation ends.
enum Last {
    Failed(Failure),
    Done(Outcome),
}

/// Carries one request. It ends early when the operation does.
pub async fn run(operation: Operation, open: Open, targets: &Targets, connections: &Connections) {
    let operation = Arc::new(operation);
    let last = tokio::select! {
        biased;
        _ = operation.ended() => return,
        last = carry(&operation, &open, targets, connections) => last,
    };
    // The body of the request is gone by now, and held the only other reference. Were it not, an
    // operation that is cancelled is better than one that never ends.
    if let Some(operation) = Arc::into_inner(operation) {
        match last {
            Last::Failed(failure) => operation.fail(&failure),
            Last::Done(outcome) => operation.finish(kind::encode(&outcome)),
        }
    }
}

async fn carry(
    operation: &Arc<Operation>,
    open: &Open,
    targets: &Targets,
    connections: &Connections,
) -> Last {
    if let Err(error) = targets.allowed(&open.target, open.grant).await {
        return Last::Failed(error.into());
    }
    if open.target.transport != Transport::Tcp {
        let why = format!("{} is no target of HTTP", open.target);
        return Last::Failed(Failure::new(FailureCode::INVALID, why));
    }
    match open.protocol {
        Protocol::Http1 => http1::carry(operation, open, connections).await,
        Protocol::Http2 => Box::pin(http2::carry(operation, open, connections)).await,
    }
}

/// A target that does not keep to HTTP.
fn broken(target: &Target, what: &str, error: &dyn Error) -> Failure {
    let mut message = format!("the target, {target}, {what}: {error}");
    if let Some(cause) = error.source() {
        use std::fmt::Write as _;
        // Writing to a string does not fail.
        let _ = write!(message, ": {cause}");
    }
    Failure::new(FailureCode::TARGET_BROKEN, message).retry()
}

/// A target that has too much to say before it answers.
fn excessive(target: &Target) -> Failure {
    let message = format!("the target, {target}, sends informational responses without end");
    Failure::new(FailureCode::TARGET_BROKEN, message)
}

#[cfg(test)]
mod tests;
