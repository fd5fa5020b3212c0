//! Clients that leave, and clients that do what no client should: the command is stopped.

use futures_util::{SinkExt as _, StreamExt as _};
use hub::client::exec::Event;
use hub_server::api::channel::{self, SUBPROTOCOL};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::{Bytes, Message};

use crate::world::{NODE, World, shell};

/// Prints the process it becomes, which reads nothing and does not end.
const STUCK: &str = "echo $$; exec sleep 1000";

/// Waits until a process of this machine has ended.
async fn ended(pid: &[u8]) {
    let pid: i32 = std::str::from_utf8(pid).unwrap().trim().parse().unwrap();
    // One that is gone already, and reaped, can't be opened.
    let Ok(process) = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) else {
        return;
    };
    let wait = move || poll(&mut [PollFd::new(&process, PollFlags::IN)], None).unwrap();
    assert_eq!(tokio::task::spawn_blocking(wait).await.unwrap(), 1);
}

/// A client that is none of ours, and the process that its command became.
async fn foreign(world: &World) -> (WebSocketStream<TcpStream>, Vec<u8>) {
    let command = STUCK.replace(' ', "%20").replace(';', "%3B");
    let mut request = format!(
        "ws://{}/v1/nodes/{NODE}/exec?command=sh&command=-c&command={command}&stdin=true",
        world.api()
    )
    .into_client_request()
    .unwrap();
    let headers = request.headers_mut();
    headers.insert("sec-websocket-protocol", SUBPROTOCOL.parse().unwrap());
    headers.insert(
        "authorization",
        format!("Bearer {}", world.token.expose()).parse().unwrap(),
    );
    let stream = TcpStream::connect(world.api()).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(request, stream)
        .await
        .unwrap();
    let first = socket.next().await.unwrap().unwrap().into_data();
    assert_eq!(first[0], channel::STDOUT);
    (socket, first[1..].to_vec())
}

#[tokio::test]
async fn an_exec_that_is_dropped_stops_its_command() {
    let world = World::node().await;
    let exec = world.client().exec(&shell(STUCK, false)).await.unwrap();
    let (input, mut output) = exec.split();
    let Event::Stdout(pid) = output.next().await else {
        panic!("no output")
    };
    drop((input, output));
    ended(&pid).await;
    world.stop().await;
}

/// The end of the connection waits behind bytes that the hub has no room for.
#[tokio::test]
async fn a_client_that_dies_while_stdin_is_stalled_is_noticed() {
    let world = World::node().await;
    let (socket, pid) = foreign(&world).await;
    // As a raw stream: a dead client says no goodbye.
    let stream = socket.into_inner();
    let stdin = channel::encode(channel::STDIN, &vec![0; 16 * 1024]);
    let mut frame = Frame::message(stdin, OpCode::Data(Data::Binary), true);
    frame.header_mut().mask = Some([0; 4]);
    let mut message = Vec::new();
    frame.format(&mut message).unwrap();
    // As much as everything on the way takes, and a piece that stays behind.
    let mut rest = &message[..];
    let mut sent = 0;
    while let Ok(now) = flood(&stream, rest).await {
        sent += now;
        rest = &rest[now..];
        if rest.is_empty() {
            rest = &message;
        }
    }
    assert!(sent > 64 * 1024, "{sent}");
    drop(stream);
    ended(&pid).await;
    world.stop().await;
}

/// Writes what goes at once. Fails when nothing goes however often the hub has had its turn.
async fn flood(stream: &TcpStream, bytes: &[u8]) -> std::io::Result<usize> {
    for _ in 0..10_000 {
        match stream.try_write(bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                tokio::task::yield_now().await;
            }
            written => return written,
        }
    }
    Err(std::io::ErrorKind::WouldBlock.into())
}

#[tokio::test]
async fn a_client_that_breaks_the_subprotocol_is_told_and_its_command_stopped() {
    let world = World::node().await;
    let binary = |bytes: &'static [u8]| Message::Binary(Bytes::from_static(bytes));
    let cases = [
        (Message::text("ls"), CloseCode::Unsupported),
        (binary(b"\x01not mine"), CloseCode::Protocol),
        (binary(b"\x09"), CloseCode::Protocol),
        (binary(b"\xff\x01"), CloseCode::Protocol),
        (binary(b"\xff"), CloseCode::Protocol),
    ];
    for (message, code) in cases {
        let (mut socket, pid) = foreign(&world).await;
        socket.send(message.clone()).await.unwrap();
        let answer = socket.next().await.unwrap().unwrap();
        let Message::Close(Some(close)) = answer else {
            panic!("{message:?}: {answer:?}")
        };
        assert_eq!(close.code, code, "{message:?}");
        assert!(!close.reason.is_empty());
        ended(&pid).await;
    }
    world.stop().await;
}

/// What is part of the subprotocol and means nothing here.
#[tokio::test]
async fn resizes_and_empty_messages_change_nothing() {
    let world = World::node().await;
    let (mut socket, pid) = foreign(&world).await;
    for message in [
        &b""[..],
        b"\x00",
        b"\x04{\"Width\":80,\"Height\":24}",
        b"\xff\x00",
        b"\xff\x00",
    ] {
        socket
            .send(Message::Binary(Bytes::from_static(message)))
            .await
            .unwrap();
    }
    socket
        .send(Message::Ping(Bytes::from_static(b"?")))
        .await
        .unwrap();
    assert_eq!(
        socket.next().await.unwrap().unwrap(),
        Message::Pong(Bytes::from_static(b"?"))
    );
    socket.close(None).await.unwrap();
    ended(&pid).await;
    world.stop().await;
}
