//! The options of `hub create` and `hub run`, and the container that they describe. Pure.

use std::str::FromStr;

use clap::Args;
use hub_protocol::kind::call::container::{
    Attachment, Create, Gpus, Mount, MountKind, Port, Protocol, Resources, Restart, Variable,
};
use hub_protocol::kind::call::image::Credentials;

use crate::cli::registry::RegistryArgs;
use crate::cli::units::{NoVariable, parse_cpus, parse_pair, parse_size, parse_variable};

/// Options in docker's habits.
#[derive(Debug, Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an option of its own"
)]
pub(super) struct SpecArgs {
    /// Its name; one that nobody else has without
    #[arg(long)]
    name: Option<String>,
    /// Set a variable; without =VALUE, to what it is here
    #[arg(short = 'e', long = "env", value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Add a label
    #[arg(short = 'l', long = "label", value_name = "KEY[=VALUE]")]
    labels: Vec<String>,
    /// Forward a port of the machine; HOST 0 or none takes any that is free
    #[arg(
        short = 'p',
        long = "publish",
        value_name = "[[IP:]HOST:]CONTAINER[/PROTOCOL]"
    )]
    ports: Vec<PortArg>,
    /// Mount a volume, or a directory of the machine by its absolute path
    #[arg(short = 'v', long = "volume", value_name = "SOURCE:TARGET[:ro]")]
    mounts: Vec<MountArg>,
    /// The program that takes the arguments; the image's own without
    #[arg(long)]
    entrypoint: Option<String>,
    /// The working directory
    #[arg(short = 'w', long, value_name = "DIR")]
    workdir: Option<String>,
    /// The user: name or uid, with or without group
    #[arg(short = 'u', long)]
    user: Option<String>,
    /// Its host name
    #[arg(long)]
    hostname: Option<String>,
    /// Give it a terminal
    #[arg(short = 't', long)]
    tty: bool,
    /// Keep its standard input open
    #[arg(short = 'i', long)]
    interactive: bool,
    #[command(flatten)]
    resources: ResourceArgs,
    /// Graphics processors: all, a number, or device=ID,ID
    #[arg(long, value_name = "WHICH")]
    gpus: Option<GpusArg>,
    /// Size of /dev/shm: 64m, 1g
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    shm_size: Option<u64>,
    /// A name server's address
    #[arg(long, value_name = "IP")]
    dns: Vec<String>,
    /// A network's name, or bridge, host, none, container:NAME
    #[arg(long)]
    network: Option<String>,
    /// A further name in the network
    #[arg(long, value_name = "NAME")]
    network_alias: Vec<String>,
    /// Add a capability of the kernel
    #[arg(long, value_name = "CAP")]
    cap_add: Vec<String>,
    /// Let it do all that the machine's root may, if the agent allows it
    #[arg(long)]
    privileged: bool,
    /// When the daemon starts it again: no, always, unless-stopped, on-failure
    #[arg(long, value_parser = parse_restart, value_name = "WHEN")]
    restart: Option<Restart>,
    /// Pull the image even if it is there
    #[arg(long)]
    force_pull: bool,
    #[command(flatten)]
    pub(super) registry: RegistryArgs,
}

/// What a container may use at most.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct ResourceArgs {
    /// Memory at most: 512m, 1.5g
    #[arg(short = 'm', long, value_parser = parse_size, value_name = "SIZE")]
    memory: Option<u64>,
    /// Memory and swap together at most; -1 for unlimited swap
    #[arg(long, value_parser = parse_swap, value_name = "SIZE", allow_hyphen_values = true)]
    memory_swap: Option<i64>,
    /// Processors at most: 1.5
    #[arg(long, value_parser = parse_cpus, value_name = "NUMBER")]
    cpus: Option<u64>,
    /// The processors it may run on: 0-2,5
    #[arg(long, value_name = "CPUS")]
    cpuset_cpus: Option<String>,
}

impl From<ResourceArgs> for Resources {
    fn from(arguments: ResourceArgs) -> Self {
        Self {
            memory: arguments.memory,
            memory_swap: arguments.memory_swap,
            nano_cpus: arguments.cpus,
            cpuset: arguments.cpuset_cpus,
        }
    }
}

fn parse_swap(text: &str) -> Result<i64, String> {
    if text == "-1" {
        return Ok(-1);
    }
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    i64::try_from(bytes).map_err(|error| error.to_string())
}

