//! What every store must do about exposures.

use std::future::Future;

use hub_ledger::exposure::{
    Edit, ExposureEdit, Lifetime, MAX_BODY, MAX_RATE, MAX_REQUESTS, MAX_SESSIONS, Misshapen,
    NewExposureToken, PreviousToken, Rotation, Settings,
};
use hub_ledger::{
    Access, ExposureId, ExposureRefusal, ExposureToken, ExposureTokenHash, NewExposure, Protocol,
    Replica,
};
use hub_protocol::NodeId;
use hub_protocol::session::Targets;
use hub_protocol::target::{Selector, Target, Transport};

use super::{NOW, id, join, name, seconds, with_node, with_token};
use crate::store::{Home, Store, StoreError};

fn hash(byte: u8) -> ExposureTokenHash {
    ExposureTokenHash([byte; 32])
}

fn replica(node: NodeId, port: u16) -> Replica {
    let target = Target::tcp(port);
    Replica { node, target }
}

fn new(node: NodeId, port: u16, name: Option<&str>, with: u8) -> NewExposure {
    NewExposure {
        name: name.map(|name| name.parse().unwrap()),
        token: Some(NewExposureToken {
            hash: hash(with),
            ttl: None,
        }),
        replicas: vec![replica(node, port)],
        ..NewExposure::default()
    }
}

fn ports(targets: &Targets) -> (u64, Vec<u16>) {
    let ports = targets.targets.iter().map(|target| target.port);
    (targets.revision, ports.collect())
}

pub(in super::super) async fn exposures_come_and_go<F: Future<Output = Store>>(
    make: impl Fn() -> F,
) {
    let (store, _) = with_node(make).await;
    let new = |port, name, token| new(id(1), port, name, token);
    let targets = async || ports(&store.targets(id(1)).await.unwrap());
    assert_eq!(targets().await, (0, vec![]));
    let first = store
        .create_exposure(new(8080, Some("web"), 1), NOW)
        .await
        .unwrap();
    assert_eq!(ports(&first.told[0].targets), (1, vec![8080]));
    let second = store.create_exposure(new(80, None, 2), NOW).await.unwrap();
    let third = store
        .create_exposure(new(65535, None, 3), NOW)
        .await
        .unwrap();
    store.create_exposure(new(80, None, 4), NOW).await.unwrap();
    assert_eq!(targets().await, (4, vec![80, 8080, 65535]));

    let all = store.exposures().await.unwrap();
    assert_eq!(
        all.iter().map(|held| held.id.0).collect::<Vec<_>>(),
        [1, 2, 3, 4]
    );
    assert_eq!(all[0], first.exposure);
    let of_token = async |token| {
        let located = store.locate_token(hash(token), NOW).await.unwrap();
        located.map(|located| located.exposure)
    };
    assert_eq!(of_token(2).await, Some(second.exposure.clone()));
    assert_eq!(of_token(9).await, None);
    let named = store.locate_name("web".parse().unwrap()).await.unwrap();
    let named = named.unwrap();
    assert_eq!(named.exposure, first.exposure);
    let home = Home {
        id: id(1),
        name: name("shop"),
        revoked: None,
        revision: 4,
    };
    assert_eq!(named.homes, [home]);
    assert_eq!(store.locate(ExposureId(1)).await, Ok(Some(named)));
    assert_eq!(store.locate_name("other".parse().unwrap()).await, Ok(None));

    let removed = store.remove_exposure(second.exposure.id).await.unwrap();
    assert_eq!(
        (removed.told[0].targets.revision, removed.exposure),
        (5, second.exposure.clone())
    );
    assert_eq!(
        targets().await,
        (5, vec![80, 8080, 65535]),
        "another one has that port"
    );
    assert_eq!(of_token(2).await, None);
    let gone = ExposureRefusal::Unknown {
        id: second.exposure.id,
    };
    assert_eq!(
        store.remove_exposure(second.exposure.id).await,
        Err(gone.into())
    );
    store.remove_exposure(third.exposure.id).await.unwrap();
    store.remove_exposure(ExposureId(4)).await.unwrap();
    assert_eq!(targets().await, (7, vec![8080]));
    let next = store.create_exposure(new(80, None, 5), NOW).await.unwrap();
    assert_eq!(
        next.exposure.id,
        ExposureId(5),
        "a number is never given again"
    );
}

pub(in super::super) async fn exposures_against_the_rules_are_not_stored<
    F: Future<Output = Store>,
