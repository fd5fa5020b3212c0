//! Answers calls: one question, one answer.
//!
//! ```text
//! Open{method, params} --> known? readable? can it be done here?   no: Failed
//!                          Accepted
//!                          the engine's method of that name  --> Progress, where there is room
//!                          its reply --> REPLY --> Done
//! ```
//!
//! An operation that ends early drops the work, and with it the connection to the daemon, which
//! stops what it does for a request that is gone. The one thing that it does not stop is the
//! creation of a container: that is waited for and undone.

use bytes::Bytes;
use hub_protocol::kind::call::container::{Create, Created};
use hub_protocol::kind::call::{self, MAX_REPLY, Progress, REPLY};
use hub_protocol::kind::transfer::Ending;
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_quic::operation::Operation;
use serde::Serialize;

use super::{Tools, no_engine};
use crate::engine::Calls;
use crate::policy::Subject;

/// Carries out one call.
pub async fn run(operation: Operation, open: call::Open, tools: &Tools) {
    macro_rules! dispatch {
        ($($method:literal, $name:ident, $module:ident::$params:ident => $reply:ty, $effect:ident, $doc:literal;)*) => {
            match &*open.method {
                $($method => match open.params::<call::$module::$params>() {
                    // Boxed, so that each call takes only the memory that it needs.
                    Ok(params) => Box::pin(dispatch!(@work $module $name params)).await,
                    Err(error) => operation.fail(&error.into()),
                },)*
                method => operation.fail(&unknown(method)),
            }
        };
        // Kept commands are no business of the engine.
        (@work exec $name:ident $params:ident) => {
            async move {
                operation.accept(Bytes::new());
                let outcome = answer(&operation, tools.kept.$name($params)).await;
                finish(operation, outcome);
            }
        };
        (@work container container_create $params:ident) => {
            dispatch!(@begin calls, operation => create(&operation, calls, $params))
        };
        // What the policy hides is not there.
        (@work container container_list $params:ident) => {
            dispatch!(@begin calls, operation => answer(&operation, async {
                let mut containers = calls.container_list($params).await?;
                containers.retain(|container| {
                    let (name, labels) = (&*container.name, &container.labels);
                    tools.policy.shows(Subject { name, labels })
                });
                Ok(containers)
            }))
        };
        (@work $module:ident $name:ident $params:ident) => {
            dispatch!(@begin calls, operation => answer(&operation, calls.$name($params)))
        };
        (@begin $calls:ident, $operation:ident => $work:expr) => {
            async move {
                let Some(engine) = &tools.engine else {
                    return $operation.fail(&no_engine("this"));
                };
                $operation.accept(Bytes::new());
                let report = |progress: Progress| report(&$operation, &progress);
                let $calls = engine.calls(&report);
                let outcome = $work.await;
                finish($operation, outcome);
            }
        };
    }
    hub_protocol::for_each_call!(dispatch);
}

/// A method that this release does not have. The name comes from the hub: only its beginning is
/// repeated.
fn unknown(method: &str) -> Failure {
    let method: String = method.chars().take(64).collect();
    let message = format!("this agent does not know the call {method:?}; a newer one may");
    Failure::new(FailureCode::UNSUPPORTED, message)
}

/// Says how far something is. Without room it is left out: the next says more.
fn report(operation: &Operation, progress: &Progress) {
    // An operation that has ended stops the work anyway.
    let _ = operation.try_send_message(&kind::encode(progress));
}

/// How a call ended; `None` where its operation did before, and nobody is there to be told.
type Outcome = Option<Result<(), Failure>>;

fn finish(operation: Operation, outcome: Outcome) {
    if let Some(outcome) = outcome {
        operation.finish(kind::encode(&Ending::from(outcome)));
    }
}

/// Does the work and sends its reply. An operation that ends gives the work up.
async fn answer<R: Serialize>(
    operation: &Operation,
    work: impl Future<Output = Result<R, Failure>>,
) -> Outcome {
    let reply = tokio::select! {
        biased;
        ended = operation.ended() => {
            tracing::info!("giving it up: {ended}");
            return None;
        }
        reply = work => reply,
    };
    match reply {
        Ok(reply) => send(operation, &reply).await,
        Err(failure) => Some(Err(failure)),
    }
}

/// Sends a reply.
async fn send<R: Serialize>(operation: &Operation, reply: &R) -> Outcome {
    let reply = kind::to_json(reply);
    if reply.len() > MAX_REPLY {
        let message = format!(
            "the answer has {} bytes, and a hub takes {MAX_REPLY}; ask for less, by a prefix or a \
             label",
            reply.len()
        );
        return Some(Err(Failure::new(FailureCode::INTERNAL, message)));
    }
    let mut channel = operation.sender(REPLY);
    match channel.send(reply).await {
        Ok(()) => {
            channel.finish();
            Some(Ok(()))
        }
        // The hub wants no more of it, or is gone.
        Err(_) => None,
    }
}

/// Creates a container; removes it again if nobody is left to be told of it.
async fn create(operation: &Operation, calls: Calls<'_>, params: Create) -> Outcome {
    let prepared = tokio::select! {
        biased;
        ended = operation.ended() => {
            tracing::info!("not creating it: {ended}");
            return None;
        }
        prepared = calls.container_prepare(params) => prepared,
    };
    let created = match prepared {
        // Seen through, whatever becomes of the operation: the daemon does so, too.
        Ok(prepared) => calls.container_create(prepared).await,
        Err(failure) => return Some(Err(failure)),
    };
    match created {
        Ok(created) => {
            let sent = send(operation, &created).await;
            if sent.is_none() {
                undo(calls, &created).await;
            }
            sent
        }
        Err(failure) => Some(Err(failure)),
    }
}

async fn undo(calls: Calls<'_>, Created { id, .. }: &Created) {
    match calls.container_undo(id).await {
        Ok(()) => tracing::info!(id, "removed the container: nobody waits for it any more"),
        Err(error) => tracing::warn!(id, "a container that nobody waits for is left: {error}"),
    }
}

#[cfg(test)]
mod tests;
