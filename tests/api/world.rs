//! A hub with its API, and an agent that runs commands as processes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use hub::client::{Client, exec};
use hub::local::{self, Local};
use hub::settings::{self, RuntimeKind};
use hub_agent::agent::{self, AgentError, Joining, Parts};
use hub_agent::dial::HubAddress;
use hub_agent::policy::Policy;
use hub_protocol::kind::exec::OnDisconnect;
use hub_server::api::{ApiToken, TOKEN_FILE};
use hub_server::server::StartError;
use hub_server::{Config, Server};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The name of the node.
pub const NODE: &str = "n1";

type Agent = JoinHandle<Result<(), AgentError>>;

pub struct World {
    pub server: Server,
    pub token: ApiToken,
    dir: TempDir,
    agents: Vec<(watch::Sender<bool>, Agent)>,
    local: Option<Local>,
}

/// What a hub is told: everything on loopback, and its data in `dir`.
pub fn config(dir: &TempDir) -> Config {
    Config::loopback(dir.path().join("hub"))
}

pub async fn start(config: Config) -> Result<Server, StartError> {
    let parts = hub_server::Parts::system(&config).await?;
    Server::start(config, parts).await
}

impl World {
    /// A hub without nodes.
    pub async fn hub() -> Self {
        Self::with(|_, _| ()).await
    }

    /// A hub without nodes, told something more.
    pub async fn with(change: impl FnOnce(&TempDir, &mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(&dir);
        change(&dir, &mut config);
        let server = start(config).await.unwrap();
        let token = ApiToken::load(&dir.path().join("hub").join(TOKEN_FILE)).unwrap();
        Self {
            server,
            token,
            dir,
            agents: Vec::new(),
            local: None,
        }
    }

    /// A hub whose own machine is the node [`NODE`].
    pub async fn local() -> Self {
        Self::local_with(Arc::default()).await
    }

    /// The same with a policy.
    pub async fn local_with(policy: Arc<Policy>) -> Self {
        let mut world = Self::hub().await;
        let mut changes = world.server.hub().sessions().changes();
        let local = local::Settings {
            name: NODE.parse().unwrap(),
            runtime: RuntimeKind::Process,
            policy,
        };
        let local = Local::start(&world.server, local, &world.path("hub")).await;
        world.local = Some(local.unwrap());
        changes.changed().await.unwrap();
        world
    }

    /// A hub with the node [`NODE`].
    pub async fn node() -> Self {
        let mut world = Self::hub().await;
        world.join().await;
        world
    }

    /// Lets an agent join as [`NODE`], and waits until it is connected.
    pub async fn join(&mut self) {
        self.join_with(RuntimeKind::Process, Arc::default()).await;
    }

    /// A hub with the node [`NODE`], whose agent has this machine's Docker.
    pub async fn docker() -> Self {
        Self::docker_with(Arc::default()).await
    }

    /// The same with a policy.
    pub async fn docker_with(policy: Arc<Policy>) -> Self {
        let mut world = Self::hub().await;
        world.join_with(RuntimeKind::Docker, policy).await;
        world
    }

    async fn join_with(&mut self, kind: RuntimeKind, policy: Arc<Policy>) {
        let hub = self.server.hub();
        let fresh = hub
            .create_token(1, std::time::Duration::from_secs(60))
            .await
            .unwrap();
        let bound = self.server.bound();
        let data_dir = self.path("agent");
        let config = agent::Config {
            data_dir: data_dir.clone(),
            hub: HubAddress::from(bound.agents),
            joining: Some(Joining {
                enrollment: HubAddress::from(bound.enrollment),
                pin: bound.ca,
                token: fresh.token,
                name: Some(NODE.parse().unwrap()),
            }),
            platform: settings::platform(),
            digest: String::new(),
            policy,
        };
        let (runtime, engine) = settings::runtime(kind, &data_dir).await.unwrap();
        let parts = Parts {
            engine,
            ..settings::system_parts(runtime)
        };
        let (stop, stopping) = watch::channel(false);
        let mut changes = hub.sessions().changes();
        self.agents
            .push((stop, tokio::spawn(agent::run(config, parts, stopping))));
        changes.changed().await.unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn api(&self) -> SocketAddr {
        self.server.bound().api.unwrap()
    }

    pub fn client(&self) -> Client {
        Client::new(&format!("http://{}", self.api()), &self.token, None).unwrap()
    }

    /// Ends the agents, and with them what they run.
    pub async fn stop(self) {
        self.stop_and_keep().await;
    }

    /// The same; gives the directory, for what is to be seen in it afterwards.
    pub async fn stop_and_keep(self) -> TempDir {
        for (stop, agent) in self.agents {
            stop.send_replace(true);
            agent.await.unwrap().unwrap();
        }
        self.server.stop().await;
        if let Some(local) = self.local {
            local.stop().await;
        }
        self.dir
    }
}

/// A shell script to run on [`NODE`].
pub fn shell(script: &str, stdin: bool) -> exec::Request {
    exec::Request {
        node: NODE.into(),
        container: None,
        command: ["sh", "-c", script].map(str::to_owned).into(),
        env: vec![],
        cwd: None,
        user: None,
        stdin,
        tty: None,
        on_disconnect: OnDisconnect::Kill,
    }
}
