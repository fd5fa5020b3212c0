//! One connection behind a WebSocket, whatever it is to: bytes both ways, each direction with its
//! own end, and a last word.

use axum::response::Response;
use bytes::Bytes;
use hub_protocol::NodeName;
use hub_protocol::kind::Request;
use hub_quic::operation::Ended;
use tracing::{Instrument as _, Span};

use super::Api;
use super::channel::Finish;
use super::problem::Problem;
use super::socket::{Carried, Upgrade};

/// A connection that is carried.
pub(super) struct Connection {
    /// Where its far end is.
    node: NodeName,
    /// The name of the operation.
    operation: &'static str,
    /// What it is to: "the Docker socket".
    to: String,
}

impl Connection {
    /// Asks a node for a connection `to` something, and carries it once it stands.
    pub(super) async fn open<R: Request>(
        api: &Api,
        upgrade: Upgrade,
        node: &str,
        (operation, to): (&'static str, String),
        request: &R,
        span: Span,
    ) -> Result<Response, Problem> {
        let ask = api.hub.ask(node, request).instrument(span.clone());
        let begun = upgrade.while_there(ask).await?.answered()?;
        let connection = Self {
            node: begun.node,
            operation,
            to,
        };
        Ok(upgrade.carry(begun.operation, connection, span))
    }
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
