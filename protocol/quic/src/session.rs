//! Sessions: one authenticated connection between a hub and an agent.
//!
//! A [`Session`] is what both sides hold after `Hello` and `Welcome`. The hub opens operations on
//! it; the agent accepts them. It keeps what all of them share: the limits both sides announced,
//! the budget that windows grow from, and the count of violations that ends a session.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hub_protocol::code::{CloseCode, ResetCode};
use hub_protocol::frame::{self, Decoder, RawFrame};
use hub_protocol::kind::{self, Failure, FailureCode, OperationKind, Request};
use hub_protocol::limits::{
    AGENT_STREAMS, INITIAL_OPERATIONS, Limits, MAX_OPERATIONS, MESSAGE_WINDOW, STREAM_WINDOW,
};
use hub_protocol::operation::{Role, Violation};
use hub_protocol::priority::Priority;
use quinn::VarInt;
use serde::Serialize;
use tokio::time::Instant;

use crate::endpoint::Windows;
use crate::flow::Flows;
use crate::operation::Operation;
use crate::transport::{Connection, RecvStream, SendStream, Stream};
use crate::urgent::Urgency;

/// How long to wait for a free stream before saying that the node is busy.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a stream may take to bring its `Open`.
const OPEN_FRAME_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes by which all windows of a session together may grow beyond their initial sizes.
const GROWTH: u64 = 64 * 1024 * 1024;

/// Violations after which the session is closed: one may be a fault, more are a habit.
pub const MAX_VIOLATIONS: u64 = 16;

/// The windows of QUIC that hold all credit that a session can have outstanding: initial windows
/// of all allowed streams, growth, and a reserve for what costs no credit.
pub fn windows() -> Windows {
    let per_operation = per_operation(Limits::default().initial_window);
    let streams = u64::from(INITIAL_OPERATIONS + AGENT_STREAMS);
    let clip = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    Windows {
        stream: clip(STREAM_WINDOW),
        session: clip(streams * per_operation + GROWTH),
        reserve: clip(16 * STREAM_WINDOW),
    }
}

/// Bytes that an operation may have outstanding in one direction without growth: at most two
/// channels share it, beside the messages.
const fn per_operation(initial_window: u64) -> u64 {
    2 * initial_window + MESSAGE_WINDOW
}

/// quinn's number for a priority: streams of a higher one go first.
pub(crate) const fn level(priority: Priority) -> i32 {
    match priority {
        Priority::Interactive => 1,
        Priority::Bulk => 0,
    }
}

/// A stream that could not be opened. Nothing has happened on the node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// All streams that the node allows are in use.
    #[error("the node is busy: all the operations it allows are under way; try again later")]
    Busy,
    /// The session is gone.
    #[error("the session was lost: {0}")]
    Lost(String),
}

/// Why nothing more comes on a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the session has ended: {0}")]
pub struct SessionEnded(pub String);

/// How often the peer of a session broke the rules, by kind, in a fixed order.
#[derive(Debug, Default)]
struct Violations {
    total: AtomicU64,
    kinds: Mutex<std::collections::BTreeMap<&'static str, u64>>,
}

#[derive(Debug)]
struct Inner {
    connection: Connection,
    role: Role,
    ours: Limits,
    theirs: Limits,
    started: Instant,
    growth: AtomicU64,
    /// The least round trip seen, in nanoseconds, and when it was last read, in milliseconds.
    rtt: AtomicU64,
    rtt_read: AtomicU64,
    opened: AtomicU64,
    /// Under way, by kind.
    kinds: [AtomicU64; OperationKind::ALL.len()],
    closed: AtomicU64,
    allowed: AtomicU32,
    violations: Violations,
    flows: Flows,
    urgency: Option<Urgency>,
    span: tracing::Span,
}

/// One session. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Session {
    inner: Arc<Inner>,
}

