//! The hub as one process: opens the ledger and the CA, binds four listeners, serves until told to
//! stop.
//!
//! ```text
//! agents      UDP  hub/1         -> sessions   client certificate demanded in the handshake
//! enrollment  UDP  hub-enroll/1  -> enroll     strangers with a token; budgets of its own
//! operators   TCP  HTTP          -> api        bearer token
//! browsers    TCP  HTTP, TLS     -> proxy      what is exposed, and nothing else
//!             UDP  HTTP/3, with TLS only
//! anybody     TCP, UDP           -> wires      the same; a listener for each exposure
//! ```
//!
//! Where it is told to, it takes its own machine for a node, too: see [`Server::local_node`].

mod site;

use std::fs::{File, OpenOptions};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hub_protocol::code::CloseCode;
use hub_protocol::{Deployment, Fingerprint, NodeId, NodeName};
use hub_quic::endpoint::{self, Network, Transport, UdpNetwork};
use hub_quic::session::windows;
use hub_quic::tls::{self, Credentials, HubCertificate, TlsError, TrustBundle};
use hub_quic::transport::memory;
use quinn::{Endpoint, VarInt};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustls::time_provider::TimeProvider;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::api;
use crate::ca::{Ca, CaError, CaOptions, SignError};
use crate::clock::Clock;
use crate::enroll::{self, EnrollConfig};
use crate::hub::{Addresses, Hub};
use crate::proxy::{self, Door, LedgerRoutes, Proxy, Quotas, Seeing, SeeingConfig, Trusted};
use crate::secret::{HubSecret, SecretError};
use crate::sessions::{self, LocalNode, SessionConfig, Sessions};
use crate::store::{Execution, Store, StoreError};
use crate::wires;
use site::Site;

/// The certificate of the data plane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ProxyTls {
    /// None: it is served in the clear.
    #[default]
    Off,
    /// From the files of a chain and its key, both PEM, which are followed.
    Files {
        /// The chain's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// One that the hub's CA signs, for those who trust it: the names that are advertised, the
    /// domain and all under it, and this machine for itself.
    HubCa,
}

/// What a hub is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it keeps its ledger, secret and API token.
    pub data_dir: PathBuf,
    /// Where agents dial; UDP.
    pub agent_listen: SocketAddr,
    /// Where machines join; UDP.
    pub enroll_listen: SocketAddr,
    /// Where operators are served; TCP. None in simulations, which have no TCP.
    pub api_listen: Option<SocketAddr>,
    /// Where browsers are served; TCP. None in simulations.
    pub proxy_listen: Option<SocketAddr>,
    /// Names and addresses it is reached by, the one to print first.
    pub advertise: Vec<String>,
    /// The domain of exposures with a name.
    pub domain: Option<String>,
    /// What browsers may have at most.
    pub quotas: Quotas,
    /// How browsers know where they are.
    pub proxy_tls: ProxyTls,
    /// Whether those that come over TLS may go on with HTTP/3, over UDP and the same port.
    pub proxy_http3: bool,
    /// Where browsers that come in the clear are sent to TLS; TCP.
    pub proxy_redirect_listen: Option<SocketAddr>,
    /// The proxies in front of the data plane whose word about clients is taken.
    pub trusted_proxies: Trusted,
    /// Whether these begin each connection with a header of the PROXY protocol.
    pub proxy_protocol: bool,
    /// What operators want to see of the data plane.
    pub seeing: SeeingConfig,
    /// The file of the hub's secret, if not the one in `data_dir`.
    pub secret_file: Option<PathBuf>,
    /// Certificate and key of the API, in PEM.
    pub api_tls: Option<(PathBuf, PathBuf)>,
    /// How sessions come about.
    pub sessions: SessionConfig,
    /// How machines join.
    pub enroll: EnrollConfig,
    /// How TCP and UDP exposures are carried.
    pub wires: wires::Config,
    /// How its UDP sockets are made.
    pub udp: UdpNetwork,
}

