//! Two ways to one Docker daemon, and what a command says on each.
//!
//! ```text
//! direct  docker ----------------------------------------------------> the daemon's socket
//! tunnel  docker --> hub docker-socket --> hub-server --> hub-agent --> the daemon's socket
//! ```
//!
//! [`Ways::same`] runs a command on both and holds what it prints and its exit code against each
//! other, after [`Said::plain`] took out what differs between any two runs.

use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use regex::{Captures, Regex};

use crate::programs::{Daemon, Hub, program};

/// The node's name.
pub const NODE: &str = "n1";

/// What the image has beside busybox itself.
const APPLETS: &str = "cat date dd echo env false grep head hostname id kill ls md5sum mkdir ps rm \
                       sh sleep stty tail tar touch tr true tty wc";

/// Output of this many bytes is data: it has to be the same as it is.
const MUCH: usize = 16 * 1024;

/// A docker CLI at one end of a way.
pub struct Way {
    /// The value of `DOCKER_HOST`.
    host: String,
    /// What the names of all that is made on this way begin with.
    prefix: String,
    docker: PathBuf,
    config: PathBuf,
}

impl Way {
    /// `docker ARGS…`
    pub fn docker(&self, args: &[&str]) -> Command {
        let mut command = self.program(&self.docker);
        command.args(args);
        command
    }

    /// `docker ARGS…` with its standard error in its standard output, as the same process.
    pub fn docker_in_one(&self, args: &[&str]) -> Command {
        let mut command = self.program("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 2>&1"]);
        command.arg(&self.docker).args(args);
        command
    }

    /// Some program that finds the daemon on this way.
    pub fn program(&self, path: impl AsRef<Path>) -> Command {
        let mut command = Command::new(path.as_ref());
        command
            .env("DOCKER_HOST", &self.host)
            .env("DOCKER_CONFIG", &self.config)
            .env_remove("DOCKER_CONTEXT")
            .env_remove("DOCKER_BUILDKIT")
            .stdin(Stdio::null());
        command
    }

    /// `docker ARGS…`, and what it said.
    pub fn run(&self, args: &[&str]) -> Said {
        Said::of(self.docker(args))
    }

    /// A name that no other way and no other test has.
    pub fn name(&self, what: &str) -> String {
        format!("{}{what}", self.prefix)
    }
}

