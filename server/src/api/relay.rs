//! Bodies of any size between HTTP and an operation's channel, as far as credit allows.
//!
//! ```text
//! agent --Data--> Incoming --poll_frame--> response     polled = credit granted
//! request --frame--> upload --credit--> Sender --> agent --Done--> the answer
//! ```
//!
//! A response is whole only if the operation's outcome says so: any other end breaks it off, so
//! that it can't pass for all. A request that breaks off drops the operation. The answer to a
//! request may come before all of it did; the rest is then read and thrown away for a while, for a
//! client that writes does not read.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, stream};
use http::{HeaderValue, header};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hub_protocol::NodeName;
use hub_protocol::kind::transfer::{Ending, IN};
use hub_protocol::kind::{self, Request};
use hub_quic::operation::Sender;
use serde::de::DeserializeOwned;

use super::Api;
use super::client::Client;
use super::problem::{Kind, Problem};
use crate::clip;
use crate::hub::{Begun, Broke, GaveUp, Incoming};
use crate::linger::linger;

/// What a client is told that has had nothing yet. What was asked changes nothing.
fn broken(node: &NodeName, broke: &Broke) -> Problem {
    let detail = format!("node {node}: {broke}");
    let problem = match broke {
        Broke::Failed(failure) => return Problem::failure(node, failure),
        Broke::Ended(_) => Problem::new(Kind::NodeAway, detail).retry(true),
        Broke::Nonsense(_) => Problem::new(Kind::NodeFailed, detail),
    };
    problem.node(node.to_string())
}

impl From<GaveUp> for Problem {
    fn from(error: GaveUp) -> Self {
        match error {
            GaveUp::Refused(error) => error.into(),
            GaveUp::Broke { node, broke } => broken(&node, &broke),
        }
    }
}

/// Any reason for which a body is broken off; the log has it.
pub(super) type Reason = Box<dyn std::error::Error + Send + Sync>;

/// What an operation brings, from its first byte on: what goes wrong before is a problem and no
/// response that breaks off.
pub(super) async fn download(
    begun: Begun,
) -> Result<impl Stream<Item = Result<Bytes, Reason>> + Send + 'static, Problem> {
    let mut incoming = Incoming::new(begun.operation);
    let first = incoming.chunk().await;
    let first = first.map_err(|broke| broken(&begun.node, &broke))?;
    Ok(stream::unfold(
        (first, incoming),
        |(first, mut incoming)| async {
            let piece = match first {
                Some(bytes) => Ok(bytes),
                None => incoming.chunk().await.transpose()?.map_err(Reason::from),
            };
            Some((piece, (None, incoming)))
        },
    ))
}

/// The same without waiting for the first byte.
pub(super) fn follow(begun: Begun) -> impl Stream<Item = Result<Bytes, Reason>> + Send + 'static {
    stream::unfold(Incoming::new(begun.operation), |mut incoming| async {
        let piece = incoming.chunk().await.transpose()?;
        Some((piece.map_err(Reason::from), incoming))
    })
}

/// A response whose body is what a stream brings, until it ends or breaks.
pub(super) fn response(
    pieces: impl Stream<Item = Result<Bytes, Reason>> + Send + 'static,
    media_type: &'static str,
) -> Response {
    let body = Flushed {
        pieces: Box::pin(pieces),
        stopping: None,
        broke: None,
    };
    respond(body, media_type)
}

/// The same of what might go on for ever: it is broken off when the hub stops.
pub(super) fn lasting_response(
    pieces: impl Stream<Item = Result<Bytes, Reason>> + Send + 'static,
    media_type: &'static str,
    client: &Client,
) -> Response {
    let seat = client.seat.clone();
    let body = Flushed {
        pieces: Box::pin(pieces),
        stopping: Some(Box::pin(async move { seat.stopping().await })),
        broke: None,
    };
    respond(body, media_type)
}

