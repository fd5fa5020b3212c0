//! A connection between two ends of one process, with the manners of QUIC.
//!
//! ```text
//! SendStream --Bytes--> Pipe (at most 1 MiB) --Bytes--> RecvStream     twice for each stream
//! Connection --open, when a slot is free--> queue of the other end --accept--> Connection
//! ```
//!
//! Datagrams go over as they are, too, in order, as long as there is room for them. Chunks go over as
//! they are, in order. A writer waits while the pipe is full. The end, a reset and
//! a stop reach the other side at once; closing the connection reaches every stream, what was written
//! before it can still be read, and nothing that is said after it is heard. Each end allows the other so many streams: one counts from
//! when it is opened until both its readers have seen its end or have given it up, so that an end
//! which opens and drops streams for ever holds no more than is allowed.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use hub_protocol::limits::{AGENT_STREAMS, INITIAL_OPERATIONS, STREAM_WINDOW};
use quinn::{
    ApplicationClose, ClosedStream, ConnectionError, ReadError, StoppedError, VarInt, WriteError,
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

/// Bytes that wait in one direction of a stream at most, as in QUIC.
const BUFFER: usize = STREAM_WINDOW as usize;

/// What a chunk counts beside its bytes, so that tiny ones are not free.
const CHUNK: usize = 64;

/// The most bytes of a datagram: any UDP packet and what names its flow.
pub(super) const MAX_DATAGRAM: usize = 65_536 + 8;

/// What datagrams to one end may hold until it takes them, [`CHUNK`] for each included; of more the
/// oldest give way.
const DATAGRAMS: usize = 256 * 1024;

/// How many streams each end of a connection may have open at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streams {
    /// Opened by the hub.
    pub hub: u32,
    /// Opened by the agent.
    pub agent: u32,
}

impl Default for Streams {
    /// As many as an agent and a hub allow each other over QUIC.
    fn default() -> Self {
        Self {
            hub: INITIAL_OPERATIONS,
            agent: AGENT_STREAMS,
        }
    }
}

/// A connection, as the hub and as the agent hold it.
pub fn pair(streams: Streams) -> (Connection, Connection) {
    let end = |may_open: u32| End {
        slots: Arc::new(Semaphore::new(may_open as usize)),
        allowed: AtomicU32::new(may_open),
        opened: AtomicU64::new(0),
        incoming: Mutex::default(),
        arrived: Notify::new(),
        datagrams: Mutex::default(),
        datagram: Notify::new(),
    };
    let shared = Arc::new(Shared {
        ends: [end(streams.hub), end(streams.agent)],
        closed: watch::Sender::new(None),
        pipes: Mutex::default(),
    });
    let handle = |end| {
        Connection(Arc::new(Handle {
            shared: shared.clone(),
            end,
        }))
    };
    (handle(0), handle(1))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds one of these can panic half-way through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What an end of a connection has.
#[derive(Debug)]
struct End {
    /// Streams that it may open now.
    slots: Arc<Semaphore>,
    /// Streams that it may have open.
    allowed: AtomicU32,
    /// Streams that it has opened.
    opened: AtomicU64,
    /// Streams that the other end opened, and that were not accepted: from there, to there.
    incoming: Mutex<VecDeque<[Arc<Pipe>; 2]>>,
    arrived: Notify,
    /// Datagrams to it.
    datagrams: Mutex<Datagrams>,
    datagram: Notify,
}

/// Datagrams that wait to be taken, and what they count.
#[derive(Debug, Default)]
struct Datagrams {
    queue: VecDeque<Bytes>,
    held: usize,
}

#[derive(Debug)]
struct Shared {
    ends: [End; 2],
    /// Which end closed it, and how.
    closed: watch::Sender<Option<(usize, ApplicationClose)>>,
    pipes: Mutex<Pipes>,
}

/// All pipes, to be woken when the connection is closed.
#[derive(Debug, Default)]
struct Pipes {
    all: Vec<Weak<Pipe>>,
    /// At this length those that are gone are thrown out.
    sweep_at: usize,
}

impl Shared {
    fn close(&self, end: usize, code: VarInt, reason: &[u8]) {
        let first = self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            if first {
                let reason = Bytes::copy_from_slice(reason);
                let error_code = code;
                *closed = Some((end, ApplicationClose { error_code, reason }));
            }
            first
        });
        if first {
            // Who opens a stream looks whether the connection is closed while it holds this list.
            let pipes = std::mem::take(&mut lock(&self.pipes).all);
            for pipe in pipes.iter().filter_map(Weak::upgrade) {
                lock(&pipe.state).wake_both();
            }
        }
    }
}

