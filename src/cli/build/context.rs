//! What a build is made of: a directory, an archive, or a Dockerfile alone.
//!
//! Docker's rules: a path names a directory; `-` is standard input, which is a context where it is
//! an archive, and else a Dockerfile without any. `-f` is a path from where we are, or `-`. A
//! Dockerfile that is not within the directory goes along under a name of its own, which
//! `.dockerignore` then keeps out of the image.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;

use super::super::exec::pipes::{self, Pieces};
use crate::archive::BLOCK;
use crate::archive::ignore::{RuleError, Rules};
use crate::archive::pack::{Owner, PackError, Packer, Stream};
use crate::archive::read::Reader;
use crate::archive::walk::{Fate, Found, walk};

/// The most bytes of a Dockerfile that is no file of the context: 1 MiB.
const MAX_DOCKERFILE: usize = 1024 * 1024;

const IGNORE_FILE: &str = ".dockerignore";

/// Why there is nothing to build.
#[derive(Debug, thiserror::Error)]
pub(super) enum ContextError {
    #[error("{}: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("cannot read standard input: {0}")]
    Stdin(io::Error),
    #[error("{} is neither a directory nor an archive (tar, or one with gzip, bzip2, xz or zstd)", .0.display())]
    NoContext(PathBuf),
    #[error("{0} is an address; hub builds what is here: clone or fetch it first")]
    Address(String),
    #[error(
        "standard input is both the Dockerfile of -f - and the context of -; give one of them a path"
    )]
    StdinTwice,
    #[error(
        "standard input is a Dockerfile, and -f names another; send an archive, or leave -f away"
    )]
    TwoDockerfiles,
    #[error("there is no Dockerfile at {}; -f names another", .0.display())]
    NoDockerfile(PathBuf),
    #[error("the Dockerfile is larger than 1 MiB")]
    LargeDockerfile,
    #[error("the Dockerfile's path, {}, is no UTF-8", .0.display())]
    DockerfileName(PathBuf),
    #[error("{}, {error}", .path.display())]
    Rule { path: PathBuf, error: RuleError },
    #[error(transparent)]
    Pack(#[from] PackError),
}

/// What is sent.
pub(super) struct Context {
    /// The Dockerfile's path in it, where it is not `Dockerfile`.
    pub(super) dockerfile: Option<String>,
    pub(super) source: Source,
}

/// Where it comes from.
pub(super) enum Source {
    Directory(Tree),
    /// An archive as it is: its beginning, and the rest.
    Archive(Bytes, Pieces),
    /// A Dockerfile alone.
    Dockerfile(Bytes),
}

/// A directory with its rules.
pub(super) struct Tree {
    root: PathBuf,
    pub(super) rules: Rules,
    /// The Dockerfile that goes along though it stands elsewhere.
    extra: Option<Extra>,
}

struct Extra {
    name: String,
    dockerfile: Bytes,
    /// What `.dockerignore` becomes.
    ignore_file: Vec<u8>,
}

impl Context {
    /// Finds out what `path` and `-f` mean.
    pub(super) async fn find(path: &str, file: Option<&str>) -> Result<Self, ContextError> {
        if path == "-" {
            if file == Some("-") {
                return Err(ContextError::StdinTwice);
            }
            let mut pieces = pipes::stdin().map_err(ContextError::Stdin)?;
            let head = head(&mut pieces).await.map_err(ContextError::Stdin)?;
            if is_archive(&head) {
                return Ok(Self {
                    dockerfile: file.map(str::to_owned),
                    source: Source::Archive(head, pieces),
                });
            }
            if file.is_some() {
                return Err(ContextError::TwoDockerfiles);
            }
            return Ok(Self {
                dockerfile: None,
                source: Source::Dockerfile(dockerfile(head, pieces).await?),
            });
        }
        let at = Path::new(path);
        let failed = |error| ContextError::File {
            path: at.to_owned(),
            error,
        };
        let metadata = match fs::metadata(at) {
            Err(_) if path.contains("://") || path.starts_with("git@") => {
                return Err(ContextError::Address(path.to_owned()));
            }
            metadata => metadata.map_err(failed)?,
        };
        if metadata.is_dir() {
            return Self::directory(&fs::canonicalize(at).map_err(failed)?, file).await;
        }
        let mut pieces = pipes::pieces(File::open(at).map_err(failed)?).map_err(failed)?;
        let head = head(&mut pieces).await.map_err(failed)?;
        if !is_archive(&head) {
            return Err(ContextError::NoContext(at.to_owned()));
        }
        Ok(Self {
            dockerfile: file.map(str::to_owned),
            source: Source::Archive(head, pieces),
        })
    }

