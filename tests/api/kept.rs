//! Commands that outlive their clients, over the API with a real agent: kept, left, found again.

use hub::client::exec::{Attach, Event, Exec, Input, Output, Request};
use hub_protocol::kind::call::{self, Change};
use hub_protocol::kind::exec::{Offsets, OnDisconnect, Size};
use hub_server::api::channel::LastWord;
use hub_server::api::problem::Kind;

use crate::world::{NODE, World, shell};

fn kept(script: &str) -> Request {
    Request {
        on_disconnect: OnDisconnect::Keep,
        ..shell(script, true)
    }
}

async fn attach(world: &World, id: &str, stdout: u64) -> Exec {
    let attach = Attach {
        node: NODE.into(),
        id: id.into(),
        seen: Some(Offsets { stdout, stderr: 0 }),
        size: None,
    };
    world.client().attach(&attach).await.unwrap()
}

/// Reads standard output until it ends with `end`.
async fn read_to(output: &mut Output, end: &str) -> String {
    let mut read = String::new();
    while !read.ends_with(end) {
        match output.next().await {
            Event::Stdout(bytes) => read.push_str(std::str::from_utf8(&bytes).unwrap()),
            event => panic!("{read:?}, then {event:?}"),
        }
    }
    read
}

async fn last_word(output: &mut Output) -> LastWord {
    loop {
        if let Event::Ended(word) = output.next().await {
            return word;
        }
    }
}

const ECHO: &str = "echo ready; while read -r line; do echo \"got $line\"; done; exit 5";

async fn start(world: &World) -> (String, Input, Output) {
    let exec = world.client().exec(&kept(ECHO)).await.unwrap();
    let id = exec.id().to_owned();
    assert_eq!((id.len(), exec.offsets()), (16, Offsets::default()));
    let (input, output) = exec.split();
    (id, input, output)
}

#[tokio::test]
async fn a_kept_command_is_found_again_where_it_was_left() {
    let world = World::node().await;
    let (id, mut input, mut output) = start(&world).await;
    read_to(&mut output, "ready\n").await;
    input.send(b"one\n").await.unwrap();
    read_to(&mut output, "got one\n").await;
    // The client dies.
    drop((input, output));

    // What it had not seen, it gets: here all but the first line.
    let again = attach(&world, &id, 6).await;
    assert_eq!(again.id(), id);
    assert_eq!(again.offsets().stdout, 6);
    let (mut input, mut output) = again.split();
    assert_eq!(read_to(&mut output, "got one\n").await, "got one\n");
    input.send(b"two\n").await.unwrap();
    assert_eq!(read_to(&mut output, "got two\n").await, "got two\n");
    input.detach().await.unwrap();
    let word = last_word(&mut output).await;
    assert!(matches!(word, LastWord::Detached(_)), "{word:?}");

    // It ends while nobody is there; how can be asked for until it is forgotten.
    let client = world.client();
    let stop = call::exec::Stop { id: id.clone() };
    let status = call::exec::Status { id: id.clone() };
    assert_eq!(client.call(NODE, &stop).await.unwrap(), Change::Changed);
    let found = client.call(NODE, &status).await.unwrap().unwrap();
    assert_eq!(found.state, call::exec::KeptState::Signaled { signal: 15 });
    let (_input, mut output) = attach(&world, &id, 22).await.split();
    assert_eq!(last_word(&mut output).await, LastWord::Signaled(15));
    let unknown = Attach {
        node: NODE.into(),
        id: "0123456789abcdef".into(),
        seen: None,
        size: None,
    };
    let error = world.client().attach(&unknown).await.err().unwrap();
    assert_eq!(error.problem().unwrap().kind(), Some(Kind::NotFound));
    world.stop().await;
}

#[tokio::test]
async fn another_client_takes_a_command_over() {
    let world = World::node().await;
    let (id, _input, mut output) = start(&world).await;
    read_to(&mut output, "ready\n").await;
    let (mut input, mut other) = attach(&world, &id, 6).await.split();
    let word = last_word(&mut output).await;
    assert!(matches!(word, LastWord::Detached(_)), "{word:?}");
    input.finish().await.unwrap();
    assert_eq!(last_word(&mut other).await, LastWord::Exited(5));
    world.stop().await;
}

/// The way to the command breaks between hub and agent: the last word says how to come back.
#[tokio::test]
async fn a_lost_session_interrupts_a_kept_command() {
    let world = World::node().await;
    let (id, _input, mut output) = start(&world).await;
    read_to(&mut output, "ready\n").await;
    let hub = world.server.hub();
    let mut changes = hub.sessions().changes();
    let node = hub.sessions().all().remove(0);
    let code = hub_protocol::code::CloseCode::GOING_AWAY;
    node.1.session.close(code, "a test");
    let LastWord::Interrupted(how) = last_word(&mut output).await else {
        panic!("it is no interruption")
    };
    assert!(how.contains(&id), "{how}");
    // Until it is back with another session.
    let back = |epoch| epoch > node.1.epoch;
    while !hub
        .sessions()
        .connected(&node.0)
        .is_some_and(|now| back(now.epoch))
    {
        changes.changed().await.unwrap();
    }
    let (mut input, mut output) = attach(&world, &id, 6).await.split();
    input.finish().await.unwrap();
    assert_eq!(last_word(&mut output).await, LastWord::Exited(5));
    world.stop().await;
}

#[tokio::test]
async fn a_terminal_has_its_size_and_signals_arrive() {
    let world = World::node().await;
    let request = Request {
        tty: Some(Size { cols: 81, rows: 25 }),
        ..shell(
            "stty size; trap 'stty size; exit 3' USR1; echo on; while :; do sleep 0.05; done",
            true,
        )
    };
    let (mut input, mut output) = world.client().exec(&request).await.unwrap().split();
    assert_eq!(read_to(&mut output, "on\r\n").await, "25 81\r\non\r\n");
    input.resize(Size { cols: 90, rows: 30 }).await.unwrap();
    input.signal(10).await.unwrap();
    // What the shell says of a signal that its child got, too, comes first.
    read_to(&mut output, "30 90\r\n").await;
    assert_eq!(last_word(&mut output).await, LastWord::Exited(3));
    world.stop().await;
}
