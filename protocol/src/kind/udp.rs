//! Carry the packets of one UDP flow: what one client and one target say to each other.
//!
//! ```text
//! hub                                     agent
//!  | Open{target, grant} -----------------> |  connects a socket to the target, then:
//!  |  <----------------- Accepted | Failed  |
//!  | <------------- packets -------------> |
//!  | End(IN) -----------------------------> |  the flow is over
//!  |  <------------------ Done(Ending<()>)  |
//! ```
//!
//! A packet is a QUIC datagram, `varint(flow) ‖ payload`, where `flow` counts the streams that the
//! hub opened, up to the operation's own: QUIC's stream id divided by four. One that does not fit
//! into a datagram of this path, or goes to a peer that takes none, rides on the operation's stream:
//! channel `IN` or `OUT` of [`transfer`](super::transfer), `u16 length, big-endian ‖ payload`, if
//! there is credit for all of it at once. The hub's do so until it has seen `Accepted`: a datagram
//! could overtake `Open`.
//!
//! As with any UDP, packets may be lost and change their order. They are dropped, and counted, where
//! they exceed what [`flow`](crate::flow) allows, where the stream has no credit, and where nobody
//! knows their flow: it may have ended a moment ago, so that is no violation.
//!
//! `Failed` says that the flow never began. `Done` with a failure of `TARGET_REFUSED` says that
//! nobody listens at the target; the client's next packet begins a new flow.

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::target::{Grant, Target};
use crate::varint;

/// The most bytes of a packet's payload: what UDP itself carries over IPv4.
pub const MAX_PAYLOAD: usize = 65_507;

/// The body of `Open`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// What to connect to.
    pub target: Target,
    /// By what right.
    pub grant: Grant,
}

/// The QUIC datagram that carries a packet of a flow.
pub fn datagram(flow: u64, payload: &[u8]) -> Bytes {
    let mut datagram = BytesMut::with_capacity(varint::MAX_LEN + payload.len());
    varint::put(&mut datagram, flow);
    datagram.put_slice(payload);
    datagram.freeze()
}

/// The bytes by which such a datagram is longer than the payload.
pub fn overhead(flow: u64) -> usize {
    match flow {
        0..=0x3f => 1,
        0x40..=0x3fff => 2,
        0x4000..=0x3fff_ffff => 4,
        _ => 8,
    }
}

/// The flow and the payload of a QUIC datagram; `None` if it ends before its flow does.
pub fn read_datagram(mut datagram: Bytes) -> Option<(u64, Bytes)> {
    let (flow, length) = varint::get(&datagram)?;
    Some((flow, datagram.split_off(length)))
}

/// A packet as it rides on a stream; `None` if it is longer than [`MAX_PAYLOAD`].
pub fn on_stream(payload: &[u8]) -> Option<Bytes> {
    let length = u16::try_from(payload.len()).ok()?;
    if payload.len() > MAX_PAYLOAD {
        return None;
    }
    let mut bytes = BytesMut::with_capacity(2 + payload.len());
    bytes.put_u16(length);
    bytes.put_slice(payload);
    Some(bytes.freeze())
}

/// Finds the packets in what comes on a stream. Holds at most one that is not whole: 64 KiB.
#[derive(Debug, Default)]
pub struct OnStream {
    /// The chunk that is being read.
    chunk: Bytes,
    /// The beginning of a packet whose end has not come, length and all.
    part: BytesMut,
}

impl OnStream {
    /// Takes the next bytes, once [`packet`](Self::packet) has given all packets of the last.
    pub fn push(&mut self, chunk: Bytes) {
        self.chunk = chunk;
    }

    /// The next packet that is whole.
    pub fn packet(&mut self) -> Option<Bytes> {
        if self.part.is_empty() {
            // Uncopied, as long as packets come whole.
            if let Some(length) = length(&self.chunk)
                && self.chunk.len() >= 2 + length
            {
                let mut packet = self.chunk.split_to(2 + length);
                return Some(packet.split_off(2));
            }
        }
        // The length first, then what it says.
        for _ in 0..2 {
            let whole = length(&self.part).map_or(2, |length| 2 + length);
            let missing = whole - self.part.len();
            let now = self.chunk.split_to(missing.min(self.chunk.len()));
            self.part.extend_from_slice(&now);
        }
        let length = length(&self.part)?;
        if self.part.len() < 2 + length {
            return None;
        }
        let mut packet = std::mem::take(&mut self.part).freeze();
        Some(packet.split_off(2))
    }
}

fn length(bytes: &[u8]) -> Option<usize> {
    let length = bytes.first_chunk::<2>()?;
    Some(usize::from(u16::from_be_bytes(*length)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_packets() {
        assert_eq!(&datagram(0, b"ab")[..], b"\x00ab");
        assert_eq!(&datagram(300, b"ab")[..], b"\x41\x2cab");
        assert_eq!(&datagram(70_000, b"")[..], b"\x80\x01\x11\x70");
        assert_eq!(&on_stream(b"ab").unwrap()[..], b"\x00\x02ab");
        assert_eq!(&on_stream(b"").unwrap()[..], b"\x00\x00");
        assert!(on_stream(&vec![0; MAX_PAYLOAD]).is_some());
        assert_eq!(on_stream(&vec![0; MAX_PAYLOAD + 1]), None);
        for flow in [0, 63, 64, 16_383, 16_384, 1 << 30, varint::MAX] {
            let datagram = datagram(flow, b"x");
            assert_eq!(datagram.len(), overhead(flow) + 1);
            assert_eq!(
                read_datagram(datagram),
                Some((flow, Bytes::from_static(b"x")))
            );
        }
        assert_eq!(read_datagram(Bytes::new()), None);
        assert_eq!(read_datagram(Bytes::from_static(b"\xc0\x00")), None);
    }

    proptest! {
        /// However a stream is cut into chunks, its packets are those that were sent.
        #[test]
        fn packets_are_found_in_any_chunks(
            packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 0..8),
            cuts in prop::collection::vec(1..900usize, 1..40),
        ) {
            let mut wire = BytesMut::new();
            for packet in &packets {
                wire.extend_from_slice(&on_stream(packet).unwrap());
            }
            let mut wire = wire.freeze();
            let mut reader = OnStream::default();
            let mut found = Vec::new();
            for cut in cuts.into_iter().cycle() {
                if wire.is_empty() {
                    break;
                }
                reader.push(wire.split_to(cut.min(wire.len())));
                while let Some(packet) = reader.packet() {
                    found.push(packet.to_vec());
                }
            }
            prop_assert_eq!(found, packets);
        }
    }
}
