//! Finding and reaching the hub.
//!
//! A [`HubAddress`] is resolved anew at each attempt, because hubs move. Its addresses are tried in
//! the resolver's order with the families taking turns, one more every [`STAGGER`] or as soon as one
//! has failed; the first handshake that succeeds wins. The socket of each family is a fresh one, so
//! that a NAT mapping gone bad is left behind. A literal address asks no resolver.

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hub_quic::endpoint::{self, Network, Transport};
use hub_quic::tls::HUB_NAME;
use quinn::{ClientConfig, ConnectError, Connection, ConnectionError, Endpoint};
use tokio::time::{Instant, sleep_until, timeout_at};

/// How long an attempt goes on alone before the next address is tried beside it.
pub const STAGGER: Duration = Duration::from_millis(250);

/// How long all attempts of a dial take together, the resolver's answer included.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// The most addresses of one name that are tried.
const MAX_ADDRESSES: usize = 8;

/// Where a hub listens: a name or an address, and a UDP port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HubAddress {
    host: String,
    port: u16,
}

/// A text that is no address of a hub.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no address of a hub: it takes HOST or HOST:PORT, IPv6 as [ADDRESS]:PORT")]
pub struct AddressError {
    text: String,
}

impl HubAddress {
    /// The address of this host and port.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }

    /// Reads `HOST`, `HOST:PORT`, `ADDRESS`, `ADDRESS:PORT`, `[IPV6]` or `[IPV6]:PORT`; without
    /// a port it is `default_port`.
    ///
    /// # Errors
    /// [`AddressError`].
    pub fn parse(text: &str, default_port: u16) -> Result<Self, AddressError> {
        let error = || AddressError {
            text: text.chars().take(300).collect(),
        };
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Ok(Self::new(address.to_string(), default_port));
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, rest) = rest.split_once(']').ok_or_else(error)?;
                address.parse::<Ipv6Addr>().map_err(|_| error())?;
                let port = match rest {
                    "" => None,
                    _ => Some(rest.strip_prefix(':').ok_or_else(error)?),
                };
                (address, port)
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = match port {
            Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                port.parse().map_err(|_| error())?
            }
            Some(_) => return Err(error()),
            None => default_port,
        };
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_name = (1..=253).contains(&host.len()) && host.bytes().all(allowed);
        if port == 0 || !(is_name || host.parse::<Ipv6Addr>().is_ok()) {
            return Err(error());
        }
        Ok(Self::new(host, port))
    }

    /// The name or address.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The UDP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Ok(vec![(address, self.port).into()]);
        }
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await?;
        Ok(take_turns(found))
    }
}

impl fmt::Display for HubAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl From<SocketAddr> for HubAddress {
    fn from(address: SocketAddr) -> Self {
        Self::new(address.ip().to_string(), address.port())
    }
}

/// `HOST:PORT` with the port.
impl FromStr for HubAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        // 0 is no port to dial: it stands for "none given" and is refused.
        Self::parse(text, 0)
    }
}

/// The addresses without repetition, the first one's family first, then the families in turns:
/// when one family is broken, the other is not behind all of its addresses.
fn take_turns(found: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut unique = Vec::new();
    for address in found {
        if !unique.contains(&address) {
            unique.push(address);
        }
    }
    let first_is_v6 = unique.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = unique
        .into_iter()
        .partition(|address| address.is_ipv6() == first_is_v6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    std::iter::from_fn(|| {
        let (one, two) = (first.next(), second.next());
        (one.is_some() || two.is_some()).then(|| one.into_iter().chain(two))
    })
    .flatten()
    .take(MAX_ADDRESSES)
    .collect()
}

/// Why the hub was not reached.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The name has no address now.
    #[error("cannot find the address of {hub}: {source}; check the name and the resolver")]
    Resolve {
        /// Whom it was about.
        hub: HubAddress,
        /// What the resolver said.
        source: io::Error,
    },
    /// No socket to dial with.
    #[error("cannot open a UDP socket to reach {hub}: {source}")]
    Socket {
        /// Whom it was about.
        hub: HubAddress,
        /// What the system said.
        source: io::Error,
    },
    /// The addresses cannot be dialled.
    #[error("cannot dial {hub}: {source}")]
    Unreachable {
        /// Whom it was about.
        hub: HubAddress,
        /// What is wrong.
        source: ConnectError,
    },
    /// Nobody answered in time.
    #[error("no UDP answer from {hub}; is UDP blocked? Tried {} for {} s", list(.tried), DIAL_TIMEOUT.as_secs())]
    Silent {
        /// Whom it was about.
        hub: HubAddress,
        /// The addresses that were tried.
        tried: Vec<SocketAddr>,
    },
    /// Somebody answered, and the handshake failed.
    #[error("{hub} answered from {address}, but the handshake failed: {source}")]
    Handshake {
        /// Whom it was about.
        hub: HubAddress,
        /// Who answered.
        address: SocketAddr,
        /// What went wrong, on this side or by an alert of the other.
        source: ConnectionError,
    },
}

impl DialError {
    /// Whether the same may succeed later without anyone's doing. A handshake fails for
    /// certificates and versions, which somebody has to change.
    pub fn retry_helps(&self) -> bool {
        match self {
            Self::Resolve { .. } | Self::Socket { .. } | Self::Silent { .. } => true,
            Self::Unreachable { .. } => false,
            Self::Handshake { source, .. } => !matches!(
                source,
                ConnectionError::TransportError(_) | ConnectionError::VersionMismatch
            ),
        }
    }
}

