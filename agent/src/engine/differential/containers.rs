//! Containers: their lives, and all that can be said of one.

use super::*;

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_container_s_life() {
    with(async |rig| {
        let name = rig.named("life");
        assert_eq!(rig.state(&name).await, None);
        let id = rig.create(rig.idle("life")).await;
        // Before its first start there is no code.
        assert_eq!(rig.state(&name).await, Some((false, None)));
        let created = rig.shown(&name).await;
        assert_eq!((&*created.state, created.started), ("created", None));
        let taken = rig.try_create(rig.idle("life")).await.unwrap_err();
        assert_eq!(taken.code, FailureCode::CONFLICT);

        assert_eq!(rig.start(&name).await, Ok(Change::Changed));
        assert_eq!(rig.start(&id).await, Ok(Change::Unchanged));
        assert_eq!(rig.state(&name).await, Some((true, None)));
        let refused = rig.remove(&name, false).await.unwrap_err();
        assert_eq!(refused.code, FailureCode::CONFLICT);

        assert_eq!(rig.stop(&name, Some(0)).await, Ok(Change::Changed));
        assert_eq!(rig.stop(&name, Some(0)).await, Ok(Change::Unchanged));
        assert_eq!(rig.state(&name).await, Some((false, Some(137))));
        let container = rig
            .engine
            .docker()
            .inspect_container(&id, None)
            .await
            .unwrap();
        let (shown, state) = (rig.shown(&name).await, container.state.unwrap());
        assert_eq!(shown.finished, state.finished_at);
        assert_eq!(shown.started, state.started_at);
        assert_eq!(Some(shown.created), container.created);
        assert_eq!(shown.pid, None);

        assert_eq!(rig.remove(&name, false).await, Ok(Change::Changed));
        for name in [&name, "a b", "../x", ""] {
            assert_eq!(rig.remove(name, true).await, Ok(Change::NotFound), "{name}");
            assert_eq!(rig.start(name).await, Ok(Change::NotFound), "{name}");
            assert_eq!(rig.stop(name, None).await, Ok(Change::NotFound), "{name}");
            assert_eq!(rig.state(name).await, None, "{name}");
            let update = Update {
                container: name.into(),
                resources: resources(64 * MIB),
            };
            assert_eq!(
                rig.calls().container_update(update).await,
                Ok(Change::NotFound)
            );
        }
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_codes_are_those_of_the_command() {
    with(async |rig| {
        let id = rig
            .create(rig.running("code", &["sh", "-c", "exit 7"]))
            .await;
        rig.start(&id).await.unwrap();
        rig.over(&id).await;
        assert_eq!(rig.state(&id).await, Some((false, Some(7))));
        let missing = rig.create(rig.running("missing", &["/no/such"])).await;
        let refused = rig.start(&missing).await.unwrap_err();
        assert!(refused.message.contains("/no/such"), "{refused}");
        assert_eq!(rig.state(&missing).await, Some((false, None)));
        // With a negative timeout the daemon waits for the end, and that is what came.
        let ends = rig.running(
            "ends",
            &["sh", "-c", "trap 'exit 5' TERM; sleep 3600 & wait"],
        );
        let ends = rig.create(ends).await;
        rig.start(&ends).await.unwrap();
        let stopped = timeout(HANG, rig.stop(&ends, Some(-1))).await.unwrap();
        assert_eq!(stopped, Ok(Change::Changed));
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_all_of_a_specification_arrives() {
    with(async |rig| {
        let volume = rig.named("data");
        let spec = Create {
            entrypoint: Some(vec!["sh".into()]),
            command: Some(vec!["-c".into(), "sleep 3600".into()]),
            env: vec![Variable {
                name: "SECRET".into(),
                value: "s3cret=1".into(),
            }],
            working_dir: Some("/tmp".into()),
            user: Some("65534:65534".into()),
            hostname: Some("box".into()),
            tty: true,
            open_stdin: true,
            labels: BTreeMap::from([("hub.k".into(), "v".into())]),
            ports: vec![Port {
                container: 80,
                host: 0,
                host_ip: Some("127.0.0.1".into()),
                protocol: Protocol::Udp,
            }],
            resources: Resources {
                memory: Some(64 * MIB),
                nano_cpus: Some(500_000_000),
                cpuset: Some("0".into()),
                memory_swap: None,
            },
            shm_size: Some(MIB),
            mounts: vec![
                Mount {
                    kind: MountKind::Volume,
                    source: volume.clone(),
                    target: "/data".into(),
                    read_only: false,
                },
                Mount {
                    kind: MountKind::Bind,
                    source: "/etc".into(),
                    target: "/host".into(),
                    read_only: true,
                },
            ],
            dns: vec!["192.0.2.1".into()],
            cap_add: vec!["NET_ADMIN".into()],
            privileged: true,
            restart: Some(Restart::UnlessStopped),
            ..rig.idle("full")
        };
        let id = rig.create(spec.clone()).await;
        let direct = rig
            .engine
            .docker()
            .inspect_container(&id, None)
            .await
            .unwrap();
        let (config, host) = (direct.config.unwrap(), direct.host_config.unwrap());
        assert_eq!(config.entrypoint, spec.entrypoint);
        assert_eq!(config.cmd, spec.command);
        assert!(config.env.unwrap().contains(&"SECRET=s3cret=1".to_owned()));
        assert_eq!(config.working_dir, spec.working_dir);
        assert_eq!(config.user, spec.user);
        assert_eq!(config.hostname, spec.hostname);
        assert_eq!((config.tty, config.open_stdin), (Some(true), Some(true)));
        assert_eq!(config.exposed_ports, Some(vec!["80/udp".into()]));
        assert_eq!(host.memory, Some(64 << 20));
        assert_eq!(host.nano_cpus, Some(500_000_000));
        assert_eq!(host.cpuset_cpus.as_deref(), Some("0"));
        assert_eq!(host.shm_size, Some(1 << 20));
        assert_eq!(host.dns, Some(spec.dns));
        assert_eq!(host.privileged, Some(true));
        assert_eq!(host.network_mode.as_deref(), Some("none"));
        let capabilities = host.cap_add.unwrap();
        assert!(capabilities[0].ends_with("NET_ADMIN"), "{capabilities:?}");
        let restart = host.restart_policy.unwrap().name.unwrap();
        assert_eq!(restart.to_string(), "unless-stopped");

        let shown = rig.shown(&rig.named("full")).await;
        assert_eq!(shown.id, id);
        assert_eq!(shown.name, rig.named("full"));
        assert_eq!(shown.image, rig.image);
        assert_eq!(Some(shown.image_id), direct.image);
        assert_eq!(shown.command, ["sh", "-c", "sleep 3600"]);
        assert!(shown.env.contains(&"SECRET".to_owned()), "{:?}", shown.env);
        assert!(shown.env.iter().all(|name| !name.contains('=')));
        assert_eq!(shown.labels, spec.labels);
        assert_eq!(shown.ports, spec.ports);
        assert_eq!(shown.resources.memory, Some(64 * MIB));
        assert_eq!(shown.resources.nano_cpus, Some(500_000_000));
        assert!(shown.tty);
        let mut mounts = shown.mounts;
        mounts.sort_by(|a, b| a.target.cmp(&b.target));
        let mounts: Vec<_> = mounts
            .iter()
            .map(|one| (&*one.kind, &*one.source, &*one.target, one.read_only))
            .collect();
        let expected = [
            ("volume", &*volume, "/data", false),
            ("bind", "/etc", "/host", true),
        ];
        assert_eq!(mounts, expected);

        let listed = |labels: &[(&str, Option<&str>)], prefix: &str, all| List {
            prefix: Some(prefix.into()),
            labels: labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned)))
                .collect(),
            all,
        };
        let (v, w) = (Some("v"), Some("w"));
        for (list, found) in [
            (listed(&[("hub.k", None)], &rig.name, true), 1),
            (listed(&[("hub.k", v)], &rig.name, true), 1),
            (listed(&[("hub.k", w)], &rig.name, true), 0),
            (
                listed(&[("hub.k", v), ("hub.none", None)], &rig.name, true),
                0,
            ),
            (listed(&[("hub.k", None)], "other", true), 0),
            // It does not run.
            (listed(&[("hub.k", None)], &rig.name, false), 0),
        ] {
            let listed = rig.calls().container_list(list.clone()).await.unwrap();
            assert_eq!(listed.len(), found, "{list:?}");
            assert!(
                listed
                    .iter()
                    .all(|one| one.id == id && one.state == "created")
            );
        }
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_no_arguments_are_not_the_image_s_own() {
    with(async |rig| {
        // The image has no entrypoint: there would be nothing to run.
        let nothing = rig
            .try_create(rig.running("nothing", &[]))
            .await
            .unwrap_err();
        assert_eq!(nothing.code, FailureCode::INVALID);
        assert!(nothing.message.starts_with("command: "), "{nothing}");
        let only = Create {
            entrypoint: Some(vec!["true".into()]),
            ..rig.running("only", &[])
        };
        rig.create(only).await;
        assert_eq!(rig.shown(&rig.named("only")).await.command, ["true"]);
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_memory_alone_can_be_raised() {
    with(async |rig| {
        let spec = Create {
            resources: resources(64 * MIB),
            ..rig.idle("grows")
        };
        let id = rig.create(spec).await;
        rig.start(&id).await.unwrap();
        let swap = rig.shown(&id).await.resources.memory_swap;
        let update = async |resources: Resources| {
            let container = id.clone();
            let update = Update {
                container,
                resources,
            };
            rig.calls().container_update(update).await
        };
        for (wish, change) in [
            (64 * MIB, Change::Unchanged),
            (96 * MIB, Change::Changed),
            // Above memory and swap together, which the daemon refuses alone.
            (512 * MIB, Change::Changed),
            (512 * MIB, Change::Unchanged),
            (32 * MIB, Change::Changed),
        ] {
            assert_eq!(update(resources(wish)).await, Ok(change), "{wish}");
            assert_eq!(rig.shown(&id).await.resources.memory, Some(wish));
        }
        match swap {
            Some(128_000_000..) => {
                let swap = rig.shown(&id).await.resources.memory_swap;
                assert_eq!(swap, Some(i64::try_from((512 + 32) * MIB).unwrap()));
            }
            other => eprintln!("skipped: this kernel has no limit of swap: {other:?}"),
        }
        let others = Resources {
            nano_cpus: Some(250_000_000),
            cpuset: Some("0".into()),
            ..Resources::default()
        };
        assert_eq!(update(others.clone()).await, Ok(Change::Changed));
        let shown = rig.shown(&id).await.resources;
        assert_eq!(
            (shown.nano_cpus, shown.cpuset),
            (others.nano_cpus, others.cpuset)
        );
        assert_eq!(shown.memory, Some(32 * MIB));
        let lifted = update(resources(0)).await.unwrap_err();
        assert_eq!(lifted.code, FailureCode::UNSUPPORTED);
        let tiny = update(resources(1)).await.unwrap_err();
        assert_eq!(tiny.code, FailureCode::INVALID);
    })
    .await;
}
