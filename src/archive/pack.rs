//! Writes a tar archive of files, in pieces. Blocks.
//!
//! Nothing is guessed: a file that is not what it was when its header was written, or has become
//! shorter or longer while it was read, ends the archive with an error that names it.

use std::collections::HashMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;

use bytes::Bytes;
use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;
use tokio::sync::mpsc;

use super::header::{self, Kind, Member};
use super::ignore::RuleError;
use super::shown;

/// The most bytes of a piece: 64 KiB.
pub const PIECE: usize = 64 * 1024;

static ZEROS: [u8; PIECE] = [0; PIECE];

/// Why an archive ended early.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// Whoever took it wants no more.
    #[error("the archive was not wanted any more")]
    Stopped,
    /// A rule makes no sense, and something had to be compared with it.
    #[error("a rule of .dockerignore: {0}")]
    Rule(RuleError),
    /// A file can't be read.
    #[error("cannot read {name}: {error}")]
    Read {
        /// Its path in the archive, as people may see it.
        name: String,
        /// What the system says.
        error: io::Error,
    },
    /// A file is not what it was a moment ago.
    #[error("{name} {how} while it was read; try again when nothing writes to it")]
    Changed {
        /// Its path in the archive, as people may see it.
        name: String,
        /// What happened to it.
        how: &'static str,
    },
}

/// Whose the members are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Nobody's in particular: user 0, group 0.
    Root,
    /// Who owns the files here, by number.
    Source,
}

/// An archive that is being written.
pub struct Packer<'a> {
    out: &'a mut dyn FnMut(Bytes) -> Result<(), PackError>,
    owner: Owner,
    buffer: Vec<u8>,
    /// Files of several names: device and number, and the name that was sent first.
    names: HashMap<(u64, u64), Vec<u8>>,
}

impl<'a> Packer<'a> {
    /// An archive whose pieces, of [`PIECE`] bytes at most, `out` takes.
    pub fn new(owner: Owner, out: &'a mut dyn FnMut(Bytes) -> Result<(), PackError>) -> Self {
        Self {
            out,
            owner,
            buffer: Vec::with_capacity(PIECE),
            names: HashMap::new(),
        }
    }

    /// Adds what stands at `file` as `name`. A directory is added without what is in it, a link is
    /// not followed, and a file that was added by another name becomes a link to that.
    ///
    /// # Errors
    /// It can't be read or changes meanwhile, or the archive is not wanted any more.
    pub fn add(&mut self, name: &[u8], file: &Path, metadata: &Metadata) -> Result<(), PackError> {
        if metadata.is_dir() {
            return self.header(name, Kind::Directory, metadata);
        }
        if metadata.is_symlink() {
            let target = fs::read_link(file).map_err(|error| read_error(name, error))?;
            let target = target.as_os_str().as_bytes();
            return self.header(name, Kind::Symlink(target), metadata);
        }
        if metadata.nlink() > 1 {
            let inode = (metadata.dev(), metadata.ino());
            if let Some(first) = self.names.get(&inode) {
                let first = first.clone();
                return self.header(name, Kind::HardLink(&first), metadata);
            }
            self.names.insert(inode, name.to_vec());
        }
        self.file(name, file, metadata)
    }

