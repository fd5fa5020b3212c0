//! `hub expose` and `hub exposures`: what stands behind nodes, for browsers.

mod show;

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use hub_server::api::types::{
    Access, Edit, EditExposure, EditSettings, ExposureSettings, NewExposure, NewReplica, Protocol,
    RotateToken,
};

use super::units::parse_size;
use super::{CliError, Context};

/// Which container, on the node.
#[derive(Debug, Clone, Args)]
struct ContainerArgs {
    /// Of the container of this name; found anew for each connection
    #[arg(long, value_name = "NAME", conflicts_with = "label")]
    container: Option<String>,
    /// Of the container with this label that was started last
    #[arg(long, value_name = "KEY[=VALUE]")]
    label: Option<String>,
}

/// Let browsers reach what stands behind a node
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hub expose shop-4 8080                     by a URL that nobody can guess
  hub expose shop-4 8080 --expires 30d       and that holds for a month
  hub expose shop-4 8080 --name shop         by a name of the hub's domain, too
  hub expose shop-4 80 --container web       a port of a container
  hub expose shop-4 80 --replica shop-5 --sticky
                                             wherever there is room")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(super) struct ExposeArgs {
    /// The node's name or id
    node: String,
    /// The port on the node, or of the container
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    #[command(flatten)]
    container: ContainerArgs,
    /// Another node that can answer, on the same port or another; may be repeated
    #[arg(long, value_name = "NODE[:PORT]")]
    replica: Vec<OtherReplica>,
    /// A name: a-z, 0-9 and -, which no other exposure has
    #[arg(long)]
    name: Option<String>,
    /// Who gets in: whoever knows it, who shows the token, or who is logged in as an operator
    #[arg(long, value_enum, default_value_t)]
    access: AccessArg,
    /// The target speaks HTTP/2 in the clear, as gRPC servers do
    #[arg(long, conflicts_with_all = ["tcp", "udp"])]
    http2: bool,
    /// Carry the bytes of TCP connections to the port
    #[arg(long, conflicts_with = "udp")]
    tcp: bool,
    /// Carry datagrams to the port
    #[arg(long)]
    udp: bool,
    /// With --tcp or --udp: where the hub listens [default: the same port, for the hub's machine only]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// How long the URL with the token holds: 12h, 30d; without, until it is revoked
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    expires: Option<Duration>,
    /// Make no token: the name is the only way in
    #[arg(long, requires = "name", conflicts_with = "expires")]
    no_token: bool,
    /// The longest body of a request: 100MB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_body: Option<u64>,
    /// The most requests in flight
    #[arg(long, value_name = "N")]
    max_requests: Option<u32>,
    /// The most requests and WebSockets that each replica has at once
    #[arg(long, value_name = "N")]
    max_sessions: Option<u32>,
    /// The most requests a second from each client address
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    /// Keep a browser with the replica that answered it first
    #[arg(long)]
    sticky: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hub exposures
  hub exposures show 3
  hub exposures rotate 3 --grace 1h          a new URL; the old one holds for an hour yet
  hub exposures set 3 --max-body off --rate 20
  hub exposures rm 3")]
pub(super) struct ExposuresArgs {
    #[command(subcommand)]
    command: Option<ExposuresCommand>,
}

#[derive(Debug, Subcommand)]
enum ExposuresCommand {
    /// List the exposures, as without a command
    Ls,
    /// Show all of one
    Show {
        /// Its number
        id: u64,
    },
    /// Give one a new token, and with it a new URL
    Rotate {
        /// Its number
        id: u64,
        /// How long the new URL holds: 30d, or "never" [default: as long as the old one]
        #[arg(long, value_name = "TIME")]
        expires: Option<Switch<Ttl>>,
        /// How long the old URL is good yet
        #[arg(long, value_name = "TIME", default_value = "0s", value_parser = humantime::parse_duration)]
        grace: Duration,
    },
    /// Revoke the token of one: nobody gets in by the URL with it any more
    Revoke {
        /// Its number
        id: u64,
    },
    /// Change one; what is not said stays
    Set(Box<SetArgs>),
    /// Remove one
    Rm {
        /// Its number
        id: u64,
    },
}

