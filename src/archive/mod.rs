//! Tar archives of this machine's files: what is in them, how they are written and read.
//!
//! ```text
//! .dockerignore --ignore--> Rules --.
//! directory ---------------walk-----+--> found, with the rule that decided --pack--> tar, in pieces
//!
//! tar from a node, in pieces --read--> entries and bytes --unpack--> files under one directory
//! ```
//!
//! [`ignore`], [`header`] and [`read`] are pure; [`walk`], [`pack`] and [`unpack`] block on the file
//! system and belong on a thread of their own. Reading is strict: what a node sends is refused by
//! name where it is not plain, and never touches anything outside the directory it is for.

pub mod header;
pub mod ignore;
pub mod pack;
pub mod read;
pub mod unpack;
pub mod walk;

/// A block of a tar archive: 512 bytes. Everything in it begins at a multiple of this.
pub const BLOCK: usize = 512;

/// Bytes of a name as people may see them: what drives a terminal, or is no UTF-8, is replaced.
pub(crate) fn shown(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests;
