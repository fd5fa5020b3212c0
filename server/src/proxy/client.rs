//! Who asks, from where and how: by the connection itself, and by what proxies in front of the hub
//! say, if their addresses are trusted. Pure.
//!
//! ```text
//! client --> proxy --> proxy --> peer --connection--> hub --> target
//!   X-Forwarded-For:  client, proxy, proxy   (said by the peer)
//!                     client, proxy, proxy, peer          (said to the target)
//! ```
//!
//! A peer that is not trusted is the client, whatever it says. From a trusted one the list is read
//! from its end: the first address that is not trusted is the client, since the last proxy that is
//! trusted saw it. What stands before it is anybody's word and goes no further; so the first
//! address that a target reads is the client's.
//!
//! A proxy that fills only one of the headers lets the others through as the client sent them.
//! Hence one source is taken, in this order: `X-Forwarded-For`, `X-Real-IP`, `Forwarded`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use http::HeaderMap;
use serde::{Deserialize, Deserializer};

use super::forwarded;

/// How many proxies are looked past.
const MAX_HOPS: usize = 32;
/// The longest host that a proxy may name, in bytes.
const MAX_HOST: usize = 260;
/// The longest prefix that a proxy may name, in bytes.
const MAX_PREFIX: usize = 1024;

const FOR: &str = "x-forwarded-for";
const PROTO: &str = "x-forwarded-proto";
const HOST: &str = "x-forwarded-host";
const PREFIX: &str = "x-forwarded-prefix";
const REAL_IP: &str = "x-real-ip";
const FORWARDED: &str = "forwarded";

/// Whether a client's connection is secured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// In the clear.
    Http,
    /// By TLS.
    Https,
}

impl Scheme {
    /// As in a URL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The scheme of this name; that of a WebSocket is the one that it rides on.
    pub(super) fn named(name: &str) -> Option<Self> {
        let named = |names: [&str; 2]| names.iter().any(|known| name.eq_ignore_ascii_case(known));
        if named(["https", "wss"]) {
            Some(Self::Https)
        } else {
            named(["http", "ws"]).then_some(Self::Http)
        }
    }
}

/// A client, as its connection shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// The other end of the connection, or for whom it says in the PROXY protocol to stand.
    pub peer: SocketAddr,
    /// How that one came.
    pub scheme: Scheme,
    /// Where it is sent if it came without TLS; None: it is served all the same.
    pub secured: Option<Secured>,
}

/// Where the same is served over TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secured {
    /// On the port that the client has asked.
    Here,
    /// On this port.
    Port(u16),
}

impl Client {
    /// One whose connection is in the clear, and may be.
    pub fn plain(peer: SocketAddr) -> Self {
        Self {
            peer,
            scheme: Scheme::Http,
            secured: None,
        }
    }
}

/// Addresses with the same first bits, as in `192.0.2.0/24`; or one address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

/// Why a text is no [`Prefix`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// Neither an address nor an address with a length.
    #[error("{0:?} is neither an IP address nor a network such as 192.0.2.0/24")]
    Malformed(String),
    /// The address has bits that its length leaves out.
    #[error("{given} has bits beyond its length: the network is {network}")]
    HostBits {
        /// As it was given.
        given: String,
        /// The network that it is in.
        network: Prefix,
    },
}

impl Prefix {
    /// Whether an address is one of these. An IPv4 address within IPv6 counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        masked(address.to_canonical(), self.bits) == Some(self.address)
            && self.address.is_ipv4() == address.to_canonical().is_ipv4()
    }
}

/// The address with all but its first bits zero, if it has as many.
fn masked(address: IpAddr, bits: u8) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => {
            let left_out = 32_u32.checked_sub(bits.into())?;
            let mask = u32::MAX.checked_shl(left_out).unwrap_or(0);
            Some(IpAddr::V4((address.to_bits() & mask).into()))
        }
        IpAddr::V6(address) => {
            let left_out = 128_u32.checked_sub(bits.into())?;
            let mask = u128::MAX.checked_shl(left_out).unwrap_or(0);
            Some(IpAddr::V6((address.to_bits() & mask).into()))
        }
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let malformed = || PrefixError::Malformed(text.to_owned());
        let (address, bits) = text
            .split_once('/')
            .map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| malformed())?;
        let bits = match bits {
            None if address.is_ipv4() => 32,
            None => 128,
            Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => {
                bits.parse().map_err(|_| malformed())?
            }
            Some(_) => return Err(malformed()),
        };
        let network = masked(address, bits).ok_or_else(malformed)?;
        let prefix = Self {
            address: network,
            bits,
        };
        if network == address {
            return Ok(prefix);
        }
        Err(PrefixError::HostBits {
            given: text.to_owned(),
            network: prefix,
        })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The proxies whose word about clients is taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trusted(Vec<Prefix>);

