//! Records of running process groups, so that an agent that was killed cleans up at its next start.
//!
//! Nothing runs in an agent that dies by SIGKILL, so it cannot take its children along. They lose
//! the readers of their pipes (writing to one is SIGPIPE) and the writer of their input (EOF), but
//! one that does neither lives on. Therefore every command has a small file here while it runs,
//! with its pid, its start and the boot it belongs to. [`sweep`] stops the groups of those that
//! still match all three, and of no others.
//!
//! Two gaps remain. A command whose file was not yet written when the agent was killed is not
//! known here. And a group whose first process has ended by itself is left alone, because its pid
//! may belong to a stranger.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use super::Stopped;
use super::group::{Bond, Leader};
use super::proc;

/// Time between TERM and KILL for what an earlier run left behind.
const GRACE: Duration = Duration::from_secs(2);

/// Larger files are none of ours.
const MAX_RECORD: u64 = 64 * 1024;

/// What one file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The boot that the other numbers belong to.
    pub(super) boot: String,
    /// First process of the group.
    pub(super) pid: i32,
    /// Its start, in clock ticks since boot.
    pub(super) start: u64,
    /// First word of the command. Not the rest: arguments may hold secrets.
    pub(super) command: String,
    /// Full id of the container it is in; none if it is straight on the machine.
    pub(super) container: Option<String>,
}

/// A record's file; removed when this is dropped.
#[derive(Debug)]
pub(super) struct Kept(PathBuf);

impl Kept {
    /// Leaves the file where it is.
    pub(super) fn leave(mut self) {
        self.0 = PathBuf::new();
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty()
            && let Err(error) = fs::remove_file(&self.0)
        {
            tracing::warn!(file = %self.0.display(), %error, "a command's record stays behind");
        }
    }
}

/// Makes the directory, for this user alone, if it is not there.
pub(super) fn prepare(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
}

/// Writes a record. No sync: a machine that goes down takes the process with it.
pub(super) fn keep(dir: &Path, record: &Record) -> io::Result<Kept> {
    let path = dir.join(format!("{}-{}.json", record.pid, record.start));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)?;
    let kept = Kept(path);
    file.write_all(&serde_json::to_vec(record)?)?;
    Ok(kept)
}

/// Stops what an earlier run recorded and left, and removes the records. What may still run keeps
/// its record for the next start. Returns the commands that were stopped.
pub(super) async fn sweep(dir: &Path) -> io::Result<Vec<String>> {
    let boot = proc::boot_id()?;
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            files.push(path);
        }
    }
    let stopped = join_all(files.into_iter().map(|path| sweep_one(path, &boot))).await;
    Ok(stopped.into_iter().flatten().collect())
}

async fn sweep_one(path: PathBuf, boot: &str) -> Option<String> {
    let record = match read(&path) {
        Ok(record) => record,
        Err(error) => {
            tracing::warn!(file = %path.display(), %error, "a record of a command is unreadable and removed");
            drop(Kept(path));
            return None;
        }
    };
    let bond = record.container.map_or(Bond::Record, Bond::Container);
    let leader = (record.boot == boot)
        .then(|| Leader::open(record.pid, Some(record.start), bond).ok())
        .flatten()
        .filter(Leader::leads);
    let Some(leader) = leader else {
        drop(Kept(path));
        return None;
    };
    let (pid, command) = (record.pid, record.command);
    match leader.terminate(GRACE).await {
        Ok(Stopped::AlreadyEnded) => {
            drop(Kept(path));
            None
        }
        Ok(how) => {
            tracing::info!(
                pid,
                command,
                ?how,
                "stopped a command that an earlier run left behind"
            );
            drop(Kept(path));
            Some(command)
        }
        Err(error) => {
            tracing::warn!(pid, command, %error, "a command of an earlier run may still be running");
            None
        }
    }
}

fn read(path: &Path) -> io::Result<Record> {
    if fs::symlink_metadata(path)?.len() > MAX_RECORD {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "too large for a record",
        ));
    }
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}
