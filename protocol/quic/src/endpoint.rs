//! Endpoints: everything that `quinn` is told about transport, in one place.
//!
//! A [`Network`] makes the sockets and, in simulations, decides what is random; [`Transport`] holds
//! the limits of connections, each set explicitly; TLS comes from [`tls`](crate::tls). Together they
//! make endpoints: [`dialler`] with a [`client_config`] for each connection, [`listener`] with a
//! [`server_config`]. A listener passes what arrives through [`admit`].
//!
//! The windows here are QUIC's own and guard memory only. They are sized above what the credit
//! windows of operations can have outstanding, so that QUIC's flow control never stops a byte
//! that has credit, and one operation never holds up another.

mod socket;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hub_protocol::limits::{AGENT_STREAMS, INITIAL_OPERATIONS};
use quinn::congestion::{ControllerFactory, CubicConfig};
use quinn::{
    AsyncUdpSocket, ClientConfig, Connecting, Endpoint, EndpointConfig, Incoming,
    MtuDiscoveryConfig, ServerConfig, TokioRuntime, TransportConfig, VarInt, crypto,
};

pub use socket::UdpNetwork;

use crate::urgent::UrgentFactory;

/// How long an agent's connection is silent before it sends a keep-alive: often enough for
/// every NAT whose UDP mappings live at least 30 s, the shortest that are common.
pub const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// How long a side waits for any packet of the other before it takes it for gone.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest UDP payload that path probing goes up to, in bytes: that of a jumbo frame of 9,000.
///
/// On loopback, packets of this size move bulk three to four times as fast as those of Ethernet's
/// size; 65,488, the most that loopback carries, makes it five. But probes count against the
/// congestion window while they are under way, and those beyond the path's limit are each lost
/// three times: at a round trip of 40 ms and Ethernet's limit, the first MiB takes 25 ms longer
/// than with an exact bound, and with 65,488 it would take 470 ms longer.
pub const MAX_UDP_PAYLOAD: u16 = 8_972;

/// Bytes of datagrams that came and wait to be taken; of more the oldest are lost.
const DATAGRAMS_IN: usize = 256 * 1024;

/// Bytes of datagrams that wait inside QUIC, ahead of all streams: three of the largest, so that a
/// batch can be made of them. The rest waits in [`flow`](crate::flow), where it holds up nobody.
const DATAGRAMS_OUT: usize = 32 * 1024;

/// What endpoints stand on: the machine's UDP ([`UdpNetwork`]), a simulated network, or a carrier
/// of the same packets over something else.
///
/// The provided methods draw what QUIC needs at random from the operating system; a simulation
/// overrides them all, so that a run repeats exactly.
pub trait Network: fmt::Debug + Send + Sync {
    /// Makes a socket bound to `local`; port 0 takes any free one. Called inside a tokio runtime.
    ///
    /// # Errors
    /// Whatever the system says, as when the address is taken or not one of this machine.
    fn bind(&self, local: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>>;

    /// What the next endpoint starts from: its random generator, connection ids and the key of
    /// stateless resets.
    fn endpoint_config(&self) -> EndpointConfig {
        EndpointConfig::default()
    }

    /// Overrides what is random in connections that are opened: their first connection ids.
    fn seed_client(&self, _config: &mut ClientConfig) {}

    /// Overrides what is random in connections that are accepted: the key of address tokens, and
    /// the clock they age by.
    fn seed_server(&self, _config: &mut ServerConfig) {}
}

/// The limits of QUIC connections. Every limit that `quinn` has a default for is set from here or
/// from a constant of this module.
#[derive(Clone)]
pub struct Transport {
    /// Bidirectional streams that the peer may have open at once.
    pub incoming_streams: u32,
    /// Bytes the peer may have outstanding on one stream.
    pub stream_receive_window: u32,
    /// Bytes the peer may have outstanding on all streams of a connection.
    pub receive_window: u32,
    /// Bytes written on all streams of a connection and not yet acknowledged.
    pub send_window: u64,
    /// Silence before a keep-alive is sent; `None` sends none. One side's are enough.
    pub keep_alive: Option<Duration>,
    /// Silence of the peer before the connection is given up. The lesser of both sides counts.
    pub idle_timeout: Duration,
    /// The largest UDP payload to probe the path for, in bytes, from 1,200 to 65,527.
    pub max_udp_payload: u16,
    /// Whether datagrams are taken and sent: see [`flow`](crate::flow).
    pub datagrams: bool,
    /// The congestion controller.
    pub congestion: Arc<dyn ControllerFactory + Send + Sync>,
}

/// The byte windows of a session's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Bytes outstanding in one direction of one stream, frames included.
    pub stream: u32,
    /// Bytes outstanding in one direction of all operations of a session together.
    pub session: u32,
    /// Bytes on top for what costs no credit: the control stream and short messages.
    pub reserve: u32,
}