impl Trusted {
    /// Those with these addresses.
    pub fn new(prefixes: Vec<Prefix>) -> Self {
        Self(prefixes)
    }

    /// Whether this address is one of them.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|prefix| prefix.contains(address))
    }

    /// Whether nobody is trusted.
    pub fn is_nobody(&self) -> bool {
        self.0.is_empty()
    }
}

/// What is known of a request's origin, and said to its target. Not for logs: the prefix holds the
/// token.
pub(super) struct Origin {
    /// From the client to the peer; never empty.
    chain: Vec<IpAddr>,
    scheme: Scheme,
    host: String,
    prefix: String,
    /// Whether the peer's word counts.
    trusted: bool,
    secured: Option<Secured>,
}

impl Origin {
    /// The origin of a request that came from `client` with these headers, for this host, if it
    /// names one.
    pub(super) fn of(client: Client, trusted: &Trusted, headers: &HeaderMap, host: &str) -> Self {
        let peer = client.peer.ip().to_canonical();
        let mut origin = Self {
            chain: vec![peer],
            scheme: client.scheme,
            host: host.to_owned(),
            prefix: String::new(),
            trusted: trusted.contains(peer),
            secured: client.secured,
        };
        if origin.trusted {
            origin.believe(trusted, headers);
        }
        origin
    }

    /// The same, after `prefix` was taken off the path's start.
    pub(super) fn under(mut self, prefix: &str) -> Self {
        self.prefix.push_str(prefix);
        self
    }

    /// Where a client that came without TLS finds this path and query over TLS, if it is to go
    /// there.
    pub(super) fn secure_place(&self, target: &str) -> Option<String> {
        let secured = self.secured.filter(|_| self.scheme == Scheme::Http)?;
        let host = match secured {
            Secured::Here => self.host.clone(),
            Secured::Port(443) => without_port(&self.host).to_owned(),
            Secured::Port(port) => format!("{}:{port}", without_port(&self.host)),
        };
        // `*` is no path, and stands for all of them.
        let target = if target.starts_with('/') { target } else { "/" };
        Some(format!("https://{host}{target}"))
    }

    /// Takes what a trusted peer says.
    fn believe(&mut self, trusted: &Trusted, headers: &HeaderMap) {
        let hops = if headers.contains_key(FOR) {
            addresses(headers, FOR)
        } else if headers.contains_key(REAL_IP) {
            addresses(headers, REAL_IP)
        } else {
            return self.believe_standard(trusted, headers);
        };
        let client = self.follow(trusted, hops.iter().copied());
        // Lists as long as that of the addresses go with it; of others the last word is the peer's.
        let of_client = |name| {
            let list = list(headers, name);
            let with_it = client.filter(|_| list.len() == hops.len());
            with_it.map_or(list.last().copied(), |at| list.get(at).copied())
        };
        self.state(
            of_client(PROTO).and_then(Scheme::named),
            of_client(HOST).map(str::to_owned),
        );
        self.nest(headers);
    }

    /// The same by `Forwarded` (RFC 7239). Without it what is said of scheme and host still counts.
    fn believe_standard(&mut self, trusted: &Trusted, headers: &HeaderMap) {
        if headers.contains_key(FORWARDED) {
            let lines = headers.get_all(FORWARDED).iter();
            let lines: Option<Vec<_>> = lines.map(|line| line.to_str().ok()).collect();
            let hops = lines.and_then(|lines| forwarded::read(&lines.join(",")));
            let mut hops = hops.unwrap_or_default();
            let said = hops.iter().map(|hop| hop.address);
            if let Some(at) = self.follow(trusted, said) {
                let hop = hops.swap_remove(at);
                self.state(hop.scheme, hop.host);
            }
        } else {
            let last = |name| list(headers, name).last().copied();
            self.state(
                last(PROTO).and_then(Scheme::named),
                last(HOST).map(str::to_owned),
            );
        }
        self.nest(headers);
    }

