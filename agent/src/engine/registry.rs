//! A registry for tests: one image, over plain HTTP on loopback, which daemons trust by default.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Interval, interval};

const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";

/// How far the download of a layer is that stalls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stall {
    /// Nobody has asked for it.
    NotAsked,
    /// Half of it was sent.
    Stalled,
    /// Whoever asked for it is gone.
    GivenUp,
}

/// What the registry has, and how it behaves.
struct Shelf {
    /// `user:password` that it wants to see.
    login: Option<String>,
    manifest: Bytes,
    blobs: Vec<(String, Bytes)>,
    layer: String,
    /// Whether the layer comes in drops from half-way on.
    stall: Option<watch::Sender<Stall>>,
}

/// A registry that serves one image, `IMAGE:latest`, until it is dropped.
pub(crate) struct Registry {
    /// The name of its image, without a tag.
    pub(crate) image: String,
    /// The image's id.
    pub(crate) id: String,
    /// How far a stalled download is.
    pub(crate) stall: watch::Receiver<Stall>,
    serving: JoinHandle<()>,
}

impl Registry {
    /// One that wants this login, if any, and whose layer comes in drops from half-way on, if asked for.
    pub(crate) async fn new(login: Option<&str>, stalls: bool) -> Self {
        let layer = layer().await;
        // Without compression it is its own content.
        let layer_digest = digest(&layer);
        let config = serde_json::json!({
            "architecture": "amd64", "os": "linux", "created": "2024-05-06T07:08:09Z",
            "config": {"Cmd": ["/random"], "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
        });
        let config = Bytes::from(config.to_string());
        let id = digest(&config);
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "size": config.len(), "digest": id},
            "layers": [{"mediaType": LAYER, "size": layer.len(), "digest": layer_digest}],
        });
        let (stall, stalled) = watch::channel(Stall::NotAsked);
        let shelf = Arc::new(Shelf {
            login: login.map(Into::into),
            manifest: manifest.to_string().into(),
            blobs: vec![(id.clone(), config), (layer_digest.clone(), layer)],
            layer: layer_digest,
            stall: stalls.then_some(stall),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let shelf = shelf.clone();
                let service = service_fn(move |request| {
                    let answer = answer(&request, &shelf);
                    async move { Ok::<_, Infallible>(answer) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self {
            image: format!("{address}/hub/test"),
            id,
            stall: stalled,
            serving,
        }
    }

    /// Waits until the download is so far.
    pub(crate) async fn reached(&mut self, stall: Stall) {
        self.stall.wait_for(|now| *now >= stall).await.unwrap();
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A layer that no daemon has: a file of random bytes.
async fn layer() -> Bytes {
    let mut content = vec![0; 512 * 1024];
    getrandom::fill(&mut content).unwrap();
    let mut tar = tokio_tar::Builder::new(Vec::new());
    let mut header = tokio_tar::Header::new_gnu();
    header.set_mode(0o755);
    header.set_size(content.len() as u64);
    tar.append_data(&mut header, "random", &content[..])
        .await
        .unwrap();
    tar.into_inner().await.unwrap().into()
}

fn digest(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::from("sha256:");
    for byte in ring::digest::digest(&ring::digest::SHA256, bytes).as_ref() {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

type Body = BoxBody<Bytes, Infallible>;

fn answer(request: &Request<Incoming>, shelf: &Shelf) -> Response<Body> {
    let refusal = |status: u16, code: &str| {
        let body = serde_json::json!({"errors": [{"code": code, "message": code.to_lowercase()}]});
        Response::builder()
            .status(status)
            .header(CONTENT_TYPE, "application/json")
            .header(WWW_AUTHENTICATE, "Basic realm=\"test\"")
            .body(full(body.to_string().into()))
            .unwrap()
    };
    if let Some(login) = &shelf.login {
        let expected = format!("Basic {}", BASE64_STANDARD.encode(login));
        let shown = request.headers().get(AUTHORIZATION);
        if shown.is_none_or(|shown| shown.as_bytes() != expected.as_bytes()) {
            return refusal(401, "UNAUTHORIZED");
        }
    }
    let give = |kind: &str, bytes: &Bytes, body: Body| {
        Response::builder()
            .header(CONTENT_TYPE, kind)
            .header(CONTENT_LENGTH, bytes.len())
            .header("Docker-Content-Digest", digest(bytes))
            .body(body)
            .unwrap()
    };
    let path = request.uri().path();
    if path == "/v2/" {
        return give("application/json", &Bytes::new(), full(Bytes::new()));
    }
    let Some(path) = path.strip_prefix("/v2/hub/test/") else {
        return refusal(404, "NAME_UNKNOWN");
    };
    match path.split_once('/') {
        Some(("manifests", wanted)) => {
            if wanted == "latest" || wanted == digest(&shelf.manifest) {
                return give(MANIFEST, &shelf.manifest, full(shelf.manifest.clone()));
            }
            refusal(404, "MANIFEST_UNKNOWN")
        }
        Some(("blobs", wanted)) => {
            let Some((_, blob)) = shelf.blobs.iter().find(|(digest, _)| digest == wanted) else {
                return refusal(404, "BLOB_UNKNOWN");
            };
            let body = match &shelf.stall {
                Some(stall) if wanted == shelf.layer => BoxBody::new(Half {
                    first: Some(blob.slice(..blob.len() / 2)),
                    rest: blob.slice(blob.len() / 2..),
                    drops: interval(Duration::from_millis(20)),
                    stall: stall.clone(),
                }),
                _ => full(blob.clone()),
            };
            give("application/octet-stream", blob, body)
        }
        _ => refusal(404, "UNSUPPORTED"),
    }
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes).boxed()
}

/// Half of a body, and then drops of it: tells when the half was sent, and when nobody waits for
/// more. Not nothing at all: a daemon that gives a download up notices when the next byte comes.
struct Half {
    first: Option<Bytes>,
    rest: Bytes,
    drops: Interval,
    stall: watch::Sender<Stall>,
}

impl http_body::Body for Half {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        self.stall.send_replace(Stall::Stalled);
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        ready!(self.drops.poll_tick(cx));
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(1)))))
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        self.stall.send_replace(Stall::GivenUp);
    }
}
