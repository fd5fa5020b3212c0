//! The rules as the node's file has them, and what is wrong with some.

use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

/// The rules as the node's file has them. What is not said has its default: see each key. A key that
/// does not exist is an error.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// The operations that are carried out: names of kinds (`exec`, `logs`) and of calls
    /// (`container.start`); `*` stands for any part of a name. All of them unless given.
    pub operations: Option<Vec<String>>,
    /// Names of containers that may be seen and touched, `*` and `?` as in a shell. Together with
    /// `container_labels`: one of the two has to match. All containers where neither is given.
    pub container_names: Option<Vec<String>>,
    /// Labels of containers that may be seen and touched: `KEY`, or `KEY=VALUE` with `*` and `?` in
    /// the value.
    pub container_labels: Option<Vec<String>>,
    /// Whether commands are run at all. They are unless this is `false`.
    pub exec: Option<bool>,
    /// Whether commands are run on the machine itself. They are, where the runtime can, unless this
    /// is `false`.
    pub host_exec: Option<bool>,
    /// Whether images are built. They are unless this is `false`.
    pub build: Option<bool>,
    /// Whether volumes are managed and mounted. They are unless this is `false`.
    pub volumes: Option<bool>,
    /// Directories that a new container may see, with all that is below them. None unless given.
    pub bind_mounts: Option<Vec<PathBuf>>,
    /// Whether new containers may be privileged: not unless this is `true`.
    pub privileged: Option<bool>,
    /// Capabilities of the kernel that new containers may have beside the usual; `ALL` for any. None
    /// unless given.
    pub capabilities: Option<Vec<String>>,
    /// Whether new containers may use the machine's own network: not unless this is `true`.
    pub host_network: Option<bool>,
    /// Whether new containers may use the network of another container: not unless this is `true`.
    pub container_network: Option<bool>,
    /// Whether new containers may use graphics processors: not unless this is `true`.
    pub gpus: Option<bool>,
    /// Ports of the machine that may be exposed and forwarded, TCP and UDP: numbers, and ranges as
    /// `"9000-9099"`. All of them unless given. Ports of containers are a matter of the containers.
    pub ports: Option<Vec<Ports>>,
    /// Whether an operator may connect to ports that are not exposed. They may unless this is
    /// `false`.
    pub forward: Option<bool>,
}

/// Ports from one to another, both among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

impl Ports {
    /// Whether a port is among them.
    pub(super) fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse().ok().filter(|port| *port != 0);
        let (first, last) = (port(first)?, port(last)?);
        (first <= last).then_some(Self { first, last })
    }
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = Ports;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a port from 1 to 65535, or a range of them as \"9000-9099\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Ports, E> {
                let unexpected = serde::de::Unexpected::Str(text);
                Ports::parse(text).ok_or_else(|| E::invalid_value(unexpected, &self))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Ports, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Ports, E> {
                self.visit_str(&number.to_string())
            }
        }

        deserializer.deserialize_any(Either)
    }
}

impl Rules {
    /// The keys that forbid something and are given.
    pub(super) fn narrowing(&self) -> Vec<&'static str> {
        let all = |list: &Option<Vec<String>>| {
            list.as_ref()
                .is_none_or(|list| list.iter().any(|item| item == "*"))
        };
        let no = |switch: Option<bool>| switch == Some(false);
        let keys = [
            ("operations", !all(&self.operations)),
            ("container_names", self.container_names.is_some()),
            ("container_labels", self.container_labels.is_some()),
            ("exec", no(self.exec)),
            ("host_exec", no(self.host_exec)),
            ("build", no(self.build)),
            ("volumes", no(self.volumes)),
            ("bind_mounts", self.bind_mounts.is_some()),
            ("privileged", no(self.privileged)),
            ("capabilities", self.capabilities.is_some()),
            ("host_network", no(self.host_network)),
            ("container_network", no(self.container_network)),
            ("gpus", no(self.gpus)),
            ("ports", self.ports.is_some()),
            ("forward", no(self.forward)),
        ];
        let given = keys.into_iter().filter(|(_, narrows)| *narrows);
        given.map(|(key, _)| key).collect()
    }
}

/// Where the rules stand, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The file; `None` where there is none and all rules have their defaults.
    pub file: Option<PathBuf>,
    /// The table in it.
    pub table: &'static str,
    /// The key that allows the Docker API.
    pub docker_api: &'static str,
}

impl Default for Source {
    /// The agent's own configuration, without a file.
    fn default() -> Self {
        Self {
            file: None,
            table: "policy",
            docker_api: "allow_docker_api",
        }
    }
}

/// Rules that make no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A name that nothing has.
    #[error("{table}.operations: nothing is called {name:?}; there are {known}")]
    UnknownOperation {
        /// The table.
        table: &'static str,
        /// What was given.
        name: String,
        /// What there is.
        known: String,
    },
    /// A directory that can't be compared with others.
    #[error(
        "{table}.bind_mounts: {} is no absolute path without `..`", .path.display()
    )]
    NotAbsolute {
        /// The table.
        table: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// A label without a key.
    #[error("{table}.container_labels: {label:?} has no key; write KEY or KEY=VALUE")]
    NoKey {
        /// The table.
        table: &'static str,
        /// The label.
        label: String,
    },
    /// Narrower rules beside a way around all of them.
    #[error(
        "{docker_api} is set together with {keys}: whoever reaches the Docker API goes around \
         these rules, and owns the machine. Leave out one or the other"
    )]
    Around {
        /// The key that allows the Docker API.
        docker_api: &'static str,
        /// The keys of the rules.
        keys: String,
    },
}
