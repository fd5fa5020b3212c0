//! `hub build`: an image built on a node, from what is here.
//!
//! ```text
//! directory --thread: walk, pack--> 2 pieces --> WebSocket, as fast as the node takes it
//! stderr <-- steps, upload <--------------------- progress
//! file, stdout or docker load <------------------ image, if it was wanted
//! ```
//!
//! What is shown goes to stderr, the image's id to stdout. The end of this process, however it
//! comes, ends the connection, and that stops the build on the node.

mod context;
mod image;
mod meter;
mod steps;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, ValueEnum};
use hub_protocol::kind::build::Build;
use hub_protocol::kind::call::image::Credentials;
use hub_server::api::channel::Finish;
use hub_server::api::problem::{Kind, Problem};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::exec::pipes::Printer;
use super::exec::{BROKEN_PIPE, HUB_FAILED};
use super::show::clean_json;
use super::units::{decimal, parse_pair};
use super::{Context, USAGE, fail, registry};
use crate::archive::shown;
use crate::archive::walk::Fate;
use crate::client::ClientError;
use crate::client::build::{self, Event};
use context::{Bytestream, ContextError, Source};
use image::{ImageError, Sink};
use meter::Meter;
use steps::{Records, Steps};

/// The exit code of a build that went wrong or was refused, and of one that has nothing to be made of.
const BUILD_FAILED: i32 = 1;

/// How often the upload is shown on a terminal.
const TICK: Duration = Duration::from_millis(100);

/// The arguments of `hub build`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hub build shop-4 . -t shop/web:3                on the node, where the image stays
  hub build shop-4 . -o web.tar                   and here, as `docker save` writes it
  hub build shop-4 . -t shop/web:3 --load here    and in the Docker daemon here
  hub build shop-4 - < Dockerfile                 a Dockerfile without a context
  git archive HEAD | hub build shop-4 -           an archive as the context
  hub build shop-4 . --dry-run                    what would be sent, and why

.dockerignore means what it means to docker; <Dockerfile>.dockerignore goes before it. Base images
are pulled with what docker login stored here for the registries that the Dockerfile and the build
arguments name; with an archive as the context, for all.

Exit codes: 0 where the image was built, and is where it was wanted; 1 where the build failed or was
refused, or its context cannot be read; 2 for arguments that make no sense; 125 where Hub itself
failed; 128+N where signal N ended it. Ctrl-C stops the build on the node, too.")]
pub(super) struct BuildArgs {
    /// A name for the image, with or without a tag; may be repeated
    #[arg(short = 't', long = "tag", value_name = "NAME")]
    tags: Vec<String>,
    /// The Dockerfile, or - for standard input [default: PATH/Dockerfile; in an archive, its path there]
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: Option<String>,
    /// The stage to build [default: the last]
    #[arg(long, value_name = "STAGE")]
    target: Option<String>,
    /// The value of an ARG; without =VALUE, that of the variable here; may be repeated
    #[arg(long = "build-arg", value_name = "NAME[=VALUE]")]
    args: Vec<String>,
    /// A label for the image; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Build every step anew
    #[arg(long)]
    no_cache: bool,
    /// Pull base images even if they are there
    #[arg(long)]
    pull: bool,
    /// What to build for [default: the node's own]
    #[arg(long, value_name = "OS/ARCH")]
    platform: Option<String>,
    /// Write the image to a file, or with - to standard output, too
    #[arg(short = 'o', long, value_name = "FILE", conflicts_with = "load")]
    output: Option<PathBuf>,
    /// Load the image into the Docker daemon here, too
    #[arg(long, value_name = "WHERE")]
    load: Option<Where>,
    /// Show what would be sent and why, and send nothing
    #[arg(long, conflicts_with_all = ["output", "load"])]
    dry_run: bool,
    /// The node's name or id
    node: String,
    /// A directory, an archive, or - for standard input: an archive, or a Dockerfile alone
    path: String,
}

/// Where an image is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Where {
    /// Into the Docker daemon of this machine
    Here,
}

