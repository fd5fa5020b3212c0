//! How long to wait before dialling again: exponential with full jitter, so that a fleet that lost
//! its hub at the same moment does not come back at the same moment.

use std::time::Duration;

/// The first wait is drawn from up to this.
pub const FIRST: Duration = Duration::from_secs(1);

/// No wait is drawn from more than this.
pub const MOST: Duration = Duration::from_secs(30);

/// A session that lived this long proves that all is well: waits start over.
pub const HEALTHY: Duration = Duration::from_secs(60);

/// The waits between attempts.
#[derive(Debug, Clone, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// An attempt failed, or a session that lasted `lived` ended. Gives how long to wait, drawn
    /// with `random` (uniform over all of `u32`), but never less than the hub asked for.
    pub fn next(&mut self, lived: Duration, random: u32, asked: Duration) -> Duration {
        if lived >= HEALTHY {
            self.failures = 0;
        }
        let ceiling = MOST.min(FIRST.saturating_mul(1 << self.failures.min(16)));
        self.failures = self.failures.saturating_add(1);
        let drawn = ceiling.mul_f64(f64::from(random) / f64::from(u32::MAX));
        // What the hub asks for is bounded, too: it must not be able to silence an agent for good.
        drawn.max(asked.min(MOST * 10))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ceilings_double_up_to_thirty_seconds_and_start_over_after_a_healthy_minute() {
        let mut backoff = Backoff::default();
        let mut ceiling = |lived| backoff.next(lived, u32::MAX, Duration::ZERO).as_secs();
        let ceilings: Vec<u64> = (0..7).map(|_| ceiling(Duration::ZERO)).collect();
        assert_eq!(ceilings, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(ceiling(Duration::from_secs(59)), 30);
        assert_eq!(ceiling(Duration::from_secs(60)), 1);
    }

    proptest! {
        #[test]
        fn waits_stay_within_bounds(draws in proptest::collection::vec((any::<u32>(), 0..1000u64), 0..200)) {
            let mut backoff = Backoff::default();
            for (random, asked) in draws {
                let asked = Duration::from_secs(asked);
                let wait = backoff.next(Duration::ZERO, random, asked);
                prop_assert!(wait <= MOST.max(asked).min(MOST * 10));
                prop_assert!(wait >= asked.min(MOST * 10));
            }
        }
    }
}
