//! What the person at this end wants: signals to this process, a window of another size, keys.
//!
//! ```text
//! SIGINT, SIGTERM --+--> leaves: at once, whatever hangs
//! ~. ---------------'
//! SIGINT, if the command is kept --+--> controls: in turn, to the command
//! detach keys ---------------------'
//! SIGWINCH --> sizes: only the newest counts
//! stdin, or keys that are the command's --> pieces
//! ```

use std::io;
use std::time::Duration;

use bytes::Bytes;
use hub_protocol::kind::exec::Size;
use hub_server::api::channel::Control;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use super::super::say;
use super::keys::{DetachKeys, HELP, Keys, Leave};
use super::{HUB_FAILED, pipes, terminal};

/// Two Ctrl-C within this time mean to leave.
const TWICE: Duration = Duration::from_secs(2);

/// How long the hub may take to say that the command is left to itself.
const DETACHING: Duration = Duration::from_secs(5);

/// Pieces that were typed and wait for a command or a connection: while there is room, `~.` is
/// heard. Each is what a terminal gives at once, 4 KiB at most.
const TYPED_AHEAD: usize = 64;

/// Why we leave before the command has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// A signal asks this process to end.
    Signal(i32),
    /// `~.`.
    Escape,
    /// The detach keys, and the hub did not say that it heard.
    Unheard,
}

impl Left {
    /// The exit code for it.
    pub(super) fn code(self) -> i32 {
        match self {
            Self::Signal(number) => 128 + number,
            Self::Escape | Self::Unheard => HUB_FAILED,
        }
    }
}

/// What the person wants. From its making on, the signals do nothing else; a hang-up is left to the
/// system: `nohup` has it ignored.
pub(super) struct Person {
    pub(super) wishes: Wishes,
    pub(super) leaves: Leaves,
    control: mpsc::UnboundedSender<Control>,
    leave: mpsc::UnboundedSender<Left>,
}

/// What is for the command, in its turn.
pub(super) struct Wishes {
    /// What it reads; its end is the end of input.
    pub(super) pieces: Option<mpsc::Receiver<io::Result<Bytes>>>,
    /// As many as there are signals and keys of a person.
    pub(super) controls: mpsc::UnboundedReceiver<Control>,
    pub(super) sizes: watch::Receiver<Option<Size>>,
    /// Whether the end of input was said.
    pub(super) ended: bool,
    /// Whether the hub was asked to leave the command to itself.
    pub(super) detaching: bool,
}

/// One of them.
pub(super) enum Wish {
    Control(Control),
    Size(Size),
    /// Input; nothing at its end.
    Piece(Option<io::Result<Bytes>>),
}

impl Wishes {
    /// The next; what is for a terminal only where there is one.
    pub(super) async fn next(&mut self, tty: bool) -> Wish {
        let (pieces, ended) = (&mut self.pieces, self.ended);
        let piece = async {
            match pieces {
                Some(pieces) if !ended => pieces.recv().await,
                _ => std::future::pending().await,
            }
        };
        let size = async {
            while self.sizes.changed().await.is_ok() {
                if let Some(size) = *self.sizes.borrow_and_update() {
                    return size;
                }
            }
            std::future::pending().await
        };
        tokio::select! {
            biased;
            Some(control) = self.controls.recv() => Wish::Control(control),
            size = size, if tty => Wish::Size(size),
            piece = piece => Wish::Piece(piece),
        }
    }
}

/// What waits for nothing.
pub(super) struct Leaves(mpsc::UnboundedReceiver<Left>);

impl Leaves {
    /// Waits until the person leaves.
    pub(super) async fn next(&mut self) -> Left {
        match self.0.recv().await {
            Some(left) => left,
            None => std::future::pending().await,
        }
    }
}