>(
    make: impl Fn() -> F,
) {
    let (store, _) = with_node(make).await;
    let new = |node, port, token| new(node, port, Some("web"), token);
    let unknown = ExposureRefusal::UnknownNode { node: id(2) };
    assert_eq!(
        store.create_exposure(new(id(2), 80, 1), NOW).await,
        Err(unknown.into())
    );
    let zero = ExposureRefusal::Misshapen(Misshapen::PortZero);
    assert_eq!(
        store.create_exposure(new(id(1), 0, 1), NOW).await,
        Err(zero.into())
    );
    let holder = store
        .create_exposure(new(id(1), 80, 1), NOW)
        .await
        .unwrap()
        .exposure
        .id;
    let name = "web".parse().unwrap();
    let taken = ExposureRefusal::NameTaken { name, holder };
    assert_eq!(
        store.create_exposure(new(id(1), 81, 2), NOW).await,
        Err(taken.clone().into())
    );
    assert_eq!(
        store.targets(id(1)).await.unwrap().revision,
        1,
        "a refusal moves nothing"
    );
    assert_eq!(store.exposures().await.unwrap().len(), 1);
    let mut other = new(id(1), 81, 2);
    other.name = None;
    let other = store.create_exposure(other, NOW).await.unwrap().exposure;
    let rename = ExposureEdit {
        name: Edit::Set(Some("web".parse().unwrap())),
        ..ExposureEdit::default()
    };
    assert_eq!(
        store.update_exposure(other.id, rename).await,
        Err(taken.into())
    );
    let unknown = ExposureRefusal::Unknown { id: ExposureId(9) };
    let nothing = ExposureEdit::default();
    assert_eq!(
        store.update_exposure(ExposureId(9), nothing).await,
        Err(unknown.into())
    );
}

pub(in super::super) async fn an_exposure_is_stored_whole<F: Future<Output = Store>>(
    make: impl Fn() -> F,
) {
    let (store, _) = with_node(make).await;
    let container = |selector| Replica {
        node: id(1),
        target: Target {
            container: Some(selector),
            ..Target::tcp(65535)
        },
    };
    let settings = Settings {
        max_body: Some(MAX_BODY),
        max_requests: Some(MAX_REQUESTS),
        max_sessions: Some(MAX_SESSIONS),
        rate: Some(MAX_RATE),
        sticky: true,
    };
    let web = NewExposure {
        name: Some("web".parse().unwrap()),
        token: Some(NewExposureToken {
            hash: hash(1),
            ttl: Some(seconds(60)),
        }),
        access: Access::Login,
        protocol: Protocol::Http2,
        replicas: vec![
            container(Selector::Name("web".into())),
            replica(id(1), 80),
            container(Selector::Label("app=ä b".into())),
        ],
        listen: None,
        settings,
    };
    let web = store.create_exposure(web, NOW).await.unwrap().exposure;
    let dns = NewExposure {
        protocol: Protocol::Udp,
        replicas: vec![Replica {
            node: id(1),
            target: Target {
                transport: Transport::Udp,
                ..Target::tcp(53)
            },
        }],
        listen: Some("[::1]:53".parse().unwrap()),
        ..NewExposure::default()
    };
    let dns = store.create_exposure(dns, NOW).await.unwrap().exposure;
    assert_eq!((web.settings, web.replicas.len()), (settings, 3));
    assert_eq!(store.exposures().await, Ok(vec![web, dns.clone()]));

    // A change writes all of it anew, and takes away what is too much.
    let edit = ExposureEdit {
        access: Edit::Set(Access::Token),
        protocol: Edit::Set(Protocol::Http),
        replicas: Edit::Set(vec![replica(id(1), 81)]),
        ..ExposureEdit::default()
    };
    let changed = store.update_exposure(ExposureId(1), edit).await.unwrap();
    let changed = changed.exposure;
    assert_eq!(changed.replicas, [replica(id(1), 81)]);
    assert_eq!(store.exposures().await, Ok(vec![changed, dns]));
}

pub(in super::super) async fn replicas_on_many_nodes_move_the_lists_of_each<
    F: Future<Output = Store>,
>(
    make: impl Fn() -> F,
) {
    let store = with_token(make, 3).await;
    for (called, key) in [("one", 1), ("two", 2), ("three", 3)] {
        store.join(join(called, key), NOW).await.unwrap();
    }
    let lists = async || {
        let mut lists = Vec::new();
        for node in 1..=3 {
            lists.push(ports(&store.targets(id(node)).await.unwrap()));
        }
        lists
    };
    let web = NewExposure {
        replicas: vec![replica(id(2), 80), replica(id(1), 80), replica(id(1), 81)],
        ..new(id(1), 80, Some("web"), 1)
    };
    let web = store.create_exposure(web, NOW).await.unwrap().exposure;
    assert_eq!(
        lists().await,
        [(1, vec![80, 81]), (1, vec![80]), (0, vec![])]
    );
    let located = store.locate_token(hash(1), NOW).await.unwrap().unwrap();
    let homes: Vec<_> = located
        .homes
        .iter()
        .map(|home| home.name.as_str())
        .collect();
    assert_eq!(homes, ["two", "one", "one"], "in the order of replicas");

    let moved = ExposureEdit {
        replicas: Edit::Set(vec![replica(id(3), 90), replica(id(2), 80)]),
        ..ExposureEdit::default()
    };
    let change = store.update_exposure(web.id, moved).await.unwrap();
    let told: Vec<_> = change.told.iter().map(|told| told.node.id).collect();
    assert_eq!(told, [id(1), id(3)]);
    assert_eq!(lists().await, [(2, vec![]), (1, vec![80]), (1, vec![90])]);
    store.revoke_node(id(3), NOW).await.unwrap();
    let located = store.locate_token(hash(1), NOW).await.unwrap().unwrap();
    assert_eq!(located.homes[0].revoked, Some(NOW));
    store.remove_exposure(web.id).await.unwrap();
    assert_eq!(lists().await, [(2, vec![]), (2, vec![]), (2, vec![])]);
}

