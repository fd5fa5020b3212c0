//! The data plane: browsers reach ports behind agents.
//!
//! ```text
//! browser --> front end --Asked--> Proxy --place--> Routes --> session --Open--> agent --> target
//!         request body  -- upload, a task --> REQUEST channel
//!         response body <-- ProxyBody ------- RESPONSE channel
//! ```
//!
//! One request is one operation. Its head and the response's are typed messages; bodies run
//! through chunk by chunk, both ways at once, and a side that reads slowly slows down the other
//! through the operation's windows. After a 101 the connection is a tunnel. A browser that goes
//! away cancels its operation; a response that breaks off breaks off at the browser, too.
//!
//! An exposure is reached by its token under `/v1/data/TOKEN/`, where the prefix is taken off and
//! handed to the target as `X-Forwarded-Prefix`, or by its name as `NAME.DOMAIN`, where the target
//! sees the path as it is. What the hub answers itself says which hop failed. Tokens are secrets:
//! neither they nor paths are ever logged.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `front` | the versions of HTTP that browsers speak, and what they hand to the core here |
//! | `place`, `head`, `own` | the rules of hosts, paths and headers, without I/O |
//! | `client`, `forwarded`, `proxy_protocol` | who asks, by what trusted proxies say, without I/O |
//! | `entry` | what comes before HTTP on a connection |
//! | [`door`](Door) | who gets in, and whether there is room: what is remembered of it |
//! | `access`, `session_cookie`, `page`, `limits`, `balance` | the rules of that, without I/O |
//! | [`routes`](Routes) | from a token or name to sessions and targets |
//! | `paced` | a connection whose other end has to take what is sent to it |
//! | `carry` | a request's way through all of these |
//! | `answer` | the hub's own answers |
//! | [`seeing`](Seeing) | what is under way, counted and logged |
//! | `exchange`, `upload`, `body`, `tunnel` | a request under way |
//!
//! Informational responses are the target's own and pass, `100 Continue` among them: whether a
//! browser that asks first may send its body is not for the hub to say. Trailers pass but for those
//! that must not be trailers.

mod access;
mod answer;
mod balance;
mod body;
mod carry;
mod client;
mod door;
mod entry;
mod exchange;
mod forwarded;
mod front;
mod head;
mod limits;
mod own;
mod paced;
mod page;
mod place;
mod proxy_protocol;
mod routes;
mod seeing;
mod session_cookie;
mod tunnel;
mod upload;

use std::fmt;
use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use http::header::{ALT_SVC, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Response, StatusCode};
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
};
use rustls::server::ResolvesServerCert;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

pub use access::{Nobody, Operator, Users};
use answer::{Answer, Limited};
use body::ProxyBody;
use client::Secured;
pub use client::{Client, Prefix, PrefixError, Scheme, Trusted};
pub use door::Door;
use entry::{Entry, Version};
use front::Asked;
pub use limits::{Quotas, Rate};
use paced::Paced;
pub use routes::{LedgerRoutes, Live, Resolved, Route, RouteError, Routes};
pub(crate) use seeing::{Begins, Down, Track};
pub use seeing::{CONTENT_TYPE, Kind, Seeing, SeeingConfig, Text, Underway, WaitsFor};

use crate::clock::Clock;
use crate::hangup::Hangup;
use crate::seats::{self, Limits, Seat, Seats};

/// What a client is told that has as many connections as it may have.
const TURNED_AWAY: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\n\
    retry-after: 1\r\ncontent-type: text/plain; charset=utf-8\r\n\r\n\
    429 Too Many Requests: this address has all the connections it may have at once\n";

/// Whoever sends this header gets `Server-Timing`. As all headers of this kind it goes no further.
const TIMING_HEADER: &str = "x-hub-timing";

/// Says how long the parts of an answer took.
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// How long a browser's connection is silent before its system is asked whether it is there.
const PROBE_AFTER: Duration = Duration::from_secs(60);

/// How long to wait for that answer before asking again.
const PROBE_INTERVAL: Duration = Duration::from_secs(15);

/// How often to ask before the browser is given up.
const PROBES: u32 = 4;

/// For how many seconds a browser may rely on HTTP/3 being there: a day.
const ALT_SVC_AGE: u32 = 86_400;

