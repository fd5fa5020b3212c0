//! Watches of a real daemon's events and of a simulated one's, through a session.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder, RemoveImageOptions,
    StartContainerOptions, TagImageOptionsBuilder, WaitContainerOptions,
};
use futures_util::StreamExt as _;
use hub_protocol::kind::FailureCode;

use super::*;
use crate::engine::daemon::OwnDaemon;
use crate::journal::fake::FakeDaemon;
use crate::operations::testing::{Node, ending, tools};
use crate::runtime::docker::DockerRuntime;

pub(crate) fn random() -> crate::random::Random {
    Arc::new(|bytes: &mut [u8]| getrandom::fill(bytes).unwrap())
}

async fn node(engine: Engine) -> Node {
    let journal = Journal::start(engine.clone(), random());
    // What was before a test is none of it.
    journal.settle().await;
    let mut tools = tools(Some(engine));
    tools.journal = Some(journal);
    Node::new(tools).await
}

/// Reads records off a watch.
struct Records {
    receiver: hub_quic::operation::Receiver,
    buffer: Vec<u8>,
}

impl Records {
    fn of(operation: &Operation) -> Self {
        Self {
            receiver: operation.receiver(OUT),
            buffer: Vec::new(),
        }
    }

    async fn next(&mut self) -> Option<EventRecord> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            self.buffer
                .extend_from_slice(&self.receiver.chunk().await.unwrap()?);
        }
    }

    async fn rest(mut self) -> Vec<EventRecord> {
        let mut all = Vec::new();
        while let Some(record) = self.next().await {
            all.push(record);
        }
        all
    }
}

fn filters(pairs: &[(&str, &str)]) -> BTreeMap<String, Vec<String>> {
    let pairs = pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), vec![(*v).to_owned()]));
    pairs.collect()
}

fn action(record: &EventRecord) -> &str {
    match record {
        EventRecord::Event { action, .. } => action,
        EventRecord::Gap { .. } => "gap",
        EventRecord::State { .. } => "state",
        EventRecord::Lagged { .. } => "lagged",
    }
}

#[tokio::test]
async fn a_watch_that_makes_no_sense_is_refused() {
    let node = node(FakeDaemon::new(1).engine().await).await;
    let ask = async |open: Events| node.refused(&open).await;
    let unknown = Events {
        filters: filters(&[("colour", "red")]),
        ..Events::default()
    };
    let refused = ask(unknown).await;
    assert_eq!(refused.code, FailureCode::INVALID);
    assert!(refused.message.contains("colour"), "{refused}");
    for bad in ["x", "", "1-2.3-4"] {
        let cursor = Events {
            cursor: Some(bad.into()),
            ..Events::default()
        };
        assert_eq!(ask(cursor).await.code, FailureCode::INVALID);
    }
    let backwards = Events {
        since_ns: Some(2),
        until_ns: Some(1),
        ..Events::default()
    };
    assert_eq!(ask(backwards).await.code, FailureCode::INVALID);
    let bare = Node::new(tools(None)).await;
    let refused = bare.refused(&Events::default()).await;
    assert_eq!(refused.code, FailureCode::UNSUPPORTED);
}

