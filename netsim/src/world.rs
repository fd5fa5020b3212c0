//! The simulated internet as one machine: hosts, their access links, translators, and the packets
//! between them. Pure: the time is an argument, and nothing here waits.
//!
//! A packet makes two hops. [`World::send`] puts it into the sender's up link; where that ends, at
//! the core, the sender's NAT translates its source, the core finds the host or NAT that owns the
//! destination, and that NAT translates it back; then the receiver's down link carries it to the
//! socket's queue. Every hop that takes time is an entry of the agenda, ordered by time and then by
//! the order in which entries were made, so that nothing depends on who polls first.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, SocketAddr},
    task::Waker,
    time::Duration,
};

use bytes::Bytes;
use thiserror::Error;

use crate::{
    link::{Link, LinkConfig, LinkDrop, Verdict},
    nat::{Nat, NatConfig, NatDrop},
    seed,
    trace::{Event, Record, Trace, TraceMode},
};

/// Names a host of one network. Never used twice, not even after the host was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub(crate) u32);

/// Names a NAT of one network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NatId(pub(crate) u32);

/// One of the two links between a host and the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the host to the core.
    Up,
    /// From the core to the host.
    Down,
}

/// Why a packet went no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Error)]
pub enum DropReason {
    /// An access link lost it.
    #[error("link: {0}")]
    Link(LinkDrop),
    /// A translator refused it.
    #[error("NAT: {0}")]
    Nat(NatDrop),
    /// The host was cut off, for good or for a while, when the packet entered or left its link.
    #[error("host cut off")]
    Unplugged,
    /// Nobody owns the destination address, as seen from the sender.
    #[error("no route")]
    NoRoute,
    /// The host has no socket at the destination address.
    #[error("no socket")]
    NoSocket,
    /// The socket's receive queue had no room for it.
    #[error("receive queue full")]
    ReceiveQueueFull,
}

/// What one host sent, received and lost. Drops count where they happen: on the way up to the
/// core, and where no receiver is known, at the sender; from there on at the receiver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostStats {
    /// Packets its sockets sent.
    pub sent_packets: u64,
    /// UDP payload bytes its sockets sent.
    pub sent_bytes: u64,
    /// Packets put into its receive queues.
    pub received_packets: u64,
    /// UDP payload bytes put into its receive queues.
    pub received_bytes: u64,
    /// Packets dropped, by reason.
    pub drops: BTreeMap<DropReason, u64>,
}

/// What a socket reads.
#[derive(Debug, Clone)]
pub(crate) struct Datagram {
    pub(crate) src: SocketAddr,
    pub(crate) dst: SocketAddr,
    /// The two ECN bits of the IP header.
    pub(crate) ecn: u8,
    pub(crate) payload: Bytes,
}

/// A datagram on its way.
#[derive(Debug, Clone)]
struct Packet {
    from: HostId,
    datagram: Datagram,
    corrupted: bool,
}

#[derive(Debug)]
enum Stop {
    /// It has left the sender's up link.
    Core,
    /// It has left this host's down link.
    Host(HostId),
}

/// Where addresses are valid: on the public internet, or behind one NAT.
type Realm = Option<NatId>;

#[derive(Debug, Clone, Copy)]
enum Owner {
    Host(HostId),
    Nat(NatId),
}

#[derive(Debug)]
struct Socket {
    queue: VecDeque<Datagram>,
    queued_bytes: usize,
    queue_limit: usize,
    reader: Option<Waker>,
}

#[derive(Debug)]
struct Host {
    name: String,
    realm: Realm,
    addresses: Vec<IpAddr>,
    up: Link,
    down: Link,
    /// Cut off until this time.
    unplugged_until: Duration,
    sockets: BTreeMap<SocketAddr, Socket>,
    next_port: u16,
    stats: HostStats,
}

/// First port handed out to sockets that ask for any.
const FIRST_EPHEMERAL_PORT: u16 = 49_152;

/// Why a socket could not be bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum BindError {
    #[error("the host does not have this address")]
    NotLocal,
    #[error("another socket of the host has this address and port")]
    InUse,
    #[error("the host has no ephemeral port left")]
    NoPortLeft,
}

#[derive(Debug)]
pub(crate) struct World {
    seed: u64,
    next_id: u32,
    hosts: BTreeMap<HostId, Host>,
    nats: BTreeMap<NatId, Nat>,
    owners: BTreeMap<(Realm, IpAddr), Owner>,
    agenda: BTreeMap<(Duration, u64), (Stop, Packet)>,
    next_sequence: u64,
    /// Readers that have something to read since the last call of [`World::take_woken`].
    woken: Vec<Waker>,
    pub(crate) trace: Trace,
}

