//! What HTTP/2 and HTTP/3 have in common: their heads as the core takes them, and back. Pure.
//!
//! A WebSocket rides on a stream here, asked for with CONNECT and `:protocol` (RFC 8441, RFC 9220).
//! Targets speak HTTP/1.1, so it becomes an upgrade: the key that this needs is made here, and what
//! the target makes of it is checked here.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue,
    SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{Method, Response, StatusCode, request};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use crate::proxy::Answer;

/// What a WebSocket's key is followed by where it is hashed (RFC 6455, 1.3).
const WEBSOCKET: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Headers that mean something between two neighbours in HTTP/1.1, and nothing here (RFC 9113,
/// 8.2.2).
const OF_CONNECTIONS: [HeaderName; 5] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TRANSFER_ENCODING,
    UPGRADE,
];

/// A request's head, checked.
pub(super) struct Checked {
    pub(super) head: request::Parts,
    /// How long the body is, where that is said.
    pub(super) length: Option<u64>,
    /// Set if it asks for a WebSocket: what the target has to answer.
    pub(super) websocket: Option<HeaderValue>,
}

/// Checks a request's head, and makes it one that the core understands. `ended`: there is no body.
/// `protocol` is what an extended CONNECT asks for, `key` are random bytes.
pub(super) fn check(
    mut head: request::Parts,
    ended: bool,
    protocol: Option<&str>,
    key: [u8; 16],
) -> Result<Checked, Answer> {
    let headers = &mut head.headers;
    let only_trailers = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"trailers");
    if OF_CONNECTIONS.iter().any(|name| headers.contains_key(name))
        || !headers.get_all(TE).iter().all(only_trailers)
    {
        return Err(Answer::bad_request(
            "the request has headers that are for HTTP/1.1 connections",
        ));
    }
    let mut hosts = headers.get_all(HOST).iter();
    if let Some(authority) = head.uri.authority()
        && !hosts.all(|host| {
            let authority = authority.as_str().as_bytes();
            host.as_bytes().eq_ignore_ascii_case(authority)
        })
    {
        return Err(Answer::bad_request(
            "the request names one host in :authority and another in Host",
        ));
    }
    if head.uri.authority().is_none() && !headers.contains_key(HOST) {
        return Err(Answer::bad_request("the request names no host"));
    }
    join_cookies(headers);
    let length = match (ended, length(headers)?) {
        (true, None | Some(0)) => Some(0),
        (true, Some(_)) => return Err(Answer::upload_broke()),
        (false, length) => length,
    };
    let mut checked = Checked {
        head,
        length,
        websocket: None,
    };
    match protocol {
        Some(protocol) if checked.head.method == Method::CONNECT => {
            if !protocol.eq_ignore_ascii_case("websocket") {
                return Err(Answer::unknown_protocol());
            }
            checked.as_websocket(key);
        }
        // Anything else that is CONNECT is the core's to refuse.
        _ => {}
    }
    Ok(checked)
}

impl Checked {
    fn as_websocket(&mut self, key: [u8; 16]) {
        let key = BASE64.encode(key);
        let hashed = digest(
            &SHA1_FOR_LEGACY_USE_ONLY,
            format!("{key}{WEBSOCKET}").as_bytes(),
        );
        let text = |text: String| HeaderValue::try_from(text).expect("Base64 is text");
        self.head.method = Method::GET;
        self.head.headers.remove(CONTENT_LENGTH);
        self.head.headers.insert(SEC_WEBSOCKET_KEY, text(key));
        self.length = Some(0);
        self.websocket = Some(text(BASE64.encode(hashed)));
    }
}

/// Whether a request has a body as a rule: its head says how long it is, or its method is for
/// sending one.
pub(super) fn brings_a_body(head: &request::Parts) -> bool {
    let rarely = [
        Method::GET,
        Method::HEAD,
        Method::OPTIONS,
        Method::DELETE,
        Method::TRACE,
    ];
    head.headers.contains_key(CONTENT_LENGTH) || !rarely.contains(&head.method)
}

/// Puts the crumbs of a cookie together, into one line as HTTP/1.1 has it (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut crumbs = headers.get_all(COOKIE).iter();
    if crumbs.nth(1).is_none() {
        return;
    }
    let crumbs: Vec<_> = headers.get_all(COOKIE).iter().collect();
    let crumbs: Vec<_> = crumbs.into_iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

fn length(headers: &HeaderMap) -> Result<Option<u64>, Answer> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(length) = lengths.next() else {
        return Ok(None);
    };
    let text = length.to_str().unwrap_or_default();
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(length) if digits && lengths.next().is_none() => Ok(Some(length)),
        _ => Err(Answer::bad_request("the request's Content-Length is none")),
    }
}

