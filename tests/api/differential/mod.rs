//! The whole chain against the daemon itself: one script of calls through client, hub and agent,
//! and the same straight to the daemon.
//!
//! ```text
//!             ┌ Hub:    Client → API → QUIC → agent ┐
//! script ─────┤                                     ├→ daemon
//!             └ Daemon: bollard ────────────────────┘
//! ```
//!
//! [`Rig::script`] runs a script once on each [`Side`], on names of that side, and compares what
//! the two wrote down, step by step. What only reads asks both about one thing. Things of a test
//! have its own random name and are removed by it; nothing else of the daemon is touched.

#![allow(clippy::large_futures, reason = "a test has the stack to itself")]

mod calls;
mod containers;
mod create;
mod exec;
mod files;
mod images;
mod networks;
mod records;
#[path = "../../../agent/src/engine/registry.rs"]
mod registry;
mod socket;

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use bollard::errors::Error;
use bollard::query_parameters::{
    ListContainersOptionsBuilder, ListImagesOptions, ListNetworksOptions, ListVolumesOptions,
    RemoveContainerOptionsBuilder, RemoveImageOptionsBuilder, RemoveVolumeOptions,
};
use bollard::{BollardRequest, Docker};
use futures_util::FutureExt as _;
use http::{HeaderValue, header};
use hub::client::{Client, ClientError};
use hub_agent::engine::Engine;
use hub_agent::policy::Policy;
use hub_agent::runtime::docker::DockerRuntime;
use hub_protocol::kind::call::Change;
use hub_server::api::problem::Kind;
use hyper_util::rt::TokioIo;
use regex::Regex;
use ring::digest;
use tokio::net::UnixStream;

use crate::world::World;

/// How long a test waits for what should come.
pub const HANG: Duration = Duration::from_secs(60);

/// Why something was refused, as far as both sides tell it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Missing,
    Conflict,
    Invalid,
    /// Where the daemon has one status for many things, and the hub may know better.
    Other(u16),
}

/// A refusal, and the daemon's words for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub class: Class,
    pub words: String,
}

pub type Got<T> = Result<T, Refusal>;

/// Which way a script goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Hub,
    Daemon,
}

/// One way to the daemon, and what came of each step.
pub struct Side<'a> {
    pub rig: &'a Rig,
    pub way: Way,
    name: String,
    steps: RefCell<Vec<String>>,
}

impl Side<'_> {
    /// What this side calls a thing.
    pub fn named(&self, what: &str) -> String {
        format!("{}-{what}", self.name)
    }

    /// Writes down what came of a step, without what differs by right: names of the side, and ids.
    pub fn step(&self, label: &str, came: impl Debug) {
        let came = format!("{came:?}").replace(&self.name, "~");
        let came = self.rig.ids.replace_all(&came, "<id>");
        self.steps.borrow_mut().push(format!("{label}: {came}"));
    }

    /// The same of what both sides see of one thing: nothing may differ.
    pub fn same(&self, label: &str, came: impl Debug) {
        let step = format!("{label}: {came:?}");
        self.steps.borrow_mut().push(step);
    }

    /// The same as [`step`](Self::step), of what has to come to this.
    pub fn expect<T: Debug + PartialEq>(&self, label: &str, came: T, expected: &T) {
        assert_eq!(&came, expected, "{label}, by {:?}", self.way);
        self.step(label, came);
    }

    /// The same of what has to be refused.
    pub fn refused<T: Debug>(&self, label: &str, came: Got<T>, class: Class) {
        let refusal = came.expect_err(label);
        let what = format!("{label}, by {:?}: {}", self.way, refusal.words);
        assert_eq!(refusal.class, class, "{what}");
        self.step(label, refusal);
    }

    /// The same of what the daemon refuses with a status that says little: the words are compared,
    /// and the hub has a kind of its own.
    pub fn refused_as<T: Debug>(&self, label: &str, came: Got<T>, kind: Kind, status: u16) {
        let refusal = came.expect_err(label);
        let expected = match self.way {
            Way::Hub => class(kind),
            Way::Daemon => class_of(status),
        };
        let what = format!("{label}, by {:?}: {}", self.way, refusal.words);
        assert_eq!(refusal.class, expected, "{what}");
        self.step(label, refusal.words);
    }

    /// What a change came to at the daemon.
    fn changed(&self, came: Result<(), Error>) -> Got<Change> {
        match came.map_err(of_daemon) {
            Ok(()) if self.rig.status.load(Ordering::Relaxed) == 304 => Ok(Change::Unchanged),
            Ok(()) => Ok(Change::Changed),
            Err(refusal) if refusal.class == Class::Missing => Ok(Change::NotFound),
            Err(refusal) => Err(refusal),
        }
    }
}

