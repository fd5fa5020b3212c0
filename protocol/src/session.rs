//! The control stream: the first stream that an agent opens, and what the two sides say on it.
//!
//! ```text
//! agent                         hub
//!  | Hello ---------------------> |
//!  | <-------- Welcome | Refused  |   Refused: then the connection is closed
//!  | Heartbeat -----------------> |   every `heartbeat_ms` of Welcome
//!  | <----------------- Heartbeat |   the same, back
//!  | <------------------- Targets |   whenever the exposures of the node change
//!  | Lingering -----------------> |   whenever what would not stop changes
//!  | GoAway <-------------------> |   no new operations; the rest may finish
//! ```
//!
//! `Hello`, `Welcome` and `Refused` are JSON objects in frames whose form never changes, and
//! fields that a reader does not know are passed over: any two releases can tell each other at
//! least why not. Later frames are postcard under the negotiated version; unknown tags are passed
//! over as well, because a newer peer says them only where silence does no harm.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::frame::{self, RawFrame};
use crate::ids::{Deployment, Epoch, Generation, Incarnation, NodeId};
use crate::kind::{self, BodyError};
use crate::limits::Limits;
use crate::target::Target;
use crate::version::VersionRange;

/// What an agent says of itself when its connection stands. None of it widens what it may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Versions of the protocol it speaks.
    pub versions: VersionRange,
    /// The deployment it joined.
    pub deployment: Deployment,
    /// The release of its program, for people.
    pub release: String,
    /// SHA-256 of its program, in hex; empty where it cannot be read.
    #[serde(default)]
    pub digest: String,
    /// This run of its process.
    pub incarnation: Incarnation,
    /// The last fence generation it was told, if any.
    #[serde(default)]
    pub last_generation: Option<Generation>,
    /// Its wall clock, in milliseconds since 1970 UTC.
    pub clock_ms: u64,
    /// Operating system and processor.
    #[serde(default)]
    pub platform: Platform,
    /// What it can do: names of operations (`exec`, `http`) and runtimes (`runtime:docker`).
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// What it allows the hub to have outstanding.
    pub limits: Limits,
}

/// The machine an agent runs on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// `linux`.
    #[serde(default)]
    pub os: String,
    /// `x86_64`, `aarch64`.
    #[serde(default)]
    pub arch: String,
    /// Its own name for itself.
    #[serde(default)]
    pub hostname: String,
}

/// The hub's answer to a `Hello` it takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The version of the protocol that holds from here on.
    pub version: u32,
    /// Who the agent is, as its certificate says.
    pub node_id: NodeId,
    /// The registration epoch.
    pub epoch: Epoch,
    /// The node's fence generation.
    pub generation: Generation,
    /// The hub's wall clock, in milliseconds since 1970 UTC.
    pub clock_ms: u64,
    /// How often to send a heartbeat, in milliseconds.
    pub heartbeat_ms: u64,
    /// What the hub allows the agent to have outstanding.
    pub limits: Limits,
}

/// The hub's answer to a `Hello` it does not take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}", shown(message))]
pub struct Refused {
    /// Whether asking again is of no use.
    pub permanent: bool,
    /// The reason, for programs.
    pub code: String,
    /// The reason, for people.
    pub message: String,
    /// When to ask again at the earliest, in milliseconds.
    #[serde(default)]
    pub retry_after_ms: Option<u64>,
}

/// Codes of [`Refused`].
pub mod refusal {
    /// No version of the protocol in common.
    pub const VERSION: &str = "version";
    /// The agent belongs to another deployment.
    pub const FOREIGN_DEPLOYMENT: &str = "foreign_deployment";
    /// The certificate is valid and the ledger does not know it.
    pub const UNKNOWN_IDENTITY: &str = "unknown_identity";
    /// The certificate has expired.
    pub const EXPIRED: &str = "expired";
    /// The node was revoked.
    pub const REVOKED: &str = "revoked";
    /// A newer process of the node has registered.
    pub const SUPERSEDED: &str = "superseded";
    /// The hub can't decide now.
    pub const TRY_LATER: &str = "try_later";
}

/// The targets that are exposed on a node: the only ones its agent connects to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Targets {
    /// Counts the changes; an older list never replaces a newer.
    pub revision: u64,
    /// In ascending order, each once.
    pub targets: Vec<Target>,
}

