//! A stream of HTTP/2 as a connection: what carries a WebSocket.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use h2::{RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use super::{Gone, poll_room};

/// Both directions of a stream. Dropped before both have ended, it resets the stream.
pub(super) struct Tunnel {
    sent: SendStream<Bytes>,
    received: RecvStream,
    /// What came and was not read yet.
    rest: Bytes,
    /// Dropped with this.
    _held: oneshot::Sender<()>,
}

impl Tunnel {
    pub(super) fn new(
        sent: SendStream<Bytes>,
        received: RecvStream,
        held: oneshot::Sender<()>,
    ) -> Self {
        Self {
            sent,
            received,
            rest: Bytes::new(),
            _held: held,
        }
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match ready!(self.received.poll_data(cx)) {
                Some(Ok(bytes)) => self.rest = bytes,
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let read = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest[..read]);
        self.rest.advance(read);
        // Fails only for a stream that is over.
        let _ = self.received.flow_control().release_capacity(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        let room = ready!(poll_room(&mut self.sent, bytes.len(), cx));
        let room = room.map_err(|Gone| gone())?;
        let piece = Bytes::copy_from_slice(&bytes[..room]);
        let sent = self.sent.send_data(piece, false).map_err(|_| gone());
        Poll::Ready(sent.map(|()| room))
    }

    /// The connection's own task writes.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = self.sent.send_data(Bytes::new(), true);
        Poll::Ready(ended.map_err(io::Error::other))
    }
}
