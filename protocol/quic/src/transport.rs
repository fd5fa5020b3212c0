//! What sessions and operations ride on: a QUIC connection, or one within the process.
//!
//! ```text
//! Session --+-- Connection --+-- quinn::Connection    to an agent anywhere
//! pump -----+   SendStream   |
//!               RecvStream   `-- memory::Connection   to the hub's own machine
//! ```
//!
//! Both kinds speak QUIC's language: streams with an end, resets and stops with a code, a connection
//! that is closed with a code and a reason, and quinn's errors for all of them. Nothing above this
//! module knows which kind it has. A stream is an enum and not a trait object: on QUIC it costs one
//! predictable branch for each call and no allocation.

pub mod memory;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hub_protocol::code::ResetCode;
use hub_protocol::limits::MAX_DATA;
use quinn::{ClosedStream, ConnectionError, ReadError, StoppedError, VarInt, WriteError};

use crate::urgent::{Urgency, Urgent};

/// A connection. Cheap to clone; it is closed when its last handle and its last stream are gone.
#[derive(Debug, Clone)]
pub enum Connection {
    /// Over the network.
    Quic(quinn::Connection),
    /// Within the process.
    Memory(memory::Connection),
}

impl From<quinn::Connection> for Connection {
    fn from(connection: quinn::Connection) -> Self {
        Self::Quic(connection)
    }
}

impl From<memory::Connection> for Connection {
    fn from(connection: memory::Connection) -> Self {
        Self::Memory(connection)
    }
}

/// How a stream came to its end: the code that the peer stopped it with, if it did.
pub type Stopped = Pin<Box<dyn Future<Output = Result<Option<VarInt>, StoppedError>> + Send>>;

/// Both directions of a stream.
pub type Stream = (SendStream, RecvStream);

impl Connection {
    /// Opens a stream, as soon as the peer allows one more.
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn open(&self) -> Result<Stream, ConnectionError> {
        match self {
            Self::Quic(connection) => connection.open_bi().await.map(quic),
            Self::Memory(connection) => connection.open().await.map(memory),
        }
    }

    /// The next stream that the peer opens. Cancelling loses none.
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn accept(&self) -> Result<Stream, ConnectionError> {
        match self {
            Self::Quic(connection) => connection.accept_bi().await.map(quic),
            Self::Memory(connection) => connection.accept().await.map(memory),
        }
    }

    /// Closes it, and with it all streams. What has not been delivered is lost.
    pub fn close(&self, code: VarInt, reason: &[u8]) {
        match self {
            Self::Quic(connection) => connection.close(code, reason),
            Self::Memory(connection) => connection.close(code, reason),
        }
    }

    /// Waits until it is closed; gives why.
    pub async fn closed(&self) -> ConnectionError {
        match self {
            Self::Quic(connection) => connection.closed().await,
            Self::Memory(connection) => connection.closed().await,
        }
    }

    /// Why it is closed, if it is.
    pub fn close_reason(&self) -> Option<ConnectionError> {
        match self {
            Self::Quic(connection) => connection.close_reason(),
            Self::Memory(connection) => connection.close_reason(),
        }
    }

    /// The most bytes of a datagram to the peer now; `None` if it takes none. A path that changes
    /// changes it.
    pub(crate) fn max_datagram(&self) -> Option<usize> {
        match self {
            Self::Quic(connection) => connection.max_datagram_size(),
            Self::Memory(_) => Some(memory::MAX_DATAGRAM),
        }
    }

    /// Bytes of a datagram for which there is room now.
    pub(crate) fn datagram_room(&self) -> usize {
        match self {
            Self::Quic(connection) => connection.datagram_send_buffer_space(),
            Self::Memory(_) => memory::MAX_DATAGRAM,
        }
    }

    /// Sends a datagram for which there is room. Whether it arrives nobody says. Gives whether it
    /// could be sent at all: the path may carry less than a moment ago.
    pub(crate) fn send_datagram(&self, datagram: Bytes) -> bool {
        match self {
            Self::Quic(connection) => connection.send_datagram(datagram).is_ok(),
            Self::Memory(connection) => connection.send_datagram(datagram),
        }
    }

    /// The same, as soon as there is room.
    pub(crate) async fn send_datagram_wait(&self, datagram: Bytes) -> bool {
        match self {
            Self::Quic(connection) => connection.send_datagram_wait(datagram).await.is_ok(),
            Self::Memory(connection) => connection.send_datagram(datagram),
        }
    }

    /// The next datagram from the peer. Cancelling loses none.
    ///
    /// # Errors
    /// The connection is closed.
    pub(crate) async fn read_datagram(&self) -> Result<Bytes, ConnectionError> {
        match self {
            Self::Quic(connection) => connection.read_datagram().await,
            Self::Memory(connection) => connection.read_datagram().await,
        }
    }

    /// What the path carries in a round trip, in bytes, by congestion control, and how long one takes
    /// now. Nothing holds up bytes within the process.
    pub(crate) fn path(&self) -> Option<(u64, Duration)> {
        match self {
            Self::Quic(connection) => {
                let path = connection.stats().path;
                Some((path.cwnd, path.rtt))
            }
            Self::Memory(_) => None,
        }
    }

