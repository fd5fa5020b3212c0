//! The reading side of a connection, and the bodies of requests that are read from it.
//!
//! ```text
//! Inbound::Home --lend--> RequestBody, wherever it is polled --its end, or dropped--> Home
//! ```
//!
//! Who reads holds the connection's reading half and its one buffer: the connection between
//! requests, a request's body for as long as there is more of it and somebody wants it. So a body
//! is read only as fast as it is taken, and passes from the socket's buffer to the core without a
//! copy. What nobody wants comes home with the rest, and is thrown away for a while, so that the
//! browser reads its answer before it learns that the connection ends.

use std::future::pending;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep, timeout_at};

use super::chunked::{ChunkError, Decoder, Piece};
use super::head::Framing;

/// Room for a read of heads, in bytes, and how much is read ahead of what was asked for.
const HEAD_READ: usize = 4 * 1024;

/// Room for a read of a body, in bytes.
const BODY_READ: usize = 64 * 1024;

/// Room that is left is used up to here, in bytes.
const LEAST_READ: usize = 2 * 1024;

/// Why a request's body is not whole.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyBroke {
    #[error("the browser closed its side")]
    Closed,
    #[error("the connection: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    #[error("nothing came for {} s", .0.as_secs())]
    Stalled(Duration),
}

/// The reading half of a connection, and what was read and not used.
#[derive(Debug)]
pub(super) struct Input<R> {
    pub(super) io: R,
    pub(super) buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> Input<R> {
    pub(super) fn new(io: R) -> Self {
        Self {
            io,
            buffer: BytesMut::new(),
        }
    }

    /// Reads what there is into the buffer; 0 at the end.
    fn poll_fill(&mut self, room: usize, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.buffer.capacity() - self.buffer.len() < LEAST_READ {
            self.buffer.reserve(room);
        }
        pin!(self.io.read_buf(&mut self.buffer)).poll(cx)
    }

    /// Reads some of a head. Nothing is lost if this is dropped.
    pub(super) async fn fill(&mut self) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_fill(HEAD_READ, cx)).await
    }
}

/// What is to come of a body.
#[derive(Debug)]
pub(super) enum Rest {
    Length(u64),
    Chunks(Decoder),
}

impl Rest {
    pub(super) fn new(framing: Framing) -> Self {
        match framing {
            Framing::None => Self::Length(0),
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunks(Decoder::new()),
        }
    }

    fn ended(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunks(decoder) => decoder.ended(),
        }
    }

    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Piece>, ChunkError> {
        match self {
            Self::Length(0) => Ok(Some(Piece::End(None))),
            Self::Length(_) if buffer.is_empty() => Ok(None),
            Self::Length(left) => {
                let take = usize::try_from(*left).unwrap_or(usize::MAX);
                let bytes = buffer.split_to(take.min(buffer.len())).freeze();
                *left -= bytes.len() as u64;
                Ok(Some(Piece::Data(bytes)))
            }
            Self::Chunks(decoder) => decoder.decode(buffer),
        }
    }
}

/// Why no more requests can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The browser has closed its side.
    Closed,
    /// Where the next request begins is not known, or it did not come in time.
    Lost,
}

/// How long what nobody wants is read on for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// In all.
    pub(super) whole: Duration,
    /// Without a byte.
    pub(super) idle: Duration,
}

/// The reading side, as the connection has it.
#[derive(Debug)]
pub(super) enum Inbound<R> {
    Home(Home<R>),
    Lent(oneshot::Receiver<Home<R>>),
}

/// The input, and how far it has got.
#[derive(Debug)]
pub(super) struct Home<R> {
    pub(super) input: Input<R>,
    /// Of the current request's body.
    rest: Rest,
    end: Option<End>,
    /// When patience with the rest ends.
    until: Option<Instant>,
}

impl<R: AsyncRead + Unpin> Inbound<R> {
    pub(super) fn new(io: R) -> Self {
        Self::Home(Home {
            input: Input::new(io),
            rest: Rest::Length(0),
            end: None,
            until: None,
        })
    }

    /// The input, if no request's body has it.
    pub(super) fn home(&mut self) -> Option<&mut Home<R>> {
        match self {
            Self::Home(home) => Some(home),
            Self::Lent(_) => None,
        }
    }

    /// Lends the input to the body of a request whose head was just read. A body of no bytes needs
    /// none. Without a byte for `stall`, the body breaks.
    pub(super) fn lend(&mut self, framing: Framing, stall: Duration) -> RequestBody<R> {
        let rest = Rest::new(framing);
        let mut body = RequestBody {
            lent: None,
            stall: Stall::new(stall),
        };
        if !rest.ended() {
            let (back, lent) = oneshot::channel();
            if let Self::Home(home) = std::mem::replace(self, Self::Lent(lent)) {
                body.lent = Some((Home { rest, ..home }, back));
            }
        }
        body
    }

    /// The input, once no body has it any more. `None`: the runtime ends.
    pub(super) async fn into_home(self) -> Option<Home<R>> {
        match self {
            Self::Home(home) => Some(home),
            Self::Lent(lent) => lent.await.ok(),
        }
    }

