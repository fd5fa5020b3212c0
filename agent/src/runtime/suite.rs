//! What every runtime must do, as cases that a runtime's own tests run against it. The commands
//! are those that both this machine and the smallest container image have.

#![allow(clippy::unwrap_used)]

pub(super) mod terminal;

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use hub_protocol::kind::exec::Size;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::{
    ByteSink, ByteStream, DEFAULT_GRACE, ExecError, ExecSpec, ExitStatus, MAX_CHUNK, Process,
    Runtime, Stopped,
};

/// A case that takes longer hangs. Nothing is measured against it.
pub(super) const HANG: Duration = Duration::from_secs(120);

/// A runtime, and where in it commands run.
pub(super) struct Rig {
    pub(super) runtime: Box<dyn Runtime>,
    pub(super) container: Option<String>,
}

pub(super) struct Output {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) status: ExitStatus,
}

impl Rig {
    pub(super) fn spec(&self, argv: &[&str]) -> ExecSpec {
        ExecSpec {
            container: self.container.clone(),
            argv: argv.iter().map(ToString::to_string).collect(),
            ..ExecSpec::default()
        }
    }

    pub(super) async fn start(&self, spec: ExecSpec) -> Process {
        timeout(HANG, self.runtime.exec(spec))
            .await
            .expect("exec hangs")
            .unwrap()
    }

    pub(super) async fn refused(&self, spec: ExecSpec) -> ExecError {
        timeout(HANG, self.runtime.exec(spec))
            .await
            .expect("exec hangs")
            .unwrap_err()
    }

    /// Runs to the end, as an operation does: input and both outputs at once, then the status.
    pub(super) async fn run(&self, spec: ExecSpec, input: Option<Vec<u8>>) -> Output {
        let spec = ExecSpec {
            stdin: input.is_some(),
            ..spec
        };
        let process = self.start(spec).await;
        finish(process, input.unwrap_or_default()).await
    }

    pub(super) async fn sh(&self, script: &str) -> Output {
        self.run(self.spec(&["sh", "-c", script]), None).await
    }
}

pub(super) async fn finish(process: Process, input: Vec<u8>) -> Output {
    let Process {
        stdin,
        stdout,
        stderr,
        handle,
    } = process;
    let fed = async {
        if let Some(stdin) = stdin {
            feed(stdin, input).await;
        }
    };
    let all = async {
        let (stdout, stderr, ()) = tokio::join!(collect(stdout), collect(stderr), fed);
        let status = handle.wait().await.unwrap();
        Output {
            stdout,
            stderr,
            status,
        }
    };
    timeout(HANG, all).await.expect("the command hangs")
}

/// A command may stop reading at any time; that is its own affair.
async fn feed(mut stdin: ByteSink, input: Vec<u8>) {
    let _ = stdin.write_all(&input).await;
    let _ = stdin.shutdown().await;
}

async fn collect(mut stream: ByteStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(chunk) = stream.try_next().await.unwrap() {
        assert!(
            !chunk.is_empty() && chunk.len() <= MAX_CHUNK,
            "a chunk of {}",
            chunk.len()
        );
        all.extend_from_slice(&chunk);
    }
    all
}

/// Bytes without a pattern that a lost or doubled chunk would hide in.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state >> 16).to_le_bytes()[..6]);
    }
    bytes.truncate(len);
    bytes
}

pub(super) async fn bytes_pass_unchanged(rig: &Rig) {
    let every_byte: Vec<u8> = (0..=255).cycle().take(1024).collect();
    let output = rig.run(rig.spec(&["cat"]), Some(every_byte.clone())).await;
    assert_eq!(output.stdout, every_byte);
    assert_eq!(
        (output.stderr.len(), output.status),
        (0, ExitStatus::Code(0))
    );

    let input = noise(3 << 20);
    let output = rig.run(rig.spec(&["cat"]), Some(input.clone())).await;
    assert!(
        output.stdout == input,
        "3 MiB both ways at once came back changed"
    );
}

pub(super) async fn outputs_stay_apart(rig: &Rig) {
    let output = rig
        .sh("printf 'one\\0'; printf 'two\\377' >&2; head -c 300000 /dev/zero >&2; echo three")
        .await;
    assert_eq!(output.stdout, b"one\0three\n");
    assert_eq!(&output.stderr[..4], b"two\xff");
    assert_eq!(output.stderr.len(), 300_004);
}

pub(super) async fn codes_arrive(rig: &Rig) {
    for code in [0, 1, 2, 125, 126, 127, 254, 255] {
        let output = rig.sh(&format!("exit {code}")).await;
        assert_eq!(output.status, ExitStatus::Code(code));
    }
}

