#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

/// Reads what begins with a head, and says how many bytes it took.
fn read(bytes: &[u8]) -> Result<(Head, usize), HeadError> {
    let (range, next) = Scan::default().scan(bytes)?.expect("whole");
    Ok((parse(&Bytes::copy_from_slice(&bytes[range]))?, next))
}

fn with(lines: &str) -> Result<Head, HeadError> {
    read(format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n").as_bytes()).map(|(head, _)| head)
}

#[test]
fn a_head_is_read() {
    let bytes = b"\r\nPUT /a%2Fb//../c?d=%7B HTTP/1.1\r\nhOST: a:80\r\nX-A:1\r\nx-a: \t 2 \t\r\n\
                  Empty:\r\nContent-Length: 3\r\n\r\nabcGET";
    let (head, next) = read(bytes).unwrap();
    assert_eq!(&bytes[next..], b"abcGET");
    assert_eq!(head.parts.method, Method::PUT);
    assert_eq!(head.parts.uri, "/a%2Fb//../c?d=%7B");
    let values: Vec<_> = head.parts.headers.get_all("x-a").iter().collect();
    assert_eq!(values, ["1", "2"]);
    assert_eq!(head.parts.headers["empty"], "");
    assert_eq!(head.framing, Framing::Length(3));
    assert!(head.keep_alive && !head.expects && head.upgrade.is_none());
}

#[test]
fn targets() {
    for (line, expected) in [
        ("GET /", Some("/")),
        ("GET //a/./..?b=c?/d", Some("//a/./..?b=c?/d")),
        ("GET /[\\]^_~|{}\"", Some("/[\\]^_~|{}\"")),
        ("OPTIONS *", Some("*")),
        ("GET http://a:8/b", Some("http://a:8/b")),
        ("GET HTTPS://[::1]/b", Some("https://[::1]/b")),
        ("CONNECT a:80", Some("a:80")),
        ("GET *", None),
        ("GET a:80", None),
        ("GET a/b", None),
        ("GET ftp://a/b", None),
        ("GET http://u@a/b", None),
        ("GET http://a:b/c", None),
        ("GET /a#b", None),
        ("GET /a<b", None),
        ("GET /\u{7f}", None),
        ("GET ", None),
        ("CONNECT /", Some("/")),
        ("GET  /", None),
        (" GET /", None),
        ("G(T /", None),
        ("GET\t/", None),
        ("GET / /", None),
    ] {
        let head = read(format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        let target = head.map(|(head, _)| head.parts.uri.to_string());
        assert_eq!(target.ok().as_deref(), expected, "{line}");
    }
}

#[test]
fn versions() {
    for (version, expected) in [
        ("HTTP/1.1", None),
        ("HTTP/1.0", None),
        ("HTTP/2.0", Some(HeadError::Version)),
        ("HTTP/1.2", Some(HeadError::Version)),
        ("HTTP/0.9", Some(HeadError::Version)),
        ("http/1.1", Some(NO_LINE)),
        ("HTTP/1.1 ", Some(NO_LINE)),
        ("HTTP/11", Some(NO_LINE)),
        ("HTTP/1.10", Some(NO_LINE)),
        ("", Some(NO_LINE)),
    ] {
        let head = read(format!("GET / {version}\r\nHost: a\r\n\r\n").as_bytes());
        assert_eq!(head.err(), expected, "{version}");
    }
    assert_eq!(read(b"GET /\r\nHost: a\r\n\r\n").err(), Some(NO_LINE));
}

#[test]
fn lines() {
    for (bytes, expected) in [
        (&b"GET / HTTP/1.1\nHost: a\n\n"[..], BARE),
        (b"GET / HTTP/1.1\rHost: a\r\r", BARE),
        (b"GET / HTTP/1.1\r\nHost: a\n\r\n", BARE),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: b\rc\r\n\r\n", BARE),
        (b"GET / HTTP/1.1\r\nHost: a\r\r\n\r\n", BARE),
        (b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", NO_LINE),
        (b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", FIELD),
        (b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", FIELD),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX : b\r\n\r\n", FIELD),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", FIELD),
        (b"GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", FIELD),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n", FIELD),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX\0: b\r\n\r\n", FIELD),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: \x7f\r\n\r\n", FIELD),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX(: b\r\n\r\n", FIELD),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX\x80: b\r\n\r\n", FIELD),
    ] {
        let text = String::from_utf8_lossy(bytes);
        assert_eq!(read(bytes).err(), Some(expected), "{text:?}");
    }
    // Bytes above ASCII are a value's own.
    assert!(read(b"GET / HTTP/1.1\r\nHost: a\r\nX: \xe4\r\n\r\n").is_ok());
}

#[test]
fn hosts() {
    for (version, lines, good) in [
        ("1.1", "", false),
        ("1.0", "", true),
        ("1.1", "Host: \r\n", true),
        ("1.1", "Host: a_b.c:80\r\n", true),
        ("1.1", "Host: [::1]:80\r\n", true),
        ("1.1", "Host: a\r\nHost: a\r\n", false),
        ("1.0", "Host: a\r\nHost: a\r\n", false),
        ("1.1", "Host: a b\r\n", false),
        ("1.1", "Host: a, b\r\n", false),
        ("1.1", "Host: a/b\r\n", false),
        ("1.1", "Host: u@a\r\n", false),
        ("1.1", "Host: a:80:90\r\n", false),
        ("1.1", "Host: a:b\r\n", false),
    ] {
        let head = read(format!("GET / HTTP/{version}\r\n{lines}\r\n").as_bytes());
        assert_eq!(head.map(drop), good.then_some(()).ok_or(HOSTS), "{lines}");
    }
}

#[test]
fn bodies() {
    use HeadError::UnknownCoding;
    for (lines, expected) in [
        ("", Ok(Framing::None)),
        ("Content-Length: 0\r\n", Ok(Framing::Length(0))),
        ("Content-Length: 0012\r\n", Ok(Framing::Length(12))),
        (
            "Content-Length: 18446744073709551615\r\n",
            Ok(Framing::Length(u64::MAX)),
        ),
        ("Content-Length: 18446744073709551616\r\n", Err(LENGTH)),
        ("Content-Length: +1\r\n", Err(LENGTH)),
        ("Content-Length: -1\r\n", Err(LENGTH)),
        ("Content-Length: 0x1\r\n", Err(LENGTH)),
        ("Content-Length: 1_0\r\n", Err(LENGTH)),
        ("Content-Length: 1 0\r\n", Err(LENGTH)),
        ("Content-Length: 1, 1\r\n", Err(LENGTH)),
        ("Content-Length: \r\n", Err(LENGTH)),
        ("Content-Length: 1\r\nContent-Length: 1\r\n", Err(LENGTH)),
        ("Transfer-Encoding: Chunked\r\n", Ok(Framing::Chunked)),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            Err(CODING),
        ),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
            Err(CODING),
        ),
        ("Transfer-Encoding: chunked, chunked\r\n", Err(CODING)),
        ("Transfer-Encoding: chunked, gzip\r\n", Err(CODING)),
        ("Transfer-Encoding: \r\n", Err(CODING)),
        ("Transfer-Encoding: chunked,\r\n", Err(CODING)),
        ("Transfer-Encoding: gzip, chunked\r\n", Err(UnknownCoding)),
        ("Transfer-Encoding: identity\r\n", Err(UnknownCoding)),
        ("Transfer-Encoding: xchunked\r\n", Err(UnknownCoding)),
        ("Transfer-Encoding: \"chunked\"\r\n", Err(UnknownCoding)),
        ("Transfer-Encoding: chunked;a\r\n", Err(UnknownCoding)),
        ("Transfer-Encoding: \u{b}chunked\r\n", Err(FIELD)),
        (
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
            Err(BOTH),
        ),
        (
            "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n",
            Err(BOTH),
        ),
        (
            "Content-Length: 1\r\nContent-Length: 2\r\nTransfer-Encoding: x\r\n",
            Err(BOTH),
        ),
    ] {
        let framing = with(lines).map(|head| head.framing);
        assert_eq!(framing, expected, "{lines}");
    }
    let old = read(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(old.err(), Some(CODING));
}

#[test]
fn what_the_connection_does_next() {
    for (version, lines, keep_alive, expects, upgrade) in [
        ("1.1", "", true, false, None),
        ("1.1", "Connection: x, Close\r\n", false, false, None),
        ("1.0", "", false, false, None),
        ("1.0", "Connection: Keep-Alive\r\n", true, false, None),
        (
            "1.1",
            "Expect: 100-Continue\r\nContent-Length: 1\r\n",
            true,
            true,
            None,
        ),
        ("1.1", "Expect: 100-continue\r\n", true, false, None),
        (
            "1.0",
            "Expect: 100-continue\r\nContent-Length: 1\r\n",
            false,
            false,
            None,
        ),
        (
            "1.1",
            "Connection: Upgrade\r\nUpgrade: a/1\r\n",
            true,
            false,
            Some("a/1"),
        ),
        ("1.1", "Upgrade: a\r\n", true, false, None),
        (
            "1.0",
            "Connection: upgrade\r\nUpgrade: a\r\n",
            false,
            false,
            None,
        ),
        (
            "1.1",
            "Connection: upgrade\r\nUpgrade: a\r\nUpgrade: b\r\n",
            true,
            false,
            None,
        ),
        (
            "1.1",
            "Connection: upgrade\r\nUpgrade: a, H2C\r\n",
            true,
            false,
            None,
        ),
        (
            "1.1",
            "Connection: upgrade\r\nUpgrade: HTTP/2.0\r\n",
            true,
            false,
            None,
        ),
        (
            "1.1",
            "Connection: upgrade\r\nUpgrade: TLS/1.0\r\n",
            true,
            false,
            None,
        ),
        (
            "1.1",
            "Connection: upgrade\r\nUpgrade: \r\n",
            true,
            false,
            None,
        ),
        (
            "1.1",
            "Connection: upgrade\r\nUpgrade: a\r\nContent-Length: 1\r\n",
            true,
            false,
            None,
        ),
    ] {
        let text = format!("POST / HTTP/{version}\r\nHost: a\r\n{lines}\r\n");
        let (head, _) = read(text.as_bytes()).unwrap();
        let upgraded = head.upgrade.as_deref();
        assert_eq!(
            (head.keep_alive, head.expects, upgraded),
            (keep_alive, expects, upgrade.map(str::as_bytes)),
            "{text}"
        );
    }
}

#[test]
fn limits() {
    let long = "x".repeat(MAX_HEAD);
    let whole = |bytes: String| Scan::default().scan(bytes.as_bytes());
    // Even before they end.
    for (bytes, expected) in [
        (format!("GET /{long}"), HeadError::LineTooLong),
        (
            format!("GET /{long} HTTP/1.1\r\n\r\n"),
            HeadError::LineTooLong,
        ),
        (format!("GET / HTTP/1.1\r\nX: {long}"), HeadError::TooLarge),
        (
            format!("GET / HTTP/1.1\r\n{}", "x:\r\n".repeat(257)),
            HeadError::TooLarge,
        ),
    ] {
        assert_eq!(whole(bytes), Err(expected));
    }
    let most = format!("GET / HTTP/1.1\r\n{}\r\n", "x:\r\n".repeat(256));
    assert!(whole(most).unwrap().is_some());
    let head = "GET / HTTP/1.1\r\nX: \r\n\r\n";
    let most = head.replace("X: ", &format!("X: {}", &long[head.len()..]));
    assert_eq!(most.len(), MAX_HEAD);
    assert!(whole(most.clone()).unwrap().is_some());
    let more = most.replace("X: ", "X: x");
    assert_eq!(whole(more), Err(HeadError::TooLarge));
}

proptest! {
    /// However the bytes come, and whatever they are, the same is made of them.
    #[test]
    fn pieces_make_no_difference(
        bytes in "(\r\n)?(GET|P\\(T)? ?/[ -~]{0,4} HTTP/1.[01](\r\n|\n|\r)([a-zA-Z:]{0,4}: ?[ -~]{0,4}\r\n){0,3}\r?\n?",
        cuts in prop::collection::vec(0..60_usize, 0..6),
    ) {
        let bytes = bytes.as_bytes();
        let once = Scan::default().scan(bytes);
        let mut cuts = cuts;
        cuts.push(bytes.len());
        cuts.sort_unstable();
        let mut scan = Scan::default();
        let mut found = Ok(None);
        for cut in cuts {
            found = scan.scan(&bytes[..cut.min(bytes.len())]);
            if found != Ok(None) {
                break;
            }
        }
        prop_assert_eq!(&found, &once);
        if let Ok(Some((range, next))) = once {
            prop_assert!(bytes[..next].ends_with(b"\r\n\r\n"));
            let _ = parse(&Bytes::copy_from_slice(&bytes[range]));
        }
    }

    /// Nothing of a head that passes has another meaning for a reader who is less strict.
    #[test]
    fn what_passes_is_clean(lines in "([a-zA-Z]{1,3}:? ?[\\x00-\\x7f]{0,6}\r?\n){0,4}") {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        if let Ok(Some((range, _))) = Scan::default().scan(text.as_bytes())
            && let Ok(head) = parse(&Bytes::copy_from_slice(&text.as_bytes()[range]))
        {
            for (name, value) in &head.parts.headers {
                prop_assert!(!name.as_str().contains([' ', '\t', ':']));
                prop_assert!(!value.as_bytes().iter().any(|b| b"\r\n\0".contains(b)));
            }
        }
    }
}
