//! Images: lists, and what is pulled from a registry.

use super::*;

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_images_are_those_of_the_daemon() {
    with(async |rig| {
        let docker = rig.engine.docker();
        let calls = rig.calls();
        let listed = calls.image_list(image::List {}).await.unwrap();
        assert!(listed.is_sorted_by_key(|one| -one.created_s));
        let options = ListImagesOptionsBuilder::new().digests(true).build();
        let direct = docker.list_images(Some(options)).await.unwrap();
        let own = direct
            .iter()
            .find(|one| one.repo_tags.contains(&rig.image))
            .unwrap();
        let ours = listed.iter().find(|one| one.id == own.id).unwrap();
        assert_eq!(
            (ours.created_s, ours.size),
            (own.created, own.size.cast_unsigned())
        );
        assert!(
            listed
                .iter()
                .all(|one| one.tags.iter().all(|tag| !tag.contains("<none>")))
        );
        let inspect = |image: &str| {
            let image = image.into();
            calls.image_inspect(image::Inspect { image })
        };
        let found = inspect(&rig.image).await.unwrap().unwrap();
        assert_eq!(
            (&found.id, found.created_s, found.size),
            (&ours.id, ours.created_s, ours.size)
        );
        assert_eq!(inspect(&found.id).await.unwrap().unwrap().id, found.id);
        for missing in ["hub-no-such-image", "a b", "../x", "Upper/Case"] {
            assert_eq!(inspect(missing).await, Ok(None), "{missing}");
        }

        let name = rig.named("tag");
        let options = TagImageOptionsBuilder::new().repo(&name).tag("1").build();
        docker.tag_image(&rig.image, Some(options)).await.unwrap();
        let remove = async |force| {
            let image = format!("{name}:1");
            calls.image_remove(image::Remove { image, force }).await
        };
        assert_eq!(remove(false).await, Ok(Change::Changed));
        assert_eq!(remove(false).await, Ok(Change::NotFound));
        // The image that a container runs can't go.
        let id = rig.create(rig.idle("user")).await;
        rig.start(&id).await.unwrap();
        let used = image::Remove {
            image: found.id.clone(),
            force: false,
        };
        let refused = calls.image_remove(used).await.unwrap_err();
        assert_eq!(refused.code, FailureCode::CONFLICT);
    })
    .await;
}

fn pull(registry: &Registry, login: Option<(&str, &str)>) -> Pull {
    Pull {
        image: registry.image.clone(),
        platform: None,
        registry: login.map(|(username, password)| Credentials {
            username: username.into(),
            password: password.into(),
            ..Credentials::default()
        }),
    }
}

/// Removes what was pulled.
async fn forget(rig: &Rig, registry: &Registry) {
    let docker = rig.engine.docker();
    let removed = docker
        .remove_image(&registry.image, None::<RemoveImageOptions>, None)
        .await;
    removed.unwrap();
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_pull_tells_how_far_it_is() {
    with(async |rig| {
        let registry = Registry::new(None, false).await;
        let news = Mutex::new(Vec::new());
        let report = |progress: Progress| news.lock().unwrap().push(progress);
        let calls = rig.engine.calls(&report);
        let pulled = calls.image_pull(pull(&registry, None)).await.unwrap();
        assert_eq!(pulled.id, registry.id);
        let news = std::mem::take(&mut *news.lock().unwrap());
        assert!(
            news.iter().any(|one| one.status == "Pull complete"),
            "{news:?}"
        );
        assert!(
            news.iter()
                .any(|one| one.current.is_some() && one.total.is_some()),
            "{news:?}"
        );
        // Its digest is a name, too, by which it can be pulled again.
        let image = registry.image.clone();
        let found = calls
            .image_inspect(image::Inspect { image })
            .await
            .unwrap()
            .unwrap();
        assert_eq!(found.digests.len(), 1);
        assert_eq!(found.created_s, 1_714_979_289);
        let by_digest = Pull {
            image: found.digests[0].clone(),
            ..pull(&registry, None)
        };
        assert_eq!(calls.image_pull(by_digest).await.unwrap().id, registry.id);
        let missing = Pull {
            image: format!("{}:2", registry.image),
            ..pull(&registry, None)
        };
        let missing = calls.image_pull(missing).await.unwrap_err();
        assert_eq!(missing.code, FailureCode::NOT_FOUND, "{missing}");
        forget(rig, &registry).await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_credentials_reach_the_registry_whatever_is_in_them() {
    with(async |rig| {
        // In base64 these are where its two alphabets differ.
        let password = "?>?>~~~ÿÿÿ>>>???";
        let registry = Registry::new(Some(&format!("me:{password}")), false).await;
        for login in [None, Some(("me", "wr0ng-s3cret"))] {
            let refused = rig
                .calls()
                .image_pull(pull(&registry, login))
                .await
                .unwrap_err();
            assert_eq!(refused.code, FailureCode::REGISTRY_DENIED, "{refused}");
            assert!(!refused.message.contains("s3cret"), "{refused}");
        }
        let login = Some(("me", password));
        let pulled = rig.calls().image_pull(pull(&registry, login)).await;
        assert_eq!(pulled.unwrap().id, registry.id);
        forget(rig, &registry).await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_create_pulls_what_is_missing() {
    with(async |rig| {
        let registry = Registry::new(Some("me:pass"), false).await;
        let spec = |what: &str| Create {
            image: registry.image.clone(),
            command: None,
            registry: pull(&registry, Some(("me", "pass"))).registry,
            ..rig.idle(what)
        };
        let refused = Create {
            registry: None,
            ..spec("refused")
        };
        let refused = rig.try_create(refused).await.unwrap_err();
        assert_eq!(refused.code, FailureCode::REGISTRY_DENIED, "{refused}");
        let id = rig.create(spec("pulled")).await;
        assert_eq!(rig.shown(&id).await.image_id, registry.id);
        // Now it is there: nobody is asked, unless that is wished.
        let there = Create {
            registry: None,
            ..spec("there")
        };
        rig.create(there.clone()).await;
        let again = Create {
            force_pull: true,
            name: rig.named("again"),
            ..there
        };
        let refused = rig.try_create(again).await.unwrap_err();
        assert_eq!(refused.code, FailureCode::REGISTRY_DENIED, "{refused}");
        let id = registry.id.replace("sha256:", "sha256:0")[..71].to_owned();
        let by_id = Create {
            image: id,
            ..spec("id")
        };
        let missing = rig.try_create(by_id).await.unwrap_err();
        assert_eq!(missing.code, FailureCode::NOT_FOUND, "{missing}");
        for what in ["pulled", "there"] {
            rig.remove(&rig.named(what), true).await.unwrap();
        }
        forget(rig, &registry).await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_pull_that_is_given_up_stops_at_the_daemon() {
    with(async |rig| {
        let mut registry = Registry::new(None, true).await;
        let call = pull(&registry, None);
        let calls = rig.calls();
        {
            let pulling = calls.image_pull(call.clone());
            tokio::select! {
                pulled = pulling => panic!("half of it passes for all: {pulled:?}"),
                () = registry.reached(Stall::Stalled) => {}
            }
        }
        // The daemon lets go of the registry by itself.
        timeout(HANG, registry.reached(Stall::GivenUp))
            .await
            .unwrap();
        let image = call.image;
        assert_eq!(
            calls.image_inspect(image::Inspect { image }).await,
            Ok(None)
        );
    })
    .await;
}
