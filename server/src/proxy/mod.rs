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
//! | [`routes`](Routes) | from a token or name to sessions and targets |
//! | `access` | who gets in |
//! | `answer` | the hub's own answers |
//! | `exchange`, `upload`, `body`, `tunnel` | a request under way |
//!
//! Left out, because the HTTP library sends none: informational responses (1xx other than 100
//! and 101). Trailers pass where `Trailer` announces them.

mod access;
mod answer;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "no exposure has what it is for")
)]
mod balance;
mod body;
mod exchange;
mod front;
mod head;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "no exposure has what it is for")
)]
mod limits;
#[allow(dead_code, reason = "no exposure asks for a login yet")]
mod own;
mod place;
mod routes;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "no exposure has what it is for")
)]
mod session_cookie;
mod tunnel;
mod upload;

use std::fmt;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use http::{Method, Response, StatusCode, request};
use http_body::Body as _;
use hub_protocol::kind::http::{Body, Open, Protocol, REQUEST, RequestHead};
use hub_protocol::kind::{Failure, OperationKind};
use hub_protocol::target::Grant;
use hub_quic::operation::Sender;
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use access::admitted;
use answer::Answer;
use body::ProxyBody;
use exchange::{Exchange, NoHead};
use front::{Asked, Client, RequestBody};
use head::Origin;
pub use limits::{Quotas, Rate};
use place::{Place, place};
pub use routes::{LedgerRoutes, Live, Resolved, Route, RouteError, Routes};

use crate::hangup::Hangup;
use crate::hub::{NotBegun, begun};
use crate::seats::{self, Limits, Seat};

/// How long a connection goes on whose browser has closed or reset it.
const GONE: Duration = Duration::from_secs(1);

/// How long an agent may take to say that the target is connected: longer than it waits itself
/// for its list of exposures and for the target.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a browser's connection is silent before its system is asked whether it is there.
const PROBE_AFTER: Duration = Duration::from_secs(60);

/// How long to wait for that answer before asking again.
const PROBE_INTERVAL: Duration = Duration::from_secs(15);

/// How often to ask before the browser is given up.
const PROBES: u32 = 4;

/// What the data plane is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The domain under which exposures are reached by name; a port after it is passed over.
    pub domain: Option<String>,
    /// How long a browser may take to send a request's head, and keep a connection open between
    /// requests.
    pub head_timeout: Duration,
    /// Connections of browsers at once, tunnels among them; more wait to be accepted.
    pub max_connections: u32,
    /// How long requests under way may go on once the hub stops.
    pub drain: Duration,
}

impl Default for Config {
    /// No domain, 10 s for heads, 4096 connections, 10 s to drain.
    fn default() -> Self {
        Self {
            domain: None,
            head_timeout: Duration::from_secs(10),
            max_connections: 4096,
            drain: Duration::from_secs(10),
        }
    }
}

struct Inner {
    config: Config,
    routes: Arc<dyn Routes>,
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
    /// A data plane over these routes.
    pub fn new(config: Config, routes: Arc<dyn Routes>) -> Self {
        Self {
            inner: Arc::new(Inner { config, routes }),
        }
    }

    /// Serves browsers until `stop`; then lets requests under way go on for the time configured.
    pub async fn serve(&self, listener: TcpListener, stop: impl Future<Output = ()>) {
        let limits = Limits {
            whose: "browsers",
            connections: self.inner.config.max_connections,
            drain: self.inner.config.drain,
        };
        seats::serve(listener, limits, stop, |stream, peer, seat| {
            let proxy = self.clone();
            async move { proxy.serve_stream(stream, peer, seat).await }
        })
        .await;
    }

