//! What this node lets the hub do, whoever asks: the agent's own policy.
//!
//! ```text
//! the node's file --Rules--> Policy --------------------+
//!                                                       v
//! Open of an operation --> Guard::admit: may it? --> the operation, with ids for names
//!                              |    ^
//!                              v    | what the container is, where a path leads
//!                          the daemon, the file system
//! ```
//!
//! The rules come from the configuration of the agent and from nowhere else: nothing that the hub
//! sends reaches a [`Policy`] but to be judged by it. The judgement is pure: it takes the request
//! and the facts that it needs ([`Subject`], [`Peer`], the canonical form of paths), so that it can
//! be tested for every request there is. [`Guard`] finds the facts out, and passes on what was
//! judged: the container's id in place of its name, the canonical path in place of the given one.

mod bind;
mod guard;
mod pattern;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use hub_protocol::kind::call::METHODS;
use hub_protocol::kind::call::container::{Create, Mount, MountKind};
use hub_protocol::kind::{Failure, FailureCode, OperationKind};
use hub_protocol::target::{Grant, Target, Transport};

pub use guard::Guard;
pub(crate) use guard::{labels_of, name_of};
pub use pattern::Pattern;
pub use rules::{PolicyError, Ports, Rules, Source};

/// Something that the policy forbids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The key that would have to change.
    pub rule: &'static str,
    /// What is forbidden.
    pub what: String,
}

impl Refusal {
    fn new(rule: &'static str, what: impl Into<String>) -> Self {
        let what = what.into();
        Self { rule, what }
    }
}

/// A container, as far as rules go.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Its name, without a slash.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
}

/// Whose network a new container is to use, as the daemon says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether that is the machine's own.
    pub on_host: bool,
}

/// The label that a container has to have.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Label {
    key: String,
    /// Any value without.
    value: Option<Pattern>,
}

/// Which containers may be seen and touched.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Containers {
    names: Vec<Pattern>,
    labels: Vec<Label>,
    /// The key that is named in a refusal.
    rule: &'static str,
}

impl Containers {
    fn matches(&self, subject: Subject<'_>) -> bool {
        let labelled = |label: &Label| {
            subject.labels.get(&label.key).is_some_and(|value| {
                label
                    .value
                    .as_ref()
                    .is_none_or(|pattern| pattern.matches(value))
            })
        };
        self.names.iter().any(|name| name.matches(subject.name)) || self.labels.iter().any(labelled)
    }
}

/// What this node lets the hub do. Does not change once it is made.
#[derive(Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a rule of its own")]
pub struct Policy {
    source: Source,
    operations: Vec<Pattern>,
    containers: Option<Containers>,
    exec: bool,
    host_exec: bool,
    build: bool,
    volumes: bool,
    bind_mounts: Vec<PathBuf>,
    privileged: bool,
    capabilities: Vec<String>,
    host_network: bool,
    container_network: bool,
    gpus: bool,
    ports: Option<Vec<Ports>>,
    forward: bool,
    docker_api: bool,
    /// Everything goes: for tests of operations.
    everything: bool,
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("source", &self.source)
            .field("docker_api", &self.docker_api)
            .finish_non_exhaustive()
    }
}

impl Default for Policy {
    /// That of a node whose file has no rules.
    fn default() -> Self {
        Self::defaults(Source::default())
    }
}

/// What can be asked of a node: kinds of operations and calls. Calls as a kind are none of it: each
/// has a name of its own.
pub fn operations() -> impl Iterator<Item = &'static str> {
    let kinds = OperationKind::ALL.iter().copied();
    let kinds = kinds.filter(|kind| *kind != OperationKind::Call);
    kinds
        .map(OperationKind::name)
        .chain(METHODS.iter().copied())
}

impl Policy {
    fn defaults(source: Source) -> Self {
        Self {
            source,
            operations: vec![Pattern::new("*")],
            containers: None,
            exec: true,
            host_exec: true,
            build: true,
            volumes: true,
            bind_mounts: Vec::new(),
            privileged: false,
            capabilities: Vec::new(),
            host_network: false,
            container_network: false,
            gpus: false,
            ports: None,
            forward: true,
            docker_api: false,
            everything: false,
        }
    }

