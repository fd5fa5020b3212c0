//! What precedes a member in a tar archive: a ustar header, and before it a PAX header where the
//! fields of the former are too small. Pure.
//!
//! The old fields hold 100 bytes of a name or a link's target, 8 GiB of a size and ids up to
//! 2,097,151. What is larger, and names beyond ASCII, go into records of the PAX header, and the
//! field then holds a part of the name, or 0. Names that are no UTF-8 are carried as they are; in a
//! record `hdrcharset=BINARY` says so.

use super::BLOCK;

/// The largest number in 11 octal digits: sizes and times.
pub(super) const MAX_11: u64 = 0o777_7777_7777;
/// The largest number in 7 octal digits: ids.
const MAX_7: u64 = 0o777_7777;
/// Bytes of a name, or of a link's target, that a field holds.
const NAME: usize = 100;

/// The end of an archive.
pub const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

/// A member of an archive.
#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    /// Its path in the archive; a directory's without a `/` at its end.
    pub name: &'a [u8],
    /// What it is.
    pub kind: Kind<'a>,
    /// Its permissions, 12 bits.
    pub mode: u32,
    /// The owner's number.
    pub uid: u64,
    /// The group's number.
    pub gid: u64,
    /// When it was last changed, in whole seconds since 1970 UTC. Fractions would take a PAX header
    /// for each member, twice the bytes of a small file, and no builder's cache looks at them.
    pub mtime: i64,
}

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A file of so many bytes, which follow, and then [`padding`].
    File(u64),
    /// A directory.
    Directory,
    /// A symbolic link to this path.
    Symlink(&'a [u8]),
    /// Another name of the member with this one, which came before.
    HardLink(&'a [u8]),
}

/// Zeros after a file of this size, up to the next block.
pub fn padding(size: u64) -> usize {
    (size.wrapping_neg() % BLOCK as u64) as usize
}

impl Member<'_> {
    /// Appends its headers.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (flag, target, size) = match self.kind {
            Kind::File(size) => (b'0', &b""[..], size),
            Kind::HardLink(target) => (b'1', target, 0),
            Kind::Symlink(target) => (b'2', target, 0),
            Kind::Directory => (b'5', &b""[..], 0),
        };
        let mut name = self.name.to_vec();
        if self.kind == Kind::Directory {
            name.push(b'/');
        }
        let mut records = Records::default();
        records.name("path", &name);
        records.name("linkpath", target);
        let size = records.number("size", size, MAX_11);
        let uid = records.number("uid", self.uid, MAX_7);
        let gid = records.number("gid", self.gid, MAX_7);
        let mtime = if let Ok(mtime) = u64::try_from(self.mtime) {
            records.number("mtime", mtime, MAX_11)
        } else {
            records.add("mtime", self.mtime.to_string().as_bytes());
            0
        };
        let records = records.finish();
        if !records.is_empty() {
            let length = records.len() as u64;
            out.extend(block(b'x', b"PaxHeaders", b"", [0o644, 0, 0, length, 0]));
            out.extend(&records);
            out.resize(out.len() + padding(length), 0);
        }
        let mode = u64::from(self.mode & 0o7777);
        out.extend(block(flag, &name, target, [mode, uid, gid, size, mtime]));
    }
}

/// The records of a PAX header.
#[derive(Default)]
struct Records {
    bytes: Vec<u8>,
    binary: bool,
}

impl Records {
    fn add(&mut self, key: &str, value: &[u8]) {
        // The length counts its own digits.
        let rest = key.len() + value.len() + 3;
        let mut length = rest;
        while rest + length.to_string().len() != length {
            length = rest + length.to_string().len();
        }
        self.bytes.extend(format!("{length} {key}=").as_bytes());
        self.bytes.extend(value);
        self.bytes.push(b'\n');
    }

    /// A name that its field does not hold, or not the same for every reader.
    fn name(&mut self, key: &str, name: &[u8]) {
        let text = std::str::from_utf8(name);
        if name.len() > NAME || text.is_ok_and(|text| !text.is_ascii()) {
            self.binary |= text.is_err();
            self.add(key, name);
        }
    }

    /// What the field of a number holds.
    fn number(&mut self, key: &str, number: u64, most: u64) -> u64 {
        if number <= most {
            return number;
        }
        self.add(key, number.to_string().as_bytes());
        0
    }

