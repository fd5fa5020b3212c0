//! Which replica of an exposure a connection or flow goes to: the one that has the fewest, among
//! equals the first. The choice is pure.

use std::sync::Arc;

use hub_ledger::{Exposure, ExposureId};
use hub_protocol::NodeName;
use hub_protocol::target::Target;

use crate::counter::{Counter, Permit};
use crate::proxy::{LedgerRoutes, Live, Resolved, RouteError};

/// A replica: the node's name and the target on it.
pub(super) type Key = (NodeName, Target);

/// How many connections or flows each replica of one exposure has.
pub(super) type Loads = Counter<Key>;

/// A place on a replica, until dropped.
pub(super) type Held = Permit<Key>;

/// What a replica is counted by.
pub(super) fn key(live: &Live) -> Key {
    (live.node_name.clone(), live.target.clone())
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
    if loads.total() >= exposure.settings.max_requests.unwrap_or(most) {
        return Err(Nobody::Exposure);
    }
    let counts: Vec<u32> = replicas
        .iter()
        .map(|live| loads.count(&key(live)))
        .collect();
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