/// What the data plane is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// The domain under which exposures are reached by name; a port after it is passed over.
    pub domain: Option<String>,
    /// How long a browser may take to send a request's head, from its first byte; on a new
    /// connection, from its start.
    pub head_timeout: Duration,
    /// How long a connection may stay open between requests.
    pub idle_timeout: Duration,
    /// How long a browser may neither send a byte of a body that is waited for, nor take one of a
    /// response; up to twice that, for a body. There is no limit for bodies as a whole, and quotas
    /// may be narrower.
    pub stall_timeout: Duration,
    /// How long a browser that has closed its side may wait for the rest of its answer: it may as
    /// well be gone altogether.
    pub half_closed: Duration,
    /// How long a body that nobody wants is read on for, so that its browser reads the answer
    /// before it learns that the connection ends; a sixth of that without a byte.
    pub linger: Duration,
    /// Connections of browsers at once, tunnels among them; more wait to be accepted.
    pub max_connections: u32,
    /// How long requests under way may go on once the hub stops.
    pub drain: Duration,
    /// The proxies in front whose word about clients is taken.
    pub trusted: Trusted,
    /// Whether every connection begins with a header of the PROXY protocol, version 1 or 2. None is
    /// taken then but from the trusted.
    pub proxy_protocol: bool,
    /// Certificates for the names that browsers ask for: TLS is spoken then, and whoever comes
    /// without it is sent there.
    pub certificates: Option<Arc<dyn ResolvesServerCert>>,
    /// The UDP port where HTTP/3 is served, for browsers that come over TLS to know.
    pub http3: Option<u16>,
    /// Where operators see what is carried.
    pub seeing: Seeing,
}

impl Default for Config {
    /// No domain; 10 s for heads, 60 s between requests, 10 minutes without progress, 1 s after a
    /// browser has closed its side, 30 s for what nobody wants; 4096 connections, 10 s to drain;
    /// nobody trusted, no TLS.
    fn default() -> Self {
        Self {
            domain: None,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(600),
            half_closed: Duration::from_secs(1),
            linger: Duration::from_secs(30),
            max_connections: 4096,
            drain: Duration::from_secs(10),
            trusted: Trusted::default(),
            proxy_protocol: false,
            certificates: None,
            http3: None,
            seeing: Seeing::default(),
        }
    }
}

struct Inner {
    config: Config,
    clock: Clock,
    entry: Entry,
    routes: Arc<dyn Routes>,
    door: Door,
}

/// The data plane. Cheap to clone.
#[derive(Clone)]
pub struct Proxy {
    inner: Arc<Inner>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("config", &self.inner.config)
            .finish_non_exhaustive()
    }
}

impl Proxy {
    /// A data plane over these routes, behind this door. It dates its answers by the system's
    /// clock.
    pub fn new(config: Config, routes: Arc<dyn Routes>, door: Door) -> Self {
        Self::with_clock(config, routes, door, Clock::system())
    }