impl Session {
    /// The session on a connection, once both sides have announced their limits. Log lines about
    /// its operations carry `span`, which names the node.
    pub fn new(
        connection: impl Into<Connection>,
        role: Role,
        ours: Limits,
        theirs: Limits,
        span: tracing::Span,
    ) -> Self {
        let connection = connection.into();
        let rtt = connection.rtt();
        let inner = Inner {
            urgency: connection.urgency(),
            connection,
            role,
            ours: ours.clamped(),
            theirs: theirs.clamped(),
            started: Instant::now(),
            growth: AtomicU64::new(GROWTH),
            rtt: AtomicU64::new(u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX)),
            rtt_read: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            kinds: [const { AtomicU64::new(0) }; OperationKind::ALL.len()],
            closed: AtomicU64::new(0),
            allowed: AtomicU32::new(INITIAL_OPERATIONS),
            violations: Violations::default(),
            flows: Flows::default(),
            span,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// The connection it lives on.
    pub fn connection(&self) -> &Connection {
        &self.inner.connection
    }

    /// Ours, then the peer's.
    pub(crate) fn limits(&self) -> (Limits, Limits) {
        (self.inner.ours, self.inner.theirs)
    }

    pub(crate) fn role(&self) -> Role {
        self.inner.role
    }

    pub(crate) fn flows(&self) -> &Flows {
        &self.inner.flows
    }

    pub(crate) fn span(&self) -> &tracing::Span {
        &self.inner.span
    }

    /// Time since the session began, and the least round trip seen on it.
    pub(crate) fn clock(&self) -> (Duration, Duration) {
        let inner = &self.inner;
        let now = inner.started.elapsed();
        let ms = now.as_millis() as u64;
        // Reading it locks the connection: ten times a second is often enough.
        if ms.saturating_sub(inner.rtt_read.load(Ordering::Relaxed)) >= 100 {
            inner.rtt_read.store(ms, Ordering::Relaxed);
            let rtt = u64::try_from(inner.connection.min_rtt().as_nanos()).unwrap_or(u64::MAX);
            inner.rtt.store(rtt, Ordering::Relaxed);
        }
        (now, Duration::from_nanos(inner.rtt.load(Ordering::Relaxed)))
    }

    /// QUIC is about to be given so many bytes that somebody waits for.
    pub(crate) fn urgent(&self, bytes: u64) {
        if let Some(urgency) = &self.inner.urgency {
            urgency.want(bytes);
        }
    }

    /// Takes up to `wanted` bytes of what windows may still grow by.
    pub(crate) fn reserve_growth(&self, wanted: u64) -> u64 {
        if wanted == 0 {
            return 0;
        }
        let mut taken = 0;
        let _ = self
            .inner
            .growth
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                taken = wanted.min(left);
                Some(left - taken)
            });
        taken
    }

    /// Opens an operation: writes `Open` and leaves room for data at once behind it.
    ///
    /// # Errors
    /// No stream was free within [`OPEN_TIMEOUT`], or the session is lost.
    pub async fn open<T: Serialize>(
        &self,
        kind: OperationKind,
        body: &T,
    ) -> Result<Operation, OpenError> {
        self.open_with(kind, kind::encode(body)).await
    }

    /// Opens the operation that `request` asks for: see [`open`](Self::open).
    ///
    /// # Errors
    /// No stream was free within [`OPEN_TIMEOUT`], or the session is lost.
    pub async fn request<R: Request>(&self, request: &R) -> Result<Operation, OpenError> {
        self.open_with(R::KIND, request.to_body()).await
    }

    async fn open_with(&self, kind: OperationKind, body: Bytes) -> Result<Operation, OpenError> {
        let open = frame::raw(kind.tag(), &body);
        let stream = tokio::time::timeout(OPEN_TIMEOUT, self.inner.connection.open())
            .await
            .map_err(|_| OpenError::Busy)?
            .map_err(|error| OpenError::Lost(error.to_string()))?;
        Ok(Operation::start(
            self.clone(),
            self.inner.role,
            kind,
            Some(open),
            Decoder::default(),
            stream,
        ))
    }

    /// Waits for the next stream that the peer opens.
    ///
    /// # Errors
    /// The session is gone.
    pub async fn accept(&self) -> Result<Incoming, SessionEnded> {
        let stream = self.inner.connection.accept().await;
        let stream = stream.map_err(|error| SessionEnded(error.to_string()))?;
        Ok(Incoming {
            session: self.clone(),
            stream,
        })
    }

    /// Doubles the operations that QUIC's windows are sized for when half of them are in use. The
    /// agent, to which they are opened, then allows as many streams.
    fn allow_more(&self) {
        let inner = &self.inner;
        let allowed = inner.allowed.load(Ordering::Relaxed);
        if allowed < MAX_OPERATIONS && self.operations() * 2 >= u64::from(allowed) {
            let more = (allowed * 2).min(MAX_OPERATIONS);
            inner.allowed.store(more, Ordering::Relaxed);
            let streams = u64::from(more + AGENT_STREAMS);
            let initial = inner.ours.initial_window.max(inner.theirs.initial_window);
            let windows = streams * per_operation(initial) + GROWTH + 16 * STREAM_WINDOW;
            inner.connection.set_windows(windows);
            if inner.role == Role::Agent {
                inner.connection.allow_streams(more);
            }
        }
    }

    pub(crate) fn operation_opened(&self, kind: OperationKind) {
        self.inner.opened.fetch_add(1, Ordering::Relaxed);
        self.inner.kinds[kind as usize].fetch_add(1, Ordering::Relaxed);
        // Not when a stream is accepted: a burst of them is, before the first is an operation, and
        // where none is free no other would come.
        self.allow_more();
    }

    /// An operation is over, and what its windows grew by is free again.
    pub(crate) fn operation_closed(&self, kind: OperationKind, grown: u64) {
        self.inner.kinds[kind as usize].fetch_sub(1, Ordering::Relaxed);
        self.inner.growth.fetch_add(grown, Ordering::Relaxed);
        self.inner.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// Operations under way.
    pub fn operations(&self) -> u64 {
        let closed = self.inner.closed.load(Ordering::Relaxed);
        self.inner
            .opened
            .load(Ordering::Relaxed)
            .saturating_sub(closed)
    }

    /// Operations under way, by kind; kinds of which there are none are left out.
    pub fn operations_by_kind(&self) -> impl Iterator<Item = (OperationKind, u64)> {
        let counts = self.inner.kinds.iter();
        let counts = counts.map(|count| count.load(Ordering::Relaxed));
        let kinds = OperationKind::ALL.iter().copied().zip(counts);
        kinds.filter(|(_, count)| *count > 0)
    }

    /// Operations opened and closed since the session began.
    pub fn operation_counts(&self) -> (u64, u64) {
        (
            self.inner.opened.load(Ordering::Relaxed),
            self.inner.closed.load(Ordering::Relaxed),
        )
    }

    /// How often the peer broke the rules, by kind.
    pub fn violations(&self) -> std::collections::BTreeMap<&'static str, u64> {
        self.inner
            .violations
            .kinds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn violated(&self, operation: &str, violation: &Violation, channel: &str) {
        let violations = &self.inner.violations;
        *violations
            .kinds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(violation.kind())
            .or_default() += 1;
        let total = violations.total.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::warn!(
            operation,
            channel,
            kind = violation.kind(),
            total,
            "the peer broke the protocol, and lost this operation: {violation}"
        );
        if total >= MAX_VIOLATIONS {
            tracing::warn!(
                total,
                "the peer keeps breaking the protocol, and loses the session"
            );
            self.close(CloseCode::PROTOCOL_VIOLATED, "too many violations");
        }
    }

    /// Closes the connection, and with it all operations.
    pub fn close(&self, code: CloseCode, reason: &str) {
        self.inner
            .connection
            .close(VarInt::from_u32(code.0), reason.as_bytes());
    }
}

