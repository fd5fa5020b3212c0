//! The bytes of a WebSocket that carries an operation: Kubernetes' subprotocol
//! `v5.channel.k8s.io`, and one channel more.
//!
//! Every binary message begins with the number of its channel:
//!
//! | channel | from | exec | build | Docker socket |
//! | --- | --- | --- | --- | --- |
//! | 0 | client | stdin | the context | bytes to it |
//! | 1 | server | stdout | the image | bytes from it |
//! | 2 | server | stderr | progress: JSON lines | |
//! | 3 | server | the last word | the last word | the last word |
//! | 4 | client | [`Size`] as JSON | | |
//! | 5 | client | [`Control`] as JSON | | |
//! | 255 | both | closes the channel whose number follows | | |
//!
//! The last word is a `Status` of Kubernetes' `meta/v1` as JSON: [`LastWord`] of a command,
//! [`Finish`] of everything else. Pure: server and client share it.

use bytes::{BufMut as _, Bytes, BytesMut};
use hub_protocol::kind::exec;
use serde::{Deserialize, Serialize};

pub use super::last_word::{Finish, LastWord, SIGNALS};

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
/// What else the client has to say: [`Control`].
pub const CONTROL: u8 = 5;
/// Closes the channel whose number follows: its sender sends no more on it, or its receiver takes
/// no more.
pub const CLOSE: u8 = 255;

/// The header of the 101 that says what to call a command by, to come back to it.
pub const EXEC_ID_HEADER: &str = "hub-exec-id";
/// The header of the 101 that says how many bytes came before what channel 1 brings.
pub const STDOUT_OFFSET_HEADER: &str = "hub-stdout-offset";
/// The header of the 101 that says how many bytes came before what channel 2 brings.
pub const STDERR_OFFSET_HEADER: &str = "hub-stderr-offset";

/// A message on a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Bytes of the operation, on channel 0, 1 or 2.
    Data(u8, Bytes),
    /// The last word, as it came.
    Status(Bytes),
    /// A terminal's new size, as it came.
    Resize(Bytes),
    /// A [`Control`], as it came.
    Control(Bytes),
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
    /// Channel 4 takes a size.
    #[error("channel {RESIZE} takes {{\"Width\":COLUMNS,\"Height\":ROWS}}")]
    MalformedSize,
    /// Channel 5 takes what this release knows.
    #[error("channel {CONTROL} takes {{\"signal\":NUMBER}} from 1 to 127, or {{\"detach\":true}}")]
    MalformedControl,
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
            STDIN | STDOUT | STDERR => Self::Data(channel, message),
            STATUS => Self::Status(message),
            RESIZE => Self::Resize(message),
            CONTROL => Self::Control(message),
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

/// A terminal's size, as channel 4 has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Size {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

impl Size {
    /// The binary message that says it.
    pub fn encode(self) -> Bytes {
        encode(RESIZE, &to_json(&self))
    }

    /// Reads what channel 4 brought.
    pub fn decode(json: &[u8]) -> Result<Self, MessageError> {
        serde_json::from_slice(json).map_err(|_| MessageError::MalformedSize)
    }
}

impl From<Size> for exec::Size {
    fn from(Size { width, height }: Size) -> Self {
        Self {
            cols: width,
            rows: height,
        }
    }
}

impl From<exec::Size> for Size {
    fn from(exec::Size { cols, rows }: exec::Size) -> Self {
        Self {
            width: cols,
            height: rows,
        }
    }
}

/// What a client says of its command on channel 5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "ControlJson", try_from = "ControlJson")]
pub enum Control {
    /// Signal it: a number of [`SIGNALS`].
    Signal(i32),
    /// Leave it to itself: it goes on, and the last word is [`LastWord::Detached`].
    Detach,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ControlJson {
    Signal(i32),
    Detach(bool),
}

impl From<Control> for ControlJson {
    fn from(control: Control) -> Self {
        match control {
            Control::Signal(number) => Self::Signal(number),
            Control::Detach => Self::Detach(true),
        }
    }
}

impl TryFrom<ControlJson> for Control {
    type Error = &'static str;

    fn try_from(json: ControlJson) -> Result<Self, Self::Error> {
        match json {
            ControlJson::Signal(number) if SIGNALS.contains(&number) => Ok(Self::Signal(number)),
            ControlJson::Signal(_) => Err("no signal has this number"),
            ControlJson::Detach(true) => Ok(Self::Detach),
            ControlJson::Detach(false) => Err("detach takes true"),
        }
    }
}

impl Control {
    /// The binary message that says it.
    pub fn encode(self) -> Bytes {
        encode(CONTROL, &to_json(&self))
    }

    /// Reads what channel 5 brought.
    pub fn decode(json: &[u8]) -> Result<Self, MessageError> {
        serde_json::from_slice(json).map_err(|_| MessageError::MalformedControl)
    }
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain data with text keys")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn golden_messages() {
        let golden: [(&[u8], Message); 9] = [
            (b"\x00in", Message::Data(STDIN, Bytes::from_static(b"in"))),
            (
                b"\x01out",
                Message::Data(STDOUT, Bytes::from_static(b"out")),
            ),
            (
                b"\x02\xff\x00",
                Message::Data(STDERR, Bytes::from_static(b"\xff\x00")),
            ),
            (b"\x03{}", Message::Status(Bytes::from_static(b"{}"))),
            (
                b"\x04{\"Width\":80}",
                Message::Resize(Bytes::from_static(b"{\"Width\":80}")),
            ),
            (b"\x05{}", Message::Control(Bytes::from_static(b"{}"))),
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
        assert_eq!(decode(b"\x06x"), Err(MessageError::UnknownChannel(6)));
        assert_eq!(decode(b"\xff"), Err(MessageError::MalformedClose(0)));
        assert_eq!(
            decode(b"\xff\x00\x01"),
            Err(MessageError::MalformedClose(2))
        );
    }

    #[test]
    fn sizes_and_controls_read_back() {
        let size = Size {
            width: 80,
            height: 24,
        };
        assert_eq!(size.encode(), &b"\x04{\"Width\":80,\"Height\":24}"[..]);
        assert_eq!(Size::decode(br#"{"Width":80,"Height":24}"#), Ok(size));
        assert_eq!(Size::from(exec::Size::from(size)), size);
        for bad in [
            "",
            "{}",
            r#"{"Width":80}"#,
            r#"{"Width":-1,"Height":70000}"#,
        ] {
            assert_eq!(
                Size::decode(bad.as_bytes()),
                Err(MessageError::MalformedSize)
            );
        }
        assert_eq!(Control::Signal(15).encode(), &b"\x05{\"signal\":15}"[..]);
        assert_eq!(Control::Detach.encode(), &b"\x05{\"detach\":true}"[..]);
        for control in [Control::Signal(1), Control::Signal(127), Control::Detach] {
            assert_eq!(Control::decode(&control.encode()[1..]), Ok(control));
        }
        for bad in [
            "",
            "{}",
            r#"{"signal":0}"#,
            r#"{"signal":128}"#,
            r#"{"detach":false}"#,
            r#"{"kill":9}"#,
        ] {
            let refused = Control::decode(bad.as_bytes());
            assert_eq!(refused, Err(MessageError::MalformedControl), "{bad}");
        }
    }
}
