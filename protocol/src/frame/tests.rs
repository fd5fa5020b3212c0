use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn any_frame() -> impl Strategy<Value = Frame> {
    let channel = || any::<u8>().prop_map(Channel);
    let bytes = |max| vec(any::<u8>(), 0..max).prop_map(Bytes::from);
    prop_oneof![
        (channel(), bytes(3000)).prop_map(|(channel, bytes)| Frame::Data { channel, bytes }),
        (channel(), 0..=varint::MAX).prop_map(|(channel, bytes)| Frame::Credit { channel, bytes }),
        channel().prop_map(|channel| Frame::End { channel }),
        channel().prop_map(|channel| Frame::Stop { channel }),
        bytes(3000).prop_map(Frame::Message),
        bytes(300).prop_map(Frame::Accepted),
        bytes(300).prop_map(Frame::Failed),
        bytes(300).prop_map(Frame::Done),
    ]
}

/// Pieces of one `Data` frame joined again, so that frames can be compared however they were cut.
#[derive(Default)]
struct Decoded {
    frames: Vec<Frame>,
    /// The last one is a `Data` frame of which more is to come.
    open: bool,
}

impl Decoded {
    fn take_all(&mut self, decoder: &mut Decoder) -> Result<(), FrameError> {
        while let Some(frame) = decoder.frame()? {
            match (frame, self.frames.last_mut()) {
                (Frame::Data { bytes, .. }, Some(Frame::Data { bytes: earlier, .. }))
                    if self.open =>
                {
                    *earlier = [&earlier[..], &bytes[..]].concat().into();
                }
                (frame, _) => self.frames.push(frame),
            }
            self.open = matches!(decoder.state, State::Data { .. });
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn round_trip_however_it_is_cut(frames in vec(any_frame(), 0..8), cuts in vec(1..700usize, 1..40)) {
        let wire: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        let mut decoder = Decoder::default();
        let mut decoded = Decoded::default();
        let mut rest = Bytes::from(wire);
        let mut cuts = cuts.iter().cycle();
        while !rest.is_empty() {
            let cut = (*cuts.next().unwrap_or(&1)).min(rest.len());
            decoder.push(rest.split_to(cut));
            decoded.take_all(&mut decoder).unwrap();
        }
        prop_assert!(decoder.is_empty());
        prop_assert_eq!(decoded.frames, frames);
    }

    #[test]
    fn truncation_is_never_a_frame(frame in any_frame(), keep in any::<prop::sample::Index>()) {
        let wire = frame.encode();
        let keep = keep.index(wire.len());
        let mut decoder = Decoder::default();
        decoder.push(wire.slice(..keep));
        let mut decoded = Decoded::default();
        decoded.take_all(&mut decoder).unwrap();
        // Of a truncated frame only data that has arrived comes out.
        let only_data = decoded.frames.iter().all(|frame| matches!(frame, Frame::Data { .. }));
        prop_assert!(only_data);
        prop_assert!(keep == 0 || !decoder.is_empty());
    }

    #[test]
    fn garbage_gives_an_error_or_waits(garbage in vec(any::<u8>(), 0..4000)) {
        let mut decoder = Decoder::default();
        decoder.push(garbage.clone().into());
        let mut decoded = Decoded::default();
        let _ = decoded.take_all(&mut decoder);
        prop_assert!(decoder.gathered.capacity() <= 2 * garbage.len() + 64);
        let mut decoder = Decoder::default();
        decoder.push(garbage.into());
        while let Ok(Some(_)) = decoder.control() {}
    }
}

#[test]
fn oversize_is_refused_by_its_header_alone() {
    for (tag, limit) in [
        (DATA, 1 + MAX_DATA),
        (MESSAGE, MAX_MESSAGE),
        (DONE, MAX_ANSWER),
        (END, 1),
    ] {
        let mut wire = BytesMut::new();
        varint::put(&mut wire, tag);
        varint::put(&mut wire, limit as u64 + 1);
        let mut decoder = Decoder::default();
        decoder.push(wire.freeze());
        let length = limit as u64 + 1;
        assert_eq!(
            decoder.frame(),
            Err(FrameError::Oversized { tag, length, limit })
        );
    }
}

#[test]
fn a_claimed_length_allocates_nothing() {
    let mut wire = BytesMut::new();
    varint::put(&mut wire, MESSAGE);
    varint::put(&mut wire, MAX_MESSAGE as u64);
    wire.extend_from_slice(b"only this");
    let mut decoder = Decoder::default();
    decoder.push(wire.freeze());
    assert_eq!(decoder.frame(), Ok(None));
    assert!(decoder.gathered.capacity() < 100);
}

#[test]
fn malformed_payloads_are_refused() {
    for wire in [
        &[0x01, 0][..],
        &[0x02, 0],
        &[0x02, 1, 0],
        &[0x02, 3, 0, 1, 1],
        &[0x03, 0],
        &[0x04, 0],
    ] {
        let mut decoder = Decoder::default();
        decoder.push(Bytes::copy_from_slice(wire));
        assert!(
            matches!(decoder.frame(), Err(FrameError::Malformed { .. })),
            "{wire:?}"
        );
    }
    let mut decoder = Decoder::default();
    decoder.push(Bytes::from_static(&[0x3f, 0]));
    assert_eq!(decoder.frame(), Err(FrameError::UnknownTag(0x3f)));
}

#[test]
fn golden_bytes() {
    let channel = Channel(2);
    let golden: [(Frame, &[u8]); 8] = [
        (
            Frame::Data {
                channel,
                bytes: Bytes::from_static(b"hi"),
            },
            b"\x01\x03\x02hi",
        ),
        (
            Frame::Credit {
                channel,
                bytes: 8192,
            },
            b"\x02\x03\x02\x60\x00",
        ),
        (Frame::End { channel }, b"\x03\x01\x02"),
        (Frame::Stop { channel }, b"\x04\x01\x02"),
        (Frame::Message(Bytes::from_static(b"m")), b"\x05\x01m"),
        (Frame::Accepted(Bytes::new()), b"\x06\x00"),
        (Frame::Failed(Bytes::from_static(b"f")), b"\x07\x01f"),
        (Frame::Done(Bytes::from_static(b"d")), b"\x08\x01d"),
    ];
    for (frame, wire) in golden {
        assert_eq!(&frame.encode()[..], wire, "{frame:?}");
    }
    let largest = data_header(channel, MAX_DATA);
    assert_eq!(&largest[..], b"\x01\x80\x01\x00\x01\x02");
    assert_eq!(largest.len(), DATA_HEADER_MAX);
}

#[test]
fn an_open_leaves_the_data_behind_it() {
    let mut wire = BytesMut::from(&raw(0x41, b"body")[..]);
    wire.extend_from_slice(
        &Frame::End {
            channel: Channel(0),
        }
        .encode(),
    );
    let mut decoder = Decoder::default();
    decoder.push(wire.freeze());
    assert_eq!(
        decoder.open(),
        Ok(Some(RawFrame {
            tag: 0x41,
            payload: Bytes::from_static(b"body")
        }))
    );
    assert_eq!(
        decoder.frame(),
        Ok(Some(Frame::End {
            channel: Channel(0)
        }))
    );
    assert!(decoder.is_empty());
}

/// Bytes that say when nobody holds them any more.
struct Packet {
    _held: std::sync::Arc<()>,
    bytes: Vec<u8>,
}

impl AsRef<[u8]> for Packet {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[test]
fn a_chunk_that_was_read_is_let_go() {
    let header = data_header(Channel(1), 1);
    let wires: [Bytes; 6] = [
        Frame::Accepted(Bytes::new()).encode(),
        Frame::End {
            channel: Channel(1),
        }
        .encode(),
        Frame::Message(Bytes::from_static(b"m")).encode(),
        header.clone(),
        header.slice(..1),
        Bytes::from_static(&[0x05, 0x02, 0x01]),
    ];
    for wire in wires {
        let held = std::sync::Arc::new(());
        let mut decoder = Decoder::default();
        decoder.push(Bytes::from_owner(Packet {
            _held: held.clone(),
            bytes: wire.to_vec(),
        }));
        while decoder.frame().unwrap().is_some() {}
        assert_eq!(std::sync::Arc::strong_count(&held), 1, "{wire:?}");
    }
}
