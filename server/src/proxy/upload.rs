//! The body of a request on its way from the browser into the operation's channel.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use hub_protocol::kind;
use hub_protocol::kind::http::Message;
use hub_quic::operation::{Operation, Sender};
use tokio::sync::oneshot;

use super::exchange::{UploadBroke, settled};
use super::front::RequestBody;
use super::head;
use super::limits::Guarded;
use super::seeing::{Track, Up};

enum Uploaded {
    /// All of it is on its way.
    Whole,
    /// The agent wants no more.
    Unwanted,
    /// The browser broke off.
    Broke(UploadBroke),
}

/// Carries a body, then waits for the operation's end. Says on `broke` if the browser breaks off.
pub(super) async fn run(
    mut body: Guarded<RequestBody>,
    operation: Arc<Operation>,
    mut sender: Sender,
    broke: oneshot::Sender<UploadBroke>,
    track: Track,
) {
    let uploaded = carry(&mut body, &operation, &mut sender, &track).await;
    track.up(Up::Idle);
    // The request may be over before the operation has had its last word.
    drop(track);
    match uploaded {
        Uploaded::Whole => settled(operation).await,
        Uploaded::Unwanted => {
            drop(broke);
            // What still comes is its front end's to throw away.
            drop(body);
            settled(operation).await;
        }
        Uploaded::Broke(why) => {
            // What still comes is its front end's to throw away, while the browser is answered.
            drop(body);
            let _ = broke.send(why);
        }
    }
}

async fn carry(
    body: &mut Guarded<RequestBody>,
    operation: &Operation,
    sender: &mut Sender,
    track: &Track,
) -> Uploaded {
    loop {
        track.up(Up::Browser);
        let frame = tokio::select! {
            biased;
            () = sender.stopped() => return Uploaded::Unwanted,
            frame = body.frame() => frame,
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                let refusal = error.downcast_ref().copied();
                let broke = refusal.map_or(UploadBroke::Itself, UploadBroke::Refused);
                return Uploaded::Broke(broke);
            }
            None => break,
        };
        let sent = match frame.into_data() {
            Ok(bytes) => track.send(sender, bytes).await,
            Err(frame) => match frame.into_trailers() {
                Ok(trailers) => {
                    let trailers = Message::Trailers(head::trailer_lines(&trailers));
                    operation.send_message(kind::encode(&trailers)).await
                }
                Err(_) => Ok(()),
            },
        };
        if sent.is_err() {
            return Uploaded::Unwanted;
        }
    }
    sender.finish();
    Uploaded::Whole
}
