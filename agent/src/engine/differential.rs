//! Our calls against the daemon itself: the same question asked of both. Needs a daemon, but for
//! what a fake one shows.

#![allow(clippy::unwrap_used)]
#![allow(clippy::large_futures, reason = "a test has the stack to itself")]

mod containers;
mod images;
mod networks;
mod statistics;

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
