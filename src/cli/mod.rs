//! The command line of `hub`.
//!
//! ```text
//! arguments --clap--> Cli --> one call of the client --> table or JSON on stdout
//!                       |--> logs, events, stats: records as they come
//!                       |--> forward: connections, each a tunnel
//!                       `--> exec, docker: streams both ways --> the remote exit code
//! ```
//!
//! One file for each group of commands. What goes wrong is one message on stderr: what, where, what
//! to do. Exit codes: 0, 1 where the hub or the network failed, 2 for arguments that make no sense;
//! `hub exec`, `run` and `docker` have codes of what they run, and 125 for failures of Hub.

mod build;
mod containers;
mod cp;
mod docker;
mod events;
mod exec;
mod exposures;
mod forward;
mod images;
mod logs;
mod near;
mod networks;
mod registry;
mod show;
mod stats;
mod table;
mod target;
mod top;
mod units;
mod volumes;
mod whole;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use hub_server::api::types::NewToken;
use hub_server::api::{ApiToken, TOKEN_FILE};
use serde::Serialize;

use crate::client::records::Next;
use crate::client::{Client, ClientError, Cut, DEFAULT_URL};
use crate::demo::DemoArgs;
use crate::settings::default_data_dir;

/// The exit code for a failure of the hub, the network or the client.
const FAILED: i32 = 1;
/// The exit code for arguments that make no sense.
const USAGE: i32 = 2;

/// Run work on machines you cannot dial.
#[derive(Debug, Parser)]
#[command(
    name = "hub",
    version,
    after_help = "\
Examples:
  hub demo                                   see all of it on this machine
  hub token create                           let a new machine join
  hub node ls                                see which machines there are
  hub exec shop-4/web -- nginx -t            run a command in a container on one
  hub ps shop-4                              see which containers run on it
  hub logs -f shop-4/web                     follow what one prints
  hub expose shop-4 8080 --name shop         let browsers reach a port of one"
)]
struct Cli {
    #[command(flatten)]
    api: ApiArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
struct ApiArgs {
    /// The hub's API
    #[arg(long = "api", global = true, env = "HUB_API", value_name = "URL", default_value = DEFAULT_URL)]
    url: String,
    /// The file with the API token [default: api-token in the data directory of hub-server]
    #[arg(long, global = true, env = "HUB_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// For an https API: the certificates to trust, in PEM
    #[arg(
        long = "api-ca",
        global = true,
        env = "HUB_API_CA",
        value_name = "FILE"
    )]
    ca: Option<PathBuf>,
    /// Print JSON for programs
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what Hub does, with a hub and an agent on this machine
    Demo(DemoArgs),
    /// Show how the hub is
    Status,
    /// Nodes: the machines that work runs on
    #[command(subcommand)]
    Node(NodeCommand),
    /// Join tokens: how a machine becomes a node
    #[command(subcommand)]
    Token(TokenCommand),
    /// Run a command on a node
    Exec(Box<exec::ExecArgs>),
    #[command(flatten)]
    Containers(containers::ContainersCommand),
    /// Print what a container printed
    Logs(logs::LogsArgs),
    /// Show what a container uses
    Stats(stats::StatsArgs),
    /// Show what browsers have under way, and what it waits for
    Top(top::TopArgs),
    /// Watch what happens on nodes
    Events(events::EventsArgs),
    #[command(flatten)]
    Images(images::ImagesCommand),
    /// Build an image on a node
    Build(build::BuildArgs),
    /// Copy files to or from a container
    Cp(cp::CpArgs),
    /// Volumes of a node
    #[command(subcommand)]
    Volume(volumes::VolumeCommand),
    /// Networks of a node
    #[command(subcommand)]
    Network(networks::NetworkCommand),
    /// Run docker against a node
    Docker(docker::DockerArgs),
    /// Keep a socket here that is a node's Docker socket
    DockerSocket(docker::DockerSocketArgs),
    /// Reach a TCP port of a node from this machine
    Forward(forward::ForwardArgs),
    /// Let browsers reach what stands behind a node
    Expose(Box<exposures::ExposeArgs>),
    /// List exposures; show, change or remove one; replace or revoke its token
    Exposures(exposures::ExposuresArgs),
    /// Print a completion script for a shell
    #[command(after_help = "\
Examples:
  mkdir -p ~/.local/share/bash-completion/completions
  hub completion bash > ~/.local/share/bash-completion/completions/hub
  hub completion fish > ~/.config/fish/completions/hub.fish")]
    Completion {
        /// Which shell
        shell: Shell,
    },
}

