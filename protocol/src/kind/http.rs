//! Carry one HTTP request.
//!
//! ```text
//! hub                                     agent
//!  | Open{target, head} --------------------> |  connects to the target, then:
//!  |  <------------------- Accepted | Failed  |
//!  | Data(REQUEST).. [Trailers] End --------> |
//!  |  <------------- [Message::Informational] |
//!  |  <----------------------- Message::Head  |
//!  |  <--- Data(RESPONSE).. [Trailers] End    |
//!  |  <--------------------- Done(Complete)   |  once both bodies have ended
//! ```
//!
//! A response is whole when its channel was ended with `End` or the outcome is
//! [`Complete`](Outcome::Complete); an outcome of [`Broken`](Outcome::Broken) comes without `End`.
//! After a head with status 101 both channels carry the bytes of the upgraded connection. Only
//! headers that hold from end to end cross the wire: see [`retain_end_to_end`].

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{ChannelSpec, Failure};
use crate::frame::Channel;
use crate::operation::Direction;
use crate::target::{Grant, Target};

/// The body of the request; after an upgrade, what the browser sends.
pub const REQUEST: Channel = Channel(0);
/// The body of the response; after an upgrade, what the target sends.
pub const RESPONSE: Channel = Channel(1);

pub(super) const CHANNELS: [ChannelSpec; 2] = [
    ChannelSpec {
        channel: REQUEST,
        name: "request",
        direction: Direction::ToAgent,
    },
    ChannelSpec {
        channel: RESPONSE,
        name: "response",
        direction: Direction::ToHub,
    },
];

/// The most header lines of a head, and of trailers.
pub const MAX_HEADERS: usize = 256;

/// One header line.
pub type Header = (Bytes, Bytes);

/// The body of `Open`. `Accepted` has no body: it says that the target is connected, and the
/// target may take its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// What to connect to.
    pub target: Target,
    /// By what right.
    pub grant: Grant,
    /// What the target speaks.
    pub protocol: Protocol,
    /// The request's head.
    pub head: RequestHead,
}

/// The version of HTTP that a target speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// HTTP/1.1, with connections that are kept for the next request.
    Http1,
    /// HTTP/2 in the clear, known beforehand: requests share a connection.
    Http2,
}

/// A request's first line and headers. Neither hop-by-hop headers nor `Content-Length` are among
/// them: `upgrade` and `body` stand for those.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestHead {
    /// The method, as it came.
    pub method: String,
    /// Path and query, as they came.
    pub target: Bytes,
    /// The headers, in order.
    pub headers: Vec<Header>,
    /// The protocol the browser wants to upgrade to (`websocket`). Such a request has no body.
    pub upgrade: Option<Bytes>,
    /// Whether a body follows, and its length where it is known.
    pub body: Body,
}

/// Headers may carry credentials, and targets tokens.
impl std::fmt::Debug for RequestHead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestHead")
            .field("method", &self.method)
            .field("headers", &self.headers.len())
            .field("body", &self.body)
            .finish_non_exhaustive()
    }
}

/// How long a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// There is none. A `Content-Length` among the headers is that of an answer to `HEAD` or of
    /// a 304: it speaks of a body that is not sent.
    None,
    /// This many bytes, as `Content-Length` says; 0 is said, too.
    Length(u64),
    /// Until its channel ends.
    Chunked,
}

/// A message, either way.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// From the agent, once: the response's head.
    Head(ResponseHead),
    /// Either way, after the body and before the `End` of its channel: trailers.
    Trailers(Vec<Header>),
    /// From the agent, before the head, any number of times: an informational response.
    Informational(Informational),
}

/// An informational response: 100 to a request that expects it, 103 with hints.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Informational {
    /// The status code: 100 to 199, and not 101.
    pub status: u16,
    /// The headers, in order.
    pub headers: Vec<Header>,
}

