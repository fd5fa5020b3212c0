//! What a request or stream waits for now, by where its two directions stand. Pure.

use std::sync::atomic::{AtomicU8, Ordering};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a request or stream waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// The hub itself: its ledger, or who is at the door.
    Hub,
    /// The browser: to send more, or to take what there is for it.
    Browser,
    /// Credit: the agent, or the target behind it, takes no more for now.
    Credit,
    /// The network between hub and agent, or the agent's connection to the target.
    Network,
    /// The target: to answer, or to send more.
    Target,
}

impl WaitsFor {
    /// Its name, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hub => "hub",
            Self::Browser => "browser",
            Self::Credit => "credit",
            Self::Network => "network",
            Self::Target => "target",
        }
    }
}

/// Where the way from the browser to the target stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy) enum Up {
    /// Nothing is under way: all of it went, or the browser may send when it likes.
    Idle,
    /// A part of the request's body is awaited.
    Browser,
    /// A piece has no credit.
    Credit,
    /// A piece has credit, and the connection to the agent has not taken what went before it.
    Network,
}

/// Where the way from the target to the browser stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Down {
    /// Nothing was asked of an agent yet.
    Hub,
    /// An agent was asked and has not said that it began.
    Opening,
    /// The response's head is awaited.
    Head,
    /// The next piece of the response is awaited.
    Piece,
    /// The browser has not taken a piece.
    Browser,
}

/// What both together wait for. A piece that can't move is told before one that has not come.
pub(in crate::proxy) fn waits_for(up: Up, down: Down) -> WaitsFor {
    match (up, down) {
        (_, Down::Hub) => WaitsFor::Hub,
        (_, Down::Opening) | (Up::Network, _) => WaitsFor::Network,
        // A target that has begun to answer does not need the rest of the request for that.
        (_, Down::Browser) | (Up::Browser, Down::Head) => WaitsFor::Browser,
        (Up::Credit, _) => WaitsFor::Credit,
        (_, Down::Head | Down::Piece) => WaitsFor::Target,
    }
}

/// Where both directions stand, for one writer each and any reader.
#[derive(Debug)]
pub(in crate::proxy) struct Standing {
    up: AtomicU8,
    down: AtomicU8,
}

impl Standing {
    pub(in crate::proxy) const fn new() -> Self {
        Self {
            up: AtomicU8::new(Up::Idle as u8),
            down: AtomicU8::new(Down::Hub as u8),
        }
    }

    pub(in crate::proxy) fn set_up(&self, up: Up) {
        self.up.store(up as u8, Ordering::Relaxed);
    }

    pub(in crate::proxy) fn set_down(&self, down: Down) {
        self.down.store(down as u8, Ordering::Relaxed);
    }

    pub(in crate::proxy) fn waits_for(&self) -> WaitsFor {
        let up = [Up::Idle, Up::Browser, Up::Credit, Up::Network];
        let down = [
            Down::Hub,
            Down::Opening,
            Down::Head,
            Down::Piece,
            Down::Browser,
        ];
        let up = up[usize::from(self.up.load(Ordering::Relaxed)) % up.len()];
        let down = down[usize::from(self.down.load(Ordering::Relaxed)) % down.len()];
        waits_for(up, down)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stuck_is_told_before_what_has_not_come() {
        for (up, down, expected) in [
            (Up::Idle, Down::Hub, WaitsFor::Hub),
            (Up::Browser, Down::Opening, WaitsFor::Network),
            (Up::Idle, Down::Head, WaitsFor::Target),
            (Up::Browser, Down::Head, WaitsFor::Browser),
            (Up::Credit, Down::Head, WaitsFor::Credit),
            (Up::Network, Down::Head, WaitsFor::Network),
            (Up::Idle, Down::Piece, WaitsFor::Target),
            (Up::Browser, Down::Piece, WaitsFor::Target),
            (Up::Credit, Down::Piece, WaitsFor::Credit),
            (Up::Idle, Down::Browser, WaitsFor::Browser),
            (Up::Credit, Down::Browser, WaitsFor::Browser),
        ] {
            assert_eq!(waits_for(up, down), expected, "{up:?} {down:?}");
            let standing = Standing::new();
            standing.set_up(up);
            standing.set_down(down);
            assert_eq!(standing.waits_for(), expected, "{up:?} {down:?}");
        }
    }
}