impl Transport {
    fn session(incoming_streams: u32, windows: Windows) -> Self {
        let all = windows.session.saturating_add(windows.reserve);
        Self {
            incoming_streams,
            stream_receive_window: windows.stream,
            receive_window: all,
            send_window: u64::from(all),
            keep_alive: None,
            idle_timeout: IDLE_TIMEOUT,
            max_udp_payload: MAX_UDP_PAYLOAD,
            datagrams: true,
            congestion: Arc::new(CubicConfig::default()),
        }
    }

    /// The agent's side of the operational endpoint. It sends the keep-alives, because its side
    /// is where the NAT is.
    pub fn agent(windows: Windows) -> Self {
        Self {
            keep_alive: Some(KEEP_ALIVE),
            ..Self::session(INITIAL_OPERATIONS, windows)
        }
    }

    /// The hub's side of the operational endpoint.
    pub fn hub(windows: Windows) -> Self {
        Self::session(AGENT_STREAMS, windows)
    }

    /// Either side of an enrollment connection, which carries one request of at most `message`
    /// bytes and one answer. `incoming_streams` is 1 at the hub and 0 at the agent.
    pub fn enrollment(incoming_streams: u32, message: u32) -> Self {
        let windows = Windows {
            stream: message,
            session: message,
            reserve: 0,
        };
        Self {
            max_udp_payload: 1452,
            datagrams: false,
            ..Self::session(incoming_streams, windows)
        }
    }

    fn config(&self) -> Arc<TransportConfig> {
        let mut mtu = MtuDiscoveryConfig::default();
        mtu.upper_bound(self.max_udp_payload)
            .interval(Duration::from_secs(600))
            .black_hole_cooldown(Duration::from_secs(60));
        let idle_timeout = u32::try_from(self.idle_timeout.as_millis()).unwrap_or(u32::MAX);
        let mut config = TransportConfig::default();
        config
            .max_concurrent_bidi_streams(VarInt::from_u32(self.incoming_streams))
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .stream_receive_window(VarInt::from_u32(self.stream_receive_window))
            .receive_window(VarInt::from_u32(self.receive_window))
            .send_window(self.send_window)
            .send_fairness(true)
            .keep_alive_interval(self.keep_alive)
            .max_idle_timeout(Some(VarInt::from_u32(idle_timeout).into()))
            .initial_mtu(1200)
            .min_mtu(1200)
            .mtu_discovery_config(Some(mtu))
            .datagram_receive_buffer_size(self.datagrams.then_some(DATAGRAMS_IN))
            .datagram_send_buffer_size(if self.datagrams { DATAGRAMS_OUT } else { 0 })
            // A passive observer needs no help in timing us.
            .allow_spin(false)
            .congestion_controller_factory(Arc::new(UrgentFactory(self.congestion.clone())));
        Arc::new(config)
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("incoming_streams", &self.incoming_streams)
            .field("stream_receive_window", &self.stream_receive_window)
            .field("receive_window", &self.receive_window)
            .field("send_window", &self.send_window)
            .field("keep_alive", &self.keep_alive)
            .field("idle_timeout", &self.idle_timeout)
            .field("max_udp_payload", &self.max_udp_payload)
            .field("datagrams", &self.datagrams)
            .finish_non_exhaustive()
    }
}

