//! Archives of images, out of the daemon and into it: bytes as they come, none gathered.
//!
//! ```text
//! save   daemon --chunks--> Sender         (the daemon waits while there is no credit)
//! load   Receiver --chunks--> daemon       (credit is granted as the daemon reads)
//! ```

use bytes::Bytes;
use futures_util::StreamExt as _;
use hub_protocol::kind::transfer::{Ending, IN, Load, OUT, Save};
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_quic::operation::Operation;

use super::no_engine;
use crate::engine::{Engine, archive_failure};

/// Gives images as an archive.
pub async fn save(operation: Operation, open: Save, engine: Option<&Engine>) {
    let Some(engine) = engine else {
        return operation.fail(&no_engine("archives of images"));
    };
    // Known before the first byte: the daemon begins the archive and breaks it off.
    let calls = engine.calls(&|_| ());
    let there = tokio::select! {
        biased;
        _ = operation.ended() => return,
        there = calls.images_are_there(&open.images) => there,
    };
    if let Err(failure) = there {
        return operation.fail(&failure);
    }
    operation.accept(Bytes::new());
    let ending = tokio::select! {
        biased;
        _ = operation.ended() => return,
        ending = carry(&operation, engine, &open.images) => ending,
    };
    operation.finish(kind::encode(&ending));
}

async fn carry(operation: &Operation, engine: &Engine, images: &[String]) -> Ending<()> {
    let names: Vec<_> = images.iter().map(String::as_str).collect();
    let docker = engine.patient();
    let mut archive = docker.export_images(&names);
    let mut channel = operation.sender(OUT);
    let mut end = TarEnd::default();
    while let Some(chunk) = archive.next().await {
        let chunk = match chunk {
            Ok(chunk) => chunk,
            Err(error) => return Ending::Failed(archive_failure(&error)),
        };
        end.push(&chunk);
        if channel.send(chunk).await.is_err() {
            // The reader wants no more of it.
            return Ending::Failed(Failure::new(
                FailureCode::INTERNAL,
                "the archive was not read to its end",
            ));
        }
    }
    if !end.is_whole() {
        // Once it has begun the daemon can only write its error behind what came, and does.
        let said = end.tail();
        let message = format!("the daemon broke the archive off: {said}");
        return Ending::Failed(Failure::new(FailureCode::INTERNAL, message));
    }
    channel.finish();
    Ending::Complete(())
}

/// Watches whether what passes ends as a tar archive does: with two blocks of zeros.
#[derive(Debug, Default)]
struct TarEnd {
    len: u64,
    tail: Vec<u8>,
}

impl TarEnd {
    const BLOCK: usize = 512;

    fn push(&mut self, chunk: &[u8]) {
        self.len += chunk.len() as u64;
        let kept = 2 * Self::BLOCK;
        self.tail
            .extend_from_slice(&chunk[chunk.len().saturating_sub(kept)..]);
        let surplus = self.tail.len().saturating_sub(kept);
        self.tail.drain(..surplus);
    }

    fn is_whole(&self) -> bool {
        self.len.is_multiple_of(Self::BLOCK as u64)
            && self.tail.len() == 2 * Self::BLOCK
            && self.tail.iter().all(|byte| *byte == 0)
    }

    /// The last line, where there is one to read.
    fn tail(&self) -> String {
        let text = String::from_utf8_lossy(&self.tail);
        let text = text
            .trim_end()
            .rsplit(['\n', '\0'])
            .next()
            .unwrap_or_default();
        let printable = |c: &char| !c.is_control() && *c != char::REPLACEMENT_CHARACTER;
        match text.chars().filter(printable).collect::<String>() {
            text if text.is_empty() => "it gave no reason".into(),
            text => text,
        }
    }
}

/// Takes the images of an archive.
pub async fn load(operation: Operation, _: Load, engine: Option<&Engine>) {
    let Some(engine) = engine else {
        return operation.fail(&no_engine("archives of images"));
    };
    operation.accept(Bytes::new());
    let calls = engine.calls(&|_| ());
    let loaded = tokio::select! {
        biased;
        // The archive breaks off for the daemon, too.
        _ = operation.ended() => return,
        loaded = calls.images_load(operation.receiver(IN)) => loaded,
    };
    operation.finish(kind::encode(&Ending::from(loaded)));
}

#[cfg(test)]
mod tests;