    async fn serve_stream(&self, stream: TcpStream, peer: SocketAddr, seat: Seat) {
        // A connection that is gone already says so soon enough.
        let _ = stream.set_nodelay(true);
        let _ = probe(&stream);
        // A request that waits for credit reads nothing, and would not see its browser go.
        let hangup = Hangup::watch(&stream);
        let gone = async {
            match &hangup {
                Ok(hangup) => hangup.wait().await,
                Err(_) => pending().await,
            }
            // What was answered already may still leave.
            sleep(GONE).await;
        };
        let served = tokio::select! {
            biased;
            served = front::http1::serve(self, stream, plain(peer), Some(seat)) => served,
            () = gone => None,
        };
        if let Some(stream) = served {
            // A browser that reads until the connection's end must not take this for the end.
            let _ = stream.set_zero_linger();
        }
    }

    /// Serves one connection of a browser, whose other end is `peer`.
    pub async fn serve_connection<I>(&self, io: I, peer: SocketAddr)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        front::http1::serve(self, io, plain(peer), None).await;
    }

    fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Answers a request, with the target's response or the hub's own.
    async fn answer(&self, asked: Asked) -> Response<ProxyBody> {
        match self.carry(asked).await {
            Ok(response) => response,
            Err(answer) => {
                tracing::debug!(status = answer.status.as_u16(), "{}", answer.reason);
                answer.into_response()
            }
        }
    }

    /// Carries a request to its target.
    async fn carry(&self, asked: Asked) -> Result<Response<ProxyBody>, Answer> {
        let Asked {
            head,
            body,
            client,
            interim,
            upgrade,
        } = asked;
        let length = body.size_hint().exact();
        let protocol = upgrade.as_ref().map(|slot| slot.protocol.clone());
        let (asked, resolved) = self.route(&head, length, protocol, client).await?;
        let streams = matches!(asked.body, Body::Chunked | Body::Length(1..));
        let waits = head.headers.contains_key(EXPECT);
        let protocol = match resolved.exposure.protocol {
            hub_ledger::Protocol::Http2 => Protocol::Http2,
            _ => Protocol::Http1,
        };
        let first = resolved.replicas.into_iter().next();
        let Live {
            node_name: node,
            session,
            target,
            revision,
        } = first.ok_or_else(|| Answer::all_away(&resolved.away))?;
        let open = Open {
            target: target.clone(),
            grant: Grant::Exposed { revision },
            protocol,
            head: asked,
        };
        let operation = session.open(OperationKind::Http, &open).await;
        let operation = operation.map_err(|error| {
            tracing::debug!(%node, %target, %error, "a request could not be sent to its node");
            Answer::unopened(&node, &error)
        })?;
        let mut sender = Some(operation.sender(REQUEST));
        let mut body = Some(body);
        let mut exchange = Exchange::new(operation, node, target);
        if streams && !waits {
            start_upload(&mut exchange, &mut body, &mut sender);
        } else if !streams && upgrade.is_none() {
            finish(sender.take());
        }
        accepted(&mut exchange).await?;
        if streams && waits {
            start_upload(&mut exchange, &mut body, &mut sender);
        }
        let operation = exchange.operation.clone();
        let received = exchange
            .unless_upload_breaks(exchange::head(&operation, &interim))
            .await
            .map_err(|_| Answer::upload_broke())?;
        let received = match received {
            Ok(received) => received,
            Err(error) => return Err(headless(exchange, error)),
        };
        let left = head::length(&received, &head.method);
        let response = head::response(received, &head.method, upgrade.is_some());
        let response = response.ok_or_else(|| Answer::nonsense(&exchange.node))?;
        match (upgrade, sender) {
            (Some(upgrade), Some(sender))
                if response.status() == StatusCode::SWITCHING_PROTOCOLS =>
            {
                tokio::spawn(tunnel::run(operation, sender, upgrade));
                Ok(response.map(|()| ProxyBody::own(Bytes::new())))
            }
            (_, sender) => {
                // Not upgraded after all: there is no body.
                finish(sender);
                Ok(response.map(|()| ProxyBody::relay(exchange, left)))
            }
        }
    }

    /// Finds out where a request goes, and what its head is there.
    async fn route(
        &self,
        head: &request::Parts,
        length: Option<u64>,
        upgrade: Option<Bytes>,
        client: Client,
    ) -> Result<(RequestHead, Resolved), Answer> {
        let host = head::host(head)
            .ok_or_else(|| Answer::bad_request("the request does not name one host"))?;
        if head.method == Method::CONNECT {
            return Err(Answer::connect_refused());
        }
        let target = head
            .uri
            .path_and_query()
            .map_or("", |target| target.as_str());
        let domain = self.inner.config.domain.as_deref();
        let (route, prefix, target) = match place(host, target, domain) {
            Place::Exposure {
                route,
                prefix,
                target,
            } => (route, prefix, target),
            Place::Redirect(location) => return Err(Answer::redirect(&location)),
            Place::UnknownName => return Err(Answer::unknown_name()),
            Place::UnknownToken => return Err(Answer::unknown_token()),
            Place::Nowhere => return Err(Answer::nowhere()),
        };
        let origin = Origin {
            peer: client.peer,
            scheme: client.scheme,
            prefix,
        };
        let body = head::body(head, length);
        let asked = head::request(head, target, origin, host, body, upgrade);
        let asked = asked.ok_or_else(Answer::head_too_large)?;
        let (by_token, unknown) = match &route {
            Route::Token(_) => (true, Answer::unknown_token()),
            Route::Name(_) => (false, Answer::unknown_name()),
        };
        let resolved = self.inner.routes.resolve(route).await;
        let resolved = resolved.map_err(|error| {
            if let RouteError::Ledger(error) = &error {
                tracing::warn!("a request could not be routed: the ledger: {error}");
            }
            Answer::unrouted(&error, unknown)
        })?;
        admitted(resolved.exposure.access, by_token).map_err(Answer::outside)?;
        Ok((asked, resolved))
    }
}

