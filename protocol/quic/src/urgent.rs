//! Lets a keystroke go when bulk has filled the congestion window.
//!
//! Streams of a higher priority go first, but only when the window has room: on a path that loses
//! packets the window is small, bulk fills it, and whoever types waits for up to a round trip until
//! an acknowledgement makes room. [`Urgent`] wraps the congestion controller of a connection. When an
//! operation hands QUIC something that somebody waits for, it says so with [`Urgency::want`]; the next
//! packets may then go beyond the window, [`ALLOWANCE`] bytes in a round trip. quinn tells of packets
//! batch by batch, so that the last batch may go beyond that, too: ten packets where the socket takes
//! as many at once. All else is as the controller within says: what was sent so counts as in flight,
//! and bulk waits the longer for it.
//!
//! ```text
//! pump --want(bytes)--> Urgency <--shared-- Urgent --window()--> quinn
//! ```

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics};
use quinn_proto::RttEstimator;

/// What may go beyond the congestion window in one round trip: ten packets of 1,200 bytes, which
/// RFC 9002 lets any new connection send unasked.
pub(crate) const ALLOWANCE: u64 = 12_000;

/// Bytes that a packet adds to what it carries, about: headers of QUIC, of frames, the tag.
const OVERHEAD: u64 = 50;

/// Says that something is urgent. Cheap to clone; all clones speak to one connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Urgency(Arc<AtomicU64>);

impl Urgency {
    /// So many bytes, which QUIC is about to be given, should not wait for the window.
    pub(crate) fn want(&self, bytes: u64) {
        let more = |wanted: u64| Some((wanted + bytes + OVERHEAD).min(ALLOWANCE));
        // The closure never gives none.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    fn sent(&self, bytes: u64) {
        let less = |wanted: u64| Some(wanted.saturating_sub(bytes));
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// Makes controllers that let urgent bytes go.
pub(crate) struct UrgentFactory(pub(crate) Arc<dyn ControllerFactory + Send + Sync>);

impl ControllerFactory for UrgentFactory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Urgent {
            inner: self.0.clone().build(now, mtu),
            urgency: Urgency::default(),
            left: ALLOWANCE,
            refilled: now,
        })
    }
}

/// A congestion controller that lets urgent bytes go.
pub(crate) struct Urgent {
    inner: Box<dyn Controller>,
    urgency: Urgency,
    /// What is left of [`ALLOWANCE`] in this round trip.
    left: u64,
    refilled: Instant,
}

impl Urgent {
    /// What speaks to the controller of a connection; `None` if it has another.
    pub(crate) fn urgency(connection: &quinn::Connection) -> Option<Urgency> {
        let controller = connection.congestion_state().into_any();
        let urgent = controller.downcast::<Self>().ok()?;
        Some(urgent.urgency)
    }
}

impl fmt::Debug for Urgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Urgent")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl Controller for Urgent {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        if self.urgency.is_wanted() {
            self.urgency.sent(bytes);
            self.left = self.left.saturating_sub(bytes);
        }
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        if now.saturating_duration_since(self.refilled) >= rtt.get() {
            self.left = ALLOWANCE;
            self.refilled = now;
        }
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest: Option<u64>,
    ) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost: u64) {
        self.inner.on_congestion_event(now, sent, persistent, lost);
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.inner.on_mtu_update(mtu);
    }

    /// A window without an end, which quinn does not pace either, while something urgent waits.
    fn window(&self) -> u64 {
        if self.left > 0 && self.urgency.is_wanted() {
            u64::MAX
        } else {
            self.inner.window()
        }
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            inner: self.inner.clone_box(),
            urgency: self.urgency.clone(),
            left: self.left,
            refilled: self.refilled,
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone)]
    struct Fixed;

    impl Controller for Fixed {
        fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: u64) {}
        fn on_mtu_update(&mut self, _: u16) {}

        fn window(&self) -> u64 {
            2_400
        }

        fn clone_box(&self) -> Box<dyn Controller> {
            Box::new(self.clone())
        }

        fn initial_window(&self) -> u64 {
            2_400
        }

        fn into_any(self: Box<Self>) -> Box<dyn Any> {
            self
        }
    }

    fn urgent(now: Instant) -> Urgent {
        Urgent {
            inner: Box::new(Fixed),
            urgency: Urgency::default(),
            left: ALLOWANCE,
            refilled: now,
        }
    }

    #[test]
    fn a_keystroke_goes_in_the_next_packet_and_nothing_more_beyond_the_window() {
        let now = Instant::now();
        let mut controller = urgent(now);
        assert_eq!(controller.window(), 2_400);
        controller.urgency.clone().want(1);
        assert_eq!(controller.window(), u64::MAX);
        controller.on_sent(now, 1_200, 1);
        assert_eq!(controller.window(), 2_400);
        // What goes within the window takes nothing of the allowance.
        controller.on_sent(now, 1_200, 2);
        assert_eq!(controller.left, ALLOWANCE - 1_200);
    }

    #[test]
    fn whoever_finds_everything_urgent_has_the_allowance_of_a_round_trip() {
        let now = Instant::now();
        let mut controller = urgent(now);
        let mut beyond = 0;
        for number in 0..100 {
            controller.urgency.want(100_000);
            if controller.window() == u64::MAX {
                beyond += 1_200;
            }
            controller.on_sent(now, 1_200, number);
        }
        assert_eq!(beyond, ALLOWANCE);
    }

    #[test]
    fn a_copy_of_the_controller_hears_the_same() {
        let controller = urgent(Instant::now());
        let copy = controller.clone_box();
        controller.urgency.want(1);
        assert_eq!(copy.window(), u64::MAX);
    }
}
