//! Frames: a varint tag, a varint length, a payload.
//!
//! [`Decoder`] takes chunks as they come off a stream and gives frames. `Data` is never gathered:
//! each piece that has arrived is handed on as it is, without a copy. Every other frame is small
//! and bounded, and is gathered only as far as its bytes have arrived, so that a length that a
//! peer claims allocates nothing.

use bytes::{Buf, Bytes, BytesMut};

use crate::limits::{MAX_ANSWER, MAX_CONTROL, MAX_DATA, MAX_MESSAGE, MAX_OPEN};
use crate::varint;

/// One direction of bytes inside an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel(pub u8);

impl Channel {
    /// The window that `Message` frames draw on. It carries no `Data`, `End` or `Stop`.
    pub const MESSAGES: Self = Self(0x3f);
}

/// A frame inside an operation, after its `Open`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Bytes of a channel, or the piece of a longer `Data` frame that has arrived.
    Data {
        /// The channel they belong to.
        channel: Channel,
        /// At most [`MAX_DATA`] bytes.
        bytes: Bytes,
    },
    /// The receiver allows this many bytes more.
    Credit {
        /// The channel they are for, or [`Channel::MESSAGES`].
        channel: Channel,
        /// How many.
        bytes: u64,
    },
    /// The sender has no more for this channel.
    End {
        /// The channel.
        channel: Channel,
    },
    /// The receiver wants no more of this channel.
    Stop {
        /// The channel.
        channel: Channel,
    },
    /// A small typed message.
    Message(Bytes),
    /// The agent has taken the operation.
    Accepted(Bytes),
    /// The agent did not start the operation, and never will.
    Failed(Bytes),
    /// The operation's outcome: the agent's last frame.
    Done(Bytes),
}

const DATA: u64 = 0x01;
const CREDIT: u64 = 0x02;
const END: u64 = 0x03;
const STOP: u64 = 0x04;
const MESSAGE: u64 = 0x05;
const ACCEPTED: u64 = 0x06;
const FAILED: u64 = 0x07;
const DONE: u64 = 0x08;

/// A frame that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A tag that this version does not know.
    #[error("unknown frame tag {0:#x}")]
    UnknownTag(u64),
    /// A length above what frames of this kind may have.
    #[error("frame {tag:#x} claims {length} bytes, of which {limit} are allowed")]
    Oversized {
        /// The frame's tag.
        tag: u64,
        /// Its length as it claims.
        length: u64,
        /// The most it may have.
        limit: usize,
    },
    /// A payload that is not what its tag says.
    #[error("frame {tag:#x} has a malformed payload")]
    Malformed {
        /// The frame's tag.
        tag: u64,
    },
}

/// The most bytes before the payload of a `Data` frame: tag, length, channel.
pub const DATA_HEADER_MAX: usize = 1 + 4 + 1;

/// The head of a `Data` frame for `length` bytes of payload, which follow it on the stream.
pub fn data_header(channel: Channel, length: usize) -> Bytes {
    debug_assert!(length <= MAX_DATA);
    let mut buf = BytesMut::with_capacity(DATA_HEADER_MAX);
    varint::put(&mut buf, DATA);
    varint::put(&mut buf, length as u64 + 1);
    buf.extend_from_slice(&[channel.0]);
    buf.freeze()
}

/// A frame with any tag: of an `Open`, of the control stream, or of a kind that carries bytes.
pub fn raw(tag: u64, payload: &[u8]) -> Bytes {
    let mut buf = BytesMut::with_capacity(2 * varint::MAX_LEN + payload.len());
    varint::put(&mut buf, tag);
    varint::put(&mut buf, payload.len() as u64);
    buf.extend_from_slice(payload);
    buf.freeze()
}

