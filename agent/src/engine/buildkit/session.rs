//! The session of a build: a connection on which BuildKit asks its client.
//!
//! ```text
//! agent                                  daemon
//!  | POST /session, Upgrade: h2c ------->  |
//!  |  <----------------------------- 101   |
//!  |  <--- HTTP/2, gRPC: Health/Check      |  are you there?
//!  |  <--- Auth/Credentials{host}          |  who are you at this registry?
//!  | name and secret, or nobody in  ---->  |
//!  | particular                            |
//! ```
//!
//! Not needed for a context that comes as the body of a build, but for a base image that is to be
//! pulled: without a session BuildKit gives up a registry that wants a token, even an anonymous one
//! (20.10: "no active sessions"), and most do.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::stream;
use http::header::{CONNECTION, CONTENT_TYPE, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Collected, Empty, Limited, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

use super::super::Engine;
use super::super::build::Logins;
use super::super::request::{self, RequestError};
use super::{Fields, Value};

const HEALTH: &str = "/grpc.health.v1.Health/Check";
const CREDENTIALS: &str = "/moby.filesync.v1.Auth/Credentials";

/// How long the daemon may take to take a session.
const OPENING: Duration = Duration::from_secs(30);

/// The most bytes of a question: a host's name.
const MAX_QUESTION: usize = 64 * 1024;

/// A session that the daemon knows.
pub(crate) struct Session {
    id: String,
    connection: Upgraded,
}

impl Session {
    /// Opens one; `None` if the daemon has no sessions, and so no BuildKit.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub(crate) async fn open(engine: &Engine) -> Result<Option<Self>, RequestError> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(std::io::Error::other)?;
        let id = format!("{:032x}", u128::from_be_bytes(random));
        let request = opening(engine, &id)?;
        let opened = timeout(OPENING, request::upgrade(engine, request)).await;
        let connection = opened.map_err(|_| RequestError::Silent(OPENING))??;
        Ok(connection.map(|connection| Self { id, connection }))
    }

    /// What the daemon knows it by.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Answers what the daemon asks, until it closes the session.
    pub(in crate::engine) async fn serve(self, logins: Logins) {
        let logins = Arc::new(logins);
        let service = service_fn(move |request| answer(request, logins.clone()));
        let server = http2::Builder::new(TokioExecutor::new())
            .max_concurrent_streams(16)
            .serve_connection(self.connection, service);
        if let Err(error) = server.await {
            tracing::debug!("the session of a build broke: {error}");
        }
    }
}

/// The request that opens a session, and says what can be asked on it.
fn opening(engine: &Engine, id: &str) -> Result<Request<Empty<Bytes>>, RequestError> {
    let mut request = request::request(engine, Method::POST, "/session", Empty::new())?;
    let headers = request.headers_mut();
    headers.remove(CONTENT_TYPE);
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("h2c"));
    let id = HeaderValue::from_str(id).map_err(http::Error::from)?;
    headers.insert("x-docker-expose-session-uuid", id);
    let name = HeaderValue::from_static("hub");
    headers.insert("x-docker-expose-session-name", name);
    for method in [HEALTH, CREDENTIALS] {
        let method = HeaderValue::from_static(method);
        headers.append("x-docker-expose-session-grpc-method", method);
    }
    Ok(request)
}

/// Answers one call of gRPC: the length of a message, the message, and a status.
async fn answer(
    request: Request<Incoming>,
    logins: Arc<Logins>,
) -> Result<Response<impl Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let (head, question) = request.into_parts();
    // Whatever is asked has to be taken; what can't be read asks for nobody.
    let question = Limited::new(question, MAX_QUESTION).collect().await;
    let question = question.map(Collected::to_bytes).unwrap_or_default();
    let (message, status) = match head.uri.path() {
        // `HealthCheckResponse { status = 1: SERVING }`
        HEALTH => (Some(framed(&[0x08, 1])), "0"),
        CREDENTIALS => {
            let shown = host(&question).and_then(|host| logins.of(host));
            let (name, secret) = shown.unwrap_or_default();
            (Some(framed(&credentials(name, secret))), "0")
        }
        // "Unimplemented".
        _ => (None, "12"),
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    let message = message.map(|message| Ok(Frame::data(message)));
    let frames = message.into_iter().chain([Ok(Frame::trailers(trailers))]);
    let mut response = Response::new(StreamBody::new(stream::iter(frames)));
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(CONTENT_TYPE, grpc);
    Ok(response)
}

/// The message of a call or of its answer as gRPC frames it: not compressed, its length before it.
fn framed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(5 + message.len());
    framed.put_u8(0);
    // Ours are small.
    framed.put_u32(u32::try_from(message.len()).unwrap_or_default());
    framed.put_slice(message);
    framed.freeze()
}

/// The host of a framed `CredentialsRequest { host = 1 }`.
fn host(framed: &[u8]) -> Option<&str> {
    let (head, message) = framed.split_at_checked(5)?;
    // Only a client that takes compressed messages gets some.
    if head[0] != 0 {
        return None;
    }
    let mut hosts = Fields(message).filter_map(|field| match field {
        Ok((1, Value::Bytes(host))) => std::str::from_utf8(host).ok(),
        _ => None,
    });
    hosts.next()
}

/// `CredentialsResponse { username = 1, secret = 2 }`; empty for nobody in particular.
fn credentials(name: &str, secret: &str) -> Vec<u8> {
    let mut message = Vec::new();
    for (number, text) in [(1, name), (2, secret)] {
        if text.is_empty() {
            continue;
        }
        message.push(number << 3 | 2);
        let mut len = text.len();
        while len >= 0x80 {
            message.push((len & 0x7f) as u8 | 0x80);
            len >>= 7;
        }
        message.push(len as u8);
        message.extend_from_slice(text.as_bytes());
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_read_from_its_frame_alone() {
        assert_eq!(host(b"\0\0\0\0\x0b\x0a\x09r.example"), Some("r.example"));
        // A field that is not known goes before.
        assert_eq!(host(b"\0\0\0\0\x05\x10\x01\x0a\x01r"), Some("r"));
        for nothing in [
            &b""[..],
            b"\0\0\0\0",
            b"\0\0\0\0\0",
            b"\x01\0\0\0\x03\x0a\x01r",
            b"\0\0\0\0\x03\x0a\x09r",
            b"\0\0\0\0\x03\x0a\x01\xff",
        ] {
            assert_eq!(host(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn golden_answers() {
        assert_eq!(framed(&[0x08, 1]), b"\0\0\0\0\x02\x08\x01"[..]);
        assert_eq!(framed(&credentials("", "")), b"\0\0\0\0\0"[..]);
        assert_eq!(credentials("me", "pw"), b"\x0a\x02me\x12\x02pw");
        assert_eq!(credentials("", "t"), b"\x12\x01t");
        // Tokens are longer than one byte of length says.
        let long = credentials("", &"s".repeat(300));
        assert_eq!(long[..3], [0x12, 0xac, 0x02]);
        assert_eq!(long.len(), 303);
    }
}
