#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Logs as the daemon writes them: times of one output never decrease, a line that was cut goes on
/// with its own time, and the two outputs may be out of order by less than the overlap.
fn logs() -> impl Strategy<Value = Vec<Sight>> {
    let record = (
        any::<bool>(),
        0..3i64,
        any::<bool>(),
        prop::bool::weighted(0.2),
    );
    prop::collection::vec(record, 0..60).prop_map(|records| {
        let mut now = 100 * OVERLAP_NS;
        let mut outputs: [(i64, bool); 2] = [(now, false); 2];
        let mut log = Vec::new();
        for (stderr, step, far, cut) in records {
            let unit = if far { OVERLAP_NS / 2 } else { 1 };
            now += step * unit;
            let state = &mut outputs[usize::from(stderr)];
            if !state.1 {
                // Taken a little earlier than written.
                let late = if far { 1 } else { OVERLAP_NS / 4 };
                state.0 = state.0.max(now - late);
            }
            state.1 = cut;
            log.push(Sight {
                output: if stderr {
                    Output::Stderr
                } else {
                    Output::Stdout
                },
                time_ns: state.0,
                cut,
                // No two say the same.
                said: log.len() as u32,
            });
        }
        log
    })
}

/// Reads `log[from..]` as the daemon gives it; what is delivered, with `None` for a gap.
fn read(
    position: &mut Option<Position>,
    log: &[Sight],
    from: usize,
    until: usize,
) -> (Vec<Option<usize>>, bool) {
    let since = position.as_ref().map(Position::since_ns);
    let mut reading = match position {
        None if from > 0 => Reading::of_tail(),
        _ => Reading::new(),
    };
    let mut given = Vec::new();
    for (index, record) in log.iter().enumerate().take(until).skip(from) {
        if since.is_some_and(|since| record.time_ns < since) {
            continue;
        }
        match reading.meet(position.as_ref(), record) {
            Verdict::Old => continue,
            Verdict::New => {}
            Verdict::NewBehindGap => given.push(None),
        }
        given.push(Some(index));
        Position::advance(position, &reading, record);
    }
    let anchored = position.is_none() || reading.anchored();
    (given, anchored)
}

