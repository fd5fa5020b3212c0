//! Builds with both builders of the real daemon, and with a played one what a real one can't be
//! made to do.

#![allow(clippy::unwrap_used)]

mod pull;

use std::time::Duration;

use bollard::models::ImageInspect;
use bollard::query_parameters::{
    ImportImageOptionsBuilder, ListContainersOptionsBuilder, RemoveImageOptionsBuilder,
};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, TryStreamExt as _};
use hub_protocol::kind::FailureCode;
use hub_protocol::kind::Request as _;
use hub_protocol::kind::build::Progress;
use hub_quic::operation::Receiver;
use tokio::fs;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};
use tokio_tar::{Archive, EntryType, Header};

use super::*;
use crate::engine::EngineError;
use crate::operations::testing::{Node, answer, ending, head, played, read_all, send_all, tools};
use crate::runtime::docker::{DemoContainer, DockerRuntime};

const BOTH: [Builder; 2] = [Builder::Classic, Builder::BuildKit];

/// How long something that should happen at once may take on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// A node that builds with this builder.
async fn node_with(engine: &Engine, builder: Builder) -> Node {
    let engine = engine.clone();
    Node::serving(move |operation, open| {
        let (engine, build) = (engine.clone(), Build::from_body(&open.payload).unwrap());
        async move { run_with(operation, build, &engine, builder).await }
    })
    .await
}

/// The daemon, a container whose image is there to build on, and a name for what is built.
struct Rig {
    engine: Engine,
    container: DemoContainer,
    name: String,
}

impl Rig {
    async fn new() -> Self {
        let engine = Engine::connect().await;
        let engine = engine
            .inspect_err(|error: &EngineError| panic!("this test needs a Docker daemon: {error}"))
            .unwrap();
        let container = DockerRuntime::new(&engine).demo_container().await.unwrap();
        let name = container.name.replace("demo", "built");
        Self {
            engine,
            container,
            name,
        }
    }

    /// A name for an image of its own.
    fn tag(&self, builder: Builder) -> String {
        format!("{}:{builder:?}", self.name)
    }

    async fn image(&self, name: &str) -> Option<ImageInspect> {
        self.engine.docker().inspect_image(name).await.ok()
    }

    async fn remove(&self, image: &str) {
        let options = RemoveImageOptionsBuilder::new().force(true).build();
        let removed = self
            .engine
            .docker()
            .remove_image(image, Some(options), None);
        removed.await.unwrap();
    }

    /// Removes what is left: the last thing a test does.
    async fn end(self) {
        for builder in BOTH {
            let tag = self.tag(builder);
            if self.image(&tag).await.is_some() {
                self.remove(&tag).await;
            }
        }
        self.container.remove().await.unwrap();
    }
}

/// A context of these files.
async fn context(files: &[(&str, &str)]) -> Bytes {
    let mut tar = tokio_tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        tar.append_data(&mut header, path, content.as_bytes())
            .await
            .unwrap();
    }
    tar.into_inner().await.unwrap().into()
}

/// The next thing that a build says; `None` at the end.
async fn next(progress: &mut Receiver, rest: &mut BytesMut) -> Option<Progress> {
    loop {
        if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            return Some(serde_json::from_slice(&rest.split_to(end + 1)).unwrap());
        }
        rest.extend_from_slice(&progress.chunk().await.unwrap()?);
    }
}

async fn said(operation: &Operation) -> Vec<Progress> {
    let (mut progress, mut rest) = (operation.receiver(PROGRESS), BytesMut::new());
    let mut all = Vec::new();
    while let Some(said) = next(&mut progress, &mut rest).await {
        all.push(said);
    }
    assert!(rest.is_empty());
    all
}

/// Builds a context whole; gives what was said and how it ended.
async fn build(node: &Node, build: &Build, context: Bytes) -> (Vec<Progress>, Ending<Built>) {
    let (operation, _) = node.begin(build).await;
    let (_, said) = tokio::join!(send_all(&operation, CONTEXT, context), said(&operation));
    (said, ending(&operation).await)
}

