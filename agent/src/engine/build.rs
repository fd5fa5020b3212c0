//! Builds an image with the daemon's own builder, its context streamed into `POST /build`.
//!
//! ```text
//! Receiver --tar--> POST /build?version=…  --lines of JSON--> Event --> Sender
//! ```
//!
//! BuildKit takes the context as the body of the request like the classic builder does, and needs a
//! [session](super::buildkit::session) beside it only to pull base images, where it asks who pulls;
//! the classic builder has the answer in a header. That was tried on a
//! daemon 20.10, as was: both stop at once when the connection is closed, in the upload and in a
//! `RUN`; the classic builder leaves its container behind unless `forcerm` is set; a bad name or
//! option is refused before the body is read, while whatever stands in the context is only looked
//! at when all of it is there, a Dockerfile's syntax included. (The `docker` CLI's own way to send a
//! context to BuildKit, one file at a time as they are asked for, needs the files and not a tar; it
//! is there through the Docker socket.)
//!
//! BuildKit is asked for where the daemon has it and its operator has not turned it off.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bollard::errors::Error;
use bytes::{BufMut as _, Bytes, BytesMut};
use form_urlencoded::Serializer;
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hub_protocol::kind::build::{Build, Progress};
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_quic::operation::{Receiver, Sender};
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};

use super::Engine;
use super::buildkit::{self, session::Session};
use super::error;
use super::request::{self, ANSWER, PREPARING, refusal};

mod check;
mod logins;

pub(crate) use check::check;
pub(super) use logins::Logins;

/// The most bytes of one line that a daemon says: 4 MiB. What BuildKit lets a step print in all is
/// a quarter of it.
const MAX_LINE: usize = 4 * 1024 * 1024;

/// The first version of the API whose daemons have BuildKit without being told to.
const BUILDKIT_SINCE: (usize, usize) = (1, 39);

/// What builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Builder {
    /// The builder that daemons have always had: a container for each step.
    Classic,
    /// Its successor.
    BuildKit,
}

impl Builder {
    /// The best that the daemon has and may use.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) async fn of(engine: &Engine) -> Result<Self, Failure> {
        let request = request::request(engine, Method::GET, "/_ping", Empty::new())?;
        let answer = |response: Response<Incoming>| async move {
            let default = response.headers().get("builder-version");
            default.is_some_and(|version| version == "1")
        };
        let turned_off = request::ask(engine, request, ANSWER, answer).await?;
        let version = engine.docker().client_version();
        let old = (version.major_version, version.minor_version) < BUILDKIT_SINCE;
        Ok(if turned_off || old {
            Self::Classic
        } else {
            Self::BuildKit
        })
    }
}

/// What the daemon says in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Event {
    Progress(Progress),
    /// The id of what was built.
    Image(String),
    /// Why nothing was.
    Failed(String),
}

/// Builds what comes on `context`, and tells on `progress` what the daemon says, one JSON object a
/// line; gives the image's id. Dropping it stops the build.
///
/// # Errors
/// What the daemon says, with [`BUILD_FAILED`](FailureCode::BUILD_FAILED), as soon as it says it: by
/// then the context is stopped.
pub(crate) async fn run(
    engine: &Engine,
    builder: Builder,
    build: &Build,
    context: Receiver,
    progress: Sender,
) -> Result<String, Failure> {
    let session = match builder {
        Builder::Classic => None,
        Builder::BuildKit => Session::open(engine).await?,
    };
    let logins = Logins::new(&build.credentials);
    let built = async {
        let Some(session) = session else {
            let (query, shown) = (query(build, None, false), logins.header());
            return send(engine, &query, shown, context, progress).await;
        };
        let without_network = !has_bridge(engine).await;
        let query = query(build, Some(session.id()), without_network);
        let serve = session.serve(logins);
        let send = send(engine, &query, None, context, progress);
        tokio::pin!(send);
        tokio::select! {
            biased;
            built = &mut send => built,
            // The build may go on without, and says so if it can't.
            () = serve => send.await,
        }
    };
    built.await.map_err(|mut failure| {
        let shown = build.credentials.values();
        failure.message = error::without_secrets(&failure.message, shown);
        failure
    })
}

