//! Execs with what breaks careless ones: many, large, binary, cut anywhere, read late.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::process::Signal;

use crate::containers::{Image, house, success, unique};
use crate::programs::{Hub, stderr, stdout};
use crate::terminal::Terminal;
use crate::witness::signal;

/// Every byte value, in no order that a fault could leave as it was.
fn noise(len: u32) -> Vec<u8> {
    (0..len)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

/// Text without an end of line in which every place is told from others.
fn one_line(len: usize) -> Vec<u8> {
    (0u32..)
        .flat_map(|n| format!("{n:08x}").into_bytes())
        .take(len)
        .collect()
}

/// Where commands run, and the directory that has the files there.
struct Place<'a> {
    hub: &'a Hub,
    target: &'a str,
    files: &'a str,
}

impl Place<'_> {
    fn start(&self, options: &[&str], script: &str) -> Child {
        let command = [self.target, "--", "sh", "-c", script];
        self.hub
            .cli()
            .args([&["exec"], options, &command].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Many commands that do nothing, four at a time.
    fn nothing_is_zero(&self, times: usize) {
        for first in (0..times).step_by(4) {
            let start = |_| self.start(&[], "exec true");
            let children: Vec<_> = (first..times.min(first + 4)).map(start).collect();
            for child in children {
                let output = child.wait_with_output().unwrap();
                let told = (output.status.code(), &*stdout(&output), &*stderr(&output));
                assert_eq!(told, (Some(0), "", ""), "after {first}");
            }
        }
    }

    /// 500,000 bytes and an exit at once, for a reader that pauses: `stopped` altogether, or only
    /// not reading. Meanwhile others run as if nothing were.
    fn all_of_it_comes_late(&self, stopped: bool) {
        let script = format!("cat {}/500k; exit 5", self.files);
        let mut child = self.start(&[], &script);
        let mut all = vec![0];
        child.stdout.as_mut().unwrap().read_exact(&mut all).unwrap();
        if stopped {
            signal(&child, Signal::STOP);
        }
        self.nothing_is_zero(10);
        if stopped {
            signal(&child, Signal::CONT);
        }
        let output = child.wait_with_output().unwrap();
        all.extend(&output.stdout);
        assert!(all == noise(500_000), "{} bytes came", all.len());
        let told = (output.status.code(), &*stderr(&output));
        assert_eq!(told, (Some(5), ""), "stopped: {stopped}");
    }

    /// Binary output and long lines, on a terminal that changes nothing.
    fn terminals_carry_bytes(&self, line: usize) {
        for (file, expected) in [("line", one_line(line)), ("500k", noise(500_000))] {
            let script = format!("stty raw; cat {}/{file}; exit 6", self.files);
            let output = self.start(&["-t"], &script).wait_with_output().unwrap();
            assert!(
                output.stdout == expected,
                "{file}: {} of {} bytes came: {}",
                output.stdout.len(),
                expected.len(),
                stderr(&output)
            );
            assert_eq!(output.status.code(), Some(6), "{file}");
        }
    }

    /// A long line flows on a terminal while the command has not ended and waits for its reader.
    fn a_line_without_an_end_flows(&self, line: usize) {
        let script = format!("cat {}/line; read answer; echo; exit $answer", self.files);
        let command = ["exec", "-it", self.target, "--", "sh", "-c", &script];
        let mut terminal = Terminal::start(self.hub, &command);
        let expected = one_line(line);
        let came = terminal.wait_for_bytes(&expected[line - 64..]);
        assert!(came == expected, "{} of {line} bytes came", came.len());
        terminal.type_in("7\r");
        assert_eq!(terminal.ends(), Some(7));
    }

    /// Every byte value typed at a terminal arrives.
    fn keys_are_bytes(&self) {
        let script = "stty raw -echo; printf rea; printf dy; head -c 256 | md5sum";
        let options = ["exec", "-it", "--detach-keys", ""];
        let command = [self.target, "--", "sh", "-c", script];
        let mut terminal = Terminal::start(self.hub, &[&options[..], &command].concat());
        terminal.wait_for("ready");
        let all: Vec<u8> = (0..=255).collect();
        terminal.type_bytes(&all);
        terminal.wait_for("e2c865db4162bed963bfaa9ef6ac18f0");
        assert_eq!(terminal.ends(), Some(0));
    }

    /// Text whose characters are cut at every place, each byte sent once the one before is back.
    fn characters_are_cut(&self) {
        const TEXT: &str = "aß€𝄞漢字🎉é\u{301}\u{feff}z";
        let mut child = self.start(&["-i"], "cat");
        let (mut stdin, mut back) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        for byte in TEXT.bytes() {
            stdin.write_all(&[byte]).unwrap();
            let mut came = [0];
            back.read_exact(&mut came).unwrap();
            assert_eq!(came, [byte]);
        }
        drop(stdin);
        assert_eq!(child.wait().unwrap().code(), Some(0));

        let script = "stty raw -echo; printf rea; printf dy; exec cat";
        let command = ["exec", "-it", self.target, "--", "sh", "-c", script];
        let mut terminal = Terminal::start(self.hub, &command);
        terminal.wait_for("ready");
        for byte in TEXT.bytes() {
            terminal.type_bytes(&[byte]);
            assert_eq!(terminal.wait_for_bytes(&[byte]), [byte]);
        }
    }

    /// 3 MiB there while 3 MiB come back, to somebody who first only writes.
    fn both_ways_at_once(&self) {
        let mut child = self.start(&["-i"], "cat; echo err >&2; exit 8");
        let sent = noise(3 << 20);
        let (mut stdin, feed) = (child.stdin.take().unwrap(), sent.clone());
        let feeder = std::thread::spawn(move || stdin.write_all(&feed).unwrap());
        self.nothing_is_zero(4);
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        assert!(
            output.stdout == sent,
            "{} bytes came back",
            output.stdout.len()
        );
        assert_eq!(
            (output.status.code(), &*stderr(&output)),
            (Some(8), "err\n")
        );
    }
}

fn write_files(dir: &Path, line: usize) {
    std::fs::write(dir.join("500k"), noise(500_000)).unwrap();
    std::fs::write(dir.join("line"), one_line(line)).unwrap();
}

/// As many times as a whole run does, or an ordinary one.
fn times(ordinary: usize, long: usize) -> usize {
    if std::env::var_os("HUB_LONG").is_some() {
        long
    } else {
        ordinary
    }
}

/// A house with processes, and its files.
fn processes(test: impl FnOnce(&Place<'_>)) {
    let dir = tempfile::tempdir().unwrap();
    write_files(dir.path(), LINE);
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let _agent = hub.agent("n1", "process", None, None);
    test(&Place {
        hub: &hub,
        target: "n1",
        files: dir.path().to_str().unwrap(),
    });
}

const LINE: usize = 5_000_000;

#[test]
fn true_is_zero_every_time() {
    processes(|place| place.nothing_is_zero(times(50, 1000)));
}

#[test]
fn all_output_comes_to_a_reader_that_pauses() {
    processes(|place| {
        for _ in 0..times(1, 20) {
            place.all_of_it_comes_late(true);
            place.all_of_it_comes_late(false);
        }
    });
}

#[test]
fn five_megabytes_without_a_newline_flow_on_a_terminal() {
    processes(|place| place.a_line_without_an_end_flows(LINE));
}

#[test]
fn a_raw_terminal_changes_no_byte() {
    processes(|place| {
        for _ in 0..times(1, 20) {
            place.terminals_carry_bytes(LINE);
        }
        place.keys_are_bytes();
    });
}

#[test]
fn characters_may_be_cut_anywhere() {
    processes(|place| {
        for _ in 0..times(1, 10) {
            place.characters_are_cut();
        }
    });
}

#[test]
fn three_megabytes_come_back_while_they_go() {
    processes(|place| {
        for _ in 0..times(1, 10) {
            place.both_ways_at_once();
        }
    });
}

#[test]
#[ignore = "needs a Docker daemon"]
fn docker_execs_under_torture() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, _agent) = house(dir.path());
    let image = Image::make(dir.path());
    let name = unique("torture");
    let target = format!("n1/{name}");
    let create = [
        "create",
        "--name",
        &name,
        "--network",
        "none",
        "n1",
        &image.0,
    ];
    success(&hub, &[&create[..], &["--", "sleep", "100000"]].concat());
    success(&hub, &["start", &target]);
    success(
        &hub,
        &["exec", &target, "--", "sh", "-c", "busybox mkdir /tmp"],
    );
    write_files(dir.path(), LINE);
    for file in ["500k", "line"] {
        let from = dir.path().join(file);
        success(
            &hub,
            &["cp", from.to_str().unwrap(), &format!("{target}:/tmp/")],
        );
    }
    let place = Place {
        hub: &hub,
        target: &target,
        files: "/tmp",
    };
    place.nothing_is_zero(times(20, 1000));
    place.all_of_it_comes_late(true);
    place.all_of_it_comes_late(false);
    place.a_line_without_an_end_flows(LINE);
    place.terminals_carry_bytes(LINE);
    place.keys_are_bytes();
    place.characters_are_cut();
    place.both_ways_at_once();
}
