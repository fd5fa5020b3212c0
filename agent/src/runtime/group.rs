//! Signalling and stopping a process and its group without ever signalling a stranger.
//!
//! A pid alone names nobody for long: once its process is gone, the kernel gives it to another.
//! So a [`Leader`] is held by a pidfd, which stays with the one process it was opened for and
//! tells when it ends. Signals to the group as a whole are sent while the leader pins the group's
//! id, by living or, as our own child, by not having been reaped. After that every member is
//! looked up, opened and checked on its own.
//!
//! A leader of a session, as every command with a terminal is, stands for all of its session: a
//! shell gives each of its jobs a group. Its terminal goes with it, so it is told so first, by HUP:
//! shells ignore TERM.
//!
//! ```text
//! TERM to the group ──► wait for the leader, then for an empty group ──► Terminated
//!                            │ grace is over
//!                            ▼
//!                       KILL until the group is empty ──► Killed, or an error after CONFIRM
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open, pidfd_send_signal,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep, timeout_at};

use super::Stopped;
use super::proc::{self, Stat};

/// How long after KILL a process may take to vanish; longer means that it hangs in the kernel.
const CONFIRM: Duration = Duration::from_secs(5);

/// Pauses between two looks at a group without its leader: from the first, doubling, to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

/// One process, held fast, that may lead a process group.
#[derive(Debug)]
pub(super) struct Leader {
    fd: AsyncFd<OwnedFd>,
    stat: Stat,
    bond: Bond,
}

/// What keeps a [`Leader`]'s group from being mistaken for another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bond {
    /// It is our child and not reaped, so its pid and its group's id stay taken.
    Child,
    /// It is known by pid and start alone, from a record of an earlier run.
    Record,
    /// It and all of its group belong to the container with this full id.
    Container(String),
}

/// Why a group was not stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum StopError {
    /// The system does not let us signal it.
    #[error("signals to pid {pid} are not permitted")]
    NotPermitted {
        /// The process.
        pid: i32,
    },
    /// It lives on after KILL.
    #[error("pids {pids:?} are still there {} s after KILL", CONFIRM.as_secs())]
    Survived {
        /// What is left of the group.
        pids: Vec<i32>,
    },
    /// `/proc` or the signal calls failed.
    #[error("the process table cannot be read: {0}")]
    Io(#[from] io::Error),
}

impl Leader {
    /// Takes hold of a living or unreaped process. Must be called inside a tokio runtime with I/O.
    ///
    /// `start` is demanded of it if given. Fails with `NotFound` if there is no such process any
    /// more, or another one took its pid, or it is not in the bond's container.
    pub(super) fn open(pid: i32, start: Option<u64>, bond: Bond) -> io::Result<Self> {
        let gone = || io::Error::new(io::ErrorKind::NotFound, format!("pid {pid} is not ours"));
        let raw = Pid::from_raw(pid).ok_or_else(gone)?;
        let fd = pidfd_open(raw, PidfdFlags::empty())?;
        // Everything is read after opening, and the process is asked for a sign of life after
        // reading: what was read is then about the process that the descriptor holds.
        let stat = proc::stat(pid)?;
        let fits = match &bond {
            Bond::Child => true,
            Bond::Record => !has_exited(&fd)?,
            Bond::Container(id) => proc::in_container(&proc::cgroup(pid)?, id) && !has_exited(&fd)?,
        };
        if !fits || start.is_some_and(|start| start != stat.start) {
            return Err(gone());
        }
        Ok(Self {
            fd: watched(fd)?,
            stat,
            bond,
        })
    }

    /// Its pid, as this machine counts.
    pub(super) fn pid(&self) -> i32 {
        self.stat.pid
    }

    /// When it started, in clock ticks since boot.
    pub(super) fn start(&self) -> u64 {
        self.stat.start
    }

    /// The container it belongs to.
    pub(super) fn container(&self) -> Option<&str> {
        match &self.bond {
            Bond::Container(id) => Some(id),
            Bond::Child | Bond::Record => None,
        }
    }

