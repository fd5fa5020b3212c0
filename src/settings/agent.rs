//! The settings of `hub-agent`.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::{Parser, ValueEnum};
use hub_agent::agent::{Config, Joining, Parts};
use hub_agent::dial::HubAddress;
use hub_agent::engine::Engine;
use hub_agent::identity::{IdentityStore, State};
use hub_agent::operations::http::Direct;
use hub_agent::policy::{Policy, Rules, Source};
use hub_agent::runtime::Runtime;
use hub_agent::runtime::docker::DockerRuntime;
use hub_agent::runtime::process::ProcessRuntime;
use hub_protocol::enroll::JoinToken;
use hub_protocol::session::Platform;
use hub_protocol::{NodeName, ports};
use hub_quic::endpoint::UdpNetwork;
use hub_quic::tls::system_time;
use serde::Deserialize;

use super::{default_data_dir, hostname, program_digest, read_file};

/// What runs commands on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeKind {
    /// Docker: commands run in containers.
    Docker,
    /// Plain processes, as the agent's user: for machines without Docker.
    Process,
}

/// The agent: dials the hub and does what it is asked. Joins first if it has no identity.
///
/// Everything can be given as a flag, as a variable, or as a key of the same name (with `_` for
/// `-`) in the file of --config; flags go before variables, variables before the file. The join
/// token is a secret and never a flag: it comes from HUB_JOIN_TOKEN or --token-file (- reads
/// standard input).
#[derive(Debug, Clone, Default, Parser, Deserialize)]
#[command(
    name = "hub-agent",
    version,
    after_help = "Example:\n  HUB_JOIN_TOKEN=hub1_… hub-agent --data-dir /var/lib/hub-agent --hub hub.example.org --ca SHA256:… --name shop-4"
)]
#[serde(deny_unknown_fields)]
pub struct AgentSettings {
    /// A TOML file with more settings.
    #[arg(long, env = "HUB_AGENT_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Where the agent keeps its identity [default: /var/lib/hub-agent as root, else
    /// ~/.local/share/hub-agent]
    #[arg(long, env = "HUB_AGENT_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// The hub, as agents dial it; port 7443 unless given.
    #[arg(long, env = "HUB_HUB", value_name = "HOST[:PORT]")]
    pub hub: Option<String>,
    /// Where to join [default: the hub's host, port 7444]
    #[arg(long, env = "HUB_ENROLL", value_name = "HOST[:PORT]")]
    pub enroll: Option<String>,
    /// The fingerprint of the hub's CA; needed to join.
    #[arg(long, env = "HUB_CA", value_name = "SHA256:…")]
    pub ca: Option<String>,
    /// The name to join under [default: this machine's host name]
    #[arg(long, env = "HUB_NODE_NAME", value_name = "NAME")]
    pub name: Option<String>,
    /// A file with the join token; - reads standard input.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// What runs commands [default: docker]
    #[arg(long, env = "HUB_RUNTIME", value_name = "RUNTIME")]
    pub runtime: Option<RuntimeKind>,
    /// Hand packets to the kernel one by one, for network cards that only claim segmentation offload.
    #[arg(long, env = "HUB_NO_GSO", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub no_gso: Option<bool>,
    /// Let whoever may use the hub reach this machine's Docker socket, and so own the machine.
    #[arg(long, env = "HUB_ALLOW_DOCKER_API", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub allow_docker_api: Option<bool>,
    /// What else the hub may do here: a table of the file, see docs/policy.md.
    #[arg(skip)]
    pub policy: Option<Rules>,
    /// What to log: error, warn, info, debug, trace, or a filter as in RUST_LOG [default: info]
    #[arg(long, env = "HUB_LOG", value_name = "FILTER")]
    pub log: Option<String>,
}

impl AgentSettings {
    /// The settings of this process, the file's included.
    ///
    /// # Errors
    /// The file can't be read or has unknown keys.
    pub fn load() -> anyhow::Result<Self> {
        let given = Self::parse();
        let file: Self = read_file(given.config.as_deref())?;
        Ok(given.or(file))
    }

    fn or(self, file: Self) -> Self {
        Self {
            config: self.config,
            data_dir: self.data_dir.or(file.data_dir),
            hub: self.hub.or(file.hub),
            enroll: self.enroll.or(file.enroll),
            ca: self.ca.or(file.ca),
            name: self.name.or(file.name),
            token_file: self.token_file.or(file.token_file),
            runtime: self.runtime.or(file.runtime),
            no_gso: self.no_gso.or(file.no_gso),
            allow_docker_api: self.allow_docker_api.or(file.allow_docker_api),
            policy: self.policy.or(file.policy),
            log: self.log.or(file.log),
        }
    }
}

