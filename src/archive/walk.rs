//! Walks a directory in the order in which it is sent: a directory before what is in it, names by
//! their bytes. Links are never followed. Blocks.

use std::fs::{self, FileType, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use super::ignore::{Above, RuleError, Rules, as_text};
use super::pack::PackError;
use super::shown;

/// Something in the directory.
#[derive(Debug)]
pub struct Found<'a> {
    /// Its path from the directory, as bytes; `/` between names.
    pub path: &'a [u8],
    /// Where it is.
    pub file: &'a Path,
    /// What it is: a link is itself.
    pub metadata: &'a Metadata,
    /// What becomes of it.
    pub fate: Fate,
}

/// What becomes of something that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is sent; the rule that let it in again, if one did.
    Sent(Option<usize>),
    /// A rule keeps it out; of a directory, also what is in it, but for exceptions.
    Ignored(usize),
    /// No archive takes it: a socket, a FIFO or a device.
    Unsendable(&'static str),
}

/// Why a walk ended early.
#[derive(Debug, thiserror::Error)]
pub enum WalkError<E> {
    /// Something can't be looked at.
    #[error("cannot read {name}: {error}")]
    Read {
        /// Its path, as people may see it.
        name: String,
        /// What the system says.
        error: io::Error,
    },
    /// Something had to be compared with a rule that makes no sense.
    #[error("a rule of .dockerignore: {0}")]
    Rule(RuleError),
    /// Whoever was told of what was found wants no more.
    #[error("{0}")]
    Visitor(E),
}

impl From<WalkError<Self>> for PackError {
    fn from(error: WalkError<Self>) -> Self {
        match error {
            WalkError::Read { name, error } => Self::Read { name, error },
            WalkError::Rule(error) => Self::Rule(error),
            WalkError::Visitor(error) => error,
        }
    }
}

/// Tells `visit` of everything in `root` that the rules do not keep out together with the directory
/// it is in.
///
/// # Errors
/// Something cannot be read, and no rule keeps it out; or `visit` says so.
pub fn walk<E>(
    root: &Path,
    rules: &Rules,
    visit: &mut dyn FnMut(Found<'_>) -> Result<(), E>,
) -> Result<(), WalkError<E>> {
    let mut walker = Walker { rules, visit };
    walker.directory(root, &mut Vec::new(), None)
}

struct Walker<'a, E> {
    rules: &'a Rules,
    visit: &'a mut dyn FnMut(Found<'_>) -> Result<(), E>,
}

impl<E> Walker<'_, E> {
    fn directory(
        &mut self,
        file: &Path,
        path: &mut Vec<u8>,
        above: Option<&Above>,
    ) -> Result<(), WalkError<E>> {
        let names = fs::read_dir(file).and_then(|entries| {
            let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
            names.collect::<io::Result<Vec<_>>>()
        });
        let mut names = names.map_err(|error| {
            let root = file.as_os_str().as_bytes();
            read_error(if path.is_empty() { root } else { path }, error)
        })?;
        names.sort_unstable_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
        let length = path.len();
        for name in names {
            if length > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            self.entry(&file.join(&name), path, above)?;
            path.truncate(length);
        }
        Ok(())
    }

    fn entry(
        &mut self,
        file: &Path,
        path: &mut Vec<u8>,
        above: Option<&Above>,
    ) -> Result<(), WalkError<E>> {
        let metadata = fs::symlink_metadata(file).map_err(|error| read_error(path, error))?;
        let text = as_text(path);
        let judgement = self.rules.judge(&text, above);
        let malformed = judgement.malformed.and_then(|rule| self.rules.error(rule));
        if let Some(error) = malformed {
            return Err(WalkError::Rule(error));
        }
        let fate = match (judgement.rule, special(metadata.file_type())) {
            (Some(rule), _) if judgement.ignored => Fate::Ignored(rule),
            (_, Some(kind)) => Fate::Unsendable(kind),
            (rule, None) => Fate::Sent(rule),
        };
        let found = Found {
            path,
            file,
            metadata: &metadata,
            fate,
        };
        (self.visit)(found).map_err(WalkError::Visitor)?;
        let enters = match fate {
            Fate::Ignored(_) => self.rules.enters(&text),
            _ => true,
        };
        if metadata.is_dir() && enters {
            self.directory(file, path, Some(&judgement.above))?;
        }
        Ok(())
    }
}

fn read_error<E>(path: &[u8], error: io::Error) -> WalkError<E> {
    WalkError::Read {
        name: shown(path),
        error,
    }
}

/// What kind of file no archive takes.
fn special(kind: FileType) -> Option<&'static str> {
    if kind.is_socket() {
        Some("a socket")
    } else if kind.is_fifo() {
        Some("a FIFO")
    } else if kind.is_block_device() || kind.is_char_device() {
        Some("a device")
    } else {
        None
    }
}
