//! A network address translator, as a pure model.
//!
//! Packets on their way out go through [`Nat::outbound`], which answers the external source
//! address; packets on their way in go through [`Nat::inbound`], which answers the internal
//! destination, or why the packet is refused. Time is an argument. What the four kinds differ in is
//! whether a mapping serves all destinations, and which remote ends may answer through it:
//!
//! | kind | one mapping per | lets in |
//! | --- | --- | --- |
//! | [`NatKind::FullCone`] | internal address | anybody |
//! | [`NatKind::AddressRestricted`] | internal address | addresses it has sent to |
//! | [`NatKind::PortRestricted`] | internal address | addresses and ports it has sent to |
//! | [`NatKind::Symmetric`] | internal address and destination | that destination |
//!
//! External ports are handed out in ascending order from a start that the seed decides, and come
//! round again only after the whole range, so a forgotten port is not given to the next mapping.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    time::Duration,
};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use thiserror::Error;

/// Why a translator refused a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Error)]
pub enum NatDrop {
    /// Inbound to an external port that nothing is mapped to, or no longer.
    #[error("no mapping")]
    NoMapping,
    /// Inbound through a mapping that does not let this remote end in.
    #[error("filtered")]
    Filtered,
    /// Outbound while every external port is taken.
    #[error("no external port left")]
    PortsExhausted,
}

/// Which remote ends share a mapping, and which may use it inbound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum NatKind {
    /// One mapping per internal address; anybody may send to it.
    FullCone,
    /// One mapping per internal address; remote addresses it has sent to may answer from any port.
    AddressRestricted,
    /// One mapping per internal address; remote addresses and ports it has sent to may answer.
    #[default]
    PortRestricted,
    /// One mapping per internal address and destination, which alone may answer.
    Symmetric,
}

/// How a translator behaves. The default is what a home router does: port-restricted, mappings that
/// last 120 s after the last packet in either direction, external ports from 1024 up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatConfig {
    kind: NatKind,
    mapping_timeout: Duration,
    refresh_on_inbound: bool,
    ports: RangeInclusive<u16>,
}

impl Default for NatConfig {
    fn default() -> Self {
        Self {
            kind: NatKind::default(),
            mapping_timeout: Duration::from_secs(120),
            refresh_on_inbound: true,
            ports: 1024..=u16::MAX,
        }
    }
}

impl NatConfig {
    /// The default with another kind.
    pub fn new(kind: NatKind) -> Self {
        Self {
            kind,
            ..Self::default()
        }
    }

    /// Forgets a mapping, and a remote end's permission to use one, this long after its last packet.
    #[must_use]
    pub fn mapping_timeout(mut self, timeout: Duration) -> Self {
        self.mapping_timeout = timeout;
        self
    }

    /// Whether inbound packets keep a mapping alive; outbound ones always do.
    #[must_use]
    pub fn refresh_on_inbound(mut self, yes: bool) -> Self {
        self.refresh_on_inbound = yes;
        self
    }

    /// The external ports to hand out.
    #[must_use]
    pub fn ports(mut self, ports: RangeInclusive<u16>) -> Self {
        self.ports = ports;
        self
    }
}

/// What finds a mapping on the way out. The destination counts for [`NatKind::Symmetric`] only.
type Key = (SocketAddr, Option<SocketAddr>);

#[derive(Debug, Clone)]
struct Mapping {
    key: Key,
    last_used: Duration,
    /// Remote ends it has sent to, and when a packet last passed between them.
    remotes: BTreeMap<SocketAddr, Duration>,
}

/// A translator with one external address.
#[derive(Debug, Clone)]
pub struct Nat {
    config: NatConfig,
    external: IpAddr,
    next_port: u16,
    by_key: BTreeMap<Key, u16>,
    by_port: BTreeMap<u16, Mapping>,
}

impl Nat {
    /// A translator without mappings. The seed decides only where port numbers start.
    pub fn new(config: NatConfig, external: IpAddr, seed: u64) -> Self {
        Self::with_rng(config, external, &mut Pcg64::seed_from_u64(seed))
    }

    pub(crate) fn with_rng(config: NatConfig, external: IpAddr, rng: &mut Pcg64) -> Self {
        let next_port = if config.ports.is_empty() {
            *config.ports.start()
        } else {
            rng.random_range(config.ports.clone())
        };
        Self {
            config,
            external,
            next_port,
            by_key: BTreeMap::new(),
            by_port: BTreeMap::new(),
        }
    }

