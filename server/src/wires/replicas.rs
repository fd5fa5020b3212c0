//! Which replica of an exposure a connection or flow goes to: the one that has the fewest, among
//! equals the first. Counts are kept here; the choice is pure.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hub_ledger::{Exposure, ExposureId};
use hub_protocol::NodeName;
use hub_protocol::target::Target;

use crate::proxy::{LedgerRoutes, Live, Resolved, RouteError};

/// A replica: the node's name and the target on it.
type Key = (NodeName, Target);

/// How many connections or flows each replica of one exposure has. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Loads(Arc<Mutex<BTreeMap<Key, u32>>>);

impl Loads {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more on this replica, until dropped.
    pub(super) fn hold(&self, live: &Live) -> Held {
        let key = (live.node_name.clone(), live.target.clone());
        *self.lock().entry(key.clone()).or_default() += 1;
        Held {
            loads: self.clone(),
            key,
        }
    }
}

/// A place on a replica.
#[derive(Debug)]
pub(super) struct Held {
    loads: Loads,
    key: Key,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut loads = self.loads.lock();
        if let Some(count) = loads.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                loads.remove(&self.key);
            }
        }
    }
}

/// Why there is nobody to go to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Nobody {
    /// The exposure can't be found.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// No node of it is connected.
    #[error("its nodes are away: {0}")]
    Away(String),
    /// It has as many as it may have.
    #[error("it has all the connections or flows it may have")]
    Exposure,
    /// All replicas have what they may have.
    #[error("each of its replicas has all the sessions it may have")]
    Full,
}

/// The replicas that can be reached and have room, in the order in which to try them. The exposure
/// has at most so many connections or flows, unless it has a bound of its own. `found` is told of it.
pub(super) async fn candidates(
    routes: &LedgerRoutes,
    exposure: ExposureId,
    loads: &Loads,
    most: u32,
    found: impl FnOnce(&Arc<Exposure>),
) -> Result<Vec<Live>, Nobody> {
    let Resolved {
        exposure,
        replicas,
        away,
        ..
    } = routes.of(exposure).await?;
    found(&exposure);
    if replicas.is_empty() {
        let away: Vec<_> = away.iter().map(ToString::to_string).collect();
        return Err(Nobody::Away(away.join(", ")));
    }
    let counts: Vec<u32> = {
        let loads = loads.lock();
        let most = exposure.settings.max_requests.unwrap_or(most);
        if loads.values().sum::<u32>() >= most {
            return Err(Nobody::Exposure);
        }
        let count = |live: &Live| {
            let key = (live.node_name.clone(), live.target.clone());
            loads.get(&key).copied().unwrap_or(0)
        };
        replicas.iter().map(count).collect()
    };
    let order = order(&counts, exposure.settings.max_sessions);
    if order.is_empty() {
        return Err(Nobody::Full);
    }
    let mut replicas: Vec<_> = replicas.into_iter().map(Some).collect();
    Ok(order.iter().filter_map(|at| replicas[*at].take()).collect())
}

/// The order in which to try replicas that have so many each, and may have at most so many.
fn order(counts: &[u32], most: Option<u32>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..counts.len())
        .filter(|at| most.is_none_or(|most| counts[*at] < most))
        .collect();
    order.sort_by_key(|at| counts[*at]);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_with_the_fewest_come_first_and_full_ones_not_at_all() {
        assert_eq!(order(&[2, 0, 1, 0], None), [1, 3, 2, 0]);
        assert_eq!(order(&[2, 0, 1, 0], Some(2)), [1, 3, 2]);
        assert_eq!(order(&[2, 2], Some(2)), [0; 0]);
        assert_eq!(order(&[], None), [0; 0]);
    }
}
