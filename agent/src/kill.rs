//! Points at which a test can kill the agent as the kernel would: at once, with no clean-up.
//!
//! In builds with debug assertions, the process that has `HUB_KILL_AT=NAME` in its environment dies
//! of SIGKILL when it first comes to the point of that name. Release builds have none of it.

/// A point at which the process may be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// `join-key-stored`: the node's key is on disk, and the hub was not asked yet.
    JoinKeyStored,
    /// `join-answered`: the hub has issued a certificate, which is not on disk yet.
    JoinAnswered,
    /// `exec-opened`: an exec was asked for, and nothing of it has begun.
    ExecOpened,
    /// `exec-created`: what is to become the command is there, a process or an exec of the daemon's,
    /// and no record of it.
    ExecCreated,
    /// `exec-recorded`: the record stands, and the command was not let go.
    ExecRecorded,
    /// `exec-released`: the command was let go, and nobody looked at it since.
    ExecReleased,
    /// `exec-started`: the command runs, and the hub was not told.
    ExecStarted,
    /// `exec-stopping`: the operation has ended early, and its command is about to be stopped.
    ExecStopping,
    /// `exec-drained`: both outputs are at their end, and the exit status was not asked for yet.
    ExecDrained,
    /// `exec-exited`: the exit status is known, and the hub was not told.
    ExecExited,
}

#[cfg(debug_assertions)]
impl Point {
    const ALL: [Self; 10] = [
        Self::JoinKeyStored,
        Self::JoinAnswered,
        Self::ExecOpened,
        Self::ExecCreated,
        Self::ExecRecorded,
        Self::ExecReleased,
        Self::ExecStarted,
        Self::ExecStopping,
        Self::ExecDrained,
        Self::ExecExited,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::JoinKeyStored => "join-key-stored",
            Self::JoinAnswered => "join-answered",
            Self::ExecOpened => "exec-opened",
            Self::ExecCreated => "exec-created",
            Self::ExecRecorded => "exec-recorded",
            Self::ExecReleased => "exec-released",
            Self::ExecStarted => "exec-started",
            Self::ExecStopping => "exec-stopping",
            Self::ExecDrained => "exec-drained",
            Self::ExecExited => "exec-exited",
        }
    }

    fn from_environment() -> Option<Self> {
        let name = std::env::var("HUB_KILL_AT").ok()?;
        let found = Self::ALL.into_iter().find(|point| point.name() == name);
        if found.is_none() {
            tracing::error!(name, "HUB_KILL_AT names no point: nothing will be killed");
        }
        found
    }
}

/// The process comes to a point.
#[inline]
pub fn at(point: Point) {
    #[cfg(debug_assertions)]
    {
        use std::sync::LazyLock;

        static AT: LazyLock<Option<Point>> = LazyLock::new(Point::from_environment);
        if *AT == Some(point) {
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
        }
    }
    #[cfg(not(debug_assertions))]
    let _ = point;
}
