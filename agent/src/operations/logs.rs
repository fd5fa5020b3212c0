//! Reads a container's log, and follows it.
//!
//! ```text
//! Open{container, cursor | tail | since} --> inspect --> read --> Data(OUT): JSON lines
//! ```
//!
//! Each line carries a cursor: the container, and a `position` in its log. Whatever breaks off is
//! read again from there, here as long as the operation lasts, and by the hub when a session was
//! lost.
//!
//! How a log is followed depends on how the daemon keeps it. Of one that is never thrown away, the
//! daemon's own follow tells all. Where files rotate it does not: Docker 20.10 loses what is written
//! between two looks of its follow, or gives up. There its follow is but a *bell*; when it rings, the
//! end of the log is read, which the daemon does well, and the reading has to reach back to the last
//! line that was sent. If it does not, a gap is told, exactly where lines are missing. A log of one
//! file that is emptied when it is full can be emptied while it is read. What such a reading gave is
//! held back until a second look has found its first record still there; otherwise a gap stands
//! before it.
//!
//! What can't be known: how many lines are missing; whether there were any, if the last line that was
//! sent was the last that was thrown away; and lines of a clock that was set back more than ten
//! seconds, after a break. Of a container that is removed as soon as it stops, only the bell tells
//! the last lines: if its log rotated in that very moment, lines may be missing without a gap.

mod cursor;
mod position;
mod rotation;
mod trouble;

use std::future::pending;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hub_protocol::kind::records::{LogRecord, Logs, Output};
use hub_protocol::kind::transfer::{Ending, OUT};
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_quic::operation::{Operation, Sender};
use tokio::time::{Duration, sleep};

use self::position::{Position, Reading, Sight, Verdict};
use self::rotation::Told;
use self::trouble::{failure, is_gone, may_come_back};
use super::no_engine;
use crate::engine::logs::{Keeping, LogFacts, LogStream, Part, Piece, Record};
use crate::engine::stream::StreamError;
use crate::engine::{Engine, names};

/// How long to wait before a daemon that is away is asked again: first, and at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// How often a log that is not followed is asked for, if the daemon goes away meanwhile.
const TRIES: u32 = 8;

/// How often a reading is begun again that the daemon could not carry on.
const TROUBLES: u32 = 3;

/// Bytes of lines that are held back for a second look, and of those that the bell told.
const HELD: usize = 256 * 1024;

const ROTATED: &str = "the daemon has thrown away the lines behind the last one that was sent: its \
                       log was rotated";

/// Carries out one reading.
pub async fn run(operation: Operation, open: Logs, engine: Option<&Engine>) {
    let Some(engine) = engine else {
        return operation.fail(&no_engine("logs of containers"));
    };
    let begun = tokio::select! {
        biased;
        _ = operation.ended() => return,
        begun = begin(engine, open, operation.sender(OUT)) => begun,
    };
    let (mut log, first) = match begun {
        Ok(begun) => begun,
        Err(failure) => return operation.fail(&failure),
    };
    operation.accept(Bytes::new());
    let ending = tokio::select! {
        biased;
        _ = operation.ended() => return,
        ending = log.run(first) => ending,
    };
    operation.finish(kind::encode(&match ending {
        Ok(()) | Err(Stop::Unwanted) => Ending::Complete(()),
        Err(Stop::Broken(error)) => Ending::Failed(failure(&error, &log.request.container)),
    }));
}

/// Why a reading does not go on.
enum Stop {
    /// The hub wants no more.
    Unwanted,
    /// The daemon does not give it.
    Broken(StreamError),
}

impl From<StreamError> for Stop {
    fn from(error: StreamError) -> Self {
        Self::Broken(error)
    }
}

/// How a reading of the log ended.
#[derive(PartialEq, Eq)]
enum Read {
    /// With the log, or with what was wanted of it.
    Whole,
    /// The daemon could not carry on, for this reason.
    Trouble(String),
    /// It does not reach back to the last line that was sent; nothing of it was.
    Short,
}

