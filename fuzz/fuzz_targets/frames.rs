//! The decoder on arbitrary bytes in arbitrary pieces. However a stream is cut, the same frames
//! come out, and the decoder never holds more than what has arrived justifies.
#![no_main]

use std::alloc::System;

use bytes::Bytes;
use hub_protocol::frame::{Decoder, Frame, FrameError, RawFrame};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    /// Whether an `Open` comes first, or all frames are of the control stream.
    open: bool,
    control: bool,
    cuts: Vec<u16>,
    wire: &'a [u8],
}

/// What comes out of a stream: frames, with the pieces of a `Data` frame joined where they belong
/// to one, and how it ended.
#[derive(Debug, Default, PartialEq)]
struct Decoded {
    raw: Vec<RawFrame>,
    frames: Vec<Frame>,
    error: Option<FrameError>,
    empty: bool,
}

fn live() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated.wrapping_sub(stats.bytes_deallocated)
}

/// Decodes a stream that comes in these pieces.
fn decode(input: &Input<'_>, wire: &Bytes, cuts: &[u16]) -> Decoded {
    let mut decoder = Decoder::default();
    let mut decoded = Decoded::default();
    let mut opened = !input.open;
    let mut cuts = cuts.iter().copied().chain(std::iter::repeat(u16::MAX));
    let mut rest = wire.clone();
    'stream: while !rest.is_empty() {
        let cut = usize::from(cuts.next().unwrap_or(1).max(1)).min(rest.len());
        let before = live();
        let arrived = wire.len() - rest.len() + cut;
        decoder.push(rest.split_to(cut));
        loop {
            let raw = if input.control {
                decoder.control()
            } else if !opened {
                let open = decoder.open();
                opened = matches!(open, Ok(Some(_)));
                open
            } else {
                match decoder.frame() {
                    Ok(Some(frame)) => push(&mut decoded.frames, frame),
                    Ok(None) => break,
                    Err(error) => {
                        decoded.error = Some(error);
                        break 'stream;
                    }
                }
                continue;
            };
            match raw {
                Ok(Some(raw)) => decoded.raw.push(raw),
                Ok(None) => break,
                Err(error) => {
                    decoded.error = Some(error);
                    break 'stream;
                }
            }
        }
        // Beside the results, which this program keeps, room for twice what has come.
        let results = (decoded.raw.len() + decoded.frames.len()) * 2 * size_of::<Frame>();
        let held = live().saturating_sub(before);
        assert!(
            held <= 2 * arrived + results + joined(&decoded.frames) + 1024,
            "{held} bytes after {arrived}"
        );
    }
    decoded.empty = decoded.error.is_none() && decoder.is_empty();
    decoded
}

/// Bytes that joining pieces may have copied.
fn joined(frames: &[Frame]) -> usize {
    let len = |frame: &Frame| match frame {
        Frame::Data { bytes, .. } => bytes.len(),
        _ => 0,
    };
    frames.iter().map(len).sum()
}

/// Adds a frame; `Data` that follows `Data` of the same channel is joined with it, because where a
/// frame was cut is for the decoder to choose.
fn push(frames: &mut Vec<Frame>, frame: Frame) {
    match (frame, frames.last_mut()) {
        (
            Frame::Data { channel, bytes },
            Some(Frame::Data {
                channel: same,
                bytes: earlier,
            }),
        ) if channel == *same => {
            *earlier = [&earlier[..], &bytes[..]].concat().into();
        }
        (frame, _) => frames.push(frame),
    }
}

fuzz_target!(|input: Input<'_>| {
    let wire = Bytes::copy_from_slice(input.wire);
    let whole = decode(&input, &wire, &[]);
    let pieces = decode(&input, &wire, &input.cuts);
    assert_eq!(whole, pieces);
    // What was read is written as it came, in the shortest form.
    for frame in &whole.frames {
        let mut decoder = Decoder::default();
        decoder.push(frame.encode());
        match frame {
            // Joined pieces may be longer than one frame can be.
            Frame::Data { bytes, .. } if bytes.len() > hub_protocol::limits::MAX_DATA => {}
            frame => assert_eq!(decoder.frame(), Ok(Some(frame.clone()))),
        }
    }
});
