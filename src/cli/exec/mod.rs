//! `hub exec`: a remote command as if it were a local one.
//!
//! ```text
//! stdin  --thread--> keys --> channel --> WebSocket   stdin waits until the command takes more
//! stdout <--thread-- channel of 1 <-.
//! stderr <--thread-- channel of 1 <-+-- WebSocket     the command waits until we have printed
//! ```
//!
//! [`pipes`] reads and writes what blocks, [`keys`] finds what is not for the command among what is
//! typed at a [`terminal`], [`person`] gathers all that the person at this end wants, and
//! [`session`] carries it, over as many connections as it takes where the command is kept. Every
//! queue has a bound: memory stays so whoever is slow. The exit code is the command's; 125 means
//! that Hub itself failed, 126 and 127 what they mean in a shell, 128 and more a signal.

mod kept;
mod keys;
mod person;
pub(super) mod pipes;
mod session;
mod terminal;

use std::io::{self, IsTerminal as _};

use clap::{Args, ValueEnum};
use hub_protocol::kind::exec::{OnDisconnect, Size};
use hub_server::api::problem::Kind;

use super::target::Target;
use super::units::{NoVariable, parse_variable};
use super::{Context, fail};
use crate::client::ClientError;
use crate::client::exec::Request;
use kept::KeptCommand;
use keys::DetachKeys;
use person::Person;
use session::Session;

/// The exit code for failures of Hub itself.
pub(super) const HUB_FAILED: i32 = 125;
/// The exit code where nobody reads what is printed: what a shell makes of SIGPIPE.
pub(super) const BROKEN_PIPE: i32 = 128 + 13;
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// The arguments of `hub exec`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true,
    subcommand_help_heading = "Commands about kept commands",
    subcommand_value_name = "COMMAND",
    override_usage = "hub exec [OPTIONS] NODE[/CONTAINER] [--] CMD...\n       hub exec ls|attach|status|stop NODE ...",
    after_help = "\
Examples:
  hub exec shop-4 -- uptime                       on the machine itself
  hub exec shop-4/web -- nginx -t                 in a container on it
  hub exec -it shop-4/web -- sh                   with a terminal
  tar c . | hub exec -i shop-4/web -- tar x -C /srv
  hub exec -e LEVEL=debug -w /srv -u 1000 shop-4/web -- ./check
  hub exec --on-disconnect=keep shop-4 -- make    goes on without this terminal
  hub exec attach shop-4 4f0c9b6d2a7e8135         comes back to it

A node that is called ls, attach, status or stop comes behind an option or behind --:
  hub exec -- ls uptime

Keys, with -it: ctrl-p ctrl-q leaves the command running (--detach-keys), and after a newline ~.
leaves at once, ~? helps. Without a terminal Ctrl-C stops the command; one that is kept is sent INT,
and a second Ctrl-C within 2 s leaves it running.

Exit codes: that of the command; 125 where Hub itself failed, 126 where the command cannot be
executed, 127 where it was not found, 128+N where signal N killed it; 0 after the detach keys."
)]
pub(super) struct ExecArgs {
    #[command(subcommand)]
    kept: Option<KeptCommand>,
    /// Send standard input to the command
    #[arg(short = 'i', long)]
    interactive: bool,
    /// Give the command a terminal
    #[arg(short = 't', long)]
    tty: bool,
    /// Set a variable; without =VALUE, to what it is here
    #[arg(short = 'e', long = "env", value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Run in this directory
    #[arg(short = 'w', long, value_name = "DIR")]
    workdir: Option<String>,
    /// Run as this user
    #[arg(short = 'u', long)]
    user: Option<String>,
    /// What becomes of the command when this client or its connection is gone
    #[arg(long, value_enum, default_value = "kill", value_name = "WHAT")]
    on_disconnect: Fate,
    #[command(flatten)]
    keys: KeyArgs,
    /// The node's name or id, and the container's
    #[arg(value_name = "NODE[/CONTAINER]", required = true)]
    target: Option<Target>,
    /// The command and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "CMD"
    )]
    command: Vec<String>,
}

#[derive(Debug, Args)]
struct KeyArgs {
    /// The keys that leave the command running; none if empty
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    detach_keys: DetachKeys,
}