    /// The text of the Dockerfile, where it can be seen without reading an archive, and has the size
    /// of one.
    pub(super) fn dockerfile_text(&self) -> Option<String> {
        let bytes = match &self.source {
            Source::Archive(..) => return None,
            Source::Dockerfile(bytes) => bytes.to_vec(),
            Source::Directory(Tree {
                extra: Some(extra), ..
            }) => extra.dockerfile.to_vec(),
            Source::Directory(tree) => {
                let name = self.dockerfile.as_deref().unwrap_or("Dockerfile");
                let file = File::open(tree.root.join(name)).ok()?;
                let mut bytes = Vec::new();
                let most = MAX_DOCKERFILE as u64 + 1;
                file.take(most).read_to_end(&mut bytes).ok()?;
                if bytes.len() > MAX_DOCKERFILE {
                    return None;
                }
                bytes
            }
        };
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    async fn directory(root: &Path, file: Option<&str>) -> Result<Self, ContextError> {
        let mut tree = Tree {
            root: root.to_owned(),
            rules: Rules::default(),
            extra: None,
        };
        if file == Some("-") {
            let mut pieces = pipes::stdin().map_err(ContextError::Stdin)?;
            let head = head(&mut pieces).await.map_err(ContextError::Stdin)?;
            let dockerfile = dockerfile(head, pieces).await?;
            let ignore_file = tree.read_rules(None)?;
            return Ok(tree.with(dockerfile, ignore_file));
        }
        let given = file.map_or_else(|| default_dockerfile(root), PathBuf::from);
        let path = fs::canonicalize(&given).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ContextError::NoDockerfile(given.clone()),
            _ => ContextError::File {
                path: given.clone(),
                error,
            },
        })?;
        let ignore_file = tree.read_rules(Some(&path))?;
        let Ok(name) = path.strip_prefix(root) else {
            let failed = |error| ContextError::File {
                path: path.clone(),
                error,
            };
            let bytes = fs::read(&path).map_err(failed)?;
            if bytes.len() > MAX_DOCKERFILE {
                return Err(ContextError::LargeDockerfile);
            }
            return Ok(tree.with(bytes.into(), ignore_file));
        };
        let name = name.to_str().ok_or(ContextError::DockerfileName(given))?;
        tree.always_send(name)?;
        Ok(Self {
            dockerfile: (name != "Dockerfile").then(|| name.to_owned()),
            source: Source::Directory(tree),
        })
    }
}

impl Tree {
    /// Reads the rules: those for this Dockerfile first, else those of the directory. Gives what
    /// the directory's own say.
    fn read_rules(&mut self, dockerfile: Option<&Path>) -> Result<Vec<u8>, ContextError> {
        let own = self.root.join(IGNORE_FILE);
        let read = |path: &Path| match fs::read(path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ContextError::File {
                path: path.to_owned(),
                error,
            }),
        };
        let special = dockerfile.map(|dockerfile| {
            let mut name = dockerfile.as_os_str().to_owned();
            name.push(IGNORE_FILE);
            PathBuf::from(name)
        });
        let in_directory = read(&own)?;
        let for_dockerfile = match special {
            Some(path) => read(&path)?.map(|bytes| (path, bytes)),
            None => None,
        };
        let (path, bytes) = match (for_dockerfile, &in_directory) {
            (Some(special), _) => special,
            (None, Some(bytes)) => (own, bytes.clone()),
            (None, None) => return Ok(Vec::new()),
        };
        self.rules = Rules::parse(&bytes).map_err(|error| ContextError::Rule { path, error })?;
        if in_directory.is_some() {
            self.always_send(IGNORE_FILE)?;
        }
        Ok(in_directory.unwrap_or_default())
    }

    fn always_send(&mut self, name: &str) -> Result<(), ContextError> {
        let sent = self.rules.always_send(name);
        sent.map_err(|error| ContextError::Rule {
            path: self.root.join(name),
            error,
        })
    }

    /// A context with a Dockerfile from elsewhere. Its name follows from what is in it, so that the
    /// same build finds its cache again.
    fn with(mut self, dockerfile: Bytes, mut ignore_file: Vec<u8>) -> Context {
        let digest = ring::digest::digest(&ring::digest::SHA256, &dockerfile);
        let mut name = String::from(".dockerfile.");
        for byte in &digest.as_ref()[..10] {
            // Writing to a string does not fail.
            let _ = write!(name, "{byte:02x}");
        }
        ignore_file.extend(format!("\n{name}\n").as_bytes());
        self.extra = Some(Extra {
            name: name.clone(),
            dockerfile,
            ignore_file,
        });
        Context {
            dockerfile: Some(name),
            source: Source::Directory(self),
        }
    }

    /// Tells `visit` of everything in the directory.
    pub(super) fn walk(
        &self,
        visit: &mut dyn FnMut(Found<'_>) -> Result<(), PackError>,
    ) -> Result<(), PackError> {
        Ok(walk(&self.root, &self.rules, visit)?)
    }

    fn pack(
        &self,
        packer: &mut Packer<'_>,
        notices: &mpsc::Sender<String>,
    ) -> Result<(), PackError> {
        if let Some(extra) = &self.extra {
            packer.add_bytes(IGNORE_FILE.as_bytes(), &extra.ignore_file)?;
            packer.add_bytes(extra.name.as_bytes(), &extra.dockerfile)?;
        }
        let replaced = |path: &[u8]| self.extra.is_some() && path == IGNORE_FILE.as_bytes();
        self.walk(&mut |found| match found.fate {
            Fate::Sent(_) if replaced(found.path) => Ok(()),
            Fate::Sent(_) => packer.add(found.path, found.file, found.metadata),
            Fate::Ignored(_) => Ok(()),
            Fate::Unsendable(kind) => {
                let path = crate::archive::shown(found.path);
                // Nobody listens any more: the archive will hear of that itself.
                let _ = notices.blocking_send(format!("{path} is left out: it is {kind}"));
                Ok(())
            }
        })
    }
}

