//! One request to a target that speaks HTTP/2 in the clear: a stream of a connection that others
//! share.
//!
//! ```text
//! operation --REQUEST--> upload --> stream      a piece once the target has a window for it
//!           <--RESPONSE-- body  <-- stream      the window is given back once the hub took a piece
//! ```
//!
//! So a stream that nobody reads holds its own window and nothing of the others'. Both directions
//! are driven by the operation's own task: when it is dropped, the target sees the stream reset.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use hub_protocol::kind::http::{Open, Outcome};
use hub_protocol::kind::{Failure, FailureCode};
use hub_quic::operation::Operation;

use super::connections::Connections;
use super::interim::{Excess, Interim};
use super::lines::Lease;
use super::respond::{self, Carried};
use super::upload::{Upload, UploadError};
use super::{Last, broken, excessive, head};

pub(super) async fn carry(
    operation: &Arc<Operation>,
    open: &Open,
    connections: &Connections,
) -> Last {
    let websocket = |protocol: &Bytes| protocol.eq_ignore_ascii_case(b"websocket");
    if open.head.upgrade.as_ref().is_some_and(websocket) {
        let why = format!(
            "{} is exposed as HTTP/2, which has no such upgrade; for WebSockets expose it as \
             HTTP/1.1",
            open.target
        );
        return Last::Failed(Failure::new(FailureCode::UNSUPPORTED, why));
    }
    let request = match head::request_of_http2(&open.head, open.target.port) {
        Ok(request) => request,
        Err(error) => return Last::Failed(error.into()),
    };
    let mut lease = match connections.stream(&open.target).await {
        Ok(lease) => lease,
        Err(failure) => return Last::Failed(failure),
    };
    operation.accept(Bytes::new());
    let mut upload = head::has_body(&open.head).then(|| Upload::new(operation));
    let mut again = true;
    let carried = loop {
        let exchanged = exchange(operation, open, &mut lease, request.clone(), &mut upload).await;
        let (error, unsent) = match exchanged {
            Ok(()) => break Ok(()),
            Err(Trouble::Failed(failure)) => break Err(failure),
            Err(Trouble::Headless(error)) => (error, false),
            Err(Trouble::Unsent(error)) => (error, true),
        };
        let untouched = upload.as_ref().is_none_or(Upload::is_untouched);
        let once_more =
            unsent || is_refused(&error) || lease.reused && head::repeatable(&open.head);
        if !(again && untouched && once_more) {
            break Err(broken(&open.target, "did not answer", &error));
        }
        again = false;
        lease = match connections.fresh_stream(&open.target).await {
            Ok(lease) => lease,
            Err(failure) => break Err(failure),
        };
    };
    // It holds a reference to the operation.
    drop(upload);
    Last::Done(match carried {
        Ok(()) => Outcome::Complete,
        Err(failure) => Outcome::Broken(failure),
    })
}

/// Why a request was not carried.
enum Trouble {
    Failed(Failure),
    /// The request did not leave.
    Unsent(h2::Error),
    /// The stream broke before there was a response.
    Headless(h2::Error),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Whether the target says that it has not looked at the request.
fn is_refused(error: &h2::Error) -> bool {
    error.is_remote() && error.reason() == Some(Reason::REFUSED_STREAM)
}

/// One attempt, with both directions at their own pace.
async fn exchange(
    operation: &Operation,
    open: &Open,
    lease: &mut Lease,
    request: Request<()>,
    upload: &mut Option<Upload>,
) -> Result<(), Trouble> {
    let sent = lease.requests.send_request(request, upload.is_none());
    let (response, mut stream) = sent.map_err(Trouble::Unsent)?;
    let up = async {
        match upload {
            Some(upload) => send(upload, &mut stream).await,
            None => Ok(()),
        }
    };
    let (mut up, mut down) = (pin!(up), pin!(receive(operation, open, response)));
    let mut uploading = true;
    loop {
        tokio::select! {
            biased;
            carried = &mut down => {
                if matches!(carried?, Carried::Whole { wanted: true }) && uploading {
                    // The target has answered, and may still want the rest.
                    let _ = up.await;
                }
                // What is left is reset.
                return Ok(());
            }
            sent = &mut up, if uploading => {
                uploading = false;
                if let Err(error) = sent {
                    let message = format!("the request's body can't be carried: {error}");
                    return Err(Failure::new(FailureCode::INVALID, message).into());
                }
            }
        }
    }
}

/// Carries the request's body, a piece when the target has room for it. A stream that the target
/// has reset takes no more; the response says whether that is an error.
async fn send(upload: &mut Upload, stream: &mut SendStream<Bytes>) -> Result<(), UploadError> {
    loop {
        let frame = poll_fn(|cx| match stream.poll_reset(cx) {
            Poll::Ready(_) => Poll::Ready(None),
            Poll::Pending => upload.poll_frame(cx).map(Some),
        });
        let frame = match frame.await {
            None => return Ok(()),
            Some(None) => {
                let _ = stream.send_data(Bytes::new(), true);
                return Ok(());
            }
            Some(Some(Err(error))) => {
                stream.send_reset(Reason::CANCEL);
                return Err(error);
            }
            Some(Some(Ok(frame))) => frame,
        };
        let mut data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                let _ = stream.send_trailers(trailers);
                return Ok(());
            }
        };
        while !data.is_empty() {
            stream.reserve_capacity(data.len());
            let room = match stream.capacity() {
                0 => match poll_fn(|cx| stream.poll_capacity(cx)).await {
                    Some(Ok(room)) => room,
                    Some(Err(_)) | None => return Ok(()),
                },
                room => room,
            };
            let piece = data.split_to(room.min(data.len()));
            if stream.send_data(piece, false).is_err() {
                return Ok(());
            }
        }
    }
}

/// Carries what the target answers.
async fn receive(
    operation: &Operation,
    open: &Open,
    mut response: ResponseFuture,
) -> Result<Carried, Trouble> {
    let interim = Interim::default();
    let answer = poll_fn(|cx| poll_answer(&mut response, &interim, cx));
    let response = match interim.until(operation, answer).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Err(Trouble::Headless(error)),
        Err(Excess) => return Err(excessive(&open.target).into()),
    };
    let (parts, stream) = response.into_parts();
    let length = if stream.is_end_stream() {
        Some(0)
    } else {
        length(&parts.headers)
    };
    if !respond::head(operation, open, &parts, length).await? {
        return Ok(Carried::Spent);
    }
    let wanted = respond::wants_rest(&parts, open, &interim);
    let body = Download { stream, held: 0 };
    Ok(respond::body(operation, open, body, wanted).await?)
}

fn poll_answer(
    response: &mut ResponseFuture,
    interim: &Interim,
    cx: &mut Context<'_>,
) -> Poll<Result<Response<RecvStream>, h2::Error>> {
    while let Poll::Ready(Some(Ok(informational))) = response.poll_informational(cx) {
        interim.push(informational.status(), informational.headers());
    }
    Pin::new(response).poll(cx)
}

/// What `Content-Length` says; the connection sees to it that it is true.
fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The body of a response. The window of a piece is given back when the next is asked for: by then
/// the hub has taken it.
struct Download {
    stream: RecvStream,
    held: usize,
}

impl Body for Download {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let Self { stream, held } = self.get_mut();
        let taken = std::mem::take(held);
        if taken > 0 {
            stream.flow_control().release_capacity(taken)?;
        }
        if let Some(data) = ready!(stream.poll_data(cx)) {
            let data = data?;
            *held = data.len();
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let trailers = ready!(stream.poll_trailers(cx))?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }
}
