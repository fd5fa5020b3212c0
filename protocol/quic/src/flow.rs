//! UDP flows: packets of operations of kind `udp`, as datagrams of the session or on their streams.
//!
//! ```text
//! FlowSender --fits--> Outbox (quotas, turns, share) --> datagrams --+--> the peer
//!           `--else--> Sender, if there is credit -----> its stream -'
//!
//! datagrams --one task--> an Inbox for each flow --+--> FlowReceiver
//! its stream --Receiver----------------------------'
//! ```
//!
//! Sending never waits: what can't go at once waits in the [`Outbox`], which is pure and decides, or
//! is dropped and counted. Packets go out where they are handed in, as long as nothing holds them up;
//! else one task of the session goes on with them. What comes is handed out by another; both end when
//! they have nothing to do.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use hub_protocol::flow::{Next, Outbox, Quota, share};
use hub_protocol::frame::Channel;
use hub_protocol::kind::transfer::{IN, OUT};
use hub_protocol::kind::udp::{self, OnStream};
use hub_protocol::operation::Role;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::operation::{Ended, Operation, Receiver, Sender};
use crate::session::Session;

/// Bytes that a flow's packets may hold until they are taken, 64 for each packet included; of more
/// the oldest give way.
const INBOX: usize = 64 * 1024;

/// What a packet counts beside its payload.
const PACKET: usize = 64;

/// How often to look what the path carries.
const LOOK: Duration = Duration::from_millis(100);

/// How long streams count as busy after something was written on one.
const BUSY: Duration = Duration::from_secs(1);

/// The least time to wait for a quota: timers know milliseconds.
const TICK: Duration = Duration::from_millis(1);

/// What became of the packets of a session's flows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sent as datagrams.
    pub datagrams: u64,
    /// Sent on streams.
    pub on_streams: u64,
    /// Dropped instead of sent: beyond a quota, without credit, too long.
    pub dropped: u64,
    /// Came and were dropped, because nobody took those before.
    pub dropped_here: u64,
    /// Came for a flow that nobody knows, or without one.
    pub unknown: u64,
}

/// What the flows of a session share.
#[derive(Debug)]
pub(crate) struct Flows {
    state: Mutex<State>,
    /// The last flow has ended.
    emptied: Notify,
    /// When something was last written on a stream that is no flow's, in milliseconds of the
    /// session, and one more; 0 for never.
    busy: AtomicU64,
}

#[derive(Debug)]
struct State {
    inboxes: BTreeMap<u64, Arc<Inbox>>,
    outbox: Outbox,
    counts: Counts,
    /// The most bytes of a datagram, and when that was looked up.
    max: Option<usize>,
    looked: Option<Duration>,
    /// There is a task that hands out what comes.
    reading: bool,
    /// There is a task that goes on with what waits.
    waiting: bool,
}

impl State {
    fn hand_out(&mut self, datagram: Bytes) {
        let known = udp::read_datagram(datagram)
            .and_then(|(flow, payload)| Some((self.inboxes.get(&flow)?, payload)));
        match known {
            Some((inbox, payload)) => self.counts.dropped_here += inbox.push(payload),
            None => self.counts.unknown += 1,
        }
    }
}

impl Default for Flows {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                inboxes: BTreeMap::new(),
                outbox: Outbox::new(u64::MAX, Duration::ZERO),
                counts: Counts::default(),
                max: None,
                looked: None,
                reading: false,
                waiting: false,
            }),
            emptied: Notify::new(),
            busy: AtomicU64::new(0),
        }
    }
}

impl Flows {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds it can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something was written on a stream at `now`.
    pub(crate) fn streams_write(&self, now: Duration) {
        self.busy
            .store(now.as_millis() as u64 + 1, Ordering::Relaxed);
    }

    fn streams_are_busy(&self, now: Duration) -> bool {
        let last = self.busy.load(Ordering::Relaxed);
        last > 0 && now < Duration::from_millis(last) + BUSY
    }

    pub(crate) fn counts(&self) -> Counts {
        self.lock().counts
    }
}

