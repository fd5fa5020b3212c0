//! What commands tell a test beside their outputs, and whether they live.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// Longer than anything takes on a machine that works.
const PATIENCE: Duration = Duration::from_secs(90);

/// A pipe with a name: each end waits for the other to open it.
pub struct Fifo(PathBuf);

impl Fifo {
    pub fn new(dir: &Path, name: &str) -> Self {
        let path = dir.join(name);
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        Self(path)
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Waits for what a command says here, all of it.
    pub fn hear(&self) -> String {
        fs::read_to_string(&self.0).unwrap().trim().to_owned()
    }

    /// Lets go a command that reads from here.
    pub fn open(&self) {
        fs::write(&self.0, "go\n").unwrap();
    }

    /// Waits for a command to say its process id here, and watches that process.
    pub fn watch(&self) -> Watched {
        Watched::new(self.hear().parse().unwrap())
    }
}

/// A process that is watched by what nobody else can come to have.
pub struct Watched {
    pid: i32,
    /// None where it had ended by the time that anybody looked.
    process: Option<OwnedFd>,
}

impl Watched {
    pub fn new(pid: i32) -> Self {
        let process = match pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) {
            Ok(process) => Some(process),
            Err(Errno::SRCH) => None,
            Err(error) => panic!("process {pid} cannot be watched: {error}"),
        };
        Self { pid, process }
    }

    fn ended_within(&self, time: Duration) -> bool {
        let Some(process) = &self.process else {
            return true;
        };
        let timeout = Timespec::try_from(time).unwrap();
        let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout));
        ended.unwrap() > 0
    }

    pub fn lives(&self) -> bool {
        !self.ended_within(Duration::ZERO)
    }

    /// Waits for its end.
    pub fn ends(&self, what: &str) {
        let ended = self.ended_within(PATIENCE);
        assert!(ended, "{what}: process {} lives on", self.pid);
    }
}

/// The processes that have this among their arguments.
pub fn processes(mark: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if let Some(pid) = pid
            && String::from_utf8_lossy(&line).contains(mark)
        {
            found.push(pid);
        }
    }
    found
}

/// Asks until it is so; for what tells nobody when it comes.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: it did not come to that");
        std::thread::yield_now();
    }
}

/// Sends a signal to a child.
pub fn signal(child: &std::process::Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}
