//! One request to the daemon whose body is streamed, whose answer is streamed, or both.
//!
//! ```text
//! channel --Receiver--> Upload --> connection --> daemon
//! whoever carries the answer  <-- connection <-- daemon
//! ```
//!
//! Each has a connection of its own, driven by the task that asks: when that task lets go, the
//! connection is closed and the channel stopped, at once. This is how the daemon learns that a build
//! or a copy is off.
//!
//! The daemon may answer before it has the body, and close. Its answer counts, so a write that
//! fails is none until the answer is read. `Connection: close` is why it answers at all: Go's
//! server would otherwise read another 256 KiB of the body first, which may never come.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::header::{CONNECTION, CONTENT_TYPE, HOST};
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Empty};
use hub_protocol::kind::{Failure, FailureCode};
use hub_quic::operation::{Ended, Receiver};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::timeout;

use super::{Engine, Socket};

/// How long the daemon may neither take a byte of a body that is there for it nor begin its answer.
/// What it does before it answers can be long: unpack what it was sent on a slow disk.
const STALL: Duration = Duration::from_secs(600);

/// How long the daemon may take to answer what needs no work. A loaded one takes long.
pub(crate) const ANSWER: Duration = Duration::from_secs(120);

/// How long the daemon may take to begin with the archive of an image, which it first puts together.
pub(crate) const PREPARING: Duration = Duration::from_secs(3600);

/// The most bytes of a refusal that are read; the daemon's are a line.
const MAX_REFUSAL: usize = 64 * 1024;

/// Why the daemon gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// It can't be connected to.
    #[error("the Docker daemon does not answer: {0}")]
    Unreachable(#[from] io::Error),
    /// The connection broke, or what came is no HTTP.
    #[error("the Docker daemon broke off: {0}")]
    Broken(#[from] hyper::Error),
    /// The request can't be made.
    #[error("the Docker daemon can't be asked this: {0}")]
    Invalid(#[from] http::Error),
    /// It did nothing for too long.
    #[error("the Docker daemon did nothing for {} s", .0.as_secs())]
    Silent(Duration),
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Invalid(_) => Self::new(FailureCode::INVALID, error.to_string()),
            _ => Self::new(FailureCode::RUNTIME_UNAVAILABLE, error.to_string()).retry(),
        }
    }
}

/// A request for `path` (with its query) in the version of the API that was agreed on.
pub(crate) fn request<B>(
    engine: &Engine,
    method: Method,
    path: &str,
    body: B,
) -> Result<Request<B>, RequestError> {
    let version = engine.docker().client_version();
    let (major, minor) = (version.major_version, version.minor_version);
    let request = Request::builder()
        .method(method)
        .uri(format!("/v{major}.{minor}{path}"))
        .header(HOST, "docker")
        .header(CONNECTION, "close")
        .header(CONTENT_TYPE, "application/x-tar")
        .body(body)?;
    Ok(request)
}

/// Asks without a body; gives what `carry` makes of the answer.
///
/// # Errors
/// The daemon did not begin its answer `within` this time.
pub(crate) async fn ask<F: Future>(
    engine: &Engine,
    request: Request<Empty<Bytes>>,
    within: Duration,
    carry: impl FnOnce(Response<Incoming>) -> F,
) -> Result<F::Output, RequestError> {
    let silent = async {
        tokio::time::sleep(within).await;
        within
    };
    exchange(engine, request, silent, carry).await
}

/// Asks with all that comes on a channel as the body; gives what `carry` makes of the answer. By
/// then the channel is stopped, unless it was taken whole.
///
/// # Errors
/// The daemon gave no answer.
pub(crate) async fn upload<F: Future>(
    engine: &Engine,
    request: Request<()>,
    channel: Receiver,
    carry: impl FnOnce(Response<Incoming>) -> F,
) -> Result<F::Output, RequestError> {
    let (moved, seen) = watch::channel(Moved::default());
    let request = request.map(|()| Upload { channel, moved });
    exchange(engine, request, stalled(seen), carry).await
}

/// Asks for a connection of another protocol; `None` if the daemon does not change to it.
///
/// # Errors
/// The daemon gave no answer.
pub(crate) async fn upgrade(
    engine: &Engine,
    request: Request<Empty<Bytes>>,
) -> Result<Option<Upgraded>, RequestError> {
    let socket = Patient(engine.dial().await?, false);
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
    let asked = async move {
        let response = sender.send_request(request).await?;
        match response.status() {
            StatusCode::SWITCHING_PROTOCOLS => hyper::upgrade::on(response).await.map(Some),
            _ => Ok(None),
        }
    };
    // The connection ends when it is handed over, or when nobody asks anything of it.
    let (asked, _) = tokio::join!(biased; asked, connection.with_upgrades());
    Ok(asked?)
}