fn list(addresses: &[SocketAddr]) -> String {
    let texts = addresses
        .iter()
        .map(SocketAddr::to_string)
        .collect::<Vec<_>>();
    if texts.is_empty() {
        "no address".to_owned()
    } else {
        texts.join(", ")
    }
}

/// A connection to the hub.
#[derive(Debug)]
pub struct Dialled {
    /// The connection.
    pub connection: Connection,
    /// Its endpoint, which has no other connection: to wait for a farewell to leave.
    pub endpoint: Endpoint,
    /// The address that answered.
    pub address: SocketAddr,
}

/// Reaches the hub within [`DIAL_TIMEOUT`]. Each call has sockets of its own.
///
/// # Errors
/// [`DialError`]; if several addresses failed, the one that tells most: an answer before silence.
pub async fn dial(
    network: &dyn Network,
    hub: &HubAddress,
    transport: &Transport,
    client: &ClientConfig,
) -> Result<Dialled, DialError> {
    let deadline = Instant::now() + DIAL_TIMEOUT;
    let resolved = match timeout_at(deadline, hub.resolve()).await {
        Ok(resolved) => resolved,
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the resolver did not answer",
        )),
    };
    let addresses = match resolved {
        Ok(addresses) if addresses.is_empty() => Err(io::ErrorKind::NotFound.into()),
        other => other,
    };
    let addresses = addresses.map_err(|source| DialError::Resolve {
        hub: hub.clone(),
        source,
    })?;
    Race {
        network,
        hub,
        transport,
        client,
        v4: None,
        v6: None,
    }
    .run(&addresses, deadline)
    .await
}

struct Race<'a> {
    network: &'a dyn Network,
    hub: &'a HubAddress,
    transport: &'a Transport,
    client: &'a ClientConfig,
    v4: Option<Endpoint>,
    v6: Option<Endpoint>,
}

impl Race<'_> {
    async fn run(
        mut self,
        addresses: &[SocketAddr],
        deadline: Instant,
    ) -> Result<Dialled, DialError> {
        let mut waiting = addresses.iter().copied();
        let mut under_way = FuturesUnordered::new();
        let mut failure: Option<DialError> = None;
        let mut next_start = Some(Instant::now());
        loop {
            if next_start.is_some_and(|start| start <= Instant::now()) {
                next_start = None;
                // One that cannot even begin makes room for the next at once.
                for address in waiting.by_ref() {
                    match self.start(address) {
                        Ok((endpoint, connecting)) => {
                            under_way.push(async move { (address, endpoint, connecting.await) });
                            next_start = Some(Instant::now() + STAGGER);
                            break;
                        }
                        Err(error) => failure = Some(more_telling(failure, error)),
                    }
                }
            }
            if under_way.is_empty() {
                let silent = || DialError::Silent {
                    hub: self.hub.clone(),
                    tried: vec![],
                };
                return Err(failure.unwrap_or_else(silent));
            }
            let stagger = async {
                match next_start {
                    Some(start) => sleep_until(start).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some((address, endpoint, result)) = under_way.next() => match result {
                    Ok(connection) => return Ok(Dialled { connection, endpoint, address }),
                    Err(source) => {
                        let error = match source {
                            ConnectionError::TimedOut => self.silent(addresses),
                            source => DialError::Handshake { hub: self.hub.clone(), address, source },
                        };
                        failure = Some(more_telling(failure, error));
                        next_start = Some(Instant::now());
                    }
                },
                () = sleep_until(deadline) => {
                    return Err(more_telling(failure, self.silent(addresses)));
                }
                () = stagger => {}
            }
        }
    }

    fn silent(&self, addresses: &[SocketAddr]) -> DialError {
        DialError::Silent {
            hub: self.hub.clone(),
            tried: addresses.to_vec(),
        }
    }

    fn start(&mut self, address: SocketAddr) -> Result<(Endpoint, quinn::Connecting), DialError> {
        let (slot, any): (_, IpAddr) = match address {
            SocketAddr::V4(_) => (&mut self.v4, Ipv4Addr::UNSPECIFIED.into()),
            SocketAddr::V6(_) => (&mut self.v6, Ipv6Addr::UNSPECIFIED.into()),
        };
        let endpoint = match slot {
            Some(endpoint) => endpoint.clone(),
            None => endpoint::dialler(self.network, (any, 0).into(), self.transport)
                .map(|endpoint| slot.insert(endpoint).clone())
                .map_err(|source| DialError::Socket {
                    hub: self.hub.clone(),
                    source,
                })?,
        };
        let connecting = endpoint
            .connect_with(self.client.clone(), address, HUB_NAME)
            .map_err(|source| DialError::Unreachable {
                hub: self.hub.clone(),
                source,
            })?;
        Ok((endpoint, connecting))
    }
}

/// The one of two failures that tells more.
fn more_telling(first: Option<DialError>, second: DialError) -> DialError {
    let told = |error: &DialError| match error {
        DialError::Handshake { .. } => 3,
        DialError::Silent { .. } => 2,
        DialError::Unreachable { .. } => 1,
        DialError::Resolve { .. } | DialError::Socket { .. } => 0,
    };
    match first {
        Some(first) if told(&first) >= told(&second) => first,
        _ => second,
    }
}
