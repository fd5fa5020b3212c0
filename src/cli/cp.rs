//! `hub cp`: files to and from containers, by the rules of `docker cp`.
//!
//! ```text
//! here --thread: pack--> tar --> PUT archive     here <--thread: unpack, strictly-- tar <-- GET archive
//! ```

mod plan;

use std::fs::{self, Metadata};
use std::io::{self, IsTerminal as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::Args;
use futures_util::stream;
use hub_protocol::kind::transfer::{CopyIn, PathStat};
use hub_server::api::problem::Kind;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::exec::pipes::{self, Printer};
use super::units::decimal;
use super::{CliError, Context, say};
use crate::archive::ignore::Rules;
use crate::archive::pack::{Owner, PackError, Packer, Stream};
use crate::archive::shown;
use crate::archive::unpack::{Options, UnpackError, Unpacker};
use crate::archive::walk::{Fate, walk};
use crate::client::{Client, ClientError, Download};
use plan::{Place, PlaceError, Remote, Target};

/// The arguments of `hub cp`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hub cp shop-4/web:/etc/nginx .                  a directory, by its name
  hub cp shop-4/web:/etc/nginx/. conf             what is in it
  hub cp index.html shop-4/web:/srv/              into a directory that is there
  hub cp site shop-4/web:/srv/new                 as /srv/new, if that is not there yet
  hub cp shop-4/web:/var/log - | tar t            as a tar archive
  tar c . | hub cp - shop-4/web:/srv

A path here that looks like a container's begins with ./ or /. What comes from a container is
unpacked strictly: nothing leaves the destination, and nothing is written through a link.")]
pub(super) struct CpArgs {
    /// Keep owners, by number [default: root there, whoever runs this here]
    #[arg(short = 'a', long)]
    archive: bool,
    /// Copy what a link at the source leads to, not the link
    #[arg(short = 'L', long)]
    follow_link: bool,
    /// Do not say how much was copied
    #[arg(short = 'q', long)]
    quiet: bool,
    /// What to copy: NODE/CONTAINER:PATH, a path here, or - for a tar archive on standard input
    #[arg(value_name = "SOURCE")]
    source: String,
    /// Where to: NODE/CONTAINER:PATH, a path here, or - for a tar archive on standard output
    #[arg(value_name = "DESTINATION")]
    destination: String,
}

/// Why nothing was copied, or not all.
#[derive(Debug, thiserror::Error)]
pub(super) enum CpError {
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("one of source and destination is NODE/CONTAINER:PATH, and the other is here")]
    Sides,
    #[error("{}: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    #[error("{0} is no directory in the container; an archive is unpacked into one")]
    NoDirectory(String),
    #[error("an archive is nothing for a terminal: give it a pipe")]
    Terminal,
    #[error("interrupted: what was copied so far stays")]
    Interrupted(i32),
}

/// Copies, and gives the exit code.
pub(super) async fn run(context: &Context, arguments: CpArgs) -> Result<i32, CliError> {
    match copy(context, &arguments).await {
        Ok(Some(copied)) if context.json() => {
            context.print_json(&json!({ "bytes": copied }))?;
            Ok(0)
        }
        Ok(Some(copied)) if !arguments.quiet => {
            let (copied, to) = (decimal(copied), &arguments.destination);
            say(&format!("copied {copied} to {to}"), false);
            Ok(0)
        }
        Ok(_) => Ok(0),
        Err(CliError::Cp(CpError::Interrupted(code))) => Ok(code),
        Err(error) => Err(error),
    }
}

/// Gives the archive's bytes, unless they went to standard output.
async fn copy(context: &Context, arguments: &CpArgs) -> Result<Option<u64>, CliError> {
    let place = |text: &str| Place::parse(text).map_err(CpError::from);
    let source = place(&arguments.source)?;
    let destination = place(&arguments.destination)?;
    match (source, destination) {
        (Place::Remote(from), Place::Stream) => {
            if io::stdout().is_terminal() {
                return Err(CpError::Terminal.into());
            }
            let (_, mut download) = source_of(&context.client()?, arguments, from).await?.1;
            let mut printer = Printer::new(&io::stdout());
            while let Some(bytes) = download.next().await? {
                printer.print(bytes).await?;
            }
            printer.finish().await?;
            Ok(None)
        }
        (Place::Remote(from), Place::Local(to)) => {
            copy_out(&context.client()?, arguments, from, &to)
                .await
                .map(Some)
        }
        (Place::Stream, Place::Remote(to)) => {
            if io::stdin().is_terminal() {
                return Err(CpError::Terminal.into());
            }
            let client = context.client()?;
            let target = stat(&client, &to).await?;
            if !target.is_dir {
                return Err(CpError::NoDirectory(to.path).into());
            }
            let pieces = pipes::stdin()?;
            let archive = stream::unfold(pieces, async |mut pieces| {
                Some((pieces.recv().await?, pieces))
            });
            let copy = copy_in_to(&to, target.path, arguments.archive);
            client.copy_in(&to.node, &copy, archive).await?;
            Ok(None)
        }
        (Place::Local(from), Place::Remote(to)) => {
            copy_in(&context.client()?, arguments, &from, &to)
                .await
                .map(Some)
        }
        _ => Err(CpError::Sides.into()),
    }
}

