//! An answer of the daemon that is read as it comes: each on a connection of its own, which ends
//! with it.

use std::io;

use bytes::Bytes;
use http::Request;
use http::header::HOST;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::time::nanoseconds;
use super::{Engine, REQUEST_TIMEOUT};

/// The most bytes of an answer that is read whole: the list of ten thousand containers has some 20
/// MiB.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// Why the daemon's answer did not come, or broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    /// There is no connection to it, or there is none any more.
    #[error("the Docker daemon can't be reached: {0}")]
    Unreachable(String),
    /// It answers with an error.
    #[error("{message}")]
    Refused {
        /// Of HTTP.
        status: u16,
        /// In its words.
        message: String,
    },
    /// It says what cannot be understood.
    #[error("the Docker daemon's answer makes no sense: {0}")]
    Malformed(String),
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        Self::Unreachable(error.to_string())
    }
}

impl From<hyper::Error> for StreamError {
    fn from(error: hyper::Error) -> Self {
        Self::Unreachable(error.to_string())
    }
}

/// The body of an answer. Dropping it closes its connection.
#[derive(Debug)]
pub(crate) struct Body(Incoming);

impl Body {
    /// The next bytes, never of more than one of the pieces that the daemon sent; `None` at the
    /// end. A call that is given up loses nothing.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, StreamError> {
        loop {
            match self.0.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(bytes) = frame?.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    async fn whole(mut self) -> Result<Vec<u8>, StreamError> {
        let mut all = Vec::new();
        while let Some(bytes) = self.chunk().await? {
            if all.len() + bytes.len() > MAX_ANSWER {
                let size = format!("it has more than {MAX_ANSWER} bytes");
                return Err(StreamError::Malformed(size));
            }
            all.extend_from_slice(&bytes);
        }
        Ok(all)
    }
}

impl Engine {
    /// Asks for `path`, which begins behind the API's version, and gives the body of the answer as
    /// soon as its head has come, within 120 s.
    pub(crate) async fn get(&self, path: &str) -> Result<Body, StreamError> {
        let version = self.docker.client_version();
        let request = Request::get(format!("/v{version}{path}"))
            .header(HOST, "docker")
            .body(Empty::<Bytes>::new())
            .map_err(|error| StreamError::Malformed(error.to_string()))?;
        let ask = async {
            let (mut sender, driver) = http1::handshake(TokioIo::new(self.dial().await?)).await?;
            // Ends with the body; what goes wrong there, the body tells.
            tokio::spawn(driver);
            Ok::<_, StreamError>(sender.send_request(request).await?)
        };
        let late = || StreamError::Unreachable(format!("no answer within {REQUEST_TIMEOUT} s"));
        let limit = std::time::Duration::from_secs(REQUEST_TIMEOUT);
        let answer = timeout(limit, ask).await.map_err(|_| late())??;
        let status = answer.status();
        let body = Body(answer.into_body());
        if status.is_success() {
            return Ok(body);
        }
        let said = body.whole().await?;
        Err(StreamError::Refused {
            status: status.as_u16(),
            message: message(&said),
        })
    }

    /// Asks for `path` and reads the JSON of the answer.
    pub(crate) async fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, StreamError> {
        let answer = self.get(path).await?.whole().await?;
        serde_json::from_slice(&answer).map_err(|error| StreamError::Malformed(error.to_string()))
    }

    /// What the daemon's clock says: nanoseconds since 1970 UTC.
    pub(crate) async fn now_ns(&self) -> Result<i64, StreamError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Info {
            system_time: String,
        }
        let Info { system_time } = self.get_json("/info").await?;
        nanoseconds(&system_time).ok_or_else(|| {
            StreamError::Malformed(format!("its time is {system_time:?}, which is no RFC 3339"))
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
        Err(_) => String::from_utf8_lossy(answer).trim().to_owned(),
    }
}
