//! Variable-length integers as in QUIC (RFC 9000, section 16): the two top bits of the first byte
//! say how many bytes follow; 62 bits of value.

use bytes::BufMut;

/// The largest value a varint holds: 2^62 - 1.
pub const MAX: u64 = (1 << 62) - 1;

/// The most bytes a varint takes.
pub const MAX_LEN: usize = 8;

/// Appends `value` in its shortest form. Values above [`MAX`] never occur: lengths, tags and
/// window sizes are far below; one is clipped rather than wrapped.
pub fn put(buf: &mut impl BufMut, value: u64) {
    match value {
        0..=0x3f => buf.put_u8(value as u8),
        0x40..=0x3fff => buf.put_u16(0x4000 | value as u16),
        0x4000..=0x3fff_ffff => buf.put_u32(0x8000_0000 | value as u32),
        _ => buf.put_u64(0xc000_0000_0000_0000 | value.min(MAX)),
    }
}

/// Reads one varint from the front: its value and its length in bytes, or `None` when `bytes` ends
/// before it does.
pub fn get(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let len = 1usize << (first >> 6);
    let tail = bytes.get(1..len)?;
    let value = tail.iter().fold(u64::from(first & 0x3f), |acc, byte| {
        (acc << 8) | u64::from(*byte)
    });
    Some((value, len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(value in 0..=MAX, shift in 0..62u32) {
            let value = value >> shift;
            let mut buf = Vec::new();
            put(&mut buf, value);
            prop_assert_eq!(get(&buf), Some((value, buf.len())));
            for end in 0..buf.len() {
                prop_assert_eq!(get(&buf[..end]), None);
            }
        }
    }

    #[test]
    fn examples_of_the_rfc() {
        // RFC 9000, appendix A.1.
        assert_eq!(
            get(&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c]),
            Some((151_288_809_941_952_652, 8))
        );
        assert_eq!(get(&[0x9d, 0x7f, 0x3e, 0x7d]), Some((494_878_333, 4)));
        assert_eq!(get(&[0x7b, 0xbd]), Some((15_293, 2)));
        assert_eq!(get(&[0x25]), Some((37, 1)));
    }
}
