//! Unpacks an archive that a node sent under one directory, and nowhere else. Blocks.
//!
//! A node may be hostile. So every path is taken apart and walked name by name, from a handle of
//! the directory and without following a link; a file is written beside its place and then renamed
//! into it, so that nothing is written through what stands there; a hard link leads only to a file
//! that this archive wrote; devices and FIFOs are refused, and so are a name that comes twice and
//! one that is not within what was asked for. What was unpacked before an error stays.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bytes::Bytes;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid,
    chownat, fchmod, fchown, fstat, futimens, linkat, mkdirat, openat, renameat, statat, symlinkat,
    unlinkat, utimensat,
};
use rustix::io::Errno;

use super::read::{Entry, EntryKind, Item, ReadError, Reader};
use super::shown;

/// What is unpacked, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The name that was asked for, which is the first of every entry's path; none where the
    /// contents of a directory were, which come without it.
    pub asked: Option<Vec<u8>>,
    /// What becomes of that name; none keeps it, or leaves contents without.
    pub becomes: Option<Vec<u8>>,
    /// Whether entries are given to the owners they name. Else they belong to whoever runs this,
    /// and files lose the right to run as their owner.
    pub owners: bool,
    /// The most bytes of all files together.
    pub max_bytes: u64,
    /// The most entries.
    pub max_entries: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            asked: None,
            becomes: None,
            owners: false,
            max_bytes: u64::MAX,
            max_entries: u64::MAX,
        }
    }
}

/// Why an archive was not unpacked, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// It is no decent archive.
    #[error(transparent)]
    Archive(#[from] ReadError),
    /// An entry is none that is unpacked.
    #[error("the archive's entry {name} is refused: {what}")]
    Refused {
        /// Its name, as people may see it.
        name: String,
        /// Why.
        what: &'static str,
    },
    /// The archive holds more than was allowed.
    #[error("the archive holds more than {0}")]
    TooMuch(String),
    /// The system refuses.
    #[error("cannot write {name}: {error}")]
    Write {
        /// What, as people may see it.
        name: String,
        /// What the system says.
        error: io::Error,
    },
}

