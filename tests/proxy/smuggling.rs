//! Requests with more than one reading: each is answered, its connection closed, and the target
//! sees nothing of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::peers::{Head, read_head};
use crate::world::{InMemory, World, run_simulated};

/// Sends bytes, and reads the answer and the connection's end. What comes after the answer, if
/// anything.
async fn refused(world: &World, bytes: &[u8]) -> (Head, Vec<u8>) {
    refused_in_the_middle(world, b"", bytes).await
}

/// The same, for bytes that come a second after others.
async fn refused_in_the_middle(world: &World, first: &[u8], then: &[u8]) -> (Head, Vec<u8>) {
    let mut browser = world.browser_in_memory();
    browser.write_all(first).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    browser.write_all(then).await.unwrap();
    let mut head = read_head(&mut browser).await.unwrap();
    let mut body = std::mem::take(&mut head.rest);
    let rest = browser.read_to_end(&mut body);
    let rest = timeout(Duration::from_secs(5), rest).await;
    rest.expect("it is closed").unwrap();
    assert_eq!(head.all("connection"), ["close"]);
    let length = head.all("content-length")[0].parse().unwrap();
    let rest = body.split_off(length);
    (head, rest)
}

/// Wrong heads. Each is followed by a request that is smuggled if the head is read in another way.
#[test]
fn heads_with_more_than_one_reading() {
    run_simulated(async {
        let world = World::simulated(Arc::new(InMemory(|_| panic!("a target is asked")))).await;
        let line = format!("POST {}/ HTTP/1.1\r\n", world.prefix());
        let lines = |lines: &str| format!("{line}Host: hub\r\n{lines}\r\n");
        let path = world.prefix();
        let mut battery = vec![];
        for (status, text) in [
            // Two lengths, in one way or another.
            (400, "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"),
            (400, "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n"),
            (400, "Content-Length: 4\r\nContent-Length: 4\r\n"),
            (400, "Content-Length: 4\r\nContent-Length: 5\r\n"),
            (400, "Content-Length: 4, 4\r\n"),
            (400, "Content-Length: 4,5\r\n"),
            (400, "content-length: 4\r\nCONTENT-LENGTH: 0\r\n"),
            // Lengths that some read and others do not.
            (400, "Content-Length: +4\r\n"),
            (400, "Content-Length: -4\r\n"),
            (400, "Content-Length: 0x4\r\n"),
            (400, "Content-Length: 4e0\r\n"),
            (400, "Content-Length: 4_0\r\n"),
            (400, "Content-Length: 4 0\r\n"),
            (400, "Content-Length: \"4\"\r\n"),
            (400, "Content-Length:\r\n"),
            (400, "Content-Length: 99999999999999999999\r\n"),
            (400, "Content-Length : 4\r\n"),
            (400, "Content-Length\t: 4\r\n"),
            (400, " Content-Length: 4\r\n"),
            (400, "Content-Length\r\n: 4\r\n"),
            // Codings.
            (
                400,
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            ),
            (
                400,
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
            ),
            (400, "Transfer-Encoding: chunked, chunked\r\n"),
            (400, "Transfer-Encoding: chunked, identity\r\n"),
            (400, "Transfer-Encoding:\r\n"),
            (400, "Transfer-Encoding: ,chunked\r\n"),
            (400, "Transfer-Encoding : chunked\r\n"),
            (400, "Transfer-Encoding:\n chunked\r\n"),
            (400, "Transfer-Encoding:\r\n chunked\r\n"),
            (400, "Transfer-Encoding: \u{b}chunked\r\n"),
            (400, "X: a\nTransfer-Encoding: chunked\r\n"),
            (400, "X: a\rTransfer-Encoding: chunked\r\n"),
            (400, "Transfer\u{0}-Encoding: chunked\r\n"),
            (501, "Transfer-Encoding: xchunked\r\n"),
            (501, "Transfer-Encoding: x chunked\r\n"),
            (501, "Transfer-Encoding: 'chunked'\r\n"),
            (501, "Transfer-Encoding: gzip, chunked\r\n"),
            (501, "Transfer-Encoding: identity\r\n"),
            // Lines.
            (400, "X: a\r\n folded\r\n"),
            (400, "X: a\r\n\tfolded\r\n"),
            (400, "X: a\u{0}b\r\n"),
            (400, "X\r\n"),
            (400, ": a\r\n"),
            (400, "X Y: a\r\n"),
            (400, "X\u{e4}: a\r\n"),
            (400, "(X): a\r\n"),
            (400, "Host: hub\r\n"),
            (400, "Host: other\r\n"),
        ] {
            battery.push((status, lines(text)));
        }
        for (status, text) in [
            // First lines, and hosts.
            (400, format!("{line}\r\n")),
            (400, format!("{line}Host: a b\r\n\r\n")),
            (400, format!("{line}Host: a@b\r\n\r\n")),
            (400, format!("{line}Host: a/b\r\n\r\n")),
            (400, format!("{line}Host: a, b\r\n\r\n")),
            (400, format!("{line} Host: hub\r\n\r\n")),
            (400, format!("GET  {path}/ HTTP/1.1\r\nHost: hub\r\n\r\n")),
            (400, format!("GET {path}/  HTTP/1.1\r\nHost: hub\r\n\r\n")),
            (400, format!("GET\t{path}/\tHTTP/1.1\r\nHost: hub\r\n\r\n")),
            (400, format!("GET {path}/a b HTTP/1.1\r\nHost: hub\r\n\r\n")),
            (400, format!(" GET {path}/ HTTP/1.1\r\nHost: hub\r\n\r\n")),
            (
                400,
                format!("GET {path}/\u{0} HTTP/1.1\r\nHost: hub\r\n\r\n"),
            ),
            (400, format!("GET {path}/#a HTTP/1.1\r\nHost: hub\r\n\r\n")),
            (400, format!("GE{{T {path}/ HTTP/1.1\r\nHost: hub\r\n\r\n")),
            (400, "GET hub:80 HTTP/1.1\r\nHost: hub\r\n\r\n".into()),
            (400, "GET * HTTP/1.1\r\nHost: shop.hub.test\r\n\r\n".into()),
            (
                400,
                "GET ftp://shop.hub.test/ HTTP/1.1\r\nHost: a\r\n\r\n".into(),
            ),
            (
                400,
                "GET http://u:p@shop.hub.test/ HTTP/1.1\r\nHost: a\r\n\r\n".into(),
            ),
            (400, format!("GET {path}/\r\n\r\n")),
            (400, format!("GET {path}/ http/1.1\r\nHost: hub\r\n\r\n")),
            (400, format!("GET {path}/ HTTP/1.1\nHost: hub\n\n")),
            (400, format!("GET {path}/ HTTP/1.1\rHost: hub\r\r")),
            (400, format!("GET {path}/ HTTP/1.1\r\r\nHost: hub\r\n\r\n")),
            (
                400,
                format!("POST {path}/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
            ),
            (505, format!("GET {path}/ HTTP/1.2\r\nHost: hub\r\n\r\n")),
            (505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into()),
        ] {
            battery.push((status, text));
        }
        for (status, text) in battery {
            let smuggled =
                format!("{text}0\r\n\r\nGET {path}/smuggled HTTP/1.1\r\nHost: hub\r\n\r\n");
            let (head, rest) = refused(&world, smuggled.as_bytes()).await;
            assert_eq!(head.status(), status, "{text:?}");
            assert!(
                rest.is_empty(),
                "{text:?}: {:?}",
                String::from_utf8_lossy(&rest)
            );
        }
        assert_eq!(world.hub.operation_counts().0, 0);
    });
}

/// Bodies that are malformed in the middle: the target has had the head, and never gets an end.
#[test]
fn chunks_with_more_than_one_reading() {
    run_simulated(async {
        let (say, mut seen) = mpsc::unbounded_channel();
        let target = move |mut stream: DuplexStream| {
            let say = say.clone();
            tokio::spawn(async move {
                let mut all = Vec::new();
                let _ = stream.read_to_end(&mut all).await;
                say.send(String::from_utf8(all).unwrap()).unwrap();
            });
            Ok(())
        };
        let world = World::simulated(Arc::new(InMemory(target))).await;
        let path = world.prefix();
        for chunks in [
            "+1\r\na\r\n",
            "-1\r\na\r\n",
            "0x1\r\na\r\n",
            "1_\r\na\r\n",
            " 1\r\na\r\n",
            "1 \r\na\r\n",
            "1\t\r\na\r\n",
            "1 ;x\r\na\r\n",
            "1\na\n",
            "1\ra\r",
            "1;x\na\r\n",
            "1;x\ry\r\na\r\n",
            "1;\u{0}\r\na\r\n",
            ";\r\n",
            "\r\n",
            "g\r\n",
            "00000000000000001\r\na\r\n",
            "10000000000000000\r\n",
            "1\r\nab\r\n",
            "2\r\na\r\n0\r\n\r\n",
            "1\r\na\n",
            "1\r\na0\r\n\r\n",
            "0\r\nX : a\r\n\r\n",
            "0\r\nX: a\r\n folded\r\n\r\n",
            "0\r\nX: a\nContent-Length: 1\r\n\r\n",
            "0\r\nX: \u{0}\r\n\r\n",
        ] {
            // The target has had the beginning by then.
            let good = format!(
                "POST {path}/ HTTP/1.1\r\nHost: hub\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
            );
            let bad = format!("{chunks}0\r\n\r\nGET {path}/smuggled HTTP/1.1\r\nHost: hub\r\n\r\n");
            let (head, rest) = refused_in_the_middle(&world, good.as_bytes(), bad.as_bytes()).await;
            assert_eq!(head.status(), 400, "{chunks:?}");
            assert!(rest.is_empty(), "{chunks:?}");
            let seen = seen.recv().await.unwrap();
            assert!(seen.ends_with("1\r\nx\r\n"), "{chunks:?}: {seen}");
            assert!(!seen.contains("smuggled"), "{chunks:?}: {seen}");
            assert!(!seen.ends_with("0\r\n\r\n"), "{chunks:?}: {seen}");
        }
    });
}

/// What is too large is refused before it has come to its end.
#[test]
fn heads_without_end() {
    run_simulated(async {
        let world = World::simulated(Arc::new(InMemory(|_| panic!("a target is asked")))).await;
        let path = world.prefix();
        let much = "x".repeat(65_536);
        for (status, text) in [
            (414, format!("GET {path}/{much}")),
            (
                431,
                format!("GET {path}/ HTTP/1.1\r\nHost: hub\r\nX: {much}"),
            ),
            (
                431,
                format!(
                    "GET {path}/ HTTP/1.1\r\nHost: hub\r\n{}",
                    "x:\r\n".repeat(256)
                ),
            ),
        ] {
            let mut browser = world.browser_in_memory();
            let (mut read, mut write) = tokio::io::split(&mut browser);
            let sent = async { write.write_all(text.as_bytes()).await.unwrap() };
            let (head, ()) = tokio::join!(read_head(&mut read), sent);
            let mut head = head.unwrap();
            assert_eq!(head.status(), status);
            read.read_to_end(&mut head.rest).await.unwrap();
            let body = String::from_utf8(head.rest).unwrap();
            assert!(
                body.contains("browser -X- hub --- agent --- target"),
                "{body}"
            );
        }
        assert_eq!(world.hub.operation_counts().0, 0);
    });
}