/// What a command said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// `None` where a signal ended it.
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Said {
    /// Runs it to its end.
    pub fn of(command: Command) -> Self {
        Self::fed(command, &[])
    }

    /// Runs it to its end with this on standard input, half-closed after it if it is anything.
    pub fn fed(mut command: Command, stdin: &[u8]) -> Self {
        if !stdin.is_empty() {
            command.stdin(Stdio::piped());
        }
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::scope(|scope| {
            if let Some(mut pipe) = child.stdin.take() {
                // A command that reads no further is a result like any other.
                scope.spawn(move || pipe.write_all(stdin));
            }
            Self::of_child(child)
        })
    }

    /// The rest of what a running one says.
    pub fn of_child(child: Child) -> Self {
        let output = child.wait_with_output().unwrap();
        Self {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// What was on a terminal.
    pub fn on_screen(code: Option<i32>, screen: String) -> Self {
        let stdout = screen.into_bytes();
        let stderr = String::new();
        Self {
            code,
            stdout,
            stderr,
        }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The same with the lines in order, once each: what says several things at once says them in
    /// any order, and progress as often as there is time for.
    pub fn sorted(self) -> Self {
        let sort = |text: &str| {
            let mut lines: Vec<_> = text.lines().map(plain).collect();
            lines.sort_unstable();
            lines.dedup();
            lines.join("\n")
        };
        Self {
            code: self.code,
            stdout: sort(&String::from_utf8_lossy(&self.stdout)).into_bytes(),
            stderr: sort(&self.stderr),
        }
    }

    /// Without ids, times, numbers of steps and the names of this way.
    pub fn plain(&self, way: &Way) -> Self {
        let plain = |text: &str| {
            plain(
                &text
                    .replace(&way.prefix, "NAME-")
                    .replace(&way.host, "HOST"),
            )
        };
        Self {
            code: self.code,
            stdout: match std::str::from_utf8(&self.stdout) {
                Ok(text) if text.len() < MUCH => plain(text).into_bytes(),
                _ => self.stdout.clone(),
            },
            stderr: plain(&self.stderr),
        }
    }

    /// For a person: all of it, or how much where it is much.
    fn show(&self) -> String {
        let stdout = match self.stdout.len() {
            0..MUCH => format!("{:?}", self.text()),
            many => format!("{many} bytes"),
        };
        format!("{:?} {stdout} {:?}", self.code, self.stderr)
    }
}

/// Text without what differs between any two runs.
fn plain(text: &str) -> String {
    const RULES: [(&str, &str); 8] = [
        // Docker's client of 20.10 says this of itself where a start failed, if it gets to it.
        (
            r"(?mu)^time=.* msg=.error waiting for container: context canceled.\n",
            "",
        ),
        (r"\b(sha256:)?([0-9a-f]{64}|[0-9a-f]{12})\b", "ID"),
        (
            r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( ?(Z|[+-]\d\d:?\d\d))?",
            "TIME",
        ),
        (
            r"(About )?(an?|\d+|Less than a) (second|minute|hour)s?( ago)?",
            "AGO",
        ),
        // What BuildKit puts before a line, and after it.
        (r"(?m)^#\d+ (\d+\.\d+ )?", "# "),
        (r"\b\d+\.\d+s\b", "SECONDS"),
        // Figures of a container that runs.
        (r"\d+(\.\d+)?(%|[kKMGT]?i?B\b)", "SIZE"),
        // Columns are as wide as what they held.
        (r" {2,}", " "),
    ];
    static COMPILED: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
        // The classes are those of ASCII.
        let compile = |(rule, by)| (Regex::new(&format!("(?-u){rule}")).unwrap(), by);
        RULES.into_iter().map(compile).collect()
    });
    COMPILED.iter().fold(text.to_owned(), |text, (rule, by)| {
        rule.replace_all(&text, |_: &Captures| *by).into_owned()
    })
}

/// A hub, an agent that gives its Docker socket, and the socket that leads there.
pub struct Ways {
    pub hub: Hub,
    _agent: Daemon,
    _socket: Daemon,
    dir: tempfile::TempDir,
    direct: String,
    tunnel: String,
    prefix: String,
    /// The docker CLIs of this machine.
    clis: Vec<PathBuf>,
    differ: RefCell<Vec<String>>,
}

impl Ways {
    pub fn open(test: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
        let mut agent = hub.agent_command(NODE, "docker", None);
        agent.arg("--allow-docker-api");
        let agent = hub.join(agent);
        let tunnel = format!("unix://{}", dir.path().join("docker.sock").display());
        let mut socket = hub.cli();
        socket.args(["docker-socket", NODE, "--listen", &tunnel]);
        let mut socket = Daemon::start(socket);
        socket.wait_for("the Docker of");
        std::fs::create_dir(dir.path().join("config")).unwrap();
        let direct = std::env::var("DOCKER_HOST");
        let ways = Self {
            hub,
            _agent: agent,
            _socket: socket,
            direct: direct.unwrap_or_else(|_| "unix:///var/run/docker.sock".into()),
            tunnel,
            prefix: format!("hub-cli-{test}-{}-", std::process::id()),
            clis: clis(),
            differ: RefCell::default(),
            dir,
        };
        // What every test needs: a small image.
        let root = ways.dir.path().join("root");
        make_root(&root);
        let label = format!("LABEL {}", ways.label());
        let changes = ["-c", "ENV PATH=/bin", "-c", &label];
        let image = ways.image();
        let args = [&["import"], &changes[..], &["-", &image]].concat();
        let imported = Said::fed(ways.direct().docker(&args), &tar(&root));
        assert_eq!(imported.code, Some(0), "{}", imported.stderr);
        ways
    }

    /// A directory for the files of this test.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The label of all that the test makes.
    pub fn label(&self) -> String {
        format!("hub-cli={}", self.prefix)
    }

    /// The small image, with busybox in it.
    pub fn image(&self) -> String {
        format!("{}base:1", self.prefix)
    }

    pub fn clis(&self) -> &[PathBuf] {
        &self.clis
    }

    fn way(&self, cli: usize, host: &str, letter: char) -> Way {
        Way {
            host: host.to_owned(),
            prefix: format!("{}{cli}{letter}-", self.prefix),
            docker: self.clis[cli].clone(),
            config: self.dir.path().join("config"),
        }
    }

    /// The way that the first CLI has without a hub.
    pub fn direct(&self) -> Way {
        self.way(0, &self.direct, 'd')
    }

    /// The way that a CLI has through the hub.
    pub fn tunnel(&self, cli: usize) -> Way {
        self.way(cli, &self.tunnel, 't')
    }

    /// Does this on both ways with each CLI. What it says has to be the same, and to end with this
    /// exit code. Differences are kept for [`Self::finish`].
    pub fn same(&self, what: &str, code: impl Into<Option<i32>>, run: impl Fn(&Way) -> Said) {
        let code = code.into();
        for (number, cli) in self.clis.iter().enumerate() {
            self.compare(what, code, number, cli, &run);
        }
    }

    /// The same with one of the CLIs.
    pub fn same_with(
        &self,
        cli: &Path,
        what: &str,
        code: impl Into<Option<i32>>,
        run: impl Fn(&Way) -> Said,
    ) {
        let number = self.clis.iter().position(|each| each == cli).unwrap();
        self.compare(what, code.into(), number, cli, &run);
    }

    fn compare(
        &self,
        what: &str,
        code: Option<i32>,
        number: usize,
        cli: &Path,
        run: &impl Fn(&Way) -> Said,
    ) {
        let [direct, tunnel] = [(&self.direct, 'd'), (&self.tunnel, 't')].map(|(host, letter)| {
            let way = self.way(number, host, letter);
            run(&way).plain(&way)
        });
        let cli = cli.display();
        if direct.code != code {
            let said = direct.show();
            panic!("{cli}: {what}: {code:?} is wanted without a hub, too: {said}");
        }
        if direct != tunnel {
            let mut differ = self.differ.borrow_mut();
            let (direct, tunnel) = (direct.show(), tunnel.show());
            differ.push(format!(
                "{cli}: {what}\n  direct: {direct}\n  tunnel: {tunnel}"
            ));
        }
    }

    /// How many operations are under way at the node.
    pub fn operations(&self) -> u64 {
        let nodes = self.hub.json(&["node", "ls"]);
        let operations = nodes.pointer("/nodes/0/session/operations");
        operations.and_then(serde_json::Value::as_u64).unwrap()
    }

    /// Waits until the node does nothing any more.
    pub fn wait_until_idle(&self, what: &str) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while self.operations() > 0 {
            let now = std::time::Instant::now();
            assert!(now < deadline, "{what}: an operation is left");
        }
    }

    /// Nothing differed.
    pub fn finish(self) {
        let differ = self.differ.take();
        assert!(differ.is_empty(), "{}", differ.join("\n"));
    }
}

