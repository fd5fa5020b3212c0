//! Wall time, as an argument.
//!
//! Logic asks a [`Clock`] that it was given. In production it is the system's; in simulated time it
//! starts where the test says and moves with tokio's paused time, so that certificates expire and
//! tokens run out without waiting.

use std::time::{Duration, SystemTime};

use hub_ledger::Timestamp;
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use tokio::time::Instant;

/// Tells the time of day. Cheap to clone; clones agree.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System,
    Simulated { start: Timestamp, origin: Instant },
}

impl Clock {
    /// The system's clock. It may be set back at any time: what must not go back uses a counter.
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that shows `start` now and advances with tokio's time.
    pub fn simulated(start: Timestamp) -> Self {
        Self(Source::Simulated {
            start,
            origin: Instant::now(),
        })
    }

    /// The time now. A system clock that stands before 1970 shows 1970.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => {
                let since_1970 = SystemTime::now()
                    .duration_since(SystemTime::UNIX_EPOCH)
                    .unwrap_or_default();
                Timestamp::from_millis(0).saturating_add(since_1970)
            }
            Source::Simulated { start, origin } => start.saturating_add(origin.elapsed()),
        }
    }

    /// How long it is until `then`; zero if it is past.
    pub fn until(&self, then: Timestamp) -> Duration {
        then.since(self.now())
    }
}

/// Certificates are judged by the same time as everything else.
impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_millis(
            self.now().as_millis(),
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn simulated_time_moves_with_tokio() {
        let start = Timestamp::from_millis(1_700_000_000_000);
        let clock = Clock::simulated(start);
        let clone = clock.clone();
        assert_eq!(clock.now(), start);
        let day = Duration::from_secs(86_400);
        tokio::time::sleep(day).await;
        assert_eq!(clone.now(), start.saturating_add(day));
        assert_eq!(clock.until(start.saturating_add(2 * day)), day);
        assert_eq!(clock.until(start), Duration::ZERO);
    }

    #[test]
    fn the_system_knows_that_this_code_exists() {
        let written = Timestamp::from_millis(1_750_000_000_000);
        assert!(Clock::system().now() > written);
    }
}
