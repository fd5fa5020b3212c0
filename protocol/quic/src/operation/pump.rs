//! The task that owns an operation's stream.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hub_protocol::code::ResetCode;
use hub_protocol::frame::{Channel, Decoder, Frame};
use hub_protocol::kind::OperationKind;
use hub_protocol::limits::MAX_DATA;
use hub_protocol::operation::{Effect, OperationState, Violation};
use hub_protocol::priority::{Burst, Priority};
use quinn::{ReadError, VarInt, WriteError};
use tokio::time::sleep;
use tracing::Instrument as _;

use super::{Ended, Shared, State};
use crate::session::level;
use crate::transport::{self, RecvStream, SendStream};

/// Payloads of up to this many bytes are copied together with their neighbours: many small ones
/// would cost QUIC and the allocator far more than the bytes that they are.
const SMALL: usize = 1024;

/// How many bytes of small frames are copied together, about.
const RUN: usize = 16 * 1024;

/// How long the peer may take to end its direction once it has all of ours. It owes
/// nothing else by then, and until it has ended it the operation holds its stream and its share of
/// the session's growth.
const FIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Frames that wait for QUIC, in order; the first of an operation before its data.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    first: VecDeque<Bytes>,
    /// Whole frames: some small ones and the head of a large one, then the large one's payload,
    /// which is not copied. Either may be missing.
    frames: VecDeque<(Bytes, Bytes)>,
    /// The small frames at the end.
    run: BytesMut,
    bytes: usize,
}

impl Outgoing {
    /// Adds a frame that goes before all data.
    pub(super) fn push_first(&mut self, frame: Bytes) {
        self.first.push_back(frame);
    }

    /// Adds a frame in two parts: its head and the payload, which is not copied.
    pub(super) fn push(&mut self, head: &[u8], payload: Bytes) {
        self.bytes += head.len() + payload.len();
        self.run.extend_from_slice(head);
        let payload = if payload.len() <= SMALL {
            self.run.extend_from_slice(&payload);
            Bytes::new()
        } else {
            payload
        };
        if !payload.is_empty() || self.run.len() >= RUN {
            self.frames.push_back((self.run.split().freeze(), payload));
        }
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Moves whole frames of about [`MAX_DATA`] bytes into `batch`, behind those that `machine`
    /// owes.
    fn fill(&mut self, batch: &mut Batch, machine: &mut OperationState) {
        batch.chunks.extend(self.first.drain(..));
        while let Some(frame) = machine.owed() {
            batch.chunks.push(frame.encode());
        }
        let mut taken = 0;
        while taken < MAX_DATA
            && let Some((head, payload)) = self.frames.pop_front().or_else(|| {
                let run = std::mem::take(&mut self.run).freeze();
                (!run.is_empty()).then_some((run, Bytes::new()))
            })
        {
            taken += head.len() + payload.len();
            let parts = [head, payload];
            batch
                .chunks
                .extend(parts.into_iter().filter(|part| !part.is_empty()));
        }
        self.bytes -= taken;
    }
}

/// What QUIC is taking right now; frames in it are never interleaved with others.
#[derive(Debug, Default)]
struct Batch {
    chunks: Vec<Bytes>,
    written: usize,
}

impl Batch {
    fn rest(&mut self) -> &mut [Bytes] {
        &mut self.chunks[self.written..]
    }