/// One end's hold on the connection; the last one closes it.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    end: usize,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close(self.end, VarInt::from_u32(0), b"");
    }
}

/// One end of a connection. Cheap to clone; it is closed when the last clone and the last stream of
/// an end are gone.
#[derive(Debug, Clone)]
pub struct Connection(Arc<Handle>);

impl Connection {
    fn ours(&self) -> &End {
        &self.0.shared.ends[self.0.end]
    }

    fn theirs(&self) -> &End {
        &self.0.shared.ends[1 - self.0.end]
    }

    /// Opens a stream, as soon as the other end allows one more.
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn open(&self) -> Result<(SendStream, RecvStream), ConnectionError> {
        let slot = tokio::select! {
            biased;
            closed = self.closed() => return Err(closed),
            // The semaphore is never closed.
            Ok(slot) = self.ours().slots.clone().acquire_owned() => Arc::new(slot),
        };
        let index = self.ours().opened.fetch_add(1, Ordering::Relaxed);
        let there = Arc::new(Pipe::new(index, slot.clone()));
        let back = Arc::new(Pipe::new(index, slot));
        {
            let mut pipes = lock(&self.0.shared.pipes);
            if let Some(closed) = self.close_reason() {
                return Err(closed);
            }
            if pipes.all.len() >= pipes.sweep_at {
                pipes.all.retain(|pipe| pipe.strong_count() > 0);
                pipes.sweep_at = (2 * pipes.all.len()).max(64);
            }
            pipes.all.extend([&there, &back].map(Arc::downgrade));
        }
        lock(&self.theirs().incoming).push_back([there.clone(), back.clone()]);
        self.theirs().arrived.notify_one();
        Ok(self.halves(there, back))
    }

    /// The next stream that the other end opens. Cancelling loses none.
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn accept(&self) -> Result<(SendStream, RecvStream), ConnectionError> {
        loop {
            if let Some([from, to]) = lock(&self.ours().incoming).pop_front() {
                return Ok(self.halves(to, from));
            }
            tokio::select! {
                biased;
                () = self.ours().arrived.notified() => {}
                closed = self.closed() => return Err(closed),
            }
        }
    }

    fn halves(&self, to: Arc<Pipe>, from: Arc<Pipe>) -> (SendStream, RecvStream) {
        let send = SendStream {
            pipe: to,
            connection: self.clone(),
            over: false,
        };
        let recv = RecvStream {
            pipe: from,
            connection: self.clone(),
        };
        (send, recv)
    }

    /// Sends a datagram; the oldest that the other end has not taken give way to it. Gives whether it
    /// could be sent at all.
    pub(super) fn send_datagram(&self, datagram: Bytes) -> bool {
        if datagram.len() > MAX_DATAGRAM || self.close_reason().is_some() {
            return false;
        }
        {
            let mut waiting = lock(&self.theirs().datagrams);
            waiting.held += datagram.len() + CHUNK;
            waiting.queue.push_back(datagram);
            while waiting.held > DATAGRAMS
                && let Some(oldest) = waiting.queue.pop_front()
            {
                waiting.held -= oldest.len() + CHUNK;
            }
        }
        self.theirs().datagram.notify_one();
        true
    }

    /// The next datagram that the other end sent. Cancelling loses none.
    ///
    /// # Errors
    /// The connection is closed.
    pub(super) async fn read_datagram(&self) -> Result<Bytes, ConnectionError> {
        loop {
            {
                let mut waiting = lock(&self.ours().datagrams);
                if let Some(datagram) = waiting.queue.pop_front() {
                    waiting.held -= datagram.len() + CHUNK;
                    return Ok(datagram);
                }
            }
            tokio::select! {
                biased;
                () = self.ours().datagram.notified() => {}
                closed = self.closed() => return Err(closed),
            }
        }
    }