#[tokio::test]
async fn a_gap_is_told_with_the_states_behind_it_as_one_piece() {
    let daemon = FakeDaemon::new(1_000_000_000);
    daemon.contain("aa", "running");
    daemon.contain("bb", "exited");
    daemon.emit("start", "aa");
    let node = node(daemon.engine().await).await;
    let mut open = Events {
        since_ns: Some(5),
        until_ns: Some(1_000_000_001),
        ..Events::default()
    };
    daemon.pass(1_000_000_000);
    let (watch, _) = node.begin(&open).await;
    let told = Records::of(&watch).rest().await;
    assert_eq!(ending::<()>(&watch).await, Ending::Complete(()));
    let actions: Vec<_> = told.iter().map(action).collect();
    assert_eq!(actions, ["gap", "state", "state", "start"]);
    let [
        EventRecord::Gap {
            from_ns: Some(5),
            cursor: first,
            ..
        },
        EventRecord::State { cursor: second, .. },
        EventRecord::State { cursor: last, .. },
        ..,
    ] = &told[..]
    else {
        panic!("{told:?}");
    };
    open.since_ns = None;
    for (cursor, expected) in [
        (first, &["gap", "state", "state", "start"][..]),
        (second, &["gap", "state", "state", "start"]),
        (last, &["start"]),
    ] {
        open.cursor = Some(cursor.clone());
        let (watch, _) = node.begin(&open).await;
        let told = Records::of(&watch).rest().await;
        assert_eq!(told.iter().map(action).collect::<Vec<_>>(), expected);
    }
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_container_s_life_is_told() {
    let engine = Engine::connect().await.unwrap();
    let demo = DockerRuntime::new(&engine).demo_container().await.unwrap();
    let node = node(engine.clone()).await;
    let name = format!("{}-life", demo.name);
    let since = engine.now_ns().await.unwrap();
    let open = Events {
        filters: filters(&[("container", &name), ("label", "hub.life=1")]),
        ..Events::default()
    };
    let (watch, _) = node.begin(&open).await;
    let mut records = Records::of(&watch);
    let docker = engine.docker();
    let options = CreateContainerOptionsBuilder::new().name(&name).build();
    let body = ContainerCreateBody {
        image: Some(demo.image.clone()),
        cmd: Some(["sh", "-c", "exit 3"].map(String::from).to_vec()),
        labels: Some([("hub.life".to_owned(), "1".to_owned())].into()),
        network_disabled: Some(true),
        ..ContainerCreateBody::default()
    };
    docker.create_container(Some(options), body).await.unwrap();
    docker
        .start_container(&name, None::<StartContainerOptions>)
        .await
        .unwrap();
    let _ = docker
        .wait_container(&name, None::<WaitContainerOptions>)
        .next()
        .await;
    let force = RemoveContainerOptionsBuilder::new().force(true).build();
    docker.remove_container(&name, Some(force)).await.unwrap();
    let mut seen = Vec::new();
    let mut cursors = Vec::new();
    loop {
        let EventRecord::Event {
            time_ns,
            kind,
            action,
            attributes,
            cursor,
            ..
        } = records.next().await.unwrap()
        else {
            panic!("no event");
        };
        assert_eq!((kind.as_str(), &attributes["name"]), ("container", &name));
        assert!(time_ns > since);
        if action == "die" {
            assert_eq!(attributes["exitCode"], "3");
        }
        seen.push(action.clone());
        cursors.push(cursor);
        if action == "destroy" {
            break;
        }
    }
    assert_eq!(seen, ["create", "start", "die", "destroy"]);
    drop(watch);
    // Again, from behind the first, and to an end in what is now the past.
    let again = Events {
        cursor: Some(cursors[0].clone()),
        until_ns: Some(engine.now_ns().await.unwrap()),
        ..open.clone()
    };
    let (watch, _) = node.begin(&again).await;
    let rest = Records::of(&watch).rest().await;
    assert_eq!(
        rest.iter().map(action).collect::<Vec<_>>(),
        ["start", "die", "destroy"]
    );
    assert_eq!(ending::<()>(&watch).await, Ending::Complete(()));
    demo.remove().await.unwrap();
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_health_a_stop_and_an_end_for_want_of_memory_are_told() {
    let engine = Engine::connect().await.unwrap();
    let demo = DockerRuntime::new(&engine).demo_container().await.unwrap();
    let node = node(engine.clone()).await;
    let docker = engine.docker();
    let create = async |name: &str, body: ContainerCreateBody| {
        let body = ContainerCreateBody {
            image: Some(demo.image.clone()),
            network_disabled: Some(true),
            ..body
        };
        let options = CreateContainerOptionsBuilder::new().name(name).build();
        docker.create_container(Some(options), body).await.unwrap();
        let options = None::<StartContainerOptions>;
        docker.start_container(name, options).await.unwrap();
    };
    let watch = async |name: &str| {
        let open = Events {
            filters: filters(&[("container", name)]),
            ..Events::default()
        };
        node.begin(&open).await.0
    };
    let until = async |records: &mut Records, last: &str| {
        let mut seen = Vec::new();
        while seen.last().is_none_or(|seen| seen != last) {
            let record = records.next().await.unwrap();
            let action = action(&record).to_owned();
            // What a health check runs is an exec of its own.
            if !action.starts_with("exec_") {
                seen.push(action);
            }
        }
        seen
    };
    let command = |command: &[&str]| Some(command.iter().map(ToString::to_string).collect());

    let healthy = format!("{}-healthy", demo.name);
    let operation = watch(&healthy).await;
    let mut records = Records::of(&operation);
    let check = bollard::models::HealthConfig {
        test: command(&["CMD", "true"]),
        interval: Some(1_000_000_000),
        ..Default::default()
    };
    let body = ContainerCreateBody {
        cmd: command(&["sleep", "3600"]),
        healthcheck: Some(check),
        ..ContainerCreateBody::default()
    };
    create(&healthy, body).await;
    let seen = until(&mut records, "health_status: healthy").await;
    assert_eq!(seen, ["create", "start", "health_status: healthy"]);
    let now = bollard::query_parameters::StopContainerOptionsBuilder::new().t(0);
    let stopped = docker.stop_container(&healthy, Some(now.build())).await;
    stopped.unwrap();
    // First TERM, and, with no time to wait, at once KILL.
    let mut seen = until(&mut records, "stop").await;
    seen.dedup();
    assert_eq!(seen, ["kill", "die", "stop"]);

    let hungry = format!("{}-hungry", demo.name);
    let operation = watch(&hungry).await;
    let mut records = Records::of(&operation);
    let limit = 8 * 1024 * 1024;
    let body = ContainerCreateBody {
        // The shell stays: only what it runs is killed.
        cmd: command(&["sh", "-c", "tail /dev/zero; exit 5"]),
        host_config: Some(bollard::models::HostConfig {
            memory: Some(limit),
            memory_swap: Some(limit),
            ..Default::default()
        }),
        ..ContainerCreateBody::default()
    };
    create(&hungry, body).await;
    let mut seen = until(&mut records, "die").await;
    // The kernel tells the daemon on a way of its own, and may do so after the end.
    if !seen.contains(&"oom".to_owned()) {
        seen.extend(until(&mut records, "oom").await);
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen, ["create", "die", "oom", "start"]);
    for name in [healthy, hungry] {
        let force = RemoveContainerOptionsBuilder::new().force(true).build();
        docker.remove_container(&name, Some(force)).await.unwrap();
    }
    demo.remove().await.unwrap();
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_storm_without_a_reader_is_told_whole() {
    const CALLERS: usize = 16;
    const EACH: usize = 157;
    let engine = Engine::connect().await.unwrap();
    let demo = DockerRuntime::new(&engine).demo_container().await.unwrap();
    let node = node(engine.clone()).await;
    let repository = format!("{}-storm", demo.name);
    // A first event, for a cursor.
    let (watch, _) = node.begin(&Events::default()).await;
    let mut records = Records::of(&watch);
    let docker = engine.docker();
    let tag = async |tag: &str| {
        let to = TagImageOptionsBuilder::new()
            .repo(&repository)
            .tag(tag)
            .build();
        docker.tag_image(&demo.image, Some(to)).await.unwrap();
        let name = format!("{repository}:{tag}");
        docker
            .remove_image(&name, None::<RemoveImageOptions>, None)
            .await
            .unwrap();
    };
    tag("first").await;
    let cursor = loop {
        if let Some(EventRecord::Event {
            action,
            cursor,
            attributes,
            ..
        }) = records.next().await
            && action == "tag"
            && attributes.get("name") == Some(&format!("{repository}:first"))
        {
            break cursor;
        }
    };
    drop((records, watch));
    let storm = (0..CALLERS).map(|caller| {
        let tag = &tag;
        async move {
            for number in 0..EACH {
                tag(&format!("{caller}-{number}")).await;
            }
        }
    });
    futures_util::future::join_all(storm).await;
    let open = Events {
        cursor: Some(cursor),
        until_ns: Some(engine.now_ns().await.unwrap()),
        ..Events::default()
    };
    let (watch, _) = node.begin(&open).await;
    let told = Records::of(&watch).rest().await;
    assert_eq!(ending::<()>(&watch).await, Ending::Complete(()));
    assert!(
        told.iter()
            .all(|record| matches!(record, EventRecord::Event { .. }))
    );
    let mut tags = std::collections::BTreeSet::new();
    for record in &told {
        if let EventRecord::Event {
            action, attributes, ..
        } = record
            && action == "tag"
            && let Some(name) = attributes.get("name")
            && let Some(tag) = name.strip_prefix(&format!("{repository}:"))
        {
            assert!(tags.insert(tag.to_owned()), "{tag} came twice");
        }
    }
    assert_eq!(tags.len(), CALLERS * EACH);
    let untags = told
        .iter()
        .filter(|record| action(record) == "untag")
        .count();
    // The first one's as well.
    assert!(untags > CALLERS * EACH, "{untags}");
    demo.remove().await.unwrap();
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_daemon_that_is_restarted_leaves_a_gap_and_the_states() {
    let Some(mut daemon) = OwnDaemon::start().await else {
        return;
    };
    let node = node(daemon.engine().await).await;
    let (watch, _) = node.begin(&Events::default()).await;
    let mut records = Records::of(&watch);
    let volume = async |daemon: &OwnDaemon, name: &str| {
        let request = bollard::models::VolumeCreateRequest {
            name: Some(name.to_owned()),
            ..Default::default()
        };
        daemon.docker().create_volume(request).await.unwrap();
    };
    let is_of = |record: &EventRecord, name: &str| matches!(record, EventRecord::Event { id, action, .. } if id == name && action == "create");
    volume(&daemon, "before").await;
    let before = records.next().await.unwrap();
    assert!(is_of(&before, "before"), "{before:?}");
    for round in 0..2 {
        daemon.stop().await;
        daemon.run().await;
        let name = format!("after-{round}");
        volume(&daemon, &name).await;
        let gap = records.next().await.unwrap();
        let EventRecord::Gap {
            from_ns: Some(from),
            to_ns,
            ..
        } = &gap
        else {
            panic!("{gap:?}");
        };
        assert!(from < to_ns);
        let after = records.next().await.unwrap();
        assert!(is_of(&after, &name), "{after:?}");
    }
    drop(watch);
    daemon.stop().await;
}
