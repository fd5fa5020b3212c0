//! Connections to targets, kept alive between requests: those of HTTP/1.1 here, those of HTTP/2 in
//! [`lines`](super::lines).
//!
//! A connection is taken for one request and comes back once that is over. Those that wait are
//! kept for [`IDLE_TIMEOUT`], at most [`MAX_IDLE`] for each place and [`MAX_IDLE_IN_ALL`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::{Request, Response};
use hub_protocol::kind::http::MAX_HEADERS;
use hub_protocol::kind::{Failure, FailureCode};
use hub_protocol::limits::MAX_HEAD;
use hub_protocol::target::Target;
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper_util::rt::TokioIo;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::dial::{self, Dial, Stream};
use super::lines::{Lease, Lines};
use super::upload::RequestBody;
use crate::targets::{Place, Places};

/// Connections that wait for the next request to one place, at most. They are as many as requests
/// were under way at once; with fewer kept, a crowd's requests each make a connection.
const MAX_IDLE: usize = 256;

/// Connections that wait for the next request, at most: each is a file of the agent's and a
/// connection of its target's.
const MAX_IDLE_IN_ALL: usize = 1024;

/// How long a connection waits for the next request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a connection may have waited to be good for a request that cannot be sent twice.
/// Targets close idle connections after whole seconds; a request that crosses the close is lost.
const SURELY_ALIVE: Duration = Duration::from_secs(1);

/// Where connections to targets come from. Clones share those that wait.
#[derive(Clone)]
pub struct Connections {
    shared: Arc<Shared>,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections")
            .field("idle", &self.idle())
            .finish_non_exhaustive()
    }
}

struct Shared {
    dial: Arc<dyn Dial>,
    places: Places,
    lines: Lines,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// By place; the one that came back last is the last.
    idle: BTreeMap<Place, Vec<Idle>>,
    sweeping: bool,
}