#[derive(Debug, Subcommand)]
enum NodeCommand {
    /// List the nodes
    Ls,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Make a join token; it is shown once, with the command for the new machine
    #[command(after_help = "\
Examples:
  hub token create                           for one machine, within 15 minutes
  hub token create --uses 20 --ttl 2h        for a rack of them")]
    Create {
        /// How many machines it admits
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        uses: u32,
        /// How long it holds: 90s, 15m, 1h 30m, 7d; 30 days at most
        #[arg(long, default_value = "15m", value_parser = humantime::parse_duration)]
        ttl: Duration,
    },
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
    #[error("{0:#}")]
    Demo(anyhow::Error),
    /// What was named does not exist.
    #[error("{0}")]
    NotThere(String),
    /// Arguments that clap takes and nobody can carry out.
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Time(#[from] units::NoTime),
    #[error("{}: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Socket(#[from] docker::SocketError),
    #[error(transparent)]
    Cp(#[from] cp::CpError),
    #[error("cannot listen on {address}: {error}")]
    Listen {
        address: SocketAddr,
        error: io::Error,
    },
    #[error("node {node}: {cut}")]
    Cut { node: String, cut: Cut },
    #[error("cannot run docker: {0}; is it installed, and in PATH?")]
    Docker(io::Error),
}

/// Runs `hub` with these arguments, the program's name first, and gives its exit code.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> i32 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // There is nobody left to tell if even that fails.
            let _ = error.print();
            return match error.use_stderr() {
                false => 0,
                true if is_exec(&arguments) => exec::HUB_FAILED,
                true => USAGE,
            };
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start: {error}"), FAILED),
    };
    let code = runtime.block_on(dispatch(cli));
    // A read of standard input may be pending on a thread; nobody waits for it.
    runtime.shutdown_background();
    code
}

/// Whether arguments that can't be parsed are those of a command whose exit codes are its own.
fn is_exec(arguments: &[OsString]) -> bool {
    arguments
        .iter()
        .take_while(|argument| *argument != "--")
        .any(|argument| argument == "exec" || argument == "run" || argument == "docker")
}

async fn dispatch(cli: Cli) -> i32 {
    let context = Context { api: cli.api };
    finish(command(&context, cli.command).await, FAILED)
}

/// The exit code of a command; says what went wrong.
fn finish(result: Result<i32, CliError>, failed: i32) -> i32 {
    match result {
        Ok(code) => code,
        // Whoever read our output has had enough.
        Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            exec::BROKEN_PIPE
        }
        Err(error) => fail(&error.to_string(), failed),
    }
}

/// Says on stderr what went wrong.
fn fail(what: &str, code: i32) -> i32 {
    // A node may have its words in it.
    let _ = writeln!(io::stderr(), "hub: {}", show::clean_lines(what));
    code
}

