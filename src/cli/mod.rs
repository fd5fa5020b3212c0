//! The command line of `hub`.
//!
//! ```text
//! arguments --clap--> Cli --> one call of the client --> table or JSON on stdout
//!                       `--> exec: streams both ways --> the remote exit code
//! ```
//!
//! What goes wrong is one message on stderr: what, where, what to do. Exit codes: 0, 1 where the
//! hub or the network failed, 2 for arguments that make no sense; those of `hub exec` are in
//! `exec`.

mod exec;
mod show;
mod table;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use hub_server::api::types::{NewExposure, NewToken};
use hub_server::api::{ApiToken, TOKEN_FILE};
use serde::Serialize;

use crate::client::{Client, ClientError, DEFAULT_URL};
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
    Exec(exec::ExecArgs),
    /// Let browsers reach a TCP port of a node
    #[command(after_help = "\
Examples:
  hub expose shop-4 8080                     by a URL that nobody can guess
  hub expose shop-4 8080 --name shop         by a name of the hub's domain, too")]
    Expose {
        /// The node's name or id
        node: String,
        /// The port on the node
        #[arg(value_parser = clap::value_parser!(u16).range(1..))]
        port: u16,
        /// A name: a-z, 0-9 and -, which no other exposure has
        #[arg(long)]
        name: Option<String>,
    },
    /// List exposures, or remove one
    #[command(after_help = "\
Examples:
  hub exposures
  hub exposures rm 3")]
    Exposures {
        #[command(subcommand)]
        command: Option<ExposuresCommand>,
    },
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

#[derive(Debug, Subcommand)]
enum ExposuresCommand {
    /// List the exposures, as without a command
    Ls,
    /// Remove an exposure
    Rm {
        /// Its number
        id: u64,
    },
}

/// Why a command failed, but for `hub exec`.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
    #[error("{0:#}")]
    Demo(anyhow::Error),
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

/// Whether arguments that can't be parsed are those of `hub exec`, whose exit codes are its own.
fn is_exec(arguments: &[OsString]) -> bool {
    arguments
        .iter()
        .take_while(|argument| *argument != "--")
        .any(|argument| argument == "exec")
}

async fn dispatch(cli: Cli) -> i32 {
    if let Command::Exec(arguments) = cli.command {
        return exec::run(client(&cli.api), arguments).await;
    }
    match command(cli.api, cli.command).await {
        Ok(()) => 0,
        // Whoever read our output has had enough.
        Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            exec::BROKEN_PIPE
        }
        Err(error) => fail(&error.to_string(), FAILED),
    }
}

/// Says on stderr what went wrong.
fn fail(what: &str, code: i32) -> i32 {
    let _ = writeln!(io::stderr(), "hub: {what}");
    code
}

fn client(api: &ApiArgs) -> Result<Client, ClientError> {
    let default = || default_data_dir("hub").join(TOKEN_FILE);
    let token = ApiToken::load(&api.token_file.clone().unwrap_or_else(default))?;
    Client::new(&api.url, &token, api.ca.as_deref())
}

async fn command(api: ApiArgs, command: Command) -> Result<(), CliError> {
    match command {
        Command::Demo(arguments) => crate::demo::run(arguments).await.map_err(CliError::Demo),
        Command::Status => print(&api, &client(&api)?.status().await?, show::status),
        Command::Node(NodeCommand::Ls) => print(&api, &client(&api)?.nodes().await?, show::nodes),
        Command::Token(TokenCommand::Create { uses, ttl }) => {
            // A part of a second is more than none.
            let ttl_s = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
            let token = client(&api)?
                .create_token(&NewToken { uses, ttl_s })
                .await?;
            print(&api, &token, show::token)
        }
        Command::Expose { node, port, name } => {
            let exposure = client(&api)?
                .expose(&NewExposure { node, port, name })
                .await?;
            print(&api, &exposure, show::created_exposure)
        }
        Command::Exposures {
            command: None | Some(ExposuresCommand::Ls),
        } => print(&api, &client(&api)?.exposures().await?, show::exposures),
        Command::Exposures {
            command: Some(ExposuresCommand::Rm { id }),
        } => {
            client(&api)?.unexpose(id).await?;
            if !api.json {
                writeln!(io::stdout(), "Exposure {id} is removed.")?;
            }
            Ok(())
        }
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "hub", &mut script);
            Ok(io::stdout().write_all(&script)?)
        }
        Command::Exec(_) => unreachable!("it has exit codes of its own"),
    }
}

/// Prints an answer for people or for programs.
fn print<T: Serialize>(
    api: &ApiArgs,
    answer: &T,
    for_people: impl Fn(&T) -> String,
) -> Result<(), CliError> {
    let mut text = if api.json {
        serde_json::to_string_pretty(answer).map_err(io::Error::from)?
    } else {
        for_people(answer)
    };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
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
        let Command::Exposures {
            command: Some(ExposuresCommand::Rm { id: 3 }),
        } = cli.command
        else {
            panic!("{cli:?}");
        };
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
