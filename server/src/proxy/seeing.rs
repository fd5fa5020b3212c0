//! What the data plane lets operators see: what is under way and what it waits for, what was
//! counted, and the access log.
//!
//! ```text
//! request --> Track --> standing, bytes: cells, written as pieces pass
//!               |   '-> Told: what becomes known once, as the node and the status
//!               '--at its end--> Totals by exposure --> metrics
//!                           '--> Line --> AccessLog, a thread
//! ```
//!
//! A [`Track`] is the record of one request or stream. Its clones are held by whatever works on it;
//! the last one that goes ends it. Nothing here is asked on the way of a piece but cells; the lock
//! is taken when something begins, becomes known or ends, and when somebody looks.

mod line;
mod log;
mod metrics;
mod waits;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode, Version};
use hub_ledger::{Exposure, ExposureName, Timestamp};
use hub_protocol::NodeName;
use hub_quic::operation::{Ended, Sender};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use utoipa::ToSchema;

use super::limits::Refusal;
use crate::counter::locked;
use line::Line;
use log::AccessLog;
pub use metrics::{CONTENT_TYPE, Text};
use metrics::{Reading, Totals};
pub(crate) use waits::Down;
use waits::Standing;
pub(super) use waits::Up;
pub use waits::WaitsFor;

/// What operators want to see.
#[derive(Debug, Clone, PartialEq)]
pub struct SeeingConfig {
    /// The file of the access log; `-` is standard error. None: there is none.
    pub access_log: Option<PathBuf>,
    /// The share of requests that the access log has, from 0 to 1. It has all errors.
    pub access_log_sample: f64,
    /// Whether it has queries.
    pub access_log_query: bool,
    /// Whether all answers have `Server-Timing`, and not only those to who asks.
    pub server_timing: bool,
}

impl Default for SeeingConfig {
    /// No access log; one would have all requests without their queries. No `Server-Timing`.
    fn default() -> Self {
        Self {
            access_log: None,
            access_log_sample: 1.0,
            access_log_query: false,
            server_timing: false,
        }
    }
}

/// What is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A request and its response.
    Http,
    /// A connection after a 101, as a WebSocket.
    Upgrade,
    /// A TCP connection.
    Tcp,
    /// A flow of UDP datagrams.
    Udp,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Http, Self::Upgrade, Self::Tcp, Self::Udp];

    /// Its name, as in JSON and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Upgrade => "upgrade",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// What is known of a request or stream when it begins.
#[derive(Debug, Clone)]
pub(crate) struct Begins<'a> {
    pub(crate) kind: Kind,
    /// The other end of the connection.
    pub(crate) client: IpAddr,
    pub(crate) at: Timestamp,
    pub(crate) method: Option<&'a Method>,
    /// Path and query, tokens and all.
    pub(crate) target: Option<&'a str>,
    pub(crate) version: Option<Version>,
}

/// What is seen of a data plane. Cheap to clone; clones see the same.
#[derive(Clone, Default)]
pub struct Seeing {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    config: SeeingConfig,
    log: Option<AccessLog>,
    book: Mutex<Book>,
    connections: AtomicU64,
    limits: OnceLock<Limits>,
}

/// How often each limit held somebody back.
pub(super) type Limits = Arc<[AtomicU64; Refusal::NAMES.len()]>;

#[derive(Default)]
struct Book {
    begun: u64,
    live: BTreeMap<u64, Arc<Record>>,
    /// By exposure; `None`: requests that got to none.
    totals: BTreeMap<Option<u64>, Totals>,
}

impl Book {
    fn totals(&mut self, told: &Told) -> &mut Totals {
        let totals = self.totals.entry(told.exposure_id()).or_default();
        if let Some(exposure) = &told.exposure {
            let name = exposure.name.as_ref().map_or("", |name| name.as_str());
            if totals.name != name {
                name.clone_into(&mut totals.name);
            }
        }
        totals
    }
}

