//! Where requests come in: each version of HTTP is a front end, and all hand their requests to
//! one core.
//!
//! ```text
//! browser --> front end --Asked--> Proxy::answer --> session
//!                 |  <-- Interim: informational responses, while the answer is awaited
//!                 |  <-- Response<ProxyBody>
//!                 '--Upgraded--> UpgradeSlot --> tunnel, after a 101
//! ```
//!
//! A front end checks what is its version's own (framing, which headers there must be) and answers
//! what breaks those rules itself. The core knows no version. What both hold to:
//!
//! - The request's body says by its size hint how long it is; without an exact one it comes in
//!   chunks. It is polled from any task. Dropped before its end, it is not wanted any more: what
//!   the browser still sends is the front end's to throw away.
//! - Whatever is in [`Interim`] when the response is there goes first.
//! - A front end that drops the response's body before its end cancels the request. When the body
//!   fails, the browser gets what came before, and then sees that the response is not whole.
//! - A front end that drops the answer's future, because the browser is gone, cancels, too.

pub(super) mod http1;
pub(super) mod http2;
pub(super) mod http3;
mod multiplexed;

use bytes::Bytes;
use http::{Response, request};
use http_body::Body;
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};

use super::client::Client;
use crate::seats::Seat;

/// Informational responses that wait for their browser; the core waits for room after that.
const INTERIM: usize = 4;

/// A request as a front end hands it to the core.
pub(super) struct Asked {
    /// Its head. An absolute target's authority, or `:authority`, is in the URI.
    pub(super) head: request::Parts,
    /// Its body.
    pub(super) body: RequestBody,
    /// Who asks.
    pub(super) client: Client,
    /// Takes informational responses.
    pub(super) interim: Interim,
    /// Set if the browser wants to upgrade, and may: such a request has no body.
    pub(super) upgrade: Option<UpgradeSlot>,
}

/// Why a request's body is not whole. For the log.
pub(super) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request, whatever carries it.
pub(super) type RequestBody = UnsyncBoxBody<Bytes, BodyError>;

/// A body as the core takes it.
pub(super) fn request_body<B>(body: B) -> RequestBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    body.map_err(Into::into).boxed_unsync()
}

/// Takes the informational responses (100, 103) that come before a response.
#[derive(Debug, Clone)]
pub(super) struct Interim(Option<mpsc::Sender<Box<Response<()>>>>);

/// The front end's side of [`Interim`].
pub(super) type Interims = mpsc::Receiver<Box<Response<()>>>;

impl Interim {
    /// For a browser that understands them.
    pub(super) fn channel() -> (Self, Interims) {
        let (sender, receiver) = mpsc::channel(INTERIM);
        (Self(Some(sender)), receiver)
    }

    /// For a browser of HTTP/1.0, which gets none.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// Hands one over, once there is room for it.
    pub(super) async fn send(&self, response: Response<()>) {
        if let Some(sender) = &self.0 {
            // A front end that takes no more is about to drop the whole request.
            let _ = sender.send(Box::new(response)).await;
        }
    }
}

/// A connection, or what stands for one.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection after a 101: its bytes are the tunnel's.
pub(super) struct Upgraded {
    /// The connection.
    pub(super) io: Box<dyn Io>,
    /// What was read from it already.
    pub(super) early: Bytes,
    /// The connection's seat, which the tunnel holds from now on.
    pub(super) seat: Option<Seat>,
}

/// Where the tunnel waits for the connection. Its front end gives it up once it has sent the 101.
pub(super) struct UpgradeSlot {
    /// The protocol that the browser asks for, as `websocket`.
    pub(super) protocol: Bytes,
    connection: oneshot::Receiver<Upgraded>,
}

impl UpgradeSlot {
    /// A slot, and where its front end puts the connection.
    pub(super) fn new(protocol: Bytes) -> (Self, oneshot::Sender<Upgraded>) {
        let (sender, connection) = oneshot::channel();
        let slot = Self {
            protocol,
            connection,
        };
        (slot, sender)
    }

    /// The connection; `None` if the browser went away before it had the 101.
    pub(super) async fn upgraded(self) -> Option<Upgraded> {
        self.connection.await.ok()
    }
}
