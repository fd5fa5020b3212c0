//! Creating a container: the specification in the daemon's words, and the two steps in which it is
//! made.
//!
//! ```text
//! container_prepare   check, pull the image if need be      can be given up at any point
//! container_create    the one request that makes it         must be seen through
//! container_undo      removes what was made for nobody
//! ```
//!
//! The daemon makes a container though nobody waits for it any more, so whoever asked has to wait
//! for its id, to remove it if need be.

use std::collections::HashMap;
use std::net::IpAddr;

use bollard::models::{
    ContainerCreateBody, DeviceRequest, EndpointSettings, HostConfig, Mount, MountType,
    NetworkingConfig, PortBinding, PortMap, RestartPolicy, RestartPolicyNameEnum,
};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, RemoveContainerOptionsBuilder,
};
use hub_protocol::kind::call::container::{
    self, Create, Created, Gpus, MountKind, Port, Resources, Restart,
};
use hub_protocol::kind::call::image;
use hub_protocol::kind::{Failure, FailureCode};

use super::error::{self, failure};
use super::{Calls, find, names};

/// A container that can be created: its specification is sound, its image is there.
#[derive(Clone)]
pub struct Prepared {
    name: String,
    body: ContainerCreateBody,
}

/// Variables and arguments may be secret.
impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Calls<'_> {
    /// Checks a specification and sees to its image.
    pub async fn container_prepare(&self, call: Create) -> Result<Prepared, Failure> {
        let mut body = body(&call)?;
        let docker = self.engine.docker();
        // A name that is taken is better known before a long pull.
        if find(docker.inspect_container(&call.name, None::<InspectContainerOptions>))
            .await?
            .is_some()
        {
            let taken = format!("there is a container {} already", call.name);
            return Err(Failure::new(FailureCode::CONFLICT, taken));
        }
        let there = match names::image(&call.image) {
            Some(name) if !call.force_pull => find(docker.inspect_image(name)).await?,
            _ => None,
        };
        let image = if let Some(image) = there {
            image
        } else {
            let pull = image::Pull {
                image: call.image.clone(),
                platform: None,
                registry: call.registry,
            };
            self.pull(&pull).await?
        };
        // No arguments at all is what Docker takes for the image's own, unless there is an
        // entrypoint.
        if body.cmd.as_ref().is_some_and(Vec::is_empty) && body.entrypoint.is_none() {
            body.entrypoint = image.config.and_then(|config| config.entrypoint);
        }
        let nothing = |list: &Option<Vec<String>>| list.as_ref().is_some_and(Vec::is_empty);
        if nothing(&body.cmd) && body.entrypoint.as_ref().is_none_or(Vec::is_empty) {
            return Err(invalid(
                "command",
                "it is empty, and there is no entrypoint",
            ));
        }
        Ok(Prepared {
            name: call.name,
            body,
        })
    }

    /// Creates a container. It is made even if nobody waits for this any more: to be seen through,
    /// and undone by [`container_undo`](Self::container_undo) where nobody wants it.
    pub async fn container_create(&self, prepared: Prepared) -> Result<Created, Failure> {
        let Prepared { name, body } = prepared;
        let options = CreateContainerOptionsBuilder::new().name(&name).build();
        let created = self
            .engine
            .patient()
            .create_container(Some(options), body)
            .await
            .map_err(|error| failure(&error))?;
        Ok(Created {
            id: created.id,
            warnings: created.warnings,
        })
    }

    /// Removes a container that was created for nobody, with its volumes.
    pub async fn container_undo(&self, id: &str) -> Result<(), Failure> {
        let options = RemoveContainerOptionsBuilder::new()
            .force(true)
            .v(true)
            .build();
        match self
            .engine
            .docker()
            .remove_container(id, Some(options))
            .await
        {
            Err(error) if error::status(&error) != Some(404) => Err(failure(&error)),
            _ => Ok(()),
        }
    }
}

fn invalid(field: &str, why: &str) -> Failure {
    Failure::new(FailureCode::INVALID, format!("{field}: {why}"))
}