/// A label; as docker has it, one without a value has an empty one.
fn label(text: &str) -> Result<(String, String), String> {
    if text.contains('=') {
        return parse_pair(text);
    }
    parse_pair(&format!("{text}="))
}

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
enum BuildError {
    #[error(transparent)]
    Context(#[from] ContextError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{0}")]
    Ended(Box<Problem>),
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error("cannot print: {0}")]
    Print(#[from] io::Error),
    #[error("--json and the image of -o - cannot share standard output")]
    StdoutTwice,
    #[error("--build-arg takes NAME=VALUE, or the NAME of a variable that is set here")]
    NoArgument,
}

impl BuildError {
    fn code(&self) -> i32 {
        match self {
            Self::Context(_) => BUILD_FAILED,
            Self::Ended(problem) => code_of(problem),
            Self::Client(error) => error.problem().map_or(HUB_FAILED, code_of),
            Self::StdoutTwice | Self::NoArgument => USAGE,
            Self::Print(error) if error.kind() == io::ErrorKind::BrokenPipe => BROKEN_PIPE,
            Self::Image(_) | Self::Print(_) => HUB_FAILED,
        }
    }
}

/// The exit code for what the hub says of a build: as with docker, one that is refused has failed,
/// whoever looked first: hub, agent, its policy or the daemon. What never came to a judgement is
/// told apart.
fn code_of(problem: &Problem) -> i32 {
    match problem.kind() {
        Some(
            Kind::BuildFailed
            | Kind::InvalidRequest
            | Kind::TooLarge
            | Kind::Forbidden
            | Kind::Unsupported
            | Kind::NotFound
            | Kind::Conflict
            | Kind::RegistryDenied,
        ) => BUILD_FAILED,
        _ => HUB_FAILED,
    }
}

impl BuildArgs {
    fn build(
        &self,
        dockerfile: Option<String>,
        here: impl Fn(&str) -> Option<String>,
    ) -> Result<Build, BuildError> {
        let argument = |given: &String| match given.split_once('=') {
            Some(("", _)) => Err(BuildError::NoArgument),
            Some((name, value)) => Ok((name.to_owned(), Some(value.to_owned()))),
            None if given.is_empty() => Err(BuildError::NoArgument),
            // As with docker, one that is not set here is the daemon's.
            None => Ok((given.clone(), here(given))),
        };
        Ok(Build {
            dockerfile,
            tags: self.tags.clone(),
            target: self.target.clone(),
            build_args: self.args.iter().map(argument).collect::<Result<_, _>>()?,
            labels: self.labels.iter().cloned().collect(),
            no_cache: self.no_cache,
            pull: self.pull,
            platform: self.platform.clone(),
            output: self.output.is_some() || self.load.is_some(),
            credentials: BTreeMap::new(),
        })
    }
}

/// Builds, and gives the exit code.
pub(super) async fn run(context: &Context, arguments: BuildArgs) -> i32 {
    let signals = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    );
    let (mut interrupt, mut terminate) = match signals {
        (Ok(interrupt), Ok(terminate)) => (interrupt, terminate),
        (Err(error), _) | (_, Err(error)) => {
            return fail(&format!("cannot listen for signals: {error}"), HUB_FAILED);
        }
    };
    let built = tokio::select! {
        // The end of this process resets the connection, and that stops the build.
        _ = interrupt.recv() => return 128 + SignalKind::interrupt().as_raw_value(),
        _ = terminate.recv() => return 128 + SignalKind::terminate().as_raw_value(),
        built = build(context, &arguments) => built,
    };
    match built {
        Ok(()) => 0,
        Err(error) if error.code() == BROKEN_PIPE => BROKEN_PIPE,
        Err(error) => fail(&error.to_string(), error.code()),
    }
}

async fn build(context: &Context, arguments: &BuildArgs) -> Result<(), BuildError> {
    let to_stdout = arguments
        .output
        .as_ref()
        .is_some_and(|path| path.as_os_str() == "-");
    if to_stdout && context.json() {
        return Err(BuildError::StdoutTwice);
    }
    let here = |name: &str| std::env::var(name).ok();
    arguments.build(None, here)?;
    let found = context::Context::find(&arguments.path, arguments.file.as_deref()).await?;
    if arguments.dry_run {
        return dry_run(context.json(), found);
    }
    let sink = match &arguments.output {
        Some(path) => Sink::to(path)?,
        None if arguments.load.is_some() => Sink::load().await?,
        None => Sink::Nowhere,
    };
    let dockerfile = found.dockerfile_text();
    let mut options = arguments.build(found.dockerfile, here)?;
    options.credentials = credentials(dockerfile.as_deref(), &options);
    let client = context.client()?;
    let building = client.build(&arguments.node, &options).await?;
    let mut screen = Screen::new(context.json());
    let built = carry(building, found.source, &arguments.node, sink, &mut screen).await;
    let problem = match &built {
        Ok(image) => {
            screen
                .result(&json!({"type": "built", "image": image}))
                .await?;
            // Where the image is on standard output, nothing else is.
            if !context.json() && !to_stdout {
                let line = Bytes::from(format!("{image}\n"));
                screen.stdout.print(line).await?;
            }
            None
        }
        Err(BuildError::Ended(problem)) => Some(problem),
        Err(_) => None,
    };
    if let Some(problem) = problem {
        screen
            .result(&json!({"type": "failed", "problem": problem}))
            .await?;
    }
    screen.finish().await?;
    built.map(drop)
}

