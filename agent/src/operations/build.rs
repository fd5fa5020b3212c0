//! Builds an image.
//!
//! ```text
//! CONTEXT   Receiver --tar--> daemon              (credit is granted as the daemon reads)
//! PROGRESS  Sender <--JSON lines-- daemon         (the build waits for whoever reads it)
//! IMAGE     Sender <--docker-save tar-- daemon    (when the build is done, if it is asked for)
//! ```
//!
//! What makes a build impossible is said before it begins, as far as it can be known: an upload is
//! dear. A refusal of the daemon stops the upload at once. There is no limit to how long a build
//! takes, only to how long the daemon may leave the context lying there.

use bytes::Bytes;
use hub_protocol::kind::build::{Build, Built, CONTEXT, IMAGE, PROGRESS};
use hub_protocol::kind::transfer::Ending;
use hub_protocol::kind::{self, Failure};
use hub_quic::operation::Operation;

use super::copy::carry_tar;
use super::no_engine;
use crate::engine::Engine;
use crate::engine::build::{self, Builder};

/// Carries out one build, with the best builder that the node has.
pub async fn run(operation: Operation, build: Build, engine: Option<&Engine>) {
    let chosen = tokio::select! {
        biased;
        _ = operation.ended() => return,
        chosen = choose(&build, engine) => chosen,
    };
    match chosen {
        Ok((engine, builder)) => run_with(operation, build, engine, builder).await,
        Err(failure) => operation.fail(&failure),
    }
}

async fn choose<'a>(
    build: &Build,
    engine: Option<&'a Engine>,
) -> Result<(&'a Engine, Builder), Failure> {
    let engine = engine.ok_or_else(|| no_engine("builds of images"))?;
    build::check(build)?;
    Ok((engine, Builder::of(engine).await?))
}

async fn run_with(operation: Operation, build: Build, engine: &Engine, builder: Builder) {
    operation.accept(Bytes::new());
    // Let go of half-way, it closes its connection to the daemon, which stops the build.
    let built = tokio::select! {
        biased;
        ended = operation.ended() => {
            tracing::info!("stopping a build: {ended}");
            return;
        }
        built = carry(&operation, &build, engine, builder) => built,
    };
    let ending = match built {
        Ok(image) => Ending::Complete(Built { image }),
        Err(failure) => Ending::Failed(failure),
    };
    operation.finish(kind::encode(&ending));
}

async fn carry(
    operation: &Operation,
    build: &Build,
    engine: &Engine,
    builder: Builder,
) -> Result<String, Failure> {
    let (context, progress) = (operation.receiver(CONTEXT), operation.sender(PROGRESS));
    let image = build::run(engine, builder, build, context, progress).await?;
    if build.output {
        let channel = operation.sender(IMAGE);
        let carry = |archive| carry_tar(archive, channel);
        build::save(engine, &image, &build.tags, carry).await??;
    }
    Ok(image)
}

#[cfg(test)]
mod tests;
