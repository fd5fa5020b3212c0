//! `hub exec -it` at a real pseudo-terminal, against commands that run as processes.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

use crate::programs::{Hub, stderr};

const PATIENCE: Duration = Duration::from_secs(60);

/// A program at a terminal, and the person before it.
pub struct Terminal {
    controller: File,
    user: OwnedFd,
    child: Child,
    seen: Vec<u8>,
}

fn window(cols: u16, rows: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

impl Terminal {
    pub fn start(hub: &Hub, args: &[&str]) -> Self {
        let mut command = hub.cli();
        command.args(args);
        Self::open(command)
    }

    /// Starts a command at a terminal of 80 columns and 24 rows.
    pub fn open(mut command: Command) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let user = rustix::fs::open(&*name, flags, Mode::empty()).unwrap();
        tcsetwinsize(&user, window(80, 24)).unwrap();
        let end = || Stdio::from(user.try_clone().unwrap());
        let child = command
            .env("TERM", "vt100")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        Self {
            controller: File::from(controller),
            user,
            child,
            seen: Vec::new(),
        }
    }

    fn shell(hub: &Hub, args: &[&str]) -> Self {
        // A prompt that no typed line holds as it is.
        let shell = ["n1", "--", "sh", "-c", "PS1=\"rea\"\"dy> \" exec sh -i"];
        let mut terminal = Self::start(hub, &[&["exec", "-it"], args, &shell].concat());
        terminal.wait_for("ready> ");
        terminal
    }

    pub fn type_in(&mut self, keys: &str) {
        self.type_bytes(keys.as_bytes());
    }

    pub fn type_bytes(&mut self, keys: &[u8]) {
        self.controller.write_all(keys).unwrap();
    }

    /// Waits for text on the screen, from where the last wait ended, and gives what came with it.
    pub fn wait_for(&mut self, text: &str) -> String {
        String::from_utf8_lossy(&self.wait_for_bytes(text.as_bytes())).into_owned()
    }

    /// The same for what may be no text.
    pub fn wait_for_bytes(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut looked = 0;
        loop {
            let found = self.seen[looked..]
                .windows(bytes.len())
                .position(|window| window == bytes);
            if let Some(at) = found {
                let rest = self.seen.split_off(looked + at + bytes.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            looked = (self.seen.len() + 1).saturating_sub(bytes.len());
            let timeout = Timespec::try_from(PATIENCE).unwrap();
            let ready = poll(
                &mut [PollFd::new(&self.controller, PollFlags::IN)],
                Some(&timeout),
            );
            let text = || {
                (
                    String::from_utf8_lossy(bytes),
                    String::from_utf8_lossy(&self.seen),
                )
            };
            assert_eq!(ready.unwrap(), 1, "waiting: {:?}", text());
            let mut read = [0; 4096];
            let count = self.controller.read(&mut read).unwrap();
            self.seen.extend_from_slice(&read[..count]);
        }
    }

    /// Runs a line of shell and gives what it prints.
    fn line(&mut self, line: &str) -> String {
        self.type_in(&format!("{line}\r"));
        self.wait_for("ready> ")
    }

    pub fn resize(&self, cols: u16, rows: u16) {
        tcsetwinsize(&self.user, window(cols, rows)).unwrap();
        // The kernel tells a foreground job; this one has no job control.
        kill_process(Pid::from_child(&self.child), Signal::WINCH).unwrap();
    }

    fn modes(&self) -> String {
        format!("{:?}", tcgetattr(&self.user).unwrap())
    }

    /// What is on the screen from where the last wait ended, once the program has ended.
    pub fn rest(&mut self) -> String {
        loop {
            let mut waits = [PollFd::new(&self.controller, PollFlags::IN)];
            let ready = poll(&mut waits, Some(&Timespec::default())).unwrap();
            if ready == 0 || !waits[0].revents().contains(PollFlags::IN) {
                let rest = std::mem::take(&mut self.seen);
                return String::from_utf8_lossy(&rest).into_owned();
            }
            let mut read = [0; 4096];
            let count = self.controller.read(&mut read).unwrap();
            self.seen.extend_from_slice(&read[..count]);
        }
    }

    /// Waits for the end of the program. Gives its exit code; `None` by a signal.
    pub fn ends(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_terminal_has_size_keys_and_codes() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let _agent = hub.agent("n1", "process", None, None);
    let mut terminal = Terminal::start(&hub, &["exec", "n1", "--", "true"]);
    let before = terminal.modes();
    assert_eq!(terminal.ends(), Some(0));

    let mut terminal = Terminal::shell(&hub, &[]);
    assert_ne!(terminal.modes(), before, "the terminal is not raw");
    assert!(terminal.line("stty size").contains("24 80"));
    assert!(
        terminal
            .line("echo $TERM; tty")
            .contains("vt100\r\n/dev/pts/")
    );
    // Ctrl-C is a key of the far terminal.
    // What is in the foreground prints it.
    terminal.type_in("sh -c 'echo beg\"\"in; exec sleep 1000'\r");
    terminal.wait_for("begin");
    terminal.type_in("\x03");
    terminal.wait_for("ready> ");
    assert!(terminal.line("echo $?").contains("130"));
    terminal.type_in("exit 7\r");
    assert_eq!(terminal.ends(), Some(7));
    assert_eq!(terminal.modes(), before);
}

#[test]
fn a_terminal_may_change_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let _agent = hub.agent("n1", "process", None, None);
    let mut terminal = Terminal::shell(&hub, &[]);
    for side in 41..51 {
        terminal.resize(100, side);
    }
    let last = Instant::now() + PATIENCE;
    while !terminal.line("stty size").contains("50 100") {
        assert!(
            Instant::now() < last,
            "no other size came: {}",
            terminal.line("stty size")
        );
    }
}

#[test]
fn a_person_may_leave_and_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let _agent = hub.agent("n1", "process", None, None);
    let mut terminal = Terminal::shell(&hub, &["--detach-keys", "ctrl-a,x"]);
    terminal.line("mine=42");
    terminal.type_in("\x01x");
    terminal.wait_for("hub exec attach n1 ");
    let id = terminal.wait_for("\n").trim().to_owned();
    assert_eq!(terminal.ends(), Some(0));

    let listed = hub.json(&["exec", "ls", "n1"]);
    assert_eq!(listed[0]["id"], id.as_str());
    assert_eq!(listed[0]["state"], "running");
    let status = hub.run(&["exec", "status", "n1", &id]);
    assert_eq!(crate::programs::stdout(&status), "running\n");

    let mut terminal = Terminal::start(&hub, &["exec", "attach", "n1", &id]);
    // What was printed before somebody left was seen.
    terminal.wait_for("bytes of output came before");
    assert!(terminal.line("echo its $mine").contains("its 42"));
    terminal.type_in("\x10\x11");
    terminal.wait_for("hub exec attach n1 ");
    assert_eq!(terminal.ends(), Some(0));
    let mut terminal = Terminal::start(&hub, &["exec", "attach", "n1", &id]);
    // From here on what it prints is remembered.
    terminal.wait_for("its 42");
    terminal.wait_for("ready> ");
    assert!(terminal.line("echo still $mine").contains("still 42"));
    terminal.type_in("exit 3\r");
    assert_eq!(terminal.ends(), Some(3));
    // How it ended was told: there is nothing left to keep.
    let status = hub.run(&["exec", "status", "n1", &id]);
    assert_eq!(status.status.code(), Some(125));
    assert!(
        stderr(&status).contains("keeps no command"),
        "{}",
        stderr(&status)
    );
}

#[test]
fn an_escape_leaves_a_hub_that_is_dead() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let _agent = hub.agent("n1", "process", None, None);
    let mut terminal = Terminal::shell(&hub, &[]);
    terminal.type_in("~?");
    terminal.wait_for("leave at once");
    let pid = hub.daemon.pid();
    kill_process(pid, Signal::STOP).unwrap();
    terminal.type_in("echo nobody hears this\r~.");
    assert_eq!(terminal.ends(), Some(125));
    kill_process(pid, Signal::CONT).unwrap();
}

#[test]
fn a_terminal_needs_one_here() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(dir.path(), "127.0.0.1", None);
    let output = hub.run(&["exec", "-it", "n1", "--", "sh"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        stderr(&output).contains("no terminal"),
        "{}",
        stderr(&output)
    );
}
