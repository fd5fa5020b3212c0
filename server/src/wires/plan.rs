//! Which listeners to open and to close: from what the ledger has and what is open, without I/O.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use hub_ledger::ExposureId;
use hub_protocol::target::Transport;

/// How long after a listener could not be opened that is tried again, at first; then twice as long
/// each time.
const RETRY: Duration = Duration::from_secs(1);

/// How long at most.
const MAX_RETRY: Duration = Duration::from_secs(60);

/// What an exposure wants to be listened on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) transport: Transport,
    /// Port 0 is any that is free.
    pub(super) listen: SocketAddr,
}

/// A listener that is open, or could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    /// What it was opened for.
    pub(super) wanted: Wanted,
    pub(super) state: State,
}

/// How a listener is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// It listens here.
    Open(SocketAddr),
    /// It can't: why, how often in a row, and when to try again.
    Failed {
        error: String,
        attempts: u32,
        again: Duration,
    },
}

impl State {
    /// That of a listener that could not be opened at `now`, after `before`.
    pub(super) fn failed(error: String, before: Option<&Self>, now: Duration) -> Self {
        let attempts = match before {
            Some(Self::Failed { attempts, .. }) => attempts.saturating_add(1),
            _ => 1,
        };
        let pause = RETRY.saturating_mul(1 << (attempts - 1).min(16));
        Self::Failed {
            error,
            attempts,
            again: now + pause.min(MAX_RETRY),
        }
    }
}

/// What is to be done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Close these first: another may want their address.
    pub(super) close: Vec<ExposureId>,
    /// Open these, new ones and those whose time has come.
    pub(super) open: Vec<(ExposureId, Wanted)>,
}

/// What is to be done at `now`, with these listeners known and these exposures in the ledger.
pub(super) fn plan(
    known: &BTreeMap<ExposureId, Known>,
    wanted: &BTreeMap<ExposureId, Wanted>,
    now: Duration,
) -> Plan {
    let changed = |(id, known): &(&ExposureId, &Known)| wanted.get(id) != Some(&known.wanted);
    let mut plan = Plan {
        close: known.iter().filter(changed).map(|(id, _)| *id).collect(),
        ..Plan::default()
    };
    for (id, wanted) in wanted {
        match known.get(id) {
            Some(known) if known.wanted == *wanted => match known.state {
                State::Open(_) => {}
                // Its time has not come.
                State::Failed { again, .. } if again > now => {}
                State::Failed { .. } => plan.open.push((*id, *wanted)),
            },
            _ => plan.open.push((*id, *wanted)),
        }
    }
    // An address that was asked for goes to whoever asked, and any free one to the rest.
    plan.open
        .sort_by_key(|(id, wanted)| (wanted.listen.port() == 0, *id));
    plan
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wanted(port: u16) -> Wanted {
        Wanted {
            transport: Transport::Tcp,
            listen: SocketAddr::from(([127, 0, 0, 1], port)),
        }
    }

    fn open(port: u16) -> Known {
        let wanted = wanted(port);
        let state = State::Open(wanted.listen);
        Known { wanted, state }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_comes_is_opened_and_what_goes_or_changes_is_closed() {
        let id = ExposureId;
        let known = BTreeMap::from([(id(1), open(1)), (id(2), open(2)), (id(3), open(3))]);
        let ledger = BTreeMap::from([
            (id(1), wanted(1)),
            (id(3), wanted(33)),
            (id(4), wanted(0)),
            (id(5), wanted(2)),
        ]);
        let plan = plan(&known, &ledger, SECOND);
        assert_eq!(plan.close, [id(2), id(3)]);
        let opened: Vec<_> = plan.open.iter().map(|(id, _)| id.0).collect();
        assert_eq!(opened, [3, 5, 4]);
    }

    #[test]
    fn what_failed_is_tried_again_ever_later() {
        let id = ExposureId(1);
        let ledger = BTreeMap::from([(id, wanted(1))]);
        let mut state = State::failed("taken".into(), None, SECOND);
        let mut now = SECOND;
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            let known = BTreeMap::from([(
                id,
                Known {
                    wanted: wanted(1),
                    state: state.clone(),
                },
            )]);
            let due = now + pause * SECOND;
            let early = plan(&known, &ledger, due.saturating_sub(Duration::from_nanos(1)));
            assert_eq!(early, Plan::default());
            assert_eq!(plan(&known, &ledger, due).open, [(id, wanted(1))]);
            now = due;
            state = State::failed("taken".into(), Some(&state), now);
        }
    }

    proptest! {
        /// Carried out, a plan leaves open what the ledger wants and nothing else, and the next has
        /// nothing to do.
        #[test]
        fn plans_lead_to_what_is_wanted(
            was in prop::collection::btree_map(0..6u64, 0..4u16, 0..6),
            wants in prop::collection::btree_map(0..6u64, 0..4u16, 0..6),
        ) {
            let mut known: BTreeMap<_, _> =
                was.into_iter().map(|(id, port)| (ExposureId(id), open(port))).collect();
            let ledger: BTreeMap<_, _> =
                wants.into_iter().map(|(id, port)| (ExposureId(id), wanted(port))).collect();
            let todo = plan(&known, &ledger, SECOND);
            for id in todo.close {
                known.remove(&id);
            }
            for (id, wanted) in todo.open {
                let state = State::Open(wanted.listen);
                prop_assert_eq!(known.insert(id, Known { wanted, state }), None);
            }
            let open: BTreeMap<_, _> = known.iter().map(|(id, known)| (*id, known.wanted)).collect();
            prop_assert_eq!(&open, &ledger);
            prop_assert_eq!(plan(&known, &ledger, SECOND), Plan::default());
        }
    }
}