    /// The policy of these rules. The Docker API is a switch of its own, for it goes around all of
    /// them.
    ///
    /// # Errors
    /// A rule makes no sense, or does not go together with the Docker API.
    pub fn new(rules: Rules, docker_api: bool, source: Source) -> Result<Self, PolicyError> {
        let table = source.table;
        let narrowing = rules.narrowing();
        if docker_api && !narrowing.is_empty() {
            let keys = narrowing.iter().map(|key| format!("{table}.{key}"));
            return Err(PolicyError::Around {
                docker_api: source.docker_api,
                keys: keys.collect::<Vec<_>>().join(", "),
            });
        }
        let mut policy = Self::defaults(source);
        if let Some(names) = rules.operations {
            let patterns: Vec<_> = names.iter().map(|name| Pattern::new(name)).collect();
            let unknown = |pattern: &&Pattern| !operations().any(|known| pattern.matches(known));
            if let Some(at) = patterns.iter().position(|pattern| unknown(&pattern)) {
                return Err(PolicyError::UnknownOperation {
                    table,
                    name: names[at].clone(),
                    known: operations().collect::<Vec<_>>().join(", "),
                });
            }
            policy.operations = patterns;
        }
        policy.containers = containers(
            rules.container_names.as_deref(),
            rules.container_labels,
            table,
        )?;
        if let Some(dirs) = rules.bind_mounts {
            if let Some(path) = dirs.iter().find(|dir| !bind::is_plain(dir)) {
                let path = path.clone();
                return Err(PolicyError::NotAbsolute { table, path });
            }
            policy.bind_mounts = dirs;
        }
        let list = rules.capabilities.unwrap_or_default();
        policy.capabilities = list.iter().map(|name| capability(name)).collect();
        for (switch, given) in [
            (&mut policy.exec, rules.exec),
            (&mut policy.host_exec, rules.host_exec),
            (&mut policy.build, rules.build),
            (&mut policy.volumes, rules.volumes),
            (&mut policy.privileged, rules.privileged),
            (&mut policy.host_network, rules.host_network),
            (&mut policy.container_network, rules.container_network),
            (&mut policy.gpus, rules.gpus),
            (&mut policy.forward, rules.forward),
        ] {
            *switch = given.unwrap_or(*switch);
        }
        policy.ports = rules.ports;
        policy.docker_api = docker_api;
        Ok(policy)
    }

    /// Without any rule, the Docker API included: for tests of operations.
    pub fn everything() -> Self {
        Self {
            everything: true,
            docker_api: true,
            ..Self::default()
        }
    }

    /// Whether connections to the Docker API are carried.
    pub fn allows_docker_api(&self) -> bool {
        self.docker_api
    }

    /// Whether some containers are out of bounds.
    pub fn chooses_containers(&self) -> bool {
        self.containers.is_some()
    }

    /// Whether an operation of this kind, or the call of this method, is carried out at all.
    ///
    /// # Errors
    /// The rule that forbids it.
    pub fn check_operation(&self, name: &str) -> Result<(), Refusal> {
        if self.everything {
            return Ok(());
        }
        if name == OperationKind::DockerSocket.name() && !self.docker_api {
            return Err(Refusal::new(self.source.docker_api, "the Docker API"));
        }
        if !self.operations.iter().any(|pattern| pattern.matches(name)) {
            return Err(Refusal::new("operations", name));
        }
        let group = name.split('.').next().unwrap_or(name);
        let switch = match group {
            "exec" | "attach" if !self.exec => "exec",
            "build" if !self.build => "build",
            "volume" if !self.volumes => "volumes",
            _ => return Ok(()),
        };
        Err(Refusal::new(switch, name))
    }

    /// Whether commands are run on the machine itself.
    ///
    /// # Errors
    /// The rule that forbids it.
    pub fn check_host_exec(&self) -> Result<(), Refusal> {
        if self.host_exec || self.everything {
            Ok(())
        } else {
            let what = "a command on the machine itself, outside of containers";
            Err(Refusal::new("host_exec", what))
        }
    }

    /// Whether some targets are out of bounds by what can be said without a look at containers.
    pub fn chooses_targets(&self) -> bool {
        self.ports.is_some() || !self.forward
    }

