use std::time::Duration;

use hub_protocol::limits::MAX_CONTROL;
use hub_protocol::session::Control;

use super::*;
use crate::exposure::{
    ExposureTokenHash, Lifetime, MAX_SELECTOR, Rotation, SettingOutOfBounds, TokenOutOfBounds,
};
use crate::node::Origin;

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

fn id(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 16])
}

fn node(byte: u8) -> Node {
    let name = format!("node-{byte}").parse().expect("a node name");
    Node::new(id(byte), name, Origin::Local, NOW)
}

fn on_node(byte: u8, exposures: Vec<Exposure>) -> (NodeId, OnNode) {
    let node = node(byte);
    (id(byte), OnNode { node, exposures })
}

fn replica(node: u8, port: u16) -> Replica {
    Replica {
        node: id(node),
        target: Target::tcp(port),
    }
}

fn web(replicas: &[Replica]) -> NewExposure {
    NewExposure {
        name: Some("web".parse().expect("a name")),
        replicas: replicas.to_vec(),
        ..NewExposure::default()
    }
}

fn database(listen: &str) -> NewExposure {
    NewExposure {
        protocol: Protocol::Tcp,
        replicas: vec![replica(1, 5432)],
        listen: Some(listen.parse().expect("an address")),
        ..NewExposure::default()
    }
}

fn rows(nodes: &[u8]) -> CreateRows {
    CreateRows {
        nodes: nodes.iter().map(|byte| on_node(*byte, vec![])).collect(),
        ..CreateRows::default()
    }
}

fn made(new: NewExposure) -> Exposure {
    let change = create(rows(&[1, 2]), ExposureId(1), new, NOW);
    change.expect("nothing speaks against it").exposure
}

fn told(change: &ExposureChange) -> Vec<(NodeId, u64, Vec<u16>)> {
    let told = change.told.iter().map(|told| {
        assert_eq!(told.node.targets_revision, told.targets.revision);
        let ports = told.targets.targets.iter().map(|target| target.port);
        (told.node.id, told.targets.revision, ports.collect())
    });
    told.collect()
}

#[test]
fn every_node_that_gains_or_loses_a_replica_is_told_and_no_other() {
    let before = made(web(&[replica(1, 80), replica(2, 80), replica(2, 81)]));
    let rows = |exposure: &Exposure| UpdateRows {
        exposure: Some(exposure.clone()),
        others: CreateRows {
            nodes: BTreeMap::from([
                on_node(1, vec![exposure.clone()]),
                on_node(2, vec![exposure.clone()]),
                on_node(3, vec![]),
            ]),
            same_name: Some(exposure.id),
            ..CreateRows::default()
        },
    };
    let edit = |replicas: &[Replica]| ExposureEdit {
        replicas: Edit::Set(replicas.to_vec()),
        ..ExposureEdit::default()
    };
    let moved = edit(&[replica(3, 90), replica(2, 81), replica(2, 80)]);
    let change = update(rows(&before), before.id, moved).expect("they are there");
    assert_eq!(
        told(&change),
        [(id(1), 1, vec![]), (id(3), 1, vec![90])],
        "the order of replicas is no change"
    );
    let renamed = ExposureEdit {
        name: Edit::Set(Some("shop".parse().expect("a name"))),
        ..ExposureEdit::default()
    };
    let change = update(rows(&before), before.id, renamed).expect("it is free");
    assert_eq!(told(&change), []);
    let removed = remove(Some(before.clone()), rows(&before).others.nodes, before.id);
    let removed = removed.expect("it is there");
    assert_eq!(told(&removed), [(id(1), 1, vec![]), (id(2), 1, vec![])]);
}

