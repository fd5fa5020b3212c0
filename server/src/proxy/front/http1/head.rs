//! Heads of requests as HTTP/1.1 has them (RFC 9112), strictly. Pure.
//!
//! Whoever stands behind this may read a sloppy head in another way than it is read here, and the
//! difference is how requests are smuggled. So nothing is repaired: what has more than one reading
//! is refused, and its connection closed. A head that passes is written anew for the target.
//!
//! Lines end with CR LF and with nothing else. One empty line before a request is skipped, as some
//! browsers send it behind a body.

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    TRANSFER_ENCODING, UPGRADE,
};
use http::uri::Authority;
use http::{Method, Request, Uri, Version, request};
use hub_protocol::kind::http::{MAX_HEADERS, elements};
use hub_protocol::limits::MAX_HEAD;

/// Why a head is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum HeadError {
    /// It is no HTTP, or has more than one reading.
    #[error("{0}")]
    Malformed(&'static str),
    /// The request's line alone is longer than a head may be.
    #[error("the request's line is too long")]
    LineTooLong,
    /// It is longer than [`MAX_HEAD`], or has more than [`MAX_HEADERS`] lines.
    #[error("the head is too large")]
    TooLarge,
    /// The body has a transfer coding other than `chunked`.
    #[error("an unknown transfer coding")]
    UnknownCoding,
    /// Another version of HTTP.
    #[error("another version of HTTP")]
    Version,
}

use HeadError::Malformed;

const NO_LINE: HeadError = Malformed("the request's first line is no request of HTTP/1.1");
const BARE: HeadError = Malformed("a line of the head does not end with CR LF");
const TARGET: HeadError =
    Malformed("the request's target is none, or has bytes that must be coded");
const FIELD: HeadError = Malformed("a header line is malformed");
const HOSTS: HeadError = Malformed("the request does not name one host");
const LENGTH: HeadError = Malformed("the body's length is not said once, in digits");
const CODING: HeadError = Malformed("the body's transfer coding is not `chunked`, said once");
const BOTH: HeadError = Malformed("the body has both a length and a transfer coding");

/// How the body of a message is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// There is none, and nothing is said about one.
    None,
    /// It has this many bytes.
    Length(u64),
    /// It comes in chunks.
    Chunked,
}

/// A request's head, and what of it is the connection's business.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) parts: request::Parts,
    pub(super) framing: Framing,
    /// Whether another request may follow.
    pub(super) keep_alive: bool,
    /// Whether the browser waits for a go-ahead before it sends the body.
    pub(super) expects: bool,
    /// The protocol that it wants to upgrade to.
    pub(super) upgrade: Option<Bytes>,
}

/// Looks for the end of a head as its bytes come, and refuses early what is none.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Bytes that were looked at.
    seen: usize,
    /// Where the current line starts.
    line: usize,
    /// Where the head starts: behind an empty line that was skipped.
    start: usize,
    /// Lines that have ended.
    lines: usize,
}

impl Scan {
    /// Goes on with `bytes`, whose start is the same each time. The range of the head, without its
    /// last empty line, and where the next byte after it is; `None` if there is more to come.
    pub(super) fn scan(
        &mut self,
        bytes: &[u8],
    ) -> Result<Option<(std::ops::Range<usize>, usize)>, HeadError> {
        while let Some(at) = memchr::memchr2(b'\r', b'\n', &bytes[self.seen..]) {
            let at = self.seen + at;
            match (bytes[at], bytes.get(at + 1)) {
                (b'\r', Some(b'\n')) => {}
                (b'\r', None) => {
                    self.seen = at;
                    return self.fits(bytes.len()).map(|()| None);
                }
                _ => return Err(BARE),
            }
            let (line, next) = (self.line, at + 2);
            (self.seen, self.line) = (next, next);
            self.fits(next)?;
            if at > line {
                self.lines += 1;
                self.fits(next)?;
            } else if self.lines > 0 {
                return Ok(Some((self.start..line, next)));
            } else if line > 0 {
                return Err(NO_LINE);
            } else {
                self.start = next;
            }
        }
        self.seen = bytes.len();
        self.fits(bytes.len()).map(|()| None)
    }