/// Something that an agent ran and could not see stop, for people to look after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lingering {
    /// What it is: command, process id, container.
    pub what: String,
    /// Why nobody can say that it has stopped.
    pub why: String,
}

/// A frame of the control stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// From the agent, first.
    Hello(Box<Hello>),
    /// From the hub, in answer.
    Welcome(Box<Welcome>),
    /// From the hub, in answer; then it closes.
    Refused(Refused),
    /// Either way; carries the sender's wall clock in milliseconds.
    Heartbeat {
        /// Milliseconds since 1970 UTC.
        clock_ms: u64,
    },
    /// Either way: no new operations, with a reason for people.
    GoAway(String),
    /// From the hub.
    Targets(Targets),
    /// From the agent, whenever it changes: all that may still be running though it was stopped.
    Lingering(Vec<Lingering>),
    /// Something that this version does not know.
    Unknown {
        /// Its tag.
        tag: u64,
    },
}

/// How many characters of a peer's text for people are shown.
const SHOWN: usize = 80;

/// What is shown of a peer's text for people: one line of at most 80 characters, so that a peer can
/// neither fill a log nor forge its lines.
pub fn shown(text: &str) -> String {
    let mut line: String = text
        .chars()
        .take(SHOWN)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if text.chars().nth(SHOWN).is_some() {
        line.push('…');
    }
    line
}

const HELLO: u64 = 0x01;
const WELCOME: u64 = 0x02;
const REFUSED: u64 = 0x03;
const HEARTBEAT: u64 = 0x10;
const GO_AWAY: u64 = 0x11;
const TARGETS: u64 = 0x12;
const LINGERING: u64 = 0x13;

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain data with text keys")
}

fn from_json<'de, T: Deserialize<'de>>(
    what: &'static str,
    bytes: &'de [u8],
) -> Result<T, BodyError> {
    serde_json::from_slice(bytes).map_err(|error| BodyError::new(what, error.to_string()))
}

