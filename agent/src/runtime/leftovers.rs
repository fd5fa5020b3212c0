//! Records of running commands, so that an agent that was killed cleans up at its next start.
//!
//! Nothing runs in an agent that dies by SIGKILL, so it cannot take its children along. They lose
//! the readers of their pipes (writing to one is SIGPIPE) and the writer of their input (EOF), but
//! one that does neither lives on. Therefore every command has a small file here from before it
//! begins until it has ended.
//!
//! It names a process of the machine by pid, start and boot, and [`stop`] stops the groups of those
//! that still match all three, and of no others: a process waits for its record before it becomes
//! the command. It names a command of Docker's by the id of its exec, which the daemon gives before
//! the start, and by the process once that is known: a daemon that restarts forgets ids, and may
//! leave what runs alone.
//!
//! A group whose first process has ended by itself is left alone: its pid may belong to a stranger.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use super::Stopped;
use super::group::{Bond, Leader};

/// Time between TERM and KILL for what an earlier run left behind.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// Larger files are none of ours.
const MAX_RECORD: u64 = 64 * 1024;

/// What the file of a record that is being written is called after its dot.
const NEXT: &str = "next";

/// What one file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The boot that the numbers belong to.
    pub(super) boot: String,
    /// First process of the group, where it is known.
    #[serde(flatten)]
    pub(super) process: Option<Instance>,
    /// First word of the command. Not the rest: arguments may hold secrets.
    pub(super) command: String,
    /// The container it is in; its full id where the process is known. None if it is straight on the
    /// machine.
    pub(super) container: Option<String>,
    /// Its id at the Docker daemon.
    #[serde(default)]
    pub(super) exec: Option<String>,
}

/// One process, which no other can be taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Instance {
    pub(super) pid: i32,
    /// Its start, in clock ticks since boot.
    pub(super) start: u64,
}

/// A record's file; removed when this is dropped.
#[derive(Debug)]
pub(super) struct Kept(PathBuf);

impl Kept {
    /// Writes the record, in place of the one that stands. No sync: a machine that goes down takes
    /// the process with it.
    pub(super) fn write(&self, record: &Record) -> io::Result<()> {
        let next = self.0.with_extension(NEXT);
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&next)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        fs::rename(next, &self.0)
    }

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

/// Writes the record of a command that is to begin.
pub(super) fn keep(dir: &Path, record: &Record) -> io::Result<Kept> {
    let name = match (&record.exec, record.process) {
        (Some(exec), _) => exec.clone(),
        (None, Some(process)) => format!("{}-{}", process.pid, process.start),
        (None, None) => return Err(io::Error::other("there is nothing to find it by")),
    };
    let path = dir.join(format!("{name}.json"));
    let kept = Kept(path);
    // A file that was begun is of no use to anybody.
    kept.write(record).inspect_err(|_| {
        let _ = fs::remove_file(kept.0.with_extension(NEXT));
    })?;
    Ok(kept)
}

/// Has `stop` stop what an earlier run recorded and left, and removes the records. What may still run
/// keeps its record for the next start.
pub(super) async fn sweep(
    dir: &Path,
    stop: impl AsyncFn(&Record) -> Result<Stopped, String>,
) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => files.push(path),
            Some(NEXT) => drop(Kept(path)),
            _ => {}
        }
    }
    join_all(files.into_iter().map(|path| sweep_one(path, &stop))).await;
    Ok(())
}

async fn sweep_one(path: PathBuf, stop: &impl AsyncFn(&Record) -> Result<Stopped, String>) {
    let record = match read(&path) {
        Ok(record) => record,
        Err(error) => {
            tracing::warn!(file = %path.display(), %error, "a record of a command is unreadable and removed");
            return drop(Kept(path));
        }
    };
    let (pid, command) = (record.process.map(|process| process.pid), &record.command);
    match stop(&record).await {
        Ok(how) => {
            if how != Stopped::AlreadyEnded {
                tracing::info!(
                    pid,
                    command,
                    ?how,
                    "stopped a command that an earlier run left behind"
                );
            }
            drop(Kept(path));
        }
        Err(why) => {
            tracing::warn!(
                pid,
                command,
                "a command of an earlier run may still be running: {why}"
            );
        }
    }
}

/// Stops the group of the process that a record names; `None` where it names none that lives.
pub(super) async fn stop(record: &Record, boot: &str) -> Option<Result<Stopped, String>> {
    let process = record.process.filter(|_| record.boot == boot)?;
    let bond = match &record.container {
        None => Bond::Record,
        Some(container) => Bond::Container(container.clone()),
    };
    let leader = Leader::open(process.pid, Some(process.start), bond)
        .ok()
        .filter(Leader::leads)?;
    let stopped = leader.terminate(GRACE).await;
    Some(stopped.map_err(|error| error.to_string()))
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
