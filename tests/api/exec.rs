//! Exec, as the client library does it.

use bytes::Bytes;
use hub::client::exec::{Event, Exec, Output, Request};
use hub_protocol::code::CloseCode;
use hub_server::api::channel::LastWord;
use hub_server::api::problem::Kind;

use crate::world::{NODE, World, shell};

/// All that a command prints, and how it ends.
async fn all(output: &mut Output) -> (Vec<u8>, Vec<u8>, LastWord) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        match output.next().await {
            Event::Stdout(bytes) => stdout.extend_from_slice(&bytes),
            Event::Stderr(bytes) => stderr.extend_from_slice(&bytes),
            Event::StdinClosed => {}
            Event::Ended(word) => return (stdout, stderr, word),
            Event::Lost(why) => panic!("{why}"),
        }
    }
}

async fn start(world: &World, request: &Request) -> Exec {
    world.client().exec(request).await.unwrap()
}

#[tokio::test]
async fn outputs_come_apart_and_the_end_comes_last() {
    let world = World::node().await;
    let request = Request {
        env: vec![("A".into(), "x y".into())],
        cwd: Some("/".into()),
        ..shell(r#"printf '%s \000\377' "$A"; pwd >&2; cat; exit 3"#, false)
    };
    let (_input, mut output) = start(&world, &request).await.split();
    let expected = (
        b"x y \x00\xff".to_vec(),
        b"/\n".to_vec(),
        LastWord::Exited(3),
    );
    assert_eq!(all(&mut output).await, expected);
    let (_input, mut output) = start(&world, &shell("kill -9 $$", false)).await.split();
    assert_eq!(all(&mut output).await.2, LastWord::Signaled(9));
    world.stop().await;
}

#[tokio::test]
async fn what_goes_in_comes_out() {
    let world = World::node().await;
    let (mut input, mut output) = start(&world, &shell("exec cat", true)).await.split();
    let sent: Vec<u8> = (0..4u32 << 20)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let send = async {
        input.send(&sent).await.unwrap();
        input.finish().await.unwrap();
    };
    let ((), (stdout, _, word)) = tokio::join!(send, all(&mut output));
    assert!(
        stdout == sent,
        "{} of {} bytes came back, or others",
        stdout.len(),
        sent.len()
    );
    assert_eq!(word, LastWord::Exited(0));
    world.stop().await;
}

#[tokio::test]
async fn a_command_that_wants_no_more_says_so_and_ends_with_its_own_code() {
    let world = World::node().await;
    let script = "read -r line; echo $line; exec <&-; exit 4";
    let (mut input, mut output) = start(&world, &shell(script, true)).await.split();
    let endless = vec![b'\n'; 32 * 1024];
    let send = async {
        input.send(b"first\n").await.unwrap();
        while input.send(&endless).await.is_ok() {}
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = send => {}
        (stdout, _, word) = all(&mut output) => {
            assert_eq!((&*stdout, word), (&b"first\n"[..], LastWord::Exited(4)));
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn stdin_that_nobody_reads_holds_no_output_back() {
    let world = World::node().await;
    let fifo = world.path("fifo");
    let script = format!(
        "mkfifo {0}; echo ready; cat {0}; echo done >&2",
        fifo.display()
    );
    let (mut input, mut output) = start(&world, &shell(&script, true)).await.split();
    let flood = vec![0; 32 * 1024];
    let flood = async { while input.send(&flood).await.is_ok() {} };
    let script = async {
        assert_eq!(
            output.next().await,
            Event::Stdout(Bytes::from_static(b"ready\n"))
        );
        let said = vec![b'x'; 1 << 20];
        let write = tokio::fs::write(&fifo, &said);
        let (written, (stdout, stderr, word)) = tokio::join!(write, all(&mut output));
        written.unwrap();
        assert!(stdout == said && stderr == b"done\n" && word == LastWord::Exited(0));
    };
    tokio::select! {
        () = flood => panic!("stdin was taken, or the connection broke"),
        () = script => {}
    }
    world.stop().await;
}

#[tokio::test]
async fn what_cannot_begin_is_a_problem_before_the_upgrade() {
    let mut world = World::hub().await;
    let refused = async |world: &World, request: &Request| {
        let error = world.client().exec(request).await.err().unwrap();
        let problem = error.problem().unwrap();
        assert_eq!(problem.operation.as_deref(), Some("exec"), "{problem:?}");
        (problem.kind().unwrap(), problem.node.clone())
    };
    let here = Some(NODE.to_owned());
    let request = shell("true", false);
    assert_eq!(
        refused(&world, &request).await,
        (Kind::NoSuchNode, here.clone())
    );
    world.join().await;
    let missing = Request {
        command: vec!["/no/such/command".into()],
        ..request.clone()
    };
    assert_eq!(
        refused(&world, &missing).await,
        (Kind::CommandNotFound, here.clone())
    );
    let no_program = Request {
        command: vec!["/dev/null".into()],
        ..request.clone()
    };
    assert_eq!(
        refused(&world, &no_program).await,
        (Kind::NotExecutable, here.clone())
    );
    let container = Request {
        container: Some("web".into()),
        ..request
    };
    let (kind, node) = refused(&world, &container).await;
    assert!(kind != Kind::Internal && node == here, "{kind:?}");
    world.stop().await;
}

#[tokio::test]
async fn a_node_that_is_lost_leaves_an_unknown_end_and_never_a_code() {
    let world = World::node().await;
    let request = shell("echo here; exec sleep 1000", false);
    let (_input, mut output) = start(&world, &request).await.split();
    assert_eq!(
        output.next().await,
        Event::Stdout(Bytes::from_static(b"here\n"))
    );
    let sessions = world.server.hub().sessions().all();
    sessions[0].1.session.close(CloseCode::GOING_AWAY, "a test");
    let (_, _, word) = all(&mut output).await;
    let LastWord::Unknown(why) = &word else {
        panic!("{word:?}")
    };
    assert!(why.contains("may still be running"), "{why}");
    world.stop().await;
}