/// A stream that the peer opened and whose `Open` has not been read yet.
#[derive(Debug)]
pub struct Incoming {
    session: Session,
    stream: Stream,
}

impl Incoming {
    /// Reads `Open`. An operation that this release does not know is answered `Unsupported` here;
    /// a stream that brings none, or something else, is reset. `None` in either case.
    pub async fn operation(mut self) -> Option<(Operation, RawFrame)> {
        let mut decoder = Decoder::default();
        let open =
            match tokio::time::timeout(OPEN_FRAME_TIMEOUT, self.read_open(&mut decoder)).await {
                Ok(Some(Ok(open))) => open,
                Ok(Some(Err(violation))) => {
                    self.violated(&violation);
                    return None;
                }
                Ok(None) | Err(_) => {
                    self.reset(ResetCode::CANCELLED);
                    return None;
                }
            };
        let Some(kind) = kind::open_kind(&open) else {
            self.unsupported(open.tag).await;
            return None;
        };
        let role = self.session.inner.role;
        let operation = Operation::start(self.session, role, kind, None, decoder, self.stream);
        Some((operation, open))
    }

    /// Hub: turns the stream away. An agent has no operations to open, so each is a violation.
    pub fn refuse(mut self) {
        let span = self.session.span().clone();
        span.in_scope(|| self.violated(&Violation::Misplaced("Open")));
    }

