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

/// Decides an operation's priority by what it sends: first bytes, keystrokes and short answers are
/// interactive; whoever goes on sending more than 64 KiB a second is bulk until it pauses.
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

    /// It sends `bytes` at `now`: the priority they go with.
    pub fn send(&mut self, bytes: u64, now: Duration) -> Priority {
        let elapsed = now.saturating_sub(self.updated);
        let earned = elapsed.as_millis().min(1000) as u64 * ALLOWANCE / 1000;
        if earned > 0 {
            self.updated = now;
            self.allowance = (self.allowance + earned).min(ALLOWANCE);
        }
        let interactive = self.allowance >= bytes;
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
        assert_eq!(burst.send(40_000, Duration::ZERO), Priority::Interactive);
        assert_eq!(burst.send(40_000, Duration::from_millis(1)), Priority::Bulk);
        assert_eq!(
            burst.send(40_000, Duration::from_millis(100)),
            Priority::Bulk
        );
        // After a pause it is interactive again.
        assert_eq!(
            burst.send(100, Duration::from_secs(2)),
            Priority::Interactive
        );
    }

    #[test]
    fn keystrokes_stay_interactive() {
        let mut burst = Burst::new(Duration::ZERO);
        for ms in 0..10_000 {
            assert_eq!(
                burst.send(50, Duration::from_millis(ms)),
                Priority::Interactive
            );
        }
    }
}
