//! Containers: run, exec, attach, cp, logs, stats, events.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use super::Talking;
use super::ways::{Said, Way, Ways, tar};
use crate::terminal::Terminal;

/// Ends at once when told to, and has said so.
const STAYS: &str = "trap 'echo bye; exit 4' TERM; trap 'echo interrupted; exit 7' INT; \
                     echo err >&2; echo out; while :; do sleep 1 & wait $!; done";

const NO_NETWORK: [&str; 2] = ["--network", "none"];

/// `docker run --rm` of this in the image.
fn run_args<'a>(flags: &[&'a str], image: &'a str, command: &[&'a str]) -> Vec<&'a str> {
    [&["run", "--rm"], &NO_NETWORK[..], flags, &[image], command].concat()
}

/// A container that stays until it is told to go.
fn stays(way: &Way, image: &str) -> Said {
    let name = way.name("stays");
    let flags = ["run", "-d", "--name", &name, "--hostname", "stays"];
    way.run(&[&flags[..], &NO_NETWORK, &[image, "sh", "-c", STAYS]].concat())
}

/// Bytes of every value.
fn bytes(count: u32) -> Vec<u8> {
    let byte = |n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8;
    (0..count).map(byte).collect()
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_cli_run_has_the_same_streams_and_codes() {
    let ways = Ways::open("run");
    let image = ways.image();
    let image = image.as_str();
    ways.same("version", 0, |way| way.run(&["version"]));
    for (command, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "echo out; echo err >&2; exit 3"], 3),
        (&["sh", "-c", "kill -9 $$; exit 1"], 1),
        (&["no-such-command"], 127),
        (&["/etc/passwd"], 126),
        (&["dd", "if=/dev/zero", "bs=1000000", "count=3"], 0),
    ] {
        ways.same(&format!("{command:?}"), code, |way| {
            let said = way.run(&run_args(&[], image, command));
            // dd says how long it took.
            let lines = said.stderr.split_inclusive('\n');
            let stderr = lines.filter(|line| !line.contains("copied")).collect();
            Said { stderr, ..said }
        });
    }
    for (flags, image, code) in [
        (&["--no-such-flag"][..], image, 125),
        (&["--pull", "never"], "hub-cli-no-such-image", 125),
        (&["--memory", "1"], image, 125),
        (&["-w", "relative"], image, 125),
    ] {
        ways.same(&format!("{flags:?}"), code, |way| {
            way.run(&run_args(flags, image, &["true"]))
        });
    }

    // Standard input, to its end.
    ways.same("stdin", 0, |way| {
        Said::fed(way.docker(&run_args(&["-i"], image, &["cat"])), b"hi\n")
    });
    let data = bytes(3 << 20);
    ways.same("3 MiB there and back", 0, |way| {
        let said = Said::fed(way.docker(&run_args(&["-i"], image, &["cat"])), &data);
        assert!(said.stdout == data, "{} bytes came back", said.stdout.len());
        said
    });
    ways.same("a command that leaves stdin", 0, |way| {
        let command = ["head", "-c", "3"];
        Said::fed(way.docker(&run_args(&["-i"], image, &command)), &data)
    });

    // Ctrl-C of what is in the foreground.
    ways.same("interrupted", 7, |way| {
        let args = run_args(&[], image, &["sh", "-c", STAYS]);
        let mut running = Talking::start(way.docker(&args));
        running.wait_for("out");
        running.signal(Signal::INT);
        running.said()
    });
    ways.wait_until_idle("at the end");
    ways.finish();
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_cli_has_the_same_terminals() {
    // Does what it is told line by line. No shell's prompt: when that is drawn anew is a matter of
    // chance. The terminal has its size soon after the start.
    const DOES: &str = "stty -echo; trap : INT; \
        until [ \"$(stty size 2>/dev/null)\" = '24 80' ]; do :; done; \
        echo ready; while :; do read -r line && eval \"$line\"; done";
    const SHELL: [&str; 3] = ["sh", "-c", DOES];
    let ways = Ways::open("tty");
    let image = ways.image();
    let name = |way: &Way| way.name("tty");
    let open = |command: Command| {
        let mut terminal = Terminal::open(command);
        let seen = terminal.wait_for("ready\r\n");
        (terminal, seen)
    };
    let talk = |terminal: &mut Terminal| {
        let mut seen = String::new();
        for line in [
            "echo $((6 * 7)); tty; stty -a | head -n 1",
            "echo \u{fc}n\u{ef}c\u{f6}de | tr a-z A-Z",
            "stty echo; echo echoed; stty -echo",
        ] {
            terminal.type_in(&format!("{line}; echo its end\r"));
            seen += &terminal.wait_for("its end\r\n");
        }
        let waits = "trap 'echo interrupted; exit' INT; echo begin; while :; do sleep 1; done";
        terminal.type_in(&format!("({waits})\r"));
        seen += &terminal.wait_for("begin\r\n");
        terminal.type_in("\x03");
        seen += &terminal.wait_for("interrupted\r\n");
        terminal.resize(100, 50);
        terminal.type_in("until [ \"$(stty size)\" = '50 100' ]; do :; done; echo resized\r");
        seen + &terminal.wait_for("resized\r\n")
    };
    ways.same("run -it", 5, |way| {
        let (mut terminal, mut seen) = open(way.docker(&run_args(&["-it"], &image, &SHELL)));
        seen += &talk(&mut terminal);
        terminal.type_in("echo last words; exit 5\r");
        let code = terminal.ends();
        seen += &terminal.rest();
        Said::on_screen(code, seen)
    });
    ways.same("exec -it, and run -it left and attached to", 6, |way| {
        let name = name(way);
        let flags = ["-it", "--name", &name];
        let (mut first, mut seen) = open(way.docker(&run_args(&flags, &image, &SHELL)));
        first.type_in("mine=42; echo kept\r");
        seen += &first.wait_for("kept\r\n");

        let exec = [&["exec", "-it", &name][..], &SHELL].concat();
        let (mut second, ready) = open(way.docker(&exec));
        seen += &ready;
        seen += &talk(&mut second);
        second.type_in("exit 3\r");
        assert_eq!(second.ends(), Some(3));
        seen += &second.rest();

        first.type_in("\x10\x11");
        assert_eq!(first.ends(), Some(0));
        seen += &first.rest();
        let mut third = Terminal::open(way.docker(&["attach", &name]));
        third.type_in("echo its $mine; exit 6\r");
        seen += &third.wait_for("its 42\r\n");
        let code = third.ends();
        seen += &third.rest();
        Said::on_screen(code, seen)
    });
    ways.wait_until_idle("at the end");
    ways.finish();
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_cli_has_the_same_to_do_with_a_container() {
    let ways = Ways::open("life");
    let image = ways.image();
    let image = image.as_str();
    let on = |way: &Way, args: &[&str]| {
        let name = way.name("stays");
        let args = args.iter().map(|arg| match *arg {
            "NAME" => name.as_str(),
            other => other,
        });
        way.docker(&args.collect::<Vec<_>>())
    };
    let same = |code: i32, args: &[&str]| {
        ways.same(&args.join(" "), code, |way| Said::of(on(way, args)));
    };
    ways.same("run -d", 0, |way| stays(way, image));

    // Exec.
    same(0, &["exec", "NAME", "hostname"]);
    same(
        9,
        &["exec", "NAME", "sh", "-c", "echo out; echo err >&2; exit 9"],
    );
    same(126, &["exec", "NAME", "no-such-command"]);
    same(0, &["exec", "-t", "NAME", "sh", "-c", "tty; echo err >&2"]);
    same(
        0,
        &[
            "exec",
            "-e",
            "A=b c",
            "-w",
            "/tmp",
            "-u",
            "0",
            "NAME",
            "sh",
            "-c",
            "echo $A; pwd",
        ],
    );
    same(1, &["exec", "hub-cli-nobody", "true"]);
    let data = bytes(3 << 20);
    ways.same("exec -i", 0, |way| {
        let said = Said::fed(on(way, &["exec", "-i", "NAME", "cat"]), &data);
        assert!(said.stdout == data, "{} bytes came back", said.stdout.len());
        said
    });

    // Looking at it.
    let format = "{{.Names}} {{.Image}} {{.State}} {{.Command}}";
    ways.same("ps", 0, |way| {
        let filter = format!("name={}", way.name("stays"));
        let said = way.run(&["ps", "--filter", &filter]);
        let formatted = way.run(&["ps", "-a", "--filter", &filter, "--format", format]);
        let stdout = [said.stdout, formatted.stdout].concat();
        Said {
            stdout,
            ..formatted
        }
    });
    same(
        0,
        &[
            "inspect",
            "-f",
            "{{.Name}} {{.State.Status}} {{json .Config.Cmd}}",
            "NAME",
        ],
    );
    same(1, &["inspect", "hub-cli-nobody"]);
    same(0, &["stats", "--no-stream", "NAME"]);
    same(
        0,
        &[
            "stats",
            "--no-stream",
            "--format",
            "{{.Name}}: {{.MemUsage}}",
            "NAME",
        ],
    );
    same(0, &["port", "NAME"]);
    same(0, &["diff", "NAME"]);

    copies(&ways, &on);

    // Logs, of what ends meanwhile, and afterwards.
    same(0, &["logs", "NAME"]);
    ways.same("logs -f", 0, |way| {
        let mut logs = Talking::start(on(way, &["logs", "-f", "NAME"]));
        logs.wait_for("out");
        assert_eq!(
            Said::of(on(way, &["kill", "-s", "TERM", "NAME"])).code,
            Some(0)
        );
        logs.said()
    });
    same(0, &["wait", "NAME"]);
    same(0, &["logs", "--tail", "1", "NAME"]);
    same(0, &["logs", "-t", "NAME"]);
    same(
        0,
        &[
            "inspect",
            "-f",
            "{{.State.Status}} {{.State.ExitCode}}",
            "NAME",
        ],
    );

    // The end.
    same(0, &["start", "NAME"]);
    same(0, &["stop", "-t", "5", "NAME"]);
    same(1, &["exec", "NAME", "true"]);
    same(0, &["rm", "NAME"]);
    same(1, &["rm", "NAME"]);

    // What the daemon remembers, and what it says as it comes. It remembers little.
    let now = || {
        let said = ways.direct().run(&["info", "-f", "{{.SystemTime}}"]);
        said.text().trim().to_owned()
    };
    let filter = |way: &Way| format!("container={}", way.name("stays"));
    ways.same("events", 0, |way| {
        let since = now();
        stays(way, image);
        assert_eq!(way.run(&["rm", "-f", &way.name("stays")]).code, Some(0));
        let window = ["events", "--since", &since, "--until", &now()];
        let said = way.run(&[&window[..], &["--filter", &filter(way)]].concat());
        assert!(said.text().contains(" create "), "{}", said.text());
        assert!(said.text().contains(" destroy "), "{}", said.text());
        said
    });
    ways.same("events as they come", None, |way| {
        let format = "{{.Status}} {{.Actor.Attributes.exitCode}}";
        let window = ["events", "--since", &now(), "--format", format];
        let filter = ["--filter", &filter(way)];
        let mut events = Talking::start(way.docker(&[&window[..], &filter].concat()));
        stays(way, image);
        events.wait_for("start");
        assert_eq!(way.run(&["rm", "-f", &way.name("stays")]).code, Some(0));
        events.wait_for("destroy");
        events.signal(Signal::KILL);
        events.said()
    });
    ways.same("attach", 0, |way| {
        let name = way.name("cat");
        let create = ["create", "-i", "--name", &name];
        way.run(&[&create[..], &NO_NETWORK, &[image, "cat"]].concat());
        Said::fed(way.docker(&["start", "-ai", &name]), b"all\nof it\n")
    });
    ways.wait_until_idle("at the end");
    ways.finish();
}

/// Files there and back again.
fn copies(ways: &Ways, on: &impl Fn(&Way, &[&str]) -> Command) {
    let there = ways.dir().join("there");
    std::fs::create_dir_all(there.join("sub/empty")).unwrap();
    std::fs::write(there.join("file"), "content\n").unwrap();
    std::fs::write(there.join("sub/large"), bytes(2 << 20)).unwrap();
    std::os::unix::fs::symlink("../file", there.join("sub/link")).unwrap();
    let archive = tar(&there);
    let path = |path: &Path| path.display().to_string();
    let at = |way: &Way, path: &str| format!("{}:{path}", way.name("stays"));

    ways.same("cp of a file", 0, |way| {
        let said = way.run(&["cp", &path(&there.join("file")), &at(way, "/tmp/file")]);
        let back = ways.dir().join(way.name("file"));
        assert_eq!(
            way.run(&["cp", &at(way, "/tmp/file"), &path(&back)]).code,
            Some(0)
        );
        assert_eq!(std::fs::read(back).unwrap(), b"content\n");
        said
    });
    ways.same("cp of a directory", 0, |way| {
        let said = way.run(&["cp", &path(&there), &at(way, "/tmp/dir")]);
        let back = ways.dir().join(way.name("dir"));
        let came = way.run(&["cp", &at(way, "/tmp/dir"), &path(&back)]);
        assert_eq!(came.code, Some(0), "{}", came.stderr);
        assert!(tar(&back) == archive, "another directory came back");
        said
    });
    ways.same("cp of a tar", 0, |way| {
        let said = Said::fed(way.docker(&["cp", "-", &at(way, "/root")]), &archive);
        assert_eq!(
            Said::of(on(way, &["exec", "NAME", "cat", "/root/sub/link"])).text(),
            "content\n"
        );
        said
    });
    // Of one and the same container, for it has times in it.
    let one = at(&ways.direct(), "/root");
    ways.same("cp to a tar", 0, |way| way.run(&["cp", &one, "-"]));
    for (from, to) in [("/no/such", "-"), ("/tmp/file", "/no/such/place/file")] {
        ways.same(&format!("cp of {from} to {to}"), 1, |way| {
            way.run(&["cp", &at(way, from), to])
        });
    }
    ways.same("cp to nowhere", 1, |way| {
        way.run(&[
            "cp",
            &path(&there.join("file")),
            &at(way, "/no/such/place/file"),
        ])
    });
}
