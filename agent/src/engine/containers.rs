//! Calls about containers that exist.

use std::collections::{BTreeMap, HashMap};

use bollard::models::{
    ContainerInspectResponse, ContainerState, ContainerSummary, EndpointSettings, HostConfig,
    MountPoint as DockerMount, PortMap, PortSummary,
};
use bollard::query_parameters::{
    InspectContainerOptions, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder,
    WaitContainerOptionsBuilder,
};
use futures_util::StreamExt as _;
use http::StatusCode;
use hub_protocol::kind::call::Change;
use hub_protocol::kind::call::container::{
    Container, Endpoint, ExitState, Inspect, List, MountPoint, Port, Protocol, Remove, Resources,
    Start, State, Stop, Summary, Update,
};
use hub_protocol::kind::{Failure, FailureCode};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::create::signed;
use super::error::{self, failure};
use super::time::is_never;
use super::{Calls, LOOK_TIMEOUT, find, look, names};

impl Calls<'_> {
    /// Starts a container. One that runs is unchanged.
    pub async fn container_start(&self, call: Start) -> Result<Change, Failure> {
        match names::container(&call.container) {
            Some(name) => self.change(&format!("/containers/{name}/start")).await,
            None => Ok(Change::NotFound),
        }
    }

    /// Stops a container, and waits until it has stopped. One that does not run is unchanged.
    pub async fn container_stop(&self, call: Stop) -> Result<Change, Failure> {
        let Some(name) = names::container(&call.container) else {
            return Ok(Change::NotFound);
        };
        let timeout = call.timeout_s.map(|seconds| format!("?t={seconds}"));
        let timeout = timeout.unwrap_or_default();
        self.change(&format!("/containers/{name}/stop{timeout}"))
            .await
    }

    async fn change(&self, path: &str) -> Result<Change, Failure> {
        match self.engine.post(path, None::<&()>).await {
            Ok((StatusCode::NOT_MODIFIED, _)) => Ok(Change::Unchanged),
            Ok(_) => Ok(Change::Changed),
            Err(error) if error::is_no_container(&error) => Ok(Change::NotFound),
            Err(error) => Err(failure(&error)),
        }
    }

    /// Removes a container.
    pub async fn container_remove(&self, call: Remove) -> Result<Change, Failure> {
        let Some(name) = names::container(&call.container) else {
            return Ok(Change::NotFound);
        };
        let options = RemoveContainerOptionsBuilder::new()
            .force(call.force)
            .v(call.volumes)
            .build();
        match self
            .engine
            .patient()
            .remove_container(name, Some(options))
            .await
        {
            Ok(()) => Ok(Change::Changed),
            Err(error) if error::status(&error) == Some(404) => Ok(Change::NotFound),
            Err(error) if error::words(&error).contains("already in progress") => {
                // Somebody else removes it: it will not be there for this caller either.
                let options = WaitContainerOptionsBuilder::new()
                    .condition("removed")
                    .build();
                let docker = self.engine.docker();
                let mut gone = docker.wait_container(name, Some(options));
                match timeout(LOOK_TIMEOUT, gone.next()).await {
                    Ok(_) => Ok(Change::NotFound),
                    Err(_) => Err(failure(&error).retry()),
                }
            }
            Err(error) => Err(failure(&error)),
        }
    }

    /// Changes what a container may use.
    pub async fn container_update(&self, call: Update) -> Result<Change, Failure> {
        let Some(found) = self.inspect(&call.container).await? else {
            return Ok(Change::NotFound);
        };
        let now = found.host_config.unwrap_or_default();
        let Some(limits) = limits(&call.resources, &now)? else {
            return Ok(Change::Unchanged);
        };
        let path = format!("/containers/{}/update", found.id.unwrap_or_default());
        let answer = match self.engine.post(&path, Some(&limits)).await {
            Ok((_, answer)) => answer,
            Err(error) if error::is_no_container(&error) => return Ok(Change::NotFound),
            Err(error) => return Err(failure(&error)),
        };
        // The daemon only warns of a limit that the kernel can't keep, and discards it.
        let warnings = serde_json::from_slice::<Updated>(&answer).ok();
        let warnings = warnings
            .and_then(|updated| updated.warnings)
            .unwrap_or_default();
        let asked_for_swap = call.resources.memory_swap.is_some();
        let mut serious = warnings
            .into_iter()
            .filter(|warning| asked_for_swap || !warning.contains("swap"));
        match serious.next() {
            Some(warning) => Err(Failure::new(FailureCode::UNSUPPORTED, warning)),
            None => Ok(Change::Changed),
        }
    }

    /// Shows a container.
    pub async fn container_inspect(&self, call: Inspect) -> Result<Option<Container>, Failure> {
        Ok(self.inspect(&call.container).await?.map(container))
    }

    /// Shows whether a container runs, and how it ended.
    pub async fn container_state(&self, call: State) -> Result<Option<ExitState>, Failure> {
        let found = self.inspect(&call.container).await?;
        Ok(found.map(|found| exit_state(&found.state.unwrap_or_default())))
    }

    /// Lists containers, newest first.
    pub async fn container_list(&self, call: List) -> Result<Vec<Summary>, Failure> {
        let label = |(key, value): (String, Option<String>)| match value {
            Some(value) => format!("{key}={value}"),
            None => key,
        };
        let labels: Vec<String> = call.labels.into_iter().map(label).collect();
        let filters = HashMap::from([("label", labels)]);
        let options = ListContainersOptionsBuilder::new()
            .all(call.all)
            .filters(&filters)
            .build();
        let found = look(self.engine.docker().list_containers(Some(options))).await?;
        let prefix = call.prefix.unwrap_or_default();
        let listed = found.into_iter().map(summary);
        Ok(listed.filter(|one| one.name.starts_with(&prefix)).collect())
    }

    /// What the daemon says of a container.
    pub(super) async fn inspect(
        &self,
        container: &str,
    ) -> Result<Option<ContainerInspectResponse>, Failure> {
        let Some(name) = names::container(container) else {
            return Ok(None);
        };
        let docker = self.engine.docker();
        find(docker.inspect_container(name, None::<InspectContainerOptions>)).await
    }
}