/// One request or stream.
struct Record {
    begun: Instant,
    at: Timestamp,
    method: Option<Method>,
    /// As it may be logged. None without an access log.
    path: Option<String>,
    version: Option<Version>,
    kind: AtomicU8,
    standing: Standing,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    credit_waits: AtomicU64,
    /// In microseconds.
    credit_waited: AtomicU64,
    told: Mutex<Told>,
}

/// What becomes known once.
#[derive(Debug, Clone)]
struct Told {
    client: IpAddr,
    exposure: Option<Arc<Exposure>>,
    node: Option<NodeName>,
    user: Option<String>,
    status: Option<StatusCode>,
    refusal: Option<&'static str>,
    /// When an agent was asked, said that it began, and sent the head. Since the beginning.
    opened: Option<Duration>,
    accepted: Option<Duration>,
    answered: Option<Duration>,
    from_target: bool,
    whole: bool,
}

impl Told {
    fn exposure_id(&self) -> Option<u64> {
        self.exposure.as_ref().map(|exposure| exposure.id.0)
    }

    fn exposure_name(&self) -> Option<&str> {
        let exposure = self.exposure.as_ref()?;
        exposure.name.as_ref().map(ExposureName::as_str)
    }

    /// How long the target took to answer, as its agent has seen it: what the agent says of the
    /// connection and the head of the answer come the same way, one after the other.
    fn target_first_byte(&self) -> Option<Duration> {
        let answered = self.answered.filter(|_| self.from_target)?;
        Some(answered.saturating_sub(self.accepted?))
    }
}

impl Record {
    fn kind(&self) -> Kind {
        Kind::ALL[usize::from(self.kind.load(Ordering::Relaxed)) % Kind::ALL.len()]
    }

    /// Adds what was counted so far.
    fn add_to(&self, totals: &mut Totals) {
        totals.bytes_in += self.bytes_in.load(Ordering::Relaxed);
        totals.bytes_out += self.bytes_out.load(Ordering::Relaxed);
        totals.credit_waits += self.credit_waits.load(Ordering::Relaxed);
        totals.credit_waited += Duration::from_micros(self.credit_waited.load(Ordering::Relaxed));
        totals.begun[self.kind() as usize] += 1;
    }
}

/// The record of a request or stream under way; it ends with its last clone.
#[derive(Clone)]
pub(crate) struct Track(Arc<Handle>);

impl fmt::Debug for Track {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Track").field(&self.0.number).finish()
    }
}

struct Handle {
    seeing: Seeing,
    number: u64,
    record: Arc<Record>,
}

/// What is under way, as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Underway {
    /// Counts those that this hub has carried: no two have the same.
    pub number: u64,
    /// The exposure's id; absent until it is found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposure: Option<u64>,
    /// The exposure's name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The node that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What is carried.
    pub kind: Kind,
    /// The request's method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The status of the answer, once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The client's address.
    pub client: String,
    /// Who asks, where somebody had to log in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// How long it has been under way, in milliseconds.
    pub age_ms: u64,
    /// Bytes from the client.
    pub bytes_in: u64,
    /// Bytes to the client.
    pub bytes_out: u64,
    /// What it waits for now.
    pub waits_for: WaitsFor,
}

impl fmt::Debug for Seeing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seeing")
            .field("config", &self.shared.config)
            .finish_non_exhaustive()
    }
}

