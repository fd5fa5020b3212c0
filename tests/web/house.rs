//! A hub with one agent, and programs that stand behind it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use crate::programs::{Daemon, Hub};

/// The domain of host routes: resolvers give loopback for whatever is below `localhost`.
pub const DOMAIN: &str = "hub.localhost";

/// A hub and an agent that runs commands as plain processes.
pub struct House {
    pub hub: Hub,
    _agent: Daemon,
    _dir: tempfile::TempDir,
}

/// An exposure as a browser sees it.
pub struct Exposed {
    /// `NAME.DOMAIN:PORT`.
    pub host: String,
    /// `http://HUB/v1/data/TOKEN/`.
    pub by_token: String,
}

impl House {
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// With further flags for the hub.
    pub fn with(flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let flags = [&["--domain", DOMAIN], flags].concat();
        let mut hub = Hub::start_with(dir.path(), "127.0.0.1", None, &flags);
        let agent = hub.agent("far", "process", None, None);
        Self {
            hub,
            _agent: agent,
            _dir: dir,
        }
    }

    /// Exposes a port under a name, with further flags for `hub expose`.
    pub fn expose(&self, name: &str, port: u16, flags: &[&str]) -> Exposed {
        let port = port.to_string();
        let args = [&["expose", "far", &port, "--name", name], flags].concat();
        let exposed = self.hub.json(&args);
        let proxy = self.hub.address("proxy");
        let (_, port) = proxy.rsplit_once(':').unwrap();
        Exposed {
            host: format!("{name}.{DOMAIN}:{port}"),
            by_token: exposed["urls"][0].as_str().unwrap().to_owned(),
        }
    }

    /// Exposes a port as it is, by `--tcp` or `--udp`. Gives the address at which the hub listens.
    pub fn expose_raw(&self, port: u16, transport: &str) -> String {
        let args = ["expose", "far", &port.to_string(), transport];
        let exposed = self
            .hub
            .json(&[&args[..], &["--listen", "127.0.0.1:0"]].concat());
        exposed["listening"].as_str().unwrap().to_owned()
    }

    /// What the command line needs to find this hub.
    pub fn environment(&self) -> Vec<(String, String)> {
        let command = self.hub.cli();
        let text = |text: &std::ffi::OsStr| text.to_str().unwrap().to_owned();
        let set = command.get_envs();
        set.filter_map(|(name, value)| Some((text(name), text(value?))))
            .collect()
    }
}

/// A program that is killed when dropped.
pub struct Running {
    child: Child,
    /// Where it listens.
    pub port: u16,
}

impl Running {
    /// Starts a program and waits until it accepts connections at `port`.
    pub fn start(mut command: Command, port: u16) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let told = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        loop {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Self { child, port };
            }
            if let Some(status) = child.try_wait().unwrap() {
                panic!("{command:?} ended: {status}\n{}", told.join().unwrap());
            }
            std::thread::yield_now();
        }
    }

    /// Starts a program that prints its port as the first line.
    pub fn start_and_ask(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        // What it prints later must not make it stop.
        std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        let port = line.trim().parse();
        let port = port.unwrap_or_else(|_| panic!("{command:?} said {line:?}"));
        Self { child, port }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that nothing listens on, for programs that cannot say which they took.
pub fn free_port() -> u16 {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().port()
}

/// The Python with the packages that these tests need.
pub fn python() -> Command {
    let path = std::env::var("HUB_TEST_PYTHON").expect("HUB_TEST_PYTHON names the interpreter");
    Command::new(path)
}

/// A file beside these tests.
pub fn asset(name: &str) -> String {
    format!("{}/tests/web/assets/{name}", env!("CARGO_MANIFEST_DIR"))
}
