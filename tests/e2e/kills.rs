//! Programs that die at the worst moment.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::programs::{Daemon, Hub, stderr};

/// The agent dies in the middle of an exec: the client is told so within the idle timeout, the node
/// shows as away, and an agent that starts again is back at once.
fn kill_agent_at(point: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let mut agent = hub.agent("n1", "process", None, Some(point));
    let output = hub.run(&["exec", "n1", "--", "echo", "hello"]);
    assert_eq!(agent.wait(), None, "{point}: the agent was to be killed");
    assert_eq!(
        output.status.code(),
        Some(125),
        "{point}: {}",
        stderr(&output)
    );
    let text = stderr(&output);
    assert!(text.contains("n1"), "{point}: {text}");
    hub.daemon.wait_for("away");
    let nodes = hub.json(&["node", "ls"])["nodes"].take();
    assert_eq!(nodes[0]["name"], "n1", "{nodes}");
    assert_eq!(nodes[0]["state"], "away", "{nodes}");

    let mut again = Daemon::start(hub.agent_command("n1", "process", None));
    again.wait_for("connected");
    hub.daemon.wait_for(" connected ");
    let output = hub.run(&["exec", "n1", "--", "true"]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{point}: {}",
        stderr(&output)
    );
}

#[test]
fn an_agent_killed_before_its_exec_has_started() {
    kill_agent_at("exec-opened");
}

#[test]
fn an_agent_killed_when_its_exec_has_started() {
    kill_agent_at("exec-started");
}

#[test]
fn an_agent_killed_when_all_output_has_gone() {
    kill_agent_at("exec-drained");
}

#[test]
fn an_agent_killed_before_its_last_word() {
    kill_agent_at("exec-exited");
}

/// A client that dies, whatever it was doing, leaves nothing running on the node.
#[test]
fn a_killed_client_stops_its_command() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let mut agent = hub.agent("n1", "process", None, None);
    // The command says its process id where nothing else is said: its outputs may be stalled.
    let told = dir.path().join("told");
    assert!(
        Command::new("mkfifo")
            .arg(&told)
            .status()
            .unwrap()
            .success()
    );
    // It reads nothing, so that its stdin stalls while the client is killed.
    for (script, stdin) in [("sleep 1000", false), ("sleep 1000", true), ("yes", false)] {
        let mut command = hub.cli();
        command.arg("exec");
        if stdin {
            command.arg("-i");
        }
        let script = format!("echo $$ >{}; exec {script}", told.display());
        command.args(["n1", "--", "sh", "-c", &script]);
        let from = if stdin {
            Stdio::from(std::fs::File::open("/dev/zero").unwrap())
        } else {
            Stdio::null()
        };
        // Output that nobody reads fills the pipe, and stalls.
        command.stdin(from).stdout(Stdio::piped());
        let mut client = Daemon::start(command);
        let pid = std::fs::read_to_string(&told).unwrap().trim().to_owned();
        client.kill();
        agent.wait_for("stopping it");
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::path::Path::new(&format!("/proc/{pid}")).exists() {
            assert!(Instant::now() < deadline, "{script} outlived its client");
            std::thread::yield_now();
        }
    }
}

/// A hub that dies comes back with its ledger, and the agent with it.
#[test]
fn a_killed_hub_keeps_its_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let mut agent = hub.agent("n1", "process", None, None);
    let before = hub.ready.clone();
    hub.daemon.kill();
    let mut command = crate::programs::program("hub-server", None);
    command
        .arg("--data-dir")
        .arg(dir.path().join("hub"))
        .args(["--agent-listen", before["agents"].as_str().unwrap()])
        .args(["--enroll-listen", before["enrollment"].as_str().unwrap()])
        .args(["--api-listen", before["api"].as_str().unwrap()])
        .args(["--proxy-listen", "127.0.0.1:0", "--advertise", "127.0.0.1"]);
    hub.daemon = Daemon::start(command);
    hub.daemon.wait_for("the hub is up");
    agent.wait_for(" connected ");
    hub.daemon.wait_for(" connected ");
    let output = hub.run(&["exec", "n1", "--", "true"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}