#[test]
fn nothing_new_is_exposed_on_a_revoked_node_and_what_was_can_be_changed() {
    let before = made(web(&[replica(1, 80)]));
    let mut revoked = rows(&[1]);
    let on = revoked.nodes.get_mut(&id(1)).expect("it is there");
    on.node.revoked = Some(NOW);
    on.exposures.push(before.clone());
    let name = node(1).name;
    let refusal = ExposureRefusal::Revoked { name, revoked: NOW };
    let other = create(revoked.clone(), ExposureId(2), web(&[replica(1, 81)]), NOW);
    assert_eq!(other, Err(refusal));
    let rows = UpdateRows {
        exposure: Some(before.clone()),
        others: revoked.clone(),
    };
    let moved = ExposureEdit {
        replicas: Edit::Set(vec![replica(2, 80)]),
        ..ExposureEdit::default()
    };
    let unknown = ExposureRefusal::UnknownNode { node: id(2) };
    assert_eq!(update(rows.clone(), before.id, moved), Err(unknown));
    let sticky = ExposureEdit {
        settings: SettingsEdit {
            sticky: Edit::Set(true),
            ..SettingsEdit::default()
        },
        ..ExposureEdit::default()
    };
    assert!(update(rows, before.id, sticky).is_ok());
    assert!(remove(Some(before.clone()), revoked.nodes, before.id).is_ok());
}

#[test]
fn a_name_and_an_address_are_those_of_one_exposure() {
    let taken = CreateRows {
        same_name: Some(ExposureId(7)),
        ..rows(&[1])
    };
    let refusal = create(taken, ExposureId(8), web(&[replica(1, 80)]), NOW);
    let refusal = refusal.expect_err("it is taken").to_string();
    assert!(refusal.contains("web is that of exposure 7"), "{refusal}");
    let listening = |address: &str| CreateRows {
        listeners: vec![(ExposureId(7), address.parse().expect("an address"))],
        ..rows(&[1])
    };
    let create = |taken: &str, id| {
        let change = create(
            listening(taken),
            ExposureId(id),
            database("127.0.0.1:5432"),
            NOW,
        );
        change.map(|change| change.exposure.id.0)
    };
    assert!(matches!(
        create("0.0.0.0:5432", 8),
        Err(ExposureRefusal::AddressTaken {
            holder: ExposureId(7),
            ..
        })
    ));
    assert_eq!(create("0.0.0.0:5433", 8), Ok(8));
    assert_eq!(
        create("0.0.0.0:5432", 7),
        Ok(7),
        "its own is not in its way"
    );
}

#[test]
fn a_revoked_token_leaves_a_nameless_exposure_that_can_be_changed_and_reached_again() {
    let token = NewExposureToken {
        hash: ExposureTokenHash([1; 32]),
        ttl: None,
    };
    let exposure = made(NewExposure {
        name: None,
        token: Some(token),
        access: Access::Token,
        ..web(&[replica(1, 80)])
    });
    let revoked = revoke_token(Some(exposure), ExposureId(1)).expect("it is there");
    assert_eq!(revoked.token, None);
    assert_eq!(
        revoke_token(Some(revoked.clone()), ExposureId(1)),
        Ok(revoked.clone())
    );
    let change = |edit| {
        let rows = UpdateRows {
            exposure: Some(revoked.clone()),
            ..UpdateRows::default()
        };
        update(rows, ExposureId(1), edit).map(|change| change.exposure.settings.rate)
    };
    let slower = ExposureEdit {
        settings: SettingsEdit {
            rate: Edit::Set(Some(5)),
            ..SettingsEdit::default()
        },
        ..ExposureEdit::default()
    };
    assert_eq!(change(slower), Ok(Some(5)));
    let locked = ExposureEdit {
        access: Edit::Set(Access::Token),
        name: Edit::Set(Some("web".parse().expect("a name"))),
        ..ExposureEdit::default()
    };
    assert_eq!(change(locked), Err(Misshapen::NoToken.into()));
    let rotation = Rotation {
        hash: ExposureTokenHash([2; 32]),
        lifetime: Lifetime::AsBefore,
        grace: Duration::ZERO,
    };
    let again = rotate_token(Some(revoked), ExposureId(1), rotation, NOW).expect("it is there");
    assert!(
        again
            .token
            .is_some_and(|token| token.admits(rotation.hash, NOW))
    );
}

#[test]
fn requests_do_not_turn_into_bytes() {
    let change = |before: NewExposure, to| {
        let rows = UpdateRows {
            exposure: Some(made(before)),
            ..UpdateRows::default()
        };
        let edit = ExposureEdit {
            protocol: Edit::Set(to),
            ..ExposureEdit::default()
        };
        update(rows, ExposureId(1), edit).map(|change| change.exposure.protocol)
    };
    let (http, tcp) = (web(&[replica(1, 80)]), database("127.0.0.1:5432"));
    assert_eq!(change(http.clone(), Protocol::Http2), Ok(Protocol::Http2));
    let refusal = Misshapen::OtherKind(ExposureId(1)).into();
    assert_eq!(change(http, Protocol::Tcp), Err(refusal));
    let refusal = Misshapen::OtherKind(ExposureId(1)).into();
    assert_eq!(change(tcp, Protocol::Udp), Err(refusal));
}

