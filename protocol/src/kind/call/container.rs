//! Calls about containers.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::image::Credentials;

/// Creates a container. The image is pulled if it is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = CreateContainer))]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a choice of its own, as in Docker"
)]
pub struct Create {
    /// Its name.
    pub name: String,
    /// The image's name or id.
    pub image: String,
    /// The arguments; the image's own without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// What takes the arguments; the image's own without. An empty list means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// Variables, beside the image's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<Variable>,
    /// The working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// The user: name or uid, with or without group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Its host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Whether it has a terminal.
    #[serde(default, skip_serializing_if = "is_false")]
    pub tty: bool,
    /// Whether its standard input is kept open.
    #[serde(default, skip_serializing_if = "is_false")]
    pub open_stdin: bool,
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Ports that the machine forwards to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// What it may use at most.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,
    /// Graphics processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Gpus>,
    /// Bytes of `/dev/shm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shm_size: Option<u64>,
    /// Volumes and directories of the machine that it sees.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Name servers: addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dns: Vec<String>,
    /// A network to attach it to. Not together with a network mode other than its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Attachment>,
    /// `bridge`, `host`, `none`, `container:NAME`; the daemon's default without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_mode: Option<String>,
    /// Capabilities of the kernel to add: `NET_ADMIN`, `ALL`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cap_add: Vec<String>,
    /// Whether it may do all that the machine's root may.
    #[serde(default, skip_serializing_if = "is_false")]
    pub privileged: bool,
    /// When the daemon starts it again by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// What to show the registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<Credentials>,
    /// Whether to pull the image even if it is there.
    #[serde(default, skip_serializing_if = "is_false")]
    pub force_pull: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(value: &bool) -> bool {
    !value
}

/// A variable of an environment.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Variable {
    /// Its name, without `=`.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// A value may be secret.
impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variable")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A port that the machine forwards to a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Port {
    /// The port in the container.
    pub container: u16,
    /// The port on the machine; 0 takes any that is free.
    #[serde(default)]
    pub host: u16,
    /// The address on the machine; all of them without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<String>,
    /// What it speaks.
    #[serde(default)]
    pub protocol: Protocol,
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// As Docker writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// What a container may use at most. What is absent stays as it is, or unlimited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Resources {
    /// Bytes of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Bytes of memory and swap together; -1 for unlimited swap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_swap: Option<i64>,
    /// Billionths of a processor: 1,500,000,000 is one and a half.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nano_cpus: Option<u64>,
    /// The processors it may run on: `0-2,5`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<String>,
}

impl Resources {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Graphics processors.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Gpus {
    /// How many; -1 for all.
    #[serde(default)]
    pub count: i64,
    /// Which, by id. Where there are some, the count does not matter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_ids: Vec<String>,
}

/// Something that a container sees in its file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Mount {
    /// What kind.
    #[serde(rename = "type")]
    pub kind: MountKind,
    /// The volume's name, or an absolute path on the machine.
    pub source: String,
    /// An absolute path in the container.
    pub target: String,
    /// Whether it can't be written to.
    #[serde(default, skip_serializing_if = "is_false")]
    pub read_only: bool,
}

/// Kinds of mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum MountKind {
    /// A volume of the daemon, made if it is not there.
    Volume,
    /// A file or directory of the machine.
    Bind,
}

/// A network that a container is attached to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Attachment {
    /// The network's name or id.
    pub name: String,
    /// Further names of the container in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
}

/// When the daemon starts a container again by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Restart {
    /// Never.
    No,
    /// Whenever it ends.
    Always,
    /// Whenever it ends, unless somebody stopped it.
    UnlessStopped,
    /// When it ends with a code other than 0.
    OnFailure,
}

/// A container that was created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = CreatedContainer))]
pub struct Created {
    /// Its id.
    pub id: String,
    /// What the daemon warns of.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Starts a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = StartContainer))]
pub struct Start {
    /// Its name or id.
    pub container: String,
}

/// Stops a container: its stop signal, then KILL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = StopContainer))]
pub struct Stop {
    /// Its name or id.
    pub container: String,
    /// Seconds before KILL; a negative number waits for ever; the container's own without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<i64>,
}

/// Removes a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = RemoveContainer))]
pub struct Remove {
    /// Its name or id.
    pub container: String,
    /// Whether to kill it first if it runs.
    #[serde(default)]
    pub force: bool,
    /// Whether volumes without a name go with it.
    #[serde(default)]
    pub volumes: bool,
}

/// Changes what a container may use. What is absent stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = UpdateContainer))]
pub struct Update {
    /// Its name or id.
    pub container: String,
    /// The new limits. Where memory alone is given and its swap limit would be below it, the swap
    /// limit moves along.
    pub resources: Resources,
}

/// Asks for a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = InspectContainer))]
pub struct Inspect {
    /// Its name or id.
    pub container: String,
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Container {
    /// Its id.
    pub id: String,
    /// Its name, without a slash.
    pub name: String,
    /// The image as its maker named it.
    pub image: String,
    /// The image's id.
    pub image_id: String,
    /// When it was created, as RFC 3339.
    pub created: String,
    /// When it was last started, as RFC 3339; absent if never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    /// When it last ended, as RFC 3339; absent if never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<String>,
    /// `created`, `running`, `paused`, `restarting`, `removing`, `exited`, `dead`.
    pub state: String,
    /// Whether it runs, and how it ended.
    pub exit: ExitState,
    /// `starting`, `healthy`, `unhealthy`; absent without a health check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    /// Its main process, as the machine sees it; absent unless it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i64>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Names of its variables. Values may be secret, and stay on the node.
    pub env: Vec<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Ports that the machine forwards to it, with the ports that were chosen.
    pub ports: Vec<Port>,
    /// What it sees in its file system.
    pub mounts: Vec<MountPoint>,
    /// Its networks, by name.
    pub networks: BTreeMap<String, Endpoint>,
    /// What it may use at most.
    pub resources: Resources,
    /// Whether it has a terminal.
    pub tty: bool,
    /// How often the daemon started it again.
    pub restarts: i64,
}

/// What a container sees in its file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MountPoint {
    /// `volume`, `bind`, `tmpfs`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The volume's name, or the path on the machine.
    pub source: String,
    /// The path in the container.
    pub target: String,
    /// Whether it can't be written to.
    pub read_only: bool,
}

/// A container's place in a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Endpoint {
    /// Its IPv4 address; empty unless it runs.
    pub ip: String,
    /// Its further names.
    pub aliases: Vec<String>,
}

/// Asks whether a container runs, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = ContainerState))]
pub struct State {
    /// Its name or id.
    pub container: String,
}

/// Whether a container runs, and how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExitState {
    /// Whether it runs.
    pub running: bool,
    /// Whether it was killed because there was no memory left.
    pub oom_killed: bool,
    /// The code it ended with; absent while it runs and before its first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
}

/// Asks for containers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = ListContainers))]
pub struct List {
    /// Only names that begin so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Only those with all of these labels; `null` takes any value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, Option<String>>,
    /// Those that do not run, too.
    #[serde(default)]
    pub all: bool,
}

/// A container in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = ContainerSummary))]
pub struct Summary {
    /// Its id.
    pub id: String,
    /// Its name, without a slash.
    pub name: String,
    /// The image as its maker named it.
    pub image: String,
    /// `created`, `running`, `exited`, ….
    pub state: String,
    /// The state for people: `Up 3 minutes`.
    pub status: String,
    /// When it was created, in seconds since 1970 UTC.
    pub created_s: i64,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Ports that the machine forwards to it.
    pub ports: Vec<Port>,
}
