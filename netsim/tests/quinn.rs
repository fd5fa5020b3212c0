//! Two real quinn endpoints over the simulated network, in simulated time.
#![allow(clippy::unwrap_used, clippy::cast_precision_loss)]

use std::{io::IoSliceMut, net::SocketAddr, sync::Arc, time::Duration};

use hub_netsim::{
    DropReason, Event, HostId, LinkConfig, NatConfig, NatDrop, NatKind, Network, SocketConfig,
    Trace, TraceMode, seed_client_config, seed_server_config, seeded_endpoint_config,
};
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, ServerConfig, TokioRuntime,
    TransportConfig,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use rand::SeedableRng;
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519, SignatureAlgorithm};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer},
    server::WebPkiClientVerifier,
};

const MIB: usize = 1 << 20;
const PORT: u16 = 7443;

/// A certificate and its key. Ed25519, whose signatures all have the same size.
struct Identity {
    certificate: CertificateDer<'static>,
    key: KeyPair,
}

impl Identity {
    fn new() -> Self {
        Self::with_key(&PKCS_ED25519)
    }

    fn with_key(algorithm: &'static SignatureAlgorithm) -> Self {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let params = CertificateParams::new(vec!["hub".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self { certificate, key }
    }

    fn chain(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = PrivateKeyDer::try_from(self.key.serialize_der()).unwrap();
        (vec![self.certificate.clone()], key)
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        Arc::new(roots)
    }

    fn server_config(&self) -> ServerConfig {
        let (chain, key) = self.chain();
        let verifier = WebPkiClientVerifier::builder(self.roots()).build().unwrap();
        let tls = rustls::ServerConfig::builder()
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .unwrap();
        ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()))
    }

    fn client_config(&self) -> ClientConfig {
        let (chain, key) = self.chain();
        let tls = rustls::ClientConfig::builder()
            .with_root_certificates(self.roots())
            .with_client_auth_cert(chain, key)
            .unwrap();
        ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
    }
}

/// Both sides authenticate, as the handshake that has the most signatures.
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

#[test]
fn a_transfer_survives_every_impairment_at_once_and_repeats() {
    let identity = Identity::new();
    for seed in 0..10 {
        let link = LinkConfig::random(&mut rand_pcg::Pcg64::seed_from_u64(seed));
        let run = || transfer(seed, &identity, &link, MIB / 4, nothing);
        let (first, second) = (run(), run());
        assert_eq!(
            first.first_difference(&second),
            None,
            "seed {seed}, {link:?}"
        );
    }
}

#[test]
fn a_transfer_survives_rebinding_to_another_port_and_another_address() {
    let identity = Identity::new();
    let rebind = |net: Network, agent, _| async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        net.rebind_nat(agent);
        tokio::time::sleep(Duration::from_millis(600)).await;
        net.rebind_nat_to(agent, "198.51.100.2");
    };
    let trace = transfer(3, &identity, &lossy(), 4 * MIB, rebind);
    let mut seen: Vec<SocketAddr> = Vec::new();
    for record in trace
        .iter()
        .filter(|record| record.event == Event::Delivered)
    {
        let from_agent = record.dst.port() == PORT;
        if from_agent && !seen.contains(&record.src) {
            seen.push(record.src);
        }
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert_eq!(seen[0].ip(), seen[1].ip());
    assert_ne!(seen[1].ip(), seen[2].ip());
    // Behind a symmetric NAT the server's packets to the old ports died there.
    let refused = Event::Dropped(DropReason::Nat(NatDrop::NoMapping));
    assert!(trace.iter().any(|record| record.event == refused));
}

#[test]
fn a_blackout_shorter_than_the_idle_timeout_costs_only_time() {
    let identity = Identity::new();
    transfer(4, &identity, &lossy(), MIB, |net, agent, _| async move {
        tokio::time::sleep(Duration::from_millis(200)).await;
        net.blackout(agent, Duration::from_secs(8));
    });
}

#[test]
fn a_cut_host_is_noticed_at_the_idle_timeout() {
    let identity = Identity::new();
    in_simulated_time(async {
        let net = Network::new(5);
        let (hub, agent) = (
            net.host("hub", "203.0.113.1"),
            net.host("agent", "192.0.2.1"),
        );
        tokio::spawn(echo(server(&net, hub, &identity)));
        let client = client(&net, agent, &identity);
        let remote = SocketAddr::from(([203, 0, 113, 1], PORT));
        let connection = client.connect(remote, "hub").unwrap().await.unwrap();
        round_trip(&connection, b"hello").await;
        net.cut(agent);
        let cut_at = net.now();
        assert_eq!(connection.closed().await, ConnectionError::TimedOut);
        // quinn's default is 30 s after the last packet; the keep-alives lost since do not count.
        let silence = net.now().saturating_sub(cut_at);
        assert!((25..=40).contains(&silence.as_secs()), "{silence:?}");
    });
}

