//! One request's operation, while it is carried.
//!
//! The body of the request runs in a task of its own ([`upload`](super::upload)), so that it goes
//! on after an early response and neither direction waits for the other. The rest is held by
//! whoever waits for the response: the request's handler, then the response's body. An exchange
//! that is dropped before the response is whole cancels the operation.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use hub_protocol::NodeName;
use hub_protocol::kind::http::{Message, Outcome, ResponseHead};
use hub_protocol::kind::{self, Failure};
use hub_protocol::target::Target;
use hub_quic::operation::{Operation, Sender};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::door::Holds;
use super::front::{Interim, RequestBody};
use super::limits::{Guarded, Refusal};
use super::seeing::Track;
use super::{head, upload};

/// How long the agent may take to say its last word once both bodies have ended.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);

/// An operation that carries a request, and what runs for it.
pub(super) struct Exchange {
    pub(super) operation: Arc<Operation>,
    pub(super) node: NodeName,
    pub(super) target: Target,
    /// What the request counts against, until the exchange or its tunnel is over.
    pub(super) holds: Holds,
    upload: Option<Upload>,
}

/// The task that carries the request's body. Dropping this ends it.
struct Upload {
    task: AbortHandle,
    /// Resolves once the browser's part broke; forgotten once it can't any more.
    broke: Option<oneshot::Receiver<UploadBroke>>,
    /// Set once the target has begun to answer.
    answered: Arc<AtomicBool>,
    released: bool,
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.released {
            self.task.abort();
        }
    }
}

/// The browser's upload broke, or was broken off by a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum UploadBroke {
    /// Nobody waits for a response any more.
    #[error("the request's body broke off or is malformed")]
    Itself,
    /// The browser is to be told.
    #[error("the request's body was refused: {0}")]
    Refused(Refusal),
}

/// Why there is no head of a response.
pub(super) enum NoHead {
    /// The agent was lost.
    Lost,
    /// The agent broke the rules of carried HTTP.
    Nonsense,
    /// The target gave none.
    Broken(Failure),
}

impl Exchange {
    pub(super) fn new(operation: Operation, node: NodeName, target: Target, holds: Holds) -> Self {
        Self {
            operation: Arc::new(operation),
            node,
            target,
            holds,
            upload: None,
        }
    }

    /// Starts to carry the request's body.
    pub(super) fn upload(&mut self, body: Guarded<RequestBody>, sender: Sender, track: Track) {
        let (say, broke) = oneshot::channel();
        let answered = body.answered();
        let task = tokio::spawn(upload::run(
            body,
            self.operation.clone(),
            sender,
            say,
            track,
        ));
        self.upload = Some(Upload {
            task: task.abort_handle(),
            broke: Some(broke),
            answered,
            released: false,
        });
    }

    /// Ready once the browser's upload has broken; never if it does not.
    pub(super) fn poll_upload_broke(&mut self, cx: &mut Context<'_>) -> Poll<UploadBroke> {
        let Some(upload) = &mut self.upload else {
            return Poll::Pending;
        };
        let Some(broke) = &mut upload.broke else {
            return Poll::Pending;
        };
        match Pin::new(broke).poll(cx) {
            Poll::Ready(Ok(broke)) => Poll::Ready(broke),
            Poll::Ready(Err(_)) => {
                upload.broke = None;
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// What `wait` gives, unless the browser's upload breaks first.
    pub(super) async fn unless_upload_breaks<T>(
        &mut self,
        wait: impl Future<Output = T>,
    ) -> Result<T, UploadBroke> {
        let mut wait = pin!(wait);
        poll_fn(|cx| match self.poll_upload_broke(cx) {
            Poll::Ready(broke) => Poll::Ready(Err(broke)),
            Poll::Pending => wait.as_mut().poll(cx).map(Ok),
        })
        .await
    }

    /// The target has begun to answer: it may leave the request's body waiting.
    pub(super) fn answered(&self) {
        if let Some(upload) = &self.upload {
            upload.answered.store(true, Ordering::Relaxed);
        }
    }

    /// Leaves the request's body to itself, and the operation to come to its end.
    pub(super) fn release(&mut self) {
        if let Some(upload) = &mut self.upload {
            // It settles the operation when it is through.
            upload.released = true;
        } else if self.operation.done().now_or_never().is_none()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(settled(self.operation.clone()));
        }
    }
}

/// Waits for the last word of an operation whose bodies have both ended. Without it, dropping the
/// operation would cancel it, and cost the agent the connection to the target.
pub(super) async fn settled(operation: Arc<Operation>) {
    let _ = timeout(SETTLE_TIMEOUT, operation.done()).await;
}

/// The head of the target's response. Informational ones before it go to `interim`.
pub(super) async fn head(operation: &Operation, interim: &Interim) -> Result<ResponseHead, NoHead> {
    loop {
        match operation.message().await {
            Ok(Some(message)) => match kind::decode("message", &message) {
                Ok(Message::Head(head)) => return Ok(head),
                Ok(Message::Informational(response)) => {
                    let response = head::informational(response).ok_or(NoHead::Nonsense)?;
                    interim.send(response).await;
                }
                _ => return Err(NoHead::Nonsense),
            },
            Ok(None) => {
                return match operation.done().await.map(|done| outcome(&done)) {
                    Ok(Some(Outcome::Broken(failure))) => Err(NoHead::Broken(failure)),
                    _ => Err(NoHead::Nonsense),
                };
            }
            Err(_) => return Err(NoHead::Lost),
        }
    }
}

/// The outcome in the body of `Done`, if it is one.
pub(super) fn outcome(done: &[u8]) -> Option<Outcome> {
    kind::decode("outcome", done).ok()
}
