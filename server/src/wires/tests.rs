//! Listeners, connections and flows over loopback, before a node that does what the test says.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use hub_ledger::exposure::Settings;
use hub_ledger::{Access, NewExposure, Node, Protocol, Replica};
use hub_protocol::kind::transfer::{Ending, IN, OUT};
use hub_protocol::kind::{self, Failure, FailureCode, tcp, udp};
use hub_protocol::target::{Grant, Target};
use hub_quic::operation::Operation;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::*;
use crate::hub::Hub;
use crate::proxy::{Kind, WaitsFor};
use crate::scripted::{Agent, connect, hub, join};

const PATIENCE: Duration = Duration::from_secs(30);

struct World {
    hub: Hub,
    node: Node,
    agent: Agent,
    stop: watch::Sender<bool>,
    seeing: Seeing,
    serving: JoinHandle<()>,
}

impl World {
    async fn new(config: Config) -> Self {
        let hub = hub().await;
        let node = join(&hub, "n1", 1).await;
        let agent = connect(&hub, &node, 1);
        let (stop, stopping) = watch::channel(false);
        let routes = LedgerRoutes::new(&hub);
        let wires = hub.wires().clone();
        let (store, seeing) = (hub.store().clone(), Seeing::default());
        let serving = wires.serve(store, routes, config, seeing.clone(), stopping);
        Self {
            serving: tokio::spawn(serving),
            hub,
            node,
            agent,
            stop,
            seeing,
        }
    }

    /// Exposes a port, to be listened for on this one.
    async fn expose(&self, protocol: Protocol, port: u16) -> ExposureId {
        let target = Target {
            transport: protocol.transport(),
            ..Target::tcp(7)
        };
        let replica = Replica {
            node: self.node.id,
            target,
        };
        let new = NewExposure {
            name: None,
            token: None,
            access: Access::Public,
            protocol,
            replicas: vec![replica],
            listen: Some(SocketAddr::from(([127, 0, 0, 1], port))),
            settings: Settings::default(),
        };
        // Past the hub, which would tell the agent: these sessions have no control stream.
        let made = self
            .hub
            .store()
            .create_exposure(new, self.hub.clock().now());
        let id = made.await.unwrap().exposure.id;
        self.hub.wires().changed();
        id
    }

    async fn unexpose(&self, id: ExposureId) {
        self.hub.store().remove_exposure(id).await.unwrap();
        self.hub.wires().changed();
    }

    async fn address(&self, id: ExposureId) -> SocketAddr {
        match self.hub.wires().settled(id, PATIENCE).await {
            Some(Listening::At(address)) => address,
            other => panic!("{other:?}"),
        }
    }

    /// An exposure of TCP, and where it is.
    async fn tcp(&self) -> SocketAddr {
        let id = self.expose(Protocol::Tcp, 0).await;
        self.address(id).await
    }

    async fn connection(&self) -> Operation {
        let (operation, open) = self.agent.asked::<tcp::Open>().await;
        assert_eq!(open.target, Target::tcp(7));
        assert!(matches!(open.grant, Grant::Exposed { .. }));
        operation
    }
}

fn done(operation: Operation, ending: &Ending<()>) {
    operation.finish(kind::encode(ending));
}

fn failure(code: FailureCode) -> Failure {
    Failure::new(code, "as the test says")
}

