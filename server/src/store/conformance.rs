//! What every store must do, whatever is below it.
//!
//! Each function takes a way to get a fresh, empty store and holds it against one promise.
//! [`suite`] makes a test of each of them for one kind of store; a second kind passes the same.

mod exposures;

use std::future::Future;
use std::time::Duration;

use hub_ledger::{
    CreateTokenRefusal, Distrust, Join, JoinRefusal, JoinTokenHash, Joined, JoinedHow,
    LocalRefusal, NewCertificate, NewToken, Node, Presence, Process, RecordRefusal,
    RegisterRefusal, Registration, RevokeRefusal, Serial, Timestamp,
};
use hub_protocol::{Deployment, Epoch, Fingerprint, Generation, Incarnation, NodeId, NodeName};

use super::{CaRecord, Store, StoreError};
pub(super) use exposures::*;

/// The deployment that every store under test is created with.
pub(super) const DEPLOYMENT: Deployment = Deployment::from_bytes([0xd0; 16]);

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_123);
const TOKEN: JoinTokenHash = JoinTokenHash([7; 32]);

/// Makes a test of every function here: `suite!(factory)`, where `factory` is an async function
/// that makes a fresh store.
macro_rules! suite {
    ($factory:path) => {
        $crate::store::conformance::suite!($factory:
            a_new_store_is_empty,
            a_token_admits_as_many_as_it_was_made_for,
            a_token_that_breaks_the_rules_is_not_stored,
            a_repeated_join_spends_nothing,
            a_refused_join_spends_nothing,
            concurrent_joins_never_overspend,
            old_tokens_are_forgotten,
            certificates_are_trusted_once_recorded,
            certificates_are_not_recorded_against_the_rules,
            registrations_count_up,
            the_end_of_an_old_session_changes_nothing,
            sightings_are_noted,
            all_can_be_marked_away,
            a_superseded_process_stays_out,
            an_agent_with_another_generation_is_fenced,
            revocation_is_for_good,
            nodes_are_found,
            the_hubs_own_machine_is_one_node,
            exposures_come_and_go,
            exposures_against_the_rules_are_not_stored,
            an_exposure_is_stored_whole,
            replicas_on_many_nodes_move_the_lists_of_each,
            tokens_come_and_go,
            an_address_is_that_of_one_exposure,
            the_first_ca_stands,
            a_closed_store_says_so,
        );
    };
    ($factory:path: $($name:ident),+ $(,)?) => {
        $(
            #[tokio::test]
            async fn $name() {
                $crate::store::conformance::$name($factory).await;
            }
        )+
    };
}
pub(super) use suite;

fn name(name: &str) -> NodeName {
    name.parse().unwrap()
}

fn key(byte: u8) -> Fingerprint {
    Fingerprint::from_digest([byte; 32])
}

fn join(called: &str, with: u8) -> Join {
    Join {
        token: TOKEN,
        name: name(called),
        key: key(with),
        new_id: id(with),
    }
}

fn id(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 16])
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn with_token<F: Future<Output = Store>>(make: impl Fn() -> F, uses: u32) -> Store {
    let store = make().await;
    store
        .create_token(
            TOKEN,
            NewToken {
                uses,
                ..NewToken::default()
            },
            NOW,
        )
        .await
        .unwrap();
    store
}

/// A store with a node of key and id 1, whose certificate lasts for 100 s.
async fn with_node<F: Future<Output = Store>>(make: impl Fn() -> F) -> (Store, Node) {
    let store = with_token(make, 1).await;
    let node = store.join(join("shop", 1), NOW).await.unwrap().node;
    store
        .record_certificate(certificate(1, 1), NOW)
        .await
        .unwrap();
    (store, node)
}

fn certificate(serial: u8, of: u8) -> NewCertificate {
    NewCertificate {
        serial: Serial::from_random([serial; 16]),
        node: id(of),
        key: key(of),
        not_before: NOW,
        not_after: NOW.saturating_add(seconds(100)),
    }
}

fn hello(incarnation: u8) -> Registration {
    Registration {
        node: id(1),
        key: key(1),
        process: process(incarnation),
    }
}

