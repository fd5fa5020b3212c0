//! The journal as a pure machine: a ring of entries, and readers that each have a place in it.
//!
//! | invariant | |
//! | --- | --- |
//! | once | no reader gets an event twice |
//! | whole | between two places of a reader no event is missing that a gap or a count of what was left out does not cover |
//! | order | a reader gets entries in the order in which they came |
//! | bound | entries and their bytes stay within [`Limits`], the newest entry excepted |

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::cursor::Cursor;
use super::filter::Filter;
use super::{Event, Gap};

/// How much a journal keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Entries at most.
    pub entries: usize,
    /// Bytes at most that they take.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entries: 65_536,
            bytes: 16 * 1024 * 1024,
        }
    }
}

/// The events whose repetition is recognised: many times what a daemon replays.
const KNOWN: usize = 65_536;

#[derive(Debug, Clone)]
enum Entry {
    Event(Arc<Event>),
    Gap(Arc<Gap>),
}

#[derive(Debug)]
struct Slot {
    entry: Entry,
    /// Events before it since the journal began.
    events: u64,
    bytes: usize,
}

/// Where a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Behind all there is.
    Now,
    /// At this time: nanoseconds since 1970 UTC.
    Since(i64),
    /// Behind the record with this cursor.
    After(Cursor),
}

/// What a reader gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Something happened; and the place behind it.
    Event(Arc<Event>, Cursor),
    /// Events are missing.
    Gap {
        /// From when, unless that is unknown.
        from_ns: Option<i64>,
        /// Until when, why, and what the containers were then.
        gap: Arc<Gap>,
        /// Whether `gap` knows what the containers were: otherwise they have to be asked now.
        listed: bool,
        /// The place to come back to for the gap as a whole.
        before: Cursor,
        /// The place behind it.
        after: Cursor,
    },
    /// The ring has gone on without this reader: so many events, of all kinds, were left out.
    Lagged(u64, Cursor),
}

/// A reader's place, and what it wants.
#[derive(Debug, Clone)]
pub struct Reader {
    filter: Filter,
    seq: u64,
    events: u64,
    /// Older events are not wanted.
    since_ns: Option<i64>,
    /// What it has to be told first: that the ring begins later than it wants.
    early: Option<Arc<Gap>>,
    /// Where it stands for a journal to come.
    last: (i64, u64),
}

/// The journal.
#[derive(Debug)]
pub struct Ring {
    id: u64,
    limits: Limits,
    slots: VecDeque<Slot>,
    /// The sequence number of the first slot.
    first: u64,
    /// Events since the journal began.
    events: u64,
    bytes: usize,
    known: BTreeSet<(i64, u64)>,
    /// The newest event: its time and fingerprint.
    newest: Option<(i64, u64)>,
    /// The latest time of an event that fell out.
    fallen_ns: Option<i64>,
    /// All gaps that fell out as one, and the sequence number of the last.
    fallen_gap: Option<(u64, Arc<Gap>)>,
}

impl Ring {
    /// An empty journal with this id.
    pub fn new(id: u64, limits: Limits) -> Self {
        Self {
            id,
            limits,
            slots: VecDeque::new(),
            first: 0,
            events: 0,
            bytes: 0,
            known: BTreeSet::new(),
            newest: None,
            fallen_ns: None,
            fallen_gap: None,
        }
    }

    /// The event that came last: its time and its fingerprint.
    pub fn newest(&self) -> Option<(i64, u64)> {
        self.newest
    }

    /// Whether this event has come already.
    pub fn knows(&self, event: &Event) -> bool {
        self.known.contains(&(event.time_ns, event.fingerprint()))
    }

    /// Adds an event, unless it has come already; says whether it was added.
    pub fn append(&mut self, event: Event) -> bool {
        let identity = (event.time_ns, event.fingerprint());
        if !self.known.insert(identity) {
            return false;
        }
        if self.known.len() > KNOWN {
            self.known.pop_first();
        }
        self.newest = Some(identity);
        let bytes = event.bytes();
        self.push(Entry::Event(Arc::new(event)), bytes);
        self.events += 1;
        true
    }

    /// Says that events are missing here.
    pub fn gap(&mut self, gap: Gap) {
        let bytes = gap.bytes();
        self.push(Entry::Gap(Arc::new(gap)), bytes);
    }

    fn push(&mut self, entry: Entry, bytes: usize) {
        self.bytes += bytes;
        self.slots.push_back(Slot {
            entry,
            events: self.events,
            bytes,
        });
        while self.slots.len() > 1
            && (self.slots.len() > self.limits.entries || self.bytes > self.limits.bytes)
        {
            let Some(slot) = self.slots.pop_front() else {
                return;
            };
            self.bytes -= slot.bytes;
            match slot.entry {
                Entry::Event(event) => {
                    self.fallen_ns = self.fallen_ns.max(Some(event.time_ns));
                }
                Entry::Gap(gap) => {
                    let gap = match self.fallen_gap.take() {
                        None => gap,
                        Some((_, earlier)) => Arc::new(Gap {
                            from_ns: earlier.from_ns,
                            to_ns: earlier.to_ns.max(gap.to_ns),
                            why: gap.why.clone(),
                            states: Vec::new(),
                        }),
                    };
                    self.fallen_gap = Some((self.first, gap));
                }
            }
            self.first += 1;
        }
    }