async fn reset(client: &mut TcpStream) {
    let error = client.read(&mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn each_direction_ends_by_itself_and_a_good_end_is_one() {
    let world = World::new(Config::default()).await;
    let mut client = TcpStream::connect(world.tcp().await).await.unwrap();
    let agent = async {
        let operation = world.connection().await;
        operation.accept(Bytes::new());
        let mut sent = Vec::new();
        let mut receiver = operation.receiver(IN);
        receiver.read_to_end(&mut sent).await.unwrap();
        assert_eq!(sent, vec![7; 300_000], "then its end");
        let mut sender = operation.sender(OUT);
        for _ in 0..300 {
            sender.send(vec![8; 1000].into()).await.unwrap();
        }
        sender.finish();
        done(operation, &Ending::Complete(()));
    };
    let program = async {
        client.write_all(&vec![7; 300_000]).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, vec![8; 300_000]);
    };
    tokio::join!(agent, program);
}

#[tokio::test]
async fn a_connection_is_seen_with_its_bytes_and_what_it_waits_for() {
    let world = World::new(Config::default()).await;
    let mut client = TcpStream::connect(world.tcp().await).await.unwrap();
    let operation = world.connection().await;
    let seen = &world.seeing.underway()[0];
    assert_eq!((seen.kind, seen.waits_for), (Kind::Tcp, WaitsFor::Network));
    assert_eq!((seen.exposure, seen.node.as_deref()), (Some(1), Some("n1")));
    operation.accept(Bytes::new());
    operation.sender(OUT).send("hello".into()).await.unwrap();
    client.read_exact(&mut [0; 5]).await.unwrap();
    client.write_all(b"you").await.unwrap();
    let mut receiver = operation.receiver(IN);
    assert_eq!(receiver.chunk().await.unwrap().unwrap(), "you");
    let seen = &world.seeing.underway()[0];
    assert_eq!((seen.bytes_in, seen.bytes_out), (3, 5));
    assert_eq!(seen.waits_for, WaitsFor::Target);
    done(operation, &Ending::Complete(()));
    client.shutdown().await.unwrap();
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    while !world.seeing.underway().is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_breaks_is_reset_on_the_other_side() {
    let world = World::new(Config::default()).await;
    let address = world.tcp().await;
    // The target refuses.
    let mut client = TcpStream::connect(address).await.unwrap();
    let operation = world.connection().await;
    operation.fail(&failure(FailureCode::TARGET_REFUSED));
    reset(&mut client).await;
    // It breaks, after some bytes, and without the end of its direction.
    let mut client = TcpStream::connect(address).await.unwrap();
    let operation = world.connection().await;
    operation.accept(Bytes::new());
    operation.sender(OUT).send("half".into()).await.unwrap();
    let mut half = [0; 4];
    client.read_exact(&mut half).await.unwrap();
    done(
        operation,
        &Ending::Failed(failure(FailureCode::TARGET_BROKEN)),
    );
    reset(&mut client).await;
    // The agent lets go of it.
    let mut client = TcpStream::connect(address).await.unwrap();
    let operation = world.connection().await;
    operation.accept(Bytes::new());
    drop(operation);
    reset(&mut client).await;
    // The client resets while nobody reads what it has sent: the agent learns of it.
    let client = TcpStream::connect(address).await.unwrap();
    let operation = world.connection().await;
    operation.accept(Bytes::new());
    let receiver = operation.receiver(IN);
    while let Ok(Ok(_)) = tokio::time::timeout(Duration::from_millis(200), async {
        client.writable().await.unwrap();
        client.try_write(&vec![0; 64 * 1024])
    })
    .await
    {}
    client.set_zero_linger().unwrap();
    drop(client);
    operation.ended().await;
    drop(receiver);
}

#[tokio::test]
async fn one_address_has_so_many_connections_and_no_more() {
    let config = Config {
        connections_per_client: 2,
        ..Config::default()
    };
    let world = World::new(config).await;
    let address = world.tcp().await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let client = TcpStream::connect(address).await.unwrap();
        let operation = world.connection().await;
        operation.accept(Bytes::new());
        held.push((client, operation));
    }
    reset(&mut TcpStream::connect(address).await.unwrap()).await;
    let (mut client, operation) = held.pop().unwrap();
    operation.sender(OUT).finish();
    client.shutdown().await.unwrap();
    let mut receiver = operation.receiver(IN);
    assert_eq!(receiver.chunk().await, Ok(None));
    done(operation, &Ending::Complete(()));
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    // Its place is free, a moment later.
    loop {
        let mut client = TcpStream::connect(address).await.unwrap();
        let mut byte = [0];
        tokio::select! {
            operation = world.connection() => {
                operation.accept(Bytes::new());
                break;
            }
            read = client.read(&mut byte) => assert!(read.is_err()),
        }
    }
}

#[tokio::test]
async fn listeners_come_and_go_with_their_exposures() {
    let world = World::new(Config::default()).await;
    let id = world.expose(Protocol::Tcp, 0).await;
    let address = world.address(id).await;
    // Somebody else wants the same port: it says so, until the port is free.
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let second = world.expose(Protocol::Tcp, port).await;
    let said = world.hub.wires().settled(second, PATIENCE).await;
    let Some(Listening::Failed(why)) = said else {
        panic!("{said:?}");
    };
    assert!(why.contains(&port.to_string()), "{why}");
    drop(taken);
    while world.hub.wires().listening(second) == Some(Listening::Failed(why.clone())) {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.address(second).await.port(), port);
    // What is under way ends with the exposure.
    let mut client = TcpStream::connect(address).await.unwrap();
    let operation = world.connection().await;
    operation.accept(Bytes::new());
    world.unexpose(id).await;
    reset(&mut client).await;
    operation.ended().await;
    while world.hub.wires().listening(id).is_some() {
        tokio::task::yield_now().await;
    }
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_hub_that_stops_lets_connections_end() {
    let world = World::new(Config::default()).await;
    let address = world.tcp().await;
    let mut client = TcpStream::connect(address).await.unwrap();
    let operation = world.connection().await;
    operation.accept(Bytes::new());
    world.stop.send_replace(true);
    while TcpStream::connect(address).await.is_ok() {}
    assert!(!world.serving.is_finished());
    operation.sender(OUT).send("still".into()).await.unwrap();
    let mut still = [0; 5];
    client.read_exact(&mut still).await.unwrap();
    drop(client);
    drop(operation);
    world.serving.await.unwrap();
}

#[tokio::test]
async fn packets_of_a_client_are_one_flow() {
    let world = World::new(Config::default()).await;
    let id = world.expose(Protocol::Udp, 0).await;
    let address = world.address(id).await;
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(address).await.unwrap();
    for packet in ["one", "two", ""] {
        client.send(packet.as_bytes()).await.unwrap();
    }
    let (operation, open) = world.agent.asked::<udp::Open>().await;
    assert_eq!(
        (open.target.port, open.target.transport),
        (7, Transport::Udp)
    );
    operation.accept(Bytes::new());
    let (sender, mut receiver) = operation.flow(Quota::default());
    for packet in ["one", "two", ""] {
        assert_eq!(receiver.packet().await, Ok(Some(packet.into())));
    }
    let mut buffer = vec![0; 65_536];
    for size in [0, 5, 8192, 60_000] {
        sender.send(vec![9; size].into());
        assert_eq!(client.recv(&mut buffer).await.unwrap(), size);
    }
    client.send(&vec![3; 30_000]).await.unwrap();
    assert_eq!(receiver.packet().await, Ok(Some(vec![3; 30_000].into())));
    let seen = &world.seeing.underway()[0];
    assert_eq!((seen.kind, seen.waits_for), (Kind::Udp, WaitsFor::Target));
    assert_eq!((seen.bytes_in, seen.bytes_out), (30_006, 68_197));
    // The target is gone: the next packet begins anew.
    done(
        operation,
        &Ending::Failed(failure(FailureCode::TARGET_REFUSED)),
    );
    let (operation, _) = loop {
        client.send(b"again").await.unwrap();
        let asked = world.agent.asked::<udp::Open>();
        if let Ok(asked) = tokio::time::timeout(Duration::from_millis(100), asked).await {
            break asked;
        }
    };
    operation.accept(Bytes::new());
    let (_sender, mut receiver) = operation.flow(Quota::default());
    assert_eq!(receiver.packet().await, Ok(Some("again".into())));
    world.unexpose(id).await;
    operation.ended().await;
}

#[tokio::test]
async fn a_silent_flow_is_over() {
    let config = Config {
        flow_idle: Duration::from_millis(300),
        ..Config::default()
    };
    let world = World::new(config).await;
    let id = world.expose(Protocol::Udp, 0).await;
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(world.address(id).await).await.unwrap();
    client.send(b"hello").await.unwrap();
    let (operation, _) = world.agent.asked::<udp::Open>().await;
    operation.accept(Bytes::new());
    operation.ended().await;
}
