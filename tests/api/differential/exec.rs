//! Commands in containers.

use std::pin::Pin;

use bollard::container::LogOutput;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use bollard::query_parameters::ResizeExecOptionsBuilder;
use futures_util::{Stream, StreamExt as _};
use hub::client::exec::{Event, Request};
use hub_protocol::kind::exec::{OnDisconnect, Size};
use hub_server::api::channel::LastWord;
use hub_server::api::problem::Kind;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::{Class, Got, HANG, Side, Way, of_daemon, of_hub, shown, with};
use crate::world::NODE;

/// A command for either side.
#[derive(Clone, Default)]
struct Command<'a> {
    arguments: Vec<&'a str>,
    env: Vec<(&'a str, &'a str)>,
    cwd: Option<&'a str>,
    user: Option<&'a str>,
    stdin: Option<&'a [u8]>,
    tty: Option<Size>,
}

fn shell(script: &str) -> Command<'_> {
    Command {
        arguments: vec!["sh", "-c", script],
        ..Command::default()
    }
}

/// How it ended, and all that it printed; bytes as they are, made readable.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    code: i64,
    stdout: String,
    stderr: String,
}

impl Ended {
    fn new(code: i64, stdout: &[u8], stderr: &[u8]) -> Self {
        Self {
            code,
            stdout: shown(stdout),
            stderr: shown(stderr),
        }
    }
}

impl Side<'_> {
    async fn exec(&self, container: &str, command: &Command<'_>) -> Got<Ended> {
        let ended = async {
            match self.way {
                Way::Hub => self.exec_by_hub(container, command).await,
                Way::Daemon => self.exec_by_daemon(container, command).await,
            }
        };
        timeout(HANG, ended).await.unwrap()
    }

    async fn exec_by_hub(&self, container: &str, command: &Command<'_>) -> Got<Ended> {
        let owned = |text: &&str| (*text).to_owned();
        let request = Request {
            node: NODE.into(),
            container: Some(container.into()),
            command: command.arguments.iter().map(owned).collect(),
            env: command
                .env
                .iter()
                .map(|(k, v)| (owned(k), owned(v)))
                .collect(),
            cwd: command.cwd.as_ref().map(owned),
            user: command.user.as_ref().map(owned),
            stdin: command.stdin.is_some(),
            tty: command.tty,
            on_disconnect: OnDisconnect::Kill,
        };
        let exec = self.rig.client.exec(&request).await.map_err(of_hub)?;
        let (mut input, mut output) = exec.split();
        let send = async {
            if let Some(stdin) = command.stdin {
                // A command may end without having read all.
                let _ = input.send(stdin).await;
                if command.tty.is_none() {
                    let _ = input.finish().await;
                }
            }
            std::future::pending::<()>().await;
        };
        let read = async {
            let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
            loop {
                match output.next().await {
                    Event::Stdout(bytes) => stdout.extend_from_slice(&bytes),
                    Event::Stderr(bytes) => stderr.extend_from_slice(&bytes),
                    Event::StdinClosed => {}
                    Event::Ended(LastWord::Exited(code)) => {
                        return Ended::new(code.into(), &stdout, &stderr);
                    }
                    // The daemon says it as a shell does.
                    Event::Ended(LastWord::Signaled(signal)) => {
                        return Ended::new((128 + signal).into(), &stdout, &stderr);
                    }
                    other => panic!("{other:?}"),
                }
            }
        };
        tokio::select! {
            () = send => unreachable!(),
            ended = read => Ok(ended),
        }
    }

    async fn exec_by_daemon(&self, container: &str, command: &Command<'_>) -> Got<Ended> {
        let owned = |text: &&str| (*text).to_owned();
        let docker = &self.rig.docker;
        let config = ExecConfig {
            attach_stdin: Some(command.stdin.is_some()),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            tty: Some(command.tty.is_some()),
            cmd: Some(command.arguments.iter().map(owned).collect()),
            env: Some(
                command
                    .env
                    .iter()
                    .map(|(k, v)| format!("{k}={v}"))
                    .collect(),
            ),
            working_dir: command.cwd.as_ref().map(owned),
            user: command.user.as_ref().map(owned),
            ..ExecConfig::default()
        };
        let id = docker
            .create_exec(container, config)
            .await
            .map_err(of_daemon)?
            .id;
        let options = StartExecOptions {
            tty: command.tty.is_some(),
            ..StartExecOptions::default()
        };
        let started = docker
            .start_exec(&id, Some(options))
            .await
            .map_err(of_daemon)?;
        let StartExecResults::Attached { output, mut input } = started else {
            panic!("it is detached")
        };
        if let Some(size) = command.tty {
            let options = ResizeExecOptionsBuilder::new()
                .w(size.cols.into())
                .h(size.rows.into())
                .build();
            // It may have ended already.
            let _ = docker.resize_exec(&id, options).await;
        }
        let send = send(&mut input, command);
        let ((), (stdout, stderr)) = tokio::join!(send, all(output));
        let code = docker.inspect_exec(&id).await.unwrap().exit_code.unwrap();
        Ok(Ended::new(code, &stdout, &stderr))
    }
}

async fn send(input: &mut Pin<Box<dyn AsyncWrite + Send>>, command: &Command<'_>) {
    if let Some(stdin) = command.stdin {
        let _ = input.write_all(stdin).await;
        let _ = input.flush().await;
        if command.tty.is_none() {
            let _ = input.shutdown().await;
        }
    }
}

