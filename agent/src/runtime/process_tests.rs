//! The process runtime against the common suite, and what is special to it.

#![allow(clippy::unwrap_used)]

use std::env;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use futures_util::StreamExt;
use tempfile::TempDir;
use tokio::process::Command;

use super::leftovers::{self, Instance, Record};
use super::process::{ProcessRuntime, gate};
use super::suite::{self, Rig};
use super::{DEFAULT_GRACE, ExecError, ExecSpec, ExitStatus, Runtime, Stopped, proc};

async fn rig() -> (Rig, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let runtime = ProcessRuntime::open(dir.path()).await.unwrap();
    let runtime = runtime.behind(gate::tests::gate());
    (
        Rig {
            runtime: Box::new(runtime),
            container: None,
        },
        dir,
    )
}

macro_rules! common {
    ($($name:ident: $($part:ident)::*;)*) => {$(
        #[tokio::test]
        async fn $name() {
            let (rig, dir) = rig().await;
            suite::$($part)::*(&rig).await;
            let left = fs::read_dir(dir.path().join("execs")).unwrap().count();
            assert_eq!(left, 0, "records of commands that have ended");
        }
    )*};
}

common! {
    bytes_pass_unchanged: bytes_pass_unchanged;
    outputs_stay_apart: outputs_stay_apart;
    codes_arrive: codes_arrive;
    a_missing_command_is_not_a_code: a_missing_command_is_not_a_code;
    input_ends_when_it_is_closed: input_ends_when_it_is_closed;
    endless_input_does_not_hold_up_the_end: endless_input_does_not_hold_up_the_end;
    a_stalled_reader_blocks_the_command: a_stalled_reader_blocks_the_command;
    the_last_bytes_wait_for_a_slow_reader: the_last_bytes_wait_for_a_slow_reader;
    environment_and_directory_apply: environment_and_directory_apply;
    a_stop_kills_what_ignores_term: a_stop_kills_what_ignores_term;
    a_stop_lets_term_be_handled: a_stop_lets_term_be_handled;
    a_stop_reaches_a_plain_sleep: a_stop_reaches_a_plain_sleep;
    a_dropped_output_leaves_the_other: a_dropped_output_leaves_the_other;
    a_death_by_signal_is_told: a_death_by_signal_is_told;
    a_background_process_does_not_hold_up_the_end: a_background_process_does_not_hold_up_the_end;
    a_hundred_quick_commands: a_hundred_quick_commands;
    half_a_megabyte_outlives_its_command: half_a_megabyte_outlives_its_command;
    signals_reach_the_group: signals_reach_the_group;
    terminal_merges_both_outputs: terminal::terminal_merges_both_outputs;
    terminal_has_its_size_at_once: terminal::terminal_has_its_size_at_once;
    terminal_can_be_resized: terminal::terminal_can_be_resized;
    terminal_output_needs_no_newline: terminal::terminal_output_needs_no_newline;
    terminal_in_raw_mode_passes_bytes_unchanged: terminal::terminal_in_raw_mode_passes_bytes_unchanged;
    terminal_passes_characters_in_pieces: terminal::terminal_passes_characters_in_pieces;
    terminal_stays_when_the_input_is_dropped: terminal::terminal_stays_when_the_input_is_dropped;
    terminal_carries_interrupts: terminal::terminal_carries_interrupts;
    terminal_has_a_type: terminal::terminal_has_a_type;
    terminal_goes_with_all_its_jobs: terminal::terminal_goes_with_all_its_jobs;
    terminal_refuses_what_is_not_there: terminal::terminal_refuses_what_is_not_there;
}

