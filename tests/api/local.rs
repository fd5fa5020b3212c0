//! The hub's own machine as a node: nothing above it notices a difference.

use std::sync::Arc;

use bytes::Bytes;
use hub::client::ClientError;
use hub::client::exec::{Event, Output, Request};
use hub_agent::policy::{Policy, Rules, Source};
use hub_ledger::LocalRefusal;
use hub_protocol::code::CloseCode;
use hub_server::Parts;
use hub_server::api::channel::LastWord;
use hub_server::api::problem::Kind;
use hub_server::api::types::NodeState;
use hub_server::server::StartError;
use hub_server::store::StoreError;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::world::{self, NODE, World, shell};

async fn to_end(output: &mut Output) -> (Vec<u8>, LastWord) {
    let mut stdout = Vec::new();
    loop {
        match output.next().await {
            Event::Stdout(bytes) => stdout.extend_from_slice(&bytes),
            Event::Stderr(_) | Event::StdinClosed => {}
            Event::Ended(word) => return (stdout, word),
            Event::Lost(why) => panic!("the connection broke: {why}"),
        }
    }
}

async fn refused(world: &World, request: &Request) -> ClientError {
    let asked = world.client().exec(request).await;
    asked.err().expect("it is refused")
}

#[tokio::test]
async fn it_runs_commands_and_carries_every_byte() {
    let world = World::local().await;
    let exec = world.client().exec(&shell("cat; exit 3", true)).await;
    let (mut input, mut output) = exec.unwrap().split();
    let sent: Vec<u8> = (0..4u32 << 20)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let send = async {
        input.send(&sent).await.unwrap();
        input.finish().await.unwrap();
    };
    let ((), (stdout, word)) = tokio::join!(send, to_end(&mut output));
    assert!(
        stdout == sent,
        "{} bytes came back, or others",
        stdout.len()
    );
    assert_eq!(word, LastWord::Exited(3));
    let nodes = world.client().nodes().await.unwrap().nodes;
    let [node] = &nodes[..] else {
        panic!("{nodes:?}")
    };
    assert!(node.local && node.state == NodeState::Connected);
    let session = node.session.as_ref().unwrap();
    assert_eq!((session.address.as_ref(), session.rtt_us), (None, 0));
    assert!(session.capabilities.contains(&"exec".to_owned()));
    assert!(!session.capabilities.contains(&"docker-socket".to_owned()));
    world.stop().await;
}

/// The list of targets reaches it, first and whenever it changes.
#[tokio::test]
async fn what_is_exposed_on_it_is_reached() {
    let world = World::local().await;
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = target.local_addr().unwrap().port();
    let made = world.server.hub().expose(NODE, port, None).await.unwrap();
    let (_, path) = made.urls[0].split_once("/v1/").unwrap();
    let data_plane = world.server.bound().proxy.unwrap();
    let mut browser = TcpStream::connect(data_plane).await.unwrap();
    let request = format!("GET /v1/{path} HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n\r\n");
    browser.write_all(request.as_bytes()).await.unwrap();
    let mut answering = target.accept().await.unwrap().0;
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nhere";
    answering.write_all(answer).await.unwrap();
    let mut answer = String::new();
    browser.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("\r\n\r\nhere"), "{answer}");
    world.stop().await;
}

