//! The Docker runtime against the common suite, and what is special to it. All of it needs a
//! daemon and is left out unless ignored tests are asked for.

#![allow(clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, KillContainerOptions,
    RemoveContainerOptionsBuilder,
};
use futures_util::StreamExt;
use tokio::time::timeout;

use super::super::suite::{self, HANG, Rig};
use super::super::{DEFAULT_GRACE, ExitStatus, Stopped, proc};
use super::*;

/// Runs a case in a container of its own, and looks for what it left.
async fn in_container(case: impl AsyncFnOnce(&Rig, &DockerRuntime, &DemoContainer)) {
    let engine = Engine::connect()
        .await
        .expect("this test needs a Docker daemon");
    let docker = DockerRuntime::new(&engine);
    let container = docker.demo_container().await.unwrap();
    let rig = Rig {
        runtime: Box::new(docker.clone()),
        container: Some(container.name.clone()),
    };
    let done = AssertUnwindSafe(case(&rig, &docker, &container))
        .catch_unwind()
        .await;
    container.remove().await.unwrap();
    done.unwrap_or_else(|panic| resume_unwind(panic));
}

/// The commands that run in a container, by the daemon's own list.
async fn running(docker: &DockerRuntime, name: &str) -> Vec<String> {
    let top = docker.docker().top_processes(name, None).await.unwrap();
    let titles = top.titles.unwrap();
    let column = titles.iter().position(|title| title == "CMD").unwrap();
    top.processes
        .unwrap()
        .into_iter()
        .map(|mut row| row.swap_remove(column))
        .collect()
}

macro_rules! common {
    ($($name:ident: $($part:ident)::*;)*) => {$(
        #[tokio::test]
        #[ignore = "needs a Docker daemon"]
        async fn $name() {
            in_container(async |rig, docker, container| {
                suite::$($part)::*(rig).await;
                let idle = running(docker, &container.name).await;
                assert!(
                    idle.iter().all(|command| command.contains("sleep 3600") || command.contains("sleep 30")),
                    "left behind: {idle:?}"
                );
            })
            .await;
        }
    )*};
}

