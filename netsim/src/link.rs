//! One direction of a wire, as a pure model.
//!
//! [`Link::transmit`] is told the size of a packet and the time it enters, and answers at once what
//! becomes of it: when each copy leaves the far end, whether it is damaged, or why it is lost. The
//! link owns its random stream, so the same seed and the same calls give the same answers.
//!
//! A packet passes, in this order: the MTU, the blackout schedule, the drop-tail queue in front of
//! the serialiser, loss on the wire, propagation delay with jitter, reordering, duplication and
//! corruption. Lost packets have used their share of the rate, as on a real wire. Each packet draws
//! the same number of random values whatever the configuration, so that changing one knob does not
//! reshuffle the effects of the others.

use std::{collections::VecDeque, ops::Range, time::Duration};

use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64;
use thiserror::Error;

/// Why a link lost a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Error)]
pub enum LinkDrop {
    /// The packet is larger than the link's MTU; nothing fragments.
    #[error("larger than the MTU")]
    TooBig,
    /// The link was inside a blackout of its schedule.
    #[error("blackout")]
    Blackout,
    /// The queue in front of the serialiser had no room for it.
    #[error("queue full")]
    QueueFull,
    /// Lost at random, in the good state if loss is bursty.
    #[error("random loss")]
    RandomLoss,
    /// Lost in the bad state of the Gilbert–Elliott model.
    #[error("burst loss")]
    BurstLoss,
}

/// How packets get lost on the wire. Probabilities outside 0..=1 act like the nearer bound.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Loss {
    /// Nothing is lost.
    #[default]
    None,
    /// Each packet is lost with this probability, independently.
    Random(f64),
    /// Losses come in bursts.
    Bursty(GilbertElliott),
}

/// The Gilbert–Elliott model: a chain of two states that takes one step per packet, with a loss
/// probability of its own in each.
///
/// A burst also wears off in silence, by one step for each 10 ms that bring no packet: what causes
/// it does not wait for traffic. Without that, a sender that backs off would find the same burst
/// again half a minute later.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GilbertElliott {
    /// Probability of a step from good to bad.
    pub to_bad: f64,
    /// Probability of a step from bad to good; its inverse is the mean length of a burst in packets.
    pub to_good: f64,
    /// Probability of losing a packet in the good state.
    pub loss_good: f64,
    /// Probability of losing a packet in the bad state.
    pub loss_bad: f64,
}

impl GilbertElliott {
    /// Bursts that lose everything, `mean_burst` packets long on average (at least 1), placed so
    /// that a share of `loss` of all packets is lost.
    pub fn from_mean(loss: f64, mean_burst: f64) -> Self {
        let to_good = 1.0 / mean_burst.max(1.0);
        let loss = loss.clamp(0.0, 0.99);
        Self {
            to_bad: (to_good * loss / (1.0 - loss)).min(1.0),
            to_good,
            loss_good: 0.0,
            loss_bad: 1.0,
        }
    }
}

/// What one direction of a wire does to packets. The default is a perfect Ethernet: no delay, no
/// loss, no rate limit, an MTU of 1500.
///
/// ```
/// use std::time::Duration;
/// use hub_netsim::LinkConfig;
///
/// let dsl = LinkConfig::perfect()
///     .delay(Duration::from_millis(20))
///     .jitter(Duration::from_millis(2))
///     .loss(0.02)
///     .rate(16_000_000, 64 * 1024);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct LinkConfig {
    delay: Duration,
    jitter: Duration,
    loss: Loss,
    reorder: f64,
    reorder_by: Duration,
    duplicate: f64,
    corrupt: f64,
    rate: Option<Rate>,
    mtu: usize,
    blackouts: Vec<Range<Duration>>,
}

/// A serialiser and the room in front of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rate {
    bits_per_second: u64,
    queue_bytes: usize,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: Loss::None,
            reorder: 0.0,
            reorder_by: Duration::ZERO,
            duplicate: 0.0,
            corrupt: 0.0,
            rate: None,
            mtu: 1500,
            blackouts: Vec::new(),
        }
    }
}

impl LinkConfig {
    /// The default: nothing is delayed, lost or changed.
    pub fn perfect() -> Self {
        Self::default()
    }

    /// Propagation delay.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Adds up to this much to the delay of each packet, uniformly. Jitter alone never reorders: a
    /// packet waits for the one before it, as behind a queue.
    #[must_use]
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Loses each packet with this probability.
    #[must_use]
    pub fn loss(mut self, probability: f64) -> Self {
        self.loss = Loss::Random(probability);
        self
    }

    /// Loses packets in bursts.
    #[must_use]
    pub fn bursty_loss(mut self, model: GilbertElliott) -> Self {
        self.loss = Loss::Bursty(model);
        self
    }

    /// With this probability holds a packet back for up to `by` more, uniformly, while those behind
    /// it overtake.
    #[must_use]
    pub fn reorder(mut self, probability: f64, by: Duration) -> Self {
        (self.reorder, self.reorder_by) = (probability, by);
        self
    }

