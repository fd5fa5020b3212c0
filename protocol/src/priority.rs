//! Which streams go first: those on which somebody waits for each byte.

use std::time::Duration;

/// Whether an operation waits behind others for the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Somebody waits for each byte: control, terminals, first bytes.
    Interactive,
    /// Throughput counts; shares fairly with the rest.
    Bulk,
}

/// Bytes of an operation that go with high priority, at once or per second.
const ALLOWANCE: u64 = 64 * 1024;

/// Bytes of an operation that may be on their way with high priority. Who has sent more than its
/// consumer has taken is not waited for byte by byte, however slow the path makes it.
const BACKLOG: u64 = 16 * 1024;

/// Decides an operation's priority by what it sends: first bytes, keystrokes and short answers are
/// interactive; whoever goes on sending more than 64 KiB a second is bulk until it pauses, and so
/// is, on a path that many share, whoever has 16 KiB on their way.
#[derive(Debug, Clone)]
pub struct Burst {
    allowance: u64,
    updated: Duration,
}

impl Burst {
    /// An operation that has sent nothing yet, at `now`.
    pub fn new(now: Duration) -> Self {
        Self {
            allowance: ALLOWANCE,
            updated: now,
        }
    }

    /// It sends `bytes` at `now`, with which `spent` are on their way: the priority they go with.
    pub fn send(&mut self, bytes: u64, spent: u64, now: Duration) -> Priority {
        let elapsed = now.saturating_sub(self.updated);
        let earned = elapsed.as_millis().min(1000) as u64 * ALLOWANCE / 1000;
        if earned > 0 {
            self.updated = now;
            self.allowance = (self.allowance + earned).min(ALLOWANCE);
        }
        let interactive = self.allowance >= bytes && spent <= BACKLOG;
        self.allowance = self.allowance.saturating_sub(bytes);
        if interactive {
            Priority::Interactive
        } else {
            Priority::Bulk
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_go_first_and_bulk_does_not() {
        let mut burst = Burst::new(Duration::ZERO);
        let ms = Duration::from_millis;
        assert_eq!(burst.send(40_000, 0, ms(0)), Priority::Interactive);
        assert_eq!(burst.send(40_000, 0, ms(1)), Priority::Bulk);
        assert_eq!(burst.send(40_000, 0, ms(100)), Priority::Bulk);
        // After a pause it is interactive again.
        assert_eq!(burst.send(100, 0, ms(2000)), Priority::Interactive);
    }

    #[test]
    fn who_sends_little_because_the_path_is_full_is_bulk_all_the_same() {
        let mut burst = Burst::new(Duration::ZERO);
        for second in 1..100 {
            let now = Duration::from_secs(second);
            assert_eq!(burst.send(3_000, 60_000, now), Priority::Bulk);
        }
        let now = Duration::from_secs(100);
        assert_eq!(burst.send(3_000, 3_000, now), Priority::Interactive);
    }

    #[test]
    fn keystrokes_stay_interactive() {
        let mut burst = Burst::new(Duration::ZERO);
        for ms in 0..10_000 {
            assert_eq!(
                burst.send(50, 50, Duration::from_millis(ms)),
                Priority::Interactive
            );
        }
    }
}