#[test]
fn quinn_finds_the_mtu_of_the_path_and_its_round_trip_time() {
    let identity = Identity::new();
    let link = LinkConfig::perfect()
        .delay(Duration::from_millis(20))
        .mtu(1400);
    let trace = transfer(6, &identity, &link, MIB, |_, _, connection| async move {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let path = connection.stats().path;
        assert!(
            (1350..=1372).contains(&path.current_mtu),
            "{}",
            path.current_mtu
        );
        assert!((40..=45).contains(&path.rtt.as_millis()), "{:?}", path.rtt);
        assert_eq!(path.lost_packets, 0);
    });
    let largest = trace
        .iter()
        .filter(|r| r.event == Event::Delivered)
        .map(|r| r.size)
        .max();
    assert!(
        largest.is_some_and(|size| (1350..=1372).contains(&size)),
        "{largest:?}"
    );
}

#[test]
fn a_rate_limit_sets_the_pace() {
    let identity = Identity::new();
    let link = LinkConfig::perfect()
        .delay(Duration::from_millis(10))
        .rate(20_000_000, 100_000);
    let trace = transfer(7, &identity, &link, 4 * MIB, nothing);
    let last = trace.iter().last().unwrap().at.as_secs_f64();
    // There and back one after the other, as the echo begins when all has come.
    let ideal = 2.0 * (4 * MIB * 8) as f64 / 20e6;
    assert!(
        (ideal..ideal * 1.5).contains(&last),
        "{last} s, ideal {ideal} s"
    );
}

#[test]
fn fifty_agents_at_once_repeat() {
    let identity = Identity::new();
    let run = |seed| {
        in_simulated_time(async {
            let net = Network::with_trace(seed, TraceMode::Digest);
            let hub = net.host("hub", "203.0.113.1");
            let server = server(&net, hub, &identity);
            tokio::spawn(echo(server.clone()));
            let agents = (0..50).map(|i| {
                let (name, external) = (format!("agent {i}"), format!("198.51.100.{i}"));
                let nat = NatConfig::new(NatKind::PortRestricted);
                let agent = net.host_behind_nat(&name, "10.0.0.2", nat, &external);
                net.set_links(agent, &lossy());
                let client = client(&net, agent, &identity);
                tokio::spawn(async move {
                    let remote = SocketAddr::from(([203, 0, 113, 1], PORT));
                    let connection = client.connect(remote, "hub").unwrap().await.unwrap();
                    let sent = content(50_000 + i);
                    assert!(round_trip(&connection, &sent).await == sent);
                    connection.close(0_u32.into(), b"");
                    client.wait_idle().await;
                })
            });
            for agent in agents.collect::<Vec<_>>() {
                agent.await.unwrap();
            }
            net.trace()
        })
    };
    let (first, second, other) = (run(8), run(8), run(9));
    assert_eq!(first, second);
    assert_ne!(first, other);
}

#[tokio::test(start_paused = true)]
async fn marks_and_segments_pass_through_the_socket() {
    use quinn::{
        AsyncUdpSocket,
        udp::{EcnCodepoint, RecvMeta, Transmit},
    };
    let net = Network::new(10);
    let config = SocketConfig {
        max_transmit_segments: 10,
        ..SocketConfig::default()
    };
    let address = |host: &str| SocketAddr::new(host.parse().unwrap(), 9);
    let [a, b] = ["192.0.2.1", "192.0.2.2"].map(|host| {
        net.bind_with(net.host("host", host), address(host), config)
            .unwrap()
    });
    assert_eq!(AsyncUdpSocket::max_transmit_segments(&*a), 10);
    assert!(!a.may_fragment());
    let transmit = Transmit {
        destination: address("192.0.2.2"),
        ecn: Some(EcnCodepoint::Ce),
        contents: &content(2500),
        segment_size: Some(1000),
        src_ip: None,
    };
    a.try_send(&transmit).unwrap();
    let mut storage = vec![[0; 900]; 4];
    let (mut got, mut metas) = (0, [RecvMeta::default(); 4]);
    while got < 3 {
        got += std::future::poll_fn(|cx| {
            let mut bufs: Vec<_> = storage
                .iter_mut()
                .skip(got)
                .map(|b| IoSliceMut::new(b))
                .collect();
            b.poll_recv(cx, &mut bufs, &mut metas[got..])
        })
        .await
        .unwrap();
    }
    // Three datagrams, the first two cut off at the size of the buffer.
    assert_eq!(
        metas[..3].iter().map(|meta| meta.len).collect::<Vec<_>>(),
        [900, 900, 500]
    );
    for (meta, (buf, sent)) in metas[..3]
        .iter()
        .zip(storage.iter().zip(content(2500).chunks(1000)))
    {
        assert_eq!(buf[..meta.len], sent[..meta.len]);
        assert_eq!(meta.ecn, Some(EcnCodepoint::Ce));
        assert_eq!(
            (meta.addr, meta.dst_ip),
            (address("192.0.2.1"), Some("192.0.2.2".parse().unwrap()))
        );
    }
    let sizes: Vec<_> = net
        .trace()
        .iter()
        .filter(|r| r.event == Event::Sent)
        .map(|r| r.size)
        .collect();
    assert_eq!(sizes, [1000, 1000, 500]);
}
