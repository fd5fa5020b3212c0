//! A pseudo-terminal for a command.
//!
//! ```text
//!              ┌── Terminal: reads what the command prints
//! controlling ─┼── Keyboard: writes what it reads
//!         side └── Screen:   sets the size            command's side ── stdin, stdout, stderr
//! ```
//!
//! The command needs a session of its own with the terminal as the one that controls it, which must
//! be arranged between fork and exec. No safe function of the standard library does that, and this
//! workspace holds no unsafe code. The crate `pty-process` does exactly this much on tokio's own
//! `Command`, and needs nothing but rustix and tokio. Reading and writing is done here: whoever drops
//! the reader hangs up, as one who closes a terminal's window.
//!
//! The kernel says that nothing holds the command's side any more by EIO: that is the end of the
//! output, after all that was printed.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use hub_protocol::kind::exec::Size;
use pty_process::Pts;
use rustix::io::Errno;
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::process::{Child, Command};

/// The most bytes that one read asks for: the kernel gives no more of a terminal at once.
const READ: usize = 4 * 1024;

/// The controlling side, and what the command prints. Dropping it hangs up.
#[derive(Debug)]
pub(super) struct Terminal(Arc<AsyncFd<OwnedFd>>);

/// What the command reads. Neither shutting it down nor dropping it closes the terminal.
#[derive(Debug)]
pub(super) struct Keyboard(Weak<AsyncFd<OwnedFd>>);

/// The size.
#[derive(Debug)]
pub(super) struct Screen(Weak<AsyncFd<OwnedFd>>);

impl Terminal {
    /// A new terminal of this size, the command's side of it, and what the command's streams are.
    pub(super) fn open(size: Size) -> io::Result<(Self, Pts, [OwnedFd; 3])> {
        let (controlling, commands) = pty_process::open().map_err(system)?;
        tcsetwinsize(&controlling, winsize(size))?;
        let stream = || commands.as_fd().try_clone_to_owned();
        let streams = [stream()?, stream()?, stream()?];
        let terminal = Self(Arc::new(watched(controlling.into())?));
        Ok((terminal, commands, streams))
    }

    pub(super) fn keyboard(&self) -> Keyboard {
        Keyboard(Arc::downgrade(&self.0))
    }

    pub(super) fn screen(&self) -> Screen {
        Screen(Arc::downgrade(&self.0))
    }
}

/// Starts a process that leads a session of its own, which the terminal controls.
pub(super) fn spawn(command: Command, stdio: [Stdio; 3], commands: Pts) -> io::Result<Child> {
    let [stdin, stdout, stderr] = stdio;
    pty_process::Command::from(command)
        .stdin(stdin)
        .stdout(stdout)
        .stderr(stderr)
        .spawn(commands)
        .map_err(system)
}

impl Screen {
    /// Sets the size. One whose terminal was hung up has none.
    pub(super) fn resize(&self, size: Size) -> io::Result<()> {
        match self.0.upgrade() {
            Some(fd) => Ok(tcsetwinsize(fd.get_ref(), winsize(size))?),
            None => Ok(()),
        }
    }
}

impl AsyncRead for Terminal {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(cx))?;
            let room = buf.initialize_unfilled_to(READ.min(buf.remaining()));
            match ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut *room)?)) {
                Ok(Ok(read)) => {
                    buf.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for Keyboard {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Some(fd) = self.0.upgrade() else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        loop {
            let mut ready = ready!(fd.poll_write_ready(cx))?;
            match ready.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), data)?)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(written) => return Poll::Ready(written),
                Err(_would_block) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn winsize(size: Size) -> Winsize {
    Winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// The system's error in that of the crate.
fn system(error: pty_process::Error) -> io::Error {
    match error {
        pty_process::Error::Io(error) => error,
        pty_process::Error::Rustix(error) => error.into(),
        other => io::Error::other(other),
    }
}

/// Registers the controlling side, which does not block, with the runtime.
#[allow(
    deprecated,
    reason = "its successor is unsafe for types that change their descriptor; \
                              OwnedFd does not"
)]
fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE | Interest::WRITABLE)
}