    /// Closes it, and with it all streams.
    pub fn close(&self, code: VarInt, reason: &[u8]) {
        self.0.shared.close(self.0.end, code, reason);
    }

    /// Waits until it is closed; gives why.
    pub async fn closed(&self) -> ConnectionError {
        let mut closed = self.0.shared.closed.subscribe();
        loop {
            if let Some(reason) = self.close_reason() {
                return reason;
            }
            if closed.changed().await.is_err() {
                // Cannot be: this handle keeps its sender.
                return ConnectionError::LocallyClosed;
            }
        }
    }

    /// Why it is closed, if it is.
    pub fn close_reason(&self) -> Option<ConnectionError> {
        let closed = self.0.shared.closed.borrow();
        closed.as_ref().map(|(end, close)| {
            if *end == self.0.end {
                ConnectionError::LocallyClosed
            } else {
                ConnectionError::ApplicationClosed(close.clone())
            }
        })
    }

    /// Allows the other end so many streams at once; never fewer than before.
    pub(super) fn allow_streams(&self, streams: u32) {
        let theirs = self.theirs();
        let before = theirs.allowed.fetch_max(streams, Ordering::Relaxed);
        theirs
            .slots
            .add_permits(streams.saturating_sub(before) as usize);
    }
}

/// One direction of a stream.
#[derive(Debug)]
struct Pipe {
    /// How many streams the end that opened this one had opened before.
    index: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    chunks: VecDeque<Bytes>,
    /// What they count.
    held: usize,
    /// The writer wrote its end.
    finished: bool,
    /// The writer gave up.
    reset: Option<VarInt>,
    /// The reader wants no more.
    stopped: Option<VarInt>,
    /// The reader has all there is, its end included.
    read: bool,
    /// The stream's place among those that are allowed, until the reader is done.
    slot: Option<Arc<OwnedSemaphorePermit>>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl State {
    fn wake_both(&mut self) {
        for waker in [self.reader.take(), self.writer.take()] {
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// The reader needs no more of the pipe.
    fn done(&mut self) {
        self.chunks = VecDeque::new();
        self.held = 0;
        self.slot = None;
        self.wake_both();
    }
}

impl Pipe {
    fn new(index: u64, slot: Arc<OwnedSemaphorePermit>) -> Self {
        Self {
            index,
            state: Mutex::new(State {
                chunks: VecDeque::new(),
                held: 0,
                finished: false,
                reset: None,
                stopped: None,
                read: false,
                slot: Some(slot),
                reader: None,
                writer: None,
            }),
        }
    }
}

/// The direction from this end. Dropping it ends it cleanly.
#[derive(Debug)]
pub struct SendStream {
    pipe: Arc<Pipe>,
    connection: Connection,
    /// It was finished or reset.
    over: bool,
}

impl SendStream {
    /// How many streams the end that opened this one had opened before.
    pub(super) fn index(&self) -> u64 {
        self.pipe.index
    }

    /// Writes as much as there is room for; gives how many chunks were taken whole.
    pub(super) fn poll_chunks(
        &mut self,
        cx: &Context<'_>,
        chunks: &mut [Bytes],
    ) -> Poll<Result<usize, WriteError>> {
        if self.over {
            return Poll::Ready(Err(WriteError::ClosedStream));
        }
        let mut state = lock(&self.pipe.state);
        if let Some(code) = state.stopped {
            return Poll::Ready(Err(WriteError::Stopped(code)));
        }
        if let Some(closed) = self.connection.close_reason() {
            return Poll::Ready(Err(closed.into()));
        }
        let (mut whole, mut some) = (0, chunks.is_empty());
        for chunk in chunks {
            let room = BUFFER.saturating_sub(state.held + CHUNK);
            if !chunk.is_empty() {
                if room == 0 {
                    break;
                }
                let piece = chunk.split_to(room.min(chunk.len()));
                state.held += CHUNK + piece.len();
                state.chunks.push_back(piece);
            }
            some = true;
            if !chunk.is_empty() {
                break;
            }
            whole += 1;
        }
        if !some {
            state.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(whole))
    }

    /// Says that nothing follows.
    ///
    /// # Errors
    /// It is over already.
    pub(super) fn finish(&mut self) -> Result<(), ClosedStream> {
        if std::mem::replace(&mut self.over, true) {
            return Err(ClosedStream::default());
        }
        let mut state = lock(&self.pipe.state);
        if self.connection.close_reason().is_none() {
            state.finished = true;
            state.wake_both();
        }
        Ok(())
    }

    /// Gives up, also after the end was written and before the reader has it.
    ///
    /// # Errors
    /// It was reset before, or the reader has all of it.
    pub(super) fn reset(&mut self, code: VarInt) -> Result<(), ClosedStream> {
        self.over = true;
        let mut state = lock(&self.pipe.state);
        if state.reset.is_some() || state.read {
            return Err(ClosedStream::default());
        }
        if self.connection.close_reason().is_none() {
            state.reset = Some(code);
            state.chunks = VecDeque::new();
            state.held = 0;
            state.wake_both();
        }
        Ok(())
    }

    /// Waits until the reader has stopped it, has all of it, or can have no more of it.
    ///
    /// # Errors
    /// The connection is closed.
    pub(super) fn stopped(
        &self,
    ) -> impl Future<Output = Result<Option<VarInt>, StoppedError>> + Send + 'static {
        let (pipe, connection) = (self.pipe.clone(), self.connection.clone());
        poll_fn(move |cx| {
            let mut state = lock(&pipe.state);
            if let Some(code) = state.stopped {
                return Poll::Ready(Ok(Some(code)));
            }
            if state.read || state.reset.is_some() {
                return Poll::Ready(Ok(None));
            }
            if let Some(closed) = connection.close_reason() {
                return Poll::Ready(Err(closed.into()));
            }
            state.writer = Some(cx.waker().clone());
            Poll::Pending
        })
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        // An error says that it is over already.
        let _ = self.finish();
    }
}

/// The direction to this end. Dropping it stops it.
#[derive(Debug)]
pub struct RecvStream {
    pipe: Arc<Pipe>,
    connection: Connection,
}

impl RecvStream {
    /// The next bytes, at most `most` of them; `None` at the end.
    pub(super) fn poll_chunk(
        &mut self,
        cx: &Context<'_>,
        most: usize,
    ) -> Poll<Result<Option<Bytes>, ReadError>> {
        let mut state = lock(&self.pipe.state);
        if state.stopped.is_some() {
            return Poll::Ready(Err(ReadError::ClosedStream));
        }
        if let Some(code) = state.reset {
            state.done();
            return Poll::Ready(Err(ReadError::Reset(code)));
        }
        if let Some(mut chunk) = state.chunks.pop_front() {
            let piece = chunk.split_to(most.min(chunk.len()));
            state.held -= piece.len();
            if chunk.is_empty() {
                state.held -= CHUNK;
            } else {
                state.chunks.push_front(chunk);
            }
            if let Some(writer) = state.writer.take() {
                writer.wake();
            }
            return Poll::Ready(Ok(Some(piece)));
        }
        if state.finished {
            state.read = true;
            state.done();
            return Poll::Ready(Ok(None));
        }
        if let Some(closed) = self.connection.close_reason() {
            return Poll::Ready(Err(closed.into()));
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Wants no more of it.
    ///
    /// # Errors
    /// It is over already.
    pub(super) fn stop(&mut self, code: VarInt) -> Result<(), ClosedStream> {
        let mut state = lock(&self.pipe.state);
        if state.read || state.stopped.is_some() {
            return Err(ClosedStream::default());
        }
        if self.connection.close_reason().is_none() {
            state.stopped = Some(code);
        }
        state.done();
        Ok(())
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        // An error says that it is over already.
        let _ = self.stop(VarInt::from_u32(0));
    }
}

#[cfg(test)]
mod tests;
