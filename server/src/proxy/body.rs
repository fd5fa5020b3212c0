//! The bodies of responses: the hub's own, or the target's as it comes.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hub_protocol::kind;
use hub_protocol::kind::http::{Message, Outcome, RESPONSE};
use hub_quic::operation::{Ended, Receiver};

use super::exchange::{Exchange, UploadBroke, outcome};
use super::head;
use super::seeing::{Down, Track};

/// Why a response's body is not whole: the browser must see that it is not.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyBroke {
    #[error("the agent was lost: {0}")]
    Ended(#[from] Ended),
    #[error("the target broke off: {0}")]
    Target(String),
    #[error("it is shorter than its head announced")]
    Short,
    #[error("the agent broke the rules of carried HTTP")]
    Nonsense,
    #[error(transparent)]
    Upload(#[from] UploadBroke),
}

/// The body of a response.
pub(super) struct ProxyBody {
    kind: Kind,
    /// Where it is told how far the browser has taken it.
    track: Option<Track>,
}

enum Kind {
    Own(Bytes),
    Relay(Box<Relay>),
}

impl ProxyBody {
    /// These bytes.
    pub(super) fn own(bytes: Bytes) -> Self {
        Self {
            kind: Kind::Own(bytes),
            track: None,
        }
    }

    /// What the target sends: `left` bytes, or all until the channel's end.
    pub(super) fn relay(exchange: Exchange, left: Option<u64>) -> Self {
        Self {
            kind: Kind::Relay(Box::new(Relay {
                receiver: exchange.operation.receiver(RESPONSE),
                exchange,
                left,
                stage: Stage::Data,
            })),
            track: None,
        }
    }

    /// The same, which tells on the way how far it is.
    pub(super) fn tracked(mut self, track: Track) -> Self {
        self.track = Some(track);
        self
    }

    /// Tells that what it gave has yet to be taken by the browser: for a front end that writes what
    /// it has once it saw that nothing more is there for now.
    pub(super) fn on_its_way(&self) {
        if let Some(track) = &self.track {
            track.down(Down::Browser);
        }
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = BodyBroke;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyBroke>>> {
        let this = self.get_mut();
        let polled = match &mut this.kind {
            Kind::Own(bytes) if bytes.is_empty() => Poll::Ready(None),
            Kind::Own(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Kind::Relay(relay) => relay.poll(cx),
        };
        if let Some(track) = &this.track {
            match &polled {
                Poll::Pending => track.down(Down::Piece),
                Poll::Ready(Some(Ok(frame))) => {
                    track.down(Down::Browser);
                    track.gives(frame.data_ref().map_or(0, Bytes::len));
                }
                // The last of it is still on its way to the browser.
                Poll::Ready(None) => track.down(Down::Browser),
                Poll::Ready(Some(Err(_))) => {}
            }
        }
        polled
    }

    /// Of the target's, a body whose length is known to be nothing: gRPC's clients take an error
    /// that comes as a head alone only if the head ends the stream.
    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Own(bytes) => bytes.is_empty(),
            Kind::Relay(relay) => relay.left == Some(0),
        }
    }

    /// Exact for the hub's own. Of the target's, the response's headers say how long it is, which
    /// is not always what is sent: the answer to a `HEAD` has a length and no body.
    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Own(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Relay(_) => SizeHint::default(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Data,
    /// The channel has ended: trailers may have come before, or an outcome that it broke.
    Ended,
    /// Nothing is missing.
    Whole,
    /// It broke.
    Broke,
}

/// Bytes of the channel, then trailers if there are any. Its front end drops it once it has as many
/// bytes as it needs.
struct Relay {
    receiver: Receiver,
    exchange: Exchange,
    left: Option<u64>,
    stage: Stage,
}

impl Relay {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyBroke>>> {
        let polled = self.poll_next(cx);
        if let Poll::Ready(Some(Err(error))) = &polled {
            tracing::debug!(
                node = %self.exchange.node,
                target = %self.exchange.target,
                "a response is broken off: {error}"
            );
            self.stage = Stage::Broke;
        }
        polled
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyBroke>>> {
        if self.stage == Stage::Data {
            if let Poll::Ready(broke) = self.exchange.poll_upload_broke(cx) {
                return Poll::Ready(Some(Err(broke.into())));
            }
            match ready!(self.receiver.poll_chunk(cx)) {
                Ok(Some(bytes)) => {
                    if let Some(left) = &mut self.left {
                        // No more than was announced is taken.
                        *left = left.saturating_sub(bytes.len() as u64);
                    }
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                Ok(None) => self.stage = Stage::Ended,
                Err(ended) => return Poll::Ready(Some(Err(ended.into()))),
            }
        }
        if self.stage == Stage::Ended {
            // The channel ends by itself or with the operation: only an outcome that came by now
            // can say that it broke.
            let done = pin!(self.exchange.operation.done()).poll(cx);
            if let Poll::Ready(Ok(done)) = done {
                match outcome(&done) {
                    Some(Outcome::Complete) => {}
                    Some(Outcome::Broken(failure)) => {
                        return Poll::Ready(Some(Err(BodyBroke::Target(failure.message))));
                    }
                    None => return Poll::Ready(Some(Err(BodyBroke::Nonsense))),
                }
            }
            if self.left.is_some_and(|left| left > 0) {
                return Poll::Ready(Some(Err(BodyBroke::Short)));
            }
            self.stage = Stage::Whole;
            // Trailers went ahead of the channel's end: they are here by now or never come.
            let message = pin!(self.exchange.operation.message()).poll(cx);
            if let Poll::Ready(Ok(Some(message))) = message {
                let Ok(Message::Trailers(lines)) = kind::decode("message", &message) else {
                    return Poll::Ready(Some(Err(BodyBroke::Nonsense)));
                };
                let trailers = head::trailers(lines).ok_or(BodyBroke::Nonsense);
                return Poll::Ready(Some(trailers.map(Frame::trailers)));
            }
        }
        Poll::Ready(None)
    }
}

impl Drop for ProxyBody {
    fn drop(&mut self) {
        let whole = match &self.kind {
            Kind::Own(_) => true,
            Kind::Relay(relay) => relay.is_whole(),
        };
        if let Some(track) = self.track.as_ref().filter(|_| whole) {
            track.whole();
        }
    }
}

impl Relay {
    fn is_whole(&self) -> bool {
        let whole = self.stage == Stage::Whole || self.left == Some(0);
        whole && self.stage != Stage::Broke
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if self.is_whole() {
            self.exchange.release();
        }
    }
}
