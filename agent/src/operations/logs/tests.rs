//! Logs of a real daemon's containers, through a session.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use bollard::models::{ContainerCreateBody, HostConfig, HostConfigLogConfig};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder, StartContainerOptions,
    WaitContainerOptions,
};
use futures_util::StreamExt as _;
use hub_quic::operation::Receiver;

use super::*;
use crate::engine::daemon::OwnDaemon;
use crate::operations::testing::{Node, ending, tools};
use crate::runtime::docker::{DemoContainer, DockerRuntime};

/// Containers that print.
struct Printers {
    engine: Engine,
    node: Node,
    demo: DemoContainer,
}

/// A container of a test.
#[derive(Default)]
struct Printer<'a> {
    script: &'a str,
    tty: bool,
    log: &'a [(&'a str, &'a str)],
    driver: &'a str,
    auto_remove: bool,
}

impl Printers {
    async fn new() -> Self {
        Self::at(Engine::connect().await.unwrap()).await
    }

    async fn at(engine: Engine) -> Self {
        Self {
            demo: DockerRuntime::new(&engine).demo_container().await.unwrap(),
            node: Node::new(tools(Some(engine.clone()))).await,
            engine,
        }
    }

    async fn create(&self, name: &str, printer: Printer<'_>) -> String {
        let name = format!("{}-{name}", self.demo.name);
        let options = CreateContainerOptionsBuilder::new().name(&name).build();
        let log = printer.log.iter();
        let log: HashMap<String, String> = log.map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let driver = if printer.driver.is_empty() {
            "json-file"
        } else {
            printer.driver
        };
        let body = ContainerCreateBody {
            image: Some(self.demo.image.clone()),
            cmd: Some(["sh", "-c", printer.script].map(String::from).to_vec()),
            tty: Some(printer.tty),
            network_disabled: Some(true),
            host_config: Some(HostConfig {
                auto_remove: Some(printer.auto_remove),
                log_config: Some(HostConfigLogConfig {
                    typ: Some(driver.into()),
                    config: Some(log),
                }),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let docker = self.engine.docker();
        docker.create_container(Some(options), body).await.unwrap();
        name
    }

    async fn start(&self, name: &str) {
        let docker = self.engine.docker();
        docker
            .start_container(name, None::<StartContainerOptions>)
            .await
            .unwrap();
    }

    async fn wait(&self, name: &str) {
        let docker = self.engine.docker();
        let _ = docker
            .wait_container(name, None::<WaitContainerOptions>)
            .next()
            .await;
    }

    /// A container that has printed all it prints.
    async fn printed(&self, name: &str, printer: Printer<'_>) -> String {
        let name = self.create(name, printer).await;
        self.start(&name).await;
        self.wait(&name).await;
        name
    }

    async fn read(&self, request: &Logs) -> Vec<LogRecord> {
        let (operation, _) = self.node.begin(request).await;
        let told = Told::of(&operation).rest().await;
        assert_eq!(ending::<()>(&operation).await, Ending::Complete(()));
        told
    }

    async fn remove(self, names: &[&str]) {
        for name in names {
            let force = RemoveContainerOptionsBuilder::new().force(true).build();
            let _ = self
                .engine
                .docker()
                .remove_container(name, Some(force))
                .await;
        }
        self.demo.remove().await.unwrap();
    }
}

/// What is told of a log.
struct Told {
    receiver: Receiver,
    buffer: Vec<u8>,
}

impl Told {
    fn of(operation: &Operation) -> Self {
        Self {
            receiver: operation.receiver(OUT),
            buffer: Vec::new(),
        }
    }

    async fn next(&mut self) -> Option<LogRecord> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let chunk = self.receiver.chunk().await.unwrap()?;
            self.buffer.extend_from_slice(&chunk);
        }
    }

    async fn rest(mut self) -> Vec<LogRecord> {
        let mut all = Vec::new();
        while let Some(record) = self.next().await {
            all.push(record);
        }
        all
    }
}

fn all_of(container: &str) -> Logs {
    Logs {
        container: container.into(),
        ..Logs::default()
    }
}

fn follow(container: &str) -> Logs {
    Logs {
        follow: true,
        ..all_of(container)
    }
}

fn bytes(record: &LogRecord) -> Vec<u8> {
    match record {
        LogRecord::Line {
            text: Some(text),
            base64: None,
            ..
        } => text.clone().into_bytes(),
        LogRecord::Line {
            text: None,
            base64: Some(base64),
            ..
        } => BASE64_STANDARD.decode(base64).unwrap(),
        other => panic!("no bytes: {other:?}"),
    }
}

/// All bytes of one output.
fn output(records: &[LogRecord], wanted: Output) -> Vec<u8> {
    let of =
        |record: &&LogRecord| matches!(record, LogRecord::Line { output, .. } if *output == wanted);
    records.iter().filter(of).flat_map(bytes).collect()
}

fn cursor(record: &LogRecord) -> Option<String> {
    match record {
        LogRecord::Line { cursor, .. } => Some(cursor.clone()),
        LogRecord::Gap { .. } => None,
    }
}

/// The numbers that a container printed, one a line; checks that they come once, in order, and
/// that where some are missing a gap stands. Gives how many came and how many gaps.
fn numbers(records: &[LogRecord], first: u64, last: u64) -> (u64, usize) {
    let mut next = first;
    let mut gap = false;
    let (mut count, mut gaps) = (0, 0);
    for record in records {
        if let LogRecord::Gap { .. } = record {
            gap = true;
            gaps += 1;
            continue;
        }
        let text = String::from_utf8(bytes(record)).unwrap();
        let number: u64 = text.trim().parse().unwrap();
        assert!(number >= next, "{number} came twice or out of order");
        assert!(
            number == next || gap,
            "{next} is missing before {number} without a gap"
        );
        next = number + 1;
        gap = false;
        count += 1;
    }
    assert!(
        next == last + 1 || gap,
        "{next} is missing at the end without a gap"
    );
    (count, gaps)
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_outputs_are_told_apart_as_the_daemon_keeps_them() {
    // Docker's own files hold text: what is none was lost before it was written.
    told_apart("json-file", "\u{fffd}\u{fffd}end".as_bytes()).await;
    told_apart("local", b"\xff\x80end").await;
}

async fn told_apart(driver: &str, end: &[u8]) {
    let printers = Printers::new().await;
    let script = "i=0; while [ $i -lt 100 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done; \
                  head -c 200000 /dev/zero | tr '\\0' x; echo; printf '\\377\\200end'";
    let name = printers
        .printed(
            driver,
            Printer {
                script,
                driver,
                ..Printer::default()
            },
        )
        .await;
    let all = printers.read(&all_of(&name)).await;
    let lines = |mark: char| {
        let lines = (0..100).map(|i| format!("{mark}{i}\n"));
        lines.collect::<Vec<_>>().concat()
    };
    let mut stdout = lines('o').into_bytes();
    stdout.extend(vec![b'x'; 200_000]);
    // `local` drops the newline of a line that it cut.
    stdout.extend((driver != "local").then_some(b'\n'));
    stdout.extend(end);
    assert!(output(&all, Output::Stdout) == stdout);
    assert_eq!(output(&all, Output::Stderr), lines('e').into_bytes());
    // Followed, it is the same, and ends with the container.
    assert_eq!(printers.read(&follow(&name)).await, all);
    // From any record on: the rest, also behind the parts of the long line, which have one time.
    for at in [
        0,
        1,
        7,
        150,
        199,
        200,
        201,
        205,
        all.len() - 2,
        all.len() - 1,
    ] {
        let rest = Logs {
            cursor: cursor(&all[at]),
            ..all_of(&name)
        };
        assert_eq!(printers.read(&rest).await, all[at + 1..], "behind {at}");
    }
    let tail = Logs {
        tail: Some(3),
        ..all_of(&name)
    };
    // It begins among the parts of the long line; its cursors count all of them.
    let tail = printers.read(&tail).await;
    let last: Vec<_> = all[all.len() - 3..].iter().map(bytes).collect();
    assert!(tail.iter().map(bytes).eq(last.iter().cloned()));
    for (at, record) in tail.iter().enumerate() {
        let rest = Logs {
            cursor: cursor(record),
            ..all_of(&name)
        };
        let rest = printers.read(&rest).await;
        assert!(rest.iter().map(bytes).eq(last[at + 1..].iter().cloned()));
    }
    let none = Logs {
        tail: Some(0),
        ..follow(&name)
    };
    assert_eq!(printers.read(&none).await, []);
    let errors = Logs {
        no_stdout: true,
        ..all_of(&name)
    };
    assert_eq!(
        output(&printers.read(&errors).await, Output::Stderr),
        lines('e').into_bytes()
    );
    let LogRecord::Line { time, .. } = &all[10] else {
        panic!()
    };
    let from = crate::engine::time::nanoseconds(time);
    let since = Logs {
        since_ns: from,
        until_ns: from,
        ..all_of(&name)
    };
    let since = printers.read(&since).await;
    assert!(since.iter().map(bytes).eq([bytes(&all[10])]));
    printers.remove(&[&name]).await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_terminal_s_log_is_all_standard_output() {
    let printers = Printers::new().await;
    let script = "echo one; printf 'a\\rb\\n'; echo err >&2; head -c 40000 /dev/zero | tr '\\0' 2; \
                  echo; printf 'no end'";
    let tty = Printer {
        script,
        tty: true,
        ..Printer::default()
    };
    let name = printers.printed("tty", tty).await;
    let all = printers.read(&all_of(&name)).await;
    let mut expected = b"one\r\na\rb\r\nerr\r\n".to_vec();
    expected.extend(vec![b'2'; 40_000]);
    expected.extend(b"\r\nno end");
    assert!(output(&all, Output::Stdout) == expected);
    assert_eq!(output(&all, Output::Stderr), b"");
    for at in 0..all.len() {
        let rest = Logs {
            cursor: cursor(&all[at]),
            ..all_of(&name)
        };
        assert_eq!(printers.read(&rest).await, all[at + 1..], "behind {at}");
    }
    printers.remove(&[&name]).await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_what_cannot_be_read_is_refused() {
    let printers = Printers::new().await;
    let none = Printer {
        script: "true",
        driver: "none",
        ..Printer::default()
    };
    let name = printers.printed("none", none).await;
    let refused = printers.node.refused(&all_of(&name)).await;
    assert_eq!(refused.code, FailureCode::UNSUPPORTED);
    assert!(
        refused.message.contains("does not support reading"),
        "{refused}"
    );
    for missing in ["surely-not-here", "../x", "", "a b"] {
        let refused = printers.node.refused(&all_of(missing)).await;
        assert_eq!(refused.code, FailureCode::NO_SUCH_CONTAINER, "{refused}");
    }
    let demo = &printers.demo.name;
    for bad in ["", "x", "abc_1", "abc_1_2.3_4", "zz_100000000_1.1_1.1"] {
        let bad = Logs {
            cursor: Some(bad.into()),
            ..all_of(demo)
        };
        assert_eq!(printers.node.refused(&bad).await.code, FailureCode::INVALID);
    }
    let neither = Logs {
        no_stdout: true,
        no_stderr: true,
        ..all_of(demo)
    };
    assert_eq!(
        printers.node.refused(&neither).await.code,
        FailureCode::INVALID
    );
    printers.remove(&[&name]).await;
}

/// Prints numbers as fast as a shell can, in bursts.
const NUMBERS: &str = "i=1; while [ $i -le 3000 ]; do echo $i; i=$((i+1)); \
                       [ $((i % 500)) = 0 ] && sleep 0.3; done; sleep 0.3; \
                       while [ $i -le 3010 ]; do echo $i; i=$((i+1)); sleep 0.1; done";

async fn rotates(case: &str, log: &[(&str, &str)], driver: &str) {
    let printers = Printers::new().await;
    let printer = Printer {
        script: NUMBERS,
        log,
        driver,
        ..Printer::default()
    };
    let name = printers.create(case, printer).await;
    printers.start(&name).await;
    let told = printers.read(&follow(&name)).await;
    // What was thrown away before the first look, nobody asked for.
    let first = told
        .iter()
        .find(|record| cursor(record).is_some())
        .map(bytes)
        .unwrap();
    let first: u64 = String::from_utf8(first).unwrap().trim().parse().unwrap();
    let (count, gaps) = numbers(&told, first, 3010);
    // One after the other, slower than the log turns, they all come.
    let last: Vec<_> = told[told.len() - 5..].iter().map(bytes).collect();
    let expected: Vec<_> = (3006..=3010)
        .map(|i| format!("{i}\n").into_bytes())
        .collect();
    assert_eq!(last, expected);
    println!("{case}: {count} of 3010 lines, {gaps} gaps");
    // From a record that is thrown away by now.
    let early = told.iter().find_map(cursor);
    let rest = Logs {
        cursor: early,
        ..all_of(&name)
    };
    let rest = printers.read(&rest).await;
    assert!(matches!(rest[0], LogRecord::Gap { .. }), "{:?}", rest[0]);
    numbers(&rest, 1, 3010);
    printers.remove(&[&name]).await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_one_tiny_file_that_is_emptied_again_and_again() {
    rotates(
        "one-file",
        &[("max-size", "1k"), ("max-file", "1")],
        "json-file",
    )
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_three_tiny_files_that_rotate() {
    rotates(
        "three-files",
        &[("max-size", "1k"), ("max-file", "3")],
        "json-file",
    )
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_files_that_rotate_and_are_compressed() {
    let log = [("max-size", "1k"), ("max-file", "3"), ("compress", "true")];
    rotates("compressed", &log, "json-file").await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_log_that_rotates_at_leisure_is_followed_whole() {
    let printers = Printers::new().await;
    let log = [("max-size", "20k"), ("max-file", "3")];
    let script = "i=1; while [ $i -le 3000 ]; do echo $i; i=$((i+1)); \
                  [ $((i % 50)) = 0 ] && sleep 0.1; done";
    let printer = Printer {
        script,
        log: &log,
        ..Printer::default()
    };
    let name = printers.create("leisure", printer).await;
    printers.start(&name).await;
    let told = printers.read(&follow(&name)).await;
    assert_eq!(numbers(&told, 1, 3000), (3000, 0));
    printers.remove(&[&name]).await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_follow_that_is_broken_off_goes_on_at_its_cursor() {
    let printers = Printers::new().await;
    let script = "i=1; while [ $i -le 2000 ]; do echo $i; i=$((i+1)); \
                  [ $((i % 50)) = 0 ] && sleep 0.05; done";
    let name = printers
        .create(
            "broken",
            Printer {
                script,
                ..Printer::default()
            },
        )
        .await;
    printers.start(&name).await;
    let mut all = Vec::new();
    let mut request = follow(&name);
    for most in [1, 10, 333, 1, 200, usize::MAX] {
        let (operation, _) = printers.node.begin(&request).await;
        let mut told = Told::of(&operation);
        let mut count = 0;
        while count < most
            && let Some(record) = told.next().await
        {
            all.push(record);
            count += 1;
        }
        request.cursor = all.iter().rev().find_map(cursor);
    }
    assert_eq!(numbers(&all, 1, 2000), (2000, 0));
    printers.remove(&[&name]).await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_the_last_lines_of_a_container_that_is_removed_at_once() {
    let printers = Printers::new().await;
    for (case, log) in [
        ("plain", &[][..]),
        ("rotating", &[("max-size", "1m"), ("max-file", "3")]),
    ] {
        let printer = Printer {
            script: "i=1; while [ $i -le 200 ]; do echo $i; i=$((i+1)); done; sleep 0.5; \
                     while [ $i -le 400 ]; do echo $i; i=$((i+1)); done",
            auto_remove: true,
            log,
            ..Printer::default()
        };
        let name = printers.create(case, printer).await;
        printers.start(&name).await;
        let told = printers.read(&follow(&name)).await;
        assert_eq!(numbers(&told, 1, 400), (400, 0), "{case}");
    }
    printers.remove(&[]).await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_follow_ends_at_the_time_it_was_given() {
    let printers = Printers::new().await;
    for (case, log) in [
        ("endless", &[][..]),
        ("endless-rotating", &[("max-size", "1m")]),
    ] {
        let script = "echo 1; exec sleep 1000";
        let printer = Printer {
            script,
            log,
            ..Printer::default()
        };
        let name = printers.create(case, printer).await;
        printers.start(&name).await;
        let soon = printers.engine.now_ns().await.unwrap() + 1_500_000_000;
        let request = Logs {
            until_ns: Some(soon),
            ..follow(&name)
        };
        let told = printers.read(&request).await;
        assert_eq!(numbers(&told, 1, 1), (1, 0), "{case}");
        let force = RemoveContainerOptionsBuilder::new().force(true).build();
        printers
            .engine
            .docker()
            .remove_container(&name, Some(force))
            .await
            .unwrap();
    }
    printers.remove(&[]).await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_daemon_that_is_restarted_loses_no_line_of_a_follow() {
    let Some(mut daemon) = OwnDaemon::start().await else {
        return;
    };
    let printers = Printers::at(daemon.engine().await).await;
    let script = "i=1; while [ $i -le 400 ]; do echo $i; i=$((i+1)); sleep 0.05; done";
    let mut names = Vec::new();
    for (case, log) in [("plain", &[][..]), ("rotating", &[("max-size", "100k")])] {
        let printer = Printer {
            script,
            log,
            ..Printer::default()
        };
        names.push(printers.create(case, printer).await);
    }
    for name in &names {
        printers.start(name).await;
    }
    let restarts = async {
        for _ in 0..2 {
            sleep(Duration::from_secs(1)).await;
            daemon.stop().await;
            daemon.run().await;
        }
    };
    let (plain, rotating) = (follow(&names[0]), follow(&names[1]));
    let (plain, rotating, ()) =
        tokio::join!(printers.read(&plain), printers.read(&rotating), restarts);
    assert_eq!(numbers(&plain, 1, 400), (400, 0));
    assert_eq!(numbers(&rotating, 1, 400), (400, 0));
    printers.remove(&[&names[0], &names[1]]).await;
    daemon.stop().await;
}