impl Config {
    /// A hub for this machine alone: every listener on loopback, on any free port.
    pub fn loopback(data_dir: PathBuf) -> Self {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self {
            data_dir,
            agent_listen: any,
            enroll_listen: any,
            api_listen: Some(any),
            proxy_listen: Some(any),
            advertise: vec![Ipv4Addr::LOCALHOST.to_string()],
            domain: None,
            quotas: Quotas::default(),
            proxy_tls: ProxyTls::Off,
            proxy_http3: true,
            proxy_redirect_listen: None,
            trusted_proxies: Trusted::default(),
            proxy_protocol: false,
            seeing: SeeingConfig::default(),
            secret_file: None,
            api_tls: None,
            sessions: SessionConfig::default(),
            enroll: EnrollConfig::default(),
            wires: wires::Config::default(),
            udp: UdpNetwork::default(),
        }
    }
}

/// What a hub stands on: the system's, or a simulation's.
#[derive(Debug, Clone)]
pub struct Parts {
    /// What sockets are made of.
    pub network: Arc<dyn Network>,
    /// Tells the time of day.
    pub clock: Clock,
    /// The ledger.
    pub store: Store,
    /// Under which the CA's key is sealed.
    pub secret: HubSecret,
    /// How the CA is made.
    pub ca: CaOptions,
    /// Held for as long as the hub runs: one hub at a time uses a data directory.
    pub lock: Option<Arc<File>>,
}

