//! Autobahn's WebSocket suite: its fuzzing client against its own echo server, straight and
//! through the hub. The verdicts have to be the same.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::house::{House, Running, asset};
use crate::programs::{stderr, stdout};

/// The old Python with the suite.
fn python() -> Command {
    let path = std::env::var("HUB_TEST_PYTHON2");
    let mut command = Command::new(path.expect("HUB_TEST_PYTHON2 names the interpreter"));
    command.args(["-W", "ignore"]);
    command
}

/// The verdict for each case against the echo server at `url`.
fn verdicts(dir: &Path, name: &str, url: &str) -> BTreeMap<String, (Value, Value)> {
    // Compression and performance are thousands of messages a case: whole where there is time.
    let left_out = match std::env::var_os("HUB_LONG") {
        Some(_) => json!([]),
        None => json!(["9.*", "12.*", "13.*"]),
    };
    let out = dir.join(name);
    let spec = json!({
        "outdir": out,
        "servers": [{ "agent": name, "url": url }],
        "cases": ["*"], "exclude-cases": left_out, "exclude-agent-cases": {},
    });
    let file = dir.join(format!("{name}.json"));
    std::fs::write(&file, spec.to_string()).unwrap();
    let start = "from autobahntestsuite import wstest; wstest.run()";
    let run = python()
        .args(["-c", start, "-m", "fuzzingclient", "-s"])
        .arg(&file)
        .output()
        .unwrap();
    let report = std::fs::read(out.join("index.json"));
    let report = report.unwrap_or_else(|_| panic!("{}{}", stdout(&run), stderr(&run)));
    let report: Value = serde_json::from_slice(&report).unwrap();
    let cases = report[name].as_object().unwrap();
    cases
        .iter()
        .map(|(case, verdict)| {
            let verdict = (
                verdict["behavior"].clone(),
                verdict["behaviorClose"].clone(),
            );
            (case.clone(), verdict)
        })
        .collect()
}

#[test]
#[ignore = "needs Autobahn's suite"]
fn autobahn_gives_the_same_verdicts_through_the_hub() {
    let mut echo = python();
    echo.arg(asset("echo.py"));
    let echo = Running::start_and_ask(echo);
    let house = House::new();
    let exposed = house.expose("echo", echo.port, &[]);
    let dir = tempfile::tempdir().unwrap();
    let direct = verdicts(
        dir.path(),
        "direct",
        &format!("ws://127.0.0.1:{}", echo.port),
    );
    // The path route: the suite cannot be told a name's address.
    let url = exposed.by_token.replacen("http", "ws", 1);
    let through = verdicts(dir.path(), "through", &url);
    assert!(direct.len() > 200, "{} cases", direct.len());
    let count = |word: &str| {
        (direct.values())
            .filter(|(verdict, _)| *verdict == word)
            .count()
    };
    eprintln!(
        "{} cases: {} OK, {} failed",
        direct.len(),
        count("OK"),
        count("FAILED")
    );
    let different: Vec<_> = direct
        .iter()
        .filter(|(case, verdict)| through.get(*case) != Some(verdict))
        .map(|(case, verdict)| (case, verdict, through.get(case)))
        .collect();
    assert!(different.is_empty(), "{different:#?}");
}
