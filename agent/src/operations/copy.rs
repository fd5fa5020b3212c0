//! Copies files out of a container and into one, as tar archives.
//!
//! ```text
//! out   daemon --archive--> Sender           (the daemon waits while there is no credit)
//! in    Receiver --archive--> daemon         (credit is granted as the daemon reads)
//! ```
//!
//! What is known to be missing is said before the operation begins. An operation that ends early
//! closes the connection to the daemon, which stops there.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hub_protocol::kind::transfer::{CopyIn, CopyOut, Ending, IN, OUT};
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_quic::operation::{Operation, Sender};
use hyper::body::Incoming;

use super::no_engine;
use crate::engine::{Engine, archive};

/// Zero bytes at the end of a tar archive.
const TAR_END: usize = 1024;

/// Carries an archive out of a container.
pub async fn run_out(operation: Operation, copy: CopyOut, engine: Option<&Engine>) {
    let Some(engine) = engine else {
        return operation.fail(&no_engine("copies from or to containers"));
    };
    let carried = archive::read(engine, &copy, async |stat, body| {
        operation.accept(kind::to_json(&stat));
        carry_tar(body, operation.sender(OUT)).await
    });
    let carried = tokio::select! {
        biased;
        _ = operation.ended() => return,
        carried = carried => carried,
    };
    match carried {
        Ok(carried) => finish(operation, carried),
        Err(failure) => operation.fail(&failure),
    }
}

/// Carries an archive into a container.
pub async fn run_in(operation: Operation, copy: CopyIn, engine: Option<&Engine>) {
    let Some(engine) = engine else {
        return operation.fail(&no_engine("copies from or to containers"));
    };
    let checked = tokio::select! {
        biased;
        _ = operation.ended() => return,
        checked = archive::check(engine, &copy) => checked,
    };
    if let Err(failure) = checked {
        return operation.fail(&failure);
    }
    operation.accept(Bytes::new());
    let written = tokio::select! {
        biased;
        _ = operation.ended() => return,
        written = archive::write(engine, &copy, operation.receiver(IN)) => written,
    };
    finish(operation, written);
}

fn finish(operation: Operation, carried: Result<(), Failure>) {
    operation.finish(kind::encode(&Ending::from(carried)));
}

/// Carries a tar archive that the daemon gives.
///
/// # Errors
/// It is not whole, or nobody wants the rest. The channel is left without an end.
pub(super) async fn carry_tar(mut body: Incoming, mut channel: Sender) -> Result<(), Failure> {
    let mut zeros = 0;
    loop {
        let frame = tokio::select! {
            biased;
            () = channel.stopped() => return Err(unwanted()),
            frame = body.frame() => frame,
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| {
            let why = format!("the Docker daemon broke off the archive: {error}");
            Failure::new(FailureCode::RUNTIME_UNAVAILABLE, why).retry()
        })?;
        if let Ok(bytes) = frame.into_data() {
            zeros = zeros_behind(zeros, &bytes);
            channel.send(bytes).await.map_err(|_| unwanted())?;
        }
    }
    // A daemon that meets an error half-way writes it behind what it has sent and ends the answer
    // as if all were well.
    if zeros < TAR_END {
        let why = "the archive that the Docker daemon gave has no end: it met an error on the way";
        return Err(Failure::new(FailureCode::INTERNAL, why));
    }
    channel.finish();
    Ok(())
}

fn unwanted() -> Failure {
    let why = "the archive was not taken to its end";
    Failure::new(FailureCode::INTERNAL, why)
}

/// With how many zeros (those that count) the bytes end, if they ended with so many before `bytes`.
fn zeros_behind(zeros: usize, bytes: &[u8]) -> usize {
    let tail = bytes.iter().rev().take(TAR_END);
    let tail = tail.take_while(|byte| **byte == 0).count();
    let before = if tail == bytes.len() { zeros } else { 0 };
    (before + tail).min(TAR_END)
}

#[cfg(test)]
mod tests;
