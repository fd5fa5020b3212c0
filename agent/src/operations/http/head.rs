//! Heads between the wire and HTTP as `http` has it: of HTTP/1.1, and of HTTP/2.

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Authority, Scheme};
use http::{Method, Request, StatusCode, Uri, Version, response};
use hub_protocol::kind::http::{
    Body, Header, MAX_HEADERS, RequestHead, ResponseHead, elements, retain_end_to_end, weight,
};
use hub_protocol::kind::{Failure, FailureCode};
use hub_protocol::limits::MAX_HEAD;

/// A head that makes no HTTP message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a request that is no HTTP: {0}")]
pub(super) struct HeadError(&'static str);

impl From<HeadError> for Failure {
    fn from(error: HeadError) -> Self {
        Self {
            code: FailureCode::INVALID,
            message: error.to_string(),
            retry: false,
        }
    }
}

/// Whether a request may be sent twice: it changes nothing more the second time, and there is no
/// body that has been spent by then.
pub(super) fn repeatable(head: &RequestHead) -> bool {
    let idempotent = ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"];
    idempotent.contains(&head.method.as_str()) && !has_body(head)
}

/// Whether bytes of a body follow.
pub(super) fn has_body(head: &RequestHead) -> bool {
    head.upgrade.is_none() && !matches!(head.body, Body::None | Body::Length(0))
}

/// Whether the target is to say with a 100 that it wants the body. The body is sent when it comes
/// from the hub, whether the target has said so or not.
pub(super) fn expects(head: &RequestHead) -> bool {
    has_body(head)
        && head.headers.iter().any(|(name, value)| {
            name.eq_ignore_ascii_case(EXPECT.as_str().as_bytes())
                && value.eq_ignore_ascii_case(b"100-continue")
        })
}

/// The request to a target on `port`, still without its body.
pub(super) fn request(head: &RequestHead, port: u16) -> Result<Request<()>, HeadError> {
    let method = Method::from_bytes(head.method.as_bytes()).map_err(|_| HeadError("method"))?;
    // Anything else would name a host, and this is no proxy to others.
    let origin = head.target.starts_with(b"/") || (&head.target[..] == b"*");
    if !origin || method == Method::CONNECT {
        return Err(HeadError("target"));
    }
    let uri = Uri::from_maybe_shared(head.target.clone()).map_err(|_| HeadError("target"))?;
    let mut lines = head.headers.clone();
    retain_end_to_end(&mut lines);
    let mut headers = header_map(lines)?;
    headers.remove(CONTENT_LENGTH);
    if !expects(head) {
        headers.remove(EXPECT);
    }
    match head.body {
        Body::None => {}
        Body::Length(length) => _ = headers.insert(CONTENT_LENGTH, HeaderValue::from(length)),
        Body::Chunked => {
            headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
    }
    if headers.get_all(HOST).iter().count() > 1 {
        return Err(HeadError("host"));
    }
    if !headers.contains_key(HOST) {
        let host = HeaderValue::try_from(format!("localhost:{port}"));
        headers.insert(HOST, host.map_err(|_| HeadError("host"))?);
    }
    if headers.contains_key(TE) {
        headers.append(CONNECTION, HeaderValue::from_static("te"));
    }
    if let Some(protocol) = &head.upgrade {
        let protocol = HeaderValue::from_maybe_shared(protocol.clone());
        headers.insert(UPGRADE, protocol.map_err(|_| HeadError("upgrade"))?);
        headers.append(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    Ok(request)
}

/// The same in HTTP/2: what a connection of HTTP/1.1 needs is left out, and the host is the
/// authority. An upgrade is left out, too, as anybody may.
pub(super) fn request_of_http2(head: &RequestHead, port: u16) -> Result<Request<()>, HeadError> {
    let mut request = request(head, port)?;
    let headers = request.headers_mut();
    for name in [CONNECTION, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    let host = headers.remove(HOST).ok_or(HeadError("host"))?;
    if host.as_bytes().contains(&b'@') {
        return Err(HeadError("host"));
    }
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(Scheme::HTTP);
    let authority = Authority::try_from(host.as_bytes());
    parts.authority = Some(authority.map_err(|_| HeadError("host"))?);
    *request.uri_mut() = Uri::from_parts(parts).map_err(|_| HeadError("target"))?;
    *request.version_mut() = Version::HTTP_2;
    Ok(request)
}

/// Trailers that came from the hub.
pub(super) fn trailers(mut lines: Vec<Header>) -> Result<HeaderMap, HeadError> {
    retain_end_to_end(&mut lines);
    header_map(lines)
}

fn header_map(lines: Vec<Header>) -> Result<HeaderMap, HeadError> {
    if lines.len() > MAX_HEADERS || weight(&lines) > 2 * MAX_HEAD {
        return Err(HeadError("too many headers"));
    }
    let mut headers = HeaderMap::with_capacity(lines.len() + 4);
    for (name, value) in lines {
        let name = HeaderName::from_bytes(&name).map_err(|_| HeadError("header name"))?;
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| HeadError("header value"))?;
        headers.append(name, value);
    }
    Ok(headers)
}

/// The head of a target's response to a request, as it goes to the hub. `length` is that of the
/// body that hyper gives, if it is known. `None`: the body is coded in a way that would be lost.
pub(super) fn response(
    head: &response::Parts,
    request: &RequestHead,
    length: Option<u64>,
) -> Option<ResponseHead> {
    let codings = head.headers.get_all(TRANSFER_ENCODING).iter();
    let mut codings = codings.flat_map(|value| elements(value.as_bytes()));
    if !codings.all(|coding| coding.eq_ignore_ascii_case(b"chunked")) {
        return None;
    }
    let mut headers = lines(&head.headers);
    // What these say of a length is about a body that is not sent.
    let described = request.method == "HEAD" || head.status == StatusCode::NOT_MODIFIED;
    if !described {
        headers.retain(|(name, _)| name[..] != *CONTENT_LENGTH.as_str().as_bytes());
    }
    let upgraded = head.status == StatusCode::SWITCHING_PROTOCOLS;
    let body = match length {
        _ if described || upgraded || head.status == StatusCode::NO_CONTENT => Body::None,
        Some(length) => Body::Length(length),
        None => Body::Chunked,
    };
    let upgrade = head.headers.get(UPGRADE).filter(|_| upgraded);
    Some(ResponseHead {
        status: head.status.as_u16(),
        headers,
        upgrade: upgrade.map(|value| Bytes::copy_from_slice(value.as_bytes())),
        body,
    })
}

/// The header lines that hold from end to end.
pub(super) fn lines(headers: &HeaderMap) -> Vec<Header> {
    let mut lines = headers
        .iter()
        .map(|(name, value)| {
            let name = Bytes::copy_from_slice(name.as_str().as_bytes());
            (name, Bytes::copy_from_slice(value.as_bytes()))
        })
        .collect();
    retain_end_to_end(&mut lines);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(
        method: &str,
        target: &'static str,
        headers: &[(&'static str, &'static str)],
    ) -> RequestHead {
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        RequestHead {
            method: method.into(),
            target: bytes(target),
            headers: headers.iter().map(|(n, v)| (bytes(n), bytes(v))).collect(),
            upgrade: None,
            body: Body::None,
        }
    }

    #[test]
    fn requests_say_what_the_head_says() {
        let mut get = head(
            "GET",
            "/a%2Fb?c=%7B",
            &[("te", "trailers"), ("x", "1"), ("x", "2")],
        );
        get.upgrade = Some(Bytes::from_static(b"websocket"));
        let request = request(&get, 80).unwrap();
        assert_eq!(request.uri().to_string(), "/a%2Fb?c=%7B");
        let all = |name| {
            let values = request.headers().get_all(name).iter();
            values
                .map(|value| value.to_str().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(all("x"), ["1", "2"]);
        assert_eq!(all("connection"), ["te", "upgrade"]);
        assert_eq!(all("upgrade"), ["websocket"]);
        assert_eq!(all("host"), ["localhost:80"]);
        assert!(all("content-length").is_empty() && all("transfer-encoding").is_empty());
    }

    #[test]
    fn a_request_of_http2_has_nothing_of_a_connection() {
        let lines = [
            ("host", "a.test:81"),
            ("te", "trailers"),
            ("x", "1"),
            ("connection", "x-hop"),
            ("x-hop", "1"),
        ];
        let mut post = head("POST", "/a%2Fb?c", &lines);
        post.body = Body::Chunked;
        post.upgrade = Some(Bytes::from_static(b"h2c"));
        let request = request_of_http2(&post, 80).unwrap();
        assert_eq!(request.uri().to_string(), "http://a.test:81/a%2Fb?c");
        let mut names: Vec<_> = request.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["te", "x"]);
        post.body = Body::Length(3);
        post.upgrade = None;
        let request = request_of_http2(&post, 80).unwrap();
        assert_eq!(request.headers()["content-length"], "3");
        let options = request_of_http2(&head("OPTIONS", "*", &[]), 80).unwrap();
        assert_eq!(options.uri().path(), "*");
        assert_eq!(options.uri().authority().unwrap(), "localhost:80");
        for host in ["a@b", "a b", "", "a/b"] {
            let get = head("GET", "/", &[("host", host)]);
            assert!(request_of_http2(&get, 80).is_err(), "{host}");
        }
        let twice = head("GET", "/", &[("host", "a"), ("host", "b")]);
        assert!(request_of_http2(&twice, 80).is_err());
        assert!(request_of_http2(&head("CONNECT", "a:80", &[]), 80).is_err());
    }

    #[test]
    fn an_expectation_crosses_where_a_body_follows() {
        for (value, body, crosses) in [
            ("100-continue", Body::Length(5), true),
            ("100-Continue", Body::Chunked, true),
            ("100-continue", Body::Length(0), false),
            ("100-continue", Body::None, false),
            ("something", Body::Length(5), false),
        ] {
            let mut post = head("POST", "/", &[("expect", value)]);
            post.body = body;
            let request = request(&post, 80).unwrap();
            assert_eq!(request.headers().contains_key(EXPECT), crosses, "{value}");
            assert_eq!(expects(&post), crosses);
        }
    }

    #[test]
    fn a_hub_cannot_smuggle() {
        let smuggled = [
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("host", "a"),
        ];
        let mut post = head("POST", "/", &smuggled);
        post.body = Body::Length(0);
        let sent = request(&post, 80).unwrap();
        assert_eq!(sent.headers().len(), 2);
        assert_eq!(sent.headers()["content-length"], "0");
        for target in [
            "",
            "http://elsewhere/",
            "elsewhere:80",
            "/a b",
            "/a\r\nx: y",
        ] {
            assert!(request(&head("GET", target, &[]), 80).is_err(), "{target}");
        }
        for (name, value) in [("x y", "1"), ("x\r\ny", "1"), ("", "1"), ("x", "1\r\ny: 2")] {
            let lines = [(name, value)];
            assert!(request(&head("GET", "/", &lines), 80).is_err(), "{name:?}");
        }
        assert!(request(&head("CONNECT", "/", &[]), 80).is_err());
        assert!(request(&head("G T", "/", &[]), 80).is_err());
        assert!(request(&head("GET", "/", &[("x", ""); MAX_HEADERS + 1]), 80).is_err());
    }

    #[test]
    fn lengths_of_responses() {
        let cases = [
            ("GET", 200, Some(7), Body::Length(7), false),
            ("GET", 200, Some(0), Body::Length(0), false),
            ("GET", 200, None, Body::Chunked, false),
            ("HEAD", 200, Some(0), Body::None, true),
            ("GET", 304, Some(0), Body::None, true),
            ("GET", 204, Some(0), Body::None, false),
        ];
        for (method, status, length, body, described) in cases {
            let answer = http::Response::builder()
                .status(status)
                .header("content-length", "7");
            let (parts, ()) = answer.body(()).unwrap().into_parts();
            let head = response(&parts, &head(method, "/", &[]), length).unwrap();
            assert_eq!(head.body, body, "{method} {status}");
            assert_eq!(
                head.headers.len(),
                usize::from(described),
                "{method} {status}"
            );
        }
    }
}
