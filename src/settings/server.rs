//! The settings of `hub-server`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Parser;
use hub_agent::policy::{Policy, Rules, Source};
use hub_protocol::ports;
use hub_quic::endpoint::UdpNetwork;
use serde::Deserialize;

use super::limits::Limits;
use super::{RuntimeKind, default_data_dir, hostname, read_file};
use crate::local;

/// The control plane: agents dial it, operators and browsers use it.
///
/// Everything can be given as a flag, as a variable, or as a key of the same name (with `_` for
/// `-`) in the file of --config; flags go before variables, variables before the file.
#[derive(Debug, Clone, Default, Parser, Deserialize)]
#[command(
    name = "hub-server",
    version,
    after_help = "Example:\n  hub-server --data-dir /var/lib/hub --advertise hub.example.org"
)]
#[serde(deny_unknown_fields)]
pub struct ServerSettings {
    /// A TOML file with more settings.
    #[arg(long, env = "HUB_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Where the hub keeps its ledger, its secret and the API token [default: /var/lib/hub as root,
    /// else ~/.local/share/hub]
    #[arg(long, env = "HUB_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Where agents dial: UDP [default: port 7443 of every address]
    #[arg(long, env = "HUB_AGENT_LISTEN", value_name = "ADDR")]
    pub agent_listen: Option<SocketAddr>,
    /// Where machines join: UDP [default: port 7444 of every address]
    #[arg(long, env = "HUB_ENROLL_LISTEN", value_name = "ADDR")]
    pub enroll_listen: Option<SocketAddr>,
    /// Where operators are served: TCP [default: 127.0.0.1:7445]
    #[arg(long, env = "HUB_API_LISTEN", value_name = "ADDR")]
    pub api_listen: Option<SocketAddr>,
    /// Where browsers are served: TCP [default: port 7480 of every address]
    #[arg(long, env = "HUB_PROXY_LISTEN", value_name = "ADDR")]
    pub proxy_listen: Option<SocketAddr>,
    /// A name or address that agents and browsers reach this hub by; may be repeated. The first one
    /// is printed in commands and URLs [default: this machine's host name]
    #[arg(
        long,
        env = "HUB_ADVERTISE",
        value_name = "NAME",
        value_delimiter = ','
    )]
    #[serde(default)]
    pub advertise: Vec<String>,
    /// The domain under which exposures with a name are reached: NAME.DOMAIN
    #[arg(long, env = "HUB_DOMAIN", value_name = "DOMAIN")]
    pub domain: Option<String>,
    /// A file to write the bound addresses and the CA fingerprint to, as JSON, once all listen.
    #[arg(long, env = "HUB_READY_FILE", value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// A file with the hub's secret, under which the CA's key is sealed [default: DATA_DIR/secret]
    #[arg(long, env = "HUB_SECRET_FILE", value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// The certificate chain of the API, in PEM; needed beyond loopback.
    #[arg(long, env = "HUB_API_TLS_CERT", value_name = "FILE")]
    pub api_tls_cert: Option<PathBuf>,
    /// The key of the API's certificate, in PEM.
    #[arg(long, env = "HUB_API_TLS_KEY", value_name = "FILE")]
    pub api_tls_key: Option<PathBuf>,
    /// Take this machine itself for a node of this name, served within the hub's process.
    #[arg(long, env = "HUB_LOCAL_NODE", value_name = "NAME")]
    pub local_node: Option<String>,
    /// What runs commands on the node of --local-node [default: docker]
    #[arg(long, env = "HUB_LOCAL_RUNTIME", value_name = "RUNTIME")]
    pub local_runtime: Option<RuntimeKind>,
    /// Let whoever may use the hub reach the Docker socket of the node of --local-node, and so own
    /// this machine.
    #[arg(long, env = "HUB_LOCAL_ALLOW_DOCKER_API", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub local_allow_docker_api: Option<bool>,
    /// What else the hub may do there: a table of the file, see docs/policy.md.
    #[arg(skip)]
    pub local_policy: Option<Rules>,
    /// What browsers may have at most: a table of the file, see docs/expose.md.
    #[arg(skip)]
    pub limits: Option<Limits>,
    /// Hand packets to the kernel one by one, for network cards that only claim segmentation offload.
    #[arg(long, env = "HUB_NO_GSO", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub no_gso: Option<bool>,
    /// What to log: error, warn, info, debug, trace, or a filter as in RUST_LOG [default: info]
    #[arg(long, env = "HUB_LOG", value_name = "FILTER")]
    pub log: Option<String>,
}

