//! Bytes between a connection and the channels of an operation, each direction with its own end.
//!
//! ```text
//! connection --reads--> Sender      as far as credit goes: without it nothing is read
//! connection <--writes-- Receiver   what waits is written in one call, uncopied
//! ```

use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use hub_protocol::limits::MAX_DATA;
use hub_quic::operation::{Ended, Receiver, Sender};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::sleep;

use crate::proxy::{Down, Track};

/// How much is read at once, in bytes, at first: doubled up to [`MAX_DATA`] while that is not enough.
const READ: usize = MAX_DATA / 4;

/// The least room to read into: below it a new buffer is begun.
const LEAST: usize = 2 * 1024;

/// The most bytes that are taken together for one write.
const WRITE: usize = MAX_DATA;

/// One side broke off: the other must not take it for a clean end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broke;

/// Whether anything has moved lately, and where that is seen.
#[derive(Default)]
pub(crate) struct Pulse {
    moved: AtomicBool,
    track: Option<Track>,
}

impl Pulse {
    /// One whose bytes, and what they wait for, are told to this record.
    pub(crate) fn seen(track: Track) -> Self {
        Self {
            moved: AtomicBool::new(false),
            track: Some(track),
        }
    }

    fn beat(&self) {
        self.moved.store(true, Ordering::Relaxed);
    }

    /// Sends what was read from the connection.
    pub(crate) async fn send(&self, sender: &mut Sender, bytes: Bytes) -> Result<(), Ended> {
        match &self.track {
            Some(track) => track.send(sender, bytes).await,
            None => sender.send(bytes).await,
        }
    }

    /// What the connection is to get is awaited, or has come and is being written.
    fn down(&self, down: Down, bytes: usize) {
        if let Some(track) = &self.track {
            track.down(down);
            track.gives(bytes);
        }
    }

    /// Both directions have come to their ends.
    pub(crate) fn ended_well(&self) {
        if let Some(track) = &self.track {
            track.whole();
        }
    }

    /// Waits until nothing has moved for `idle`, within a quarter of it; for ever without one.
    pub(crate) async fn stopped(&self, idle: Option<Duration>) {
        let Some(idle) = idle else {
            return pending().await;
        };
        let mut silent = 0;
        while silent < 4 {
            sleep(idle / 4).await;
            if self.moved.swap(false, Ordering::Relaxed) {
                silent = 0;
            } else {
                silent += 1;
            }
        }
    }
}

/// From the connection into the operation, up to its end or as long as the other side wants it.
pub(crate) async fn up(
    mut from: impl AsyncRead + Unpin,
    mut sender: Sender,
    pulse: &Pulse,
) -> Result<(), Broke> {
    let mut buffer = BytesMut::new();
    let mut size = READ;
    loop {
        if buffer.capacity() < LEAST {
            buffer.reserve(size);
        }
        let room = buffer.capacity();
        let read = tokio::select! {
            biased;
            () = sender.stopped() => return Ok(()),
            read = from.read_buf(&mut buffer) => read.map_err(|_| Broke)?,
        };
        pulse.beat();
        if read == 0 {
            sender.finish();
            return Ok(());
        }
        if read == room {
            size = (2 * size).min(MAX_DATA);
        }
        let bytes = buffer.split().freeze();
        if pulse.send(&mut sender, bytes).await.is_err() {
            return Ok(());
        }
    }
}

/// Out of the operation into the connection, up to the channel's end. That of the connection is the
/// caller's, who knows whether it is a good one.
pub(crate) async fn down(
    mut receiver: Receiver,
    to: &mut (impl AsyncWrite + Unpin),
    pulse: &Pulse,
) -> Result<(), Broke> {
    let mut chunks = Chunks::default();
    loop {
        pulse.down(Down::Piece, 0);
        let filled = poll_fn(|cx| chunks.poll_fill(&mut receiver, cx)).await;
        if !filled? {
            return Ok(());
        }
        pulse.down(Down::Browser, chunks.bytes);
        to.write_all_buf(&mut chunks).await.map_err(|_| Broke)?;
        to.flush().await.map_err(|_| Broke)?;
        pulse.beat();
    }
}

/// What has come and is to be written.
#[derive(Debug, Default)]
struct Chunks {
    chunks: VecDeque<Bytes>,
    bytes: usize,
}

impl Chunks {
    /// Takes all that has come, up to [`WRITE`]; waits for some. Gives whether there is any, or the
    /// channel has ended.
    fn poll_fill(
        &mut self,
        receiver: &mut Receiver,
        cx: &mut Context<'_>,
    ) -> Poll<Result<bool, Broke>> {
        while self.bytes < WRITE {
            match receiver.poll_chunk(cx) {
                Poll::Ready(Ok(Some(chunk))) => {
                    self.bytes += chunk.len();
                    self.chunks.push_back(chunk);
                }
                // The end comes again when it is asked for again.
                _ if self.bytes > 0 => break,
                Poll::Ready(Ok(None)) => return Poll::Ready(Ok(false)),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Broke)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(true))
    }
}

impl Buf for Chunks {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.chunks.front().map_or(&[], |chunk| chunk)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let filled = slices.iter_mut().zip(&self.chunks);
        filled
            .map(|(slice, chunk)| *slice = IoSlice::new(chunk))
            .count()
    }

    fn advance(&mut self, mut count: usize) {
        self.bytes -= count;
        while let Some(first) = self.chunks.front_mut() {
            if count < first.len() {
                return first.advance(count);
            }
            count -= first.len();
            self.chunks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_written_together_and_in_part() {
        let mut chunks = Chunks {
            chunks: ["ab", "cde", "f"].map(Bytes::from).into(),
            bytes: 6,
        };
        let mut slices = [IoSlice::new(&[]); 2];
        assert_eq!(chunks.chunks_vectored(&mut slices), 2);
        assert_eq!((&*slices[0], &*slices[1]), (&b"ab"[..], &b"cde"[..]));
        chunks.advance(3);
        assert_eq!((chunks.chunk(), chunks.remaining()), (&b"de"[..], 3));
        chunks.advance(3);
        assert_eq!((chunks.chunk(), chunks.remaining()), (&b""[..], 0));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_noticed_and_no_sooner() {
        let pulse = Pulse::default();
        let idle = Duration::from_secs(60);
        let start = tokio::time::Instant::now();
        let beats = async {
            for _ in 0..10 {
                sleep(Duration::from_secs(30)).await;
                pulse.beat();
            }
            pending::<()>().await;
        };
        tokio::select! {
            () = pulse.stopped(Some(idle)) => {}
            () = beats => {}
        }
        let silent = start.elapsed().saturating_sub(Duration::from_secs(300));
        assert!(silent >= idle && silent <= idle + idle / 4, "{silent:?}");
    }
}
