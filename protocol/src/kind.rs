//! The kinds of operations, their bodies, messages and outcomes.
//!
//! Bodies are postcard: compact, and read by a reader of the same negotiated version. What a peer
//! says that can't be read is an error of that operation.

pub mod http;

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

/// What can be asked of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperationKind {
    /// Run a command and carry its standard streams.
    Exec,
    /// Carry one HTTP/1.1 request to a target, and what becomes of it after an upgrade.
    Http,
}

impl OperationKind {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Exec, Self::Http];

    /// The tag of its `Open`.
    pub const fn tag(self) -> u64 {
        match self {
            Self::Exec => 0x01,
            Self::Http => 0x02,
        }
    }

    /// The kind with this tag, if this version knows it.
    pub fn from_tag(tag: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.tag() == tag)
    }

    /// Its name in logs, metrics and capabilities.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Http => "http",
        }
    }

    /// The channels it has.
    pub const fn channels(self) -> &'static [ChannelSpec] {
        match self {
            Self::Exec => &exec::CHANNELS,
            Self::Http => &http::CHANNELS,
        }
    }
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
    /// For people: what went wrong, where, and what can be done.
    pub message: String,
    /// Whether the same request may succeed later.
    pub retry: bool,
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
}

/// Run a command.
pub mod exec {
    use std::ops::RangeInclusive;

    use super::{Channel, ChannelSpec, Deserialize, Direction, Serialize};

    /// What the command reads.
    pub const STDIN: Channel = Channel(0);
    /// What it prints.
    pub const STDOUT: Channel = Channel(1);
    /// What it prints as errors.
    pub const STDERR: Channel = Channel(2);

    pub(super) const CHANNELS: [ChannelSpec; 3] = [
        ChannelSpec {
            channel: STDIN,
            name: "stdin",
            direction: Direction::ToAgent,
        },
        ChannelSpec {
            channel: STDOUT,
            name: "stdout",
            direction: Direction::ToHub,
        },
        ChannelSpec {
            channel: STDERR,
            name: "stderr",
            direction: Direction::ToHub,
        },
    ];

    /// The body of `Open`. `Accepted` has no body.
    #[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Open {
        /// The container's name or id; the machine itself where there is none.
        pub container: Option<String>,
        /// The command and its arguments, at least one.
        pub argv: Vec<String>,
        /// Environment variables beside those that are there anyway.
        pub env: Vec<(String, String)>,
        /// The working directory.
        pub cwd: Option<String>,
        /// The user, as the container runtime takes it: name or uid, with or without group.
        pub user: Option<String>,
        /// Whether the stdin channel carries anything; without, the command reads end-of-file.
        pub stdin: bool,
    }

    /// Values of variables and arguments may be secret: only what is needed to tell one exec from
    /// another is shown.
    impl std::fmt::Debug for Open {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("exec::Open")
                .field("container", &self.container)
                .field("command", &self.argv.first())
                .field("arguments", &self.argv.len().saturating_sub(1))
                .field("variables", &self.env.len())
                .finish_non_exhaustive()
        }
    }

    /// The numbers that a signal can have.
    pub const SIGNALS: RangeInclusive<i32> = 1..=127;

    fn signal<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
        let number = i32::deserialize(deserializer)?;
        if SIGNALS.contains(&number) {
            Ok(number)
        } else {
            Err(serde::de::Error::custom("no signal has this number"))
        }
    }

    /// The body of `Done`: how the command ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    pub enum Outcome {
        /// It exited with this code.
        Exited(i32),
        /// It was killed by this signal, one of [`SIGNALS`]: a body with another can't be read.
        #[serde(deserialize_with = "signal")]
        Signaled(i32),
        /// It ended or may still run: nobody can say how.
        Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        use std::fmt::Write as _;
        bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    #[test]
    fn golden_bytes() {
        let exec = exec::Open {
            container: Some("web".into()),
            argv: vec!["wc".into(), "-c".into()],
            env: vec![("A".into(), "1".into())],
            cwd: None,
            user: Some("0".into()),
            stdin: true,
        };
        let head = http::RequestHead {
            method: "PUT".into(),
            target: Bytes::from_static(b"/a%2Fb?c"),
            headers: vec![(Bytes::from_static(b"x"), Bytes::from_static(b"\xff"))],
            upgrade: None,
            body: http::Body::Length(300),
        };
        let response = http::ResponseHead {
            status: 200,
            headers: vec![],
            upgrade: None,
            body: http::Body::Chunked,
        };
        let http = http::Open {
            port: 8080,
            targets_revision: 7,
            head,
        };
        let failure = Failure {
            code: FailureCode::BUSY,
            message: "full".into(),
            retry: true,
        };
        let golden = [
            (
                open_frame(OperationKind::Exec, &exec),
                "0116010377656202027763022d6301014101310001013001",
            ),
            (
                open_frame(OperationKind::Http, &http),
                "0219903f07035055540 82f612532 46623f63010178 01ff0001ac02",
            ),
            (encode(&http::Message::Head(response)), "00c801000002"),
            (encode(&http::Message::Trailers(vec![])), "0100"),
            (encode(&http::Outcome::Complete), "00"),
            (
                encode(&http::Outcome::Broken(failure.clone())),
                "01080466756c6c01",
            ),
            (encode(&exec::Outcome::Exited(1)), "0002"),
            (encode(&exec::Outcome::Signaled(9)), "0112"),
            (encode(&exec::Outcome::Unknown), "02"),
            (encode(&failure), "080466756c6c01"),
        ];
        for (bytes, expected) in golden {
            assert_eq!(hex(&bytes), expected.replace(' ', ""));
        }
    }

    #[test]
    fn a_signal_that_does_not_exist_is_no_outcome() {
        for (signal, exists) in [
            (i32::MIN, false),
            (0, false),
            (1, true),
            (127, true),
            (128, false),
            (i32::MAX, false),
        ] {
            let outcome = exec::Outcome::Signaled(signal);
            let decoded = decode::<exec::Outcome>("Done", &encode(&outcome));
            assert_eq!(decoded.ok(), exists.then_some(outcome));
        }
    }

    #[test]
    fn round_trips_and_near_misses() {
        let failure = Failure {
            code: FailureCode(700),
            message: "m".into(),
            retry: false,
        };
        let bytes = encode(&failure);
        assert_eq!(decode("failure", &bytes), Ok(failure));
        for end in 0..bytes.len() {
            assert!(decode::<Failure>("failure", &bytes[..end]).is_err());
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(decode::<Failure>("failure", &longer).is_err());
        // A length far beyond what has arrived allocates nothing and is an error.
        assert!(decode::<Failure>("failure", &[0, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
        assert!(decode::<Vec<http::Header>>("headers", &[0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
    }
}