/// All that is printed, stdout and stderr apart.
async fn all(
    mut output: impl Stream<Item = Result<LogOutput, bollard::errors::Error>> + Unpin,
) -> (Vec<u8>, Vec<u8>) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(piece) = output.next().await {
        match piece.unwrap() {
            LogOutput::StdErr { message } => stderr.extend_from_slice(&message),
            LogOutput::StdOut { message } | LogOutput::Console { message } => {
                stdout.extend_from_slice(&message);
            }
            LogOutput::StdIn { .. } => panic!("input comes back"),
        }
    }
    (stdout, stderr)
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_commands_are_the_same() {
    with(async |rig| {
        let bytes: Vec<u8> = (0..1u32 << 20)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        rig.script(async |side| {
            let id = side.run(side.idle("box")).await;
            let name = side.named("box");
            for script in [
                "true",
                "exit 7",
                "exit 255",
                "kill -9 $$",
                "kill -TERM $$",
                "echo out; echo err >&2; exit 3",
                r"printf '\000\001\377\r\n no newline'",
                "seq 100000",
                "seq 100000 >&2",
                "env | grep -v HOSTNAME | sort",
                "pwd; id",
                "cat; echo end",
                "test -t 0 || test -t 1 || echo none",
            ] {
                side.step(script, side.exec(&id, &shell(script)).await.unwrap());
            }
            let command = Command {
                env: vec![("A", "x=y ü\n"), ("EMPTY", ""), ("PATH", "/bin:/x")],
                cwd: Some("/tmp"),
                user: Some("nobody"),
                ..shell(r#"printf '%s|' "$A" "${EMPTY-unset}" "$PATH"; pwd; id; touch /x"#)
            };
            side.step("environment", side.exec(&name, &command).await.unwrap());
            for user in ["65534", "0:65534", "nobody:root", "1234:4321"] {
                let user = Some(user);
                let command = Command {
                    user,
                    ..shell("id")
                };
                side.step("user", side.exec(&name, &command).await.unwrap());
            }
            for input in [&b""[..], b"\x00\xff", b"no newline", &bytes] {
                let command = Command {
                    stdin: Some(input),
                    ..shell("cat; echo end >&2; exit 5")
                };
                side.step("input", side.exec(&id, &command).await.unwrap());
            }
            let command = Command {
                stdin: Some(&bytes),
                ..shell("read -r line; exit 4")
            };
            let left = side.exec(&id, &command).await.unwrap();
            side.step("input that nobody reads", left.code);
            let command = Command {
                arguments: vec!["printf", "%s|", "a b", "", "*", "ü$HOME\"'"],
                ..Command::default()
            };
            side.step("arguments", side.exec(&id, &command).await.unwrap());
        })
        .await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_terminals_are_the_same() {
    with(async |rig| {
        rig.script(async |side| {
            let id = side.run(side.idle("box")).await;
            let size = Size { cols: 91, rows: 33 };
            // The daemon sets the size when the command runs already; so it waits for a line.
            let terminal = |script, stdin| Command {
                tty: Some(size),
                stdin: Some(stdin),
                ..shell(script)
            };
            for (script, input) in [
                ("read -r x; stty size; echo err >&2; exit 3", &b"go\n"[..]),
                (
                    "read -r x; test -t 0 && test -t 1 && test -t 2 && echo \"$x\"",
                    b"all\n",
                ),
                ("stty -echo; echo quiet; read -r x; echo \"$x\"", b"line\n"),
                ("cat; echo end", b"one\ntwo\n\x04"),
            ] {
                let came = side.exec(&id, &terminal(script, input)).await.unwrap();
                // What is echoed before the command asks for it depends on who is faster.
                let printed = came
                    .stdout
                    .split("\\n")
                    .map(|line| line.trim_end_matches("\\r"));
                let echoed: Vec<_> = input.split(|b| *b == b'\n').collect();
                let mut printed: Vec<_> = printed
                    .filter(|line| !echoed.contains(&line.as_bytes()))
                    .collect();
                printed.sort_unstable();
                side.step(script, (came.code, came.stderr, printed));
            }
            let hung = Command {
                tty: Some(size),
                ..shell("kill -9 $$")
            };
            side.step("killed", side.exec(&id, &hung).await.unwrap());
        })
        .await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_what_cannot_run_is_the_same() {
    with(async |rig| {
        rig.script(async |side| {
            let missing = side.exec("hub-no-such", &shell("true")).await.unwrap_err();
            side.expect("no container", missing.class, &Class::Missing);
            let id = side.create(side.idle("box")).await.unwrap();
            let idle = side.exec(&id, &shell("true")).await.unwrap_err();
            side.expect("one that does not run", idle.class, &Class::Conflict);
            side.start(&id).await.unwrap();
            // The daemon gives a code and words as output; the hub a kind of its own.
            for (command, kind, code) in [
                ("/no/such", Kind::CommandNotFound, 127),
                ("no-such", Kind::CommandNotFound, 127),
                ("/etc/passwd", Kind::NotExecutable, 126),
                ("/etc", Kind::NotExecutable, 126),
            ] {
                let command = Command {
                    arguments: vec![command],
                    ..Command::default()
                };
                let came = side.exec(&id, &command).await;
                match side.way {
                    Way::Hub => {
                        let problem = came.unwrap_err();
                        assert_eq!(problem.class, Class::Other(kind.status().as_u16()));
                    }
                    Way::Daemon => {
                        let ended = came.unwrap();
                        // A name that is not in PATH is 126 to this daemon, which then means both.
                        assert!([code, 126].contains(&ended.code), "{ended:?}");
                    }
                }
            }
            side.remove(&id, true).await.unwrap();
            let gone = side.exec(&id, &shell("true")).await.unwrap_err();
            side.expect("one that is gone", gone.class, &Class::Missing);
        })
        .await;
    })
    .await;
}