    /// The pid that the process sees of itself inside its container.
    pub(super) fn inner_pid(&self) -> Option<i32> {
        let pid = proc::inner_pid(self.stat.pid)?;
        (!has_exited(self.fd.get_ref()).ok()?).then_some(pid)
    }

    /// Whether it leads a process group of its own.
    pub(super) fn leads(&self) -> bool {
        self.stat.group == self.stat.pid
    }

    /// Whether it leads a session of its own, and with it all groups in there.
    fn leads_session(&self) -> bool {
        self.stat.session == self.stat.pid
    }

    /// Whether it leads the session of a terminal.
    pub(super) fn has_terminal(&self) -> bool {
        self.leads_session() && self.stat.terminal
    }

    /// Sends the signal of this number to its process group.
    pub(super) async fn send(&self, number: i32) -> Result<(), StopError> {
        let signal = Signal::from_named_raw(number).ok_or_else(|| {
            let what = format!("signal {number} cannot be sent");
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })?;
        self.signal(signal, Reach::Group).await
    }

    /// Waits until it has ended. It need not be reaped for that.
    pub(super) async fn exited(&self) -> io::Result<()> {
        self.fd.readable().await?.retain_ready();
        Ok(())
    }

    /// Sends TERM, and KILL after `grace` to what is left; returns when nothing is left.
    pub(super) async fn terminate(&self, grace: Duration) -> Result<Stopped, StopError> {
        if self.living().await?.is_empty() {
            return Ok(Stopped::AlreadyEnded);
        }
        if self.has_terminal() {
            self.signal(Signal::HUP, Reach::All).await?;
        }
        self.signal(Signal::TERM, Reach::All).await?;
        if self.emptied(Instant::now() + grace, None).await?.is_empty() {
            return Ok(Stopped::Terminated);
        }
        match self
            .emptied(Instant::now() + CONFIRM, Some(Signal::KILL))
            .await?
        {
            left if left.is_empty() => Ok(Stopped::Killed),
            left => Err(StopError::Survived {
                pids: left.iter().map(|stat| stat.pid).collect(),
            }),
        }
    }

