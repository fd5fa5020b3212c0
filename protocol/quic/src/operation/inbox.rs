//! What has come on a channel and waits for its consumer.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// From how many bytes on a piece is queued as it is. Pieces are slices of packets or of batches of
/// packets, up to 64 KiB, which they keep alive whole: a consumer that keeps up gets them as they
/// are, for one that does not they are copied, so that they cost what they weigh, unless they are
/// most of what they keep alive.
const LARGE: usize = 32 * 1024;

/// The size of the blocks that a queue behind is copied into, in bytes.
const BLOCK: usize = 16 * 1024;

/// A queue of bytes, bounded by the window of its channel.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// Whole pieces, oldest first; a message is one, so that it keeps its bounds.
    pieces: VecDeque<Bytes>,
    /// The last block, while there is room in it.
    tail: BytesMut,
    /// Nothing follows what waits.
    pub(super) ended: bool,
}

impl Inbox {
    /// Adds bytes, joined with what waits already where that saves memory.
    pub(super) fn push(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        let keep = self.pieces.is_empty() || bytes.len() >= LARGE;
        if keep && self.tail.is_empty() {
            self.pieces.push_back(bytes);
            return;
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            if self.tail.capacity() == self.tail.len() {
                self.seal();
                self.tail.reserve(BLOCK.max(self.tail.len()));
            }
            let room = self.tail.capacity() - self.tail.len();
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.tail.extend_from_slice(now);
            rest = later;
        }
    }

    /// Adds a message, with its bounds kept.
    pub(super) fn push_message(&mut self, message: &Bytes) {
        // A copy: a message is small, and what it is a slice of may not be.
        self.pieces.push_back(Bytes::copy_from_slice(message));
    }

    /// Takes the oldest piece.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        if self.pieces.is_empty() {
            self.seal();
        }
        self.pieces.pop_front()
    }

    /// Drops all that waits.
    pub(super) fn clear(&mut self) {
        *self = Self {
            ended: self.ended,
            ..Self::default()
        };
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.pieces
                .push_back(std::mem::take(&mut self.tail).freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_are_joined_and_none_is_lost() {
        let mut inbox = Inbox::default();
        for byte in 0..100_000u32 {
            inbox.push(Bytes::from(vec![byte as u8]));
        }
        let mut pieces = 0;
        let mut all = Vec::new();
        while let Some(piece) = inbox.pop() {
            pieces += 1;
            all.extend_from_slice(&piece);
        }
        assert!(all.iter().zip(0u32..).all(|(byte, n)| *byte == n as u8) && all.len() == 100_000);
        assert!(pieces <= 1 + 100_000 / BLOCK + 1, "{pieces}");
    }

    #[test]
    fn a_consumer_that_keeps_up_gets_what_came() {
        let mut inbox = Inbox::default();
        let piece = Bytes::from(vec![7; 1000]);
        inbox.push(piece.clone());
        let same = inbox.pop().map(|got| got.as_ptr() == piece.as_ptr());
        assert_eq!(same, Some(true));
        assert_eq!(inbox.pop(), None);
        // And large pieces are not copied even for one that does not.
        let large = Bytes::from(vec![7; LARGE]);
        inbox.push(piece);
        inbox.push(large.clone());
        inbox.pop();
        let same = inbox.pop().map(|got| got.as_ptr() == large.as_ptr());
        assert_eq!(same, Some(true));
    }

    #[test]
    fn messages_keep_their_bounds() {
        let mut inbox = Inbox::default();
        for n in 0..10u8 {
            inbox.push_message(&Bytes::from(vec![n; usize::from(n)]));
        }
        for n in 0..10u8 {
            assert_eq!(inbox.pop(), Some(Bytes::from(vec![n; usize::from(n)])));
        }
    }
}
