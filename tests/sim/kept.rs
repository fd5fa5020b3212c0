//! Commands that are kept while their client, the network or the hub is away: every byte comes once,
//! or the gap is said; the exit code can be had later.

use std::time::Duration;

use hub_protocol::kind::call::exec::{Kept, KeptState, List, Status, Stop};
use hub_protocol::kind::call::{self, Call, Change};
use hub_protocol::kind::exec::{
    Accepted, Attach, KEPT_OUTPUT, Message, Offsets, OnDisconnect, Open, Outcome, STDIN, STDOUT,
    Size,
};
use hub_protocol::kind::{self, FailureCode};
use hub_protocol::outcome;
use hub_quic::operation::{Ended, Operation};
use hub_server::hub::AskError;

use crate::commands::pattern;
use crate::world::{World, finish, run};

fn keep(argv: &[&str]) -> Open {
    Open {
        container: None,
        argv: argv.iter().map(ToString::to_string).collect(),
        env: vec![],
        cwd: None,
        user: None,
        stdin: false,
        tty: None,
        on_disconnect: OnDisconnect::Keep,
    }
}

async fn begin(world: &World, open: &Open) -> (Operation, Accepted) {
    let begun = world.hub().ask("node", open).await.answered().unwrap();
    (
        begun.operation,
        kind::decode("accepted", &begun.accepted).unwrap(),
    )
}

/// Comes back, as soon as the node is there.
async fn attach(world: &World, open: &Attach) -> (Operation, Offsets) {
    loop {
        match world.hub().ask("node", open).await {
            outcome::Outcome::Answered(begun) => {
                let accepted: Accepted = kind::decode("accepted", &begun.accepted).unwrap();
                assert_eq!(accepted.id, open.id);
                return (begun.operation, accepted.offsets);
            }
            outcome::Outcome::NotStarted(AskError::Failed { failure, .. }) => panic!("{failure}"),
            _ => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    }
}

async fn call<C: Call>(world: &World, params: &C) -> C::Reply {
    let open = call::Open::new(params);
    let begun = world.hub().ask("node", &open).await.answered().unwrap();
    let mut reply = begun.operation.receiver(call::REPLY);
    let mut json = Vec::new();
    while let Some(chunk) = reply.chunk().await.unwrap() {
        json.extend_from_slice(&chunk);
    }
    serde_json::from_slice(&json).unwrap()
}

async fn list(world: &World) -> Vec<Kept> {
    call(world, &List {}).await
}

/// Reads stdout up to a length, or until the operation ends.
async fn read(operation: &Operation, len: usize) -> Result<Vec<u8>, (Vec<u8>, Ended)> {
    let mut stdout = operation.receiver(STDOUT);
    let mut all = Vec::new();
    while all.len() < len {
        match stdout.chunk().await {
            Ok(Some(chunk)) => all.extend_from_slice(&chunk),
            Ok(None) => break,
            Err(ended) => return Err((all, ended)),
        }
    }
    // Dropping the receiver would say that no more is wanted.
    std::mem::forget(stdout);
    Ok(all)
}

fn stdout(bytes: usize) -> Offsets {
    Offsets {
        stdout: bytes as u64,
        stderr: 0,
    }
}

#[test]
fn every_byte_comes_once_though_the_network_was_away() {
    run(async {
        let world = World::without_records(41).await;
        let agent = world.agent("node", 1).await;
        let (operation, accepted) = begin(&world, &keep(&["drip", "120", "7", "3"])).await;
        assert_eq!(accepted.offsets, Offsets::default());
        assert!(accepted.id.0.len() == 16 && accepted.id.0.bytes().all(|b| b.is_ascii_hexdigit()));
        let mut output = read(&operation, 5_000).await.unwrap();
        // Longer than any session lives.
        world.net.blackout(agent.host, Duration::from_secs(70));
        let (more, _) = read(&operation, usize::MAX).await.unwrap_err();
        output.extend_from_slice(&more);
        drop(operation);
        let open = Attach {
            id: accepted.id,
            seen: Some(stdout(output.len())),
            size: None,
        };
        let (operation, offsets) = attach(&world, &open).await;
        assert_eq!(offsets, stdout(output.len()));
        assert_eq!(agent.commands.alive(), 1);
        let (rest, outcome) = finish(&operation).await.unwrap();
        output.extend_from_slice(&rest);
        assert!(output == pattern(7, 0, 120_000));
        assert_eq!(outcome, Outcome::Exited(3));
        // Whoever stayed to the end knows: it is forgotten.
        drop(operation);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(list(&world).await, []);
    });
}

#[test]
fn what_is_lost_is_said() {
    run(async {
        let world = World::without_records(42).await;
        let agent = world.agent("node", 1).await;
        let (operation, accepted) = begin(&world, &keep(&["drip", "700", "7", "0"])).await;
        let seen = read(&operation, 3_000).await.unwrap().len();
        world.net.blackout(agent.host, Duration::from_secs(600));
        let (more, _) = read(&operation, usize::MAX).await.unwrap_err();
        let open = Attach {
            id: accepted.id,
            seen: Some(stdout(seen + more.len())),
            size: None,
        };
        let (operation, offsets) = attach(&world, &open).await;
        let from = offsets.stdout;
        assert!(from > (seen + more.len()) as u64, "nothing was lost");
        let (rest, outcome) = finish(&operation).await.unwrap();
        assert!(rest.len() >= KEPT_OUTPUT);
        assert!(rest == pattern(7, from, 700_000 - from as usize));
        assert_eq!(outcome, Outcome::Exited(0));
    });
}

#[test]
fn a_restart_of_the_hub_is_a_client_that_is_away() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let ledger = dir.path().join("ledger");
        let world = World::on_disk(43, &ledger).await;
        let agent = world.agent("node", 1).await;
        let (operation, accepted) = begin(&world, &keep(&["drip", "60", "7", "9"])).await;
        let mut output = read(&operation, 2_000).await.unwrap();
        // Its client goes with it.
        drop(operation);
        let world = world.restart(&ledger).await;
        let open = Attach {
            id: accepted.id,
            seen: Some(stdout(output.len())),
            size: None,
        };
        let (operation, offsets) = attach(&world, &open).await;
        assert_eq!(offsets, stdout(output.len()));
        let (rest, outcome) = finish(&operation).await.unwrap();
        output.extend_from_slice(&rest);
        assert!(output == pattern(7, 0, 60_000));
        assert_eq!((outcome, agent.commands.alive()), (Outcome::Exited(9), 0));
    });
}