/// The packets of a flow that have come and wait to be taken.
#[derive(Debug, Default)]
struct Inbox(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    packets: VecDeque<Bytes>,
    held: usize,
    waker: Option<Waker>,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a packet; gives how many had to give way.
    fn push(&self, packet: Bytes) -> u64 {
        let mut waiting = self.lock();
        let mut dropped = 0;
        // One that waits is copied: what it is a slice of may be far larger.
        let packet = if waiting.packets.is_empty() {
            packet
        } else {
            Bytes::copy_from_slice(&packet)
        };
        waiting.held += packet.len() + PACKET;
        waiting.packets.push_back(packet);
        while waiting.held > INBOX
            && waiting.packets.len() > 1
            && let Some(oldest) = waiting.packets.pop_front()
        {
            waiting.held -= oldest.len() + PACKET;
            dropped += 1;
        }
        if let Some(waker) = waiting.waker.take() {
            waker.wake();
        }
        dropped
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<Bytes> {
        let mut waiting = self.lock();
        if let Some(packet) = waiting.packets.pop_front() {
            waiting.held -= packet.len() + PACKET;
            return Poll::Ready(packet);
        }
        waiting.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Session {
    /// What became of the packets of its UDP flows.
    pub fn flow_counts(&self) -> Counts {
        self.flows().counts()
    }

    /// Sends what may be sent now; what may not, a task goes on with.
    fn send_datagrams(&self) {
        let mut room = self.connection().datagram_room();
        loop {
            match self.next_datagram(room) {
                Next::Send { flow, payload } => {
                    let datagram = udp::datagram(flow, &payload);
                    room = room.saturating_sub(datagram.len() + PACKET);
                    let sent = self.connection().send_datagram(datagram);
                    self.datagram_sent(sent);
                }
                Next::Idle => return,
                Next::Wait(_) | Next::Full(_) => {
                    let waiting = std::mem::replace(&mut self.flows().lock().waiting, true);
                    if !waiting {
                        tokio::spawn(go_on(self.clone()));
                    }
                    return;
                }
            }
        }
    }

    fn next_datagram(&self, room: usize) -> Next {
        let now = self.clock().0;
        let flows = self.flows();
        let mut state = flows.lock();
        look(self, &mut state, now);
        state.outbox.next(now, room)
    }

    fn datagram_sent(&self, sent: bool) {
        let mut state = self.flows().lock();
        if sent {
            state.counts.datagrams += 1;
        } else {
            // The path carries less than it did.
            state.counts.dropped += 1;
            state.looked = None;
        }
    }
}

/// Looks now and then what the path carries.
fn look(session: &Session, state: &mut State, now: Duration) {
    if state.looked.is_none_or(|looked| now >= looked + LOOK) {
        state.looked = Some(now);
        // Without any room before the first there will never be: this side sends none.
        let sends = state.counts.datagrams > 0 || session.connection().datagram_room() > 0;
        state.max = session.connection().max_datagram().filter(|_| sends);
        let path = session.connection().path();
        let share = path.map_or(u64::MAX, |(window, rtt)| {
            share(window, rtt, session.flows().streams_are_busy(now))
        });
        state.outbox.set_share(share, now);
    }
}

/// Sends what waits, as soon as it may be sent, until nothing does.
async fn go_on(session: Session) {
    loop {
        match session.next_datagram(session.connection().datagram_room()) {
            Next::Send { flow, payload } => {
                let datagram = udp::datagram(flow, &payload);
                let sent = session.connection().send_datagram(datagram);
                session.datagram_sent(sent);
            }
            Next::Full(_) => {
                if let Next::Send { flow, payload } = session.next_datagram(usize::MAX) {
                    let datagram = udp::datagram(flow, &payload);
                    let sent = session.connection().send_datagram_wait(datagram).await;
                    session.datagram_sent(sent);
                }
            }
            // In steps, so that a session that is gone is noticed.
            Next::Wait(wait) => sleep(wait.clamp(TICK, LOOK)).await,
            Next::Idle => {
                session.flows().lock().waiting = false;
                return;
            }
        }
        if session.connection().close_reason().is_some() {
            session.flows().lock().waiting = false;
            return;
        }
        tokio::task::coop::consume_budget().await;
    }
}

/// Hands out the datagrams that come, while there are flows.
async fn hand_out(session: Session) {
    loop {
        let datagram = tokio::select! {
            biased;
            datagram = session.connection().read_datagram() => datagram,
            () = session.flows().emptied.notified() => {
                let mut state = session.flows().lock();
                if state.inboxes.is_empty() {
                    state.reading = false;
                    return;
                }
                continue;
            }
        };
        let Ok(datagram) = datagram else {
            session.flows().lock().reading = false;
            return;
        };
        session.flows().lock().hand_out(datagram);
        tokio::task::coop::consume_budget().await;
    }
}

impl Operation {
    /// The packets of an operation of kind `udp`, both ways. At most one pair for each operation; the
    /// flow is over when its receiver is dropped.
    pub fn flow(&self, quota: Quota) -> (FlowSender, FlowReceiver) {
        let session = self.session().clone();
        let (outward, inward): (Channel, Channel) = match session.role() {
            Role::Hub => (IN, OUT),
            Role::Agent => (OUT, IN),
        };
        let flow = self.index();
        let inbox = Arc::new(Inbox::default());
        let now = session.clock().0;
        let mut state = session.flows().lock();
        state.outbox.open(flow, quota, now);
        state.inboxes.insert(flow, inbox.clone());
        if !std::mem::replace(&mut state.reading, true) {
            tokio::spawn(hand_out(session.clone()));
        }
        drop(state);
        let sender = FlowSender {
            shared: Arc::new(Sending {
                flow,
                known: AtomicBool::new(session.role() == Role::Agent),
                stream: Mutex::new(self.sender(outward)),
                session: session.clone(),
            }),
        };
        let receiver = FlowReceiver {
            session,
            flow,
            inbox,
            stream: self.receiver(inward),
            packets: OnStream::default(),
        };
        (sender, receiver)
    }
}

#[derive(Debug)]
struct Sending {
    session: Session,
    flow: u64,
    /// The peer has the flow: datagrams will find it.
    known: AtomicBool,
    stream: Mutex<Sender>,
}

/// Sends the packets of a flow. Cheap to clone.
#[derive(Debug, Clone)]
pub struct FlowSender {
    shared: Arc<Sending>,
}

impl FlowSender {
    /// Hub: the agent has answered. Until then packets ride on the stream: datagrams could overtake
    /// `Open`.
    pub fn answered(&self) {
        self.shared.known.store(true, Ordering::Relaxed);
    }

    /// The most bytes of a payload that goes as a datagram now, if any does. Longer ones ride on the
    /// stream.
    pub fn mtu(&self) -> Option<usize> {
        let Sending { session, flow, .. } = &*self.shared;
        let mut state = session.flows().lock();
        look(session, &mut state, session.clock().0);
        let most = state.max?.checked_sub(udp::overhead(*flow))?;
        Some(most.min(udp::MAX_PAYLOAD))
    }

    /// Sends a packet, or drops and counts it. Gives whether it is on its way, or waits for its turn.
    pub fn send(&self, payload: Bytes) -> bool {
        let Sending {
            session,
            flow,
            known,
            ..
        } = &*self.shared;
        if known.load(Ordering::Relaxed) {
            let now = session.clock().0;
            let mut state = session.flows().lock();
            look(session, &mut state, now);
            let size = payload.len() + udp::overhead(*flow);
            let fits = state.max.is_some_and(|max| size <= max);
            if fits && payload.len() <= udp::MAX_PAYLOAD {
                let dropped = state.outbox.push(*flow, payload);
                state.counts.dropped += dropped;
                drop(state);
                session.send_datagrams();
                return dropped == 0;
            }
        }
        self.send_on_stream(&payload)
    }

    fn send_on_stream(&self, payload: &[u8]) -> bool {
        let Sending {
            session, stream, ..
        } = &*self.shared;
        let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
        let sent =
            udp::on_stream(payload).is_some_and(|packet| stream.try_send(&packet) == Ok(true));
        let mut state = session.flows().lock();
        if sent {
            state.counts.on_streams += 1;
        } else {
            state.counts.dropped += 1;
        }
        sent
    }

    /// Says that the flow is over.
    pub fn finish(&self) {
        let stream = &self.shared.stream;
        stream
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .finish();
    }
}

/// Receives the packets of a flow. Dropped, the flow is over on this side.
#[derive(Debug)]
pub struct FlowReceiver {
    session: Session,
    flow: u64,
    inbox: Arc<Inbox>,
    stream: Receiver,
    packets: OnStream,
}

impl FlowReceiver {
    /// The next packet; `None` once the peer has ended the flow. May be dropped and asked again.
    ///
    /// # Errors
    /// The operation ended early.
    pub async fn packet(&mut self) -> Result<Option<Bytes>, Ended> {
        poll_fn(|cx| self.poll_packet(cx)).await
    }

    /// [`packet`](Self::packet), for what polls several things.
    pub fn poll_packet(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Ended>> {
        loop {
            if let Some(packet) = self.packets.packet() {
                return Poll::Ready(Ok(Some(packet)));
            }
            if let Poll::Ready(packet) = self.inbox.poll(cx) {
                return Poll::Ready(Ok(Some(packet)));
            }
            match self.stream.poll_chunk(cx) {
                Poll::Ready(Ok(Some(chunk))) => self.packets.push(chunk),
                Poll::Ready(Ok(None)) => return Poll::Ready(Ok(None)),
                Poll::Ready(Err(ended)) => return Poll::Ready(Err(ended)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Drop for FlowReceiver {
    fn drop(&mut self) {
        let flows = self.session.flows();
        let mut state = flows.lock();
        state.outbox.close(self.flow);
        state.inboxes.remove(&self.flow);
        if state.inboxes.is_empty() {
            flows.emptied.notify_one();
        }
    }
}