fn process(incarnation: u8) -> Process {
    Process {
        incarnation: Incarnation::from_bytes([incarnation; 16]),
        last_generation: None,
    }
}

pub(super) async fn a_new_store_is_empty<F: Future<Output = Store>>(make: impl Fn() -> F) {
    let store = make().await;
    assert_eq!(store.deployment(), DEPLOYMENT);
    assert_eq!(store.nodes().await, Ok(vec![]));
    assert_eq!(store.exposures().await, Ok(vec![]));
    assert_eq!(store.ca().await, Ok(None));
    assert_eq!(store.node(id(1)).await, Ok(None));
    assert_eq!(
        store.targets(id(1)).await,
        Err(StoreError::UnknownNode(id(1)))
    );
    let refusal = JoinRefusal::UnknownToken;
    assert_eq!(store.join(join("shop", 1), NOW).await, Err(refusal.into()));
}

pub(super) async fn a_token_admits_as_many_as_it_was_made_for<F: Future<Output = Store>>(
    make: impl Fn() -> F,
) {
    let store = with_token(make, 2).await;
    let Joined { node, how } = store.join(join("one", 1), NOW).await.unwrap();
    assert_eq!(
        (node.id, &node.name, node.key()),
        (id(1), &name("one"), Some(key(1)))
    );
    assert!(matches!(how, JoinedHow::Admitted(token) if token.uses_left == 1));
    store.join(join("two", 2), NOW).await.unwrap();
    let refusal = JoinRefusal::SpentToken { uses: 2 };
    assert_eq!(store.join(join("three", 3), NOW).await, Err(refusal.into()));
    assert_eq!(
        store.node(id(1)).await,
        Ok(Some(node)),
        "it comes back as it was returned"
    );
    assert_eq!(store.nodes().await.unwrap().len(), 2);
}

pub(super) async fn a_token_that_breaks_the_rules_is_not_stored<F: Future<Output = Store>>(
    make: impl Fn() -> F,
) {
    let store = make().await;
    let none = NewToken {
        uses: 0,
        ..NewToken::default()
    };
    let refusal = CreateTokenRefusal::NoUses;
    assert_eq!(
        store.create_token(TOKEN, none, NOW).await,
        Err(refusal.into())
    );
    let refusal = JoinRefusal::UnknownToken;
    assert_eq!(store.join(join("one", 1), NOW).await, Err(refusal.into()));
}

pub(super) async fn a_repeated_join_spends_nothing<F: Future<Output = Store>>(
    make: impl Fn() -> F,
) {
    let store = with_token(make, 1).await;
    let first = store.join(join("one", 1), NOW).await.unwrap();
    let again = Join {
        new_id: id(9),
        ..join("one", 1)
    };
    let second = store.join(again.clone(), NOW).await.unwrap();
    assert_eq!(
        second,
        Joined {
            node: first.node,
            how: JoinedHow::Repeated
        }
    );
    let expires = NOW.saturating_add(NewToken::default().ttl);
    let refusal = JoinRefusal::ExpiredToken { expired: expires };
    assert_eq!(store.join(again, expires).await, Err(refusal.into()));
}

pub(super) async fn a_refused_join_spends_nothing<F: Future<Output = Store>>(make: impl Fn() -> F) {
    let store = with_token(make, 2).await;
    store.join(join("one", 1), NOW).await.unwrap();
    let taken = JoinRefusal::NameTaken { name: name("one") };
    assert_eq!(store.join(join("one", 2), NOW).await, Err(taken.into()));
    let taken = JoinRefusal::KeyTaken { name: name("one") };
    assert_eq!(store.join(join("two", 1), NOW).await, Err(taken.into()));
    assert!(
        store.join(join("two", 2), NOW).await.is_ok(),
        "the second use is still there"
    );
}

pub(super) async fn concurrent_joins_never_overspend<F: Future<Output = Store>>(
    make: impl Fn() -> F,
) {
    let store = with_token(make, 3).await;
    let joins = (1..=10).map(|n| {
        let store = store.clone();
        tokio::spawn(async move { store.join(join(&format!("node-{n}"), n), NOW).await })
    });
    let mut admitted = 0;
    for join in joins.collect::<Vec<_>>() {
        match join.await.unwrap() {
            Ok(_) => admitted += 1,
            Err(error) => {
                assert_eq!(error, StoreError::Join(JoinRefusal::SpentToken { uses: 3 }));
            }
        }
    }
    assert_eq!((admitted, store.nodes().await.unwrap().len()), (3, 3));
}

