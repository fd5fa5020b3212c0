//! One connection behind a WebSocket, whatever it is to: bytes both ways, each direction with its
//! own end, and a last word.

use bytes::Bytes;
use hub_protocol::NodeName;
use hub_quic::operation::Ended;

use super::channel::Finish;
use super::socket::Carried;

/// A connection that is carried.
pub(super) struct Connection {
    /// Where its far end is.
    pub(super) node: NodeName,
    /// The name of the operation.
    pub(super) operation: &'static str,
    /// What it is to: "the Docker socket".
    pub(super) to: String,
}

impl Carried for Connection {
    type Word = Finish;

    fn json(word: &Finish) -> Vec<u8> {
        word.to_json()
    }

    fn word(&self, done: Result<Bytes, Ended>) -> Finish {
        let Self {
            node,
            operation,
            to,
        } = self;
        Finish::of(
            node,
            operation,
            done,
            |()| None,
            |why| format!("node {node}: the connection to {to} broke: {why}"),
        )
    }

    fn cut(&self) -> Finish {
        self.word(Err(Ended::Lost("the hub is stopping".into())))
    }

    fn abandoned(&self) -> &'static str {
        "the connection is closed"
    }

    fn says_ends(&self) -> bool {
        true
    }
}
