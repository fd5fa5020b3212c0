//! Where a reader of the journal stands.

use std::fmt;
use std::str::FromStr;

/// A place behind an entry of a journal. As text, `JOURNAL-SEQ.EVENTS.EVENT-TIME_NS`, it is opaque
/// to all but the agent.
///
/// In the journal it comes from the numbers tell the place. In the journal of a later run they
/// mean nothing; there the event itself is looked for, and without it its time decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// Which journal.
    pub journal: u64,
    /// The entry that comes next.
    pub seq: u64,
    /// How many events came before that.
    pub events: u64,
    /// The [fingerprint](super::Event::fingerprint) of the event that the place is behind; 0 for
    /// other entries.
    pub event: u64,
    /// When that event was: nanoseconds since 1970 UTC.
    pub time_ns: i64,
}

/// A text that is no cursor of an event watch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the cursor is none of an event watch: pass on unchanged what a record held, or name a time \
     with `since` instead"
)]
pub struct BadCursor;

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            journal,
            seq,
            events,
            event,
            time_ns,
        } = self;
        write!(f, "{journal:016x}-{seq}.{events}.{event:016x}-{time_ns}")
    }
}

impl FromStr for Cursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        let read = || {
            let mut parts = text.splitn(3, '-');
            let journal = u64::from_str_radix(parts.next()?, 16).ok()?;
            let mut place = parts.next()?.splitn(3, '.');
            Some(Self {
                journal,
                seq: place.next()?.parse().ok()?,
                events: place.next()?.parse().ok()?,
                event: u64::from_str_radix(place.next()?, 16).ok()?,
                time_ns: parts.next()?.parse().ok()?,
            })
        };
        read().ok_or(BadCursor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cursor_comes_back_from_its_text(journal: u64, seq: u64, events: u64, event: u64, time_ns: i64) {
            let cursor = Cursor { journal, seq, events, event, time_ns };
            prop_assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }

        #[test]
        fn any_text_is_a_cursor_or_refused(text in ".{0,60}") {
            let _ = text.parse::<Cursor>();
        }
    }

    #[test]
    fn what_is_no_cursor_is_refused() {
        for bad in [
            "",
            "-",
            "1-2-3",
            "1-2.3-4",
            "x-1.1.1-1",
            "1-1.1.1-",
            "1-1.1.1.1-1",
        ] {
            assert_eq!(bad.parse::<Cursor>(), Err(BadCursor), "{bad}");
        }
    }
}
