//! Which replica of an exposure a request goes to. Pure.
//!
//! The one with the least under way; among equals the next in turn. A browser that has been to a
//! replica comes back to it where the exposure says so. An upgraded connection takes one of the
//! replica's sessions for as long as it lives. A request that certainly never started may be
//! tried at another replica, at each of them once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hub_ledger::ExposureId;
use hub_protocol::NodeName;
use hub_protocol::kind::FailureCode;
use hub_protocol::target::Target;
use ring::hmac;

use crate::counter::locked;
use crate::secret::HubSecret;

/// The most replicas of one exposure: a set of them fits into 16 bits.
pub(super) const MAX_REPLICAS: usize = 16;

/// How much of a digest names a replica in a cookie, in bytes. It gives nothing away and has
/// nothing to prove: who makes one up gets a replica like anybody.
const MARK: usize = 12;

/// Identifies a replica among all there are, also after its exposure's list was changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ReplicaKey {
    pub(super) exposure: ExposureId,
    pub(super) node: NodeName,
    pub(super) target: Target,
}

/// What a replica has to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Load {
    /// Requests under way, upgraded connections among them.
    pub(super) outstanding: u32,
    /// Upgraded connections.
    pub(super) sessions: u32,
}

/// Some of the replicas of a list, by their places in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Places(u16);

impl Places {
    /// Adds one.
    pub(super) fn add(&mut self, place: usize) {
        if place < MAX_REPLICAS {
            self.0 |= 1 << place;
        }
    }

    /// Whether it is among them. What no list can hold always is.
    pub(super) fn has(self, place: usize) -> bool {
        place >= MAX_REPLICAS || self.0 & 1 << place != 0
    }
}

/// What a request wants of its replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Wanted {
    /// Whether it asks for an upgrade, which takes one of the replica's sessions.
    pub(super) session: bool,
    /// How many of these a replica may have.
    pub(super) max_sessions: Option<u32>,
    /// The place of the replica that this browser has been to.
    pub(super) sticky: Option<usize>,
    /// Counts requests: decides among equals.
    pub(super) turn: usize,
}

/// Why no replica is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoReplica {
    /// All that are left have all the sessions they may have.
    Full,
    /// All that there are have been tried.
    Tried,
}

/// Chooses among the replicas with these loads, leaving out those that were tried.
pub(super) fn choose(loads: &[Load], tried: Places, wanted: Wanted) -> Result<usize, NoReplica> {
    let left = || (0..loads.len()).filter(|place| !tried.has(*place));
    let has_room = |place: &usize| {
        let max = wanted.max_sessions.filter(|_| wanted.session);
        max.is_none_or(|max| loads[*place].sessions < max)
    };
    if left().next().is_none() {
        return Err(NoReplica::Tried);
    }
    if let Some(sticky) = wanted.sticky
        && left().any(|place| place == sticky && has_room(&place))
    {
        return Ok(sticky);
    }
    let count = loads.len();
    let after_turn = |place: &usize| (place + count - wanted.turn % count) % count;
    left()
        .filter(has_room)
        .min_by_key(|place| (loads[*place].outstanding, after_turn(place)))
        .ok_or(NoReplica::Full)
}

/// Whether a request that an agent refused with this code, before it accepted it, certainly never
/// reached a target, so that another replica may be tried. A target that refuses the connection
/// has had nothing.
pub(super) fn never_started(code: FailureCode) -> bool {
    matches!(
        code,
        FailureCode::UNSUPPORTED
            | FailureCode::NO_SUCH_CONTAINER
            | FailureCode::NOT_RUNNING
            | FailureCode::FORBIDDEN
            | FailureCode::BUSY
            | FailureCode::RUNTIME_UNAVAILABLE
            | FailureCode::NOT_EXPOSED
            | FailureCode::TARGET_REFUSED
            | FailureCode::TARGET_TIMED_OUT
    )
}

/// What the replicas of all exposures have to do. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Loads(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    turn: usize,
    /// Of those that have anything to do.
    loads: HashMap<ReplicaKey, Load>,
}

impl Loads {
    /// Chooses one of `replicas` and counts the request there until what it gives is dropped. The
    /// turn is counted here.
    pub(super) fn take(
        &self,
        replicas: &[ReplicaKey],
        tried: Places,
        wanted: Wanted,
    ) -> Result<(usize, Held), NoReplica> {
        let mut book = locked(&self.0);
        let load = |key| book.loads.get(key).copied().unwrap_or_default();
        let loads: Vec<Load> = replicas.iter().map(load).collect();
        let turn = book.turn;
        let place = choose(&loads, tried, Wanted { turn, ..wanted })?;
        book.turn = turn.wrapping_add(1);
        let load = book.loads.entry(replicas[place].clone()).or_default();
        load.outstanding += 1;
        load.sessions += u32::from(wanted.session);
        let held = Held {
            book: self.0.clone(),
            key: replicas[place].clone(),
            session: wanted.session,
        };
        Ok((place, held))
    }

