//! Each program dies at each moment of an exec: nothing survives that should not, and nobody makes
//! up how a command ended.

use std::io::Read as _;
use std::process::{Child, Stdio};

use crate::containers::{Image, house, success, unique};
use crate::programs::{Daemon, Hub, stderr, stdout};
use crate::witness::{Fifo, Watched, processes, until};

/// A moment of an exec at which a program dies: what runs, and what is there of it by then. The
/// command says the pid to watch where `TOLD` stands.
struct Moment {
    what: &'static str,
    options: &'static [&'static str],
    script: &'static str,
    stdin: Input,
    /// Whether somebody waits for the first byte of output; the rest nobody reads.
    first: bool,
    /// The code that the command ends with by itself, where it does.
    code: Option<i32>,
}

#[derive(Clone, Copy)]
enum Input {
    /// At its end from the start.
    Empty,
    /// Never at an end.
    Endless,
}

const fn moment(
    what: &'static str,
    options: &'static [&'static str],
    script: &'static str,
) -> Moment {
    Moment {
        what,
        options,
        script,
        stdin: Input::Empty,
        first: false,
        code: None,
    }
}

/// The first of them go through an ordinary run.
const MOMENTS: [Moment; 13] = [
    Moment {
        first: true,
        ..moment("printing", &[], "TOLD; exec yes")
    },
    Moment {
        stdin: Input::Endless,
        ..moment("stdin is stalled", &["-i"], "TOLD; exec sleep 100000")
    },
    moment("a process of its group", &[], "sleep 100000 & TOLD; wait"),
    moment(
        "it does not hear TERM",
        &[],
        "trap '' TERM HUP; TOLD; exec sleep 100000",
    ),
    moment("silent", &[], "TOLD; exec sleep 100000"),
    moment("output is stalled", &[], "TOLD; exec yes"),
    Moment {
        stdin: Input::Endless,
        ..moment("reading", &["-i"], "TOLD; exec cat >/dev/null")
    },
    Moment {
        stdin: Input::Endless,
        first: true,
        ..moment("both ways", &["-i"], "TOLD; exec cat")
    },
    moment("stdin has ended", &["-i"], "cat; TOLD; exec sleep 100000"),
    moment("at a terminal", &["-t"], "TOLD; exec sleep 100000"),
    Moment {
        first: true,
        ..moment("printing at a terminal", &["-t"], "TOLD; exec yes")
    },
    moment(
        "outputs are closed",
        &[],
        "exec >&- 2>&-; TOLD; exec sleep 100000",
    ),
    Moment {
        first: true,
        code: Some(5),
        ..moment(
            "ended and not read",
            &[],
            "TOLD; head -c 200000 /dev/zero; exit 5",
        )
    },
];

/// The moments of this run: ten and more of a whole one.
fn moments() -> &'static [Moment] {
    match std::env::var_os("HUB_LONG") {
        Some(_) => &MOMENTS,
        None => &MOMENTS[..3],
    }
}

impl Moment {
    /// Starts it and waits until it is there.
    fn reach(&self, hub: &Hub, told: &Fifo) -> (Child, Watched) {
        let pid = if self.script.contains('&') && self.script.contains("wait") {
            "$!"
        } else {
            "$$"
        };
        let tell = format!("echo {pid} >{}", told.path());
        let stdin = match self.stdin {
            Input::Empty => Stdio::null(),
            Input::Endless => std::fs::File::open("/dev/zero").unwrap().into(),
        };
        let command = ["n1", "--", "sh", "-c", &self.script.replace("TOLD", &tell)];
        let mut client = hub
            .cli()
            .args([&["exec"], self.options, &command].concat())
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let process = told.watch();
        assert!(process.lives() || self.code.is_some(), "{}", self.what);
        if self.first {
            let stdout = client.stdout.as_mut().unwrap();
            stdout.read_exact(&mut [0]).unwrap();
        }
        (client, process)
    }

    /// The client of a command that nobody can follow any more says so, and no code that it does
    /// not know.
    fn says_that_it_does_not_know(&self, client: Child) {
        let output = client.wait_with_output().unwrap();
        let (code, said) = (output.status.code(), stderr(&output));
        let known = self.code.is_some() && code == self.code;
        assert!(
            known || code == Some(125),
            "{}: {code:?}: {said}",
            self.what
        );
        assert_eq!(said.is_empty(), known, "{}: {said}", self.what);
    }
}

/// All is as before: nothing is under way, and commands run.
fn all_is_well(hub: &Hub, what: &str) {
    until("nothing is under way", || {
        hub.json(&["status"])["operations"] == 0
    });
    let output = hub.run(&["exec", "n1", "--", "true"]);
    assert_eq!(output.status.code(), Some(0), "{what}: {}", stderr(&output));
}

#[test]
fn a_client_may_die_at_any_moment() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let mut agent = hub.agent("n1", "process", None, None);
    let told = Fifo::new(dir.path(), "told");
    for moment in moments() {
        let (mut client, process) = moment.reach(&hub, &told);
        client.kill().unwrap();
        client.wait().unwrap();
        process.ends(moment.what);
        all_is_well(&hub, moment.what);
    }
    // Before anybody knows how far it is. What it asked for, if it did, has ended with it.
    let mark = format!("100000.{}", std::process::id());
    for _ in 0..if moments().len() > 3 { 50 } else { 5 } {
        let mut command = hub.cli();
        let mut client = command
            .args(["exec", "n1", "--", "sleep", &mark])
            .spawn()
            .unwrap();
        client.kill().unwrap();
        client.wait().unwrap();
    }
    all_is_well(&hub, "at once");
    until("all have stopped", || processes(&mark).is_empty());
    assert!(!agent.log().contains("may still"), "{}", agent.log());
}

