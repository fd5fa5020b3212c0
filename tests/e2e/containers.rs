//! The commands about containers, images and the Docker socket, against this machine's daemon.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

use crate::programs::{Daemon, Hub, stderr, stdout};
use crate::terminal::Terminal;

/// A name that nothing else on this machine has.
pub fn unique(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("hub-e2e-{what}-{}-{count}", std::process::id())
}

pub fn docker(args: &[&str]) -> Output {
    Command::new("docker").args(args).output().unwrap()
}

/// An image of busybox; removed at the end, with all containers of it.
pub struct Image(pub String);

impl Image {
    pub fn make(dir: &Path) -> Self {
        let root = dir.join("root/bin");
        std::fs::create_dir_all(&root).unwrap();
        std::fs::copy("/bin/busybox", root.join("busybox")).unwrap();
        for name in [
            "sh", "cat", "sleep", "stty", "echo", "head", "wc", "true", "md5sum",
        ] {
            std::os::unix::fs::symlink("busybox", root.join(name)).unwrap();
        }
        let archive = dir.join("root.tar");
        let root = dir.join("root");
        let mut tar = Command::new("tar");
        tar.arg("-cf").arg(&archive).arg("-C").arg(root).arg(".");
        assert!(tar.status().unwrap().success());
        let name = unique("image");
        let imported = docker(&["import", archive.to_str().unwrap(), &name]);
        assert!(imported.status.success(), "{}", stderr(&imported));
        Self(name)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let filter = format!("ancestor={}", self.0);
        for id in stdout(&docker(&["ps", "-aq", "--filter", &filter])).lines() {
            docker(&["rm", "-f", "-v", id]);
        }
        docker(&["rmi", "-f", &self.0]);
    }
}

/// A hub with the node `n1`, which carries its Docker socket, too.
pub fn house(dir: &Path) -> (Hub, Daemon) {
    let mut hub = Hub::start(dir, "127.0.0.1", None);
    let token = hub.json(&["token", "create"])["token"].clone();
    let mut command = hub.agent_command("n1", "docker", None);
    command
        .arg("--allow-docker-api")
        .env("HUB_JOIN_TOKEN", token.as_str().unwrap());
    let mut agent = Daemon::start(command);
    agent.wait_for("connected");
    hub.daemon.wait_for(" connected ");
    (hub, agent)
}

