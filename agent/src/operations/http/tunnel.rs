//! An upgraded connection: bytes both ways, each direction with its own end.

use std::io;

use bytes::BytesMut;
use hub_protocol::kind::http::{REQUEST, RESPONSE};
use hub_protocol::limits::MAX_DATA;
use hub_quic::operation::{Operation, Receiver, Sender};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// How much is read from the target at once, in bytes.
const READ: usize = MAX_DATA / 4;

/// Carries bytes until both directions have ended.
///
/// # Errors
/// The target's connection broke.
pub(super) async fn run(operation: &Operation, upgraded: Upgraded) -> io::Result<()> {
    let (read, write) = tokio::io::split(TokioIo::new(upgraded));
    let up = async {
        up(operation.receiver(REQUEST), write).await;
        Ok(())
    };
    let down = down(read, operation.sender(RESPONSE));
    tokio::try_join!(up, down).map(|((), ())| ())
}

/// From the browser to the target. A target that takes no more may still send: the channel is
/// stopped, and the other direction goes on.
async fn up(mut receiver: Receiver, mut target: impl AsyncWrite + Unpin) {
    // An operation that ended early is the business of whoever carries it.
    while let Ok(Some(bytes)) = receiver.chunk().await {
        let written = target.write_all(&bytes).await;
        if written.is_err() || target.flush().await.is_err() {
            return;
        }
    }
    let _ = target.shutdown().await;
}

/// From the target to the browser.
async fn down(mut target: impl AsyncRead + Unpin, mut sender: Sender) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(READ);
        if target.read_buf(&mut buffer).await? == 0 {
            sender.finish();
            return Ok(());
        }
        if sender.send(buffer.split().freeze()).await.is_err() {
            // The hub wants no more.
            return Ok(());
        }
    }
}