    /// KILL for the whole group at once, without waiting. Only for a [`Bond::Child`] that was not
    /// reaped: nothing else pins the group.
    pub(super) fn kill_now(&self) {
        if self.bond == Bond::Child
            && self.leads()
            && let Some(group) = Pid::from_raw(self.stat.pid)
        {
            let leader = self.stat;
            let jobs = |stat: &Stat| stat.group != leader.pid && led_by(&leader, stat);
            // What may be gone already; there is nobody to tell.
            for job in proc::living(jobs).unwrap_or_default() {
                let _ = Pid::from_raw(job.pid).map(|pid| kill_process(pid, Signal::KILL));
            }
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Waits for nothing of the group to live, until the deadline; says what still does. With a
    /// signal, sends it before every look, so that a fork that slipped past the first is caught.
    async fn emptied(
        &self,
        deadline: Instant,
        again: Option<Signal>,
    ) -> Result<Vec<Stat>, StopError> {
        let mut pause = PAUSES.0;
        loop {
            if let Some(signal) = again {
                self.signal(signal, Reach::All).await?;
            }
            // While the leader lives the group is not empty, and its end needs no looking.
            if let Ok(exited) = timeout_at(deadline, self.exited()).await {
                exited?;
            }
            let left = self.living().await?;
            if left.is_empty() || Instant::now() >= deadline {
                return Ok(left);
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// What lives of the group: the leader, and whoever shares its group and its bond.
    async fn living(&self) -> Result<Vec<Stat>, StopError> {
        let (leader, bond) = (self.stat, self.bond.clone());
        let mut members = Vec::new();
        if self.leads() {
            let scan = move || {
                let mut members = of_leader(proc::living(|stat| led_by(&leader, stat))?, leader);
                members.retain(|stat| stat.pid != leader.pid && belongs(stat, &bond));
                Ok::<_, io::Error>(members)
            };
            // Reading all of /proc takes milliseconds on a busy machine.
            members = tokio::task::spawn_blocking(scan)
                .await
                .map_err(io::Error::other)??;
        }
        // Only the descriptor knows: a process whose first thread has ended looks dead in /proc.
        if !has_exited(self.fd.get_ref())? {
            members.push(leader);
        }
        Ok(members)
    }

    /// One signal to what lives.
    async fn signal(&self, signal: Signal, reach: Reach) -> Result<(), StopError> {
        let raw = Pid::from_raw(self.stat.pid)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let pinned = self.bond == Bond::Child || !has_exited(self.fd.get_ref())?;
        if pinned && !self.leads() {
            return sent(pidfd_send_signal(self.fd.get_ref(), signal), self.stat.pid);
        }
        if pinned {
            sent(kill_process_group(raw, signal), self.stat.pid)?;
            if reach == Reach::Group || !self.leads_session() {
                return Ok(());
            }
        }
        for member in self.living().await? {
            let in_group = member.group == self.stat.pid;
            let told = pinned && in_group;
            if told || (reach == Reach::Group && !in_group) {
                continue;
            }
            let Some(raw) = Pid::from_raw(member.pid) else {
                continue;
            };
            let Ok(fd) = pidfd_open(raw, PidfdFlags::empty()) else {
                continue;
            };
            let same = proc::stat(member.pid).is_ok_and(|now| now.start == member.start);
            if same && belongs(&member, &self.bond) {
                sent(pidfd_send_signal(&fd, signal), member.pid)?;
            }
        }
        Ok(())
    }
}

/// How far a signal goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// To the leader's own group.
    Group,
    /// To all that it stands for.
    All,
}

/// Whether a process belongs to what a leader stands for.
fn led_by(leader: &Stat, stat: &Stat) -> bool {
    stat.group == leader.pid || (leader.session == leader.pid && stat.session == leader.pid)
}

/// The members of what a leader stands for, unless somebody else has its id by now: then all of
/// ours are gone.
fn of_leader(members: Vec<Stat>, leader: Stat) -> Vec<Stat> {
    let taken = members
        .iter()
        .any(|stat| stat.pid == leader.pid && stat.start != leader.start);
    if taken { Vec::new() } else { members }
}

/// Whether a process in the group is bound as its leader was.
fn belongs(stat: &Stat, bond: &Bond) -> bool {
    match bond {
        Bond::Child | Bond::Record => true,
        Bond::Container(id) => {
            proc::cgroup(stat.pid).is_ok_and(|cgroup| proc::in_container(&cgroup, id))
        }
    }
}

/// A process that is gone needs no signal.
fn sent(result: rustix::io::Result<()>, pid: i32) -> Result<(), StopError> {
    match result {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(rustix::io::Errno::PERM) => Err(StopError::NotPermitted { pid }),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

/// Registers a pidfd with the runtime.
#[allow(
    deprecated,
    reason = "its successor is unsafe for types that change their descriptor; \
                              OwnedFd does not"
)]
fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// A pidfd turns readable when its process ends.
fn has_exited(fd: &OwnedFd) -> io::Result<bool> {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    Ok(poll(
        &mut fds,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    )? > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_whose_id_was_taken_over_is_gone() {
        let leader = Stat {
            pid: 7,
            group: 7,
            session: 1,
            terminal: false,
            start: 100,
            dead: false,
        };
        let child = Stat {
            pid: 8,
            start: 101,
            ..leader
        };
        let stranger = Stat {
            start: 500,
            ..leader
        };
        assert_eq!(of_leader(vec![leader, child], leader), [leader, child]);
        assert_eq!(of_leader(vec![child], leader), [child]);
        assert_eq!(of_leader(vec![stranger, child], leader), []);
    }

    #[test]
    fn a_session_is_led_with_all_its_groups() {
        let stat = |pid, group, session| Stat {
            pid,
            group,
            session,
            terminal: false,
            start: 1,
            dead: false,
        };
        let shell = stat(7, 7, 7);
        assert!(led_by(&shell, &stat(8, 7, 7)) && led_by(&shell, &stat(9, 9, 7)));
        assert!(!led_by(&shell, &stat(9, 9, 1)));
        // One that leads a group in somebody else's session stands for the group alone.
        let plain = stat(7, 7, 1);
        assert!(led_by(&plain, &stat(8, 7, 1)) && !led_by(&plain, &stat(9, 9, 1)));
    }
}
