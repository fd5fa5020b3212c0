//! A container's specification in the daemon's words. Pure: what no container can have is refused
//! here, by the name of its field.

use std::collections::HashMap;
use std::net::IpAddr;

use bollard::models::{
    ContainerCreateBody, DeviceRequest, EndpointSettings, HostConfig, Mount, MountType,
    NetworkingConfig, PortBinding, PortMap, RestartPolicy, RestartPolicyNameEnum,
};
use hub_protocol::kind::call::container::{
    self, Create, Gpus, MountKind, Port, Resources, Restart,
};
use hub_protocol::kind::{Failure, FailureCode};

use super::super::names;

/// A field holds what no container can have.
pub(super) fn invalid(field: &str, why: &str) -> Failure {
    Failure::new(FailureCode::INVALID, format!("{field}: {why}"))
}

/// The specification in the daemon's words.
///
/// # Errors
/// A field holds what no container can have; the failure names it.
pub(super) fn body(spec: &Create) -> Result<ContainerCreateBody, Failure> {
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
pub(in crate::engine) fn signed(field: &str, number: u64) -> Result<i64, Failure> {
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
mod tests;