/// What the daemon answers to an update.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Updated {
    #[serde(default)]
    warnings: Option<Vec<String>>,
}

/// The limits of an update: what is absent stays.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_swap: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nano_cpus: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpuset_cpus: Option<String>,
}

/// What to send for these wishes, given what holds now; `None` if nothing changes.
///
/// The daemon reads 0 and the empty text as "leave it", so a limit that is there can't be lifted.
/// It refuses memory above the limit of memory and swap together, and that limit without memory.
fn limits(wishes: &Resources, now: &HostConfig) -> Result<Option<Limits>, Failure> {
    let lifted = |field: &str| {
        Failure::new(
            FailureCode::UNSUPPORTED,
            format!(
                "resources.{field}: Docker cannot lift a limit of a container that exists; create \
                 it anew, or set another limit"
            ),
        )
    };
    let number = |field: &str, wish: Option<i64>, now: Option<i64>| match (wish, now.unwrap_or(0)) {
        (None, _) => Ok(None),
        (Some(wish), now) if wish == now => Ok(None),
        (Some(0), _) => Err(lifted(field)),
        (Some(wish), _) => Ok(Some(wish)),
    };
    let unsigned = |field: &str, wish: Option<u64>, now: Option<i64>| {
        let wish = wish.map(|wish| signed(&format!("resources.{field}"), wish));
        number(field, wish.transpose()?, now)
    };
    let mut memory = unsigned("memory", wishes.memory, now.memory)?;
    let mut memory_swap = number("memory_swap", wishes.memory_swap, now.memory_swap)?;
    let nano_cpus = unsigned("nano_cpus", wishes.nano_cpus, now.nano_cpus)?;
    let cpuset_cpus = match (&wishes.cpuset, now.cpuset_cpus.as_deref().unwrap_or("")) {
        (None, _) => None,
        (Some(wish), now) if wish == now => None,
        (Some(wish), _) if wish.is_empty() => return Err(lifted("cpuset")),
        (Some(wish), _) => Some(wish.clone()),
    };
    let (memory_now, swap_now) = (now.memory.unwrap_or(0), now.memory_swap.unwrap_or(0));
    if let (Some(memory), None) = (memory, wishes.memory_swap)
        && swap_now >= 0
        && memory > swap_now
    {
        // As much swap as before. A container that never had a limit says 0, and the daemon takes
        // no limit of memory beside that.
        memory_swap = Some(match swap_now {
            0 => -1,
            _ => memory.saturating_add((swap_now - memory_now).max(0)),
        });
    }
    if memory_swap.is_some_and(|swap| swap > 0) && memory.is_none() && memory_now > 0 {
        memory = Some(memory_now);
    }
    let limits = Limits {
        memory,
        memory_swap,
        nano_cpus,
        cpuset_cpus,
    };
    let nothing = Limits {
        memory: None,
        memory_swap: None,
        nano_cpus: None,
        cpuset_cpus: None,
    };
    Ok((limits != nothing).then_some(limits))
}

pub(super) fn sorted(map: Option<HashMap<String, String>>) -> BTreeMap<String, String> {
    map.into_iter().flatten().collect()
}

fn exit_state(state: &ContainerState) -> ExitState {
    let running = state.running.unwrap_or(false);
    let started = state.started_at.as_deref().is_some_and(|at| !is_never(at));
    ExitState {
        running,
        oom_killed: state.oom_killed.unwrap_or(false),
        exit_code: state.exit_code.filter(|_| started && !running),
    }
}

