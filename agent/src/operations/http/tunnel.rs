//! A connection that is carried as it is: bytes both ways, each direction with its own end.

use std::io;

use bytes::BytesMut;
use hub_protocol::limits::MAX_DATA;
use hub_quic::operation::{Receiver, Sender};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// How much is read from the connection at once, in bytes.
const READ: usize = MAX_DATA / 4;

/// Carries bytes until both directions have ended: `up` into the connection, `down` out of it.
///
/// # Errors
/// The connection broke.
pub(crate) async fn run(
    up: Receiver,
    down: Sender,
    connection: impl AsyncRead + AsyncWrite,
) -> io::Result<()> {
    let (read, write) = tokio::io::split(connection);
    let up = async {
        carry_up(up, write).await;
        Ok(())
    };
    tokio::try_join!(up, carry_down(read, down)).map(|((), ())| ())
}

/// Into the connection. A target that takes no more may still send: the channel is stopped, and the
/// other direction goes on.
async fn carry_up(mut receiver: Receiver, mut target: impl AsyncWrite + Unpin) {
    // An operation that ended early is the business of whoever carries it.
    while let Ok(Some(bytes)) = receiver.chunk().await {
        let written = target.write_all(&bytes).await;
        if written.is_err() || target.flush().await.is_err() {
            return;
        }
    }
    let _ = target.shutdown().await;
}

/// Out of the connection.
async fn carry_down(mut target: impl AsyncRead + Unpin, mut sender: Sender) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(READ);
        let read = tokio::select! {
            biased;
            () = sender.stopped() => return Ok(()),
            read = target.read_buf(&mut buffer) => read?,
        };
        if read == 0 {
            sender.finish();
            return Ok(());
        }
        if sender.send(buffer.split().freeze()).await.is_err() {
            // The hub wants no more.
            return Ok(());
        }
    }
}