/// What becomes of a command whose client is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Fate {
    /// It is stopped
    Kill,
    /// It goes on, and `hub exec attach` comes back to it
    Keep,
}

/// Arguments that can't be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum ArgsError {
    #[error("standard input is no terminal, and -it needs one: leave -t away")]
    NoTerminal,
    #[error(transparent)]
    Variable(#[from] NoVariable),
}

/// What stands around us.
struct Here<V> {
    variable: V,
    stdin_is_terminal: bool,
    size: Option<Size>,
}

impl ExecArgs {
    fn request(
        self,
        target: Target,
        here: &Here<impl Fn(&str) -> Option<String>>,
    ) -> Result<Request, ArgsError> {
        if self.tty && self.interactive && !here.stdin_is_terminal {
            return Err(ArgsError::NoTerminal);
        }
        let variable = |given: String| parse_variable(&given, &here.variable);
        let mut env: Vec<_> = self
            .env
            .into_iter()
            .map(variable)
            .collect::<Result<_, _>>()?;
        if self.tty && env.iter().all(|(name, _)| name != "TERM") {
            let term = (here.variable)("TERM");
            env.extend(term.map(|term| ("TERM".to_owned(), term)));
        }
        let unknown = Size { cols: 0, rows: 0 };
        Ok(Request {
            node: target.node,
            container: target.container,
            env,
            command: self.command,
            cwd: self.workdir,
            user: self.user,
            stdin: self.interactive,
            tty: self.tty.then(|| here.size.unwrap_or(unknown)),
            on_disconnect: match self.on_disconnect {
                Fate::Kill => OnDisconnect::Kill,
                Fate::Keep => OnDisconnect::Keep,
            },
        })
    }
}

/// Runs it and gives the exit code.
pub(super) async fn run(context: &Context, mut arguments: ExecArgs) -> i32 {
    if let Some(command) = arguments.kept.take() {
        return kept::run(context, command).await;
    }
    // Clap has made sure of it.
    let Some(target) = arguments.target.take() else {
        return fail("exec takes a node", HUB_FAILED);
    };
    let here = Here {
        variable: |name: &str| std::env::var(name).ok(),
        stdin_is_terminal: io::stdin().is_terminal(),
        size: terminal::size(),
    };
    let detach_keys = std::mem::take(&mut arguments.keys.detach_keys);
    let request = match arguments.request(target, &here) {
        Ok(request) => request,
        Err(error) => return fail(&error.to_string(), HUB_FAILED),
    };
    let kept = request.on_disconnect == OnDisconnect::Keep;
    let mut person = match Person::new(kept, request.tty.is_some()) {
        Ok(person) => person,
        Err(error) => return fail(&format!("cannot listen for signals: {error}"), HUB_FAILED),
    };
    let client = match context.client() {
        Ok(client) => client,
        Err(error) => return fail(&error.to_string(), HUB_FAILED),
    };
    let started = tokio::select! {
        // The end of this process resets the connection, and that stops the command.
        left = person.leaves.next() => return left.code(),
        started = client.exec(&request) => started,
    };
    let exec = match started {
        Ok(exec) => exec,
        Err(error) => return fail(&error.to_string(), code_of(&error)),
    };
    if kept {
        fail(&format!("the command is {}", exec.id()), 0);
    }
    let session = Session {
        client,
        node: request.node,
        id: exec.id().to_owned(),
        kept,
        stdin: request.stdin,
        tty: request.tty.is_some(),
        detach_keys,
    };
    session.run(exec, person).await
}