impl Seeing {
    /// With what operators want to see.
    ///
    /// # Errors
    /// The access log can't be opened.
    pub fn new(config: SeeingConfig) -> io::Result<Self> {
        let log = config.access_log.as_deref().map(AccessLog::open);
        let shared = Shared {
            log: log.transpose()?,
            config,
            ..Shared::default()
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// All that is under way, the longest first.
    pub fn underway(&self) -> Vec<Underway> {
        let live: Vec<(u64, Arc<Record>)> = {
            let book = locked(&self.shared.book);
            let live = book.live.iter();
            live.map(|(number, record)| (*number, record.clone()))
                .collect()
        };
        let now = Instant::now();
        let underway = live.into_iter().map(|(number, record)| {
            let told = locked(&record.told).clone();
            let age = now.saturating_duration_since(record.begun);
            Underway {
                number,
                exposure: told.exposure_id(),
                name: told.exposure_name().map(str::to_owned),
                node: told.node.as_ref().map(ToString::to_string),
                kind: record.kind(),
                method: record.method.as_ref().map(ToString::to_string),
                status: told.status.map(|status| status.as_u16()),
                client: told.client.to_string(),
                user: told.user,
                age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
                bytes_in: record.bytes_in.load(Ordering::Relaxed),
                bytes_out: record.bytes_out.load(Ordering::Relaxed),
                waits_for: record.standing.waits_for(),
            }
        });
        underway.collect()
    }

    /// Forgets what was counted of exposures that are no more. What is still under way of one counts
    /// anew, and is forgotten the next time.
    pub(crate) fn keep(&self, exists: impl Fn(u64) -> bool) {
        let mut book = locked(&self.shared.book);
        book.totals.retain(|id, _| id.is_none_or(&exists));
    }

    /// Writes what was counted. What is known of exposures other than these is forgotten once
    /// nothing of it is under way.
    pub fn write_metrics(&self, text: &mut Text, exposures: &[u64]) {
        let mut totals = {
            let mut book = locked(&self.shared.book);
            let Book { live, totals, .. } = &mut *book;
            let mut reading = totals.clone();
            for record in live.values() {
                let told = locked(&record.told);
                let totals = reading.entry(told.exposure_id()).or_default();
                if let Some(name) = told.exposure_name() {
                    name.clone_into(&mut totals.name);
                }
                record.add_to(totals);
                totals.open[record.kind() as usize] += 1;
            }
            let kept = |id: &Option<u64>| id.is_none_or(|id| exposures.contains(&id));
            let open = |totals: &Totals| totals.open.iter().any(|open| *open > 0);
            reading.retain(|id, totals| kept(id) || open(totals));
            totals.retain(|id, _| reading.contains_key(id));
            reading
        };
        // Requests to none are told of from the start.
        totals.entry(None).or_default();
        let limits = self.shared.limits.get();
        let counts = limits.map(|limits| limits.iter().map(|count| count.load(Ordering::Relaxed)));
        let reading = Reading {
            exposures: totals.into_iter().collect(),
            connections: self.shared.connections.load(Ordering::Relaxed),
            refusals: counts
                .map(|counts| Refusal::NAMES.into_iter().zip(counts).collect())
                .unwrap_or_default(),
            lost_lines: self.shared.log.as_ref().map_or(0, AccessLog::lost),
        };
        metrics::write(text, &reading);
    }

    /// Waits until the access log has what was said so far, for two seconds at most.
    pub async fn flush(&self) {
        if let Some(log) = &self.shared.log {
            log.flush().await;
        }
    }

    /// Whether all answers have `Server-Timing`.
    pub(super) fn times_all(&self) -> bool {
        self.shared.config.server_timing
    }

    /// The counts of limits are these.
    pub(super) fn count_limits(&self, limits: Limits) {
        // A second data plane that is seen in the same place has its limits to itself.
        let _ = self.shared.limits.set(limits);
    }

    /// Counts a connection of a browser until what this gives is dropped.
    pub(super) fn connected(&self) -> Connected {
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        Connected(self.clone())
    }

    /// A request or stream begins.
    pub(crate) fn begin(&self, begins: &Begins<'_>) -> Track {
        let query = self.shared.config.access_log_query;
        let path = begins.target.filter(|_| self.shared.log.is_some());
        let record = Arc::new(Record {
            begun: Instant::now(),
            at: begins.at,
            method: begins.method.cloned(),
            path: path.map(|target| line::loggable(target, query)),
            version: begins.version,
            kind: AtomicU8::new(begins.kind as u8),
            standing: Standing::new(),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            credit_waits: AtomicU64::new(0),
            credit_waited: AtomicU64::new(0),
            told: Mutex::new(Told {
                client: begins.client,
                exposure: None,
                node: None,
                user: None,
                status: None,
                refusal: None,
                opened: None,
                accepted: None,
                answered: None,
                from_target: false,
                whole: false,
            }),
        });
        let mut book = locked(&self.shared.book);
        let number = book.begun;
        book.begun += 1;
        book.live.insert(number, record.clone());
        drop(book);
        Track(Arc::new(Handle {
            seeing: self.clone(),
            number,
            record,
        }))
    }
}

/// A connection of a browser.
pub(super) struct Connected(Seeing);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.shared.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Track {
    fn told(&self, tell: impl FnOnce(&mut Told, Duration)) {
        let since = self.0.record.begun.elapsed();
        tell(&mut locked(&self.0.record.told), since);
    }

    /// It is for this exposure, and comes from this client.
    pub(crate) fn exposed(&self, exposure: &Arc<Exposure>, client: IpAddr) {
        self.told(|told, _| {
            told.exposure = Some(exposure.clone());
            told.client = client;
        });
    }

    /// Who asks.
    pub(crate) fn user(&self, user: Option<&str>) {
        if let Some(user) = user {
            self.told(|told, _| told.user = Some(user.to_owned()));
        }
    }

    /// The agent of this node is asked.
    pub(crate) fn opening(&self, node: &NodeName) {
        self.0.record.standing.set_down(Down::Opening);
        self.told(|told, since| {
            told.node = Some(node.clone());
            told.opened = Some(since);
            told.accepted = None;
        });
    }

    /// The agent has begun: it is connected to the target.
    pub(crate) fn accepted(&self) {
        self.0.record.standing.set_down(Down::Head);
        self.told(|told, since| told.accepted = Some(since));
    }

    /// There is a head of the target's.
    pub(crate) fn target_answered(&self) {
        self.told(|told, _| told.from_target = true);
    }

    /// There is an answer, of the target's or the hub's own.
    pub(crate) fn answered(&self, status: StatusCode, refusal: Option<&'static str>) {
        let record = &self.0.record;
        record.standing.set_down(Down::Browser);
        if status == StatusCode::SWITCHING_PROTOCOLS {
            record.kind.store(Kind::Upgrade as u8, Ordering::Relaxed);
        }
        let mut book = locked(&self.0.seeing.shared.book);
        self.told(|told, since| {
            told.status = Some(status);
            told.refusal = refusal;
            told.answered = Some(since);
            let totals = book.totals(told);
            totals.answer(Some(status.as_u16()));
            totals.first_byte.observe(since);
            if let Some(time) = told.target_first_byte() {
                totals.target_first_byte.observe(time);
            }
            if let Some(refusal) = refusal {
                totals.refuse(refusal);
            }
        });
    }

    /// What `Server-Timing` says of an answer: the hub's part before it asked, the way to the target
    /// and back, and the target's part.
    pub(crate) fn server_timing(&self) -> String {
        let told = locked(&self.0.record.told);
        let now = self.0.record.begun.elapsed();
        let mut text = format!("hub;dur={}", millis(told.opened.unwrap_or(now)));
        if let (Some(opened), Some(accepted)) = (told.opened, told.accepted) {
            let connect = millis(accepted.saturating_sub(opened));
            let target = millis(now.saturating_sub(accepted));
            // Writing to a string does not fail.
            let _ = write!(text, ", connect;dur={connect}, target;dur={target}");
        }
        text
    }

    /// The whole of it went through.
    pub(crate) fn whole(&self) {
        self.told(|told, _| told.whole = true);
    }

    /// Where the way to the target stands.
    pub(super) fn up(&self, up: Up) {
        self.0.record.standing.set_up(up);
    }

    /// Where the way to the browser stands.
    pub(crate) fn down(&self, down: Down) {
        self.0.record.standing.set_down(down);
    }

    /// So many bytes came from the browser.
    pub(crate) fn took(&self, bytes: usize) {
        let count = &self.0.record.bytes_in;
        count.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// So many bytes go to the browser.
    pub(crate) fn gives(&self, bytes: usize) {
        let count = &self.0.record.bytes_out;
        count.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Sends what came from the browser, and says what it waits for meanwhile.
    pub(crate) async fn send(&self, sender: &mut Sender, mut bytes: Bytes) -> Result<(), Ended> {
        self.took(bytes.len());
        let mut waiting = Waiting {
            track: self,
            since: None,
        };
        while !bytes.is_empty() {
            poll_fn(|cx| {
                let polled = sender.poll_send(cx, &mut bytes);
                match polled {
                    Poll::Pending if sender.has_credit() => waiting.network(),
                    Poll::Pending => waiting.credit(),
                    Poll::Ready(_) => waiting.over(),
                }
                polled
            })
            .await?;
        }
        Ok(())
    }
}

/// A piece that is being sent.
struct Waiting<'a> {
    track: &'a Track,
    /// Since when it has no credit.
    since: Option<Instant>,
}

impl Waiting<'_> {
    fn credit(&mut self) {
        if self.since.is_none() {
            self.since = Some(Instant::now());
            let record = &self.track.0.record;
            record.credit_waits.fetch_add(1, Ordering::Relaxed);
            self.track.up(Up::Credit);
        }
    }

    fn network(&mut self) {
        self.had_credit();
        self.track.up(Up::Network);
    }

    fn over(&mut self) {
        self.had_credit();
        self.track.up(Up::Idle);
    }

    fn had_credit(&mut self) {
        if let Some(since) = self.since.take() {
            let waited = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
            let record = &self.track.0.record;
            record.credit_waited.fetch_add(waited, Ordering::Relaxed);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.over();
    }
}

fn millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1000.0)
}

impl Drop for Handle {
    fn drop(&mut self) {
        let (record, shared) = (&self.record, &self.seeing.shared);
        let told = locked(&record.told).clone();
        let mut book = locked(&shared.book);
        book.live.remove(&self.number);
        let totals = book.totals(&told);
        record.add_to(totals);
        let is_http = matches!(record.kind(), Kind::Http | Kind::Upgrade);
        if is_http && told.status.is_none() {
            totals.answer(None);
        }
        drop(book);
        if let Some(log) = &shared.log {
            self.log(log, &told);
        }
    }
}

impl Handle {
    fn log(&self, log: &AccessLog, told: &Told) {
        let record = &self.record;
        let kind = record.kind();
        let status = told.status.map(|status| status.as_u16());
        // Streams have no status: one that broke is an error.
        let judged = match kind {
            Kind::Http | Kind::Upgrade => status,
            Kind::Tcp | Kind::Udp => told.whole.then_some(200),
        };
        let share = self.seeing.shared.config.access_log_sample;
        if !line::is_logged(self.number, share, judged) {
            return;
        }
        let line = Line {
            time: record.at.to_string(),
            kind,
            exposure: told.exposure_id(),
            name: told.exposure_name(),
            node: told.node.as_ref().map(NodeName::as_str),
            client: told.client,
            user: told.user.as_deref(),
            method: record.method.as_ref().map(Method::as_str),
            path: record.path.as_deref(),
            version: record.version.and_then(version),
            status,
            bytes_in: record.bytes_in.load(Ordering::Relaxed),
            bytes_out: record.bytes_out.load(Ordering::Relaxed),
            duration_ms: line::millis(record.begun.elapsed()),
            first_byte_ms: told.answered.map(line::millis),
            target_first_byte_ms: told.target_first_byte().map(line::millis),
            refusal: told.refusal,
            whole: told.whole,
        };
        log.push(line.to_json());
    }
}

fn version(version: Version) -> Option<&'static str> {
    match version {
        Version::HTTP_10 => Some("HTTP/1.0"),
        Version::HTTP_11 => Some("HTTP/1.1"),
        Version::HTTP_2 => Some("HTTP/2"),
        Version::HTTP_3 => Some("HTTP/3"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