pub(in super::super) async fn tokens_come_and_go<F: Future<Output = Store>>(make: impl Fn() -> F) {
    let (store, _) = with_node(make).await;
    let mut web = new(id(1), 80, Some("web"), 1);
    web.token = Some(NewExposureToken {
        hash: hash(1),
        ttl: Some(seconds(10)),
    });
    let web = store.create_exposure(web, NOW).await.unwrap().exposure;
    let at = |after| NOW.saturating_add(seconds(after));
    let opens = async |token, after| {
        let located = store.locate_token(hash(token), at(after)).await.unwrap();
        located.is_some()
    };
    assert!(opens(1, 9).await && !opens(1, 10).await);

    let rotation = |token, grace| Rotation {
        hash: hash(token),
        lifetime: Lifetime::Unlimited,
        grace: seconds(grace),
    };
    let rotated = store
        .rotate_exposure_token(web.id, rotation(2, 5), NOW)
        .await
        .unwrap();
    let previous = PreviousToken {
        hash: hash(1),
        until: at(5),
    };
    let expected = ExposureToken {
        hash: hash(2),
        expires: None,
        previous: Some(previous),
    };
    assert_eq!(rotated.token, Some(expected));
    assert_eq!(store.exposures().await, Ok(vec![rotated]));
    assert!(opens(1, 4).await && !opens(1, 5).await && opens(2, 1000).await);
    store
        .rotate_exposure_token(web.id, rotation(3, 0), NOW)
        .await
        .unwrap();
    assert!(!opens(1, 0).await && !opens(2, 0).await && opens(3, 0).await);

    let revoked = store.revoke_exposure_token(web.id).await.unwrap();
    assert_eq!(revoked.token, None);
    assert!(!opens(3, 0).await);
    let named = store.locate_name("web".parse().unwrap()).await.unwrap();
    assert_eq!(named.unwrap().exposure, revoked, "the name goes on");
    assert_eq!(
        store.targets(id(1)).await.unwrap().revision,
        1,
        "tokens concern no agent"
    );
    let unknown = ExposureRefusal::Unknown { id: ExposureId(9) };
    assert_eq!(
        store.revoke_exposure_token(ExposureId(9)).await,
        Err(StoreError::from(unknown))
    );
}

pub(in super::super) async fn an_address_is_that_of_one_exposure<F: Future<Output = Store>>(
    make: impl Fn() -> F,
) {
    let (store, _) = with_node(make).await;
    let listening = |protocol: Protocol, address: &str| NewExposure {
        protocol,
        replicas: vec![Replica {
            node: id(1),
            target: Target {
                transport: protocol.transport(),
                ..Target::tcp(5432)
            },
        }],
        listen: Some(address.parse().unwrap()),
        ..NewExposure::default()
    };
    let tcp = |address| listening(Protocol::Tcp, address);
    let first = store.create_exposure(tcp("127.0.0.1:5432"), NOW).await;
    let holder = first.unwrap().exposure.id;
    let taken = ExposureRefusal::AddressTaken {
        address: "0.0.0.0:5432".parse().unwrap(),
        taken: "127.0.0.1:5432".parse().unwrap(),
        holder,
    };
    assert_eq!(
        store.create_exposure(tcp("0.0.0.0:5432"), NOW).await,
        Err(taken.into())
    );
    let udp = listening(Protocol::Udp, "0.0.0.0:5432");
    assert!(store.create_exposure(udp, NOW).await.is_ok());
    let other = store.create_exposure(tcp("127.0.0.1:5433"), NOW).await;
    let edit = ExposureEdit {
        listen: Edit::Set(Some("127.0.0.1:5432".parse().unwrap())),
        ..ExposureEdit::default()
    };
    let other = other.unwrap().exposure.id;
    assert!(matches!(
        store.update_exposure(other, edit.clone()).await,
        Err(StoreError::Expose(ExposureRefusal::AddressTaken { .. }))
    ));
    assert!(store.update_exposure(holder, edit).await.is_ok());
}
