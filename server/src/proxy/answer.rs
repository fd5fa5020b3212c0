//! What the hub itself answers: which hop failed, why, and whether trying again helps.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, RETRY_AFTER,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use hub_protocol::NodeName;
use hub_protocol::kind::{Failure, FailureCode};
use hub_protocol::target::Target;
use hub_quic::session::OpenError;

use super::body::ProxyBody;
use super::limits::Refusal;
use super::page::Asks;
use super::routes::RouteError;

/// When to try again after the agent's connection was lost: most agents are back by then.
const RETRY_AWAY: Duration = Duration::from_secs(5);

/// When to try again after something was full.
const RETRY_BUSY: Duration = Duration::from_secs(1);

/// How a client is told that something has to be shown. No browser asks for it by itself.
pub(super) const CHALLENGE: &str = "Hub-Token";

/// Between whom a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hop {
    BrowserHub,
    HubAgent,
    AgentTarget,
}

impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BrowserHub => "browser -X- hub --- agent --- target",
            Self::HubAgent => "browser --- hub -X- agent --- target",
            Self::AgentTarget => "browser --- hub --- agent -X- target",
        })
    }
}

/// An answer of the hub's own.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) hop: Hop,
    pub(super) reason: String,
    retry_after: Option<Duration>,
    header: Option<(HeaderName, HeaderValue)>,
    soon: bool,
    /// Its reason, if that is a limit: the place among [`Refusal::NAMES`], since answers stay small.
    limit: Option<u8>,
}

/// On a response of the hub's own: the limit that is its reason.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limited(pub(super) &'static str);

/// Without the header's value: a redirect's location holds the token.
impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("status", &self.status)
            .field("hop", &self.hop)
            .field("reason", &self.reason)
            .field("header", &self.header.as_ref().map(|(name, _)| name))
            .finish_non_exhaustive()
    }
}

impl Answer {
    fn new(status: StatusCode, hop: Hop, reason: impl Into<String>) -> Self {
        Self {
            status,
            hop,
            reason: reason.into(),
            retry_after: None,
            header: None,
            soon: false,
            limit: None,
        }
    }

    fn retry(self, after: Duration) -> Self {
        Self {
            retry_after: Some(after),
            ..self
        }
    }