pub fn success(hub: &Hub, args: &[&str]) -> String {
    let output = hub.run(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_a_container_from_create_to_rm() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, _agent) = house(dir.path());
    let image = Image::make(dir.path());
    let name = unique("box");
    let at = format!("n1/{name}");
    let script = "echo $A; printf err >&2; exec sleep 1000";
    let id = success(
        &hub,
        &[
            "create",
            "--name",
            &name,
            "--network",
            "none",
            "-e",
            "A=out",
            "-l",
            "hub-e2e=yes",
            "n1",
            &image.0,
            "--",
            "sh",
            "-c",
            script,
        ],
    );
    assert_eq!(id.trim().len(), 64, "{id}");
    let filter = format!("name={name}");
    let listed = |args: &[&str]| success(&hub, &[&["ps", "n1", "-f", &filter], args].concat());
    assert!(!listed(&[]).contains(&name) && listed(&["-a"]).contains(&name));
    assert_eq!(success(&hub, &["start", &at]), format!("{at}\n"));
    assert!(listed(&[]).contains("Up "));
    let outside = success(&hub, &["exec", &at, "--", "sh", "-c", "echo $A"]);
    assert_eq!(outside, "out\n");
    let stats = hub.json(&["stats", "--no-stream", &at]);
    assert_eq!(stats["name"], name.as_str());
    success(&hub, &["update", "-m", "64m", &at]);
    assert_eq!(success(&hub, &["stop", "-t", "0", &at]), format!("{at}\n"));
    let inspected = hub.json(&["inspect", &at]);
    assert_eq!(inspected[0]["state"], "exited");
    assert_eq!(inspected[0]["exit"]["exit_code"], 137);
    assert_eq!(inspected[0]["resources"]["memory"], 64 << 20);

    let logs = hub.run(&["logs", &at]);
    assert_eq!(
        (&logs.stdout[..], &logs.stderr[..]),
        (&b"out\n"[..], &b"err"[..])
    );
    let timed = success(&hub, &["logs", "-t", "--tail", "1", &at]);
    assert!(timed.contains("Z out\n") || timed.is_empty(), "{timed}");
    let filter = format!("container={name}");
    let events = success(
        &hub,
        &[
            "events", "n1", "--since", "1h", "--until", "0s", "-f", &filter,
        ],
    );
    for action in ["create", "start", "die"] {
        let found = events.lines().any(|line| {
            line.starts_with("n1 ") && line.contains(&format!(" container {action} {}", id.trim()))
        });
        assert!(found, "{action}: {events}");
    }

    success(&hub, &["rm", &at]);
    let gone = hub.run(&["rm", &at]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(stderr(&gone).contains("no container"), "{}", stderr(&gone));
    success(&hub, &["rm", "-f", &at]);
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_run_follows_to_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, _agent) = house(dir.path());
    let image = Image::make(dir.path());
    let name = unique("run");
    let script = "echo out; echo err >&2; exit 3";
    let output = hub.run(&[
        "run",
        "--rm",
        "--name",
        &name,
        "--network",
        "none",
        "n1",
        &image.0,
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!((&*stdout(&output), &*stderr(&output)), ("out\n", "err\n"));
    assert_eq!(output.status.code(), Some(3));
    let filter = format!("name={name}");
    assert_eq!(success(&hub, &["ps", "-aq", "n1", "-f", &filter]), "");
    let missing = hub.run(&["logs", &format!("n1/{name}")]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr(&missing).contains(&name), "{}", stderr(&missing));
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_images_move_as_archives() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, _agent) = house(dir.path());
    let image = Image::make(dir.path());
    let archive = dir.path().join("image.tar");
    let archive = archive.to_str().unwrap();
    success(&hub, &["save", "-o", archive, "n1", &image.0]);
    assert!(success(&hub, &["images", "n1"]).contains(&image.0));
    assert_eq!(
        success(&hub, &["rmi", "n1", &image.0]),
        format!("{}\n", image.0)
    );
    assert!(!success(&hub, &["images", "n1"]).contains(&image.0));
    let again = hub.run(&["rmi", "n1", &image.0]);
    assert_eq!(again.status.code(), Some(1), "{}", stderr(&again));
    let loaded = success(&hub, &["load", "-i", archive, "n1"]);
    assert!(loaded.contains(&image.0), "{loaded}");
    assert!(success(&hub, &["images", "n1"]).contains(&image.0));
    let missing = hub.run(&["save", "-o", archive, "n1", "hub-e2e-no-such-image"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        stderr(&missing).contains("hub-e2e-no-such-image"),
        "{}",
        stderr(&missing)
    );
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_volumes_and_networks_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, _agent) = house(dir.path());
    let name = unique("volume");
    assert_eq!(
        success(&hub, &["volume", "create", "n1", &name]),
        format!("{name}\n")
    );
    success(&hub, &["volume", "create", "n1", &name]);
    assert!(success(&hub, &["volume", "ls", "n1", "--prefix", &name]).contains("local"));
    success(&hub, &["volume", "rm", "n1", &name]);
    assert_eq!(
        hub.run(&["volume", "rm", "n1", &name]).status.code(),
        Some(1)
    );
    let networks = hub.json(&["network", "ls", "n1"]);
    let named = |name: &str| {
        networks
            .as_array()
            .unwrap()
            .iter()
            .any(|found| found["name"] == name)
    };
    assert!(named("none") && named("host"), "{networks}");
}

/// The docker programs of this machine, by their directories.
fn docker_programs() -> Vec<PathBuf> {
    ["/usr/bin", "/usr/local/bin"]
        .map(PathBuf::from)
        .into_iter()
        .filter(|directory| directory.join("docker").exists())
        .collect()
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_programs_run_against_a_node() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, _agent) = house(dir.path());
    let image = Image::make(dir.path());
    for directory in docker_programs() {
        let path = format!("{}:/usr/bin:/bin", directory.display());
        let run = |args: &[&str], input: &[u8]| {
            let mut child = hub
                .cli()
                .args([&["docker", "n1", "--"], args].concat())
                .env("PATH", &path)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            child.stdin.take().unwrap().write_all(input).unwrap();
            child.wait_with_output().unwrap()
        };
        let images = run(&["images", "-q", &image.0], b"");
        assert_eq!(
            stdout(&images),
            stdout(&docker(&["images", "-q", &image.0]))
        );
        // Attached: both directions, each ended by itself, and an exit code.
        let script = "cat; echo err >&2; exit 5";
        let args = [
            "run",
            "-i",
            "--rm",
            "--network",
            "none",
            &image.0,
            "sh",
            "-c",
            script,
        ];
        let sent: Vec<u8> = (0..60_000u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        let output = run(&args, &sent);
        assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
        assert!(output.stdout == sent && stderr(&output) == "err\n");
        let saved = run(&["save", &image.0], b"");
        assert!(saved.status.success() && saved.stdout.len() > 500_000);
        let loaded = run(&["load"], &saved.stdout);
        assert!(stdout(&loaded).contains(&image.0), "{}", stderr(&loaded));
        let missing = run(&["inspect", "hub-e2e-nothing"], b"");
        assert_eq!(missing.status.code(), Some(1));
    }
    let mut terminal = Terminal::start(
        &hub,
        &[
            "docker",
            "n1",
            "--",
            "run",
            "-it",
            "--rm",
            "--network",
            "none",
            &image.0,
            "sh",
            "-c",
            "stty size; echo rea\"\"dy; cat; exit 9",
        ],
    );
    terminal.wait_for("ready");
    terminal.type_in("typed\r");
    terminal.wait_for("typed\r\ntyped\r\n");
    terminal.type_in("\x04");
    assert_eq!(terminal.ends(), Some(9));
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_a_socket_here_is_a_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let (mut hub, mut agent) = house(dir.path());
    let path = dir.path().join("docker.sock");
    let address = format!("unix://{}", path.display());
    // Left by somebody who was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut keeper = hub
        .cli()
        .args(["docker-socket", "n1", "--listen", &address])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(keeper.stderr.take().unwrap()).lines();
    assert!(said.next().unwrap().unwrap().contains(&address));
    let second = hub.run(&["docker-socket", "n1", "--listen", &address]);
    assert!(
        stderr(&second).contains("somebody listens"),
        "{}",
        stderr(&second)
    );
    let names = |host: &str| stdout(&docker(&["-H", host, "info", "-f", "{{.ID}}"]));
    let id = names(&address);
    let own = std::env::var("DOCKER_HOST");
    let own = own.unwrap_or_else(|_| "unix:///var/run/docker.sock".into());
    assert_eq!((id.trim().is_empty(), &id), (false, &names(&own)));
    agent.terminate();
    hub.daemon.wait_for("away: ");
    assert!(!docker(&["-H", &address, "version"]).status.success());
    assert!(said.next().unwrap().unwrap().contains("n1"));
    kill_process(Pid::from_child(&keeper), Signal::TERM).unwrap();
    assert_eq!(keeper.wait().unwrap().code(), Some(0));
    assert!(!path.exists());
}