/// Bytes as they are, made readable; of much, that it is the same.
pub fn shown(bytes: &[u8]) -> String {
    match bytes.len() {
        0..4096 => bytes.escape_ascii().to_string(),
        length => format!(
            "{length} bytes: {:?}",
            digest::digest(&digest::SHA256, bytes)
        ),
    }
}

fn class(kind: Kind) -> Class {
    match kind {
        // The node's own rules: the daemon has no such thing.
        Kind::Forbidden => Class::Other(403),
        kind => class_of(kind.status().as_u16()),
    }
}

fn class_of(status: u16) -> Class {
    match status {
        400 => Class::Invalid,
        404 => Class::Missing,
        // A network that is Docker's own, an endpoint that exists.
        403 | 409 => Class::Conflict,
        status => Class::Other(status),
    }
}

/// What the hub's refusal means.
pub fn of_hub(error: ClientError) -> Refusal {
    let ClientError::Refused(problem) = error else {
        panic!("the hub did not answer: {error}")
    };
    let words = &problem.detail;
    let words = words.strip_prefix("node n1: ").unwrap_or(words);
    Refusal {
        class: class(problem.kind().unwrap()),
        words: words.trim().to_owned(),
    }
}

/// What the daemon's refusal means.
pub fn of_daemon(error: Error) -> Refusal {
    let (class, words) = match error {
        Error::DockerResponseServerError {
            status_code,
            message,
        } => (class_of(status_code), message),
        // It went wrong after a good beginning.
        Error::DockerStreamError { error } => (class_of(500), error),
        error => panic!("the daemon did not answer: {error}"),
    };
    let words = words.trim().to_owned();
    Refusal { class, words }
}

/// A hub with a node that has Docker, the daemon itself, and a name that is this test's own.
pub struct Rig {
    pub world: World,
    pub client: Client,
    /// Straight to the daemon.
    pub docker: Docker,
    /// Of the daemon's last answer: the client of its API does not tell 304 from 204.
    status: Arc<AtomicU16>,
    pub image: String,
    /// All that the test makes begins so.
    pub name: String,
    ids: Regex,
    compared: Cell<usize>,
}

impl Rig {
    async fn new() -> Self {
        let engine = Engine::connect()
            .await
            .expect("this test needs a Docker daemon");
        let demo = DockerRuntime::new(&engine).demo_container().await.unwrap();
        let (image, name) = (
            demo.image.clone(),
            demo.name.replace("hub-demo", "hub-differential"),
        );
        demo.remove().await.unwrap();
        let world = World::docker_with(Arc::new(Policy::everything())).await;
        let status = Arc::default();
        Self {
            client: world.client(),
            world,
            docker: daemon(&status).await,
            status,
            image,
            name,
            ids: Regex::new(r"(?-u:\b)([0-9a-f]{64}|[0-9a-f]{12}|buildkit-mount[0-9]+)(?-u:\b)")
                .unwrap(),
            compared: Cell::default(),
        }
    }

    /// A name that both sides know.
    pub fn named(&self, what: &str) -> String {
        format!("{}-{what}", self.name)
    }

