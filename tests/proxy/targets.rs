//! What targets do at the edges of HTTP/1.1, as a browser sees it.

use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;

use crate::peers::{Target, ask, fetch, read_head, read_to};
use crate::world::{World, run};

/// A target that says twice how long its body is gets no second request on that connection: what
/// stands behind the chunks is nobody's answer.
#[test]
fn an_ambiguous_answer_cannot_poison_the_next() {
    run(async {
        let target = Target::start(|mut stream, number| async move {
            read_head(&mut stream).await.unwrap();
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 50\r\nTransfer-Encoding: chunked\r\n\r\n\
                          2\r\nhi\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
            let plain = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood";
            let answer = if number == 0 { answer } else { plain };
            stream.write_all(answer.as_bytes()).await.unwrap();
            let _open = stream;
            std::future::pending::<()>().await;
        })
        .await;
        let world = World::real(target.port).await;
        let mut browser = world.browser().await;
        let request = format!("GET {}/ HTTP/1.1\r\nHost: hub\r\n\r\n", world.prefix());
        let mut head = ask(&mut browser, &request).await;
        assert_eq!(head.all("transfer-encoding"), ["chunked"]);
        assert!(head.all("content-length").is_empty());
        let all = b"2\r\nhi\r\n0\r\n\r\n";
        read_to(&mut browser, &mut head.rest, all.len()).await;
        assert_eq!(head.rest, all);
        world.idle().await;
        let (_, body) = fetch(&mut browser, &request).await;
        assert_eq!(body, "good");
        assert_eq!(target.connections(), 2);
    });
}

/// A target that refuses an upload and neither reads nor closes: the browser gets the answer, and
/// the target's connection is closed.
#[test]
fn a_refused_upload_ends() {
    run(async {
        let (say, mut closed) = mpsc::unbounded_channel();
        let target = Target::start(move |mut stream, _| {
            let say = say.clone();
            async move {
                read_head(&mut stream).await.unwrap();
                let no = b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno";
                stream.write_all(no).await.unwrap();
                // Nothing is read but the end.
                while stream.write_all(b"").await.is_ok() && !is_closed(&stream).await {}
                say.send(()).unwrap();
            }
        })
        .await;
        let world = World::real(target.port).await;
        let mut browser = world.browser().await;
        let request = format!(
            "POST {}/ HTTP/1.1\r\nHost: hub\r\nContent-Length: 1000000000\r\n\r\nabc",
            world.prefix()
        );
        let (head, body) = fetch(&mut browser, &request).await;
        assert_eq!((head.status(), &body[..]), (403, "no"));
        closed.recv().await.unwrap();
        world.idle().await;
    });
}

/// Whether the other end has closed or broken the connection.
async fn is_closed(stream: &tokio::net::TcpStream) -> bool {
    let ready = stream.ready(tokio::io::Interest::READABLE).await.unwrap();
    if ready.is_read_closed() {
        return true;
    }
    let mut byte = [0; 64];
    match stream.try_read(&mut byte) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}
