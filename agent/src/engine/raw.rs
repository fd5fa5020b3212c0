//! One request to the daemon on a connection of its own, for what the client of its API does not
//! tell or cannot say: that nothing changed, warnings, numbers that it has no room for.

use bollard::errors::Error;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};

use super::Engine;

/// The most bytes of an answer that are read: 1 MiB. All that is asked here is answered in few.
const MAX_ANSWER: usize = 1024 * 1024;

impl Engine {
    /// Posts `body` as JSON to `path`, which begins after the API's version. Gives the status, a
    /// success or 304, and the answer. There is no limit of time.
    pub(super) async fn post<B: Serialize>(
        &self,
        path: &str,
        body: Option<&B>,
    ) -> Result<(StatusCode, Bytes), Error> {
        let body = body.map(serde_json::to_vec).transpose()?;
        let version = self.docker.client_version();
        let request = Request::post(format!("/v{version}{path}"))
            .header(HOST, "docker")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.unwrap_or_default())))?;
        let (mut sender, driver) = http1::handshake(TokioIo::new(self.dial().await?)).await?;
        let exchange = async {
            let (head, body) = sender.send_request(request).await?.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await;
            let body = body.map_err(std::io::Error::other)?.to_bytes();
            Ok((head.status, body))
        };
        tokio::pin!(exchange, driver);
        // The connection lives in this future: who gives it up closes it.
        let answer: Result<_, Error> = tokio::select! {
            biased;
            answer = &mut exchange => answer,
            _ = &mut driver => exchange.await,
        };
        let (status, answer) = answer?;
        if status.is_success() || status == StatusCode::NOT_MODIFIED {
            return Ok((status, answer));
        }
        Err(Error::DockerResponseServerError {
            status_code: status.as_u16(),
            message: message(&answer),
        })
    }
}

/// What the daemon says of an error.
fn message(answer: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Answer {
        message: String,
    }
    match serde_json::from_slice::<Answer>(answer) {
        Ok(answer) => answer.message,
        Err(_) => String::from_utf8_lossy(answer).into_owned(),
    }
}
