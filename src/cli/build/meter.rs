//! How far an upload is, in words. Pure: the time is an argument.

use std::time::Duration;

use super::super::units::decimal;

/// How long a rate is averaged.
const WINDOW: Duration = Duration::from_secs(1);

/// Counts what was sent.
#[derive(Debug, Default)]
pub(super) struct Meter {
    bytes: u64,
    /// When the window began, and what had been sent by then.
    since: (Duration, u64),
    /// Bytes a second, in the window before.
    rate: Option<u64>,
}

impl Meter {
    /// So many bytes were sent in all.
    pub(super) fn reached(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    /// How far it is, so long after it began.
    pub(super) fn line(&mut self, node: &str, now: Duration) -> String {
        let (start, before) = self.since;
        let passed = now.saturating_sub(start);
        if passed >= WINDOW {
            self.rate = Some(per_second(self.bytes - before, passed));
            self.since = (now, self.bytes);
        }
        let rate = self
            .rate
            .unwrap_or_else(|| per_second(self.bytes - before, passed));
        format!(
            "Sending build context to {node}  {}  {}/s",
            decimal(self.bytes),
            decimal(rate)
        )
    }

    /// The last word on it, so long after it began.
    pub(super) fn summary(&self, node: &str, now: Duration) -> String {
        let rate = per_second(self.bytes, now);
        format!(
            "Sent build context to {node}  {}  {}/s",
            decimal(self.bytes),
            decimal(rate)
        )
    }
}

fn per_second(bytes: u64, passed: Duration) -> u64 {
    // Less than a millisecond tells nothing of a rate.
    let ms = passed.as_millis().max(1);
    u64::try_from(u128::from(bytes) * 1000 / ms).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_second() {
        let mut meter = Meter::default();
        let ms = Duration::from_millis;
        meter.reached(500_000);
        assert_eq!(
            meter.line("n", ms(500)),
            "Sending build context to n  500kB  1.00MB/s"
        );
        meter.reached(2_000_000);
        assert_eq!(
            meter.line("n", ms(1000)),
            "Sending build context to n  2.00MB  2.00MB/s"
        );
        assert_eq!(
            meter.line("n", ms(2000)),
            "Sending build context to n  2.00MB  0B/s"
        );
        assert_eq!(
            meter.summary("n", ms(2000)),
            "Sent build context to n  2.00MB  1.00MB/s"
        );
    }
}