fn respond(body: Flushed, media_type: &'static str) -> Response {
    let mut response = Response::new(Body::new(body));
    let media_type = HeaderValue::from_static(media_type);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, media_type);
    response
}

/// A body that hands over all that it had before it breaks.
struct Flushed {
    pieces: Pin<Box<dyn Stream<Item = Result<Bytes, Reason>> + Send>>,
    stopping: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    broke: Option<Reason>,
}

impl Flushed {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Reason>>> {
        if let Some(stopping) = &mut self.stopping
            && stopping.as_mut().poll(cx).is_ready()
        {
            self.stopping = None;
            return Poll::Ready(Some(Err("the hub is stopping".into())));
        }
        self.pieces.as_mut().poll_next(cx)
    }
}

impl http_body::Body for Flushed {
    type Data = Bytes;
    type Error = Reason;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Reason>>> {
        if let Some(broke) = self.broke.take() {
            return Poll::Ready(Some(Err(broke)));
        }
        match ready!(self.poll_piece(cx)) {
            None => Poll::Ready(None),
            Some(Ok(bytes)) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Some(Err(broke)) => {
                tracing::info!("a response is broken off: {}", clip::error(&broke));
                self.broke = Some(broke);
                // hyper flushes when a body has nothing for now, and throws away what it holds
                // when one breaks: the client is to have all that came.
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

/// How the body of a request went.
enum Uploaded {
    /// All of it is on its way.
    Whole,
    /// The agent wants no more.
    Unwanted,
    /// The client broke off.
    Broke,
}

/// Refuses a request whose body nobody reads.
pub(super) fn unwanted(body: Body, problem: Problem) -> Problem {
    tokio::spawn(linger(body));
    problem
}

/// Asks for an operation, sends it a request's body, and gives what came of it.
pub(super) async fn upload<R: Request, T: DeserializeOwned>(
    api: &Api,
    client: &Client,
    node: &str,
    request: &R,
    mut body: Body,
) -> Result<T, Problem> {
    let ask = async {
        let asked = client.while_there(api.hub.ask(node, request)).await?;
        Ok(asked.answered()?)
    };
    let begun = match ask.await {
        Ok(begun) => begun,
        Err(problem) => return Err(unwanted(body, problem)),
    };
    let Begun {
        operation, node, ..
    } = begun;
    let mut sender = operation.sender(IN);
    match client.while_there(carry(&mut body, &mut sender)).await? {
        Uploaded::Whole => {}
        Uploaded::Unwanted => _ = tokio::spawn(linger(body)),
        // The operation is dropped, so that nothing takes this for the end.
        Uploaded::Broke => {
            let detail = "the request's body broke off or is malformed; what was sent is given up";
            return Err(Problem::new(Kind::InvalidRequest, detail));
        }
    }
    let unknown = |why: &dyn fmt::Display| {
        let detail = format!("node {node}: it is not known what came of it: {why}");
        Problem::new(Kind::OutcomeUnknown, detail).node(node.to_string())
    };
    let done = client.while_there(operation.done()).await?;
    let done = done.map_err(|ended| unknown(&ended))?;
    match kind::decode::<Ending<T>>("Done", &done).map_err(|error| unknown(&error))? {
        Ending::Complete(came) => Ok(came),
        Ending::Failed(failure) => Err(Problem::failure(&node, &failure)),
    }
}

async fn carry(body: &mut Body, sender: &mut Sender) -> Uploaded {
    loop {
        let frame = tokio::select! {
            biased;
            () = sender.stopped() => return Uploaded::Unwanted,
            frame = body.frame() => frame,
        };
        match frame {
            // Trailers mean nothing here.
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data()
                    && sender.send(bytes).await.is_err()
                {
                    return Uploaded::Unwanted;
                }
            }
            Some(Err(_)) => return Uploaded::Broke,
            None => break,
        }
    }
    sender.finish();
    Uploaded::Whole
}
