//! Where a target is, by what the daemon says of its container. Pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use bollard::models::{ContainerInspectResponse, ContainerState, PortBinding};
use hub_protocol::kind::{Failure, FailureCode};
use hub_protocol::target::{Selector, Target, Transport};

use crate::policy::name_of;

/// Something to connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// A port of the machine itself, at its loopback addresses.
    Machine(u16),
    /// An address that the machine reaches: of a container, or one that a port is published on.
    At(SocketAddr),
}

/// Where a target was when it was looked up. A connection that is kept is good for the same place
/// only: an address may be another container's by then.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Which run of which container.
    run: Option<Run>,
    /// What to connect to, the first that takes the connection; there is one at least.
    addresses: Vec<Address>,
}

/// One run of a container: its id, and when it was started.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    id: String,
    started: String,
}

impl Place {
    /// A port of the machine.
    pub fn machine(port: u16) -> Self {
        Self {
            run: None,
            addresses: vec![Address::Machine(port)],
        }
    }

    /// What to connect to: one after the other, until one takes the connection.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Where the port of a container that runs is. `network` is the container whose network it
    /// uses: itself, mostly.
    ///
    /// # Errors
    /// The container has neither an address nor published the port.
    pub(super) fn of(
        container: &ContainerInspectResponse,
        network: &ContainerInspectResponse,
        target: &Target,
    ) -> Result<Self, Failure> {
        let addresses = if matches!(Network::of(network), Network::Machine) {
            vec![Address::Machine(target.port)]
        } else {
            addresses(network, target)
        };
        if addresses.is_empty() {
            let name = name_of(container);
            let port = target.port;
            let message = format!(
                "{target} can't be reached: container {name} has no address; attach it to a \
                 network with `hub network connect`, or create it anew with port {port} published"
            );
            return Err(Failure::new(FailureCode::TARGET_REFUSED, message));
        }
        let state = container.state.as_ref();
        let started = state.and_then(|state| state.started_at.clone());
        let run = Run {
            id: container.id.clone().unwrap_or_default(),
            started: started.unwrap_or_default(),
        };
        Ok(Self {
            run: Some(run),
            addresses,
        })
    }
}

/// Whose network a container uses.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Network<'a> {
    /// The machine's.
    Machine,
    /// That of the container of this name or id.
    Container(&'a str),
    /// Its own.
    Own,
}

impl<'a> Network<'a> {
    pub(super) fn of(container: &'a ContainerInspectResponse) -> Self {
        let config = container.host_config.as_ref();
        let mode = config.and_then(|config| config.network_mode.as_deref());
        let settings = container.network_settings.as_ref();
        let networks = settings.and_then(|settings| settings.networks.as_ref());
        let mode = mode.unwrap_or_default();
        match mode.strip_prefix("container:") {
            Some(other) => Self::Container(other),
            None if mode == "host" || networks.is_some_and(|on| on.contains_key("host")) => {
                Self::Machine
            }
            None => Self::Own,
        }
    }
}

/// The addresses of a container in its networks, by the networks' names, IPv4 first; then where the
/// machine forwards the port from: some networks can't be reached from the machine.
fn addresses(container: &ContainerInspectResponse, target: &Target) -> Vec<Address> {
    let Some(settings) = &container.network_settings else {
        return Vec::new();
    };
    let mut networks: Vec<_> = settings.networks.iter().flatten().collect();
    networks.sort_by_key(|(name, _)| *name);
    let own = |ip: &Option<String>| ip.as_ref()?.parse::<IpAddr>().ok();
    let v4 = networks.iter().map(|(_, on)| own(&on.ip_address));
    let v6 = networks.iter().map(|(_, on)| own(&on.global_ipv6_address));
    let own = v4.chain(v6).flatten();
    let own = own.map(|ip| Address::At(SocketAddr::new(ip, target.port)));
    let key = match target.transport {
        Transport::Tcp => format!("{}/tcp", target.port),
        Transport::Udp => format!("{}/udp", target.port),
    };
    let published = settings.ports.as_ref().and_then(|ports| ports.get(&key));
    let published = published.into_iter().flatten().flatten().filter_map(bound);
    let mut seen = BTreeSet::new();
    own.chain(published)
        .filter(|address| seen.insert(*address))
        .collect()
}

/// Where the machine forwards a published port from.
fn bound(binding: &PortBinding) -> Option<Address> {
    let port = binding.host_port.as_ref()?.parse().ok()?;
    match binding.host_ip.as_deref().unwrap_or_default() {
        "" => Some(Address::Machine(port)),
        ip => match ip.parse::<IpAddr>().ok()? {
            ip if ip.is_unspecified() => Some(Address::Machine(port)),
            ip => Some(Address::At(SocketAddr::new(ip, port))),
        },
    }
}

/// Whether a container takes connections.
///
/// # Errors
/// It does not run, or is paused: the kernel would take connections that nobody answers.
pub(super) fn runs(container: &ContainerInspectResponse) -> Result<(), Failure> {
    let name = name_of(container);
    let state = container.state.as_ref();
    let is = |flag: fn(&ContainerState) -> Option<bool>| state.and_then(flag) == Some(true);
    let why = if is(|state| state.paused) {
        format!("container {name} is paused; `docker unpause` on the node lets it go on")
    } else if is(|state| state.restarting) {
        format!("container {name} has ended and is about to be started again; its log says why")
    } else if is(|state| state.running) {
        return Ok(());
    } else {
        format!("container {name} does not run; `hub start` starts it")
    };
    Err(Failure::new(FailureCode::NOT_RUNNING, why).retry())
}