    /// What a replica has to do now.
    #[cfg(test)]
    fn of(&self, key: &ReplicaKey) -> Load {
        locked(&self.0).loads.get(key).copied().unwrap_or_default()
    }
}

/// A request that is under way at a replica.
pub(super) struct Held {
    book: Arc<Mutex<Book>>,
    key: ReplicaKey,
    session: bool,
}

impl Held {
    /// The request was not upgraded after all: its session is free.
    pub(super) fn not_upgraded(&mut self) {
        if std::mem::take(&mut self.session)
            && let Some(load) = locked(&self.book).loads.get_mut(&self.key)
        {
            load.sessions -= 1;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut book = locked(&self.book);
        if let Some(load) = book.loads.get_mut(&self.key) {
            load.outstanding -= 1;
            load.sessions -= u32::from(self.session);
            if *load == Load::default() {
                book.loads.remove(&self.key);
            }
        }
    }
}

/// Names replicas in cookies, so that nobody learns which there are.
pub(super) struct Marks(hmac::Key);

impl Marks {
    /// The marks of this hub. They stay the same when it starts again.
    pub(super) fn new(secret: &HubSecret) -> Self {
        let key = secret.derive(b"hub replica cookie v1");
        Self(hmac::Key::new(hmac::HMAC_SHA256, &key))
    }

    /// The mark of a replica: 16 characters of base64.
    pub(super) fn of(&self, key: &ReplicaKey) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(&key.exposure.0.to_be_bytes());
        // No name has a space in it.
        context.update(format!("{} {}", key.node, key.target).as_bytes());
        URL_SAFE_NO_PAD.encode(&context.sign().as_ref()[..MARK])
    }

