//! A hub's data plane and an agent's operations, joined by one QUIC connection.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hub_agent::operations::http::{self, Connections, Dial, Direct, Stream};
use hub_agent::targets::{Address, Targets};
use hub_ledger::exposure::Settings;
use hub_ledger::{Access, Exposure, ExposureId, ExposureToken, Protocol, Replica, Timestamp};
use hub_netsim::{HostId, LinkConfig, seed_client_config, seed_server_config};
use hub_protocol::NodeId;
use hub_protocol::kind;
use hub_protocol::limits::Limits;
use hub_protocol::operation::Role;
use hub_protocol::session;
use hub_protocol::target::Target;
use hub_quic::endpoint::{self, Handshakes, Network, Transport, UdpNetwork};
use hub_quic::session::{Session, windows};
use hub_server::api::ApiToken;
use hub_server::proxy::{
    Config, Door, Live, Operator, Proxy, Quotas, Resolved, Route, RouteError, Routes,
};
use hub_server::secret::{HubSecret, Token};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{AsyncUdpSocket, ClientConfig, Endpoint, EndpointConfig, ServerConfig};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::DuplexStream;
use tokio::net::{TcpListener, TcpStream};

const NAME: &str = "hub";

/// The domain of the hub in these tests.
pub const DOMAIN: &str = "hub.test";

/// The name of the exposure.
pub const EXPOSED: &str = "shop";

/// Runs a test on one thread, in real time. The limit only turns a hang into a failure.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let limit = Duration::from_secs(120);
    let test = async { tokio::time::timeout(limit, test).await.expect("it hangs") };
    runtime.enable_all().build().unwrap().block_on(test)
}

/// Runs a test on one thread, in simulated time.
pub fn run_simulated<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(test)
}

/// Where requests go: one exposure, known by a token and by a name.
#[derive(Debug)]
pub struct OneRoute {
    pub hash: hub_ledger::ExposureTokenHash,
    pub to: Mutex<Result<Resolved, RouteError>>,
}

impl Routes for OneRoute {
    fn resolve(&self, route: Route) -> BoxFuture<'_, Result<Resolved, RouteError>> {
        let known = match route {
            Route::Token(hash) => hash == self.hash,
            Route::Name(name) => name.as_str() == EXPOSED,
        };
        let to = if known {
            self.to.lock().unwrap().clone()
        } else {
            Err(RouteError::Unknown)
        };
        async { to }.boxed()
    }
}

/// An exposure of a TCP port, for whoever has its token or knows its name.
fn exposure(token: hub_ledger::ExposureTokenHash, port: u16) -> Exposure {
    Exposure {
        id: ExposureId(1),
        name: Some(EXPOSED.parse().unwrap()),
        token: Some(ExposureToken {
            hash: token,
            expires: None,
            previous: None,
        }),
        access: Access::Public,
        protocol: Protocol::Http,
        replicas: vec![Replica {
            node: NodeId::from_bytes([1; 16]),
            target: Target::tcp(port),
        }],
        listen: None,
        settings: Settings::default(),
        created: Timestamp::from_millis(0),
    }
}

/// All of it.
pub struct World {
    pub proxy: Proxy,
    pub routes: Arc<OneRoute>,
    pub token: String,
    /// The token of the API, with which an operator logs in.
    pub operator: String,
    /// What the agent holds for exposed.
    pub targets: Targets,
    /// The agent's connections to targets.
    pub connections: Connections,
    /// The session as the hub has it.
    pub hub: Session,
    /// The session as the agent has it.
    pub agent: Session,
    _endpoints: [Endpoint; 2],
}

impl World {
    /// Over loopback, with the target on this TCP port.
    pub async fn real(port: u16) -> Self {
        Self::real_with(port, |_| {}).await
    }

    /// As [`World::real`], with other settings of the data plane.
    pub async fn real_with(port: u16, change: impl FnOnce(&mut Config)) -> Self {
        Self::honest(Self::real_alone(port, change).await)
    }

    /// As [`World::real_with`], with nobody who carries out what the agent is asked.
    pub async fn real_alone(port: u16, change: impl FnOnce(&mut Config)) -> Self {
        Self::real_new(port, Quotas::default(), change).await
    }

    /// As [`World::real`], with these quotas.
    pub async fn guarded(port: u16, quotas: Quotas) -> Self {
        Self::honest(Self::real_new(port, quotas, |_| {}).await)
    }

    async fn real_new(port: u16, quotas: Quotas, change: impl FnOnce(&mut Config)) -> Self {
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let udp = UdpNetwork::default();
        let dial = Arc::new(Direct);
        Self::new([&udp, &udp], [local, local], port, dial, quotas, change).await
    }

    /// Over a simulated network that only takes 20 ms each way, with targets that `dial` makes.
    pub async fn simulated(dial: Arc<dyn Dial>) -> Self {
        Self::honest(Self::simulated_alone(dial).await)
    }

    /// As [`World::simulated`], with nobody who carries out what the agent is asked.
    pub async fn simulated_alone(dial: Arc<dyn Dial>) -> Self {
        let net = hub_netsim::Network::new(1);
        let [hub, agent] =
            [("hub", "203.0.113.1"), ("agent", "203.0.113.2")].map(|(name, ip)| net.host(name, ip));
        net.set_links(
            agent,
            &LinkConfig::perfect().delay(Duration::from_millis(20)),
        );
        let networks = [hub, agent].map(|host| Simulated {
            net: net.clone(),
            host,
        });
        let locals = [([203, 0, 113, 1], 0), ([203, 0, 113, 2], 0)].map(SocketAddr::from);
        let quotas = Quotas::default();
        Self::new(
            [&networks[0], &networks[1]],
            locals,
            80,
            dial,
            quotas,
            |_| {},
        )
        .await
    }

