//! Volumes and networks.

use super::*;

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_volumes_are_there_once() {
    with(async |rig| {
        let (calls, name) = (rig.calls(), rig.named("volume"));
        let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let ensure = volume::Ensure {
            name: name.clone(),
            labels: labels.clone(),
        };
        let made = calls.volume_ensure(ensure.clone()).await.unwrap();
        assert_eq!(
            (&made.name, &*made.driver, &made.labels),
            (&name, "local", &labels)
        );
        assert_eq!(calls.volume_ensure(ensure).await.as_ref(), Ok(&made));
        let direct = rig.engine.docker().inspect_volume(&name).await.unwrap();
        assert_eq!(made.created, direct.created_at);
        let list = volume::List {
            prefix: Some(rig.name.clone()),
        };
        assert_eq!(calls.volume_list(list).await, Ok(vec![made]));
        // One that a container has can't go.
        let user = Create {
            mounts: vec![Mount {
                kind: MountKind::Volume,
                source: name.clone(),
                target: "/data".into(),
                read_only: false,
            }],
            ..rig.idle("user")
        };
        let user = rig.create(user).await;
        let remove = async |name: &str| {
            let name = name.into();
            calls.volume_remove(volume::Remove { name }).await
        };
        assert_eq!(remove(&name).await.unwrap_err().code, FailureCode::CONFLICT);
        rig.remove(&user, true).await.unwrap();
        assert_eq!(remove(&name).await, Ok(Change::Changed));
        for missing in [&*name, "a b", "../x", ""] {
            assert_eq!(remove(missing).await, Ok(Change::NotFound), "{missing}");
        }
        let gone = rig
            .engine
            .docker()
            .remove_volume(&name, None::<RemoveVolumeOptions>)
            .await;
        assert_eq!(error::status(&gone.unwrap_err()), Some(404));
        for bad in ["", "a b", "../x"] {
            let ensure = volume::Ensure {
                name: bad.into(),
                labels: BTreeMap::new(),
            };
            let refused = calls.volume_ensure(ensure).await.unwrap_err();
            assert_eq!(refused.code, FailureCode::INVALID, "{bad}");
        }
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_networks_are_there_once_and_emptied_before_they_go() {
    with(async |rig| {
        let (calls, name) = (rig.calls(), rig.named("net"));
        let ensure = |name: &str| network::Ensure {
            name: name.into(),
            internal: true,
            labels: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
        };
        let made = match calls.network_ensure(ensure(&name)).await {
            Ok(made) => made,
            Err(failure) => return eprintln!("skipped: no network can be made: {failure}"),
        };
        assert_eq!(
            (&made.name, &*made.driver, made.internal),
            (&name, "bridge", true)
        );
        assert_eq!(made.labels["a"], "b");
        assert_eq!(
            calls.network_ensure(ensure(&name)).await.as_ref(),
            Ok(&made)
        );
        // All who make it at once get the same one, and it is the only one.
        let raced = rig.named("race");
        let (a, b, c) = tokio::join!(
            calls.network_ensure(ensure(&raced)),
            calls.network_ensure(ensure(&raced)),
            calls.network_ensure(ensure(&raced)),
        );
        let (a, b, c) = (a.unwrap().id, b.unwrap().id, c.unwrap().id);
        assert!(a == b && b == c);
        let list = |prefix: &str| network::List {
            prefix: Some(prefix.into()),
        };
        assert_eq!(calls.network_list(list(&raced)).await.unwrap().len(), 1);
        assert_eq!(
            calls.network_list(list(&name)).await,
            Ok(vec![made.clone()])
        );

        let [one, two, idle] = [rig.idle("one"), rig.idle("two"), rig.idle("idle")];
        let one = Create {
            network_mode: None,
            network: Some(Attachment {
                name: name.clone(),
                aliases: vec!["first".into()],
            }),
            ..one
        };
        let on = |spec: Create| Create {
            network_mode: Some(raced.clone()),
            ..spec
        };
        for spec in [one, on(two), on(idle)] {
            rig.create(spec).await;
        }
        let [one, two, idle] = ["one", "two", "idle"].map(|what| rig.named(what));
        rig.start(&one).await.unwrap();
        rig.start(&two).await.unwrap();
        let shown = rig.shown(&one).await;
        assert_eq!(shown.networks[&name].aliases, ["first"]);
        assert!(!shown.networks[&name].ip.is_empty());

        let connect = async |container: &str, aliases: &[&str]| {
            let connect = network::Connect {
                network: name.clone(),
                container: container.into(),
                aliases: aliases.iter().map(ToString::to_string).collect(),
            };
            calls.network_connect(connect).await
        };
        let disconnect = async |container: &str, force| {
            let disconnect = network::Disconnect {
                network: made.id.clone(),
                container: container.into(),
                force,
            };
            calls.network_disconnect(disconnect).await
        };
        assert_eq!(connect(&one, &["first"]).await, Ok(Change::Unchanged));
        assert_eq!(connect(&two, &["second"]).await, Ok(Change::Changed));
        assert_eq!(connect(&two, &["second"]).await, Ok(Change::Unchanged));
        let other = connect(&two, &["third"]).await.unwrap_err();
        assert_eq!(other.code, FailureCode::CONFLICT);
        assert_eq!(disconnect(&two, false).await, Ok(Change::Changed));
        assert_eq!(disconnect(&two, false).await, Ok(Change::Unchanged));
        assert_eq!(disconnect(&two, true).await, Ok(Change::Unchanged));
        assert_eq!(connect(&two, &[]).await, Ok(Change::Changed));
        assert_eq!(connect(&idle, &[]).await, Ok(Change::Changed));
        for missing in ["hub-no-such", "a b"] {
            assert_eq!(connect(missing, &[]).await, Ok(Change::NotFound));
            assert_eq!(disconnect(missing, false).await, Ok(Change::NotFound));
            assert_eq!(disconnect(missing, true).await, Ok(Change::NotFound));
        }

        // Two that run in it, and one that would: all are detached.
        let remove = async |network: &str| {
            let network = network.into();
            calls.network_remove(network::Remove { network }).await
        };
        assert_eq!(remove(&name).await, Ok(Change::Changed));
        assert_eq!(remove(&name).await, Ok(Change::NotFound));
        for container in [&one, &two, &idle] {
            let networks = rig.shown(container).await.networks;
            assert!(!networks.contains_key(&name), "{container}: {networks:?}");
        }
        assert_eq!(rig.start(&idle).await, Ok(Change::Changed));
        assert_eq!(rig.state(&one).await, Some((true, None)));
        for own in ["bridge", "host", "none"] {
            if calls
                .network_list(list(own))
                .await
                .unwrap()
                .iter()
                .any(|one| one.name == own)
            {
                assert_eq!(
                    remove(own).await.unwrap_err().code,
                    FailureCode::CONFLICT,
                    "{own}"
                );
            }
        }
        assert_eq!(remove("a/b").await, Ok(Change::NotFound));
        assert_eq!(remove("no such net").await, Ok(Change::NotFound));
    })
    .await;
}
