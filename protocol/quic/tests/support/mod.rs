//! Connected pairs of real quinn endpoints, over loopback or over a simulated network in simulated
//! time, and of ends within the process. Both sides use the transport settings of the program.

#![allow(dead_code, reason = "each test binary uses its own part of it")]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hub_netsim::{HostId, LinkConfig, seed_client_config, seed_server_config};
use hub_protocol::kind::{OperationKind, exec};
use hub_protocol::limits::{Limits, MAX_DATA};
use hub_protocol::operation::Role;
use hub_quic::endpoint::{self, Handshakes, Network, Transport, UdpNetwork};
use hub_quic::operation::{Operation, Receiver};
use hub_quic::session::{Session, windows};
use hub_quic::transport::{Connection, SendStream, memory};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{AsyncUdpSocket, ClientConfig, Endpoint, EndpointConfig, ServerConfig, WriteError};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

const NAME: &str = "hub";

/// Runs a test on one thread, in real time.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(test)
}

/// Runs a test on one thread, in simulated time.
pub fn run_simulated<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(test)
}

/// Runs a test over loopback, then within the process; in real time.
pub fn over_both(test: impl AsyncFn(Ends)) {
    run(async { test(Ends::loopback().await).await });
    run(async { test(Ends::memory(memory::Streams::default())).await });
}

/// Runs a test over a simulated network with this link in each direction, then within the process,
/// where there is none; in simulated time.
pub fn simulated_over_both(link: &LinkConfig, test: impl AsyncFn(Ends)) {
    run_simulated(async { test(Ends::simulated(link).await).await });
    run_simulated(async { test(Ends::memory(memory::Streams::default())).await });
}

/// What tests need of a stream beside what the program does.
pub trait Write {
    /// Writes all of it, in chunks that are no larger than ours.
    async fn write_all(&mut self, bytes: &[u8]) -> Result<(), WriteError>;
}

impl Write for SendStream {
    async fn write_all(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        for piece in bytes.chunks(MAX_DATA) {
            self.chunk(Bytes::copy_from_slice(piece)).await?;
        }
        Ok(())
    }
}

/// One host's access to the simulated network.
#[derive(Debug)]
struct Simulated {
    net: hub_netsim::Network,
    host: HostId,
}

impl Simulated {
    fn seed(&self) -> [u8; 32] {
        self.net.derive_seed(&self.net.name(self.host))
    }
}

impl Network for Simulated {
    fn bind(&self, local: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Ok(self.net.bind(self.host, local.port())?)
    }

    fn endpoint_config(&self) -> EndpointConfig {
        hub_netsim::seeded_endpoint_config(self.seed())
    }

    fn seed_client(&self, config: &mut ClientConfig) {
        seed_client_config(config, self.seed());
    }

    fn seed_server(&self, config: &mut ServerConfig) {
        seed_server_config(config, self.seed());
    }
}

/// A connection as its two ends see it, and the endpoints it lives on.
pub struct Ends {
    pub hub: Connection,
    pub agent: Connection,
    endpoints: Vec<Endpoint>,
}

impl Ends {
    /// Within the process.
    pub fn memory(streams: memory::Streams) -> Self {
        let (hub, agent) = memory::pair(streams);
        Self {
            hub: hub.into(),
            agent: agent.into(),
            endpoints: Vec::new(),
        }
    }

    /// Over the loopback interface.
    pub async fn loopback() -> Self {
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let udp = UdpNetwork::default();
        Self::connect([&udp, &udp], [local, local], &Transport::agent(windows())).await
    }

    /// Over a simulated network whose agent has this link in each direction.
    pub async fn simulated(link: &LinkConfig) -> Self {
        Self::simulated_with(link, &Transport::agent(windows())).await
    }

    /// As [`Ends::simulated`], with settings of its own at the agent.
    pub async fn simulated_with(link: &LinkConfig, agent_transport: &Transport) -> Self {
        let net = hub_netsim::Network::new(1);
        let [hub, agent] =
            [("hub", "203.0.113.1"), ("agent", "203.0.113.2")].map(|(name, ip)| net.host(name, ip));
        net.set_links(agent, link);
        let networks = [hub, agent].map(|host| Simulated {
            net: net.clone(),
            host,
        });
        let locals = [([203, 0, 113, 1], 0), ([203, 0, 113, 2], 0)].map(SocketAddr::from);
        Self::connect([&networks[0], &networks[1]], locals, agent_transport).await
    }

