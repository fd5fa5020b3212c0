//! Copies against the real daemon, and the rule that tells a whole archive.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::CreateContainerOptionsBuilder;
use bytes::Bytes;
use futures_util::StreamExt as _;
use hub_protocol::kind::FailureCode;
use hub_protocol::kind::transfer::{CopyIn, CopyOut, Ending, IN, OUT, PathStat};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio_tar::{Archive, Builder, EntryType, Header};

use super::{TAR_END, zeros_behind};
use crate::engine::Engine;
use crate::operations::testing::{Node, ending, head, played, read_all, send_all, tools};
use crate::runtime::docker::{DemoContainer, DockerRuntime};

#[test]
fn zeros_at_the_end_are_counted_across_pieces() {
    let counted = |pieces: &[&[u8]]| {
        pieces
            .iter()
            .fold(0, |zeros, piece| zeros_behind(zeros, piece))
    };
    assert_eq!(counted(&[]), 0);
    assert_eq!(counted(&[&[1], &[0; 512], &[], &[0; 512]]), 1024);
    assert_eq!(counted(&[&[0; 5000]]), 1024);
    assert_eq!(counted(&[&[0; 1000], &[0, 0, 1, 0, 0]]), 2);
    assert_eq!(counted(&[&[0; 1024], b"{\"message\":\"no\"}"]), 0);
}

async fn node() -> (Node, DemoContainer) {
    let engine = Engine::connect()
        .await
        .expect("this test needs a Docker daemon");
    let container = DockerRuntime::new(&engine).demo_container().await.unwrap();
    (Node::new(tools(Some(engine))).await, container)
}

fn copy_in(container: &str, path: &str) -> CopyIn {
    CopyIn {
        container: container.into(),
        path: path.into(),
        copy_uid_gid: false,
        no_overwrite_dir_non_dir: false,
    }
}

fn copy_out(container: &str, path: &str) -> CopyOut {
    CopyOut {
        container: container.into(),
        path: path.into(),
    }
}

fn header(kind: EntryType, mode: u32, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size as u64);
    header.set_mtime(1_700_000_000);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// A directory with a file, a link to it, another name for it, and a big file.
