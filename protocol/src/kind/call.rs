//! Calls: one question, one answer.
//!
//! ```text
//! hub                                     agent
//!  | Open{method, params} ---------------->  |  unknown method or field, policy: Failed
//!  |  <------------------------- Accepted    |
//!  |  <------------- Message(Progress) ..    |  of what takes long: a pull
//!  |  <------- Data(REPLY): JSON .. End      |
//!  |  <------- Done(Ending<()>)              |
//! ```
//!
//! Parameters and replies are JSON and describe themselves: a parameter that the agent does not
//! know is refused by name, and nothing is dropped in silence; a field of a reply that the hub does
//! not know is passed over. "It is not there" is a value, [`Change::NotFound`] or `null`, and no
//! error.

pub mod container;
pub mod exec;
pub mod image;
pub mod network;
pub mod stats;
pub mod volume;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{BodyError, ChannelSpec};
use crate::frame::Channel;
use crate::operation::Direction;

/// The reply, as JSON.
pub const REPLY: Channel = Channel(0);

pub(super) const CHANNELS: [ChannelSpec; 1] = [ChannelSpec {
    channel: REPLY,
    name: "reply",
    direction: Direction::ToHub,
}];

/// The most bytes of parameters: 120 KiB, so that they fit into an `Open`.
pub const MAX_PARAMS: usize = 120 * 1024;

/// The most bytes of a reply that a hub takes: 16 MiB, a list of about ten thousand containers.
pub const MAX_REPLY: usize = 16 * 1024 * 1024;

/// The body of `Open`, in postcard.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// Which method: see [`Call::METHOD`].
    pub method: String,
    /// Its parameters, as JSON; at most [`MAX_PARAMS`].
    pub params: Bytes,
}

/// Parameters may hold secrets.
impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("call::Open")
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

impl Open {
    /// The call with these parameters.
    pub fn new<C: Call>(params: &C) -> Self {
        Self {
            method: C::METHOD.into(),
            params: super::to_json(params),
        }
    }

    /// The parameters.
    ///
    /// # Errors
    /// They are no JSON, or not those of this call: the error names the field.
    pub fn params<C: Call>(&self) -> Result<C, BodyError> {
        super::from_json_object(C::METHOD, &self.params)
    }
}

/// A question: its parameters are the type itself.
pub trait Call: Serialize + DeserializeOwned + Send + 'static {
    /// Its name on the wire and in the API: `container.create`.
    const METHOD: &'static str;
    /// Whether it changes nothing, so that it can be asked again after an answer that got lost.
    const READS: bool;
    /// The answer.
    type Reply: Serialize + DeserializeOwned + Send + 'static;
}

/// A message from the agent, in postcard: how far something is that takes long. Where there is no
/// room for it, it is left out: the next says more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Progress {
    /// A layer, or the image.
    pub id: String,
    /// What is happening to it: `Downloading`, `Pull complete`.
    pub status: String,
    /// Bytes so far.
    pub current: Option<u64>,
    /// Bytes in all.
    pub total: Option<u64>,
}

/// What a change came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Change {
    /// It was made.
    Changed,
    /// It was so already.
    Unchanged,
    /// What should change is not there.
    NotFound,
}

/// Hands the list of all calls to a macro, so that agent, hub and client each turn every one of them
/// into a handler, a route or a method, and none is forgotten. Of each: the method, a name for
/// functions, the module and name of its parameters under [`kind::call`](self), the reply, whether
/// it `reads` or `changes`, and what it does.
#[macro_export]
macro_rules! for_each_call {
    ($callback:ident) => {
        $callback! {
            "container.create", container_create, container::Create => container::Created, changes, "Create a container";
            "container.start", container_start, container::Start => Change, changes, "Start a container";
            "container.stop", container_stop, container::Stop => Change, changes, "Stop a container";
            "container.remove", container_remove, container::Remove => Change, changes, "Remove a container";
            "container.update", container_update, container::Update => Change, changes, "Change a container's resources";
            "container.inspect", container_inspect, container::Inspect => Option<container::Container>, reads, "Show a container";
            "container.state", container_state, container::State => Option<container::ExitState>, reads, "Show whether a container runs, and how it ended";
            "container.list", container_list, container::List => Vec<container::Summary>, reads, "List containers";
            "image.list", image_list, image::List => Vec<image::Image>, reads, "List images, newest first";
            "image.inspect", image_inspect, image::Inspect => Option<image::Image>, reads, "Show an image";
            "image.pull", image_pull, image::Pull => image::Pulled, changes, "Pull an image";
            "image.remove", image_remove, image::Remove => Change, changes, "Remove an image";
            "volume.ensure", volume_ensure, volume::Ensure => volume::Volume, changes, "Make sure that a volume is there";
            "volume.list", volume_list, volume::List => Vec<volume::Volume>, reads, "List volumes";
            "volume.remove", volume_remove, volume::Remove => Change, changes, "Remove a volume";
            "network.ensure", network_ensure, network::Ensure => network::Network, changes, "Make sure that a network is there";
            "network.list", network_list, network::List => Vec<network::Network>, reads, "List networks";
            "network.connect", network_connect, network::Connect => Change, changes, "Connect a container to a network";
            "network.disconnect", network_disconnect, network::Disconnect => Change, changes, "Disconnect a container from a network";
            "network.remove", network_remove, network::Remove => Change, changes, "Detach a network's containers and remove it";
            "stats.get", stats_get, stats::Get => Option<stats::Stats>, reads, "Show what a container uses";
            "exec.list", exec_list, exec::List => Vec<exec::Kept>, reads, "List kept commands";
            "exec.status", exec_status, exec::Status => Option<exec::Kept>, reads, "Show a kept command, and how it ended";
            "exec.stop", exec_stop, exec::Stop => Change, changes, "Stop a kept command, or forget one that has ended";
        }
    };
}

macro_rules! implement {
    ($($method:literal, $name:ident, $module:ident::$params:ident => $reply:ty, $effect:ident, $doc:literal;)*) => {
        $(
            impl Call for $module::$params {
                const METHOD: &'static str = $method;
                const READS: bool = implement!(@reads $effect);
                type Reply = $reply;
            }
        )*

        /// The names of all calls.
        pub const METHODS: &[&str] = &[$($method),*];
    };
    (@reads reads) => { true };
    (@reads changes) => { false };
}

for_each_call!(implement);
