//! A small container to show things with, on machines that may have no image and no registry.
//!
//! The image is the first of these that is to be had: a local `busybox` of any tag, one made
//! earlier from this machine's own static busybox, one made now, and last one that is pulled.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use bollard::Docker;
use bollard::body_full;
use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, CreateImageOptions, ListImagesOptionsBuilder,
    RemoveContainerOptionsBuilder, StartContainerOptions,
};
use futures_util::TryStreamExt;
use tokio::fs;
use tokio_tar::{Builder, EntryType, Header};

use super::DockerRuntime;

/// Where the image that is made here is kept: its name, and a tag that changes with what is in it.
const OWN_IMAGE: (&str, &str) = ("hub-demo-busybox", "2");

/// Where distributions put a static busybox.
const BINARIES: [&str; 2] = ["/bin/busybox", "/usr/bin/busybox"];

/// Label of every demo container, so that a person finds what a killed demo left.
const LABEL: &str = "hub.demo";

/// The names under which the image offers busybox.
const APPLETS: [&str; 41] = [
    "[", "awk", "basename", "cat", "cut", "date", "dd", "df", "env", "expr", "false", "find",
    "free", "grep", "head", "hostname", "httpd", "id", "kill", "ls", "mkdir", "printf", "ps",
    "pwd", "rm", "sed", "seq", "sh", "sleep", "sort", "stty", "tail", "tee", "test", "touch", "tr",
    "true", "uname", "uniq", "wc", "wget",
];

/// First process of the container: it waits, reaps what is left to it, and ends on TERM at once.
const IDLE: &str = "trap exit TERM; while :; do sleep 3600 & wait $!; done";

