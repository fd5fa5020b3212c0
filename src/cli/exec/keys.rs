//! What a person types at a terminal that is not for the command: detach keys, and escapes for a
//! connection that is dead. Pure.
//!
//! Escapes count after a newline only, and what may become one of either is held back until the
//! next key tells.

use std::str::FromStr;

const ESCAPE: u8 = b'~';

/// What `~?` shows.
pub(super) const HELP: &str = "\
Escapes, after a newline:
  ~.  leave at once, whatever the connection does
  ~~  send one ~
  ~?  this help";

/// Keys that, one after the other, leave the command running. None where there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DetachKeys(Vec<u8>);

/// Text that names no keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no key; it takes keys with commas between them, each one character or ctrl- with a-z \
     or one of @ [ \\ ] ^ _"
)]
pub(super) struct NoKey(String);

impl FromStr for DetachKeys {
    type Err = NoKey;

    fn from_str(text: &str) -> Result<Self, NoKey> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        text.split(',').map(key).collect::<Result<_, _>>().map(Self)
    }
}

fn key(name: &str) -> Result<u8, NoKey> {
    match (
        name.as_bytes(),
        name.strip_prefix("ctrl-").map(str::as_bytes),
    ) {
        (&[key], _) if key.is_ascii() => Ok(key),
        (_, Some(&[key @ (b'a'..=b'z' | b'@' | b'['..=b'_')])) => Ok(key & 0x1f),
        _ => Err(NoKey(name.to_owned())),
    }
}

/// How a person leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// The detach keys: the command goes on.
    Detach,
    /// `~.`: now, whether anybody hears of it or not.
    Escape,
}

/// What keys came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Typed {
    /// For the command.
    pub(super) send: Vec<u8>,
    /// `~?` was among them.
    pub(super) help: bool,
    /// They end with leaving; what was typed behind that is nobody's.
    pub(super) leave: Option<Leave>,
}

/// Reads along.
#[derive(Debug)]
pub(super) struct Keys {
    detach: Vec<u8>,
    /// How many of the detach keys were typed: they are held back.
    matched: usize,
    after_newline: bool,
    /// `~` was typed after a newline, and is held back.
    escaping: bool,
}

impl Keys {
    pub(super) fn new(detach: DetachKeys) -> Self {
        Self {
            detach: detach.0,
            matched: 0,
            after_newline: true,
            escaping: false,
        }
    }