/// There is no such container.
pub(super) fn missing(selector: &Selector) -> Failure {
    // It may be what a peer made up.
    let clipped = |text: &str| text.chars().take(128).collect::<String>();
    let message = match selector {
        Selector::Name(name) => format!("there is no container {:?} on this node", clipped(name)),
        Selector::Label(label) => format!(
            "there is no container labelled {:?} on this node",
            clipped(label)
        ),
    };
    let message = format!("{message}; `hub ps -a` shows those that there are");
    Failure::new(FailureCode::NO_SUCH_CONTAINER, message).retry()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn container(json: &str) -> ContainerInspectResponse {
        serde_json::from_str(json).unwrap()
    }

    fn target(transport: Transport) -> Target {
        Target {
            transport,
            container: Some(Selector::Name("web".into())),
            ..Target::tcp(80)
        }
    }

    fn found(json: &str) -> Result<Vec<Address>, FailureCode> {
        let container = container(json);
        Place::of(&container, &container, &target(Transport::Tcp))
            .map(|place| place.addresses)
            .map_err(|failure| failure.code)
    }

    fn at(text: &str) -> Address {
        Address::At(text.parse().unwrap())
    }

    #[test]
    fn a_container_is_at_its_addresses_then_where_it_is_published() {
        let both = r#"{"NetworkSettings": {
            "Networks": {
                "b": {"IPAddress": "172.18.0.2", "GlobalIPv6Address": "fd00::2"},
                "a": {"IPAddress": "172.17.0.2", "GlobalIPv6Address": ""},
                "c": {"IPAddress": "172.17.0.2"},
                "d": {"IPAddress": "nonsense"}
            },
            "Ports": {
                "80/tcp": [
                    {"HostIp": "0.0.0.0", "HostPort": "8080"},
                    {"HostIp": "::", "HostPort": "8080"},
                    {"HostIp": "192.0.2.1", "HostPort": "81"},
                    {"HostIp": "127.0.0.1", "HostPort": "x"}
                ],
                "80/udp": [{"HostIp": "", "HostPort": "53"}],
                "81/tcp": null
            }}}"#;
        let own = [at("172.17.0.2:80"), at("172.18.0.2:80"), at("[fd00::2]:80")];
        let tcp = [Address::Machine(8080), at("192.0.2.1:81")];
        assert_eq!(found(both).unwrap(), [&own[..], &tcp].concat());
        let udp = Place::of(&container(both), &container(both), &target(Transport::Udp));
        let expected = [&own[..], &[Address::Machine(53)]].concat();
        assert_eq!(udp.unwrap().addresses, expected);
        // A network of its own that leads nowhere.
        let none = r#"{"NetworkSettings": {"Networks": {"none": {"IPAddress": ""}}}}"#;
        assert_eq!(found(none), Err(FailureCode::TARGET_REFUSED));
        assert_eq!(found("{}"), Err(FailureCode::TARGET_REFUSED));
    }

    #[test]
    fn the_machines_network_is_the_machine() {
        let host = [
            r#"{"HostConfig": {"NetworkMode": "host"}}"#,
            r#"{"NetworkSettings": {"Networks": {"host": {"IPAddress": ""}}}}"#,
        ];
        for json in host {
            assert_eq!(found(json).unwrap(), [Address::Machine(80)]);
        }
        let joined = container(r#"{"HostConfig": {"NetworkMode": "container:abc"}}"#);
        assert_eq!(Network::of(&joined), Network::Container("abc"));
        let place = Place::of(&joined, &container(host[0]), &target(Transport::Tcp));
        assert_eq!(place.unwrap().addresses, [Address::Machine(80)]);
    }

    #[test]
    fn another_run_is_another_place() {
        let run = |id: &str, started: &str| {
            let container = container(&format!(
                r#"{{"Id": "{id}", "State": {{"StartedAt": "{started}"}},
                    "NetworkSettings": {{"Networks": {{"a": {{"IPAddress": "172.17.0.2"}}}}}}}}"#
            ));
            Place::of(&container, &container, &target(Transport::Tcp)).unwrap()
        };
        assert_eq!(run("a", "1"), run("a", "1"));
        assert_ne!(run("a", "1"), run("a", "2"));
        assert_ne!(run("a", "1"), run("b", "1"));
    }

    #[test]
    fn only_what_runs_takes_connections() {
        for (state, words) in [
            (r#"{"Running": true}"#, None),
            (r#"{"Running": true, "Paused": true}"#, Some("paused")),
            (
                r#"{"Running": true, "Restarting": true}"#,
                Some("started again"),
            ),
            (r#"{"Running": false}"#, Some("hub start")),
        ] {
            let runs = runs(&container(&format!(r#"{{"State": {state}}}"#)));
            match words {
                None => assert_eq!(runs, Ok(())),
                Some(words) => {
                    let failure = runs.unwrap_err();
                    assert_eq!(failure.code, FailureCode::NOT_RUNNING);
                    assert!(failure.message.contains(words), "{failure}");
                }
            }
        }
        assert!(runs(&container("{}")).is_err());
    }
}
