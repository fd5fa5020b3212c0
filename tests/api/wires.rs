//! TCP and UDP exposures with a real agent: real sockets at both ends.

use std::net::SocketAddr;
use std::time::Duration;

use hub_ledger::Protocol;
use hub_protocol::target::Target;
use hub_server::hub::{WantedExposure, WantedReplica};
use hub_server::wires::Listening;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::world::{NODE, World};

const PATIENCE: Duration = Duration::from_secs(30);

/// Where the hub listens for a port of the node.
async fn expose(world: &World, protocol: Protocol, port: u16) -> SocketAddr {
    let target = Target {
        transport: protocol.transport(),
        ..Target::tcp(port)
    };
    let replica = WantedReplica {
        node: NODE.into(),
        target,
    };
    let wanted = WantedExposure {
        protocol,
        replicas: vec![replica],
        listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        ..WantedExposure::default()
    };
    let hub = world.server.hub();
    let made = hub.expose_wanted(wanted).await.unwrap();
    let id = made.located.exposure.id;
    match hub.wires().settled(id, PATIENCE).await {
        Some(Listening::At(address)) => {
            let shown = made
                .urls
                .iter()
                .any(|url| url.ends_with(&format!(":{}", address.port())));
            assert!(shown, "{:?}", made.urls);
            address
        }
        other => panic!("{other:?}"),
    }
}

/// On a remote node and on the hub's own machine.
async fn on_both(test: impl AsyncFn(&World)) {
    for world in [World::node().await, World::local().await] {
        timeout(PATIENCE, test(&world)).await.expect("it hangs");
        world.stop().await;
    }
}

#[tokio::test]
async fn a_connection_goes_to_the_target_and_back() {
    on_both(async |world| {
        let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = target.local_addr().unwrap().port();
        let address = expose(world, Protocol::Tcp, port).await;
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut served, _) = target.accept().await.unwrap();
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut question = String::new();
        served.read_to_string(&mut question).await.unwrap();
        assert_eq!(question, "question");
        served.write_all(b"answer").await.unwrap();
        drop(served);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "answer");
        // The other way: the target ends first.
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut served, _) = target.accept().await.unwrap();
        served.write_all(b"banner").await.unwrap();
        served.shutdown().await.unwrap();
        let mut banner = String::new();
        client.read_to_string(&mut banner).await.unwrap();
        client.write_all(b"late").await.unwrap();
        client.shutdown().await.unwrap();
        let mut late = String::new();
        served.read_to_string(&mut late).await.unwrap();
        assert_eq!((banner.as_str(), late.as_str()), ("banner", "late"));
        // A target that resets is a connection that is reset.
        let mut client = TcpStream::connect(address).await.unwrap();
        let (served, _) = target.accept().await.unwrap();
        served.set_zero_linger().unwrap();
        drop(served);
        let error = client.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    })
    .await;
}

#[tokio::test]
async fn packets_go_to_the_target_and_back() {
    on_both(async |world| {
        let target = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = target.local_addr().unwrap().port();
        let address = expose(world, Protocol::Udp, port).await;
        let clients = [
            UdpSocket::bind("127.0.0.1:0").await.unwrap(),
            UdpSocket::bind("127.0.0.1:0").await.unwrap(),
        ];
        let mut buffer = vec![0; 65_536];
        let mut seen = Vec::new();
        for client in &clients {
            client.connect(address).await.unwrap();
            for size in [0, 40, 1200, 1472, 8192, 50_000] {
                client.send(&vec![size as u8; size]).await.unwrap();
                let (read, from) = target.recv_from(&mut buffer).await.unwrap();
                assert_eq!(&buffer[..read], vec![size as u8; size]);
                target.send_to(&buffer[..read], from).await.unwrap();
                assert_eq!(client.recv(&mut buffer).await.unwrap(), size);
                seen.push(from);
            }
        }
        seen.dedup();
        assert_eq!(seen.len(), 2, "one flow for each client");
        // A target that goes: its machine says so, and the next packet begins anew.
        drop(target);
        let client = &clients[0];
        client.send(b"anybody?").await.unwrap();
        let operations = || {
            world.server.hub().sessions().all()[0]
                .1
                .session
                .operations()
        };
        while operations() > 1 {
            tokio::task::yield_now().await;
        }
        let target = UdpSocket::bind(("127.0.0.1", port)).await.unwrap();
        client.send(b"again").await.unwrap();
        let (read, from) = target.recv_from(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..read], b"again");
        assert!(!seen.contains(&from));
    })
    .await;
}

/// A target that is at the machine's IPv6 address only.
#[tokio::test]
async fn the_other_address_of_a_machine_is_tried() {
    let Ok(target) = UdpSocket::bind("[::1]:0").await else {
        println!("skipped: this machine has no IPv6");
        return;
    };
    let world = World::node().await;
    let port = target.local_addr().unwrap().port();
    let address = expose(&world, Protocol::Udp, port).await;
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(address).await.unwrap();
    client.send(b"question").await.unwrap();
    let mut buffer = [0; 16];
    let (read, from) = timeout(PATIENCE, target.recv_from(&mut buffer))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&buffer[..read], b"question");
    target.send_to(b"answer", from).await.unwrap();
    let read = timeout(PATIENCE, client.recv(&mut buffer))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&buffer[..read], b"answer");
    world.stop().await;
}
