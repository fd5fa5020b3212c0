#![allow(clippy::unwrap_used)]

use super::super::header::{END, Kind, Member};
use super::*;

fn member<'a>(name: &'a [u8], kind: Kind<'a>) -> Member<'a> {
    Member {
        name,
        kind,
        mode: 0o644,
        uid: 1_000_690_000,
        gid: 7,
        mtime: -1,
    }
}

/// An archive of these members, files without their bytes filled with zeros.
fn archive(members: &[Member<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for member in members {
        member.encode(&mut bytes);
        if let Kind::File(size) = member.kind {
            bytes.resize(bytes.len() + size as usize + padding(size), 0);
        }
    }
    bytes.extend(END);
    bytes
}

/// All that comes of an archive that is pushed in pieces of this size.
fn read(bytes: &[u8], piece: usize) -> Result<Vec<Item>, ReadError> {
    let mut reader = Reader::default();
    let mut items = Vec::new();
    for piece in bytes.chunks(piece) {
        reader.push(Bytes::copy_from_slice(piece));
        while let Some(item) = reader.next()? {
            match (items.last_mut(), item) {
                (Some(Item::Data(before)), Item::Data(more)) => {
                    *before = [&before[..], &more].concat().into();
                }
                (_, item) => items.push(item),
            }
        }
    }
    reader.finish()?;
    Ok(items)
}

/// A header of our own with some bytes changed and the checksum made right.
fn crafted(member: &Member<'_>, change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut bytes = Vec::new();
    member.encode(&mut bytes);
    let start = bytes.len() - BLOCK;
    change(&mut bytes[start..]);
    sign(&mut bytes[start..]);
    bytes
}

fn sign(block: &mut [u8]) {
    let sum = checksum((&*block).try_into().unwrap());
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// An extension header with this body.
fn extension(flag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = crafted(
        &Member {
            mtime: 0,
            uid: 0,
            ..member(b"ext", Kind::File(body.len() as u64))
        },
        |block| block[156] = flag,
    );
    bytes.extend(body);
    bytes.resize(bytes.len() + padding(body.len() as u64), 0);
    bytes
}

fn pax(records: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let length = (rest..rest + 9)
            .find(|n| rest + n.to_string().len() == *n)
            .unwrap();
        body.extend(format!("{length} {key}={value}\n").as_bytes());
    }
    extension(b'x', &body)
}

#[test]
fn what_is_written_is_read_whatever_the_pieces() {
    let long = "ä".repeat(3000);
    let raw = [0xfe; 300];
    let members = [
        member(b"dir", Kind::Directory),
        member(b"dir/file", Kind::File(1000)),
        member(long.as_bytes(), Kind::File(0)),
        member(&raw, Kind::File(512)),
        member(b"link", Kind::Symlink(long.as_bytes())),
        member(b"hard", Kind::HardLink(b"dir/file")),
    ];
    let bytes = archive(&members);
    let whole = read(&bytes, bytes.len()).unwrap();
    let names = whole.iter().filter_map(|item| match item {
        Item::Entry(entry) => Some(&entry.name[..]),
        _ => None,
    });
    let names: Vec<_> = names.collect();
    assert_eq!(
        names,
        [
            b"dir/",
            &b"dir/file"[..],
            long.as_bytes(),
            &raw,
            b"link",
            b"hard"
        ]
    );
    let Item::Entry(first) = &whole[0] else {
        panic!("{whole:?}")
    };
    assert_eq!((first.uid, first.gid, first.mtime), (1_000_690_000, 7, -1));
    assert_eq!(whole[2], Item::Data(vec![0; 1000].into()));
    assert_eq!(whole.last(), Some(&Item::End));
    for piece in [1, 7, 511, 512, 513, 4096] {
        assert_eq!(read(&bytes, piece).unwrap(), whole, "{piece}");
    }
}

#[test]
fn sparse_gigabytes_pass_in_pieces() {
    let size = (8 << 30) + 5;
    let mut head = Vec::new();
    member(b"large", Kind::File(size)).encode(&mut head);
    let mut reader = Reader::default();
    reader.push(head.into());
    let Some(Item::Entry(entry)) = reader.next().unwrap() else {
        panic!()
    };
    assert_eq!(entry.kind, EntryKind::File(size));
    let zeros = Bytes::from(vec![0; 1 << 20]);
    let mut left = size + padding(size) as u64 + END.len() as u64;
    let mut read = 0;
    let mut ended = false;
    while left > 0 {
        let count = left.min(zeros.len() as u64);
        reader.push(zeros.slice(..count as usize));
        left -= count;
        while let Some(item) = reader.next().unwrap() {
            match item {
                Item::Data(data) => read += data.len() as u64,
                item => ended = item == Item::End,
            }
        }
    }
    assert_eq!((read, ended), (size, true));
}

#[test]
fn the_names_and_numbers_of_gnu_tar_are_read() {
    let mut bytes = extension(b'L', format!("{}\0", "n".repeat(200)).as_bytes());
    let plain = Member {
        uid: 0,
        mtime: 0,
        ..member(b"n", Kind::File(0))
    };
    bytes.extend(crafted(&plain, |block| {
        block[257..265].copy_from_slice(b"ustar  \0");
        block[108..116].copy_from_slice(&[0x80, 0, 0, 0, 0x3b, 0xa5, 0x59, 0xd0]);
    }));
    bytes.extend(END);
    let items = read(&bytes, 512).unwrap();
    let Item::Entry(entry) = &items[0] else {
        panic!("{items:?}")
    };
    assert_eq!((entry.name.len(), entry.uid), (200, 1_000_692_176));
    // A prefix of ustar's own, and an old header without any magic.
    let prefixed = crafted(&plain, |block| block[345..348].copy_from_slice(b"a/b"));
    let old = crafted(&plain, |block| block[257..265].fill(0));
    let items = read(&[prefixed, old, END.to_vec()].concat(), 512).unwrap();
    let Item::Entry(entry) = &items[0] else {
        panic!("{items:?}")
    };
    assert_eq!(entry.name, "a/b/n");
}

#[test]
fn what_can_be_read_in_two_ways_is_refused() {
    let file = |size| Member {
        uid: 0,
        mtime: 0,
        ..member(b"file", Kind::File(size))
    };
    let plain = || crafted(&file(0), |_| {});
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("two sizes", [pax(&[("size", "512")]), plain()].concat()),
        (
            "two sizes",
            [pax(&[("size", "0")]), crafted(&file(512), |_| {})].concat(),
        ),
        (
            "twice",
            [pax(&[("path", "a"), ("path", "b")]), plain()].concat(),
        ),
        (
            "twice",
            [pax(&[("path", "a")]), pax(&[("path", "b")]), plain()].concat(),
        ),
        (
            "two names",
            [extension(b'L', b"a"), extension(b'L', b"b"), plain()].concat(),
        ),
        (
            "twice",
            [extension(b'L', b"a"), pax(&[("path", "b")]), plain()].concat(),
        ),
        (
            "name that is none",
            [pax(&[("path", "a\0b")]), plain()].concat(),
        ),
        ("zero byte", [extension(b'L', b"a\0b"), plain()].concat()),
        (
            "sparse",
            [pax(&[("GNU.sparse.major", "1")]), plain()].concat(),
        ),
        ("sparse", crafted(&file(0), |block| block[156] = b'S')),
        (
            "all entries",
            [extension(b'g', b"9 size=1\n"), plain()].concat(),
        ),
        (
            "malformed",
            [extension(b'x', b"99 path=a\n"), plain()].concat(),
        ),
        (
            "malformed",
            [extension(b'x', b"6 path\n"), plain()].concat(),
        ),
        ("malformed", [pax(&[("size", "-1")]), plain()].concat()),
        ("malformed", [pax(&[("mtime", "1.x")]), plain()].concat()),
        (
            "larger than 1 MiB",
            crafted(&file(2 << 20), |block| block[156] = b'x'),
        ),
        (
            "a directory by its name",
            crafted(&file(0), |block| block[4] = b'/'),
        ),
        (
            "no file and has bytes",
            crafted(&file(9), |block| block[156] = b'5'),
        ),
        (
            "without a target",
            crafted(&file(0), |block| block[156] = b'2'),
        ),
        ("no name", crafted(&file(0), |block| block[..4].fill(0))),
        ("not known", crafted(&file(0), |block| block[156] = b'Z')),
        ("not known", crafted(&file(0), |block| block[257] = b'X')),
        (
            "no number",
            crafted(&file(0), |block| {
                block[124..136].copy_from_slice(b"9999999999\0\0");
            }),
        ),
        ("no number", crafted(&file(0), |block| block[124] = 0xff)),
        ("checksum", vec![1; BLOCK]),
        ("between entries", [vec![0; BLOCK], plain()].concat()),
        (
            "after an extension",
            [pax(&[("path", "a")]), vec![0; BLOCK]].concat(),
        ),
    ];
    for (expected, mut bytes) in cases {
        bytes.extend(END);
        let error = read(&bytes, bytes.len()).expect_err(expected).to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let followed = [archive(&[]), vec![1]].concat();
    let error = read(&followed, 4096).unwrap_err().to_string();
    assert!(error.contains("follows its end"), "{error}");
}

#[test]
fn an_archive_that_breaks_off_anywhere_is_refused() {
    let bytes = archive(&[member(b"a", Kind::File(600)), member(b"b", Kind::Directory)]);
    for end in 0..bytes.len() {
        assert!(read(&bytes[..end], 100_000).is_err(), "{end}");
    }
    read(&bytes, 100_000).unwrap();
}

#[test]
fn times_have_fractions_and_signs() {
    for (text, expected) in [
        ("5", Some(5)),
        ("5.9", Some(5)),
        ("-5", Some(-5)),
        ("-5.0", Some(-5)),
        ("-5.1", Some(-6)),
        ("-0.5", Some(-1)),
        ("", None),
        ("5.x", None),
        ("x", None),
    ] {
        assert_eq!(seconds(text), expected, "{text}");
    }
}

proptest::proptest! {
    /// Whatever comes, nothing panics, and nothing is read past what was pushed.
    #[test]
    fn no_bytes_panic(changes in proptest::collection::vec((0_usize..4096, 0_u8..), 1..20)) {
        let long = "x".repeat(300);
        let mut bytes = archive(&[
            member(long.as_bytes(), Kind::File(100)),
            member(b"l", Kind::Symlink(b"t")),
        ]);
        let count = bytes.len();
        for (at, byte) in changes {
            bytes[at % count] = byte;
        }
        let _ = read(&bytes, 700);
    }
}
