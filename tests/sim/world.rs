//! Builds a hub and agents on a simulated network.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hub_agent::agent::{self, AgentError, Joining};
use hub_agent::dial::HubAddress;
use hub_ledger::Timestamp;
use hub_netsim::{
    HostId, NatConfig, NatKind, Network, TraceMode, seed_client_config, seed_server_config,
    seeded_endpoint_config,
};
use hub_protocol::Deployment;
use hub_protocol::kind::exec;
use hub_protocol::session::Platform;
use hub_quic::endpoint;
use hub_quic::operation::{Ended, Operation};
use hub_server::ca::{CaOptions, SignatureLength};
use hub_server::clock::Clock;
use hub_server::hub::{AskError, Hub};
use hub_server::proxy::{self, Door, Nobody, Proxy, Quotas};
use hub_server::secret::HubSecret;
use hub_server::store::{Execution, Store};
use hub_server::{Config, Parts, Server};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use quinn::AsyncUdpSocket;
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::commands::Commands;
use crate::pages::Pages;

/// Noon of a day in 2026.
const START: Timestamp = Timestamp::from_millis(1_780_000_000_000);

const HUB: &str = "203.0.113.1";

/// Runs a scenario on a runtime whose time is simulated. Time that would never come, because
/// everything waits for everything, ends the scenario after a simulated day.
pub fn run<F: Future>(scenario: F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let day = Duration::from_secs(86_400);
        tokio::time::timeout(day, scenario)
            .await
            .expect("the scenario hangs")
    })
}

/// A host's share of the network, for endpoints on it.
#[derive(Clone)]
pub struct SimNetwork {
    net: Network,
    host: HostId,
    name: String,
    drawn: Arc<AtomicUsize>,
}

impl SimNetwork {
    pub fn new(net: &Network, host: HostId) -> Self {
        let name = net.name(host);
        Self {
            net: net.clone(),
            host,
            name,
            drawn: Arc::default(),
        }
    }

    fn seed(&self, what: &str) -> [u8; 32] {
        let number = self.drawn.fetch_add(1, Ordering::Relaxed);
        self.net
            .derive_seed(&format!("{}/{what}/{number}", self.name))
    }
}

impl fmt::Debug for SimNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl endpoint::Network for SimNetwork {
    fn bind(&self, local: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Ok(self.net.bind(self.host, local.port())?)
    }

    fn endpoint_config(&self) -> quinn::EndpointConfig {
        seeded_endpoint_config(self.seed("endpoint"))
    }

    fn seed_client(&self, config: &mut quinn::ClientConfig) {
        seed_client_config(config, self.seed("client"));
    }

    fn seed_server(&self, config: &mut quinn::ServerConfig) {
        seed_server_config(config, self.seed("server"));
    }
}

/// A hub on a network of its own.
pub struct World {
    pub net: Network,
    pub server: Server,
    host: HostId,
    pub clock: Clock,
    proxy: Proxy,
}

impl World {
    /// A hub, with a trace of every packet.
    pub async fn new(seed: u64) -> Self {
        Self::with_trace(seed, TraceMode::Full).await
    }

    /// A hub, with a digest of the trace alone.
    pub async fn without_records(seed: u64) -> Self {
        Self::with_trace(seed, TraceMode::Digest).await
    }

    async fn with_trace(seed: u64, mode: TraceMode) -> Self {
        let net = Network::with_trace(seed, mode);
        let host = net.host("hub", HUB);
        let deployment = Deployment::from_bytes([7; 16]);
        let store = Store::in_memory(Execution::Inline, deployment)
            .await
            .unwrap();
        Self::with_store(net, host, Clock::simulated(START), store).await
    }

    /// A hub whose ledger is a file, so that it can be restarted.
    pub async fn on_disk(seed: u64, ledger: &Path) -> Self {
        let net = Network::with_trace(seed, TraceMode::Digest);
        let host = net.host("hub", HUB);
        let store = on_disk(ledger).await;
        Self::with_store(net, host, Clock::simulated(START), store).await
    }

