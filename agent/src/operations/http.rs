//! Carries one HTTP request to a target on this machine, and the response back.
//!
//! ```text
//! operation --REQUEST--> upload --> connection --> target
//!           <--RESPONSE-- download <-- connection <-- target
//! ```
//!
//! The target is connected first, so that an operation that fails has not begun. Then both bodies
//! run at their own pace, each byte as it comes, and each waits for the slower side. After a 101
//! the channels carry the connection's bytes (`tunnel`). A cancelled operation closes its
//! connection; one that came to its end gives it back for the next (`connections`).
//!
//! Informational responses (1xx other than 101) end here: the hub's HTTP library sends none.

mod connections;
mod dial;
mod head;
pub(crate) mod tunnel;
mod upload;

use std::convert::Infallible;
use std::error::Error as _;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hub_protocol::kind::http::{Message, Open, Outcome, Protocol, REQUEST, RESPONSE};
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_protocol::target::{Target, Transport};
use hub_quic::operation::{Ended, Operation};
use hyper::body::{Body as _, Incoming};
use hyper_util::rt::TokioIo;
use tokio::sync::oneshot;

use crate::targets::Targets;
use connections::Connection;
pub use connections::Connections;
pub use dial::{Dial, Direct, Stream};
use upload::{RequestBody, Upload};

/// How an operation ends.
enum Last {
    Failed(Failure),
    Done(Outcome),
}

/// Carries one request. It ends early when the operation does.
pub async fn run(operation: Operation, open: Open, targets: &Targets, connections: &Connections) {
    let operation = Arc::new(operation);
    let last = tokio::select! {
        biased;
        _ = operation.ended() => return,
        last = carry(&operation, &open, targets, connections) => last,
    };
    // The body of the request is gone by now, and held the only other reference. Were it not, an
    // operation that is cancelled is better than one that never ends.
    if let Some(operation) = Arc::into_inner(operation) {
        match last {
            Last::Failed(failure) => operation.fail(&failure),
            Last::Done(outcome) => operation.finish(kind::encode(&outcome)),
        }
    }
}

async fn carry(
    operation: &Arc<Operation>,
    open: &Open,
    targets: &Targets,
    connections: &Connections,
) -> Last {
    if let Err(error) = targets.allowed(&open.target, open.grant).await {
        return Last::Failed(error.into());
    }
    if let Err(failure) = spoken(open) {
        return Last::Failed(failure);
    }
    let request = match head::request(&open.head, open.target.port) {
        Ok(request) => request,
        Err(error) => return Last::Failed(error.into()),
    };
    let repeatable = head::repeatable(&open.head);
    let mut connection = match connections.get(&open.target, repeatable).await {
        Ok(connection) => connection,
        Err(failure) => return Last::Failed(failure),
    };
    operation.accept(Bytes::new());
    let mut uploaded = None;
    let body = if head::has_body(&open.head) {
        let (upload, gone) = Upload::new(operation);
        uploaded = Some(gone);
        RequestBody::Upload(upload)
    } else {
        RequestBody::None
    };
    let request = request.map(|()| body);
    let asked = ask(&mut connection, connections, open, request).await;
    let carried = match asked {
        Ok(response) => respond(operation, open, response).await,
        Err(failure) => Err(failure),
    };
    match carried {
        Ok(Carried::Whole) => {
            // A target may answer before it has the whole body and still want the rest; one that
            // does not closes the connection, which ends the upload as well.
            gone(uploaded).await;
            connections.put(connection);
            Last::Done(Outcome::Complete)
        }
        Ok(Carried::Spent) => {
            drop(connection);
            gone(uploaded).await;
            Last::Done(Outcome::Complete)
        }
        Err(failure) => {
            drop(connection);
            gone(uploaded).await;
            Last::Done(Outcome::Broken(failure))
        }
    }
}

/// Waits until nothing of the request's body is left.
async fn gone(uploaded: Option<oneshot::Receiver<Infallible>>) {
    if let Some(uploaded) = uploaded {
        let _ = uploaded.await;
    }
}