pub(super) async fn a_missing_command_is_not_a_code(rig: &Rig) {
    for command in ["surely-not-a-command", "/surely/not/there"] {
        let error = rig.refused(rig.spec(&[command])).await;
        assert!(
            matches!(&error, ExecError::NotFound { command: c, .. } if c == command),
            "{error:?}"
        );
    }
    for command in ["/etc/passwd", "/etc"] {
        let error = rig.refused(rig.spec(&[command])).await;
        assert!(
            matches!(error, ExecError::NotExecutable { .. }),
            "{error:?}"
        );
    }
    let error = rig
        .refused(ExecSpec {
            cwd: Some("/surely/not".into()),
            ..rig.spec(&["true"])
        })
        .await;
    assert!(matches!(error, ExecError::Invalid { .. }), "{error:?}");
    assert!(error.to_string().contains("/surely/not"), "{error}");
    let error = rig
        .refused(ExecSpec {
            env: vec![("A=".into(), String::new())],
            ..rig.spec(&["true"])
        })
        .await;
    assert!(matches!(error, ExecError::Invalid { .. }), "{error:?}");
}

pub(super) async fn input_ends_when_it_is_closed(rig: &Rig) {
    let output = rig
        .run(rig.spec(&["wc", "-c"]), Some(b"x\n".to_vec()))
        .await;
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "2");

    // Output goes on after the input's end.
    let script = "cat >/dev/null; head -c 200000 /dev/zero; echo end";
    let output = rig
        .run(rig.spec(&["sh", "-c", script]), Some(noise(100_000)))
        .await;
    assert_eq!(output.stdout.len(), 200_004);

    // Dropping is closing.
    let mut process = rig
        .start(ExecSpec {
            stdin: true,
            ..rig.spec(&["cat"])
        })
        .await;
    process.stdin = None;
    assert_eq!(
        finish(process, Vec::new()).await.status,
        ExitStatus::Code(0)
    );

    // Without an input there is EOF at once.
    let output = rig.run(rig.spec(&["cat"]), None).await;
    assert_eq!(
        (output.stdout.len(), output.status),
        (0, ExitStatus::Code(0))
    );
}

pub(super) async fn endless_input_does_not_hold_up_the_end(rig: &Rig) {
    let process = rig
        .start(ExecSpec {
            stdin: true,
            ..rig.spec(&["head", "-n1"])
        })
        .await;
    let Process {
        stdin,
        stdout,
        stderr,
        handle,
    } = process;
    let mut stdin = stdin.unwrap();
    let fed = async {
        let line = Bytes::from_static(b"y\n").repeat(4096);
        while stdin.write_all(&line).await.is_ok() {}
    };
    let ended = async {
        let (out, err) = tokio::join!(collect(stdout), collect(stderr));
        (out, err, handle.wait().await.unwrap())
    };
    // The feeder may end with an error or hang on a full pipe; the operation ends either way.
    let (out, err, status) = timeout(HANG, async {
        tokio::pin!(fed, ended);
        tokio::select! {
            all = &mut ended => all,
            () = &mut fed => ended.await,
        }
    })
    .await
    .expect("head hangs");
    assert_eq!(
        (&out[..], &err[..], status),
        (&b"y\n"[..], &b""[..], ExitStatus::Code(0))
    );
}

pub(super) async fn a_stalled_reader_blocks_the_command(rig: &Rig) {
    const SIZE: usize = 8 << 20;
    let script = format!("head -c {SIZE} /dev/zero; exit 3");
    let mut process = rig.start(rig.spec(&["sh", "-c", &script])).await;
    let first = process.stdout.next().await.unwrap().unwrap().len();
    // Ready too early would mean that somebody swallowed 8 MiB. A slow machine passes anyway.
    let early = timeout(Duration::from_millis(300), process.handle.wait()).await;
    assert!(
        early.is_err(),
        "the command ended with its output unread: {early:?}"
    );
    let output = finish(process, Vec::new()).await;
    assert_eq!(
        (first + output.stdout.len(), output.status),
        (SIZE, ExitStatus::Code(3))
    );
}

/// The end of an output survives a reader that is away while the command ends.
pub(super) async fn the_last_bytes_wait_for_a_slow_reader(rig: &Rig) {
    const SIZE: usize = 40_000;
    let script = format!("head -c {SIZE} /dev/zero");
    let process = rig.start(rig.spec(&["sh", "-c", &script])).await;
    // The command ends because all of it fits on the way.
    timeout(HANG, process.handle.wait())
        .await
        .expect("the command hangs")
        .unwrap();
    let output = finish(process, Vec::new()).await;
    assert_eq!(output.stdout.len(), SIZE);
}

/// A command that ends at once loses nothing of what it printed last, though nobody read it yet.
pub(super) async fn half_a_megabyte_outlives_its_command(rig: &Rig) {
    const SIZE: usize = 500_000;
    for tty in [None, Some(Size { cols: 80, rows: 24 })] {
        let argv = ["sh", "-c", &format!("head -c {SIZE} /dev/zero; exit 7")];
        let mut process = rig
            .start(ExecSpec {
                tty,
                ..rig.spec(&argv)
            })
            .await;
        let first = process.stdout.next().await.unwrap().unwrap().len();
        // The reader pauses.
        let _ = timeout(Duration::from_millis(200), process.handle.wait()).await;
        let output = finish(process, Vec::new()).await;
        assert_eq!(
            (first + output.stdout.len(), output.status),
            (SIZE, ExitStatus::Code(7))
        );
    }
}

