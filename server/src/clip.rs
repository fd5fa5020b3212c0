//! Errors that may repeat what a peer said, cut to what is worth a line in the log.

use std::fmt::Display;

/// How much of an error is kept, in characters: a peer's words among ours.
const ERROR: usize = 160;

/// An error on one line, so that nobody fills the log or forges its lines.
pub(crate) fn error(error: &impl Display) -> String {
    let text = error.to_string();
    let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut clipped: String = text.chars().take(ERROR).map(clean).collect();
    if text.chars().nth(ERROR).is_some() {
        clipped.push('…');
    }
    clipped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_cannot_fill_the_log() {
        assert_eq!(error(&"it\nstops\u{1b}"), "it\u{fffd}stops\u{fffd}");
        let most = "é".repeat(ERROR);
        assert_eq!(error(&most), most);
        assert_eq!(error(&"é".repeat(100_000)), most + "…");
    }
}
