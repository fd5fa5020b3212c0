//! The bytes of an exec's WebSocket: Kubernetes' subprotocol `v5.channel.k8s.io`.
//!
//! Every binary message begins with the number of its channel. The last word, on channel 3, is a
//! `Status` of Kubernetes' `meta/v1` as JSON: how the command ended, or why nobody can say. Pure:
//! server and client share it.

use std::ops::RangeInclusive;

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

/// The name of the subprotocol.
pub const SUBPROTOCOL: &str = "v5.channel.k8s.io";

/// The most bytes of one message that either side takes: 256 KiB. Both send far smaller ones.
pub const MAX_MESSAGE: usize = 256 * 1024;

/// What the command reads: from the client.
pub const STDIN: u8 = 0;
/// What it prints: from the server.
pub const STDOUT: u8 = 1;
/// What it prints as errors: from the server.
pub const STDERR: u8 = 2;
/// The last word: from the server.
pub const STATUS: u8 = 3;
/// A terminal's new size: from the client.
pub const RESIZE: u8 = 4;
/// Closes the channel whose number follows: stdin, from the client; from the server it says that
/// the command takes no more of it.
pub const CLOSE: u8 = 255;

/// The numbers that a signal can have; a shell says 128 more.
pub const SIGNALS: RangeInclusive<i32> = 1..=127;

/// A message on a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Bytes for the command.
    Stdin(Bytes),
    /// Bytes that it printed.
    Stdout(Bytes),
    /// Bytes that it printed as errors.
    Stderr(Bytes),
    /// The last word, as it came.
    Status(Bytes),
    /// A terminal's new size, as it came.
    Resize(Bytes),
    /// Nothing more comes, or is taken, on this channel.
    Close(u8),
    /// Nothing: some clients announce channels with empty messages.
    Empty,
}

/// A message that the subprotocol does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// No such channel.
    #[error("there is no channel {0} in {SUBPROTOCOL}")]
    UnknownChannel(u8),
    /// A close takes exactly one channel.
    #[error("a close message takes one channel number, not {0} bytes")]
    MalformedClose(usize),
}

impl Message {
    /// Reads a binary message.
    pub fn decode(mut message: Bytes) -> Result<Self, MessageError> {
        if message.is_empty() {
            return Ok(Self::Empty);
        }
        let channel = message.split_to(1)[0];
        Ok(match channel {
            CLOSE => match message[..] {
                [channel] => Self::Close(channel),
                _ => return Err(MessageError::MalformedClose(message.len())),
            },
            STDIN | STDOUT | STDERR if message.is_empty() => Self::Empty,
            STDIN => Self::Stdin(message),
            STDOUT => Self::Stdout(message),
            STDERR => Self::Stderr(message),
            STATUS => Self::Status(message),
            RESIZE => Self::Resize(message),
            unknown => return Err(MessageError::UnknownChannel(unknown)),
        })
    }
}

/// The binary message that carries `data` on a channel.
pub fn encode(channel: u8, data: &[u8]) -> Bytes {
    let mut message = BytesMut::with_capacity(1 + data.len());
    message.put_u8(channel);
    message.put_slice(data);
    message.freeze()
}

/// How an exec ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LastWord {
    /// The command exited with this code.
    Exited(i32),
    /// It was killed by this signal, one of [`SIGNALS`].
    Signaled(i32),
    /// Nobody can say: it may still be running. The text says why.
    Unknown(String),
}

const REASON_EXIT: &str = "NonZeroExitCode";
const REASON_INTERNAL: &str = "InternalError";
const CAUSE_EXIT: &str = "ExitCode";
const CAUSE_SIGNAL: &str = "Signal";

#[derive(Serialize, Deserialize)]
struct MetaV1Status {
    #[serde(default)]
    metadata: Metadata,
    status: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
}

#[derive(Default, Serialize, Deserialize)]
struct Metadata {}

#[derive(Serialize, Deserialize)]
struct Details {
    #[serde(default)]
    causes: Vec<Cause>,
}

#[derive(Serialize, Deserialize)]
struct Cause {
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

impl LastWord {
    /// The `Status` that says it.
    pub fn to_json(&self) -> Vec<u8> {
        let failure = |message: String, reason: &str, code, causes: &[(&str, i32)]| MetaV1Status {
            metadata: Metadata {},
            status: "Failure".into(),
            message,
            reason: reason.into(),
            details: (!causes.is_empty()).then(|| Details {
                causes: causes
                    .iter()
                    .map(|(reason, number)| Cause {
                        reason: (*reason).into(),
                        message: number.to_string(),
                    })
                    .collect(),
            }),
            code,
        };
        let status = match self {
            Self::Exited(0) => MetaV1Status {
                metadata: Metadata {},
                status: "Success".into(),
                message: String::new(),
                reason: String::new(),
                details: None,
                code: None,
            },
            Self::Exited(code) => {
                let message = format!("the command exited with code {code}");
                failure(message, REASON_EXIT, None, &[(CAUSE_EXIT, *code)])
            }
            Self::Signaled(signal) => {
                let message = format!("the command was killed by signal {signal}");
                let causes = [
                    (CAUSE_EXIT, signal.saturating_add(128)),
                    (CAUSE_SIGNAL, *signal),
                ];
                failure(message, REASON_EXIT, None, &causes)
            }
            Self::Unknown(why) => failure(why.clone(), REASON_INTERNAL, Some(500), &[]),
        };
        serde_json::to_vec(&status).expect("plain data with text keys")
    }

