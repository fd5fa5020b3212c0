//! Two real quinn endpoints over the simulated network, in simulated time.
#![allow(clippy::unwrap_used)]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use hub_netsim::{
    HostId, LinkConfig, NatConfig, NatKind, Network, Trace, seed_client_config, seed_server_config,
    seeded_endpoint_config,
};
use quinn::{ClientConfig, Connection, Endpoint, ServerConfig, TokioRuntime, TransportConfig};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

const MIB: usize = 1 << 20;
const PORT: u16 = 7443;

/// A certificate and its key. Ed25519, whose signatures all have the same size.
struct Identity {
    certificate: CertificateDer<'static>,
    key: KeyPair,
}

impl Identity {
    fn new() -> Self {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let params = CertificateParams::new(vec!["hub".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self { certificate, key }
    }

    fn server_config(&self) -> ServerConfig {
        let key = PrivateKeyDer::try_from(self.key.serialize_der()).unwrap();
        ServerConfig::with_single_cert(vec![self.certificate.clone()], key).unwrap()
    }

    fn client_config(&self) -> ClientConfig {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        ClientConfig::with_root_certificates(Arc::new(roots)).unwrap()
    }
}

fn server(net: &Network, host: HostId, identity: &Identity) -> Endpoint {
    let mut config = identity.server_config();
    config.migration(true);
    seed_server_config(&mut config, net.derive_seed("server"));
    let seeded = seeded_endpoint_config(net.derive_seed(&net.name(host)));
    let socket = net.bind(host, PORT).unwrap();
    Endpoint::new_with_abstract_socket(seeded, Some(config), socket, Arc::new(TokioRuntime))
        .unwrap()
}

fn client(net: &Network, host: HostId, identity: &Identity) -> Endpoint {
    let label = net.name(host);
    let mut config = identity.client_config();
    let mut transport = TransportConfig::default();
    transport.keep_alive_interval(Some(Duration::from_secs(5)));
    config.transport_config(Arc::new(transport));
    seed_client_config(&mut config, net.derive_seed(&label));
    let seeded = seeded_endpoint_config(net.derive_seed(&label));
    let socket = net.bind(host, 0).unwrap();
    let mut endpoint =
        Endpoint::new_with_abstract_socket(seeded, None, socket, Arc::new(TokioRuntime)).unwrap();
    endpoint.set_default_client_config(config);
    endpoint
}

/// Accepts connections and sends back what each of their streams brought.
async fn echo(endpoint: Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let Ok(connection) = incoming.await else {
                return;
            };
            while let Ok((mut send, mut recv)) = connection.accept_bi().await {
                let Ok(bytes) = recv.read_to_end(64 * MIB).await else {
                    return;
                };
                if send.write_all(&bytes).await.is_err() || send.finish().is_err() {
                    return;
                }
            }
        });
    }
}

async fn round_trip(connection: &Connection, bytes: &[u8]) -> Vec<u8> {
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    let writing = async {
        send.write_all(bytes).await.unwrap();
        send.finish().unwrap();
    };
    let (echoed, ()) = tokio::join!(biased; recv.read_to_end(64 * MIB), writing);
    echoed.unwrap()
}

/// Bytes that differ everywhere, so that one out of place is noticed.
fn content(len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

fn in_simulated_time<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(test)
}

/// One transfer of `len` bytes there and back between a server and a client behind a NAT. The
/// network is handed to `meanwhile`, which runs beside the transfer.
fn transfer<F: Future<Output = ()>>(
    seed: u64,
    identity: &Identity,
    link: &LinkConfig,
    len: usize,
    meanwhile: impl FnOnce(Network, HostId, Connection) -> F,
) -> Trace {
    in_simulated_time(async {
        let net = Network::new(seed);
        let hub = net.host("hub", "203.0.113.1");
        let nat = NatConfig::new(NatKind::Symmetric);
        let agent = net.host_behind_nat("agent", "10.0.0.2", nat, "198.51.100.1");
        net.set_links(agent, link);
        let server = server(&net, hub, identity);
        let accepting = tokio::spawn(echo(server.clone()));
        let client = client(&net, agent, identity);

        let remote = SocketAddr::from(([203, 0, 113, 1], PORT));
        let connection = client.connect(remote, "hub").unwrap().await.unwrap();
        let sent = content(len);
        let beside = meanwhile(net.clone(), agent, connection.clone());
        let (received, ()) = tokio::join!(biased; round_trip(&connection, &sent), beside);
        assert!(
            received == sent,
            "{} bytes came back changed",
            received.len()
        );

        connection.close(0_u32.into(), b"");
        client.wait_idle().await;
        server.close(0_u32.into(), b"");
        server.wait_idle().await;
        drop((connection, client, server));
        accepting.await.unwrap();
        // The endpoints' own tasks end when nobody needs them, and take the sockets along.
        while net.open_sockets(hub) + net.open_sockets(agent) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        net.trace()
    })
}

fn lossy() -> LinkConfig {
    LinkConfig::perfect()
        .delay(Duration::from_millis(20))
        .loss(0.02)
}

async fn nothing(_: Network, _: HostId, _: Connection) {}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    let identity = Identity::new();
    let run = |seed| transfer(seed, &identity, &lossy(), MIB, nothing);
    let first = run(1);
    for again in 0..5 {
        let other = run(1);
        if let Some((index, mine, theirs)) = first.first_difference(&other) {
            let show = |record: Option<&_>| record.map_or("end".to_owned(), ToString::to_string);
            panic!(
                "run {again}, record {index}: {} / {}",
                show(mine),
                show(theirs)
            );
        }
        assert_eq!(first, other);
    }
    assert_ne!(first.digest(), run(2).digest());
    let counts = first.counts();
    assert!(counts.dropped > 0);
    assert!(counts.sent > 2 * (MIB / 1452) as u64, "{counts:?}");
}