/// Sends the request; gives the head of the response. A connection that was kept and that the
/// target has closed meanwhile is replaced by a new one, once, where the request was not sent or
/// may be sent twice.
async fn ask(
    connection: &mut Connection,
    connections: &Connections,
    open: &Open,
    request: Request<RequestBody>,
) -> Result<Response<Incoming>, Failure> {
    let mut error = match connection.send(request).await {
        Ok(response) => return Ok(response),
        Err(error) => error,
    };
    let unsent = error.take_message();
    let error = error.into_error();
    let again = match unsent {
        Some(unsent) if connection.reused => unsent,
        None if connection.reused && head::repeatable(&open.head) && !error.is_parse() => {
            head::request(&open.head, open.target.port)?.map(|()| RequestBody::None)
        }
        _ => return Err(broken(&open.target, "did not answer", &error)),
    };
    *connection = connections.fresh(&open.target).await?;
    let answer = connection.send(again).await;
    answer.map_err(|error| broken(&open.target, "did not answer", &error.into_error()))
}

/// What became of a connection whose response was carried.
enum Carried {
    /// It may be used again once the request's body is through.
    Whole,
    /// It is of no use any more.
    Spent,
}

/// Carries the response, head and body.
async fn respond(
    operation: &Operation,
    open: &Open,
    mut response: Response<Incoming>,
) -> Result<Carried, Failure> {
    let upgrade = (response.status() == StatusCode::SWITCHING_PROTOCOLS)
        .then(|| hyper::upgrade::on(&mut response));
    let length = response.body().size_hint().exact();
    let (parts, mut body) = response.into_parts();
    let head = head::response(&parts, &open.head, length).ok_or_else(|| Failure {
        code: FailureCode::TARGET_BROKEN,
        message: format!(
            "the target, {}, uses a transfer coding nobody asked for",
            open.target
        ),
        retry: false,
    })?;
    if upgrade.is_some() && open.head.upgrade.is_none() {
        return Err(unasked(&open.target));
    }
    if send(operation, &Message::Head(head)).await.is_err() {
        return Ok(Carried::Spent);
    }
    if let Some(upgrade) = upgrade {
        let failed = |error: &dyn std::fmt::Display| Failure {
            code: FailureCode::TARGET_BROKEN,
            message: format!("the upgraded connection to {} broke: {error}", open.target),
            retry: true,
        };
        let upgraded = upgrade.await.map_err(|error| failed(&error))?;
        let (up, down) = (operation.receiver(REQUEST), operation.sender(RESPONSE));
        let tunnelled = tunnel::run(up, down, TokioIo::new(upgraded)).await;
        return match tunnelled {
            Ok(()) => Ok(Carried::Spent),
            Err(error) => Err(failed(&error)),
        };
    }
    let mut sender = operation.sender(RESPONSE);
    loop {
        let frame = tokio::select! {
            biased;
            () = sender.stopped() => return Ok(Carried::Spent),
            frame = body.frame() => frame,
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Err(broken(&open.target, "broke off its answer", &error)),
            None => break,
        };
        let sent = match frame.into_data() {
            Ok(bytes) => sender.send(bytes).await,
            Err(frame) => match frame.into_trailers() {
                Ok(trailers) => send(operation, &Message::Trailers(head::lines(&trailers))).await,
                Err(_) => Ok(()),
            },
        };
        if sent.is_err() {
            return Ok(Carried::Spent);
        }
    }
    sender.finish();
    Ok(Carried::Whole)
}

async fn send(operation: &Operation, message: &Message) -> Result<(), Ended> {
    operation.send_message(kind::encode(message)).await
}

/// Whether the agent speaks what the target does.
fn spoken(open: &Open) -> Result<(), Failure> {
    if open.target.transport != Transport::Tcp {
        let why = format!("{} is no target of HTTP", open.target);
        return Err(Failure::new(FailureCode::INVALID, why));
    }
    if open.protocol != Protocol::Http1 {
        let why = format!("this agent does not speak HTTP/2 to {}", open.target);
        return Err(Failure::new(FailureCode::UNSUPPORTED, why));
    }
    Ok(())
}

fn unasked(target: &Target) -> Failure {
    Failure {
        code: FailureCode::TARGET_BROKEN,
        message: format!("the target, {target}, upgraded a connection that was not to be"),
        retry: false,
    }
}

/// A target that does not keep to HTTP/1.1.
fn broken(target: &Target, what: &str, error: &hyper::Error) -> Failure {
    let mut message = format!("the target, {target}, {what}: {error}");
    if let Some(cause) = error.source() {
        use std::fmt::Write as _;
        // Writing to a string does not fail.
        let _ = write!(message, ": {cause}");
    }
    Failure {
        code: FailureCode::TARGET_BROKEN,
        message,
        retry: true,
    }
}
