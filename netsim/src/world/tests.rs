#![allow(clippy::unwrap_used)]

use super::*;

/// How much the world holds of everything that could pile up.
fn size(world: &World) -> [usize; 5] {
    let sockets = world.hosts.values().map(|host| host.sockets.len()).sum();
    let agenda = world.agenda.len();
    [
        world.hosts.len(),
        world.nats.len(),
        world.owners.len(),
        agenda,
        sockets,
    ]
}

#[test]
fn hosts_that_leave_take_their_nat_addresses_and_sockets_along() {
    let mut world = World::new(1, TraceMode::Digest);
    let server = "203.0.113.1".parse().unwrap();
    let id = world.add_host("server", server, None);
    let server = world.bind(id, None, 7443, 1000).unwrap();
    let before = size(&world);
    for cycle in 0..100 {
        let now = Duration::from_secs(cycle);
        let nat = world.add_nat(NatConfig::default(), "198.51.100.1".parse().unwrap());
        let hosts = ["10.0.0.2", "10.0.0.3"]
            .map(|address| world.add_host("agent", address.parse().unwrap(), Some(nat)));
        for host in hosts {
            let src = world.bind(host, None, 0, 1000).unwrap();
            let datagram = Datagram {
                src,
                dst: server,
                ecn: 0,
                payload: Bytes::new(),
            };
            world.send(host, datagram, now);
        }
        world.advance(now);
        assert_eq!(world.nats[&nat].mappings(), 2);
        world.remove_host(hosts[0]);
        assert_eq!(world.nats[&nat].mappings(), 1);
        world.remove_host(hosts[1]);
        assert_eq!(size(&world), before);
    }
    let received = world
        .receive(id, server, usize::MAX, Waker::noop())
        .unwrap();
    assert_eq!(received.len(), 200);
}

#[test]
fn what_is_due_at_the_same_time_happens_in_the_order_it_was_sent() {
    let mut world = World::new(1, TraceMode::Full);
    let hosts = [1, 2, 3].map(|i| world.add_host("host", IpAddr::from([192, 0, 2, i]), None));
    let sockets = hosts.map(|host| world.bind(host, None, 9, 1000).unwrap());
    for (sender, marker) in [(2, 7), (0, 8), (2, 9)] {
        let payload = Bytes::from(vec![marker]);
        let datagram = Datagram {
            src: sockets[sender],
            dst: sockets[1],
            ecn: 0,
            payload,
        };
        world.send(hosts[sender], datagram, Duration::ZERO);
    }
    assert_eq!(world.next_event(), Some(Duration::ZERO));
    world.advance(Duration::ZERO);
    let received = world
        .receive(hosts[1], sockets[1], 10, Waker::noop())
        .unwrap();
    let markers: Vec<_> = received
        .iter()
        .map(|datagram| datagram.payload[0])
        .collect();
    assert_eq!(markers, [7, 8, 9]);
    assert_eq!(world.next_event(), None);
}