    /// The place of the first replica that one of these marks names.
    pub(super) fn find(&self, marks: &[&[u8]], replicas: &[ReplicaKey]) -> Option<usize> {
        if marks.is_empty() {
            return None;
        }
        replicas.iter().position(|key| {
            let mark = self.of(key);
            marks.contains(&mark.as_bytes())
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn key(node: u8) -> ReplicaKey {
        ReplicaKey {
            exposure: ExposureId(1),
            node: format!("node-{node}").parse().unwrap(),
            target: Target::tcp(80),
        }
    }

    fn loads() -> impl Strategy<Value = Vec<Load>> {
        let load = (0u32..4, 0u32..4).prop_map(|(more, sessions)| Load {
            outstanding: more + sessions,
            sessions,
        });
        prop::collection::vec(load, 1..=MAX_REPLICAS)
    }

    fn wanted() -> impl Strategy<Value = Wanted> {
        let max = prop::option::of(0u32..4);
        let sticky = prop::option::of(0..MAX_REPLICAS + 2);
        (any::<bool>(), max, sticky, any::<usize>()).prop_map(
            |(session, max_sessions, sticky, turn)| Wanted {
                session,
                max_sessions,
                sticky,
                turn,
            },
        )
    }

    proptest! {
        #[test]
        fn never_twice_the_same_and_all_before_giving_up(loads in loads(), wanted in wanted()) {
            let wanted = Wanted { max_sessions: None, ..wanted };
            let (mut tried, mut order) = (Places::default(), Vec::new());
            while let Ok(place) = choose(&loads, tried, wanted) {
                prop_assert!(!order.contains(&place));
                order.push(place);
                tried.add(place);
            }
            prop_assert_eq!(order.len(), loads.len());
            prop_assert_eq!(choose(&loads, tried, wanted), Err(NoReplica::Tried));
        }

        #[test]
        fn the_chosen_one_has_the_least_to_do(
            loads in loads(), wanted in wanted(), tried: u16,
        ) {
            let (tried, wanted) = (Places(tried), Wanted { sticky: None, ..wanted });
            let room = |place: usize| {
                !wanted.session || wanted.max_sessions.is_none_or(|max| loads[place].sessions < max)
            };
            let eligible: Vec<usize> =
                (0..loads.len()).filter(|place| !tried.has(*place) && room(*place)).collect();
            let least = eligible.iter().map(|place| loads[*place].outstanding).min();
            match choose(&loads, tried, wanted) {
                Ok(place) => {
                    prop_assert!(eligible.contains(&place));
                    prop_assert_eq!(Some(loads[place].outstanding), least);
                }
                Err(NoReplica::Tried) => prop_assert!((0..loads.len()).all(|place| tried.has(place))),
                Err(NoReplica::Full) => {
                    prop_assert!(eligible.is_empty() && (0..loads.len()).any(|place| !tried.has(place)));
                }
            }
        }

        #[test]
        fn a_browser_comes_back_to_its_replica_while_that_has_room(
            loads in loads(), wanted in wanted(), tried: u16,
        ) {
            let Some(sticky) = wanted.sticky.filter(|sticky| *sticky < loads.len()) else {
                return Ok(());
            };
            let room = !wanted.session
                || wanted.max_sessions.is_none_or(|max| loads[sticky].sessions < max);
            let chosen = choose(&loads, Places(tried), wanted);
            if room && !Places(tried).has(sticky) {
                prop_assert_eq!(chosen, Ok(sticky));
            } else {
                prop_assert_ne!(chosen, Ok(sticky));
            }
        }

        #[test]
        fn equals_take_turns(count in 1..=MAX_REPLICAS, first: usize) {
            let loads = vec![Load::default(); count];
            let first = first % (usize::MAX - count);
            let chosen: std::collections::BTreeSet<_> = (first..first + count)
                .map(|turn| choose(&loads, Places::default(), Wanted { turn, ..Wanted::default() }))
                .map(Result::unwrap)
                .collect();
            prop_assert_eq!(chosen.len(), count);
        }

        #[test]
        fn loads_are_what_is_held_and_sessions_never_beyond_their_limit(
            steps in prop::collection::vec((0u8..4, any::<bool>(), any::<usize>()), 1..80),
            count in 1u8..5, max in 1u32..3,
        ) {
            let keys: Vec<ReplicaKey> = (0..count).map(key).collect();
            let book = Loads::default();
            let mut held: Vec<(usize, bool, Held)> = Vec::new();
            for (step, session, which) in steps {
                if step > 0 {
                    let wanted = Wanted { session, max_sessions: Some(max), ..Wanted::default() };
                    match book.take(&keys, Places::default(), wanted) {
                        Ok((place, one)) => held.push((place, session, one)),
                        Err(error) => {
                            prop_assert_eq!(error, NoReplica::Full);
                            prop_assert!(keys.iter().all(|key| book.of(key).sessions == max));
                        }
                    }
                } else if !held.is_empty() {
                    let at = which % held.len();
                    if session {
                        held.remove(at);
                    } else {
                        held[at].1 = false;
                        held[at].2.not_upgraded();
                    }
                }
                for (place, key) in keys.iter().enumerate() {
                    let here = || held.iter().filter(|(other, ..)| *other == place);
                    let load = book.of(key);
                    prop_assert_eq!(load.outstanding as usize, here().count());
                    let sessions = here().filter(|(_, session, _)| *session).count();
                    prop_assert_eq!(load.sessions as usize, sessions);
                    prop_assert!(load.sessions <= max);
                }
            }
            drop(held);
            prop_assert!(locked(&book.0).loads.is_empty(), "nothing stays behind");
        }
    }

    #[test]
    fn a_mark_finds_its_replica_wherever_it_stands_and_no_other() {
        let marks = Marks::new(&HubSecret::from_bytes([1; 32]));
        let keys = [key(1), key(2), key(3)];
        let mark = marks.of(&keys[1]);
        assert_eq!(mark.len(), 16);
        assert_eq!(marks.find(&[b"junk", mark.as_bytes()], &keys), Some(1));
        let moved = [key(2), key(1)];
        assert_eq!(marks.find(&[mark.as_bytes()], &moved), Some(0));
        assert_eq!(marks.find(&[mark.as_bytes()], &[key(3)]), None);
        assert_eq!(marks.find(&[], &keys), None);
        let elsewhere = ReplicaKey {
            exposure: ExposureId(2),
            ..key(2)
        };
        assert_ne!(marks.of(&elsewhere), mark);
        let other = Marks::new(&HubSecret::from_bytes([2; 32]));
        assert_ne!(other.of(&keys[1]), mark);
    }

    #[test]
    fn what_may_have_reached_a_target_is_not_tried_again() {
        assert!(never_started(FailureCode::TARGET_REFUSED));
        assert!(never_started(FailureCode::NOT_RUNNING));
        for code in [
            FailureCode::TARGET_BROKEN,
            FailureCode::INTERNAL,
            FailureCode(999),
        ] {
            assert!(!never_started(code), "{code:?}");
        }
    }
}
