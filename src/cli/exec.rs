//! `hub exec`: a remote command as if it were a local one.
//!
//! ```text
//! stdin  --thread--> channel of 1 --> WebSocket     stdin waits until the command takes more
//! stdout <--thread-- channel of 1 <-.
//! stderr <--thread-- channel of 1 <-+-- WebSocket   the command waits until we have printed
//! ```
//!
//! Pipes and terminals block, so a thread of its own reads or writes each. Every queue holds one
//! piece: memory stays bounded whoever is slow. The exit code is the command's; 125 means that Hub
//! itself failed, 126 and 127 what they mean in a shell, 128 and more a signal.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd;
use std::thread;

use bytes::Bytes;
use clap::Args;
use hub_server::api::channel::LastWord;
use hub_server::api::problem::Kind;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use super::fail;
use crate::client::exec::{Event, Input, Output, Request};
use crate::client::{Client, ClientError, PIECE};

/// The exit code for failures of Hub itself.
pub(super) const HUB_FAILED: i32 = 125;
/// The exit code where nobody reads what is printed: what a shell makes of SIGPIPE.
pub(super) const BROKEN_PIPE: i32 = 128 + 13;
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// The arguments of `hub exec`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hub exec shop-4 -- uptime                       on the machine itself
  hub exec shop-4/web -- nginx -t                 in a container on it
  tar c . | hub exec -i shop-4/web -- tar x -C /srv
  hub exec -e LEVEL=debug -w /srv -u 1000 shop-4/web -- ./check

Exit codes: that of the command; 125 where Hub itself failed, 126 where the command cannot be
executed, 127 where it was not found, 128+N where signal N killed it. Ctrl-C stops the command.")]
pub(super) struct ExecArgs {
    /// Send standard input to the command
    #[arg(short = 'i', long)]
    interactive: bool,
    /// Give the command a terminal: not supported yet
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
    /// The node's name or id, and the container's
    #[arg(value_name = "NODE[/CONTAINER]")]
    target: String,
    /// The command and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "CMD"
    )]
    command: Vec<String>,
}

/// Arguments that can't be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum ArgsError {
    #[error("-t is not supported yet: the command gets no terminal; leave -t away")]
    Tty,
    #[error("{0:?} names no node; it takes NODE or NODE/CONTAINER")]
    Target(String),
    #[error("-e {0}: there is no such variable here; give it a value with -e {0}=VALUE")]
    NotSet(String),
    #[error("-e takes NAME=VALUE, or the NAME of a variable that is set here")]
    NotAVariable,
}

impl ExecArgs {
    fn request(self, variable: impl Fn(&str) -> Option<String>) -> Result<Request, ArgsError> {
        if self.tty {
            return Err(ArgsError::Tty);
        }
        let (node, container) = match self.target.split_once('/') {
            None => (&*self.target, None),
            Some((node, container)) => (node, Some(container)),
        };
        if node.is_empty() || container.is_some_and(str::is_empty) {
            return Err(ArgsError::Target(self.target));
        }
        let set = |given: String| match given.split_once('=') {
            Some(("", _)) => Err(ArgsError::NotAVariable),
            Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
            None if given.is_empty() => Err(ArgsError::NotAVariable),
            None => match variable(&given) {
                Some(value) => Ok((given, value)),
                None => Err(ArgsError::NotSet(given)),
            },
        };
        Ok(Request {
            node: node.to_owned(),
            container: container.map(str::to_owned),
            env: self.env.into_iter().map(set).collect::<Result<_, _>>()?,
            command: self.command,
            cwd: self.workdir,
            user: self.user,
            stdin: self.interactive,
        })
    }
}

/// Runs it and gives the exit code.
pub(super) async fn run(client: Result<Client, ClientError>, arguments: ExecArgs) -> i32 {
    let request = match arguments.request(|name| std::env::var(name).ok()) {
        Ok(request) => request,
        Err(error) => return fail(&error.to_string(), HUB_FAILED),
    };
    let interrupted = match interruption() {
        Ok(interrupted) => interrupted,
        Err(error) => return fail(&format!("cannot listen for signals: {error}"), HUB_FAILED),
    };
    tokio::select! {
        // The end of this process resets the connection, and that stops the command.
        code = interrupted => code,
        code = carry(client, request) => code,
    }
}

/// Waits for a signal that asks this process to end; gives the exit code for it. From here on
/// these signals do nothing else. A hang-up is left to the system: `nohup` has it ignored.
fn interruption() -> io::Result<impl Future<Output = i32>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        let number = tokio::select! {
            _ = interrupt.recv() => SignalKind::interrupt(),
            _ = terminate.recv() => SignalKind::terminate(),
        };
        128 + number.as_raw_value()
    })
}

