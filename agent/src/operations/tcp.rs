//! Carries one TCP connection to a target: bytes both ways, none of them looked at.
//!
//! ```text
//! IN   Receiver --> target     its end is TCP's FIN; the other direction goes on
//! OUT  Sender   <-- target     and so the other way
//! ```
//!
//! A connection may be silent for as long as it likes. Whatever ends the operation early breaks the
//! connection, which the target sees as a reset: a connection that was cut off must not look like
//! one that has ended.

use bytes::Bytes;
use hub_protocol::kind::tcp::Open;
use hub_protocol::kind::transfer::{Ending, IN, OUT};
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_protocol::target::{Target, Transport};
use hub_quic::operation::Operation;

use super::http::{Connections, Stream, tunnel};
use crate::targets::Targets;

/// Carries one connection.
pub async fn run(operation: Operation, open: Open, targets: &Targets, connections: &Connections) {
    let connected = tokio::select! {
        biased;
        _ = operation.ended() => return,
        connected = connect(&open, targets, connections) => connected,
    };
    let mut connection = match connected {
        Ok(connection) => Breaking(Some(connection)),
        Err(failure) => return operation.fail(&failure),
    };
    let Some(stream) = &mut connection.0 else {
        return;
    };
    operation.accept(Bytes::new());
    let (up, down) = (operation.receiver(IN), operation.sender(OUT));
    let carried = tokio::select! {
        biased;
        _ = operation.ended() => return,
        carried = tunnel::run(up, down, stream) => carried,
    };
    let ending = match carried {
        Ok(()) => {
            connection.0 = None;
            Ending::Complete(())
        }
        Err(error) => Ending::Failed(broke(&open.target, &error)),
    };
    operation.finish(kind::encode(&ending));
}

async fn connect(
    open: &Open,
    targets: &Targets,
    connections: &Connections,
) -> Result<Box<dyn Stream>, Failure> {
    targets.allowed(&open.target, open.grant).await?;
    if open.target.transport != Transport::Tcp {
        let why = format!("{} is no target of a TCP connection", open.target);
        return Err(Failure::new(FailureCode::INVALID, why));
    }
    connections.connect(&open.target).await
}

fn broke(target: &Target, error: &std::io::Error) -> Failure {
    let why = format!("the connection to {target} broke: {error}");
    Failure::new(FailureCode::TARGET_BROKEN, why).retry()
}

/// A connection that breaks when it is dropped, unless it is taken out before.
struct Breaking(Option<Box<dyn Stream>>);

impl Drop for Breaking {
    fn drop(&mut self) {
        if let Some(connection) = &mut self.0 {
            connection.break_off();
        }
    }
}

#[cfg(test)]
mod tests;
