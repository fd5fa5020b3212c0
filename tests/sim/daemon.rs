//! A Docker daemon of simulated machines: enough of its API, over a stream in memory, for the agent's
//! real client to read logs, build and watch events. What it says follows from numbers in the
//! names, so that every byte can be checked at the other end.
//!
//! `GET /containers/log-LINES-SEED/logs` gives that many lines and ends. `POST /build` reads the
//! context and gives an image whose id says how long it was and what was in it. Something happens
//! every 20 ms, and `GET /events` tells it, from whatever time on.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt as _, StreamExt as _};
use hub_agent::engine::{Engine, Socket};
use hyper::body::{Body as _, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, sleep_until};

use crate::commands::pattern;

/// How often something happens.
const EVENT_EVERY: Duration = Duration::from_millis(20);

/// The same in nanoseconds.
pub const EVENT_EVERY_NS: u64 = 20_000_000;

/// When the simulated day of the daemon begins: nanoseconds since 1970 UTC.
const START_NS: i64 = 1_780_000_000_000_000_000;

/// An engine whose daemon is this one.
pub async fn engine() -> Engine {
    let started = Instant::now();
    let dial = Arc::new(move || {
        async move {
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(
                TokioIo::new(theirs),
                service_fn(move |request| answer(started, request)),
            ));
            Ok::<_, io::Error>(Box::new(ours) as Box<dyn Socket>)
        }
        .boxed()
    });
    Engine::over(dial).await.unwrap()
}

/// A body in pieces.
type Pieces = http_body_util::StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

fn body(pieces: impl futures_util::Stream<Item = Bytes> + Send + 'static) -> Pieces {
    http_body_util::StreamBody::new(pieces.map(|piece| Ok(Frame::data(piece))).boxed())
}

fn json(value: &serde_json::Value) -> Response<Pieces> {
    let text = Bytes::from(value.to_string());
    let mut response = Response::new(body(stream::iter([text])));
    response
        .headers_mut()
        .insert("content-type", "application/json".parse().unwrap());
    response
}

/// The daemon's clock.
fn now_ns(started: Instant) -> i64 {
    START_NS + i64::try_from(started.elapsed().as_nanos()).unwrap()
}

async fn answer(
    started: Instant,
    request: Request<Incoming>,
) -> Result<Response<Pieces>, Infallible> {
    let path = request.uri().path().to_owned();
    let query: BTreeMap<String, String> =
        form_urlencoded::parse(request.uri().query().unwrap_or("").as_bytes())
            .into_owned()
            .collect();
    let parts: Vec<&str> = path
        .split('/')
        .filter(|part| !part.is_empty() && !part.starts_with("v1."))
        .collect();
    Ok(match parts[..] {
        ["version"] => json(&serde_json::json!({
            "Version": "20.10.0", "ApiVersion": "1.41", "MinAPIVersion": "1.12",
            "Os": "linux", "Arch": "amd64",
        })),
        ["_ping"] => {
            let mut pong = Response::new(body(stream::iter([Bytes::from("OK")])));
            let headers = pong.headers_mut();
            headers.insert("builder-version", "1".parse().unwrap());
            pong
        }
        ["info"] => json(&serde_json::json!({ "SystemTime": rfc3339(now_ns(started)) })),
        ["containers", "json"] => json(&serde_json::json!([])),
        ["containers", name, "json"] => json(&container(name)),
        ["containers", name, "logs"] => {
            let (lines, seed) = log_of(name);
            let since = query.get("since").and_then(|since| nanoseconds(since));
            let tail = query.get("tail").and_then(|tail| tail.parse::<u64>().ok());
            let first = tail.map_or(0, |tail| lines.saturating_sub(tail));
            let lines = (first..lines)
                .filter(move |line| line_time_ns(*line) >= since.unwrap_or(0))
                .map(move |line| log_frame(seed, line));
            Response::new(body(stream::iter(lines)))
        }
        ["build"] => build(request).await,
        ["events"] => {
            let time = |name| query.get(name).and_then(|time: &String| nanoseconds(time));
            let (since, until) = (time("since"), time("until"));
            let first = since.unwrap_or_else(|| now_ns(started)) - START_NS;
            let first = u64::try_from(first).unwrap_or(0).div_ceil(EVENT_EVERY_NS);
            Response::new(body(stream::unfold(first, move |number| async move {
                if until.is_some_and(|until| event_time_ns(number) > until) {
                    return None;
                }
                sleep_until(started + EVENT_EVERY * u32::try_from(number).unwrap()).await;
                Some((event(number), number + 1))
            })))
        }
        _ => {
            let text = serde_json::json!({ "message": format!("page not found: {path}") });
            let mut missing = json(&text);
            *missing.status_mut() = StatusCode::NOT_FOUND;
            missing
        }
    })
}

