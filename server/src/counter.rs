//! What is under way, counted by key: requests of an exposure, connections of a client's address,
//! flows at a replica. What has been counted is let go of by being dropped.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts what is under way by key. Clones share the counts.
pub(crate) struct Counter<K>(Arc<Mutex<HashMap<K, u32>>>);

impl<K> Clone for Counter<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> Default for Counter<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Eq + Hash> Counter<K> {
    /// Counts one more of `key` until what it gives is dropped; `None`: there are `max` already.
    pub(crate) fn enter(&self, key: &K, max: u32) -> Option<Permit<K>> {
        let mut counts = locked(&self.0);
        let room = counts.get(key).copied().unwrap_or(0) < max;
        room.then(|| self.one_more(&mut counts, key))
    }

    /// The same without a bound.
    pub(crate) fn hold(&self, key: &K) -> Permit<K> {
        self.one_more(&mut locked(&self.0), key)
    }

    fn one_more(&self, counts: &mut HashMap<K, u32>, key: &K) -> Permit<K> {
        *counts.entry(key.clone()).or_default() += 1;
        Permit {
            counts: self.0.clone(),
            key: key.clone(),
        }
    }

    /// How many of all keys together are under way.
    pub(crate) fn total(&self) -> u32 {
        locked(&self.0).values().sum()
    }

    /// How many of `key` are under way.
    pub(crate) fn count(&self, key: &K) -> u32 {
        locked(&self.0).get(key).copied().unwrap_or(0)
    }
}

/// One that is under way.
pub(crate) struct Permit<K: Eq + Hash> {
    counts: Arc<Mutex<HashMap<K, u32>>>,
    key: K,
}

impl<K: Eq + Hash> Drop for Permit<K> {
    fn drop(&mut self) {
        let mut counts = locked(&self.counts);
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

/// No panic leaves a table half changed.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The count of a key is what was entered and not yet dropped, and never beyond the limit.
        #[test]
        fn a_counter_counts_what_is_held(
            steps in prop::collection::vec((any::<bool>(), 0u8..3), 1..60), max in 0u32..4,
        ) {
            let counter = Counter::default();
            let mut held: Vec<(u8, Permit<u8>)> = Vec::new();
            for (enter, key) in steps {
                if enter {
                    let before = counter.count(&key);
                    let permit = counter.enter(&key, max);
                    prop_assert_eq!(permit.is_some(), before < max);
                    held.extend(permit.map(|permit| (key, permit)));
                } else if let Some(at) = held.iter().position(|(other, _)| *other == key) {
                    held.remove(at);
                }
                for key in 0..3 {
                    let expected = held.iter().filter(|(other, _)| *other == key).count();
                    prop_assert_eq!(counter.count(&key) as usize, expected);
                }
            }
            drop(held);
            prop_assert!(locked(&counter.0).is_empty(), "nothing stays behind");
        }
    }
}