impl Control {
    /// The kind of frame, for logs: what a peer sent with it stays out of them.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "Hello",
            Self::Welcome(_) => "Welcome",
            Self::Refused(_) => "Refused",
            Self::Heartbeat { .. } => "Heartbeat",
            Self::GoAway(_) => "GoAway",
            Self::Targets(_) => "Targets",
            Self::Lingering(_) => "Lingering",
            Self::Unknown { .. } => "a frame that this version does not know",
        }
    }

    /// The frame as it goes onto the stream.
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Hello(hello) => frame::raw(HELLO, &json(hello)),
            Self::Welcome(welcome) => frame::raw(WELCOME, &json(welcome)),
            Self::Refused(refused) => frame::raw(REFUSED, &json(refused)),
            Self::Heartbeat { clock_ms } => frame::raw(HEARTBEAT, &kind::encode(clock_ms)),
            Self::GoAway(reason) => frame::raw(GO_AWAY, &kind::encode(reason)),
            Self::Targets(targets) => frame::raw(TARGETS, &kind::encode(targets)),
            Self::Lingering(list) => frame::raw(LINGERING, &kind::encode(list)),
            Self::Unknown { tag } => frame::raw(*tag, &[]),
        }
    }

    /// The meaning of a frame.
    pub fn decode(frame: &RawFrame) -> Result<Self, BodyError> {
        let payload = &frame.payload[..];
        Ok(match frame.tag {
            HELLO => Self::Hello(from_json("Hello", payload)?),
            WELCOME => Self::Welcome(from_json("Welcome", payload)?),
            REFUSED => Self::Refused(from_json("Refused", payload)?),
            HEARTBEAT => Self::Heartbeat {
                clock_ms: kind::decode("Heartbeat", payload)?,
            },
            GO_AWAY => Self::GoAway(kind::decode("GoAway", payload)?),
            TARGETS => Self::Targets(kind::decode("Targets", payload)?),
            LINGERING => Self::Lingering(kind::decode("Lingering", payload)?),
            tag => Self::Unknown { tag },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Decoder;

    #[test]
    fn a_text_of_a_peer_is_one_line_of_bounded_length() {
        assert_eq!(shown("going"), "going");
        assert_eq!(shown("a\nb\u{1b}[2J"), "a b [2J");
        assert_eq!(shown(&"ä".repeat(80)), "ä".repeat(80));
        assert_eq!(shown(&"ä".repeat(100_000)), "ä".repeat(80) + "…");
    }

    fn decode(wire: Bytes) -> Result<Control, BodyError> {
        let mut decoder = Decoder::default();
        decoder.push(wire);
        let frame = decoder.control().expect("well-formed").expect("whole");
        Control::decode(&frame)
    }

    fn hello() -> Hello {
        Hello {
            versions: VersionRange { min: 1, max: 1 },
            deployment: Deployment::from_bytes([1; 16]),
            release: "0.1.0".into(),
            digest: String::new(),
            incarnation: Incarnation::from_bytes([2; 16]),
            last_generation: None,
            clock_ms: 1_790_000_000_000,
            platform: Platform {
                os: "linux".into(),
                arch: "x86_64".into(),
                hostname: "h".into(),
            },
            capabilities: vec!["exec".into()],
            limits: Limits::default(),
        }
    }

    #[test]
    fn golden_hello_welcome_and_refused() {
        let text = r#"{"versions":{"min":1,"max":1},"deployment":"01010101010101010101010101010101","release":"0.1.0","digest":"","incarnation":"02020202020202020202020202020202","last_generation":null,"clock_ms":1790000000000,"platform":{"os":"linux","arch":"x86_64","hostname":"h"},"capabilities":["exec"],"limits":{"initial_window":65536,"max_window":786432}}"#;
        let control = Control::Hello(Box::new(hello()));
        assert_eq!(control.encode(), frame::raw(1, text.as_bytes()));
        assert_eq!(decode(control.encode()), Ok(control));

        let welcome = Control::Welcome(Box::new(Welcome {
            version: 1,
            node_id: NodeId::from_bytes([3; 16]),
            epoch: Epoch(4),
            generation: Generation(5),
            clock_ms: 6,
            heartbeat_ms: 10_000,
            limits: Limits {
                initial_window: 7,
                max_window: 8,
            },
        }));
        let text = r#"{"version":1,"node_id":"03030303030303030303030303030303","epoch":4,"generation":5,"clock_ms":6,"heartbeat_ms":10000,"limits":{"initial_window":7,"max_window":8}}"#;
        assert_eq!(welcome.encode(), frame::raw(2, text.as_bytes()));
        assert_eq!(decode(welcome.encode()), Ok(welcome));

        let refused = Control::Refused(Refused {
            permanent: true,
            code: refusal::REVOKED.into(),
            message: "m".into(),
            retry_after_ms: None,
        });
        let text = r#"{"permanent":true,"code":"revoked","message":"m","retry_after_ms":null}"#;
        assert_eq!(refused.encode(), frame::raw(3, text.as_bytes()));
        assert_eq!(decode(refused.encode()), Ok(refused));
    }

    #[test]
    fn golden_frames_of_a_session() {
        let targets = Targets {
            revision: 300,
            targets: vec![Target::tcp(80), Target::tcp(8080)],
        };
        let lingering = Lingering {
            what: "a".into(),
            why: "b".into(),
        };
        let golden: [(Control, &[u8]); 4] = [
            (
                Control::Lingering(vec![lingering]),
                b"\x13\x05\x01\x01a\x01b",
            ),
            (Control::Heartbeat { clock_ms: 300 }, b"\x10\x02\xac\x02"),
            (Control::GoAway("x".into()), b"\x11\x02\x01x"),
            (
                Control::Targets(targets),
                b"\x12\x0a\xac\x02\x02\x00\x50\x00\x00\x90\x3f\x00",
            ),
        ];
        for (control, wire) in golden {
            assert_eq!(&control.encode()[..], wire);
            assert_eq!(decode(control.encode()), Ok(control));
        }
    }

    #[test]
    fn later_releases_are_understood() {
        let wire = frame::raw(
            3,
            br#"{"permanent":false,"code":"new","message":"m","since":[1]}"#,
        );
        assert!(matches!(decode(wire), Ok(Control::Refused(refused)) if refused.code == "new"));
        assert_eq!(
            decode(frame::raw(0x99, b"?")),
            Ok(Control::Unknown { tag: 0x99 })
        );
        assert!(decode(frame::raw(1, b"{}")).is_err());
        assert!(decode(frame::raw(1, b"\xff")).is_err());
    }
}