    /// Whether what there is of it, up to `end`, may be a head.
    fn fits(&self, end: usize) -> Result<(), HeadError> {
        match self.lines {
            0 if end - self.start > MAX_HEAD => Err(HeadError::LineTooLong),
            lines if end - self.start > MAX_HEAD || lines > MAX_HEADERS + 1 => {
                Err(HeadError::TooLarge)
            }
            _ => Ok(()),
        }
    }
}

/// Reads a head: whole lines, without the empty one at its end.
pub(super) fn parse(head: &Bytes) -> Result<Head, HeadError> {
    let end = memchr::memchr(b'\r', head).ok_or(NO_LINE)?;
    let (method, uri, version) = request_line(&head.slice(..end))?;
    let headers = fields(&head.slice(end + 2..)).ok_or(FIELD)?;
    check_host(&headers, version)?;
    let framing = framing(&headers, version)?;
    let modern = version == Version::HTTP_11;
    let connection = |wanted: &[u8]| listed(&headers, &CONNECTION, wanted);
    let keep_alive = !connection(b"close") && (modern || connection(b"keep-alive"));
    let bodyless = matches!(framing, Framing::None | Framing::Length(0));
    let expects = modern && !bodyless && listed(&headers, &EXPECT, b"100-continue");
    let upgrade = upgrade(&headers).filter(|_| modern && bodyless && connection(b"upgrade"));
    let (mut parts, ()) = Request::new(()).into_parts();
    (parts.method, parts.uri, parts.version) = (method, uri, version);
    parts.headers = headers;
    if !modern {
        // An expectation of HTTP/1.0 is none (RFC 9110, 10.1.1).
        parts.headers.remove(EXPECT);
    }
    Ok(Head {
        parts,
        framing,
        keep_alive,
        expects,
        upgrade,
    })
}

fn request_line(line: &Bytes) -> Result<(Method, Uri, Version), HeadError> {
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(NO_LINE);
    };
    let method = Method::from_bytes(method).map_err(|_| NO_LINE)?;
    let version = match version {
        b"HTTP/1.1" => Version::HTTP_11,
        b"HTTP/1.0" => Version::HTTP_10,
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            return Err(HeadError::Version);
        }
        _ => return Err(NO_LINE),
    };
    Ok((
        method.clone(),
        uri(&line.slice_ref(target), &method)?,
        version,
    ))
}

/// A request's target, byte for byte as it came.
fn uri(target: &Bytes, method: &Method) -> Result<Uri, HeadError> {
    // A fragment is none of a target's parts, and would silently be cut off.
    if target
        .iter()
        .any(|byte| matches!(byte, 0..=b' ' | b'#' | 0x7f))
    {
        return Err(TARGET);
    }
    let uri = Uri::from_maybe_shared(target.clone()).map_err(|_| TARGET)?;
    let absolute = || {
        let scheme = uri.scheme_str();
        let known = scheme.is_some_and(|scheme| matches!(scheme, "http" | "https"));
        known && uri.authority().is_some_and(is_host)
    };
    let good = match &target[..] {
        [b'/', ..] => true,
        b"*" => *method == Method::OPTIONS,
        _ if *method == Method::CONNECT => uri.scheme().is_none() && uri.authority().is_some(),
        _ => absolute(),
    };
    good.then_some(uri).ok_or(TARGET)
}

fn is_host(authority: &Authority) -> bool {
    let text = authority.as_str();
    let port = text.strip_prefix(authority.host()).unwrap_or("@");
    !text.contains('@') && port.bytes().skip(1).all(|byte| byte.is_ascii_digit())
}

