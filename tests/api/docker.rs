//! A container's life over the API, on a node with a real Docker: each route, from the client's
//! request to the daemon and back.

use bytes::Bytes;
use futures_util::stream;
use hub::client::Client;
use hub::client::records::{Events, FollowStats, Logs, Next, Records, Watch};
use hub_agent::engine::Engine;
use hub_agent::runtime::docker::{DemoContainer, DockerRuntime};
use hub_protocol::kind::call::container::{
    Create, ExitState, Inspect, List, Remove, Start, State, Stop,
};
use hub_protocol::kind::call::image;
use hub_protocol::kind::call::{Change, stats};
use hub_protocol::kind::records::{EventRecord, LogRecord, Output};
use hub_protocol::kind::transfer::CopyIn;
use hub_server::api::problem::Kind;

use crate::world::{NODE, World};

/// Something that keeps an image here: none can be pulled.
async fn demo() -> DemoContainer {
    let engine = Engine::connect().await.unwrap();
    DockerRuntime::new(&engine).demo_container().await.unwrap()
}

/// A name that no other test has.
fn unique(what: &str) -> String {
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes).unwrap();
    format!(
        "hub-api-{what}-{:012x}",
        u64::from_be_bytes([
            0, 0, bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]
        ])
    )
}

async fn next<W: Watch>(records: &mut Records<W>) -> Option<W::Record> {
    loop {
        match records.next().await.unwrap()? {
            Next::Record { record, .. } => return record,
            Next::Lost(_) | Next::Back => {}
        }
    }
}

async fn create(client: &Client, image: &str, name: &str, script: &str) {
    let create = Create {
        name: name.into(),
        image: image.into(),
        command: Some(["/bin/sh", "-c", script].map(str::to_owned).into()),
        network_mode: Some("none".into()),
        ..Create::default()
    };
    let created = client.call(NODE, &create).await.unwrap();
    assert!(!created.id.is_empty());
}

async fn remove(client: &Client, name: &str) -> Change {
    let remove = Remove {
        container: name.into(),
        force: true,
        volumes: false,
    };
    client.call(NODE, &remove).await.unwrap()
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_container_lives_over_the_api() {
    let world = World::docker().await;
    let client = world.client();
    let demo = demo().await;
    let name = unique("life");
    let mut events = client.watch(Events {
        since: Some("0".into()),
        filters: vec![("container".into(), name.clone())],
        ..Events::default()
    });

    let script = "echo out; echo err >&2; trap 'exit 7' TERM; while :; do sleep 1; done";
    create(&client, &demo.image, &name, script).await;
    let container = || name.clone();
    let inspect = Inspect {
        container: container(),
    };
    let found = client.call(NODE, &inspect).await.unwrap().unwrap();
    assert_eq!(found.name, name);
    let start = Start {
        container: container(),
    };
    assert_eq!(client.call(NODE, &start).await.unwrap(), Change::Changed);
    assert_eq!(client.call(NODE, &start).await.unwrap(), Change::Unchanged);
    let list = List {
        prefix: Some(name.clone()),
        ..List::default()
    };
    assert_eq!(client.call(NODE, &list).await.unwrap().len(), 1);

    let mut log = client.watch(Logs {
        node: NODE.into(),
        container: container(),
        follow: true,
        ..Logs::default()
    });
    let mut printed = Vec::new();
    while printed.len() < 2 {
        if let Some(LogRecord::Line { output, text, .. }) = next(&mut log).await {
            printed.push((output == Output::Stderr, text.unwrap()));
        }
    }
    printed.sort();
    let expected = [(false, "out\n".to_owned()), (true, "err\n".to_owned())];
    assert_eq!(printed, expected);

    let get = stats::Get {
        container: container(),
    };
    let once = client.call(NODE, &get).await.unwrap().unwrap();
    assert!(once.pids > 0 && once.memory > 0, "{once:?}");
    let mut followed = client.watch(FollowStats {
        node: NODE.into(),
        container: container(),
    });
    assert_eq!(next(&mut followed).await.unwrap().name, name);
    drop(followed);

    let stop = Stop {
        container: container(),
        timeout_s: None,
    };
    assert_eq!(client.call(NODE, &stop).await.unwrap(), Change::Changed);
    // The log ends with the container.
    while next(&mut log).await.is_some() {}
    let state = State {
        container: container(),
    };
    let ended = ExitState {
        running: false,
        oom_killed: false,
        exit_code: Some(7),
    };
    assert_eq!(client.call(NODE, &state).await.unwrap(), Some(ended));
    assert_eq!(remove(&client, &name).await, Change::Changed);
    assert_eq!(remove(&client, &name).await, Change::NotFound);
    assert_eq!(client.call(NODE, &state).await.unwrap(), None);

    let mut actions = Vec::new();
    while actions.last().is_none_or(|action| action != "destroy") {
        let event = next(&mut events).await.unwrap();
        assert_eq!(event.node, NODE);
        if let EventRecord::Event { action, .. } = event.record {
            actions.push(action);
        }
    }
    for action in ["create", "start", "die", "stop", "destroy"] {
        assert!(actions.iter().any(|had| had == action), "{actions:?}");
    }
    demo.remove().await.unwrap();
    world.stop().await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_files_and_images_cross_whole() {
    let world = World::docker().await;
    let client = world.client();
    let demo = demo().await;
    let name = unique("files");
    create(&client, &demo.image, &name, "true").await;

    let (stat, mut download) = client.copy_out(NODE, &name, "/bin/sh").await.unwrap();
    assert_eq!(stat.name, "sh");
    let mut archive = Vec::new();
    while let Some(bytes) = download.next().await.unwrap() {
        archive.extend_from_slice(&bytes);
    }
    let copy = CopyIn {
        container: name.clone(),
        path: "/tmp".into(),
        copy_uid_gid: false,
        no_overwrite_dir_non_dir: false,
    };
    let whole = Bytes::from(archive.clone());
    let pieces = stream::iter([Ok(whole)]);
    client.copy_in(NODE, &copy, pieces).await.unwrap();
    assert_eq!(
        client.stat_path(NODE, &name, "/tmp/sh").await.unwrap().size,
        stat.size
    );
    let missing = client.stat_path(NODE, &name, "/no/such/path").await;
    let kind = missing.unwrap_err().problem().unwrap().kind();
    assert_eq!(kind, Some(Kind::NotFound));

    let images = [demo.image.clone()];
    let mut saved = client.save(NODE, &images).await.unwrap();
    let mut pieces = Vec::new();
    while let Some(bytes) = saved.next().await.unwrap() {
        pieces.push(Ok(bytes));
    }
    let loaded = client.load(NODE, stream::iter(pieces)).await.unwrap();
    assert_eq!(loaded.images, images);
    let inspect = image::Inspect {
        image: demo.image.clone(),
    };
    assert!(client.call(NODE, &inspect).await.unwrap().is_some());
    let unknown = client.save(NODE, &["hub-no-such-image".into()]).await;
    let kind = unknown.err().unwrap().problem().unwrap().kind();
    assert_eq!(kind, Some(Kind::NotFound));

    assert_eq!(remove(&client, &name).await, Change::Changed);
    demo.remove().await.unwrap();
    world.stop().await;
}
