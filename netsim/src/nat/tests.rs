#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const S: Duration = Duration::from_secs(1);
const T0: Duration = Duration::ZERO;

fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

fn nat(config: NatConfig) -> Nat {
    Nat::new(config, "198.51.100.1".parse().unwrap(), 1)
}

const INSIDE: &str = "10.0.0.2:5000";
const SERVER: &str = "203.0.113.1:7443";

/// Who may send to the mapping that a packet from inside to the server has made: the server itself,
/// another port of it, another host.
fn who_gets_in(kind: NatKind) -> [Result<SocketAddr, NatDrop>; 3] {
    let mut nat = nat(NatConfig::new(kind));
    let external = nat.outbound(at(INSIDE), at(SERVER), T0).unwrap();
    [SERVER, "203.0.113.1:9999", "203.0.113.2:7443"]
        .map(|remote| nat.inbound(at(remote), external, S))
}

#[test]
fn each_kind_admits_whom_it_should() {
    let (yes, no) = (Ok(at(INSIDE)), Err(NatDrop::Filtered));
    assert_eq!(who_gets_in(NatKind::FullCone), [yes, yes, yes]);
    assert_eq!(who_gets_in(NatKind::AddressRestricted), [yes, yes, no]);
    assert_eq!(who_gets_in(NatKind::PortRestricted), [yes, no, no]);
    assert_eq!(who_gets_in(NatKind::Symmetric), [yes, no, no]);
}

#[test]
fn cones_share_a_mapping_and_symmetric_nats_do_not() {
    use NatKind::{AddressRestricted, FullCone, PortRestricted, Symmetric};
    for (kind, shared) in [
        (FullCone, true),
        (AddressRestricted, true),
        (PortRestricted, true),
        (Symmetric, false),
    ] {
        let mut nat = nat(NatConfig::new(kind));
        let first = nat.outbound(at(INSIDE), at(SERVER), T0).unwrap();
        let second = nat.outbound(at(INSIDE), at("203.0.113.2:53"), T0).unwrap();
        assert_eq!(first == second, shared, "{kind:?}");
        assert_eq!(first, nat.outbound(at(INSIDE), at(SERVER), T0).unwrap());
        let neighbour = nat.outbound(at("10.0.0.3:5000"), at(SERVER), T0).unwrap();
        assert_ne!(first, neighbour);
    }
}

#[test]
fn strangers_find_no_mapping() {
    let mut nat = nat(NatConfig::new(NatKind::FullCone));
    let external = nat.outbound(at(INSIDE), at(SERVER), T0).unwrap();
    let beside = SocketAddr::new(external.ip(), external.port() ^ 1);
    assert_eq!(nat.inbound(at(SERVER), beside, T0), Err(NatDrop::NoMapping));
    let elsewhere = SocketAddr::new("198.51.100.2".parse().unwrap(), external.port());
    assert_eq!(
        nat.inbound(at(SERVER), elsewhere, T0),
        Err(NatDrop::NoMapping)
    );
}

#[test]
fn idle_mappings_are_forgotten_and_their_ports_not_reused_at_once() {
    let mut nat = nat(NatConfig::default().mapping_timeout(30 * S));
    let external = nat.outbound(at(INSIDE), at(SERVER), T0).unwrap();
    assert!(nat.inbound(at(SERVER), external, 29 * S).is_ok());
    // That packet kept it alive; 30 s of silence do not.
    assert!(nat.inbound(at(SERVER), external, 58 * S).is_ok());
    assert_eq!(
        nat.inbound(at(SERVER), external, 88 * S),
        Err(NatDrop::NoMapping)
    );
    let again = nat.outbound(at(INSIDE), at(SERVER), 88 * S).unwrap();
    assert_ne!(again, external);
    assert_eq!(nat.mappings(), 1);
}

#[test]
fn inbound_packets_need_not_keep_a_mapping_alive() {
    let config = NatConfig::default()
        .mapping_timeout(30 * S)
        .refresh_on_inbound(false);
    let mut nat = nat(config);
    let external = nat.outbound(at(INSIDE), at(SERVER), T0).unwrap();
    assert!(nat.inbound(at(SERVER), external, 29 * S).is_ok());
    assert_eq!(
        nat.inbound(at(SERVER), external, 30 * S),
        Err(NatDrop::NoMapping)
    );
}