    fn next(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// Events before the first slot.
    fn fallen(&self) -> u64 {
        self.slots.front().map_or(self.events, |slot| slot.events)
    }

    /// A reader that begins at `start`; `None` where that is a place that this journal has not
    /// reached: its cursor was made up.
    pub fn reader(&self, start: Start, filter: Filter) -> Option<Reader> {
        let mut reader = Reader {
            filter,
            seq: self.first,
            events: self.fallen(),
            since_ns: None,
            early: None,
            last: (0, 0),
        };
        let since = match start {
            Start::Now => {
                reader.seq = self.next();
                reader.events = self.events;
                reader.last = self.newest.unwrap_or_default();
                return Some(reader);
            }
            Start::After(cursor) if cursor.journal == self.id => {
                let there = cursor.seq <= self.next() && cursor.events <= self.events;
                reader.seq = cursor.seq;
                reader.events = cursor.events;
                reader.last = (cursor.time_ns, cursor.event);
                return there.then_some(reader);
            }
            Start::After(cursor) => {
                reader.last = (cursor.time_ns, cursor.event);
                // What an earlier run of the agent knew as this event may stand here, too: then
                // the order decides, and not the time, which several may share.
                if let Some(index) = self.slots.iter().position(|slot| match &slot.entry {
                    Entry::Event(event) => {
                        event.time_ns == cursor.time_ns && event.fingerprint() == cursor.event
                    }
                    Entry::Gap(_) => false,
                }) {
                    reader.seq = self.first + index as u64 + 1;
                    reader.events = self.slots[index].events + 1;
                    return Some(reader);
                }
                cursor.time_ns
            }
            Start::Since(since) => {
                reader.last = (since, 0);
                since
            }
        };
        reader.since_ns = Some(since);
        if let Some(fallen) = self.fallen_ns
            && since <= fallen
        {
            reader.early = Some(Arc::new(Gap {
                from_ns: Some(since),
                to_ns: fallen,
                why: "the agent's journal has thrown these events away: it keeps the newest ones \
                      only"
                    .to_owned(),
                states: Vec::new(),
            }));
        } else if let Some((_, gap)) = &self.fallen_gap
            && since < gap.to_ns
        {
            reader.early = Some(gap.clone());
        }
        Some(reader)
    }

    fn cursor(&self, reader: &Reader) -> Cursor {
        Cursor {
            journal: self.id,
            seq: reader.seq,
            events: reader.events,
            event: reader.last.1,
            time_ns: reader.last.0,
        }
    }

    /// What a reader gets next, up to `most` items; nothing when it has seen all there is.
    pub fn read(&self, reader: &mut Reader, most: usize) -> Vec<Item> {
        let mut items = Vec::new();
        if let Some(gap) = reader.early.take() {
            // Of no journal: whoever comes back to it begins at that time once more.
            let before = Cursor {
                journal: !self.id,
                ..self.cursor(reader)
            };
            reader.last = reader.last.max((gap.to_ns, 0));
            items.push(Item::Gap {
                from_ns: reader.since_ns,
                gap,
                listed: false,
                before,
                after: self.cursor(reader),
            });
        }
        if reader.seq < self.first {
            let before = self.cursor(reader);
            let left_out = self.fallen().saturating_sub(reader.events);
            let gap = self.fallen_gap.as_ref();
            let gap = gap.filter(|(seq, _)| *seq >= reader.seq);
            reader.seq = self.first;
            reader.events = self.fallen();
            reader.last = (self.fallen_ns.unwrap_or(reader.last.0), 0);
            let after = self.cursor(reader);
            if let Some((_, gap)) = gap {
                items.push(Item::Gap {
                    from_ns: gap.from_ns,
                    gap: gap.clone(),
                    listed: false,
                    before,
                    // The count is still to come.
                    after: if left_out > 0 { before } else { after },
                });
            }
            if left_out > 0 {
                items.push(Item::Lagged(left_out, after));
            }
        }
        while items.len() < most
            && let Some(slot) = self.slots.get((reader.seq - self.first) as usize)
        {
            let before = self.cursor(reader);
            reader.seq += 1;
            match &slot.entry {
                Entry::Event(event) => {
                    reader.events = slot.events + 1;
                    reader.last = (event.time_ns, event.fingerprint());
                    let early = reader.since_ns.is_some_and(|since| event.time_ns < since);
                    if !early && reader.filter.wants(event) {
                        items.push(Item::Event(event.clone(), self.cursor(reader)));
                    }
                }
                Entry::Gap(gap) => {
                    if reader.since_ns.is_some_and(|since| gap.to_ns <= since) {
                        continue;
                    }
                    reader.last = (gap.to_ns, 0);
                    items.push(Item::Gap {
                        from_ns: gap.from_ns.max(reader.since_ns),
                        gap: gap.clone(),
                        listed: true,
                        before,
                        after: self.cursor(reader),
                    });
                }
            }
        }
        items
    }
}

impl Reader {
    /// What it wants.
    pub fn filter(&self) -> &Filter {
        &self.filter
    }
}

#[cfg(test)]
mod tests;