    /// Reads a `Status`. One that can't be read is an unknown end, never a good one.
    pub fn from_json(json: &[u8]) -> Self {
        let status: MetaV1Status = match serde_json::from_slice(json) {
            Ok(status) => status,
            Err(error) => return Self::Unknown(format!("the last word can't be read: {error}")),
        };
        if status.status == "Success" {
            return Self::Exited(0);
        }
        let causes = status
            .details
            .map(|details| details.causes)
            .unwrap_or_default();
        let number = |reason: &str| {
            let cause = causes.iter().find(|cause| cause.reason == reason)?;
            cause.message.parse::<i32>().ok()
        };
        match (
            status.reason.as_str(),
            number(CAUSE_EXIT),
            number(CAUSE_SIGNAL),
        ) {
            (REASON_EXIT, _, Some(signal)) if SIGNALS.contains(&signal) => Self::Signaled(signal),
            (REASON_EXIT, Some(code), None) if code != 0 => Self::Exited(code),
            _ if status.message.is_empty() => Self::Unknown("the hub gives no reason".into()),
            _ => Self::Unknown(status.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(word: &LastWord) -> String {
        String::from_utf8_lossy(&word.to_json()).into_owned()
    }

    #[test]
    fn golden_last_words() {
        let golden = [
            (LastWord::Exited(0), r#"{"metadata":{},"status":"Success"}"#),
            (
                LastWord::Exited(3),
                r#"{"metadata":{},"status":"Failure","message":"the command exited with code 3","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#,
            ),
            (
                LastWord::Signaled(9),
                r#"{"metadata":{},"status":"Failure","message":"the command was killed by signal 9","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"137"},{"reason":"Signal","message":"9"}]}}"#,
            ),
            (
                LastWord::Unknown("gone".into()),
                r#"{"metadata":{},"status":"Failure","message":"gone","reason":"InternalError","code":500}"#,
            ),
        ];
        for (word, expected) in golden {
            assert_eq!(json(&word), expected);
            assert_eq!(LastWord::from_json(expected.as_bytes()), word);
        }
    }

    #[test]
    fn what_kubernetes_itself_says_is_understood() {
        let status = br#"{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: exit status 42","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"42"}]}}"#;
        assert_eq!(LastWord::from_json(status), LastWord::Exited(42));
    }

    #[test]
    fn nothing_unclear_is_a_good_end() {
        for text in [
            "",
            "{}",
            "null",
            r#"{"status":"success"}"#,
            r#"{"status":"Failure"}"#,
            r#"{"status":"Failure","reason":"NonZeroExitCode"}"#,
            r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"0"}]}}"#,
            r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"x"}]}}"#,
            r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"Signal","message":"2147483647"}]}}"#,
        ] {
            let word = LastWord::from_json(text.as_bytes());
            assert!(matches!(word, LastWord::Unknown(_)), "{text}: {word:?}");
        }
    }

    #[test]
    fn golden_messages() {
        let golden: [(&[u8], Message); 8] = [
            (b"\x00in", Message::Stdin(Bytes::from_static(b"in"))),
            (b"\x01out", Message::Stdout(Bytes::from_static(b"out"))),
            (
                b"\x02\xff\x00",
                Message::Stderr(Bytes::from_static(b"\xff\x00")),
            ),
            (b"\x03{}", Message::Status(Bytes::from_static(b"{}"))),
            (
                b"\x04{\"Width\":80}",
                Message::Resize(Bytes::from_static(b"{\"Width\":80}")),
            ),
            (b"\xff\x00", Message::Close(STDIN)),
            (b"\x00", Message::Empty),
            (b"", Message::Empty),
        ];
        for (bytes, message) in golden {
            assert_eq!(Message::decode(Bytes::from_static(bytes)), Ok(message));
        }
        assert_eq!(encode(STDIN, b"in"), &b"\x00in"[..]);
        assert_eq!(encode(CLOSE, &[STDIN]), &b"\xff\x00"[..]);
    }

    #[test]
    fn what_the_subprotocol_does_not_have_is_refused() {
        let decode = |bytes: &'static [u8]| Message::decode(Bytes::from_static(bytes));
        assert_eq!(decode(b"\x05x"), Err(MessageError::UnknownChannel(5)));
        assert_eq!(decode(b"\xff"), Err(MessageError::MalformedClose(0)));
        assert_eq!(
            decode(b"\xff\x00\x01"),
            Err(MessageError::MalformedClose(2))
        );
    }
}
