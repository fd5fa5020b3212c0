//! Images: what is there, pulls, archives, builds.

use bollard::auth::DockerCredentials;
use bollard::body_full;
use bollard::query_parameters::{
    CreateImageOptions, ImportImageOptionsBuilder, ListImagesOptionsBuilder, TagImageOptionsBuilder,
};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::{Request, header};
use http_body_util::{BodyExt as _, Full};
use hub::client::build::Event;
use hub_protocol::kind::build::Build;
use hub_protocol::kind::call::image::{Credentials, Inspect, List, Pull};
use hub_protocol::kind::call::{Change, Progress};
use hub_server::api::channel::Finish;
use hub_server::api::problem::Kind;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_tar::{Builder, Header};

use super::files::{entries, whole};
use super::registry::{Registry, Stall};
use super::{Class, Got, HANG, Refusal, Rig, Side, Way, of_daemon, of_hub, socket, with};
use crate::world::NODE;

const CHANGED: Result<Change, Refusal> = Ok(Change::Changed);
const NOT_FOUND: Result<Change, Refusal> = Ok(Change::NotFound);

/// An image: id, names, digests, when it was made, size.
type Shown = (String, Vec<String>, Vec<String>, i64, u64);

impl Side<'_> {
    async fn image(&self, image: &str) -> Got<Option<Shown>> {
        if self.way == Way::Hub {
            let image = image.into();
            let found = self.ask(&Inspect { image }).await?;
            return Ok(found.map(|one| (one.id, one.tags, one.digests, one.created_s, one.size)));
        }
        match self
            .rig
            .docker
            .inspect_image(image)
            .await
            .map_err(of_daemon)
        {
            Ok(one) => {
                let made = one.created.unwrap();
                let made = humantime::parse_rfc3339(&made).unwrap();
                let made = made.duration_since(std::time::UNIX_EPOCH).unwrap();
                Ok(Some((
                    one.id.unwrap(),
                    one.repo_tags.unwrap_or_default(),
                    one.repo_digests.unwrap_or_default(),
                    i64::try_from(made.as_secs()).unwrap(),
                    one.size.unwrap().unsigned_abs(),
                )))
            }
            Err(refusal) if refusal.class == Class::Missing => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// The images of some name.
    async fn images(&self, name: &str) -> Vec<Shown> {
        let named = |tags: &[String]| tags.iter().any(|tag| tag.starts_with(name));
        let mut found: Vec<Shown> = match self.way {
            Way::Hub => {
                let found = self.ask(&List {}).await.unwrap();
                assert!(found.is_sorted_by_key(|one| -one.created_s));
                let found = found.into_iter().filter(|one| named(&one.tags));
                found
                    .map(|one| (one.id, one.tags, one.digests, one.created_s, one.size))
                    .collect()
            }
            Way::Daemon => {
                let options = ListImagesOptionsBuilder::new().digests(true).build();
                let found = self.rig.docker.list_images(Some(options)).await.unwrap();
                let found = found.into_iter().filter(|one| named(&one.repo_tags));
                found
                    .map(|one| {
                        let real = |name: &String| !name.starts_with("<none>");
                        let digests = one.repo_digests.into_iter().filter(real).collect();
                        (
                            one.id,
                            one.repo_tags,
                            digests,
                            one.created,
                            one.size.unsigned_abs(),
                        )
                    })
                    .collect()
            }
        };
        found.sort();
        found
    }

    /// Pulls an image; gives its id. What is said of it meanwhile comes last.
    async fn pull(&self, image: &str, login: Option<(&str, &str)>) -> Got<(String, Vec<Progress>)> {
        let mut news = Vec::new();
        match self.way {
            Way::Hub => {
                let registry = login.map(|(username, password)| Credentials {
                    username: username.into(),
                    password: password.into(),
                    ..Credentials::default()
                });
                let pull = Pull {
                    image: image.into(),
                    platform: None,
                    registry,
                };
                let client = &self.rig.client;
                let pulled = client
                    .call_with_progress(NODE, &pull, |one| news.push(one))
                    .await;
                match pulled {
                    Ok(pulled) => Ok((pulled.id, news)),
                    Err(error) => {
                        let mut refusal = of_hub(error);
                        let prefix = format!("pulling {image}: ");
                        refusal.words = refusal.words.replace(&prefix, "");
                        Err(refusal)
                    }
                }
            }
            Way::Daemon => {
                let (name, tag) = match image.rsplit_once(':') {
                    Some((name, tag)) if !tag.contains('/') => (name, tag),
                    _ => (image, "latest"),
                };
                let options = CreateImageOptions {
                    from_image: Some(name.into()),
                    tag: Some(tag.into()),
                    ..CreateImageOptions::default()
                };
                let credentials = login.map(|(username, password)| DockerCredentials {
                    username: Some(username.into()),
                    password: Some(password.into()),
                    ..DockerCredentials::default()
                });
                let docker = &self.rig.docker;
                let mut pulling = docker.create_image(Some(options), None, credentials);
                while let Some(one) = pulling.next().await {
                    let one = one.map_err(of_daemon)?;
                    let detail = one.progress_detail.unwrap_or_default();
                    let bytes = |n: Option<i64>| n.map(i64::unsigned_abs);
                    news.push(Progress {
                        id: one.id.unwrap_or_default(),
                        status: one.status.unwrap_or_default(),
                        current: bytes(detail.current),
                        total: bytes(detail.total),
                    });
                }
                let found = docker.inspect_image(image).await.unwrap();
                Ok((found.id.unwrap(), news))
            }
        }
    }
}

/// Gives the test's image a further name.
async fn tag(rig: &Rig, name: &str) {
    let options = TagImageOptionsBuilder::new().repo(name).tag("1").build();
    rig.docker
        .tag_image(&rig.image, Some(options))
        .await
        .unwrap();
}

/// Makes an image of one file, and gives it a name; gives its id.
async fn import(rig: &Rig, name: &str) -> String {
    let mut tar = Builder::new(Vec::new());
    append(&mut tar, "file", name.as_bytes(), 0o644).await;
    let options = CreateImageOptions {
        from_src: Some("-".into()),
        repo: Some(name.into()),
        tag: Some("1".into()),
        changes: vec!["CMD [\"/file\"]".into()],
        ..CreateImageOptions::default()
    };
    let body = body_full(tar.into_inner().await.unwrap().into());
    let made = rig.docker.create_image(Some(options), Some(body), None);
    made.try_collect::<Vec<_>>().await.unwrap();
    let found = rig
        .docker
        .inspect_image(&format!("{name}:1"))
        .await
        .unwrap();
    found.id.unwrap()
}

async fn append(tar: &mut Builder<Vec<u8>>, path: &str, content: &[u8], mode: u32) {
    let mut header = Header::new_gnu();
    header.set_mode(mode);
    header.set_mtime(1_714_979_289);
    header.set_size(content.len() as u64);
    tar.append_data(&mut header, path, content).await.unwrap();
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_images_are_the_same() {
    with(async |rig| {
        let name = rig.named("image");
        let id = import(rig, &name).await;
        rig.script(async |side| {
            let full = format!("{name}:1");
            assert_eq!(side.images(&name).await.len(), 1);
            side.same("list", side.images(&name).await);
            for image in [&*full, &id, &id[7..], &id[7..19]] {
                let found = side.image(image).await.unwrap();
                assert!(found.is_some(), "{image}");
                side.same("show", found);
            }
            for missing in ["hub-no-such-image", "hub-no-such-image:1", &name] {
                side.expect("show what is missing", side.image(missing).await, &Ok(None));
                let none = side.remove_image(missing, false).await;
                side.expect("remove what is missing", none, &NOT_FOUND);
            }
            // A second name goes alone.
            let second = side.named("second");
            tag(side.rig, &second).await;
            let second = format!("{second}:1");
            side.expect("a name", side.remove_image(&second, false).await, &CHANGED);
            side.expect(
                "the same again",
                side.remove_image(&second, false).await,
                &NOT_FOUND,
            );
            // What is in use stays.
            let own = side.named("own");
            let own_id = import(side.rig, &own).await;
            let own = format!("{own}:1");
            let mut spec = side.spec("user", &["/file"]);
            spec.ours.image.clone_from(&own);
            spec.theirs["Image"] = own.clone().into();
            let user = side.create(spec).await.unwrap();
            let used = side.remove_image(&own, false).await;
            side.refused("in use", used, Class::Conflict);
            let used = side.remove_image(&own_id, false).await;
            side.refused("in use by id", used, Class::Conflict);
            side.expect("by force", side.remove_image(&own, true).await, &CHANGED);
            assert_eq!(side.remove(&user, true).await, CHANGED);
            // Of one that runs only the names can go.
            let running = format!("{}:1", side.named("running"));
            tag(side.rig, &side.named("running")).await;
            let mut spec = side.idle("runner");
            spec.ours.image.clone_from(&running);
            spec.theirs["Image"] = running.clone().into();
            side.run(spec).await;
            let base = side
                .rig
                .docker
                .inspect_image(&running)
                .await
                .unwrap()
                .id
                .unwrap();
            let used = side.remove_image(&base, false).await.unwrap_err();
            side.expect("one that runs", used.class, &Class::Conflict);
            side.expect(
                "but its name",
                side.remove_image(&running, false).await,
                &CHANGED,
            );
        })
        .await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_pulls_are_the_same() {
    with(async |rig| {
        let open = Registry::new(None, false).await;
        let closed = Registry::new(Some("me:pass"), false).await;
        rig.script(async |side| {
            let (id, news) = side.pull(&open.image, None).await.unwrap();
            side.expect("its id", &id, &&open.id);
            // What is said in passing may be left out, not what was done.
            let mut done: Vec<_> = news
                .into_iter()
                .filter(|one| one.status.starts_with("Pull complete"))
                .map(|one| (one.id, one.status))
                .collect();
            done.sort();
            done.dedup();
            assert_eq!(done.len(), 1);
            side.same("its layers", done);
            let shown = side.image(&open.image).await.unwrap().unwrap();
            side.same("as it is then", shown.clone());
            if side.way == Way::Hub {
                // Its digest is a name, too.
                let again = side.pull(&shown.2[0], None).await;
                assert_eq!(again.unwrap().0, open.id);
            }
            side.expect(
                "pulled again",
                side.pull(&open.image, None).await.unwrap().0,
                &open.id,
            );
            let removed = side.remove_image(&open.image, false).await;
            side.expect("remove", removed, &CHANGED);
            let missing = side.pull(&format!("{}:none", open.image), None).await;
            side.refused("no such tag", missing, Class::Missing);
            for login in [None, Some(("me", "wr0ng"))] {
                let denied = side.pull(&closed.image, login).await;
                side.refused_as("denied", denied, Kind::RegistryDenied, 500);
            }
            let login = Some(("me", "pass"));
            let (id, _) = side.pull(&closed.image, login).await.unwrap();
            side.expect("allowed", &id, &&closed.id);
            let removed = side.remove_image(&closed.image, false).await;
            side.expect("remove", removed, &CHANGED);
            let nobody = side.pull("127.0.0.1:9/hub/none", None).await;
            side.refused_as("no registry", nobody, Kind::NodeFailed, 500);
        })
        .await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_pulls_that_are_given_up_are_the_same() {
    with(async |rig| {
        rig.script(async |side| {
            let mut registry = Registry::new(None, true).await;
            let image = registry.image.clone();
            tokio::select! {
                pulled = side.pull(&image, None) => panic!("half of it passes for all: {pulled:?}"),
                () = registry.reached(Stall::Stalled) => {}
            }
            // The daemon lets go of the registry.
            timeout(HANG, registry.reached(Stall::GivenUp))
                .await
                .unwrap();
            side.expect("nothing is there", side.image(&image).await, &Ok(None));
        })
        .await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_archives_of_images_are_the_same() {
    with(async |rig| {
        let names = [rig.named("a"), rig.named("b")];
        for name in &names {
            import(rig, name).await;
        }
        let full = names.map(|name| format!("{name}:1"));
        rig.script(async |side| {
            let save = async |images: &[String]| match side.way {
                Way::Hub => match side.rig.client.save(NODE, images).await {
                    Ok(download) => Ok(whole(download).await),
                    Err(error) => Err(of_hub(error)),
                },
                Way::Daemon => {
                    let names: Vec<_> = images.iter().map(|name| &**name).collect();
                    let pieces = side.rig.docker.export_images(&names);
                    let pieces: Result<Vec<Bytes>, _> = pieces.try_collect().await;
                    Ok(pieces.map_err(of_daemon)?.concat())
                }
            };
            let load = async |tar: Vec<u8>| match side.way {
                Way::Hub => {
                    let pieces: Vec<_> = tar
                        .chunks(30_000)
                        .map(|piece| Ok(Bytes::copy_from_slice(piece)))
                        .collect();
                    let loaded = side.rig.client.load(NODE, stream::iter(pieces)).await;
                    Ok(loaded.map_err(of_hub)?.images)
                }
                Way::Daemon => {
                    let options = ImportImageOptionsBuilder::new().quiet(true).build();
                    let docker = &side.rig.docker;
                    let said = docker.import_image(options, body_full(tar.into()), None);
                    let said: Vec<_> = said.try_collect().await.map_err(of_daemon)?;
                    let said = said.into_iter().filter_map(|one| one.stream);
                    let said = said.map(|line| line.trim().replace("Loaded image: ", ""));
                    Ok(said.collect())
                }
            };
            for images in [&full[..], &full[..1]] {
                let tar = save(images).await.unwrap();
                for entry in entries(&tar, false).await {
                    side.same("entry", entry);
                }
            }
            let missing = save(&["hub-no-such-image".into()]).await.unwrap_err();
            side.expect("save what is missing", missing.class, &Class::Missing);

            let tar = save(&full).await.unwrap();
            let before = [side.image(&full[0]).await, side.image(&full[1]).await];
            for image in &full {
                assert_eq!(side.remove_image(image, false).await, CHANGED);
            }
            let mut loaded = load(tar.clone()).await.unwrap();
            loaded.sort();
            side.same("loaded", loaded);
            let after = [side.image(&full[0]).await, side.image(&full[1]).await];
            assert_eq!(after, before);
            side.same("as they were", after);
            let broken: Got<_> = load(tar[..tar.len() / 2].to_vec()).await;
            side.step("half an archive", broken.is_err());
        })
        .await;
    })
    .await;
}

impl Side<'_> {
    /// Builds an image from an archive; gives its id.
    async fn build(&self, build: &Build, context: Vec<u8>) -> Got<String> {
        match self.way {
            Way::Hub => {
                let building = self.rig.client.build(NODE, build).await.map_err(of_hub)?;
                let (mut input, mut output) = building.split();
                let send = async {
                    let _ = input.send(&context).await;
                    let _ = input.finish().await;
                    std::future::pending::<()>().await;
                };
                let ended = async {
                    loop {
                        if let Event::Ended(finish) = output.next().await {
                            return finish;
                        }
                    }
                };
                let finish = tokio::select! {
                    () = send => unreachable!(),
                    finish = ended => finish,
                };
                match finish {
                    Finish::Complete { image } => Ok(image.unwrap()),
                    Finish::Failed(problem) => {
                        Err(of_hub(hub::client::ClientError::Refused(problem)))
                    }
                }
            }
            Way::Daemon => self.build_by_daemon(build, context).await,
        }
    }

    /// The client of its API speaks with the newer builder only with more of its own.
    async fn build_by_daemon(&self, build: &Build, context: Vec<u8>) -> Got<String> {
        let path = "/build?rm=1&forcerm=1&version=2".to_owned();
        let mut query = form_urlencoded::Serializer::new(path);
        let json = |value: &Value| value.to_string();
        query.append_pair("buildargs", &json(&serde_json::json!(build.build_args)));
        query.append_pair("labels", &json(&serde_json::json!(build.labels)));
        for tag in &build.tags {
            query.append_pair("t", tag);
        }
        for (name, value) in [("dockerfile", &build.dockerfile), ("target", &build.target)] {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        let bridge = self.rig.docker.inspect_network("bridge", None).await;
        if bridge.is_err() {
            query.append_pair("networkmode", "none");
        }
        let stream = UnixStream::connect(socket()).await.unwrap();
        let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(driver);
        let request = Request::post(query.finish())
            .header(header::HOST, "docker")
            .header(header::CONTENT_TYPE, "application/x-tar")
            .body(Full::new(Bytes::from(context)))
            .unwrap();
        let answer = sender.send_request(request).await.unwrap();
        let status = answer.status().as_u16();
        let said = answer.into_body().collect().await.unwrap().to_bytes();
        let lines = said.split(|byte| *byte == b'\n');
        let lines: Vec<Value> = lines
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        if status != 200 {
            let error = bollard::errors::Error::DockerResponseServerError {
                status_code: status,
                message: text(&lines[0]["message"]).unwrap(),
            };
            return Err(of_daemon(error));
        }
        if let Some(error) = lines.iter().find_map(|line| text(&line["error"])) {
            return Err(of_daemon(bollard::errors::Error::DockerStreamError {
                error,
            }));
        }
        let id = lines.iter().find_map(|line| text(&line["aux"]["ID"]));
        Ok(id.unwrap())
    }
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_builds_are_the_same() {
    with(async |rig| {
        let context = async |dockerfile: &str| {
            let mut tar = Builder::new(Vec::new());
            append(&mut tar, "Dockerfile", dockerfile.as_bytes(), 0o644).await;
            append(&mut tar, "other/File", dockerfile.as_bytes(), 0o644).await;
            append(&mut tar, "data", &vec![7; 300_000], 0o600).await;
            tar.into_inner().await.unwrap()
        };
        let good = format!(
            "FROM {} AS first\nARG WHAT=none\nLABEL own={}\nCOPY data /data\nRUN echo \"$WHAT\" >/what\n\
             ENV A=b\nWORKDIR /tmp\nUSER nobody\nFROM first\nCMD [\"cat\", \"/what\"]\n",
            rig.image, rig.name,
        );
        rig.script(async |side| {
            let mut build = Build {
                tags: vec![format!("{}:1", side.named("built"))],
                build_args: [("WHAT".into(), Some("some ü".into()))].into(),
                labels: [("k".into(), "v=1".into())].into(),
                ..Build::default()
            };
            // What was built on one side is in the cache of the other: it has to be the same.
            let id = side.build(&build, context(&good).await).await.unwrap();
            let found = side.rig.docker.inspect_image(&build.tags[0]).await.unwrap();
            assert_eq!(found.id.as_deref(), Some(&*id));
            side.step("its config", found.config.map(|config| serde_json::json!(config)));
            side.same("its layers", found.root_fs);
            side.same("itself", (found.created, found.size, id));
            let mut spec = side.spec("runs", &[]);
            (spec.ours.command, spec.ours.image) = (None, build.tags[0].clone());
            spec.theirs["Image"] = build.tags[0].clone().into();
            spec.theirs["Cmd"] = Value::Null;
            let container = side.run(spec).await;
            side.over(&container).await;
            side.state("what it did", &container).await;
            build.tags = vec![format!("{}:1", side.named("staged"))];
            build.target = Some("first".into());
            build.dockerfile = Some("other/File".into());
            side.build(&build, context(&good).await).await.unwrap();
            let found = side.rig.docker.inspect_image(&build.tags[0]).await.unwrap();
            side.step("a stage", found.config.map(|config| serde_json::json!(config)));

            let plain = Build::default();
            for (label, dockerfile) in [
                ("a step that fails", format!("FROM {}\nRUN exit 7\n", rig.image)),
                ("a file that is missing", format!("FROM {}\nCOPY none /\n", rig.image)),
                ("no instruction", format!("FROM {}\nNONSENSE\n", rig.image)),
                ("nothing", String::new()),
            ] {
                let failed = side.build(&plain, context(&dockerfile).await).await;
                side.refused_as(label, failed, Kind::BuildFailed, 500);
            }
            let elsewhere = Build {
                dockerfile: Some("none".into()),
                ..Build::default()
            };
            let failed = side.build(&elsewhere, context(&good).await).await;
            side.refused_as("no Dockerfile", failed, Kind::BuildFailed, 500);
            let stage = Build {
                target: Some("none".into()),
                ..Build::default()
            };
            let failed = side.build(&stage, context(&good).await).await;
            side.refused_as("no stage", failed, Kind::BuildFailed, 500);
        })
        .await;
    })
    .await;
}