pub(super) async fn old_tokens_are_forgotten<F: Future<Output = Store>>(make: impl Fn() -> F) {
    let store = with_token(make, 1).await;
    let expired = NOW.saturating_add(NewToken::default().ttl);
    let later = expired.saturating_add(hub_ledger::token::KEPT_AFTER_EXPIRY);
    let other = JoinTokenHash([8; 32]);
    store
        .create_token(other, NewToken::default(), later)
        .await
        .unwrap();
    let refusal = JoinRefusal::ExpiredToken { expired };
    assert_eq!(store.join(join("one", 1), later).await, Err(refusal.into()));
    let later = later.saturating_add(seconds(1));
    let other = JoinTokenHash([9; 32]);
    store
        .create_token(other, NewToken::default(), later)
        .await
        .unwrap();
    let refusal = JoinRefusal::UnknownToken;
    assert_eq!(store.join(join("one", 1), later).await, Err(refusal.into()));
}

pub(super) async fn certificates_are_trusted_once_recorded<F: Future<Output = Store>>(
    make: impl Fn() -> F,
) {
    let store = with_token(make, 1).await;
    let check = async |now| store.register(hello(1), now).await.map(drop);
    let distrusted = |distrust| Err(RegisterRefusal::Distrusted(distrust).into());
    let unknown = Distrust::UnknownNode { node: id(1) };
    assert_eq!(check(NOW).await, distrusted(unknown));
    store.join(join("shop", 1), NOW).await.unwrap();
    let unknown = Distrust::UnknownKey {
        name: name("shop"),
        key: key(1),
    };
    assert_eq!(check(NOW).await, distrusted(unknown));
    let recorded = store
        .record_certificate(certificate(1, 1), NOW)
        .await
        .unwrap();
    assert_eq!(check(NOW).await, Ok(()));
    assert_eq!(
        (recorded.serial, recorded.recorded),
        (certificate(1, 1).serial, NOW)
    );
    assert_eq!(check(recorded.not_after).await, Ok(()));
    let later = recorded.not_after.saturating_add(seconds(1));
    let expired = Distrust::Expired {
        name: name("shop"),
        expired: recorded.not_after,
    };
    assert_eq!(check(later).await, distrusted(expired));

    // A key may have several; the last one to expire counts.
    let not_after = later.saturating_add(seconds(100));
    let second = NewCertificate {
        not_after,
        ..certificate(2, 1)
    };
    store.record_certificate(second, NOW).await.unwrap();
    assert_eq!(check(later).await, Ok(()));
}

pub(super) async fn certificates_are_not_recorded_against_the_rules<F: Future<Output = Store>>(
    make: impl Fn() -> F,
) {
    let (store, _) = with_node(make).await;
    let record = |new| store.record_certificate(new, NOW);
    let unknown = RecordRefusal::UnknownNode { node: id(2) };
    assert_eq!(record(certificate(2, 2)).await, Err(unknown.into()));
    let taken = RecordRefusal::SerialTaken {
        serial: certificate(1, 1).serial,
    };
    assert_eq!(record(certificate(1, 1)).await, Err(taken.into()));
    let token = JoinTokenHash([8; 32]);
    store
        .create_token(token, NewToken::default(), NOW)
        .await
        .unwrap();
    store
        .join(
            Join {
                token,
                ..join("other", 2)
            },
            NOW,
        )
        .await
        .unwrap();
    let taken = RecordRefusal::KeyTaken { node: id(1) };
    let new = NewCertificate {
        key: key(1),
        ..certificate(2, 2)
    };
    assert_eq!(record(new).await, Err(taken.into()));
}

