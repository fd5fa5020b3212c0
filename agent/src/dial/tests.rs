//! Addresses, and races between them in simulated time.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hub_netsim::{
    HostId, SimSocket, seed_client_config, seed_server_config, seeded_endpoint_config,
};
use hub_protocol::Fingerprint;
use hub_quic::endpoint::Handshakes;
use hub_quic::tls::{ShownPins, enrollment_client, enrollment_server, spki_fingerprint};
use quinn::{AsyncUdpSocket, EndpointConfig, ServerConfig};
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

use super::*;
use crate::join::tests::Ca;

#[test]
fn addresses_have_the_usual_forms() {
    for (text, expected) in [
        ("hub.example", "hub.example:7443"),
        ("hub.example:99", "hub.example:99"),
        ("10.0.0.1", "10.0.0.1:7443"),
        ("10.0.0.1:99", "10.0.0.1:99"),
        ("2001:db8::1", "[2001:db8::1]:7443"),
        ("[2001:db8::1]", "[2001:db8::1]:7443"),
        ("[::1]:99", "[::1]:99"),
    ] {
        let address = HubAddress::parse(text, 7443).unwrap();
        assert_eq!(address.to_string(), expected);
        assert_eq!(expected.parse(), Ok(address));
    }
    for text in [
        "",
        ":99",
        "hub.example:",
        "hub.example:0",
        "hub.example:65536",
        "hub.example:+9",
        "a b",
        "https://hub.example",
        "hub.example/x",
        "[::1",
        "[::1]99",
        "[hub.example]:99",
        "::1:99:x",
    ] {
        assert!(HubAddress::parse(text, 7443).is_err(), "{text}");
    }
    assert!("hub.example".parse::<HubAddress>().is_err(), "no port");
}

#[test]
fn families_take_turns() {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let six = ["[::1]:1", "[::2]:1", "[::3]:1"].map(address);
    let four = ["1.1.1.1:1", "2.2.2.2:1"].map(address);
    let found = [six[0], six[1], six[2], four[0], six[0], four[1]];
    assert_eq!(
        take_turns(found),
        [six[0], four[0], six[1], four[1], six[2]]
    );
    assert_eq!(
        take_turns([four[0], six[0], four[1]]),
        [four[0], six[0], four[1]]
    );
    assert_eq!(take_turns([]), []);
    let many = (0..99).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    assert_eq!(take_turns(many).len(), MAX_ADDRESSES);
}

/// A host of a simulated network.
#[derive(Debug)]
struct Host {
    net: hub_netsim::Network,
    host: HostId,
}

impl Network for Host {
    fn bind(&self, local: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let socket: Arc<SimSocket> = self.net.bind(self.host, local.port())?;
        Ok(socket)
    }

    fn endpoint_config(&self) -> EndpointConfig {
        seeded_endpoint_config(self.net.derive_seed(&format!("{:?}", self.host)))
    }

    fn seed_client(&self, config: &mut ClientConfig) {
        seed_client_config(config, self.net.derive_seed("client"));
    }

    fn seed_server(&self, config: &mut ServerConfig) {
        seed_server_config(config, self.net.derive_seed("server"));
    }
}

#[derive(Debug)]
struct June2030;

impl TimeProvider for June2030 {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(
            1_906_502_400,
        )))
    }
}

struct Scene {
    net: hub_netsim::Network,
    agent: Host,
    hub: SocketAddr,
    transport: Transport,
    client: ClientConfig,
}