/// Why a hub did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory can't be used.
    #[error("the data directory {}: {error}", .path.display())]
    DataDir {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The operating system gives no random bytes.
    #[error("no random bytes can be had: {0}")]
    Random(io::Error),
    /// Another hub uses the data directory.
    #[error("another hub uses {}; stop it, or give this one its own data directory", .0.display())]
    InUse(PathBuf),
    /// The hub's secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The ledger.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The CA.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// The hub's own certificate.
    #[error("the hub's own certificate: {0}; check the names of --advertise")]
    Certificate(#[from] SignError),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The data plane's certificate.
    #[error(transparent)]
    Files(#[from] crate::tls::TlsError),
    /// The API.
    #[error(transparent)]
    Api(#[from] api::ApiError),
    /// The access log.
    #[error("the access log {}: {error}", .path.display())]
    AccessLog {
        /// Its file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A listener.
    #[error("cannot listen for {what} on {address}: {error}")]
    Listen {
        /// For whom.
        what: &'static str,
        /// Where.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
}

/// The addresses that a hub listens on, and what agents pin: the content of the ready file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bound {
    /// For agents; UDP.
    pub agents: SocketAddr,
    /// For machines that join; UDP.
    pub enrollment: SocketAddr,
    /// For operators; TCP.
    pub api: Option<SocketAddr>,
    /// For browsers; TCP.
    pub proxy: Option<SocketAddr>,
    /// For browsers; UDP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http3: Option<SocketAddr>,
    /// For browsers that are sent to TLS; TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirect: Option<SocketAddr>,
    /// The fingerprint of the CA.
    pub ca: Fingerprint,
}

impl Parts {
    /// The system's parts, with the ledger and the secret in the data directory.
    ///
    /// # Errors
    /// The directory, the secret or the ledger can't be used.
    pub async fn system(config: &Config) -> Result<Self, StartError> {
        let data_dir = &config.data_dir;
        create_private(data_dir).map_err(|error| StartError::DataDir {
            path: data_dir.clone(),
            error,
        })?;
        let lock = lock(data_dir)?;
        let mirror = data_dir.join("ca.pem");
        let ledger = data_dir.join("hub.db");
        if mirror.exists() && !ledger.exists() {
            // Nothing is created that would stand in a backup's way.
            return Err(CaError::HalfPresent(mirror.display().to_string()).into());
        }
        let mut fresh = [0; 16];
        getrandom::fill(&mut fresh).map_err(|error| StartError::Random(error.into()))?;
        let fresh = Deployment::from_bytes(fresh);
        let store = Store::open(ledger, Execution::Thread, fresh).await?;
        let default = data_dir.join("secret");
        let secret = match &config.secret_file {
            Some(path) => HubSecret::load(path)?,
            // A new secret would not open a CA that is there already.
            None if store.ca().await?.is_some() => HubSecret::load(&default)?,
            None => HubSecret::load_or_create(&default)?,
        };
        let reset_seed = Some(secret.derive(b"hub quic resets v1"));
        Ok(Self {
            network: Arc::new(UdpNetwork {
                reset_seed,
                ..config.udp.clone()
            }),
            clock: Clock::system(),
            store,
            secret,
            ca: CaOptions {
                mirror: Some(mirror),
                ..CaOptions::default()
            },
            lock: Some(Arc::new(lock)),
        })
    }
}

/// Takes the data directory for this process alone; the kernel gives it back when the process ends.
fn lock(data_dir: &Path) -> Result<File, StartError> {
    let path = data_dir.join("lock");
    let failed = |error| StartError::DataDir {
        path: path.clone(),
        error,
    };
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path);
    let file = file.map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(StartError::InUse(data_dir.to_owned())),
        Err(error) => Err(failed(error.into())),
    }
}

fn create_private(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
}

/// A hub that runs. Dropping it stops it without a goodbye.
#[derive(Debug)]
pub struct Server {
    hub: Hub,
    bound: Bound,
    endpoints: [Endpoint; 2],
    stop: watch::Sender<bool>,
    seeing: Seeing,
    /// The API and the data plane, which end by themselves once told to stop.
    serving: JoinSet<()>,
    /// Everything else.
    tasks: JoinSet<()>,
    /// Where connections of the hub's own machine go.
    local: mpsc::Sender<(NodeId, memory::Connection)>,
    _lock: Option<Arc<File>>,
}

impl Server {
    /// Starts a hub: when this returns, everything listens.
    ///
    /// # Errors
    /// [`StartError`]: nothing listens then.
    pub async fn start(config: Config, parts: Parts) -> Result<Self, StartError> {
        let Parts {
            network,
            clock,
            store,
            secret,
            ca,
            lock,
        } = parts;
        let now = clock.now();
        let ca = Arc::new(Ca::load_or_create(&store, &secret, &ca, now).await?);
        let (certificate, renew_at) = hub_certificate(&ca, &config.advertise, now)?;
        let certificate = HubCertificate::new(certificate)?;
        let trust = TrustBundle::new(vec![ca.certificate_der().clone()])?;
        let time: Arc<dyn TimeProvider> = Arc::new(clock.clone());

        let transport = Transport::hub(windows());
        let tls = tls::operational_server(&certificate, &trust, time.clone())?;
        let handshakes = &config.sessions.handshakes;
        let server = endpoint::server_config(&*network, tls, &transport, handshakes);
        let agents = listen_udp("agents", config.agent_listen, |address| {
            endpoint::listener(&*network, address, &transport, server.clone())
        })?;
        let enrollment = listen_udp("joining machines", config.enroll_listen, |address| {
            enroll::listen(
                &*network,
                address,
                &certificate,
                time.clone(),
                &config.enroll,
            )
            .map_err(io::Error::other)
        })?;
        let seeing = Seeing::new(config.seeing.clone()).map_err(|error| {
            let path = config.seeing.access_log.clone().unwrap_or_default();
            StartError::AccessLog { path, error }
        })?;
        let api_listener = listen_tcp("operators", config.api_listen).await?;
        let proxy_listener = listen_tcp("browsers", config.proxy_listen).await?;
        let redirect_listener =
            listen_tcp("browsers without TLS", config.proxy_redirect_listen).await?;
        let site = Site::open(&config, &ca, now)?;

        // Everything is bound: this hub is the one.
        store.mark_all_away(now).await?;
        let local = |endpoint: &Endpoint, asked| endpoint.local_addr().unwrap_or(asked);
        let tcp = |listener: &Option<TcpListener>| listener.as_ref()?.local_addr().ok();
        // Proxies do not say over UDP for whom they speak.
        let http3 = config.proxy_http3 && site.is_some() && !config.proxy_protocol;
        let http3 = tcp(&proxy_listener)
            .filter(|_| http3)
            .map(|address| {
                UdpSocket::bind(address).map_err(|error| StartError::Listen {
                    what: "browsers with HTTP/3",
                    address,
                    error,
                })
            })
            .transpose()?;
        let bound = Bound {
            agents: local(&agents, config.agent_listen),
            enrollment: local(&enrollment, config.enroll_listen),
            api: tcp(&api_listener),
            proxy: tcp(&proxy_listener),
            http3: http3.as_ref().and_then(|socket| socket.local_addr().ok()),
            redirect: tcp(&redirect_listener),
            ca: ca.fingerprint(),
        };
        let addresses = addresses(&config, &bound);
        let sessions = Sessions::default();
        let hub = Hub::new(
            store.clone(),
            clock.clone(),
            sessions.clone(),
            ca.clone(),
            addresses.clone(),
        );

        let (stop, stopping) = watch::channel(false);
        let (mut serving, mut tasks) = (JoinSet::new(), JoinSet::new());
        if let Some(listener) = api_listener {
            let api = api::Api::new(hub.clone(), &config.data_dir, config.api_tls.as_ref())?;
            let api = api.seeing(seeing.clone());
            serving.spawn(api.serve(listener, stopping.clone())?);
        }
        // Without browsers there is no door, and no token that would open it.
        if let Some(listener) = proxy_listener {
            let token = api::ApiToken::load_or_create(&config.data_dir.join(api::TOKEN_FILE));
            let token = token.map_err(api::ApiError::from)?;
            let users = Arc::new(proxy::Operator::new(token));
            let door = Door::new(&secret, users, config.quotas);
            let proxy = proxy(
                &hub,
                proxy::Config {
                    domain: config.domain.clone(),
                    trusted: config.trusted_proxies.clone(),
                    proxy_protocol: config.proxy_protocol,
                    certificates: site.as_ref().map(Site::certificates),
                    http3: bound.http3.map(|address| address.port()),
                    seeing: seeing.clone(),
                    ..proxy::Config::default()
                },
                door,
            );
            let stopped = |mut stopping: watch::Receiver<bool>| async move {
                let _ = stopping.wait_for(|stop| *stop).await;
            };
            if let (Some(listener), Some(address)) = (redirect_listener, bound.proxy) {
                let (proxy, stopped) = (proxy.clone(), stopped(stopping.clone()));
                serving.spawn(async move {
                    let redirects = proxy.serve_redirects(listener, address.port(), stopped);
                    redirects.await;
                });
            }
            if let Some(socket) = http3 {
                let (proxy, stopped) = (proxy.clone(), stopped(stopping.clone()));
                serving.spawn(async move {
                    if let Err(error) = proxy.serve_http3(socket, stopped).await {
                        tracing::error!("HTTP/3 is not served: {error}");
                    }
                });
            }
            let stopped = stopped(stopping.clone());
            serving.spawn(async move { proxy.serve(listener, stopped).await });
        }
        if let Some(site) = site {
            tasks.spawn(site.keep(ca.clone(), clock.clone()));
        }
        let routes = LedgerRoutes::new(&hub);
        let wires = hub.wires().clone();
        let carried = wires.serve(
            store.clone(),
            routes,
            config.wires,
            seeing.clone(),
            stopping.clone(),
        );
        serving.spawn(carried);
        let enroll = EnrollConfig {
            operational: Some(addresses.agents),
            ..config.enroll
        };
        tasks.spawn(enroll::serve(
            enrollment.clone(),
            store.clone(),
            clock.clone(),
            ca.clone(),
            enroll,
        ));
        let (local, local_connections) = sessions::local_connections();
        tasks.spawn(sessions::serve(
            agents.clone(),
            local_connections,
            store,
            clock.clone(),
            sessions,
            config.sessions,
        ));
        let names = config.advertise;
        let renew = move |now| {
            let (credentials, next) = hub_certificate(&ca, &names, now)?;
            certificate.replace(credentials)?;
            Ok::<_, StartError>(next)
        };
        tasks.spawn(async move {
            match site::keep_signed("the hub's", clock, renew_at, renew).await {}
        });
        Ok(Self {
            hub,
            bound,
            endpoints: [agents, enrollment],
            stop,
            seeing,
            serving,
            tasks,
            local,
            _lock: lock,
        })
    }

    /// What the data plane is seen to carry.
    pub fn seeing(&self) -> &Seeing {
        &self.seeing
    }

    /// The hub, for whoever asks it from within the process.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Makes the hub's own machine a node of this name: whoever serves it connects by what this
    /// gives. The node is there, and away, until somebody does.
    ///
    /// # Errors
    /// [`StoreError::Local`]: a machine that joined has the name, or the node was revoked. Others:
    /// the ledger can't answer.
    pub async fn local_node(&self, name: NodeName) -> Result<LocalNode, StartError> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|error| StartError::Random(error.into()))?;
        let (store, now) = (self.hub.store(), self.hub.clock().now());
        let node = store
            .ensure_local(name, NodeId::from_bytes(id), now)
            .await?;
        Ok(LocalNode {
            id: node.id,
            name: node.name,
            deployment: store.deployment(),
            connections: self.local.clone(),
        })
    }

    /// Where it listens.
    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// Stops: no new connections; what operators and browsers have under way comes to its end, for
    /// 5 s and 10 s at most; then a goodbye to all agents, and the connections and the ledger are
    /// closed.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        for endpoint in &self.endpoints {
            // Whoever dials now finds nobody, and dials again.
            endpoint.set_server_config(None);
        }
        while self.serving.join_next().await.is_some() {}
        self.seeing.flush().await;
        if !self.hub.sessions().all().is_empty() {
            self.hub.sessions().go_away("the hub is stopping");
            // The goodbyes leave within a round trip; slower agents see the connection close.
            sleep(Duration::from_millis(100)).await;
        }
        for endpoint in &self.endpoints {
            endpoint.close(
                VarInt::from_u32(CloseCode::GOING_AWAY.0),
                b"the hub is stopping",
            );
        }
        for (_, connected) in self.hub.sessions().all() {
            // Those within the process have no endpoint.
            let reason = "the hub is stopping";
            connected.session.close(CloseCode::GOING_AWAY, reason);
        }
        for endpoint in &self.endpoints {
            let _ = timeout(Duration::from_secs(1), endpoint.wait_idle()).await;
        }
        self.tasks.shutdown().await;
        if let Err(error) = self.hub.store().clone().close().await {
            tracing::warn!(%error, "the ledger did not close in good order; it is whole all the same");
        }
    }
}

