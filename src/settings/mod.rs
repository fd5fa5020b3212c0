//! Settings of the two daemons: flags, then `HUB_…` variables, then a TOML file, then defaults.
//!
//! Each daemon has one struct of optional values that clap fills from flags and variables and serde
//! from the file; unknown keys of the file are errors. What a value means is checked once, when the
//! struct is turned into the component's own configuration.

mod agent;
mod limits;
mod server;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tracing_subscriber::EnvFilter;

pub use agent::{AgentSettings, RuntimeKind, platform, runtime, system_parts};
pub use limits::Limits;
pub use server::ServerSettings;

/// Reads a TOML file; without one nothing is set.
fn read_file<T: DeserializeOwned + Default>(path: Option<&Path>) -> anyhow::Result<T> {
    let Some(path) = path else {
        return Ok(T::default());
    };
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the configuration {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("the configuration {} is wrong", path.display()))
}

/// A span of time as people write it: 90s, 30m, 12h. More than none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let span = humantime::parse_duration(text).map_err(|error| error.to_string())?;
        if span.is_zero() {
            return Err("it takes more than no time".into());
        }
        Ok(Self(span))
    }
}

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Makes sure of a directory that only its owner can look into.
///
/// # Errors
/// Those of the file system.
pub fn create_private(dir: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
}

/// Where a daemon keeps its data unless told otherwise: below `/var/lib` as root, else in the
/// user's data directory.
pub fn default_data_dir(name: &str) -> PathBuf {
    if rustix::process::getuid().is_root() {
        return Path::new("/var/lib").join(name);
    }
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/share"));
    let base = std::env::var_os("XDG_DATA_HOME")
        .filter(|dir| !dir.is_empty())
        .map(PathBuf::from);
    base.or_else(home)
        .unwrap_or_else(|| PathBuf::from("."))
        .join(name)
}

/// Starts logging to standard error, one line per event; `filter` as in `RUST_LOG`, `info` without.
///
/// # Errors
/// The filter makes no sense. Logging has started all the same, so that this can be said.
pub fn start_logging(filter: Option<&str>) -> anyhow::Result<()> {
    let given = filter.unwrap_or("info");
    let parsed = EnvFilter::try_new(given).with_context(|| format!("the log filter {given:?}"));
    let (filter, started) = match parsed {
        Ok(filter) => (filter, Ok(())),
        Err(error) => (EnvFilter::new("info"), Err(error)),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    started
}

/// Allows this process as many descriptors as it may have: each connection and each command takes
/// some, and the usual limit is from times with fewer of them.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // Commands inherit it: more would only make them slow that close all they might have.
    const ENOUGH: u64 = 65_536;
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(ENOUGH, |maximum| maximum.min(ENOUGH));
    if limit.current.is_some_and(|current| current >= most) {
        return;
    }
    let raised = Rlimit {
        current: Some(most),
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of descriptors stays as it is");
    }
}

/// The name that this machine has for itself.
pub fn hostname() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Waits for SIGTERM or SIGINT.
pub async fn told_to_stop() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut int = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    Ok(())
}

/// SHA-256 of the running program, in hex; empty where it can't be read.
pub fn program_digest() -> String {
    use std::fmt::Write as _;
    let Ok(program) = std::fs::read("/proc/self/exe") else {
        return String::new();
    };
    let digest = ring::digest::digest(&ring::digest::SHA256, &program);
    digest
        .as_ref()
        .iter()
        .fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}