/// The specification in the daemon's words.
///
/// # Errors
/// A field holds what no container can have; the failure names it.
fn body(spec: &Create) -> Result<ContainerCreateBody, Failure> {
    if !names::is_container_name(&spec.name) || spec.name.len() < 2 {
        let why = "a container's name has two characters at least, of A-Z a-z 0-9 _ . -, and \
                   begins with a letter or a digit";
        return Err(invalid("name", why));
    }
    if names::image(&spec.image).is_none() {
        return Err(invalid("image", "no image can have that name"));
    }
    for (field, list) in [("command", &spec.command), ("entrypoint", &spec.entrypoint)] {
        if list.iter().flatten().any(|text| text.contains('\0')) {
            return Err(invalid(field, "an argument holds a NUL"));
        }
    }
    let env = spec.env.iter().enumerate().map(|(at, variable)| {
        let container::Variable { name, value } = variable;
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            let why = "a name without = and NUL, and a value without NUL, are needed";
            return Err(invalid(&format!("env[{at}]"), why));
        }
        Ok(format!("{name}={value}"))
    });
    let env = env.collect::<Result<Vec<_>, _>>()?;
    let (exposed_ports, port_bindings) = ports(&spec.ports)?;
    let (network_mode, endpoints) = network(spec)?;
    let host = HostConfig {
        port_bindings: some(port_bindings),
        device_requests: spec.gpus.as_ref().map(gpus).transpose()?.flatten(),
        shm_size: spec
            .shm_size
            .map(|size| signed("shm_size", size))
            .transpose()?,
        mounts: some(mounts(spec)?),
        dns: some(dns(spec)?),
        network_mode,
        cap_add: some(spec.cap_add.clone()),
        privileged: spec.privileged.then_some(true),
        restart_policy: spec.restart.map(restart),
        ..resources(&spec.resources)?
    };
    Ok(ContainerCreateBody {
        image: Some(spec.image.clone()),
        cmd: spec.command.clone(),
        entrypoint: spec.entrypoint.clone(),
        env: some(env),
        working_dir: spec.working_dir.clone(),
        user: spec.user.clone(),
        hostname: spec.hostname.clone(),
        tty: spec.tty.then_some(true),
        open_stdin: spec.open_stdin.then_some(true),
        labels: some(spec.labels.clone().into_iter().collect()),
        exposed_ports: some(exposed_ports),
        host_config: Some(host),
        networking_config: endpoints.map(|endpoints| NetworkingConfig {
            endpoints_config: Some(endpoints),
        }),
        ..ContainerCreateBody::default()
    })
}

/// A collection, unless it is empty.
fn some<T: Default + PartialEq>(collection: T) -> Option<T> {
    (collection != T::default()).then_some(collection)
}

/// A number as the daemon has it.
pub(super) fn signed(field: &str, number: u64) -> Result<i64, Failure> {
    i64::try_from(number).map_err(|_| invalid(field, "it is too large"))
}

fn address(field: &str, text: &str) -> Result<(), Failure> {
    match text.parse::<IpAddr>() {
        Ok(_) => Ok(()),
        Err(_) => Err(invalid(field, &format!("{text:?} is no IP address"))),
    }
}

/// The ports that are exposed, and where they are bound.
fn ports(ports: &[Port]) -> Result<(Vec<String>, PortMap), Failure> {
    let mut exposed = Vec::new();
    let mut bindings = PortMap::new();
    for (at, port) in ports.iter().enumerate() {
        if port.container == 0 {
            return Err(invalid(
                &format!("ports[{at}].container"),
                "there is no port 0",
            ));
        }
        if let Some(ip) = &port.host_ip {
            address(&format!("ports[{at}].host_ip"), ip)?;
        }
        let name = format!("{}/{}", port.container, port.protocol.name());
        let binding = PortBinding {
            host_ip: port.host_ip.clone(),
            // The daemon takes 0 for any port that is free.
            host_port: Some(port.host.to_string()),
        };
        if !exposed.contains(&name) {
            exposed.push(name.clone());
        }
        bindings
            .entry(name)
            .or_default()
            .get_or_insert_default()
            .push(binding);
    }
    Ok((exposed, bindings))
}