/// What to show registries that this build names.
fn credentials(dockerfile: Option<&str>, options: &Build) -> BTreeMap<String, Credentials> {
    let values = options.build_args.values().flatten().map(String::as_str);
    let texts: Option<Vec<&str>> = dockerfile.map(|text| values.chain([text]).collect());
    registry::for_build(texts.as_deref())
}

/// Sends the context, shows the progress and takes the image, until the build has ended; gives the
/// image's id.
async fn carry(
    building: build::Building,
    source: Source,
    node: &str,
    mut sink: Sink,
    screen: &mut Screen,
) -> Result<String, BuildError> {
    let (mut context, mut output) = building.split();
    let (notices, mut noticed) = mpsc::channel(16);
    let (stops, stopped) = oneshot::channel::<()>();
    let sent = Cell::new(0);
    let upload = async {
        let mut source = Bytestream::of(source, notices)?;
        let send = async {
            while let Some(bytes) = source.next().await? {
                // What goes wrong with the connection the output says better.
                if context.send(&bytes).await.is_err() {
                    return std::future::pending().await;
                }
                sent.set(sent.get() + bytes.len() as u64);
            }
            Ok::<_, BuildError>(())
        };
        tokio::select! {
            whole = send => whole?,
            // The daemon has had enough.
            Ok(()) = stopped => {}
        }
        let _ = context.finish().await;
        Ok::<_, BuildError>(())
    };
    let mut upload = std::pin::pin!(upload);
    let (mut meter, mut stops) = (Meter::default(), Some(stops));
    let begun = Instant::now();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut uploading, mut came) = (true, false);
    loop {
        tokio::select! {
            event = output.next() => match event {
                Event::Progress(bytes) => screen.progress(&bytes).await?,
                Event::Image(bytes) => {
                    came = true;
                    sink.write(bytes).await?;
                }
                Event::ContextClosed => drop(stops.take().map(|stops| stops.send(()))),
                Event::Ended(Finish::Complete { image: Some(id) }) if came || !sink.wants() => {
                    sink.finish().await?;
                    return Ok(id);
                }
                Event::Ended(Finish::Complete { .. }) => {
                    let text = "the build has ended, and its image did not come";
                    let problem = Problem::new(Kind::OutcomeUnknown, text);
                    return Err(BuildError::Ended(Box::new(problem)));
                }
                Event::Ended(Finish::Failed(problem)) => return Err(BuildError::Ended(problem)),
            },
            // An archive that broke off must not look whole: the end of the connection stops the
            // build.
            uploaded = &mut upload, if uploading => {
                uploaded?;
                uploading = false;
                meter.reached(sent.get());
                screen.say(&meter.summary(node, begun.elapsed())).await?;
            }
            Some(notice) = noticed.recv() => screen.say(&format!("hub: {notice}")).await?,
            _ = ticks.tick(), if uploading && screen.terminal => {
                meter.reached(sent.get());
                let line = meter.line(node, begun.elapsed());
                screen.bar(line).await?;
            }
        }
    }
}

/// What is shown: for people on stderr, where the last line on a terminal may be the upload's; for
/// programs one JSON object a line on stdout.
struct Screen {
    stdout: Printer,
    stderr: Printer,
    json: bool,
    terminal: bool,
    records: Records,
    steps: Steps,
    /// Whether the last line is the upload's, which the next one replaces.
    bar: bool,
}