    /// Adds a file that stands nowhere: with these bytes, and mode 644, from 1970.
    ///
    /// # Errors
    /// The archive is not wanted any more.
    pub fn add_bytes(&mut self, name: &[u8], bytes: &[u8]) -> Result<(), PackError> {
        let size = bytes.len() as u64;
        let member = Member {
            name,
            kind: Kind::File(size),
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: 0,
        };
        self.member(&member)?;
        self.append(bytes)?;
        self.zeros(header::padding(size) as u64)
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// It is not wanted any more.
    pub fn finish(mut self) -> Result<(), PackError> {
        self.append(&header::END)?;
        self.flush()
    }

    fn file(&mut self, name: &[u8], path: &Path, found: &Metadata) -> Result<(), PackError> {
        let failed = |error| read_error(name, error);
        let changed = |how| PackError::Changed {
            name: shown(name),
            how,
        };
        // Neither followed nor waited for, should something else stand there by now.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(flags.bits().cast_signed());
        let mut file = options.open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() || (metadata.dev(), metadata.ino()) != (found.dev(), found.ino()) {
            return Err(changed("was replaced"));
        }
        let size = metadata.len();
        self.header(name, Kind::File(size), &metadata)?;
        let mut at = 0;
        while at < size {
            let (data, end) = extent(&file, &metadata, at).map_err(failed)?;
            self.zeros(data - at)?;
            at = data;
            while at < end {
                let read = self.read(&mut file, end - at).map_err(failed)?;
                if read == 0 {
                    return Err(changed("became shorter"));
                }
                at += read as u64;
                self.flush_if_full()?;
            }
        }
        match file.metadata().map_err(failed)?.len() {
            now if now < size => return Err(changed("became shorter")),
            now if now > size => return Err(changed("became longer")),
            _ => {}
        }
        self.zeros(header::padding(size) as u64)
    }

    fn header(&mut self, name: &[u8], kind: Kind<'_>, of: &Metadata) -> Result<(), PackError> {
        let (uid, gid) = match self.owner {
            Owner::Root => (0, 0),
            Owner::Source => (of.uid().into(), of.gid().into()),
        };
        self.member(&Member {
            name,
            kind,
            mode: of.mode(),
            uid,
            gid,
            mtime: of.mtime(),
        })
    }

    fn member(&mut self, member: &Member<'_>) -> Result<(), PackError> {
        let mut bytes = Vec::new();
        member.encode(&mut bytes);
        self.append(&bytes)
    }

    /// Reads into the buffer, which has room.
    fn read(&mut self, file: &mut File, most: u64) -> io::Result<usize> {
        let start = self.buffer.len();
        let room = most.min((PIECE - start) as u64) as usize;
        self.buffer.resize(start + room, 0);
        let read = loop {
            match file.read(&mut self.buffer[start..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.buffer.truncate(start + *read.as_ref().unwrap_or(&0));
        read
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<(), PackError> {
        while !bytes.is_empty() {
            let (fits, rest) = bytes.split_at(bytes.len().min(PIECE - self.buffer.len()));
            self.buffer.extend_from_slice(fits);
            bytes = rest;
            self.flush_if_full()?;
        }
        Ok(())
    }

    fn zeros(&mut self, mut count: u64) -> Result<(), PackError> {
        while count > 0 {
            // A hole costs no copies.
            if self.buffer.is_empty() && count >= PIECE as u64 {
                (self.out)(Bytes::from_static(&ZEROS))?;
                count -= PIECE as u64;
            } else {
                let fits = count.min((PIECE - self.buffer.len()) as u64);
                self.append(&ZEROS[..fits as usize])?;
                count -= fits;
            }
        }
        Ok(())
    }

    fn flush_if_full(&mut self) -> Result<(), PackError> {
        if self.buffer.len() == PIECE {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn flush(&mut self) -> Result<(), PackError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.buffer, Vec::with_capacity(PIECE));
        (self.out)(piece.into())
    }
}

/// From where on a file holds data, `at` or after, and up to where. Its position is then there.
fn extent(file: &File, metadata: &Metadata, at: u64) -> io::Result<(u64, u64)> {
    let size = metadata.len();
    // Only a file with holes takes fewer blocks than it has bytes.
    if metadata.blocks().saturating_mul(512) >= size {
        return Ok((at, size));
    }
    let data = match seek(file, SeekFrom::Data(at)) {
        Ok(data) => data.min(size),
        Err(Errno::NXIO) => return Ok((size, size)),
        // A file system that knows no holes; `at` is where reading stopped.
        Err(_) => return Ok((at, size)),
    };
    let end = seek(file, SeekFrom::Hole(data))?.min(size);
    seek(file, SeekFrom::Start(data))?;
    Ok((data, end))
}

fn read_error(name: &[u8], error: io::Error) -> PackError {
    PackError::Read {
        name: shown(name),
        error,
    }
}

/// An archive that a thread of its own writes, two pieces ahead at most.
pub struct Stream {
    queue: mpsc::Receiver<Result<Option<Bytes>, PackError>>,
}

impl Stream {
    /// Lets `job` write an archive.
    ///
    /// # Errors
    /// There is no thread.
    pub fn of<J>(owner: Owner, job: J) -> io::Result<Self>
    where
        J: FnOnce(&mut Packer<'_>) -> Result<(), PackError> + Send + 'static,
    {
        let (pieces, queue) = mpsc::channel(2);
        thread::Builder::new().name("pack".into()).spawn(move || {
            let mut out = |piece| {
                let sent = pieces.blocking_send(Ok(Some(piece)));
                sent.map_err(|_| PackError::Stopped)
            };
            let mut packer = Packer::new(owner, &mut out);
            let packed = job(&mut packer).and_then(|()| packer.finish());
            // Nobody is there to hear that nobody is there.
            let _ = pieces.blocking_send(packed.map(|()| None));
        })?;
        Ok(Self { queue })
    }

    /// The next piece; none when the archive is whole.
    ///
    /// # Errors
    /// It never will be.
    pub async fn next(&mut self) -> Result<Option<Bytes>, PackError> {
        let next = self.queue.recv().await;
        next.unwrap_or(Err(PackError::Stopped))
    }
}

#[cfg(test)]
mod tests;