impl ServerSettings {
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
            agent_listen: self.agent_listen.or(file.agent_listen),
            enroll_listen: self.enroll_listen.or(file.enroll_listen),
            api_listen: self.api_listen.or(file.api_listen),
            proxy_listen: self.proxy_listen.or(file.proxy_listen),
            advertise: if self.advertise.is_empty() {
                file.advertise
            } else {
                self.advertise
            },
            domain: self.domain.or(file.domain),
            ready_file: self.ready_file.or(file.ready_file),
            secret_file: self.secret_file.or(file.secret_file),
            api_tls_cert: self.api_tls_cert.or(file.api_tls_cert),
            api_tls_key: self.api_tls_key.or(file.api_tls_key),
            local_node: self.local_node.or(file.local_node),
            local_runtime: self.local_runtime.or(file.local_runtime),
            local_allow_docker_api: self.local_allow_docker_api.or(file.local_allow_docker_api),
            local_policy: self.local_policy.or(file.local_policy),
            limits: self.limits.or(file.limits),
            no_gso: self.no_gso.or(file.no_gso),
            log: self.log.or(file.log),
        }
    }

    /// What the hub itself takes.
    ///
    /// # Errors
    /// Settings that make no sense together.
    pub fn configuration(self) -> anyhow::Result<hub_server::Config> {
        let any = |port| SocketAddr::from(([0; 16], port));
        let data_dir = self.data_dir.unwrap_or_else(|| default_data_dir("hub"));
        let advertise = if self.advertise.is_empty() {
            vec![hostname()]
        } else {
            self.advertise
        };
        let api_tls = match (self.api_tls_cert, self.api_tls_key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => bail!("--api-tls-cert and --api-tls-key go together"),
        };
        Ok(hub_server::Config {
            agent_listen: self.agent_listen.unwrap_or(any(ports::AGENTS)),
            enroll_listen: self.enroll_listen.unwrap_or(any(ports::ENROLLMENT)),
            api_listen: Some(
                self.api_listen
                    .unwrap_or(SocketAddr::from(([127, 0, 0, 1], ports::API))),
            ),
            proxy_listen: Some(self.proxy_listen.unwrap_or(any(ports::BROWSERS))),
            advertise,
            domain: self.domain,
            quotas: self.limits.unwrap_or_default().quotas(),
            secret_file: self.secret_file,
            api_tls,
            data_dir,
            sessions: hub_server::sessions::SessionConfig::default(),
            enroll: hub_server::enroll::EnrollConfig::default(),
            udp: UdpNetwork {
                segmentation_offload: !self.no_gso.unwrap_or(false),
                ..UdpNetwork::default()
            },
        })
    }
}

impl ServerSettings {
    /// What is to be served of this machine itself, if anything.
    ///
    /// # Errors
    /// A setting or a rule makes no sense, or there is no node that it could be about.
    pub fn local(&self) -> anyhow::Result<Option<local::Settings>> {
        let Some(name) = &self.local_node else {
            let about_it = self.local_runtime.is_some()
                || self.local_allow_docker_api.is_some()
                || self.local_policy.is_some();
            if about_it {
                bail!("settings of the local node are given, and none is: add --local-node NAME");
            }
            return Ok(None);
        };
        let source = Source {
            file: self.config.clone(),
            table: "local_policy",
            docker_api: "local_allow_docker_api",
        };
        let docker_api = self.local_allow_docker_api.unwrap_or(false);
        let rules = self.local_policy.clone().unwrap_or_default();
        Ok(Some(local::Settings {
            name: name.parse().context("--local-node")?,
            runtime: self.local_runtime.unwrap_or(RuntimeKind::Docker),
            policy: Arc::new(Policy::new(rules, docker_api, source)?),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_go_before_the_file_and_unknown_keys_are_errors() {
        let given = ServerSettings::parse_from(["hub-server", "--agent-listen", "127.0.0.1:1"]);
        let file: ServerSettings = toml::from_str(
            "agent_listen = \"127.0.0.1:2\"\napi_listen = \"127.0.0.1:3\"\nadvertise = [\"a\"]",
        )
        .unwrap();
        let config = given.or(file).configuration().unwrap();
        assert_eq!(config.agent_listen.port(), 1);
        assert_eq!(config.api_listen.map(|address| address.port()), Some(3));
        assert_eq!(config.advertise, ["a"]);
        let error = toml::from_str::<ServerSettings>("agents_listen = \"x\"").unwrap_err();
        assert!(error.to_string().contains("agents_listen"), "{error}");
    }

    #[test]
    fn the_local_node_has_settings_and_a_policy_of_its_own() {
        let read = |flags: &[&str], file: &str| {
            let given = ServerSettings::parse_from([&["hub-server"], flags].concat());
            given.or(toml::from_str(file).unwrap()).local()
        };
        assert!(read(&[], "").unwrap().is_none());
        let local = read(&["--local-node", "here"], "local_runtime = \"process\"");
        let local = local.unwrap().unwrap();
        assert_eq!(
            (local.name.as_str(), local.runtime),
            ("here", RuntimeKind::Process)
        );
        let none = read(&[], "[local_policy]\nexec = false").unwrap_err();
        assert!(none.to_string().contains("--local-node"), "{none}");
        let both = "local_allow_docker_api = true\n[local_policy]\nexec = false";
        let both = read(&["--local-node", "here"], both)
            .unwrap_err()
            .to_string();
        assert!(both.contains("local_policy.exec"), "{both}");
        let unknown = toml::from_str::<ServerSettings>("[local_policy]\nexce = true");
        assert!(unknown.unwrap_err().to_string().contains("exce"));
    }
}
