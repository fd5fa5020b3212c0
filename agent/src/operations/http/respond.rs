//! A response on its way from a connection to the hub: its head, its body, its trailers.

use std::error::Error;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::response::Parts;
use http_body::Body;
use http_body_util::BodyExt as _;
use hub_protocol::kind::http::{MAX_HEADERS, Message, Open, RESPONSE, elements, weight};
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_protocol::limits::MAX_HEAD;
use hub_quic::operation::{Ended, Operation};

use super::interim::Interim;
use super::{broken, head};

/// What became of a connection whose response was carried.
pub(super) enum Carried {
    /// The response is whole. `wanted` says whether the target may still want what is left of the
    /// request's body.
    Whole { wanted: bool },
    /// The connection is of no use any more.
    Spent,
}

/// Whether a target that has answered may still want the rest of the request's body. One that
/// closes, refuses, or was asked and did not say 100, does not.
pub(super) fn wants_rest(head: &Parts, open: &Open, interim: &Interim) -> bool {
    let said = head.headers.get_all(CONNECTION).iter();
    let mut said = said.flat_map(|value| elements(value.as_bytes()));
    let closes = said.any(|option| option.eq_ignore_ascii_case(b"close"));
    let ignored = head::expects(&open.head) && !interim.continued();
    !(closes || ignored || head.status.is_client_error() || head.status.is_server_error())
}

/// Whether a head says twice how long its body is. It is read as the chunks say, and the other is
/// dropped; but who writes such a head, or puts it in a response, may go on to mean something else.
pub(super) fn is_ambiguous(head: &Parts) -> bool {
    head.headers.contains_key(TRANSFER_ENCODING) && head.headers.contains_key(CONTENT_LENGTH)
}

/// Carries the head. `length` is that of the body, if it is known. Gives whether the hub takes it.
pub(super) async fn head(
    operation: &Operation,
    open: &Open,
    parts: &Parts,
    length: Option<u64>,
) -> Result<bool, Failure> {
    let nonsense = |what: &str| {
        let message = format!("the target, {}, {what}", open.target);
        Failure::new(FailureCode::TARGET_BROKEN, message)
    };
    let head = head::response(parts, &open.head, length)
        .ok_or_else(|| nonsense("uses a transfer coding nobody asked for"))?;
    if head.headers.len() > MAX_HEADERS || weight(&head.headers) > MAX_HEAD {
        let most = format!(
            "answers with more than {MAX_HEADERS} headers or {} KiB of them",
            MAX_HEAD / 1024
        );
        return Err(nonsense(&most));
    }
    Ok(send(operation, &Message::Head(head)).await.is_ok())
}

/// Carries the body, each piece as it comes, and no faster than the hub takes them.
pub(super) async fn body<B>(
    operation: &Operation,
    open: &Open,
    mut body: B,
    wanted: bool,
) -> Result<Carried, Failure>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Error,
{
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
                Ok(trailers) => {
                    let lines = head::lines(&trailers);
                    if lines.len() > MAX_HEADERS || weight(&lines) > MAX_HEAD {
                        let message =
                            format!("the target, {}, sends too many trailers", open.target);
                        return Err(Failure::new(FailureCode::TARGET_BROKEN, message));
                    }
                    send(operation, &Message::Trailers(lines)).await
                }
                Err(_) => Ok(()),
            },
        };
        if sent.is_err() {
            return Ok(Carried::Spent);
        }
    }
    sender.finish();
    Ok(Carried::Whole { wanted })
}

async fn send(operation: &Operation, message: &Message) -> Result<(), Ended> {
    operation.send_message(kind::encode(message)).await
}
