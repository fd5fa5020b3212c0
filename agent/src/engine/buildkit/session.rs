//! The session of a build: a connection on which BuildKit asks its client.
//!
//! ```text
//! agent                                  daemon
//!  | POST /session, Upgrade: h2c ------->  |
//!  |  <----------------------------- 101   |
//!  |  <--- HTTP/2, gRPC: Health/Check      |  are you there?
//!  |  <--- Auth/Credentials{host}          |  who are you at this registry?
//!  | nobody in particular -------------->  |
//! ```
//!
//! Not needed for a context that comes as the body of a build, but for a base image that is to be
//! pulled: without a session BuildKit gives up a registry that wants a token, even an anonymous one
//! (20.10: "no active sessions"), and most do.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONNECTION, CONTENT_TYPE, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Empty, Limited, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

use super::super::Engine;
use super::super::request::{self, RequestError};

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
    pub(crate) async fn serve(self) {
        let server = http2::Builder::new(TokioExecutor::new())
            .max_concurrent_streams(16)
            .serve_connection(self.connection, service_fn(answer));
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
) -> Result<Response<impl Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let (head, question) = request.into_parts();
    // What is asked makes no difference, but has to be taken.
    let _ = Limited::new(question, MAX_QUESTION).collect().await;
    let (message, status): (&[u8], _) = match head.uri.path() {
        // `HealthCheckResponse { status = 1: SERVING }`
        HEALTH => (&[0, 0, 0, 0, 2, 0x08, 1], "0"),
        // `CredentialsResponse {}`: no name, no secret.
        CREDENTIALS => (&[0, 0, 0, 0, 0], "0"),
        // "Unimplemented".
        _ => (&[], "12"),
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    let message = (!message.is_empty()).then(|| Ok(Frame::data(Bytes::from_static(message))));
    let frames = message.into_iter().chain([Ok(Frame::trailers(trailers))]);
    let mut response = Response::new(StreamBody::new(stream::iter(frames)));
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(CONTENT_TYPE, grpc);
    Ok(response)
}