struct Idle {
    connection: Connection,
    since: Instant,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing that holds it leaves a change half done.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connections {
    /// Connections that `dial` makes to ports of the machine.
    pub fn new(dial: Arc<dyn Dial>) -> Self {
        Self::to(Places::default(), dial)
    }

    /// Connections that `dial` makes to what is found at `places`.
    pub fn to(places: Places, dial: Arc<dyn Dial>) -> Self {
        Self {
            shared: Arc::new(Shared {
                dial,
                places,
                lines: Lines::default(),
                waiting: Mutex::default(),
            }),
        }
    }

    /// Where targets are looked up.
    pub fn places(&self) -> &Places {
        &self.shared.places
    }

    /// Connections that wait for a request now.
    pub fn idle(&self) -> usize {
        self.shared.lock().idle.values().map(Vec::len).sum()
    }

    /// Connections that HTTP/2 is spoken on now.
    pub fn shared(&self) -> usize {
        self.shared.lines.len()
    }

    /// A stream of a connection to a target that speaks HTTP/2.
    pub(super) async fn stream(&self, target: &Target) -> Result<Lease, Failure> {
        let Shared {
            dial,
            places,
            lines,
            ..
        } = &*self.shared;
        let place = places.find_kept(target).await?;
        if let Some(lease) = lines.take(&place) {
            return Ok(lease);
        }
        let place = places.find(target).await?;
        let connect = dial::connect(&**dial, &place, target);
        lines.take_or_make(place.clone(), target, connect).await
    }

    /// A stream of a new connection to a target that speaks HTTP/2.
    pub(super) async fn fresh_stream(&self, target: &Target) -> Result<Lease, Failure> {
        let place = self.shared.places.find(target).await?;
        let connect = dial::connect(&*self.shared.dial, &place, target);
        let lines = &self.shared.lines;
        lines.make(place.clone(), target, connect).await
    }

    /// A connection to a target: one that waits, or a new one. A request that is not `repeatable`
    /// gets one that is surely alive.
    pub(super) async fn get(
        &self,
        target: &Target,
        repeatable: bool,
    ) -> Result<Connection, Failure> {
        let place = self.shared.places.find_kept(target).await?;
        match self.waiting(&place, repeatable) {
            Some(connection) => Ok(connection),
            None => self.fresh(target).await,
        }
    }

    fn waiting(&self, place: &Place, repeatable: bool) -> Option<Connection> {
        let oldest = if repeatable {
            IDLE_TIMEOUT
        } else {
            SURELY_ALIVE
        };
        let mut waiting = self.shared.lock();
        let idle = waiting.idle.get_mut(place)?;
        loop {
            let Idle { connection, since } = idle.pop_if(|idle| idle.since.elapsed() < oldest)?;
            // The others wait even longer; those that are closed go with the sweep.
            if connection.requests.is_ready() && since.elapsed() < oldest {
                return Some(connection);
            }
        }
    }

    /// A new connection to a target, for bytes of any kind.
    ///
    /// # Errors
    /// The target is not found, or does not take the connection.
    pub async fn connect(&self, target: &Target) -> Result<Box<dyn Stream>, Failure> {
        let place = self.shared.places.find(target).await?;
        dial::connect(&*self.shared.dial, &place, target).await
    }

    /// Where a target is, for what connects by itself.
    ///
    /// # Errors
    /// It is not found.
    pub(in crate::operations) async fn place(&self, target: &Target) -> Result<Place, Failure> {
        self.shared.places.find(target).await
    }

    /// A new connection to a target.
    pub(super) async fn fresh(&self, target: &Target) -> Result<Connection, Failure> {
        let place = self.shared.places.find(target).await?;
        let stream = dial::connect(&*self.shared.dial, &place, target).await?;
        let (requests, connection) = http1::Builder::new()
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| Failure {
                code: FailureCode::TARGET_BROKEN,
                message: format!("the target, {target}: {error}"),
                retry: true,
            })?;
        let driver = tokio::spawn(async move {
            // What goes wrong is told to the request that it goes wrong for.
            let _ = connection.with_upgrades().await;
        });
        Ok(Connection {
            requests,
            place,
            reused: false,
            driver: driver.abort_handle(),
        })
    }

    /// Takes a connection back whose request is over.
    pub(super) fn put(&self, mut connection: Connection) {
        connection.reused = true;
        if connection.requests.is_ready() {
            self.keep(connection);
        } else if !connection.requests.is_closed() {
            let connections = self.clone();
            tokio::spawn(async move {
                if connection.requests.ready().await.is_ok() {
                    connections.keep(connection);
                }
            });
        }
    }

    fn keep(&self, connection: Connection) {
        let mut waiting = self.shared.lock();
        let in_all: usize = waiting.idle.values().map(Vec::len).sum();
        let idle = waiting.idle.entry(connection.place.clone()).or_default();
        if idle.len() < MAX_IDLE && in_all < MAX_IDLE_IN_ALL {
            let since = Instant::now();
            idle.push(Idle { connection, since });
        }
        if !std::mem::replace(&mut waiting.sweeping, true) {
            tokio::spawn(sweep(Arc::downgrade(&self.shared)));
        }
    }
}

/// Closes connections that have waited too long, until none waits.
async fn sweep(shared: Weak<Shared>) {
    loop {
        let oldest = {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let mut waiting = shared.lock();
            waiting.idle.retain(|_, idle| {
                idle.retain(|idle| {
                    idle.since.elapsed() < IDLE_TIMEOUT && !idle.connection.requests.is_closed()
                });
                !idle.is_empty()
            });
            let oldest = waiting.idle.values().flatten().map(|idle| idle.since).min();
            let Some(oldest) = oldest else {
                waiting.sweeping = false;
                return;
            };
            oldest
        };
        sleep_until(oldest + IDLE_TIMEOUT).await;
    }
}

/// A connection to a target. Dropping it closes it, whatever it is doing.
pub(super) struct Connection {
    requests: http1::SendRequest<RequestBody>,
    /// Where it leads.
    place: Place,
    /// Whether it has carried a request before.
    pub(super) reused: bool,
    driver: AbortHandle,
}