#[test]
fn the_exit_code_can_be_asked_for_later_for_an_hour() {
    run(async {
        let world = World::without_records(44).await;
        let agent = world.agent("node", 1).await;
        let (operation, accepted) = begin(&world, &keep(&["drip", "10", "7", "5"])).await;
        read(&operation, 1_000).await.unwrap();
        // The client vanishes.
        drop(operation);
        agent.commands.until_alive(0).await;
        let id = accepted.id.0.clone();
        let status = Status { id: id[..6].into() };
        let info = call(&world, &status).await.unwrap();
        assert_eq!((&info.id, &*info.command), (&id, "drip"));
        assert_eq!(info.state, KeptState::Exited { code: 5 });
        assert!(!info.attached && info.started_ms > 0);
        // With all of the output, to one who saw nothing.
        let open = Attach {
            id: accepted.id.clone(),
            seen: None,
            size: None,
        };
        let (operation, offsets) = attach(&world, &open).await;
        assert_eq!(offsets, Offsets::default());
        let (output, outcome) = finish(&operation).await.unwrap();
        assert!(output == pattern(7, 0, 10_000));
        assert_eq!(outcome, Outcome::Exited(5));
        drop(operation);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(list(&world).await, []);

        // And one that nobody comes back to is forgotten.
        drop(begin(&world, &keep(&["drip", "1", "7", "0"])).await);
        tokio::time::sleep(Duration::from_secs(3_500)).await;
        assert_eq!(list(&world).await.len(), 1);
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert_eq!(list(&world).await, []);
        let refused = world.hub().ask("node", &open).await.answered();
        let Err(AskError::Failed { failure, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(failure.code, FailureCode::NOT_FOUND);
    });
}

#[test]
fn another_client_takes_the_place_of_the_first_and_types_on() {
    run(async {
        let world = World::without_records(45).await;
        let agent = world.agent("node", 1).await;
        let open = Open {
            stdin: true,
            ..keep(&["cat"])
        };
        let (first, accepted) = begin(&world, &open).await;
        let mut stdin = first.sender(STDIN);
        stdin.send(pattern(1, 0, 1000)).await.unwrap();
        read(&first, 1000).await.unwrap();
        let open = Attach {
            id: accepted.id.clone(),
            seen: Some(stdout(1000)),
            size: None,
        };
        let (second, _) = attach(&world, &open).await;
        let done = first.done().await.unwrap();
        assert_eq!(
            kind::decode::<Outcome>("outcome", &done).unwrap(),
            Outcome::Detached
        );
        drop((first, stdin));
        let mut stdin = second.sender(STDIN);
        stdin.send(pattern(1, 1000, 1000)).await.unwrap();
        assert!(read(&second, 1000).await.unwrap() == pattern(1, 1000, 1000));
        // A client that claims more than there is is told so, and changes nothing.
        let open = Attach {
            seen: Some(stdout(9_999)),
            ..open
        };
        world.hub().ask("node", &open).await.answered().unwrap_err();
        stdin.finish();
        let (rest, outcome) = finish(&second).await.unwrap();
        assert_eq!((rest.len(), outcome), (0, Outcome::Exited(0)));
        assert_eq!(agent.commands.alive(), 0);
    });
}

#[test]
fn a_client_that_detaches_leaves_its_command_whatever_was_asked_before() {
    run(async {
        let world = World::without_records(46).await;
        let agent = world.agent("node", 1).await;
        let open = Open {
            tty: Some(Size { cols: 80, rows: 24 }),
            on_disconnect: OnDisconnect::Kill,
            ..keep(&["size"])
        };
        let (operation, accepted) = begin(&world, &open).await;
        assert_eq!(read(&operation, 6).await.unwrap(), b"80x24\n");
        assert_eq!(list(&world).await, []);
        operation
            .send_message(kind::encode(&Message::Detach))
            .await
            .unwrap();
        let done = operation.done().await.unwrap();
        assert_eq!(
            kind::decode::<Outcome>("outcome", &done).unwrap(),
            Outcome::Detached
        );
        drop(operation);
        assert_eq!(list(&world).await[0].id, accepted.id.0);
        let open = Attach {
            id: accepted.id.clone(),
            seen: None,
            size: Some(Size { cols: 90, rows: 41 }),
        };
        let (operation, offsets) = attach(&world, &open).await;
        // What it printed before is no longer there, and that is said.
        assert_eq!(offsets, stdout(6));
        assert_eq!(read(&operation, 6).await.unwrap(), b"90x41\n");
        // Of many sizes the newest counts.
        for cols in 100..110 {
            let size = Size { cols, rows: 50 };
            let message = kind::encode(&Message::Resize(size));
            operation.send_message(message).await.unwrap();
        }
        let mut shown = Vec::new();
        while !shown.ends_with(b"109x50\n") {
            shown.extend(read(&operation, 1).await.unwrap());
        }
        let stop = Stop {
            id: accepted.id.0.clone(),
        };
        assert_eq!(call(&world, &stop).await, Change::Changed);
        let (_, outcome) = finish(&operation).await.unwrap();
        assert_eq!(outcome, Outcome::Signaled(15));
        assert_eq!(agent.commands.alive(), 0);
        drop(operation);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(call(&world, &stop).await, Change::NotFound);
    });
}

#[test]
fn kept_commands_end_with_their_agent() {
    run(async {
        let world = World::without_records(47).await;
        let agent = world.agent("node", 1).await;
        let commands = agent.commands.clone();
        let (operation, _) = begin(&world, &keep(&["sleep"])).await;
        drop(operation);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(commands.alive(), 1);
        agent.stop().await;
        assert_eq!(commands.alive(), 0);

        let agent = world.agent("other", 2).await;
        let commands = agent.commands.clone();
        let open = keep(&["sleep"]);
        let begun = world.hub().ask("other", &open).await.answered().unwrap();
        drop(begun);
        tokio::time::sleep(Duration::from_secs(1)).await;
        agent.kill().await;
        commands.until_alive(0).await;
    });
}

#[test]
fn no_more_are_kept_than_there_is_room_for() {
    run(async {
        let world = World::without_records(48).await;
        let agent = world.agent("node", 1).await;
        for _ in 0..100 {
            drop(begin(&world, &keep(&["sleep"])).await);
        }
        let refused = world.hub().ask("node", &keep(&["sleep"])).await.answered();
        let Err(AskError::Failed { failure, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(failure.code, FailureCode::BUSY);
        assert_eq!(agent.commands.alive(), 100);
        let all = list(&world).await;
        assert_eq!(all.len(), 100);
        let stop = Stop {
            id: all[50].id.clone(),
        };
        assert_eq!(call(&world, &stop).await, Change::Changed);
        drop(begin(&world, &keep(&["sleep"])).await);
        let now = list(&world).await;
        assert!(now.len() == 100 && now.iter().all(|kept| kept.id != stop.id));
    });
}
