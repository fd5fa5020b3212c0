//! Archives of images: what is seen of their end, and both ways through the real daemon.

#![allow(clippy::unwrap_used)]

use futures_util::FutureExt as _;
use hub_protocol::kind::call::Change;
use hub_protocol::kind::call::image::{Inspect, Remove};
use hub_protocol::kind::transfer::Loaded;

use super::*;
use crate::engine::fake::{self, Asked};
use crate::operations::testing::{Node, ending, read_all, send_all, tools};
use crate::runtime::docker::DockerRuntime;

#[test]
fn an_archive_is_whole_when_it_ends_in_two_blocks_of_zeros() {
    let end = |pieces: &[&[u8]]| {
        let mut end = TarEnd::default();
        for piece in pieces {
            end.push(piece);
        }
        end
    };
    let (content, zeros) = ([1; 512], [0; 1024]);
    assert!(end(&[&content, &zeros]).is_whole());
    assert!(end(&[&content, &zeros[..700], &zeros[700..]]).is_whole());
    assert!(end(&[&[0; 10_240]]).is_whole());
    assert!(!end(&[]).is_whole());
    assert!(!end(&[&zeros[1..]]).is_whole());
    assert!(!end(&[&content, &zeros[512..]]).is_whole());
    let broken = end(&[&content, &[0; 300], b"{\"message\":\"no space\"}\r\n"]);
    assert!(!broken.is_whole());
    assert_eq!(broken.tail(), "{\"message\":\"no space\"}");
    assert_eq!(end(&[&content]).tail(), "it gave no reason");
}

#[tokio::test]
async fn an_archive_that_the_daemon_breaks_off_is_not_whole() {
    let engine = fake::engine(|asked: Asked| {
        async move {
            match &*asked.path {
                "/images/i/json" => (200, "{}".into()),
                // The daemon writes its error into the archive, and ends it well.
                "/images/get?names=i" => (200, "tar…\n{\"error\":\"disk\"}\r\n".into()),
                _ => (404, r#"{"message": "No such image"}"#.into()),
            }
        }
        .boxed()
    })
    .await;
    let node = Node::new(tools(Some(engine))).await;
    let save = |images: &[&str]| Save {
        images: images.iter().map(ToString::to_string).collect(),
    };
    let (operation, _) = node.begin(&save(&["i"])).await;
    read_all(&operation, OUT).await;
    let Ending::<()>::Failed(failure) = ending(&operation).await else {
        panic!("it passes for whole");
    };
    assert!(failure.message.contains(r#"{"error":"disk"}"#), "{failure}");
    let missing = node.refused(&save(&["i", "gone"])).await;
    assert_eq!(missing.code, FailureCode::NOT_FOUND);
    assert!(missing.message.contains("gone"), "{missing}");
    assert_eq!(node.refused(&save(&[])).await.code, FailureCode::INVALID);
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_an_image_goes_out_and_comes_back() {
    let engine = Engine::connect().await.unwrap();
    let container = DockerRuntime::new(&engine).demo_container().await.unwrap();
    // A name of its own, so that removing it takes nothing from others.
    let name = format!("{}:saved", container.name);
    let options = bollard::query_parameters::TagImageOptionsBuilder::new()
        .repo(&container.name)
        .tag("saved")
        .build();
    let docker = engine.docker();
    docker
        .tag_image(&container.image, Some(options))
        .await
        .unwrap();
    container.remove().await.unwrap();

    let calls = engine.calls(&|_| ());
    let inspect = Inspect {
        image: name.clone(),
    };
    let before = calls.image_inspect(inspect.clone()).await.unwrap().unwrap();
    let node = Node::new(tools(Some(engine.clone()))).await;
    let images = vec![name.clone()];
    let (operation, _) = node.begin(&Save { images }).await;
    let archive = read_all(&operation, OUT).await;
    assert_eq!(ending(&operation).await, Ending::Complete(()));
    assert!(archive.len() > 1_000_000 && archive.len().is_multiple_of(512));

    let remove = || Remove {
        image: name.clone(),
        force: false,
    };
    assert_eq!(calls.image_remove(remove()).await, Ok(Change::Changed));
    assert_eq!(calls.image_inspect(inspect.clone()).await, Ok(None));

    // Broken off, it brings nothing, and the daemon goes on.
    let (operation, _) = node.begin(&Load {}).await;
    let half = archive.slice(..archive.len() / 2);
    let mut sender = operation.sender(IN);
    sender.send(half).await.unwrap();
    drop(operation);
    assert_eq!(calls.image_inspect(inspect.clone()).await, Ok(None));

    let (operation, _) = node.begin(&Load {}).await;
    assert_eq!(
        send_all(&operation, IN, archive.clone()).await,
        archive.len()
    );
    let loaded = Loaded {
        images: vec![name.clone()],
    };
    assert_eq!(ending(&operation).await, Ending::Complete(loaded));
    let after = calls.image_inspect(inspect).await.unwrap().unwrap();
    assert_eq!((after.id, after.size), (before.id, before.size));
    assert_eq!(calls.image_remove(remove()).await, Ok(Change::Changed));
    assert_eq!(calls.image_remove(remove()).await, Ok(Change::NotFound));

    // No archive at all.
    let (operation, _) = node.begin(&Load {}).await;
    send_all(&operation, IN, Bytes::from(vec![7; 1 << 20])).await;
    assert!(matches!(
        ending::<Loaded>(&operation).await,
        Ending::Failed(_)
    ));
}
