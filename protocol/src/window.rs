//! Credit windows: what a sender may still send on a channel, and what its receiver has promised.
//!
//! The receiver's promise is the whole of it: bytes on their way and bytes that wait for the
//! consumer together never exceed the window's target, and the target never exceeds the limit that
//! was announced. Memory per channel is bounded by that, whatever the peer does.

use std::time::Duration;

/// The two ways in which a peer can break a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// Data beyond the credit.
    #[error("{sent} bytes were sent where {credit} were allowed")]
    BeyondCredit {
        /// Bytes that came.
        sent: u64,
        /// Bytes that were still allowed.
        credit: u64,
    },
    /// Credit beyond the announced limit.
    #[error("credit of {outstanding} bytes would exceed the announced limit of {limit}")]
    BeyondLimit {
        /// What would be outstanding.
        outstanding: u64,
        /// What was announced.
        limit: u64,
    },
}

/// The sender's side of a channel.
#[derive(Debug, Clone)]
pub struct SendWindow {
    initial: u64,
    credit: u64,
    limit: u64,
}

impl SendWindow {
    /// A window with `initial` bytes of credit, of which the peer may have `limit` outstanding.
    pub fn new(initial: u64, limit: u64) -> Self {
        let initial = initial.min(limit);
        Self {
            initial,
            credit: initial,
            limit,
        }
    }

    /// Bytes by which the credit is below what it was at first: at least as many were sent and have
    /// not been consumed yet, be it that the path or that the consumer is slow.
    pub fn spent(&self) -> u64 {
        self.initial.saturating_sub(self.credit)
    }

    /// Bytes that may be sent now.
    pub fn credit(&self) -> u64 {
        self.credit
    }

    /// Takes up to `wanted` bytes of credit for sending; gives what it took. With one byte of
    /// credit that is one byte.
    pub fn take(&mut self, wanted: u64) -> u64 {
        let taken = wanted.min(self.credit);
        self.credit -= taken;
        taken
    }

    /// The peer granted `bytes` more.
    pub fn grant(&mut self, bytes: u64) -> Result<(), WindowError> {
        let outstanding = self.credit.saturating_add(bytes);
        if outstanding > self.limit {
            return Err(WindowError::BeyondLimit {
                outstanding,
                limit: self.limit,
            });
        }
        self.credit = outstanding;
        Ok(())
    }
}

/// The least round trip that growth reckons with. Threads and timers of both sides add about this
/// much to what a ping sees: on a loopback of 50 µs, the credit for a chunk takes far longer to come
/// back than that, and windows sized by the ping alone would make the sender wait for each chunk.
pub const MIN_ROUND_TRIP: Duration = Duration::from_millis(2);

/// A window is refunded once this part of it was consumed, not for each frame.
const REFUND_PARTS: u64 = 8;

/// The receiver's side of a channel.
#[derive(Debug, Clone)]
pub struct RecvWindow {
    /// What the peer may still send.
    credit: u64,
    /// What has come and was not consumed yet.
    waiting: u64,
    /// What was consumed, or gained by growth, and was not granted again yet.
    refund: u64,
    /// `credit + waiting + refund`, always.
    target: u64,
    limit: u64,
    /// Consumption is measured in spans of one round trip, and at least [`MIN_ROUND_TRIP`].
    span_start: Duration,
    span_consumed: u64,
}

impl RecvWindow {
    /// A window of `initial` bytes, which the peer knows of already, that may grow to `limit`.
    pub fn new(initial: u64, limit: u64) -> Self {
        let target = initial.min(limit);
        Self {
            credit: target,
            waiting: 0,
            refund: 0,
            target,
            limit,
            span_start: Duration::ZERO,
            span_consumed: 0,
        }
    }

    /// Bytes the peer may still send.
    pub fn credit(&self) -> u64 {
        self.credit
    }

    /// Bytes that have come and wait for the consumer.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// The window's present size: an upper bound of what is on its way and waiting together.
    pub fn target(&self) -> u64 {
        self.target
    }

