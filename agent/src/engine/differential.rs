//! Our calls against the daemon itself: the same question asked of both. Needs a daemon, but for
//! what a fake one shows.

#![allow(clippy::unwrap_used)]
#![allow(clippy::large_futures, reason = "a test has the stack to itself")]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Mutex;

use bollard::query_parameters::{
    KillContainerOptions, ListImagesOptionsBuilder, RemoveImageOptions, RemoveVolumeOptions,
    StatsOptionsBuilder, TagImageOptionsBuilder, WaitContainerOptions,
};
use futures_util::StreamExt as _;
use futures_util::future::pending;
use hub_protocol::kind::FailureCode;
use hub_protocol::kind::call::container::{
    Attachment, Container, Create, Inspect, List, Mount, MountKind, Port, Protocol, Remove,
    Resources, Restart, Start, State, Stop, Update, Variable,
};
use hub_protocol::kind::call::image::{Credentials, Pull};
use hub_protocol::kind::call::{Change, Progress, image, network, stats, volume};

use super::fake;
use super::registry::{Registry, Stall};
use super::*;
use crate::runtime::docker::DockerRuntime;

/// How long a test waits for what should come.
const HANG: Duration = Duration::from_secs(30);

/// A daemon, an image, and names that are this test's own.
struct Rig {
    engine: Engine,
    image: String,
    /// All that the test makes begins so, and is removed by it.
    name: String,
}

impl Rig {
    fn calls(&self) -> Calls<'_> {
        self.engine.calls(&|_| ())
    }

    fn named(&self, what: &str) -> String {
        format!("{}-{what}", self.name)
    }

    /// A container that idles, without a network.
    fn idle(&self, what: &str) -> Create {
        self.running(what, &["sleep", "3600"])
    }

    fn running(&self, what: &str, command: &[&str]) -> Create {
        Create {
            name: self.named(what),
            image: self.image.clone(),
            command: Some(command.iter().map(ToString::to_string).collect()),
            network_mode: Some("none".into()),
            ..Create::default()
        }
    }

    async fn create(&self, spec: Create) -> String {
        self.try_create(spec).await.unwrap()
    }

    async fn try_create(&self, spec: Create) -> Result<String, Failure> {
        let prepared = self.calls().container_prepare(spec).await?;
        Ok(self.calls().container_create(prepared).await?.id)
    }

    async fn start(&self, container: &str) -> Result<Change, Failure> {
        let container = container.into();
        self.calls().container_start(Start { container }).await
    }

    async fn stop(&self, container: &str, timeout_s: Option<i64>) -> Result<Change, Failure> {
        let container = container.into();
        let stop = Stop {
            container,
            timeout_s,
        };
        self.calls().container_stop(stop).await
    }

    async fn remove(&self, container: &str, force: bool) -> Result<Change, Failure> {
        let remove = Remove {
            container: container.into(),
            force,
            volumes: true,
        };
        self.calls().container_remove(remove).await
    }

    async fn state(&self, container: &str) -> Option<(bool, Option<i64>)> {
        let container = container.into();
        let state = self.calls().container_state(State { container }).await;
        state.unwrap().map(|state| (state.running, state.exit_code))
    }

    async fn shown(&self, container: &str) -> Container {
        let container = container.into();
        let inspect = Inspect { container };
        self.calls()
            .container_inspect(inspect)
            .await
            .unwrap()
            .unwrap()
    }

    /// Waits until it has ended by itself.
    async fn over(&self, container: &str) {
        let docker = self.engine.docker();
        let mut ended = docker.wait_container(container, None::<WaitContainerOptions>);
        // A code other than 0 is an error to the client.
        let _ = timeout(HANG, ended.next()).await.unwrap();
    }
}

/// Runs a test, and removes all that has its name.
async fn with(test: impl AsyncFnOnce(&Rig)) {
    let engine = Engine::connect()
        .await
        .expect("this test needs a Docker daemon");
    let demo = DockerRuntime::new(&engine).demo_container().await.unwrap();
    let rig = Rig {
        image: demo.image.clone(),
        name: demo.name.replace("hub-demo", "hub-calls"),
        engine,
    };
    demo.remove().await.unwrap();
    let done = AssertUnwindSafe(test(&rig)).catch_unwind().await;
    let (calls, prefix) = (rig.calls(), Some(rig.name.clone()));
    let list = List {
        prefix: prefix.clone(),
        all: true,
        ..List::default()
    };
    for container in calls.container_list(list).await.unwrap() {
        rig.remove(&container.id, true).await.unwrap();
    }
    let list = network::List {
        prefix: prefix.clone(),
    };
    for network in calls.network_list(list).await.unwrap() {
        let network = network.id;
        calls
            .network_remove(network::Remove { network })
            .await
            .unwrap();
    }
    for volume in calls.volume_list(volume::List { prefix }).await.unwrap() {
        let name = volume.name;
        calls.volume_remove(volume::Remove { name }).await.unwrap();
    }
    done.unwrap_or_else(|panic| resume_unwind(panic));
}

