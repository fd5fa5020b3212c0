//! The kinds of operations, their bodies, messages and outcomes.
//!
//! Bodies are postcard: compact, and read by a reader of the same negotiated version. Where a body
//! is a wish with many parts, it is JSON instead, which describes itself: a part that the reader
//! does not know is refused by name. What a peer says that can't be read is an error of that
//! operation.

pub mod build;
pub mod call;
pub mod exec;
pub mod http;
pub mod records;
pub mod tcp;
pub mod transfer;
pub mod udp;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::frame::{self, Channel, RawFrame};
use crate::operation::{ChannelSpec, Direction};

/// A body that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a malformed {what}: {reason}")]
pub struct BodyError {
    what: &'static str,
    reason: String,
}

impl BodyError {
    pub(crate) fn new(what: &'static str, reason: String) -> Self {
        Self { what, reason }
    }
}

/// The bytes of a body.
pub fn encode<T: Serialize>(body: &T) -> Bytes {
    // Growable output and types without maps of unknown length or foreign serializers.
    postcard::to_stdvec(body)
        .map(Bytes::from)
        .expect("bodies are plain data")
}

/// The body that `bytes` hold, all of them; `what` names it in the error.
pub fn decode<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, BodyError> {
    let malformed = |reason| BodyError::new(what, reason);
    let (body, rest) = postcard::take_from_bytes(bytes).map_err(|e| malformed(e.to_string()))?;
    if rest.is_empty() {
        Ok(body)
    } else {
        Err(malformed(format!("{} bytes too long", rest.len())))
    }
}

/// The JSON of a body.
pub fn to_json<T: Serialize>(body: &T) -> Bytes {
    // Plain data with text keys.
    serde_json::to_vec(body)
        .map(Bytes::from)
        .expect("bodies are plain data")
}

/// The body that JSON holds; `what` names it in the error, which names the field that is wrong by
/// its path, as in `mounts[1].target`, and never a value: values may be secret.
pub fn from_json<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, BodyError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let body = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let reason = without_values(error.inner());
        // Of what is no field there is no path: bytes that are no JSON, a missing field.
        match error.path().to_string() {
            path if path == "." => BodyError::new(what, reason),
            path => BodyError::new(what, format!("{path}: {reason}")),
        }
    })?;
    json.end()
        .map_err(|error| BodyError::new(what, without_values(&error)))?;
    Ok(body)
}

/// The wish that a JSON object holds, each part of it by its name; errors as those of [`from_json`].
/// A list, which serde would read as the parts in their order, is none: who judges a wish before it
/// is carried out looks for its parts by name.
pub fn from_json_object<T: DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
) -> Result<T, BodyError> {
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(BodyError::new(what, "a list, expected an object".into()));
    }
    from_json(what, bytes)
}

/// What serde says of a wrong value repeats it; where it stands is enough.
fn without_values(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.strip_prefix("invalid ").and_then(|rest| {
        let (what, rest) = rest.split_once(": ")?;
        let (_, expected) = rest.rsplit_once(", expected ")?;
        Some(format!("invalid {what}, expected {expected}"))
    }) {
        Some(text) => text,
        None => text,
    }
}

/// The kinds of operations: a tag that stays, a name, channels.
macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $tag:literal, $name:literal, $channels:expr;)*) => {
        /// What can be asked of a node.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum OperationKind {
            $($(#[$doc])* $variant,)*
        }

        impl OperationKind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The tag of its `Open`.
            pub const fn tag(self) -> u64 {
                match self { $(Self::$variant => $tag,)* }
            }

            /// Its name in logs, metrics and capabilities.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The channels it has.
            pub const fn channels(self) -> &'static [ChannelSpec] {
                match self { $(Self::$variant => &$channels,)* }
            }
        }
    };
}

kinds! {
    /// Run a command and carry its standard streams.
    Exec = 0x01, "exec", exec::CHANNELS;
    /// Carry one HTTP request to a target, and what becomes of it after an upgrade.
    Http = 0x02, "http", http::CHANNELS;
    /// Come back to a command that was kept.
    Attach = 0x03, "attach", exec::CHANNELS;
    /// Ask one question: see [`call`].
    Call = 0x04, "call", call::CHANNELS;
    /// Build an image.
    Build = 0x05, "build", build::CHANNELS;
    /// Read a container's log.
    Logs = 0x06, "logs", transfer::OUTWARD;
    /// Watch what happens on the node.
    Events = 0x07, "events", transfer::OUTWARD;
    /// Watch what a container uses.
    Stats = 0x08, "stats", transfer::OUTWARD;
    /// Copy files out of a container.
    CopyOut = 0x09, "copy-out", transfer::OUTWARD;
    /// Copy files into a container.
    CopyIn = 0x0a, "copy-in", transfer::INWARD;
    /// Give images as an archive.
    Save = 0x0b, "save", transfer::OUTWARD;
    /// Take images from an archive.
    Load = 0x0c, "load", transfer::INWARD;
    /// Carry one connection to the node's Docker socket.
    DockerSocket = 0x0d, "docker-socket", transfer::BOTH;
    /// Carry one TCP connection to a target.
    Tcp = 0x0e, "tcp", transfer::BOTH;
    /// Carry the packets of one UDP flow to a target.
    Udp = 0x0f, "udp", transfer::BOTH;
}

impl OperationKind {
    /// The kind with this tag, if this version knows it.
    pub fn from_tag(tag: u64) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.tag() == tag)
    }
}

/// What opens an operation of a kind: the body of its `Open`.
pub trait Request: Sized {
    /// Of this kind.
    const KIND: OperationKind;

    /// The bytes of the body.
    fn to_body(&self) -> Bytes;

