//! What an agent connects to on behalf of others: ports of its machine and of its containers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One thing that can be connected to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Target {
    /// How.
    pub transport: Transport,
    /// The port: 1 to 65535.
    pub port: u16,
    /// Of which container; of the agent's machine without one.
    pub container: Option<Selector>,
}

/// What carries the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Transport {
    /// A stream.
    Tcp,
    /// Datagrams.
    Udp,
}

/// Which container. It is looked up for each connection: a container that was made anew under the
/// same name or label is found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    /// The one of this name.
    Name(String),
    /// The one with this label, `KEY` or `KEY=VALUE`, that was started last.
    Label(String),
}

/// By what right a connection is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grant {
    /// The target is exposed. The agent connects to nothing but what is on its list, and waits
    /// until it has heard of at least this revision of it: a request may overtake the list.
    Exposed {
        /// The revision.
        revision: u64,
    },
    /// An operator asked for this one connection.
    Operator,
}

impl Target {
    /// A TCP port of the machine.
    pub fn tcp(port: u16) -> Self {
        Self {
            transport: Transport::Tcp,
            port,
            container: None,
        }
    }
}

/// As in "port 80 of container web".
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.transport {
            Transport::Tcp => "port ",
            Transport::Udp => "UDP port ",
        })?;
        write!(f, "{}", self.port)?;
        match &self.container {
            None => Ok(()),
            Some(Selector::Name(name)) => write!(f, " of container {name}"),
            Some(Selector::Label(label)) => write!(f, " of the container labelled {label}"),
        }
    }
}