impl Connection {
    /// Sends a request; gives the head of the response.
    pub(super) async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<RequestBody>>> {
        self.requests.try_send_request(request).await
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;
    use hub_protocol::target::Selector;

    use super::*;
    use crate::engine::fake;
    use crate::policy::Policy;
    use crate::targets::Address;

    /// Takes every connection.
    #[derive(Debug)]
    struct Open;

    impl Dial for Open {
        fn connect(&self, _: Address) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
            let (ours, other) = tokio::io::duplex(64);
            tokio::spawn(async move {
                let _other = other;
                std::future::pending::<()>().await;
            });
            async { Ok(Box::new(ours) as Box<dyn Stream>) }.boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_wait_than_may() {
        let connections = Connections::new(Arc::new(Open));
        let mut kept = 0;
        for port in 1..=6 {
            let target = Target::tcp(port);
            let mut crowd = Vec::new();
            for _ in 0..MAX_IDLE + 10 {
                crowd.push(connections.fresh(&target).await.unwrap());
            }
            for mut connection in crowd {
                connection.requests.ready().await.unwrap();
                connections.put(connection);
            }
            kept = (kept + MAX_IDLE).min(MAX_IDLE_IN_ALL);
            assert_eq!(connections.idle(), kept);
        }
        assert_eq!(kept, MAX_IDLE_IN_ALL);
        // They go in turn, a tick of the clock after the last has waited long enough.
        tokio::time::sleep(IDLE_TIMEOUT + Duration::from_millis(2)).await;
        assert_eq!(connections.idle(), 0);
    }

    /// Connections in memory whose other ends stay open. Counts them.
    #[derive(Default)]
    struct Counted {
        made: AtomicUsize,
        others: Mutex<Vec<tokio::io::DuplexStream>>,
    }

    impl Dial for Counted {
        fn connect(&self, to: Address) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
            assert_eq!(to, Address::At(([172, 17, 0, 2], 80).into()));
            self.made.fetch_add(1, Ordering::Relaxed);
            let (ours, other) = tokio::io::duplex(1024);
            self.others.lock().unwrap().push(other);
            async { Ok(Box::new(ours) as Box<dyn Stream>) }.boxed()
        }
    }

    async fn put_back(connections: &Connections, connection: Connection) {
        connections.put(connection);
        while connections.idle() == 0 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kept_connection_is_for_the_container_that_it_was_made_to() {
        let id = Arc::new(Mutex::new("a1"));
        let daemon = id.clone();
        let engine = fake::engine(move |_| {
            let json = serde_json::json!({
                "Id": *daemon.lock().unwrap(), "Name": "/web", "State": {"Running": true},
                "NetworkSettings": {"Networks": {"bridge": {"IPAddress": "172.17.0.2"}}},
            });
            async move { (200, json.to_string()) }.boxed()
        });
        let places = Places::new(Some(engine.await), Arc::new(Policy::default()));
        let dial = Arc::new(Counted::default());
        let connections = Connections::to(places, dial.clone());
        let target = Target {
            container: Some(Selector::Name("web".into())),
            ..Target::tcp(80)
        };
        let first = connections.get(&target, true).await.unwrap();
        assert!(!first.reused);
        put_back(&connections, first).await;
        tokio::time::advance(Duration::from_secs(5)).await;
        let again = connections.get(&target, true).await.unwrap();
        assert!(again.reused);
        put_back(&connections, again).await;
        // Made anew, at the same address.
        *id.lock().unwrap() = "b2";
        tokio::time::advance(Duration::from_secs(5)).await;
        let other = connections.get(&target, true).await.unwrap();
        assert!(!other.reused);
        assert_eq!(dial.made.load(Ordering::Relaxed), 2);
        // The one that is left over goes in time.
        drop(other);
        tokio::time::sleep(IDLE_TIMEOUT).await;
        assert_eq!(connections.idle(), 0);
    }
}
