//! Bytes from one side to the other, and what all such operations share.
//!
//! ```text
//! copy out    Open{container, path}      Accepted(stat)   Data(OUT).. End    Done(Ending<()>)
//! copy in     Open{container, path}      Data(IN).. End                      Done(Ending<()>)
//! save        Open{images}               Data(OUT).. End                     Done(Ending<()>)
//! load        Open{}                     Data(IN).. End                      Done(Ending<Loaded>)
//! docker      Open{}                     Data(IN).. and Data(OUT)..          Done(Ending<()>)
//! records     Open{..}                   Data(OUT): JSON lines               Done(Ending<()>)
//! ```
//!
//! What comes is whole only with [`Ending::Complete`].

use serde::{Deserialize, Serialize};

use super::{ChannelSpec, Failure};
use crate::frame::Channel;
use crate::operation::Direction;

/// Bytes to the agent.
pub const IN: Channel = Channel(0);
/// Bytes from the agent.
pub const OUT: Channel = Channel(1);

const TO_AGENT: ChannelSpec = ChannelSpec {
    channel: IN,
    name: "in",
    direction: Direction::ToAgent,
};
const TO_HUB: ChannelSpec = ChannelSpec {
    channel: OUT,
    name: "out",
    direction: Direction::ToHub,
};

pub(super) const INWARD: [ChannelSpec; 1] = [TO_AGENT];
pub(super) const OUTWARD: [ChannelSpec; 1] = [TO_HUB];
pub(super) const BOTH: [ChannelSpec; 2] = [TO_AGENT, TO_HUB];

/// The body of `Done` of most operations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending<T> {
    /// All of it was done, and all bytes were sent.
    Complete(T),
    /// It was begun and went wrong: what came of it is not all.
    Failed(Failure),
}

impl<T> From<Result<T, Failure>> for Ending<T> {
    fn from(result: Result<T, Failure>) -> Self {
        match result {
            Ok(done) => Self::Complete(done),
            Err(failure) => Self::Failed(failure),
        }
    }
}

/// Gives a tar archive of a path in a container. `Accepted` carries [`PathStat`] as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyOut {
    /// The container's name or id.
    pub container: String,
    /// The path in it.
    pub path: String,
}

/// Unpacks a tar archive into a directory of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyIn {
    /// The container's name or id.
    pub container: String,
    /// The directory in it, which has to be there.
    pub path: String,
    /// Whether uid and gid of the archive are kept; else the container's own.
    #[serde(default)]
    pub copy_uid_gid: bool,
    /// Whether replacing a directory by something else, or the reverse, is an error.
    #[serde(default)]
    pub no_overwrite_dir_non_dir: bool,
}

/// What stands at a path in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStat {
    /// Its last part.
    pub name: String,
    /// Bytes.
    pub size: i64,
    /// Type and permissions, as Go's `os.FileMode` has them: what Docker says.
    pub mode: u32,
    /// When it was last changed, as RFC 3339.
    pub mtime: String,
    /// Where it points, if it is a symbolic link.
    #[serde(default)]
    pub link_target: String,
}

/// Gives images as one `docker save` archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Save {
    /// Their names or ids, at least one.
    pub images: Vec<String>,
}

/// Takes the images of a `docker save` archive, compressed or not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {}

/// What a [`Load`] brought.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Loaded {
    /// Names, or ids of images without one; 100 at most.
    pub images: Vec<String>,
}

/// One connection to the node's Docker socket, byte for byte.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DockerSocket {}