/// A response without what is HTTP/1.1's.
pub(super) fn plain<T>(mut response: Response<T>) -> Response<T> {
    for name in OF_CONNECTIONS {
        response.headers_mut().remove(name);
    }
    response
}

/// The answer to a request for a WebSocket: it is there if the target switched as it should,
/// which 200 says here. Other answers of the kind that says yes would be taken for that.
pub(super) fn switched<T>(
    mut response: Response<T>,
    expected: &HeaderValue,
) -> Result<Response<T>, Answer> {
    let accepts = response.headers_mut().remove(SEC_WEBSOCKET_ACCEPT);
    let response = match response.status() {
        StatusCode::SWITCHING_PROTOCOLS if accepts.as_ref() == Some(expected) => {
            *response.status_mut() = StatusCode::OK;
            response
        }
        StatusCode::SWITCHING_PROTOCOLS => return Err(Answer::not_switched()),
        status if status.is_success() => return Err(Answer::not_switched()),
        _ => response,
    };
    Ok(plain(response))
}

/// Whether a response to this method has no body, whatever its headers say.
pub(super) fn bodyless(method: &Method, status: StatusCode) -> bool {
    *method == Method::HEAD
        || matches!(
            status,
            StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED
        )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use http::Request;

    use super::*;

    fn head(method: Method, uri: &str, headers: &[(&'static str, &str)]) -> request::Parts {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn checked(headers: &[(&'static str, &str)], ended: bool) -> Result<Checked, Answer> {
        check(
            head(Method::POST, "https://hub.test/x", headers),
            ended,
            None,
            [0; 16],
        )
    }

    #[test]
    fn what_is_of_connections_is_refused() {
        for header in [
            ("connection", "close"),
            ("keep-alive", "5"),
            ("proxy-connection", "close"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("te", "gzip"),
            ("te", "trailers, gzip"),
            ("host", "other.test"),
            ("content-length", "+1"),
            ("content-length", "1, 1"),
            ("content-length", ""),
        ] {
            let answer = checked(&[header], false).err().unwrap();
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{header:?}");
        }
        let twice = [("content-length", "1"), ("content-length", "1")];
        assert!(checked(&twice, false).is_err());
        assert!(checked(&[("content-length", "1")], true).is_err());
    }

    #[test]
    fn heads_pass() {
        let fine = [
            ("te", "Trailers"),
            ("host", "HUB.test"),
            ("content-length", "7"),
        ];
        assert_eq!(checked(&fine, false).unwrap().length, Some(7));
        assert_eq!(checked(&[], false).unwrap().length, None);
        assert_eq!(checked(&[], true).unwrap().length, Some(0));
        let crumbs = [
            ("cookie", "a=b"),
            ("x", "y"),
            ("cookie", "c=d; e=f"),
            ("cookie", "g"),
        ];
        let headers = checked(&crumbs, true).unwrap().head.headers;
        let cookies: Vec<_> = headers.get_all(COOKIE).iter().collect();
        assert_eq!(cookies, ["a=b; c=d; e=f; g"]);
    }

    #[test]
    fn a_websocket_becomes_an_upgrade_and_back() {
        let connect = || head(Method::CONNECT, "https://hub.test/socket", &[]);
        // The example of RFC 6455.
        let key = *b"the sample nonce";
        let checked = check(connect(), false, Some("websocket"), key).unwrap();
        assert_eq!(checked.head.method, Method::GET);
        assert_eq!(checked.length, Some(0));
        assert_eq!(
            checked.head.headers[SEC_WEBSOCKET_KEY],
            "dGhlIHNhbXBsZSBub25jZQ=="
        );
        let expected = checked.websocket.unwrap();
        assert_eq!(expected, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let answer = |status: u16, accept: &str| {
            let response = Response::builder()
                .status(status)
                .header(UPGRADE, "websocket")
                .header(SEC_WEBSOCKET_ACCEPT, accept)
                .body(())
                .unwrap();
            switched(response, &expected)
        };
        let yes = answer(101, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=").unwrap();
        assert_eq!((yes.status().as_u16(), yes.headers().len()), (200, 0));
        assert_eq!(answer(403, "").unwrap().status().as_u16(), 403);
        for (status, accept) in [(101, "other"), (200, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")] {
            let answer = answer(status, accept).err().unwrap();
            assert_eq!(answer.status, StatusCode::BAD_GATEWAY);
        }
        let other = check(connect(), false, Some("connect-udp"), key)
            .err()
            .unwrap();
        assert_eq!(other.status, StatusCode::NOT_IMPLEMENTED);
        let plain = check(connect(), false, None, key).unwrap();
        assert!(plain.websocket.is_none() && plain.head.method == Method::CONNECT);
    }
}
