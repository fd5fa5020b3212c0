//! Files of containers: out, in, and what stands at a path.

use std::path::Path;

use bollard::body_full;
use bollard::query_parameters::{
    ContainerArchiveInfoOptionsBuilder, DownloadFromContainerOptionsBuilder,
    UploadToContainerOptions,
};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use hub_protocol::kind::transfer::CopyIn;
use hub_server::api::problem::Kind;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio_tar::{Archive, Builder, EntryType, Header};

use super::{Class, Got, Side, Way, of_daemon, of_hub, shown, with};
use crate::world::NODE;

/// The whole of a download.
pub async fn whole(mut download: hub::client::Download) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(piece) = download.next().await.unwrap() {
        bytes.extend_from_slice(&piece);
    }
    bytes
}

/// An archive, entry by entry.
pub async fn entries(tar: &[u8], times: bool) -> Vec<String> {
    let mut archive = Archive::new(tar).entries().unwrap();
    let mut lines = Vec::new();
    while let Some(entry) = archive.next().await {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).await.unwrap();
        // The daemon lists several images in an order that changes from one time to the next.
        if entry.path().unwrap().as_ref() == Path::new("manifest.json") {
            let mut images: Vec<Value> = serde_json::from_slice(&content).unwrap();
            images.sort_by_key(Value::to_string);
            content = serde_json::to_vec(&images).unwrap();
        }
        let header = entry.header();
        let time = times.then(|| header.mtime().unwrap());
        lines.push(format!(
            "{} {:?} {:o} {}:{} {} {time:?} {:?} {}",
            entry.path().unwrap().display(),
            header.entry_type(),
            header.mode().unwrap(),
            header.uid().unwrap(),
            header.gid().unwrap(),
            content.len(),
            entry.link_name().unwrap(),
            shown(&content),
        ));
    }
    lines.sort();
    lines
}

/// An archive of all kinds of things.
async fn archive() -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    let big: Vec<u8> = (0..3u32 << 20)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let long = format!("dir/{}", "n".repeat(120));
    for (path, kind, mode, owner, content) in [
        ("dir/", EntryType::Directory, 0o750, 1000, &b""[..]),
        ("dir/empty", EntryType::Regular, 0o644, 0, b""),
        ("dir/text", EntryType::Regular, 0o4755, 65534, b"text\n"),
        ("dir/big", EntryType::Regular, 0o600, 1000, &big),
        (
            "dir/\u{fc} \u{1f980}",
            EntryType::Regular,
            0o644,
            0,
            b"\x00\xff",
        ),
        (&*long, EntryType::Regular, 0o444, 0, b"long"),
        ("dir/fifo", EntryType::Fifo, 0o600, 0, b""),
    ] {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(owner);
        header.set_gid(owner);
        header.set_mtime(1_714_979_289);
        header.set_size(content.len() as u64);
        tar.append_data(&mut header, path, content).await.unwrap();
    }
    for (path, kind, target) in [
        ("dir/link", EntryType::Symlink, "text"),
        ("dir/dangling", EntryType::Symlink, "/no/such"),
        ("dir/hard", EntryType::Link, "dir/text"),
    ] {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o777);
        header.set_mtime(1_714_979_289);
        header.set_size(0);
        header.set_link_name(target).unwrap();
        let nothing = tokio::io::empty();
        tar.append_data(&mut header, path, nothing).await.unwrap();
    }
    tar.into_inner().await.unwrap()
}