    /// A data plane with a clock of its own.
    pub fn with_clock(config: Config, routes: Arc<dyn Routes>, door: Door, clock: Clock) -> Self {
        config.seeing.count_limits(door.limits());
        let inner = Inner {
            entry: Entry::new(&config),
            config,
            clock,
            routes,
            door,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// How often each limit has held somebody back, by the names in docs/expose.md.
    pub fn refusals(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.inner.door.refusals()
    }

    /// Serves browsers until `stop`; then lets requests under way go on for the time configured.
    pub async fn serve(&self, listener: TcpListener, stop: impl Future<Output = ()>) {
        self.serve_all(listener, Secured::Here, stop).await;
    }

    /// The same, except that who comes without TLS is sent to this port. It is for listeners where
    /// nobody expects TLS, as on port 80.
    pub async fn serve_redirects(
        &self,
        listener: TcpListener,
        port: u16,
        stop: impl Future<Output = ()>,
    ) {
        self.serve_all(listener, Secured::Port(port), stop).await;
    }

    async fn serve_all(
        &self,
        listener: TcpListener,
        secured: Secured,
        stop: impl Future<Output = ()>,
    ) {
        let secured = self.inner.config.certificates.is_some().then_some(secured);
        seats::serve(listener, self.limits(), stop, |stream, peer, seat| {
            let client = Client {
                secured,
                ..Client::plain(peer)
            };
            let proxy = self.clone();
            async move { proxy.serve_stream(stream, client, seat).await }
        })
        .await;
    }

    /// Counts a connection for its client's address, as long as the seat is held: the tunnel that
    /// it becomes counts as well. `None`: the address has all that it may have. A proxy that is
    /// trusted has those of all its clients.
    fn admit(&self, seat: Seat, address: IpAddr) -> Option<Seat> {
        if self.inner.config.trusted.contains(address) {
            return Some(seat.holding(self.inner.config.seeing.connected()));
        }
        let permit = self.inner.door.connect(address)?;
        Some(seat.holding((permit, self.inner.config.seeing.connected())))
    }

    /// Serves browsers over HTTP/3 on this socket until `stop`; then lets requests under way go on
    /// for the time configured. Connections here are counted apart.
    ///
    /// # Errors
    /// There are no certificates, or the socket can't be used.
    pub async fn serve_http3(
        &self,
        socket: UdpSocket,
        stop: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let certificates = self.inner.config.certificates.clone();
        let certificates = certificates.ok_or(io::ErrorKind::Unsupported)?;
        let endpoint = front::http3::endpoint(socket, certificates)?;
        front::http3::serve(self, endpoint, Seats::new(self.limits()), stop).await;
        Ok(())
    }

    fn limits(&self) -> Limits {
        Limits {
            whose: "browsers",
            connections: self.inner.config.max_connections,
            drain: self.inner.config.drain,
        }
    }

    async fn serve_stream(&self, stream: TcpStream, client: Client, seat: Seat) {
        let farewell = self.inner.config.half_closed;
        // With the PROXY protocol it is not known yet whose connection it is.
        let early = !self.inner.config.proxy_protocol;
        let admitted = if early {
            self.admit(seat, client.peer.ip())
        } else {
            Some(seat)
        };
        let Some(mut seat) = admitted else {
            turn_away(stream, farewell).await;
            return;
        };
        // A connection that is gone already says so soon enough.
        let _ = stream.set_nodelay(true);
        let _ = probe(&stream);
        // A request that waits for credit reads nothing, and would not see its browser go.
        let hangup = Hangup::watch(&stream);
        let entered = tokio::select! {
            entered = self.inner.entry.enter(stream, client) => entered,
            // Nothing was asked yet.
            () = seat.stopping() => return,
        };
        let (stream, client, version) = match entered {
            Ok(entered) => entered,
            Err(error) => {
                tracing::debug!(peer = %client.peer, "a connection is refused: {error}");
                return;
            }
        };
        if !early {
            let Some(admitted) = self.admit(seat, client.peer.ip()) else {
                turn_away(stream, farewell).await;
                return;
            };
            seat = admitted;
        }
        let gone = async {
            match &hangup {
                Ok(hangup) => hangup.wait().await,
                Err(_) => pending().await,
            }
            // What was answered already may still leave.
            sleep(self.inner.config.half_closed).await;
        };
        let paced = Paced::new(stream, self.clone());
        let serve = async {
            match version {
                Version::Http1 => front::http1::serve(self, paced, client, Some(seat)).await,
                Version::Http2 => {
                    front::http2::serve(self, paced, client, Some(seat)).await;
                    None
                }
            }
        };
        let served = tokio::select! {
            biased;
            served = serve => served,
            () = gone => None,
        };
        if let Some(paced) = served {
            // A browser that reads until the connection's end must not take this for the end.
            let _ = paced.into_inner().tcp().set_zero_linger();
        }
    }

    /// Serves one connection of a browser, whose other end is `peer`.
    pub async fn serve_connection<I>(&self, io: I, peer: SocketAddr)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let paced = Paced::new(io, self.clone());
        front::http1::serve(self, paced, Client::plain(peer), None).await;
    }

    fn config(&self) -> &Config {
        &self.inner.config
    }

    fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// How long a browser may take nothing of what there is for it.
    fn response_idle(&self) -> Duration {
        self.inner.door.quotas().response_idle
    }

    /// Answers a request, with the target's response or the hub's own.
    async fn answer(&self, asked: Asked) -> Response<ProxyBody> {
        let secured = asked.client.scheme == Scheme::Https;
        let seeing = &self.inner.config.seeing;
        let target = asked.head.uri.path_and_query();
        let track = seeing.begin(&Begins {
            kind: Kind::Http,
            client: asked.client.peer.ip(),
            at: self.inner.clock.now(),
            method: Some(&asked.head.method),
            target: target.map(PathAndQuery::as_str),
            version: Some(asked.head.version),
        });
        let timed = seeing.times_all() || asked.head.headers.contains_key(TIMING_HEADER);
        let mut response = match self.carry(asked, &track).await {
            Ok(response) => response,
            Err(answer) => {
                tracing::debug!(status = answer.status.as_u16(), "{}", answer.reason);
                answer.into_response()
            }
        };
        if let Some(port) = self.inner.config.http3.filter(|_| secured) {
            // Instead of the target's own, which could only be about the hub's ports.
            let elsewhere = format!("h3=\":{port}\"; ma={ALT_SVC_AGE}");
            if let Ok(elsewhere) = HeaderValue::try_from(elsewhere) {
                response.headers_mut().insert(ALT_SVC, elsewhere);
            }
        }
        let limit = response.extensions().get::<Limited>();
        track.answered(response.status(), limit.map(|limit| limit.0));
        if timed && let Ok(timing) = HeaderValue::try_from(track.server_timing()) {
            response.headers_mut().append(SERVER_TIMING, timing);
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // What follows is the tunnel's.
            return response;
        }
        response.map(|body| body.tracked(track))
    }
}

/// Tells a client that it has as many connections as it may have, and gives it `time` to read that.
async fn turn_away(mut stream: impl AsyncRead + AsyncWrite + Unpin, time: Duration) {
    let told = async {
        stream.write_all(TURNED_AWAY).await?;
        stream.shutdown().await?;
        // Closed before it has read this, it might see a reset instead.
        while stream.read(&mut [0; 1024]).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    let _ = timeout(time, told).await;
}

/// Has the system find out about clients that vanished without a word, while nothing is sent.
pub(crate) fn probe(stream: &TcpStream) -> rustix::io::Result<()> {
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, PROBE_AFTER)?;
    set_tcp_keepintvl(stream, PROBE_INTERVAL)?;
    set_tcp_keepcnt(stream, PROBES)
}
