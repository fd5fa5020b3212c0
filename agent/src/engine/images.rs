//! Calls about images.

use bollard::auth::DockerCredentials;
use bollard::errors::Error;
use bollard::models::{BuildInfo, CreateImageInfo, ImageInspect, ImageSummary};
use bollard::query_parameters::{
    CreateImageOptions, ListImagesOptionsBuilder, RemoveImageOptionsBuilder,
};
use futures_util::StreamExt as _;
use http::{Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use hub_protocol::kind::call::image::{Credentials, Image, Inspect, List, Pull, Pulled, Remove};
use hub_protocol::kind::call::{Change, Progress};
use hub_protocol::kind::transfer::Loaded;
use hub_protocol::kind::{Failure, FailureCode};
use hub_quic::operation::Receiver;
use hyper::body::Incoming;

use super::error::{self, failure};
use super::names::{self, Reference};
use super::request::{self, refusal};
use super::{Calls, find, look, time};

/// The most images that are named in the answer to a load.
const MAX_LOADED: usize = 100;

/// The most bytes of their names together: they are said in the last frame of an operation.
const MAX_LOADED_NAMES: usize = 8 * 1024;

/// The most bytes of a line that the daemon says while it loads: more is passed over.
const MAX_LINE: usize = 64 * 1024;

impl Calls<'_> {
    /// Lists images, newest first.
    pub async fn image_list(&self, _: List) -> Result<Vec<Image>, Failure> {
        let options = ListImagesOptionsBuilder::new().digests(true).build();
        let found = look(self.engine.docker().list_images(Some(options))).await?;
        let mut images: Vec<_> = found.into_iter().map(listed).collect();
        images.sort_by(|a, b| (b.created_s, &a.id).cmp(&(a.created_s, &b.id)));
        Ok(images)
    }

    /// Shows an image.
    pub async fn image_inspect(&self, call: Inspect) -> Result<Option<Image>, Failure> {
        let Some(name) = names::image(&call.image) else {
            return Ok(None);
        };
        let docker = self.engine.docker();
        let inspect = async {
            match docker.inspect_image(name).await {
                Err(error) if is_missing(&error) => Ok(None),
                found => found.map(Some),
            }
        };
        Ok(look(inspect).await?.map(inspected))
    }

    /// Pulls an image. Given up, the daemon stops, too.
    pub async fn image_pull(&self, call: Pull) -> Result<Pulled, Failure> {
        let image = self.pull(&call).await?;
        Ok(Pulled {
            id: image.id.unwrap_or_default(),
        })
    }

    /// Pulls an image, and gives what the daemon says of it.
    pub(super) async fn pull(&self, call: &Pull) -> Result<ImageInspect, Failure> {
        let Some(reference) = Reference::parse(&call.image) else {
            let (code, why) = match names::image(&call.image) {
                Some(_) => (
                    FailureCode::NOT_FOUND,
                    "is not here, and an id can't be pulled",
                ),
                None => (FailureCode::INVALID, "can't be an image's name"),
            };
            return Err(Failure::new(code, format!("{} {why}", call.image)));
        };
        let options = CreateImageOptions {
            from_image: Some(reference.repository.into()),
            tag: Some(reference.version.into()),
            platform: call.platform.clone().unwrap_or_default(),
            ..CreateImageOptions::default()
        };
        let shown = call.registry.as_ref();
        let credentials = shown.map(|shown| credentials(shown, reference.registry()));
        let docker = self.engine.patient();
        let mut news = docker.create_image(Some(options), None, credentials);
        while let Some(news) = news.next().await {
            match news {
                Ok(news) => {
                    if let Some(progress) = progress(news) {
                        (self.report)(progress);
                    }
                }
                Err(error) => return Err(error::of_pull(&error, &call.image, shown)),
            }
        }
        match find(self.engine.docker().inspect_image(&reference.full())).await? {
            Some(image) => Ok(image),
            None => Err(Failure::new(
                FailureCode::NOT_FOUND,
                format!("{} was pulled, and has been removed since", call.image),
            )),
        }
    }

    /// Removes an image, or one of its names.
    pub async fn image_remove(&self, call: Remove) -> Result<Change, Failure> {
        let Some(name) = names::image(&call.image) else {
            return Ok(Change::NotFound);
        };
        let options = RemoveImageOptionsBuilder::new().force(call.force).build();
        match self
            .engine
            .patient()
            .remove_image(name, Some(options), None)
            .await
        {
            Ok(_) => Ok(Change::Changed),
            Err(error) if is_missing(&error) => Ok(Change::NotFound),
            Err(error) => Err(failure(&error)),
        }
    }

    /// Loads the images of an archive that comes on a channel.
    pub(crate) async fn images_load(&self, archive: Receiver) -> Result<Loaded, Failure> {
        let path = "/images/load?quiet=1";
        let request = request::request(self.engine, Method::POST, path, ())?;
        request::upload(self.engine, request, archive, loaded).await?
    }

    /// Whether these images are there; the failure names the first that is not.
    pub(crate) async fn images_are_there(&self, images: &[String]) -> Result<(), Failure> {
        if images.is_empty() {
            let none = "images: at least one is needed";
            return Err(Failure::new(FailureCode::INVALID, none));
        }
        for image in images {
            let call = Inspect {
                image: image.clone(),
            };
            if self.image_inspect(call).await?.is_none() {
                let missing = format!("there is no image {image}");
                return Err(Failure::new(FailureCode::NOT_FOUND, missing));
            }
        }
        Ok(())
    }
}