#[test]
fn tokens_are_of_http_only() {
    let rotation = Rotation {
        hash: ExposureTokenHash([2; 32]),
        lifetime: Lifetime::AsBefore,
        grace: Duration::ZERO,
    };
    let tcp = made(database("127.0.0.1:5432"));
    let (what, protocol) = ("token", Protocol::Tcp);
    assert_eq!(
        rotate_token(Some(tcp), ExposureId(1), rotation, NOW),
        Err(Misshapen::OnlyForHttp { what, protocol }.into())
    );
    let unknown = ExposureRefusal::Unknown { id: ExposureId(1) };
    assert_eq!(
        rotate_token(None, ExposureId(1), rotation, NOW),
        Err(unknown)
    );
}

#[test]
fn a_refusal_of_a_part_is_one_of_the_whole() {
    let token = NewExposureToken {
        hash: ExposureTokenHash([1; 32]),
        ttl: Some(Duration::ZERO),
    };
    let new = NewExposure {
        token: Some(token),
        ..web(&[replica(1, 80)])
    };
    let refusal = Misshapen::Token(TokenOutOfBounds::TtlTooShort).into();
    assert_eq!(create(rows(&[1]), ExposureId(1), new, NOW), Err(refusal));
    let new = NewExposure {
        settings: Settings {
            rate: Some(0),
            ..Settings::default()
        },
        ..web(&[replica(1, 80)])
    };
    let refusal = create(rows(&[1]), ExposureId(1), new, NOW).expect_err("it is out of bounds");
    let ExposureRefusal::Misshapen(Misshapen::Setting(SettingOutOfBounds { setting, .. })) =
        refusal
    else {
        panic!("{refusal}");
    };
    assert_eq!(setting, "rate");
}

/// As many of the longest as the rules let stand: their list is a frame that can be sent.
#[test]
fn a_list_fits_into_a_frame() {
    let of = |number: usize| {
        let number = u16::try_from(number).expect("few");
        let label = format!("{number:05}{}", "x".repeat(MAX_SELECTOR - 5));
        let target = Target {
            container: Some(Selector::Label(label)),
            ..Target::tcp(65_535)
        };
        Replica {
            node: id(1),
            target,
        }
    };
    let (mut held, mut last) = (Vec::new(), None);
    for number in 0..MAX_PER_NODE {
        let id = ExposureId(number as u64 + 1);
        let new = NewExposure {
            name: Some(format!("e{number}").parse().expect("a name")),
            ..web(&[of(number)])
        };
        let rows = CreateRows {
            nodes: BTreeMap::from([on_node(1, held.clone())]),
            ..CreateRows::default()
        };
        match create(rows, id, new, NOW) {
            Ok(change) => {
                held.push(change.exposure.clone());
                last = Some(change);
            }
            Err(refusal) => {
                let name = node(1).name;
                assert_eq!(refusal, ExposureRefusal::ListTooLong { name });
                break;
            }
        }
    }
    let told = last.expect("there was room for one").told.remove(0);
    assert_eq!(told.targets.targets.len(), MAX_LIST / (MAX_SELECTOR + 10));
    assert!(Control::Targets(told.targets).encode().len() <= MAX_CONTROL);
}

#[test]
fn a_node_has_so_many_replicas_and_no_more() {
    let full: Vec<Exposure> = (0..MAX_PER_NODE / 16)
        .map(|number| {
            let first = u16::try_from(16 * number).expect("few") + 1;
            let replicas: Vec<_> = (first..first + 16).map(|port| replica(1, port)).collect();
            Exposure {
                id: ExposureId(number as u64 + 1),
                ..made(web(&replicas))
            }
        })
        .collect();
    let rows = CreateRows {
        nodes: BTreeMap::from([on_node(1, full)]),
        ..CreateRows::default()
    };
    let name = node(1).name;
    let refusal = ExposureRefusal::TooMany { name };
    let more = create(rows, ExposureId(9999), web(&[replica(1, 80)]), NOW);
    assert_eq!(more, Err(refusal));
}
