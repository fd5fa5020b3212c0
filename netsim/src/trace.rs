//! What happened to every packet, so that two runs can be compared.
//!
//! A [`Trace`] always keeps counts and a running digest over all records, and, unless told
//! otherwise, the records themselves. The digest alone is enough to assert that two runs were equal
//! and stays small over the longest run; the records show where two runs parted.

use std::{fmt, net::SocketAddr, time::Duration};

use crate::{
    link::LinkDrop,
    nat::NatDrop,
    seed::Fnv,
    world::{DropReason, HostId},
};

/// Something that happened to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// A host sent it.
    Sent,
    /// A link made a second copy of it.
    Duplicated,
    /// It was put into a socket's receive queue.
    Delivered,
    /// As `Delivered`, but with damaged content.
    DeliveredCorrupted,
    /// It went no further.
    Dropped(DropReason),
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Simulated time since the network was made.
    pub at: Duration,
    /// The host that sent the packet.
    pub from: HostId,
    /// The host it was going to, where the network knows it by then.
    pub to: Option<HostId>,
    /// Source address at this point of the way, translated or not.
    pub src: SocketAddr,
    /// Destination address at this point of the way, translated or not.
    pub dst: SocketAddr,
    /// Size of the UDP payload in bytes.
    pub size: usize,
    /// What happened.
    pub event: Event,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            at, src, dst, size, ..
        } = self;
        write!(f, "{:>14.6} s  {src} > {dst}  {size} B  ", at.as_secs_f64())?;
        match self.event {
            Event::Sent => f.write_str("sent"),
            Event::Duplicated => f.write_str("duplicated"),
            Event::Delivered => f.write_str("delivered"),
            Event::DeliveredCorrupted => f.write_str("delivered corrupted"),
            Event::Dropped(reason) => write!(f, "dropped: {reason}"),
        }
    }
}

/// How much a [`Trace`] keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TraceMode {
    /// Every record.
    #[default]
    Full,
    /// The digest and the counts, in constant memory.
    Digest,
}

/// How many packets met which end. Everything sent or duplicated is delivered, dropped or still on
/// its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Packets that hosts sent.
    pub sent: u64,
    /// Second copies that links made.
    pub duplicated: u64,
    /// Copies put into receive queues, the corrupted ones included.
    pub delivered: u64,
    /// Of those, copies with damaged content.
    pub corrupted: u64,
    /// Copies lost, for any reason.
    pub dropped: u64,
}

/// The history of a network. Equal traces saw the same packets with the same addresses and sizes at
/// the same times meet the same fate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    mode: TraceMode,
    digest: Fnv,
    counts: Counts,
    records: Vec<Record>,
}

impl Trace {
    /// An empty trace.
    pub fn new(mode: TraceMode) -> Self {
        Self {
            mode,
            ..Self::default()
        }
    }

    /// Adds a record.
    pub fn push(&mut self, record: Record) {
        self.absorb(&record);
        match record.event {
            Event::Sent => self.counts.sent += 1,
            Event::Duplicated => self.counts.duplicated += 1,
            Event::Delivered => self.counts.delivered += 1,
            Event::DeliveredCorrupted => {
                self.counts.delivered += 1;
                self.counts.corrupted += 1;
            }
            Event::Dropped(_) => self.counts.dropped += 1,
        }
        if self.mode == TraceMode::Full {
            self.records.push(record);
        }
    }

    /// A number that stands for the whole history: 64 bits of FNV-1a over every field of every
    /// record. It is the same on every platform.
    pub fn digest(&self) -> u64 {
        self.digest.0
    }

    /// What the trace keeps.
    pub fn mode(&self) -> TraceMode {
        self.mode
    }

    /// Totals over the whole history.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The records in order; none in [`TraceMode::Digest`].
    pub fn iter(&self) -> std::slice::Iter<'_, Record> {
        self.records.iter()
    }

    /// Where this history and another part: the index and the two records there, `None` for one
    /// that has ended. Compares records, so it sees nothing in [`TraceMode::Digest`].
    pub fn first_difference<'a>(
        &'a self,
        other: &'a Self,
    ) -> Option<(usize, Option<&'a Record>, Option<&'a Record>)> {
        (0..self.records.len().max(other.records.len()))
            .map(|i| (i, self.records.get(i), other.records.get(i)))
            .find(|(_, mine, theirs)| mine != theirs)
    }

    fn absorb(&mut self, record: &Record) {
        let hash = &mut self.digest;
        hash.write(&record.at.as_nanos().to_le_bytes());
        hash.write(&record.from.0.to_le_bytes());
        hash.write(&record.to.map_or(u32::MAX, |host| host.0).to_le_bytes());
        for address in [record.src, record.dst] {
            match address.ip() {
                std::net::IpAddr::V4(ip) => hash.write(&ip.octets()),
                std::net::IpAddr::V6(ip) => hash.write(&ip.octets()),
            }
            hash.write(&address.port().to_le_bytes());
        }
        hash.write(&(record.size as u64).to_le_bytes());
        hash.write(&[code(record.event)]);
    }
}