fn resources(memory: u64) -> Resources {
    Resources {
        memory: Some(memory),
        ..Resources::default()
    }
}

const MIB: u64 = 1 << 20;

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
            (listed(&[("hub.k", v), ("hub.none", None)], &rig.name, true), 0),
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

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_statistics_are_those_of_the_daemon() {
    with(async |rig| {
        let get = async |container: &str| {
            let container = container.into();
            rig.calls()
                .stats_get(stats::Get { container })
                .await
                .unwrap()
        };
        let busy = Create {
            resources: resources(64 * MIB),
            ..rig.running("busy", &["sh", "-c", "while :; do :; done"])
        };
        let id = rig.create(busy).await;
        let stopped = get(&id).await.unwrap();
        assert_eq!(
            (stopped.cpu_percent, stopped.memory, stopped.pids),
            (Some(0.0), 0, 0)
        );
        assert_eq!((&stopped.id, &stopped.name), (&id, &rig.named("busy")));
        rig.start(&id).await.unwrap();
        let ours = get(&rig.named("busy")).await.unwrap();
        assert!(ours.cpu_percent.unwrap() > 1.0, "{ours:?}");
        assert_eq!((ours.memory_limit, ours.pids), (64 * MIB, 1));
        assert!(ours.memory > 0 && ours.memory < 64 * MIB);
        // Counters go on from there.
        let options = StatsOptionsBuilder::new().stream(false).build();
        let direct = rig.engine.docker().stats(&id, Some(options)).next().await;
        let cpu = direct.unwrap().unwrap().cpu_stats.unwrap();
        assert!(cpu.system_cpu_usage.unwrap() >= ours.system_cpu_ns);
        assert!(cpu.cpu_usage.unwrap().total_usage.unwrap() >= ours.cpu_ns);
        assert_eq!(u64::from(cpu.online_cpus.unwrap()), ours.cpus);
        assert_eq!(get("hub-no-such").await, None);

        let mut looks = rig.calls().stats_follow(&id).await.unwrap();
        let first = timeout(HANG, looks.next()).await.unwrap().unwrap().unwrap();
        assert_eq!((first.cpu_percent, &first.id), (None, &id));
        let second = timeout(HANG, looks.next()).await.unwrap().unwrap().unwrap();
        assert!(second.cpu_percent.is_some() && second.cpu_ns >= first.cpu_ns);
        let docker = rig.engine.docker();
        docker
            .kill_container(&id, None::<KillContainerOptions>)
            .await
            .unwrap();
        let rest = timeout(HANG, looks.collect::<Vec<_>>()).await.unwrap();
        assert!(rest.iter().all(Result::is_ok), "{rest:?}");
        let refused = rig.calls().stats_follow(&id).await.err().unwrap();
        assert_eq!(refused.code, FailureCode::NOT_RUNNING);
        let refused = rig.calls().stats_follow("hub-no-such").await.err().unwrap();
        assert_eq!(refused.code, FailureCode::NO_SUCH_CONTAINER);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn questions_to_a_silent_daemon_have_an_end_and_a_stop_has_none() {
    let engine = fake::engine(|_| pending().boxed()).await;
    let calls = engine.calls(&|_| ());
    let inspect = Inspect {
        container: "web".into(),
    };
    let before = tokio::time::Instant::now();
    let silent = calls.container_inspect(inspect).await.unwrap_err();
    assert_eq!(silent.code, FailureCode::RUNTIME_UNAVAILABLE);
    assert!(silent.retry);
    assert_eq!(before.elapsed().as_secs(), 10);
    let stop = Stop {
        container: "web".into(),
        timeout_s: Some(-1),
    };
    let year = Duration::from_secs(365 * 24 * 3600);
    assert!(timeout(year, calls.container_stop(stop)).await.is_err());
    let pull = Pull {
        image: "web".into(),
        platform: None,
        registry: None,
    };
    assert!(timeout(year, calls.image_pull(pull)).await.is_err());
}