/// Of create; an update has rules of its own.
fn resources(resources: &Resources) -> Result<HostConfig, Failure> {
    let number = |field, number: Option<u64>| number.map(|n| signed(field, n)).transpose();
    Ok(HostConfig {
        memory: number("resources.memory", resources.memory)?,
        memory_swap: resources.memory_swap,
        nano_cpus: number("resources.nano_cpus", resources.nano_cpus)?,
        cpuset_cpus: resources.cpuset.clone(),
        ..HostConfig::default()
    })
}

/// The request for graphics processors; none where none are wanted.
fn gpus(gpus: &Gpus) -> Result<Option<Vec<DeviceRequest>>, Failure> {
    let by_id = !gpus.device_ids.is_empty();
    match gpus.count {
        0 if !by_id => return Ok(None),
        ..=-2 if !by_id => return Err(invalid("gpus.count", "a number, or -1 for all, is needed")),
        _ => {}
    }
    Ok(Some(vec![DeviceRequest {
        // The daemon refuses both together.
        count: (!by_id).then_some(gpus.count),
        device_ids: by_id.then(|| gpus.device_ids.clone()),
        capabilities: Some(vec![vec!["gpu".into()]]),
        ..DeviceRequest::default()
    }]))
}

fn mounts(spec: &Create) -> Result<Vec<Mount>, Failure> {
    let mount = |(at, mount): (usize, &container::Mount)| {
        let field = |name: &str| format!("mounts[{at}].{name}");
        if !mount.target.starts_with('/') {
            return Err(invalid(&field("target"), "an absolute path is needed"));
        }
        let typ = match mount.kind {
            MountKind::Bind if !mount.source.starts_with('/') => {
                return Err(invalid(&field("source"), "an absolute path is needed"));
            }
            MountKind::Volume if names::part(&mount.source).is_none() => {
                return Err(invalid(&field("source"), "a volume's name is needed"));
            }
            MountKind::Bind => MountType::BIND,
            MountKind::Volume => MountType::VOLUME,
        };
        Ok(Mount {
            target: Some(mount.target.clone()),
            source: Some(mount.source.clone()),
            typ: Some(typ),
            read_only: mount.read_only.then_some(true),
            ..Mount::default()
        })
    };
    spec.mounts.iter().enumerate().map(mount).collect()
}

fn dns(spec: &Create) -> Result<Vec<String>, Failure> {
    for (at, server) in spec.dns.iter().enumerate() {
        address(&format!("dns[{at}]"), server)?;
    }
    Ok(spec.dns.clone())
}

/// The network mode, and the endpoints.
#[expect(clippy::type_complexity, reason = "the daemon's own words")]
fn network(
    spec: &Create,
) -> Result<(Option<String>, Option<HashMap<String, EndpointSettings>>), Failure> {
    let Some(network) = &spec.network else {
        return Ok((spec.network_mode.clone(), None));
    };
    if network.name.is_empty() {
        return Err(invalid("network.name", "a network's name is needed"));
    }
    // It becomes the mode, where that would mean the network of another container.
    if network.name.starts_with("container:") {
        let why = "another container's network is a network_mode, and no network to attach it to";
        return Err(invalid("network.name", why));
    }
    if spec
        .network_mode
        .as_ref()
        .is_some_and(|mode| *mode != network.name)
    {
        let why = "not together with a network of another name";
        return Err(invalid("network_mode", why));
    }
    let settings = EndpointSettings {
        aliases: some(network.aliases.clone()),
        ..EndpointSettings::default()
    };
    let endpoints = HashMap::from([(network.name.clone(), settings)]);
    Ok((Some(network.name.clone()), Some(endpoints)))
}

