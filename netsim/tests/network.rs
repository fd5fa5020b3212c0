//! The network through its public face, with bare datagrams in simulated time.
#![allow(clippy::unwrap_used)]

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use hub_netsim::{
    Direction, DropReason, Event, HostId, LinkConfig, LinkDrop, NatConfig, NatDrop, NatKind,
    Network, SimSocket, SocketConfig, TraceMode,
};
use proptest::prelude::*;
use rand::SeedableRng;
use tokio::time::{Instant, sleep, timeout};

const MS: Duration = Duration::from_millis(1);

async fn receive(socket: &SimSocket) -> Option<(SocketAddr, Vec<u8>)> {
    let received = timeout(60_000 * MS, socket.recv_from()).await.ok()?;
    received.ok().map(|(src, payload)| (src, payload.to_vec()))
}

fn drops(net: &Network) -> Vec<DropReason> {
    let dropped = |event| match event {
        Event::Dropped(reason) => Some(reason),
        _ => None,
    };
    net.trace()
        .iter()
        .filter_map(|record| dropped(record.event))
        .collect()
}

/// A server and, behind a NAT, a client with a way of 20 ms to the core.
struct Pair {
    net: Network,
    client_host: HostId,
    server: Arc<SimSocket>,
    client: Arc<SimSocket>,
}

impl Pair {
    fn new(kind: NatKind) -> Self {
        let net = Network::new(1);
        let server_host = net.host("server", "203.0.113.1");
        let nat = NatConfig::new(kind);
        let client_host = net.host_behind_nat("client", "10.0.0.2", nat, "198.51.100.1");
        net.set_links(client_host, &LinkConfig::perfect().delay(20 * MS));
        let server = net.bind(server_host, 7443).unwrap();
        let client = net.bind(client_host, 0).unwrap();
        Self {
            net,
            client_host,
            server,
            client,
        }
    }

