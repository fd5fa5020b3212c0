//! The settings of `hub-server`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Parser;
use hub_agent::policy::{Policy, Rules, Source};
use hub_protocol::ports;
use hub_quic::endpoint::UdpNetwork;
use hub_server::ProxyTls;
use hub_server::proxy::{Prefix, SeeingConfig, Trusted};
use hub_server::wires;
use serde::Deserialize;

use super::limits::Limits;
use super::{RuntimeKind, Span, default_data_dir, hostname, read_file};
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
    /// The certificate chain of the data plane, in PEM: browsers are then served over TLS. Read anew
    /// when it changes.
    #[arg(long, env = "HUB_PROXY_TLS_CERT", value_name = "FILE")]
    pub proxy_tls_cert: Option<PathBuf>,
    /// The key of the data plane's certificate, in PEM.
    #[arg(long, env = "HUB_PROXY_TLS_KEY", value_name = "FILE")]
    pub proxy_tls_key: Option<PathBuf>,
    /// Serve browsers over TLS with a certificate of the hub's own CA, DATA_DIR/ca.pem: for
    /// development, where browsers can be told to trust it.
    #[arg(long, env = "HUB_PROXY_TLS_HUB_CA", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub proxy_tls_hub_ca: Option<bool>,
    /// Serve HTTP/3 too, over UDP and the data plane's port; goes with TLS [default: true]
    #[arg(long, env = "HUB_PROXY_HTTP3", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub proxy_http3: Option<bool>,
    /// Where browsers that come without TLS are sent to the data plane's: TCP, as port 80.
    #[arg(long, env = "HUB_PROXY_REDIRECT_LISTEN", value_name = "ADDR")]
    pub proxy_redirect_listen: Option<SocketAddr>,
    /// An address or network (192.0.2.0/24) of proxies in front of the data plane, whose word about
    /// clients is taken (X-Forwarded-For and the like); may be repeated.
    #[arg(
        long,
        env = "HUB_TRUSTED_PROXIES",
        value_name = "NETWORK",
        value_delimiter = ','
    )]
    #[serde(default)]
    pub trusted_proxies: Vec<Prefix>,
    /// Demand a header of the PROXY protocol, version 1 or 2, at the start of each connection to the
    /// data plane. Connections from others than the trusted proxies are refused.
    #[arg(long, env = "HUB_PROXY_PROTOCOL", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub proxy_protocol: Option<bool>,
    /// A file for a line of JSON about each request of browsers; - is standard error [default: none]
    #[arg(long, env = "HUB_ACCESS_LOG", value_name = "FILE")]
    pub access_log: Option<PathBuf>,
    /// The share of requests that the access log has, from 0 to 1; it has all errors [default: 1]
    #[arg(long, env = "HUB_ACCESS_LOG_SAMPLE", value_name = "SHARE")]
    pub access_log_sample: Option<f64>,
    /// Have queries in the access log, which may hold secrets of what is exposed.
    #[arg(long, env = "HUB_ACCESS_LOG_QUERY", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub access_log_query: Option<bool>,
    /// Say in every answer to browsers how long its parts took (Server-Timing), not only to who asks.
    #[arg(long, env = "HUB_SERVER_TIMING", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub server_timing: Option<bool>,
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
    /// How long connections of TCP exposures may be silent in both directions, as 30m or 12h
    /// [default: as long as they like]
    #[arg(long, env = "HUB_TCP_IDLE_TIMEOUT", value_name = "DURATION")]
    pub tcp_idle_timeout: Option<Span>,
    /// How long flows of UDP exposures may be silent in both directions [default: 60s]
    #[arg(long, env = "HUB_UDP_IDLE_TIMEOUT", value_name = "DURATION")]
    pub udp_idle_timeout: Option<Span>,
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
            proxy_tls_cert: self.proxy_tls_cert.or(file.proxy_tls_cert),
            proxy_tls_key: self.proxy_tls_key.or(file.proxy_tls_key),
            proxy_tls_hub_ca: self.proxy_tls_hub_ca.or(file.proxy_tls_hub_ca),
            proxy_http3: self.proxy_http3.or(file.proxy_http3),
            proxy_redirect_listen: self.proxy_redirect_listen.or(file.proxy_redirect_listen),
            trusted_proxies: if self.trusted_proxies.is_empty() {
                file.trusted_proxies
            } else {
                self.trusted_proxies
            },
            proxy_protocol: self.proxy_protocol.or(file.proxy_protocol),
            access_log: self.access_log.or(file.access_log),
            access_log_sample: self.access_log_sample.or(file.access_log_sample),
            access_log_query: self.access_log_query.or(file.access_log_query),
            server_timing: self.server_timing.or(file.server_timing),
            ready_file: self.ready_file.or(file.ready_file),
            secret_file: self.secret_file.or(file.secret_file),
            api_tls_cert: self.api_tls_cert.or(file.api_tls_cert),
            api_tls_key: self.api_tls_key.or(file.api_tls_key),
            local_node: self.local_node.or(file.local_node),
            local_runtime: self.local_runtime.or(file.local_runtime),
            local_allow_docker_api: self.local_allow_docker_api.or(file.local_allow_docker_api),
            local_policy: self.local_policy.or(file.local_policy),
            limits: self.limits.or(file.limits),
            tcp_idle_timeout: self.tcp_idle_timeout.or(file.tcp_idle_timeout),
            udp_idle_timeout: self.udp_idle_timeout.or(file.udp_idle_timeout),
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
        let hub_ca = self.proxy_tls_hub_ca.unwrap_or(false);
        let proxy_tls = match (self.proxy_tls_cert, self.proxy_tls_key, hub_ca) {
            (Some(certificate), Some(key), false) => ProxyTls::Files { certificate, key },
            (None, None, true) => ProxyTls::HubCa,
            (None, None, false) => ProxyTls::Off,
            (_, _, true) => bail!("--proxy-tls-hub-ca goes without a certificate of your own"),
            _ => bail!("--proxy-tls-cert and --proxy-tls-key go together"),
        };
        if self.proxy_redirect_listen.is_some() && proxy_tls == ProxyTls::Off {
            bail!(
                "--proxy-redirect-listen sends browsers to TLS, and there is none: add --proxy-tls-cert and --proxy-tls-key"
            );
        }
        let proxy_protocol = self.proxy_protocol.unwrap_or(false);
        if proxy_protocol && self.trusted_proxies.is_empty() {
            bail!(
                "--proxy-protocol is taken from trusted proxies only: name them with --trusted-proxies"
            );
        }
        let wires = wires::Config::default();
        let sample = self.access_log_sample.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&sample) {
            bail!("--access-log-sample is a share, from 0 to 1");
        }
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
            proxy_tls,
            proxy_http3: self.proxy_http3.unwrap_or(true),
            proxy_redirect_listen: self.proxy_redirect_listen,
            trusted_proxies: Trusted::new(self.trusted_proxies),
            proxy_protocol,
            seeing: SeeingConfig {
                access_log: self.access_log,
                access_log_sample: sample,
                access_log_query: self.access_log_query.unwrap_or(false),
                server_timing: self.server_timing.unwrap_or(false),
            },
            secret_file: self.secret_file,
            api_tls,
            data_dir,
            sessions: hub_server::sessions::SessionConfig::default(),
            enroll: hub_server::enroll::EnrollConfig::default(),
            wires: wires::Config {
                idle: self.tcp_idle_timeout.map(|span| span.0),
                flow_idle: self.udp_idle_timeout.map_or(wires.flow_idle, |span| span.0),
                ..wires
            },
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
    use std::time::Duration;

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
        let file: ServerSettings = toml::from_str("tcp_idle_timeout = \"12h\"").unwrap();
        let wires = file.configuration().unwrap().wires;
        assert_eq!(wires.idle, Some(Duration::from_secs(12 * 3600)));
        for wrong in ["12", "0s", "soon"] {
            let file = format!("udp_idle_timeout = {wrong:?}");
            assert!(toml::from_str::<ServerSettings>(&file).is_err(), "{wrong}");
        }
        let error = toml::from_str::<ServerSettings>("agents_listen = \"x\"").unwrap_err();
        assert!(error.to_string().contains("agents_listen"), "{error}");
    }

    #[test]
    fn what_stands_before_the_data_plane_is_set_in_one_piece() {
        let read = |flags: &[&str], file: &str| {
            let given = ServerSettings::parse_from([&["hub-server"], flags].concat());
            given.or(toml::from_str(file).unwrap()).configuration()
        };
        let plain = read(&[], "").unwrap();
        assert_eq!(plain.proxy_tls, ProxyTls::Off);
        assert!(plain.trusted_proxies.is_nobody() && !plain.proxy_protocol);
        let file = "proxy_tls_cert = \"c\"\nproxy_tls_key = \"k\"\nproxy_protocol = true\n\
                    trusted_proxies = [\"10.0.0.0/8\", \"::1\"]";
        let config = read(&["--proxy-redirect-listen", "0.0.0.0:80"], file).unwrap();
        let files = ProxyTls::Files {
            certificate: "c".into(),
            key: "k".into(),
        };
        assert_eq!(config.proxy_tls, files);
        assert!(config.proxy_protocol);
        assert!(config.trusted_proxies.contains([10, 9, 8, 7].into()));
        for (flags, about) in [
            (&["--proxy-tls-cert", "c"][..], "--proxy-tls-key"),
            (&["--proxy-redirect-listen", "0.0.0.0:80"], "there is none"),
            (&["--proxy-protocol"], "--trusted-proxies"),
            (
                &["--proxy-tls-hub-ca", "--proxy-tls-key", "k"],
                "of your own",
            ),
        ] {
            let error = read(flags, "").unwrap_err().to_string();
            assert!(error.contains(about), "{error}");
        }
        let wrong = toml::from_str::<ServerSettings>("trusted_proxies = [\"10.0.0.1/8\"]");
        assert!(wrong.unwrap_err().to_string().contains("10.0.0.0/8"));
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
