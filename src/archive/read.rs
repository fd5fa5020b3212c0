//! Reads a tar archive that somebody else wrote: bytes in, entries and their bytes out. Pure.
//!
//! ```text
//! push(bytes) --> next: Entry, Data.., Entry, Data.. --> None: push more --> finish
//! ```
//!
//! It takes ustar, PAX and the long names and numbers of GNU tar, and is strict with all of them:
//! what two readers could read in two ways is refused, and so is an archive that ends before its
//! end, or does not end with it.

use std::collections::VecDeque;

use bytes::{Buf as _, Bytes, BytesMut};

use super::header::{MAX_11, checksum, padding};
use super::{BLOCK, shown};

/// The most bytes of a PAX header or a long name: 1 MiB.
const MAX_EXTENSION: u64 = 1024 * 1024;

/// An entry of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its path as it stands there; nobody has looked yet whether it is a decent one.
    pub name: Bytes,
    /// What it is.
    pub kind: EntryKind,
    /// Permissions, 12 bits.
    pub mode: u32,
    /// The owner's number.
    pub uid: u64,
    /// The group's number.
    pub gid: u64,
    /// When it was last changed: seconds since 1970 UTC.
    pub mtime: i64,
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    /// A file of so many bytes, which follow.
    File(u64),
    /// A directory.
    Directory,
    /// A symbolic link to this path.
    Symlink(Bytes),
    /// Another name of the entry with this one.
    HardLink(Bytes),
    /// A device, or a FIFO.
    Special(&'static str),
}

/// What comes out of a [`Reader`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// An entry begins; the one before is whole.
    Entry(Entry),
    /// Bytes of the file that began last.
    Data(Bytes),
    /// The archive has ended.
    End,
}

/// Why an archive is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// It is no tar archive, or damaged.
    #[error("the archive is damaged at byte {at}: {what}")]
    Damaged {
        /// Bytes before the place.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// One entry is not plain.
    #[error("the archive's entry {name} is refused: {what}")]
    Entry {
        /// Its name, as people may see it.
        name: String,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// What extension headers say of the entry that follows.
#[derive(Debug, Default)]
struct Extension {
    name: Option<Bytes>,
    link: Option<Bytes>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<i64>,
    any: bool,
}

#[derive(Debug)]
enum State {
    /// A header is next.
    Header,
    /// So many bytes of a file, and then so many of padding.
    Data(u64, usize),
    /// An extension's body and its padding.
    Extension { flag: u8, size: usize },
    /// One block of zeros was there.
    Ending,
    /// Both were; nothing but zeros may follow.
    Ended,
}

/// An archive that is being read.
#[derive(Debug)]
pub struct Reader {
    input: VecDeque<Bytes>,
    buffered: usize,
    at: u64,
    state: State,
    extension: Extension,
    told: bool,
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            input: VecDeque::new(),
            buffered: 0,
            at: 0,
            state: State::Header,
            extension: Extension::default(),
            told: false,
        }
    }
}

impl Reader {
    /// Takes bytes of the archive. Whoever calls [`next`](Self::next) until there is nothing before
    /// pushing more has `MAX_EXTENSION` bytes in it at most, and what was pushed last.
    pub fn push(&mut self, bytes: Bytes) {
        self.buffered += bytes.len();
        self.input.push_back(bytes);
    }