/// Why one entry is not unpacked.
#[derive(Debug)]
enum Fault {
    Refused(&'static str),
    System(Errno),
}

impl From<Errno> for Fault {
    fn from(error: Errno) -> Self {
        match error {
            Errno::LOOP | Errno::NOTDIR => {
                Self::Refused("a link, or something else that is no directory, stands in its path")
            }
            error => Self::System(error),
        }
    }
}

impl Fault {
    fn of(self, name: &[u8]) -> UnpackError {
        let name = shown(name);
        match self {
            Self::Refused(what) => UnpackError::Refused { name, what },
            Self::System(error) => UnpackError::Write {
                name,
                error: error.into(),
            },
        }
    }
}

/// Device and number of a file.
type Identity = (u64, u64);

/// An archive that is being unpacked.
pub struct Unpacker {
    root: OwnedFd,
    options: Options,
    reader: Reader,
    /// What has come, by its path; files with what they are here.
    seen: HashMap<Vec<u8>, Option<Identity>>,
    /// Directories that were made for this archive.
    made: HashSet<Vec<u8>>,
    /// Directories whose looks are still to come: what is written in them would change them.
    looks: Vec<(Vec<u8>, Entry)>,
    writing: Option<Writing>,
    bytes: u64,
    entries: u64,
}

/// A file that is being written beside its place. Dropped early, it is removed.
struct Writing {
    parent: OwnedFd,
    beside: Vec<u8>,
    file: File,
    path: Vec<u8>,
    entry: Entry,
    left: u64,
}

impl Drop for Writing {
    fn drop(&mut self) {
        // After it was renamed there is nothing; before, nothing better can be done about it.
        let _ = unlinkat(&self.parent, os(&self.beside), AtFlags::empty());
    }
}

impl Unpacker {
    /// Unpacks under a directory, which is there. Links in the path of that are followed.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn new(directory: &Path, options: Options) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            root: openat(CWD, directory, flags, Mode::empty())?,
            options,
            reader: Reader::default(),
            seen: HashMap::new(),
            made: HashSet::new(),
            looks: Vec::new(),
            writing: None,
            bytes: 0,
            entries: 0,
        })
    }

    /// Unpacks the next bytes of the archive.
    ///
    /// # Errors
    /// Something is refused, or cannot be written. Nothing more is to be unpacked then.
    pub fn push(&mut self, bytes: Bytes) -> Result<(), UnpackError> {
        self.reader.push(bytes);
        while let Some(item) = self.reader.next()? {
            match item {
                Item::Entry(entry) => self.entry(entry)?,
                Item::Data(data) => self.data(&data)?,
                Item::End => {}
            }
        }
        Ok(())
    }

    /// Says that the archive has ended; gives how many entries it had.
    ///
    /// # Errors
    /// It has not, or a directory cannot be made what it should be.
    pub fn finish(mut self) -> Result<u64, UnpackError> {
        self.reader.finish()?;
        // What is inside first: a directory may forbid to enter it.
        let depth = |path: &[u8]| path.split(|byte| *byte == b'/').count();
        self.looks.sort_by_key(|(path, _)| Reverse(depth(path)));
        for (path, entry) in &self.looks {
            let dressed = self.open(path).and_then(|fd| Ok(self.dress(&fd, entry)?));
            dressed.map_err(|fault| fault.of(&entry.name))?;
        }
        Ok(self.entries)
    }

    fn entry(&mut self, entry: Entry) -> Result<(), UnpackError> {
        self.entries += 1;
        if self.entries > self.options.max_entries {
            let most = format!("{} entries", self.options.max_entries);
            return Err(UnpackError::TooMuch(most));
        }
        if let EntryKind::File(size) = entry.kind {
            self.bytes = self.bytes.saturating_add(size);
            if self.bytes > self.options.max_bytes {
                let most = format!("{} bytes", self.options.max_bytes);
                return Err(UnpackError::TooMuch(most));
            }
        }
        let name = entry.name.clone();
        self.unpack(entry).map_err(|fault| fault.of(&name))?;
        // An empty file has no bytes that would end it.
        self.data(&[])
    }

    fn unpack(&mut self, entry: Entry) -> Result<(), Fault> {
        let path = self.path(&entry.name)?;
        if self.seen.contains_key(&path) {
            return Err(Fault::Refused("it comes twice"));
        }
        if entry.kind == EntryKind::Directory {
            self.open_or_make(&path)?;
            // What was there before keeps its looks, above all what everything is unpacked into.
            if self.made.contains(&path) || self.options.owners && !path.is_empty() {
                self.looks.push((path.clone(), entry));
            }
            self.seen.insert(path, None);
            return Ok(());
        }
        if path.is_empty() {
            return Err(Fault::Refused("it would replace what it is unpacked into"));
        }
        let (above, last) = split(&path);
        let parent = self.open_or_make(above)?;
        let there = statat(&parent, os(last), AtFlags::SYMLINK_NOFOLLOW);
        if there.is_ok_and(|there| FileType::from_raw_mode(there.st_mode).is_dir()) {
            return Err(Fault::Refused(
                "a directory stands there; no file replaces it",
            ));
        }
        let mut identity = None;
        match &entry.kind {
            EntryKind::Directory => {}
            EntryKind::Special(kind) => return Err(Fault::Refused(kind)),
            EntryKind::File(size) => {
                let left = *size;
                self.writing = Some(Writing::new(parent, path, entry, left)?);
                return Ok(());
            }
            EntryKind::Symlink(target) => {
                if climbs_out(above, target) {
                    return Err(Fault::Refused(
                        "it is a link that leads out of the directory it is unpacked into; \
                         -L copies what a link leads to",
                    ));
                }
                let beside = unused(|beside| Ok(symlinkat(os(target), &parent, beside)?))?;
                let placed = self.place_link(&parent, &beside, last, &entry);
                let _ = unlinkat(&parent, os(&beside), AtFlags::empty());
                placed?;
            }
            EntryKind::HardLink(target) => identity = Some(self.hard_link(&parent, last, target)?),
        }
        self.seen.insert(path, identity);
        Ok(())
    }

    fn place_link(
        &self,
        parent: &OwnedFd,
        beside: &[u8],
        last: &[u8],
        entry: &Entry,
    ) -> rustix::io::Result<()> {
        let itself = AtFlags::SYMLINK_NOFOLLOW;
        if self.options.owners {
            let (uid, gid) = owner(entry)?;
            chownat(parent, os(beside), Some(uid), Some(gid), itself)?;
        }
        utimensat(parent, os(beside), &times(entry), itself)?;
        renameat(parent, os(beside), parent, os(last))
    }

    /// Makes another name of a file that this archive wrote.
    fn hard_link(&self, parent: &OwnedFd, last: &[u8], target: &[u8]) -> Result<Identity, Fault> {
        const STRANGER: Fault =
            Fault::Refused("it is a hard link to what this archive did not write");
        let target = self.path(target)?;
        let Some(Some(identity)) = self.seen.get(&target) else {
            return Err(STRANGER);
        };
        let (above, target) = split(&target);
        let from = self.open(above)?;
        let link = |beside: &OsStr| linkat(&from, os(target), parent, beside, AtFlags::empty());
        let beside = unused(|beside| Ok(link(beside)?))?;
        // Somebody here may have replaced it meanwhile.
        let placed = match statat(parent, os(&beside), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(linked) if identity_of(&linked) == *identity => {
                renameat(parent, os(&beside), parent, os(last)).map_err(Fault::from)
            }
            Ok(_) => Err(STRANGER),
            Err(error) => Err(error.into()),
        };
        // Renaming one name of a file to another name of it does nothing at all.
        let _ = unlinkat(parent, os(&beside), AtFlags::empty());
        placed.map(|()| *identity)
    }

    fn data(&mut self, data: &[u8]) -> Result<(), UnpackError> {
        let Some(writing) = &mut self.writing else {
            return Ok(());
        };
        if let Err(error) = writing.file.write_all(data) {
            let name = shown(&writing.entry.name);
            return Err(UnpackError::Write { name, error });
        }
        writing.left -= data.len() as u64;
        if writing.left > 0 {
            return Ok(());
        }
        if let Some(mut whole) = self.writing.take() {
            let identity = self.place(&whole).map_err(|error| {
                let fault = Fault::System(error);
                fault.of(&whole.entry.name)
            })?;
            self.seen
                .insert(std::mem::take(&mut whole.path), Some(identity));
        }
        Ok(())
    }

    /// Gives a file that is whole its looks and its place.
    fn place(&self, whole: &Writing) -> rustix::io::Result<Identity> {
        self.dress(&whole.file, &whole.entry)?;
        let identity = identity_of(&fstat(&whole.file)?);
        let (_, last) = split(&whole.path);
        renameat(&whole.parent, os(&whole.beside), &whole.parent, os(last))?;
        Ok(identity)
    }

    /// Gives a file or a directory its owner, its mode and its time.
    fn dress(&self, fd: &impl AsFd, entry: &Entry) -> rustix::io::Result<()> {
        let mut mode = entry.mode & 0o1777;
        if self.options.owners {
            let (uid, gid) = owner(entry)?;
            fchown(fd, Some(uid), Some(gid))?;
            mode = entry.mode;
        }
        fchmod(fd, Mode::from_raw_mode(mode))?;
        futimens(fd, &times(entry))
    }

    /// Where an entry goes: a path under the directory, without anything in it that is no name.
    fn path(&self, name: &[u8]) -> Result<Vec<u8>, Fault> {
        if name.starts_with(b"/") {
            return Err(Fault::Refused("its path is absolute"));
        }
        let mut names: Vec<&[u8]> = Vec::new();
        for name in name.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => return Err(Fault::Refused("its path has .. in it")),
                name => names.push(name),
            }
        }
        let becomes = self.options.becomes.as_deref();
        match (&self.options.asked, becomes, names.first_mut()) {
            (Some(asked), becomes, Some(first)) if *first == asked => {
                *first = becomes.unwrap_or(first);
            }
            (Some(_), ..) => return Err(Fault::Refused("it is not within what was asked for")),
            (None, Some(becomes), _) => names.insert(0, becomes),
            (None, None, _) => {}
        }
        Ok(names.join(&b'/'))
    }

    /// Opens a directory under the root, name by name.
    fn open(&self, path: &[u8]) -> Result<OwnedFd, Fault> {
        let mut directory = self.root.try_clone().map_err(|error| system(&error))?;
        for name in names(path) {
            directory = open_in(&directory, name)?;
        }
        Ok(directory)
    }

    /// The same, and makes what is missing.
    fn open_or_make(&mut self, path: &[u8]) -> Result<OwnedFd, Fault> {
        let mut directory = self.root.try_clone().map_err(|error| system(&error))?;
        let mut length = 0;
        for name in names(path) {
            length += name.len() + usize::from(length > 0);
            let opened = match open_in(&directory, name) {
                Err(Errno::NOENT) => {
                    // Nobody else looks in before it has its looks.
                    mkdirat(&directory, os(name), Mode::RWXU)?;
                    self.made.insert(path[..length].to_vec());
                    open_in(&directory, name)
                }
                opened => opened,
            };
            directory = opened?;
        }
        Ok(directory)
    }
}