common! {
    docker_bytes_pass_unchanged: bytes_pass_unchanged;
    docker_outputs_stay_apart: outputs_stay_apart;
    docker_codes_arrive: codes_arrive;
    docker_a_missing_command_is_not_a_code: a_missing_command_is_not_a_code;
    docker_input_ends_when_it_is_closed: input_ends_when_it_is_closed;
    docker_endless_input_does_not_hold_up_the_end: endless_input_does_not_hold_up_the_end;
    docker_a_stalled_reader_blocks_the_command: a_stalled_reader_blocks_the_command;
    docker_the_last_bytes_wait_for_a_slow_reader: the_last_bytes_wait_for_a_slow_reader;
    docker_environment_and_directory_apply: environment_and_directory_apply;
    docker_a_stop_kills_what_ignores_term: a_stop_kills_what_ignores_term;
    docker_a_stop_lets_term_be_handled: a_stop_lets_term_be_handled;
    docker_a_stop_reaches_a_plain_sleep: a_stop_reaches_a_plain_sleep;
    docker_a_dropped_output_leaves_the_other: a_dropped_output_leaves_the_other;
    docker_a_death_by_signal_is_told: a_death_by_signal_is_told;
    docker_a_background_process_does_not_hold_up_the_end: a_background_process_does_not_hold_up_the_end;
    docker_a_hundred_quick_commands: a_hundred_quick_commands;
    docker_half_a_megabyte_outlives_its_command: half_a_megabyte_outlives_its_command;
    docker_signals_reach_the_group: signals_reach_the_group;
    docker_terminal_merges_both_outputs: terminal::terminal_merges_both_outputs;
    docker_terminal_has_its_size_at_once: terminal::terminal_has_its_size_at_once;
    docker_terminal_can_be_resized: terminal::terminal_can_be_resized;
    docker_terminal_output_needs_no_newline: terminal::terminal_output_needs_no_newline;
    docker_terminal_in_raw_mode_passes_bytes_unchanged: terminal::terminal_in_raw_mode_passes_bytes_unchanged;
    docker_terminal_passes_characters_in_pieces: terminal::terminal_passes_characters_in_pieces;
    docker_terminal_stays_when_the_input_is_dropped: terminal::terminal_stays_when_the_input_is_dropped;
    docker_terminal_carries_interrupts: terminal::terminal_carries_interrupts;
    docker_terminal_has_a_type: terminal::terminal_has_a_type;
    docker_terminal_goes_with_all_its_jobs: terminal::terminal_goes_with_all_its_jobs;
    docker_terminal_refuses_what_is_not_there: terminal::terminal_refuses_what_is_not_there;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_terminal_needs_no_shell() {
    in_container(async |rig, _, _| {
        rig.run(rig.spec(&["rm", "/bin/sh"]), None).await;
        let spec = |argv: &[&str]| ExecSpec {
            tty: Some(Size { cols: 90, rows: 41 }),
            ..rig.spec(argv)
        };
        // The size comes a moment late here, and is there in the end.
        let argv = ["busybox", "ash", "-c", "sleep 1; stty size"];
        let output = suite::finish(rig.start(spec(&argv)).await, Vec::new()).await;
        assert_eq!(
            (&output.stdout[..], output.status),
            (&b"41 90\r\n"[..], ExitStatus::Code(0))
        );
        let error = rig.refused(spec(&["surely-not-a-command"])).await;
        assert!(
            matches!(&error, ExecError::NotFound { command, .. } if command == "surely-not-a-command"),
            "{error:?}"
        );
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_lists_what_runs() {
    in_container(async |_, docker, container| {
        let running = docker.containers().await.unwrap();
        let own = running
            .iter()
            .find(|one| one.name == container.name)
            .unwrap();
        assert_eq!((own.id.len(), &own.image), (64, &container.image));
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_missing_container_is_told_with_those_that_run() {
    in_container(async |rig, _, container| {
        for name in ["surely-not-here", "../../etc", "a b"] {
            let spec = ExecSpec {
                container: Some(name.into()),
                ..rig.spec(&["true"])
            };
            match rig.refused(spec).await {
                ExecError::NoSuchContainer {
                    name: asked,
                    running,
                    total,
                } => {
                    assert_eq!(asked, name);
                    assert!(running.len() <= MAX_NAMED && total >= running.len());
                    assert!(running.contains(&container.name) || total > MAX_NAMED);
                }
                other => panic!("{other:?}"),
            }
        }
        let without = rig
            .refused(ExecSpec {
                container: None,
                ..rig.spec(&["true"])
            })
            .await;
        assert!(matches!(without, ExecError::Unsupported { .. }));
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_stopped_or_paused_container_runs_nothing() {
    in_container(async |rig, docker, container| {
        docker
            .docker()
            .pause_container(&container.name)
            .await
            .unwrap();
        let paused = rig.refused(rig.spec(&["true"])).await;
        docker
            .docker()
            .unpause_container(&container.name)
            .await
            .unwrap();
        assert!(matches!(paused, ExecError::NotRunning { .. }), "{paused:?}");

        let name = format!("{}-stopped", container.name);
        let config = ContainerCreateBody {
            image: Some(container.image.clone()),
            cmd: Some(vec!["true".into()]),
            ..ContainerCreateBody::default()
        };
        let options = CreateContainerOptionsBuilder::new().name(&name).build();
        docker
            .docker()
            .create_container(Some(options), config)
            .await
            .unwrap();
        let spec = ExecSpec {
            container: Some(name.clone()),
            ..rig.spec(&["true"])
        };
        let stopped = rig.refused(spec).await;
        let force = RemoveContainerOptionsBuilder::new().force(true).build();
        docker
            .docker()
            .remove_container(&name, Some(force))
            .await
            .unwrap();
        assert!(
            matches!(&stopped, ExecError::NotRunning { name: asked, .. } if *asked == name),
            "{stopped:?}"
        );
        assert!(!stopped.retryable());
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_the_user_applies() {
    in_container(async |rig, _, _| {
        for (user, seen) in [("nobody", "65534:65534"), ("0", "0:0"), ("12:34", "12:34")] {
            let argv = ["sh", "-c", "echo $(id -u):$(id -g)"];
            let output = rig
                .run(
                    ExecSpec {
                        user: Some(user.into()),
                        ..rig.spec(&argv)
                    },
                    None,
                )
                .await;
            assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), seen);
        }
        let unknown = ExecSpec {
            user: Some("surely-nobody".into()),
            ..rig.spec(&["true"])
        };
        let error = rig.refused(unknown).await;
        assert!(
            matches!(&error, ExecError::Invalid { what } if what.contains("surely-nobody")),
            "{error:?}"
        );
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_stop_takes_the_whole_group() {
    in_container(async |rig, docker, container| {
        let script = "sh -c 'trap \"\" TERM; echo; while :; do sleep 7777; done' & wait";
        let mut process = rig.start(rig.spec(&["sh", "-c", script])).await;
        process.stdout.next().await.unwrap().unwrap();
        assert!(
            running(docker, &container.name)
                .await
                .iter()
                .any(|one| one.contains("7777"))
        );
        let stopped = process.handle.stop(Duration::from_millis(200)).await;
        assert_eq!(stopped, Ok(Stopped::Killed));
        let left = running(docker, &container.name).await;
        assert!(!left.iter().any(|one| one.contains("7777")), "{left:?}");
        assert_eq!(process.handle.wait().await, Ok(ExitStatus::Code(143)));
    })
    .await;
}

/// Starts an exec and keeps its insides at hand.
async fn insides(rig: &Rig, docker: &DockerRuntime, script: &str) -> (Process, Arc<Exec>) {
    let spec = rig.spec(&["sh", "-c", script]);
    let mut started = docker.launch(spec).await.unwrap();
    started.0.stdout.next().await.unwrap().unwrap();
    started
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_kill_from_inside_the_container_works_too() {
    in_container(async |rig, docker, _| {
        let polite = "trap 'exit 5' TERM; echo; while :; do sleep 1; done";
        let (process, exec) = insides(rig, docker, polite).await;
        let stopped = exec
            .stop_inside(exec.leader().unwrap(), DEFAULT_GRACE)
            .await;
        assert_eq!(stopped, Ok(Stopped::Terminated));
        assert_eq!(process.handle.wait().await, Ok(ExitStatus::Code(5)));

        let stubborn = "trap '' TERM; echo; while :; do sleep 1; done";
        let (process, exec) = insides(rig, docker, stubborn).await;
        let grace = Duration::from_millis(200);
        assert_eq!(
            exec.stop_inside(exec.leader().unwrap(), grace).await,
            Ok(Stopped::Killed)
        );
        assert_eq!(process.handle.wait().await, Ok(ExitStatus::Code(137)));
        let again = exec.stop_inside(exec.leader().unwrap(), grace).await;
        assert_eq!(again, Ok(Stopped::AlreadyEnded));
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_dropped_handle_stops_the_command() {
    in_container(async |rig, docker, container| {
        let mut process = rig
            .start(rig.spec(&["sh", "-c", "echo; exec sleep 7777"]))
            .await;
        process.stdout.next().await.unwrap().unwrap();
        let Process { stdout, handle, .. } = process;
        drop(handle);
        assert_eq!(
            timeout(HANG, stdout.count())
                .await
                .expect("it was not stopped"),
            0
        );
        assert!(
            !running(docker, &container.name)
                .await
                .iter()
                .any(|one| one.contains("7777"))
        );
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_container_that_goes_away_is_an_end() {
    in_container(async |rig, docker, container| {
        let argv = ["sh", "-c", "echo; exec sleep 7777"];
        let mut process = rig.start(rig.spec(&argv)).await;
        process.stdout.next().await.unwrap().unwrap();
        let kill = KillContainerOptions::default();
        docker
            .docker()
            .kill_container(&container.name, Some(kill))
            .await
            .unwrap();
        let Process {
            stdout,
            stderr,
            handle,
            ..
        } = process;
        let ended = async {
            let _ = tokio::join!(stdout.count(), stderr.count());
            handle.wait().await
        };
        // The daemon may tell the code, or have forgotten all of it together with the container.
        match timeout(HANG, ended).await.expect("the wait hangs") {
            Ok(status) => assert_eq!(status, ExitStatus::Code(137)),
            Err(error) => assert!(error.to_string().contains("unknown"), "{error}"),
        }
        assert_eq!(handle.stop(DEFAULT_GRACE).await, Ok(Stopped::AlreadyEnded));
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_the_next_start_stops_what_a_killed_agent_left() {
    in_container(async |rig, docker, container| {
        let dir = tempfile::tempdir().unwrap();
        let agent = docker.clone().keeping_records(dir.path()).await.unwrap();
        let (process, exec) = insides(rig, &agent, "echo; exec sleep 7777").await;
        let pid = exec.leader().unwrap().pid();
        let files = || std::fs::read_dir(dir.path().join("execs")).unwrap().count();
        assert_eq!(files(), 1);
        // A killed agent drops nothing.
        std::mem::forget((process, exec));

        docker.clone().keeping_records(dir.path()).await.unwrap();
        assert!(!proc::stat(pid).is_ok_and(|stat| !stat.dead));
        assert_eq!(files(), 0);
        assert!(
            !running(docker, &container.name)
                .await
                .iter()
                .any(|one| one.contains("7777"))
        );

        let ended = rig.run(rig.spec(&["true"]), None).await;
        assert_eq!((ended.status, files()), (ExitStatus::Code(0), 0));
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_demo_containers_are_removed() {
    let docker = DockerRuntime::new(&Engine::connect().await.unwrap());
    docker.ping().await.unwrap();
    let container = docker.demo_container().await.unwrap();
    let name = container.name.clone();
    assert!(
        docker
            .containers()
            .await
            .unwrap()
            .iter()
            .any(|one| one.name == name)
    );
    container.remove().await.unwrap();
    let gone = docker
        .docker()
        .inspect_container(&name, None::<InspectContainerOptions>)
        .await;
    assert!(gone.is_err());
}
