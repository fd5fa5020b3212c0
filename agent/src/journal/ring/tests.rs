#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn event(time_ns: i64, id: u32) -> Event {
    Event {
        time_ns,
        kind: if id.is_multiple_of(3) {
            "network"
        } else {
            "container"
        }
        .into(),
        action: "create".into(),
        id: id.to_string(),
        attributes: BTreeMap::new(),
    }
}

fn gap(to_ns: i64) -> Gap {
    Gap {
        from_ns: None,
        to_ns,
        why: "a test".into(),
        states: Vec::new(),
    }
}

fn containers() -> Filter {
    Filter::new(BTreeMap::from([("type".into(), vec!["container".into()])])).unwrap()
}

const SMALL: Limits = Limits {
    entries: 12,
    bytes: 2_000,
};

fn ring() -> Ring {
    Ring::new(7, SMALL)
}

#[derive(Debug, Clone)]
enum Step {
    /// An event, so much later than the last or earlier.
    Event(i64),
    /// The last events once more, as a replay after a reconnect has them.
    Replay(usize),
    Gap,
    /// The reader reads so many items.
    Read(usize),
    /// The reader goes away and comes back with its last cursor.
    Resume,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (-1..3i64).prop_map(Step::Event),
        1 => (1..8usize).prop_map(Step::Replay),
        1 => Just(Step::Gap),
        3 => (1..6usize).prop_map(Step::Read),
        1 => Just(Step::Resume),
    ];
    prop::collection::vec(step, 0..120)
}

/// What a reader of all or of containers saw, against all that came.
#[derive(Default)]
struct Model {
    /// All entries: the event's number, or a gap.
    all: Vec<Option<u32>>,
    /// How many of them the reader is past.
    past: usize,
    /// Events that it was told were left out, and events that were.
    seen: BTreeSet<u32>,
}

impl Model {
    /// Entries up to a sequence number were left out: so many events, and gaps if that was told.
    fn skip(&mut self, seq: u64, count: u64, gap_told: bool) {
        let skipped = &self.all[self.past..seq as usize];
        let events = skipped.iter().flatten().count();
        assert_eq!(events as u64, count, "whole: the count is wrong");
        assert!(
            events == skipped.len() || gap_told,
            "whole: a gap fell out silently"
        );
        self.past = seq as usize;
    }