impl Writing {
    fn new(parent: OwnedFd, path: Vec<u8>, entry: Entry, left: u64) -> Result<Self, Fault> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = None;
        let beside = unused(|beside| {
            let opened = openat(
                &parent,
                beside,
                flags | OFlags::NOFOLLOW,
                Mode::RUSR | Mode::WUSR,
            )?;
            file = Some(File::from(opened));
            Ok(())
        })?;
        let file = file.ok_or(Fault::System(Errno::IO))?;
        Ok(Self {
            parent,
            beside,
            file,
            path,
            entry,
            left,
        })
    }
}

/// Finds a name beside the place of something, by which `make` can make it.
fn unused(mut make: impl FnMut(&OsStr) -> Result<(), Fault>) -> Result<Vec<u8>, Fault> {
    loop {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|_| Fault::System(Errno::IO))?;
        let mut name = String::from(".hub-cp-");
        for byte in random {
            // Writing to a string does not fail.
            let _ = write!(name, "{byte:02x}");
        }
        match make(OsStr::new(&name)) {
            Err(Fault::System(Errno::EXIST)) => {}
            made => return made.map(|()| name.into_bytes()),
        }
    }
}

fn open_in(directory: &OwnedFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, os(name), flags, Mode::empty())
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
}

/// A path without its last name, and that.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// Whether a link leads out of the root by its letters. An absolute one may stay: it means the same
/// wherever it stands.
fn climbs_out(above: &[u8], target: &[u8]) -> bool {
    if target.starts_with(b"/") {
        return false;
    }
    let mut depth = names(above).count();
    for name in names(target) {
        depth = match (name, depth) {
            (b".", _) => depth,
            (b"..", 0) => return true,
            (b"..", _) => depth - 1,
            _ => depth + 1,
        };
    }
    false
}

fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

fn system(error: &io::Error) -> Fault {
    Fault::System(Errno::from_io_error(error).unwrap_or(Errno::IO))
}

fn identity_of(stat: &Stat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

fn owner(entry: &Entry) -> rustix::io::Result<(Uid, Gid)> {
    let id = |id: u64| u32::try_from(id).map_err(|_| Errno::INVAL);
    Ok((Uid::from_raw(id(entry.uid)?), Gid::from_raw(id(entry.gid)?)))
}

fn times(entry: &Entry) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: entry.mtime,
            tv_nsec: 0,
        },
    }
}

#[cfg(test)]
mod tests;