/// How many strangers a listener deals with at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handshakes {
    /// Handshakes under way, and attempts waiting to begin one; more are refused at once.
    pub max: usize,
    /// From how many handshakes under way an address must first prove that it is its sender's,
    /// at the price of a round trip.
    pub retry_from: usize,
    /// Bytes kept for one attempt that waits.
    pub buffer: u64,
}

impl Default for Handshakes {
    /// 1,024 handshakes, proof of address from 64, 16 KiB each.
    fn default() -> Self {
        Self {
            max: 1024,
            retry_from: 64,
            buffer: 16 << 10,
        }
    }
}

/// The configuration of connections that this side opens.
pub fn client_config(
    network: &dyn Network,
    tls: Arc<dyn crypto::ClientConfig>,
    transport: &Transport,
) -> ClientConfig {
    let mut config = ClientConfig::new(tls);
    config.transport_config(transport.config());
    network.seed_client(&mut config);
    config
}

/// The configuration of connections that this side accepts. Peers may migrate: a NAT that forgets
/// its mapping costs nothing but a path validation.
pub fn server_config(
    network: &dyn Network,
    tls: Arc<dyn crypto::ServerConfig>,
    transport: &Transport,
    handshakes: &Handshakes,
) -> ServerConfig {
    let mut config = ServerConfig::with_crypto(tls);
    config
        .transport_config(transport.config())
        .migration(true)
        .max_incoming(handshakes.max)
        .incoming_buffer_size(handshakes.buffer)
        .incoming_buffer_size_total(handshakes.buffer.saturating_mul(handshakes.max as u64))
        .retry_token_lifetime(Duration::from_secs(15));
    network.seed_server(&mut config);
    config
}

/// Opens an endpoint that only dials, bound to `local`. Called inside a tokio runtime, whose clock
/// it lives by.
///
/// # Errors
/// As [`Network::bind`].
pub fn dialler(
    network: &dyn Network,
    local: SocketAddr,
    transport: &Transport,
) -> io::Result<Endpoint> {
    open(network, local, transport, None)
}

/// Opens an endpoint that accepts connections on `local`. Called inside a tokio runtime, whose
/// clock it lives by.
///
/// # Errors
/// As [`Network::bind`].
pub fn listener(
    network: &dyn Network,
    local: SocketAddr,
    transport: &Transport,
    server: ServerConfig,
) -> io::Result<Endpoint> {
    open(network, local, transport, Some(server))
}

fn open(
    network: &dyn Network,
    local: SocketAddr,
    transport: &Transport,
    server: Option<ServerConfig>,
) -> io::Result<Endpoint> {
    let socket = network.bind(local)?;
    let mut config = network.endpoint_config();
    config
        .max_udp_payload_size(transport.max_udp_payload.clamp(1200, 65_527))
        .map_err(io::Error::other)?;
    Endpoint::new_with_abstract_socket(config, server, socket, Arc::new(TokioRuntime))
}

/// Begins the handshake of a connection that comes in, unless too many are under way: then it is
/// refused, or its address has to prove itself first and it comes again.
pub fn admit(incoming: Incoming, under_way: usize, handshakes: &Handshakes) -> Option<Connecting> {
    if under_way >= handshakes.max {
        incoming.refuse();
        return None;
    }
    if under_way >= handshakes.retry_from && !incoming.remote_address_validated() {
        // Fails only for an address that is validated, and then drops, which refuses.
        let _ = incoming.retry();
        return None;
    }
    // An attempt that is malformed beyond answering; quinn has told the peer what it can.
    incoming.accept().ok()
}
