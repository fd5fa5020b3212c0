//! How long to wait before the next try. Pure: chance is an argument.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(10);

/// Waits that double from 0.2 s to 10 s, each cut by chance to between a half and all of it, so that
/// those who lost the same hub do not come back in step.
#[derive(Debug, Clone)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Backoff {
    /// The next wait; `chance` is anything, as even as dice.
    pub fn wait(&mut self, chance: u8) -> Duration {
        let half = self.next / 2;
        self.next = (self.next * 2).min(LONGEST);
        half + half * u32::from(chance) / u32::from(u8::MAX)
    }

    /// The next wait, by the system's dice.
    pub(crate) fn rolled(&mut self) -> Duration {
        let mut chance = [0];
        // Without dice all wait equally long.
        let _ = getrandom::fill(&mut chance);
        self.wait(chance[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_longest() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.wait(0), FIRST / 2);
        assert_eq!(backoff.wait(255), FIRST * 2);
        for _ in 0..10 {
            backoff.wait(7);
        }
        assert_eq!(backoff.wait(255), LONGEST);
        assert_eq!(backoff.wait(0), LONGEST / 2);
    }
}
