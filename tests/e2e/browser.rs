//! `hub demo` as a newcomer runs it, and its page in a real browser.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::programs::{program, stderr, stdout};

#[test]
#[ignore = "needs Chromium"]
fn chromium_opens_the_page_of_the_demo() {
    let mut demo = program("hub", None)
        .args(["demo", "--runtime", "process"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let told: Vec<String> = lines
        .by_ref()
        .take_while(|line| !line.contains("Ctrl-C"))
        .collect();
    let told = told.join("\n");
    assert!(told.contains("plain processes"), "{told}");
    assert!(
        told.contains("hello from") && told.contains("(exit code 7)"),
        "{told}"
    );
    let url = told
        .split_whitespace()
        .find(|word| word.contains("/v1/data/"))
        .unwrap();

    let profile = tempfile::tempdir().unwrap();
    let browser = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(["--dump-dom", url])
        .output()
        .unwrap();
    assert!(
        stdout(&browser).contains("came from behind an agent"),
        "{}",
        stderr(&browser)
    );

    let pid = rustix::process::Pid::from_child(&demo);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(lines.last().as_deref(), Some("stopping"));
    assert_eq!(demo.wait().unwrap().code(), Some(0));
}
