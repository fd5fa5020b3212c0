//! The real docker CLIs and Debian's docker-compose through `hub docker-socket`, held against what
//! they say at the daemon itself: the same output, the same exit codes. [`ways`] compares.

mod containers;
mod images;
mod ways;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use ways::{NODE, Said, Ways};

/// A program whose output is read line by line, and the rest of it at its end.
struct Talking {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
    heard: String,
}

impl Talking {
    fn start(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            stdout,
            heard: String::new(),
        }
    }

    /// Reads until a line has this in it.
    fn wait_for(&mut self, text: &str) {
        loop {
            let from = self.heard.len();
            let read = self.stdout.read_line(&mut self.heard).unwrap();
            if self.heard[from..].contains(text) {
                return;
            }
            assert_ne!(read, 0, "waiting for {text:?}: {}", self.heard);
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// All that it said, once it has ended.
    fn said(mut self) -> Said {
        let mut rest = std::mem::take(&mut self.heard).into_bytes();
        std::io::Read::read_to_end(&mut self.stdout, &mut rest).unwrap();
        let said = Said::of_child(self.child);
        Said {
            stdout: rest,
            ..said
        }
    }
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_cli_may_die_and_leaves_nothing_at_the_node() {
    let ways = Ways::open("die");
    let (tunnel, image) = (ways.tunnel(0), ways.image());
    let name = tunnel.name("idle");
    let script = "echo begun; sleep 1000";
    let flags = ["run", "-d", "--init", "--network", "none", "--name", &name];
    let started = tunnel.run(&[&flags[..], &[&image, "sh", "-c", script]].concat());
    assert_eq!(started.code, Some(0), "{}", started.stderr);
    ways.wait_until_idle("before");
    for args in [
        &["logs", "-f", &name][..],
        // Says something once, then nothing: what reads it can't notice that its reader is gone.
        &["exec", &name, "sh", "-c", "echo begun; sleep 1000"],
        &["exec", "-i", &name, "sh", "-c", "echo begun; sleep 1000"],
        &["attach", "--no-stdin", &name],
    ] {
        let mut docker = Talking::start(tunnel.docker(args));
        if args[0] == "attach" {
            while ways.operations() == 0 {}
        } else {
            docker.wait_for("begun");
        }
        assert!(ways.operations() > 0, "{args:?}");
        docker.signal(Signal::KILL);
        assert_eq!(docker.said().code, None, "{args:?}");
        ways.wait_until_idle(&format!("{args:?}"));
    }

    // And a build of either builder: what it runs goes with it.
    let label = tunnel.name("build");
    let dockerfile = ways.dir().join("Dockerfile");
    let step = "RUN echo beg''un; sleep 1000";
    let text = format!("FROM {image}\nLABEL hub-cli-step={label}\n{step}\n");
    std::fs::write(&dockerfile, text).unwrap();
    let (file, context) = (dockerfile.display().to_string(), ways.dir().join("root"));
    let context = context.display().to_string();
    for (number, cli) in ways.clis().iter().enumerate() {
        for buildkit in [false, true] {
            if buildkit && !images::has_buildkit(&ways, cli) {
                continue;
            }
            let tunnel = ways.tunnel(number);
            let flags = [
                "build",
                "--network",
                "none",
                "--no-cache",
                "-f",
                &file,
                &context,
            ];
            let progress = ["--progress", "plain"];
            let args = [&flags[..], if buildkit { &progress } else { &[] }].concat();
            let mut command = tunnel.docker_in_one(&args);
            command.env("DOCKER_BUILDKIT", if buildkit { "1" } else { "0" });
            let mut docker = Talking::start(command);
            docker.wait_for("begun");
            docker.signal(Signal::KILL);
            assert_eq!(docker.said().code, None);
            ways.wait_until_idle(&format!("build with {}, {buildkit}", cli.display()));
            let filter = format!("label=hub-cli-step={label}");
            let left = || ways.direct().run(&["ps", "-q", "--filter", &filter]).stdout;
            let deadline = Instant::now() + Duration::from_secs(60);
            while !left().is_empty() {
                assert!(Instant::now() < deadline, "a step outlived its build");
            }
        }
    }
    ways.finish();
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_cli_runs_under_hub() {
    let ways = Ways::open("under");
    let image = ways.image();
    for cli in ways.clis() {
        let through = |args: &[&str]| {
            let mut command = ways.hub.cli();
            let path = std::env::var("PATH").unwrap();
            let bin = cli.parent().unwrap().display();
            command.env("PATH", format!("{bin}:{path}"));
            command.args(["docker", NODE, "--"]).args(args);
            command
        };
        for (args, code) in [
            (&["ps", "-a", "--filter", "name=hub-cli-nobody"][..], 0),
            (&["images", "--format", "{{.Repository}}", &image], 0),
            (
                &[
                    "run",
                    "--rm",
                    "--network",
                    "none",
                    &image,
                    "sh",
                    "-c",
                    "exit 3",
                ],
                3,
            ),
            (
                &[
                    "run",
                    "--rm",
                    "--network",
                    "none",
                    &image,
                    "no-such-command",
                ],
                127,
            ),
            (&["run", "--no-such-flag"], 125),
            (&["no-such-command"], 1),
            (&["inspect", "hub-cli-nobody"], 1),
        ] {
            let direct = Said::of({
                let mut command = ways.direct().program(cli);
                command.args(args);
                command
            });
            assert_eq!(direct.code, Some(code), "{args:?}: {direct:?}");
            let tunnel = Said::of(through(args)).plain(&ways.tunnel(0));
            assert_eq!(tunnel, direct.plain(&ways.direct()), "{args:?}");
        }
        // A signal to hub is one to docker.
        let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 1 & wait $!; done";
        let args = [
            "run",
            "--rm",
            "--network",
            "none",
            &image,
            "sh",
            "-c",
            script,
        ];
        let mut running = Talking::start(through(&args));
        running.wait_for("ready");
        running.signal(Signal::TERM);
        let said = running.said();
        assert_eq!((said.code, said.stderr.as_str()), (Some(9), ""));
    }
    ways.wait_until_idle("at the end");
    ways.finish();
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_cli_compose_brings_services_up_and_down() {
    let ways = Ways::open("compose");
    if Command::new("docker-compose")
        .arg("version")
        .output()
        .is_err()
    {
        eprintln!("skipped: docker-compose (not installed)");
        return;
    }
    let image = ways.image();
    let file = |way: &ways::Way, first: &str, second: &str| {
        let path = ways.dir().join(way.name("compose.yml"));
        let service = |script: &str| {
            format!(
                "    image: {image}\n    network_mode: none\n    stop_grace_period: 5s\n    command: [sh, -c, \"{script}\"]\n"
            )
        };
        let (first, second) = (service(first), service(second));
        let text = format!("version: '3.3'\nservices:\n  first:\n{first}  second:\n{second}");
        std::fs::write(&path, text).unwrap();
        path
    };
    let compose = |way: &ways::Way, path: &std::path::Path, args: &[&str]| {
        let mut command = way.program("docker-compose");
        command.args(["--ansi", "never", "-p", &way.name("p"), "-f"]);
        command.arg(path).args(args);
        command
    };
    let first = &ways.clis()[0];
    let same = |what: &str, code: i32, run: &dyn Fn(&ways::Way) -> Said| {
        // It is no docker CLI: which one there is does not matter.
        ways.same_with(first, what, code, |way| {
            let said = run(way);
            // Which of them it attaches to first is a matter of chance.
            let (before, rest) = said.text().split_once("Attaching to ").map_or_else(
                || (said.text(), String::new()),
                |(before, rest)| (before.to_owned(), rest.to_owned()),
            );
            let rest = rest.split_once('\n').unwrap_or_default().1;
            let stdout = format!("{before}{rest}").into_bytes();
            Said { stdout, ..said }.sorted()
        });
    };

    // Services that end by themselves.
    let ending = |way: &ways::Way| file(way, "echo one; exit 0", "echo two >&2; exit 3");
    for args in [&["up"][..], &["down"]] {
        same(args[0], 0, &|way| {
            Said::of(compose(way, &ending(way), args))
        });
    }
    // One that ends, and ends the other.
    let silent = "trap 'exit 0' TERM; while :; do sleep 1 & wait $$!; done";
    let one_ends = |way: &ways::Way| file(way, silent, "echo two; exit 3");
    for (code, args) in [
        (3, &["up", "--exit-code-from", "second"][..]),
        (0, &["down"]),
    ] {
        same(args[0], code, &|way| {
            Said::of(compose(way, &one_ends(way), args))
        });
    }

    // Services that stay.
    let script = "trap 'exit 0' TERM; echo ready; while :; do sleep 1 & wait $$!; done";
    let staying = |way: &ways::Way| file(way, script, script);
    for (what, code, args) in [
        ("config", 0, &["config", "--services"][..]),
        ("up -d", 0, &["up", "-d"]),
        ("ps", 0, &["ps"]),
        ("exec", 0, &["exec", "-T", "first", "echo", "hi there"]),
        (
            "exec's code",
            7,
            &["exec", "-T", "second", "sh", "-c", "exit 7"],
        ),
        (
            "run",
            5,
            &["run", "--rm", "-T", "first", "sh", "-c", "echo x; exit 5"],
        ),
        ("stop", 0, &["stop", "first"]),
        ("logs", 0, &["logs", "first"]),
        ("ps after", 0, &["ps", "-a"]),
        ("down -v", 0, &["down", "-v"]),
        ("down of nothing", 0, &["down"]),
    ] {
        same(what, code, &|way| {
            Said::of(compose(way, &staying(way), args))
        });
    }

    // Ctrl-C of what is in the foreground.
    same("up, ctrl-c", 0, &|way| {
        let path = staying(way);
        let mut up = Talking::start(compose(way, &path, &["up"]));
        up.wait_for("ready");
        up.wait_for("ready");
        up.signal(Signal::INT);
        let said = up.said();
        assert_eq!(Said::of(compose(way, &path, &["down"])).code, Some(0));
        said
    });
    ways.wait_until_idle("at the end");
    ways.finish();
}
