//! Operations: one stream each, driven by one task each.
//!
//! ```text
//! Sender ----+                                +--> SendStream   of a transport:
//! Sender ----+--> Shared (machine, queues) <--+      the pump task
//! Receiver <-+                                +<-- RecvStream   QUIC's or the process's own
//! Operation -+
//! ```
//!
//! The *pump* owns the stream. It always reads: what comes is checked by the rules of
//! [`hub_protocol::operation`] and queued, within the window of its channel, for the channel's
//! [`Receiver`]; taking it from there is what grants new credit. [`Sender`]s take credit before
//! they queue a byte. Whatever ends the operation early (a reset, a violation, a lost session, a
//! dropped [`Operation`]) is told to every handle as [`Ended`].

mod channel;
mod inbox;
mod pump;

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use hub_protocol::code::ResetCode;
use hub_protocol::frame::{Channel, Frame};
use hub_protocol::kind::{Failure, OperationKind};
use hub_protocol::operation::{ChannelSpec, Direction, OperationState, Role, message_cost};

pub use channel::{Receiver, Sender};

use crate::session::Session;
use crate::transport::Stream;
use inbox::Inbox;
use pump::Outgoing;

/// Why an operation ended before its last frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// This side gave it up: its [`Operation`] was dropped.
    #[error("the operation was cancelled here")]
    Cancelled,
    /// The peer reset the stream.
    #[error("the other side ended the operation: {0}")]
    Reset(ResetCode),
    /// The peer broke the rules; the text says how.
    #[error("the other side broke the protocol: {0}")]
    Violated(String),
    /// The session is gone, for this reason.
    #[error("the session was lost: {0}")]
    Lost(String),
    /// The operation had its last frame: nothing more can be sent on it.
    #[error("the operation is over")]
    Over,
}

/// The agent's first answer to an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is under way; the body of `Accepted`.
    Accepted(Bytes),
    /// It never began.
    Failed(Failure),
}