    /// Waits until the current request's body has been read, by whoever wanted it, and throws away
    /// what nobody does. Whether another request may follow. Nothing is lost if this is dropped.
    pub(super) async fn settled(&mut self, patience: Patience) -> bool {
        loop {
            match self {
                Self::Lent(lent) => match lent.await {
                    Ok(home) => *self = Self::Home(home),
                    // Bodies give back what they were lent, unless the runtime ends.
                    Err(_) => return false,
                },
                Self::Home(home) => return home.settled(patience).await,
            }
        }
    }

    /// Waits until the browser has closed its side, once the body is settled. Reads ahead for that,
    /// but not far. Nothing is lost if this is dropped.
    pub(super) async fn closed(&mut self) {
        match self {
            Self::Home(home) => home.closed().await,
            Self::Lent(_) => pending().await,
        }
    }
}

impl<R: AsyncRead + Unpin> Home<R> {
    /// Whether the browser has closed its side, as far as it was read.
    pub(super) fn is_closed(&self) -> bool {
        self.end == Some(End::Closed)
    }

    async fn settled(&mut self, patience: Patience) -> bool {
        while self.end.is_none() && !self.rest.ended() {
            match self.rest.decode(&mut self.input.buffer) {
                Ok(Some(_)) => continue,
                Ok(None) => {}
                Err(_) => {
                    self.end = Some(End::Lost);
                    break;
                }
            }
            let now = Instant::now();
            let until = *self.until.get_or_insert(now + patience.whole);
            let fill = std::future::poll_fn(|cx| self.input.poll_fill(BODY_READ, cx));
            match timeout_at(until.min(now + patience.idle), fill).await {
                Ok(Ok(1..)) => {}
                Ok(_) => self.end = Some(End::Closed),
                Err(_) => self.end = Some(End::Lost),
            }
        }
        self.until = None;
        self.rest.ended() && self.end != Some(End::Lost)
    }

    async fn closed(&mut self) {
        while self.end.is_none() {
            if self.input.buffer.len() >= HEAD_READ {
                return pending().await;
            }
            if !matches!(self.input.fill().await, Ok(1..)) {
                self.end = Some(End::Closed);
            }
        }
        if self.end == Some(End::Lost) {
            pending::<()>().await;
        }
    }

    /// Reads on for a while, and throws away what comes, until the browser closes its side.
    pub(super) async fn linger(&mut self, patience: Patience) {
        let until = Instant::now() + patience.whole;
        while self.end != Some(End::Closed) {
            self.input.buffer.clear();
            let deadline = until.min(Instant::now() + patience.idle);
            let fill = std::future::poll_fn(|cx| self.input.poll_fill(HEAD_READ, cx));
            if !matches!(timeout_at(deadline, fill).await, Ok(Ok(1..))) {
                return;
            }
        }
    }
}

/// The body of a request, as it comes.
#[derive(Debug)]
pub(super) struct RequestBody<R> {
    lent: Option<(Home<R>, oneshot::Sender<Home<R>>)>,
    stall: Stall,
}

impl<R> RequestBody<R> {
    /// Gives back what was lent.
    fn give_back(&mut self, end: Option<End>) {
        if let Some((mut home, back)) = self.lent.take() {
            home.end = end;
            // A connection that is gone takes nothing back.
            let _ = back.send(home);
        }
    }
}

impl<R: AsyncRead + Unpin> Body for RequestBody<R> {
    type Data = Bytes;
    type Error = BodyBroke;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyBroke>>> {
        let this = self.get_mut();
        loop {
            let Some((home, _)) = &mut this.lent else {
                return Poll::Ready(None);
            };
            let Home { input, rest, .. } = home;
            let (end, broke) = match rest.decode(&mut input.buffer) {
                Ok(Some(Piece::Data(bytes))) => {
                    if rest.ended() {
                        this.give_back(None);
                    }
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                Ok(Some(Piece::End(trailers))) => {
                    this.give_back(None);
                    return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
                }
                Err(error) => (End::Lost, error.into()),
                Ok(None) => match input.poll_fill(BODY_READ, cx) {
                    Poll::Ready(Ok(1..)) => {
                        this.stall.moved = true;
                        continue;
                    }
                    Poll::Ready(Ok(0)) => (End::Closed, BodyBroke::Closed),
                    Poll::Ready(Err(error)) => (End::Closed, error.into()),
                    Poll::Pending => {
                        ready!(this.stall.poll(cx));
                        (End::Lost, BodyBroke::Stalled(this.stall.limit))
                    }
                },
            };
            this.give_back(Some(end));
            return Poll::Ready(Some(Err(broke)));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.lent.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.lent {
            Some((home, _)) => match home.rest {
                Rest::Length(left) => SizeHint::with_exact(left),
                Rest::Chunks(_) => SizeHint::default(),
            },
            None => SizeHint::with_exact(0),
        }
    }
}

impl<R> Drop for RequestBody<R> {
    fn drop(&mut self) {
        self.give_back(None);
    }
}

/// Runs out when nothing has moved for the limit, up to twice that. Its timer is touched once in a
/// limit, not with every byte.
#[derive(Debug)]
struct Stall {
    limit: Duration,
    moved: bool,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    fn new(limit: Duration) -> Self {
        Self {
            limit,
            moved: false,
            timer: None,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        loop {
            ready!(timer.as_mut().poll(cx));
            if !std::mem::take(&mut self.moved) {
                return Poll::Ready(());
            }
            timer.as_mut().reset(Instant::now() + limit);
        }
    }
}