impl AgentSettings {
    /// What the agent takes, and what it stands on. Connects to the runtime.
    ///
    /// # Errors
    /// A setting makes no sense, the token can't be read, or the runtime does not answer.
    pub async fn build(self) -> anyhow::Result<(Config, Parts)> {
        let data_dir = self
            .data_dir
            .clone()
            .unwrap_or_else(|| default_data_dir("hub-agent"));
        let Some(hub) = &self.hub else {
            bail!("say where the hub is: --hub HOST[:PORT]");
        };
        let hub = HubAddress::parse(hub, ports::AGENTS).context("--hub")?;
        let config = Config {
            joining: self.joining(&data_dir, &hub)?,
            platform: platform(),
            digest: program_digest(),
            policy: Arc::new(self.policy()?),
            data_dir: data_dir.clone(),
            hub,
        };
        let kind = self.runtime.unwrap_or(RuntimeKind::Docker);
        let (runtime, engine) = runtime(kind, &data_dir).await?;
        let udp = UdpNetwork {
            segmentation_offload: !self.no_gso.unwrap_or(false),
            ..UdpNetwork::default()
        };
        Ok((
            config,
            Parts {
                network: Arc::new(udp),
                engine,
                ..system_parts(runtime)
            },
        ))
    }

    /// What the hub may do here.
    ///
    /// # Errors
    /// A rule makes no sense.
    fn policy(&self) -> anyhow::Result<Policy> {
        let source = Source {
            file: self.config.clone(),
            ..Source::default()
        };
        let docker_api = self.allow_docker_api.unwrap_or(false);
        Ok(Policy::new(
            self.policy.clone().unwrap_or_default(),
            docker_api,
            source,
        )?)
    }

    /// How to join; `None` where that has happened or nobody said how.
    fn joining(&self, data_dir: &Path, hub: &HubAddress) -> anyhow::Result<Option<Joining>> {
        if let State::Joined(identity) = IdentityStore::open(data_dir)?.load()? {
            if self.token()?.is_some() {
                tracing::warn!(
                    "this machine is node {} already: the join token is not used; to join anew, stop \
                     the agent and remove {}",
                    identity.name(),
                    data_dir.display()
                );
            }
            return Ok(None);
        }
        let (Some(pin), Some(token)) = (&self.ca, self.token()?) else {
            return Ok(None);
        };
        let enrollment = match &self.enroll {
            Some(enroll) => HubAddress::parse(enroll, ports::ENROLLMENT).context("--enroll")?,
            None => HubAddress::new(hub.host(), ports::ENROLLMENT),
        };
        let name = match &self.name {
            Some(name) => Some(name.parse::<NodeName>().context("--name")?),
            None => hostname().parse().ok(),
        };
        Ok(Some(Joining {
            enrollment,
            pin: pin.parse().context("--ca")?,
            token,
            name,
        }))
    }

    /// The join token, from a file, standard input or the environment.
    fn token(&self) -> anyhow::Result<Option<JoinToken>> {
        let text = match self.token_file.as_deref() {
            Some(path) if path == Path::new("-") => {
                let mut text = String::new();
                std::io::stdin()
                    .take(4096)
                    .read_to_string(&mut text)
                    .context("the token on standard input")?;
                text
            }
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the token file {}", path.display()))?,
            None => match std::env::var("HUB_JOIN_TOKEN") {
                Ok(text) => text,
                Err(_) => return Ok(None),
            },
        };
        Ok(Some(text.trim().parse().context("the join token")?))
    }
}

/// This machine, as it calls itself.
pub fn platform() -> Platform {
    Platform {
        os: std::env::consts::OS.into(),
        arch: std::env::consts::ARCH.into(),
        hostname: hostname(),
    }
}

/// What an agent stands on outside of simulations.
pub fn system_parts(runtime: Arc<dyn Runtime>) -> Parts {
    Parts {
        network: Arc::new(UdpNetwork::default()),
        time: system_time(),
        random: Arc::new(|bytes| {
            // Where the system has no random bytes, TLS has failed before.
            let _ = getrandom::fill(bytes);
        }),
        runtime,
        engine: None,
        dial: Arc::new(Direct),
    }
}

/// The runtime of this kind, and the Docker Engine where it is one of Docker's.
///
/// # Errors
/// It does not answer, or its records can't be kept in `data_dir`.
pub async fn runtime(
    kind: RuntimeKind,
    data_dir: &Path,
) -> anyhow::Result<(Arc<dyn Runtime>, Option<Engine>)> {
    let records = || format!("cannot keep records of what runs in {}", data_dir.display());
    Ok(match kind {
        RuntimeKind::Docker => {
            let engine = Engine::connect().await.context(
                "Docker cannot be used; start it, or use --runtime process to run commands \
                 without containers, as this user",
            )?;
            let docker = DockerRuntime::new(&engine).keeping_records(data_dir).await;
            (Arc::new(docker.with_context(records)?), Some(engine))
        }
        RuntimeKind::Process => {
            let process = ProcessRuntime::open(data_dir).await;
            (Arc::new(process.with_context(records)?), None)
        }
    })
}
