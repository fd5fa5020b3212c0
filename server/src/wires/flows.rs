//! The UDP flows of one exposure, without I/O: which packet belongs to which, which may begin, and
//! which are over.
//!
//! A flow is named by its client's address. It is over when neither side has said anything for some
//! time. Where there are too many, the oldest that was never answered gives way: a flood of packets
//! with forged addresses takes nobody's flow who has had an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// How many flows there may be, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    /// In all.
    pub(super) flows: usize,
    /// From one address, whatever the port.
    pub(super) per_client: usize,
    /// How long a flow may be silent.
    pub(super) idle: Duration,
}

#[derive(Debug)]
struct Entry<F> {
    flow: F,
    /// Tells it from a later one of the same client.
    number: u64,
    began: Duration,
    last: Duration,
    /// When it is looked at next.
    due: Duration,
    answered: bool,
}

/// A flow that began, and that which had to give way to it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Began<F> {
    /// Names it, together with the client's address.
    pub(super) number: u64,
    /// The one that is over now.
    pub(super) evicted: Option<F>,
}

/// Why a packet begins no flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// There are as many as there may be, all of them answered.
    Exposure,
    /// Its address has as many as one may have.
    Client,
}

/// The flows there are.
#[derive(Debug)]
pub(super) struct Table<F> {
    bounds: Bounds,
    flows: BTreeMap<SocketAddr, Entry<F>>,
    per_client: BTreeMap<IpAddr, usize>,
    /// When each is looked at next.
    due: BTreeSet<(Duration, SocketAddr)>,
    /// Those that were never answered, oldest first.
    unanswered: BTreeSet<(Duration, SocketAddr)>,
    numbers: u64,
}