/// Whether records before `until` and behind the last one given are missing. The rest of a line is
/// not, whose beginning is missing: that says it.
fn missing(log: &[Sight], given: &BTreeSet<usize>, until: usize) -> bool {
    let from = given.last().map_or(0, |last| last + 1);
    (from..until).any(|index| {
        let before = (0..index)
            .rev()
            .find(|i| log[*i].output == log[index].output);
        !before.is_some_and(|before| log[before].cut && !given.contains(&before))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A log that loses nothing is read whole, once and in order, wherever readings break off.
    #[test]
    fn whole_and_once_without_rotation(log in logs(), breaks in prop::collection::vec(0..60usize, 0..8)) {
        let mut position = None;
        let mut all = Vec::new();
        let mut breaks = breaks;
        breaks.sort_unstable();
        for until in breaks.into_iter().chain([log.len()]) {
            // The place travels as text.
            position = position.map(|p: Position| p.to_string().parse().unwrap());
            let (given, _) = read(&mut position, &log, 0, until.min(log.len()));
            all.extend(given);
        }
        let expected: Vec<_> = (0..log.len()).map(Some).collect();
        prop_assert_eq!(all, expected);
    }

    /// A log that rotates is read once and in order; where something is missing a gap stands, in
    /// its very place or, if nothing new came behind it, in what the reading says at its end.
    #[test]
    fn once_and_gaps_named_with_rotation(
        log in logs(),
        readings in prop::collection::vec((0..60usize, 0..60usize), 0..8),
    ) {
        let mut position = None;
        let mut readings = readings;
        readings.sort_by_key(|(until, _)| *until);
        let mut from = 0;
        let mut given_ever = BTreeSet::new();
        // Whether a hole before what comes next has been told.
        let mut told = true;
        for (until, keep) in readings {
            let until = until.min(log.len());
            // From the beginning at first: of a line that was cut before the first record that
            // came, the rest is not wanted.
            if !given_ever.is_empty() {
                from = from.max(until.saturating_sub(keep));
            }
            let (given, anchored) = read(&mut position, &log, from, until);
            for index in given {
                let Some(index) = index else {
                    told = true;
                    continue;
                };
                let last = given_ever.last().copied();
                prop_assert!(last.is_none_or(|last| index > last), "twice or out of order");
                let hole = missing(&log, &given_ever, index);
                prop_assert!(!hole || told, "a hole that nobody told");
                given_ever.insert(index);
                told = false;
            }
            // What was not given is old, or its loss can be told.
            let silent = position.is_some() && missing(&log, &given_ever, until);
            prop_assert!(!silent || !anchored, "a silent end");
        }
    }

    /// A reader that begins with the last records misses none behind these and has none twice,
    /// whether it is read on from the place or, as far as that does, from the log's last records.
    #[test]
    fn whole_and_once_from_a_tail(
        log in logs(),
        start in 0..60usize,
        looks in prop::collection::vec((0..60usize, 1..12usize), 0..8),
    ) {
        let start = start.min(log.len());
        // Not with the rest of a line behind much younger ones of the other output.
        let younger = |first: &Sight| log[..start].iter().any(|r| r.time_ns > first.time_ns + OVERLAP_NS);
        prop_assume!(!log.get(start).is_some_and(younger));
        let mut looks = looks;
        looks.sort_unstable();
        let mut position: Option<Position> = None;
        let mut all = Vec::new();
        for (until, tail) in looks.into_iter().chain([(log.len(), 1)]) {
            let until = until.min(log.len());
            if position.is_none() {
                if start >= until {
                    continue;
                }
                let same = |i: &usize| (log[*i].output, log[*i].time_ns) == (log[start].output, log[start].time_ns);
                // Those before the tail are counted if they go on in it.
                if start > 0 && same(&(start - 1)) {
                    let count = (0..start).filter(same).count() as u64;
                    position = Some(Position::behind(&log[start - 1], count));
                }
                if position.is_some() {
                    let mut reading = Reading { anchored: true, ..Reading::new() };
                    reading.meet(position.as_ref(), &log[start]);
                    Position::advance(&mut position, &reading, &log[start]);
                    all.push(Some(start));
                } else {
                    all.extend(read(&mut position, &log, start, until).0);
                }
            }
            position = position.map(|p: Position| p.to_string().parse().unwrap());
            let mut short = position.clone();
            let (given, anchored) = read(&mut short, &log, until.saturating_sub(tail), until);
            if anchored && !given.contains(&None) {
                position = short;
                all.extend(given);
            } else {
                all.extend(read(&mut position, &log, 0, until).0);
            }
        }
        prop_assert!(all.is_sorted_by(|a, b| a < b) && !all.contains(&None), "twice or a gap: {:?}", all);
        // The rest of a line that had begun before is not wanted.
        let begun_before = |index: usize| {
            let mut line = (0..index).rev().filter(|i| log[*i].output == log[index].output);
            line.find(|i| !log[*i].cut || *i < start).is_some_and(|i| log[i].cut)
        };
        for index in start..log.len() {
            prop_assert!(all.contains(&Some(index)) || begun_before(index), "{} is missing", index);
        }
    }

    #[test]
    fn any_text_is_a_position_or_refused(text in "[12][0-9a-f]{1,8}_[0-9]{1,3}[.][0-9]m?p?_-?[0-9]{1,3}[.][0-9]m?p?") {
        if let Ok(position) = text.parse::<Position>() {
            let again = position.to_string().parse::<Position>();
            prop_assert_eq!(again, Ok(position));
        }
    }
}

#[test]
fn parts_of_a_long_line_are_counted() {
    let part = |bytes: &[u8]| Sight::of(Output::Stdout, 7, bytes);
    let mut position = None;
    let mut reading = Reading::new();
    for _ in 0..300 {
        let verdict = reading.meet(position.as_ref(), &part(b"a"));
        assert_eq!(verdict, Verdict::New);
        Position::advance(&mut position, &reading, &part(b"a"));
    }
    let mut reading = Reading::new();
    let verdicts: Vec<_> = (0..302)
        .map(|_| reading.meet(position.as_ref(), &part(b"a")))
        .collect();
    assert_eq!(verdicts[..300], [Verdict::Old; 300]);
    assert_eq!(verdicts[300..], [Verdict::New; 2]);
    // The rest of the line has its time, however long it takes.
    let other = Sight::of(Output::Stderr, 100 * OVERLAP_NS, b"b\n");
    assert_eq!(reading.meet(position.as_ref(), &other), Verdict::New);
    Position::advance(&mut position, &reading, &other);
    assert_eq!(position.unwrap().since_ns(), 7);
}

/// Records of one time, said by their number.
fn at_once(outputs: &str) -> Vec<Sight> {
    let sight = |(said, output)| Sight {
        output: if output == 'o' {
            Output::Stdout
        } else {
            Output::Stderr
        },
        time_ns: 100 * OVERLAP_NS,
        cut: false,
        said,
    };
    (0..).zip(outputs.chars()).map(sight).collect()
}

#[test]
fn behind_a_gap_records_of_one_time_are_counted_from_what_is_left() {
    let log = at_once("eooooooeoeoe");
    let mut position = None;
    assert_eq!(read(&mut position, &log, 0, 1), (vec![Some(0)], true));
    // Nothing of standard output had come, and something of it is skipped as if it were from
    // before: of the second reading it counts.
    let behind = vec![None, Some(7), Some(8), Some(9)];
    assert_eq!(read(&mut position, &log, 6, 10), (behind, true));
    assert_eq!(read(&mut position, &log, 6, 10), (vec![], true));
    let next = vec![Some(10), Some(11)];
    assert_eq!(read(&mut position, &log, 6, 12), (next, true));
}

#[test]
fn of_the_other_output_there_may_be_more_before_a_tail() {
    let log = at_once("oooeoo");
    let mut position = None;
    let tail = vec![Some(3), Some(4)];
    assert_eq!(read(&mut position, &log, 3, 5), (tail, true));
    assert_eq!(read(&mut position, &log, 0, 5), (vec![], true));
    assert_eq!(read(&mut position, &log, 0, 6), (vec![Some(5)], true));
    assert_eq!(read(&mut position, &log, 2, 6), (vec![], true));
}