    /// Whether a target may be connected to by this right. Whether its container may be touched,
    /// and whether that is in the machine's network, has to be judged beside it:
    /// [`check_container`](Self::check_container), [`check_port`](Self::check_port).
    ///
    /// # Errors
    /// The rule that forbids it.
    pub fn check_target(&self, target: &Target, grant: Grant) -> Result<(), Refusal> {
        if grant == Grant::Operator && !self.forward && !self.everything {
            return Err(Refusal::new("forward", format!("forwarding to {target}")));
        }
        match target.container {
            None => self.check_port(target.transport, target.port),
            Some(_) => Ok(()),
        }
    }

    /// Whether a port of the machine may be exposed or forwarded.
    ///
    /// # Errors
    /// The rule that forbids it.
    pub fn check_port(&self, transport: Transport, port: u16) -> Result<(), Refusal> {
        let listed = |ports: &Vec<Ports>| ports.iter().any(|ports| ports.contains(port));
        if self.everything || self.ports.as_ref().is_none_or(listed) {
            return Ok(());
        }
        let target = Target {
            transport,
            ..Target::tcp(port)
        };
        Err(Refusal::new("ports", format!("{target} of the machine")))
    }

    /// Whether this container may be seen and touched. Lists and events leave out those that may
    /// not.
    pub fn shows(&self, subject: Subject<'_>) -> bool {
        self.containers
            .as_ref()
            .is_none_or(|containers| containers.matches(subject))
    }

    /// Whether an event of the daemon may be seen: one of a container by the name and the labels
    /// among its attributes. What happens to a network or a volume because of a container names the
    /// container by its id alone, and is left out where containers are chosen.
    pub fn shows_event(&self, kind: &str, attributes: &BTreeMap<String, String>) -> bool {
        if self.containers.is_none() {
            return true;
        }
        if kind != "container" {
            return !attributes.contains_key("container");
        }
        let name = attributes.get("name").map_or("", String::as_str);
        self.shows(Subject {
            name,
            labels: attributes,
        })
    }

    /// Whether this container may be touched.
    ///
    /// # Errors
    /// The rule that forbids it.
    pub fn check_container(&self, subject: Subject<'_>) -> Result<(), Refusal> {
        match &self.containers {
            Some(containers) if !containers.matches(subject) => {
                let what = format!("container {:?}", subject.name);
                Err(Refusal::new(containers.rule, what))
            }
            _ => Ok(()),
        }
    }

    /// Whether this container may be created. `real` gives the canonical form of a path of the
    /// machine, `peer` is whose network it wants to use, if not its own, and `on_host` says whether
    /// a network that it names is the machine's own.
    ///
    /// # Errors
    /// The rule that forbids it.
    pub fn check_create(
        &self,
        create: &Create,
        real: &dyn Fn(&Path) -> io::Result<PathBuf>,
        peer: Option<&Peer>,
        on_host: bool,
    ) -> Result<(), Refusal> {
        if self.everything {
            return Ok(());
        }
        self.check_container(Subject {
            name: &create.name,
            labels: &create.labels,
        })?;
        if create.privileged && !self.privileged {
            return Err(Refusal::new("privileged", "a privileged container"));
        }
        for added in &create.cap_add {
            let name = capability(added);
            if !self
                .capabilities
                .iter()
                .any(|is| *is == name || is == "ALL")
            {
                return Err(Refusal::new("capabilities", format!("capability {name}")));
            }
        }
        if create.gpus.is_some() && !self.gpus {
            return Err(Refusal::new("gpus", "graphics processors"));
        }
        self.check_network(create, peer, on_host)?;
        for mount in &create.mounts {
            self.check_mount(mount, real)?;
        }
        Ok(())
    }

    fn check_network(
        &self,
        create: &Create,
        peer: Option<&Peer>,
        on_host: bool,
    ) -> Result<(), Refusal> {
        let joins = modes(create).any(|mode| mode.starts_with(JOINS));
        if joins && !self.container_network {
            let what = "the network of another container";
            return Err(Refusal::new("container_network", what));
        }
        if let (true, Some(peer)) = (joins, peer) {
            self.check_container(Subject {
                name: &peer.name,
                labels: &peer.labels,
            })?;
        }
        let host = on_host
            || modes(create).any(|mode| mode == HOST)
            // Whose it is has to be known.
            || joins && peer.is_none()
            || peer.is_some_and(|peer| peer.on_host);
        if host {
            self.check_host_network()?;
        }
        Ok(())
    }