impl Frame {
    /// The frame as it goes onto the stream. (`Data` is better written as [`data_header`] and its
    /// bytes, which saves the copy.)
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Data { channel, bytes } => {
                let mut buf = BytesMut::from(&data_header(*channel, bytes.len())[..]);
                buf.extend_from_slice(bytes);
                buf.freeze()
            }
            Self::Credit { channel, bytes } => {
                let mut payload = [0; 1 + varint::MAX_LEN];
                payload[0] = channel.0;
                let mut rest = &mut payload[1..];
                varint::put(&mut rest, *bytes);
                let unused = rest.len();
                raw(CREDIT, &payload[..payload.len() - unused])
            }
            Self::End { channel } => raw(END, &[channel.0]),
            Self::Stop { channel } => raw(STOP, &[channel.0]),
            Self::Message(payload) => raw(MESSAGE, payload),
            Self::Accepted(payload) => raw(ACCEPTED, payload),
            Self::Failed(payload) => raw(FAILED, payload),
            Self::Done(payload) => raw(DONE, payload),
        }
    }

    fn limit(tag: u64) -> Option<usize> {
        Some(match tag {
            DATA => 1 + MAX_DATA,
            CREDIT => 1 + varint::MAX_LEN,
            END | STOP => 1,
            MESSAGE => MAX_MESSAGE,
            ACCEPTED | FAILED | DONE => MAX_ANSWER,
            _ => return None,
        })
    }

    fn decode(tag: u64, payload: Bytes) -> Result<Self, FrameError> {
        let malformed = FrameError::Malformed { tag };
        let channel = payload.first().copied().map(Channel);
        Ok(match tag {
            CREDIT => {
                let channel = channel.ok_or_else(|| malformed.clone())?;
                match varint::get(&payload[1..]) {
                    Some((bytes, len)) if 1 + len == payload.len() => {
                        Self::Credit { channel, bytes }
                    }
                    _ => return Err(malformed),
                }
            }
            END => Self::End {
                channel: channel.ok_or(malformed)?,
            },
            STOP => Self::Stop {
                channel: channel.ok_or(malformed)?,
            },
            MESSAGE => Self::Message(payload),
            ACCEPTED => Self::Accepted(payload),
            FAILED => Self::Failed(payload),
            DONE => Self::Done(payload),
            _ => return Err(FrameError::UnknownTag(tag)),
        })
    }
}

/// A frame whose tag the reader interprets: an `Open`, or a frame of the control stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawFrame {
    /// What it is.
    pub tag: u64,
    /// Its body.
    pub payload: Bytes,
}

#[derive(Debug)]
enum State {
    Header,
    /// Inside a `Data` frame whose channel is not yet read.
    DataChannel {
        payload: usize,
    },
    Data {
        channel: Channel,
        left: usize,
    },
    Payload {
        tag: u64,
        length: usize,
    },
}

/// Takes chunks of a stream, gives frames.
///
/// Call [`push`](Self::push) with a chunk, then [`frame`](Self::frame) until it gives `None`.
/// After an error the stream has lost its frame boundaries and the decoder is of no more use.
#[derive(Debug)]
pub struct Decoder {
    state: State,
    input: Bytes,
    /// The part of a header or a payload that earlier chunks brought.
    gathered: BytesMut,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            state: State::Header,
            input: Bytes::new(),
            gathered: BytesMut::new(),
        }
    }
}

impl Decoder {
    /// Adds a chunk that was read from the stream.
    pub fn push(&mut self, chunk: Bytes) {
        if self.input.is_empty() {
            self.input = chunk;
        } else {
            // Only a caller that did not drain the decoder comes here.
            let mut joined = BytesMut::from(&self.input[..]);
            joined.extend_from_slice(&chunk);
            self.input = joined.freeze();
        }
    }

    /// Whether all that was pushed has come out as whole frames.
    pub fn is_empty(&self) -> bool {
        matches!(self.state, State::Header) && self.input.is_empty() && self.gathered.is_empty()
    }