#[derive(Debug)]
struct ReceivingChannel {
    channel: Channel,
    inbox: Inbox,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct SendingChannel {
    channel: Channel,
    stopped: bool,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct State {
    machine: OperationState,
    receiving: Vec<ReceivingChannel>,
    sending: Vec<SendingChannel>,
    outgoing: Outgoing,
    answer: Option<Bytes>,
    failed: Option<Bytes>,
    done: Option<Bytes>,
    ended: Option<Ended>,
    /// Whoever waits for the answer, the outcome, the end, or room for a message.
    waiters: Vec<Waker>,
    /// The pump, when it has nothing to do.
    pump: Option<Waker>,
    /// The [`Operation`] was dropped.
    abandoned: bool,
    /// The stream is done with; whether both sides had their last word.
    closed: Option<bool>,
    /// What its windows have taken of the session's budget.
    grown: u64,
}

impl State {
    fn wake_pump(&mut self) {
        if let Some(waker) = self.pump.take() {
            waker.wake();
        }
    }

    fn wake_waiters(&mut self) {
        self.waiters.drain(..).for_each(Waker::wake);
    }

    fn wake_all(&mut self) {
        self.wake_waiters();
        self.receiving
            .iter_mut()
            .filter_map(|channel| channel.waker.take())
            .for_each(Waker::wake);
        self.sending
            .iter_mut()
            .filter_map(|channel| channel.waker.take())
            .for_each(Waker::wake);
    }

    fn end(&mut self, reason: Ended) {
        self.ended.get_or_insert(reason);
        self.wake_all();
    }

    fn wait(&mut self, cx: &Context<'_>) {
        if !self.waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiters.push(cx.waker().clone());
        }
    }

    /// Queues a message if there is credit for all of it. Gives whether there was.
    fn push_message(&mut self, message: &Bytes) -> Result<bool, Ended> {
        if let Some(ended) = &self.ended {
            return Err(ended.clone());
        }
        if self.machine.is_over() {
            return Err(Ended::Over);
        }
        let cost = message_cost(message.len());
        let room = self.machine.credit(Channel::MESSAGES) >= cost
            && self.machine.take_credit(Channel::MESSAGES, cost) == cost;
        if room {
            let frame = Frame::Message(message.clone()).encode();
            self.outgoing.push(&frame, Bytes::new());
            self.wake_pump();
        }
        Ok(room)
    }

    fn receiving(&mut self, channel: Channel) -> Option<&mut ReceivingChannel> {
        self.receiving
            .iter_mut()
            .find(|receiving| receiving.channel == channel)
    }

    fn sending(&mut self, channel: Channel) -> Option<&mut SendingChannel> {
        self.sending
            .iter_mut()
            .find(|sending| sending.channel == channel)
    }

    /// A consumer took something off a channel: the pump grants what is due. Once the stream is
    /// gone there is nobody to grant it to, and nothing to be lent for it.
    fn consumed(&mut self, session: &Session, channel: Channel, piece: &Bytes) {
        if self.ended.is_some() {
            return;
        }
        let (now, rtt) = session.clock();
        let cost = if channel == Channel::MESSAGES {
            message_cost(piece.len())
        } else {
            piece.len() as u64
        };
        let wanted = self.machine.consume(channel, cost, now, rtt);
        let growth = session.reserve_growth(wanted);
        self.grown += growth;
        self.machine.grow(channel, growth);
        if self.machine.owes() {
            self.wake_pump();
        }
    }
}

#[derive(Debug)]
struct Shared {
    session: Session,
    kind: OperationKind,
    /// How many streams the side that opened this one had opened before.
    index: u64,
    state: Mutex<State>,
}

impl Shared {
    /// The state. Nothing that holds it can panic half-way through a change, so a poisoned lock
    /// is as good as any.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One operation, at the side that opened it or the side that carries it out. Dropping it before
/// its last frame cancels it: the stream is reset, and what it ran is stopped.
#[derive(Debug)]
pub struct Operation {
    shared: Arc<Shared>,
}

impl Operation {
    pub(crate) fn start(
        session: Session,
        role: Role,
        kind: OperationKind,
        open: Option<Bytes>,
        decoder: hub_protocol::frame::Decoder,
        stream: Stream,
    ) -> Self {
        let (ours, theirs) = session.limits();
        let channels = kind.channels();
        let inbound =
            |spec: &&ChannelSpec| (spec.direction == Direction::ToAgent) == (role == Role::Agent);
        let receiving = channels.iter().filter(inbound).map(|spec| spec.channel);
        let sending = channels
            .iter()
            .filter(|spec| !inbound(spec))
            .map(|spec| spec.channel);
        let state = State {
            machine: OperationState::new(role, channels, &ours, &theirs),
            receiving: receiving
                .chain([Channel::MESSAGES])
                .map(|channel| ReceivingChannel {
                    channel,
                    inbox: Inbox::default(),
                    waker: None,
                })
                .collect(),
            sending: sending
                .chain([Channel::MESSAGES])
                .map(|channel| SendingChannel {
                    channel,
                    stopped: false,
                    waker: None,
                })
                .collect(),
            outgoing: Outgoing::default(),
            answer: None,
            failed: None,
            done: None,
            ended: None,
            waiters: Vec::new(),
            pump: None,
            abandoned: false,
            closed: None,
            grown: 0,
        };
        let shared = Arc::new(Shared {
            session,
            kind,
            index: stream.0.index(),
            state: Mutex::new(state),
        });
        if let Some(open) = open {
            shared.lock().outgoing.push_first(open);
        }
        pump::spawn(shared.clone(), decoder, stream);
        Self { shared }
    }

    /// What was asked.
    pub fn kind(&self) -> OperationKind {
        self.shared.kind
    }

    /// The session it belongs to.
    pub fn session(&self) -> &Session {
        &self.shared.session
    }

    /// What its flow is called in datagrams.
    pub(crate) fn index(&self) -> u64 {
        self.shared.index
    }

    /// The handle with which to send on a channel. One is enough for each: two would compete for
    /// the wake-ups.
    pub fn sender(&self, channel: Channel) -> Sender {
        Sender::new(self.shared.clone(), channel)
    }

    /// The handle with which to receive from a channel; dropping it stops the channel.
    pub fn receiver(&self, channel: Channel) -> Receiver {
        Receiver::new(self.shared.clone(), channel)
    }

    /// Waits for the agent's first answer.
    ///
    /// # Errors
    /// The operation ended without one: nobody can say whether the agent had begun.
    pub async fn answer(&self) -> Result<Answer, Ended> {
        poll_fn(|cx| {
            let mut state = self.shared.lock();
            if let Some(body) = &state.answer {
                return Poll::Ready(Ok(Answer::Accepted(body.clone())));
            }
            if let Some(body) = &state.failed {
                return Poll::Ready(Ok(Answer::Failed(read_failure(body))));
            }
            if let Some(ended) = &state.ended {
                return Poll::Ready(Err(ended.clone()));
            }
            state.wait(cx);
            Poll::Pending
        })
        .await
    }