/// The data plane of this hub, behind this door.
pub fn proxy(hub: &Hub, config: proxy::Config, door: Door) -> Proxy {
    let routes = LedgerRoutes::new(hub);
    Proxy::with_clock(config, Arc::new(routes), door, hub.clock().clone())
}

fn hub_certificate(
    ca: &Ca,
    names: &[String],
    now: hub_ledger::Timestamp,
) -> Result<(Credentials, hub_ledger::Timestamp), StartError> {
    let identity = ca.sign_hub(names, now)?;
    Ok((
        Credentials::new(identity.chain, identity.key)?,
        identity.renew_at,
    ))
}

fn addresses(config: &Config, bound: &Bound) -> Addresses {
    let name = config
        .advertise
        .first()
        .cloned()
        .unwrap_or_else(|| bound.agents.ip().to_string());
    let host = match name.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        _ => name,
    };
    let scheme = match config.proxy_tls {
        ProxyTls::Off => "http",
        ProxyTls::Files { .. } | ProxyTls::HubCa => "https",
    };
    let data_plane = bound
        .proxy
        .map(|proxy| format!("{scheme}://{host}:{}", proxy.port()));
    let domain = config.domain.as_ref().zip(bound.proxy);
    Addresses {
        agents: format!("{host}:{}", bound.agents.port()),
        enrollment: format!("{host}:{}", bound.enrollment.port()),
        data_plane: data_plane.unwrap_or_default(),
        domain: domain.map(|(domain, proxy)| format!("{domain}:{}", proxy.port())),
    }
}

