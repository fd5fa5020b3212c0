//! The writing side of a connection.
//!
//! What is to be written waits in a queue of pieces, none of which is copied: the bytes of bodies
//! go out as they came, between the heads of their chunks. All that is there goes at once, and
//! nothing waits for more to come.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::Response;
use http::header::HeaderMap;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use hub_ledger::Timestamp;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::response::{self, Delimited, Persistence};
use crate::proxy::body::ProxyBody;

/// Bytes of a body that go out in one turn, if there are so many; a piece may go beyond.
const TURN: usize = 64 * 1024;

/// Pieces that go out in one turn.
const PIECES: usize = 48;

/// Why a response was not written to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broke {
    /// The browser takes no more.
    #[error("the browser's connection: {0}")]
    Io(#[from] io::Error),
    /// The response breaks off, and the browser must see it.
    #[error("the response broke off")]
    Body,
}

/// The writing half of a connection, and what waits to be written.
#[derive(Debug)]
pub(super) struct Output<W> {
    pub(super) io: W,
    queue: VecDeque<Bytes>,
    queued: usize,
    /// Where heads are put together.
    scratch: BytesMut,
    /// How long the browser may take nothing.
    stall: Duration,
}

impl<W: AsyncWrite + Unpin> Output<W> {
    pub(super) fn new(io: W, stall: Duration) -> Self {
        Self {
            io,
            queue: VecDeque::new(),
            queued: 0,
            scratch: BytesMut::new(),
            stall,
        }
    }

    fn push(&mut self, bytes: Bytes) {
        self.queued += bytes.len();
        self.queue.push_back(bytes);
    }

    /// Puts a head into the queue.
    pub(super) fn head<B>(
        &mut self,
        response: &Response<B>,
        delimited: Delimited,
        persistence: Persistence,
        date: Option<Timestamp>,
    ) {
        let (status, headers) = (response.status(), response.headers());
        response::head(
            &mut self.scratch,
            status,
            headers,
            delimited,
            persistence,
            date,
        );
        let head = self.scratch.split().freeze();
        self.push(head);
    }

    /// Writes an informational response.
    pub(super) async fn interim(&mut self, response: &Response<()>) -> io::Result<()> {
        self.head(response, Delimited::Bodyless, Persistence::Unsaid, None);
        self.flush().await
    }

    /// Writes the body of a response behind its head.
    pub(super) async fn body(
        &mut self,
        mut body: ProxyBody,
        delimited: Delimited,
    ) -> Result<(), Broke> {
        let mut left = match delimited {
            Delimited::Bodyless => 0,
            Delimited::Length(length) => length,
            Delimited::Chunks | Delimited::Close => u64::MAX,
        };
        while left > 0 {
            let frame = if let Some(frame) = body.frame().now_or_never() {
                frame
            } else {
                // Nothing more is there for now: what is goes out.
                body.on_its_way();
                self.flush().await?;
                body.frame().await
            };
            let Ok(frame) = frame.transpose() else {
                // All that came is for the browser.
                self.flush().await?;
                return Err(Broke::Body);
            };
            match frame.map(Frame::into_data) {
                Some(Ok(bytes)) => {
                    left = self.data(bytes, delimited, left);
                    if self.queued >= TURN || self.queue.len() >= PIECES {
                        self.flush().await?;
                    }
                }
                Some(Err(frame)) => {
                    if let (Delimited::Chunks, Ok(trailers)) = (delimited, frame.into_trailers()) {
                        self.last(&trailers);
                        break;
                    }
                }
                None if matches!(delimited, Delimited::Length(_)) => {
                    self.flush().await?;
                    return Err(Broke::Body);
                }
                None => {
                    if delimited == Delimited::Chunks {
                        self.last(&HeaderMap::new());
                    }
                    break;
                }
            }
        }
        self.flush().await?;
        Ok(())
    }

    /// Puts bytes of a body into the queue, no more than are `left`. How many then are.
    fn data(&mut self, mut bytes: Bytes, delimited: Delimited, left: u64) -> u64 {
        if bytes.is_empty() {
            // A chunk of no bytes would be the last.
            return left;
        }
        if delimited == Delimited::Chunks {
            let (before, after) = response::chunk(&mut self.scratch, bytes.len());
            for piece in [before, bytes, after] {
                self.push(piece);
            }
            return left;
        }
        bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        let taken = bytes.len() as u64;
        self.push(bytes);
        match delimited {
            Delimited::Length(_) => left - taken,
            _ => left,
        }
    }

    fn last(&mut self, trailers: &HeaderMap) {
        let last = response::last_chunk(&mut self.scratch, trailers);
        self.push(last);
    }

    /// Writes all that waits. What was not written stays in the queue if this is dropped.
    ///
    /// # Errors
    /// The connection broke, or the browser took nothing for too long.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        if self.queue.is_empty() {
            return Ok(());
        }
        while !self.queue.is_empty() {
            let (io, queue) = (&mut self.io, &self.queue);
            let write = poll_fn(|cx| {
                let mut slices = [IoSlice::new(&[]); PIECES + 4];
                let count = queue.len().min(slices.len());
                for (slice, bytes) in slices.iter_mut().zip(queue) {
                    *slice = IoSlice::new(bytes);
                }
                Pin::new(&mut *io).poll_write_vectored(cx, &slices[..count])
            });
            let written = timeout(self.stall, write)
                .await
                .map_err(io::Error::from)??;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.written(written);
        }
        // For what keeps bytes back, as TLS does.
        let flushed = timeout(self.stall, self.io.flush()).await;
        flushed.map_err(io::Error::from)?
    }

    fn written(&mut self, mut count: usize) {
        self.queued -= count;
        while let Some(first) = self.queue.front_mut() {
            if count < first.len() {
                first.advance(count);
                return;
            }
            count -= first.len();
            self.queue.pop_front();
        }
    }

    /// Ends the writing side, so that the browser sees the end behind all that was written.
    pub(super) async fn shutdown(&mut self) {
        // Whom it does not reach is gone.
        let _ = timeout(self.stall, self.io.shutdown()).await;
    }
}

/// The length of a body that is known before it is read.
pub(super) fn known(body: &ProxyBody) -> Option<u64> {
    body.size_hint().exact()
}
