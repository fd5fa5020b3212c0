//! Sizes that both sides rely on, and the limits a side announces for itself.
//!
//! The sums matter more than the single figures: everything outstanding in one direction of one
//! QUIC stream stays within [`STREAM_WINDOW`], and all initial windows of all allowed streams
//! together within a session's budget, so that no operation can take what another was promised.

use serde::{Deserialize, Serialize};

/// The most payload bytes of one `Data` frame: 64 KiB.
pub const MAX_DATA: usize = 64 * 1024;

/// The most bytes of the body of `Open`: room for a request head of [`MAX_HEAD`] and its framing.
pub const MAX_OPEN: usize = 128 * 1024;

/// The most bytes of one `Message`: a response head of [`MAX_HEAD`] and its framing.
pub const MAX_MESSAGE: usize = 96 * 1024;

/// The most bytes of the bodies of `Accepted`, `Failed` and `Done`.
pub const MAX_ANSWER: usize = 16 * 1024;

/// The most bytes of an HTTP head, names and values together: 64 KiB.
pub const MAX_HEAD: usize = 64 * 1024;

/// The most bytes of a frame on the control stream: 256 KiB (a list of targets is the largest).
pub const MAX_CONTROL: usize = 256 * 1024;

/// What `Message` frames may have outstanding in each direction of an operation, in bytes: each
/// counts as its payload and 64 more, so that empty ones cost something, too. More than one message of the largest size, so that one can always be on its way.
pub const MESSAGE_WINDOW: u64 = 128 * 1024;

/// The flow-control window of one QUIC stream in each direction: 1 MiB. quinn gives up a whole
/// connection when a stream holds more than 1,024 pieces that cannot be merged, which larger
/// windows reach under loss.
pub const STREAM_WINDOW: u64 = 1024 * 1024;

/// Streams the hub may open to an agent at first; raised as they are used.
pub const INITIAL_OPERATIONS: u32 = 256;

/// Streams the hub may have open to an agent at most.
pub const MAX_OPERATIONS: u32 = 4096;

/// Streams an agent may have open to the hub. It needs one, its control stream, and opens no
/// operations: what is left is there so that a stream too many is a violation that is counted, and
/// not one that waits. Nothing raises it.
pub const AGENT_STREAMS: u32 = 16;

/// The limits that one side announces for what it receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes a sender may send on each channel of a new operation before the first `Credit`.
    pub initial_window: u64,
    /// Bytes that may be outstanding at most in one direction of an operation, all its channels
    /// together; each channel has an equal share of it.
    pub max_window: u64,
}

impl Limits {
    /// What one channel may have outstanding when `channels` share a direction.
    pub fn max_per_channel(&self, channels: usize) -> u64 {
        (self.max_window / channels.max(1) as u64).max(1)
    }

    /// What one channel may send at first when `channels` share a direction.
    pub fn initial_per_channel(&self, channels: usize) -> u64 {
        self.initial_window.min(self.max_per_channel(channels))
    }

    /// The limits within the bounds that this version of the protocol can serve: a peer announces
    /// them, and one that announces nonsense must not make us allocate or divide by it.
    #[must_use]
    pub fn clamped(self) -> Self {
        let max_window = self.max_window.clamp(1, Self::default().max_window);
        Self {
            initial_window: self.initial_window.min(max_window),
            max_window,
        }
    }
}

impl Default for Limits {
    /// 64 KiB at first, 768 KiB at most: with [`MESSAGE_WINDOW`] and framing below
    /// [`STREAM_WINDOW`].
    fn default() -> Self {
        Self {
            initial_window: 64 * 1024,
            max_window: 768 * 1024,
        }
    }
}