impl World {
    pub(crate) fn new(seed: u64, mode: TraceMode) -> Self {
        Self {
            seed,
            next_id: 0,
            hosts: BTreeMap::new(),
            nats: BTreeMap::new(),
            owners: BTreeMap::new(),
            agenda: BTreeMap::new(),
            next_sequence: 0,
            woken: Vec::new(),
            trace: Trace::new(mode),
        }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Adds a host with one address in its realm.
    pub(crate) fn add_host(&mut self, name: &str, address: IpAddr, realm: Realm) -> HostId {
        let id = HostId(self.fresh_id());
        let link = |direction: &str| {
            let label = format!("link {} {direction}", id.0);
            Link::with_rng(LinkConfig::perfect(), seed::rng(self.seed, &label))
        };
        let host = Host {
            name: name.to_owned(),
            realm,
            addresses: Vec::new(),
            up: link("up"),
            down: link("down"),
            unplugged_until: Duration::ZERO,
            sockets: BTreeMap::new(),
            next_port: FIRST_EPHEMERAL_PORT,
            stats: HostStats::default(),
        };
        self.hosts.insert(id, host);
        self.add_address(id, address);
        id
    }

    pub(crate) fn add_address(&mut self, id: HostId, address: IpAddr) {
        let host = self.host_mut(id);
        host.addresses.push(address);
        let realm = host.realm;
        self.own(realm, address, Owner::Host(id));
    }

    pub(crate) fn add_nat(&mut self, config: NatConfig, external: IpAddr) -> NatId {
        let id = NatId(self.fresh_id());
        let mut rng = seed::rng(self.seed, &format!("nat {}", id.0));
        self.own(None, external, Owner::Nat(id));
        self.nats
            .insert(id, Nat::with_rng(config, external, &mut rng));
        id
    }

    /// Removes a host and its sockets, and its NAT if it was the last one behind it.
    pub(crate) fn remove_host(&mut self, id: HostId) {
        let Some(host) = self.hosts.remove(&id) else {
            return;
        };
        self.woken.extend(
            host.sockets
                .into_values()
                .filter_map(|socket| socket.reader),
        );
        for address in &host.addresses {
            self.owners.remove(&(host.realm, *address));
        }
        let Some(nat_id) = host.realm else { return };
        let Some(nat) = self.nats.get_mut(&nat_id) else {
            return;
        };
        if self.hosts.values().any(|other| other.realm == host.realm) {
            host.addresses
                .into_iter()
                .for_each(|address| nat.forget(address));
        } else {
            self.owners.remove(&(None, nat.external()));
            self.nats.remove(&nat_id);
        }
    }

    fn own(&mut self, realm: Realm, address: IpAddr, owner: Owner) {
        let before = self.owners.insert((realm, address), owner);
        assert!(
            before.is_none(),
            "{address} belongs to another host or NAT of the network"
        );
    }

    fn fresh_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn host(&self, id: HostId) -> &Host {
        self.hosts
            .get(&id)
            .unwrap_or_else(|| panic!("{id:?} is not a host of this network"))
    }

    fn host_mut(&mut self, id: HostId) -> &mut Host {
        self.hosts
            .get_mut(&id)
            .unwrap_or_else(|| panic!("{id:?} is not a host of this network"))
    }

    pub(crate) fn name(&self, id: HostId) -> &str {
        &self.host(id).name
    }

    pub(crate) fn stats(&self, id: HostId) -> &HostStats {
        &self.host(id).stats
    }

    pub(crate) fn open_sockets(&self, id: HostId) -> usize {
        self.host(id).sockets.len()
    }

    pub(crate) fn link_mut(&mut self, id: HostId, direction: Direction) -> &mut Link {
        let host = self.host_mut(id);
        match direction {
            Direction::Up => &mut host.up,
            Direction::Down => &mut host.down,
        }
    }

    /// Cuts a host off until `until`; [`Duration::ZERO`] plugs it in again.
    pub(crate) fn unplug(&mut self, id: HostId, until: Duration) {
        self.host_mut(id).unplugged_until = until;
    }

    pub(crate) fn nat_mut(&mut self, id: HostId) -> &mut Nat {
        let host = self.host(id);
        let nat = host.realm.and_then(|nat| self.nats.get_mut(&nat));
        nat.unwrap_or_else(|| panic!("{id:?} is not behind a NAT"))
    }

    pub(crate) fn move_nat(&mut self, id: HostId, external: IpAddr) {
        let before = self.nat_mut(id).external();
        if let Some(owner) = self.owners.remove(&(None, before)) {
            self.own(None, external, owner);
        }
        self.nat_mut(id).rebind_to(external);
    }

    /// Opens a socket. Without an address it gets the host's first, with port zero the next free
    /// ephemeral port.
    pub(crate) fn bind(
        &mut self,
        id: HostId,
        address: Option<IpAddr>,
        port: u16,
        queue_limit: usize,
    ) -> Result<SocketAddr, BindError> {
        let host = self.host_mut(id);
        let address = address.unwrap_or(host.addresses[0]);
        if !host.addresses.contains(&address) {
            return Err(BindError::NotLocal);
        }
        let local = if port == 0 {
            let free = (host.next_port..=u16::MAX)
                .chain(FIRST_EPHEMERAL_PORT..host.next_port)
                .map(|port| SocketAddr::new(address, port))
                .find(|local| !host.sockets.contains_key(local))
                .ok_or(BindError::NoPortLeft)?;
            host.next_port = free.port().checked_add(1).unwrap_or(FIRST_EPHEMERAL_PORT);
            free
        } else {
            SocketAddr::new(address, port)
        };
        if host.sockets.contains_key(&local) {
            return Err(BindError::InUse);
        }
        let socket = Socket {
            queue: VecDeque::new(),
            queued_bytes: 0,
            queue_limit,
            reader: None,
        };
        host.sockets.insert(local, socket);
        Ok(local)
    }

    /// Closes a socket and forgets what it had not read. Answers who waited for it, to be dropped
    /// where doing so may run code that comes back here.
    pub(crate) fn close(&mut self, id: HostId, local: SocketAddr) -> Option<Waker> {
        self.hosts.get_mut(&id)?.sockets.remove(&local)?.reader
    }

    /// Takes up to `max` datagrams off a socket's queue; if there is none, `reader` is woken at the
    /// next. `None` if the socket is gone with its host.
    pub(crate) fn receive(
        &mut self,
        id: HostId,
        local: SocketAddr,
        max: usize,
        reader: &Waker,
    ) -> Option<Vec<Datagram>> {
        let socket = self.hosts.get_mut(&id)?.sockets.get_mut(&local)?;
        let datagrams: Vec<_> = socket.queue.drain(..socket.queue.len().min(max)).collect();
        socket.queued_bytes -= datagrams.iter().map(|d| d.payload.len()).sum::<usize>();
        if datagrams.is_empty() {
            match &mut socket.reader {
                Some(waker) => waker.clone_from(reader),
                none => *none = Some(reader.clone()),
            }
        }
        Some(datagrams)
    }

    /// Sends a datagram from a host at `now`.
    pub(crate) fn send(&mut self, from: HostId, datagram: Datagram, now: Duration) {
        let packet = Packet {
            from,
            datagram,
            corrupted: false,
        };
        self.record(now, &packet, None, Event::Sent);
        let Some(host) = self.hosts.get_mut(&from) else {
            return self.drop(now, &packet, None, DropReason::Unplugged);
        };
        host.stats.sent_packets += 1;
        host.stats.sent_bytes += packet.datagram.payload.len() as u64;
        if now < host.unplugged_until {
            return self.drop(now, &packet, None, DropReason::Unplugged);
        }
        let verdicts = host.up.transmit(wire_size(&packet.datagram), now);
        self.schedule(now, &packet, None, verdicts);
    }

    /// Lets everything happen that is due at `now`.
    pub(crate) fn advance(&mut self, now: Duration) {
        while let Some(entry) = self.agenda.first_entry()
            && entry.key().0 <= now
        {
            let ((at, _), (stop, packet)) = entry.remove_entry();
            match stop {
                Stop::Core => self.arrive_at_core(at, packet),
                Stop::Host(to) => self.arrive_at_host(at, &packet, to),
            }
        }
    }

    /// When the next thing happens.
    pub(crate) fn next_event(&self) -> Option<Duration> {
        self.agenda.first_key_value().map(|((at, _), _)| *at)
    }

    /// Packets between sending and receiving host.
    pub(crate) fn in_flight(&self) -> usize {
        self.agenda.len()
    }

    pub(crate) fn take_woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }

    fn arrive_at_core(&mut self, at: Duration, mut packet: Packet) {
        let Some(sender) = self
            .hosts
            .get(&packet.from)
            .filter(|host| host.unplugged_until <= at)
        else {
            return self.drop(at, &packet, None, DropReason::Unplugged);
        };
        let to = match self.route(at, &mut packet.datagram, sender.realm) {
            Ok(to) => to,
            Err(reason) => return self.drop(at, &packet, None, reason),
        };
        let Some(receiver) = self
            .hosts
            .get_mut(&to)
            .filter(|host| host.unplugged_until <= at)
        else {
            return self.drop(at, &packet, Some(to), DropReason::Unplugged);
        };
        let verdicts = receiver.down.transmit(wire_size(&packet.datagram), at);
        self.schedule(at, &packet, Some(to), verdicts);
    }

    /// Finds the receiver, translating addresses on the way.
    fn route(
        &mut self,
        at: Duration,
        datagram: &mut Datagram,
        realm: Realm,
    ) -> Result<HostId, DropReason> {
        if let Some(nat) = realm {
            if let Some(Owner::Host(neighbour)) = self.owners.get(&(realm, datagram.dst.ip())) {
                return Ok(*neighbour);
            }
            let nat = self.nats.get_mut(&nat).ok_or(DropReason::NoRoute)?;
            datagram.src = nat
                .outbound(datagram.src, datagram.dst, at)
                .map_err(DropReason::Nat)?;
        }
        match self
            .owners
            .get(&(None, datagram.dst.ip()))
            .ok_or(DropReason::NoRoute)?
        {
            Owner::Host(host) => Ok(*host),
            Owner::Nat(id) => {
                let nat = self.nats.get_mut(id).ok_or(DropReason::NoRoute)?;
                datagram.dst = nat
                    .inbound(datagram.src, datagram.dst, at)
                    .map_err(DropReason::Nat)?;
                match self.owners.get(&(Some(*id), datagram.dst.ip())) {
                    Some(Owner::Host(host)) => Ok(*host),
                    _ => Err(DropReason::NoRoute),
                }
            }
        }
    }