    fn violated(&mut self, violation: &Violation) {
        self.reset(violation.code());
        self.session.violated("unopened", violation, "-");
    }

    fn reset(&mut self, code: ResetCode) {
        // An error says that it is closed already.
        let _ = self.stream.0.reset(code);
        let _ = self.stream.1.stop(code);
    }

    /// `None` if the peer gave the stream up.
    async fn read_open(&mut self, decoder: &mut Decoder) -> Option<Result<RawFrame, Violation>> {
        loop {
            match decoder.open() {
                Ok(Some(open)) => return Some(Ok(open)),
                Ok(None) => {}
                Err(error) => return Some(Err(error.into())),
            }
            match self.stream.1.chunk().await.ok()? {
                Some(chunk) => decoder.push(chunk),
                None => return Some(Err(Violation::EarlyFin)),
            }
        }
    }

    async fn unsupported(mut self, tag: u64) {
        let failure = Failure {
            code: FailureCode::UNSUPPORTED,
            message: format!("this agent does not know operation {tag:#x}; is its release older?"),
            retry: false,
        };
        let frame = frame::Frame::Failed(kind::encode(&failure)).encode();
        let _ = self.stream.0.chunk(frame).await;
        let _ = self.stream.0.finish();
        // Whatever the hub sent behind its Open is dropped. Stopping the stream instead would
        // overtake the answer, and the hub would never know why.
        let mut recv = self.stream.1;
        tokio::spawn(async move { while let Ok(Some(_)) = recv.chunk().await {} });
    }
}

/// A frame of the control stream that could not be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The connection is gone, or the peer ended the stream.
    #[error("{0}")]
    Lost(String),
    /// The peer sent something unreadable.
    #[error("the other side broke the protocol on the control stream: {0}")]
    Malformed(String),
}

/// The sending half of the control stream.
#[derive(Debug)]
pub struct ControlSender(SendStream);

/// The receiving half of the control stream.
#[derive(Debug)]
pub struct ControlReceiver {
    recv: RecvStream,
    decoder: Decoder,
}

/// The two halves of a control stream: of the one that an agent opened, or that a hub accepted.
pub fn control((send, recv): Stream) -> (ControlSender, ControlReceiver) {
    send.set_priority(level(Priority::Interactive) + 1);
    (
        ControlSender(send),
        ControlReceiver {
            recv,
            decoder: Decoder::default(),
        },
    )
}

impl ControlSender {
    /// Sends a frame.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn send(
        &mut self,
        control: &hub_protocol::session::Control,
    ) -> Result<(), ControlError> {
        let frame: Bytes = control.encode();
        self.0
            .chunk(frame)
            .await
            .map_err(|error| ControlError::Lost(error.to_string()))
    }

    /// Says that nothing follows, and waits until the peer has all of it or is gone.
    pub async fn finish(mut self) {
        let _ = self.0.finish();
        let _ = self.0.stopped().await;
    }
}

impl ControlReceiver {
    /// The next frame. Cancelling loses nothing.
    ///
    /// # Errors
    /// The connection is gone, or the peer sent something unreadable.
    pub async fn receive(&mut self) -> Result<hub_protocol::session::Control, ControlError> {
        loop {
            match self.decoder.control() {
                Ok(Some(frame)) => {
                    let control = hub_protocol::session::Control::decode(&frame);
                    return control.map_err(|error| ControlError::Malformed(error.to_string()));
                }
                Ok(None) => {}
                Err(error) => return Err(ControlError::Malformed(error.to_string())),
            }
            let chunk = self.recv.chunk().await;
            match chunk.map_err(|error| ControlError::Lost(error.to_string()))? {
                Some(chunk) => self.decoder.push(chunk),
                None => return Err(ControlError::Lost("the control stream has ended".into())),
            }
        }
    }
}
