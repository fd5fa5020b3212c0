//! Which packet of which UDP flow goes next, and which are dropped.
//!
//! ```text
//! push --> a queue for each flow: bounded, the oldest gives way --+
//!                                  a quota for each flow ---------+--> next --> Send
//!                                  one share for all of them -----+        `--> Wait, Full, Idle
//! ```
//!
//! QUIC sends datagrams before the data of streams, and knows no priorities among them. So packets
//! wait here, where a flow that floods fills only its own queue and takes turns with the others byte
//! by byte (deficit round robin), and where all flows of a session together get a [`share`] of
//! its path while streams have something to send. What waits inside QUIC ahead of them stays small.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::kind::udp;

/// Bytes that one flow gets at a time when several want to send.
const QUANTUM: usize = 1500;

/// What a packet counts beside its payload where memory is bounded, so that empty ones cost
/// something, too.
const PACKET: usize = 64;

/// Bytes that all flows of a session may have waiting: 4 MiB.
pub const MAX_WAITING: usize = 4 << 20;

/// Bytes that a share may send at once: what streams may find ahead of them inside QUIC.
pub const BURST: u64 = 16 * 1024;

/// What one flow may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Bytes a second, in the long run.
    pub rate: u64,
    /// Bytes at once after a pause.
    pub burst: u64,
    /// Bytes that may wait, 64 for each packet included; of more, the oldest packets are dropped.
    pub queue: usize,
}

impl Default for Quota {
    /// 12.5 MB/s (100 Mbit/s), 256 KiB at once, 64 KiB waiting.
    fn default() -> Self {
        Self {
            rate: 12_500_000,
            burst: 256 * 1024,
            queue: 64 * 1024,
        }
    }
}

/// The rate in bytes a second for all flows of a session, on a path that carries about `window`
/// bytes in each round trip of `rtt`: half of it while streams are `busy`, else a quarter more than
/// all of it, so that congestion control sees that the path is wanted and finds out what it carries.
pub fn share(window: u64, rtt: Duration, busy: bool) -> u64 {
    let rtt = rtt.max(Duration::from_millis(1)).as_micros();
    let path = u128::from(window) * 1_000_000 / rtt;
    let share = if busy { path / 2 } else { path + path / 4 };
    u64::try_from(share).unwrap_or(u64::MAX).max(16 * 1024)
}

/// A token bucket. Whatever is sent while it holds anything is let through whole, and may leave it
/// owing: so packets larger than its burst pass, too.
#[derive(Debug, Clone)]
pub struct Bucket {
    rate: u64,
    burst: u64,
    /// Bytes times a billion, which makes nanoseconds exact.
    level: i128,
    updated: Duration,
}

const BILLION: i128 = 1_000_000_000;

impl Bucket {
    /// A full one. A rate of 0 counts as 1.
    pub fn new(rate: u64, burst: u64, now: Duration) -> Self {
        Self {
            rate: rate.max(1),
            burst: burst.max(1),
            level: i128::from(burst.max(1)) * BILLION,
            updated: now,
        }
    }

    /// Another rate from now on.
    pub fn set_rate(&mut self, rate: u64, now: Duration) {
        self.refill(now);
        self.rate = rate.max(1);
    }

    /// How long until something may be sent; nothing, if it may be now.
    pub fn wait(&mut self, now: Duration) -> Duration {
        self.refill(now);
        if self.level > 0 {
            return Duration::ZERO;
        }
        let rate = i128::from(self.rate);
        let nanos = (1 - self.level + rate - 1) / rate;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// So many bytes are sent.
    pub fn take(&mut self, bytes: usize) {
        self.level -= bytes as i128 * BILLION;
    }

    fn refill(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.updated);
        self.updated = self.updated.max(now);
        let elapsed = i128::try_from(elapsed.as_nanos()).unwrap_or(i128::MAX);
        let earned = i128::from(self.rate).saturating_mul(elapsed);
        let full = i128::from(self.burst) * BILLION;
        self.level = self.level.saturating_add(earned).min(full);
    }
}

/// What is to be done now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Send this packet of this flow; it counts as sent.
    Send {
        /// The flow.
        flow: u64,
        /// The packet's payload.
        payload: Bytes,
    },
    /// Ask again after this time: quotas or the share are used up.
    Wait(Duration),
    /// Ask again when there is room for this many bytes: the next packet's datagram.
    Full(usize),
    /// Nothing waits.
    Idle,
}

#[derive(Debug)]
struct Queue {
    packets: VecDeque<Bytes>,
    /// What they count.
    held: usize,
    quota: Quota,
    bucket: Bucket,
    deficit: usize,
    /// It is among those that take turns.
    turns: bool,
    dropped: u64,
}

