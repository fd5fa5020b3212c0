//! Commands with a terminal.

use super::*;

const SIZE: Size = Size {
    cols: 113,
    rows: 37,
};

impl Rig {
    fn on_terminal(&self, argv: &[&str]) -> ExecSpec {
        ExecSpec {
            stdin: true,
            tty: Some(SIZE),
            ..self.spec(argv)
        }
    }

    /// Runs a script on a terminal to its end, with an input that is left open.
    async fn typed(&self, script: &str, input: &[u8]) -> Output {
        let process = self.start(self.on_terminal(&["sh", "-c", script])).await;
        finish(process, input.to_vec()).await
    }
}

/// Reads this many bytes, and no more than comes with them.
async fn read(output: &mut ByteStream, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < len {
        let chunk = timeout(HANG, output.next()).await.expect("output hangs");
        all.extend_from_slice(&chunk.unwrap().unwrap());
    }
    all
}

pub(in super::super) async fn terminal_merges_both_outputs(rig: &Rig) {
    let script = "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && printf 'one\\n'
        printf 'two\\377\\000\\033[31m\\001\\000\\000\\000' >&2; printf 'thr\\303'; printf '\\251e'";
    let output = rig.typed(script, b"").await;
    assert_eq!(
        output.stdout,
        b"one\r\ntwo\xff\0\x1b[31m\x01\0\0\0thr\xc3\xa9e"
    );
    assert_eq!(
        (output.stderr.len(), output.status),
        (0, ExitStatus::Code(0))
    );
}

pub(in super::super) async fn terminal_has_its_size_at_once(rig: &Rig) {
    let times = if std::env::var_os("HUB_LONG").is_some() {
        200
    } else {
        20
    };
    for _ in 0..times {
        let process = rig.start(rig.on_terminal(&["stty", "size"])).await;
        let output = finish(process, Vec::new()).await;
        assert_eq!(output.stdout.escape_ascii().to_string(), "37 113\\r\\n");
    }
}

pub(in super::super) async fn terminal_can_be_resized(rig: &Rig) {
    let script = "trap 'stty size; exit 3' WINCH; echo ready; while :; do sleep 1; done";
    let mut process = rig.start(rig.on_terminal(&["sh", "-c", script])).await;
    assert_eq!(read(&mut process.stdout, 7).await, b"ready\r\n");
    let size = Size { cols: 90, rows: 41 };
    process.handle.resize(size).await.unwrap();
    let output = finish(process, Vec::new()).await;
    assert_eq!(
        (&output.stdout[..], output.status),
        (&b"41 90\r\n"[..], ExitStatus::Code(3))
    );
    // Without a terminal there is nothing to resize.
    let process = rig.start(rig.spec(&["cat"])).await;
    process.handle.resize(size).await.unwrap_err();
    finish(process, Vec::new()).await;
}

pub(in super::super) async fn terminal_output_needs_no_newline(rig: &Rig) {
    const LEN: usize = 5_000_000;
    let script = format!("stty -echo; head -c {LEN} /dev/zero; read x; echo $x");
    let mut process = rig.start(rig.on_terminal(&["sh", "-c", &script])).await;
    // All of it comes while the command waits.
    let all = read(&mut process.stdout, LEN).await;
    assert!(all.len() == LEN && all.iter().all(|byte| *byte == 0));
    let output = finish(process, b"bye\n".to_vec()).await;
    assert_eq!(
        (&output.stdout[..], output.status),
        (&b"bye\r\n"[..], ExitStatus::Code(0))
    );
}

pub(in super::super) async fn terminal_in_raw_mode_passes_bytes_unchanged(rig: &Rig) {
    const LEN: usize = 3 << 20;
    let script = format!("stty raw -echo; echo ready; head -c {LEN}; exit 5");
    let mut process = rig.start(rig.on_terminal(&["sh", "-c", &script])).await;
    assert_eq!(read(&mut process.stdout, 6).await, b"ready\n");
    let input = noise(LEN);
    let output = finish(process, input.clone()).await;
    assert!(output.stdout == input, "3 MiB came back changed");
    assert_eq!(output.status, ExitStatus::Code(5));
}

