//! How much of the data plane one client, exposure or node may have. Pure, but for the guard of a
//! body's pace, which needs a timer.
//!
//! Each limit that holds somebody back is a [`Refusal`]: it has a name, which is that of its metric
//! and of its line in docs/expose.md, and a status. Clients are told apart by [`ClientKey`].

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use super::front::BodyError;

/// What one client, exposure or node may have where nothing else is said of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quotas {
    /// Connections of one client address at once, tunnels among them. Proxies that are trusted
    /// bring the connections of many and are not counted.
    pub connections_per_client: u32,
    /// Requests under way at once to one exposure, tunnels among them; one can have a limit of its
    /// own.
    pub requests_per_exposure: u32,
    /// Requests under way at once to one node. Less than the operations that an agent takes, so
    /// that browsers leave room for operators.
    pub requests_per_node: u32,
    /// How long an upload may bring nothing while the target waits for it and has not answered.
    pub upload_idle: Duration,
    /// How long a browser may take nothing of a response that is there for it.
    pub response_idle: Duration,
    /// How often one client address may try wrong credentials.
    pub attempts: Rate,
}

impl Default for Quotas {
    /// 1,024 connections of a client, 1,024 requests to an exposure, 2,048 to a node, 60 s for
    /// uploads, 5 min for responses, and ten wrong credentials at once and one every 6 s.
    fn default() -> Self {
        Self {
            connections_per_client: 1024,
            requests_per_exposure: 1024,
            requests_per_node: 2048,
            upload_idle: Duration::from_secs(60),
            response_idle: Duration::from_secs(300),
            attempts: Rate {
                every: Duration::from_secs(6),
                burst: NonZeroU32::MIN.saturating_add(9),
            },
        }
    }
}

/// The limit that held a request or a connection back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The client asks more often than the exposure allows: again after this time.
    ClientRate(Duration),
    /// The client has all the connections it may have.
    ClientConnections,
    /// The client showed too many wrong credentials: again after this time.
    Attempts(Duration),
    /// All requests that the exposure allows are under way.
    ExposureRequests,
    /// All requests that a node allows are under way.
    NodeRequests,
    /// All replicas have all the upgraded connections they may have.
    ReplicaSessions,
    /// The body is larger than the exposure allows.
    BodySize(u64),
    /// The upload brought nothing for this long.
    UploadIdle(Duration),
    /// The browser took nothing of the response for this long.
    ResponseIdle(Duration),
}

impl Refusal {
    /// The names of all of them, in metrics and in docs/expose.md. They do not change.
    pub(super) const NAMES: [&'static str; 9] = [
        "client_rate",
        "client_connections",
        "attempts",
        "exposure_requests",
        "node_requests",
        "replica_sessions",
        "body_size",
        "upload_idle",
        "response_idle",
    ];

    /// The place of its name among all.
    pub(super) const fn index(self) -> usize {
        match self {
            Self::ClientRate(_) => 0,
            Self::ClientConnections => 1,
            Self::Attempts(_) => 2,
            Self::ExposureRequests => 3,
            Self::NodeRequests => 4,
            Self::ReplicaSessions => 5,
            Self::BodySize(_) => 6,
            Self::UploadIdle(_) => 7,
            Self::ResponseIdle(_) => 8,
        }
    }

    /// Its name.
    pub(super) const fn name(self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// The status it is answered with. `None`: the response is under way, and breaks off.
    pub(super) const fn status(self) -> Option<StatusCode> {
        match self {
            Self::ClientRate(_) | Self::ClientConnections | Self::Attempts(_) => {
                Some(StatusCode::TOO_MANY_REQUESTS)
            }
            Self::ExposureRequests | Self::NodeRequests | Self::ReplicaSessions => {
                Some(StatusCode::SERVICE_UNAVAILABLE)
            }
            Self::BodySize(_) => Some(StatusCode::PAYLOAD_TOO_LARGE),
            Self::UploadIdle(_) => Some(StatusCode::REQUEST_TIMEOUT),
            Self::ResponseIdle(_) => None,
        }
    }

    /// When to try again, where that helps: whole seconds, 1 at least.
    pub(super) const fn retry_after(self) -> Option<Duration> {
        match self {
            Self::ClientRate(wait) | Self::Attempts(wait) => {
                let second = wait.as_secs() + (wait.subsec_nanos() > 0) as u64;
                Some(Duration::from_secs(if second == 0 { 1 } else { second }))
            }
            Self::ClientConnections
            | Self::ExposureRequests
            | Self::NodeRequests
            | Self::UploadIdle(_) => Some(Duration::from_secs(1)),
            Self::ReplicaSessions => Some(Duration::from_secs(5)),
            Self::BodySize(_) | Self::ResponseIdle(_) => None,
        }
    }
}

/// For people, as the end of "refused: …".
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientRate(_) => f.write_str("this address asks more often than is allowed here"),
            Self::ClientConnections => {
                f.write_str("this address has all the connections it may have at once")
            }
            Self::Attempts(_) => f.write_str("this address showed too many wrong credentials"),
            Self::ExposureRequests => {
                f.write_str("all the requests that are allowed here at once are under way")
            }
            Self::NodeRequests => {
                f.write_str("all the requests a node takes at once are under way")
            }
            Self::ReplicaSessions => {
                f.write_str("every replica has all the sessions it may have at once")
            }
            Self::BodySize(max) => write!(f, "the body is larger than {max} bytes, the most here"),
            Self::UploadIdle(idle) => {
                write!(
                    f,
                    "the request's body brought nothing for {} s",
                    idle.as_secs()
                )
            }
            Self::ResponseIdle(idle) => {
                write!(
                    f,
                    "nothing of the response was taken for {} s",
                    idle.as_secs()
                )
            }
        }
    }
}

