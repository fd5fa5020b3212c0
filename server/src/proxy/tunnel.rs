//! An upgraded connection: bytes both ways, each direction with its own end.

use std::sync::Arc;

use bytes::Bytes;
use hub_protocol::kind::http::{Outcome, RESPONSE};
use hub_quic::operation::{Operation, Sender};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use super::door::Holds;
use super::exchange::{outcome, settled};
use super::front::{UpgradeSlot, Upgraded};
use super::seeing::Track;
use crate::pipe::{self, Broke, Pulse};

/// Carries bytes until both directions have ended. When one breaks, so does the other: the
/// operation is cancelled, and the browser's connection closed. Holds the connection's seat, and
/// ends when that is cut; and what the request counts against.
pub(super) async fn run(
    operation: Arc<Operation>,
    sender: Sender,
    slot: UpgradeSlot,
    _holds: Holds,
    track: Track,
) {
    let Some(Upgraded { io, early, seat }) = slot.upgraded().await else {
        return;
    };
    let (read, write) = tokio::io::split(io);
    let pulse = Pulse::seen(track);
    let carried = async {
        let up = up(early, read, sender, &pulse);
        let down = down(write, &operation, &pulse);
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
        pulse.ended_well();
        drop(pulse);
        settled(operation).await;
    }
}

/// From the browser to the target, as long as the agent wants it.
async fn up(
    early: Bytes,
    browser: impl AsyncRead + Unpin,
    mut sender: Sender,
    pulse: &Pulse,
) -> Result<(), Broke> {
    if !early.is_empty() && pulse.send(&mut sender, early).await.is_err() {
        return Ok(());
    }
    pipe::up(browser, sender, pulse).await
}

/// From the target to the browser.
async fn down(
    mut browser: impl AsyncWrite + Unpin,
    operation: &Operation,
    pulse: &Pulse,
) -> Result<(), Broke> {
    pipe::down(operation.receiver(RESPONSE), &mut browser, pulse).await?;
    if let Some(Ok(done)) = futures_util::FutureExt::now_or_never(operation.done())
        && outcome(&done) != Some(Outcome::Complete)
    {
        return Err(Broke);
    }
    browser.shutdown().await.map_err(|_| Broke)
}
