//! The body of a request on its way from the operation's channel into a connection.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hub_protocol::kind::BodyError;
use hub_protocol::kind::http::{Message, REQUEST};
use hub_protocol::kind::{self};
use hub_quic::operation::{Ended, Operation, Receiver};
use tokio::sync::oneshot;

use super::head::{self, HeadError};

/// Why a request's body is not whole.
#[derive(Debug, thiserror::Error)]
pub(super) enum UploadError {
    #[error(transparent)]
    Ended(#[from] Ended),
    #[error(transparent)]
    Message(#[from] BodyError),
    #[error(transparent)]
    Trailers(#[from] HeadError),
    #[error("a response's head where the trailers of a request belong")]
    Misplaced,
}

/// The body of a request: none, or what comes on the channel.
pub(super) enum RequestBody {
    None,
    Upload(Upload),
}

/// Bytes of the channel, then trailers if there are any.
pub(super) struct Upload {
    receiver: Receiver,
    operation: Arc<Operation>,
    /// Whether anything of it was taken.
    touched: bool,
    ended: bool,
    /// Dropped last, which says that nothing else of it is left.
    _gone: Option<oneshot::Sender<Infallible>>,
}

impl Upload {
    /// The body.
    pub(super) fn new(operation: &Arc<Operation>) -> Self {
        Self {
            receiver: operation.receiver(REQUEST),
            operation: operation.clone(),
            touched: false,
            ended: false,
            _gone: None,
        }
    }

    /// The body, and what resolves (with an error) once it was dropped: taken whole, or given up.
    pub(super) fn watched(operation: &Arc<Operation>) -> (Self, oneshot::Receiver<Infallible>) {
        let (gone, uploaded) = oneshot::channel();
        let upload = Self {
            _gone: Some(gone),
            ..Self::new(operation)
        };
        (upload, uploaded)
    }

    /// Whether all of it is still here.
    pub(super) fn is_untouched(&self) -> bool {
        !self.touched
    }

    /// The next bytes, or the trailers behind them.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let chunk = ready!(self.receiver.poll_chunk(cx));
        self.touched = true;
        match chunk {
            Ok(Some(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Ok(None) => self.ended = true,
            Err(ended) => return Poll::Ready(Some(Err(ended.into()))),
        }
        // Trailers went ahead of the channel's end: they are here by now or never come.
        match pin!(self.operation.message()).poll(cx) {
            Poll::Ready(Ok(Some(message))) => Poll::Ready(Some(trailers(&message))),
            Poll::Ready(Err(ended)) => Poll::Ready(Some(Err(ended.into()))),
            Poll::Ready(Ok(None)) | Poll::Pending => Poll::Ready(None),
        }
    }
}

fn trailers(message: &[u8]) -> Result<Frame<Bytes>, UploadError> {
    match kind::decode("message", message)? {
        Message::Trailers(trailers) => Ok(Frame::trailers(head::trailers(trailers)?)),
        Message::Head(_) | Message::Informational(_) => Err(UploadError::Misplaced),
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        match self.get_mut() {
            Self::None => Poll::Ready(None),
            Self::Upload(upload) => upload.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Never exact: the request's headers say how long it is.
    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
