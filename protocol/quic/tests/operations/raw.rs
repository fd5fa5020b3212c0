//! A peer on bare streams. Its bytes are written by hand from the description of the wire, not by
//! our encoder.

use hub_quic::transport::{RecvStream, SendStream};
use quinn::{ReadError, StoppedError};

use crate::support::Write as _;

/// Everything up to the end of a stream.
pub async fn to_end(recv: &mut RecvStream) -> Result<Vec<u8>, ReadError> {
    let mut all = Vec::new();
    while let Some(chunk) = recv.chunk().await? {
        all.extend_from_slice(&chunk);
    }
    Ok(all)
}

/// `Open` of an exec of `cat` with stdin.
pub const OPEN: &[u8] = b"\x01\x0c\x00\x01\x03cat\x00\x00\x00\x01\x00\x00";
pub const ACCEPTED: &[u8] = b"\x06\x00";
/// `Done` with the outcome "exited with 0".
pub const DONE: &[u8] = b"\x08\x02\x00\x00";
/// The largest value that a variable-length integer holds.
pub const MOST: u64 = (1 << 62) - 1;

pub const STDIN: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;
pub const MESSAGES: u8 = 0x3f;

/// A variable-length integer as RFC 9000 has it.
pub fn varint(value: u64) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    match value {
        0..64 => vec![bytes[7]],
        64..16_384 => vec![0x40 | bytes[6], bytes[7]],
        16_384..0x4000_0000 => vec![0x80 | bytes[4], bytes[5], bytes[6], bytes[7]],
        _ => [&[0xc0 | bytes[0]], &bytes[1..]].concat(),
    }
}

pub fn frame(tag: u8, payload: &[u8]) -> Vec<u8> {
    [&[tag][..], &varint(payload.len() as u64), payload].concat()
}

pub fn data(channel: u8, bytes: &[u8]) -> Vec<u8> {
    frame(1, &[&[channel], bytes].concat())
}

pub fn credit(channel: u8, bytes: u64) -> Vec<u8> {
    frame(2, &[&[channel][..], &varint(bytes)].concat())
}

pub fn end(channel: u8) -> Vec<u8> {
    frame(3, &[channel])
}

pub fn stop(channel: u8) -> Vec<u8> {
    frame(4, &[channel])
}

pub fn message(bytes: &[u8]) -> Vec<u8> {
    frame(5, bytes)
}

/// Bytes of several frames after one another.
pub fn all(frames: &[&[u8]]) -> Vec<u8> {
    frames.concat()
}

/// What the peer is expected to send next, and nothing behind it yet.
pub async fn expect(recv: &mut RecvStream, expected: &[u8]) {
    let mut got = Vec::new();
    while got.len() < expected.len() {
        match recv.chunk().await {
            Ok(Some(chunk)) => got.extend_from_slice(&chunk),
            Ok(None) => panic!("only {got:?}"),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(got, expected);
}

/// The code with which the peer reset its direction of the stream.
pub async fn reset_code(recv: &mut RecvStream) -> u64 {
    loop {
        match recv.chunk().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a clean end"),
            Err(ReadError::Reset(code)) => return code.into_inner(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// The code with which the peer stopped our direction of the stream. `None` if it had already
/// acknowledged all of it, its end included.
pub async fn stop_code(send: &SendStream) -> Option<u64> {
    let stopped: Result<_, StoppedError> = send.stopped().await;
    stopped.unwrap().map(quinn::VarInt::into_inner)
}

/// Writes as much as the peer lets us: it may stop the stream at any byte.
pub async fn write_what_goes(send: &mut SendStream, bytes: &[u8]) {
    let _ = send.write_all(bytes).await;
}
