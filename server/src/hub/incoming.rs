//! What an operation brings on its one outward channel, until it has ended well or broke.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hub_protocol::kind::transfer::{Ending, OUT};
use hub_protocol::kind::{self, BodyError, Failure};
use hub_quic::operation::{Ended, Operation, Receiver};

/// Why the bytes of an operation are not all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broke {
    /// Its agent was lost, or gave it up.
    #[error("its agent was lost: {0}")]
    Ended(#[from] Ended),
    /// It went wrong after it had begun.
    #[error("{0}")]
    Failed(Failure),
    /// What the agent sent is none of this kind.
    #[error("its agent broke the protocol: {0}")]
    Nonsense(String),
}

impl From<BodyError> for Broke {
    fn from(error: BodyError) -> Self {
        Self::Nonsense(error.to_string())
    }
}

/// The bytes of an operation that has the channel [`OUT`]. Taking them grants credit for more;
/// dropping it cancels the operation.
#[derive(Debug)]
pub(crate) struct Incoming {
    operation: Operation,
    /// Until the channel has ended.
    receiver: Option<Receiver>,
}

impl Incoming {
    pub(crate) fn new(operation: Operation) -> Self {
        let receiver = Some(operation.receiver(OUT));
        Self {
            operation,
            receiver,
        }
    }

    /// The next bytes; `None` once the outcome says that these were all.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, Broke> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Broke>> {
        if let Some(receiver) = &mut self.receiver {
            if let Some(bytes) = ready!(receiver.poll_chunk(cx))? {
                return Poll::Ready(Ok(Some(bytes)));
            }
            self.receiver = None;
        }
        let done = ready!(pin!(self.operation.done()).poll(cx))?;
        Poll::Ready(match kind::decode::<Ending<()>>("Done", &done)? {
            Ending::Complete(()) => Ok(None),
            Ending::Failed(failure) => Err(Broke::Failed(failure)),
        })
    }
}