    fn ping(&self) {
        self.client
            .send_to(self.server.local_addr(), b"ping")
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_packet_and_its_answer_take_their_time_through_the_nat() {
    let pair = Pair::new(NatKind::Symmetric);
    let start = Instant::now();
    pair.ping();
    let (src, ping) = receive(&pair.server).await.unwrap();
    assert_eq!(
        (src.ip().to_string().as_str(), &ping[..]),
        ("198.51.100.1", &b"ping"[..])
    );
    assert_eq!(start.elapsed(), 20 * MS);
    pair.server.send_to(src, b"pong").unwrap();
    assert_eq!(
        receive(&pair.client).await,
        Some((pair.server.local_addr(), b"pong".to_vec()))
    );
    assert_eq!(start.elapsed(), 40 * MS);
    assert_eq!(pair.net.in_flight(), 0);
    let stats = pair.net.stats(pair.client_host);
    assert_eq!((stats.sent_packets, stats.sent_bytes), (1, 4));
    assert_eq!((stats.received_packets, stats.received_bytes), (1, 4));
}

#[tokio::test(start_paused = true)]
async fn a_reader_is_woken_only_when_there_is_something_to_read() {
    let pair = Pair::new(NatKind::FullCone);
    let woken = Arc::new(CountingWaker::default());
    let waker = std::task::Waker::from(woken.clone());
    let mut cx = std::task::Context::from_waker(&waker);
    let mut reading = std::pin::pin!(pair.server.recv_from());
    assert!(reading.as_mut().poll(&mut cx).is_pending());
    pair.ping();
    sleep(19 * MS).await;
    assert_eq!(woken.count(), 0);
    sleep(2 * MS).await;
    assert_eq!(woken.count(), 1);
    // A second packet meets nobody who waits.
    pair.ping();
    sleep(30 * MS).await;
    assert_eq!(woken.count(), 1);
    assert!(reading.as_mut().poll(&mut cx).is_ready());
}

#[derive(Default)]
struct CountingWaker(std::sync::atomic::AtomicUsize);

impl CountingWaker {
    fn count(&self) -> usize {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

impl std::task::Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_dials_in_through_a_nat() {
    let pair = Pair::new(NatKind::PortRestricted);
    let stranger = pair.net.host("stranger", "203.0.113.2");
    let stranger = pair.net.bind(stranger, 0).unwrap();
    pair.ping();
    let (external, _) = receive(&pair.server).await.unwrap();
    stranger.send_to(external, b"hello").unwrap();
    let closed = SocketAddr::new(external.ip(), external.port() ^ 1);
    pair.server.send_to(closed, b"hello").unwrap();
    pair.server
        .send_to("10.0.0.2:49152".parse().unwrap(), b"hello")
        .unwrap();
    sleep(100 * MS).await;
    let expected = [
        DropReason::Nat(NatDrop::Filtered),
        DropReason::Nat(NatDrop::NoMapping),
        DropReason::NoRoute,
    ];
    assert_eq!(drops(&pair.net), expected);
}

#[tokio::test(start_paused = true)]
async fn hosts_behind_one_nat_reach_each_other_and_by_its_public_address_too() {
    let net = Network::new(1);
    let nat = net.nat(NatConfig::new(NatKind::FullCone), "198.51.100.1");
    let sockets = ["10.0.0.2", "10.0.0.3"]
        .map(|address| net.bind(net.host_behind("host", address, nat), 0).unwrap());
    let [a, b] = &sockets;
    a.send_to(b.local_addr(), b"direct").unwrap();
    assert_eq!(receive(b).await.unwrap().0, a.local_addr());

    let server = net.bind(net.host("server", "203.0.113.1"), 1).unwrap();
    b.send_to(server.local_addr(), b"").unwrap();
    let external = receive(&server).await.unwrap().0;
    a.send_to(external, b"hairpin").unwrap();
    let (src, payload) = receive(b).await.unwrap();
    assert_eq!((src.ip(), &payload[..]), (external.ip(), &b"hairpin"[..]));
}

#[tokio::test(start_paused = true)]
async fn rebinding_shows_a_new_port_or_address_and_closes_the_old() {
    let pair = Pair::new(NatKind::FullCone);
    pair.ping();
    let (before, _) = receive(&pair.server).await.unwrap();
    pair.net.rebind_nat(pair.client_host);
    pair.server.send_to(before, b"late").unwrap();
    pair.ping();
    let (after, _) = receive(&pair.server).await.unwrap();
    assert_eq!(after.ip(), before.ip());
    assert_ne!(after.port(), before.port());
    assert_eq!(drops(&pair.net), [DropReason::Nat(NatDrop::NoMapping)]);

    pair.net.rebind_nat_to(pair.client_host, "198.51.100.77");
    pair.server.send_to(after, b"late").unwrap();
    pair.ping();
    let (moved, _) = receive(&pair.server).await.unwrap();
    assert_eq!(moved.ip().to_string(), "198.51.100.77");
    assert_eq!(drops(&pair.net)[1..], [DropReason::NoRoute]);
    pair.server.send_to(moved, b"pong").unwrap();
    assert!(receive(&pair.client).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn cuts_and_blackouts_lose_what_is_in_flight_and_end() {
    let pair = Pair::new(NatKind::FullCone);
    pair.ping();
    sleep(10 * MS).await;
    pair.net.cut(pair.client_host);
    pair.ping();
    sleep(100 * MS).await;
    assert_eq!(drops(&pair.net), [DropReason::Unplugged; 2]);
    pair.net.heal(pair.client_host);
    pair.ping();
    assert!(receive(&pair.server).await.is_some());

    pair.net.blackout(pair.client_host, 1000 * MS);
    sleep(999 * MS).await;
    pair.ping();
    sleep(MS).await;
    pair.ping();
    assert!(receive(&pair.server).await.is_some());
    assert_eq!(drops(&pair.net), [DropReason::Unplugged; 3]);
    assert_eq!(
        pair.net.stats(pair.client_host).drops[&DropReason::Unplugged],
        3
    );
}

#[tokio::test(start_paused = true)]
async fn the_receive_queue_is_bounded_and_the_mtu_counts_headers() {
    let net = Network::new(1);
    let (a, b) = (net.host("a", "192.0.2.1"), net.host("b", "192.0.2.2"));
    let sender = net.bind(a, 0).unwrap();
    let config = SocketConfig {
        receive_queue_bytes: 3000,
        ..SocketConfig::default()
    };
    let receiver = net
        .bind_with(b, "192.0.2.2:9".parse().unwrap(), config)
        .unwrap();
    for size in [1472, 1473, 1472, 57, 56, 1] {
        sender
            .send_to(receiver.local_addr(), &vec![7; size])
            .unwrap();
    }
    sleep(MS).await;
    let too_big = DropReason::Link(LinkDrop::TooBig);
    assert_eq!(
        drops(&net),
        [
            too_big,
            DropReason::ReceiveQueueFull,
            DropReason::ReceiveQueueFull
        ]
    );
    for size in [1472, 1472, 56] {
        assert_eq!(receive(&receiver).await.unwrap().1.len(), size);
    }
    // What was read makes room again.
    sender.send_to(receiver.local_addr(), &[7; 1000]).unwrap();
    assert_eq!(receive(&receiver).await.unwrap().1.len(), 1000);

    net.add_address(a, "2001:db8::1");
    net.add_address(b, "2001:db8::2");
    let v6 = |host, address: &str| {
        net.bind_with(host, address.parse().unwrap(), SocketConfig::default())
            .unwrap()
    };
    let (sender, receiver) = (v6(a, "[2001:db8::1]:9"), v6(b, "[2001:db8::2]:9"));
    for size in [1452, 1453] {
        sender
            .send_to(receiver.local_addr(), &vec![7; size])
            .unwrap();
    }
    assert_eq!(receive(&receiver).await.unwrap().1.len(), 1452);
    assert_eq!(drops(&net)[3..], [too_big]);
    let other_family = sender
        .send_to("192.0.2.2:9".parse().unwrap(), b"")
        .unwrap_err();
    assert_eq!(other_family.kind(), io::ErrorKind::InvalidInput);
}

#[tokio::test(start_paused = true)]
async fn a_corrupted_packet_arrives_with_one_bit_flipped() {
    let pair = Pair::new(NatKind::FullCone);
    pair.net.set_link(
        pair.client_host,
        Direction::Up,
        LinkConfig::perfect().corrupt(1.0),
    );
    pair.ping();
    let (_, payload) = receive(&pair.server).await.unwrap();
    let flipped: u32 = payload
        .iter()
        .zip(b"ping")
        .map(|(a, b)| (a ^ b).count_ones())
        .sum();
    assert_eq!(flipped, 1);
    assert_eq!(pair.net.trace().counts().corrupted, 1);
}

#[tokio::test(start_paused = true)]
async fn ports_are_given_out_in_order_and_are_free_again_when_a_socket_is_dropped() {
    let net = Network::new(1);
    let host = net.host("host", "192.0.2.1");
    let first = net.bind(host, 0).unwrap();
    let second = net.bind(host, 0).unwrap();
    assert_eq!(
        (first.local_addr().port(), second.local_addr().port()),
        (49_152, 49_153)
    );
    let taken = net.bind(host, 49_152).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    let foreign = "192.0.2.9:1".parse().unwrap();
    let foreign = net
        .bind_with(host, foreign, SocketConfig::default())
        .unwrap_err();
    assert_eq!(foreign.kind(), io::ErrorKind::AddrNotAvailable);
    drop(first);
    assert_eq!(net.open_sockets(host), 1);
    assert!(net.bind(host, 49_152).is_ok());

    // The whole range is used before a port comes round again, past those still in use.
    let ports: Vec<_> = (0..16_382)
        .map(|_| net.bind(host, 0).unwrap().local_addr().port())
        .collect();
    assert_eq!(ports.last(), Some(&u16::MAX));
    assert_eq!(net.bind(host, 0).unwrap().local_addr().port(), 49_152);
    assert_eq!(net.bind(host, 0).unwrap().local_addr().port(), 49_154);
}

#[tokio::test(start_paused = true)]
async fn a_removed_host_fails_its_readers_and_frees_its_addresses() {
    let pair = Pair::new(NatKind::FullCone);
    pair.ping();
    let (external, _) = receive(&pair.server).await.unwrap();
    pair.server.send_to(external, b"pong").unwrap();
    let client = pair.client.clone();
    let reading = tokio::spawn(async move { client.recv_from().await.map(drop) });
    tokio::task::yield_now().await;
    pair.net.remove_host(pair.client_host);
    pair.net.remove_host(pair.client_host);
    let error = reading.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotConnected);
    pair.ping();
    pair.server.send_to(external, b"pong").unwrap();
    sleep(100 * MS).await;
    assert_eq!(
        drops(&pair.net),
        [
            DropReason::Unplugged,
            DropReason::NoRoute,
            DropReason::Unplugged
        ]
    );
    let nat = NatConfig::default();
    pair.net
        .host_behind_nat("successor", "10.0.0.2", nat, "198.51.100.1");
}

#[tokio::test(start_paused = true)]
async fn thousands_of_hosts_come_and_go_and_leave_nothing_behind() {
    let net = Network::with_trace(1, TraceMode::Digest);
    let server_host = net.host("server", "203.0.113.1");
    let server = net.bind(server_host, 7443).unwrap();
    for _ in 0..10_000 {
        let nat = NatConfig::new(NatKind::Symmetric);
        let host = net.host_behind_nat("agent", "10.0.0.2", nat, "198.51.100.1");
        let socket = net.bind(host, 0).unwrap();
        socket.send_to(server.local_addr(), b"hello").unwrap();
        let (src, _) = server.recv_from().await.unwrap();
        server.send_to(src, b"welcome").unwrap();
        socket.recv_from().await.unwrap();
        assert_eq!((net.open_sockets(host), net.nat_mappings(host)), (1, 1));
        drop(socket);
        net.remove_host(host);
        assert_eq!(net.in_flight(), 0);
    }
    let trace = net.trace();
    assert_eq!(
        (trace.counts().delivered, trace.iter().count()),
        (20_000, 0)
    );
    assert_eq!(net.open_sockets(server_host), 1);
}

#[tokio::test(start_paused = true)]
async fn the_network_ends_with_its_last_handle() {
    let pair = Pair::new(NatKind::FullCone);
    pair.ping();
    sleep(MS).await;
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    assert_eq!(tasks(), 1);
    drop(pair);
    tokio::task::yield_now().await;
    assert_eq!(tasks(), 0);
}

/// Eight hosts, half of them behind NATs, send at random to the two servers, which answer.
async fn chatter(seed: u64, mode: TraceMode, packets: usize) -> Network {
    let mut rng = rand_pcg::Pcg64::seed_from_u64(seed);
    let net = Network::with_trace(seed, mode);
    let servers: Vec<_> = (1..=2)
        .map(|i| {
            net.bind(net.host("server", &format!("203.0.113.{i}")), 7443)
                .unwrap()
        })
        .collect();
    let clients: Vec<_> = (1..=8)
        .map(|i| {
            let host = if i % 2 == 0 {
                net.host("client", &format!("192.0.2.{i}"))
            } else {
                let external = format!("198.51.100.{i}");
                net.host_behind_nat("client", "10.0.0.2", NatConfig::default(), &external)
            };
            net.set_link(host, Direction::Up, LinkConfig::random(&mut rng));
            net.set_link(host, Direction::Down, LinkConfig::random(&mut rng));
            net.bind(host, 0).unwrap()
        })
        .collect();
    for server in servers.clone() {
        tokio::spawn(async move {
            while let Ok((src, payload)) = server.recv_from().await {
                if server.send_to(src, &payload).is_err() {
                    return;
                }
            }
        });
    }
    for i in 0..packets {
        use rand::RngExt;
        let server = &servers[rng.random_range(0..servers.len())];
        let payload = vec![0; rng.random_range(0..1500)];
        clients[i % clients.len()]
            .send_to(server.local_addr(), &payload)
            .unwrap();
        sleep(Duration::from_micros(rng.random_range(0..20_000))).await;
    }
    net
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever was sent or duplicated is delivered, dropped or on its way, at every moment; and the
    /// trace is in order of time.
    #[test]
    fn no_packet_is_lost_from_the_books(seed: u64, packets in 1..200_usize, rest in 0..400_u32) {
        let (trace, in_flight) = in_simulated_time(async {
            let net = chatter(seed, TraceMode::Full, packets).await;
            sleep(MS * rest).await;
            (net.trace(), net.in_flight())
        });
        let counts = trace.counts();
        prop_assert_eq!(
            counts.sent + counts.duplicated,
            counts.delivered + counts.dropped + in_flight as u64
        );
        prop_assert!(trace.iter().is_sorted_by_key(|record| record.at));
    }

    #[test]
    fn the_same_seed_repeats_and_both_modes_agree(seed: u64) {
        let run = |mode| in_simulated_time(async { chatter(seed, mode, 100).await.trace() });
        let (first, second) = (run(TraceMode::Full), run(TraceMode::Full));
        prop_assert_eq!(first.first_difference(&second), None);
        prop_assert_eq!(&first, &second);
        prop_assert_eq!(first.digest(), run(TraceMode::Digest).digest());
    }
}