/// Reads the pids that a script prints on one line.
async fn pids(process: &mut super::Process) -> Vec<i32> {
    let line = process.stdout.next().await.unwrap().unwrap();
    String::from_utf8(line.to_vec())
        .unwrap()
        .split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

fn lives(pid: i32) -> bool {
    proc::stat(pid).is_ok_and(|stat| !stat.dead)
}

#[tokio::test]
async fn containers_and_other_users_are_refused() {
    let (rig, _dir) = rig().await;
    let in_container = ExecSpec {
        container: Some("web".into()),
        ..rig.spec(&["true"])
    };
    assert!(matches!(
        rig.refused(in_container).await,
        ExecError::Unsupported { .. }
    ));
    for user in ["surely-nobody", "4000000000", "daemon"] {
        let error = rig
            .refused(ExecSpec {
                user: Some(user.into()),
                ..rig.spec(&["true"])
            })
            .await;
        assert!(matches!(error, ExecError::Unsupported { .. }), "{error:?}");
    }
    let me = rustix::process::getuid().as_raw().to_string();
    let spec = ExecSpec {
        user: Some(me.clone()),
        ..rig.spec(&["id", "-u"])
    };
    assert_eq!(
        rig.run(spec, None).await.stdout,
        format!("{me}\n").as_bytes()
    );
}

#[tokio::test]
async fn the_environment_is_clean() {
    let (rig, _dir) = rig().await;
    let output = rig.run(rig.spec(&["env"]), None).await;
    let text = String::from_utf8(output.stdout).unwrap();
    let names: Vec<_> = text
        .lines()
        .filter_map(|line| Some(line.split_once('=')?.0))
        .collect();
    assert!(names.contains(&"PATH"), "{text}");
    // The test's own environment holds more than this, CARGO_MANIFEST_DIR among it.
    assert!(env::var_os("CARGO_MANIFEST_DIR").is_some());
    assert!(
        names
            .iter()
            .all(|name| ["PATH", "HOME", "USER", "LANG"].contains(name)),
        "{text}"
    );
}

#[tokio::test]
async fn a_stop_takes_the_whole_group() {
    let (rig, _dir) = rig().await;
    // One child ignores TERM and outlives its parent.
    let script = "sh -c 'trap \"\" TERM; echo $$ $PPID; while :; do sleep 1; done' & wait";
    let mut process = rig.start(rig.spec(&["sh", "-c", script])).await;
    let pids = pids(&mut process).await;
    assert!(pids.iter().all(|&pid| lives(pid)));
    let stopped = process.handle.stop(Duration::from_millis(200)).await;
    assert_eq!(stopped, Ok(Stopped::Killed));
    assert!(!pids.iter().any(|&pid| lives(pid)), "{pids:?}");
    assert_eq!(process.handle.wait().await, Ok(ExitStatus::Signal(15)));
}

#[tokio::test]
async fn what_a_command_left_in_its_group_can_still_be_stopped() {
    let (rig, _dir) = rig().await;
    let mut process = rig
        .start(rig.spec(&["sh", "-c", "sleep 1000 & echo $!"]))
        .await;
    let pids = pids(&mut process).await;
    assert_eq!(
        process.handle.stop(DEFAULT_GRACE).await,
        Ok(Stopped::Terminated)
    );
    assert!(!lives(pids[0]));
    assert_eq!(process.handle.wait().await, Ok(ExitStatus::Code(0)));
}

#[tokio::test]
async fn a_dropped_handle_stops_the_command() {
    let (rig, dir) = rig().await;
    let mut process = rig
        .start(rig.spec(&["sh", "-c", "echo $$; exec sleep 1000"]))
        .await;
    let pids = pids(&mut process).await;
    let super::Process { stdout, handle, .. } = process;
    drop(handle);
    // The pipe's other end closes with the process.
    assert_eq!(stdout.count().await, 0);
    while fs::read_dir(dir.path().join("execs")).unwrap().count() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(!lives(pids[0]));
}

#[test]
fn the_end_of_the_agents_runtime_kills_the_group() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (process, pids) = runtime.block_on(async {
        let own = ProcessRuntime::open(dir.path()).await.unwrap();
        let script = "trap '' TERM; sleep 1000 & echo $$ $!; wait";
        let argv = ["sh", "-c", script].map(String::from).to_vec();
        let mut process = own
            .exec(ExecSpec {
                argv,
                ..ExecSpec::default()
            })
            .await
            .unwrap();
        let pids = pids(&mut process).await;
        (process, pids)
    });
    drop(runtime);
    drop(process);
    while pids.iter().any(|&pid| lives(pid)) {
        std::thread::yield_now();
    }
    assert_eq!(fs::read_dir(dir.path().join("execs")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_start_sweeps_what_an_earlier_run_left_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let records = dir.path().join("execs");
    leftovers::prepare(&records).unwrap();
    let spawn = || {
        Command::new("sleep")
            .arg("1000")
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
    };
    let (mut left, mut stranger, mut rebooted) =
        (spawn().unwrap(), spawn().unwrap(), spawn().unwrap());
    let record = |child: &tokio::process::Child| {
        let stat = proc::stat(child.id().unwrap().cast_signed()).unwrap();
        let boot = proc::boot_id().unwrap();
        Record {
            boot,
            process: Some(Instance {
                pid: stat.pid,
                start: stat.start,
            }),
            command: "sleep".into(),
            container: None,
            exec: None,
        }
    };
    let of_left = record(&left);
    let of_stranger = Record {
        process: record(&stranger).process.map(|process| Instance {
            start: process.start + 1,
            ..process
        }),
        ..record(&stranger)
    };
    let of_rebooted = Record {
        boot: "another".into(),
        ..record(&rebooted)
    };
    for record in [&of_left, &of_stranger, &of_rebooted] {
        // An agent that was killed removed nothing.
        leftovers::keep(&records, record).unwrap().leave();
    }
    fs::write(records.join("torn.json"), b"{").unwrap();

    // Somebody else reaps what the sweep stops.
    let reaped = tokio::spawn(async move { left.wait().await.unwrap() });
    ProcessRuntime::open(dir.path()).await.unwrap();

    assert_eq!(reaped.await.unwrap().signal(), Some(15));
    assert!(stranger.try_wait().unwrap().is_none());
    assert!(rebooted.try_wait().unwrap().is_none());
    assert_eq!(fs::read_dir(&records).unwrap().count(), 0);
}

#[tokio::test]
async fn records_name_no_arguments() {
    let (rig, dir) = rig().await;
    let mut process = rig
        .start(rig.spec(&["sh", "-c", "echo $$; sleep 1000 # secret"]))
        .await;
    let pids = pids(&mut process).await;
    let file = fs::read_dir(dir.path().join("execs"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let text = fs::read_to_string(&file).unwrap();
    assert!(
        text.contains(&pids[0].to_string()) && !text.contains("secret"),
        "{text}"
    );
    process.handle.stop(Duration::ZERO).await.unwrap();
    process.handle.wait().await.unwrap();
    assert!(!file.exists());
}