/// Why there is no demo container.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// No image is there, and none could be made or pulled.
    #[error(
        "there is no busybox image, no static busybox on this machine to make one from, and \
         pulling one failed: {0}"
    )]
    NoImage(Error),
    /// The daemon did not do as asked.
    #[error("the Docker daemon refuses the demo container: {0}")]
    Daemon(#[from] Error),
    /// This machine's busybox cannot be read, or its random numbers.
    #[error("the demo image cannot be made: {0}")]
    Io(#[from] io::Error),
}

/// A container that idles until it is removed.
#[derive(Debug)]
pub struct DemoContainer {
    docker: Docker,
    /// Its name: `hub-demo-` and eight hex digits.
    pub name: String,
    /// The image it was made from.
    pub image: String,
}

impl DockerRuntime {
    /// Starts a container `hub-demo-…` of busybox that idles. [`DemoContainer::remove`] ends it;
    /// the daemon removes it by itself if it stops in any other way.
    pub async fn demo_container(&self) -> Result<DemoContainer, DemoError> {
        let image = image(self.docker()).await?;
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let mut name = String::from("hub-demo-");
        for byte in random {
            // Writing to a string does not fail.
            let _ = write!(name, "{byte:02x}");
        }
        let config = ContainerCreateBody {
            image: Some(image.clone()),
            cmd: Some(["/bin/sh", "-c", IDLE].map(String::from).to_vec()),
            labels: Some(HashMap::from([(LABEL.to_owned(), "true".to_owned())])),
            host_config: Some(HostConfig {
                auto_remove: Some(true),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let options = CreateContainerOptionsBuilder::new().name(&name).build();
        self.docker()
            .create_container(Some(options), config)
            .await?;
        let container = DemoContainer {
            docker: self.docker().clone(),
            name,
            image,
        };
        if let Err(error) = self
            .docker()
            .start_container(&container.name, None::<StartContainerOptions>)
            .await
        {
            // Auto-remove does not see a container that never started.
            let _ = container.remove().await;
            return Err(error.into());
        }
        Ok(container)
    }
}

impl DemoContainer {
    /// Ends and removes it, and whatever still runs in it.
    pub async fn remove(self) -> Result<(), DemoError> {
        let options = RemoveContainerOptionsBuilder::new()
            .force(true)
            .v(true)
            .build();
        match self
            .docker
            .remove_container(&self.name, Some(options))
            .await
        {
            // Gone already, or about to be.
            Ok(())
            | Err(Error::DockerResponseServerError {
                status_code: 404 | 409,
                ..
            }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

async fn image(docker: &Docker) -> Result<String, DemoError> {
    let (repo, tag) = OWN_IMAGE;
    for reference in ["busybox", &format!("{repo}:{tag}")] {
        let filters = HashMap::from([("reference", vec![reference])]);
        let options = ListImagesOptionsBuilder::new().filters(&filters).build();
        let images = docker.list_images(Some(options)).await?;
        if let Some(name) = images.into_iter().flat_map(|image| image.repo_tags).next() {
            return Ok(name);
        }
    }
    for path in BINARIES {
        match fs::read(path).await {
            Ok(binary) if is_static(&binary) => {
                import(docker, root(&binary).await?).await?;
                return Ok(format!("{repo}:{tag}"));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    let options = CreateImageOptions {
        from_image: Some("busybox".into()),
        tag: Some("latest".into()),
        ..CreateImageOptions::default()
    };
    let pulled: Result<Vec<_>, _> = docker
        .create_image(Some(options), None, None)
        .try_collect()
        .await;
    pulled.map_err(DemoError::NoImage)?;
    Ok("busybox:latest".into())
}

async fn import(docker: &Docker, root: Vec<u8>) -> Result<(), Error> {
    let options = CreateImageOptions {
        from_src: Some("-".into()),
        repo: Some(OWN_IMAGE.0.into()),
        tag: Some(OWN_IMAGE.1.into()),
        changes: vec!["ENV PATH=/bin".into()],
        ..CreateImageOptions::default()
    };
    let body = body_full(root.into());
    docker
        .create_image(Some(options), Some(body), None)
        .try_collect::<Vec<_>>()
        .await?;
    Ok(())
}

/// The image's file system as a tar: busybox, its names, and the files that name the users.
async fn root(busybox: &[u8]) -> io::Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    for (dir, mode) in [
        ("bin/", 0o755),
        ("etc/", 0o755),
        ("root/", 0o700),
        ("tmp/", 0o1777),
    ] {
        let mut header = header(EntryType::Directory, mode, 0);
        tar.append_data(&mut header, dir, tokio::io::empty())
            .await?;
    }
    let files: [(&str, u32, &[u8]); 3] = [
        ("bin/busybox", 0o755, busybox),
        (
            "etc/passwd",
            0o644,
            b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
        ),
        ("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n"),
    ];
    for (path, mode, content) in files {
        let mut header = header(EntryType::Regular, mode, content.len() as u64);
        tar.append_data(&mut header, path, content).await?;
    }
    for applet in APPLETS {
        let mut header = header(EntryType::Symlink, 0o777, 0);
        header.set_link_name("busybox")?;
        tar.append_data(
            &mut header,
            Path::new("bin").join(applet),
            tokio::io::empty(),
        )
        .await?;
    }
    tar.into_inner().await
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// Whether this is an ELF program (64 bit, little endian) that needs no loader. Every other kind
/// of file counts as not.
fn is_static(file: &[u8]) -> bool {
    const INTERP: u32 = 3;
    let word = |at: usize, len: usize| {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(file.get(at..at.checked_add(len)?)?);
        Some(u64::from_le_bytes(bytes))
    };
    let programs = || {
        let (table, size, count) = (word(0x20, 8)?, word(0x36, 2)?, word(0x38, 2)?);
        (0..count)
            .map(|index| {
                let at = table.checked_add(index * size)?;
                word(usize::try_from(at).ok()?, 4)
            })
            .collect::<Option<Vec<_>>>()
    };
    file.starts_with(b"\x7fELF\x02\x01")
        && programs().is_some_and(|kinds| !kinds.is_empty() && !kinds.contains(&INTERP.into()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures_util::StreamExt;
    use tokio_tar::Archive;

    use super::*;

    #[test]
    fn only_an_elf_without_a_loader_is_static() {
        let mut elf = vec![0; 0x40 + 2 * 56];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[0x20] = 0x40;
        elf[0x36] = 56;
        elf[0x38] = 2;
        elf[0x40] = 1;
        elf[0x40 + 56] = 2;
        assert!(is_static(&elf));
        elf[0x40 + 56] = 3;
        assert!(!is_static(&elf));
        elf[0x40 + 56] = 2;
        elf.truncate(0x60);
        assert!(!is_static(&elf));
        elf[0x20..0x28].copy_from_slice(&[0xff; 8]);
        assert!(!is_static(&elf));
        assert!(!is_static(b"#!/bin/sh\n"));
        assert!(!is_static(b""));
    }

    #[tokio::test]
    async fn the_image_holds_busybox_under_its_names() {
        let tar = root(b"binary").await.unwrap();
        let mut entries = Archive::new(&tar[..]).entries().unwrap();
        let mut links = Vec::new();
        let mut paths = Vec::new();
        while let Some(entry) = entries.next().await {
            let entry = entry.unwrap();
            let path = entry.path().unwrap().to_string_lossy().into_owned();
            if let Some(target) = entry.link_name().unwrap() {
                assert_eq!(target.to_str(), Some("busybox"));
                links.push(path);
            } else {
                paths.push(path);
            }
        }
        assert!(links.contains(&"bin/sh".into()) && links.contains(&"bin/httpd".into()));
        assert!(paths.contains(&"bin/busybox".into()) && paths.contains(&"etc/passwd".into()));
    }
}