    /// The body that the bytes hold.
    ///
    /// # Errors
    /// They are malformed, or hold something that this release does not know.
    fn from_body(bytes: &[u8]) -> Result<Self, BodyError>;
}

macro_rules! requests {
    ($($body:ty => $kind:ident, $encode:ident, $decode:ident;)*) => {
        $(
            impl Request for $body {
                const KIND: OperationKind = OperationKind::$kind;

                fn to_body(&self) -> Bytes {
                    $encode(self)
                }

                fn from_body(bytes: &[u8]) -> Result<Self, BodyError> {
                    $decode(Self::KIND.name(), bytes)
                }
            }
        )*
    };
}

requests! {
    exec::Open => Exec, encode, decode;
    http::Open => Http, encode, decode;
    tcp::Open => Tcp, encode, decode;
    udp::Open => Udp, encode, decode;
    exec::Attach => Attach, encode, decode;
    call::Open => Call, encode, decode;
    build::Build => Build, to_json, from_json_object;
    records::Logs => Logs, to_json, from_json_object;
    records::Events => Events, to_json, from_json_object;
    records::FollowStats => Stats, to_json, from_json_object;
    transfer::CopyOut => CopyOut, to_json, from_json_object;
    transfer::CopyIn => CopyIn, to_json, from_json_object;
    transfer::Save => Save, to_json, from_json_object;
    transfer::Load => Load, to_json, from_json_object;
    transfer::DockerSocket => DockerSocket, to_json, from_json_object;
}

/// The `Open` frame of an operation.
pub fn open_frame<T: Serialize>(kind: OperationKind, body: &T) -> Bytes {
    frame::raw(kind.tag(), &encode(body))
}

/// The kind and body of an `Open`; `None` for a kind that this version does not know.
pub fn open_kind(open: &RawFrame) -> Option<OperationKind> {
    OperationKind::from_tag(open.tag)
}

/// Why an agent did not do what it was asked: the body of `Failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What kind of reason.
    pub code: FailureCode,
    /// For people: what went wrong, where, and what can be done. Cut off on the wire as
    /// [`new`](Self::new) does it, wherever it comes from.
    #[serde(serialize_with = "cut_off")]
    pub message: String,
    /// Whether the same request may succeed later.
    pub retry: bool,
}

/// The most bytes of a failure's message: more is cut off.
const MAX_FAILURE: usize = 8 * 1024;

/// Where a message has to be cut off, if it has to be.
fn too_long(message: &str) -> Option<usize> {
    let mut ends = (0..=MAX_FAILURE).rev();
    (message.len() > MAX_FAILURE + '…'.len_utf8())
        .then(|| ends.find(|end| message.is_char_boundary(*end)))
        .flatten()
}

fn cut_off<S: serde::Serializer>(message: &str, serializer: S) -> Result<S::Ok, S::Error> {
    match too_long(message) {
        Some(end) => serializer.collect_str(&format_args!("{}…", &message[..end])),
        None => serializer.serialize_str(message),
    }
}

impl Failure {
    /// A failure that the same request meets again. A long message is cut off: what a daemon or a
    /// program said may have any length, and the last frame of an operation has not.
    pub fn new(code: FailureCode, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if let Some(end) = too_long(&message) {
            message.truncate(end);
            message.push('…');
        }
        Self {
            code,
            message,
            retry: false,
        }
    }

    /// The same, where trying again may help.
    #[must_use]
    pub fn retry(mut self) -> Self {
        self.retry = true;
        self
    }
}

/// What can't be read makes no sense: the same bytes can't be read again.
impl From<BodyError> for Failure {
    fn from(error: BodyError) -> Self {
        Self::new(FailureCode::INVALID, error.to_string())
    }
}

/// A kind of reason. A number keeps its meaning for ever; an unknown one is shown as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FailureCode(pub u16);

impl FailureCode {
    /// Anything without a code of its own.
    pub const INTERNAL: Self = Self(0);
    /// The agent does not know this operation, or cannot do it here.
    pub const UNSUPPORTED: Self = Self(1);
    /// The request makes no sense.
    pub const INVALID: Self = Self(2);
    /// The container does not exist.
    pub const NO_SUCH_CONTAINER: Self = Self(3);
    /// The container exists and does not run.
    pub const NOT_RUNNING: Self = Self(4);
    /// The command does not exist (a shell says 127).
    pub const COMMAND_NOT_FOUND: Self = Self(5);
    /// The command can't be executed (a shell says 126).
    pub const NOT_EXECUTABLE: Self = Self(6);
    /// The agent's own policy forbids it.
    pub const FORBIDDEN: Self = Self(7);
    /// The agent is at its limit.
    pub const BUSY: Self = Self(8);
    /// The container runtime does not answer.
    pub const RUNTIME_UNAVAILABLE: Self = Self(9);
    /// The target is not exposed on this node.
    pub const NOT_EXPOSED: Self = Self(10);
    /// The target refused the connection.
    pub const TARGET_REFUSED: Self = Self(11);
    /// The target did not answer in time.
    pub const TARGET_TIMED_OUT: Self = Self(12);
    /// The target's answer is no HTTP, or broke off before its head.
    pub const TARGET_BROKEN: Self = Self(13);
    /// Something else that was named does not exist: an image, a network, a path, a kept command.
    pub const NOT_FOUND: Self = Self(14);
    /// It is in use, or a thing of that name exists and is another.
    pub const CONFLICT: Self = Self(15);
    /// The registry wants other credentials.
    pub const REGISTRY_DENIED: Self = Self(16);
    /// The build went wrong: a step failed, or the Dockerfile makes no sense.
    pub const BUILD_FAILED: Self = Self(17);
}

#[cfg(test)]
mod tests;