/// Says something on stderr while a command goes on. On a terminal in raw mode it stands on lines
/// of its own, which end as that wants it.
fn say(what: &str, raw: bool) {
    let (begin, end) = if raw { ("\r\n", "\r\n") } else { ("", "\n") };
    let what = show::clean_lines(what);
    let text = format!("{begin}hub: {what}\n").replace('\n', end);
    // Nobody is left to hear that nobody hears.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// A record that came; the loss and the return of the hub are said.
fn said<T>(next: Next<T>) -> Option<(Bytes, Option<T>)> {
    match next {
        Next::Record { json, record } => return Some((json, record)),
        Next::Lost(why) => say(&format!("{why}; trying again until the hub answers"), false),
        Next::Back => say("the hub is back", false),
    }
    None
}

/// What every command needs.
struct Context {
    api: ApiArgs,
}

impl Context {
    fn client(&self) -> Result<Client, ClientError> {
        let default = || default_data_dir("hub").join(TOKEN_FILE);
        let token = ApiToken::load(&self.api.token_file.clone().unwrap_or_else(default))?;
        Client::new(&self.api.url, &token, self.api.ca.as_deref())
    }

    /// Whether JSON is wanted.
    fn json(&self) -> bool {
        self.api.json
    }

    /// Prints an answer for people or for programs.
    fn print<T: Serialize>(
        &self,
        answer: &T,
        for_people: impl FnOnce(&T) -> String,
    ) -> Result<(), CliError> {
        if self.json() {
            return self.print_json(answer);
        }
        write_out(show::clean_lines(&for_people(answer)))
    }

    /// Prints an answer for programs.
    #[expect(clippy::unused_self, reason = "beside `print`")]
    fn print_json<T: Serialize>(&self, answer: &T) -> Result<(), CliError> {
        let json = serde_json::to_string_pretty(answer).map_err(io::Error::from)?;
        write_out(show::clean_json(&json))
    }
}

/// Prints a record for programs.
fn json_line(stdout: &mut impl io::Write, json: &[u8]) -> io::Result<()> {
    writeln!(
        stdout,
        "{}",
        show::clean_json(&String::from_utf8_lossy(json))
    )
}

/// Each on a line.
fn lines(items: impl Iterator<Item = impl AsRef<str>>) -> String {
    items.fold(String::new(), |text, item| text + item.as_ref() + "\n")
}

fn write_out(mut text: String) -> Result<(), CliError> {
    if !text.ends_with('\n') && !text.is_empty() {
        text.push('\n');
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

async fn command(context: &Context, command: Command) -> Result<i32, CliError> {
    match command {
        Command::Demo(arguments) => crate::demo::run(arguments).await.map_err(CliError::Demo)?,
        Command::Status => context.print(&context.client()?.status().await?, show::status)?,
        Command::Node(NodeCommand::Ls) => {
            context.print(&context.client()?.nodes().await?, show::nodes)?;
        }
        Command::Token(TokenCommand::Create { uses, ttl }) => {
            // A part of a second is more than none.
            let ttl_s = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
            let new = NewToken { uses, ttl_s };
            let token = context.client()?.create_token(&new).await?;
            context.print(&token, show::token)?;
        }
        Command::Exec(arguments) => return Ok(exec::run(context, *arguments).await),
        Command::Containers(command) => return containers::run(context, command).await,
        Command::Logs(arguments) => return logs::run(context, arguments).await,
        Command::Stats(arguments) => return stats::run(context, arguments).await,
        Command::Top(arguments) => return top::run(context, arguments).await,
        Command::Events(arguments) => return events::run(context, arguments).await,
        Command::Images(command) => return images::run(context, command).await,
        Command::Build(arguments) => return Ok(build::run(context, arguments).await),
        Command::Cp(arguments) => return cp::run(context, arguments).await,
        Command::Volume(command) => return volumes::run(context, command).await,
        Command::Network(command) => return networks::run(context, command).await,
        Command::Docker(arguments) => return Ok(docker::run(context, arguments).await),
        Command::DockerSocket(arguments) => return docker::listen(context, arguments).await,
        Command::Forward(arguments) => return forward::run(context, arguments).await,
        Command::Expose(arguments) => exposures::expose(context, *arguments).await?,
        Command::Exposures(arguments) => exposures::run(context, arguments).await?,
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "hub", &mut script);
            io::stdout().write_all(&script)?;
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn tokens_have_a_duration_and_uses() {
        let create = |line: &str| match parse(line).unwrap().command {
            Command::Token(TokenCommand::Create { uses, ttl }) => (uses, ttl.as_secs()),
            other => panic!("{other:?}"),
        };
        assert_eq!(create("hub token create"), (1, 900));
        assert_eq!(create("hub token create --uses 3 --ttl 1h30m"), (3, 5400));
        for wrong in ["--ttl 15", "--ttl x", "--ttl -1m", "--uses 0", "--uses -1"] {
            assert!(
                parse(&format!("hub token create {wrong}")).is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn ports_are_ports_and_global_options_go_anywhere() {
        for wrong in ["0", "65536", "http"] {
            assert!(parse(&format!("hub expose a {wrong}")).is_err(), "{wrong}");
        }
        let cli = parse("hub expose a 8080 --name web --json --api http://[::1]:1").unwrap();
        assert!(cli.api.json);
        assert_eq!(cli.api.url, "http://[::1]:1");
        let cli = parse("hub --json exposures rm 3").unwrap();
        assert!(
            matches!(&cli.command, Command::Exposures(arguments) if arguments.removes() == Some(3)),
            "{cli:?}"
        );
    }

    #[test]
    fn arguments_that_make_no_sense_have_the_exit_code_of_their_command() {
        let run = |line: &str| run(line.split(' ').map(OsString::from));
        assert_eq!(run("hub nonsense"), USAGE);
        assert_eq!(run("hub exec"), exec::HUB_FAILED);
        assert_eq!(run("hub --json exec -x node -- true"), exec::HUB_FAILED);
        assert_eq!(run("hub --help"), 0);
    }
}