    /// What comes next; nothing where more bytes are needed for that.
    ///
    /// # Errors
    /// The archive is refused. Nothing sensible follows.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Item>, ReadError> {
        loop {
            match self.state {
                State::Data(0, padding) => {
                    if self.take(padding).is_none() {
                        return Ok(None);
                    }
                    self.state = State::Header;
                }
                State::Data(left, padding) => {
                    let Some(data) = self.some(left) else {
                        return Ok(None);
                    };
                    self.state = State::Data(left - data.len() as u64, padding);
                    return Ok(Some(Item::Data(data)));
                }
                State::Extension { flag, size } => {
                    let Some(mut body) = self.take(size + padding(size as u64)) else {
                        return Ok(None);
                    };
                    body.truncate(size);
                    self.extend(flag, &body)?;
                    self.state = State::Header;
                }
                State::Header | State::Ending => {
                    let Some(block) = self.block() else {
                        return Ok(None);
                    };
                    if block == [0; BLOCK] {
                        if self.extension.any {
                            return Err(self.damaged("it ends after an extension header"));
                        }
                        self.state = match self.state {
                            State::Ending => State::Ended,
                            _ => State::Ending,
                        };
                    } else if matches!(self.state, State::Ending) {
                        return Err(self.damaged("a block of zeros stands between entries"));
                    } else if let Some(entry) = self.header(&block)? {
                        return Ok(Some(Item::Entry(entry)));
                    }
                }
                State::Ended => {
                    let most = self.buffered as u64;
                    while let Some(rest) = self.some(most) {
                        if rest.iter().any(|byte| *byte != 0) {
                            return Err(self.damaged("something follows its end"));
                        }
                    }
                    return Ok((!std::mem::replace(&mut self.told, true)).then_some(Item::End));
                }
            }
        }
    }

    /// Says that no bytes follow.
    ///
    /// # Errors
    /// The archive has not ended.
    pub fn finish(&self) -> Result<(), ReadError> {
        match self.state {
            State::Ended => Ok(()),
            _ => Err(self.damaged("it breaks off")),
        }
    }

    fn damaged(&self, what: &'static str) -> ReadError {
        ReadError::Damaged { at: self.at, what }
    }

    /// Exactly so many bytes, when they are there.
    fn take(&mut self, count: usize) -> Option<BytesMut> {
        if self.buffered < count {
            return None;
        }
        let mut taken = BytesMut::with_capacity(count);
        while taken.len() < count {
            let piece = self.some((count - taken.len()) as u64)?;
            taken.extend_from_slice(&piece);
        }
        Some(taken)
    }

    /// At least one byte and so many at most, uncopied.
    fn some(&mut self, most: u64) -> Option<Bytes> {
        while self.input.front().is_some_and(Bytes::is_empty) {
            self.input.pop_front();
        }
        let front = self.input.front_mut()?;
        let count = most.min(front.remaining() as u64) as usize;
        let piece = front.split_to(count);
        self.buffered -= count;
        self.at += count as u64;
        (count > 0).then_some(piece)
    }

    fn block(&mut self) -> Option<[u8; BLOCK]> {
        let taken = self.take(BLOCK)?;
        taken[..].try_into().ok()
    }

    /// Reads a header: an entry, or an extension of the entry that follows.
    fn header(&mut self, block: &[u8; BLOCK]) -> Result<Option<Entry>, ReadError> {
        let sum = number(&block[148..156]);
        if sum != Some(u64::from(checksum(block))) {
            return Err(self.damaged("a header's checksum is wrong; is it a tar archive at all?"));
        }
        let flag = block[156];
        let magic = &block[257..265];
        let (posix, gnu) = (magic == b"ustar\x0000", magic == b"ustar  \x00");
        let name = field(&block[..100]);
        let prefix = if posix { field(&block[345..500]) } else { b"" };
        let name = match prefix {
            b"" => Bytes::copy_from_slice(name),
            prefix => [prefix, b"/", name].concat().into(),
        };
        let refused = |name: &[u8], what| {
            Err(ReadError::Entry {
                name: shown(name),
                what,
            })
        };
        let Some(size) = number(&block[124..136]) else {
            return refused(&name, "its size is no number");
        };
        if matches!(flag, b'x' | b'g' | b'L' | b'K') {
            if size > MAX_EXTENSION {
                return refused(&name, "an extension header is larger than 1 MiB");
            }
            let size = size as usize;
            self.state = State::Extension { flag, size };
            return Ok(None);
        }
        let extension = std::mem::take(&mut self.extension);
        let name = extension.name.unwrap_or(name);
        let refused = |what| refused(&name, what);
        if name.is_empty() {
            return refused("it has no name");
        }
        if name.contains(&0) {
            return refused("its name has a zero byte");
        }
        let size = match extension.size {
            None => size,
            // A reader that knows no extensions must not see another size than we do.
            Some(real) if size == real || (size == 0 && real > MAX_11) => real,
            Some(_) => return refused("its header and its extension header name two sizes"),
        };
        let link = extension
            .link
            .unwrap_or_else(|| Bytes::copy_from_slice(field(&block[157..257])));
        let kind = match flag {
            b'0' | b'\0' | b'7' if name.ends_with(b"/") => {
                return refused("it is a file by its type and a directory by its name");
            }
            b'0' | b'\0' | b'7' => EntryKind::File(size),
            b'1' => EntryKind::HardLink(link),
            b'2' => EntryKind::Symlink(link),
            b'3' => EntryKind::Special("a character device"),
            b'4' => EntryKind::Special("a block device"),
            b'5' => EntryKind::Directory,
            b'6' => EntryKind::Special("a FIFO"),
            b'S' => return refused("it is a sparse file in GNU tar's own form"),
            _ => return refused("it is of a kind that is not known"),
        };
        match &kind {
            EntryKind::File(_) => {}
            _ if size > 0 => return refused("it is no file and has bytes"),
            EntryKind::HardLink(link) | EntryKind::Symlink(link)
                if link.is_empty() || link.contains(&0) =>
            {
                return refused("it is a link without a target");
            }
            _ => {}
        }
        let numbers = [&block[100..108], &block[108..116], &block[116..124]].map(number);
        let [Some(mode), uid, gid] = numbers else {
            return refused("its mode is no number");
        };
        let (Some(uid), Some(gid)) = (extension.uid.or(uid), extension.gid.or(gid)) else {
            return refused("its owner is no number");
        };
        let mtime = number(&block[136..148]).and_then(|mtime| i64::try_from(mtime).ok());
        let Some(mtime) = extension.mtime.or(mtime) else {
            return refused("its time is no number");
        };
        if !(posix || gnu || magic == [0; 8]) {
            return refused("its header is of a form that is not known");
        }
        self.state = match kind {
            EntryKind::File(size) => State::Data(size, padding(size)),
            _ => State::Header,
        };
        Ok(Some(Entry {
            name,
            kind,
            mode: (mode & 0o7777) as u32,
            uid,
            gid,
            mtime,
        }))
    }

    fn extend(&mut self, flag: u8, body: &[u8]) -> Result<(), ReadError> {
        match flag {
            b'L' | b'K' => {
                let text = Bytes::copy_from_slice(body.strip_suffix(b"\0").unwrap_or(body));
                let slot = match flag {
                    b'L' => &mut self.extension.name,
                    _ => &mut self.extension.link,
                };
                if slot.replace(text).is_some() {
                    return Err(self.damaged("an entry has two names"));
                }
                self.extension.any = true;
                Ok(())
            }
            flag => self
                .records(flag == b'g', body)
                .map_err(|what| self.damaged(what)),
        }
    }

    /// Reads the records of a PAX header: of the next entry, or of all that follow.
    fn records(&mut self, global: bool, mut body: &[u8]) -> Result<(), &'static str> {
        const MALFORMED: &str = "an extension header is malformed";
        const TWICE: &str = "an extension header says something twice";
        self.extension.any |= !global;
        while !body.is_empty() {
            let (record, rest) = record(body).ok_or(MALFORMED)?;
            body = rest;
            let (key, value) = record;
            let concerns = matches!(key, b"path" | b"linkpath" | b"size");
            if global && concerns {
                return Err("a global header names all entries alike");
            }
            if key.starts_with(b"GNU.sparse.") {
                return Err("it has a sparse file in GNU tar's own form");
            }
            if global {
                continue;
            }
            let text = std::str::from_utf8(value).ok();
            let whole = |text: Option<&str>| text?.parse::<u64>().ok();
            let extension = &mut self.extension;
            let twice = match key {
                b"path" | b"linkpath" => {
                    if value.contains(&0) || value.is_empty() {
                        return Err("an extension header has a name that is none");
                    }
                    let slot = match key {
                        b"path" => &mut extension.name,
                        _ => &mut extension.link,
                    };
                    slot.replace(Bytes::copy_from_slice(value)).is_some()
                }
                b"size" | b"uid" | b"gid" => {
                    let slot = match key {
                        b"size" => &mut extension.size,
                        b"uid" => &mut extension.uid,
                        _ => &mut extension.gid,
                    };
                    slot.replace(whole(text).ok_or(MALFORMED)?).is_some()
                }
                b"mtime" => {
                    let mtime = text.and_then(seconds).ok_or(MALFORMED)?;
                    extension.mtime.replace(mtime).is_some()
                }
                // Names of users, fractions of times, attributes: not wanted here.
                _ => false,
            };
            if twice {
                return Err(TWICE);
            }
        }
        Ok(())
    }
}