/// Reads what the daemon says while it loads, a line of JSON each.
async fn loaded(response: Response<Incoming>) -> Result<Loaded, Failure> {
    if response.status() != StatusCode::OK {
        let refused = Error::DockerResponseServerError {
            status_code: response.status().as_u16(),
            message: refusal(response).await,
        };
        return Err(failure(&refused));
    }
    let mut body = response.into_body();
    let (mut loaded, mut line) = (Loaded::default(), Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|err| failure(&Error::HyperResponseError { err }))?;
        for byte in frame.into_data().unwrap_or_default() {
            match byte {
                b'\n' => take(&std::mem::take(&mut line), &mut loaded)?,
                byte if line.len() < MAX_LINE => line.push(byte),
                _ => {}
            }
        }
    }
    take(&line, &mut loaded)?;
    if loaded.images.is_empty() {
        // The daemon passes over what holds none without a word.
        let none = "the archive holds no image";
        return Err(Failure::new(FailureCode::INVALID, none));
    }
    Ok(loaded)
}

/// Takes one line of it: an image that was loaded, an error, or anything else.
fn take(line: &[u8], loaded: &mut Loaded) -> Result<(), Failure> {
    let Ok(news) = serde_json::from_slice::<BuildInfo>(line) else {
        return Ok(());
    };
    if let Some(error) = news.error_detail.and_then(|detail| detail.message) {
        return Err(failure(&Error::DockerStreamError { error }));
    }
    let said = news.stream.unwrap_or_default();
    let names = said.lines().filter_map(|line| {
        let words = ["Loaded image ID: ", "Loaded image: "];
        words
            .iter()
            .find_map(|words| line.trim().strip_prefix(words))
    });
    for name in names {
        let named: usize = loaded.images.iter().map(String::len).sum();
        if loaded.images.len() < MAX_LOADED && named + name.len() <= MAX_LOADED_NAMES {
            loaded.images.push(name.into());
        }
    }
    Ok(())
}

/// What an error while an archive of images is read or written means.
pub(crate) fn archive_failure(error: &Error) -> Failure {
    failure(error)
}

/// Whether an image is not there, or could not be under that name.
fn is_missing(error: &Error) -> bool {
    error::status(error) == Some(404) || error::words(error).contains("invalid reference format")
}

/// Names that stand for none.
fn real(names: Vec<String>) -> Vec<String> {
    let real = names.into_iter().filter(|name| !name.starts_with("<none>"));
    real.collect()
}

fn listed(found: ImageSummary) -> Image {
    Image {
        id: found.id,
        tags: real(found.repo_tags),
        // Of an image without a name the repository is known all the same.
        digests: real(found.repo_digests),
        created_s: found.created,
        size: u64::try_from(found.size).unwrap_or(0),
    }
}

