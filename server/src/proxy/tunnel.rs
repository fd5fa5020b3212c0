//! An upgraded connection: bytes both ways, each direction with its own end.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use hub_protocol::kind::http::{Outcome, RESPONSE};
use hub_protocol::limits::MAX_DATA;
use hub_quic::operation::{Operation, Receiver, Sender};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::door::Holds;
use super::exchange::{outcome, settled};
use super::front::{UpgradeSlot, Upgraded};

/// How much is read from the browser at once, in bytes.
const READ: usize = MAX_DATA / 4;

/// One side broke off: the other must not take it for a clean end.
struct Broke;

/// Carries bytes until both directions have ended. When one breaks, so does the other: the
/// operation is cancelled, and the browser's connection closed. Holds the connection's seat, and
/// ends when that is cut; and what the request counts against.
pub(super) async fn run(
    operation: Arc<Operation>,
    sender: Sender,
    slot: UpgradeSlot,
    _holds: Holds,
) {
    let Some(Upgraded { io, early, seat }) = slot.upgraded().await else {
        return;
    };
    let (read, write) = tokio::io::split(io);
    let carried = async {
        let up = up(early, read, sender);
        let down = down(operation.receiver(RESPONSE), write, &operation);
        tokio::try_join!(up, down)
    };
    let carried = match seat {
        Some(seat) => tokio::select! {
            carried = carried => carried,
            () = seat.cut() => return,
        },
        None => carried.await,
    };
    if carried.is_ok() {
        settled(operation).await;
    }
}

/// From the browser to the target, as long as the agent wants it.
async fn up(
    early: Bytes,
    mut browser: impl AsyncRead + Unpin,
    mut sender: Sender,
) -> Result<(), Broke> {
    if !early.is_empty() && sender.send(early).await.is_err() {
        return Ok(());
    }
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(READ);
        let read = tokio::select! {
            biased;
            () = sender.stopped() => return Ok(()),
            read = browser.read_buf(&mut buffer) => read.map_err(|_| Broke)?,
        };
        if read == 0 {
            sender.finish();
            return Ok(());
        }
        if sender.send(buffer.split().freeze()).await.is_err() {
            return Ok(());
        }
    }
}

/// From the target to the browser.
async fn down(
    mut receiver: Receiver,
    mut browser: impl AsyncWrite + Unpin,
    operation: &Operation,
) -> Result<(), Broke> {
    while let Some(bytes) = receiver.chunk().await.map_err(|_| Broke)? {
        browser.write_all(&bytes).await.map_err(|_| Broke)?;
        browser.flush().await.map_err(|_| Broke)?;
    }
    if let Some(Ok(done)) = futures_util::FutureExt::now_or_never(operation.done())
        && outcome(&done) != Some(Outcome::Complete)
    {
        return Err(Broke);
    }
    browser.shutdown().await.map_err(|_| Broke)
}
