//! Notices that a client is gone although nobody reads from its connection.
//!
//! Whoever stops reading because there is no credit for more also stops seeing the end of the
//! stream. The kernel knows better: it reports the end of the peer's side, and a reset, apart from
//! data. So a second descriptor of the socket is watched for that alone, and never read.
//!
//! What neither can see is an end that waits in the client's kernel behind data for which this side
//! has no room. The connection's writer therefore says something from time to time: the kernel of a
//! client that is gone answers that with a reset.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::net::TcpStream;

/// Watches one connection. Clones share the watch; the socket stays open until all are gone, so
/// nobody keeps one for longer than the connection.
#[derive(Debug, Clone)]
pub(crate) struct Hangup(Arc<TcpStream>);

impl Hangup {
    /// Watches the connection of this socket.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(crate) fn watch(socket: &TcpStream) -> io::Result<Self> {
        let second = std::net::TcpStream::from(socket.as_fd().try_clone_to_owned()?);
        TcpStream::from_std(second).map(|second| Self(Arc::new(second)))
    }

    /// Waits until the peer has closed its side or reset the connection. Data that it sent before
    /// may still be unread.
    pub(crate) async fn wait(&self) {
        // An error means that the runtime ends, and with it everything that waits here.
        while let Ok(ready) = self.0.ready(Interest::READABLE).await {
            if ready.is_read_closed() {
                return;
            }
            // Not an attempt to read: it makes the next `ready` wait for news.
            let _ = self.0.try_io(Interest::READABLE, || -> io::Result<()> {
                Err(io::ErrorKind::WouldBlock.into())
            });
        }
    }

    /// Waits until the connection is broken. One that both sides have ended is not: what came may
    /// still be unread.
    pub(crate) async fn broken(&self) {
        // An error means that the runtime ends, and with it everything that waits here.
        let _ = self.0.ready(Interest::ERROR).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures_util::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn an_end_is_seen_behind_unread_data() {
        let (mut client, mut server) = connection().await;
        let hangup = Hangup::watch(&server).unwrap();
        client.write_all(b"unread").await.unwrap();
        server.readable().await.unwrap();
        assert!(hangup.wait().now_or_never().is_none(), "data is no end");
        drop(client);
        hangup.wait().await;
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"unread", "the watch has taken nothing");
    }

    #[tokio::test]
    async fn a_reset_is_seen() {
        let (client, server) = connection().await;
        let hangup = Hangup::watch(&server).unwrap();
        client.set_zero_linger().unwrap();
        drop(client);
        hangup.wait().await;
        hangup.broken().await;
    }

    #[tokio::test]
    async fn an_end_breaks_nothing() {
        let (mut client, mut server) = connection().await;
        let hangup = Hangup::watch(&server).unwrap();
        client.shutdown().await.unwrap();
        hangup.wait().await;
        assert!(hangup.broken().now_or_never().is_none());
        server.shutdown().await.unwrap();
        server.ready(Interest::READABLE).await.unwrap();
        tokio::task::yield_now().await;
        assert!(hangup.broken().now_or_never().is_none());
    }

    /// The client's kernel holds an end that it cannot deliver: this side has no room.
    #[tokio::test]
    async fn an_end_behind_a_full_connection_is_seen_once_something_is_said() {
        let (client, mut server) = connection().await;
        let hangup = Hangup::watch(&server).unwrap();
        let piece = vec![0; 64 * 1024];
        client.writable().await.unwrap();
        while client.try_write(&piece).is_ok() {}
        drop(client);
        tokio::select! {
            () = hangup.wait() => {}
            () = async {
                loop {
                    // Fails once the reset is there, which the watch sees as well.
                    let _ = server.write_all(b"anybody there?").await;
                    tokio::task::yield_now().await;
                }
            } => {}
        }
    }
}