fn inspected(found: ImageInspect) -> Image {
    Image {
        id: found.id.unwrap_or_default(),
        tags: real(found.repo_tags.unwrap_or_default()),
        digests: real(found.repo_digests.unwrap_or_default()),
        created_s: found.created.and_then(|at| time::seconds(&at)).unwrap_or(0),
        size: found
            .size
            .and_then(|size| u64::try_from(size).ok())
            .unwrap_or(0),
    }
}

fn progress(news: CreateImageInfo) -> Option<Progress> {
    let detail = news.progress_detail.unwrap_or_default();
    let bytes = |bytes: Option<i64>| bytes.and_then(|bytes| u64::try_from(bytes).ok());
    Some(Progress {
        id: news.id.unwrap_or_default(),
        status: news.status?,
        current: bytes(detail.current),
        total: bytes(detail.total).filter(|total| *total != 0),
    })
}

/// What to show the registry, in the daemon's words.
pub(super) fn credentials(shown: &Credentials, registry: &str) -> DockerCredentials {
    let some = |text: &String| (!text.is_empty()).then(|| text.clone());
    DockerCredentials {
        username: some(&shown.username),
        password: some(&shown.password),
        identitytoken: some(&shown.identity_token),
        serveraddress: some(&shown.server).or_else(|| Some(registry.into())),
        ..DockerCredentials::default()
    }
}

#[cfg(test)]
mod unit_tests {
    #![allow(clippy::unwrap_used)]

    use bollard::models::ProgressDetail;

    use super::*;

    #[test]
    fn news_of_a_pull_are_progress() {
        let news = |status: Option<&str>, current, total| {
            progress(CreateImageInfo {
                id: Some("0123".into()),
                status: status.map(Into::into),
                progress_detail: Some(ProgressDetail { current, total }),
                ..CreateImageInfo::default()
            })
        };
        let downloading = news(Some("Downloading"), Some(5), Some(10)).unwrap();
        assert_eq!(
            (downloading.current, downloading.total),
            (Some(5), Some(10))
        );
        let unknown = news(Some("Downloading"), Some(5), Some(0)).unwrap();
        assert_eq!(unknown.total, None);
        let odd = news(Some("x"), Some(-1), Some(-1)).unwrap();
        assert_eq!((odd.current, odd.total), (None, None));
        assert_eq!(news(None, None, None), None);
    }

    #[test]
    fn credentials_are_for_the_image_s_registry_unless_they_say_so() {
        let mut shown = Credentials {
            username: "u".into(),
            password: "p".into(),
            ..Credentials::default()
        };
        let sent = credentials(&shown, "r.org");
        assert_eq!(sent.serveraddress.as_deref(), Some("r.org"));
        assert_eq!(sent.identitytoken, None);
        shown.server = "other.org".into();
        let sent = credentials(&shown, "r.org");
        assert_eq!(sent.serveraddress.as_deref(), Some("other.org"));
    }

    #[test]
    fn what_was_loaded_is_told_up_to_a_bound() {
        let mut loaded = Loaded::default();
        let lines = [
            r#"{"stream":"Loaded image: a:1\n"}"#,
            r#"{"status":"Loading layer","progressDetail":{"current":1,"total":2},"id":"0123"}"#,
            "no json",
            r#"{"stream":"Loaded image ID: sha256:0123\n"}"#,
        ];
        for line in lines {
            take(line.as_bytes(), &mut loaded).unwrap();
        }
        assert_eq!(loaded.images, ["a:1", "sha256:0123"]);
        for _ in 0..200 {
            take(lines[0].as_bytes(), &mut loaded).unwrap();
        }
        assert_eq!(loaded.images.len(), MAX_LOADED);
        let error = br#"{"errorDetail":{"message":"no space"},"error":"no space"}"#;
        let failed = take(error, &mut loaded).unwrap_err();
        assert_eq!(
            (failed.code, &*failed.message),
            (FailureCode::INTERNAL, "no space")
        );
    }

    #[test]
    fn an_image_without_a_name_has_none() {
        let names = real(vec!["<none>:<none>".into(), "a:1".into()]);
        assert_eq!(names, ["a:1"]);
    }
}