    /// The address it shows to the outside.
    pub fn external(&self) -> IpAddr {
        self.external
    }

    /// Mappings held, those that have timed out and were not yet cleared away included.
    pub fn mappings(&self) -> usize {
        self.by_port.len()
    }

    /// Translates the source of a packet from `src` to `dst` that leaves at `now`, making a mapping
    /// if there is none.
    pub fn outbound(
        &mut self,
        src: SocketAddr,
        dst: SocketAddr,
        now: Duration,
    ) -> Result<SocketAddr, NatDrop> {
        let key = (src, (self.config.kind == NatKind::Symmetric).then_some(dst));
        let port = match self.by_key.get(&key) {
            Some(&port) if self.is_alive(port, now) => port,
            _ => self.map(key, now)?,
        };
        let timeout = self.config.mapping_timeout;
        if let Some(mapping) = self.by_port.get_mut(&port) {
            mapping.last_used = now;
            if mapping.remotes.insert(dst, now).is_none() {
                mapping
                    .remotes
                    .retain(|_, used| !expired(*used, timeout, now));
            }
        }
        Ok(SocketAddr::new(self.external, port))
    }

    /// Translates the destination of a packet from `src` to the external address `dst` that arrives
    /// at `now`.
    pub fn inbound(
        &mut self,
        src: SocketAddr,
        dst: SocketAddr,
        now: Duration,
    ) -> Result<SocketAddr, NatDrop> {
        let timeout = self.config.mapping_timeout;
        let mapping = (self.by_port.get_mut(&dst.port()))
            .filter(|mapping| {
                dst.ip() == self.external && !expired(mapping.last_used, timeout, now)
            })
            .ok_or(NatDrop::NoMapping)?;
        let mut permitted =
            (mapping.remotes.iter()).filter(|(_, used)| !expired(**used, timeout, now));
        let admits = match self.config.kind {
            NatKind::FullCone => true,
            NatKind::AddressRestricted => permitted.any(|(remote, _)| remote.ip() == src.ip()),
            NatKind::PortRestricted | NatKind::Symmetric => permitted.any(|(r, _)| *r == src),
        };
        if !admits {
            return Err(NatDrop::Filtered);
        }
        if self.config.refresh_on_inbound {
            mapping.last_used = now;
            if let Some(used) = mapping.remotes.get_mut(&src) {
                *used = now;
            }
        }
        Ok(mapping.key.0)
    }

    /// Forgets all mappings, as a router does that restarts: the next packet out gets a new port,
    /// and packets to the old ones are refused.
    pub fn rebind(&mut self) {
        self.by_key.clear();
        self.by_port.clear();
    }

    /// Forgets all mappings and shows another address to the outside from now on.
    pub fn rebind_to(&mut self, external: IpAddr) {
        self.rebind();
        self.external = external;
    }

    /// Drops what `internal` holds: its machine has left.
    pub fn forget(&mut self, internal: IpAddr) {
        self.by_key.retain(|(src, _), _| src.ip() != internal);
        self.by_port.retain(|_, m| m.key.0.ip() != internal);
    }

    fn is_alive(&self, port: u16, now: Duration) -> bool {
        (self.by_port.get(&port))
            .is_some_and(|m| !expired(m.last_used, self.config.mapping_timeout, now))
    }

    fn map(&mut self, key: Key, now: Duration) -> Result<u16, NatDrop> {
        let timeout = self.config.mapping_timeout;
        self.by_port
            .retain(|_, m| !expired(m.last_used, timeout, now));
        let alive: BTreeSet<u16> = self.by_port.keys().copied().collect();
        self.by_key.retain(|_, port| alive.contains(port));

        let port = self.free_port().ok_or(NatDrop::PortsExhausted)?;
        self.by_key.insert(key, port);
        let mapping = Mapping {
            key,
            last_used: now,
            remotes: BTreeMap::new(),
        };
        self.by_port.insert(port, mapping);
        Ok(port)
    }

    fn free_port(&mut self) -> Option<u16> {
        let (first, last) = (*self.config.ports.start(), *self.config.ports.end());
        let port = (self.next_port..=last)
            .chain(first..self.next_port)
            .find(|port| !self.by_port.contains_key(port))?;
        self.next_port = if port == last { first } else { port + 1 };
        Some(port)
    }
}

/// Whether something last used at `last_used` has been idle for the timeout.
fn expired(last_used: Duration, timeout: Duration, now: Duration) -> bool {
    now.saturating_sub(last_used) >= timeout
}

#[cfg(test)]
mod tests;
