//! The handles of channels: bytes in, bytes out, credit taken and granted on the way.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use hub_protocol::frame::{self, Channel};
use hub_protocol::limits::MAX_DATA;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Ended, Shared};

/// Bytes that senders of one operation may have queued before QUIC has taken them. Enough to keep
/// the pump busy; the rest of what has credit waits with its producer.
const QUEUE: usize = 2 * MAX_DATA;

/// Takes the oldest piece that waits on a channel and grants the credit that is due for it.
pub(super) fn poll_take(
    shared: &Shared,
    channel: Channel,
    cx: &Context<'_>,
) -> Poll<Result<Option<Bytes>, Ended>> {
    let mut state = shared.lock();
    let over = state.machine.is_over();
    let Some(receiving) = state.receiving(channel) else {
        return Poll::Ready(Ok(None));
    };
    if let Some(piece) = receiving.inbox.pop() {
        state.consumed(&shared.session, channel, &piece);
        return Poll::Ready(Ok(Some(piece)));
    }
    if receiving.inbox.ended || over {
        return Poll::Ready(Ok(None));
    }
    receiving.waker = Some(cx.waker().clone());
    match &state.ended {
        Some(ended) => Poll::Ready(Err(ended.clone())),
        None => Poll::Pending,
    }
}

/// The receiving end of a channel. Taking bytes from it grants credit for more; dropping it before
/// the end stops the channel, and only the channel.
#[derive(Debug)]
pub struct Receiver {
    shared: Arc<Shared>,
    channel: Channel,
    /// What a reader with a small buffer left of the last piece.
    rest: Bytes,
}

impl Receiver {
    pub(super) fn new(shared: Arc<Shared>, channel: Channel) -> Self {
        Self {
            shared,
            channel,
            rest: Bytes::new(),
        }
    }

    /// The next bytes, as they came; `None` at the channel's end.
    ///
    /// # Errors
    /// The operation ended before the channel did: what came is not all.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Ended> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// [`chunk`](Self::chunk), for streams and bodies.
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Ended>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.rest))));
        }
        poll_take(&self.shared, self.channel, cx)
    }
}

impl AsyncRead for Receiver {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.rest.is_empty() {
            match ready!(self.poll_chunk(cx)) {
                Ok(chunk) => self.rest = chunk.unwrap_or_default(),
                Err(ended) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionReset, ended)));
                }
            }
        }
        let now = self.rest.len().min(buf.remaining());
        buf.put_slice(&self.rest[..now]);
        self.rest.advance(now);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(receiving) = state.receiving(self.channel) {
            receiving.inbox.clear();
        }
        state.machine.stop(self.channel);
        if state.machine.owes() {
            state.wake_pump();
        }
    }
}

/// The sending end of a channel. Every byte has credit before it is queued.
#[derive(Debug)]
pub struct Sender {
    shared: Arc<Shared>,
    channel: Channel,
}

impl Sender {
    pub(super) fn new(shared: Arc<Shared>, channel: Channel) -> Self {
        Self { shared, channel }
    }

    /// Sends all of `bytes`, without copying them, as credit comes in.
    ///
    /// # Errors
    /// The operation ended, the receiver stopped the channel, or this side had ended it
    /// ([`Ended::Over`] when nothing is wrong): the rest was not sent.
    pub async fn send(&mut self, mut bytes: Bytes) -> Result<(), Ended> {
        while !bytes.is_empty() {
            let taken =
                poll_fn(|cx| self.poll_credit(cx, bytes.len(), |n| bytes.split_to(n))).await;
            taken?;
        }
        Ok(())
    }