    /// Takes what was typed.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Typed {
        let mut typed = Typed::default();
        for &byte in bytes {
            typed.leave = self.key(byte, &mut typed.send, &mut typed.help);
            if typed.leave.is_some() {
                break;
            }
        }
        typed
    }

    /// What is still held back, when nothing more will be typed.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        let mut send = self.detach[..std::mem::take(&mut self.matched)].to_vec();
        if std::mem::take(&mut self.escaping) {
            send.push(ESCAPE);
        }
        send
    }

    fn key(&mut self, byte: u8, send: &mut Vec<u8>, help: &mut bool) -> Option<Leave> {
        if std::mem::take(&mut self.escaping) {
            match byte {
                b'.' => return Some(Leave::Escape),
                b'?' => {
                    *help = true;
                    return None;
                }
                ESCAPE => {}
                _ => {
                    if let Some(leave) = self.pass(ESCAPE, send) {
                        return Some(leave);
                    }
                }
            }
        } else if byte == ESCAPE && self.after_newline {
            self.escaping = true;
            return None;
        }
        self.after_newline = matches!(byte, b'\r' | b'\n');
        self.pass(byte, send)
    }

    /// A key that is no escape: one of the detach keys, or the command's.
    fn pass(&mut self, byte: u8, send: &mut Vec<u8>) -> Option<Leave> {
        let mut held = self.detach[..self.matched].to_vec();
        held.push(byte);
        // The longest end of what was typed that is a beginning of the keys stays held back.
        let kept = (0..held.len())
            .find(|from| self.detach.starts_with(&held[*from..]))
            .unwrap_or(held.len());
        send.extend_from_slice(&held[..kept]);
        self.matched = held.len() - kept;
        if !self.detach.is_empty() && self.matched == self.detach.len() {
            self.matched = 0;
            return Some(Leave::Detach);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn keys(detach: &str) -> Keys {
        Keys::new(detach.parse().unwrap())
    }

    fn all(keys: &mut Keys, bytes: &[u8]) -> (Vec<u8>, Option<Leave>, bool) {
        let typed = keys.feed(bytes);
        (typed.send, typed.leave, typed.help)
    }

    #[test]
    fn detach_keys_are_named_as_docker_names_them() {
        let parse = |text: &str| text.parse::<DetachKeys>();
        assert_eq!(parse("ctrl-p,ctrl-q"), Ok(DetachKeys(vec![16, 17])));
        assert_eq!(
            parse("a,ctrl-@,ctrl-[,ctrl-\\,ctrl-],ctrl-^,ctrl-_,ctrl-z"),
            Ok(DetachKeys(vec![b'a', 0, 27, 28, 29, 30, 31, 26]))
        );
        assert_eq!(parse(""), Ok(DetachKeys(vec![])));
        for wrong in [
            "ctrl-", "ctrl-A", "ctrl-1", "ctrl-aa", "ab", "a,", ",", "ü", "^p",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn detach_keys_are_held_back_until_the_next_key_tells() {
        let mut keys = keys("ctrl-p,ctrl-q");
        assert_eq!(all(&mut keys, b"x\x10"), (b"x".to_vec(), None, false));
        assert_eq!(all(&mut keys, b"y"), (b"\x10y".to_vec(), None, false));
        assert_eq!(all(&mut keys, b"\x10\x10"), (b"\x10".to_vec(), None, false));
        assert_eq!(
            all(&mut keys, b"\x11lost"),
            (vec![], Some(Leave::Detach), false)
        );
        assert_eq!(keys.finish(), b"");
        keys.feed(b"\x10");
        assert_eq!(keys.finish(), b"\x10");
    }

    #[test]
    fn keys_that_repeat_are_found_wherever_they_begin() {
        let mut keys = keys("a,a,b");
        assert_eq!(
            all(&mut keys, b"aaab"),
            (b"a".to_vec(), Some(Leave::Detach), false)
        );
    }

    #[test]
    fn escapes_count_after_a_newline_only() {
        let escape = Some(Leave::Escape);
        assert_eq!(all(&mut keys(""), b"~.x"), (vec![], escape, false));
        assert_eq!(all(&mut keys(""), b"a~."), (b"a~.".to_vec(), None, false));
        assert_eq!(
            all(&mut keys(""), b"a\r~."),
            (b"a\r".to_vec(), escape, false)
        );
        assert_eq!(
            all(&mut keys(""), b"a\n~~."),
            (b"a\n~.".to_vec(), None, false)
        );
        assert_eq!(all(&mut keys(""), b"~x~."), (b"~x~.".to_vec(), None, false));
        assert_eq!(
            all(&mut keys(""), b"~\r~."),
            (b"~\r".to_vec(), escape, false)
        );
        assert_eq!(all(&mut keys(""), b"~?~."), (vec![], escape, true));
        let mut held = keys("");
        held.feed(b"~");
        assert_eq!(held.finish(), b"~");
        let mut both = keys("ctrl-p,ctrl-q");
        assert_eq!(
            all(&mut both, b"~\x10\x11"),
            (b"~".to_vec(), Some(Leave::Detach), false)
        );
    }

    proptest! {
        /// However keys come, they come to the same; and what is for the command arrives whole and
        /// in order where nothing of it is special.
        #[test]
        fn keys_do_not_depend_on_how_they_come(
            typed in prop::collection::vec(prop::sample::select(&b"ab~.?\r\x10\x11"[..]), 0..40),
            cut in 0usize..40,
        ) {
            let (first, second) = typed.split_at(cut.min(typed.len()));
            let mut whole = keys("ctrl-p,ctrl-q");
            let expected = all(&mut whole, &typed);
            let mut parts = keys("ctrl-p,ctrl-q");
            let mut found = all(&mut parts, first);
            if found.1.is_none() {
                let (send, leave, help) = all(&mut parts, second);
                found = ([found.0, send].concat(), leave, found.2 || help);
            }
            prop_assert_eq!(&found, &expected);
            let plain: Vec<u8> = typed.iter().copied().filter(|b| *b != b'~').collect();
            let mut without = keys("");
            let (mut sent, leave, _) = all(&mut without, &plain);
            sent.extend(without.finish());
            prop_assert_eq!((sent, leave), (plain, None));
        }
    }
}