    /// `bytes` have come.
    pub fn receive(&mut self, bytes: u64) -> Result<(), WindowError> {
        if bytes > self.credit {
            return Err(WindowError::BeyondCredit {
                sent: bytes,
                credit: self.credit,
            });
        }
        self.credit -= bytes;
        self.waiting += bytes;
        Ok(())
    }

    /// The consumer took `bytes` of what waited, at `now`; the least round trip seen is `rtt`.
    ///
    /// Gives how far the window should grow: towards two and a half times what was consumed within
    /// one round trip, taken as [`MIN_ROUND_TRIP`] where it is shorter, so that a consumer that keeps up never waits for credit. A consumer that is
    /// slow, or a window that is large enough, wants nothing. The caller answers with
    /// [`grow`](Self::grow), with as much of it as the session's budget has left.
    pub fn consume(&mut self, bytes: u64, now: Duration, rtt: Duration) -> u64 {
        debug_assert!(bytes <= self.waiting);
        let rtt = rtt.max(MIN_ROUND_TRIP);
        let bytes = bytes.min(self.waiting);
        self.waiting -= bytes;
        self.refund += bytes;
        let span = now.saturating_sub(self.span_start);
        if span < rtt {
            self.span_consumed += bytes;
            return 0;
        }
        // These bytes begin the next span: counted in both, a consumer that takes much at a time
        // would look twice as fast.
        let consumed = std::mem::replace(&mut self.span_consumed, bytes);
        self.span_start = now;
        // The first span after a pause is longer than a round trip: count its share.
        let per_rtt = u128::from(consumed) * rtt.as_nanos() / span.as_nanos().max(1);
        let wanted = u64::try_from(per_rtt * 5 / 2)
            .unwrap_or(u64::MAX)
            .min(self.limit);
        wanted.saturating_sub(self.target)
    }

    /// The window grows by `bytes`, at most up to its limit.
    pub fn grow(&mut self, bytes: u64) {
        let bytes = bytes.min(self.limit - self.target);
        self.target += bytes;
        self.refund += bytes;
    }

    /// Whether there is credit to grant that is worth a frame.
    pub fn refund_due(&self) -> bool {
        self.refund > 0 && self.refund >= self.target / REFUND_PARTS
    }