    fn finish(self) -> Vec<u8> {
        if !self.binary {
            return self.bytes;
        }
        let mut first = Self::default();
        first.add("hdrcharset", b"BINARY");
        first.bytes.extend(self.bytes);
        first.bytes
    }
}

/// A ustar header with these numbers: mode, uid, gid, size, mtime. Names are cut to their fields.
fn block(flag: u8, name: &[u8], target: &[u8], numbers: [u64; 5]) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &name[..name.len().min(NAME)]);
    for ((at, digits), number) in FIELDS.into_iter().zip(numbers) {
        put(at, format!("{number:0digits$o}").as_bytes());
    }
    put(156, &[flag]);
    put(157, &target[..target.len().min(NAME)]);
    put(257, b"ustar\x0000");
    let sum = format!("{:06o}\0 ", checksum(&block));
    block[148..156].copy_from_slice(sum.as_bytes());
    block
}

/// Where numbers stand, and their digits: mode, uid, gid, size, mtime.
const FIELDS: [(usize, usize); 5] = [(100, 7), (108, 7), (116, 7), (124, 11), (136, 11)];

/// The sum of a header's bytes, with spaces where the sum itself stands.
pub(super) fn checksum(block: &[u8; BLOCK]) -> u32 {
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    sum(&block[..148]) + sum(b"        ") + sum(&block[156..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &[u8]) -> Member<'_> {
        Member {
            name,
            kind: Kind::File(3),
            mode: 0o100_4755,
            uid: 0,
            gid: 0,
            mtime: 1_700_000_000,
        }
    }

    fn encoded(member: &Member<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        member.encode(&mut bytes);
        bytes
    }

    #[test]
    fn golden_header() {
        let bytes = encoded(&member(b"bin/run"));
        assert_eq!(bytes.len(), BLOCK);
        assert_eq!(&bytes[..8], b"bin/run\0");
        let numbers = b"0004755\x000000000\x000000000\x0000000000003\x0014524770400\x00";
        assert_eq!(&bytes[100..148], numbers);
        assert_eq!(&bytes[148..157], b"007306\0 0");
        assert_eq!(&bytes[257..265], b"ustar\x0000");
    }

    #[test]
    fn what_fits_no_field_goes_into_records() {
        let records = |member: &Member<'_>| {
            let bytes = encoded(member);
            let end = bytes.len() - BLOCK;
            let text = bytes.get(BLOCK..end).unwrap_or_default();
            String::from_utf8_lossy(text)
                .trim_end_matches('\0')
                .to_owned()
        };
        let exact = [b'a'; 100];
        let long = [b'a'; 101];
        assert_eq!(records(&member(&exact)), "");
        assert_eq!(
            records(&member(&long)),
            format!("111 path={}\n", "a".repeat(101))
        );
        assert_eq!(records(&member("ü".as_bytes())), "11 path=ü\n");
        assert_eq!(records(&member(b"\xff")), "");
        let raw = [0xff; 101];
        let text = records(&member(&raw));
        assert!(
            text.starts_with("21 hdrcharset=BINARY\n111 path="),
            "{text}"
        );
        let large = Member {
            kind: Kind::File(8 << 30),
            uid: 1_000_690_000,
            gid: MAX_7 + 1,
            mtime: -5,
            ..member(b"a")
        };
        assert_eq!(
            records(&large),
            "19 size=8589934592\n18 uid=1000690000\n15 gid=2097152\n12 mtime=-5\n"
        );
        let fits = Member {
            kind: Kind::File((8 << 30) - 1),
            uid: MAX_7,
            ..member(b"a")
        };
        assert_eq!(records(&fits), "");
    }

    #[test]
    fn the_length_of_a_record_counts_itself() {
        for length in 80..1100 {
            let mut records = Records::default();
            records.add("path", &vec![b'x'; length]);
            let text = String::from_utf8_lossy(&records.bytes);
            let (said, _) = text.split_once(' ').unwrap_or_default();
            assert_eq!(said, text.len().to_string());
        }
    }

    #[test]
    fn files_end_at_a_block() {
        for (size, expected) in [
            (0, 0),
            (1, 511),
            (511, 1),
            (512, 0),
            (513, 511),
            (8 << 30, 0),
        ] {
            assert_eq!(padding(size), expected, "{size}");
        }
    }
}