/// Whether the daemon has its usual network. The classic builder does without if there is none;
/// BuildKit fails.
async fn has_bridge(engine: &Engine) -> bool {
    let asked = engine.docker().inspect_network("bridge", None).await;
    !matches!(
        asked,
        Err(Error::DockerResponseServerError {
            status_code: 404,
            ..
        })
    )
}

/// The query of `POST /build`; for BuildKit if there is a session. Never to be shown: values of
/// build arguments may be secret.
fn query(build: &Build, session: Option<&str>, without_network: bool) -> String {
    let mut query = Serializer::new(String::new());
    // A container that a step of the classic builder ran in is removed, whatever became of it.
    query.append_pair("rm", "1").append_pair("forcerm", "1");
    match session {
        Some(id) => query.append_pair("version", "2").append_pair("session", id),
        None => query.append_pair("version", "1"),
    };
    if without_network {
        query.append_pair("networkmode", "none");
    }
    for tag in &build.tags {
        query.append_pair("t", tag);
    }
    for (name, value) in [
        ("dockerfile", &build.dockerfile),
        ("target", &build.target),
        ("platform", &build.platform),
    ] {
        if let Some(value) = value {
            query.append_pair(name, value);
        }
    }
    if build.no_cache {
        query.append_pair("nocache", "1");
    }
    if build.pull {
        query.append_pair("pull", "1");
    }
    map(&mut query, "buildargs", &build.build_args);
    map(&mut query, "labels", &build.labels);
    query.finish()
}

fn map<T: Serialize>(query: &mut Serializer<'_, String>, name: &str, map: &BTreeMap<String, T>) {
    if !map.is_empty()
        && let Ok(json) = serde_json::to_string(map)
    {
        query.append_pair(name, &json);
    }
}

async fn send(
    engine: &Engine,
    query: &str,
    shown: Option<HeaderValue>,
    context: Receiver,
    progress: Sender,
) -> Result<String, Failure> {
    let path = format!("/build?{query}");
    let mut request = request::request(engine, Method::POST, &path, ())?;
    if let Some(shown) = shown {
        request.headers_mut().insert("x-registry-config", shown);
    }
    let carry = |response: Response<Incoming>| async move {
        if response.status() == StatusCode::OK {
            follow(response.into_body(), progress).await
        } else {
            let message = refusal(response).await;
            Err(Failure::new(FailureCode::BUILD_FAILED, message))
        }
    };
    request::upload(engine, request, context, carry).await?
}

/// Follows what the daemon says to its end.
async fn follow(mut body: Incoming, mut progress: Sender) -> Result<String, Failure> {
    let mut lines = Lines::default();
    let mut image = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let why = format!("the Docker daemon broke off the build: {error}");
            Failure::new(FailureCode::RUNTIME_UNAVAILABLE, why).retry()
        })?;
        let Ok(bytes) = frame.into_data() else {
            continue;
        };
        lines.push(&bytes);
        while let Some(line) = lines.next()? {
            for event in events(&line) {
                match event {
                    // A hub that wants no more of it may still want the image.
                    Event::Progress(said) => drop(progress.send(json_line(&said)).await),
                    Event::Image(id) => image = Some(id),
                    Event::Failed(message) => {
                        return Err(Failure::new(FailureCode::BUILD_FAILED, message));
                    }
                }
            }
        }
    }
    progress.finish();
    image.ok_or_else(|| {
        let why = "the Docker daemon ended the build without an image and without a reason";
        Failure::new(FailureCode::BUILD_FAILED, why)
    })
}

fn json_line(progress: &Progress) -> Bytes {
    let mut line = BytesMut::from(&kind::to_json(progress)[..]);
    line.put_u8(b'\n');
    line.freeze()
}