    async fn connect(
        [hub_network, agent_network]: [&dyn Network; 2],
        [hub_local, agent_local]: [SocketAddr; 2],
        agent_transport: &Transport,
    ) -> Self {
        let (server_tls, client_tls) = tls();
        let (hub_transport, handshakes) = (Transport::hub(windows()), Handshakes::default());
        let server = endpoint::server_config(hub_network, server_tls, &hub_transport, &handshakes);
        let listener = endpoint::listener(hub_network, hub_local, &hub_transport, server).unwrap();
        let dialler = endpoint::dialler(agent_network, agent_local, agent_transport).unwrap();
        let client = endpoint::client_config(agent_network, client_tls, agent_transport);
        let address = listener.local_addr().unwrap();
        let dial = async { dialler.connect_with(client, address, NAME).unwrap().await };
        let accept = async { listener.accept().await.unwrap().accept().unwrap().await };
        let (agent, hub) = tokio::join!(biased; dial, accept);
        Self {
            hub: hub.unwrap().into(),
            agent: agent.unwrap().into(),
            endpoints: vec![listener, dialler],
        }
    }

    pub fn hub_session(&self) -> Session {
        session(&self.hub, Role::Hub)
    }

    pub fn agent_session(&self) -> Session {
        session(&self.agent, Role::Agent)
    }

    /// Sessions at both ends.
    pub fn sessions(self) -> Pair {
        Pair {
            hub: self.hub_session(),
            agent: self.agent_session(),
            ends: self,
        }
    }
}

fn session(connection: &Connection, role: Role) -> Session {
    let limits = Limits::default();
    let span = tracing::Span::none();
    Session::new(connection.clone(), role, limits, limits, span)
}

/// TLS with a certificate made for the occasion; who the agent is does not matter here.
fn tls() -> (
    Arc<dyn quinn::crypto::ServerConfig>,
    Arc<dyn quinn::crypto::ClientConfig>,
) {
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    let certificate: CertificateDer<'static> = params.self_signed(&key).unwrap().der().clone();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (
        Arc::new(QuicServerConfig::try_from(server).unwrap()),
        Arc::new(QuicClientConfig::try_from(client).unwrap()),
    )
}

/// A session at both ends.
pub struct Pair {
    pub hub: Session,
    pub agent: Session,
    pub ends: Ends,
}

impl Pair {
    pub async fn loopback() -> Self {
        Ends::loopback().await.sessions()
    }

    /// Over a network that only takes `one_way` for each packet.
    pub async fn simulated(one_way: Duration) -> Self {
        let link = LinkConfig::perfect().delay(one_way);
        Ends::simulated(&link).await.sessions()
    }

    /// An operation as the hub and as the agent hold it, not yet accepted.
    pub async fn open(&self, kind: OperationKind) -> (Operation, Operation) {
        let body = open_body();
        let (hub, incoming) = tokio::join!(biased; self.hub.open(kind, &body), self.agent.accept());
        let (agent, open) = incoming.unwrap().operation().await.unwrap();
        assert_eq!(open.payload, hub_protocol::kind::encode(&body));
        (hub.unwrap(), agent)
    }

    /// An operation that the agent has accepted.
    pub async fn running(&self, kind: OperationKind) -> (Operation, Operation) {
        let (hub, agent) = self.open(kind).await;
        agent.accept(Bytes::new());
        (hub, agent)
    }

    /// An exec goes through on both sides, with a byte each way.
    pub async fn assert_works(&self) {
        let (hub, agent) = self.running(OperationKind::Exec).await;
        hub.sender(exec::STDIN).send("?".into()).await.unwrap();
        let mut stdin = agent.receiver(exec::STDIN);
        assert_eq!(stdin.chunk().await, Ok(Some("?".into())));
        agent.sender(exec::STDOUT).send("!".into()).await.unwrap();
        agent.finish("0".into());
        assert_eq!(hub.done().await, Ok("0".into()));
        assert_eq!(read_all(&mut hub.receiver(exec::STDOUT)).await, b"!");
    }
}

/// The body of the operations of these tests, whatever their kind: only its bytes matter here.
pub fn open_body() -> exec::Open {
    exec::Open {
        container: None,
        argv: vec!["cat".into()],
        env: vec![],
        cwd: None,
        user: None,
        stdin: true,
        tty: None,
        on_disconnect: exec::OnDisconnect::Kill,
    }
}

/// Everything up to a channel's end.
pub async fn read_all(receiver: &mut Receiver) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(chunk) = receiver.chunk().await.unwrap() {
        all.extend_from_slice(&chunk);
    }
    all
}

/// In simulated time: lets every other task go as far as it can.
pub async fn settle() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

/// A generator of random numbers that gives the same ones in every run (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub fn bytes(&mut self, len: usize) -> Bytes {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes.into()
    }
}