impl Screen {
    fn new(json: bool) -> Self {
        Self {
            stdout: Printer::new(&io::stdout()),
            stderr: Printer::new(&io::stderr()),
            json,
            terminal: io::stderr().is_terminal() && !json,
            records: Records::default(),
            steps: Steps::default(),
            bar: false,
        }
    }

    async fn progress(&mut self, bytes: &[u8]) -> io::Result<()> {
        for line in self.records.feed(bytes) {
            if self.json {
                if !line.is_empty() {
                    let line = clean_json(&String::from_utf8_lossy(&line));
                    self.stdout.print(format!("{line}\n").into()).await?;
                }
                continue;
            }
            // A later release may say what we do not know.
            if let Ok(record) = serde_json::from_slice(&line) {
                let text = self.steps.add(record);
                self.write(&text).await?;
            }
        }
        Ok(())
    }

    /// A line for people.
    async fn say(&mut self, line: &str) -> io::Result<()> {
        self.write(&format!("{line}\n")).await
    }

    async fn bar(&mut self, line: String) -> io::Result<()> {
        self.bar = true;
        self.stderr.print(format!("\r\x1b[K{line}").into()).await
    }

    async fn write(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let clear = if std::mem::take(&mut self.bar) {
            "\r\x1b[K"
        } else {
            ""
        };
        self.stderr.print(format!("{clear}{text}").into()).await
    }

    /// A line for programs.
    async fn result(&mut self, value: &serde_json::Value) -> io::Result<()> {
        if self.json {
            self.stdout.print(format!("{value}\n").into()).await?;
        }
        Ok(())
    }

    async fn finish(mut self) -> io::Result<()> {
        let rest = self.steps.finish();
        self.write(&rest).await?;
        // A bar that nothing replaced stays above what follows.
        if self.bar {
            self.stderr.print(Bytes::from_static(b"\n")).await?;
        }
        self.stderr.finish().await?;
        self.stdout.finish().await
    }
}

/// Shows what would be sent and why.
fn dry_run(json: bool, found: context::Context) -> Result<(), BuildError> {
    let Source::Directory(tree) = found.source else {
        let what = "an archive and a lone Dockerfile are sent as they are";
        let json_line = json!({ "sent": what }).to_string();
        return Ok(write_line(if json { &json_line } else { what })?);
    };
    let (mut sent, mut bytes, mut ignored) = (0_u64, 0_u64, 0_u64);
    let mut printed = Ok(());
    let rules = tree.rules.list();
    tree.walk(&mut |found| {
        let mut path = shown(found.path);
        let size = if found.metadata.is_file() {
            found.metadata.len()
        } else {
            0
        };
        if found.metadata.is_dir() {
            path.push('/');
        }
        let (verdict, rule) = match found.fate {
            Fate::Sent(rule) => {
                sent += 1;
                bytes += size;
                ("send", rule)
            }
            Fate::Ignored(rule) => {
                ignored += 1;
                ("keep", Some(rule))
            }
            Fate::Unsendable(kind) => (kind, None),
        };
        let rule = rule.and_then(|rule| rules.get(rule));
        let line = if json {
            json!({
                "path": path,
                "sent": matches!(found.fate, Fate::Sent(_)),
                "size": size,
                "line": rule.and_then(|rule| rule.line),
                "rule": rule.map(|rule| &rule.text),
            })
            .to_string()
        } else {
            let why = match rule {
                None => String::new(),
                Some(rule) => match rule.line {
                    Some(line) => format!("  ({}, line {line})", shown(rule.text.as_bytes())),
                    None => "  (always sent)".to_owned(),
                },
            };
            match found.fate {
                Fate::Unsendable(kind) => format!("skip  {path}  (it is {kind})"),
                _ if verdict == "send" && found.metadata.is_file() => {
                    format!("send  {path}  {}{why}", decimal(size))
                }
                _ => format!("{verdict}  {path}{why}"),
            }
        };
        if printed.is_ok() {
            printed = write_line(&line);
        }
        Ok(())
    })
    .map_err(ContextError::from)?;
    printed?;
    if !json {
        write_line(&format!(
            "{sent} to send, {} of files; {ignored} kept here by rules",
            decimal(bytes)
        ))?;
    }
    Ok(())
}

fn write_line(line: &str) -> io::Result<()> {
    use std::io::Write as _;
    writeln!(io::stdout(), "{line}")
}

#[cfg(test)]
mod tests;