#[test]
fn a_hub_may_die_at_any_moment() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let mut agent = hub.agent("n1", "process", None, None);
    let told = Fifo::new(dir.path(), "told");
    for moment in moments() {
        let (client, process) = moment.reach(&hub, &told);
        hub.kill();
        moment.says_that_it_does_not_know(client);
        // A command outlives a hub that is away for longer than a moment no more than one that is
        // back at once.
        hub.start_again();
        agent.wait_for(" connected ");
        hub.daemon.wait_for(" connected ");
        process.ends(moment.what);
        all_is_well(&hub, moment.what);
    }
}

#[test]
fn an_agent_may_die_at_any_moment() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let mut agent = hub.agent("n1", "process", None, None);
    let told = Fifo::new(dir.path(), "told");
    for moment in moments() {
        let (client, process) = moment.reach(&hub, &told);
        agent.kill();
        agent = Daemon::start(hub.agent_command("n1", "process", None));
        // It connects once it has stopped what was left.
        agent.wait_for("connected");
        hub.daemon.wait_for(" connected ");
        process.ends(moment.what);
        moment.says_that_it_does_not_know(client);
        all_is_well(&hub, moment.what);
    }
}

/// An agent that is killed as it is about to stop a command whose client was killed.
#[test]
fn an_agent_killed_before_it_stops_a_command() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let mut agent = hub.agent("n1", "process", None, Some("exec-stopping"));
    let told = Fifo::new(dir.path(), "told");
    let (mut client, process) = MOMENTS[0].reach(&hub, &told);
    client.kill().unwrap();
    client.wait().unwrap();
    assert_eq!(agent.wait(), None);
    let mut agent = Daemon::start(hub.agent_command("n1", "process", None));
    agent.wait_for("connected");
    hub.daemon.wait_for(" connected ");
    process.ends("a command that was not stopped");
    all_is_well(&hub, "exec-stopping");
}

/// The same in a container, where the daemon stops nothing by itself: a command whose client is
/// gone lives on there unless the agent finds it.
#[test]
#[ignore = "needs a Docker daemon"]
fn docker_each_program_may_die_during_an_exec() {
    let dir = tempfile::tempdir().unwrap();
    let (mut hub, mut agent) = house(dir.path());
    let image = Image::make(dir.path());
    let name = unique("moment");
    let target = format!("n1/{name}");
    let create = [
        "create",
        "--name",
        &name,
        "--network",
        "none",
        "n1",
        &image.0,
        "--",
        "sleep",
        "100000",
    ];
    success(&hub, &create);
    success(&hub, &["start", &target]);
    let start = |hub: &Hub, options: &[&str]| {
        let mark = unique("command");
        // Only what it becomes has the mark in one piece.
        let script = format!(
            "m={}; exec sh -c \"echo ready; sleep 100000; : hub-$m\"",
            &mark[4..]
        );
        let mut client = hub
            .cli()
            .args([&["exec"], options, &[&target, "--", "sh", "-c", &script]].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        client
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut ready)
            .unwrap();
        let found: Vec<_> = processes(&mark).into_iter().map(Watched::new).collect();
        assert!(!found.is_empty(), "no process has {mark}");
        (client, found, mark)
    };
    let gone = |found: &[Watched], mark: &str, what: &str| {
        for process in found {
            process.ends(what);
        }
        assert!(
            processes(mark).is_empty(),
            "{what}: something of it is left"
        );
    };
    let unknown = |client: Child| {
        let output = client.wait_with_output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(!said.is_empty());
    };

    let (mut client, found, mark) = start(&hub, &[]);
    client.kill().unwrap();
    client.wait().unwrap();
    gone(&found, &mark, "its client was killed");

    let (client, found, mark) = start(&hub, &["-t"]);
    hub.kill();
    unknown(client);
    hub.start_again();
    agent.wait_for(" connected ");
    hub.daemon.wait_for(" connected ");
    gone(&found, &mark, "its hub was killed");

    let (client, found, mark) = start(&hub, &[]);
    let (kept, of_kept, mark_of_kept) = start(&hub, &["--on-disconnect=keep"]);
    agent.kill();
    let mut agent = Daemon::start(hub.agent_command("n1", "docker", None));
    agent.wait_for("connected");
    hub.daemon.wait_for(" connected ");
    gone(&found, &mark, "its agent was killed");
    gone(&of_kept, &mark_of_kept, "the agent that kept it was killed");
    unknown(client);
    unknown(kept);
    // Nor are there children that nobody watched: the container's own process is all.
    let list = [
        "exec",
        &target,
        "--",
        "sh",
        "-c",
        "cat /proc/[0-9]*/cmdline",
    ];
    let listed = stdout(&hub.run(&list));
    assert_eq!(listed.matches("sleep\0").count(), 1, "{listed:?}");
    until("nothing is under way", || {
        hub.json(&["status"])["operations"] == 0
    });
}