#[derive(Debug, Args)]
struct SetArgs {
    /// Its number
    id: u64,
    /// A name, or "off" for none
    #[arg(long)]
    name: Option<Switch<String>>,
    /// Who gets in
    #[arg(long, value_enum)]
    access: Option<AccessArg>,
    /// The version of HTTP that the target speaks
    #[arg(long, value_enum)]
    http: Option<HttpArg>,
    /// Where it goes from now on: all of the places; may be repeated
    #[arg(long, value_name = "NODE:PORT")]
    replica: Vec<OtherReplica>,
    #[command(flatten)]
    container: ContainerArgs,
    /// Where the hub listens for it
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// The longest body of a request, or "off"
    #[arg(long, value_name = "SIZE")]
    max_body: Option<Switch<Size>>,
    /// The most requests in flight, or "off"
    #[arg(long, value_name = "N")]
    max_requests: Option<Switch<u32>>,
    /// The most requests and WebSockets that each replica has at once, or "off"
    #[arg(long, value_name = "N")]
    max_sessions: Option<Switch<u32>>,
    /// The most requests a second from each client address, or "off"
    #[arg(long, value_name = "N")]
    rate: Option<Switch<u32>>,
    /// Keep a browser with the replica that answered it first
    #[arg(long, value_name = "on|off", value_parser = on_or_off)]
    sticky: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum AccessArg {
    #[default]
    Public,
    Token,
    Login,
}

impl From<AccessArg> for Access {
    fn from(access: AccessArg) -> Self {
        match access {
            AccessArg::Public => Self::Public,
            AccessArg::Token => Self::Token,
            AccessArg::Login => Self::Login,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HttpArg {
    #[value(name = "1")]
    One,
    #[value(name = "2")]
    Two,
}

/// `NODE` or `NODE:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OtherReplica {
    node: String,
    port: Option<u16>,
}

impl FromStr for OtherReplica {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (node, port) = match text.split_once(':') {
            Some((node, port)) => {
                let port = port.parse().ok().filter(|port| *port > 0);
                let wrong = || format!("{text:?} has no port from 1 to 65535 after its colon");
                (node, Some(port.ok_or_else(wrong)?))
            }
            None => (text, None),
        };
        if node.is_empty() {
            return Err("a node is missing; it takes NODE or NODE:PORT".into());
        }
        let node = node.to_owned();
        Ok(Self { node, port })
    }
}

/// A value, or none: `off` or `never`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Switch<T> {
    Off,
    On(T),
}

impl<T: FromStr<Err: ToString>> FromStr for Switch<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" || text == "never" {
            return Ok(Self::Off);
        }
        let value = text.parse().map(Self::On);
        value.map_err(|error: T::Err| error.to_string())
    }
}

/// Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size(u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = parse_size(text);
        size.map(Self).map_err(|error| error.to_string())
    }
}

/// A time from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ttl(Duration);

impl FromStr for Ttl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ttl = humantime::parse_duration(text);
        ttl.map(Self).map_err(|error| error.to_string())
    }
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err(format!("{other:?} is neither on nor off")),
    }
}

/// What an argument that may be left out changes.
fn edit<T, U>(switch: Option<Switch<T>>, value: impl FnOnce(T) -> U) -> Edit<Option<U>> {
    match switch {
        None => Edit::Keep,
        Some(Switch::Off) => Edit::Set(None),
        Some(Switch::On(is)) => Edit::Set(Some(value(is))),
    }
}

/// A part of a second is more than none.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

impl ExposeArgs {
    fn wanted(self) -> Result<NewExposure, CliError> {
        let protocol = match (self.http2, self.tcp, self.udp) {
            (true, ..) => Protocol::Http2,
            (_, true, _) => Protocol::Tcp,
            (.., true) => Protocol::Udp,
            _ => Protocol::Http,
        };
        let listens = self.tcp || self.udp;
        if self.listen.is_some() && !listens {
            let what = "--listen goes with --tcp or --udp: HTTP is reached by URLs";
            return Err(CliError::Usage(what.into()));
        }
        // Whoever reaches the port gets in: nobody but the hub's own machine, unless it is said.
        let own = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let listen = listens.then(|| self.listen.unwrap_or(own).to_string());
        let ContainerArgs { container, label } = self.container;
        let more_replicas = self.replica.into_iter().map(|replica| NewReplica {
            node: replica.node,
            port: replica.port.unwrap_or(self.port),
            container: container.clone(),
            label: label.clone(),
        });
        Ok(NewExposure {
            more_replicas: more_replicas.collect(),
            node: self.node,
            port: self.port,
            container,
            label,
            name: self.name,
            access: self.access.into(),
            protocol,
            listen,
            token: self.no_token.then_some(false),
            expires_s: self.expires.map(whole_seconds),
            settings: ExposureSettings {
                max_body: self.max_body,
                max_requests: self.max_requests,
                max_sessions: self.max_sessions,
                rate: self.rate,
                sticky: self.sticky,
            },
        })
    }
}