    /// Waits for the outcome: the body of `Done`. All data that came before it is in the receivers
    /// by then.
    ///
    /// # Errors
    /// The operation ended without one.
    pub async fn done(&self) -> Result<Bytes, Ended> {
        poll_fn(|cx| {
            let mut state = self.shared.lock();
            if let Some(body) = &state.done {
                return Poll::Ready(Ok(body.clone()));
            }
            if state.failed.is_some() {
                return Poll::Ready(Err(Ended::Over));
            }
            if let Some(ended) = &state.ended {
                return Poll::Ready(Err(ended.clone()));
            }
            state.wait(cx);
            Poll::Pending
        })
        .await
    }

    /// Waits until the operation ends early. Of an operation that runs to its last frame it never
    /// returns.
    pub async fn ended(&self) -> Ended {
        poll_fn(|cx| {
            let mut state = self.shared.lock();
            if let Some(ended) = &state.ended {
                return Poll::Ready(ended.clone());
            }
            state.wait(cx);
            Poll::Pending
        })
        .await
    }

    /// The next message from the peer; `None` after the last frame.
    ///
    /// # Errors
    /// The operation ended early.
    pub async fn message(&self) -> Result<Option<Bytes>, Ended> {
        poll_fn(|cx| channel::poll_take(&self.shared, Channel::MESSAGES, cx)).await
    }

    /// Sends a message, when the peer has room for it.
    ///
    /// # Errors
    /// The operation ended.
    pub async fn send_message(&self, message: Bytes) -> Result<(), Ended> {
        poll_fn(|cx| {
            let mut state = self.shared.lock();
            match state.push_message(&message) {
                Ok(true) => Poll::Ready(Ok(())),
                Ok(false) => {
                    state.wait(cx);
                    Poll::Pending
                }
                Err(ended) => Poll::Ready(Err(ended)),
            }
        })
        .await
    }

    /// Sends a message if the peer has room for it now. Gives whether it was sent: for what may be
    /// left out because the next says more.
    ///
    /// # Errors
    /// The operation ended.
    pub fn try_send_message(&self, message: &Bytes) -> Result<bool, Ended> {
        let mut state = self.shared.lock();
        state.push_message(message)
    }

    /// Agent: takes the operation.
    pub fn accept(&self, body: Bytes) {
        let mut state = self.shared.lock();
        if state.ended.is_none() && !state.machine.is_over() && !state.machine.is_running() {
            state.machine.accept();
            // What is owed from before follows it, and must not overtake it.
            state.outgoing.push_first(Frame::Accepted(body).encode());
            // Credit may have come before; whoever was told to wait for the start goes on.
            state.wake_all();
            state.wake_pump();
        }
    }

    /// Agent: says why it does not begin. Its last frame.
    pub fn fail(self, failure: &Failure) {
        self.last(Frame::Failed, hub_protocol::kind::encode(failure));
    }

    /// Agent: says how it ended. Its last frame; channels that were not ended end with it, and
    /// what was queued on them goes first.
    pub fn finish(self, body: Bytes) {
        self.last(Frame::Done, body);
    }

    /// Agent: the same, and waits until the hub has taken it. Gives whether it has: otherwise nobody
    /// may have learnt how the operation ended.
    pub async fn finish_seen(self, body: Bytes) -> bool {
        self.last(Frame::Done, body);
        poll_fn(|cx| {
            let mut state = self.shared.lock();
            if let Some(seen) = state.closed {
                return Poll::Ready(seen);
            }
            state.wait(cx);
            Poll::Pending
        })
        .await
    }

    fn last(&self, frame: impl FnOnce(Bytes) -> Frame, body: Bytes) {
        let mut state = self.shared.lock();
        if state.ended.is_none() && !state.machine.is_over() {
            state.machine.finish();
            state.outgoing.push(&frame(body).encode(), Bytes::new());
            state.wake_all();
            state.wake_pump();
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.abandoned = true;
        if !state.machine.is_over() {
            state.end(Ended::Cancelled);
        }
        state.wake_pump();
    }
}

fn read_failure(body: &[u8]) -> Failure {
    hub_protocol::kind::decode("Failed", body).unwrap_or_else(|error| Failure {
        code: hub_protocol::kind::FailureCode::INTERNAL,
        message: format!("the agent did not begin, and its reason can't be read: {error}"),
        retry: false,
    })
}