/// All text that steps printed.
fn text(said: &[Progress]) -> String {
    let text = said.iter().filter_map(|said| match said {
        Progress::Stream { text } | Progress::Log { text, .. } => Some(text.as_str()),
        Progress::Step { .. } | Progress::Pull { .. } => None,
    });
    text.collect()
}

/// How many steps were there already.
fn cached(said: &[Progress]) -> usize {
    let mut ids: Vec<&str> = said
        .iter()
        .filter_map(|said| match said {
            Progress::Stream { text } if text.contains("Using cache") => Some(""),
            // Not the steps with which BuildKit takes the context in.
            Progress::Step {
                id,
                name,
                cached: true,
                ..
            } if name.contains("] RUN") => Some(id),
            _ => None,
        })
        .collect();
    ids.dedup();
    ids.len()
}

fn complete(ending: Ending<Built>) -> String {
    match ending {
        Ending::Complete(built) => built.image,
        Ending::Failed(failure) => panic!("the build failed: {failure}"),
    }
}

fn failed(ending: Ending<Built>) -> Failure {
    match ending {
        Ending::Failed(failure) => failure,
        Ending::Complete(built) => panic!("{} was built", built.image),
    }
}

/// Waits until nothing on the machine and no container runs a command that holds `mark`.
async fn gone(engine: &Engine, mark: &str) {
    timeout(SOON, async {
        while running(mark).await || contained(engine, mark).await {
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("{mark} is still there"));
}

/// Waits until a process with `mark` is seen: one that becomes another program has no arguments for
/// a moment.
async fn there(mark: &str) {
    timeout(SOON, async {
        while !running(mark).await {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("{mark} never ran"));
}

/// Whether a process of this machine, in a container or not, has `mark` in its arguments.
async fn running(mark: &str) -> bool {
    let mut processes = fs::read_dir("/proc").await.unwrap();
    while let Some(process) = processes.next_entry().await.unwrap() {
        let arguments = fs::read(process.path().join("cmdline")).await;
        if arguments.is_ok_and(|text| String::from_utf8_lossy(&text).contains(mark)) {
            return true;
        }
    }
    false
}

/// Whether there is a container, running or not, with `mark` in its command.
async fn contained(engine: &Engine, mark: &str) -> bool {
    let options = ListContainersOptionsBuilder::new().all(true).build();
    let containers = engine
        .docker()
        .list_containers(Some(options))
        .await
        .unwrap();
    let mut commands = containers
        .into_iter()
        .filter_map(|container| container.command);
    commands.any(|command| command.contains(mark))
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_builds_what_was_wished_and_marks_what_was_there() {
    let rig = Rig::new().await;
    for builder in BOTH {
        let node = node_with(&rig.engine, builder).await;
        let tag = rig.tag(builder);
        let dockerfile = format!(
            "FROM {} AS first\nARG GREETING=nobody\nRUN echo \"for $GREETING\" && cat /etc/group\n\
             FROM first AS second\nRUN exit 9\n",
            rig.container.image
        );
        let context = context(&[("sub/My.Dockerfile", &dockerfile), ("file", "x")]).await;
        let wish = Build {
            dockerfile: Some("sub/My.Dockerfile".into()),
            tags: vec![tag.clone()],
            target: Some("first".into()),
            build_args: [("GREETING".into(), Some(tag.clone()))].into(),
            labels: [("hub.test".into(), "a b".into())].into(),
            no_cache: true,
            ..Build::default()
        };
        let (said, ending) = build(&node, &wish, context.clone()).await;
        let id = complete(ending);
        let all = text(&said);
        assert!(
            all.contains(&format!("for {tag}\n")) && all.contains("nogroup"),
            "{all}"
        );
        assert_eq!(cached(&said), 0, "{builder:?}");
        let image = rig.image(&tag).await.unwrap();
        assert_eq!(image.id.as_ref(), Some(&id));
        let labels = image.config.unwrap().labels.unwrap();
        assert_eq!(labels.get("hub.test").map(String::as_str), Some("a b"));

        let again = Build {
            no_cache: false,
            ..wish
        };
        let (said, ending) = build(&node, &again, context).await;
        assert_eq!(complete(ending), id);
        assert!(cached(&said) > 0, "{builder:?} {said:?}");
        assert!(!text(&said).contains("nogroup"));
    }
    rig.end().await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_says_why_a_build_failed() {
    let rig = Rig::new().await;
    let base = &rig.container.image;
    let cases = [
        (
            format!("FROM {base}\nRUN echo oops; exit 7\n"),
            "Dockerfile",
            ": 7",
        ),
        (
            format!("FROM {base}\nFROBNICATE\n"),
            "Dockerfile",
            "FROBNICATE",
        ),
        (format!("FROM {base}\n"), "elsewhere", "elsewhere"),
    ];
    for builder in BOTH {
        let node = node_with(&rig.engine, builder).await;
        for (dockerfile, path, why) in &cases {
            let wish = Build {
                dockerfile: Some((*path).into()),
                no_cache: true,
                ..Build::default()
            };
            let context = context(&[("Dockerfile", dockerfile)]).await;
            let (said, ending) = build(&node, &wish, context).await;
            let failure = failed(ending);
            assert_eq!(failure.code, FailureCode::BUILD_FAILED);
            assert!(failure.message.contains(why), "{builder:?}: {failure}");
            assert!(!failure.retry);
            if *why == ": 7" {
                assert!(text(&said).contains("oops"));
            }
        }
    }
    assert!(
        !contained(&rig.engine, "echo oops").await,
        "a failed step left its container"
    );
    rig.end().await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_an_early_refusal_stops_the_upload() {
    let rig = Rig::new().await;
    for builder in BOTH {
        let node = node_with(&rig.engine, builder).await;
        // Right in form, and yet a name that Docker keeps for ids.
        let wish = Build {
            tags: vec!["0a".repeat(32)],
            ..Build::default()
        };
        let (operation, _) = node.begin(&wish).await;
        let all = Bytes::from(vec![0; 64 << 20]);
        let sent = send_all(&operation, CONTEXT, all).await;
        let failure = failed(ending(&operation).await);
        assert_eq!(failure.code, FailureCode::BUILD_FAILED);
        assert!(failure.message.contains("hexadecimal"), "{failure}");
        assert!(sent < 4 << 20, "{builder:?}: {sent} bytes were taken");
    }
    rig.end().await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_client_that_leaves_stops_the_build() {
    let rig = Rig::new().await;
    for builder in BOTH {
        let node = node_with(&rig.engine, builder).await;
        let mark = format!("{}-{builder:?}-run", rig.name);
        let dockerfile = format!(
            "FROM {}\nRUN echo {mark} begins; sh -c 'sleep 3600; : {mark}'\n",
            rig.container.image
        );
        let context = context(&[("Dockerfile", &dockerfile)]).await;
        let (operation, _) = node.begin(&Build::default()).await;
        send_all(&operation, CONTEXT, context).await;
        let (mut progress, mut rest) = (operation.receiver(PROGRESS), BytesMut::new());
        let begun = async {
            while let Some(said) = next(&mut progress, &mut rest).await {
                let said = text(&[said]);
                if said.contains(&format!("{mark} begins")) && !said.contains("RUN") {
                    return;
                }
            }
            panic!("it ended: {:?}", ending::<Built>(&operation).await);
        };
        timeout(SOON, begun).await.unwrap();
        there(&mark).await;
        drop((progress, operation));
        gone(&rig.engine, &mark).await;
    }
    rig.end().await;
}

/// The context goes through: it is neither gathered nor lost. A page of it is in memory, not all.
#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_large_context_passes_in_little_memory() {
    const SIZE: usize = 64 << 20;
    let rig = Rig::new().await;
    for builder in BOTH {
        let node = node_with(&rig.engine, builder).await;
        let dockerfile = format!(
            "FROM {}\nCOPY big /big\nRUN wc -c /big\n",
            rig.container.image
        );
        let small = context(&[("Dockerfile", &dockerfile)]).await;
        let mut header = Header::new_gnu();
        header.set_path("big").unwrap();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_size(SIZE as u64);
        header.set_cksum();
        let wish = Build {
            tags: vec![rig.tag(builder)],
            no_cache: true,
            ..Build::default()
        };
        let before = resident().await;
        let (operation, _) = node.begin(&wish).await;
        let upload = async {
            let mut sender = operation.sender(CONTEXT);
            sender
                .send(Bytes::copy_from_slice(header.as_bytes()))
                .await
                .unwrap();
            for _ in 0..SIZE / 65536 {
                sender.send(Bytes::from(vec![7; 65536])).await.unwrap();
            }
            sender.send(small).await.unwrap();
            sender.finish();
        };
        let ((), said) = tokio::join!(upload, said(&operation));
        complete(ending(&operation).await);
        assert!(text(&said).contains(&format!("{SIZE} /big")));
        let grown = resident().await.saturating_sub(before);
        assert!(
            grown < SIZE as u64 / 2,
            "{builder:?}: grew by {grown} bytes"
        );
    }
    rig.end().await;
}

/// The most memory that this process has had, in bytes.
async fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").await.unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    let kibibytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kibibytes * 1024
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_the_image_comes_back_and_loads() {
    let rig = Rig::new().await;
    for builder in BOTH {
        let node = node_with(&rig.engine, builder).await;
        for tagged in [true, false] {
            let tag = rig.tag(builder);
            let dockerfile = format!(
                "FROM {}\nRUN echo {tag} {tagged} > /made\n",
                rig.container.image
            );
            let wish = Build {
                tags: if tagged { vec![tag.clone()] } else { vec![] },
                output: true,
                ..Build::default()
            };
            let (operation, _) = node.begin(&wish).await;
            let context = context(&[("Dockerfile", &dockerfile)]).await;
            let (_, said, tar) = tokio::join!(
                send_all(&operation, CONTEXT, context),
                said(&operation),
                read_all(&operation, IMAGE),
            );
            let id = complete(ending(&operation).await);
            assert!(!said.is_empty());
            let manifest = manifest(&tar).await;
            assert!(
                manifest.contains(id.trim_start_matches("sha256:")),
                "{manifest}"
            );
            assert_eq!(manifest.contains(&tag), tagged, "{manifest}");

            rig.remove(&id).await;
            assert!(rig.image(&id).await.is_none());
            let options = ImportImageOptionsBuilder::new().build();
            let docker = rig.engine.docker();
            let loaded = docker.import_image(options, bollard::body_full(tar), None);
            loaded.try_collect::<Vec<_>>().await.unwrap();
            assert!(rig.image(&id).await.is_some());
            rig.remove(&id).await;
        }
    }
    rig.end().await;
}

async fn manifest(tar: &[u8]) -> String {
    let mut entries = Archive::new(tar).entries().unwrap();
    while let Some(entry) = entries.next().await {
        let mut entry = entry.unwrap();
        if entry.path().unwrap().to_str() == Some("manifest.json") {
            let mut manifest = String::new();
            entry.read_to_string(&mut manifest).await.unwrap();
            return manifest;
        }
    }
    panic!("no manifest")
}

#[tokio::test]
async fn what_can_be_known_is_said_before_the_upload() {
    let node = Node::new(tools(None)).await;
    let refused = node.refused(&Build::default()).await;
    assert_eq!(refused.code, FailureCode::UNSUPPORTED);
    let (engine, mut connections) = played().await;
    let node = Node::new(tools(Some(engine))).await;
    let wish = Build {
        tags: vec!["No Name".into()],
        ..Build::default()
    };
    let refused = node.refused(&wish).await;
    assert_eq!(refused.code, FailureCode::INVALID);
    assert!(connections.try_recv().is_err(), "the daemon was asked");
    // A daemon that is gone.
    drop(connections);
}

/// A daemon without sessions has no BuildKit: the classic builder builds. A daemon that does not
/// read holds up the upload, and a client that leaves closes the connection.
#[tokio::test]
async fn a_daemon_sets_the_pace_and_learns_of_the_end() {
    let (engine, mut connections) = played().await;
    let node = Node::new(tools(Some(engine))).await;
    let operation = node.ask(&Build::default()).await;
    let mut ping = connections.recv().await.unwrap();
    assert!(head(&mut ping).await.starts_with("GET /v1.41/_ping "));
    answer(&mut ping, "200 OK", "OK").await;
    let mut session = connections.recv().await.unwrap();
    let asked = head(&mut session).await.to_lowercase();
    assert!(asked.starts_with("post /v1.41/session ") && asked.contains("upgrade: h2c\r\n"));
    answer(&mut session, "404 Not Found", r#"{"message":"no"}"#).await;
    let mut daemon = connections.recv().await.unwrap();
    let asked = head(&mut daemon).await;
    assert!(
        asked.starts_with("POST /v1.41/build?rm=1&forcerm=1&version=1 "),
        "{asked}"
    );

    let mut sender = operation.sender(CONTEXT);
    let mut sent = 0;
    let full = async {
        loop {
            sender.send(Bytes::from(vec![1; 65536])).await.unwrap();
            sent += 65536;
        }
    };
    assert!(timeout(Duration::from_millis(500), full).await.is_err());
    assert!(sent < 4 << 20, "{sent} bytes were gathered");
    drop((sender, operation));
    let mut rest = Vec::new();
    daemon.read_to_end(&mut rest).await.unwrap();
    assert!(rest.len() < 4 << 20);
}

/// BuildKit is there unless the daemon is too old for it, or its operator has turned it off.
#[tokio::test]
async fn an_operator_may_prefer_the_classic_builder() {
    for (header, builder) in [
        ("", Builder::BuildKit),
        ("Builder-Version: 2\r\n", Builder::BuildKit),
        ("Builder-Version: 1\r\n", Builder::Classic),
    ] {
        let (engine, mut connections) = played().await;
        let daemon = async {
            let mut ping = connections.recv().await.unwrap();
            head(&mut ping).await;
            let pong = format!("HTTP/1.1 200 OK\r\n{header}Content-Length: 0\r\n\r\n");
            ping.write_all(pong.as_bytes()).await.unwrap();
        };
        let (chosen, ()) = tokio::join!(Builder::of(&engine), daemon);
        assert_eq!(chosen, Ok(builder));
    }
}

/// A daemon that refuses and hangs up in the middle of the upload is heard.
#[tokio::test]
async fn a_refusal_in_the_upload_is_heard() {
    let (engine, mut connections) = played().await;
    let node = node_with(&engine, Builder::Classic).await;
    let (operation, _) = node.begin(&Build::default()).await;
    let refuse = async {
        let mut daemon = connections.recv().await.unwrap();
        head(&mut daemon).await;
        daemon.read_exact(&mut vec![0; 100_000]).await.unwrap();
        answer(
            &mut daemon,
            "500 Internal Server Error",
            r#"{"message":"no space left"}"#,
        )
        .await;
    };
    let upload = send_all(&operation, CONTEXT, vec![1; 64 << 20].into());
    let ((), sent) = tokio::join!(refuse, upload);
    assert!(sent < 8 << 20, "{sent} bytes were taken");
    let failure = failed(ending(&operation).await);
    assert_eq!(failure.code, FailureCode::BUILD_FAILED);
    assert_eq!(failure.message, "no space left");
}

/// A daemon that dies is told from one that refuses.
#[tokio::test]
async fn a_daemon_that_dies_is_no_failed_build() {
    for begun in [false, true] {
        let (engine, mut connections) = played().await;
        let node = node_with(&engine, Builder::Classic).await;
        let (operation, _) = node.begin(&Build::default()).await;
        let mut daemon = connections.recv().await.unwrap();
        head(&mut daemon).await;
        if begun {
            let half = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11\r\n{\"stream\":\"one\"}\n\r\n";
            daemon.write_all(half.as_bytes()).await.unwrap();
        }
        drop(daemon);
        let failure = failed(ending(&operation).await);
        assert_eq!(failure.code, FailureCode::RUNTIME_UNAVAILABLE, "{failure}");
        assert!(failure.retry);
    }
}