/// The bytes of a context, as they are read.
pub(super) enum Bytestream {
    Packed(Stream),
    Read(Option<Bytes>, Pieces),
}

impl Bytestream {
    /// Begins to read a context. What has to be said meanwhile goes to `notices`.
    pub(super) fn of(source: Source, notices: mpsc::Sender<String>) -> io::Result<Self> {
        Ok(match source {
            Source::Archive(head, rest) => Self::Read(Some(head), rest),
            Source::Dockerfile(bytes) => Self::Packed(Stream::of(Owner::Root, move |packer| {
                packer.add_bytes(b"Dockerfile", &bytes)
            })?),
            Source::Directory(tree) => Self::Packed(Stream::of(Owner::Root, move |packer| {
                tree.pack(packer, &notices)
            })?),
        })
    }

    /// The next bytes; none after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ContextError> {
        match self {
            Self::Packed(stream) => Ok(stream.next().await?),
            Self::Read(head, rest) => match head.take() {
                Some(head) => Ok(Some(head)),
                None => rest.recv().await.transpose().map_err(ContextError::Stdin),
            },
        }
    }
}

/// `Dockerfile`, or `dockerfile` where only that is there.
fn default_dockerfile(root: &Path) -> PathBuf {
    let usual = root.join("Dockerfile");
    let lower = root.join("dockerfile");
    if fs::symlink_metadata(&usual).is_err() && fs::symlink_metadata(&lower).is_ok() {
        return lower;
    }
    usual
}

/// The first bytes: a block at least, if there are so many.
async fn head(pieces: &mut Pieces) -> io::Result<Bytes> {
    let mut head = BytesMut::new();
    while head.len() < BLOCK
        && let Some(piece) = pieces.recv().await
    {
        head.extend_from_slice(&piece?);
    }
    Ok(head.freeze())
}

async fn dockerfile(head: Bytes, mut rest: Pieces) -> Result<Bytes, ContextError> {
    let mut bytes = BytesMut::from(head);
    while let Some(piece) = rest.recv().await {
        bytes.extend_from_slice(&piece.map_err(ContextError::Stdin)?);
        if bytes.len() > MAX_DOCKERFILE {
            return Err(ContextError::LargeDockerfile);
        }
    }
    Ok(bytes.freeze())
}

/// Whether bytes begin an archive that a daemon takes.
fn is_archive(head: &[u8]) -> bool {
    const COMPRESSED: [&[u8]; 4] = [b"\x1f\x8b\x08", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"];
    if COMPRESSED.iter().any(|magic| head.starts_with(magic)) {
        return true;
    }
    // A block that is no header of a tar archive has a wrong checksum, whatever follows.
    let Some(block) = head.get(..BLOCK) else {
        return false;
    };
    let mut reader = Reader::default();
    reader.push(Bytes::copy_from_slice(block));
    reader.next().is_ok()
}
