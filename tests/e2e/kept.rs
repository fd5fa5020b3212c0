//! Commands that are kept, over the loss of each program on the way to them.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStderr, ChildStdout, Stdio};

use rustix::process::Signal;

use crate::programs::{Daemon, Hub, stderr, stdout};
use crate::witness::{Fifo, signal, until};

/// A kept command and its client.
struct Client {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
    id: String,
}

impl Client {
    fn start(hub: &Hub, script: &str) -> Self {
        let mut child = hub
            .cli()
            .args(["exec", "--on-disconnect=keep", "n1", "--", "sh", "-c"])
            .arg(script)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut client = Self {
            stderr: BufReader::new(child.stderr.take().unwrap()),
            child,
            stdout,
            id: String::new(),
        };
        let said = client.says("the command is ");
        said.rsplit(' ').next().unwrap().clone_into(&mut client.id);
        client
    }

    /// Waits for a line of its own with this text.
    fn says(&mut self, text: &str) -> String {
        let mut lines = String::new();
        loop {
            let begun = lines.len();
            let read = self.stderr.read_line(&mut lines).unwrap();
            assert!(read > 0, "{text:?} was not said: {lines}");
            if lines[begun..].contains(text) {
                return lines[begun..].trim().to_owned();
            }
        }
    }

    /// Waits for a line of the command.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    /// Waits for the end; gives what the command printed since, what else was said, and the code.
    fn end(mut self) -> (String, String, Option<i32>) {
        let (mut out, mut err) = (String::new(), String::new());
        self.stdout.read_to_string(&mut out).unwrap();
        self.stderr.read_to_string(&mut err).unwrap();
        (out, err, self.child.wait().unwrap().code())
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `seq 1 LAST` prints.
fn numbers(last: usize) -> String {
    use std::fmt::Write as _;
    (1..=last).fold(String::new(), |mut text, n| {
        writeln!(text, "{n}").unwrap();
        text
    })
}

fn status(hub: &Hub, id: &str) -> String {
    stdout(&hub.run(&["exec", "status", "n1", id]))
        .trim()
        .to_owned()
}

/// The number that a line begins with.
fn count(line: &str) -> usize {
    let digits = line.trim_start_matches(|c: char| !c.is_ascii_digit());
    digits.split(' ').next().unwrap().parse().unwrap()
}

/// Its client is killed; it goes on, and whoever comes later gets all that is remembered.
#[test]
fn a_kept_command_goes_on_without_its_client() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let mut agent = hub.agent("n1", "process", None, None);
    let (told, gate) = (Fifo::new(dir.path(), "told"), Fifo::new(dir.path(), "gate"));
    // Little enough to be remembered whole, and too much.
    for last in [10_000, 100_000] {
        let script = format!(
            "echo $$ >{}; echo begun; cat {} >/dev/null; seq 1 {last}; exit 4",
            told.path(),
            gate.path()
        );
        let mut client = Client::start(&hub, &script);
        let command = told.watch();
        assert_eq!(client.line(), "begun\n");
        client.kill();
        agent.wait_for("it goes on");
        let listed = hub.json(&["exec", "ls", "n1"]);
        assert_eq!(listed[0]["id"], client.id.as_str(), "{listed}");
        assert_eq!(listed[0]["attached"], false, "{listed}");
        assert_eq!(listed[0]["state"], "running", "{listed}");
        assert!(command.lives());
        gate.open();
        until("its code is known", || {
            status(&hub, &client.id) != "running"
        });
        assert_eq!(status(&hub, &client.id), "exited with code 4");
        // Asking takes nothing away.
        assert_eq!(status(&hub, &client.id), "exited with code 4");

        let all = format!("begun\n{}", numbers(last));
        let attached = hub.run(&["exec", "attach", "n1", &client.id]);
        let (came, said) = (stdout(&attached), stderr(&attached));
        let before = if said.is_empty() { 0 } else { count(&said) };
        assert_eq!(before + came.len(), all.len(), "{said}");
        assert!(
            came == all[before..],
            "it is not the last of what was printed"
        );
        assert_eq!(before > 0, all.len() > 256 << 10, "{said}");
        assert_eq!(attached.status.code(), Some(4), "{said}");
        assert_eq!(hub.json(&["exec", "ls", "n1"]).as_array().unwrap().len(), 0);
    }
}

/// The hub is killed and starts again while nobody is attached, and the client is there or not.
#[test]
fn a_kept_command_outlives_the_hub() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let mut agent = hub.agent("n1", "process", None, None);
    let (told, gate) = (Fifo::new(dir.path(), "told"), Fifo::new(dir.path(), "gate"));
    let script = format!(
        "echo $$ >{}; seq 1 5000; cat {} >/dev/null; seq 5001 20000; exit 3",
        told.path(),
        gate.path()
    );
    let mut left = Client::start(&hub, &script);
    let command = told.watch();
    assert_eq!(left.line(), "1\n");
    left.kill();
    agent.wait_for("it goes on");
    hub.kill();
    hub.start_again();
    agent.wait_for(" connected ");
    hub.daemon.wait_for(" connected ");
    assert!(command.lives());
    gate.open();
    let attached = hub.run(&["exec", "attach", "n1", &left.id]);
    assert!(
        stdout(&attached) == numbers(20_000),
        "{}",
        stdout(&attached).len()
    );
    assert_eq!(attached.status.code(), Some(3), "{}", stderr(&attached));

