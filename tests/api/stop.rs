//! A hub that stops: what is under way comes to its end, and nothing else is waited for.

use bytes::Bytes;
use hub::client::exec::Event;
use hub_server::api::channel::LastWord;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::world::{NODE, World, shell};

/// Reads on until the bytes end with `end`.
async fn read_to(stream: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    while !read.ends_with(end.as_bytes()) {
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "{read:?}");
    }
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn what_is_under_way_comes_to_its_end() {
    let world = World::node().await;
    let script = "echo ready; read line; echo \"got $line\"";
    let exec = world.client().exec(&shell(script, true)).await.unwrap();
    let (mut input, mut output) = exec.split();
    let said = |text: &'static str| Event::Stdout(Bytes::from_static(text.as_bytes()));
    assert_eq!(output.next().await, said("ready\n"));

    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = target.local_addr().unwrap().port();
    let made = world.server.hub().expose(NODE, port, None).await.unwrap();
    let (_, path) = made.urls[0].split_once("/v1/").unwrap();
    let data_plane = world.server.bound().proxy.unwrap();
    let mut browser = TcpStream::connect(data_plane).await.unwrap();
    let request = format!("GET /v1/{path} HTTP/1.1\r\nHost: hub\r\n\r\n");
    browser.write_all(request.as_bytes()).await.unwrap();
    let mut answering = target.accept().await.unwrap().0;
    read_to(&mut answering, "\r\n\r\n").await;

    // Connections that are kept open: two that have had an answer, and one that asked nothing.
    let addresses = [world.api(), data_plane];
    let mut idle = Vec::new();
    for address in addresses {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = b"GET /nothing HTTP/1.1\r\nHost: hub\r\n\r\n";
        stream.write_all(request).await.unwrap();
        stream.readable().await.unwrap();
        idle.push(stream);
    }
    idle.push(TcpStream::connect(world.api()).await.unwrap());

    let stop = tokio::spawn(world.server.stop());
    for mut stream in idle {
        stream.read_to_end(&mut Vec::new()).await.unwrap();
    }
    for address in addresses {
        assert!(TcpStream::connect(address).await.is_err());
    }
    assert!(!stop.is_finished());

    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlast";
    answering.write_all(answer).await.unwrap();
    let answer = read_to(&mut browser, "\r\n\r\nlast").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    input.send(b"it\n").await.unwrap();
    let mut rest = Vec::new();
    while rest.last() != Some(&Event::Ended(LastWord::Exited(0))) {
        rest.push(output.next().await);
        // The command may be seen to take no more before it is seen to end.
        rest.retain(|event| *event != Event::StdinClosed);
        assert!(rest.len() <= 2, "{rest:?}");
    }
    assert_eq!(rest[0], said("got it\n"));
    drop((input, output));
    stop.await.unwrap();
}

/// What does not end by itself is told to, and its client hears that nobody knows how it ended.
#[tokio::test]
async fn an_exec_that_outlasts_the_stop_is_cut_off_with_a_last_word() {
    let world = World::node().await;
    let script = "echo ready; exec sleep 1000";
    let exec = world.client().exec(&shell(script, false)).await.unwrap();
    let (_input, mut output) = exec.split();
    let ready = Event::Stdout(Bytes::from_static(b"ready\n"));
    assert_eq!(output.next().await, ready);
    let stop = tokio::spawn(world.server.stop());
    let Event::Ended(LastWord::Unknown(why)) = output.next().await else {
        panic!("no last word")
    };
    assert!(why.contains("the hub is stopping"), "{why}");
    stop.await.unwrap();
}