    /// Credit to grant to the peer now, once it is worth a frame.
    pub fn refund(&mut self) -> Option<u64> {
        if !self.refund_due() {
            return None;
        }
        self.credit += self.refund;
        Some(std::mem::take(&mut self.refund))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Send(u64),
        Deliver,
        Consume(u64),
        Grant,
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (1..5000u64).prop_map(Step::Send),
            3 => Just(Step::Deliver),
            3 => (1..5000u64).prop_map(Step::Consume),
            2 => Just(Step::Grant),
            1 => (1..100u64).prop_map(Step::Pass),
        ]
    }

    proptest! {
        /// Named invariants: *no overdraft* (an honest sender never violates), *bounded memory*
        /// (waiting + on its way <= target <= limit), *no honest grant is refused*, *progress*
        /// (when all is delivered and consumed, the sender has credit).
        #[test]
        fn a_pair_of_windows(initial in 1..4000u64, limit in 1..20_000u64, steps in vec(step(), 0..300)) {
            let mut sender = SendWindow::new(initial, limit);
            let mut receiver = RecvWindow::new(initial, limit);
            let (mut in_flight, mut grants, mut now) = (Vec::new(), Vec::new(), Duration::ZERO);
            let rtt = Duration::from_millis(20);
            for step in steps {
                match step {
                    Step::Send(n) => {
                        let taken = sender.take(n);
                        if taken > 0 { in_flight.push(taken); }
                    }
                    Step::Deliver => if !in_flight.is_empty() {
                        receiver.receive(in_flight.remove(0)).expect("no overdraft");
                    },
                    Step::Consume(n) => {
                        let n = n.min(receiver.waiting());
                        let wanted = receiver.consume(n, now, rtt);
                        receiver.grow(wanted);
                        grants.extend(receiver.refund());
                    }
                    Step::Grant => if !grants.is_empty() {
                        sender.grant(grants.remove(0)).expect("no honest grant is refused");
                    },
                    Step::Pass(ms) => now += Duration::from_millis(ms),
                }
                let on_its_way: u64 = in_flight.iter().sum();
                prop_assert!(on_its_way + receiver.waiting() <= receiver.target());
                prop_assert!(receiver.target() <= limit);
                prop_assert_eq!(receiver.credit + receiver.waiting + receiver.refund, receiver.target);
                prop_assert_eq!(sender.credit() + on_its_way + grants.iter().sum::<u64>(), receiver.credit());
            }
            for n in in_flight { receiver.receive(n).expect("no overdraft"); }
            receiver.consume(receiver.waiting(), now, rtt);
            grants.extend(receiver.refund());
            for n in grants { sender.grant(n).expect("no honest grant is refused"); }
            prop_assert!(sender.credit() > 0);
        }
    }

    #[test]
    fn one_byte_beyond_is_a_violation() {
        let mut receiver = RecvWindow::new(10, 100);
        receiver.receive(10).expect("within credit");
        assert_eq!(
            receiver.receive(1),
            Err(WindowError::BeyondCredit { sent: 1, credit: 0 })
        );
        let mut sender = SendWindow::new(10, 100);
        sender.grant(90).expect("up to the limit");
        let beyond = WindowError::BeyondLimit {
            outstanding: 101,
            limit: 100,
        };
        assert_eq!(sender.grant(1), Err(beyond));
        let overflow = WindowError::BeyondLimit {
            outstanding: u64::MAX,
            limit: 100,
        };
        assert_eq!(sender.grant(u64::MAX), Err(overflow));
    }

    #[test]
    fn a_fast_consumer_grows_the_window_and_a_slow_one_does_not() {
        let rtt = Duration::from_millis(50);
        for (spans_per_window, grows) in [(1, true), (100, false)] {
            let mut receiver = RecvWindow::new(64 << 10, 768 << 10);
            let mut now = Duration::ZERO;
            for _ in 0..20 {
                let bytes = receiver.credit();
                receiver.receive(bytes).expect("within credit");
                now += rtt * spans_per_window;
                let wanted = receiver.consume(bytes, now, rtt);
                receiver.grow(wanted);
                receiver.refund();
            }
            assert_eq!(
                receiver.target() == 768 << 10,
                grows,
                "{}",
                receiver.target()
            );
        }
    }

    #[test]
    fn a_round_trip_far_below_what_scheduling_takes_does_not_keep_the_window_small() {
        let rtt = Duration::from_micros(50);
        // Bytes for each 50 µs: 500 MB/s, and 5 MB/s, for which the first window is ample.
        for (bytes, target) in [(25_000, 768 << 10), (250, 64 << 10)] {
            let mut receiver = RecvWindow::new(64 << 10, 768 << 10);
            let mut now = Duration::ZERO;
            for _ in 0..1000 {
                receiver.receive(bytes).expect("within credit");
                now += rtt;
                let wanted = receiver.consume(bytes, now, rtt);
                receiver.grow(wanted);
                receiver.refund();
            }
            assert_eq!(receiver.target(), target);
        }
    }

    #[test]
    fn a_consumer_that_takes_much_at_a_time_is_not_taken_for_a_fast_one() {
        let rtt = Duration::from_millis(40);
        let mut receiver = RecvWindow::new(64 << 10, 768 << 10);
        let mut now = Duration::ZERO;
        receiver.receive(64 << 10).expect("within credit");
        for _ in 0..100 {
            now += rtt;
            assert_eq!(receiver.consume(20 << 10, now, rtt), 0);
            receiver.refund();
            receiver.receive(20 << 10).expect("within credit");
        }
    }

    #[test]
    fn refunds_come_in_eighths() {
        let mut receiver = RecvWindow::new(800, 800);
        receiver.receive(800).expect("within credit");
        let mut frames = 0;
        for _ in 0..800 {
            receiver.consume(1, Duration::ZERO, Duration::from_secs(1));
            frames += u32::from(receiver.refund().is_some());
        }
        assert_eq!(frames, 8);
    }
}
