//! A connection whose other end has to take what is sent to it, at some pace.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::Proxy;
use super::limits::Refusal;

/// A connection that fails once its other end has taken nothing for as long as the quotas of the
/// data plane allow, while there was something for it. One that has nothing to send may last.
pub(super) struct Paced<I> {
    io: I,
    proxy: Proxy,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<I> Paced<I> {
    pub(super) fn new(io: I, proxy: Proxy) -> Self {
        Self {
            io,
            proxy,
            waiting: None,
        }
    }

    /// The connection itself.
    pub(super) fn into_inner(self) -> I {
        self.io
    }

    /// What became of an attempt to send, unless that has waited for too long.
    fn paced<T>(&mut self, cx: &mut Context<'_>, sent: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if sent.is_ready() {
            self.waiting = None;
            return sent;
        }
        let idle = self.proxy.inner.door.quotas().response_idle;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(idle)));
        ready!(waiting.as_mut().poll(cx));
        self.waiting = None;
        let refusal = Refusal::ResponseIdle(idle);
        self.proxy.inner.door.count(refusal);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, refusal)))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Paced<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Paced<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.paced(cx, sent)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.paced(cx, sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = Pin::new(&mut self.io).poll_flush(cx);
        self.paced(cx, sent)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