fn restart(restart: Restart) -> RestartPolicy {
    RestartPolicy {
        name: Some(match restart {
            Restart::No => RestartPolicyNameEnum::NO,
            Restart::Always => RestartPolicyNameEnum::ALWAYS,
            Restart::UnlessStopped => RestartPolicyNameEnum::UNLESS_STOPPED,
            Restart::OnFailure => RestartPolicyNameEnum::ON_FAILURE,
        }),
        maximum_retry_count: None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use hub_protocol::kind::call::container::{Attachment, Protocol, Variable};
    use serde_json::json;

    use super::*;

    fn spec() -> Create {
        Create {
            name: "web".into(),
            image: "busybox".into(),
            ..Create::default()
        }
    }

    fn port(container: u16, host: u16, host_ip: Option<&str>, protocol: Protocol) -> Port {
        Port {
            container,
            host,
            host_ip: host_ip.map(Into::into),
            protocol,
        }
    }

    fn mount(kind: MountKind, source: &str, target: &str, read_only: bool) -> container::Mount {
        container::Mount {
            kind,
            source: source.into(),
            target: target.into(),
            read_only,
        }
    }

    #[test]
    fn what_is_not_said_is_left_to_the_daemon() {
        assert_eq!(
            serde_json::to_value(body(&spec()).unwrap()).unwrap(),
            json!({"Image": "busybox", "HostConfig": {}})
        );
    }

    #[test]
    fn all_that_is_said_reaches_the_daemon() {
        let full = Create {
            name: "web".into(),
            image: "busybox:1".into(),
            command: Some(vec!["-c".into(), "true".into()]),
            entrypoint: Some(vec![]),
            env: vec![Variable {
                name: "A".into(),
                value: "1=2".into(),
            }],
            working_dir: Some("/w".into()),
            user: Some("1:2".into()),
            hostname: Some("h".into()),
            tty: true,
            open_stdin: true,
            labels: [("k".to_owned(), "v".to_owned())].into(),
            ports: vec![
                port(80, 0, None, Protocol::Tcp),
                port(80, 8080, Some("127.0.0.1"), Protocol::Tcp),
                port(53, 5353, Some("::1"), Protocol::Udp),
            ],
            resources: Resources {
                memory: Some(64 << 20),
                memory_swap: Some(-1),
                nano_cpus: Some(1_500_000_000),
                cpuset: Some("0-1".into()),
            },
            gpus: Some(Gpus {
                count: -1,
                device_ids: vec![],
            }),
            shm_size: Some(1 << 20),
            mounts: vec![
                mount(MountKind::Volume, "data", "/data", true),
                mount(MountKind::Bind, "/srv", "/srv", false),
            ],
            dns: vec!["1.1.1.1".into()],
            network: Some(Attachment {
                name: "net".into(),
                aliases: vec!["a".into()],
            }),
            network_mode: Some("net".into()),
            cap_add: vec!["NET_ADMIN".into()],
            privileged: true,
            restart: Some(Restart::OnFailure),
            registry: None,
            force_pull: false,
        };
        assert_eq!(
            serde_json::to_value(body(&full).unwrap()).unwrap(),
            json!({
                "Image": "busybox:1",
                "Cmd": ["-c", "true"],
                "Entrypoint": [],
                "Env": ["A=1=2"],
                "WorkingDir": "/w",
                "User": "1:2",
                "Hostname": "h",
                "Tty": true,
                "OpenStdin": true,
                "Labels": {"k": "v"},
                "ExposedPorts": {"80/tcp": {}, "53/udp": {}},
                "HostConfig": {
                    "PortBindings": {
                        "80/tcp": [
                            {"HostPort": "0"},
                            {"HostIp": "127.0.0.1", "HostPort": "8080"},
                        ],
                        "53/udp": [{"HostIp": "::1", "HostPort": "5353"}],
                    },
                    "Memory": 64 << 20,
                    "MemorySwap": -1,
                    "NanoCpus": 1_500_000_000,
                    "CpusetCpus": "0-1",
                    "DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}],
                    "ShmSize": 1 << 20,
                    "Mounts": [
                        {"Type": "volume", "Source": "data", "Target": "/data", "ReadOnly": true},
                        {"Type": "bind", "Source": "/srv", "Target": "/srv"},
                    ],
                    "Dns": ["1.1.1.1"],
                    "NetworkMode": "net",
                    "CapAdd": ["NET_ADMIN"],
                    "Privileged": true,
                    "RestartPolicy": {"Name": "on-failure"},
                },
                "NetworkingConfig": {"EndpointsConfig": {"net": {"Aliases": ["a"]}}},
            })
        );
    }

    #[test]
    fn ids_of_graphics_processors_win_over_their_number() {
        let wish = |count, ids: &[&str]| {
            gpus(&Gpus {
                count,
                device_ids: ids.iter().map(ToString::to_string).collect(),
            })
        };
        let one = wish(-1, &["GPU-1"]).unwrap().unwrap().remove(0);
        assert_eq!(
            (one.count, one.device_ids),
            (None, Some(vec!["GPU-1".into()]))
        );
        assert_eq!(wish(2, &[]).unwrap().unwrap()[0].count, Some(2));
        assert_eq!(wish(0, &[]), Ok(None));
        assert_eq!(wish(-2, &[]).unwrap_err().code, FailureCode::INVALID);
    }

    #[test]
    fn what_no_container_can_have_is_refused_by_name() {
        let one = |name: &str, value: &str| Variable {
            name: name.into(),
            value: value.into(),
        };
        let attached = Some(Attachment {
            name: "net".into(),
            aliases: vec![],
        });
        let cases: [(&str, Create); 14] = [
            (
                "name",
                Create {
                    name: String::new(),
                    ..spec()
                },
            ),
            (
                "name",
                Create {
                    name: "../x".into(),
                    ..spec()
                },
            ),
            (
                "image",
                Create {
                    image: "a b".into(),
                    ..spec()
                },
            ),
            (
                "command",
                Create {
                    command: Some(vec!["\0".into()]),
                    ..spec()
                },
            ),
            (
                "env[1]",
                Create {
                    env: vec![one("A", "s3cret"), one("B=", "s3cret")],
                    ..spec()
                },
            ),
            (
                "ports[0].container",
                Create {
                    ports: vec![port(0, 1, None, Protocol::Tcp)],
                    ..spec()
                },
            ),
            (
                "ports[0].host_ip",
                Create {
                    ports: vec![port(1, 1, Some("x"), Protocol::Tcp)],
                    ..spec()
                },
            ),
            (
                "shm_size",
                Create {
                    shm_size: Some(u64::MAX),
                    ..spec()
                },
            ),
            (
                "resources.memory",
                Create {
                    resources: Resources {
                        memory: Some(u64::MAX),
                        ..Resources::default()
                    },
                    ..spec()
                },
            ),
            (
                "mounts[0].source",
                Create {
                    mounts: vec![mount(MountKind::Bind, "x", "/x", false)],
                    ..spec()
                },
            ),
            (
                "mounts[0].target",
                Create {
                    mounts: vec![mount(MountKind::Volume, "x", "x", false)],
                    ..spec()
                },
            ),
            (
                "dns[0]",
                Create {
                    dns: vec!["x".into()],
                    ..spec()
                },
            ),
            (
                "network.name",
                Create {
                    network: Some(Attachment {
                        name: "container:db".into(),
                        aliases: vec![],
                    }),
                    ..spec()
                },
            ),
            (
                "network_mode",
                Create {
                    network: attached,
                    network_mode: Some("host".into()),
                    ..spec()
                },
            ),
        ];
        for (field, spec) in cases {
            let refused = body(&spec).unwrap_err();
            assert_eq!(refused.code, FailureCode::INVALID);
            assert!(
                refused.message.starts_with(&format!("{field}: ")),
                "{refused}"
            );
            assert!(!refused.message.contains("s3cret"), "{refused}");
        }
    }
}