impl Queue {
    /// Nothing waits in it.
    fn rest(&mut self) {
        self.deficit = 0;
        self.turns = false;
    }
}

/// The packets of all flows of a session that wait to be sent.
#[derive(Debug)]
pub struct Outbox {
    flows: BTreeMap<u64, Queue>,
    /// Those in which something waits, in their turn.
    turns: VecDeque<u64>,
    held: usize,
    share: Bucket,
}

impl Outbox {
    /// An empty one with this share, in bytes a second.
    pub fn new(share: u64, now: Duration) -> Self {
        Self {
            flows: BTreeMap::new(),
            turns: VecDeque::new(),
            held: 0,
            share: Bucket::new(share, BURST, now),
        }
    }

    /// Another share from now on.
    pub fn set_share(&mut self, share: u64, now: Duration) {
        self.share.set_rate(share, now);
    }

    /// A flow begins.
    pub fn open(&mut self, flow: u64, quota: Quota, now: Duration) {
        let queue = Queue {
            packets: VecDeque::new(),
            held: 0,
            quota,
            bucket: Bucket::new(quota.rate, quota.burst, now),
            deficit: 0,
            turns: false,
            dropped: 0,
        };
        self.flows.insert(flow, queue);
    }

    /// A flow is over, and what waits of it is dropped. Gives how many of its packets were in all.
    pub fn close(&mut self, flow: u64) -> u64 {
        self.turns.retain(|turn| *turn != flow);
        let Some(queue) = self.flows.remove(&flow) else {
            return 0;
        };
        self.held -= queue.held;
        queue.dropped + queue.packets.len() as u64
    }

    /// A packet is to be sent. Gives how many had to give way: the oldest of its flow, or this one,
    /// if the session has too much waiting already or the flow is unknown.
    pub fn push(&mut self, flow: u64, payload: Bytes) -> u64 {
        let cost = payload.len() + PACKET;
        let Some(queue) = self.flows.get_mut(&flow) else {
            return 1;
        };
        let mut dropped = 0;
        while queue.held > 0 && queue.held + cost > queue.quota.queue {
            let oldest = queue
                .packets
                .pop_front()
                .map_or(0, |oldest| oldest.len() + PACKET);
            queue.held -= oldest;
            self.held -= oldest;
            dropped += 1;
        }
        if self.held + cost > MAX_WAITING {
            dropped += 1;
        } else {
            if !queue.turns {
                queue.turns = true;
                self.turns.push_back(flow);
            }
            queue.packets.push_back(payload);
            queue.held += cost;
            self.held += cost;
        }
        queue.dropped += dropped;
        dropped
    }

    /// What is to be done at `now`, with room for `room` bytes of datagrams.
    pub fn next(&mut self, now: Duration, room: usize) -> Next {
        if self.turns.is_empty() {
            return Next::Idle;
        }
        let wait = self.share.wait(now);
        if !wait.is_zero() {
            return Next::Wait(wait);
        }
        let mut wait = Duration::MAX;
        let mut blocked = 0;
        while let Some(flow) = self.turns.front().copied() {
            let Some(queue) = self.flows.get_mut(&flow) else {
                self.turns.pop_front();
                continue;
            };
            let Some(first) = queue.packets.front() else {
                queue.rest();
                self.turns.pop_front();
                continue;
            };
            let quota = queue.bucket.wait(now);
            if !quota.is_zero() {
                wait = wait.min(quota);
                blocked += 1;
                queue.deficit = 0;
                self.turns.rotate_left(1);
                if blocked == self.turns.len() {
                    return Next::Wait(wait);
                }
                continue;
            }
            let size = first.len() + udp::overhead(flow);
            if queue.deficit < size {
                queue.deficit += QUANTUM;
                if queue.deficit < size || self.turns.len() > 1 {
                    self.turns.rotate_left(1);
                    // Those that wait for their quota are looked at again with the rest.
                    blocked = 0;
                    wait = Duration::MAX;
                }
                continue;
            }
            if size > room {
                return Next::Full(size);
            }
            queue.deficit -= size;
            queue.bucket.take(size);
            self.share.take(size);
            let payload = queue.packets.pop_front().unwrap_or_default();
            queue.held -= payload.len() + PACKET;
            self.held -= payload.len() + PACKET;
            if queue.packets.is_empty() {
                queue.rest();
                self.turns.pop_front();
            }
            return Next::Send { flow, payload };
        }
        Next::Idle
    }

    /// Bytes that wait, 64 for each packet included.
    pub fn waiting(&self) -> usize {
        self.held
    }
}

#[cfg(test)]
mod tests;