    /// Stops the hub and starts another with the same ledger.
    pub async fn restart(self, ledger: &Path) -> Self {
        let Self {
            net,
            server,
            host,
            clock,
            proxy,
        } = self;
        drop(proxy);
        server.stop().await;
        // A process that ends takes its sockets along, whatever still refers to them.
        net.remove_host(host);
        let host = net.host("hub", HUB);
        let store = on_disk(ledger).await;
        Self::with_store(net, host, clock, store).await
    }

    async fn with_store(net: Network, host: HostId, clock: Clock, store: Store) -> Self {
        let address = |port| SocketAddr::new(HUB.parse().unwrap(), port);
        let config = Config {
            agent_listen: address(7443),
            enroll_listen: address(7444),
            api_listen: None,
            proxy_listen: None,
            advertise: vec![HUB.into()],
            ..Config::loopback("/nonexistent".into())
        };
        let parts = Parts {
            network: Arc::new(SimNetwork::new(&net, host)),
            clock: clock.clone(),
            store,
            secret: HubSecret::from_bytes([9; 32]),
            ca: CaOptions {
                signature_length: SignatureLength::Fixed,
                ..CaOptions::default()
            },
            lock: None,
        };
        let server = Server::start(config, parts).await.unwrap();
        let door = Door::new(
            &HubSecret::from_bytes([9; 32]),
            Arc::new(Nobody),
            Quotas::default(),
        );
        let config = proxy::Config {
            seeing: server.seeing().clone(),
            ..proxy::Config::default()
        };
        let proxy = hub_server::server::proxy(server.hub(), config, door);
        Self {
            net,
            server,
            host,
            clock,
            proxy,
        }
    }

    pub fn hub(&self) -> &Hub {
        self.server.hub()
    }

    /// An agent behind a NAT of its own, joined and connected.
    pub async fn agent(&self, name: &str, number: u8) -> SimAgent {
        let inside = format!("10.0.{number}.2");
        let outside = format!("198.51.100.{number}");
        let nat = NatConfig::new(NatKind::PortRestricted);
        let host = self.net.host_behind_nat(name, &inside, nat, &outside);
        self.agent_on(host, name).await
    }

    /// An agent on this host, joined and connected.
    pub async fn agent_on(&self, host: HostId, name: &str) -> SimAgent {
        let agent = self.start_agent(host, name).await;
        self.connected(name).await;
        agent
    }

    /// An agent on this host, on its way to join.
    pub async fn start_agent(&self, host: HostId, name: &str) -> SimAgent {
        let config = agent::Config {
            joining: Some(self.joining(name).await),
            ..config(self.server.bound().agents)
        };
        let parts = parts(&self.net, &self.clock, host, name);
        SimAgent::start(host, config, parts, tempfile::tempdir().unwrap())
    }

    /// What entitles a machine to join under this name.
    pub async fn joining(&self, name: &str) -> Joining {
        let fresh = self
            .hub()
            .create_token(1, Duration::from_secs(900))
            .await
            .unwrap();
        let bound = self.server.bound();
        Joining {
            enrollment: HubAddress::from(bound.enrollment),
            pin: bound.ca,
            token: fresh.token,
            name: Some(name.parse().unwrap()),
        }
    }

    /// Waits until a node is connected.
    pub async fn connected(&self, name: &str) {
        let mut changes = self.hub().sessions().changes();
        loop {
            if let Some(node) = self.hub().find(name).await.unwrap()
                && self.hub().sessions().get(&node.id).is_some()
            {
                return;
            }
            changes.changed().await.unwrap();
        }
    }

    /// Starts a command.
    pub async fn start(
        &self,
        node: &str,
        argv: &[&str],
        stdin: bool,
    ) -> Result<Operation, AskError> {
        self.start_marked(node, argv, stdin, "").await
    }

    /// Starts a command with a mark, which the node counts.
    pub async fn start_marked(
        &self,
        node: &str,
        argv: &[&str],
        stdin: bool,
        mark: &str,
    ) -> Result<Operation, AskError> {
        let env = if mark.is_empty() {
            vec![]
        } else {
            vec![(mark.to_owned(), String::new())]
        };
        let open = exec::Open {
            container: None,
            argv: argv.iter().map(ToString::to_string).collect(),
            env,
            cwd: None,
            user: None,
            stdin,
            tty: None,
            on_disconnect: exec::OnDisconnect::Kill,
        };
        self.hub().ask_exec(node, open).await
    }