/// Header lines, or trailers: each ends with CR LF. `None`: one of them is malformed.
pub(super) fn fields(lines: &Bytes) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    let mut rest = lines.clone();
    while !rest.is_empty() {
        let end = memchr::memchr(b'\r', &rest)?;
        let line = rest.split_to(end);
        if rest.split_to(2.min(rest.len()))[..] != *b"\r\n" {
            return None;
        }
        let colon = memchr::memchr(b':', &line)?;
        // A name is a token: there is no space before the colon, nor at a line's start, where it
        // would continue the line before.
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        let value = trim(&line[colon + 1..]);
        // Refuses control characters, NUL among them.
        let value = HeaderValue::from_maybe_shared(line.slice_ref(value)).ok()?;
        headers.try_append(name, value).ok()?;
    }
    Some(headers)
}

/// Without the spaces and tabs around it.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// One host in HTTP/1.1, at most one in HTTP/1.0. It may be empty, and is a host otherwise.
fn check_host(headers: &HeaderMap, version: Version) -> Result<(), HeadError> {
    let mut hosts = headers.get_all(HOST).iter();
    let good = match (hosts.next(), hosts.next()) {
        (None, None) => version == Version::HTTP_10,
        (Some(host), None) if host.is_empty() => true,
        (Some(host), None) => Authority::try_from(host.as_bytes()).is_ok_and(|host| is_host(&host)),
        _ => false,
    };
    good.then_some(()).ok_or(HOSTS)
}

/// How the body of a request is delimited.
fn framing(headers: &HeaderMap, version: Version) -> Result<Framing, HeadError> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (
        (lengths.next(), lengths.next()),
        (codings.next(), codings.next()),
    ) {
        ((None, None), (None, None)) => Ok(Framing::None),
        ((Some(length), None), (None, None)) => digits(length.as_bytes()).map(Framing::Length),
        ((None, None), (Some(coding), None)) if version == Version::HTTP_11 => {
            chunked(coding.as_bytes()).map(|()| Framing::Chunked)
        }
        ((Some(_), _), (Some(_), _)) => Err(BOTH),
        ((Some(_), _), _) => Err(LENGTH),
        _ => Err(CODING),
    }
}

fn digits(value: &[u8]) -> Result<u64, HeadError> {
    let text = std::str::from_utf8(value).map_err(|_| LENGTH)?;
    let good = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let length = good.then(|| text.parse().ok()).flatten();
    length.ok_or(LENGTH)
}

fn chunked(value: &[u8]) -> Result<(), HeadError> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    let is_chunked = |coding: &&[u8]| coding.eq_ignore_ascii_case(b"chunked");
    let times = elements(value).filter(is_chunked).count();
    let last = elements(value).last();
    match (times, last) {
        // What is coded in another way, and delimited in a known one or none.
        (0, Some(_)) => Err(HeadError::UnknownCoding),
        (1, Some(last)) if is_chunked(&last) && elements(value).count() > 1 => {
            Err(HeadError::UnknownCoding)
        }
        _ => Err(CODING),
    }
}

/// Whether a header that is a list has this element.
fn listed(headers: &HeaderMap, name: &HeaderName, wanted: &[u8]) -> bool {
    let values = headers.get_all(name).iter();
    values
        .flat_map(|value| elements(value.as_bytes()))
        .any(|element| element.eq_ignore_ascii_case(wanted))
}

/// The protocol that a request asks for, if there is one that a tunnel may carry. To another
/// version of HTTP, or to TLS, it does not lead: requests in there would pass unseen.
fn upgrade(headers: &HeaderMap) -> Option<Bytes> {
    let mut protocols = headers.get_all(UPGRADE).iter();
    let (Some(protocols), None) = (protocols.next(), protocols.next()) else {
        return None;
    };
    let is_http = |protocol: &[u8]| {
        let name = protocol
            .split(|byte| *byte == b'/')
            .next()
            .unwrap_or_default();
        [&b"h2"[..], b"h2c", b"http", b"tls"]
            .iter()
            .any(|other| name.eq_ignore_ascii_case(other))
    };
    let mut listed = elements(protocols.as_bytes()).peekable();
    let good = listed.peek().is_some() && !listed.any(is_http);
    good.then(|| Bytes::copy_from_slice(protocols.as_bytes()))
}

#[cfg(test)]
mod tests;
