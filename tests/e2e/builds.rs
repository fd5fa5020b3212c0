//! `hub build` against this machine's daemon: what stops it stops there, too.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Signal, kill_process};

use crate::containers::{Image, docker, house, unique};
use crate::programs::{Daemon, Hub, stderr, stdout};
use crate::witness::{Watched, processes, until};

fn build_command(hub: &Hub, args: &[&str]) -> Command {
    let mut command = hub.cli();
    command.args([&["build", "n1"], args].concat());
    command.stdout(Stdio::null());
    command
}

/// A directory with this Dockerfile.
fn context(dir: &Path, dockerfile: &str) -> String {
    let path = dir.join("context");
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join("Dockerfile"), dockerfile).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The beginning of an archive whose only file does not end for long.
fn endless_archive(dir: &Path) -> Vec<u8> {
    let large = dir.join("large");
    std::fs::File::create(&large)
        .unwrap()
        .set_len(4 << 30)
        .unwrap();
    let mut tar = Command::new("tar")
        .args([
            "-cf",
            "-",
            "--format=pax",
            "-C",
            dir.to_str().unwrap(),
            "large",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut bytes = vec![0; 8 << 20];
    std::io::Read::read_exact(tar.stdout.as_mut().unwrap(), &mut bytes).unwrap();
    tar.kill().unwrap();
    tar.wait().unwrap();
    bytes
}

fn operations(hub: &Hub) -> u64 {
    hub.json(&["status"])["operations"].as_u64().unwrap()
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_ctrl_c_in_a_step_stops_it() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, mut agent) = house(dir.path());
    let image = Image::make(dir.path());
    let mark = unique("step");
    let dockerfile = format!(
        "FROM {}\nRUN echo {mark} be\"\"gins; sh -c 'sleep 100000; : {mark}'\n",
        image.0
    );
    let path = context(dir.path(), &dockerfile);
    let mut client = Daemon::start(build_command(&hub, &[&path]));
    client.wait_for(&format!("{mark} begins"));
    // The client itself has the mark nowhere.
    let mut step = Vec::new();
    until("the step is seen", || {
        step = processes(&mark);
        !step.is_empty()
    });
    let step: Vec<_> = step.into_iter().map(Watched::new).collect();
    kill_process(client.pid(), Signal::INT).unwrap();
    assert_eq!(client.wait(), Some(130));
    agent.wait_for("stopping a build");
    for process in &step {
        process.ends("the step of a build that was interrupted");
    }
    until("its container is gone", || {
        let filter = format!("ancestor={}", image.0);
        stdout(&docker(&["ps", "-q", "--filter", &filter])).is_empty()
    });
    assert!(processes(&mark).is_empty());
    until("the operation is gone", || operations(&hub) == 0);
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_ctrl_c_in_an_upload_stops_the_build() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, mut agent) = house(dir.path());
    let archive = endless_archive(dir.path());
    let tag = unique("upload");
    let mut command = build_command(&hub, &["-", "-t", &tag]);
    let mut child = command
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // Taken: the upload is under way, and stays so.
    stdin.write_all(&archive).unwrap();
    assert_eq!(operations(&hub), 1);
    crate::witness::signal(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    agent.wait_for("stopping a build");
    until("the operation is gone", || operations(&hub) == 0);
    assert!(stdout(&docker(&["images", "-q", &tag])).is_empty());
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_a_build_that_fails_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, _agent) = house(dir.path());
    let image = Image::make(dir.path());
    let dockerfile = format!("FROM {}\nRUN echo it goes wro\"\"ng; exit 7\n", image.0);
    let path = context(dir.path(), &dockerfile);
    let tag = unique("failed");
    let output = hub.run(&["build", "n1", &path, "-t", &tag]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(stdout(&output), "");
    assert!(said.contains("it goes wrong"), "{said}");
    let last = said.lines().last().unwrap();
    assert!(
        last.starts_with("hub: ") && last.contains("code: 7"),
        "{said}"
    );
    assert!(stdout(&docker(&["images", "-q", &tag])).is_empty());
}

/// An option that the daemon refuses ends a build long before its context does.
#[test]
#[ignore = "needs a Docker daemon"]
fn docker_a_refusal_comes_before_the_context_has_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, _agent) = house(dir.path());
    let archive = endless_archive(dir.path());
    for (option, value, text) in [
        // Right in form, and yet a name that Docker keeps for ids: the daemon says so.
        ("-t", "0a".repeat(32), "hexadecimal"),
        // What cannot be right the daemon is not asked. A refusal is a refusal all the same.
        ("-t", "Upper/CASE".to_owned(), "lower case"),
        ("--platform", "no/such/thing/at/all".to_owned(), "platform"),
    ] {
        let mut child = build_command(&hub, &["-", option, &value])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let feed = archive.clone();
        // Open for as long as anybody takes anything.
        let feeder = std::thread::spawn(move || while stdin.write_all(&feed).is_ok() {});
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{value}: {said}");
        assert!(said.contains(text), "{value}: {said}");
    }
}
