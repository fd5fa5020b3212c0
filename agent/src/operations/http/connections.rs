//! Connections to targets, kept alive between requests.
//!
//! A connection is taken for one request and comes back once that is over. Those that wait are
//! kept for [`IDLE_TIMEOUT`], and at most [`MAX_IDLE`] for each port.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{Request, Response};
use hub_protocol::kind::http::MAX_HEADERS;
use hub_protocol::kind::{Failure, FailureCode};
use hub_protocol::limits::MAX_HEAD;
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::upload::RequestBody;

/// How long a target may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections that wait for the next request to one port, at most.
const MAX_IDLE: usize = 32;

/// How long a connection waits for the next request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a connection may have waited to be good for a request that cannot be sent twice.
/// Targets close idle connections after whole seconds; a request that crosses the close is lost.
const SURELY_ALIVE: Duration = Duration::from_secs(1);

/// A connection to a target.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Makes connections to ports of this machine: over TCP, or in a simulation.
pub trait Dial: Send + Sync {
    /// Connects to a port. Dropping the future gives up.
    fn connect(&self, port: u16) -> BoxFuture<'_, io::Result<Box<dyn Stream>>>;
}

/// TCP to this machine's loopback addresses, IPv4 first.
#[derive(Debug, Clone, Copy)]
pub struct Loopback;

impl Dial for Loopback {
    fn connect(&self, port: u16) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let first = match tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            // Where there is no IPv6, the first answer says more.
            let second = tcp(SocketAddr::from((Ipv6Addr::LOCALHOST, port))).await;
            second.map_err(|_| first)
        })
    }
}

async fn tcp(address: SocketAddr) -> io::Result<Box<dyn Stream>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}

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
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// By port; the one that came back last is the last.
    idle: BTreeMap<u16, Vec<Idle>>,
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
    /// Connections that `dial` makes.
    pub fn new(dial: Arc<dyn Dial>) -> Self {
        let waiting = Mutex::default();
        Self {
            shared: Arc::new(Shared { dial, waiting }),
        }
    }

    /// Connections that wait for a request now.
    pub fn idle(&self) -> usize {
        self.shared.lock().idle.values().map(Vec::len).sum()
    }

    /// A connection to a port: one that waits, or a new one. A request that is not `repeatable`
    /// gets one that is surely alive.
    pub(super) async fn get(&self, port: u16, repeatable: bool) -> Result<Connection, Failure> {
        match self.waiting(port, repeatable) {
            Some(connection) => Ok(connection),
            None => self.fresh(port).await,
        }
    }

    fn waiting(&self, port: u16, repeatable: bool) -> Option<Connection> {
        let oldest = if repeatable {
            IDLE_TIMEOUT
        } else {
            SURELY_ALIVE
        };
        let mut waiting = self.shared.lock();
        let idle = waiting.idle.get_mut(&port)?;
        loop {
            let Idle { connection, since } = idle.pop_if(|idle| idle.since.elapsed() < oldest)?;
            // The others wait even longer; those that are closed go with the sweep.
            if connection.requests.is_ready() && since.elapsed() < oldest {
                return Some(connection);
            }
        }
    }

    /// A new connection to a port.
    pub(super) async fn fresh(&self, port: u16) -> Result<Connection, Failure> {
        let connected = timeout(CONNECT_TIMEOUT, self.shared.dial.connect(port)).await;
        let stream = match connected {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(unconnected(port, &error)),
            Err(_) => return Err(timed_out(port)),
        };
        let (requests, connection) = http1::Builder::new()
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| Failure {
                code: FailureCode::TARGET_BROKEN,
                message: format!("the target on port {port}: {error}"),
                retry: true,
            })?;
        let driver = tokio::spawn(async move {
            // What goes wrong is told to the request that it goes wrong for.
            let _ = connection.with_upgrades().await;
        });
        Ok(Connection {
            requests,
            reused: false,
            driver: driver.abort_handle(),
        })
    }

    /// Takes a connection back whose request is over.
    pub(super) fn put(&self, port: u16, mut connection: Connection) {
        connection.reused = true;
        if connection.requests.is_ready() {
            self.keep(port, connection);
        } else if !connection.requests.is_closed() {
            let connections = self.clone();
            tokio::spawn(async move {
                if connection.requests.ready().await.is_ok() {
                    connections.keep(port, connection);
                }
            });
        }
    }

    fn keep(&self, port: u16, connection: Connection) {
        let mut waiting = self.shared.lock();
        let idle = waiting.idle.entry(port).or_default();
        if idle.len() < MAX_IDLE {
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

fn unconnected(port: u16, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::TimedOut => timed_out(port),
        io::ErrorKind::ConnectionRefused => Failure {
            code: FailureCode::TARGET_REFUSED,
            message: format!("nothing listens on port {port}"),
            retry: true,
        },
        _ => Failure {
            code: FailureCode::TARGET_REFUSED,
            message: format!("port {port} can't be connected to: {error}"),
            retry: true,
        },
    }
}

fn timed_out(port: u16) -> Failure {
    Failure {
        code: FailureCode::TARGET_TIMED_OUT,
        message: format!(
            "the target on port {port} did not accept a connection within {} s",
            CONNECT_TIMEOUT.as_secs()
        ),
        retry: true,
    }
}
