//! Responses as HTTP/1.1 writes them. Pure.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderMap, TRANSFER_ENCODING};
use http::{Method, StatusCode, Version};
use httpdate::HttpDate;
use hub_ledger::Timestamp;

/// The end of the year 9999, in milliseconds since 1970: dates have four digits for years.
const LAST_DATE: u64 = 253_402_300_799_000;

/// What is said about the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Persistence {
    /// As the version has it.
    Unsaid,
    /// It stays open, which HTTP/1.0 has to be told.
    KeepAlive,
    /// It ends with this response.
    Close,
}

/// How the body of a response is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delimited {
    /// There is none.
    Bodyless,
    /// By its length.
    Length(u64),
    /// By its last chunk.
    Chunks,
    /// By the connection's end: HTTP/1.0 has nothing else for a length that is not known.
    Close,
}

/// How the body of a response to a request of this method and version is delimited. `known` is its
/// length, if its headers do not say it.
pub(super) fn delimited(
    method: &Method,
    version: Version,
    status: StatusCode,
    headers: &mut HeaderMap,
    known: Option<u64>,
) -> Delimited {
    headers.remove(TRANSFER_ENCODING);
    if status.is_informational() || status == StatusCode::NO_CONTENT {
        headers.remove(CONTENT_LENGTH);
        return Delimited::Bodyless;
    }
    if status == StatusCode::NOT_MODIFIED {
        return Delimited::Bodyless;
    }
    let said = headers.get(CONTENT_LENGTH).and_then(|length| {
        let length = length.to_str().ok()?;
        length.parse().ok()
    });
    if let (None, Some(known)) = (said, known) {
        headers.insert(CONTENT_LENGTH, known.into());
    }
    match said.or(known) {
        _ if *method == Method::HEAD => Delimited::Bodyless,
        Some(length) => Delimited::Length(length),
        None if version == Version::HTTP_11 => Delimited::Chunks,
        None => Delimited::Close,
    }
}

/// Writes the head of a response. `date` is for one that has none of its own, as each hop with a
/// clock adds it (RFC 9110, 6.6.1). Names are in lower case.
pub(super) fn head(
    out: &mut BytesMut,
    status: StatusCode,
    headers: &HeaderMap,
    delimited: Delimited,
    persistence: Persistence,
    date: Option<Timestamp>,
) {
    let room: usize = headers
        .iter()
        .map(|(n, v)| n.as_str().len() + v.len() + 4)
        .sum();
    out.reserve(room + 160);
    out.put_slice(b"HTTP/1.1 ");
    out.put_slice(status.as_str().as_bytes());
    out.put_u8(b' ');
    out.put_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.put_slice(b"\r\n");
    fields(out, headers);
    if delimited == Delimited::Chunks {
        out.put_slice(b"transfer-encoding: chunked\r\n");
    }
    match persistence {
        // What an upgrade says of the connection stands.
        _ if headers.contains_key(CONNECTION) => {}
        Persistence::Unsaid => {}
        Persistence::KeepAlive => out.put_slice(b"connection: keep-alive\r\n"),
        Persistence::Close => out.put_slice(b"connection: close\r\n"),
    }
    if let Some(date) = date.filter(|_| !headers.contains_key(DATE)) {
        let since_1970 = Duration::from_millis(date.as_millis().min(LAST_DATE));
        let date = HttpDate::from(SystemTime::UNIX_EPOCH + since_1970);
        // Writing to memory does not fail.
        let _ = write!(out, "date: {date}\r\n");
    }
    out.put_slice(b"\r\n");
}

fn fields(out: &mut BytesMut, headers: &HeaderMap) {
    for (name, value) in headers {
        out.reserve(name.as_str().len() + value.len() + 4);
        out.put_slice(name.as_str().as_bytes());
        out.put_slice(b": ");
        out.put_slice(value.as_bytes());
        out.put_slice(b"\r\n");
    }
}

/// What comes before a chunk of this many bytes, and after it.
pub(super) fn chunk(out: &mut BytesMut, size: usize) -> (Bytes, Bytes) {
    let _ = write!(out, "{size:x}\r\n");
    (out.split().freeze(), Bytes::from_static(b"\r\n"))
}

