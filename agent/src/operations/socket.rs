//! Carries one connection to the node's Docker socket: bytes both ways, none of them looked at.
//!
//! ```text
//! IN   Receiver --> socket     its end closes the socket for writing
//! OUT  Sender   <-- socket     its end is the end of the channel
//! ```
//!
//! So whatever HTTP is spoken on it passes: upgrades, connections that are taken over without one,
//! HTTP/2. Each direction ends by itself, which attached commands rely on. Only the agent's own
//! [policy](crate::policy) opens the socket; nothing that a hub sends can.

use bytes::Bytes;
use hub_protocol::kind::transfer::{DockerSocket, Ending, IN, OUT};
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_quic::operation::Operation;

use super::http::tunnel;
use super::no_engine;
use crate::engine::Engine;

/// Carries one connection. It is closed when the operation ends early.
pub async fn run(operation: Operation, DockerSocket {}: DockerSocket, engine: Option<&Engine>) {
    let Some(engine) = engine else {
        return operation.fail(&no_engine("connections to a Docker socket"));
    };
    let socket = match engine.dial().await {
        Ok(socket) => socket,
        Err(error) => {
            let why = format!("the Docker daemon's socket can't be connected to: {error}");
            let failure = Failure::new(FailureCode::RUNTIME_UNAVAILABLE, why);
            return operation.fail(&failure.retry());
        }
    };
    operation.accept(Bytes::new());
    let carried = tokio::select! {
        biased;
        _ = operation.ended() => return,
        carried = tunnel::run(operation.receiver(IN), operation.sender(OUT), socket) => carried,
    };
    let ending = match carried {
        Ok(()) => Ending::Complete(()),
        Err(error) => {
            let why = format!("the connection to the Docker daemon broke: {error}");
            let failure = Failure::new(FailureCode::RUNTIME_UNAVAILABLE, why);
            Ending::Failed(failure.retry())
        }
    };
    operation.finish(kind::encode(&ending));
}

#[cfg(test)]
mod tests;