    /// Where the peer's packets come from now; nowhere within the process.
    pub fn remote_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Quic(connection) => Some(connection.remote_address()),
            Self::Memory(_) => None,
        }
    }

    /// The current estimate of the round trip; zero within the process.
    pub fn rtt(&self) -> Duration {
        match self {
            Self::Quic(connection) => connection.rtt(),
            Self::Memory(_) => Duration::ZERO,
        }
    }

    /// What lets urgent bytes go at once; nothing holds them up within the process.
    pub(crate) fn urgency(&self) -> Option<Urgency> {
        match self {
            Self::Quic(connection) => Urgent::urgency(connection),
            Self::Memory(_) => None,
        }
    }

    /// The least round trip seen.
    pub(crate) fn min_rtt(&self) -> Duration {
        match self {
            Self::Quic(connection) => connection.min_rtt(),
            Self::Memory(_) => Duration::ZERO,
        }
    }

    /// Makes room for more streams under way: `windows` bytes in each direction. Within the process
    /// each stream has its own room.
    pub(crate) fn set_windows(&self, windows: u64) {
        if let Self::Quic(connection) = self {
            connection.set_receive_window(VarInt::from_u64(windows).unwrap_or(VarInt::MAX));
            connection.set_send_window(windows);
        }
    }

    /// Allows the peer so many streams at once; never fewer than before.
    pub(crate) fn allow_streams(&self, streams: u32) {
        match self {
            Self::Quic(connection) => {
                connection.set_max_concurrent_bi_streams(VarInt::from_u32(streams));
            }
            Self::Memory(connection) => connection.allow_streams(streams),
        }
    }
}

fn quic((send, recv): (quinn::SendStream, quinn::RecvStream)) -> Stream {
    (SendStream::Quic(send), RecvStream::Quic(recv))
}

fn memory((send, recv): (memory::SendStream, memory::RecvStream)) -> Stream {
    (SendStream::Memory(send), RecvStream::Memory(recv))
}

/// The direction from this side. Dropping it ends it cleanly, as QUIC does: whoever means to give up
/// resets it.
#[derive(Debug)]
pub enum SendStream {
    /// Over the network.
    Quic(quinn::SendStream),
    /// Within the process.
    Memory(memory::SendStream),
}

impl SendStream {
    /// How many streams the side that opened this one had opened before.
    pub(crate) fn index(&self) -> u64 {
        match self {
            Self::Quic(send) => send.id().index(),
            Self::Memory(send) => send.index(),
        }
    }

    /// Writes as much of `chunks` as there is room for, uncopied; gives how many of them were taken
    /// whole. What is left of one that was not is left in its place.
    pub fn poll_chunks(
        &mut self,
        cx: &mut Context<'_>,
        chunks: &mut [Bytes],
    ) -> Poll<Result<usize, WriteError>> {
        match self {
            // It keeps nothing between two polls: polling a fresh one each time loses nothing.
            Self::Quic(send) => pin!(send.write_chunks(chunks))
                .poll(cx)
                .map(|written| written.map(|written| written.chunks)),
            Self::Memory(send) => send.poll_chunks(cx, chunks),
        }
    }

    /// Writes all of `chunk`, uncopied.
    ///
    /// # Errors
    /// The stream was stopped or is over, or the connection is closed.
    pub async fn chunk(&mut self, chunk: Bytes) -> Result<(), WriteError> {
        let mut chunks = [chunk];
        while !chunks[0].is_empty() {
            poll_fn(|cx| self.poll_chunks(cx, &mut chunks)).await?;
        }
        Ok(())
    }

    /// Says that nothing follows.
    ///
    /// # Errors
    /// It is over already.
    pub fn finish(&mut self) -> Result<(), ClosedStream> {
        match self {
            Self::Quic(send) => send.finish(),
            Self::Memory(send) => send.finish(),
        }
    }

    /// Gives up: what has not been delivered is lost, and the reader learns the code.
    ///
    /// # Errors
    /// It is over already.
    pub fn reset(&mut self, code: ResetCode) -> Result<(), ClosedStream> {
        match self {
            Self::Quic(send) => send.reset(VarInt::from_u32(code.0)),
            Self::Memory(send) => send.reset(VarInt::from_u32(code.0)),
        }
    }

    /// Waits until the peer has stopped the stream, with this code, or has all of it (`None`).
    ///
    /// # Errors
    /// The connection is closed.
    pub fn stopped(&self) -> Stopped {
        match self {
            Self::Quic(send) => Box::pin(send.stopped()),
            Self::Memory(send) => Box::pin(send.stopped()),
        }
    }

    /// Sets the stream's priority: those of a higher one go first where they share a path.
    pub(crate) fn set_priority(&self, priority: i32) {
        if let Self::Quic(send) = self {
            // Fails only on a stream that is closed, where nothing is left to order.
            let _ = send.set_priority(priority);
        }
    }
}

/// The direction to this side. Dropping it stops it.
#[derive(Debug)]
pub enum RecvStream {
    /// Over the network.
    Quic(quinn::RecvStream),
    /// Within the process.
    Memory(memory::RecvStream),
}

impl RecvStream {
    /// The next bytes, at most [`MAX_DATA`] of them, uncopied; `None` at the end.
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, ReadError>> {
        match self {
            Self::Quic(recv) => pin!(recv.read_chunk(MAX_DATA, true))
                .poll(cx)
                .map(|read| read.map(|chunk| chunk.map(|chunk| chunk.bytes))),
            Self::Memory(recv) => recv.poll_chunk(cx, MAX_DATA),
        }
    }

    /// [`poll_chunk`](Self::poll_chunk), awaited. Cancelling loses nothing.
    ///
    /// # Errors
    /// The peer has reset the stream, it was stopped, or the connection is closed.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ReadError> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// Wants no more of it: the peer learns the code.
    ///
    /// # Errors
    /// It is over already.
    pub fn stop(&mut self, code: ResetCode) -> Result<(), ClosedStream> {
        match self {
            Self::Quic(recv) => recv.stop(VarInt::from_u32(code.0)),
            Self::Memory(recv) => recv.stop(VarInt::from_u32(code.0)),
        }
    }
}