#[tokio::test]
async fn a_session_that_is_lost_is_followed_by_another() {
    let world = World::local().await;
    let hub = world.server.hub();
    let id = hub.find(NODE).await.unwrap().unwrap().id;
    let first = hub.sessions().connected(&id).unwrap();
    let mut changes = hub.sessions().changes();
    let script = shell("echo up; exec sleep 1000", false);
    let exec = world.client().exec(&script).await.unwrap();
    let (_input, mut output) = exec.split();
    assert_eq!(
        output.next().await,
        Event::Stdout(Bytes::from_static(b"up\n"))
    );
    hub.sessions()
        .close(&id, CloseCode::PROTOCOL_VIOLATED, "for the test");
    assert!(matches!(to_end(&mut output).await.1, LastWord::Unknown(_)));
    let second = loop {
        changes.changed().await.unwrap();
        if let Some(connected) = hub.sessions().connected(&id)
            && connected.epoch > first.epoch
        {
            break connected;
        }
    };
    assert_eq!(second.hello.incarnation, first.hello.incarnation);
    let exec = world.client().exec(&shell("exit 4", false)).await.unwrap();
    assert_eq!(to_end(&mut exec.split().1).await.1, LastWord::Exited(4));
    world.stop().await;
}

#[tokio::test]
async fn stopping_the_hub_stops_what_runs_there() {
    let world = World::local().await;
    let file = world.path("told");
    let script = format!(
        "trap 'echo told > {}; exit 0' TERM; echo ready; while :; do sleep 1000 & wait $!; done",
        file.display()
    );
    let exec = world.client().exec(&shell(&script, false)).await.unwrap();
    let (_input, mut output) = exec.split();
    let ready = Event::Stdout(Bytes::from_static(b"ready\n"));
    assert_eq!(output.next().await, ready);
    let dir = world.stop_and_keep().await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "told\n");
    drop(dir);
}

#[tokio::test]
async fn its_name_is_its_own_and_outlives_the_hub() {
    let mut world = World::hub().await;
    world.join().await;
    let taken = world.server.local_node(NODE.parse().unwrap()).await;
    let error = taken.unwrap_err();
    assert!(matches!(
        error,
        StartError::Store(StoreError::Local(LocalRefusal::NameTaken { .. }))
    ));
    assert!(error.to_string().contains("--local-node"), "{error}");
    let local = world.server.local_node("here".parse().unwrap()).await;
    local.unwrap();
    let before = world.server.hub().find("here").await.unwrap().unwrap();
    // Nobody serves it: it is there, and away.
    let request = Request {
        node: "here".into(),
        ..shell("true", false)
    };
    let refused = refused(&world, &request).await;
    assert_eq!(refused.problem().unwrap().kind(), Some(Kind::NodeAway));
    let dir = world.stop_and_keep().await;
    let config = world::config(&dir);
    let parts = Parts::system(&config).await.unwrap();
    let server = hub_server::Server::start(config, parts).await.unwrap();
    let again = server.local_node("there".parse().unwrap()).await.unwrap();
    assert_eq!(again.name().as_str(), "there");
    let after = server.hub().find("there").await.unwrap().unwrap();
    assert_eq!(after.id, before.id);
    assert!(server.hub().find("here").await.unwrap().is_none());
    server.stop().await;
    // Connecting to a hub that has stopped leads nowhere.
    assert!(again.connect().await.is_none());
}

#[tokio::test]
async fn revoked_it_is_no_node_any_more() {
    let world = World::local().await;
    let hub = world.server.hub();
    let id = hub.find(NODE).await.unwrap().unwrap().id;
    let now = hub.clock().now();
    hub.store().revoke_node(id, now).await.unwrap();
    let refused = refused(&world, &shell("true", false)).await;
    assert_eq!(refused.problem().unwrap().kind(), Some(Kind::NodeRevoked));
    let again = world.server.local_node(NODE.parse().unwrap()).await;
    assert!(again.unwrap_err().to_string().contains("for good"));
    world.stop().await;
}

#[tokio::test]
async fn its_policy_is_its_own() {
    let rules = Rules {
        host_exec: Some(false),
        ..Rules::default()
    };
    let policy = Policy::new(rules, false, Source::default()).unwrap();
    let world = World::local_with(Arc::new(policy)).await;
    let refused = refused(&world, &shell("true", false)).await;
    let problem = refused.problem().unwrap();
    assert!(
        problem.to_string().contains("policy.host_exec"),
        "{problem}"
    );
    world.stop().await;
}
