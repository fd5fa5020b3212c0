//! A container's life, and what is said of it.

use bollard::query_parameters::{InspectContainerOptions, ListContainersOptionsBuilder};
use hub_protocol::kind::call::Change;
use hub_protocol::kind::call::container::{Inspect, List, Resources, State};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use tokio::time::timeout;

use super::{Class, HANG, Side, Way, of_daemon, with};

const MIB: u64 = 1 << 20;

const CHANGED: Result<Change, super::Refusal> = Ok(Change::Changed);
const UNCHANGED: Result<Change, super::Refusal> = Ok(Change::Unchanged);
const NOT_FOUND: Result<Change, super::Refusal> = Ok(Change::NotFound);

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_life_is_the_same() {
    with(async |rig| {
        rig.script(async |side| {
            let name = side.named("life");
            let id = side.create(side.idle("life")).await.unwrap();
            side.state("created", &name).await;
            // The words are ours: it is looked for before a pull.
            let taken = side.create(side.idle("life")).await.unwrap_err();
            side.expect("a name that is taken", taken.class, &Class::Conflict);
            side.expect("start", side.start(&name).await, &CHANGED);
            side.expect("start by id", side.start(&id).await, &UNCHANGED);
            side.expect(
                "start by a short id",
                side.start(&id[..12]).await,
                &UNCHANGED,
            );
            side.state("runs", &id).await;
            let removed = side.remove(&name, false).await;
            side.refused("remove a running one", removed, Class::Conflict);
            side.expect("stop at once", side.stop(&name, Some(0)).await, &CHANGED);
            side.state("killed", &name).await;
            side.expect("stop again", side.stop(&name, Some(0)).await, &UNCHANGED);
            side.expect("start again", side.start(&name).await, &CHANGED);
            side.expect("remove by force", side.remove(&name, true).await, &CHANGED);
            for missing in [&*name, &id, "hub-no-such"] {
                side.expect(
                    "remove a missing one",
                    side.remove(missing, false).await,
                    &NOT_FOUND,
                );
                side.expect(
                    "the same by force",
                    side.remove(missing, true).await,
                    &NOT_FOUND,
                );
                side.expect("start a missing one", side.start(missing).await, &NOT_FOUND);
                side.expect(
                    "stop a missing one",
                    side.stop(missing, None).await,
                    &NOT_FOUND,
                );
                let none = side
                    .update(missing, memory(64), json!({"Memory": 64 * MIB}))
                    .await;
                side.expect("update a missing one", none, &NOT_FOUND);
                side.expect("look for a missing one", shown(side, missing).await, &None);
            }
        })
        .await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_ends_are_the_same() {
    with(async |rig| {
        rig.script(async |side| {
            for (what, script) in [
                ("zero", "exit 0"),
                ("seven", "exit 7"),
                ("killed", "kill -9 $$"),
                ("term", "kill -TERM $$; exit 3"),
            ] {
                let id = side.run(side.spec(what, &["sh", "-c", script])).await;
                side.over(&id).await;
                side.state(what, &id).await;
                side.expect(
                    "stop what has ended",
                    side.stop(&id, None).await,
                    &UNCHANGED,
                );
            }
            let id = side.create(side.spec("none", &["/no/such"])).await.unwrap();
            let refused = side.start(&id).await;
            side.refused("start what is not there", refused, Class::Invalid);
            side.state("never ran", &id).await;
            // With a negative timeout the daemon waits for the end, and with some it kills.
            let trap = "trap 'exit 5' TERM; echo ready; while :; do sleep 1; done";
            for (what, timeout_s) in [("ever", Some(-1)), ("ten", Some(10)), ("own", None)] {
                let id = side.run(side.spec(what, &["sh", "-c", trap])).await;
                side.ready(&id).await;
                let stopped = timeout(HANG, side.stop(&id, timeout_s)).await.unwrap();
                side.expect(what, stopped, &CHANGED);
                side.state("by its own code", &id).await;
            }
            let deaf = "trap '' TERM; echo ready; while :; do sleep 1; done";
            let id = side.run(side.spec("deaf", &["sh", "-c", deaf])).await;
            side.ready(&id).await;
            side.expect("stop a deaf one", side.stop(&id, Some(1)).await, &CHANGED);
            side.state("killed at last", &id).await;
        })
        .await;
    })
    .await;
}

fn memory(mib: u64) -> Resources {
    Resources {
        memory: Some(mib * MIB),
        ..Resources::default()
    }
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_updates_are_the_same() {
    with(async |rig| {
        rig.script(async |side| {
            let mut spec = side.idle("grows");
            spec.ours.resources = memory(64);
            spec.theirs["HostConfig"]["Memory"] = json!(64 * MIB);
            let id = side.run(spec).await;
            let limits = async |label: &str| {
                let host = side.daemon_s(&id).await.host_config.unwrap();
                side.step(
                    label,
                    (
                        host.memory,
                        host.memory_swap,
                        host.nano_cpus,
                        host.cpuset_cpus,
                    ),
                );
            };
            limits("as made").await;
            let theirs = json!({"Memory": 96 * MIB});
            side.expect("more", side.update(&id, memory(96), theirs).await, &CHANGED);
            limits("more").await;
            // Past the limit of memory and swap, which the daemon refuses without the latter: the
            // hub moves it along, as far as it was apart.
            let theirs = json!({"Memory": 512 * MIB, "MemorySwap": (512 + 32) * MIB});
            side.expect(
                "much more",
                side.update(&id, memory(512), theirs).await,
                &CHANGED,
            );
            limits("much more").await;
            let cpus = Resources {
                nano_cpus: Some(250_000_000),
                cpuset: Some("0".into()),
                ..Resources::default()
            };
            let theirs = json!({"NanoCpus": 250_000_000, "CpusetCpus": "0"});
            side.expect("processors", side.update(&id, cpus, theirs).await, &CHANGED);
            limits("processors").await;
            let tiny = Resources {
                memory: Some(1),
                ..Resources::default()
            };
            let tiny = side.update(&id, tiny, json!({"Memory": 1})).await;
            side.refused("too little", tiny, Class::Invalid);
            let many = Resources {
                cpuset: Some("0-4000".into()),
                ..Resources::default()
            };
            let many = side
                .update(&id, many, json!({"CpusetCpus": "0-4000"}))
                .await;
            side.refused("processors that are not there", many, Class::Invalid);
            limits("after refusals").await;
        })
        .await;
    })
    .await;
}

/// What is said of a container, in the terms of the daemon.
async fn shown(side: &Side<'_>, container: &str) -> Option<serde_json::Value> {
    if side.way == Way::Hub {
        let container = container.to_owned();
        let state = State {
            container: container.clone(),
        };
        let state = side.ask(&state).await.unwrap();
        let shown = side.ask(&Inspect { container }).await.unwrap();
        assert_eq!(state, shown.as_ref().map(|shown| shown.exit));
        let shown = shown?;
        let mut mounts: Vec<_> = shown
            .mounts
            .iter()
            .map(|one| json!([one.kind, one.source, one.target, !one.read_only]))
            .collect();
        mounts.sort_by_key(ToString::to_string);
        let networks: BTreeMap<_, _> = shown.networks.iter().map(|(k, v)| (k, &v.ip)).collect();
        return Some(json!({
            "id": shown.id, "name": shown.name, "image": shown.image, "image id": shown.image_id,
            "created": shown.created, "started": shown.started, "finished": shown.finished,
            "status": shown.state, "running": shown.exit.running, "oom": shown.exit.oom_killed,
            "code": shown.exit.exit_code, "pid": shown.pid, "command": shown.command,
            "env": shown.env, "labels": shown.labels, "mounts": mounts, "networks": networks,
            "memory": shown.resources.memory, "swap": shown.resources.memory_swap,
            "cpus": shown.resources.nano_cpus, "cpuset": shown.resources.cpuset,
            "tty": shown.tty, "restarts": shown.restarts, "health": shown.health,
        }));
    }
    let docker = &side.rig.docker;
    let found = docker.inspect_container(container, None::<InspectContainerOptions>);
    let found = match found.await.map_err(of_daemon) {
        Ok(found) => found,
        Err(refusal) if refusal.class == Class::Missing => return None,
        Err(refusal) => panic!("{refusal:?}"),
    };
    let (state, config) = (found.state.unwrap(), found.config.unwrap());
    let host = found.host_config.unwrap();
    // What never was is the year 1 to the daemon.
    let time = |time: Option<String>| time.filter(|time| !time.starts_with("0001"));
    let (started, finished) = (time(state.started_at), time(state.finished_at));
    let running = state.running.unwrap();
    let code = state.exit_code.filter(|_| started.is_some() && !running);
    let mut command = vec![found.path.unwrap()];
    command.extend(found.args.unwrap());
    let env: Vec<_> = config.env.unwrap_or_default();
    let env: Vec<_> = env
        .iter()
        .map(|one| one.split('=').next().unwrap())
        .collect();
    let mut mounts: Vec<_> = found
        .mounts
        .unwrap_or_default()
        .into_iter()
        .map(|one| json!([one.typ, one.name.or(one.source), one.destination, one.rw]))
        .collect();
    mounts.sort_by_key(ToString::to_string);
    let networks = found.network_settings.unwrap().networks.unwrap();
    let networks: BTreeMap<_, _> = networks
        .into_iter()
        .map(|(name, one)| (name, one.ip_address))
        .collect();
    Some(json!({
        "id": found.id, "name": found.name.unwrap()[1..], "image": config.image,
        "image id": found.image, "created": found.created, "started": started,
        "finished": finished, "status": state.status.map(|status| status.to_string()),
        "running": running, "oom": state.oom_killed, "code": code,
        "pid": state.pid.filter(|pid| *pid != 0), "command": command, "env": env,
        "labels": config.labels.unwrap_or_default(), "mounts": mounts, "networks": networks,
        "memory": host.memory.filter(|n| *n != 0), "swap": host.memory_swap.filter(|n| *n != 0),
        "cpus": host.nano_cpus.filter(|n| *n != 0),
        "cpuset": host.cpuset_cpus.filter(|cpus| !cpus.is_empty()),
        "tty": config.tty, "restarts": found.restart_count, "health": None::<String>,
    }))
}

/// What a list tells: id, name, image, state, when it was made, labels.
async fn listed(side: &Side<'_>, labels: &[&str], prefix: &str, all: bool) -> Vec<String> {
    let labels: Vec<String> = labels.iter().map(ToString::to_string).collect();
    let line = |id: String, name: String, image, state, created: i64, labels| {
        format!("{id} {name} {image} {state} {created} {labels:?}")
    };
    match side.way {
        Way::Hub => {
            let list = List {
                prefix: Some(prefix.into()),
                labels: labels
                    .iter()
                    .map(|label| match label.split_once('=') {
                        Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
                        None => (label.clone(), None),
                    })
                    .collect(),
                all,
            };
            let found = side.ask(&list).await.unwrap().into_iter();
            found
                .map(|one| {
                    line(
                        one.id,
                        one.name,
                        one.image,
                        one.state,
                        one.created_s,
                        one.labels,
                    )
                })
                .collect()
        }
        Way::Daemon => {
            let options = ListContainersOptionsBuilder::new()
                .all(all)
                .filters(&HashMap::from([("label", labels)]))
                .build();
            let found = side
                .rig
                .docker
                .list_containers(Some(options))
                .await
                .unwrap();
            let found = found.into_iter().map(|one| {
                let name = one.names.unwrap()[0][1..].to_owned();
                let state = one.state.unwrap().to_string();
                let labels = one.labels.unwrap().into_iter().collect::<BTreeMap<_, _>>();
                let (id, image) = (one.id.unwrap(), one.image.unwrap());
                (
                    name.clone(),
                    line(id, name, image, state, one.created.unwrap(), labels),
                )
            });
            found
                .filter(|(name, _)| name.starts_with(prefix))
                .map(|(_, line)| line)
                .collect()
        }
    }
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_what_is_said_of_containers_is_the_same() {
    with(async |rig| {
        let label = rig.named("label");
        let maker = rig.maker();
        let mut ids = Vec::new();
        for (what, command, start) in [
            ("created", "sleep 3600", false),
            ("runs", "sleep 3600", true),
            ("ended", "exit 7", true),
        ] {
            let mut spec = maker.spec(what, &["sh", "-c", command]);
            spec.theirs["Labels"] = json!({&label: what, "other": ""});
            spec.theirs["Env"] = json!(["A=s3cret", "B=x=y", "EMPTY="]);
            spec.theirs["HostConfig"]["Memory"] = json!(64 * MIB);
            spec.theirs["HostConfig"]["Binds"] = json!(["/etc:/host:ro"]);
            spec.theirs["HostConfig"]["Mounts"] =
                json!([{"Type": "volume", "Source": maker.named(what), "Target": "/data"}]);
            let id = maker.create(spec).await.unwrap();
            if start {
                maker.start(&id).await.unwrap();
            }
            ids.push((what, id));
        }
        maker.over(&ids[2].1).await;
        rig.script(async |side| {
            for (what, id) in &ids {
                let by_id = shown(side, id).await;
                assert!(by_id.is_some());
                side.same("by id", &by_id);
                side.expect("by name", shown(side, &maker.named(what)).await, &by_id);
                side.expect("by a short id", shown(side, &id[..12]).await, &by_id);
            }
            let prefix = maker.named("");
            for (labels, prefix, all, number) in [
                (vec![], &*prefix, true, 3),
                (vec![], &*prefix, false, 1),
                (vec![&*label], &*prefix, true, 3),
                (vec![&*label], "", true, 3),
                (vec![&*label, "other"], &*prefix, true, 3),
                (vec![&*format!("{label}=runs")], &*prefix, false, 1),
                (vec![&*format!("{label}=ended")], &*prefix, false, 0),
                (vec![&*format!("{label}=ended")], &*prefix, true, 1),
                (vec![&*label, "hub.none"], &*prefix, true, 0),
                (vec![&*label], "other", true, 0),
            ] {
                let found = listed(side, &labels, prefix, all).await;
                assert_eq!(found.len(), number, "{labels:?} {prefix} {all}: {found:?}");
                side.same("list", found);
            }
        })
        .await;
    })
    .await;
}