fn parse_restart(text: &str) -> Result<Restart, String> {
    Ok(match text {
        "no" => Restart::No,
        "always" => Restart::Always,
        "unless-stopped" => Restart::UnlessStopped,
        "on-failure" => Restart::OnFailure,
        _ => return Err("it takes no, always, unless-stopped or on-failure".into()),
    })
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PortArg(Port);

impl FromStr for PortArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{text:?} is no port to forward; it takes 80, 8080:80, 127.0.0.1:8080:80/udp")
        };
        let (rest, protocol) = match text.split_once('/') {
            None | Some((_, "tcp")) => (text.trim_end_matches("/tcp"), Protocol::Tcp),
            Some((rest, "udp")) => (rest, Protocol::Udp),
            Some((rest, "sctp")) => (rest, Protocol::Sctp),
            Some(_) => return Err(wrong()),
        };
        let (outside, container) = rest.rsplit_once(':').unwrap_or(("", rest));
        let (ip, host) = outside.rsplit_once(':').unwrap_or(("", outside));
        let ip = ip.trim_start_matches('[').trim_end_matches(']');
        if !ip.is_empty() && ip.parse::<std::net::IpAddr>().is_err() {
            return Err(wrong());
        }
        let number = |text: &str| text.parse::<u16>().map_err(|_| wrong());
        Ok(Self(Port {
            container: number(container)
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(wrong)?,
            host: if host.is_empty() { 0 } else { number(host)? },
            host_ip: (!ip.is_empty()).then(|| ip.to_owned()),
            protocol,
        }))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct MountArg(Mount);

impl FromStr for MountArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let (source, target, read_only) = match parts[..] {
            [source, target] | [source, target, "rw"] => (source, target, false),
            [source, target, "ro"] => (source, target, true),
            _ => ("", "", false),
        };
        if source.is_empty() || !target.starts_with('/') {
            return Err(format!(
                "{text:?} is no mount; it takes VOLUME:/target, /source:/target, and :ro behind it"
            ));
        }
        let kind = match source.starts_with('/') {
            true => MountKind::Bind,
            false if source.contains('/') => {
                return Err(format!("{source:?} is no absolute path on the machine"));
            }
            false => MountKind::Volume,
        };
        Ok(Self(Mount {
            kind,
            source: source.to_owned(),
            target: target.to_owned(),
            read_only,
        }))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct GpusArg(Gpus);

impl FromStr for GpusArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let gpus = |count, device_ids| Ok(Self(Gpus { count, device_ids }));
        if text == "all" {
            return gpus(-1, vec![]);
        }
        // Docker has quotes around lists, for its own reader of them.
        if let Some(ids) = text.trim_matches('"').strip_prefix("device=") {
            let ids: Vec<_> = ids.split(',').map(str::to_owned).collect();
            if ids.iter().all(|id| !id.is_empty()) {
                return gpus(0, ids);
            }
        }
        match text.parse() {
            Ok(count @ 1..) => gpus(count, vec![]),
            _ => Err(format!("{text:?}: it takes all, a number, or device=ID,ID")),
        }
    }
}