    /// Sends as much of `bytes` as has credit now, at least one byte, and takes it off them, without
    /// copying.
    ///
    /// # Errors
    /// Those of [`send`](Self::send): nothing was sent.
    pub fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut Bytes,
    ) -> Poll<Result<(), Ended>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let taken = self.poll_credit(cx, bytes.len(), |n| bytes.split_to(n));
        taken.map_ok(drop)
    }

    /// Sends all of `bytes` if there is credit and room for them now, or nothing. Gives whether they
    /// were sent: for what is of no use later.
    ///
    /// # Errors
    /// Those of [`send`](Self::send): nothing was sent.
    pub fn try_send(&mut self, bytes: &Bytes) -> Result<bool, Ended> {
        let mut state = self.shared.lock();
        if let Some(ended) = &state.ended {
            return Err(ended.clone());
        }
        if state.machine.is_over() || state.machine.is_ended(self.channel) {
            return Err(Ended::Over);
        }
        let cost = bytes.len() as u64;
        let room = bytes.len() <= MAX_DATA
            && state.outgoing.bytes() < QUEUE
            && state.machine.credit(self.channel) >= cost
            && state.machine.take_credit(self.channel, cost) == cost;
        if room && !bytes.is_empty() {
            let header = frame::data_header(self.channel, bytes.len());
            state.outgoing.push(&header, bytes.clone());
            state.wake_pump();
        }
        Ok(room)
    }

    /// Whether there is credit for a byte. What waits all the same waits for the connection, which
    /// has not taken what was queued before it.
    pub fn has_credit(&self) -> bool {
        self.shared.lock().machine.credit(self.channel) > 0
    }

    /// Ends the channel: nothing follows on it.
    pub fn finish(&mut self) {
        let mut state = self.shared.lock();
        if state.ended.is_none()
            && let Some(frame) = state.machine.end(self.channel)
        {
            state.outgoing.push(&frame.encode(), Bytes::new());
            state.wake_pump();
        }
    }

    /// Whether the receiver has stopped the channel, or the operation is over.
    pub fn is_stopped(&self) -> bool {
        let mut state = self.shared.lock();
        state.ended.is_some()
            || state.machine.is_over()
            || state
                .sending(self.channel)
                .is_none_or(|sending| sending.stopped)
    }

    /// Waits until [`is_stopped`](Self::is_stopped).
    pub async fn stopped(&mut self) {
        poll_fn(|cx| self.poll_stopped(cx)).await;
    }

    /// [`stopped`](Self::stopped), for what polls several channels.
    pub fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.shared.lock();
        let over = state.ended.is_some() || state.machine.is_over();
        match state.sending(self.channel) {
            Some(sending) if !over && !sending.stopped => {
                sending.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// Waits for credit and room for at least one of `wanted` bytes, takes what there is, and
    /// queues what `bytes` gives for it.
    fn poll_credit(
        &self,
        cx: &Context<'_>,
        wanted: usize,
        bytes: impl FnOnce(usize) -> Bytes,
    ) -> Poll<Result<usize, Ended>> {
        let mut state = self.shared.lock();
        if let Some(ended) = &state.ended {
            return Poll::Ready(Err(ended.clone()));
        }
        // A channel that its receiver stopped has had its end, too.
        if state.machine.is_over() || state.machine.is_ended(self.channel) {
            return Poll::Ready(Err(Ended::Over));
        }
        let wanted = if state.outgoing.bytes() < QUEUE {
            wanted.min(MAX_DATA) as u64
        } else {
            0
        };
        let taken = state.machine.take_credit(self.channel, wanted) as usize;
        if taken == 0 {
            if let Some(sending) = state.sending(self.channel) {
                sending.waker = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        state
            .outgoing
            .push(&frame::data_header(self.channel, taken), bytes(taken));
        state.wake_pump();
        Poll::Ready(Ok(taken))
    }
}

impl AsyncWrite for Sender {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_credit(cx, buf.len(), |n| Bytes::copy_from_slice(&buf[..n]))
            .map_err(|ended| io::Error::new(io::ErrorKind::BrokenPipe, ended))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finish();
        Poll::Ready(Ok(()))
    }
}