async fn tree(big: usize) -> Bytes {
    let mut tar = Builder::new(Vec::new());
    let dir = &mut header(EntryType::Directory, 0o1750, 0);
    tar.append_data(dir, "tree/", tokio::io::empty())
        .await
        .unwrap();
    let file = &mut header(EntryType::Regular, 0o711, 5);
    tar.append_data(file, "tree/fi le", &b"hello"[..])
        .await
        .unwrap();
    for (kind, name, target) in [
        (EntryType::Symlink, "tree/link", "../somewhere/else"),
        (EntryType::Link, "tree/hard", "tree/fi le"),
    ] {
        let mut header = header(kind, 0o777, 0);
        header.set_link_name(target).unwrap();
        tar.append_data(&mut header, name, tokio::io::empty())
            .await
            .unwrap();
    }
    let content = vec![9; big];
    let file = &mut header(EntryType::Regular, 0o600, big);
    tar.append_data(file, "tree/big", &content[..])
        .await
        .unwrap();
    tar.into_inner().await.unwrap().into()
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_copies_go_both_ways_unchanged() {
    let (node, container) = node().await;
    let big = 9 << 20;
    let (operation, body) = node.begin(&copy_in(&container.name, "/tmp")).await;
    assert!(body.is_empty());
    send_all(&operation, IN, tree(big).await).await;
    assert_eq!(ending::<()>(&operation).await, Ending::Complete(()));

    let (operation, stat) = node.begin(&copy_out(&container.name, "/tmp/tree")).await;
    let stat: PathStat = serde_json::from_slice(&stat).unwrap();
    assert_eq!(stat.name, "tree");
    assert_eq!(stat.mode & 0o777, 0o750);
    assert_eq!(stat.mtime, "2023-11-14T22:13:20Z");
    let tar = read_all(&operation, OUT).await;
    assert_eq!(ending::<()>(&operation).await, Ending::Complete(()));
    let mut entries = Archive::new(&tar[..]).entries().unwrap();
    let mut seen = Vec::new();
    while let Some(entry) = entries.next().await {
        let entry = entry.unwrap();
        let header = entry.header();
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        let link = entry
            .link_name()
            .unwrap()
            .map(|link| link.to_string_lossy().into_owned());
        seen.push((
            path,
            header.entry_type(),
            header.mode().unwrap() & 0o7777,
            header.size().unwrap(),
            link,
        ));
    }
    seen.sort_by(|a, b| a.0.cmp(&b.0));
    let of = |name: &str| {
        seen.iter()
            .find(|entry| Path::new(&entry.0) == Path::new(name))
            .unwrap()
    };
    assert_eq!(of("tree").2, 0o1750);
    assert_eq!((of("tree/big").2, of("tree/big").3), (0o600, big as u64));
    assert_eq!(of("tree/link").4.as_deref(), Some("../somewhere/else"));
    // Of two names for a file the one that comes first has it.
    let (first, second) = (of("tree/fi le"), of("tree/hard"));
    let (file, name) = match first.1 {
        EntryType::Regular => (first, second),
        _ => (second, first),
    };
    assert_eq!((file.2, file.3), (0o711, 5));
    assert_eq!(name.1, EntryType::Link);
    assert_eq!(name.4.as_deref(), Some(file.0.as_str()));
    container.remove().await.unwrap();
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_what_is_not_there_is_said_before_a_copy_begins() {
    let (node, container) = node().await;
    let name = &container.name;
    for (refused, code) in [
        (
            node.refused(&copy_out("hub-no-such", "/")).await,
            FailureCode::NO_SUCH_CONTAINER,
        ),
        (
            node.refused(&copy_in("hub-no-such", "/")).await,
            FailureCode::NO_SUCH_CONTAINER,
        ),
        (
            node.refused(&copy_out(name, "/no/such")).await,
            FailureCode::NOT_FOUND,
        ),
        (
            node.refused(&copy_in(name, "/no/such")).await,
            FailureCode::NOT_FOUND,
        ),
        (
            node.refused(&copy_in(name, "/bin/busybox")).await,
            FailureCode::INVALID,
        ),
        (
            node.refused(&copy_out("../info", "/")).await,
            FailureCode::INVALID,
        ),
    ] {
        assert_eq!(refused.code, code, "{refused}");
    }
    container.remove().await.unwrap();
}

/// A daemon that wants nothing of an archive says why, and the rest of it is not sent.
#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_refused_archive_is_not_sent_to_its_end() {
    let engine = Engine::connect().await.unwrap();
    let docker = engine.docker().clone();
    let (node, container) = node().await;
    let name = format!("{}-read-only", container.name);
    let options = CreateContainerOptionsBuilder::new().name(&name).build();
    let config = ContainerCreateBody {
        image: Some(container.image.clone()),
        cmd: Some(vec!["true".into()]),
        host_config: Some(HostConfig {
            readonly_rootfs: Some(true),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    docker
        .create_container(Some(options), config)
        .await
        .unwrap();
    let (operation, _) = node.begin(&copy_in(&name, "/tmp")).await;
    let all = Bytes::from(vec![b'x'; 64 << 20]);
    let sent = send_all(&operation, IN, all.clone()).await;
    let ending = ending::<()>(&operation).await;
    docker.remove_container(&name, None).await.unwrap();
    container.remove().await.unwrap();
    assert!(sent < 4 << 20, "{sent} bytes were taken");
    let Ending::Failed(failure) = ending else {
        panic!("it was unpacked");
    };
    assert!(failure.message.contains("read-only"), "{failure}");
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_what_is_no_archive_is_refused_in_the_daemons_words() {
    let (node, container) = node().await;
    let (operation, _) = node.begin(&copy_in(&container.name, "/tmp")).await;
    send_all(&operation, IN, vec![b'x'; 100_000].into()).await;
    let ending = ending::<()>(&operation).await;
    container.remove().await.unwrap();
    let Ending::Failed(failure) = ending else {
        panic!("garbage was unpacked");
    };
    assert!(failure.message.contains("tar"), "{failure}");
}

#[tokio::test]
async fn a_node_without_docker_says_so() {
    let node = Node::new(tools(None)).await;
    for refused in [
        node.refused(&copy_out("c", "/")).await,
        node.refused(&copy_in("c", "/")).await,
    ] {
        assert_eq!(refused.code, FailureCode::UNSUPPORTED);
    }
}

/// A played daemon's answer to an archive that is asked for: its head, with what stands at the path.
async fn begin_archive(daemon: &mut DuplexStream) {
    assert!(
        head(daemon)
            .await
            .starts_with("GET /v1.41/containers/c/archive?path=%2Ffile ")
    );
    let stat = r#"{"name":"file","size":1,"mode":420,"mtime":"2026-01-02T03:04:05Z"}"#;
    let stat = STANDARD.encode(stat);
    let head = format!(
        "HTTP/1.1 200 OK\r\nX-Docker-Container-Path-Stat: {stat}\r\nConnection: close\r\n\r\n"
    );
    daemon.write_all(head.as_bytes()).await.unwrap();
}

/// What a daemon adds to an archive when it meets an error in the middle does not pass for its end.
#[tokio::test]
async fn an_archive_without_its_end_is_not_whole() {
    let mut broken = vec![1; 3000];
    broken.extend_from_slice(br#"{"message":"a disk is broken"}"#);
    let whole = [vec![1; 2048], vec![0; TAR_END]].concat();
    for (archive, is_whole) in [(broken, false), (vec![], false), (whole, true)] {
        let (engine, mut connections) = played().await;
        let node = Node::new(tools(Some(engine))).await;
        let operation = node.ask(&copy_out("c", "/file")).await;
        let mut daemon = connections.recv().await.unwrap();
        begin_archive(&mut daemon).await;
        daemon.write_all(&archive).await.unwrap();
        drop(daemon);
        assert_eq!(read_all(&operation, OUT).await, archive);
        let ending = ending::<()>(&operation).await;
        assert_eq!(ending == Ending::Complete(()), is_whole, "{ending:?}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_copy_at_the_daemon() {
    let (engine, mut connections) = played().await;
    let node = Node::new(tools(Some(engine))).await;
    let operation = node.ask(&copy_out("c", "/file")).await;
    let mut daemon = connections.recv().await.unwrap();
    begin_archive(&mut daemon).await;
    let mut output = operation.receiver(OUT);
    daemon.write_all(&[1; 512]).await.unwrap();
    output.chunk().await.unwrap();
    drop((output, operation));
    // It is the daemon's end that closes, in both directions.
    assert_eq!(daemon.read(&mut [0; 16]).await.unwrap(), 0);
    assert!(daemon.write_all(&vec![1; 64 * 1024]).await.is_err());
}