/// A response's status and headers, with neither hop-by-hop headers nor, where a body follows,
/// `Content-Length`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseHead {
    /// The status code: 101, or 200 to 999.
    pub status: u16,
    /// The headers, in order.
    pub headers: Vec<Header>,
    /// With status 101, the protocol upgraded to: both channels carry its bytes from here on.
    pub upgrade: Option<Bytes>,
    /// The length of the body.
    pub body: Body,
}

/// Headers may carry credentials.
impl std::fmt::Debug for ResponseHead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseHead")
            .field("status", &self.status)
            .field("headers", &self.headers.len())
            .field("body", &self.body)
            .finish_non_exhaustive()
    }
}

/// The body of `Done`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The response is whole, or the upgraded connection has ended on both sides.
    Complete,
    /// The target broke off, before its head or in the middle: the response must not look whole.
    Broken(Failure),
}

/// Takes out of `headers` what speaks of one connection only (RFC 9110, 7.6.1): `Connection` and
/// what it names, `Keep-Alive`, `Proxy-…`, `TE` but for `trailers`, `Transfer-Encoding` and
/// `Upgrade`. `Host` stays, whatever `Connection` says of it.
pub fn retain_end_to_end(headers: &mut Vec<Header>) {
    let named: Vec<Bytes> = headers
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case(b"connection"))
        .flat_map(|(_, value)| elements(value).map(|element| value.slice_ref(element)))
        .filter(|name| !name.eq_ignore_ascii_case(b"host") && !name.eq_ignore_ascii_case(b"te"))
        .collect();
    headers.retain_mut(|(name, value)| {
        if name.eq_ignore_ascii_case(b"te") {
            let trailers = elements(value).any(|coding| coding.eq_ignore_ascii_case(b"trailers"));
            *value = Bytes::from_static(b"trailers");
            return trailers;
        }
        !is_hop_by_hop(name) && !named.iter().any(|other| name.eq_ignore_ascii_case(other))
    });
}

fn is_hop_by_hop(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 4] = [
        b"connection",
        b"keep-alive",
        b"transfer-encoding",
        b"upgrade",
    ];
    const PROXY: &[u8] = b"proxy-";
    NAMES.iter().any(|other| name.eq_ignore_ascii_case(other))
        || name
            .get(..PROXY.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(PROXY))
}

/// The elements of a comma-separated header value, without the space around them; none is empty.
pub fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
}

/// The bytes of names and values together: what [`MAX_HEAD`](crate::limits::MAX_HEAD) bounds.
pub fn weight(headers: &[Header]) -> usize {
    headers
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> Vec<Header> {
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        lines
            .iter()
            .map(|(name, value)| (bytes(name), bytes(value)))
            .collect()
    }

    #[test]
    fn only_what_holds_from_end_to_end_stays() {
        let mut lines = headers(&[
            ("host", "a"),
            ("Connection", "close, X-One ,,host"),
            ("connection", "x-TWO"),
            ("x-one", "1"),
            ("X-Two", "2"),
            ("x-three", "3"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "secret"),
            ("Proxy-Connection", "close"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("te", "gzip, Trailers;q=0.5"),
            ("TE", "deflate, trailers"),
            ("trailer", "x-sum"),
            ("proxyish", "kept"),
            ("x-three", "again"),
        ]);
        retain_end_to_end(&mut lines);
        let expected = headers(&[
            ("host", "a"),
            ("x-three", "3"),
            ("TE", "trailers"),
            ("trailer", "x-sum"),
            ("proxyish", "kept"),
            ("x-three", "again"),
        ]);
        assert_eq!(lines, expected);
    }

    #[test]
    fn te_stays_although_connection_must_name_it() {
        let mut lines = headers(&[("connection", "TE"), ("te", "trailers")]);
        retain_end_to_end(&mut lines);
        assert_eq!(lines, headers(&[("te", "trailers")]));
    }

    #[test]
    fn nothing_in_them_is_taken_for_granted() {
        let mut lines = headers(&[
            ("", ""),
            ("connection", ""),
            ("prox", ",,,"),
            ("a", "\u{0}"),
        ]);
        retain_end_to_end(&mut lines);
        assert_eq!(lines.len(), 3);
        assert_eq!(weight(&lines), 9);
    }
}
