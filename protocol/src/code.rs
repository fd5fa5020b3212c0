//! Codes of closed connections and reset streams. They are part of the wire: a number keeps its
//! meaning for ever.

use std::fmt;

/// Why a side closed a whole connection: QUIC's application error code.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CloseCode(pub u32);

impl CloseCode {
    /// Nothing is wrong: the side is done.
    pub const DONE: Self = Self(0);
    /// The side shuts down; the peer may dial again.
    pub const GOING_AWAY: Self = Self(1);
    /// A `Refused` was sent before: it says why.
    pub const REFUSED: Self = Self(2);
    /// A newer session of the same node has taken over.
    pub const SUPERSEDED: Self = Self(3);
    /// The peer broke the protocol on the control stream, or kept breaking it on operations.
    pub const PROTOCOL_VIOLATED: Self = Self(4);
    /// The peer did not say what it had to in time.
    pub const TIMED_OUT: Self = Self(5);
    /// The identity of the peer was revoked.
    pub const REVOKED: Self = Self(6);
    /// The side has no room for the connection now.
    pub const BUSY: Self = Self(7);
}

impl fmt::Debug for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::DONE => "done",
            Self::GOING_AWAY => "going away",
            Self::REFUSED => "refused",
            Self::SUPERSEDED => "superseded by a newer session",
            Self::PROTOCOL_VIOLATED => "protocol violated",
            Self::TIMED_OUT => "timed out",
            Self::REVOKED => "revoked",
            Self::BUSY => "busy",
            Self(code) => return write!(f, "close code {code}"),
        })
    }
}

/// Why a side reset or stopped the stream of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResetCode(pub u32);

impl ResetCode {
    /// The operation is cancelled; what it ran is stopped.
    pub const CANCELLED: Self = Self(0);
    /// Data beyond the credit, or credit beyond the announced limit.
    pub const WINDOW_VIOLATED: Self = Self(1);
    /// Any other breach of the rules of an operation.
    pub const PROTOCOL_VIOLATED: Self = Self(2);
    // 3 is reserved.
}

impl fmt::Debug for ResetCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ResetCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::CANCELLED => "cancelled",
            Self::WINDOW_VIOLATED => "window violated",
            Self::PROTOCOL_VIOLATED => "protocol violated",
            Self(code) => return write!(f, "reset code {code}"),
        })
    }
}