    fn arrive_at_host(&mut self, at: Duration, packet: &Packet, to: HostId) {
        let size = packet.datagram.payload.len();
        let Some(host) = self
            .hosts
            .get_mut(&to)
            .filter(|host| host.unplugged_until <= at)
        else {
            return self.drop(at, packet, Some(to), DropReason::Unplugged);
        };
        let Some(socket) = host.sockets.get_mut(&packet.datagram.dst) else {
            return self.drop(at, packet, Some(to), DropReason::NoSocket);
        };
        if socket.queued_bytes + size > socket.queue_limit {
            return self.drop(at, packet, Some(to), DropReason::ReceiveQueueFull);
        }
        socket.queue.push_back(packet.datagram.clone());
        socket.queued_bytes += size;
        self.woken.extend(socket.reader.take());
        host.stats.received_packets += 1;
        host.stats.received_bytes += size as u64;
        let event = if packet.corrupted {
            Event::DeliveredCorrupted
        } else {
            Event::Delivered
        };
        self.record(at, packet, Some(to), event);
    }

    /// Enters what a link decided: `to` is the receiver of a down link, nobody for an up link.
    fn schedule(
        &mut self,
        now: Duration,
        packet: &Packet,
        to: Option<HostId>,
        verdicts: impl Iterator<Item = Verdict>,
    ) {
        for (copy, verdict) in verdicts.enumerate() {
            let mut packet = packet.clone();
            let (at, corruption) = match verdict {
                Verdict::Deliver { at, corruption } => (at, corruption),
                Verdict::Drop(reason) => {
                    self.drop(now, &packet, to, DropReason::Link(reason));
                    continue;
                }
            };
            if copy > 0 {
                self.record(now, &packet, to, Event::Duplicated);
            }
            if let Some(corruption) = corruption {
                let mut payload = packet.datagram.payload.to_vec();
                corruption.apply(&mut payload);
                packet.datagram.payload = payload.into();
                packet.corrupted = true;
            }
            let stop = to.map_or(Stop::Core, Stop::Host);
            self.agenda.insert((at, self.next_sequence), (stop, packet));
            self.next_sequence += 1;
        }
    }

    fn drop(&mut self, at: Duration, packet: &Packet, to: Option<HostId>, reason: DropReason) {
        if let Some(host) = self.hosts.get_mut(&to.unwrap_or(packet.from)) {
            *host.stats.drops.entry(reason).or_default() += 1;
        }
        self.record(at, packet, to, Event::Dropped(reason));
    }

    fn record(&mut self, at: Duration, packet: &Packet, to: Option<HostId>, event: Event) {
        self.trace.push(Record {
            at,
            from: packet.from,
            to,
            src: packet.datagram.src,
            dst: packet.datagram.dst,
            size: packet.datagram.payload.len(),
            event,
        });
    }
}

/// Bytes of the IP packet around a UDP payload: what links count.
fn wire_size(datagram: &Datagram) -> usize {
    const UDP: usize = 8;
    let ip = if datagram.dst.is_ipv4() { 20 } else { 40 };
    ip + UDP + datagram.payload.len()
}

#[cfg(test)]
mod tests;