/// Opens the source in a container: the name that a link at its place had, and what is there.
async fn source_of(
    client: &Client,
    arguments: &CpArgs,
    mut from: Remote,
) -> Result<(Remote, (PathStat, Download)), CliError> {
    if arguments.follow_link {
        let found = client
            .stat_path(&from.node, &from.container, &from.path)
            .await?;
        if let Some(target) = plan::link_target(&from.path, &found) {
            from.path = target;
        }
    }
    let path = plan::request(&from.path);
    let opened = client.copy_out(&from.node, &from.container, &path).await?;
    Ok((from, opened))
}

async fn copy_out(
    client: &Client,
    arguments: &CpArgs,
    from: Remote,
    to: &str,
) -> Result<u64, CliError> {
    let linked = plan::base(&from.path);
    // Before anything is asked of the node.
    let target = local_target(to)?;
    let (from, (found, download)) = source_of(client, arguments, from).await?;
    let contents = plan::is_contents(&from.path);
    let landing = plan::land(&target, plan::is_dir(&found)).map_err(CpError::from)?;
    let asked = plan::base(&from.path);
    // What a link led to has the link's name.
    let becomes = landing
        .becomes
        .or((!contents && asked != linked).then_some(linked));
    let options = Options {
        asked: (!contents).then(|| asked.into_bytes()),
        becomes: becomes.map(String::into_bytes),
        owners: arguments.archive,
        ..Options::default()
    };
    unpack(download, landing.directory.into(), options).await
}