    fn side(&self, way: Way, name: &str) -> Side<'_> {
        Side {
            rig: self,
            way,
            name: self.named(name),
            steps: RefCell::default(),
        }
    }

    /// Who makes what both sides are then asked about.
    pub fn maker(&self) -> Side<'_> {
        self.side(Way::Daemon, "shared")
    }

    /// Runs a script through the hub and straight at the daemon: the same has to come of each step.
    pub async fn script(&self, script: impl AsyncFn(&Side<'_>)) {
        let (ours, theirs) = (self.side(Way::Hub, "h"), self.side(Way::Daemon, "d"));
        script(&theirs).await;
        script(&ours).await;
        let (ours, theirs) = (ours.steps.into_inner(), theirs.steps.into_inner());
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs, "the hub's is left, the daemon's right");
        }
        assert_eq!(ours.len(), theirs.len());
        self.compared.set(self.compared.get() + ours.len());
    }

    /// Removes all that has the test's name.
    async fn clean(&self) {
        let docker = &self.docker;
        let all = ListContainersOptionsBuilder::new().all(true).build();
        for container in docker.list_containers(Some(all)).await.unwrap() {
            let names = container.names.unwrap_or_default();
            if names.iter().any(|name| name[1..].starts_with(&self.name)) {
                let forced = RemoveContainerOptionsBuilder::new().force(true).v(true);
                let id = container.id.unwrap();
                docker
                    .remove_container(&id, Some(forced.build()))
                    .await
                    .unwrap();
            }
        }
        let networks = docker.list_networks(None::<ListNetworksOptions>).await;
        for network in networks.unwrap() {
            if network.name.unwrap().starts_with(&self.name) {
                docker.remove_network(&network.id.unwrap()).await.unwrap();
            }
        }
        let volumes = docker.list_volumes(None::<ListVolumesOptions>).await;
        for volume in volumes.unwrap().volumes.unwrap_or_default() {
            if volume.name.starts_with(&self.name) {
                let removed = docker.remove_volume(&volume.name, None::<RemoveVolumeOptions>);
                removed.await.unwrap();
            }
        }
        let images = docker.list_images(None::<ListImagesOptions>).await.unwrap();
        for tag in images.into_iter().flat_map(|image| image.repo_tags) {
            if tag.starts_with(&self.name) {
                let forced = RemoveImageOptionsBuilder::new().force(true).build();
                docker.remove_image(&tag, Some(forced), None).await.unwrap();
            }
        }
    }
}

/// The path of the daemon's socket.
fn socket() -> String {
    let host = std::env::var("DOCKER_HOST").unwrap_or_default();
    let path = host.strip_prefix("unix://").unwrap_or(&host);
    let path = Some(path).filter(|path| !path.is_empty());
    path.unwrap_or("/var/run/docker.sock").to_owned()
}

/// The daemon, by its client's own means; each answer's status is told.
async fn daemon(status: &Arc<AtomicU16>) -> Docker {
    let (path, status) = (socket(), status.clone());
    let transport = move |mut request: BollardRequest| {
        let host = HeaderValue::from_static("docker");
        request.headers_mut().insert(header::HOST, host);
        let (path, status) = (path.clone(), status.clone());
        async move {
            let io = TokioIo::new(UnixStream::connect(path).await?);
            let (mut sender, driver) = hyper::client::conn::http1::handshake(io).await?;
            tokio::spawn(driver.with_upgrades());
            let answer = sender.send_request(request).await?;
            status.store(answer.status().as_u16(), Ordering::Relaxed);
            Ok(answer)
        }
    };
    let docker = Docker::connect_with_custom_transport(
        transport,
        Some("http://docker"),
        HANG.as_secs(),
        bollard::API_DEFAULT_VERSION,
    );
    docker.unwrap().negotiate_version().await.unwrap()
}

/// Runs a test, and removes all that has its name.
async fn with(test: impl AsyncFnOnce(&Rig)) {
    let rig = Rig::new().await;
    let done = AssertUnwindSafe(test(&rig)).catch_unwind().await;
    rig.clean().await;
    if let Err(panic) = done {
        resume_unwind(panic);
    }
    eprintln!("{} steps are the same both ways", rig.compared.get());
    rig.world.stop().await;
}
