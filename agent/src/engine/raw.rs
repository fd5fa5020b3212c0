//! One request with a small answer, for what the client of the daemon's API does not tell or cannot
//! say: that nothing changed, warnings, numbers that it has no room for.

use std::future::pending;
use std::io;

use bollard::errors::Error;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use serde::Serialize;

use super::Engine;
use super::request::{self, RequestError, refusal};

/// The most bytes of an answer that are read: 1 MiB. All that is asked here is answered in few.
const MAX_ANSWER: usize = 1024 * 1024;

impl Engine {
    /// Posts `body` as JSON to `path`, which begins after the API's version. Gives the status, a
    /// success or 304, and the answer. There is no limit of time; who gives it up closes the
    /// connection.
    pub(super) async fn post<B: Serialize>(
        &self,
        path: &str,
        body: Option<&B>,
    ) -> Result<(StatusCode, Bytes), Error> {
        let body = body.map(serde_json::to_vec).transpose()?;
        let body = Full::new(Bytes::from(body.unwrap_or_default()));
        let mut request = request::request(self, Method::POST, path, body).map_err(client)?;
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(CONTENT_TYPE, json);
        request::exchange(self, request, pending(), answer)
            .await
            .map_err(client)?
    }
}

/// What the daemon says, if it is no refusal.
async fn answer(response: Response<Incoming>) -> Result<(StatusCode, Bytes), Error> {
    let status = response.status();
    if status.is_success() || status == StatusCode::NOT_MODIFIED {
        let answer = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await;
        return Ok((status, answer.map_err(io::Error::other)?.to_bytes()));
    }
    Err(Error::DockerResponseServerError {
        status_code: status.as_u16(),
        message: refusal(response).await,
    })
}

/// The same error as the client of the API has it.
pub(super) fn client(error: RequestError) -> Error {
    match error {
        RequestError::Unreachable(err) => Error::IOError { err },
        RequestError::Broken(err) => Error::HyperResponseError { err },
        RequestError::Invalid(err) => Error::HttpClientError { err },
        RequestError::Silent(_) => Error::RequestTimeoutError,
    }
}