impl Side<'_> {
    async fn copy_out(&self, container: &str, path: &str) -> Got<Vec<u8>> {
        match self.way {
            Way::Hub => {
                let copied = self.rig.client.copy_out(NODE, container, path).await;
                Ok(whole(copied.map_err(of_hub)?.1).await)
            }
            Way::Daemon => {
                let options = DownloadFromContainerOptionsBuilder::new()
                    .path(path)
                    .build();
                let docker = &self.rig.docker;
                let pieces = docker.download_from_container(container, Some(options));
                let pieces: Vec<Bytes> = pieces.try_collect().await.map_err(of_daemon)?;
                Ok(pieces.concat())
            }
        }
    }

    async fn copy_in(&self, copy: &CopyIn, tar: &[u8]) -> Got<()> {
        match self.way {
            Way::Hub => {
                let pieces: Vec<_> = tar
                    .chunks(50_000)
                    .map(|piece| Ok(Bytes::copy_from_slice(piece)))
                    .collect();
                let copied = self.rig.client.copy_in(NODE, copy, stream::iter(pieces));
                copied.await.map_err(of_hub)
            }
            Way::Daemon => {
                let options = UploadToContainerOptions {
                    path: copy.path.clone(),
                    copy_uidgid: copy.copy_uid_gid.then(|| "true".into()),
                    no_overwrite_dir_non_dir: copy.no_overwrite_dir_non_dir.then(|| "true".into()),
                };
                let docker = &self.rig.docker;
                let body = body_full(Bytes::copy_from_slice(tar));
                let copied = docker.upload_to_container(&copy.container, Some(options), body);
                copied.await.map_err(of_daemon)
            }
        }
    }

    async fn stat(&self, container: &str, path: &str) -> Got<String> {
        let line = |name, size, mode: u32, mtime, target| {
            format!("{name:?} {size} {mode:o} {mtime:?} {target:?}")
        };
        match self.way {
            Way::Hub => {
                let stat = self.rig.client.stat_path(NODE, container, path).await;
                let stat = stat.map_err(of_hub)?;
                Ok(line(
                    stat.name,
                    stat.size,
                    stat.mode,
                    stat.mtime,
                    stat.link_target,
                ))
            }
            Way::Daemon => {
                let options = ContainerArchiveInfoOptionsBuilder::new().path(path).build();
                let docker = &self.rig.docker;
                let stat = docker
                    .get_container_archive_info(container, Some(options))
                    .await;
                let stat = stat.map_err(of_daemon)?;
                let mtime = stat.modification_time.unwrap();
                Ok(line(
                    stat.name,
                    stat.size,
                    stat.file_mode,
                    mtime,
                    stat.link_target,
                ))
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_copies_are_the_same() {
    with(async |rig| {
        let tar = archive().await;
        let maker = rig.maker();
        let shared = maker.create(maker.idle("shared")).await.unwrap();
        let into = |container: &str, path: &str| CopyIn {
            container: container.into(),
            path: path.into(),
            copy_uid_gid: false,
            no_overwrite_dir_non_dir: false,
        };
        maker.copy_in(&into(&shared, "/tmp"), &tar).await.unwrap();
        rig.script(async |side| {
            // One container that both read: not a byte differs.
            for path in [
                "/tmp",
                "/tmp/dir",
                "/tmp/dir/",
                "/tmp/dir/.",
                "/tmp/dir/big",
                "/tmp/dir/link",
                "/etc",
                "bin",
            ] {
                let copied = side.copy_out(&shared, path).await.unwrap();
                side.same(path, shown(&copied));
                side.same(path, side.stat(&shared, path).await);
            }
            for (container, path) in [(&*shared, "/no/such"), ("hub-no-such", "/tmp")] {
                let missing = side.copy_out(container, path).await.unwrap_err();
                side.expect("copy what is missing", missing.class, &Class::Missing);
            }

            // One of each side's own that is written.
            let id = side.run(side.idle("own")).await;
            for keep in [false, true] {
                for path in ["/tmp", "/root"] {
                    let copy = CopyIn {
                        copy_uid_gid: keep,
                        ..into(&id, path)
                    };
                    side.step("copied in", side.copy_in(&copy, &tar).await);
                    let copied = side.copy_out(&id, &format!("{path}/dir")).await.unwrap();
                    for entry in entries(&copied, true).await {
                        side.step("entry", entry);
                    }
                }
            }
            let mut over = into(&id, "/tmp");
            over.no_overwrite_dir_non_dir = true;
            side.step("over itself", side.copy_in(&over, &tar).await);
            let file = |path: &'static str| async move {
                let mut tar = Builder::new(Vec::new());
                let mut header = Header::new_gnu();
                header.set_mode(0o644);
                header.set_size(1);
                tar.append_data(&mut header, path, &b"x"[..]).await.unwrap();
                tar.into_inner().await.unwrap()
            };
            let replacing = side.copy_in(&over, &file("dir").await).await;
            side.refused_as("a file for a directory", replacing, Kind::NodeFailed, 500);
            over.no_overwrite_dir_non_dir = false;
            side.step("allowed", side.copy_in(&over, &file("dir").await).await);
            let copied = side.copy_out(&id, "/tmp").await.unwrap();
            side.step("is it there", entries(&copied, false).await);
            for (container, path) in [(&*id, "/no/such"), ("hub-no-such", "/tmp")] {
                let missing = side.copy_in(&into(container, path), &tar).await;
                let missing = missing.unwrap_err();
                side.expect("copy to what is missing", missing.class, &Class::Missing);
            }
            let no_directory = side.copy_in(&into(&id, "/etc/passwd"), &tar).await;
            // The daemon takes it for a fault of its own.
            let expected = match side.way {
                Way::Hub => Class::Invalid,
                Way::Daemon => Class::Other(500),
            };
            assert_eq!(no_directory.unwrap_err().class, expected);
            let broken = side
                .copy_in(&into(&id, "/tmp"), &tar[..tar.len() / 2])
                .await;
            side.step("half an archive", broken.is_err());
        })
        .await;
    })
    .await;
}