    /// The next frame of an operation.
    pub fn frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let frame = self.next_frame();
        self.release();
        frame
    }

    fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        loop {
            match self.state {
                State::Header => {
                    let Some((tag, length)) = self.header() else {
                        return Ok(None);
                    };
                    let limit = Frame::limit(tag).ok_or(FrameError::UnknownTag(tag))?;
                    let length = bounded(tag, length, limit)?;
                    self.state = match (tag, length) {
                        (DATA, 0) => return Err(FrameError::Malformed { tag }),
                        (DATA, _) => State::DataChannel {
                            payload: length - 1,
                        },
                        _ => State::Payload { tag, length },
                    };
                }
                State::DataChannel { payload } => {
                    if self.input.is_empty() {
                        return Ok(None);
                    }
                    let channel = Channel(self.input.get_u8());
                    if payload == 0 {
                        self.state = State::Header;
                        return Ok(Some(Frame::Data {
                            channel,
                            bytes: Bytes::new(),
                        }));
                    }
                    self.state = State::Data {
                        channel,
                        left: payload,
                    };
                }
                State::Data { channel, left } => {
                    if self.input.is_empty() {
                        return Ok(None);
                    }
                    let bytes = self.input.split_to(left.min(self.input.len()));
                    self.state = match left - bytes.len() {
                        0 => State::Header,
                        left => State::Data { channel, left },
                    };
                    return Ok(Some(Frame::Data { channel, bytes }));
                }
                State::Payload { tag, length } => {
                    let Some(payload) = self.payload(length) else {
                        return Ok(None);
                    };
                    return Frame::decode(tag, payload).map(Some);
                }
            }
        }
    }

    /// The `Open` at the front of an operation: its tag, whatever it is, and a body of at most
    /// [`MAX_OPEN`] bytes. `Data` that follows it in the same chunk stays for
    /// [`frame`](Self::frame).
    pub fn open(&mut self) -> Result<Option<RawFrame>, FrameError> {
        self.raw(MAX_OPEN)
    }

    /// The next frame of the control stream, whatever its tag, of at most [`MAX_CONTROL`] bytes.
    pub fn control(&mut self) -> Result<Option<RawFrame>, FrameError> {
        self.raw(MAX_CONTROL)
    }

    fn raw(&mut self, limit: usize) -> Result<Option<RawFrame>, FrameError> {
        let frame = self.next_raw(limit);
        self.release();
        frame
    }

    /// Lets go of a chunk that has been read to its end: it is a slice of a packet or of a batch of
    /// packets, and a stream that falls silent must not keep that in memory.
    fn release(&mut self) {
        if self.input.is_empty() {
            self.input = Bytes::new();
        }
    }

    fn next_raw(&mut self, limit: usize) -> Result<Option<RawFrame>, FrameError> {
        if matches!(self.state, State::Header) {
            let Some((tag, length)) = self.header() else {
                return Ok(None);
            };
            self.state = State::Payload {
                tag,
                length: bounded(tag, length, limit)?,
            };
        }
        let State::Payload { tag, length } = self.state else {
            return Err(FrameError::Malformed { tag: DATA });
        };
        Ok(self
            .payload(length)
            .map(|payload| RawFrame { tag, payload }))
    }

    /// Tag and length, once both are there.
    fn header(&mut self) -> Option<(u64, u64)> {
        let parse = |bytes: &[u8]| {
            let (tag, tag_len) = varint::get(bytes)?;
            let (length, length_len) = varint::get(&bytes[tag_len..])?;
            Some((tag, length, tag_len + length_len))
        };
        if self.gathered.is_empty()
            && let Some((tag, length, len)) = parse(&self.input)
        {
            self.input.advance(len);
            return Some((tag, length));
        }
        // A header across chunks: byte by byte, so that nothing of the payload is gathered.
        while !self.input.is_empty() {
            self.gathered.extend_from_slice(&[self.input.get_u8()]);
            if let Some((tag, length, _)) = parse(&self.gathered) {
                self.gathered.clear();
                return Some((tag, length));
            }
        }
        None
    }

    fn payload(&mut self, length: usize) -> Option<Bytes> {
        let payload = if self.gathered.is_empty() && self.input.len() >= length {
            self.input.split_to(length)
        } else {
            let missing = length - self.gathered.len();
            let piece = self.input.split_to(missing.min(self.input.len()));
            self.gathered.extend_from_slice(&piece);
            if self.gathered.len() < length {
                return None;
            }
            std::mem::take(&mut self.gathered).freeze()
        };
        self.state = State::Header;
        Some(payload)
    }
}

fn bounded(tag: u64, length: u64, limit: usize) -> Result<usize, FrameError> {
    usize::try_from(length)
        .ok()
        .filter(|length| *length <= limit)
        .ok_or(FrameError::Oversized { tag, length, limit })
}

#[cfg(test)]
mod tests;