    async fn new(
        [hub_network, agent_network]: [&dyn Network; 2],
        [hub_local, agent_local]: [SocketAddr; 2],
        port: u16,
        dial: Arc<dyn Dial>,
        quotas: Quotas,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let (server_tls, client_tls) = tls();
        let (hub_side, agent_side) = (Transport::hub(windows()), Transport::agent(windows()));
        let handshakes = Handshakes::default();
        let server = endpoint::server_config(hub_network, server_tls, &hub_side, &handshakes);
        let listener = endpoint::listener(hub_network, hub_local, &hub_side, server).unwrap();
        let dialler = endpoint::dialler(agent_network, agent_local, &agent_side).unwrap();
        let client = endpoint::client_config(agent_network, client_tls, &agent_side);
        let address = listener.local_addr().unwrap();
        let dialling = async { dialler.connect_with(client, address, NAME).unwrap().await };
        let accepting = async { listener.accept().await.unwrap().accept().unwrap().await };
        let (agent, hub) = tokio::join!(biased; dialling, accepting);
        let session = |connection, role| {
            let limits = Limits::default();
            Session::new(connection, role, limits, limits, tracing::Span::none())
        };
        let hub = session(hub.unwrap(), Role::Hub);
        let agent = session(agent.unwrap(), Role::Agent);
        let token = Token::from_bytes([9; 32]);
        let targets = Targets::default();
        targets.update(session::Targets {
            revision: 1,
            targets: vec![Target::tcp(port)],
        });
        let routes = Arc::new(OneRoute {
            hash: token.exposure_hash(),
            to: Mutex::new(Ok(Resolved {
                exposure: Arc::new(exposure(token.exposure_hash(), port)),
                replicas: vec![Live {
                    node_name: "far".parse().unwrap(),
                    session: hub.clone(),
                    target: Target::tcp(port),
                    revision: 1,
                }],
                away: Vec::new(),
                at: Timestamp::from_millis(0),
            })),
        });
        let mut config = Config {
            domain: Some(DOMAIN.to_owned()),
            ..Config::default()
        };
        change(&mut config);
        let operator = ApiToken::random().unwrap();
        let users = Arc::new(Operator::new(operator.clone()));
        let door = Door::new(&HubSecret::from_bytes([8; 32]), users, quotas);
        let operator = operator.expose().to_owned();
        Self {
            proxy: Proxy::new(config, routes.clone(), door),
            operator,
            routes,
            token: token.to_text().to_string(),
            targets,
            connections: Connections::new(dial),
            hub,
            agent,
            _endpoints: [listener, dialler],
        }
    }

    /// With an agent that does what it is asked.
    fn honest(self) -> Self {
        let (agent, targets, connections) = (
            self.agent.clone(),
            self.targets.clone(),
            self.connections.clone(),
        );
        tokio::spawn(async move {
            while let Ok(incoming) = agent.accept().await {
                let (targets, connections) = (targets.clone(), connections.clone());
                tokio::spawn(async move {
                    let Some((operation, open)) = incoming.operation().await else {
                        return;
                    };
                    let open: kind::http::Open = kind::decode("http", &open.payload).unwrap();
                    http::run(operation, open, &targets, &connections).await;
                });
            }
        });
        self
    }

    /// The path of the exposure, without a slash at its end.
    pub fn prefix(&self) -> String {
        format!("/v1/data/{}", self.token)
    }

    /// Changes where requests go.
    pub fn reroute(&self, change: impl FnOnce(&mut Resolved)) {
        if let Ok(to) = &mut *self.routes.to.lock().unwrap() {
            change(to);
        }
    }

    /// Waits until no operation is under way at either end. Not for simulated time, which stands
    /// still meanwhile.
    pub async fn idle(&self) {
        while self.hub.operations() + self.agent.operations() > 0 {
            tokio::task::yield_now().await;
        }
    }

    /// Serves the data plane as the program does, and says where.
    pub async fn serve(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = self.proxy.clone();
        tokio::spawn(async move { proxy.serve(listener, std::future::pending()).await });
        address
    }

    /// A browser over TCP, connected to the data plane as the program serves it.
    pub async fn browser(&self) -> TcpStream {
        let address = self.serve().await;
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// A browser in memory, with 16 KiB on the way in each direction.
    pub fn browser_in_memory(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(16 * 1024);
        let proxy = self.proxy.clone();
        let peer = SocketAddr::from(([192, 0, 2, 7], 1234));
        tokio::spawn(async move { proxy.serve_connection(theirs, peer).await });
        ours
    }
}

/// Targets in memory: each connection is handed to this function.
pub struct InMemory<F>(pub F);

impl<F> Dial for InMemory<F>
where
    F: Fn(DuplexStream) -> io::Result<()> + Send + Sync,
{
    fn connect(&self, _to: Address) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        async {
            let (ours, theirs) = tokio::io::duplex(16 * 1024);
            (self.0)(theirs)?;
            Ok(Box::new(ours) as Box<dyn Stream>)
        }
        .boxed()
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