    /// Delivers a second copy with this probability, right behind the first.
    #[must_use]
    pub fn duplicate(mut self, probability: f64) -> Self {
        self.duplicate = probability;
        self
    }

    /// Flips one bit of each delivered copy with this probability.
    #[must_use]
    pub fn corrupt(mut self, probability: f64) -> Self {
        self.corrupt = probability;
        self
    }

    /// Serialises at this rate, with a drop-tail queue of `queue_bytes` in front. A packet counts
    /// against the queue until its last bit has left, so `queue_bytes` below the size of a packet
    /// loses every such packet. A rate of zero counts as one bit per second.
    #[must_use]
    pub fn rate(mut self, bits_per_second: u64, queue_bytes: usize) -> Self {
        self.rate = Some(Rate {
            bits_per_second: bits_per_second.max(1),
            queue_bytes,
        });
        self
    }

    /// Takes the rate limit and its queue away.
    #[must_use]
    pub fn unlimited_rate(mut self) -> Self {
        self.rate = None;
        self
    }

    /// Loses packets larger than this many bytes, IP and UDP headers included.
    #[must_use]
    pub fn mtu(mut self, bytes: usize) -> Self {
        self.mtu = bytes;
        self
    }

    /// Adds a span of simulated time in which everything is lost that enters the link or would
    /// leave its queue.
    #[must_use]
    pub fn blackout(mut self, span: Range<Duration>) -> Self {
        self.blackouts.push(span);
        self
    }

    /// A link as bad as those one meets: up to 150 ms of delay and 20 ms of jitter; up to 5 % loss,
    /// scattered or in bursts, or none; up to 2 % each of reordering, duplication and corruption;
    /// an MTU of 1280 to 1500; perhaps a rate of 1 to 100 Mbit/s behind 50 to 200 ms of queue.
    pub fn random(rng: &mut impl Rng) -> Self {
        let millis = |n| Duration::from_millis(n);
        let config = Self::perfect()
            .delay(millis(rng.random_range(0..=150)))
            .jitter(millis(rng.random_range(0..=20)))
            .reorder(
                rng.random_range(0.0..0.02),
                millis(rng.random_range(1..=50)),
            )
            .duplicate(rng.random_range(0.0..0.02))
            .corrupt(rng.random_range(0.0..0.02))
            .mtu(rng.random_range(1280..=1500));
        let loss = rng.random_range(0.0..0.05);
        let config = match rng.random_range(0..3) {
            0 => config,
            1 => config.loss(loss),
            _ => config.bursty_loss(GilbertElliott::from_mean(loss, rng.random_range(1.0..10.0))),
        };
        if rng.random() {
            let rate = rng.random_range(1_000_000..=100_000_000);
            let queue_millis = rng.random_range(50..=200);
            config.rate(rate, (rate * queue_millis / 8 / 1000) as usize)
        } else {
            config
        }
    }

    fn is_dark(&self, at: Duration) -> bool {
        self.blackouts.iter().any(|span| span.contains(&at))
    }
}

/// What becomes of one copy of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The copy leaves the far end at this time, damaged if there is a corruption.
    Deliver {
        /// Simulated time of arrival, never before the time of entry plus the delay.
        at: Duration,
        /// The damage to apply to the payload.
        corruption: Option<Corruption>,
    },
    /// The packet is lost. Nothing else is said about it.
    Drop(LinkDrop),
}

/// One or two verdicts, in order of arrival: two when the packet was duplicated.
pub type Verdicts = std::iter::Flatten<std::array::IntoIter<Option<Verdict>, 2>>;

/// One flipped bit, at a place that the link chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corruption(u64);