impl<F> Table<F> {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            flows: BTreeMap::new(),
            per_client: BTreeMap::new(),
            due: BTreeSet::new(),
            unanswered: BTreeSet::new(),
            numbers: 0,
        }
    }

    /// The flow of a client that has sent something, if there is one.
    pub(super) fn heard(&mut self, client: SocketAddr, now: Duration) -> Option<&F> {
        let entry = self.flows.get_mut(&client)?;
        entry.last = now;
        Some(&entry.flow)
    }

    /// The target has sent something to a flow.
    pub(super) fn answered(&mut self, client: SocketAddr, number: u64, now: Duration) {
        if let Some(entry) = self.flows.get_mut(&client)
            && entry.number == number
        {
            entry.last = now;
            if !entry.answered {
                entry.answered = true;
                self.unanswered.remove(&(entry.began, client));
            }
        }
    }

    /// A client without a flow begins one. What it is, is asked only if it may.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn begin(
        &mut self,
        client: SocketAddr,
        now: Duration,
        flow: impl FnOnce(u64) -> F,
    ) -> Result<Began<F>, Full> {
        let of_client = self.per_client.get(&client.ip()).copied().unwrap_or(0);
        if of_client >= self.bounds.per_client {
            return Err(Full::Client);
        }
        let mut evicted = None;
        if self.flows.len() >= self.bounds.flows {
            let (_, oldest) = *self.unanswered.first().ok_or(Full::Exposure)?;
            evicted = self.take(oldest);
        }
        self.numbers += 1;
        let number = self.numbers;
        let due = now + self.bounds.idle;
        let entry = Entry {
            flow: flow(number),
            number,
            began: now,
            last: now,
            due,
            answered: false,
        };
        self.flows.insert(client, entry);
        self.due.insert((due, client));
        self.unanswered.insert((now, client));
        *self.per_client.entry(client.ip()).or_default() += 1;
        Ok(Began { number, evicted })
    }

    /// A flow is over; nothing happens if it is already.
    pub(super) fn end(&mut self, client: SocketAddr, number: u64) -> Option<F> {
        let entry = self.flows.get(&client)?;
        if entry.number == number {
            self.take(client)
        } else {
            None
        }
    }

    /// A flow that was silent for too long, if there is one. To be asked until there is none.
    pub(super) fn expired(&mut self, now: Duration) -> Option<F> {
        while let Some((due, client)) = self.due.first().copied()
            && due <= now
        {
            let Some(entry) = self.flows.get_mut(&client) else {
                self.due.pop_first();
                continue;
            };
            let silent_at = entry.last + self.bounds.idle;
            if silent_at <= now {
                return self.take(client);
            }
            // Something was said meanwhile: so packets need not move it.
            self.due.pop_first();
            entry.due = silent_at;
            self.due.insert((silent_at, client));
        }
        None
    }

    /// When to ask for [`expired`](Self::expired) ones again.
    pub(super) fn next(&self) -> Option<Duration> {
        self.due.first().map(|(due, _)| *due)
    }

    /// How many there are.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.flows.len()
    }

    fn take(&mut self, client: SocketAddr) -> Option<F> {
        let entry = self.flows.remove(&client)?;
        self.due.remove(&(entry.due, client));
        self.unanswered.remove(&(entry.began, client));
        if let Some(count) = self.per_client.get_mut(&client.ip()) {
            *count -= 1;
            if *count == 0 {
                self.per_client.remove(&client.ip());
            }
        }
        Some(entry.flow)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        flows: 4,
        per_client: 2,
        idle: Duration::from_secs(60),
    };

    fn client(host: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, host], port))
    }

    fn s(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn a_flow_lives_as_long_as_either_side_says_something() {
        let mut table = Table::new(BOUNDS);
        let number = table.begin(client(1, 1), s(0), |_| "a").unwrap().number;
        assert_eq!(table.next(), Some(s(60)));
        assert_eq!(table.heard(client(1, 1), s(30)), Some(&"a"));
        assert_eq!(table.expired(s(60)), None);
        assert_eq!(table.next(), Some(s(90)));
        table.answered(client(1, 1), number, s(80));
        assert_eq!(table.expired(s(100)), None);
        assert_eq!(table.expired(s(140)), Some("a"));
        assert_eq!((table.len(), table.next()), (0, None));
        assert_eq!(table.heard(client(1, 1), s(141)), None);
    }

    #[test]
    fn the_end_of_an_old_flow_is_none_of_a_new_one() {
        let mut table = Table::new(BOUNDS);
        let old = table.begin(client(1, 1), s(0), |_| "a").unwrap().number;
        assert_eq!(table.end(client(1, 1), old), Some("a"));
        table.begin(client(1, 1), s(1), |_| "b").unwrap();
        assert_eq!(table.end(client(1, 1), old), None);
        assert_eq!(table.heard(client(1, 1), s(2)), Some(&"b"));
    }

    #[test]
    fn a_flood_takes_only_places_of_the_unanswered() {
        let mut table = Table::new(BOUNDS);
        let number = table.begin(client(1, 1), s(0), |_| 1).unwrap().number;
        table.answered(client(1, 1), number, s(0));
        for host in 2..100 {
            let began = table
                .begin(client(host, 1), s(u64::from(host)), |_| host)
                .unwrap();
            assert_eq!(began.evicted, (host > 4).then(|| host - 3));
        }
        assert_eq!(table.heard(client(1, 1), s(100)), Some(&1));
        // One address has its own bound.
        table.begin(client(99, 2), s(100), |_| 0).unwrap();
        let third = table.begin(client(99, 3), s(100), |_| 0);
        assert_eq!(third, Err(Full::Client));
    }

    #[test]
    fn where_all_are_answered_no_more_begin() {
        let mut table = Table::new(BOUNDS);
        for host in 0..4 {
            let number = table.begin(client(host, 1), s(0), |_| host).unwrap().number;
            table.answered(client(host, 1), number, s(0));
        }
        assert_eq!(table.begin(client(9, 1), s(0), |_| 9), Err(Full::Exposure));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Packet(u8, u16),
        Answer(u8, u16),
        End(u8, u16),
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let client = || (0..4u8, 0..3u16);
        prop_oneof![
            4 => client().prop_map(|(host, port)| Step::Packet(host, port)),
            2 => client().prop_map(|(host, port)| Step::Answer(host, port)),
            1 => client().prop_map(|(host, port)| Step::End(host, port)),
            2 => (0..50u64).prop_map(Step::Pass),
        ]
    }

    proptest! {
        /// Against a model that looks at every flow every time.
        #[test]
        fn bounds_hold_and_silence_ends_flows(steps in prop::collection::vec(step(), 0..200)) {
            let mut table = Table::new(BOUNDS);
            // Number, when something was last said, and whether it was answered.
            let mut model: BTreeMap<SocketAddr, (u64, Duration, bool)> = BTreeMap::new();
            let mut now = Duration::ZERO;
            for step in steps {
                match step {
                    Step::Packet(host, port) => {
                        let client = client(host, port);
                        if let Some(number) = table.heard(client, now).copied() {
                            let known = model.get_mut(&client).unwrap();
                            prop_assert_eq!(known.0, number);
                            known.1 = now;
                            continue;
                        }
                        prop_assert!(!model.contains_key(&client));
                        match table.begin(client, now, |number| number) {
                            Ok(began) => {
                                if let Some(evicted) = began.evicted {
                                    let before = model.len();
                                    model.retain(|_, known| known.0 != evicted || known.2);
                                    prop_assert_eq!(model.len(), before - 1);
                                }
                                model.insert(client, (began.number, now, false));
                            }
                            Err(Full::Exposure) => {
                                prop_assert_eq!(model.len(), BOUNDS.flows);
                                prop_assert!(model.values().all(|known| known.2));
                            }
                            Err(Full::Client) => {
                                let same = model.keys().filter(|known| known.ip() == client.ip());
                                prop_assert_eq!(same.count(), BOUNDS.per_client);
                            }
                        }
                    }
                    Step::Answer(host, port) => {
                        if let Some(known) = model.get_mut(&client(host, port)) {
                            table.answered(client(host, port), known.0, now);
                            *known = (known.0, now, true);
                        }
                    }
                    Step::End(host, port) => {
                        let number = model.remove(&client(host, port)).map(|known| known.0);
                        prop_assert_eq!(table.end(client(host, port), number.unwrap_or(0)), number);
                    }
                    Step::Pass(passed) => {
                        now += s(passed);
                        while let Some(number) = table.expired(now) {
                            let before = model.len();
                            model.retain(|_, known| known.0 != number || known.1 + BOUNDS.idle > now);
                            prop_assert_eq!(model.len(), before - 1);
                        }
                        prop_assert!(model.values().all(|known| known.1 + BOUNDS.idle > now));
                        prop_assert!(table.next().is_none_or(|next| next > now));
                    }
                }
                prop_assert_eq!(table.len(), model.len());
                prop_assert!(table.len() <= BOUNDS.flows);
            }
        }
    }
}