    /// Checks what a read gave: once, in order, whole but for what was told, counted exactly.
    fn check(&mut self, items: &[Item], filter: &Filter, events: &BTreeMap<u32, Event>) {
        let mut gap_told = false;
        for item in items {
            match item {
                Item::Event(event, _) => {
                    let id: u32 = event.id.parse().unwrap();
                    assert!(self.seen.insert(id), "once: {id} came twice");
                    loop {
                        let next = self
                            .all
                            .get(self.past)
                            .expect("whole: an event from nowhere");
                        self.past += 1;
                        match next {
                            Some(next) if *next == id => break,
                            Some(next) => {
                                let wanted = filter.wants(&events[next]);
                                assert!(!wanted, "whole: {next} is missing before {id}");
                            }
                            None => panic!("whole: a gap was not told"),
                        }
                    }
                }
                Item::Gap { listed: true, .. } => {
                    while let Some(next) = &self.all[self.past] {
                        let wanted = filter.wants(&events[next]);
                        assert!(!wanted, "order: {next} is missing before a gap");
                        self.past += 1;
                    }
                    self.past += 1;
                }
                // It covers the gaps among what has fallen out: all of that, or what the count
                // behind it is of.
                Item::Gap { before, after, .. } => {
                    gap_told = true;
                    if before != after {
                        self.skip(after.seq, 0, gap_told);
                    }
                }
                Item::Lagged(count, cursor) => self.skip(cursor.seq, *count, gap_told),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Once, whole, order, bound: of a reader from the beginning on, fast or slow, that breaks off
    /// and comes back.
    #[test]
    fn a_reader_gets_each_event_once_in_order_or_is_told(steps in steps(), filtered: bool) {
        let filter = if filtered { containers() } else { Filter::default() };
        let mut ring = ring();
        let mut reader = ring.reader(Start::Now, filter.clone()).unwrap();
        let mut cursor = ring.cursor(&reader);
        let mut model = Model::default();
        let mut events = BTreeMap::new();
        let (mut time, mut ids) = (1000, 0u32);
        for step in steps.into_iter().chain([Step::Read(1000)]) {
            match step {
                Step::Event(later) => {
                    time += later;
                    ids += 1;
                    events.insert(ids, event(time, ids));
                    prop_assert!(ring.append(event(time, ids)));
                    model.all.push(Some(ids));
                }
                Step::Replay(count) => {
                    for event in events.values().rev().take(count).rev() {
                        prop_assert!(!ring.append(event.clone()), "once: a replay was taken");
                    }
                }
                Step::Gap => {
                    ring.gap(gap(time));
                    model.all.push(None);
                }
                Step::Read(most) => {
                    let items = ring.read(&mut reader, most);
                    model.check(&items, &filter, &events);
                    cursor = ring.cursor(&reader);
                    for next in &model.all[model.past..cursor.seq as usize] {
                        let unwanted = next.is_some_and(|id| !filter.wants(&events[&id]));
                        prop_assert!(unwanted, "whole: {next:?} was passed over");
                    }
                    model.past = cursor.seq as usize;
                }
                Step::Resume => {
                    let text = cursor.to_string();
                    let start = Start::After(text.parse().unwrap());
                    reader = ring.reader(start, filter.clone()).unwrap();
                }
            }
            prop_assert!(ring.slots.len() <= SMALL.entries, "bound");
            prop_assert!(ring.bytes <= SMALL.bytes || ring.slots.len() == 1, "bound");
            let bytes: usize = ring.slots.iter().map(|slot| slot.bytes).sum();
            prop_assert_eq!(ring.bytes, bytes, "bound");
        }
        let rest = &model.all[model.past..];
        let missing = rest.iter().flatten().find(|id| filter.wants(&events[id]));
        prop_assert_eq!(missing, None, "whole");
    }

    /// A reader by time gets all from then on, and a gap before what the ring has lost.
    #[test]
    fn a_reader_by_time_gets_all_since_or_a_gap(times in prop::collection::vec(-1..3i64, 1..40), back in 0..60i64) {
        let mut ring = ring();
        let mut time = 1000;
        let mut all = Vec::new();
        for (id, later) in (1..).zip(times) {
            time += later;
            ring.append(event(time, id));
            all.push((time, id));
        }
        let since = time - back;
        let mut reader = ring.reader(Start::Since(since), Filter::default()).unwrap();
        let mut gap = None;
        let mut got = Vec::new();
        for item in ring.read(&mut reader, 1000) {
            match item {
                Item::Event(event, _) => got.push((event.time_ns, event.id.parse::<u32>().unwrap())),
                Item::Gap { from_ns, gap: told, .. } => gap = Some((from_ns.unwrap(), told.to_ns)),
                Item::Lagged(..) => prop_assert!(false, "a reader by time is not slow"),
            }
        }
        prop_assert!(got.iter().all(|(time, _)| *time >= since));
        for one in all.iter().filter(|(time, _)| *time >= since) {
            let covered = gap.is_some_and(|(from, to)| from <= one.0 && one.0 <= to);
            prop_assert!(got.contains(one) || covered, "whole: {one:?} is missing");
        }
    }

    /// The journal of the next run goes on behind the event of an earlier run's cursor.
    #[test]
    fn a_cursor_outlives_its_journal_where_the_event_does(
        times in prop::collection::vec(0..2i64, 1..10),
        read in 1..10usize,
        forgotten in 0..10usize,
    ) {
        let mut time = 1000;
        let events: Vec<_> = (1..).zip(times).map(|(id, later)| { time += later; event(time, id) }).collect();
        let mut first = ring();
        for event in &events { first.append(event.clone()); }
        let mut reader = first.reader(Start::Since(0), Filter::default()).unwrap();
        let items = first.read(&mut reader, read);
        let cursor = first.cursor(&reader);
        // The next run finds what the daemon still remembers, behind a gap.
        let mut next = Ring::new(8, SMALL);
        let left = &events[forgotten.min(events.len() - 1)..];
        next.gap(gap(left[0].time_ns));
        for event in left { next.append(event.clone()); }
        let mut reader = next.reader(Start::After(cursor), Filter::default()).unwrap();
        let mut told = false;
        let mut got: Vec<String> = items.iter().filter_map(|item| match item {
            Item::Event(event, _) => Some(event.id.clone()),
            _ => None,
        }).collect();
        for item in next.read(&mut reader, 1000) {
            match item {
                Item::Event(event, _) => got.push(event.id.clone()),
                _ => told = true,
            }
        }
        let all: Vec<_> = events.iter().map(|event| event.id.clone()).collect();
        let mut sorted = got.clone();
        sorted.dedup();
        prop_assert_eq!(sorted.len(), got.len(), "once");
        let same_time = |id: &String| events.iter().any(|e| &e.id == id && e.time_ns == cursor.time_ns);
        let missing = all.iter().filter(|id| !got.contains(id));
        prop_assert!(told || missing.filter(|id| !same_time(id)).count() == 0, "whole");
    }
}

#[test]
fn a_slow_reader_is_told_the_exact_number_and_the_gaps_among_it() {
    let mut ring = ring();
    let mut reader = ring.reader(Start::Now, containers()).unwrap();
    for id in 1..=5 {
        ring.append(event(1000 + i64::from(id), id));
    }
    ring.gap(gap(1005));
    for id in 6..=40 {
        ring.append(event(1000 + i64::from(id), id));
    }
    let items = ring.read(&mut reader, 100);
    let kept = ring.slots.len() as u64;
    let [
        Item::Gap {
            listed: false,
            before,
            after,
            ..
        },
        Item::Lagged(count, behind),
        rest @ ..,
    ] = &items[..]
    else {
        panic!("{items:?}");
    };
    assert_eq!(*count, 40 - kept);
    // Who breaks off between the two is told both again.
    assert_eq!(before, after);
    assert_eq!((before.seq, behind.seq), (0, ring.first));
    let all_kept = ring.slots.iter();
    let wanted = all_kept
        .filter(|slot| matches!(&slot.entry, Entry::Event(event) if event.kind == "container"));
    assert_eq!(rest.len(), wanted.count());
}

#[test]
fn a_place_that_the_journal_has_never_had_is_refused() {
    let mut ring = ring();
    ring.append(event(1, 1));
    let cursor = |seq, events| Cursor {
        journal: 7,
        seq,
        events,
        event: 0,
        time_ns: 0,
    };
    assert!(
        ring.reader(Start::After(cursor(1, 1)), Filter::default())
            .is_some()
    );
    for bad in [cursor(2, 1), cursor(1, 2), cursor(u64::MAX, u64::MAX)] {
        assert!(ring.reader(Start::After(bad), Filter::default()).is_none());
    }
}

#[test]
fn a_gap_is_shown_to_whoever_wants_what_is_before_its_end() {
    let mut ring = ring();
    ring.gap(gap(1000));
    ring.append(event(1000, 1));
    let gaps = |since| {
        let mut reader = ring.reader(Start::Since(since), Filter::default()).unwrap();
        let items = ring.read(&mut reader, 10);
        let gaps = items.iter().filter_map(|item| match item {
            Item::Gap { from_ns, .. } => Some(*from_ns),
            _ => None,
        });
        gaps.collect::<Vec<_>>()
    };
    assert_eq!(gaps(999), [Some(999)]);
    assert_eq!(gaps(1000), []);
}
