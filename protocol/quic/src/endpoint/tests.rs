//! Endpoints over loopback.

#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;

use bytes::Bytes;
use futures_util::FutureExt as _;
use quinn::{Connection, ConnectionError, TransportErrorCode};

use super::*;
use crate::tls::tests::{Ca, Leaf, now};
use crate::tls::{HUB_NAME, operational_client, operational_server};

const WINDOWS: Windows = Windows {
    stream: 1 << 20,
    session: 4 << 20,
    reserve: 1 << 20,
};

struct Ends {
    listener: Endpoint,
    dialler: Endpoint,
    client: ClientConfig,
}

impl Ends {
    fn open(handshakes: &Handshakes) -> Self {
        let (ca, udp) = (Ca::new(), UdpNetwork::default());
        let (hub, agent) = (Transport::hub(WINDOWS), Transport::agent(WINDOWS));
        let server = operational_server(&ca.hub(), &ca.trust(), now()).unwrap();
        let server = server_config(&udp, server, &hub, handshakes);
        let client = operational_client(&ca.issue(&Leaf::node()), &ca.trust(), now()).unwrap();
        let local = (Ipv4Addr::LOCALHOST, 0).into();
        Self {
            listener: listener(&udp, local, &hub, server).unwrap(),
            dialler: dialler(&udp, local, &agent).unwrap(),
            client: client_config(&udp, client, &agent),
        }
    }

    async fn dial(&self) -> Result<Connection, ConnectionError> {
        let address = self.listener.local_addr().unwrap();
        self.dialler
            .connect_with(self.client.clone(), address, HUB_NAME)
            .unwrap()
            .await
    }
}

#[tokio::test]
async fn an_address_proves_itself_when_many_handshakes_are_under_way() {
    let handshakes = Handshakes {
        retry_from: 64,
        ..Handshakes::default()
    };
    let ends = Ends::open(&handshakes);
    let accept = async {
        let first = ends.listener.accept().await.unwrap();
        assert!(!first.remote_address_validated());
        assert!(
            admit(first, 64, &handshakes).is_none(),
            "it has to come again"
        );
        let second = ends.listener.accept().await.unwrap();
        assert!(second.remote_address_validated());
        admit(second, 64, &handshakes).unwrap().await
    };
    let (dialled, accepted) = tokio::join!(ends.dial(), accept);
    dialled.unwrap();
    accepted.unwrap();
}

#[tokio::test]
async fn beyond_the_most_handshakes_an_attempt_is_refused_at_once() {
    let handshakes = Handshakes {
        max: 2,
        ..Handshakes::default()
    };
    let ends = Ends::open(&handshakes);
    let accept = async { admit(ends.listener.accept().await.unwrap(), 2, &handshakes) };
    let (dialled, accepted) = tokio::join!(ends.dial(), accept);
    assert!(accepted.is_none());
    let error = dialled.unwrap_err();
    let ConnectionError::ConnectionClosed(close) = &error else {
        panic!("{error}")
    };
    assert_eq!(close.error_code, TransportErrorCode::CONNECTION_REFUSED);
}

/// Batches of such packets exceed what the kernel takes in one call. Sent whole they are lost, which
/// looks like a black hole on the path, and everything goes on in the smallest packets.
#[tokio::test]
async fn bulk_arrives_in_jumbo_packets() {
    const BYTES: usize = 64 << 20;
    let ends = Ends::open(&Handshakes::default());
    let accept = async { ends.listener.accept().await.unwrap().await.unwrap() };
    let (dialled, hub) = tokio::join!(ends.dial(), accept);
    let agent = dialled.unwrap();
    let send = async {
        let (mut send, _) = hub.open_bi().await.unwrap();
        let chunk = Bytes::from(vec![7; 64 << 10]);
        for _ in 0..BYTES / chunk.len() {
            send.write_chunk(chunk.clone()).await.unwrap();
        }
        send.finish().unwrap();
        send.stopped().await.unwrap();
    };
    let receive = async {
        let (_, mut receive) = agent.accept_bi().await.unwrap();
        let mut bytes = 0;
        while let Some(chunk) = receive.read_chunk(usize::MAX, true).await.unwrap() {
            bytes += chunk.bytes.len();
        }
        bytes
    };
    let ((), received) = tokio::join!(send, receive);
    assert_eq!(received, BYTES);
    let path = hub.stats().path;
    assert_eq!(path.black_holes_detected, 0, "{path:?}");
    assert_eq!(path.current_mtu, MAX_UDP_PAYLOAD, "{path:?}");
}

#[tokio::test]
async fn the_limits_hold() {
    let ends = Ends::open(&Handshakes::default());
    let accept = async { ends.listener.accept().await.unwrap().await.unwrap() };
    let (dialled, hub) = tokio::join!(ends.dial(), accept);
    let agent = dialled.unwrap();
    let mut streams = Vec::new();
    for _ in 0..INITIAL_OPERATIONS {
        streams.push(hub.open_bi().await.unwrap());
    }
    assert!(hub.open_bi().now_or_never().is_none());
    for _ in 0..AGENT_STREAMS {
        streams.push(agent.open_bi().await.unwrap());
    }
    assert!(agent.open_bi().now_or_never().is_none());
    assert!(agent.open_uni().now_or_never().is_none());
    assert!(
        agent.max_datagram_size().is_some(),
        "UDP rides on datagrams"
    );
}