pub(super) async fn registrations_count_up<F: Future<Output = Store>>(make: impl Fn() -> F) {
    let (store, node) = with_node(make).await;
    assert_eq!((node.epoch, node.last_seen), (Epoch(0), None));
    let later = NOW.saturating_add(seconds(5));
    for epoch in 1..=3 {
        let registered = store.register(hello(1), later).await.unwrap();
        assert_eq!(registered.node.epoch, Epoch(epoch));
        assert_eq!((registered.fenced, registered.superseded), (false, None));
    }
    let node = store.node(id(1)).await.unwrap().unwrap();
    assert_eq!(node.epoch, Epoch(3));
    assert_eq!(
        (node.presence, node.presence_since),
        (Presence::Connected, later)
    );
    assert_eq!(
        (node.incarnation, node.last_seen),
        (Some(hello(1).process.incarnation), Some(later))
    );

    let expired = later.saturating_add(seconds(100));
    let refused = store.register(hello(1), expired).await;
    assert!(
        matches!(
            refused,
            Err(StoreError::Register(RegisterRefusal::Distrusted(
                Distrust::Expired { .. }
            )))
        ),
        "{refused:?}"
    );
    let other_key = Registration {
        key: key(2),
        ..hello(1)
    };
    let refused = store.register(other_key, later).await;
    assert!(
        matches!(
            refused,
            Err(StoreError::Register(RegisterRefusal::Distrusted(
                Distrust::UnknownKey { .. }
            )))
        ),
        "{refused:?}"
    );
    assert_eq!(
        store.node(id(1)).await.unwrap().unwrap(),
        node,
        "a refusal changes nothing"
    );
}

pub(super) async fn the_end_of_an_old_session_changes_nothing<F: Future<Output = Store>>(
    make: impl Fn() -> F,
) {
    let (store, _) = with_node(make).await;
    let old = store.register(hello(1), NOW).await.unwrap().node.epoch;
    let new = store.register(hello(1), NOW).await.unwrap().node.epoch;
    let later = NOW.saturating_add(seconds(9));
    assert_eq!(store.mark_away(id(1), old, NOW, later).await, Ok(false));
    let node = store.node(id(1)).await.unwrap().unwrap();
    assert_eq!(node.presence, Presence::Connected);
    let heard = NOW.saturating_add(seconds(4));
    assert_eq!(store.mark_away(id(1), new, heard, later).await, Ok(true));
    assert_eq!(store.mark_away(id(1), new, heard, later).await, Ok(false));
    let node = store.node(id(1)).await.unwrap().unwrap();
    assert_eq!(
        (node.presence, node.presence_since),
        (Presence::Away, later)
    );
    assert_eq!(node.last_seen, Some(heard));
    assert_eq!(
        store.mark_away(id(2), new, NOW, NOW).await,
        Ok(false),
        "no such node"
    );
}

pub(super) async fn sightings_are_noted<F: Future<Output = Store>>(make: impl Fn() -> F) {
    let (store, _) = with_node(make).await;
    let old = store.register(hello(1), NOW).await.unwrap().node.epoch;
    let new = store.register(hello(1), NOW).await.unwrap().node.epoch;
    let last_seen = async || store.node(id(1)).await.unwrap().unwrap().last_seen;
    let at = |s| NOW.saturating_add(seconds(s));
    store
        .seen(vec![(id(1), old, at(5)), (id(2), new, at(5))])
        .await
        .unwrap();
    assert_eq!(last_seen().await, Some(NOW));
    store
        .seen(vec![(id(1), old, at(7)), (id(1), new, at(6))])
        .await
        .unwrap();
    assert_eq!(last_seen().await, Some(at(6)));
    store.seen(vec![(id(1), new, at(2))]).await.unwrap();
    assert_eq!(last_seen().await, Some(at(6)), "it never goes back");
}

pub(super) async fn all_can_be_marked_away<F: Future<Output = Store>>(make: impl Fn() -> F) {
    let (store, _) = with_node(make).await;
    store.register(hello(1), NOW).await.unwrap();
    let later = NOW.saturating_add(seconds(60));
    store.mark_all_away(later).await.unwrap();
    let node = store.node(id(1)).await.unwrap().unwrap();
    assert_eq!(
        (node.presence, node.presence_since),
        (Presence::Away, later)
    );
    assert_eq!(
        node.last_seen,
        Some(NOW),
        "the hub was away, too, and saw nobody"
    );
}

