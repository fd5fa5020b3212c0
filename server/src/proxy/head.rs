//! Heads between HTTP as the `http` crate has it, and the wire. Pure.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use http::{Method, Response, StatusCode, request};
use hub_protocol::kind::http::{
    Body, Header, Informational, MAX_HEADERS, RequestHead, ResponseHead, retain_end_to_end, weight,
};
use hub_protocol::limits::MAX_HEAD;

use super::client::Origin;
use super::own;

/// The longest host, in bytes: a DNS name and a port.
const MAX_HOST: usize = 260;

/// The one host of a request; empty if it names none, where its version allows that. `None`: there
/// are several, or it is too long.
pub(super) fn host(head: &request::Parts) -> Option<&str> {
    // An absolute request target overrides the header (RFC 9112, 3.2.2).
    if let Some(authority) = head.uri.authority() {
        let host = authority.as_str();
        return (host.len() <= MAX_HOST && !host.contains('@')).then_some(host);
    }
    let mut hosts = head.headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if host.len() <= MAX_HOST => host.to_str().ok(),
        (None, None) => Some(""),
        _ => None,
    }
}

/// The body that a request's head announces. `length` is what its front end makes of it.
pub(super) fn body(head: &request::Parts, length: Option<u64>) -> Body {
    match length {
        None => Body::Chunked,
        Some(0) if !head.headers.contains_key(CONTENT_LENGTH) => Body::None,
        Some(length) => Body::Length(length),
    }
}

/// The head as it goes to the agent; `user` is who asks, where the hub knows it. `None`: it is too
/// large.
pub(super) fn request(
    head: &request::Parts,
    target: &str,
    origin: &Origin,
    user: Option<&str>,
    host: &str,
    body: Body,
    upgrade: Option<Bytes>,
) -> Option<RequestHead> {
    let mut headers = lines(&head.headers);
    headers.retain(|(name, _)| !replaced(name) && !origin.replaces(name));
    let mut add = |name: &'static str, value: &str| {
        let value = Bytes::copy_from_slice(value.as_bytes());
        headers.push((Bytes::from_static(name.as_bytes()), value));
    };
    if !host.is_empty() {
        add(HOST.as_str(), host);
    }
    for (name, value) in origin.lines() {
        add(name, &value);
    }
    if let Some(user) = user {
        add(own::USER_HEADER, user);
    }
    let fits = headers.len() <= MAX_HEADERS && weight(&headers) + target.len() <= MAX_HEAD;
    fits.then(|| RequestHead {
        method: head.method.as_str().to_owned(),
        target: Bytes::copy_from_slice(target.as_bytes()),
        headers,
        upgrade,
        body,
    })
}

/// Headers that the hub does not pass on as they are: it says lengths otherwise. What it says
/// itself of where a request came from is the [`Origin`]'s.
fn replaced(name: &[u8]) -> bool {
    name == HOST.as_str().as_bytes() || name == CONTENT_LENGTH.as_str().as_bytes()
}

/// The header lines that hold from end to end, without those that nobody outside may set.
pub(super) fn lines(headers: &HeaderMap) -> Vec<Header> {
    let mut lines = headers
        .iter()
        .map(|(name, value)| {
            let name = Bytes::copy_from_slice(name.as_str().as_bytes());
            (name, Bytes::copy_from_slice(value.as_bytes()))
        })
        .collect();
    retain_end_to_end(&mut lines);
    own::strip_request(&mut lines);
    lines
}

/// The target's response, still without its body. `None`: it is none that an agent may give to
/// this request.
pub(super) fn response(
    head: ResponseHead,
    method: &Method,
    upgradable: bool,
) -> Option<Response<()>> {
    let status = StatusCode::from_u16(head.status).ok()?;
    let upgraded = status == StatusCode::SWITCHING_PROTOCOLS;
    if status.is_informational() && !(upgraded && upgradable) {
        return None;
    }
    let bodyless = method == Method::HEAD || status == StatusCode::NOT_MODIFIED;
    let mut headers = header_map(head.headers)?;
    if !bodyless || headers.get_all(CONTENT_LENGTH).iter().count() > 1 {
        headers.remove(CONTENT_LENGTH);
    }
    match head.body {
        _ if bodyless || upgraded || status == StatusCode::NO_CONTENT => {}
        Body::None => _ = headers.insert(CONTENT_LENGTH, HeaderValue::from(0)),
        Body::Length(length) => _ = headers.insert(CONTENT_LENGTH, HeaderValue::from(length)),
        Body::Chunked => {}
    }
    if upgraded {
        let protocol = HeaderValue::from_maybe_shared(head.upgrade?).ok()?;
        headers.insert(UPGRADE, protocol);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Some(response)
}

/// An informational response. `None`: it is none, or one that no target may give.
pub(super) fn informational(response: Informational) -> Option<Response<()>> {
    let status = StatusCode::from_u16(response.status).ok()?;
    if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
        return None;
    }
    let mut headers = header_map(response.headers)?;
    headers.remove(CONTENT_LENGTH);
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Some(response)
}

