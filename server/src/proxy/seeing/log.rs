//! Where lines of the access log go: a thread that writes them, so that a slow disk holds up nobody.
//!
//! Between it and the runtime is a queue with a bound; what does not fit is lost and counted. Before
//! it writes it looks whether its file is still the one that has the name: whoever rotates logs
//! renames the file, and tells nobody.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

/// Lines that wait to be written; of 3 KiB at most.
const QUEUE: usize = 4096;

/// As much is written at once, in bytes, and a line more.
const BATCH: usize = 64 * 1024;

/// How long a hub that stops waits for the last lines.
const LAST: Duration = Duration::from_secs(2);

/// The access log. Clones write to the same.
#[derive(Debug, Clone)]
pub(super) struct AccessLog {
    queue: SyncSender<Said>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Said {
    Line(Vec<u8>),
    /// Everything before this is to be written.
    Flush(oneshot::Sender<()>),
}

/// What a file is, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// Whether a file has to be opened anew: none is held, or its name is another's, or nobody's.
fn is_stale(held: Option<Identity>, named: Option<Identity>) -> bool {
    held.is_none() || held != named
}

/// What is written to.
enum Sink {
    Stderr,
    File {
        path: PathBuf,
        open: Option<(File, Identity)>,
    },
}

impl Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stderr => io::stderr().write_all(bytes),
            Self::File { path, open } => {
                let named = std::fs::metadata(&*path).ok();
                let named = named.as_ref().map(Identity::of);
                if is_stale(open.as_ref().map(|(_, held)| *held), named) {
                    *open = Some(append(path)?);
                }
                match open {
                    Some((file, _)) => file.write_all(bytes),
                    None => Ok(()),
                }
            }
        }
    }
}

fn append(path: &Path) -> io::Result<(File, Identity)> {
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o640)
        .open(path)?;
    let identity = Identity::of(&file.metadata()?);
    Ok((file, identity))
}

impl AccessLog {
    /// To the file of this path, which is made where it is missing; `-` is standard error.
    ///
    /// # Errors
    /// The file can't be opened, or there is no thread to be had.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let sink = if path.as_os_str() == "-" {
            Sink::Stderr
        } else {
            Sink::File {
                open: Some(append(path)?),
                path: path.to_owned(),
            }
        };
        let (queue, lines) = sync_channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = lost.clone();
        std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || write_lines(sink, &lines, &counted))?;
        Ok(Self { queue, lost })
    }

    /// Hands a line over. Never waits: a line for which there is no room is lost.
    pub(super) fn push(&self, line: Vec<u8>) {
        if self.queue.try_send(Said::Line(line)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many lines were lost, since there was no room, or no writing.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Waits until what was handed over is written, for two seconds at most.
    pub(super) async fn flush(&self) {
        let (written, all) = oneshot::channel();
        if self.queue.try_send(Said::Flush(written)).is_ok() {
            let _ = timeout(LAST, all).await;
        }
    }
}

/// Writes until nobody is left who could say more.
fn write_lines(mut sink: Sink, lines: &Receiver<Said>, lost: &AtomicU64) {
    let (mut batch, mut failing) = (Vec::new(), false);
    while let Ok(first) = lines.recv() {
        let (mut count, mut flushed) = (0, Vec::new());
        let mut next = Some(first);
        while let Some(said) = next {
            match said {
                Said::Line(line) => {
                    batch.extend_from_slice(&line);
                    count += 1;
                }
                Said::Flush(written) => flushed.push(written),
            }
            next = (batch.len() < BATCH)
                .then(|| lines.try_recv().ok())
                .flatten();
        }
        let written = sink.write(&batch);
        batch.clear();
        match written {
            Ok(()) => failing = false,
            Err(error) => {
                lost.fetch_add(count, Ordering::Relaxed);
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!("the access log can't be written, and loses lines: {error}");
                }
            }
        }
        for written in flushed {
            let _ = written.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_file_is_opened_anew_once_its_name_is_not_its_own() {
        let file = |device, inode| Some(Identity { device, inode });
        assert!(is_stale(None, None));
        assert!(is_stale(None, file(1, 1)));
        assert!(is_stale(file(1, 1), None));
        assert!(is_stale(file(1, 1), file(1, 2)));
        assert!(is_stale(file(1, 1), file(2, 1)));
        assert!(!is_stale(file(1, 1), file(1, 1)));
    }

    #[tokio::test]
    async fn lines_follow_the_name_when_files_rotate() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("access.log"), dir.path().join("old.log"));
        let log = AccessLog::open(&path).unwrap();
        log.push(b"one\n".to_vec());
        log.flush().await;
        std::fs::rename(&path, &old).unwrap();
        log.push(b"two\n".to_vec());
        log.push(b"three\n".to_vec());
        log.flush().await;
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "one\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\nthree\n");
        // What is cut off where it is goes on where it is.
        File::options()
            .write(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        log.push(b"four\n".to_vec());
        log.flush().await;
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "four\n");
        assert_eq!(log.lost(), 0);
    }

    #[tokio::test]
    async fn lines_that_cannot_be_written_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("logs");
        std::fs::create_dir(&inner).unwrap();
        let log = AccessLog::open(&inner.join("access.log")).unwrap();
        std::fs::remove_dir_all(&inner).unwrap();
        log.push(b"one\n".to_vec());
        log.flush().await;
        assert_eq!(log.lost(), 1);
        std::fs::create_dir(&inner).unwrap();
        log.push(b"two\n".to_vec());
        log.flush().await;
        let written = std::fs::read_to_string(inner.join("access.log")).unwrap();
        assert_eq!((written.as_str(), log.lost()), ("two\n", 1));
        assert!(AccessLog::open(&dir.path().join("none/access.log")).is_err());
    }

    #[test]
    fn nobody_waits_for_a_writer_that_is_slow() {
        let (queue, lines) = sync_channel(2);
        let log = AccessLog {
            queue,
            lost: Arc::default(),
        };
        for _ in 0..5 {
            log.push(b"x\n".to_vec());
        }
        assert_eq!(log.lost(), 3);
        drop(lines);
        log.push(b"x\n".to_vec());
        assert_eq!(log.lost(), 4);
    }
}
