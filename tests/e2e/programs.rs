//! Starts the programs and waits for what they say.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than anything takes on a machine that works; what never comes fails here.
const PATIENCE: Duration = Duration::from_secs(90);

/// A program, in a network namespace if it is to be in one.
pub fn program(name: &str, namespace: Option<&str>) -> Command {
    let path = match name {
        "hub" => env!("CARGO_BIN_EXE_hub"),
        "hub-server" => env!("CARGO_BIN_EXE_hub-server"),
        "hub-agent" => env!("CARGO_BIN_EXE_hub-agent"),
        other => other,
    };
    let mut command = match namespace {
        None => Command::new(path),
        Some(namespace) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace, path]);
            command
        }
    };
    command.stdin(Stdio::null());
    command
}

/// A daemon that runs; killed when dropped.
pub struct Daemon {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Daemon {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            lines,
            seen: Vec::new(),
        }
    }

    /// Waits for a line of the log with this text, from where the last wait ended.
    pub fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                }
                Err(error) => {
                    let why = match error {
                        RecvTimeoutError::Timeout => "it did not come",
                        RecvTimeoutError::Disconnected => "the program has ended",
                    };
                    panic!(
                        "waiting for {text:?}: {why}; its log:\n{}",
                        self.seen.join("\n")
                    );
                }
            }
        }
    }

    /// The lines so far, and those that wait.
    pub fn log(&mut self) -> String {
        self.seen.extend(self.lines.try_iter());
        self.seen.join("\n")
    }

    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// SIGKILL, as by the kernel.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and waits for the end. Gives the exit code.
    pub fn terminate(&mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.wait()
    }

    /// Waits for the end. Gives the exit code; `None` by a signal.
    pub fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of pid {}\n{}", self.child.id(), self.log());
        }
    }
}

/// A hub on loopback, or at an address of its namespace.
pub struct Hub {
    pub daemon: Daemon,
    pub dir: PathBuf,
    pub ready: Value,
    namespace: Option<String>,
}

impl Hub {
    pub fn start(dir: &Path, address: &str, namespace: Option<&str>) -> Self {
        Self::start_with(dir, address, namespace, &[])
    }

    /// With further flags.
    pub fn start_with(dir: &Path, address: &str, namespace: Option<&str>, flags: &[&str]) -> Self {
        let ready_file = dir.join("ready.json");
        let any = format!("{address}:0");
        let mut command = program("hub-server", namespace);
        command
            .arg("--data-dir")
            .arg(dir.join("hub"))
            .arg("--ready-file")
            .arg(&ready_file)
            .args([
                "--agent-listen",
                &any,
                "--enroll-listen",
                &any,
                "--proxy-listen",
                &any,
            ])
            .args(["--api-listen", "127.0.0.1:0", "--advertise", address])
            .args(flags);
        let mut daemon = Daemon::start(command);
        daemon.wait_for("the hub is up");
        let ready = serde_json::from_slice(&std::fs::read(ready_file).unwrap()).unwrap();
        Self {
            daemon,
            dir: dir.to_owned(),
            ready,
            namespace: namespace.map(str::to_owned),
        }
    }

    /// Kills the hub.
    pub fn kill(&mut self) {
        self.daemon.kill();
    }

    /// Starts the hub again after its end: the same data, at the same addresses.
    pub fn start_again(&mut self) {
        let mut command = program("hub-server", self.namespace.as_deref());
        command
            .arg("--data-dir")
            .arg(self.dir.join("hub"))
            .args(["--agent-listen", self.address("agents")])
            .args(["--enroll-listen", self.address("enrollment")])
            .args(["--api-listen", self.address("api")])
            .args(["--proxy-listen", self.address("proxy")])
            .args(["--advertise", "127.0.0.1"]);
        self.daemon = Daemon::start(command);
        self.daemon.wait_for("the hub is up");
    }

    pub fn address(&self, of: &str) -> &str {
        self.ready[of].as_str().unwrap()
    }

    /// `hub …`, set up to find this hub.
    pub fn cli(&self) -> Command {
        let mut command = program("hub", self.namespace.as_deref());
        command
            .env("HUB_API", format!("http://{}", self.address("api")))
            .env("HUB_TOKEN_FILE", self.dir.join("hub/api-token"));
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.cli().args(args).stdin(Stdio::null()).output().unwrap()
    }

    /// `hub … --json`, which must succeed.
    pub fn json(&self, args: &[&str]) -> Value {
        let output = self.cli().arg("--json").args(args).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {stderr}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// An agent of this hub, joined and connected.
    pub fn agent(
        &mut self,
        name: &str,
        runtime: &str,
        namespace: Option<&str>,
        kill_at: Option<&str>,
    ) -> Daemon {
        let mut command = self.agent_command(name, runtime, namespace);
        if let Some(point) = kill_at {
            command.env("HUB_KILL_AT", point);
        }
        self.join(command)
    }

    /// Starts an agent that has not joined before, and waits until it is connected.
    pub fn join(&mut self, mut command: Command) -> Daemon {
        let token = self.json(&["token", "create"])["token"]
            .as_str()
            .unwrap()
            .to_owned();
        command.env("HUB_JOIN_TOKEN", token);
        let mut agent = Daemon::start(command);
        agent.wait_for("connected");
        self.daemon.wait_for(" connected ");
        agent
    }

    /// The command of an agent that may have joined before.
    pub fn agent_command(&self, name: &str, runtime: &str, namespace: Option<&str>) -> Command {
        let mut command = program("hub-agent", namespace);
        command
            .arg("--data-dir")
            .arg(self.dir.join(name))
            .args([
                "--hub",
                self.address("agents"),
                "--enroll",
                self.address("enrollment"),
            ])
            .args([
                "--ca",
                self.address("ca"),
                "--name",
                name,
                "--runtime",
                runtime,
            ]);
        command
    }
}

/// Standard output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
