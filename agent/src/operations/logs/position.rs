//! Where in a container's log a reader stands, as a pure machine: which records of another reading
//! are new to it, and whether it can be sure to have missed none.
//!
//! A record has a time and no number, and many may have one time: the parts of a long line all bear
//! the time of its beginning. What counts them is their order: a log that is read again from some
//! time on gives the same records in the same order, until its oldest ones are thrown away. So a
//! place is, for each output, a time and how many records of that output and that time came. The
//! records up to the *last* one that came are old, those behind it are new. If it does not turn up,
//! by its place and by what it says, and a newer one does, the log no longer reaches back to it, and
//! records may be missing. (Parts of one line that say the same can't be told apart: if the log was
//! thrown away up to the middle of such a line, the count is all there is.)
//!
//! A count is worth something only with the record it begins at. Behind a gap that is the oldest one
//! that is left, so the places are counted anew from where that reading began. Of the time of an
//! output's first record there may be some before what was wanted, which a reading of the log's last
//! records does not see: there the count is the *least* it can be, and what the last record says
//! decides. In both cases new records of that time may be taken for old if the last one has been
//! thrown away; a gap is told then, and no record comes twice. (Except where the last records begin
//! with the rest of a line, behind lines of the other output more than the overlap younger: read
//! again, these stand behind a gap.)
//!
//! Times of one output never decrease. Those of two outputs may, against each other: the daemon
//! takes the time first and writes later, and the end of a long line bears the time of its
//! beginning. So another reading begins some time before the last record, and at the line that the
//! other output has not ended.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use hub_protocol::kind::records::Output;

/// How much earlier than a record's time what stands behind it in the log may be: as long as the
/// daemon may take between looking at the clock and writing.
const OVERLAP_NS: i64 = 10_000_000_000;

/// What a record is to a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It has come already.
    Old,
    /// It comes next.
    New,
    /// It is new, and there may be others between it and the last one that came.
    NewBehindGap,
}

/// The place in one output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    time_ns: i64,
    /// Records of that time that have come.
    count: u64,
    /// Whether the last of them had no newline: the rest of its line bears the same time.
    cut: bool,
    /// Whether there may have been more of that time before those.
    least: bool,
}

/// The place of a reader. Its text, `OUTPUT-PLACE-PLACE` behind the container's id, is opaque to
/// all but the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Position {
    /// In standard output and standard error.
    places: [Place; 2],
    last: Output,
    /// What the last record says, in 32 bits.
    said: u32,
}

/// What there is to say of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sight {
    /// Where it was printed.
    pub(super) output: Output,
    /// When: nanoseconds since 1970 UTC.
    pub(super) time_ns: i64,
    /// Whether it has no newline: the rest of its line bears the same time.
    pub(super) cut: bool,
    /// Its bytes in 32 bits.
    pub(super) said: u32,
}

impl Sight {
    pub(super) fn of(output: Output, time_ns: i64, bytes: &[u8]) -> Self {
        // FNV-1a: the same in every release, because cursors hold it.
        let said = bytes.iter().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        });
        Self {
            output,
            time_ns,
            cut: !bytes.ends_with(b"\n"),
            said,
        }
    }
}

/// One reading of the log from [`Position::since_ns`] on, or from the beginning, or of its last
/// records.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    /// Of each output the time of the last record that this reading gave, and how many of that
    /// time it gave.
    met: [(i64, u64); 2],
    /// Whether the last record that came has turned up.
    anchored: bool,
    /// Whether the record it gave last is the one behind a gap.
    behind_gap: bool,
    of: Of,
}

/// What a reading gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    /// The log from some time on.
    Log,
    /// Its last records: of the time of the first there may be more.
    Tail,
    /// What is no older than the reader.
    Live,
}

fn index(output: Output) -> usize {
    match output {
        Output::Stdout => 0,
        Output::Stderr => 1,
    }
}

impl Reading {
    /// A new one.
    pub(super) fn new() -> Self {
        Self {
            met: [(0, 0); 2],
            anchored: false,
            behind_gap: false,
            of: Of::Log,
        }
    }

    /// One of what has been printed since the reader began, and may have come or not.
    pub(super) fn live() -> Self {
        Self {
            of: Of::Live,
            ..Self::new()
        }
    }

    /// One of the log's last records, for a reader that begins with them.
    pub(super) fn of_tail() -> Self {
        Self {
            of: Of::Tail,
            ..Self::new()
        }
    }

    /// Whether it reached back to the last record that came before it.
    pub(super) fn anchored(&self) -> bool {
        self.anchored
    }