#[test]
fn permissions_expire_one_by_one() {
    let mut nat = nat(NatConfig::default().mapping_timeout(30 * S));
    let external = nat.outbound(at(INSIDE), at(SERVER), T0).unwrap();
    nat.outbound(at(INSIDE), at("203.0.113.2:53"), 20 * S)
        .unwrap();
    assert_eq!(
        nat.inbound(at(SERVER), external, 40 * S),
        Err(NatDrop::Filtered)
    );
    assert!(nat.inbound(at("203.0.113.2:53"), external, 40 * S).is_ok());
}

#[test]
fn rebinding_moves_to_new_ports_and_addresses() {
    let mut nat = nat(NatConfig::new(NatKind::FullCone));
    let before = nat.outbound(at(INSIDE), at(SERVER), T0).unwrap();
    nat.rebind();
    assert_eq!(nat.inbound(at(SERVER), before, T0), Err(NatDrop::NoMapping));
    let after = nat.outbound(at(INSIDE), at(SERVER), T0).unwrap();
    assert_eq!(after.ip(), before.ip());
    assert_ne!(after.port(), before.port());
    nat.rebind_to("198.51.100.9".parse().unwrap());
    let moved = nat.outbound(at(INSIDE), at(SERVER), T0).unwrap();
    assert_eq!(moved.ip(), nat.external());
    assert_eq!(nat.inbound(at(SERVER), after, T0), Err(NatDrop::NoMapping));
    assert!(nat.inbound(at(SERVER), moved, T0).is_ok());
}

#[test]
fn ports_run_out_and_come_back() {
    let mut nat = nat(NatConfig::default().ports(4000..=4001).mapping_timeout(S));
    let from = |port: u16| SocketAddr::from(([10, 0, 0, 2], port));
    for port in [1, 2] {
        assert!(nat.outbound(from(port), at(SERVER), T0).is_ok());
    }
    assert_eq!(
        nat.outbound(from(3), at(SERVER), T0),
        Err(NatDrop::PortsExhausted)
    );
    assert!(nat.outbound(from(3), at(SERVER), S).is_ok());
    // An empty range is refused the same way.
    let mut none = self::nat(NatConfig::default().ports(RangeInclusive::new(2, 1)));
    assert_eq!(
        none.outbound(from(1), at(SERVER), T0),
        Err(NatDrop::PortsExhausted)
    );
}

#[test]
fn a_machine_that_left_leaves_nothing_behind() {
    let mut nat = nat(NatConfig::default());
    let gone = nat.outbound(at(INSIDE), at(SERVER), T0).unwrap();
    let stays = nat.outbound(at("10.0.0.3:5000"), at(SERVER), T0).unwrap();
    nat.forget("10.0.0.2".parse().unwrap());
    assert_eq!(nat.inbound(at(SERVER), gone, T0), Err(NatDrop::NoMapping));
    assert!(nat.inbound(at(SERVER), stays, T0).is_ok());
    assert_eq!((nat.mappings(), nat.by_key.len()), (1, 1));
}

proptest! {
    /// Whoever was just sent to may answer, external ports are never shared, and tables agree.
    #[test]
    fn answers_get_in_and_ports_are_not_shared(
        kind in prop_oneof![
            Just(NatKind::FullCone), Just(NatKind::AddressRestricted),
            Just(NatKind::PortRestricted), Just(NatKind::Symmetric),
        ],
        steps in proptest::collection::vec((1..5_u16, 1..5_u16, 0..40_u32, 0..20_u8), 1..100),
    ) {
        let config = NatConfig::new(kind).mapping_timeout(30 * S).ports(1000..=1200);
        let mut nat = nat(config);
        let mut now = T0;
        for (inside, remote, gap, rebind) in steps {
            now += S * gap;
            if rebind == 0 {
                nat.rebind();
            }
            let src = SocketAddr::from(([10, 0, 0, 2], inside));
            let dst = SocketAddr::from(([203, 0, 113, 1], remote));
            let external = nat.outbound(src, dst, now).unwrap();
            prop_assert_eq!(nat.inbound(dst, external, now), Ok(src));
            prop_assert!(nat.by_key.len() >= nat.by_port.len());
            for (port, mapping) in &nat.by_port {
                prop_assert_eq!(nat.by_key.get(&mapping.key), Some(port));
            }
        }
    }
}