    /// Goes from proxy to proxy as far as they are trusted. Gives the place of the client.
    fn follow(
        &mut self,
        trusted: &Trusted,
        hops: impl DoubleEndedIterator<Item = Option<IpAddr>> + ExactSizeIterator,
    ) -> Option<usize> {
        let mut client = None;
        for (at, hop) in hops.enumerate().rev().take(MAX_HOPS) {
            // Whoever is unknown or hidden is not looked past.
            let Some(address) = hop else { break };
            self.chain.insert(0, address);
            client = Some(at);
            if !trusted.contains(address) {
                break;
            }
        }
        client
    }

    fn state(&mut self, scheme: Option<Scheme>, host: Option<String>) {
        self.scheme = scheme.unwrap_or(self.scheme);
        if let Some(host) = host.filter(|host| is_host(host)) {
            self.host = host;
        }
    }

    /// Takes the path under which a proxy has this hub.
    fn nest(&mut self, headers: &HeaderMap) {
        if let Some(&outer) = list(headers, PREFIX).last() {
            let outer = outer.trim_end_matches('/');
            let is_path = outer.starts_with('/')
                && !outer.starts_with("//")
                && outer.len() <= MAX_PREFIX
                && (outer.bytes())
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-._~/%".contains(&byte));
            if is_path {
                outer.clone_into(&mut self.prefix);
            }
        }
    }

    /// The client's address.
    pub(super) fn client(&self) -> IpAddr {
        self.chain[0]
    }

    /// How the client came.
    pub(super) fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// What stands before the path that the target sees, where the client asks.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether a header is not passed on as it came, because what it says of the origin is the
    /// hub's to say or would be anybody's word. Servers that know headers as variables take `_` for
    /// `-`.
    pub(super) fn replaces(&self, name: &[u8]) -> bool {
        let is = |other: &str| {
            name.len() == other.len()
                && name.iter().zip(other.bytes()).all(|(&byte, other)| {
                    byte.eq_ignore_ascii_case(&other) || (byte == b'_' && other == b'-')
                })
        };
        let family = "x-forwarded-";
        [FOR, PROTO, HOST, PREFIX, REAL_IP, FORWARDED]
            .into_iter()
            .any(is)
            || (!self.trusted
                && name.get(..family.len()).is_some_and(|start| {
                    let start = start.to_ascii_lowercase();
                    start
                        .iter()
                        .map(|&byte| if byte == b'_' { b'-' } else { byte })
                        .eq(family.bytes())
                }))
    }

    /// What is said to the target.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let chain: Vec<_> = self.chain.iter().map(IpAddr::to_string).collect();
        let mut lines = vec![
            (FOR, chain.join(", ")),
            (PROTO, self.scheme.as_str().to_owned()),
            (REAL_IP, chain[0].clone()),
            (
                FORWARDED,
                forwarded::write(&self.chain, self.scheme, &self.host),
            ),
        ];
        let others = [(HOST, &self.host), (PREFIX, &self.prefix)];
        let others = others.into_iter().filter(|(_, value)| !value.is_empty());
        lines.extend(others.map(|(name, value)| (name, value.clone())));
        lines
    }
}

/// The elements of a list that may stand in several lines. One that is no text is empty.
fn list<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let lines = headers.get_all(name).iter();
    let lines = lines.map(|line| line.to_str().unwrap_or_default());
    lines
        .flat_map(|line| line.split(',').map(str::trim))
        .collect()
}

fn addresses(headers: &HeaderMap, name: &str) -> Vec<Option<IpAddr>> {
    let list = list(headers, name);
    list.into_iter().map(address).collect()
}

/// An address, with or without a port.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let address = match bracketed {
        Some((address, port)) if port.is_empty() || port.starts_with(':') => address.parse().ok(),
        Some(_) => None,
        None => (text.parse().ok()).or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip())),
    };
    address.map(|address: IpAddr| address.to_canonical())
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    }
}

fn is_host(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%:[]!$&'()*+;=".contains(&byte);
    (1..=MAX_HOST).contains(&text.len()) && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests;
