//! What requests were found to go to, kept for the next ones while the ledger stands as it did.
//!
//! A request that asks the ledger changes threads twice. Most ask for what the one before them asked
//! for, and nothing was written in between. Every write of this program moves the ledger's revision
//! ([`Store::revision`](crate::store::Store::revision)), and what was found before it is asked for
//! anew; what another program wrote is seen after [`FOREIGN`] at the latest. Only what was found is
//! kept: who guesses asks the ledger every time, and keeps nothing here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use hub_ledger::Exposure;
use tokio::time::{Duration, Instant};

use super::Route;
use crate::counter::locked;
use crate::store::{Home, Located};

/// How long a write of another program that shares the ledger may go unseen.
pub(super) const FOREIGN: Duration = Duration::from_secs(1);

/// How many routes are kept. One more, and all are asked for anew: some 4 MiB with sixteen replicas
/// each.
const ROUTES: usize = 1024;

/// An exposure and the nodes of its replicas, as the ledger had them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) exposure: Arc<Exposure>,
    pub(super) homes: Vec<Home>,
}

impl From<Located> for Found {
    fn from(Located { exposure, homes }: Located) -> Self {
        Self {
            exposure: Arc::new(exposure),
            homes,
        }
    }
}

/// When something was found: the ledger's revision before it was asked, and the time.
#[derive(Debug, Clone, Copy)]
pub(super) struct When {
    pub(super) revision: u64,
    pub(super) at: Instant,
}

/// What was found by route, all at one revision: what was found before is of no use any more.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    revision: u64,
    routes: HashMap<Route, (Instant, Arc<Found>)>,
}

impl Known {
    /// What this route was found to go to, if that certainly stands.
    pub(super) fn get(&self, route: &Route, now: When) -> Option<Arc<Found>> {
        let table = locked(&self.0);
        let (at, found) = table.routes.get(route)?;
        let stands = table.revision == now.revision && now.at.duration_since(*at) < FOREIGN;
        stands.then(|| found.clone())
    }

    /// Keeps what a route was found to go to. `when` is from before the ledger was asked.
    pub(super) fn keep(&self, route: Route, when: When, found: Arc<Found>) {
        let mut table = locked(&self.0);
        if when.revision < table.revision {
            return;
        }
        let full = table.routes.len() >= ROUTES && !table.routes.contains_key(&route);
        if full || when.revision > table.revision {
            table.routes.clear();
        }
        table.revision = when.revision;
        table.routes.insert(route, (when.at, found));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use hub_ledger::exposure::Settings;
    use hub_ledger::{Access, ExposureId, Protocol, Timestamp};
    use proptest::prelude::*;

    use super::*;

    fn found(id: u64) -> Arc<Found> {
        Arc::new(Found {
            exposure: Arc::new(Exposure {
                id: ExposureId(id),
                name: None,
                token: None,
                access: Access::Public,
                protocol: Protocol::Http,
                replicas: Vec::new(),
                listen: None,
                settings: Settings::default(),
                created: Timestamp::from_millis(0),
            }),
            homes: Vec::new(),
        })
    }

    fn route(n: usize) -> Route {
        Route::Name(format!("shop-{n}").parse().unwrap())
    }

    #[derive(Debug, Clone)]
    enum Step {
        /// This program writes.
        Write,
        /// Another program writes.
        Foreign,
        /// So many milliseconds pass.
        Pass(u64),
        /// A request: asks, keeps.
        Ask(usize),
        /// A request that asks, and a write that is done before it keeps what it found.
        Overtaken(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            Just(Step::Write),
            Just(Step::Foreign),
            (0_u64..2_000).prop_map(Step::Pass),
            (0_usize..3).prop_map(Step::Ask),
            (0_usize..3).prop_map(Step::Overtaken),
        ];
        proptest::collection::vec(step, 1..60)
    }

    proptest! {
        /// What is known is never older than the last write of this program, nor than a write of
        /// another by [`FOREIGN`].
        #[test]
        fn what_is_known_stands(steps in steps()) {
            let known = Known::default();
            // Of each write, when it was and whether this program did it. How many there were is the
            // ledger's content.
            let mut writes: Vec<(Instant, bool)> = Vec::new();
            let (mut revision, mut clock) = (0, Instant::now());
            for step in steps {
                let now = When { revision, at: clock };
                match step {
                    Step::Write => {
                        writes.push((clock, true));
                        revision += 1;
                    }
                    Step::Foreign => writes.push((clock, false)),
                    Step::Pass(millis) => clock += Duration::from_millis(millis),
                    Step::Ask(n) => {
                        if let Some(found) = known.get(&route(n), now) {
                            let content = usize::try_from(found.exposure.id.0).unwrap();
                            for (when, own) in &writes[content..] {
                                prop_assert!(!own && clock - *when < FOREIGN);
                            }
                        } else {
                            known.keep(route(n), now, found(writes.len() as u64));
                            prop_assert!(known.get(&route(n), now).is_some());
                        }
                    }
                    Step::Overtaken(n) => {
                        let seen = found(writes.len() as u64);
                        writes.push((clock, true));
                        revision += 1;
                        known.keep(route(n), now, seen);
                    }
                }
            }
        }
    }

    #[test]
    fn what_was_found_before_a_write_is_let_go_of() {
        let known = Known::default();
        let at = Instant::now();
        let [first, second] = [1, 2].map(|revision| When { revision, at });
        for n in 0..10 {
            known.keep(route(n), first, found(1));
        }
        known.keep(route(0), second, found(2));
        assert_eq!(locked(&known.0).routes.len(), 1);
        // One that the write overtook comes too late to be kept.
        known.keep(route(1), first, found(1));
        assert!(known.get(&route(1), second).is_none());
        assert_eq!(known.get(&route(0), second), Some(found(2)));
    }

    #[test]
    fn no_more_is_kept_than_has_room() {
        let known = Known::default();
        let now = When {
            revision: 1,
            at: Instant::now(),
        };
        for n in 0..3 * ROUTES {
            known.keep(route(n), now, found(1));
            assert!(locked(&known.0).routes.len() <= ROUTES);
        }
        assert!(known.get(&route(3 * ROUTES - 1), now).is_some());
        assert!(known.get(&route(0), now).is_none());
    }
}