/// The last chunk, and the trailers.
pub(super) fn last_chunk(out: &mut BytesMut, trailers: &HeaderMap) -> Bytes {
    out.put_slice(b"0\r\n");
    fields(out, trailers);
    out.put_slice(b"\r\n");
    out.split().freeze()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &'static str)| {
            (name.parse().unwrap(), value.parse().unwrap())
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn how_bodies_end() {
        use Delimited::{Bodyless, Chunks, Close, Length};
        let (new, old) = (Version::HTTP_11, Version::HTTP_10);
        let none = headers(&[]);
        let five = headers(&[("content-length", "5")]);
        let coded = headers(&[("transfer-encoding", "chunked")]);
        for (method, version, status, given, known, expected, length) in [
            ("GET", new, 200, &none, None, Chunks, None),
            ("GET", old, 200, &none, None, Close, None),
            ("GET", new, 200, &five, None, Length(5), Some("5")),
            ("GET", old, 200, &five, None, Length(5), Some("5")),
            ("GET", new, 404, &none, Some(7), Length(7), Some("7")),
            (
                "GET",
                new,
                205,
                &headers(&[("content-length", "0")]),
                None,
                Length(0),
                Some("0"),
            ),
            ("GET", new, 200, &coded, None, Chunks, None),
            ("HEAD", new, 200, &five, None, Bodyless, Some("5")),
            ("HEAD", new, 200, &none, None, Bodyless, None),
            ("HEAD", new, 404, &none, Some(7), Bodyless, Some("7")),
            ("HEAD", new, 200, &coded, None, Bodyless, None),
            ("GET", new, 204, &five, None, Bodyless, None),
            ("GET", new, 304, &five, None, Bodyless, Some("5")),
            ("GET", new, 304, &none, Some(0), Bodyless, None),
            ("GET", new, 101, &none, Some(0), Bodyless, None),
        ] {
            let mut given = given.clone();
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let status = StatusCode::from_u16(status).unwrap();
            let got = delimited(&method, version, status, &mut given, known);
            assert_eq!(got, expected, "{method} {status}");
            let said = given
                .get(CONTENT_LENGTH)
                .map(|length| length.to_str().unwrap());
            assert_eq!(said, length, "{method} {status}");
            assert!(!given.contains_key(TRANSFER_ENCODING));
        }
    }

    #[test]
    fn heads() {
        let written = |status: u16, lines: &[_], delimited, persistence| {
            let mut out = BytesMut::new();
            let status = StatusCode::from_u16(status).unwrap();
            let date = Some(Timestamp::from_millis(784_111_777_000));
            head(
                &mut out,
                status,
                &headers(lines),
                delimited,
                persistence,
                date,
            );
            String::from_utf8(out.to_vec()).unwrap()
        };
        assert_eq!(
            written(
                200,
                &[("x-a", "1"), ("x-a", "2")],
                Delimited::Chunks,
                Persistence::Unsaid
            ),
            "HTTP/1.1 200 OK\r\nx-a: 1\r\nx-a: 2\r\ntransfer-encoding: chunked\r\n\
             date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n"
        );
        assert_eq!(
            written(
                799,
                &[("date", "today")],
                Delimited::Close,
                Persistence::Close
            ),
            "HTTP/1.1 799 \r\ndate: today\r\nconnection: close\r\n\r\n"
        );
        assert_eq!(
            written(
                101,
                &[("connection", "upgrade"), ("date", "")],
                Delimited::Bodyless,
                Persistence::Close
            ),
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\ndate: \r\n\r\n"
        );
    }

    #[test]
    fn chunks() {
        let mut out = BytesMut::new();
        assert_eq!(chunk(&mut out, 255), ("ff\r\n".into(), "\r\n".into()));
        assert_eq!(last_chunk(&mut out, &headers(&[])), "0\r\n\r\n");
        let trailers = headers(&[("x-sum", "1")]);
        assert_eq!(last_chunk(&mut out, &trailers), "0\r\nx-sum: 1\r\n\r\n");
    }
}
