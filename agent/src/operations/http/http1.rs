//! One request to a target that speaks HTTP/1.1.
//!
//! The body of the request is read by the connection's own task; it holds a reference to the
//! operation, and says when it is gone.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Request, Response, StatusCode};
use hub_protocol::kind::http::{Open, Outcome, REQUEST, RESPONSE};
use hub_protocol::kind::{Failure, FailureCode};
use hub_protocol::target::Target;
use hub_quic::operation::Operation;
use hyper::body::{Body as _, Incoming};
use hyper_util::rt::TokioIo;
use tokio::sync::oneshot;

use super::connections::{Connection, Connections};
use super::interim::{Excess, Interim};
use super::respond::{self, Carried};
use super::upload::{RequestBody, Upload};
use super::{Last, broken, excessive, head, tunnel};

pub(super) async fn carry(
    operation: &Arc<Operation>,
    open: &Open,
    connections: &Connections,
) -> Last {
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
        let (upload, gone) = Upload::watched(operation);
        uploaded = Some(gone);
        RequestBody::Upload(upload)
    } else {
        RequestBody::None
    };
    let interim = Arc::new(Interim::default());
    let request = watched(request.map(|()| body), &interim);
    let asked = interim.until(
        operation,
        ask(&mut connection, connections, open, request, &interim),
    );
    let carried = match asked.await {
        Ok(Ok(response)) => respond(operation, open, response, &interim).await,
        Ok(Err(failure)) => Err(failure),
        Err(Excess) => Err(excessive(&open.target)),
    };
    let through = |gone: &mut oneshot::Receiver<Infallible>| gone.now_or_never().is_some();
    if uploaded.as_mut().is_some_and(through) {
        uploaded = None;
    }
    match carried {
        Ok(Carried::Whole { wanted }) if wanted || uploaded.is_none() => {
            // A target may answer before it has the whole body and still want the rest; one that
            // does not closes the connection, which ends the upload as well.
            gone(uploaded).await;
            connections.put(connection);
            Last::Done(Outcome::Complete)
        }
        Ok(Carried::Whole { .. } | Carried::Spent) => {
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

/// A request whose informational responses go to `interim`.
fn watched(mut request: Request<RequestBody>, interim: &Arc<Interim>) -> Request<RequestBody> {
    let interim = interim.clone();
    hyper::ext::on_informational(&mut request, move |response| {
        interim.push(response.status(), response.headers());
    });
    request
}

/// Sends the request; gives the head of the response. A connection that was kept and that the
/// target has closed meanwhile is replaced by a new one, once, where the request was not sent or
/// may be sent twice.
async fn ask(
    connection: &mut Connection,
    connections: &Connections,
    open: &Open,
    request: Request<RequestBody>,
    interim: &Arc<Interim>,
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
            let request = head::request(&open.head, open.target.port)?;
            watched(request.map(|()| RequestBody::None), interim)
        }
        _ => return Err(broken(&open.target, "did not answer", &error)),
    };
    *connection = connections.fresh(&open.target).await?;
    let answer = connection.send(again).await;
    answer.map_err(|error| broken(&open.target, "did not answer", &error.into_error()))
}

/// Carries the response, head and body.
async fn respond(
    operation: &Operation,
    open: &Open,
    mut response: Response<Incoming>,
    interim: &Interim,
) -> Result<Carried, Failure> {
    let upgrade = (response.status() == StatusCode::SWITCHING_PROTOCOLS)
        .then(|| hyper::upgrade::on(&mut response));
    let length = response.body().size_hint().exact();
    let (parts, body) = response.into_parts();
    if upgrade.is_some() && open.head.upgrade.is_none() {
        return Err(unasked(&open.target));
    }
    if !respond::head(operation, open, &parts, length).await? {
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
    let wanted = respond::wants_rest(&parts, open, interim);
    match respond::body(operation, open, body, wanted).await {
        Ok(Carried::Whole { .. }) if respond::is_ambiguous(&parts) => Ok(Carried::Spent),
        carried => carried,
    }
}

fn unasked(target: &Target) -> Failure {
    Failure {
        code: FailureCode::TARGET_BROKEN,
        message: format!("the target, {target}, upgraded a connection that was not to be"),
        retry: false,
    }
}