fn container(name: &str) -> serde_json::Value {
    serde_json::json!({
        "Id": id_of(name),
        "Name": format!("/{name}"),
        "Created": "2026-05-28T20:26:40Z",
        "Image": "sha256:0",
        "State": {
            "Status": "exited", "Running": false, "ExitCode": 0, "StartedAt": "2026-05-28T20:26:40Z",
        },
        "Config": { "Tty": false, "Image": "simulated", "Labels": {} },
        "HostConfig": { "LogConfig": { "Type": "json-file", "Config": {} } },
    })
}

/// Lines and seed, of the name `log-LINES-SEED` or of its id.
fn log_of(container: &str) -> (u64, u64) {
    if container.len() == 64 {
        let number = |hex: &str| u64::from_str_radix(hex, 16).unwrap_or(0);
        return (number(&container[16..32]), number(&container[48..]));
    }
    let parts = container.split('-').skip(1);
    let mut numbers = parts.map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn id_of(container: &str) -> String {
    let (lines, seed) = log_of(container);
    format!("{lines:032x}{seed:032x}")
}

/// When a line was printed.
fn line_time_ns(line: u64) -> i64 {
    START_NS + i64::try_from(line).unwrap() * 1_000_000
}

/// The text of a line of a log, without its newline.
pub fn line_text(seed: u64, line: u64) -> String {
    let length = 20 + (line.wrapping_mul(37) + seed) % 150;
    let bytes = pattern(seed, line * 1000, usize::try_from(length).unwrap());
    let letters: String = bytes.iter().map(|b| char::from(b'a' + b % 26)).collect();
    format!("{line} {letters}")
}

/// A line as the daemon sends it: every third is of stderr.
fn log_frame(seed: u64, line: u64) -> Bytes {
    let text = format!(
        "{} {}\n",
        rfc3339(line_time_ns(line)),
        line_text(seed, line)
    );
    let mut frame = BytesMut::new();
    frame.put_slice(&[if line % 3 == 2 { 2 } else { 1 }, 0, 0, 0]);
    frame.put_u32(u32::try_from(text.len()).unwrap());
    frame.put_slice(text.as_bytes());
    frame.freeze()
}

fn rfc3339(ns: i64) -> String {
    let time = hub_ledger::Timestamp::from_millis(u64::try_from(ns / 1_000_000).unwrap());
    let text = time.to_string();
    // The daemon writes nanoseconds.
    format!("{}000000Z", text.trim_end_matches('Z'))
}

/// `SECONDS.NANOSECONDS`, as the daemon takes times.
fn nanoseconds(text: &str) -> Option<i64> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let fraction = format!("{fraction:0<9}");
    Some(seconds.parse::<i64>().ok()? * 1_000_000_000 + fraction[..9].parse::<i64>().ok()?)
}

/// What the image of a context is called: its length and a sum of its bytes.
pub struct Image {
    len: u64,
    sum: u64,
}

impl Image {
    pub fn new() -> Self {
        Self {
            len: 0,
            sum: 0xcbf2_9ce4_8422_2325,
        }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        for byte in bytes {
            self.sum = (self.sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub fn id(&self) -> String {
        format!("sha256:{:048x}{:016x}", self.len, self.sum)
    }
}

async fn build(request: Request<Incoming>) -> Response<Pieces> {
    let mut image = Image::new();
    let mut incoming = request.into_body();
    while let Some(Ok(frame)) =
        std::future::poll_fn(|cx| std::pin::Pin::new(&mut incoming).poll_frame(cx)).await
    {
        if let Ok(data) = frame.into_data() {
            image.update(&data);
        }
    }
    let line = |value: serde_json::Value| Bytes::from(format!("{value}\r\n"));
    let steps = (1..=20).map(move |step| {
        line(serde_json::json!({ "stream": format!("Step {step}/20 : RUN true\n") }))
    });
    let image = image.id();
    let last = [
        line(serde_json::json!({ "aux": { "ID": image } })),
        line(serde_json::json!({ "stream": "Successfully built\n" })),
    ];
    Response::new(body(stream::iter(steps.chain(last))))
}

fn event_time_ns(number: u64) -> i64 {
    START_NS + i64::try_from(number * EVENT_EVERY_NS).unwrap()
}

fn event(number: u64) -> Bytes {
    let time_ns = event_time_ns(number);
    let value = serde_json::json!({
        "Type": "container", "Action": "start",
        "Actor": { "ID": format!("{number:064x}"), "Attributes": { "name": format!("c{number}") } },
        "scope": "local", "time": time_ns / 1_000_000_000, "timeNano": time_ns,
    });
    Bytes::from(format!("{value}\n"))
}