/// The bytes of a body that are to come for this response; `None`: until the channel's end.
pub(super) fn length(head: &ResponseHead, method: &Method) -> Option<u64> {
    let bodyless = method == Method::HEAD || matches!(head.status, 101 | 204 | 304);
    match head.body {
        _ if bodyless => Some(0),
        Body::None => Some(0),
        Body::Length(length) => Some(length),
        Body::Chunked => None,
    }
}

/// Trailers that came from the agent. `None`: they are none.
pub(super) fn trailers(mut lines: Vec<Header>) -> Option<HeaderMap> {
    lines.retain(|(name, _)| may_trail(name));
    header_map(lines)
}

/// Trailers as they go to the agent.
pub(super) fn trailer_lines(headers: &HeaderMap) -> Vec<Header> {
    let mut lines = lines(headers);
    lines.retain(|(name, _)| may_trail(name));
    lines
}

/// Whether a header may be among trailers. What frames or routes a message, says who sent it or
/// how it is to be read must come before the body (RFC 9110, 6.5.1): whoever merged it into the
/// headers afterwards would believe what nobody has checked.
fn may_trail(name: &[u8]) -> bool {
    const NEVER: [&str; 24] = [
        "age",
        "authorization",
        "cache-control",
        "content-encoding",
        "content-length",
        "content-range",
        "content-type",
        "cookie",
        "date",
        "expect",
        "expires",
        "forwarded",
        "host",
        "location",
        "max-forwards",
        "origin",
        "pragma",
        "range",
        "retry-after",
        "set-cookie",
        "te",
        "trailer",
        "www-authenticate",
        "x-real-ip",
    ];
    const FAMILIES: [&str; 4] = ["if-", "proxy-", "x-forwarded-", "x-hub-"];
    let name = name.to_ascii_lowercase();
    let never = NEVER.iter().any(|other| other.as_bytes() == name);
    !never
        && !FAMILIES
            .iter()
            .any(|start| name.starts_with(start.as_bytes()))
}

fn header_map(mut lines: Vec<Header>) -> Option<HeaderMap> {
    retain_end_to_end(&mut lines);
    own::strip_response(&mut lines);
    if lines.len() > MAX_HEADERS {
        return None;
    }
    let mut headers = HeaderMap::with_capacity(lines.len() + 2);
    for (name, value) in lines {
        let name = HeaderName::from_bytes(&name).ok()?;
        headers.append(name, HeaderValue::from_maybe_shared(value).ok()?);
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_come_after_a_body() {
        for name in [
            "grpc-status",
            "Grpc-Message",
            "etag",
            "digest",
            "server-timing",
            "x-sum",
        ] {
            assert!(may_trail(name.as_bytes()), "{name}");
        }
        for name in [
            "Content-Length",
            "transfer-encoding-not",
            "HOST",
            "authorization",
            "Set-Cookie",
            "x-forwarded-for",
            "X-Hub-User",
            "proxy-authenticate",
            "if-match",
        ] {
            let kept = name == "transfer-encoding-not";
            assert_eq!(may_trail(name.as_bytes()), kept, "{name}");
        }
        // Those of the connection go with the other headers of that kind.
        let lines = vec![
            (Bytes::from("transfer-encoding"), Bytes::from("chunked")),
            (Bytes::from("connection"), Bytes::from("x-sum")),
            (Bytes::from("x-sum"), Bytes::from("1")),
            (Bytes::from("x-other"), Bytes::from("2")),
        ];
        let trailers = trailers(lines);
        assert_eq!(trailers.map(|trailers| trailers.len()), Some(1));
    }
}