    /// The request is wrong in itself.
    pub(super) fn bad_request(reason: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Hop::BrowserHub, reason)
    }

    /// `CONNECT` is for proxies to anywhere, which this is not.
    pub(super) fn connect_refused() -> Self {
        Self {
            header: Some((
                ALLOW,
                HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE"),
            )),
            ..Self::new(
                StatusCode::METHOD_NOT_ALLOWED,
                Hop::BrowserHub,
                "this is no proxy to other hosts: CONNECT is not for it",
            )
        }
    }

    /// The body is coded as nobody behind this can know.
    pub(super) fn unknown_coding() -> Self {
        Self::new(
            StatusCode::NOT_IMPLEMENTED,
            Hop::BrowserHub,
            "chunked is the only transfer coding that is understood here",
        )
    }

    /// An extended CONNECT for something else than a WebSocket.
    pub(super) fn unknown_protocol() -> Self {
        Self::new(
            StatusCode::NOT_IMPLEMENTED,
            Hop::BrowserHub,
            "CONNECT is for WebSockets only here",
        )
    }

    /// The target does not speak WebSockets here, or speaks them wrongly.
    pub(super) fn not_switched() -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            Hop::AgentTarget,
            "the target did not agree to a WebSocket",
        )
    }

    /// A head that is too large once it is put together.
    pub(super) fn head_too_large() -> Self {
        Self::new(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Hop::BrowserHub,
            "the request's headers are too large: 64 KiB is the most, in 256 lines",
        )
    }

    /// A request's line that alone is longer than a head may be.
    pub(super) fn target_too_long() -> Self {
        Self::new(
            StatusCode::URI_TOO_LONG,
            Hop::BrowserHub,
            "the request's target is too long: a head has 64 KiB at most",
        )
    }

    /// A version of HTTP that is not spoken here.
    pub(super) fn unknown_version() -> Self {
        Self::new(
            StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            Hop::BrowserHub,
            "the versions of HTTP that are written like this and understood here are 1.1 and 1.0",
        )
    }

    /// The browser's upload broke.
    pub(super) fn upload_broke() -> Self {
        Self::bad_request("the request's body broke off or is malformed")
    }

    /// Nothing is reached under this host and path.
    pub(super) fn nowhere() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            Hop::BrowserHub,
            "nothing is here: `hub expose` prints the URLs of what is exposed",
        )
    }

    /// No exposure has this token.
    pub(super) fn unknown_token() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            Hop::BrowserHub,
            "no exposure has this token: it is mistyped, or holds no longer",
        )
    }

    /// No exposure has this name.
    pub(super) fn unknown_name() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            Hop::BrowserHub,
            "no exposure has this name: it is mistyped, or was removed",
        )
    }

    /// A slash is missing.
    pub(super) fn redirect(location: &str) -> Self {
        Self::elsewhere(location, "the same with a slash at the end")
    }

    /// The same over TLS.
    pub(super) fn secured(location: &str) -> Self {
        Self::elsewhere(location, "this is served over TLS only")
    }

    fn elsewhere(location: &str, reason: &str) -> Self {
        let redirect = Self::new(StatusCode::PERMANENT_REDIRECT, Hop::BrowserHub, reason);
        match HeaderValue::try_from(location) {
            Ok(location) => Self {
                header: Some((LOCATION, location)),
                ..redirect
            },
            Err(_) => Self::nowhere(),
        }
    }

    /// The route leads nowhere now; `unknown` is the answer if it never does.
    pub(super) fn unrouted(error: &RouteError, unknown: Self) -> Self {
        match error {
            RouteError::Unknown => unknown,
            // Why it can't is for the operator's log.
            RouteError::Ledger(_) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                Hop::BrowserHub,
                "the hub can't look up exposures now",
            )
            .retry(RETRY_BUSY),
        }
    }

    /// None of the nodes that could answer is connected.
    pub(super) fn all_away(nodes: &[NodeName]) -> Self {
        let why = "its agent is not connected to the hub";
        match nodes {
            [node] => Self::away(node, why),
            nodes => {
                let names: Vec<_> = nodes.iter().map(NodeName::as_str).collect();
                let reason = format!(
                    "nodes {} are away: their agents are not connected to the hub",
                    names.join(", ")
                );
                Self::new(StatusCode::SERVICE_UNAVAILABLE, Hop::HubAgent, reason)
                    .retry(RETRY_AWAY)
                    .soon()
            }
        }
    }

    /// A limit holds the client back.
    pub(super) fn refused(refusal: Refusal) -> Self {
        // One without a status comes too late to be answered.
        let status = refusal.status().unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        let hop = match refusal {
            Refusal::NodeRequests => Hop::HubAgent,
            Refusal::ReplicaSessions => Hop::AgentTarget,
            _ => Hop::BrowserHub,
        };
        let answer = Self::new(status, hop, refusal.to_string());
        Self {
            retry_after: refusal.retry_after(),
            limit: u8::try_from(refusal.index()).ok(),
            ..answer
        }
    }

    /// A program has to show something to get in.
    pub(super) fn unauthorized(asks: Asks) -> Self {
        let reason = match asks {
            Asks::Token => {
                "who is to get in here has its token: a program shows it in the header Hub-Token, \
                 a browser after opening a page here"
            }
            Asks::Login => {
                "only who is logged in gets in here: a browser after opening a page here, a \
                 program with an operator's token in the header Hub-Token"
            }
        };
        Self {
            header: Some((WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE))),
            ..Self::new(StatusCode::UNAUTHORIZED, Hop::BrowserHub, reason)
        }
    }

    /// A form that no page of this host has sent.
    pub(super) fn foreign_form() -> Self {
        let reason = "this form takes what a page of this same host sends: open it in a browser";
        Self::new(StatusCode::FORBIDDEN, Hop::BrowserHub, reason)
    }

    /// A page of the hub's own that takes other methods.
    pub(super) fn not_for_that_method() -> Self {
        Self {
            header: Some((ALLOW, HeaderValue::from_static("GET, HEAD, POST"))),
            ..Self::new(
                StatusCode::METHOD_NOT_ALLOWED,
                Hop::BrowserHub,
                "this page of the hub's own is read with GET and filled in with POST",
            )
        }
    }

    /// Whether the target may be there soon, without anybody changing anything.
    pub(super) fn is_soon(&self) -> bool {
        self.soon
    }

    fn soon(self) -> Self {
        Self { soon: true, ..self }
    }

    fn away(node: &NodeName, why: &str) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            Hop::HubAgent,
            format!("node {node} is away: {why}"),
        )
        .retry(RETRY_AWAY)
        .soon()
    }

    /// The agent was not reached.
    pub(super) fn unopened(node: &NodeName, error: &OpenError) -> Self {
        match error {
            OpenError::Busy => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                Hop::HubAgent,
                format!("node {node} is busy: all the operations it allows are under way"),
            )
            .retry(RETRY_BUSY),
            OpenError::Lost(_) => Self::away(node, "its connection to the hub was just lost"),
        }
    }

    /// The agent did not take the request in time.
    pub(super) fn silent(node: &NodeName, waited: Duration) -> Self {
        Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            Hop::HubAgent,
            format!(
                "the agent of node {node} did not take the request within {} s",
                waited.as_secs()
            ),
        )
    }

    /// The agent was lost, or gave up, after it may have sent the request to the target.
    pub(super) fn lost(node: &NodeName) -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            Hop::HubAgent,
            format!(
                "the agent of node {node} was lost before the target's answer came; the target \
                 may have had the request"
            ),
        )
    }

    /// The agent says what no agent should.
    pub(super) fn nonsense(node: &NodeName) -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            Hop::HubAgent,
            format!("the agent of node {node} gave an answer that is no HTTP"),
        )
    }

    /// The agent says why there is no answer of the target's. Its own words stay with the hub.
    pub(super) fn failed(node: &NodeName, target: &Target, failure: &Failure) -> Self {
        let named = format!("the target, {target} on node {node},");
        let (status, hop, reason) = match failure.code {
            FailureCode::TARGET_REFUSED => (
                StatusCode::BAD_GATEWAY,
                Hop::AgentTarget,
                format!("{named} refused the connection: does anything listen there?"),
            ),
            FailureCode::TARGET_TIMED_OUT => (
                StatusCode::GATEWAY_TIMEOUT,
                Hop::AgentTarget,
                format!("{named} did not accept a connection in time"),
            ),
            FailureCode::TARGET_BROKEN => (
                StatusCode::BAD_GATEWAY,
                Hop::AgentTarget,
                format!("{named} broke off, or gave an answer that is no HTTP/1.1"),
            ),
            FailureCode::NOT_EXPOSED => (
                StatusCode::BAD_GATEWAY,
                Hop::AgentTarget,
                format!("the agent of node {node} does not hold {target} for exposed"),
            ),
            FailureCode::BUSY => {
                let busy = format!("the agent of node {node} is at its limit");
                return Self::new(StatusCode::SERVICE_UNAVAILABLE, Hop::HubAgent, busy)
                    .retry(RETRY_BUSY);
            }
            code => (
                StatusCode::BAD_GATEWAY,
                Hop::HubAgent,
                format!("the agent of node {node} failed (code {})", code.0),
            ),
        };
        let answer = Self::new(status, hop, reason);
        match failure.code {
            FailureCode::NOT_EXPOSED if failure.retry => answer.retry(RETRY_BUSY).soon(),
            FailureCode::TARGET_REFUSED
            | FailureCode::NOT_RUNNING
            | FailureCode::NO_SUCH_CONTAINER => answer.soon(),
            _ => answer,
        }
    }

    /// As a response.
    pub(super) fn into_response(self) -> Response<ProxyBody> {
        let text = format!("{}: {}\n\n{}\n", self.status, self.reason, self.hop);
        let mut response = Response::new(ProxyBody::own(Bytes::from(text)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        headers.insert(CONTENT_TYPE, text);
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(after) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(after.as_secs()));
        }
        if let Some((name, value)) = self.header {
            headers.insert(name, value);
        }
        if let Some(place) = self.limit {
            let name = Refusal::NAMES[usize::from(place)];
            response.extensions_mut().insert(Limited(name));
        }
        response
    }
}