impl std::error::Error for Refusal {}

/// Whom a limit per client address counts as one: an IPv4 address, or the /64 of an IPv6 address,
/// of which everybody has as many as they like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ClientKey {
    V4([u8; 4]),
    V6([u8; 8]),
}

impl From<IpAddr> for ClientKey {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.octets()),
            IpAddr::V6(address) => {
                let mut network = [0; 8];
                network.copy_from_slice(&address.octets()[..8]);
                Self::V6(network)
            }
        }
    }
}

/// How often something may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Once in this time in the long run.
    pub every: Duration,
    /// So often at once after a while of nothing.
    pub burst: NonZeroU32,
}

/// A token bucket for each key: a table of a fixed size, whose entry that was used least lately
/// makes room for a new one.
///
/// Of a bucket it keeps one time: when it will be full again.
pub(super) struct Buckets<K> {
    room: usize,
    used: u64,
    by_key: HashMap<K, Bucket>,
    by_use: BTreeMap<u64, K>,
}

struct Bucket {
    full_at: Instant,
    used: u64,
}

impl<K: Copy + Eq + Hash> Buckets<K> {
    /// For so many keys.
    pub(super) fn new(room: usize) -> Self {
        Self {
            room: room.max(1),
            used: 0,
            by_key: HashMap::new(),
            by_use: BTreeMap::new(),
        }
    }

    /// Whether one more is allowed. `Err`: after this time it will be.
    pub(super) fn peek(&self, key: K, rate: Rate, now: Instant) -> Result<(), Duration> {
        let full_at = self.by_key.get(&key).map_or(now, |bucket| bucket.full_at);
        let missing = full_at.saturating_duration_since(now);
        let most = rate.every.saturating_mul(rate.burst.get() - 1);
        match missing.checked_sub(most) {
            None | Some(Duration::ZERO) => Ok(()),
            Some(wait) => Err(wait),
        }
    }

    /// Takes one if it is allowed.
    pub(super) fn take(&mut self, key: K, rate: Rate, now: Instant) -> Result<(), Duration> {
        self.peek(key, rate, now)?;
        let before = self.by_key.remove(&key);
        if let Some(bucket) = &before {
            self.by_use.remove(&bucket.used);
        } else if self.by_key.len() >= self.room
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.by_key.remove(&oldest);
        }
        self.used += 1;
        let full_at = before.map_or(now, |bucket| bucket.full_at.max(now)) + rate.every;
        self.by_use.insert(self.used, key);
        let used = self.used;
        self.by_key.insert(key, Bucket { full_at, used });
        Ok(())
    }
}

/// How much of a body may still come.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodySize {
    max: u64,
    left: u64,
}

impl BodySize {
    /// For a body of at most `max` bytes that announces `announced`.
    pub(super) fn new(max: Option<u64>, announced: Option<u64>) -> Result<Self, Refusal> {
        let max = max.unwrap_or(u64::MAX);
        if announced.is_some_and(|announced| announced > max) {
            return Err(Refusal::BodySize(max));
        }
        Ok(Self { max, left: max })
    }

    /// So many bytes more have come.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), Refusal> {
        let left = self.left.checked_sub(bytes as u64);
        self.left = left.ok_or(Refusal::BodySize(self.max))?;
        Ok(())
    }
}

/// A request's body that keeps its size and its pace: it ends with a [`Refusal`] where it does not.
///
/// Its pace counts only while somebody waits for it, which is while the target takes it, and until
/// [`answered`](Self::answered) says that the target has begun to answer: from then on either side
/// may be silent for as long as they like, as two that stream do.
pub(super) struct Guarded<B> {
    body: B,
    size: BodySize,
    idle: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
    answered: Arc<AtomicBool>,
}

impl<B> Guarded<B> {
    /// `body`, of this size and bringing something at least every `idle`.
    pub(super) fn new(body: B, size: BodySize, idle: Duration) -> Self {
        Self {
            body,
            size,
            idle,
            waiting: None,
            answered: Arc::default(),
        }
    }

    /// What to set once the target has begun to answer.
    pub(super) fn answered(&self) -> Arc<AtomicBool> {
        self.answered.clone()
    }
}

impl<B: Body<Data = Bytes, Error = BodyError> + Unpin> Body for Guarded<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                this.waiting = None;
                Poll::Ready(frame.map(|frame| {
                    let frame = frame?;
                    let bytes = frame.data_ref().map_or(0, Bytes::len);
                    this.size.take(bytes)?;
                    Ok(frame)
                }))
            }
            Poll::Pending => {
                let idle = this.idle;
                let waiting = this.waiting.get_or_insert_with(|| Box::pin(sleep(idle)));
                if waiting.as_mut().poll(cx).is_pending() || this.answered.load(Ordering::Relaxed) {
                    return Poll::Pending;
                }
                Poll::Ready(Some(Err(Refusal::UploadIdle(idle).into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