pub(in super::super) async fn terminal_passes_characters_in_pieces(rig: &Rig) {
    let text = "äöü€𝄞\u{301}漢字\u{200d}".repeat(5);
    let script = format!("stty raw -echo; echo ready; head -c {}", text.len());
    let mut process = rig.start(rig.on_terminal(&["sh", "-c", &script])).await;
    assert_eq!(read(&mut process.stdout, 6).await, b"ready\n");
    let mut stdin = process.stdin.take().unwrap();
    for byte in text.bytes() {
        stdin.write_all(&[byte]).await.unwrap();
        stdin.flush().await.unwrap();
    }
    let output = finish(process, Vec::new()).await;
    assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
}

pub(in super::super) async fn terminal_stays_when_the_input_is_dropped(rig: &Rig) {
    let script = "echo ready; sleep 1; [ -t 0 ] && echo still";
    let mut process = rig.start(rig.on_terminal(&["sh", "-c", script])).await;
    process.stdin = None;
    let output = finish(process, Vec::new()).await;
    assert_eq!(output.stdout, b"ready\r\nstill\r\n");
    // And without one at all.
    let spec = ExecSpec {
        stdin: false,
        ..rig.on_terminal(&["sh", "-c", script])
    };
    let output = finish(rig.start(spec).await, Vec::new()).await;
    assert_eq!(
        (&output.stdout[..], output.status),
        (&b"ready\r\nstill\r\n"[..], ExitStatus::Code(0))
    );
}

pub(in super::super) async fn terminal_carries_interrupts(rig: &Rig) {
    let mut process = rig.start(rig.on_terminal(&["sleep", "1000"])).await;
    process
        .stdin
        .as_mut()
        .unwrap()
        .write_all(b"\x03")
        .await
        .unwrap();
    process.stdin.as_mut().unwrap().flush().await.unwrap();
    let output = finish(process, Vec::new()).await;
    assert_eq!(output.stdout, b"^C");
    assert!(is_signal(output.status, 2), "{:?}", output.status);
}

pub(in super::super) async fn terminal_has_a_type(rig: &Rig) {
    let output = rig.typed("echo $TERM", b"").await;
    assert_eq!(output.stdout, b"xterm\r\n");
    let spec = ExecSpec {
        env: vec![("TERM".into(), "vt100".into())],
        ..rig.on_terminal(&["sh", "-c", "echo $TERM"])
    };
    let output = finish(rig.start(spec).await, Vec::new()).await;
    assert_eq!(output.stdout, b"vt100\r\n");
}

pub(in super::super) async fn terminal_goes_with_all_its_jobs(rig: &Rig) {
    let mut process = rig.start(rig.on_terminal(&["sh", "-i"])).await;
    let mut stdin = process.stdin.take().unwrap();
    let typed = b"sleep 4321 & sleep 4322 & echo be''gun\n";
    stdin.write_all(typed).await.unwrap();
    stdin.flush().await.unwrap();
    let mut shown = Vec::new();
    while !shown.windows(5).any(|window| window == b"begun") {
        shown.extend(read(&mut process.stdout, 1).await);
    }
    // Held until the end, so that no end of the connection helps.
    let stopped = timeout(HANG, process.handle.stop(DEFAULT_GRACE)).await;
    assert_eq!(stopped.expect("stop hangs"), Ok(Stopped::Terminated));
    drop(stdin);
    finish(process, Vec::new()).await;
}

pub(in super::super) async fn terminal_refuses_what_is_not_there(rig: &Rig) {
    for (command, missing) in [
        ("surely-not-a-command", true),
        ("/surely/not/there", true),
        ("/etc/passwd", false),
        ("/etc", false),
    ] {
        let error = rig.refused(rig.on_terminal(&[command])).await;
        match &error {
            ExecError::NotFound { command: c, .. } if missing => assert_eq!(c, command),
            ExecError::NotExecutable { command: c, .. } if !missing => assert_eq!(c, command),
            _ => panic!("{error:?}"),
        }
    }
}