    // One that is there comes back by itself, and has every byte once.
    let mut client = Client::start(&hub, &script);
    let command = told.watch();
    let mut came = client.line();
    hub.kill();
    client.says("the connection is lost");
    hub.start_again();
    client.says("the connection is back");
    assert!(command.lives());
    gate.open();
    let (rest, said, code) = client.end();
    came.push_str(&rest);
    assert!(came == numbers(20_000), "{} bytes came", came.len());
    assert_eq!((&*said, code), ("", Some(3)));
}

/// Two megabytes are printed while the hub is away: what nobody remembers is a gap that is said.
#[test]
fn a_gap_in_a_kept_commands_output_is_said() {
    const LAST: usize = 300_000;
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let mut agent = hub.agent("n1", "process", None, None);
    let (told, gate) = (Fifo::new(dir.path(), "told"), Fifo::new(dir.path(), "gate"));
    let script = format!(
        "echo $$ >{}; seq 1 5000; cat {} >/dev/null; seq 5001 {LAST}; exit 3",
        told.path(),
        gate.path()
    );
    let mut client = Client::start(&hub, &script);
    let command = told.watch();
    let mut came = client.line();
    while !came.ends_with("\n5000\n") {
        came.push_str(&client.line());
    }
    // An agent that is told knows at once; from a hub that is killed it learns when that is back.
    hub.daemon.terminate();
    client.says("the connection is lost");
    agent.wait_for("it goes on");
    gate.open();
    command.ends("a command without a client");
    hub.start_again();
    client.says("the connection is back");
    let missing = count(&client.says("bytes of output are missing here"));
    let (rest, said, code) = client.end();
    let all = numbers(LAST);
    assert_eq!(came.len() + missing + rest.len(), all.len());
    assert!(all.starts_with(&came) && all.ends_with(&rest));
    assert_eq!((&*said, code), ("", Some(3)));
}

/// An agent that was killed stops at its next start what it had kept, and nobody says how it ended.
#[test]
fn a_kept_command_ends_with_its_agent() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let mut agent = hub.agent("n1", "process", None, None);
    let told = Fifo::new(dir.path(), "told");
    let script = format!("echo $$ >{}; exec sleep 100000", told.path());
    let mut left = Client::start(&hub, &script);
    let one = told.watch();
    left.kill();
    agent.wait_for("it goes on");
    let stays = Client::start(&hub, &script);
    let other = told.watch();
    agent.kill();
    assert!(one.lives() && other.lives());
    let mut agent = Daemon::start(hub.agent_command("n1", "process", None));
    one.ends("kept by an agent that was killed");
    other.ends("kept by an agent that was killed");
    agent.wait_for("connected");
    let (out, said, code) = stays.end();
    assert_eq!((&*out, code), ("", Some(125)), "{said}");
    assert!(said.contains("there is no kept command"), "{said}");
    let attached = hub.run(&["exec", "attach", "n1", &left.id]);
    assert_eq!(attached.status.code(), Some(125));
    assert!(
        stderr(&attached).contains("keeps no command"),
        "{}",
        stderr(&attached)
    );
}

/// Ctrl-C is for a command that is kept.
#[test]
fn an_interruption_reaches_a_kept_command() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let _agent = hub.agent("n1", "process", None, None);
    let script = "sleep 100000 & trap 'kill $!; echo interrupted; exit 9' INT; echo ready; wait";
    let mut client = Client::start(&hub, script);
    assert_eq!(client.line(), "ready\n");
    signal(&client.child, Signal::INT);
    client.says("INT is sent to the command");
    let (out, said, code) = client.end();
    assert_eq!((&*out, &*said, code), ("interrupted\n", "", Some(9)));
}