pub(super) async fn a_superseded_process_stays_out<F: Future<Output = Store>>(
    make: impl Fn() -> F,
) {
    let (store, _) = with_node(make).await;
    store.register(hello(1), NOW).await.unwrap();
    let second = store.register(hello(2), NOW).await.unwrap();
    assert_eq!(second.superseded, Some(hello(1).process.incarnation));
    let refusal = RegisterRefusal::Superseded { name: name("shop") };
    assert_eq!(
        store.register(hello(1), NOW).await,
        Err(refusal.clone().into())
    );
    assert!(store.register(hello(2), NOW).await.is_ok());

    // It is remembered across many restarts of the agent, and not for ever.
    let kept = u8::try_from(hub_ledger::node::SUPERSEDED_KEPT).unwrap();
    for incarnation in 3..=kept + 1 {
        store.register(hello(incarnation), NOW).await.unwrap();
    }
    assert_eq!(store.register(hello(1), NOW).await, Err(refusal.into()));
    store.register(hello(kept + 2), NOW).await.unwrap();
    assert!(store.register(hello(1), NOW).await.is_ok());
}

pub(super) async fn an_agent_with_another_generation_is_fenced<F: Future<Output = Store>>(
    make: impl Fn() -> F,
) {
    let (store, _) = with_node(make).await;
    let hello = |last| Registration {
        process: Process {
            last_generation: last,
            ..process(1)
        },
        ..hello(1)
    };
    let same = store
        .register(hello(Some(Generation(0))), NOW)
        .await
        .unwrap();
    assert!(!same.fenced);
    let ahead = store
        .register(hello(Some(Generation(4))), NOW)
        .await
        .unwrap();
    assert_eq!((ahead.fenced, ahead.node.generation), (true, Generation(5)));
    let told = store
        .register(hello(Some(Generation(5))), NOW)
        .await
        .unwrap();
    assert!(!told.fenced);
    let invented = store
        .register(hello(Some(Generation(u64::MAX))), NOW)
        .await
        .unwrap();
    assert_eq!(
        store.node(id(1)).await,
        Ok(Some(invented.node)),
        "any generation can be stored"
    );
}

pub(super) async fn revocation_is_for_good<F: Future<Output = Store>>(make: impl Fn() -> F) {
    let (store, _) = with_node(make).await;
    let registered = store.register(hello(1), NOW).await.unwrap().node;
    let revoked = store.revoke_node(id(1), NOW).await.unwrap();
    assert_eq!(revoked.revoked, Some(NOW));
    assert!(revoked.generation > registered.generation);
    let later = NOW.saturating_add(seconds(1));
    assert_eq!(store.revoke_node(id(1), later).await, Ok(revoked.clone()));
    assert_eq!(store.node(id(1)).await, Ok(Some(revoked)));

    let distrust = Distrust::Revoked {
        name: name("shop"),
        revoked: NOW,
    };
    let refused = store.register(hello(1), later).await;
    assert_eq!(refused, Err(RegisterRefusal::Distrusted(distrust).into()));
    let refused = store.join(join("shop", 1), later).await;
    let refusal = JoinRefusal::Revoked {
        name: name("shop"),
        revoked: NOW,
    };
    assert_eq!(refused, Err(refusal.into()));
    let refused = store.record_certificate(certificate(2, 1), later).await;
    let refusal = RecordRefusal::Revoked {
        name: name("shop"),
        revoked: NOW,
    };
    assert_eq!(refused, Err(refusal.into()));
    let refused = store.revoke_node(id(2), later).await;
    assert_eq!(refused, Err(RevokeRefusal { node: id(2) }.into()));
}

pub(super) async fn nodes_are_found<F: Future<Output = Store>>(make: impl Fn() -> F) {
    let store = with_token(make, 3).await;
    for (called, with) in [("b", 1), ("a", 2), ("C", 3)] {
        store.join(join(called, with), NOW).await.unwrap();
    }
    let nodes = store.nodes().await.unwrap();
    let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["C", "a", "b"], "in the order of their bytes");
    assert_eq!(
        store.node_named(name("a")).await.unwrap().unwrap().id,
        id(2)
    );
    assert_eq!(store.node_named(name("A")).await, Ok(None), "case counts");
    assert_eq!(store.node(id(3)).await.unwrap().unwrap().name, name("C"));
    assert_eq!(store.node(id(4)).await, Ok(None));
}

