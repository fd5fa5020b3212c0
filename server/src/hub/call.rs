//! Calls: one question, one answer, as the types of [`hub_protocol::kind::call`] say.

use hub_protocol::NodeName;
use hub_protocol::kind::call::{self, Call, MAX_PARAMS, MAX_REPLY, Progress, REPLY};
use hub_protocol::kind::transfer::Ending;
use hub_protocol::kind::{self, Failure};
use hub_quic::operation::{Ended, Operation};
use tokio::sync::mpsc;

use super::Hub;
use super::ask::{AskError, Begun};

/// A call that has no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The node did not begin, or is not known to have.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// Its parameters are too large. Nothing was asked.
    #[error("the parameters of {method} have {bytes} bytes; {MAX_PARAMS} is the most")]
    TooLarge {
        /// The call.
        method: &'static str,
        /// Bytes of its parameters as JSON.
        bytes: usize,
    },
    /// The agent began, and then it went wrong.
    #[error("node {node}: {failure}")]
    Failed {
        /// The node's name.
        node: NodeName,
        /// The agent's reason.
        failure: Failure,
    },
    /// The agent was lost in the middle of a call that changes nothing.
    #[error("node {node} was lost while it answered ({reason}); nothing was changed: try again")]
    Lost {
        /// The node's name.
        node: NodeName,
        /// What became of the operation.
        reason: String,
    },
    /// The agent was lost in the middle of a call that changes something: it may have happened.
    #[error("node {node} was lost before it said what came of it ({reason}): it may have happened")]
    Unknown {
        /// The node's name.
        node: NodeName,
        /// What became of the operation.
        reason: String,
    },
    /// The call was carried out, and its reply is none.
    #[error("node {node} did it, and its reply is none that this release understands: {reason}")]
    Nonsense {
        /// The node's name.
        node: NodeName,
        /// What is wrong with it.
        reason: String,
    },
}

impl CallError {
    /// Whether the same call may succeed later without anybody changing anything. Not where it may
    /// have happened.
    pub fn retry_helps(&self) -> bool {
        match self {
            Self::Ask(error) => error.retry_helps(),
            Self::Failed { failure, .. } => failure.retry,
            Self::Lost { .. } => true,
            Self::TooLarge { .. } | Self::Unknown { .. } | Self::Nonsense { .. } => false,
        }
    }
}

/// What an operation brought beside its outcome.
enum Broke {
    Ended(Ended),
    TooLong,
}

impl Hub {
    /// Asks a question of a node and waits for its answer. How far it is goes into `progress`, if
    /// somebody wants it: a reader that is behind holds it back at the agent, which then leaves
    /// some out. Dropping the future cancels the call.
    ///
    /// # Errors
    /// See [`CallError`]: after [`CallError::Unknown`] and [`AskError::Unknown`] it may have
    /// happened.
    pub fn call<'a, C: Call>(
        &'a self,
        node: &'a str,
        params: &C,
        progress: Option<mpsc::Sender<Progress>>,
    ) -> impl Future<Output = Result<C::Reply, CallError>> + Send + use<'a, C> {
        let open = call::Open::new(params);
        self.ask_call::<C>(node, open, progress)
    }

    async fn ask_call<C: Call>(
        &self,
        node: &str,
        open: call::Open,
        progress: Option<mpsc::Sender<Progress>>,
    ) -> Result<C::Reply, CallError> {
        if open.params.len() > MAX_PARAMS {
            return Err(CallError::TooLarge {
                method: C::METHOD,
                bytes: open.params.len(),
            });
        }
        let begun = match self.ask(node, &open).await.answered() {
            // Whatever may have begun has changed nothing.
            Err(AskError::Unknown { node, reason }) if C::READS => {
                return Err(CallError::Lost { node, reason });
            }
            begun => begun?,
        };
        let Begun {
            operation, node, ..
        } = begun;
        let lost = |reason: String| {
            let node = node.clone();
            if C::READS {
                CallError::Lost { node, reason }
            } else {
                CallError::Unknown { node, reason }
            }
        };
        let nonsense = |reason: String| CallError::Nonsense {
            node: node.clone(),
            reason,
        };
        let reply = match reply(&operation, progress).await {
            Ok(reply) => reply,
            Err(Broke::Ended(ended)) => return Err(lost(ended.to_string())),
            Err(Broke::TooLong) => {
                return Err(nonsense(format!("it has more than {MAX_REPLY} bytes")));
            }
        };
        let done = operation
            .done()
            .await
            .map_err(|ended| lost(ended.to_string()))?;
        match kind::decode::<Ending<()>>("Done", &done) {
            Ok(Ending::Complete(())) => {
                kind::from_json(C::METHOD, &reply).map_err(|error| nonsense(error.to_string()))
            }
            Ok(Ending::Failed(failure)) => Err(CallError::Failed { node, failure }),
            Err(error) => Err(nonsense(error.to_string())),
        }
    }
}

/// The bytes of a reply, of which there are [`MAX_REPLY`] at most.
async fn reply(
    operation: &Operation,
    mut progress: Option<mpsc::Sender<Progress>>,
) -> Result<Vec<u8>, Broke> {
    let mut receiver = operation.receiver(REPLY);
    let mut reply = Vec::new();
    let mut messages = true;
    loop {
        let chunk = tokio::select! {
            biased;
            message = operation.message(), if messages => {
                match message {
                    Ok(Some(message)) => pass_on(&message, &mut progress).await,
                    Ok(None) | Err(_) => messages = false,
                }
                continue;
            }
            chunk = receiver.chunk() => chunk.map_err(Broke::Ended)?,
        };
        let Some(chunk) = chunk else {
            return Ok(reply);
        };
        if reply.len() + chunk.len() > MAX_REPLY {
            return Err(Broke::TooLong);
        }
        reply.extend_from_slice(&chunk);
    }
}

async fn pass_on(message: &[u8], to: &mut Option<mpsc::Sender<Progress>>) {
    if let Some(sender) = to
        && let Ok(progress) = kind::decode("Progress", message)
        && sender.send(progress).await.is_err()
    {
        *to = None;
    }
}