    fn is_empty(&self) -> bool {
        self.written == self.chunks.len()
    }
}

/// The stream. Dropped before it was finished, it is reset: the transport would say a clean end.
struct Stream {
    send: SendStream,
    recv: RecvStream,
    finished: bool,
}

impl Stream {
    fn reset(&mut self, code: ResetCode) {
        self.finished = true;
        // An error says that it is closed already.
        let _ = self.send.reset(code);
        let _ = self.recv.stop(code);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.finished {
            self.reset(ResetCode::CANCELLED);
        }
    }
}

pub(super) fn spawn(shared: Arc<Shared>, decoder: Decoder, (send, recv): transport::Stream) {
    let span = shared.session.span().clone();
    let (session, grown) = (shared.session.clone(), shared.clone());
    session.operation_opened(shared.kind);
    let stream = Stream {
        send,
        recv,
        finished: false,
    };
    tokio::spawn(
        async move {
            let pump = Pump {
                burst: Burst::new(session.clock().0),
                shared,
                decoder,
                stream,
                batch: Batch::default(),
                reading: true,
                write_first: false,
                priority: Priority::Interactive,
            };
            pump.run().await;
            let mut state = grown.lock();
            state.closed.get_or_insert(false);
            state.wake_waiters();
            session.operation_closed(grown.kind, state.grown);
        }
        .instrument(span),
    );
}

struct Pump {
    shared: Arc<Shared>,
    decoder: Decoder,
    stream: Stream,
    batch: Batch,
    reading: bool,
    write_first: bool,
    burst: Burst,
    priority: Priority,
}

/// What the pump does next.
enum Event {
    Read(Result<Option<Bytes>, ReadError>),
    Written(Result<(), WriteError>),
    Abandoned,
    AllSent,
    NoFin,
}

impl Pump {
    async fn run(mut self) {
        self.stream.send.set_priority(level(self.priority));
        // What came in the same chunk as `Open`.
        if !self.take_frames() {
            return;
        }
        let mut fin_due: Option<Pin<Box<dyn Future<Output = ()> + Send>>> = None;
        loop {
            let event = poll_fn(|cx| self.poll_event(cx));
            let event = match &mut fin_due {
                None => event.await,
                Some(due) => tokio::select! {
                    biased;
                    () = due => Event::NoFin,
                    event = event => event,
                },
            };
            match event {
                Event::Read(Ok(Some(chunk))) => {
                    self.decoder.push(chunk);
                    if !self.take_frames() {
                        return;
                    }
                }
                Event::Read(Ok(None)) => {
                    self.reading = false;
                    let fin = self.shared.lock().machine.receive_fin();
                    let fin = fin.and_then(|()| {
                        if self.decoder.is_empty() {
                            Ok(())
                        } else {
                            Err(Violation::EarlyFin)
                        }
                    });
                    if let Err(violation) = fin {
                        // A peer that gives up, or whose task died, resets the stream instead.
                        self.violated(&violation);
                        return;
                    }
                    if self.stream.finished {
                        self.shared.lock().closed = Some(true);
                        return;
                    }
                }
                Event::Read(Err(error)) => {
                    let ended = match error {
                        ReadError::Reset(code) => Ended::Reset(reset_code(code)),
                        ReadError::ConnectionLost(error) => Ended::Lost(error.to_string()),
                        other => Ended::Lost(other.to_string()),
                    };
                    self.ended(ended);
                    return;
                }
                Event::Written(Ok(())) => {}
                Event::Written(Err(error)) => {
                    let ended = match error {
                        WriteError::Stopped(code) => Ended::Reset(reset_code(code)),
                        WriteError::ConnectionLost(error) => Ended::Lost(error.to_string()),
                        other => Ended::Lost(other.to_string()),
                    };
                    self.ended(ended);
                    return;
                }
                Event::Abandoned => {
                    self.stream.reset(ResetCode::CANCELLED);
                    return;
                }
                Event::AllSent => {
                    self.stream.finished = true;
                    let _ = self.stream.send.finish();
                    if !self.reading {
                        self.shared.lock().closed = Some(true);
                        return;
                    }
                    // On a full path that may take far longer than the peer then needs.
                    let delivered = self.stream.send.stopped();
                    fin_due = Some(Box::pin(async move {
                        let _ = delivered.await;
                        sleep(FIN_TIMEOUT).await;
                    }));
                }
                Event::NoFin => {
                    let _ = self.stream.recv.stop(ResetCode::CANCELLED);
                    return;
                }
            }
            // A stream that always has more must leave the thread to others.
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Reading and writing take turns at being asked first, so that neither starves the other.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        self.write_first = !self.write_first;
        if self.write_first {
            match self.poll_write(cx) {
                Poll::Pending => self.poll_read(cx),
                ready @ Poll::Ready(_) => ready,
            }
        } else {
            match self.poll_read(cx) {
                Poll::Pending => self.poll_write(cx),
                ready @ Poll::Ready(_) => ready,
            }
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        if !self.reading {
            return Poll::Pending;
        }
        self.stream.recv.poll_chunk(cx).map(Event::Read)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        {
            let mut state = self.shared.lock();
            if state.abandoned && !state.machine.is_over() {
                return Poll::Ready(Event::Abandoned);
            }
            set_waker(&mut state, cx);
            if self.batch.is_empty() {
                self.batch = Batch::default();
                let State {
                    machine, outgoing, ..
                } = &mut *state;
                outgoing.fill(&mut self.batch, machine);
                if self.batch.is_empty() {
                    // Over: the agent has sent its last frame, or the hub has received it.
                    if state.machine.is_over() && !self.stream.finished {
                        return Poll::Ready(Event::AllSent);
                    }
                    return Poll::Pending;
                }
                // There is room again for whoever waits to send.
                for sending in &mut state.sending {
                    if let Some(waker) = sending.waker.take() {
                        waker.wake();
                    }
                }
                let spent = state.machine.spent();
                drop(state);
                self.prioritize(spent);
            }
        }
        let written = self.stream.send.poll_chunks(cx, self.batch.rest());
        written.map(|written| Event::Written(written.map(|whole| self.batch.written += whole)))
    }

    /// Sets the priority that the next batch goes with.
    fn prioritize(&mut self, spent: u64) {
        let bytes = self.batch.chunks.iter().map(Bytes::len).sum::<usize>() as u64;
        let now = self.shared.session.clock().0;
        if self.shared.kind != OperationKind::Udp {
            self.shared.session.flows().streams_write(now);
        }
        let next = self.burst.send(bytes, spent, now);
        if next == Priority::Interactive {
            self.shared.session.urgent(bytes);
        }
        if next != self.priority {
            self.priority = next;
            self.stream.send.set_priority(level(next));
        }
    }

    /// Handles every whole frame that has come. Gives whether the stream lives on.
    fn take_frames(&mut self) -> bool {
        loop {
            let frame = match self.decoder.frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => return true,
                Err(error) => {
                    self.violated(&error.into());
                    return false;
                }
            };
            let mut state = self.shared.lock();
            let effect = state.machine.receive(&frame);
            match effect {
                Ok(effect) => apply(&mut state, effect, frame),
                Err(violation) => {
                    drop(state);
                    self.violated(&violation);
                    return false;
                }
            }
        }
    }

    fn violated(&mut self, violation: &Violation) {
        self.stream.reset(violation.code());
        let name = |channel: Channel| {
            let specs = self.shared.kind.channels();
            specs
                .iter()
                .find(|spec| spec.channel == channel)
                .map_or("?", |spec| spec.name)
        };
        let name = |channel| match channel {
            Channel::MESSAGES => "messages",
            channel => name(channel),
        };
        let channel = violation.channel().map_or("-", name);
        self.shared
            .session
            .violated(self.shared.kind.name(), violation, channel);
        let mut state = self.shared.lock();
        state.end(Ended::Violated(violation.to_string()));
    }

    fn ended(&mut self, ended: Ended) {
        let mut state = self.shared.lock();
        // After the last frame nothing is lost: either side may be gone before it said good-bye.
        if !state.machine.is_over() {
            state.end(ended);
        }
        drop(state);
        self.stream.reset(ResetCode::CANCELLED);
    }
}

fn reset_code(code: VarInt) -> ResetCode {
    ResetCode(u32::try_from(code.into_inner()).unwrap_or(u32::MAX))
}

fn set_waker(state: &mut State, cx: &Context<'_>) {
    if !state
        .pump
        .as_ref()
        .is_some_and(|waker| waker.will_wake(cx.waker()))
    {
        state.pump = Some(cx.waker().clone());
    }
}

/// A copy of a small body that is kept: what it is a slice of may be large.
fn own(body: &Bytes) -> Bytes {
    Bytes::copy_from_slice(body)
}

fn apply(state: &mut State, effect: Effect, frame: Frame) {
    match (effect, frame) {
        (Effect::Writable(Channel::MESSAGES), _) => state.wake_waiters(),
        (Effect::Writable(channel), _) => {
            if let Some(waker) = state
                .sending(channel)
                .and_then(|sending| sending.waker.take())
            {
                waker.wake();
            }
        }
        (Effect::Stopped(channel), _) => {
            if let Some(sending) = state.sending(channel) {
                sending.stopped = true;
                if let Some(waker) = sending.waker.take() {
                    waker.wake();
                }
            }
            if let Some(end) = state.machine.end(channel) {
                state.outgoing.push(&end.encode(), Bytes::new());
            }
            state.wake_pump();
        }
        (Effect::Deliver, Frame::Data { channel, bytes }) => {
            if let Some(receiving) = state.receiving(channel) {
                receiving.inbox.push(bytes);
                if let Some(waker) = receiving.waker.take() {
                    waker.wake();
                }
            }
        }
        (Effect::Deliver, Frame::End { channel }) => {
            if let Some(receiving) = state.receiving(channel) {
                receiving.inbox.ended = true;
                if let Some(waker) = receiving.waker.take() {
                    waker.wake();
                }
            }
        }
        (Effect::Deliver, Frame::Message(message)) => {
            if let Some(receiving) = state.receiving(Channel::MESSAGES) {
                receiving.inbox.push_message(&message);
                if let Some(waker) = receiving.waker.take() {
                    waker.wake();
                }
            }
        }
        (Effect::Deliver, Frame::Accepted(body)) => {
            state.answer = Some(own(&body));
            state.wake_waiters();
        }
        (Effect::Deliver, Frame::Failed(body)) => {
            state.failed = Some(own(&body));
            state.wake_all();
        }
        (Effect::Deliver, Frame::Done(body)) => {
            state.done = Some(own(&body));
            state.wake_all();
        }
        (Effect::Drop, _) | (Effect::Deliver, Frame::Credit { .. } | Frame::Stop { .. }) => {}
    }
}