fn container(found: ContainerInspectResponse) -> Container {
    let state = found.state.unwrap_or_default();
    let config = found.config.unwrap_or_default();
    let host = found.host_config.unwrap_or_default();
    let settings = found.network_settings.unwrap_or_default();
    let exit = exit_state(&state);
    let id = found.id.unwrap_or_default();
    let time = |time: Option<String>| time.filter(|time| !is_never(time));
    // What is bound is known while it runs; else, what will be.
    let ports = if exit.running {
        settings.ports
    } else {
        host.port_bindings.clone()
    };
    let health = state.health.and_then(|health| health.status);
    let health = health.map(|status| status.to_string());
    let mut command: Vec<_> = found.path.into_iter().collect();
    command.extend(found.args.into_iter().flatten());
    let variable = |variable: String| match variable.split_once('=') {
        Some((name, _)) => name.to_owned(),
        None => variable,
    };
    let networks = settings.networks.into_iter().flatten();
    Container {
        name: names::bare(&found.name.unwrap_or_default()).to_owned(),
        image: config.image.unwrap_or_default(),
        image_id: found.image.unwrap_or_default(),
        created: found.created.unwrap_or_default(),
        started: time(state.started_at),
        finished: time(state.finished_at),
        state: state
            .status
            .map(|status| status.to_string())
            .unwrap_or_default(),
        health: health.filter(|status| !matches!(&**status, "" | "none")),
        pid: state.pid.filter(|pid| *pid != 0),
        command,
        env: config.env.into_iter().flatten().map(variable).collect(),
        labels: sorted(config.labels),
        ports: ports.map(bound).unwrap_or_default(),
        mounts: found.mounts.into_iter().flatten().map(mount).collect(),
        networks: networks
            .map(|(name, settings)| (name, endpoint(settings, &id)))
            .collect(),
        resources: Resources {
            memory: host
                .memory
                .and_then(|bytes| u64::try_from(bytes).ok())
                .filter(|n| *n != 0),
            memory_swap: host.memory_swap.filter(|bytes| *bytes != 0),
            nano_cpus: host
                .nano_cpus
                .and_then(|cpus| u64::try_from(cpus).ok())
                .filter(|n| *n != 0),
            cpuset: host.cpuset_cpus.filter(|cpus| !cpus.is_empty()),
        },
        tty: config.tty.unwrap_or(false),
        restarts: found.restart_count.unwrap_or(0),
        exit,
        id,
    }
}

fn protocol(name: &str) -> Protocol {
    match name {
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        _ => Protocol::Tcp,
    }
}

/// Ports as the daemon maps them: `80/tcp` to where it is bound.
fn bound(map: PortMap) -> Vec<Port> {
    let mut ports: Vec<_> = map
        .into_iter()
        .flat_map(|(inner, bindings)| {
            let (port, name) = inner.split_once('/').unwrap_or((&inner, "tcp"));
            let (port, protocol) = (port.parse().unwrap_or(0), protocol(name));
            let bindings = bindings.into_iter().flatten();
            bindings.map(move |binding| Port {
                container: port,
                host: binding
                    .host_port
                    .and_then(|port| port.parse().ok())
                    .unwrap_or(0),
                host_ip: binding.host_ip.filter(|ip| !ip.is_empty()),
                protocol,
            })
        })
        .collect();
    sort(&mut ports);
    ports
}

fn sort(ports: &mut [Port]) {
    let key = |port: &Port| {
        (
            port.container,
            port.protocol.name(),
            port.host,
            port.host_ip.clone(),
        )
    };
    ports.sort_by_key(key);
}

fn mount(mount: DockerMount) -> MountPoint {
    let kind = mount.typ.unwrap_or_default();
    let source = match mount.name {
        Some(name) if kind == "volume" => name,
        _ => mount.source.unwrap_or_default(),
    };
    MountPoint {
        kind,
        source,
        target: mount.destination.unwrap_or_default(),
        read_only: mount.rw == Some(false),
    }
}

fn endpoint(settings: EndpointSettings, id: &str) -> Endpoint {
    let mut aliases = settings.aliases.unwrap_or_default();
    // Older daemons give it the beginning of its id as a further name by themselves.
    aliases.retain(|alias| !(alias.len() == 12 && id.starts_with(alias)));
    Endpoint {
        ip: settings.ip_address.unwrap_or_default(),
        aliases,
    }
}