impl Person {
    /// Listens for signals. A command that is `kept` is sent the first interruption.
    pub(super) fn new(kept: bool, tty: bool) -> io::Result<Self> {
        let (control, controls) = mpsc::unbounded_channel();
        let (leave, leaves) = mpsc::unbounded_channel();
        let (resize, sizes) = watch::channel(terminal::size());
        let signals = Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            window: signal(SignalKind::window_change())?,
            interruptions: Interruptions::default(),
            forward: kept && !tty,
            control: control.clone(),
            leave: leave.clone(),
            resize,
        };
        tokio::spawn(signals.watch());
        Ok(Self {
            wishes: Wishes {
                pieces: None,
                controls,
                sizes,
                ended: false,
                detaching: false,
            },
            leaves: Leaves(leaves),
            control,
            leave,
        })
    }

    /// Begins to read standard input as it is.
    pub(super) fn read(&mut self) -> io::Result<()> {
        self.wishes.pieces = Some(pipes::stdin()?);
        Ok(())
    }

    /// Begins to read standard input, a terminal in raw mode, with an ear for keys.
    pub(super) fn listen(&mut self, detach: DetachKeys) -> io::Result<()> {
        let mut typed = pipes::stdin()?;
        let (pieces, queue) = mpsc::channel(TYPED_AHEAD);
        self.wishes.pieces = Some(queue);
        let (control, leave) = (self.control.clone(), self.leave.clone());
        let mut keys = Keys::new(detach);
        tokio::spawn(async move {
            while let Some(piece) = typed.recv().await {
                let bytes = match piece {
                    Ok(bytes) => bytes,
                    failed => {
                        let _ = pieces.send(failed).await;
                        return;
                    }
                };
                let heard = keys.feed(&bytes);
                if heard.help {
                    say(HELP, true);
                }
                if heard.leave == Some(Leave::Escape) {
                    let _ = leave.send(Left::Escape);
                }
                // A queue that is gone has nobody who would miss anything.
                if !heard.send.is_empty() {
                    let _ = pieces.send(Ok(heard.send.into())).await;
                }
                if heard.leave == Some(Leave::Detach) {
                    let _ = control.send(Control::Detach);
                    sleep(DETACHING).await;
                    let _ = leave.send(Left::Unheard);
                }
                if heard.leave.is_some() {
                    // The command must not take this for the end of its input.
                    return std::future::pending().await;
                }
            }
            let rest = keys.finish();
            if !rest.is_empty() {
                let _ = pieces.send(Ok(rest.into())).await;
            }
        });
        Ok(())
    }
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    window: Signal,
    interruptions: Interruptions,
    /// Whether an interruption is the command's.
    forward: bool,
    control: mpsc::UnboundedSender<Control>,
    leave: mpsc::UnboundedSender<Left>,
    resize: watch::Sender<Option<Size>>,
}

impl Signals {
    async fn watch(mut self) {
        loop {
            let left = tokio::select! {
                Some(()) = self.interrupt.recv() => {
                    let number = SignalKind::interrupt().as_raw_value();
                    if self.forward && !self.interruptions.again(Instant::now()) {
                        say("INT is sent to the command; again within 2 s leaves it running", false);
                        let _ = self.control.send(Control::Signal(number));
                        continue;
                    }
                    Left::Signal(number)
                }
                Some(()) = self.terminate.recv() => {
                    Left::Signal(SignalKind::terminate().as_raw_value())
                }
                Some(()) = self.window.recv() => {
                    let size = terminal::size();
                    self.resize.send_if_modified(|last| {
                        let differs = size.is_some() && *last != size;
                        if differs {
                            *last = size;
                        }
                        differs
                    });
                    continue;
                }
                else => return,
            };
            let _ = self.leave.send(left);
        }
    }
}

/// Tells a second Ctrl-C from a first.
#[derive(Debug, Default)]
struct Interruptions {
    last: Option<Instant>,
}

impl Interruptions {
    fn again(&mut self, now: Instant) -> bool {
        let before = self.last.replace(now);
        before.is_some_and(|before| now.saturating_duration_since(before) <= TWICE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_is_within_two_seconds() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut interruptions = Interruptions::default();
        assert!(!interruptions.again(at(0)));
        assert!(!interruptions.again(at(2001)));
        assert!(interruptions.again(at(4001)));
    }
}