pub(super) async fn the_first_ca_stands<F: Future<Output = Store>>(make: impl Fn() -> F) {
    let store = make().await;
    let ca = |byte| CaRecord {
        certificate: vec![byte; 300],
        sealed_key: vec![byte; 200],
    };
    assert_eq!(store.put_ca_if_absent(ca(1)).await, Ok(ca(1)));
    assert_eq!(store.put_ca_if_absent(ca(2)).await, Ok(ca(1)));
    assert_eq!(store.ca().await, Ok(Some(ca(1))));
}

pub(super) async fn a_closed_store_says_so<F: Future<Output = Store>>(make: impl Fn() -> F) {
    let store = make().await;
    let other = store.clone();
    store.close().await.unwrap();
    assert_eq!(other.nodes().await, Err(StoreError::Closed));
    assert_eq!(other.close().await, Err(StoreError::Closed));
}

pub(super) async fn the_hubs_own_machine_is_one_node<F: Future<Output = Store>>(
    make: impl Fn() -> F,
) {
    let (store, joined) = with_node(make).await;
    let taken = LocalRefusal::NameTaken { name: name("shop") };
    let refused = store.ensure_local(name("shop"), id(8), NOW).await;
    assert_eq!(refused, Err(taken.into()));
    let local = store.ensure_local(name("here"), id(8), NOW).await.unwrap();
    assert!(local.is_local() && local.key().is_none());
    assert_eq!(store.node(id(8)).await, Ok(Some(local.clone())));
    // Again, and under another name: the same node.
    let again = store.ensure_local(name("here"), id(9), NOW).await;
    assert_eq!(again, Ok(local));
    let renamed = store.ensure_local(name("hub"), id(9), NOW).await.unwrap();
    assert_eq!((renamed.id, &renamed.name), (id(8), &name("hub")));
    assert_eq!(store.node_named(name("here")).await, Ok(None));
    // It registers by its own right, and in no other way.
    let first = store.register_local(id(8), process(1), NOW).await.unwrap();
    assert_eq!((first.node.epoch, first.superseded), (Epoch(1), None));
    let second = store.register_local(id(8), process(2), NOW).await.unwrap();
    assert_eq!(second.superseded, Some(process(1).incarnation));
    let superseded = store.register_local(id(8), process(1), NOW).await;
    assert!(matches!(
        superseded,
        Err(StoreError::Register(RegisterRefusal::Superseded { .. }))
    ));
    let stranger = Distrust::UnknownNode { node: joined.id };
    assert_eq!(
        store.register_local(joined.id, process(3), NOW).await,
        Err(StoreError::Register(stranger.into()))
    );
    let stranger = Registration {
        node: id(8),
        ..hello(3)
    };
    let unknown = Distrust::UnknownNode { node: id(8) };
    assert_eq!(
        store.register(stranger, NOW).await,
        Err(StoreError::Register(unknown.into()))
    );
    let certificate = NewCertificate {
        node: id(8),
        ..certificate(2, 2)
    };
    let unknown = RecordRefusal::UnknownNode { node: id(8) };
    assert_eq!(
        store.record_certificate(certificate, NOW).await,
        Err(unknown.into())
    );
    // Nobody joins as it.
    let joined = store.join(join("hub", 5), NOW).await;
    assert!(matches!(
        joined,
        Err(StoreError::Join(
            JoinRefusal::SpentToken { .. } | JoinRefusal::NameTaken { .. }
        ))
    ));
    // Revoked, its name is gone for good, and the machine can be another node.
    store.revoke_node(id(8), NOW).await.unwrap();
    let revoked = LocalRefusal::Revoked {
        name: name("hub"),
        revoked: NOW,
    };
    let refused = store.ensure_local(name("hub"), id(9), NOW).await;
    assert_eq!(refused, Err(revoked.into()));
    let other = store.ensure_local(name("hub-2"), id(9), NOW).await.unwrap();
    assert_eq!(other.id, id(9));
}