    /// Whether the machine's own network may be used.
    ///
    /// # Errors
    /// The rule that forbids it.
    pub fn check_host_network(&self) -> Result<(), Refusal> {
        if self.host_network || self.everything {
            Ok(())
        } else {
            Err(Refusal::new("host_network", "the machine's own network"))
        }
    }

    fn check_mount(
        &self,
        mount: &Mount,
        real: &dyn Fn(&Path) -> io::Result<PathBuf>,
    ) -> Result<(), Refusal> {
        if !binds(mount) {
            return if self.volumes {
                Ok(())
            } else {
                Err(Refusal::new("volumes", "a volume"))
            };
        }
        let refusal = |why: String| {
            let source: String = mount.source.chars().take(200).collect();
            Refusal::new("bind_mounts", format!("a mount of {source:?}{why}"))
        };
        let source = Path::new(&mount.source);
        if !bind::is_plain(source) {
            return Err(refusal(", which is no absolute path without `..`,".into()));
        }
        let path = real(source).map_err(|error| refusal(format!(" ({error})")))?;
        // A directory that is not there allows nothing.
        let mut dirs = self.bind_mounts.iter().filter_map(|dir| real(dir).ok());
        if dirs.any(|dir| path.starts_with(dir)) {
            Ok(())
        } else {
            Err(refusal(String::new()))
        }
    }

    /// A verdict as the hub is told of it; a refusal is logged, too.
    pub(crate) fn may(&self, verdict: Result<(), Refusal>) -> Result<(), Failure> {
        verdict.map_err(|refusal| {
            let failure = self.refused(&refusal);
            tracing::warn!("refused: {failure}");
            failure
        })
    }

    /// What the hub is told of a refusal: the rule and where it stands.
    pub fn refused(&self, refusal: &Refusal) -> Failure {
        let Refusal { rule, what } = refusal;
        let Source {
            file,
            table,
            docker_api,
        } = &self.source;
        let key = if rule == docker_api {
            (*rule).to_owned()
        } else {
            format!("{table}.{rule}")
        };
        let place = match file {
            Some(file) => format!("in {} on the node", file.display()),
            None => "in the node's configuration, which has no file".to_owned(),
        };
        let message = format!("this node does not allow {what}: see `{key}` {place}");
        Failure::new(FailureCode::FORBIDDEN, message)
    }
}

/// The network mode of a container that uses the machine's own.
const HOST: &str = "host";

/// How the network mode of a container begins that uses the network of another.
const JOINS: &str = "container:";

/// All that becomes the network mode of a container: the mode, and the network that it names.
fn modes(create: &Create) -> impl Iterator<Item = &str> {
    let network = create.network.as_ref().map(|network| &*network.name);
    create.network_mode.as_deref().into_iter().chain(network)
}

/// Whether it shows something of the machine. What the daemon would take for a path is one, whatever
/// it is called.
fn binds(mount: &Mount) -> bool {
    mount.kind == MountKind::Bind || mount.source.contains('/')
}

/// The name of a capability as it is compared: `NET_ADMIN`.
fn capability(name: &str) -> String {
    let name = name.to_ascii_uppercase();
    name.strip_prefix("CAP_").unwrap_or(&name).to_owned()
}

fn containers(
    names: Option<&[String]>,
    labels: Option<Vec<String>>,
    table: &'static str,
) -> Result<Option<Containers>, PolicyError> {
    if names.is_none() && labels.is_none() {
        return Ok(None);
    }
    let rule = if names.is_some() {
        "container_names"
    } else {
        "container_labels"
    };
    let read = |label: String| match label.split_once('=') {
        Some(("", _)) => Err(PolicyError::NoKey { table, label }),
        Some((key, value)) => Ok(Label {
            key: key.to_owned(),
            value: Some(Pattern::new(value)),
        }),
        None if label.is_empty() => Err(PolicyError::NoKey { table, label }),
        None => Ok(Label {
            key: label,
            value: None,
        }),
    };
    let labels = labels.into_iter().flatten().map(read);
    Ok(Some(Containers {
        names: names
            .into_iter()
            .flatten()
            .map(|name| Pattern::new(name))
            .collect(),
        labels: labels.collect::<Result<_, _>>()?,
        rule,
    }))
}
