//! Connections to targets that speak HTTP/2, shared by the requests to one place.
//!
//! A request takes a stream of the first connection that has one left, by what the target allows
//! ([`MAX_STREAMS`] at most); where none has, a connection is made, one at a time for each place.
//! One without streams is kept for [`IDLE_TIMEOUT`].

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use h2::client::{Builder, SendRequest};
use hub_protocol::kind::http::MAX_HEADERS;
use hub_protocol::kind::{Failure, FailureCode};
use hub_protocol::limits::{MAX_DATA, MAX_HEAD};
use hub_protocol::target::Target;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::dial::Stream;
use crate::targets::Place;

/// Streams of one connection, at most.
const MAX_STREAMS: u32 = 100;

/// What a target may send on a stream before the hub has taken any of it: 128 KiB. The connection's
/// window has room for that on all streams, so that one that nobody reads holds up no other.
const STREAM_WINDOW: u32 = 128 * 1024;

/// How long a target may take to say that it speaks HTTP/2, and a request may wait for others to
/// have connected.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection without streams is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The connections of all places. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Lines {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    places: BTreeMap<Place, Group>,
    sweeping: bool,
}

/// Those of one place.
#[derive(Default)]
struct Group {
    lines: Vec<Arc<Line>>,
    /// Held by whoever makes the next one.
    making: Arc<tokio::sync::Mutex<()>>,
}

/// One connection. Dropping it closes it.
struct Line {
    requests: SendRequest<Bytes>,
    usage: Mutex<Usage>,
    driver: AbortHandle,
}

struct Usage {
    streams: usize,
    /// When the number last changed.
    since: Instant,
}

impl Line {
    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it takes no more requests: it has ended, or the target is about to end it.
    fn is_closed(&self) -> bool {
        self.driver.is_finished()
            || matches!(self.requests.clone().ready().now_or_never(), Some(Err(_)))
    }

    /// A stream of it, if there is one left.
    fn take(self: &Arc<Self>, reused: bool) -> Option<Lease> {
        let most = self.requests.current_max_send_streams();
        let mut usage = self.usage();
        if usage.streams >= most.min(MAX_STREAMS as usize) || self.is_closed() {
            return None;
        }
        usage.streams += 1;
        usage.since = Instant::now();
        Some(Lease {
            requests: self.requests.clone(),
            reused,
            line: self.clone(),
        })
    }

    fn is_kept(&self) -> bool {
        let usage = self.usage();
        !self.is_closed() && (usage.streams > 0 || usage.since.elapsed() < IDLE_TIMEOUT)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// One stream's right to a connection.
pub(super) struct Lease {
    pub(super) requests: SendRequest<Bytes>,
    /// Whether the connection has carried a request before.
    pub(super) reused: bool,
    line: Arc<Line>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut usage = self.line.usage();
        usage.streams -= 1;
        usage.since = Instant::now();
    }
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds it leaves a change half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        let state = self.lock();
        state.places.values().map(|group| group.lines.len()).sum()
    }

    /// A stream of a connection that there is.
    pub(super) fn take(&self, place: &Place) -> Option<Lease> {
        let state = self.lock();
        let lines = &state.places.get(place)?.lines;
        lines.iter().find_map(|line| line.take(true))
    }

    /// A stream of a connection that others have made meanwhile, or of one that `connect` makes.
    pub(super) async fn take_or_make(
        &self,
        place: Place,
        target: &Target,
        connect: impl Future<Output = Result<Box<dyn Stream>, Failure>>,
    ) -> Result<Lease, Failure> {
        let making = {
            let mut state = self.lock();
            state
                .places
                .entry(place.clone())
                .or_default()
                .making
                .clone()
        };
        let _made = timeout(HANDSHAKE_TIMEOUT, making.lock())
            .await
            .map_err(|_| silent(target))?;
        if let Some(lease) = self.take(&place) {
            return Ok(lease);
        }
        self.make(place, target, connect).await
    }

    /// A stream of a connection that `connect` makes.
    pub(super) async fn make(
        &self,
        place: Place,
        target: &Target,
        connect: impl Future<Output = Result<Box<dyn Stream>, Failure>>,
    ) -> Result<Lease, Failure> {
        let stream = connect.await?;
        let line = timeout(HANDSHAKE_TIMEOUT, handshake(stream))
            .await
            .map_err(|_| silent(target))?
            .map_err(|error| foreign(target, &error))?;
        let line = Arc::new(line);
        let lease = line.take(false).ok_or_else(|| silent(target))?;
        let mut state = self.lock();
        state.places.entry(place).or_default().lines.push(line);
        if !std::mem::replace(&mut state.sweeping, true) {
            tokio::spawn(sweep(Arc::downgrade(&self.state)));
        }
        Ok(lease)
    }
}

/// Begins to speak HTTP/2, and waits for the target to do so: its settings say how many streams it
/// takes, and a target that speaks anything else says none.
async fn handshake(stream: Box<dyn Stream>) -> Result<Line, h2::Error> {
    let (requests, mut connection) = Builder::new()
        .initial_max_send_streams(0)
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAM_WINDOW * MAX_STREAMS)
        // HTTP/2 counts 32 bytes more for each header.
        .max_header_list_size((MAX_HEAD + 32 * MAX_HEADERS) as u32)
        .max_send_buffer_size(MAX_DATA)
        .handshake(stream)
        .await?;
    poll_fn(|cx| {
        if let Poll::Ready(ended) = Pin::new(&mut connection).poll(cx) {
            return Poll::Ready(Err(ended.err().unwrap_or(h2::Reason::NO_ERROR.into())));
        }
        if requests.current_max_send_streams() == 0 {
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    })
    .await?;
    let driver = tokio::spawn(async move {
        // What goes wrong is told to the requests that it goes wrong for.
        let _ = connection.await;
    });
    Ok(Line {
        requests,
        usage: Mutex::new(Usage {
            streams: 0,
            since: Instant::now(),
        }),
        driver: driver.abort_handle(),
    })
}

/// Lets go of connections that have waited too long or have ended, until there are none.
async fn sweep(state: Weak<Mutex<State>>) {
    loop {
        {
            let Some(state) = state.upgrade() else {
                return;
            };
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            state.places.retain(|_, group| {
                group.lines.retain(|line| line.is_kept());
                !group.lines.is_empty() || Arc::strong_count(&group.making) > 1
            });
            if state.places.is_empty() {
                state.sweeping = false;
                return;
            }
        }
        sleep_until(Instant::now() + IDLE_TIMEOUT / 4).await;
    }
}

/// A target that speaks something else.
fn foreign(target: &Target, error: &h2::Error) -> Failure {
    let message = format!(
        "the target, {target}, does not speak HTTP/2 in the clear ({error}); if it speaks HTTP/1.1, \
         expose it as that"
    );
    Failure::new(FailureCode::TARGET_BROKEN, message)
}

fn silent(target: &Target) -> Failure {
    let message = format!(
        "the target, {target}, took no HTTP/2 within {} s; if it speaks HTTP/1.1, expose it as that",
        HANDSHAKE_TIMEOUT.as_secs()
    );
    Failure::new(FailureCode::TARGET_BROKEN, message).retry()
}