/// Whole seconds of a decimal number, which may be negative and have a fraction.
fn seconds(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = fraction.bytes().all(|byte| byte.is_ascii_digit());
    let whole_seconds: i64 = whole.parse().ok().filter(|_| digits)?;
    // Towards the past, as files have it.
    let before = whole.starts_with('-') && fraction.bytes().any(|byte| byte != b'0');
    whole_seconds.checked_sub(i64::from(before))
}

/// The first record of a PAX header, as key and value, and what follows it.
type Record<'a> = ((&'a [u8], &'a [u8]), &'a [u8]);

fn record(body: &[u8]) -> Option<Record<'_>> {
    let space = body.iter().take(20).position(|byte| *byte == b' ')?;
    let length = std::str::from_utf8(&body[..space]).ok()?;
    if !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (record, rest) = body.split_at_checked(length.parse().ok()?)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    (equals > 0).then(|| ((&record[..equals], &record[equals + 1..]), rest))
}

/// The bytes of a field, up to the first zero.
fn field(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}

/// A number: octal digits among spaces and zero bytes, or GNU tar's binary form.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        // The first bit is a mark; one more, and the number is negative.
        let (first, rest) = (field[0] & 0x7f, &field[1..]);
        let (high, low) = rest.split_at(rest.len().saturating_sub(8));
        if first != 0 || high.iter().any(|byte| *byte != 0) {
            return None;
        }
        return Some(low.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
    }
    let text = field.trim_ascii_start();
    let end = text.iter().position(|byte| matches!(byte, 0 | b' '));
    let (digits, rest) = text.split_at(end.unwrap_or(text.len()));
    if rest.iter().any(|byte| !matches!(byte, 0 | b' ')) {
        return None;
    }
    digits.iter().try_fold(0_u64, |sum, byte| match byte {
        b'0'..=b'7' => sum.checked_mul(8)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
