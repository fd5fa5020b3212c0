//! A container's log, record by record, as the daemon tells it.
//!
//! Every record comes with its time. Of a container without a terminal it stands in a frame that
//! names its output; with a terminal it stands there as it is, and ends at its newline or, where the
//! daemon cut a long line, with the piece of the answer that the daemon sent it in.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf as _, Bytes, BytesMut};
use hub_protocol::kind::records::Output;
use serde::Deserialize;

use super::Engine;
use super::stream::{Body, StreamError};
use super::time::{nanoseconds, query_time};

/// The most bytes of one record. The daemon cuts lines at 16 KiB; other drivers than its own may
/// keep longer ones.
const MAX_RECORD: usize = 4 * 1024 * 1024;

/// The most bytes of a time: `2006-01-02T15:04:05.999999999+07:00` and a blank.
const MAX_TIME: usize = 36;

/// How a record in which the daemon tells of its own trouble begins.
const TROUBLE: &[u8] = b"Error grabbing logs: ";

/// What a container's log is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogFacts {
    /// The container's id.
    pub(crate) id: String,
    /// Whether it has a terminal: its log is all standard output then.
    pub(crate) tty: bool,
    /// Whether it runs.
    pub(crate) running: bool,
    /// When it was last started, in the daemon's words.
    pub(crate) started: String,
    /// How the log is kept.
    pub(crate) keeping: Keeping,
}

/// How a log is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// Nothing is thrown away.
    All,
    /// The newest files, of so many bytes altogether.
    Files(u64),
    /// One file of so many bytes, which is emptied when it is full, under the eyes of its readers.
    OneFile(u64),
}

/// Which part of a log is wanted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Part {
    /// Whether to go on at its end.
    pub(crate) follow: bool,
    /// The last records only.
    pub(crate) tail: Option<u64>,
    /// None from before.
    pub(crate) since_ns: Option<i64>,
    /// None from after.
    pub(crate) until_ns: Option<i64>,
}

/// A record of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// Where it was printed.
    pub(crate) output: Output,
    /// When: nanoseconds since 1970 UTC.
    pub(crate) time_ns: i64,
    /// When, in the daemon's words.
    pub(crate) time: String,
    /// What, with its newline.
    pub(crate) bytes: Bytes,
}

/// What comes of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A record.
    Record(Record),
    /// The daemon could not read on.
    Trouble(String),
}

/// A log that is being read.
#[derive(Debug)]
pub(crate) struct LogStream {
    body: Body,
    parser: Parser,
    over: bool,
}

impl LogStream {
    /// What comes next; `None` at the end. A call that is given up loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Option<Piece>, StreamError> {
        loop {
            if let Some(piece) = self.parser.next()? {
                return Ok(Some(piece));
            }
            if self.over {
                return Ok(None);
            }
            if let Some(chunk) = self.body.chunk().await? {
                self.parser.push(&chunk);
            } else {
                self.over = true;
                self.parser.end();
            }
        }
    }
}