impl SpecArgs {
    /// The container that the options describe. `spare` is a name for one without.
    pub(super) fn create(
        self,
        image: String,
        command: Vec<String>,
        registry: Option<Credentials>,
        spare: impl FnOnce() -> String,
        here: impl Fn(&str) -> Option<String>,
    ) -> Result<Create, NoVariable> {
        let variable = |given: &String| {
            parse_variable(given, &here).map(|(name, value)| Variable { name, value })
        };
        let label =
            |label: &String| parse_pair(label).unwrap_or_else(|_| (label.clone(), String::new()));
        let is_mode = |name: &str| {
            matches!(name, "bridge" | "host" | "none" | "default") || name.starts_with("container:")
        };
        let (network_mode, network) = match self.network {
            Some(mode) if is_mode(&mode) => (Some(mode), None),
            network => (None, network),
        };
        Ok(Create {
            name: self.name.unwrap_or_else(spare),
            image,
            command: (!command.is_empty()).then_some(command),
            entrypoint: self.entrypoint.map(|program| {
                // None, where the image's own is not wanted either.
                Some(program)
                    .filter(|program| !program.is_empty())
                    .into_iter()
                    .collect()
            }),
            env: self.env.iter().map(variable).collect::<Result<_, _>>()?,
            working_dir: self.workdir,
            user: self.user,
            hostname: self.hostname,
            tty: self.tty,
            open_stdin: self.interactive,
            labels: self.labels.iter().map(label).collect(),
            ports: self.ports.into_iter().map(|port| port.0).collect(),
            resources: self.resources.into(),
            gpus: self.gpus.map(|gpus| gpus.0),
            shm_size: self.shm_size,
            mounts: self.mounts.into_iter().map(|mount| mount.0).collect(),
            dns: self.dns,
            network: network.map(|name| Attachment {
                name,
                aliases: self.network_alias,
            }),
            network_mode,
            cap_add: self.cap_add,
            privileged: self.privileged,
            restart: self.restart,
            registry,
            force_pull: self.force_pull,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        spec: SpecArgs,
    }

    fn create(line: &str) -> Create {
        let arguments = std::iter::once("hub").chain(line.split_whitespace());
        let spec = Line::try_parse_from(arguments).unwrap().spec;
        let here = |name: &str| (name == "HERE").then(|| "x".to_owned());
        let command = vec!["run".to_owned()];
        spec.create("img".into(), command, None, || "spare".into(), here)
            .unwrap()
    }

    #[test]
    fn nothing_said_is_nothing_asked() {
        let expected = Create {
            name: "spare".into(),
            image: "img".into(),
            command: Some(vec!["run".into()]),
            ..Create::default()
        };
        assert_eq!(create(""), expected);
    }

    #[test]
    fn options_become_a_specification() {
        let made = create(
            "--name web -e A=1 -e HERE -l a=b -l c -p 80 -p 127.0.0.1:8080:80/udp -p [::1]::9 \
             -v data:/data -v /srv:/srv:ro --entrypoint sh -w /w -u 1:2 --hostname h -it -m 512m \
             --memory-swap -1 --cpus 1.5 --cpuset-cpus 0-1 --gpus device=a,b --shm-size 1g \
             --dns 9.9.9.9 --network back --network-alias db --cap-add NET_ADMIN --privileged \
             --restart unless-stopped --force-pull",
        );
        let variable = |name: &str, value: &str| Variable {
            name: name.into(),
            value: value.into(),
        };
        let port = |container, host, ip: Option<&str>, protocol| Port {
            container,
            host,
            host_ip: ip.map(str::to_owned),
            protocol,
        };
        let mount = |kind, source: &str, target: &str, read_only| Mount {
            kind,
            source: source.into(),
            target: target.into(),
            read_only,
        };
        let expected = Create {
            name: "web".into(),
            image: "img".into(),
            command: Some(vec!["run".into()]),
            entrypoint: Some(vec!["sh".into()]),
            env: vec![variable("A", "1"), variable("HERE", "x")],
            working_dir: Some("/w".into()),
            user: Some("1:2".into()),
            hostname: Some("h".into()),
            tty: true,
            open_stdin: true,
            labels: [("a", "b"), ("c", "")]
                .map(|(k, v)| (k.into(), v.into()))
                .into(),
            ports: vec![
                port(80, 0, None, Protocol::Tcp),
                port(80, 8080, Some("127.0.0.1"), Protocol::Udp),
                port(9, 0, Some("::1"), Protocol::Tcp),
            ],
            resources: Resources {
                memory: Some(512 << 20),
                memory_swap: Some(-1),
                nano_cpus: Some(1_500_000_000),
                cpuset: Some("0-1".into()),
            },
            gpus: Some(Gpus {
                count: 0,
                device_ids: vec!["a".into(), "b".into()],
            }),
            shm_size: Some(1 << 30),
            mounts: vec![
                mount(MountKind::Volume, "data", "/data", false),
                mount(MountKind::Bind, "/srv", "/srv", true),
            ],
            dns: vec!["9.9.9.9".into()],
            network: Some(Attachment {
                name: "back".into(),
                aliases: vec!["db".into()],
            }),
            network_mode: None,
            cap_add: vec!["NET_ADMIN".into()],
            privileged: true,
            restart: Some(Restart::UnlessStopped),
            registry: None,
            force_pull: true,
        };
        assert_eq!(made, expected);
        let made = create("--network host --entrypoint= --gpus all");
        assert_eq!(made.network_mode.as_deref(), Some("host"));
        assert_eq!((made.network, made.entrypoint), (None, Some(vec![])));
        assert_eq!(made.gpus.map(|gpus| gpus.count), Some(-1));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for wrong in [
            "",
            "x",
            "0",
            "80/http",
            "x:80",
            "1:2:3",
            "70000",
            "host:80:80",
            "1.2.3.4:80:",
        ] {
            assert!(wrong.parse::<PortArg>().is_err(), "{wrong}");
        }
        for wrong in ["", "/data", "a:b", ":/b", "a/b:/c", "a:/b:x", "a:/b:ro:z"] {
            assert!(wrong.parse::<MountArg>().is_err(), "{wrong}");
        }
        for wrong in ["", "0", "-1", "device=", "device=a,", "some"] {
            assert!(wrong.parse::<GpusArg>().is_err(), "{wrong}");
        }
        assert!(parse_swap("-2").is_err() && parse_restart("never").is_err());
    }
}
