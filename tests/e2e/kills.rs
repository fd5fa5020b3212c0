//! Programs that die at the worst moment.

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

/// A hub that dies comes back with its ledger, and the agent with it.
#[test]
fn a_killed_hub_keeps_its_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let mut agent = hub.agent("n1", "process", None, None);
    hub.kill();
    hub.start_again();
    agent.wait_for(" connected ");
    hub.daemon.wait_for(" connected ");
    let output = hub.run(&["exec", "n1", "--", "true"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}
