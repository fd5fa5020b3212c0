//! Each program dies while commands start: at named points of one start, and amid many.

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Stdio};

use crate::containers::{Image, house, success, unique};
use crate::programs::{Daemon, Hub, stderr};
use crate::witness::{processes, until};

/// Where commands run.
struct Place {
    runtime: &'static str,
    target: String,
    /// The file there that says that a command ran.
    ran: String,
}

impl Place {
    fn machine(dir: &Path) -> Self {
        let ran = dir.join("ran").to_str().unwrap().to_owned();
        Self {
            runtime: "process",
            target: "n1".into(),
            ran,
        }
    }

    /// A new container, which goes with its image.
    fn container(hub: &Hub, image: &Image) -> Self {
        let name = unique("start");
        let of = ["create", "--name", &name, "--network", "none"];
        let command = ["n1", &image.0, "--", "sleep", "100000"];
        success(hub, &[of, command].concat());
        let target = format!("n1/{name}");
        success(hub, &["start", &target]);
        Self {
            runtime: "docker",
            target,
            ran: "/ran".into(),
        }
    }

    /// Starts a command that has the mark among its arguments and a child.
    fn exec(&self, hub: &Hub, options: &[&str], mark: &str) -> Child {
        let script = format!("echo ran >{}; echo ran; sleep 100000; : {mark}", self.ran);
        let command = [&self.target, "--", "sh", "-c", &script];
        hub.cli()
            .args([&["exec"], options, &command].concat())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// An agent that has joined before, connected.
    fn agent(&self, hub: &mut Hub, kill_at: Option<&str>) -> Daemon {
        let mut command = hub.agent_command("n1", self.runtime, None);
        command.envs(kill_at.map(|point| ("HUB_KILL_AT", point)));
        let mut agent = Daemon::start(command);
        // It connects once it has stopped what was left.
        agent.wait_for("connected");
        hub.daemon.wait_for(" connected ");
        agent
    }
}

/// The points of a start, and whether the command may have run by then.
const POINTS: [(&str, bool); 4] = [
    ("exec-created", false),
    ("exec-recorded", false),
    ("exec-released", true),
    ("exec-started", true),
];

/// An agent dies at each point of a start. The next one stops what the command is by then, and does
/// not wait for a record of it: there is one at each moment at which the command runs.
fn at_each_point(hub: &mut Hub, mut agent: Daemon, place: &Place) {
    for (point, may_run) in POINTS {
        for options in [&[][..], &["-t"]] {
            let what = format!("{point} {options:?}");
            agent.kill();
            agent = place.agent(hub, Some(point));
            let mark = unique("mark");
            let client = place.exec(hub, options, &mark);
            assert_eq!(agent.wait(), None, "{what}: the agent was to be killed");
            agent = place.agent(hub, None);
            let output = client.wait_with_output().unwrap();
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(125), "{what}: {said}");
            assert!(!said.is_empty(), "{what}");
            let left = processes(&mark);
            assert!(left.is_empty(), "{what}: {left:?} live on");
            if !may_run {
                let script = format!("! [ -e {} ]", place.ran);
                success(hub, &["exec", &place.target, "--", "sh", "-c", &script]);
            }
        }
    }
    nothing_is_under_way(hub);
}

fn nothing_is_under_way(hub: &Hub) {
    until("nothing is under way", || {
        hub.json(&["status"])["operations"] == 0
    });
}

#[derive(Clone, Copy, PartialEq)]
enum Victim {
    Client,
    Hub,
    Agent,
}

/// A program dies while twelve commands are somewhere on the way to running.
fn amid_many(hub: &mut Hub, mut agent: Daemon, place: &Place) {
    let rounds = if std::env::var_os("HUB_LONG").is_some() {
        10
    } else {
        1
    };
    for victim in [Victim::Client, Victim::Hub, Victim::Agent] {
        for _ in 0..rounds {
            let mark = unique("mark");
            let mut clients: Vec<_> = (0..12).map(|_| place.exec(hub, &[], &mark)).collect();
            let first = clients[0].stdout.as_mut().unwrap();
            first.read_exact(&mut [0]).unwrap();
            match victim {
                Victim::Client => {}
                Victim::Hub => {
                    hub.kill();
                    hub.start_again();
                    agent.wait_for(" connected ");
                    hub.daemon.wait_for(" connected ");
                }
                Victim::Agent => {
                    agent.kill();
                    agent = place.agent(hub, None);
                }
            }
            for client in &mut clients {
                client.kill().unwrap();
                client.wait().unwrap();
            }
            until("all have stopped", || processes(&mark).is_empty());
            nothing_is_under_way(hub);
        }
    }
    assert!(!agent.log().contains("may still"), "{}", agent.log());
}

#[test]
fn an_agent_may_die_at_each_point_of_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let agent = hub.agent("n1", "process", None, None);
    at_each_point(&mut hub, agent, &Place::machine(dir.path()));
}

#[test]
fn each_program_may_die_amid_many_starts() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let agent = hub.agent("n1", "process", None, None);
    amid_many(&mut hub, agent, &Place::machine(dir.path()));
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_an_agent_may_die_at_each_point_of_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let (mut hub, agent) = house(dir.path());
    let image = Image::make(dir.path());
    let place = Place::container(&hub, &image);
    at_each_point(&mut hub, agent, &place);
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_each_program_may_die_amid_many_starts() {
    let dir = tempfile::tempdir().unwrap();
    let (mut hub, agent) = house(dir.path());
    let image = Image::make(dir.path());
    let place = Place::container(&hub, &image);
    amid_many(&mut hub, agent, &place);
}