/// Checks a request, and begins with it as far as the daemon may refuse it.
async fn begin(
    engine: &Engine,
    request: Logs,
    sender: Sender,
) -> Result<(Log<'_>, LogStream), Failure> {
    let invalid = |why: &str| Failure::new(FailureCode::INVALID, why);
    let name = request.container.trim_start_matches('/').to_owned();
    if !names::is_container_name(&name) {
        let why = format!("no container can have the name {:?}", request.container);
        return Err(Failure::new(FailureCode::NO_SUCH_CONTAINER, why));
    }
    if request.no_stdout && request.no_stderr {
        return Err(invalid("neither output is wanted: nothing could come"));
    }
    let cursor = match &request.cursor {
        None => None,
        Some(_) if request.tail.is_some() => {
            return Err(invalid(
                "a log is read from a cursor or from its tail, not both",
            ));
        }
        Some(cursor) => Some(cursor::read(cursor).ok_or_else(|| {
            invalid("the cursor is none of a log: pass on unchanged what a line held")
        })?),
    };
    let failed = |error: StreamError| failure(&error, &request.container);
    let facts = engine.log_facts(&name).await.map_err(failed)?;
    let mut log = Log {
        engine,
        name,
        facts,
        request: Logs::default(),
        position: None,
        sender,
        held: None,
        told: Told::default(),
        before_tail: None,
        replaced: false,
        reached: true,
        end: passed(engine, request.until_ns.filter(|_| request.follow)).boxed(),
        over: false,
    };
    if let Some((id, position)) = cursor {
        if log.facts.id.starts_with(&id) {
            // A place before what is wanted says nothing of it.
            let (_, last_ns) = position.last();
            log.position = Some(position).filter(|_| request.since_ns <= Some(last_ns));
        } else {
            log.replaced = true;
        }
    }
    if let (None, Some(tail)) = (&log.position, request.tail) {
        log.before_tail = log.before(tail.max(1)).await.map_err(failed)?;
    }
    let part = log.part_of(&request);
    let first = log.open(part).await.map_err(failed)?;
    log.request = request;
    Ok((log, first))
}

/// A container's log on its way to the hub.
struct Log<'a> {
    engine: &'a Engine,
    name: String,
    facts: LogFacts,
    request: Logs,
    position: Option<Position>,
    sender: Sender,
    /// Lines that wait for a second look, where one is needed.
    held: Option<Held>,
    told: Told,
    /// The record before a tail and how many of its output and time there are before that, if the
    /// tail begins among them.
    before_tail: Option<(Sight, u64)>,
    /// The cursor was of another container.
    replaced: bool,
    /// Whether the last reading reached back to the last line that was sent.
    reached: bool,
    /// The end of what is to be followed.
    end: BoxFuture<'a, ()>,
    /// It has come.
    over: bool,
}

/// Lines of a log that may have been emptied while it was read.
#[derive(Default)]
struct Held {
    lines: Vec<Bytes>,
    bytes: usize,
}

impl Record {
    fn sight(&self) -> Sight {
        Sight::of(self.output, self.time_ns, &self.bytes)
    }
}

