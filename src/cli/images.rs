//! Images of a node: list, pull, remove, and move as archives.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::Subcommand;
use futures_util::{Stream, stream};
use hub_protocol::kind::call::image::{Image, List, Pull, Remove};
use hub_protocol::kind::call::{Call, Change, Progress};

use super::exec::pipes::{self, Printer};
use super::registry::RegistryArgs;
use super::show::clean;
use super::table::table;
use super::units::{ago, decimal};
use super::whole::WholeFile;
use super::{CliError, Context, lines};
use crate::client::Client;

#[derive(Debug, Subcommand)]
pub(super) enum ImagesCommand {
    /// List the images of a node, newest first
    Images {
        /// The node's name or id
        node: String,
        /// Print ids only
        #[arg(short = 'q', long)]
        quiet: bool,
    },
    /// Pull an image to a node
    #[command(after_help = "\
Examples:
  hub pull shop-4 nginx:1.27
  pass registry | hub pull --username me --password-stdin shop-4 registry.example/app")]
    Pull {
        /// os/arch; the daemon's own without
        #[arg(long)]
        platform: Option<String>,
        #[command(flatten)]
        registry: RegistryArgs,
        /// The node's name or id
        node: String,
        /// The image's name; latest without a tag
        image: String,
    },
    /// Remove images of a node, or names of them
    Rmi {
        /// Even if containers that do not run or further names use it
        #[arg(short = 'f', long)]
        force: bool,
        /// The node's name or id
        node: String,
        /// Names or ids
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
    /// Write images of a node to a docker-save archive
    #[command(after_help = "\
Examples:
  hub save -o app.tar shop-4 app:1 app:2
  hub save shop-4 app | hub load shop-5")]
    Save {
        /// The file; standard output without
        #[arg(short = 'o', long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// The node's name or id
        node: String,
        /// Names or ids
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
    /// Take the images of a docker-save archive to a node
    Load {
        /// The file; standard input without
        #[arg(short = 'i', long, value_name = "FILE")]
        input: Option<PathBuf>,
        /// The node's name or id
        node: String,
    },
}

pub(super) async fn run(context: &Context, command: ImagesCommand) -> Result<i32, CliError> {
    match command {
        ImagesCommand::Images { node, quiet } => {
            let found = context.client()?.call(&node, &List {}).await?;
            let now = std::time::SystemTime::now();
            context.print(&found, |found| {
                if quiet {
                    lines(found.iter().map(|image| &image.id))
                } else {
                    images(found, now)
                }
            })?;
        }
        ImagesCommand::Pull {
            platform,
            registry,
            node,
            image,
        } => {
            let pull = Pull {
                registry: registry.credentials(&image)?,
                image,
                platform,
            };
            let pulled = with_progress(&context.client()?, &node, &pull).await?;
            context.print(&pulled, |pulled| pulled.id.clone())?;
        }
        ImagesCommand::Rmi {
            force,
            node,
            images,
        } => return remove(context, &node, images, force).await,
        ImagesCommand::Save {
            output,
            node,
            images,
        } => save(&context.client()?, output.as_deref(), &node, &images).await?,
        ImagesCommand::Load { input, node } => {
            let archive = archive(input.as_deref())?;
            let loaded = context.client()?.load(&node, archive).await?;
            context.print(&loaded, |loaded| {
                if loaded.images.is_empty() {
                    "There was no image in it.".to_owned()
                } else {
                    lines(loaded.images.iter().map(|image| clean(image)))
                }
            })?;
        }
    }
    Ok(0)
}

async fn remove(
    context: &Context,
    node: &str,
    images: Vec<String>,
    force: bool,
) -> Result<i32, CliError> {
    let client = context.client()?;
    let (mut done, mut code) = (Vec::new(), 0);
    for image in images {
        let remove = Remove {
            image: image.clone(),
            force,
        };
        match client.call(node, &remove).await {
            Ok(Change::NotFound) => {
                let text = format!(
                    "there is no image {image} on node {node}; `hub images {node}` lists those \
                     there are"
                );
                code = super::fail(&text, super::FAILED);
            }
            Ok(_) if context.json() => done.push(image),
            Ok(_) => writeln!(io::stdout(), "{image}")?,
            Err(error) => code = super::fail(&format!("{image}: {error}"), super::FAILED),
        }
    }
    if context.json() {
        context.print_json(&done)?;
    }
    Ok(code)
}

async fn save(
    client: &Client,
    output: Option<&Path>,
    node: &str,
    images: &[String],
) -> Result<(), CliError> {
    let Some(path) = output else {
        if io::stdout().is_terminal() {
            return Err(CliError::Usage(
                "an archive is nothing for a terminal: give -o FILE, or a pipe".into(),
            ));
        }
        let mut download = client.save(node, images).await?;
        let mut printer = Printer::new(&io::stdout());
        while let Some(bytes) = download.next().await? {
            printer.print(bytes).await?;
        }
        return Ok(printer.finish().await?);
    };
    let mut download = client.save(node, images).await?;
    let failed = |error: io::Error| CliError::File {
        path: path.to_owned(),
        error,
    };
    let mut file = WholeFile::create(path).map_err(failed)?;
    while let Some(bytes) = download.next().await? {
        file.write(bytes).await.map_err(failed)?;
    }
    file.finish().await.map_err(failed)
}

/// The bytes of an archive, from a file or from standard input.
fn archive(
    input: Option<&Path>,
) -> Result<impl Stream<Item = io::Result<Bytes>> + Send + 'static, CliError> {
    let pieces = match input {
        None if io::stdin().is_terminal() => {
            return Err(CliError::Usage(
                "an archive is nothing to type: give -i FILE, or a pipe".into(),
            ));
        }
        None => pipes::stdin()?,
        Some(path) => {
            let failed = |error| CliError::File {
                path: path.to_owned(),
                error,
            };
            let file = File::open(path).map_err(failed)?;
            pipes::pieces(file)?
        }
    };
    Ok(stream::unfold(pieces, async |mut pieces| {
        Some((pieces.recv().await?, pieces))
    }))
}

/// Asks for what takes long, and shows how far it is: on a terminal one line that changes, else a
/// line whenever something else happens to a layer.
pub(super) async fn with_progress<C: Call>(
    client: &Client,
    node: &str,
    params: &C,
) -> Result<C::Reply, CliError> {
    let mut view = PullView::default();
    let terminal = io::stderr().is_terminal();
    let mut shown = false;
    let reply = client
        .call_with_progress(node, params, |progress| {
            let news = view.add(progress);
            let mut stderr = io::stderr().lock();
            // A screen that is gone is no reason to stop.
            if terminal {
                shown = true;
                let _ = write!(stderr, "\r\x1b[K{}", view.summary());
            } else if let Some(news) = news {
                let _ = writeln!(stderr, "{news}");
            }
        })
        .await;
    if shown {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    Ok(reply?)
}

/// What is known of a pull.
#[derive(Debug, Default)]
struct PullView {
    layers: BTreeMap<String, Progress>,
    last: String,
}

impl PullView {
    /// Takes a piece of news; gives it in words where something else happens than before.
    fn add(&mut self, progress: Progress) -> Option<String> {
        let before = self.layers.get(&progress.id);
        let news = before.is_none_or(|before| before.status != progress.status);
        let words = if progress.id.is_empty() {
            clean(&progress.status)
        } else {
            format!("{}: {}", clean(&progress.id), clean(&progress.status))
        };
        self.last.clone_from(&words);
        self.layers.insert(progress.id.clone(), progress);
        news.then_some(words)
    }

    /// All of it in one line.
    fn summary(&self) -> String {
        let running = self.layers.values().filter_map(|layer| {
            let total = layer.total.filter(|total| *total > 0)?;
            Some((layer.current.unwrap_or(0).min(total), total))
        });
        let (current, total) = running.fold((0u64, 0u64), |sum, layer| {
            (sum.0.saturating_add(layer.0), sum.1.saturating_add(layer.1))
        });
        let mut text: String = self.last.chars().take(60).collect();
        if total > 0 {
            // Writing to a string does not fail.
            let _ = write!(text, " ({} of {})", decimal(current), decimal(total));
        }
        text
    }
}

fn images(found: &[Image], now: std::time::SystemTime) -> String {
    let mut rows = Vec::new();
    for image in found {
        let id = image.id.strip_prefix("sha256:").unwrap_or(&image.id);
        let id: String = id.chars().take(12).collect();
        let nameless = [String::from("<none>:<none>")];
        let names = if image.tags.is_empty() {
            &nameless[..]
        } else {
            &image.tags
        };
        for name in names {
            let (repository, tag) = name.rsplit_once(':').unwrap_or((name, ""));
            rows.push([
                repository.to_owned(),
                tag.to_owned(),
                id.clone(),
                ago(image.created_s, now),
                decimal(image.size),
            ]);
        }
    }
    table(["REPOSITORY", "TAG", "IMAGE ID", "CREATED", "SIZE"], &rows)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn images_are_a_table_with_a_row_for_each_name() {
        let image = |id: &str, tags: &[&str]| Image {
            id: format!("sha256:{id}"),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            digests: vec![],
            created_s: 0,
            size: 12_345_678,
        };
        let found = [
            image("0123456789abcdef", &["host:5000/app:1", "app:latest"]),
            image("ff", &[]),
        ];
        let expected = "\
REPOSITORY     TAG     IMAGE ID      CREATED     SIZE
host:5000/app  1       0123456789ab  1 hour ago  12.3MB
app            latest  0123456789ab  1 hour ago  12.3MB
<none>         <none>  ff            1 hour ago  12.3MB
";
        assert_eq!(
            images(&found, UNIX_EPOCH + Duration::from_secs(3600)),
            expected
        );
    }

    #[test]
    fn progress_is_news_or_a_sum() {
        let progress = |id: &str, status: &str, current, total| Progress {
            id: id.into(),
            status: status.into(),
            current,
            total,
        };
        let mut view = PullView::default();
        let first = view.add(progress("a", "Downloading", Some(1_000), Some(4_000)));
        assert_eq!(first.as_deref(), Some("a: Downloading"));
        assert_eq!(
            view.add(progress("a", "Downloading", Some(2_000), Some(4_000))),
            None
        );
        let second = view.add(progress("b", "Downloading", Some(9_000), Some(6_000)));
        assert_eq!(second.as_deref(), Some("b: Downloading"));
        assert_eq!(view.summary(), "b: Downloading (8.00kB of 10.0kB)");
        let plain = view.add(progress("", "Status: \x1b[2J", None, None));
        assert_eq!(plain.as_deref(), Some("Status: ?[2J"));
    }
}
