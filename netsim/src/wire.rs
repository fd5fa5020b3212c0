//! One wire between two ends: a link in each direction, and what is on the way. Pure: the time is an
//! argument.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use crate::link::{Link, LinkConfig, Verdict};
use crate::seed;
use crate::world::Direction;

/// How many packets are on the way at most, both directions together: a link without a rate has no
/// queue that would say so.
const ON_THE_WAY: usize = 65_536;

/// A UDP payload, and the client that it is from or for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parcel {
    pub(crate) client: SocketAddr,
    pub(crate) payload: Bytes,
}

/// What became of the packets of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WireCounts {
    /// Packets that entered.
    pub entered: u64,
    /// Packets that left at the far end, copies and damaged ones included.
    pub left: u64,
    /// Packets that were lost.
    pub lost: u64,
}

/// A wire and its agenda.
#[derive(Debug)]
pub(crate) struct Wire {
    links: [Link; 2],
    counts: [WireCounts; 2],
    /// By the time at which they leave, then by the order in which they entered.
    agenda: BTreeMap<(Duration, u64), (Direction, Parcel)>,
    entries: u64,
}

fn index(direction: Direction) -> usize {
    match direction {
        Direction::Up => 0,
        Direction::Down => 1,
    }
}

impl Wire {
    /// A wire whose links draw from this seed.
    pub(crate) fn new(up: LinkConfig, down: LinkConfig, seed: u64) -> Self {
        let link = |config, label| Link::with_rng(config, seed::rng(seed, label));
        Self {
            links: [link(up, "up"), link(down, "down")],
            counts: [WireCounts::default(); 2],
            agenda: BTreeMap::new(),
            entries: 0,
        }
    }

    /// What the links do to packets that enter from now on.
    pub(crate) fn reconfigure(&mut self, up: LinkConfig, down: LinkConfig) {
        let [was_up, was_down] = &mut self.links;
        was_up.reconfigure(up);
        was_down.reconfigure(down);
    }

    /// A packet enters. `headers`: the bytes of its IP and UDP headers.
    pub(crate) fn enter(
        &mut self,
        direction: Direction,
        parcel: &Parcel,
        headers: usize,
        now: Duration,
    ) {
        let counts = &mut self.counts[index(direction)];
        counts.entered += 1;
        if self.agenda.len() >= ON_THE_WAY {
            counts.lost += 1;
            return;
        }
        let link = &mut self.links[index(direction)];
        for verdict in link.transmit(parcel.payload.len() + headers, now) {
            match verdict {
                Verdict::Deliver { at, corruption } => {
                    let mut parcel = parcel.clone();
                    if let Some(corruption) = corruption {
                        let mut damaged = parcel.payload.to_vec();
                        corruption.apply(&mut damaged);
                        parcel.payload = damaged.into();
                    }
                    self.agenda.insert((at, self.entries), (direction, parcel));
                    self.entries += 1;
                }
                Verdict::Drop(_) => counts.lost += 1,
            }
        }
    }

    /// When the next packet leaves.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.agenda.first_key_value().map(|((at, _), _)| *at)
    }

    /// A packet that has left by now.
    pub(crate) fn leave(&mut self, now: Duration) -> Option<(Direction, Parcel)> {
        let first = self.agenda.first_entry()?;
        if first.key().0 > now {
            return None;
        }
        let (direction, parcel) = first.remove();
        self.counts[index(direction)].left += 1;
        Some((direction, parcel))
    }

    /// What became of the packets: up, down.
    pub(crate) fn counts(&self) -> [WireCounts; 2] {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADERS: usize = 28;

    fn parcel(n: u16) -> Parcel {
        Parcel {
            client: ([127, 0, 0, 1], 1).into(),
            payload: Bytes::copy_from_slice(&n.to_be_bytes()),
        }
    }

    proptest! {
        /// Each packet leaves once at the other end, never before its delay, in the order of time,
        /// or is lost: none is made up and none is forgotten.
        #[test]
        fn what_enters_leaves_or_is_lost(
            seed: u64,
            loss in 0.0..0.5_f64,
            delays in (0_u64..200, 0_u64..200),
            gaps in proptest::collection::vec((any::<bool>(), 0_u64..20), 1..200),
        ) {
            let config = |delay| LinkConfig::perfect().loss(loss).delay(Duration::from_millis(delay));
            let mut wire = Wire::new(config(delays.0), config(delays.1), seed);
            let (mut now, mut entered, mut seen) = (Duration::ZERO, Vec::new(), Vec::new());
            let mut last = Duration::ZERO;
            let mut take = |wire: &mut Wire, now: Duration, last: &mut Duration| {
                while let Some(at) = wire.next().filter(|at| *at <= now) {
                    assert!(*last <= at, "in the order of time");
                    *last = at;
                    let (direction, parcel) = wire.leave(now).unwrap();
                    let n = u16::from_be_bytes(parcel.payload[..].try_into().unwrap());
                    seen.push((n, direction, at));
                }
                assert!(wire.leave(now).is_none());
            };
            for (n, (up, gap)) in (0..).zip(gaps) {
                now += Duration::from_millis(gap);
                take(&mut wire, now, &mut last);
                let direction = if up { Direction::Up } else { Direction::Down };
                entered.push((direction, now));
                wire.enter(direction, &parcel(n), HEADERS, now);
            }
            take(&mut wire, now + Duration::from_secs(1), &mut last);
            prop_assert_eq!(wire.next(), None);
            let [up, down] = wire.counts();
            prop_assert_eq!(up.entered + down.entered, entered.len() as u64);
            prop_assert_eq!(up.left + down.left, seen.len() as u64);
            prop_assert_eq!((up.entered, down.entered), (up.left + up.lost, down.left + down.lost));
            let mut numbers: Vec<u16> = seen.iter().map(|(n, ..)| *n).collect();
            numbers.sort_unstable();
            numbers.dedup();
            prop_assert_eq!(numbers.len(), seen.len(), "none twice");
            for (n, direction, at) in seen {
                let (entered_by, when) = entered[usize::from(n)];
                prop_assert_eq!(direction, entered_by);
                let delay = if direction == Direction::Up { delays.0 } else { delays.1 };
                prop_assert_eq!(at, when + Duration::from_millis(delay));
            }
        }
    }

    #[test]
    fn a_wire_holds_no_more_than_it_may() {
        let endless = LinkConfig::perfect().delay(Duration::from_secs(3600));
        let mut wire = Wire::new(endless.clone(), endless, 1);
        for _ in 0..ON_THE_WAY + 10 {
            wire.enter(Direction::Up, &parcel(1), HEADERS, Duration::ZERO);
        }
        assert_eq!(wire.counts()[0].lost, 10);
    }

    #[test]
    fn damage_is_one_bit_and_copies_are_two() {
        let config = LinkConfig::perfect().corrupt(1.0).duplicate(1.0);
        let mut wire = Wire::new(config.clone(), config, 7);
        wire.enter(Direction::Down, &parcel(0), HEADERS, Duration::ZERO);
        for _ in 0..2 {
            let (direction, left) = wire.leave(Duration::ZERO).unwrap();
            let ones: u32 = left.payload.iter().map(|byte| byte.count_ones()).sum();
            assert_eq!((direction, ones), (Direction::Down, 1));
        }
        assert_eq!(wire.counts()[1].left, 2);
        assert!(wire.leave(Duration::MAX).is_none());
    }
}
