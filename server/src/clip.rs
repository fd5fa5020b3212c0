//! What peers say, cut to what is worth a line in the log: nobody fills it, or forges its lines.

use std::fmt::Display;

/// How much of a peer's own words is kept, in characters.
const WORDS: usize = 80;

/// How much of an error is kept, in characters: it may repeat what a peer said among words of ours.
const ERROR: usize = 160;

/// A peer's own words.
pub(crate) fn words(text: &str) -> String {
    clip(text, WORDS)
}

/// An error that may repeat a peer's words.
pub(crate) fn error(error: &impl Display) -> String {
    clip(&error.to_string(), ERROR)
}

fn clip(text: &str, most: usize) -> String {
    let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut clipped: String = text.chars().take(most).map(clean).collect();
    if text.chars().nth(most).is_some() {
        clipped.push('…');
    }
    clipped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_cannot_fill_the_log() {
        assert_eq!(words("it\nstops\u{1b}"), "it\u{fffd}stops\u{fffd}");
        let most = "é".repeat(WORDS);
        assert_eq!(words(&most), most);
        assert_eq!(words(&"é".repeat(100_000)), most + "…");
        assert_eq!(error(&"x".repeat(1000)), "x".repeat(ERROR) + "…");
    }
}
