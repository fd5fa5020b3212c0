//! Exec and expose with real programs on loopback, commands as plain processes.

use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;

use crate::programs::{Hub, program, stderr, stdout};

#[test]
fn exec_carries_streams_and_codes() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let _agent = hub.agent("n1", "process", None, None);

    let output = hub.run(&[
        "exec",
        "n1",
        "--",
        "sh",
        "-c",
        "echo out; echo err >&2; exit 7",
    ]);
    assert_eq!(
        (stdout(&output).as_str(), stderr(&output).as_str()),
        ("out\n", "err\n")
    );
    assert_eq!(output.status.code(), Some(7));

    for (command, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 255"], 255),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&["no-such-command"], 127),
        (&["/etc/passwd"], 126),
    ] {
        let output = hub.run(&[&["exec", "n1", "--"], command].concat());
        assert_eq!(
            output.status.code(),
            Some(code),
            "{command:?}: {}",
            stderr(&output)
        );
    }
    for (args, text) in [
        (&["exec", "nobody", "--", "true"][..], "nobody"),
        (&["exec", "n1/container", "--", "true"], "container"),
        (
            &["exec", "-w", "/no/such/dir", "n1", "--", "true"],
            "/no/such/dir",
        ),
    ] {
        let output = hub.run(args);
        assert_eq!(
            output.status.code(),
            Some(125),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(text),
            "{args:?}: {}",
            stderr(&output)
        );
    }
    let output = hub.run(&[
        "exec",
        "-e",
        "GREETING=hi there",
        "-w",
        "/tmp",
        "n1",
        "--",
        "sh",
        "-c",
        "echo $GREETING; pwd",
    ]);
    assert_eq!(stdout(&output), "hi there\n/tmp\n");
}

#[test]
fn exec_reads_stdin_to_its_end_and_not_beyond() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let _agent = hub.agent("n1", "process", None, None);
    let start = |args: &[&str]| {
        hub.cli()
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };

    let mut counting = start(&["exec", "-i", "n1", "--", "wc", "-c"]);
    counting.stdin.take().unwrap().write_all(b"x\n").unwrap();
    let output = counting.wait_with_output().unwrap();
    assert_eq!(
        (stdout(&output).trim(), output.status.code()),
        ("2", Some(0))
    );

    // 3 MiB there and back at once, every byte value.
    let mut echoing = start(&["exec", "-i", "n1", "--", "cat"]);
    let data: Vec<u8> = (0..3u32 << 20)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let (mut stdin, sent) = (echoing.stdin.take().unwrap(), data.clone());
    let feeder = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let mut back = Vec::new();
    echoing
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut back)
        .unwrap();
    feeder.join().unwrap();
    assert!(back == data, "{} bytes came back", back.len());
    assert_eq!(echoing.wait().unwrap().code(), Some(0));

    // Endless stdin: the command's end is the end.
    let mut heading = start(&["exec", "-i", "n1", "--", "head", "-n1"]);
    let mut stdin = heading.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || while stdin.write_all(b"line\n").is_ok() {});
    let output = heading.wait_with_output().unwrap();
    assert_eq!(
        (stdout(&output).as_str(), output.status.code()),
        ("line\n", Some(0))
    );
    feeder.join().unwrap();
}

#[test]
fn a_stdin_that_cannot_be_read_is_no_success() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let _agent = hub.agent("n1", "process", None, None);
    let directory = Stdio::from(std::fs::File::open("/tmp").unwrap());
    let mut command = hub.cli();
    let output = command
        .args(["exec", "-i", "n1", "--", "wc", "-c"])
        .stdin(directory)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125), "{}", stdout(&output));
    assert!(
        stderr(&output).contains("standard input"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn one_hub_at_a_time_and_no_new_ledger_where_one_was_lost() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let data_dir = dir.path().join("hub");
    let start = || {
        let mut command = program("hub-server", None);
        command
            .arg("--data-dir")
            .arg(&data_dir)
            .args(["--agent-listen", "127.0.0.1:0"]);
        command.args([
            "--enroll-listen",
            "127.0.0.1:0",
            "--api-listen",
            "127.0.0.1:0",
        ]);
        command
            .args(["--proxy-listen", "127.0.0.1:0"])
            .output()
            .unwrap()
    };
    let second = start();
    assert!(!second.status.success());
    assert!(
        stderr(&second).contains("another hub uses"),
        "{}",
        stderr(&second)
    );

    hub.daemon.terminate();
    for file in ["hub.db", "hub.db-wal", "hub.db-shm"] {
        let _ = std::fs::remove_file(data_dir.join(file));
    }
    let lost = start();
    assert!(!lost.status.success());
    assert!(stderr(&lost).contains("backup"), "{}", stderr(&lost));
    assert!(
        !data_dir.join("hub.db").exists(),
        "nothing stands in the backup's way"
    );
}

#[test]
fn expose_reaches_what_was_exposed_and_says_which_hop_failed() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let mut agent = hub.agent("n1", "process", None, None);
    let target = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = target.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in target.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello",
            );
        }
    });
    let exposed = hub.json(&["expose", "n1", &port.to_string()]);
    let url = exposed["urls"][0].as_str().unwrap();
    let get = |url: &str| {
        let output = std::process::Command::new("curl")
            .args(["-s", "-w", "\n%{http_code}", url])
            .output()
            .unwrap();
        stdout(&output)
    };
    assert_eq!(get(url), "hello\n200");
    // A port where nothing listens.
    let nothing = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let refusing = hub.json(&["expose", "n1", &nothing.to_string()]);
    let answer = get(refusing["urls"][0].as_str().unwrap());
    assert!(answer.ends_with("\n502"), "{answer}");
    let unknown = format!(
        "http://{}/v1/data/{}/",
        hub.address("proxy"),
        "A".repeat(43)
    );
    assert!(get(&unknown).ends_with("\n404"));
    agent.terminate();
    hub.daemon.wait_for("away");
    let answer = get(url);
    assert!(answer.ends_with("\n503"), "{answer}");
    assert!(answer.contains("n1"), "{answer}");
}

/// A target that takes nothing more must not hide that the browser is gone.
#[test]
fn a_browser_that_dies_in_a_stalled_upload_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let _agent = hub.agent("n1", "process", None, None);
    let target = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = target.local_addr().unwrap().port();
    let exposed = hub.json(&["expose", "n1", &port.to_string()]);
    let url = exposed["urls"][0].as_str().unwrap();
    let path = url[url.find("/v1/").unwrap()..].to_owned();
    let operations = |hub: &Hub| hub.json(&["status"])["operations"].as_u64().unwrap();

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut browser = tokio::net::TcpStream::connect(hub.address("proxy"))
            .await
            .unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\n\r\n");
        browser.write_all(head.as_bytes()).await.unwrap();
        // The target accepts, and reads nothing.
        let _held = target.accept().unwrap();
        let block = vec![0; 64 * 1024];
        // Until nothing is taken for a second: every buffer on the way is full.
        while tokio::time::timeout(Duration::from_secs(1), browser.write_all(&block))
            .await
            .is_ok()
        {}
        assert_eq!(operations(&hub), 1);
        browser.set_zero_linger().unwrap();
        drop(browser);
        let deadline = Instant::now() + Duration::from_secs(30);
        while operations(&hub) > 0 {
            assert!(
                Instant::now() < deadline,
                "the operation outlived its browser"
            );
        }
    });
}