    /// What a record of this reading is. Changes nothing but the reading: [`Position::advance`]
    /// takes a record that is new.
    pub(super) fn meet(&mut self, position: Option<&Position>, sight: &Sight) -> Verdict {
        let met = &mut self.met[index(sight.output)];
        if met.0 != sight.time_ns {
            *met = (sight.time_ns, 0);
        }
        met.1 += 1;
        let met = met.1;
        self.behind_gap = false;
        let Some(position) = position else {
            self.anchored = true;
            return Verdict::New;
        };
        if self.anchored {
            return Verdict::New;
        }
        let place = &position.places[index(sight.output)];
        let is_last = sight.output == position.last;
        // An output of which nothing has come may have said something before the first record that
        // was wanted: nearby, that is what it was.
        let nearby = position.last().1.saturating_add(OVERLAP_NS);
        if place.count == 0 && self.of != Of::Live && sight.time_ns <= nearby {
            return Verdict::Old;
        }
        match sight.time_ns.cmp(&place.time_ns) {
            Ordering::Less => return Verdict::Old,
            Ordering::Equal
                if is_last
                    && sight.said == position.said
                    && (met == place.count || (met > place.count && place.least)) =>
            {
                self.anchored = true;
                return Verdict::Old;
            }
            Ordering::Equal
                if met < place.count || (met == place.count && !is_last) || place.least =>
            {
                return Verdict::Old;
            }
            // Counted from the middle of those of that time, it is another.
            Ordering::Equal | Ordering::Greater => {}
        }
        self.anchored = true;
        self.behind_gap = true;
        Verdict::NewBehindGap
    }
}

impl Position {
    /// Behind a record that is the last of `count` of its output and time.
    pub(super) fn behind(sight: &Sight, count: u64) -> Self {
        let place = |count| Place {
            time_ns: sight.time_ns,
            count,
            cut: sight.cut && count > 0,
            least: false,
        };
        let mut places = [place(0); 2];
        places[index(sight.output)] = place(count);
        Self {
            places,
            last: sight.output,
            said: sight.said,
        }
    }

    /// Behind a record that is new to a reader at `position`, as the reading that just met it says.
    pub(super) fn advance(position: &mut Option<Self>, reading: &Reading, sight: &Sight) {
        let Sight {
            output,
            time_ns,
            cut,
            said,
        } = *sight;
        let is_sure = reading.behind_gap || (position.is_none() && reading.of != Of::Tail);
        // What the other output has from before the first record is not wanted.
        let position = position.get_or_insert_with(|| Self::behind(sight, 0));
        if reading.behind_gap {
            position.count_anew(reading);
        }
        let place = &mut position.places[index(output)];
        let (_, met) = reading.met[index(output)];
        *place = Place {
            time_ns,
            count: if reading.behind_gap || place.count == 0 {
                met
            } else if place.time_ns == time_ns {
                place.count + 1
            } else {
                1
            },
            cut,
            least: !is_sure && (place.count == 0 || (place.least && place.time_ns == time_ns)),
        };
        position.last = output;
        position.said = said;
    }

    /// Counts from where a reading began whose first new record stands behind a gap.
    fn count_anew(&mut self, reading: &Reading) {
        for (place, (time_ns, count)) in self.places.iter_mut().zip(reading.met) {
            // Of an output of which nothing had come, what it gave so far is old.
            if count > 0 && (place.count == 0 || place.time_ns == time_ns) {
                place.time_ns = time_ns;
                place.count = count;
                place.least = false;
            }
        }
    }

    /// From when on to read again.
    pub(super) fn since_ns(&self) -> i64 {
        let last = self.places[index(self.last)].time_ns;
        let cut = self.places.iter().filter(|place| place.cut);
        cut.map(|place| place.time_ns)
            .fold(last.saturating_sub(OVERLAP_NS), i64::min)
    }

    /// Whether a record has come for sure: a later one of its output has.
    pub(super) fn is_past(&self, sight: &Sight) -> bool {
        sight.time_ns < self.places[index(sight.output)].time_ns
    }

    /// The time of the last record that came, and its output.
    pub(super) fn last(&self) -> (Output, i64) {
        (self.last, self.places[index(self.last)].time_ns)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:08x}", index(self.last) + 1, self.said)?;
        for place in &self.places {
            let least = if place.least { "m" } else { "" };
            let cut = if place.cut { "p" } else { "" };
            write!(f, "_{}.{}{least}{cut}", place.time_ns, place.count)?;
        }
        Ok(())
    }
}

/// A text that is no position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BadPosition;

impl FromStr for Position {
    type Err = BadPosition;

    fn from_str(text: &str) -> Result<Self, BadPosition> {
        let place = |text: &str| {
            let (time, rest) = text.split_once('.')?;
            let count = rest.trim_end_matches('p');
            let cut = count != rest;
            let (count, least) = match count.strip_suffix('m') {
                Some(count) => (count, true),
                None => (count, false),
            };
            let place = Place {
                time_ns: time.parse().ok()?,
                count: count.parse().ok()?,
                cut,
                least,
            };
            Some(place)
        };
        let read = || {
            let mut parts = text.splitn(3, '_');
            let (last, said) = parts.next()?.split_at_checked(1)?;
            let last = match last {
                "1" => Output::Stdout,
                "2" => Output::Stderr,
                _ => return None,
            };
            let said = u32::from_str_radix(said, 16).ok()?;
            let places = [place(parts.next()?)?, place(parts.next()?)?];
            (places[index(last)].count > 0).then_some(Self { places, last, said })
        };
        read().ok_or(BadPosition)
    }
}

#[cfg(test)]
mod tests;
