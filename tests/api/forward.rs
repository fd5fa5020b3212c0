//! TCP connections over the API, before a node that does what the test says.

use std::future::pending;

use bytes::Bytes;
use hub::client::Client;
use hub_protocol::Incarnation;
use hub_protocol::kind::transfer::{Ending, IN, OUT};
use hub_protocol::kind::{self, Failure, FailureCode, Request, tcp};
use hub_protocol::limits::Limits;
use hub_protocol::operation::Role;
use hub_protocol::session::{Control, Hello, Platform};
use hub_protocol::target::{Grant, Selector, Target};
use hub_protocol::version::VersionRange;
use hub_quic::operation::Operation;
use hub_quic::session::{ControlSender, Session, control};
use hub_quic::transport::Connection;
use hub_server::api::problem::Kind;
use hub_server::sessions::LocalNode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::world::{NODE, World};

/// The agent's end of a session.
struct Agent {
    session: Session,
    _node: LocalNode,
    _control: ControlSender,
}

impl Agent {
    /// Connects as [`NODE`].
    async fn connect(world: &World) -> Self {
        let node = world.server.local_node(NODE.parse().unwrap()).await;
        let node = node.unwrap();
        let connection = Connection::from(node.connect().await.unwrap());
        let (mut control, mut answers) = control(connection.open().await.unwrap());
        let limits = Limits::default();
        let hello = Hello {
            versions: VersionRange::OURS,
            deployment: node.deployment(),
            release: "0".into(),
            digest: String::new(),
            incarnation: Incarnation::from_bytes([3; 16]),
            last_generation: None,
            clock_ms: 0,
            platform: Platform::default(),
            capabilities: Vec::new(),
            limits,
        };
        let mut changes = world.server.hub().sessions().changes();
        let hello = Control::Hello(Box::new(hello));
        control.send(&hello).await.unwrap();
        let welcome = answers.receive().await.unwrap();
        assert!(matches!(welcome, Control::Welcome(_)), "{welcome:?}");
        changes.changed().await.unwrap();
        let span = tracing::Span::none();
        Self {
            session: Session::new(connection, Role::Agent, limits, limits, span),
            _node: node,
            _control: control,
        }
    }

    /// The next connection that it is asked for.
    async fn asked(&self) -> (Operation, tcp::Open) {
        let incoming = self.session.accept().await.unwrap();
        let (operation, open) = incoming.operation().await.unwrap();
        assert_eq!(operation.kind(), tcp::Open::KIND);
        (operation, tcp::Open::from_body(&open.payload).unwrap())
    }
}

fn done(operation: Operation, ending: &Ending<()>) {
    operation.finish(kind::encode(ending));
}

/// A hub, an agent and a client of the hub.
async fn rig() -> (World, Agent, Client) {
    let world = World::hub().await;
    let agent = Agent::connect(&world).await;
    let client = world.client();
    (world, agent, client)
}

#[tokio::test]
async fn a_connection_is_carried_and_each_direction_ends_by_itself() {
    let (world, agent, client) = rig().await;
    let target = Target {
        container: Some(Selector::Label("app=a&b".into())),
        ..Target::tcp(5432)
    };
    let there = async {
        let (operation, open) = agent.asked().await;
        let (target, grant) = (target.clone(), Grant::Operator);
        assert_eq!(open, tcp::Open { target, grant });
        operation.accept(Bytes::new());
        let mut sent = Vec::new();
        let mut receiver = operation.receiver(IN);
        receiver.read_to_end(&mut sent).await.unwrap();
        assert_eq!(sent, vec![7; 300_000], "then its end");
        let mut sender = operation.sender(OUT);
        sender.send(vec![8; 300_000].into()).await.unwrap();
        sender.finish();
        done(operation, &Ending::Complete(()));
    };
    let here = async {
        let tunnel = client.forward(NODE, &target).await.unwrap();
        let (mut near, far) = tokio::io::duplex(64 * 1024);
        let (read, write) = tokio::io::split(far);
        let program = async {
            near.write_all(&vec![7; 300_000]).await.unwrap();
            near.shutdown().await.unwrap();
            let mut answer = Vec::new();
            near.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, vec![8; 300_000]);
        };
        let carried = tunnel.carry(read, write, pending());
        let (carried, ()) = tokio::join!(carried, program);
        carried.unwrap();
    };
    tokio::join!(there, here);
    world.stop().await;
}

#[tokio::test]
async fn what_is_refused_or_breaks_is_told_apart_from_a_good_end() {
    let (world, agent, client) = rig().await;
    let target = Target::tcp(22);
    let refused = Failure::new(FailureCode::TARGET_REFUSED, "port 22 refuses");
    let there = async {
        let (operation, _) = agent.asked().await;
        operation.fail(&refused);
        let (operation, _) = agent.asked().await;
        operation.accept(Bytes::new());
        let broken = Failure::new(FailureCode::TARGET_BROKEN, "port 22 broke");
        done(operation, &Ending::Failed(broken));
        let (operation, _) = agent.asked().await;
        operation.accept(Bytes::new());
        // The client goes away.
        operation.ended().await
    };
    let here = async {
        let error = client.forward(NODE, &target).await.err().unwrap();
        assert!(error.to_string().contains("port 22 refuses"), "{error}");
        let tunnel = client.forward(NODE, &target).await.unwrap();
        let (mut near, far) = tokio::io::duplex(64);
        let (read, write) = tokio::io::split(far);
        let cut = tunnel.carry(read, write, pending()).await.unwrap_err();
        assert!(cut.to_string().contains("port 22 broke"), "{cut}");
        assert_eq!(near.read(&mut [0]).await.unwrap(), 0);
        drop(client.forward(NODE, &target).await.unwrap());
        let nobody = client.forward("nobody", &target).await.err().unwrap();
        let kind = nobody.problem().unwrap().kind();
        assert_eq!(kind, Some(Kind::NoSuchNode));
    };
    tokio::join!(there, here);
    world.stop().await;
}