/// Sends the request, and drives its connection for as long as the answer is carried.
pub(super) async fn exchange<B, F: Future>(
    engine: &Engine,
    request: Request<B>,
    silent: impl Future<Output = Duration>,
    carry: impl FnOnce(Response<Incoming>) -> F,
) -> Result<F::Output, RequestError>
where
    B: Body<Data = Bytes> + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let socket = Patient(engine.dial().await?, false);
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
    // What goes wrong with it, the answer tells.
    let driver = connection.then(|_| pending::<Infallible>());
    let carried = async {
        let response = tokio::select! {
            biased;
            response = sender.send_request(request) => response?,
            time = silent => return Err(RequestError::Silent(time)),
        };
        Ok(carry(response).await)
    };
    tokio::select! {
        biased;
        carried = carried => carried,
        never = driver => match never {},
    }
}

/// What the daemon says in an answer that is a refusal.
pub(crate) async fn refusal(response: Response<Incoming>) -> String {
    /// Its JSON.
    #[derive(Deserialize)]
    struct Refusal {
        message: String,
    }
    let status = response.status();
    let mut body = response.into_body();
    let mut text = BytesMut::new();
    while text.len() < MAX_REFUSAL
        && let Ok(Some(Ok(frame))) = timeout(ANSWER, body.frame()).await
    {
        text.extend(frame.into_data());
    }
    match serde_json::from_slice(&text) {
        Ok(Refusal { message }) => message,
        Err(_) => format!("{status}: {}", String::from_utf8_lossy(&text).trim()),
    }
}

/// How far an upload is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Moved {
    /// Pieces that were handed on.
    pieces: u64,
    /// Whether the next is awaited from the channel, and not the daemon to take the last.
    waiting: bool,
}

/// Waits until nothing has moved for too long, and the channel is not what is waited for.
async fn stalled(mut moved: watch::Receiver<Moved>) -> Duration {
    loop {
        let now = *moved.borrow_and_update();
        let changed = moved.changed();
        if now.waiting {
            if changed.await.is_err() {
                break;
            }
        } else {
            match timeout(STALL, changed).await {
                Ok(Ok(())) => {}
                // The daemon has all of it.
                Ok(Err(_)) => break,
                Err(_) => return STALL,
            }
        }
    }
    tokio::time::sleep(STALL).await;
    STALL
}

/// The bytes of a channel as the body of a request.
struct Upload {
    channel: Receiver,
    moved: watch::Sender<Moved>,
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Ended;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Ended>>> {
        let this = self.get_mut();
        let polled = this.channel.poll_chunk(cx);
        this.moved.send_if_modified(|moved| {
            let was = *moved;
            moved.waiting = polled.is_pending();
            moved.pieces += u64::from(polled.is_ready());
            was != *moved
        });
        Poll::Ready(
            ready!(polled)
                .transpose()
                .map(|piece| piece.map(Frame::data)),
        )
    }
}

/// A connection on which a write that fails waits: what the daemon said before it hung up can still
/// be read, and a read tells its end.
struct Patient(Box<dyn Socket>, bool);

impl Patient {
    /// Passes on what a write came to, unless the daemon takes no more.
    fn written<T>(&mut self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match written {
            Poll::Ready(Err(_)) => {
                self.1 = true;
                Poll::Pending
            }
            written => written,
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.1 {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.0).poll_write(cx, buf);
        self.written(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.1 {
            return Poll::Pending;
        }
        let flushed = Pin::new(&mut self.0).poll_flush(cx);
        self.written(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tokio::time::Instant;

    use super::*;

    const HOURS: Duration = Duration::from_secs(10 * 3600);

    /// When an upload counts as stalled that goes through these states, each for a time.
    async fn stalls_after(states: &[(bool, Duration)]) -> Option<Duration> {
        let (moved, seen) = watch::channel(Moved::default());
        let began = Instant::now();
        let states = async {
            for (waiting, time) in states {
                moved.send_modify(|moved| {
                    moved.pieces += 1;
                    moved.waiting = *waiting;
                });
                tokio::time::sleep(*time).await;
            }
        };
        tokio::select! {
            biased;
            _ = stalled(seen) => Some(began.elapsed()),
            () = states => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_daemon_that_takes_nothing_stalls() {
        let nearly = STALL.saturating_sub(Duration::from_secs(1));
        assert_eq!(stalls_after(&[(true, HOURS)]).await, None);
        assert_eq!(stalls_after(&[(false, nearly); 50]).await, None);
        assert_eq!(
            stalls_after(&[(false, nearly), (true, HOURS), (false, nearly)]).await,
            None
        );
        assert_eq!(stalls_after(&[(false, HOURS)]).await, Some(STALL));
        let late = [(false, nearly), (true, HOURS), (false, HOURS)];
        assert_eq!(stalls_after(&late).await, Some(nearly + HOURS + STALL));
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_that_has_all_owes_an_answer() {
        let (moved, seen) = watch::channel(Moved::default());
        drop(moved);
        let began = Instant::now();
        stalled(seen).await;
        assert_eq!(began.elapsed(), STALL);
    }
}
