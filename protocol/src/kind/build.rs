//! Build an image.
//!
//! ```text
//! hub                                     agent
//!  | Open -------------------------------->  |  no builder, no permission: Failed
//!  |  <----------------------------- Accepted|
//!  | Data(CONTEXT): a tar archive .. End -->  |  streamed into the daemon
//!  |  <----- Data(PROGRESS): JSON lines      |
//!  |  <----- Stop(CONTEXT)                   |  when the daemon has had enough
//!  |  <----- Data(IMAGE): a docker-save tar  |  if it was asked for
//!  |  <----- Done(Ending<Built>)             |
//! ```

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::ChannelSpec;
use super::call::image::Credentials;
use crate::frame::Channel;
use crate::operation::Direction;

/// The build context: a tar archive, as it is or compressed with gzip, bzip2, xz or zstd as far as
/// the daemon takes them.
pub const CONTEXT: Channel = Channel(0);
/// The image, as `docker save` writes it.
pub const IMAGE: Channel = Channel(1);
/// [`Progress`], one JSON object a line.
pub const PROGRESS: Channel = Channel(2);

pub(super) const CHANNELS: [ChannelSpec; 3] = [
    ChannelSpec {
        channel: CONTEXT,
        name: "context",
        direction: Direction::ToAgent,
    },
    ChannelSpec {
        channel: IMAGE,
        name: "image",
        direction: Direction::ToHub,
    },
    ChannelSpec {
        channel: PROGRESS,
        name: "progress",
        direction: Direction::ToHub,
    },
];

/// The body of `Open`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Build {
    /// The path of the Dockerfile in the context; `Dockerfile` without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dockerfile: Option<String>,
    /// Names for the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The stage to build; the last without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Values of `ARG`s. `None` takes the value of a variable that the daemon itself has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub build_args: BTreeMap<String, Option<String>>,
    /// Labels for the image.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Whether to build every step anew.
    #[serde(default)]
    pub no_cache: bool,
    /// Whether to pull base images even if they are there.
    #[serde(default)]
    pub pull: bool,
    /// `os/arch` to build for; the daemon's own without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// Whether the image comes back on [`IMAGE`].
    #[serde(default)]
    pub output: bool,
    /// What to show registries that base images come from: for each its host, or its address as
    /// `docker login` stores it. Not in a URL, which may be logged: the API takes them in a header.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schema(ignore))]
    pub credentials: BTreeMap<String, Credentials>,
}

/// Values of build arguments may be secret, and credentials are.
impl fmt::Debug for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Build")
            .field("dockerfile", &self.dockerfile)
            .field("tags", &self.tags)
            .field("target", &self.target)
            .field("build_args", &self.build_args.keys())
            .field("platform", &self.platform)
            .field("output", &self.output)
            .field("registries", &self.credentials.keys())
            .finish_non_exhaustive()
    }
}

/// What a build says while it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Progress {
    /// Text of the classic builder, as the daemon prints it.
    Stream {
        /// The text, newlines included.
        text: String,
    },
    /// A step of BuildKit, whenever something about it changes.
    Step {
        /// Which: its digest.
        id: String,
        /// What it does: `[2/4] RUN make`.
        name: String,
        /// Milliseconds since 1970 UTC.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        started_ms: Option<i64>,
        /// Milliseconds since 1970 UTC.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        completed_ms: Option<i64>,
        /// Whether its result was there already.
        #[serde(default)]
        cached: bool,
        /// Why it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// What a step prints.
    Log {
        /// The step.
        id: String,
        /// The text; what is no UTF-8 in it is replaced.
        text: String,
    },
    /// A base image that is being pulled.
    Pull {
        /// The layer, or the image.
        id: String,
        /// What is happening to it.
        status: String,
        /// Bytes so far.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        current: Option<u64>,
        /// Bytes in all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total: Option<u64>,
    },
}

/// What came of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Built {
    /// The image's id: `sha256:…`.
    pub image: String,
}