/// Unpacks on a thread; gives the archive's bytes.
async fn unpack(
    mut download: Download,
    directory: PathBuf,
    options: Options,
) -> Result<u64, CliError> {
    let mut signals = Signals::new()?;
    let (pieces, mut queue) = mpsc::channel::<Bytes>(1);
    let unpacking = spawn_blocking(move || {
        let opened = Unpacker::new(&directory, options);
        let mut unpacker = opened.map_err(|error| CpError::File {
            path: directory,
            error,
        })?;
        while let Some(bytes) = queue.blocking_recv() {
            unpacker.push(bytes)?;
        }
        Ok::<_, CpError>(unpacker)
    });
    let mut copied = 0;
    let came: Result<(), CliError> = loop {
        let bytes = tokio::select! {
            bytes = download.next() => bytes,
            code = signals.next() => break Err(CpError::Interrupted(code).into()),
        };
        match bytes {
            Ok(Some(bytes)) => {
                copied += bytes.len() as u64;
                // It says itself why it wants no more.
                if pieces.send(bytes).await.is_err() {
                    break Ok(());
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error.into()),
        }
    };
    drop(pieces);
    let joined = |error: tokio::task::JoinError| CliError::Output(io::Error::other(error));
    let unpacker = unpacking.await.map_err(joined)??;
    // A file that is half there goes with the unpacker.
    came?;
    let finished = spawn_blocking(move || unpacker.finish()).await;
    finished.map_err(joined)?.map_err(CpError::from)?;
    Ok(copied)
}

async fn copy_in(
    client: &Client,
    arguments: &CpArgs,
    from: &str,
    to: &Remote,
) -> Result<u64, CliError> {
    let failed = |error| CpError::File {
        path: from.into(),
        error,
    };
    // What stands behind a slash is a directory, be it by a link.
    let follows = arguments.follow_link || from.ends_with('/') || plan::is_contents(from);
    let metadata = if follows {
        fs::metadata(from)
    } else {
        fs::symlink_metadata(from)
    };
    let metadata = metadata.map_err(failed)?;
    if from.ends_with('/') && !metadata.is_dir() {
        return Err(failed(io::ErrorKind::NotADirectory.into()).into());
    }
    let target = stat(client, to).await?;
    let landing = plan::land(&target, metadata.is_dir()).map_err(CpError::from)?;
    let name = match (landing.becomes, plan::is_contents(from)) {
        (Some(name), _) => name.into_bytes(),
        (None, true) => b".".to_vec(),
        (None, false) => local_base(from).map_err(failed)?,
    };
    let owner = if arguments.archive {
        Owner::Source
    } else {
        Owner::Root
    };
    let file = if follows {
        fs::canonicalize(from).map_err(failed)?
    } else {
        PathBuf::from(from.trim_end_matches('/'))
    };
    let (notices, mut noticed) = mpsc::channel(16);
    let packed = Stream::of(owner, move |packer| {
        pack(packer, &name, &file, &metadata, &notices)
    })?;
    let (counts, mut counted) = mpsc::channel(1);
    let archive = stream::unfold((packed, counts), async |(mut packed, counts)| {
        let piece = packed.next().await.map_err(io::Error::other).transpose()?;
        if let Ok(bytes) = &piece {
            // The sum is for people alone.
            let _ = counts.send(bytes.len() as u64).await;
        }
        Some((piece, (packed, counts)))
    });
    let copy = copy_in_to(to, landing.directory, arguments.archive);
    let mut copying = std::pin::pin!(client.copy_in(&to.node, &copy, archive));
    let mut copied = 0;
    loop {
        tokio::select! {
            biased;
            Some(bytes) = counted.recv() => copied += bytes,
            Some(notice) = noticed.recv() => say(&notice, false),
            done = &mut copying => {
                done?;
                return Ok(copied);
            }
        }
    }
}

fn copy_in_to(to: &Remote, directory: String, archive: bool) -> CopyIn {
    CopyIn {
        container: to.container.clone(),
        path: directory,
        copy_uid_gid: archive,
        no_overwrite_dir_non_dir: true,
    }
}

/// Adds a file, or a directory with everything in it, by this name.
fn pack(
    packer: &mut Packer<'_>,
    name: &[u8],
    file: &Path,
    metadata: &Metadata,
    notices: &mpsc::Sender<String>,
) -> Result<(), PackError> {
    packer.add(name, file, metadata)?;
    if !metadata.is_dir() {
        return Ok(());
    }
    let walked = walk(file, &Rules::default(), &mut |found| {
        if let Fate::Unsendable(kind) = found.fate {
            let notice = format!("{} is left out: it is {kind}", shown(found.path));
            // Nobody listens any more: the archive will hear of that itself.
            let _ = notices.blocking_send(notice);
            return Ok(());
        }
        packer.add(&[name, found.path].join(&b'/'), found.file, found.metadata)
    });
    Ok(walked?)
}

/// What stands at a destination in a container; a link there is followed.
async fn stat(client: &Client, to: &Remote) -> Result<Target, CliError> {
    let found = |path: String| async move {
        match client.stat_path(&to.node, &to.container, &path).await {
            Ok(found) => Ok(Some(found)),
            Err(ClientError::Refused(problem)) if problem.kind() == Some(Kind::NotFound) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    };
    let mut path = to.path.clone();
    let mut there = found(path.clone()).await?;
    if let Some(target) = there
        .as_ref()
        .and_then(|there| plan::link_target(&path, there))
    {
        path = target;
        there = found(path.clone()).await?;
    }
    Ok(Target {
        path,
        exists: there.is_some(),
        is_dir: there.as_ref().is_some_and(plan::is_dir),
    })
}

/// What stands at a destination here; links are followed.
fn local_target(to: &str) -> Result<Target, CpError> {
    let failed = |error| CpError::File {
        path: to.into(),
        error,
    };
    if let Ok(metadata) = fs::metadata(to) {
        let link = fs::symlink_metadata(to).is_ok_and(|itself| itself.is_symlink());
        let path = if link {
            fs::canonicalize(to).map_err(failed)?
        } else {
            to.into()
        };
        return Ok(Target {
            path: text(path)?,
            exists: true,
            is_dir: metadata.is_dir(),
        });
    }
    // Of a link that leads nowhere, nowhere becomes somewhere.
    let path = match fs::read_link(to) {
        Ok(target) => Path::new(to).parent().unwrap_or(Path::new("")).join(target),
        Err(_) => to.into(),
    };
    let target = Target {
        path: text(path)?,
        exists: false,
        is_dir: false,
    };
    let parent = plan::parent(&target.path);
    match fs::metadata(&parent) {
        Ok(metadata) if metadata.is_dir() => Ok(target),
        Ok(_) => Err(CpError::File {
            path: parent.into(),
            error: io::ErrorKind::NotADirectory.into(),
        }),
        Err(error) => Err(CpError::File {
            path: parent.into(),
            error,
        }),
    }
}

fn text(path: PathBuf) -> Result<String, CpError> {
    let text = path.into_os_string().into_string();
    text.map_err(|path| CpError::File {
        path: path.into(),
        error: io::Error::new(io::ErrorKind::InvalidInput, "the path is no UTF-8"),
    })
}

/// The name of what is copied from here: `.` and `..` have that of the directory they are.
fn local_base(from: &str) -> io::Result<Vec<u8>> {
    let path = Path::new(from);
    let name = match path.file_name() {
        Some(name) => name.to_owned(),
        None => match fs::canonicalize(path)?.file_name() {
            Some(name) => name.to_owned(),
            None => return Ok(b".".to_vec()),
        },
    };
    Ok(name.as_bytes().to_vec())
}

/// Signals that ask this process to end, so that no half file is left.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The exit code for the next one.
    async fn next(&mut self) -> i32 {
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
        };
        128 + kind.as_raw_value()
    }
}