pub(super) async fn signals_reach_the_group(rig: &Rig) {
    let script = "trap 'echo got; exit 9' USR1; echo ready; while :; do sleep 1; done";
    let mut process = rig.start(rig.spec(&["sh", "-c", script])).await;
    assert_eq!(
        &process.stdout.next().await.unwrap().unwrap()[..],
        b"ready\n"
    );
    process.handle.signal(120).await.unwrap_err();
    process.handle.signal(10).await.unwrap();
    let output = finish(process, Vec::new()).await;
    assert_eq!(
        (&output.stdout[..], output.status),
        (&b"got\n"[..], ExitStatus::Code(9))
    );
}

pub(super) async fn environment_and_directory_apply(rig: &Rig) {
    let spec = ExecSpec {
        env: vec![
            ("GREETING".into(), "hello = wörld\n".into()),
            ("EMPTY".into(), String::new()),
            ("TWICE".into(), "first".into()),
            ("TWICE".into(), "second".into()),
        ],
        cwd: Some("/etc".into()),
        ..rig.spec(&[
            "sh",
            "-c",
            "printf '%s|%s|%s|' \"$GREETING\" \"${EMPTY-unset}\" \"$TWICE\"; pwd",
        ])
    };
    let output = rig.run(spec, None).await;
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "hello = wörld\n||second|/etc\n"
    );
}

pub(super) async fn a_stop_kills_what_ignores_term(rig: &Rig) {
    let script = "trap '' TERM; echo ready; while :; do sleep 1; done";
    let mut process = rig.start(rig.spec(&["sh", "-c", script])).await;
    assert_eq!(
        &process.stdout.next().await.unwrap().unwrap()[..],
        b"ready\n"
    );
    let stopped = timeout(HANG, process.handle.stop(Duration::from_millis(200))).await;
    assert_eq!(stopped.expect("stop hangs"), Ok(Stopped::Killed));
    let again = process.handle.stop(DEFAULT_GRACE).await;
    assert_eq!(again, Ok(Stopped::AlreadyEnded));
    assert!(is_signal(finish(process, Vec::new()).await.status, 9));
}

pub(super) async fn a_stop_lets_term_be_handled(rig: &Rig) {
    let script = "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 1; done";
    let mut process = rig.start(rig.spec(&["sh", "-c", script])).await;
    assert_eq!(
        &process.stdout.next().await.unwrap().unwrap()[..],
        b"ready\n"
    );
    let stopped = timeout(HANG, process.handle.stop(DEFAULT_GRACE)).await;
    assert_eq!(stopped.expect("stop hangs"), Ok(Stopped::Terminated));
    let output = finish(process, Vec::new()).await;
    assert_eq!(
        (&output.stdout[..], output.status),
        (&b"bye\n"[..], ExitStatus::Code(7))
    );
}

pub(super) async fn a_stop_reaches_a_plain_sleep(rig: &Rig) {
    let process = rig.start(rig.spec(&["sleep", "1000"])).await;
    let stopped = timeout(HANG, process.handle.stop(DEFAULT_GRACE)).await;
    assert_eq!(stopped.expect("stop hangs"), Ok(Stopped::Terminated));
    assert!(is_signal(finish(process, Vec::new()).await.status, 15));
}

pub(super) async fn a_dropped_output_leaves_the_other(rig: &Rig) {
    let script = "head -c 3000000 /dev/zero; echo end >&2";
    let mut process = rig.start(rig.spec(&["sh", "-c", script])).await;
    process.stdout = Box::pin(stream::empty());
    let output = finish(process, Vec::new()).await;
    assert_eq!(
        (&output.stderr[..], output.status),
        (&b"end\n"[..], ExitStatus::Code(0))
    );
}

pub(super) async fn a_death_by_signal_is_told(rig: &Rig) {
    for signal in [9, 15] {
        let status = rig.sh(&format!("kill -{signal} $$")).await.status;
        assert!(is_signal(status, signal), "{status:?}");
    }
}

fn is_signal(status: ExitStatus, signal: i32) -> bool {
    status == ExitStatus::Signal(signal) || status == ExitStatus::Code(128 + signal)
}

pub(super) async fn a_background_process_does_not_hold_up_the_end(rig: &Rig) {
    let output = rig.sh("sleep 30 & echo hi").await;
    assert_eq!(
        (&output.stdout[..], output.status),
        (&b"hi\n"[..], ExitStatus::Code(0))
    );
}

pub(super) async fn a_hundred_quick_commands(rig: &Rig) {
    for _ in 0..100 {
        let output = rig.run(rig.spec(&["true"]), None).await;
        assert_eq!(output.status, ExitStatus::Code(0));
    }
}