async fn carry(client: Result<Client, ClientError>, request: Request) -> i32 {
    let stdin = request.stdin;
    let exec = match client {
        Ok(client) => client.exec(&request).await,
        Err(error) => Err(error),
    };
    let (input, output) = match exec {
        Ok(exec) => exec.split(),
        Err(error) => return fail(&error.to_string(), code_of(&error)),
    };
    let (stops, stopped) = oneshot::channel();
    let input = async {
        // What was read in part must not look whole: the end of this process stops the command.
        if stdin && let Err(error) = pump_stdin(input, stopped).await {
            return fail(&format!("cannot read standard input: {error}"), HUB_FAILED);
        }
        std::future::pending().await
    };
    tokio::select! {
        code = pump_output(output, stops) => code,
        code = input => code,
    }
}

/// The exit code for a command that never began.
fn code_of(error: &ClientError) -> i32 {
    match error.problem().and_then(hub_server::api::Problem::kind) {
        Some(Kind::CommandNotFound) => NOT_FOUND,
        Some(Kind::NotExecutable) => NOT_EXECUTABLE,
        _ => HUB_FAILED,
    }
}

/// From standard input to the command, until either wants no more.
async fn pump_stdin(mut input: Input, stopped: oneshot::Receiver<()>) -> io::Result<()> {
    let (pieces, mut queue) = mpsc::channel::<io::Result<Bytes>>(1);
    // Not to be joined: a read may block for ever.
    thread::Builder::new().name("stdin".into()).spawn(move || {
        let mut stdin = match unbuffered(&io::stdin()) {
            Ok(stdin) => stdin,
            Err(error) => {
                let _ = pieces.blocking_send(Err(error));
                return;
            }
        };
        let mut buffer = vec![0; PIECE];
        loop {
            let piece = match stdin.read(&mut buffer) {
                Ok(0) => return,
                Ok(read) => Ok(Bytes::copy_from_slice(&buffer[..read])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let failed = piece.is_err();
            // Nobody takes any more once the command has ended.
            if pieces.blocking_send(piece).is_err() || failed {
                return;
            }
        }
    })?;
    let send = async {
        while let Some(piece) = queue.recv().await {
            if input.send(&piece?).await.is_err() {
                return Ok(());
            }
        }
        // An error is told better by the output.
        let _ = input.finish().await;
        Ok(())
    };
    tokio::select! {
        sent = send => sent,
        // The command takes no more: neither do we from whoever writes to us.
        Ok(()) = stopped => Ok(()),
    }
}

/// From the command to standard output and error, until it has ended. Gives the exit code.
async fn pump_output(mut output: Output, stops: oneshot::Sender<()>) -> i32 {
    let mut stops = Some(stops);
    let (mut stdout, mut stderr) = (Printer::new(&io::stdout()), Printer::new(&io::stderr()));
    loop {
        let printed = match output.next().await {
            Event::Stdout(bytes) => stdout.print(bytes).await,
            Event::Stderr(bytes) => stderr.print(bytes).await,
            Event::StdinClosed => {
                // Where there is no pump it has ended already.
                let _ = stops.take().map(|stops| stops.send(()));
                continue;
            }
            Event::Ended(word) => {
                let printed = match stdout.finish().await {
                    Ok(()) => stderr.finish().await,
                    failed => failed,
                };
                match printed {
                    Ok(()) => return exit_code(&word),
                    failed => failed,
                }
            }
        };
        if let Err(error) = printed {
            return match error.kind() {
                io::ErrorKind::BrokenPipe => BROKEN_PIPE,
                _ => fail(
                    &format!("cannot print the command's output: {error}"),
                    HUB_FAILED,
                ),
            };
        }
    }
}

fn exit_code(word: &LastWord) -> i32 {
    match word {
        // Nothing but success is 0, and the system keeps no more than a byte.
        LastWord::Exited(code) => match code & 0xff {
            0 if *code != 0 => HUB_FAILED,
            byte => byte,
        },
        LastWord::Signaled(signal) => 128 + signal,
        LastWord::Unknown(why) | LastWord::Detached(why) | LastWord::Interrupted(why) => {
            fail(why, HUB_FAILED)
        }
    }
}

/// Prints on a thread of its own, one piece after the other.
struct Printer {
    pieces: Option<mpsc::Sender<Bytes>>,
    ended: oneshot::Receiver<io::Result<()>>,
}

impl Printer {
    fn new(file: &impl AsFd) -> Self {
        let (pieces, mut queue) = mpsc::channel::<Bytes>(1);
        let (ends, ended) = oneshot::channel();
        let file = unbuffered(file);
        let print = move || {
            let mut file = file?;
            while let Some(piece) = queue.blocking_recv() {
                file.write_all(&piece)?;
            }
            Ok(())
        };
        // Whoever waits is gone only when this process ends. Where there is no thread, the end of
        // both channels tells.
        let _ = thread::Builder::new().spawn(move || drop(ends.send(print())));
        Self {
            pieces: Some(pieces),
            ended,
        }
    }

    /// Waits until there is room for the piece.
    async fn print(&mut self, piece: Bytes) -> io::Result<()> {
        match &self.pieces {
            Some(pieces) if pieces.send(piece).await.is_ok() => Ok(()),
            _ => self
                .finish()
                .await
                .and(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Waits until everything is printed.
    async fn finish(&mut self) -> io::Result<()> {
        self.pieces = None;
        match (&mut self.ended).await {
            Ok(printed) => printed,
            Err(_) => Err(io::Error::other("there is no thread to print on")),
        }
    }
}

/// The file without the standard library's buffer: bytes go when they come, lines or not.
fn unbuffered(file: &impl AsFd) -> io::Result<File> {
    file.as_fd().try_clone_to_owned().map(File::from)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser as _;
    use hub_server::api::Problem;

    use super::super::{Cli, Command};
    use super::*;

    fn request(line: &str) -> Result<Request, ArgsError> {
        let cli = Cli::try_parse_from(format!("hub exec {line}").split(' ')).unwrap();
        let Command::Exec(arguments) = cli.command else {
            panic!("not exec")
        };
        arguments.request(|name| (name == "HERE").then(|| "here".to_owned()))
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
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            request.env,
            [variable("A", "1=2"), variable("HERE", "here")]
        );
        assert_eq!(
            (request.cwd.as_deref(), request.user.as_deref()),
            (Some("/srv"), Some("1000"))
        );
        assert!(request.stdin);
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let refused = |line: &str| request(line).err();
        assert_eq!(refused("-t shop-4 -- sh"), Some(ArgsError::Tty));
        assert_eq!(
            refused("shop-4/ -- sh"),
            Some(ArgsError::Target("shop-4/".into()))
        );
        assert_eq!(
            refused("/web -- sh"),
            Some(ArgsError::Target("/web".into()))
        );
        assert_eq!(
            refused("-e GONE a -- sh"),
            Some(ArgsError::NotSet("GONE".into()))
        );
        assert_eq!(refused("-e =x a -- sh"), Some(ArgsError::NotAVariable));
        assert!(request("a -- sh").is_ok_and(|request| request.container.is_none()));
        // As with docker, -- may be left out; what follows the node is the command's alone.
        for line in ["a -- ls -i --json", "a ls -i --json"] {
            let request = request(line).unwrap();
            assert_eq!(
                (request.command.join(" ").as_str(), request.stdin),
                ("ls -i --json", false)
            );
        }
        for line in ["hub exec", "hub exec a", "hub exec a --"] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn only_success_is_zero() {
        let codes = [
            (LastWord::Exited(0), 0),
            (LastWord::Exited(1), 1),
            (LastWord::Exited(255), 255),
            (LastWord::Exited(256), HUB_FAILED),
            (LastWord::Exited(-1), 255),
            (LastWord::Signaled(9), 137),
            (LastWord::Unknown("gone".into()), HUB_FAILED),
        ];
        for (word, code) in codes {
            assert_eq!(exit_code(&word), code, "{word:?}");
        }
        let refused = |kind| code_of(&ClientError::Refused(Box::new(Problem::new(kind, ""))));
        assert_eq!(refused(Kind::CommandNotFound), 127);
        assert_eq!(refused(Kind::NotExecutable), 126);
        assert_eq!(refused(Kind::NodeAway), 125);
        assert_eq!(code_of(&ClientError::NoCa), 125);
    }

    #[tokio::test]
    async fn a_printer_prints_everything_or_says_why_not() {
        let mut file = tempfile::tempfile().unwrap();
        let mut printer = Printer::new(&file);
        for _ in 0..100 {
            printer
                .print(Bytes::from_static(b"\x00\xff\n"))
                .await
                .unwrap();
        }
        printer.finish().await.unwrap();
        let mut printed = Vec::new();
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_end(&mut printed).unwrap();
        assert_eq!(printed, b"\x00\xff\n".repeat(100));
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut printer = Printer::new(&writer);
        let error = loop {
            if let Err(error) = printer.print(Bytes::from_static(b"x")).await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