impl Log<'_> {
    async fn run(&mut self, first: LogStream) -> Result<(), Stop> {
        if self.replaced {
            let why = format!(
                "the container of the cursor is gone with its log; another has the name {} now, \
                 and its log follows from the beginning",
                self.name
            );
            self.gap(why).await?;
        }
        match (self.request.follow, self.facts.keeping) {
            _ if self.is_met() => return Ok(()),
            (false, _) => self.read_once(first).await?,
            (true, Keeping::All) => self.follow(first).await?,
            (true, Keeping::Files(_) | Keeping::OneFile(_)) => {
                // The bell has to be there before the first look.
                drop(first);
                self.look_on().await?;
            }
        }
        if !self.reached {
            self.gap(ROTATED.to_owned()).await?;
        }
        Ok(())
    }

    /// The part of the log that comes next.
    fn part_of(&self, request: &Logs) -> Part {
        let (tail, since_ns) = match &self.position {
            Some(position) => (None, Some(position.since_ns())),
            // Even of none the last is read: what follows is behind it.
            None => (request.tail.map(|tail| tail.max(1)), None),
        };
        Part {
            // Where files rotate only the end of what there is is read.
            follow: request.follow
                && self.facts.keeping == Keeping::All
                && request.tail != Some(0)
                && !self.over,
            tail,
            since_ns: since_ns.max(request.since_ns),
            until_ns: request.until_ns.filter(|_| !request.follow),
        }
    }

    fn part(&self) -> Part {
        self.part_of(&self.request)
    }

    async fn open(&mut self, part: Part) -> Result<LogStream, StreamError> {
        self.engine.log(&self.facts.id, self.facts.tty, part).await
    }

    /// The record before the last `tail` ones, if the first of these has its output and its time, as
    /// the parts of a long line have; and how many there are up to it.
    async fn before(&mut self, tail: u64) -> Result<Option<(Sight, u64)>, StreamError> {
        let peek = Part {
            tail: Some(tail.saturating_add(1)),
            ..Part::default()
        };
        let mut stream = self.open(peek).await?;
        let Some(Piece::Record(record)) = stream.next().await? else {
            return Ok(None);
        };
        let met = record.sight();
        match stream.next().await? {
            Some(Piece::Record(first)) if same(&met, &first.sight()) => {}
            _ => return Ok(None),
        }
        let in_tail = 1 + count_same(&mut stream, &met).await?;
        // To no certain time: the daemon ends such a reading at the first record that is later, and
        // one of the other output may stand before these.
        let then = Part {
            since_ns: Some(met.time_ns),
            ..Part::default()
        };
        let all = count_same(&mut self.open(then).await?, &met).await?;
        Ok(Some((met, all.saturating_sub(in_tail))))
    }

    /// Reads what there is, once.
    async fn read_once(&mut self, first: LogStream) -> Result<(), Stop> {
        let mut first = Some(first);
        let mut troubles = 0;
        let mut again = AGAIN[0];
        for tries in 1.. {
            let opened = match first.take() {
                Some(stream) => Ok(stream),
                None => self.open(self.part()).await,
            };
            let read = match opened {
                Ok(stream) => self.read(stream, false).await,
                Err(error) => Err(error.into()),
            };
            match read {
                Ok(Read::Trouble(why)) if troubles == TROUBLES => {
                    return self.gap(format!("the daemon cannot read on: {why}")).await;
                }
                Ok(Read::Trouble(_)) => troubles += 1,
                Ok(_) => return Ok(()),
                Err(Stop::Broken(error)) if may_come_back(&error) && tries < TRIES => {
                    tracing::debug!("a log broke off: {error}");
                }
                Err(stop) => return Err(stop),
            }
            sleep(again).await;
            again = AGAIN[1].min(again * 2);
        }
        Ok(())
    }

    /// Follows a log that is never thrown away.
    async fn follow(&mut self, first: LogStream) -> Result<(), Stop> {
        let mut first = Some(first);
        let mut again = AGAIN[0];
        loop {
            let opened = match first.take() {
                Some(stream) => Ok(stream),
                None => self.reopen().await,
            };
            let before = self.position.clone();
            let read = match opened {
                Ok(stream) => self.read(stream, false).await,
                Err(error) => Err(error.into()),
            };
            match read {
                // What was printed until then may still be on its way.
                Ok(Read::Whole) if self.over => return self.last_look().await,
                Ok(Read::Whole) if self.is_met() || self.has_stopped().await? => return Ok(()),
                Ok(_) => {}
                Err(Stop::Broken(error)) => self.bear(error).await?,
                Err(stop) => return Err(stop),
            }
            if self.position != before {
                again = AGAIN[0];
            }
            sleep(again).await;
            again = AGAIN[1].min(again * 2);
        }
    }

    /// Opens the log again after a break: the container may have been started anew meanwhile.
    async fn reopen(&mut self) -> Result<LogStream, StreamError> {
        self.facts = self.engine.log_facts(&self.facts.id).await?;
        self.open(self.part()).await
    }

    /// Takes an error that a daemon which comes back may mend; a container that is gone ends it.
    async fn bear(&mut self, error: StreamError) -> Result<(), Stop> {
        if may_come_back(&error) {
            tracing::debug!("a log broke off: {error}");
            return Ok(());
        }
        if is_gone(&error) {
            let why = "the container was removed while its log could not be read: its last lines \
                       may be missing";
            self.gap(why.to_owned()).await?;
            return Err(Stop::Unwanted);
        }
        Err(error.into())
    }

    /// Whether the end of the daemon's follow was the container's: it does not run any more, or not
    /// as it was started then.
    async fn has_stopped(&mut self) -> Result<bool, Stop> {
        match self.engine.log_facts(&self.facts.id).await {
            Ok(now) => Ok(!now.running || now.started != self.facts.started),
            Err(error) if is_gone(&error) => Ok(true),
            Err(error) if may_come_back(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether all that was asked for has come: something later has, or the time is over.
    fn is_met(&self) -> bool {
        if self.over {
            return true;
        }
        let last = self.position.as_ref().map(|position| position.last().1);
        match (self.request.until_ns, last) {
            (Some(until), Some(last)) => last > until,
            _ => false,
        }
    }

    /// Sends what a reading gives and has not been sent. With `short`, a reading that does not
    /// reach back to the last line that was sent is given up.
    async fn read(&mut self, mut stream: LogStream, short: bool) -> Result<Read, Stop> {
        let fragile = matches!(self.facts.keeping, Keeping::OneFile(_));
        let anchor = self.position.clone();
        let mut reading = match (&anchor, self.request.tail) {
            (None, Some(_)) => Reading::of_tail(),
            _ => Reading::new(),
        };
        // `docker logs --tail 0` begins behind the last record, which has to be known for that.
        let skip = anchor.is_none() && self.request.tail == Some(0);
        let mut first = None;
        let mut count = 0;
        self.held = fragile.then(Held::default);
        let read = loop {
            let piece = tokio::select! {
                biased;
                piece = stream.next() => piece,
                () = &mut self.end, if self.request.follow && !self.over => {
                    self.over = true;
                    break Read::Whole;
                }
            };
            match piece {
                Ok(None) => break Read::Whole,
                Ok(Some(Piece::Trouble(why))) => break Read::Trouble(why),
                Err(error) => {
                    self.release(false).await?;
                    return Err(error.into());
                }
                Ok(Some(Piece::Record(record))) => {
                    let sight = record.sight();
                    match reading.meet(self.position.as_ref(), &sight) {
                        Verdict::Old => continue,
                        Verdict::NewBehindGap if short => return Ok(Read::Short),
                        Verdict::NewBehindGap => self.gap(ROTATED.to_owned()).await?,
                        Verdict::New => {
                            first = first.or(anchor.as_ref().map(Position::last));
                        }
                    }
                    first.get_or_insert((sight.output, sight.time_ns));
                    if self.position.is_none()
                        && let Some((before, count)) = self.before_tail.take()
                        && same(&before, &sight)
                    {
                        self.position = Some(Position::behind(&before, count));
                    }
                    count += 1;
                    if skip {
                        Position::advance(&mut self.position, &reading, &sight);
                    } else {
                        self.line(record, &reading).await?;
                    }
                    if self.request.follow && self.is_met() {
                        break Read::Whole;
                    }
                }
            }
        };
        if short && !reading.anchored() {
            return Ok(Read::Short);
        }
        if let Some(first) = first.filter(|_| fragile) {
            // A daemon that does not answer vouches for nothing.
            let vouched = self.is_there(first, count).await.unwrap_or(false);
            self.release(vouched).await?;
        }
        self.held = None;
        self.reached = self.position.is_none() || reading.anchored();
        if read == Read::Whole {
            self.request.tail = None;
        }
        Ok(read)
    }

    /// Sends the lines that were held back, behind a gap if nothing vouches for them.
    async fn release(&mut self, vouched: bool) -> Result<(), Stop> {
        let Some(held) = self.held.take().filter(|held| held.bytes > 0) else {
            return Ok(());
        };
        if !vouched {
            let why = "the daemon emptied the log while it was read: lines may be missing before \
                       those that follow, and among those of that reading";
            self.gap(why.to_owned()).await?;
        }
        for line in held.lines {
            self.send(line).await?;
        }
        Ok(())
    }

    async fn line(&mut self, record: Record, reading: &Reading) -> Result<(), Stop> {
        Position::advance(&mut self.position, reading, &record.sight());
        let unwanted = match record.output {
            Output::Stdout => self.request.no_stdout,
            Output::Stderr => self.request.no_stderr,
        };
        let late = self
            .request
            .until_ns
            .is_some_and(|until| record.time_ns > until);
        let Some(position) = self.position.as_ref().filter(|_| !unwanted && !late) else {
            return Ok(());
        };
        let (text, base64) = match std::str::from_utf8(&record.bytes) {
            Ok(text) => (Some(text.to_owned()), None),
            Err(_) => (None, Some(BASE64_STANDARD.encode(&record.bytes))),
        };
        let line = line(&LogRecord::Line {
            output: record.output,
            time: record.time,
            text,
            base64,
            cursor: cursor::write(&self.facts.id, position),
        });
        match &mut self.held {
            Some(held) => {
                held.bytes += line.len();
                held.lines.push(line);
                if held.bytes > HELD {
                    // For these the second look comes too late: a gap would stand behind them.
                    let lines = std::mem::take(&mut held.lines);
                    for line in lines {
                        self.send(line).await?;
                    }
                }
                Ok(())
            }
            None => self.send(line).await,
        }
    }

    async fn gap(&mut self, why: String) -> Result<(), Stop> {
        let line = line(&LogRecord::Gap { why });
        match &mut self.held {
            Some(held) => {
                held.bytes += line.len();
                held.lines.push(line);
                Ok(())
            }
            None => self.send(line).await,
        }
    }

    async fn send(&mut self, line: Bytes) -> Result<(), Stop> {
        self.sender.send(line).await.map_err(|_| Stop::Unwanted)
    }
}

fn same(one: &Sight, other: &Sight) -> bool {
    (one.output, one.time_ns) == (other.output, other.time_ns)
}

/// How many of a reading's records have the output and the time of this one. No other follows the
/// first that is of that output and later.
async fn count_same(stream: &mut LogStream, one: &Sight) -> Result<u64, StreamError> {
    let mut count = 0;
    while let Some(Piece::Record(record)) = stream.next().await? {
        let sight = record.sight();
        if sight.output == one.output && sight.time_ns > one.time_ns {
            break;
        }
        count += u64::from(same(one, &sight));
    }
    Ok(count)
}

/// Returns once the daemon's clock has passed that time; never without one.
async fn passed(engine: &Engine, until_ns: Option<i64>) {
    let Some(until) = until_ns else {
        return pending().await;
    };
    loop {
        let left = match engine.now_ns().await {
            Ok(now) if now > until => return,
            Ok(now) => Duration::from_nanos(until.abs_diff(now)),
            Err(_) => AGAIN[1],
        };
        sleep(left.clamp(AGAIN[0], Duration::from_secs(3600))).await;
    }
}

fn line(record: &LogRecord) -> Bytes {
    let mut line = kind::to_json(record).to_vec();
    line.push(b'\n');
    line.into()
}

#[cfg(test)]
mod tests;