impl Corruption {
    /// Flips the bit. An empty payload has none and stays as it is.
    pub fn apply(self, payload: &mut [u8]) {
        let bits = payload.len() as u64 * 8;
        if let Some(bit) = self.0.checked_rem(bits) {
            payload[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
    }
}

/// One direction of a wire.
#[derive(Debug, Clone)]
pub struct Link {
    config: LinkConfig,
    rng: Pcg64,
    /// Packets not yet serialised: when the last bit leaves, and the size.
    queue: VecDeque<(Duration, usize)>,
    queued_bytes: usize,
    serialiser_free_at: Duration,
    /// Arrival of the last packet that kept its place; later ones do not arrive before it.
    last_arrival: Duration,
    bad: bool,
    /// When the last packet was sent.
    last_sent: Duration,
}

impl Link {
    /// A link with a random stream of its own.
    pub fn new(config: LinkConfig, seed: u64) -> Self {
        Self::with_rng(config, Pcg64::seed_from_u64(seed))
    }

    pub(crate) fn with_rng(config: LinkConfig, rng: Pcg64) -> Self {
        Self {
            config,
            rng,
            queue: VecDeque::new(),
            queued_bytes: 0,
            serialiser_free_at: Duration::ZERO,
            last_arrival: Duration::ZERO,
            bad: false,
            last_sent: Duration::ZERO,
        }
    }

    /// What the link does at present.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Changes what the link does to packets that enter from now on. Packets already in its queue
    /// keep their place in the serialiser; new ones may overtake those in flight on a longer path.
    pub fn reconfigure(&mut self, config: LinkConfig) {
        self.last_arrival = Duration::ZERO;
        self.config = config;
    }

    /// Bytes that wait for the serialiser at `now`, the packet in it included.
    pub fn queued_bytes(&mut self, now: Duration) -> usize {
        while let Some((left_at, size)) = self.queue.front()
            && *left_at <= now
        {
            self.queued_bytes -= size;
            self.queue.pop_front();
        }
        self.queued_bytes
    }

    /// Sends a packet of `size` bytes, headers included, into the link at `now`. Calls must not go
    /// back in time.
    pub fn transmit(&mut self, size: usize, now: Duration) -> Verdicts {
        let draw = Draws::from(&mut self.rng);
        self.wear_off(now.saturating_sub(self.last_sent), &draw);
        self.last_sent = now;
        let verdicts = match self.serialise(size, now) {
            Ok(left_at) => match self.lose(&draw) {
                None => self.propagate(left_at, &draw),
                Some(drop) => [Some(Verdict::Drop(drop)), None],
            },
            Err(drop) => [Some(Verdict::Drop(drop)), None],
        };
        verdicts.into_iter().flatten()
    }

    /// When the packet's last bit leaves this end.
    fn serialise(&mut self, size: usize, now: Duration) -> Result<Duration, LinkDrop> {
        if size > self.config.mtu {
            return Err(LinkDrop::TooBig);
        }
        if self.config.is_dark(now) {
            return Err(LinkDrop::Blackout);
        }
        let queued = self.queued_bytes(now);
        let Some(rate) = self.config.rate else {
            return Ok(now);
        };
        if queued + size > rate.queue_bytes {
            return Err(LinkDrop::QueueFull);
        }
        let nanos = (size as u128 * 8 * 1_000_000_000).div_ceil(u128::from(rate.bits_per_second));
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let left_at = self.serialiser_free_at.max(now).saturating_add(takes);
        self.serialiser_free_at = left_at;
        self.queue.push_back((left_at, size));
        self.queued_bytes += size;
        if self.config.is_dark(left_at) {
            return Err(LinkDrop::Blackout);
        }
        Ok(left_at)
    }

    /// A burst ends in silence with the probability of as many steps as it has spans of 10 ms.
    fn wear_off(&mut self, silence: Duration, draw: &Draws) {
        if let (Loss::Bursty(model), true) = (self.config.loss, self.bad) {
            let steps = i32::try_from(silence.as_millis() / 10).unwrap_or(i32::MAX);
            self.bad = draw.wear < (1.0 - model.to_good).max(0.0).powi(steps);
        }
    }

    fn lose(&mut self, draw: &Draws) -> Option<LinkDrop> {
        match self.config.loss {
            Loss::None => None,
            Loss::Random(p) => (draw.loss < p).then_some(LinkDrop::RandomLoss),
            Loss::Bursty(model) => {
                let (step, loss) = if self.bad {
                    (model.to_good, model.loss_bad)
                } else {
                    (model.to_bad, model.loss_good)
                };
                let drop = if self.bad {
                    LinkDrop::BurstLoss
                } else {
                    LinkDrop::RandomLoss
                };
                self.bad ^= draw.step < step;
                (draw.loss < loss).then_some(drop)
            }
        }
    }

    fn propagate(&mut self, left_at: Duration, draw: &Draws) -> [Option<Verdict>; 2] {
        let config = &self.config;
        let direct = left_at
            .saturating_add(config.delay)
            .saturating_add(config.jitter.mul_f64(draw.jitter));
        let mut at = direct.max(self.last_arrival);
        if draw.reorder < config.reorder {
            at = at.saturating_add(config.reorder_by.mul_f64(draw.reorder_by));
        } else {
            self.last_arrival = at;
        }
        let deliver = |corrupt: f64, bit: u64| Verdict::Deliver {
            at,
            corruption: (corrupt < config.corrupt).then_some(Corruption(bit)),
        };
        [
            Some(deliver(draw.corrupt[0], draw.bit[0])),
            (draw.duplicate < config.duplicate).then(|| deliver(draw.corrupt[1], draw.bit[1])),
        ]
    }
}

/// All random values that one packet uses. Probabilities are uniform in 0..1.
struct Draws {
    step: f64,
    loss: f64,
    jitter: f64,
    reorder: f64,
    reorder_by: f64,
    duplicate: f64,
    corrupt: [f64; 2],
    bit: [u64; 2],
    wear: f64,
}

impl Draws {
    fn from(rng: &mut Pcg64) -> Self {
        Self {
            step: rng.random(),
            loss: rng.random(),
            jitter: rng.random(),
            reorder: rng.random(),
            reorder_by: rng.random(),
            duplicate: rng.random(),
            corrupt: rng.random(),
            bit: rng.random(),
            wear: rng.random(),
        }
    }
}

#[cfg(test)]
mod tests;