/// A browser that is connected without TLS.
fn plain(peer: SocketAddr) -> Client {
    Client {
        peer,
        scheme: "http",
    }
}

/// Has the system find out about browsers that vanished without a word, while nothing is sent.
fn probe(stream: &TcpStream) -> rustix::io::Result<()> {
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, PROBE_AFTER)?;
    set_tcp_keepintvl(stream, PROBE_INTERVAL)?;
    set_tcp_keepcnt(stream, PROBES)
}

fn start_upload(
    exchange: &mut Exchange,
    body: &mut Option<RequestBody>,
    sender: &mut Option<Sender>,
) {
    if let (Some(body), Some(sender)) = (body.take(), sender.take()) {
        exchange.upload(body, sender);
    }
}

/// Says that there is no body.
fn finish(sender: Option<Sender>) {
    if let Some(mut sender) = sender {
        sender.finish();
    }
}

/// Waits until the agent has connected to the target.
async fn accepted(exchange: &mut Exchange) -> Result<(), Answer> {
    let operation = exchange.operation.clone();
    let begun = begun(&operation, ANSWER_TIMEOUT);
    match exchange.unless_upload_breaks(begun).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(NotBegun::Failed(failure))) => Err(failed(exchange, &failure)),
        Ok(Err(NotBegun::Ended(_))) => Err(Answer::lost(&exchange.node)),
        Ok(Err(NotBegun::Silent(waited))) => Err(Answer::silent(&exchange.node, waited)),
        Err(_) => Err(Answer::upload_broke()),
    }
}

fn headless(mut exchange: Exchange, error: NoHead) -> Answer {
    match error {
        NoHead::Lost => Answer::lost(&exchange.node),
        NoHead::Nonsense => Answer::nonsense(&exchange.node),
        NoHead::Broken(failure) => failed(&mut exchange, &failure),
    }
}

/// The answer to a request that the agent gave up, whose body goes unread. The agent's own words
/// are for the log.
fn failed(exchange: &mut Exchange, failure: &Failure) -> Answer {
    let (node, target) = (&exchange.node, &exchange.target);
    tracing::debug!(%node, %target, code = failure.code.0, "a request failed: {failure}");
    let answer = Answer::failed(node, target, failure);
    exchange.release();
    answer
}