fn summary(found: ContainerSummary) -> Summary {
    let forwarded = |port: PortSummary| {
        Some(Port {
            container: port.private_port,
            host: port.public_port?,
            host_ip: port.ip.filter(|ip| !ip.is_empty()),
            protocol: protocol(port.typ?.as_ref()),
        })
    };
    let mut ports: Vec<_> = found
        .ports
        .into_iter()
        .flatten()
        .filter_map(forwarded)
        .collect();
    sort(&mut ports);
    Summary {
        id: found.id.unwrap_or_default(),
        name: names::own(&found.names.unwrap_or_default())
            .unwrap_or_default()
            .to_owned(),
        image: found.image.unwrap_or_default(),
        state: found
            .state
            .map(|state| state.to_string())
            .unwrap_or_default(),
        status: found.status.unwrap_or_default(),
        created_s: found.created.unwrap_or(0),
        labels: sorted(found.labels),
        ports,
    }
}

#[cfg(test)]
mod unit_tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const MIB: i64 = 1 << 20;

    fn now(memory: i64, memory_swap: i64) -> HostConfig {
        HostConfig {
            memory: Some(memory * MIB),
            memory_swap: Some(if memory_swap < 0 {
                -1
            } else {
                memory_swap * MIB
            }),
            nano_cpus: Some(500),
            cpuset_cpus: Some("0".into()),
            ..HostConfig::default()
        }
    }

    fn memory(mib: i64) -> Resources {
        Resources {
            memory: Some((mib * MIB).cast_unsigned()),
            ..Resources::default()
        }
    }

    #[test]
    fn memory_alone_takes_the_swap_limit_along_where_it_must() {
        for (wish, now, expected) in [
            // Above memory and swap together: as much swap as before.
            (300, now(100, 200), Some((Some(300), Some(400)))),
            (300, now(100, 100), Some((Some(300), Some(300)))),
            // Within it, or where it has none, nothing moves.
            (150, now(100, 200), Some((Some(150), None))),
            (300, now(100, -1), Some((Some(300), None))),
            // Without any limit swap stays without one, which has to be said.
            (300, now(0, 0), Some((Some(300), Some(-1)))),
            (100, now(100, 200), None),
        ] {
            let limits = limits(&memory(wish), &now).unwrap();
            let mib = |bytes: Option<i64>| bytes.map(|bytes| bytes.div_euclid(MIB));
            let found = limits.map(|limits| (mib(limits.memory), mib(limits.memory_swap)));
            assert_eq!(found, expected, "{wish} {now:?}");
        }
        let both = Resources {
            memory_swap: Some(300 * MIB),
            ..memory(300)
        };
        let sent = limits(&both, &now(100, 200)).unwrap().unwrap();
        assert_eq!(
            (sent.memory, sent.memory_swap),
            (Some(300 * MIB), Some(300 * MIB))
        );
        // The daemon wants to be told memory with it.
        let swap = Resources {
            memory_swap: Some(300 * MIB),
            ..Resources::default()
        };
        let sent = limits(&swap, &now(100, 200)).unwrap().unwrap();
        assert_eq!(
            (sent.memory, sent.memory_swap),
            (Some(100 * MIB), Some(300 * MIB))
        );
    }

    #[test]
    fn a_limit_that_cannot_be_lifted_is_not_passed_over() {
        let none = Resources::default();
        assert_eq!(limits(&none, &now(100, 200)).unwrap(), None);
        for (field, wishes) in [
            ("memory", memory(0)),
            (
                "memory_swap",
                Resources {
                    memory_swap: Some(0),
                    ..none.clone()
                },
            ),
            (
                "nano_cpus",
                Resources {
                    nano_cpus: Some(0),
                    ..none.clone()
                },
            ),
            (
                "cpuset",
                Resources {
                    cpuset: Some(String::new()),
                    ..none.clone()
                },
            ),
        ] {
            let refused = limits(&wishes, &now(100, 200)).unwrap_err();
            assert_eq!(refused.code, FailureCode::UNSUPPORTED);
            assert!(
                refused.message.contains(&format!("resources.{field}:")),
                "{refused}"
            );
            assert_eq!(
                limits(&wishes, &HostConfig::default()).unwrap(),
                None,
                "{field}"
            );
        }
        let most = Resources {
            memory: Some(u64::MAX),
            ..none
        };
        assert_eq!(
            limits(&most, &now(1, 2)).unwrap_err().code,
            FailureCode::INVALID
        );
    }

    #[test]
    fn a_code_is_there_once_it_ran_and_has_ended() {
        let state = |running, started: &str| {
            exit_state(&ContainerState {
                running: Some(running),
                exit_code: Some(3),
                started_at: Some(started.into()),
                ..ContainerState::default()
            })
            .exit_code
        };
        assert_eq!(state(false, "2024-01-01T00:00:00Z"), Some(3));
        assert_eq!(state(true, "2024-01-01T00:00:00Z"), None);
        assert_eq!(state(false, "0001-01-01T00:00:00Z"), None);
    }
}
