//! What a hostile peer sends, and what becomes of it.

use crate::raw::all;

/// The code of a reset that means cancel.
pub const CANCELLED: u64 = 0;
/// The code of a reset where credit was not kept to.
pub const WINDOW: u64 = 1;
/// The code of a reset where anything else was not.
pub const PROTOCOL: u64 = 2;

/// What the peer sends, and what becomes of it: an agent once it has read `Open`, a hub behind it.
pub struct Breach {
    pub name: &'static str,
    pub wire: Vec<u8>,
    /// Whether the peer ends its direction of the stream behind it.
    pub fin: bool,
    /// What it is counted as.
    pub kind: &'static str,
    pub code: u64,
}

pub fn breach(name: &'static str, kind: &'static str, code: u64, frames: &[&[u8]]) -> Breach {
    Breach {
        name,
        wire: all(frames),
        fin: false,
        kind,
        code,
    }
}

pub fn early_fin(name: &'static str, frames: &[&[u8]]) -> Breach {
    Breach {
        fin: true,
        ..breach(name, "early_fin", PROTOCOL, frames)
    }
}