/// An agent 20 ms from a hub that lets anyone in.
fn scene() -> Scene {
    let net = hub_netsim::Network::new(1);
    let host = |name, address| Host {
        net: net.clone(),
        host: net.host(name, address),
    };
    let (hub, agent) = (host("hub", "203.0.113.1"), host("agent", "198.51.100.1"));
    let link = hub_netsim::LinkConfig::perfect().delay(Duration::from_millis(10));
    net.set_links(agent.host, &link);
    let ca = Ca::new();
    let certificate = ca.hub();
    let transport = Transport::enrollment(1, 4096);
    let tls = enrollment_server(&certificate, Arc::new(June2030)).unwrap();
    let config = endpoint::server_config(&hub, tls, &transport, &Handshakes::default());
    let any = (Ipv4Addr::UNSPECIFIED, 7444).into();
    let listener = endpoint::listener(&hub, any, &transport, config).unwrap();
    tokio::spawn(async move {
        while let Some(incoming) = listener.accept().await {
            if let Ok(connection) = incoming.await {
                tokio::spawn(async move { connection.closed().await });
            }
        }
    });
    let pin = spki_fingerprint(&certificate.current().chain()[1]).unwrap();
    let tls = enrollment_client(pin, ShownPins::default(), Arc::new(June2030)).unwrap();
    let client = endpoint::client_config(&agent, tls, &transport);
    Scene {
        net,
        agent,
        hub: "203.0.113.1:7444".parse().unwrap(),
        transport,
        client,
    }
}

impl Scene {
    async fn race(&self, addresses: &[SocketAddr]) -> Result<Dialled, DialError> {
        let hub = HubAddress::new("hub.example", 7444);
        let race = Race {
            network: &self.agent,
            hub: &hub,
            transport: &self.transport,
            client: &self.client,
            v4: None,
            v6: None,
        };
        race.run(addresses, Instant::now() + DIAL_TIMEOUT).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_literal_address_is_dialled_without_a_resolver() {
    let scene = scene();
    let hub = scene.hub.into();
    let dialled = dial(&scene.agent, &hub, &scene.transport, &scene.client)
        .await
        .unwrap();
    assert_eq!(dialled.address, scene.hub);
}

#[tokio::test(start_paused = true)]
async fn a_silent_address_delays_the_next_by_a_moment_only() {
    let scene = scene();
    let silent = ["203.0.113.8:7444", "203.0.113.9:7444"].map(|text| text.parse().unwrap());
    let dialled = scene
        .race(&[silent[0], silent[1], scene.hub])
        .await
        .unwrap();
    assert_eq!(dialled.address, scene.hub);
    let waited = scene.net.now();
    let round_trips = Duration::from_millis(100);
    assert!(
        waited >= 2 * STAGGER && waited < 2 * STAGGER + round_trips,
        "{waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn silence_is_told_as_such() {
    let scene = scene();
    scene.net.cut(scene.agent.host);
    let error = scene.race(&[scene.hub]).await.unwrap_err();
    assert!(error.retry_helps());
    assert_eq!(
        error.to_string(),
        "no UDP answer from hub.example:7444; is UDP blocked? Tried 203.0.113.1:7444 for 10 s"
    );
    let waited = scene.net.now();
    assert!(
        waited >= DIAL_TIMEOUT && waited < DIAL_TIMEOUT + STAGGER,
        "{waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_tells_more_than_silence() {
    let mut scene = scene();
    let other = Fingerprint::from_digest([1; 32]);
    let tls = enrollment_client(other, ShownPins::default(), Arc::new(June2030)).unwrap();
    scene.client = endpoint::client_config(&scene.agent, tls, &scene.transport);
    let silent = "203.0.113.8:7444".parse().unwrap();
    let error = scene.race(&[scene.hub, silent]).await.unwrap_err();
    assert!(matches!(&error, DialError::Handshake { address, .. } if *address == scene.hub));
    assert!(!error.retry_helps(), "{error}");
}

#[tokio::test]
async fn a_name_that_is_none_is_told_with_the_resolvers_words() {
    let scene = scene();
    let hub = HubAddress::new("hub.invalid", 7443);
    let error = dial(&scene.agent, &hub, &scene.transport, &scene.client)
        .await
        .unwrap_err();
    assert!(matches!(error, DialError::Resolve { .. }), "{error}");
    assert!(
        error
            .to_string()
            .starts_with("cannot find the address of hub.invalid:7443: ")
    );
}