/// Binds a UDP listener; where a machine has no IPv6, "any address" means any of IPv4.
fn listen_udp(
    what: &'static str,
    address: SocketAddr,
    bind: impl Fn(SocketAddr) -> io::Result<Endpoint>,
) -> Result<Endpoint, StartError> {
    let bound = bind(address);
    let bound = match (bound, without_v6(address)) {
        (Err(error), Some(v4)) if no_v6(&error) => bind(v4),
        (bound, _) => bound,
    };
    bound.map_err(|error| StartError::Listen {
        what,
        address,
        error,
    })
}

async fn listen_tcp(
    what: &'static str,
    address: Option<SocketAddr>,
) -> Result<Option<TcpListener>, StartError> {
    let Some(address) = address else {
        return Ok(None);
    };
    let bound = match (TcpListener::bind(address).await, without_v6(address)) {
        (Err(error), Some(v4)) if no_v6(&error) => TcpListener::bind(v4).await,
        (bound, _) => bound,
    };
    bound.map(Some).map_err(|error| StartError::Listen {
        what,
        address,
        error,
    })
}

fn without_v6(address: SocketAddr) -> Option<SocketAddr> {
    let any = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    any.then(|| (Ipv4Addr::UNSPECIFIED, address.port()).into())
}

fn no_v6(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Unsupported | io::ErrorKind::AddrNotAvailable
    )
}