/// Bytes cut into lines.
#[derive(Default)]
struct Lines {
    bytes: BytesMut,
    /// How much of it is known to hold no newline.
    searched: usize,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole line.
    ///
    /// # Errors
    /// It is too long.
    fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        let newline = self.bytes[self.searched..].iter().position(|b| *b == b'\n');
        if let Some(at) = newline {
            let line = self.bytes.split_to(self.searched + at + 1);
            self.searched = 0;
            return Ok(Some(line.freeze()));
        }
        self.searched = self.bytes.len();
        if self.searched > MAX_LINE {
            let why = format!("a line of the Docker daemon has more than {MAX_LINE} bytes");
            return Err(Failure::new(FailureCode::INTERNAL, why));
        }
        Ok(None)
    }
}

/// What a line says. One that can't be read says nothing: whether there is an image and whether
/// there was an error is what counts in the end.
fn events(line: &[u8]) -> Vec<Event> {
    /// All that a line can hold.
    #[derive(Deserialize)]
    struct Line {
        stream: Option<String>,
        status: Option<String>,
        id: Option<String>,
        #[serde(rename = "progressDetail")]
        detail: Option<Detail>,
        error: Option<String>,
        #[serde(rename = "errorDetail")]
        error_detail: Option<ErrorDetail>,
        aux: Option<Aux>,
    }
    #[derive(Deserialize)]
    struct Detail {
        current: Option<u64>,
        total: Option<u64>,
    }
    #[derive(Deserialize)]
    struct ErrorDetail {
        message: Option<String>,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Aux {
        Trace(String),
        Image {
            #[serde(rename = "ID")]
            id: String,
        },
        Other(serde::de::IgnoredAny),
    }
    if line.trim_ascii().is_empty() {
        return Vec::new();
    }
    let line: Line = match serde_json::from_slice(line) {
        Ok(line) => line,
        Err(error) => {
            tracing::debug!("a line of a build can't be read: {error}");
            return Vec::new();
        }
    };
    if let Some(error) = line
        .error_detail
        .and_then(|detail| detail.message)
        .or(line.error)
    {
        return vec![Event::Failed(error)];
    }
    match line.aux {
        Some(Aux::Image { id }) => return vec![Event::Image(id)],
        Some(Aux::Trace(trace)) => {
            let status = STANDARD.decode(trace).map_err(|_| buildkit::Malformed);
            return match status.and_then(|status| buildkit::progress(&status)) {
                Ok(said) => said.into_iter().map(Event::Progress).collect(),
                Err(error) => {
                    tracing::debug!("{error}");
                    Vec::new()
                }
            };
        }
        Some(Aux::Other(_)) | None => {}
    }
    let said = if let Some(text) = line.stream {
        Progress::Stream { text }
    } else if let Some(status) = line.status {
        let detail = line.detail;
        Progress::Pull {
            id: line.id.unwrap_or_default(),
            status,
            current: detail.as_ref().and_then(|detail| detail.current),
            total: detail.as_ref().and_then(|detail| detail.total),
        }
    } else {
        return Vec::new();
    };
    vec![Event::Progress(said)]
}

/// Asks for an image that was just built as a docker-save archive, under those of its names that are
/// still its own; gives what `carry` makes of the archive.
///
/// # Errors
/// The daemon refuses: nothing was carried.
pub(crate) async fn save<F: Future>(
    engine: &Engine,
    image: &str,
    tags: &[String],
    carry: impl FnOnce(Incoming) -> F,
) -> Result<F::Output, Failure> {
    let mut names = Vec::new();
    for tag in tags {
        // Another build may have taken the name meanwhile.
        let found = engine.docker().inspect_image(tag).await;
        if found.is_ok_and(|found| found.id.as_deref() == Some(image)) {
            names.push(tag.as_str());
        }
    }
    if names.is_empty() {
        names.push(image);
    }
    let names = names.into_iter().map(|name| ("names", name));
    let query = Serializer::new(String::new()).extend_pairs(names).finish();
    let path = format!("/images/get?{query}");
    let request = request::request(engine, Method::GET, &path, Empty::new())?;
    let answer = |response: Response<Incoming>| async move {
        if response.status() == StatusCode::OK {
            Ok(carry(response.into_body()).await)
        } else {
            let message = refusal(response).await;
            Err(Failure::new(FailureCode::INTERNAL, message))
        }
    };
    request::ask(engine, request, PREPARING, answer).await?
}

#[cfg(test)]
mod tests;