impl<'a> IntoIterator for &'a Trace {
    type Item = &'a Record;
    type IntoIter = std::slice::Iter<'a, Record>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// A stable number for each event: the digest must not depend on how the compiler numbers them.
fn code(event: Event) -> u8 {
    match event {
        Event::Sent => 0,
        Event::Duplicated => 1,
        Event::Delivered => 2,
        Event::DeliveredCorrupted => 3,
        Event::Dropped(reason) => match reason {
            DropReason::Link(LinkDrop::TooBig) => 16,
            DropReason::Link(LinkDrop::Blackout) => 17,
            DropReason::Link(LinkDrop::QueueFull) => 18,
            DropReason::Link(LinkDrop::RandomLoss) => 19,
            DropReason::Link(LinkDrop::BurstLoss) => 20,
            DropReason::Nat(NatDrop::NoMapping) => 32,
            DropReason::Nat(NatDrop::Filtered) => 33,
            DropReason::Nat(NatDrop::PortsExhausted) => 34,
            DropReason::Unplugged => 48,
            DropReason::NoRoute => 49,
            DropReason::NoSocket => 50,
            DropReason::ReceiveQueueFull => 51,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(at: u64, size: usize, event: Event) -> Record {
        Record {
            at: Duration::from_millis(at),
            from: HostId(0),
            to: Some(HostId(1)),
            src: SocketAddr::from(([10, 0, 0, 1], 1)),
            dst: SocketAddr::from(([10, 0, 0, 2], 2)),
            size,
            event,
        }
    }

    fn trace(mode: TraceMode, records: &[Record]) -> Trace {
        let mut trace = Trace::new(mode);
        for record in records {
            trace.push(*record);
        }
        trace
    }

    #[test]
    fn every_field_moves_the_digest() {
        let base = record(1, 100, Event::Sent);
        let variants = [
            base,
            Record {
                at: Duration::from_nanos(1),
                ..base
            },
            Record {
                from: HostId(7),
                ..base
            },
            Record { to: None, ..base },
            Record {
                src: base.dst,
                ..base
            },
            Record {
                dst: base.src,
                ..base
            },
            Record { size: 101, ..base },
            Record {
                event: Event::Delivered,
                ..base
            },
            Record {
                event: Event::Dropped(DropReason::NoRoute),
                ..base
            },
            Record {
                event: Event::Dropped(DropReason::NoSocket),
                ..base
            },
        ];
        let digests: std::collections::BTreeSet<u64> = (variants.iter())
            .map(|r| trace(TraceMode::Digest, &[*r]).digest())
            .collect();
        assert_eq!(digests.len(), variants.len());
    }

    #[test]
    fn both_modes_agree_and_only_one_keeps_records() {
        let records = [
            record(1, 10, Event::Sent),
            record(2, 10, Event::Duplicated),
            record(3, 10, Event::DeliveredCorrupted),
            record(4, 10, Event::Dropped(DropReason::NoSocket)),
        ];
        let (full, digest) = (
            trace(TraceMode::Full, &records),
            trace(TraceMode::Digest, &records),
        );
        assert_eq!(full.digest(), digest.digest());
        assert_eq!(full.counts(), digest.counts());
        assert_eq!((full.iter().count(), digest.iter().count()), (4, 0));
        let expected = Counts {
            sent: 1,
            duplicated: 1,
            delivered: 1,
            corrupted: 1,
            dropped: 1,
        };
        assert_eq!(full.counts(), expected);
    }

    #[test]
    fn the_first_difference_is_found() {
        let (a, b) = (record(1, 10, Event::Sent), record(2, 10, Event::Sent));
        let (left, right) = (
            trace(TraceMode::Full, &[a, b]),
            trace(TraceMode::Full, &[a]),
        );
        assert_eq!(left.first_difference(&right), Some((1, Some(&b), None)));
        assert_eq!(left.first_difference(&left.clone()), None);
        assert_ne!(left, right);
    }

    #[test]
    fn a_record_reads_like_a_line_of_a_dump() {
        let line = record(
            1500,
            1200,
            Event::Dropped(DropReason::Nat(NatDrop::Filtered)),
        );
        assert_eq!(
            line.to_string(),
            "      1.500000 s  10.0.0.1:1 > 10.0.0.2:2  1200 B  dropped: NAT: filtered"
        );
    }
}