/// The exit code for a command that never began.
fn code_of(error: &ClientError) -> i32 {
    match error.problem().and_then(hub_server::api::Problem::kind) {
        Some(Kind::CommandNotFound) => NOT_FOUND,
        Some(Kind::NotExecutable) => NOT_EXECUTABLE,
        _ => HUB_FAILED,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser as _;
    use hub_server::api::Problem;

    use super::super::{Cli, Command};
    use super::*;

    fn arguments(line: &str) -> ExecArgs {
        let cli = Cli::try_parse_from(format!("hub exec {line}").split(' ')).unwrap();
        let Command::Exec(arguments) = cli.command else {
            panic!("not exec")
        };
        *arguments
    }

    fn request_at(line: &str, terminal: bool) -> Result<Request, ArgsError> {
        let mut arguments = arguments(line);
        let target = arguments.target.take().unwrap();
        let here = Here {
            variable: |name: &str| ["HERE", "TERM"].contains(&name).then(|| "here".to_owned()),
            stdin_is_terminal: terminal,
            size: terminal.then_some(Size { cols: 80, rows: 24 }),
        };
        arguments.request(target, &here)
    }

    fn request(line: &str) -> Result<Request, ArgsError> {
        request_at(line, false)
    }

    fn variable(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn arguments_become_a_request() {
        let request =
            request("-i -e A=1=2 -e HERE -w /srv -u 1000 shop-4/web -- ls -i --help").unwrap();
        assert_eq!(
            (&*request.node, request.container.as_deref()),
            ("shop-4", Some("web"))
        );
        assert_eq!(request.command, ["ls", "-i", "--help"]);
        assert_eq!(
            request.env,
            [variable("A", "1=2"), variable("HERE", "here")]
        );
        assert_eq!(
            (request.cwd.as_deref(), request.user.as_deref()),
            (Some("/srv"), Some("1000"))
        );
        assert!(request.stdin && request.tty.is_none());
        assert_eq!(request.on_disconnect, OnDisconnect::Kill);
    }

    #[test]
    fn a_terminal_has_a_size_and_a_kind() {
        let made = request_at("-it --on-disconnect=keep a -- sh", true).unwrap();
        assert_eq!(made.tty, Some(Size { cols: 80, rows: 24 }));
        assert_eq!(made.env, [variable("TERM", "here")]);
        assert_eq!(made.on_disconnect, OnDisconnect::Keep);
        let own = request_at("-it -e TERM=dumb a -- sh", true).unwrap();
        assert_eq!(own.env, [variable("TERM", "dumb")]);
        assert_eq!(request("-it a -- sh").err(), Some(ArgsError::NoTerminal));
        let unknown = Some(Size { cols: 0, rows: 0 });
        assert_eq!(request("-t a -- sh").unwrap().tty, unknown);
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let refused = |line: &str| request(line).err();
        assert_eq!(
            refused("-e GONE a -- sh"),
            Some(ArgsError::Variable(NoVariable::NotSet("GONE".into())))
        );
        assert_eq!(
            refused("-e =x a -- sh"),
            Some(ArgsError::Variable(NoVariable::Malformed))
        );
        assert!(request("a -- sh").is_ok_and(|request| request.container.is_none()));
        // As with docker, -- may be left out; what follows the node is the command's alone.
        for line in ["a -- ls -i --json", "a ls -i --json"] {
            let request = request(line).unwrap();
            assert_eq!(
                (request.command.join(" ").as_str(), request.stdin),
                ("ls -i --json", false)
            );
        }
        for line in [
            "hub exec",
            "hub exec a",
            "hub exec a --",
            "hub exec /web -- sh",
            "hub exec a/ -- sh",
            "hub exec --detach-keys ctrl a -- sh",
            "hub exec --on-disconnect=stay a -- sh",
            "hub exec ls",
            "hub exec attach a",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn words_about_kept_commands_win_in_first_place_only() {
        assert!(matches!(
            arguments("ls shop-4").kept,
            Some(KeptCommand::Ls { node }) if node == "shop-4"
        ));
        assert!(arguments("attach shop-4 0f").kept.is_some());
        for line in ["-- ls uptime", "-i ls uptime", "-i -- ls uptime"] {
            let arguments = arguments(line);
            assert!(arguments.kept.is_none(), "{line}");
            assert_eq!(arguments.target.unwrap().node, "ls");
            assert_eq!(arguments.command, ["uptime"]);
        }
        for line in ["help uptime", "shop-4 ls", "shop-4 -- attach a b"] {
            assert!(arguments(line).kept.is_none(), "{line}");
        }
    }

    #[test]
    fn what_never_began_has_codes_of_a_shell() {
        let refused = |kind| code_of(&ClientError::Refused(Box::new(Problem::new(kind, ""))));
        assert_eq!(refused(Kind::CommandNotFound), 127);
        assert_eq!(refused(Kind::NotExecutable), 126);
        assert_eq!(refused(Kind::NodeAway), 125);
        assert_eq!(code_of(&ClientError::NoCa), 125);
    }
}