impl Drop for Ways {
    /// Removes what the test made, and nothing else: everything is made of an image with its label,
    /// and so has that, too.
    fn drop(&mut self) {
        let way = self.direct();
        let filter = format!("label={}", self.label());
        let listed = |of: &[&str]| {
            let args = [of, &["-a", "-q", "--no-trunc", "--filter", &filter]].concat();
            let mut ids: Vec<_> = way.run(&args).text().lines().map(str::to_owned).collect();
            ids.dedup();
            ids
        };
        for id in listed(&["ps"]) {
            way.run(&["rm", "-f", "-v", &id]);
        }
        // One that others are made of goes after them.
        let mut left = usize::MAX;
        loop {
            let images = listed(&["images"]);
            if images.is_empty() || images.len() >= left {
                return;
            }
            left = images.len();
            for id in images {
                way.run(&["rmi", "-f", &id]);
            }
        }
    }
}

/// The docker CLIs of this machine: the first on the path, and the distribution's.
fn clis() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap();
    let first = std::env::split_paths(&path).map(|dir| dir.join("docker"));
    let mut found: Vec<PathBuf> = Vec::new();
    for cli in first.chain(["/usr/bin/docker".into()]) {
        let known = |known: &PathBuf| known.canonicalize().ok() == cli.canonicalize().ok();
        if cli.is_file() && !found.iter().any(known) {
            found.push(cli);
        }
    }
    assert!(!found.is_empty(), "there is no docker CLI");
    for cli in &found {
        let version = Said::of({
            let mut command = program(&cli.display().to_string(), None);
            command.arg("--version");
            command
        });
        eprintln!("{}: {}", cli.display(), version.text().trim());
    }
    if let [only] = &found[..] {
        eprintln!("skipped: a second docker CLI (only {})", only.display());
    }
    found
}

fn make_root(root: &Path) {
    let bin = root.join("bin");
    for dir in ["bin", "etc", "root", "tmp"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    let busybox = ["/bin/busybox", "/usr/bin/busybox"];
    let busybox = busybox.iter().find(|path| Path::new(path).exists());
    std::fs::copy(busybox.unwrap(), bin.join("busybox")).unwrap();
    for applet in APPLETS.split_whitespace() {
        std::os::unix::fs::symlink("busybox", bin.join(applet)).unwrap();
    }
    std::fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
    std::fs::write(root.join("etc/group"), "root:x:0:\n").unwrap();
}

/// A tar of what is in a directory.
pub fn tar(dir: &Path) -> Vec<u8> {
    let mut child = Command::new("tar")
        .args(["-c", "--sort=name", "--mtime=@0", "--owner=0", "--group=0"])
        .arg("-C")
        .arg(dir)
        .arg(".")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut tar = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut tar).unwrap();
    assert!(child.wait().unwrap().success());
    tar
}