impl Engine {
    /// What a container's log is like. The name has to be one that can stand in a URL.
    pub(crate) async fn log_facts(&self, container: &str) -> Result<LogFacts, StreamError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Inspected {
            id: String,
            state: State,
            config: Config,
            host_config: HostConfig,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct State {
            running: bool,
            started_at: String,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Config {
            #[serde(default)]
            tty: bool,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct HostConfig {
            log_config: LogConfig,
        }
        let path = format!("/containers/{container}/json");
        let inspected: Inspected = self.get_json(&path).await?;
        Ok(LogFacts {
            id: inspected.id,
            tty: inspected.config.tty,
            running: inspected.state.running,
            started: inspected.state.started_at,
            keeping: inspected.host_config.log_config.keeping(),
        })
    }

    /// Reads a part of a container's log, both outputs. The name has to be one that can stand in a
    /// URL.
    pub(crate) async fn log(
        &self,
        container: &str,
        tty: bool,
        part: Part,
    ) -> Result<LogStream, StreamError> {
        let mut path = format!(
            "/containers/{container}/logs?stdout=1&stderr=1&timestamps=1&follow={}",
            u8::from(part.follow)
        );
        if let Some(tail) = part.tail {
            path = format!("{path}&tail={tail}");
        }
        if let Some(since) = part.since_ns {
            path = format!("{path}&since={}", query_time(since));
        }
        if let Some(until) = part.until_ns {
            path = format!("{path}&until={}", query_time(until));
        }
        Ok(LogStream {
            body: self.get(&path).await?,
            parser: Parser::new(tty),
            over: false,
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct LogConfig {
    #[serde(rename = "Type", default)]
    driver: String,
    #[serde(default)]
    config: Option<BTreeMap<String, String>>,
}

impl LogConfig {
    fn keeping(&self) -> Keeping {
        let option = |name| self.config.as_ref().and_then(|config| config.get(name));
        let size = option("max-size").and_then(|size| bytes(size));
        let files = option("max-file").and_then(|files| files.parse::<u64>().ok());
        match self.driver.as_str() {
            "journald" => Keeping::All,
            "json-file" => match (size, files.unwrap_or(1)) {
                (None, _) => Keeping::All,
                (Some(size), 0 | 1) => Keeping::OneFile(size),
                (Some(size), files) => Keeping::Files(size.saturating_mul(files)),
            },
            // `local`, and what the daemon keeps of logs that go elsewhere.
            _ => {
                let size = size.unwrap_or(20 * 1000 * 1000);
                Keeping::Files(size.saturating_mul(files.unwrap_or(5)))
            }
        }
    }
}

/// The bytes of a size as the daemon takes it: `10m`, `1k`, `1.5GiB`; `None` for none at all.
fn bytes(size: &str) -> Option<u64> {
    let digits = size.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = size.split_at(digits.unwrap_or(size.len()));
    let power = match unit.trim_start().bytes().next() {
        None | Some(b'b' | b'B') => 0,
        Some(b'k' | b'K') => 1,
        Some(b'm' | b'M') => 2,
        Some(b'g' | b'G') => 3,
        Some(b't' | b'T') => 4,
        Some(_) => return None,
    };
    let number: f64 = number.parse().ok()?;
    #[allow(clippy::cast_sign_loss, reason = "a number of digits is not negative")]
    let bytes = (number * 1000f64.powi(power)) as u64;
    (bytes > 0).then_some(bytes)
}

/// Parts the daemon's bytes into records.
#[derive(Debug)]
enum Parser {
    Framed(BytesMut),
    Plain(Plain),
}

#[derive(Debug, Default)]
struct Plain {
    /// What has not become a record yet.
    buffer: BytesMut,
    /// Where in it pieces of the answer begin, and perhaps records.
    borders: VecDeque<usize>,
    /// Bytes of it that hold no newline.
    searched: usize,
    over: bool,
}

impl Parser {
    fn new(tty: bool) -> Self {
        if tty {
            Self::Plain(Plain::default())
        } else {
            Self::Framed(BytesMut::new())
        }
    }

    /// Takes bytes of one piece of the answer. All that came before has to be taken out first.
    fn push(&mut self, chunk: &[u8]) {
        match self {
            Self::Framed(buffer) => buffer.extend_from_slice(chunk),
            Self::Plain(plain) => {
                plain.borders.push_back(plain.buffer.len());
                plain.buffer.extend_from_slice(chunk);
            }
        }
    }

    /// Nothing comes any more.
    fn end(&mut self) {
        match self {
            // A frame that broke off is of no use.
            Self::Framed(buffer) => buffer.clear(),
            Self::Plain(plain) => plain.over = true,
        }
    }

    fn next(&mut self) -> Result<Option<Piece>, StreamError> {
        match self {
            Self::Framed(buffer) => framed(buffer),
            Self::Plain(plain) => plain.next(),
        }
    }
}

fn too_long(len: usize) -> StreamError {
    StreamError::Malformed(format!("a record of a log has {len} bytes"))
}

/// The next record of a log in frames: output, three zeroes, length, time, blank, bytes.
fn framed(buffer: &mut BytesMut) -> Result<Option<Piece>, StreamError> {
    let Some(header) = buffer.first_chunk::<8>() else {
        return Ok(None);
    };
    let [kind, 0, 0, 0, length @ ..] = *header else {
        let what = format!("no frame of a log begins with {header:02x?}");
        return Err(StreamError::Malformed(what));
    };
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_RECORD {
        return Err(too_long(length));
    }
    if buffer.len() < 8 + length {
        return Ok(None);
    }
    buffer.advance(8);
    let payload = buffer.split_to(length).freeze();
    let output = match kind {
        1 => Output::Stdout,
        2 => Output::Stderr,
        _ => return Ok(Some(trouble(&payload))),
    };
    match time(&payload) {
        Some((time_ns, time)) => Ok(Some(record(output, time_ns, time, &payload))),
        None => Err(StreamError::Malformed("a record without a time".into())),
    }
}

fn record(output: Output, time_ns: i64, time: String, payload: &Bytes) -> Piece {
    Piece::Record(Record {
        output,
        time_ns,
        bytes: payload.slice(time.len() + 1..),
        time,
    })
}

fn trouble(payload: &[u8]) -> Piece {
    Piece::Trouble(String::from_utf8_lossy(payload).trim_end().to_owned())
}

/// The time at the beginning of a record.
fn time(payload: &[u8]) -> Option<(i64, String)> {
    let head = &payload[..payload.len().min(MAX_TIME)];
    let end = head.iter().position(|byte| *byte == b' ')?;
    let text = std::str::from_utf8(&head[..end]).ok()?;
    Some((nanoseconds(text)?, text.to_owned()))
}

impl Plain {
    fn next(&mut self) -> Result<Option<Piece>, StreamError> {
        // A record that has no newline was cut by the daemon: the next begins where a piece of the
        // answer does and a time stands there.
        while let Some(at) = self.borders.front().copied() {
            let next = &self.buffer[at..];
            if next.len() < MAX_TIME && !self.over && begins(next) {
                return Ok(None);
            }
            self.borders.pop_front();
            if at > 0 && (time(next).is_some() || next.starts_with(TROUBLE)) {
                return self.take(at).map(Some);
            }
        }
        let newline = self.buffer[self.searched..]
            .iter()
            .position(|b| *b == b'\n');
        if let Some(found) = newline {
            return self.take(self.searched + found + 1).map(Some);
        }
        self.searched = self.buffer.len();
        if self.over && self.searched > 0 {
            return self.take(self.searched).map(Some);
        }
        if self.searched > MAX_RECORD {
            return Err(too_long(self.searched));
        }
        Ok(None)
    }

    fn take(&mut self, len: usize) -> Result<Piece, StreamError> {
        let payload = self.buffer.split_to(len).freeze();
        self.borders.retain(|at| *at >= len);
        self.borders.iter_mut().for_each(|at| *at -= len);
        self.searched = 0;
        match time(&payload) {
            Some((time_ns, time)) => Ok(record(Output::Stdout, time_ns, time, &payload)),
            None if payload.starts_with(TROUBLE) => Ok(trouble(&payload)),
            None => Err(StreamError::Malformed("a record without a time".into())),
        }
    }
}

/// Whether more bytes may make a time of it.
fn begins(text: &[u8]) -> bool {
    text.iter()
        .all(|byte| byte.is_ascii_digit() || b"-T:.Z+ ".contains(byte))
}

#[cfg(test)]
mod tests;