    /// A connection of a browser to the data plane.
    pub async fn browser(&self) -> SendRequest<Full<Bytes>> {
        let (browser, hub) = tokio::io::duplex(256 * 1024);
        let proxy = self.proxy.clone();
        let peer = SocketAddr::from(([192, 0, 2, 1], 50_000));
        tokio::spawn(async move { proxy.serve_connection(hub, peer).await });
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(browser))
            .await
            .unwrap();
        tokio::spawn(connection);
        sender
    }

    /// Exposes a port; gives the path of its route.
    pub async fn expose(&self, node: &str, port: u16) -> String {
        let fresh = self.hub().expose(node, port, None).await.unwrap();
        let at = fresh.urls[0].find("/v1/").unwrap();
        fresh.urls[0][at..].to_owned()
    }
}

async fn on_disk(ledger: &Path) -> Store {
    let deployment = Deployment::from_bytes([7; 16]);
    Store::open(ledger, Execution::Inline, deployment)
        .await
        .unwrap()
}

/// An agent of this hub, in a directory that [`SimAgent::start`] fills in.
pub fn config(hub: SocketAddr) -> agent::Config {
    agent::Config {
        data_dir: "/nonexistent".into(),
        hub: HubAddress::from(hub),
        joining: None,
        platform: Platform::default(),
        digest: String::new(),
        policy: Arc::default(),
    }
}

/// What an agent on this host stands on; `seed` tells its random bytes from those of others.
pub fn parts(net: &Network, clock: &Clock, host: HostId, seed: &str) -> (agent::Parts, Commands) {
    let commands = Commands::default();
    let seed = u64::from_le_bytes(net.derive_seed(seed)[..8].try_into().unwrap());
    let random = Mutex::new(Pcg64Mcg::seed_from_u64(seed));
    let parts = agent::Parts {
        network: Arc::new(SimNetwork::new(net, host)),
        time: Arc::new(clock.clone()),
        random: Arc::new(move |bytes| random.lock().unwrap().fill_bytes(bytes)),
        runtime: Arc::new(commands.clone()),
        engine: None,
        dial: Arc::new(Pages),
    };
    (parts, commands)
}

/// An agent and the machine it runs on.
pub struct SimAgent {
    pub host: HostId,
    pub commands: Commands,
    pub config: agent::Config,
    pub parts: agent::Parts,
    pub stop: watch::Sender<bool>,
    pub task: JoinHandle<Result<(), AgentError>>,
    data_dir: tempfile::TempDir,
}

impl SimAgent {
    /// Starts an agent in this directory.
    pub fn start(
        host: HostId,
        config: agent::Config,
        (parts, commands): (agent::Parts, Commands),
        data_dir: tempfile::TempDir,
    ) -> Self {
        let config = agent::Config {
            data_dir: data_dir.path().into(),
            ..config
        };
        let (stop, stopping) = watch::channel(false);
        let task = tokio::spawn(agent::run(config.clone(), parts.clone(), stopping));
        Self {
            host,
            commands,
            config,
            parts,
            stop,
            task,
            data_dir,
        }
    }

    /// The process dies as by a power cut: nothing is said, nothing is stopped in good order.
    pub async fn kill(self) -> tempfile::TempDir {
        self.task.abort();
        let _ = self.task.await;
        self.data_dir
    }

    /// The agent stops in good order.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        self.task.await.unwrap().unwrap();
    }
}

/// Reads an exec to its end: output and outcome.
pub async fn finish(operation: &Operation) -> Result<(Vec<u8>, exec::Outcome), Ended> {
    let mut stdout = operation.receiver(exec::STDOUT);
    let mut output = Vec::new();
    while let Some(chunk) = stdout.chunk().await? {
        output.extend_from_slice(&chunk);
    }
    let done = operation.done().await?;
    Ok((
        output,
        hub_protocol::kind::decode("outcome", &done).unwrap(),
    ))
}