impl SetArgs {
    fn wanted(self) -> Result<EditExposure, CliError> {
        let ContainerArgs { container, label } = self.container;
        if self.replica.is_empty() && (container.is_some() || label.is_some()) {
            let what = "--container and --label go with --replica NODE:PORT";
            return Err(CliError::Usage(what.into()));
        }
        let replica = |replica: OtherReplica| match replica.port {
            Some(port) => Ok(NewReplica {
                node: replica.node,
                port,
                container: container.clone(),
                label: label.clone(),
            }),
            None => Err(CliError::Usage(format!(
                "--replica {} needs a port here: {}:PORT",
                replica.node, replica.node
            ))),
        };
        let replicas: Vec<_> = self
            .replica
            .into_iter()
            .map(replica)
            .collect::<Result<_, _>>()?;
        let http = |http| match http {
            HttpArg::One => Protocol::Http,
            HttpArg::Two => Protocol::Http2,
        };
        let edit = EditExposure {
            name: edit(self.name, |name| name),
            access: self.access.map(Access::from).into(),
            protocol: self.http.map(http).into(),
            replicas: Some(replicas)
                .filter(|replicas| !replicas.is_empty())
                .into(),
            listen: self.listen.map(|address| address.to_string()).into(),
            settings: EditSettings {
                max_body: edit(self.max_body, |Size(bytes)| bytes),
                max_requests: edit(self.max_requests, |count| count),
                max_sessions: edit(self.max_sessions, |count| count),
                rate: edit(self.rate, |count| count),
                sticky: self.sticky.into(),
            },
        };
        if edit == EditExposure::default() {
            let what = "nothing to change; see `hub exposures set --help`";
            return Err(CliError::Usage(what.into()));
        }
        Ok(edit)
    }
}

impl ExposuresArgs {
    /// Which exposure it removes, if it does.
    #[cfg(test)]
    pub(super) fn removes(&self) -> Option<u64> {
        match &self.command {
            Some(ExposuresCommand::Rm { id }) => Some(*id),
            _ => None,
        }
    }
}

pub(super) async fn expose(context: &Context, arguments: ExposeArgs) -> Result<(), CliError> {
    let new = arguments.wanted()?;
    let created = context.client()?.expose(&new).await?;
    context.print(&created, show::created)
}

pub(super) async fn run(context: &Context, arguments: ExposuresArgs) -> Result<(), CliError> {
    let client = context.client()?;
    match arguments.command.unwrap_or(ExposuresCommand::Ls) {
        ExposuresCommand::Ls => context.print(&client.exposures().await?, show::all),
        ExposuresCommand::Show { id } => context.print(&client.exposure(id).await?, show::one),
        ExposuresCommand::Rotate { id, expires, grace } => {
            let rotate = RotateToken {
                expires_s: edit(expires, |Ttl(ttl)| whole_seconds(ttl)),
                grace_s: whole_seconds(grace),
            };
            let rotated = client.rotate_exposure_token(id, &rotate).await?;
            context.print(&rotated, show::rotated)
        }
        ExposuresCommand::Revoke { id } => {
            client.revoke_exposure_token(id).await?;
            let text = format!(
                "The token of exposure {id} opens nothing any more. `hub exposures rotate {id}` makes another."
            );
            said(context, &text)
        }
        ExposuresCommand::Set(arguments) => {
            let id = arguments.id;
            let changed = client.change_exposure(id, &arguments.wanted()?).await?;
            context.print(&changed, show::one)
        }
        ExposuresCommand::Rm { id } => {
            client.unexpose(id).await?;
            said(context, &format!("Exposure {id} is removed."))
        }
    }
}

/// Says for people that something is done.
fn said(context: &Context, text: &str) -> Result<(), CliError> {
    if !context.json() {
        writeln!(io::stdout(), "{text}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
