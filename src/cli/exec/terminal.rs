//! The terminal that we run on.

use std::io;

use hub_protocol::kind::exec::Size;
use rustix::termios::{self, OptionalActions, Termios};

/// The size of the terminal that standard input or output is.
pub(super) fn size() -> Option<Size> {
    let size = termios::tcgetwinsize(io::stdin())
        .or_else(|_| termios::tcgetwinsize(io::stdout()))
        .ok()?;
    Some(Size {
        cols: size.ws_col,
        rows: size.ws_row,
    })
}

/// Raw mode: every key goes to the command as it is, and its output to the screen. Dropped, the
/// terminal is what it was before, also when a panic unwinds.
pub(super) struct Raw {
    before: Termios,
}

impl Raw {
    /// Sets the terminal that standard input is.
    pub(super) fn enter() -> io::Result<Self> {
        let before = termios::tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // What was printed comes out first. A terminal that is gone needs nothing.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}
