//! A hub for tests whose nodes do what the test says: their sessions stay within the process, and
//! the test holds the agent's end of each.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hub_ledger::{Join, NewToken, Node};
use hub_protocol::frame::RawFrame;
use hub_protocol::kind::Request;
use hub_protocol::limits::Limits;
use hub_protocol::operation::Role;
use hub_protocol::session::{Hello, Platform};
use hub_protocol::version::VersionRange;
use hub_protocol::{Deployment, Epoch, Fingerprint, Incarnation, NodeId};
use hub_quic::operation::Operation;
use hub_quic::session::Session;
use hub_quic::transport::memory::{Streams, pair};

use crate::ca::{Ca, CaOptions};
use crate::clock::Clock;
use crate::hub::{Addresses, Hub};
use crate::secret::{HubSecret, Token};
use crate::sessions::Sessions;
use crate::store::{Execution, Store};

/// A hub without nodes.
pub(crate) async fn hub() -> Hub {
    let store = Store::in_memory(Execution::Inline, Deployment::from_bytes([1; 16]))
        .await
        .unwrap();
    let (clock, secret) = (Clock::system(), HubSecret::from_bytes([2; 32]));
    let ca = Ca::load_or_create(&store, &secret, &CaOptions::default(), clock.now())
        .await
        .unwrap();
    let sessions = Sessions::default();
    Hub::new(store, clock, sessions, Arc::new(ca), Addresses::default())
}

/// A node that has joined and is away.
pub(crate) async fn join(hub: &Hub, name: &str, seed: u8) -> Node {
    let token = Token::from_bytes([seed; 32]).join_hash();
    let now = hub.clock().now();
    let new = NewToken::default();
    hub.store().create_token(token, new, now).await.unwrap();
    let join = Join {
        token,
        name: name.parse().unwrap(),
        key: Fingerprint::from_digest([seed; 32]),
        new_id: NodeId::from_bytes([seed; 16]),
    };
    hub.store().join(join, now).await.unwrap().node
}

/// Connects a node; `epoch` grows with each connection. Gives its agent's end.
pub(crate) fn connect(hub: &Hub, node: &Node, epoch: u64) -> Agent {
    let (here, there) = pair(Streams::default());
    let limits = Limits::default();
    let session =
        |connection, role| Session::new(connection, role, limits, limits, tracing::Span::none());
    let hello = Hello {
        versions: VersionRange { min: 1, max: 1 },
        deployment: Deployment::from_bytes([1; 16]),
        release: "0".into(),
        digest: String::new(),
        incarnation: Incarnation::from_bytes([3; 16]),
        last_generation: None,
        clock_ms: 0,
        platform: Platform::default(),
        capabilities: Vec::new(),
        limits,
    };
    let mine = session(hub_quic::transport::Connection::from(here), Role::Hub);
    let now = hub.clock().now();
    hub.sessions()
        .connect(node.id, Epoch(epoch), mine, hello, now);
    Agent {
        session: session(there.into(), Role::Agent),
    }
}

/// The agent's end of a session.
pub(crate) struct Agent {
    pub(crate) session: Session,
}

impl Agent {
    /// The next operation that it is asked for, with what is asked.
    pub(crate) async fn asked<R: Request>(&self) -> (Operation, R) {
        let incoming = self.session.accept().await.unwrap();
        let (operation, open): (Operation, RawFrame) = incoming.operation().await.unwrap();
        assert_eq!(operation.kind(), R::KIND);
        (operation, R::from_body(&open.payload).unwrap())
    }

    /// Its session is lost.
    pub(crate) fn lose(self, hub: &Hub, node: &Node, epoch: u64) {
        let code = hub_protocol::code::CloseCode::GOING_AWAY;
        self.session.close(code, "a test");
        hub.sessions().disconnect(node.id, Epoch(epoch));
    }
}
