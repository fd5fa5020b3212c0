//! Follows a log whose files rotate: the daemon's follow is but a bell, and when it rings the end of
//! the log is read. Why, and what can't be known, stands in the module above.

use std::collections::VecDeque;
use std::pin::pin;

use hub_protocol::kind::records::Output;
use tokio::time::{Duration, Instant, sleep, sleep_until};

use super::position::{Reading, Verdict};
use super::{AGAIN, HELD, Log, Read, Stop, TROUBLES, is_gone};
use crate::engine::logs::{Keeping, Part, Piece, Record};
use crate::engine::stream::StreamError;

/// How a log that rotates is looked at.
mod pace {
    use super::Duration;

    /// The last records that a look begins with: mostly there are fewer new ones.
    pub(super) const TAIL: u64 = 256;
    /// How long to listen before a look: what is printed at once rings as often.
    pub(super) const SETTLE: Duration = Duration::from_millis(2);
    /// How often to look without the bell, which in Docker 20.10 may get stuck.
    pub(super) const ROUND: Duration = Duration::from_secs(5);
    /// The least time from one look to the next, where what is kept lasts so long.
    pub(super) const PAUSE: Duration = Duration::from_millis(100);
    /// Bytes a second that a container may print: two looks have to fit in the time in which it
    /// fills what is kept.
    pub(super) const FAST: u64 = 20_000_000;
    /// The part of the time that looks may take, inverted.
    pub(super) const SHARE: u32 = 4;
}

/// Records that the bell told and no reading has given yet.
#[derive(Default)]
pub(super) struct Told {
    records: VecDeque<Record>,
    bytes: usize,
    /// There were more.
    cut: bool,
}

impl Told {
    fn add(&mut self, record: Record) {
        self.bytes += record.bytes.len();
        self.records.push_back(record);
        while self.bytes > HELD
            && let Some(record) = self.records.pop_front()
        {
            self.bytes -= record.bytes.len();
            self.cut = true;
        }
    }
}

/// What the bell told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rung {
    /// A record that has been sent.
    Old,
    /// There may be more.
    New,
    /// Nothing comes any more.
    Ended,
}

impl Log<'_> {
    /// Follows a log that rotates.
    pub(super) async fn look_on(&mut self) -> Result<(), Stop> {
        let mut again = AGAIN[0];
        let mut looked = None;
        loop {
            let before = self.position.clone();
            match self.look_while_it_rings(&mut looked).await {
                Ok(()) if self.is_met() || self.has_stopped().await? => {
                    return self.last_look().await;
                }
                Ok(()) => {}
                Err(Stop::Broken(error)) if is_gone(&error) => return self.last_look().await,
                Err(Stop::Broken(error)) => self.bear(error).await?,
                Err(stop) => return Err(stop),
            }
            if self.position != before {
                again = AGAIN[0];
            }
            sleep(again).await;
            again = AGAIN[1].min(again * 2);
            match self.engine.log_facts(&self.facts.id).await {
                Ok(facts) => self.facts = facts,
                Err(error) if is_gone(&error) => return self.last_look().await,
                Err(error) => self.bear(error).await?,
            }
        }
    }

    /// Looks whenever the bell rings, until it is at its end.
    async fn look_while_it_rings(&mut self, looked: &mut Option<Look>) -> Result<(), Stop> {
        let bell = Part {
            follow: true,
            tail: Some(0),
            ..Part::default()
        };
        let mut bell = self.open(bell).await?;
        let mut ended = false;
        loop {
            // All that has rung by then is answered by one look.
            let now = Instant::now() + pace::SETTLE;
            let next = looked.as_ref().map(|last| last.next(self.facts.keeping));
            let mut wait = pin!(sleep_until(next.map_or(now, |next| next.max(now))));
            while !ended {
                tokio::select! {
                    biased;
                    () = &mut wait => break,
                    rung = bell.next() => ended = self.hear(rung)? == Rung::Ended,
                }
            }
            let began = Instant::now();
            self.look().await?;
            *looked = Some(Look {
                ended: Instant::now(),
                took: began.elapsed(),
            });
            if ended || self.is_met() {
                return Ok(());
            }
            let mut round = pin!(sleep(pace::ROUND));
            loop {
                let rung = tokio::select! {
                    biased;
                    rung = bell.next() => self.hear(rung)?,
                    () = &mut self.end => {
                        self.over = true;
                        break;
                    }
                    () = &mut round => break,
                };
                ended = rung == Rung::Ended;
                if rung != Rung::Old {
                    break;
                }
            }
        }
    }

    /// Takes what the bell told.
    fn hear(&mut self, rung: Result<Option<Piece>, StreamError>) -> Result<Rung, StreamError> {
        match rung? {
            Some(Piece::Record(record)) => {
                let position = self.position.as_ref();
                if position.is_some_and(|position| position.is_past(&record.sight())) {
                    return Ok(Rung::Old);
                }
                self.told.add(record);
            }
            // It ends with this, and is opened again.
            Some(Piece::Trouble(why)) => tracing::debug!("a log's follow: {why}"),
            None => return Ok(Rung::Ended),
        }
        Ok(Rung::New)
    }

    /// The look after the container's end. If the container is gone with its log, what the bell told
    /// is all there is.
    pub(super) async fn last_look(&mut self) -> Result<(), Stop> {
        let mut again = AGAIN[0];
        loop {
            match self.look().await {
                Ok(()) => return Ok(()),
                Err(Stop::Broken(error)) if is_gone(&error) => break,
                Err(Stop::Broken(error)) => self.bear(error).await?,
                Err(stop) => return Err(stop),
            }
            sleep(again).await;
            again = AGAIN[1].min(again * 2);
        }
        let told = std::mem::take(&mut self.told);
        if told.cut {
            self.gap("the container was removed before the end of its log was read".to_owned())
                .await?;
        }
        let mut reading = Reading::live();
        for record in told.records {
            if reading.meet(self.position.as_ref(), &record.sight()) != Verdict::Old {
                self.line(record, &reading).await?;
            }
        }
        Ok(())
    }

    /// Sends what is new in a log that rotates.
    async fn look(&mut self) -> Result<(), Stop> {
        let mut troubles = 0;
        loop {
            let mut read = Read::Short;
            if self.position.is_some() {
                let tail = Part {
                    tail: Some(pace::TAIL),
                    ..self.part()
                };
                let tail = Part {
                    follow: false,
                    ..tail
                };
                let stream = self.open(tail).await?;
                read = self.read(stream, true).await?;
            }
            if read == Read::Short {
                let whole = Part {
                    follow: false,
                    ..self.part()
                };
                let stream = self.open(whole).await?;
                read = self.read(stream, false).await?;
            }
            // What is old to a new reading has been sent.
            let mut reading = Reading::live();
            let position = self.position.as_ref();
            self.told
                .records
                .retain(|record| reading.meet(position, &record.sight()) != Verdict::Old);
            self.told.bytes = self.told.records.iter().map(|r| r.bytes.len()).sum();
            self.told.cut &= !self.told.records.is_empty();
            match read {
                // The next look begins where this one broke off.
                Read::Trouble(why) if troubles == TROUBLES => {
                    tracing::debug!("a log cannot be read on: {why}");
                    return Ok(());
                }
                Read::Trouble(_) => troubles += 1,
                Read::Whole | Read::Short => return Ok(()),
            }
            sleep(AGAIN[0]).await;
        }
    }

    /// Whether a record is still in the log, `count` records from the end or a few more.
    pub(super) async fn is_there(
        &mut self,
        (output, time_ns): (Output, i64),
        count: u64,
    ) -> Result<bool, StreamError> {
        for tail in [Some(count + pace::TAIL), None] {
            let part = Part {
                follow: false,
                tail,
                since_ns: Some(time_ns),
                until_ns: Some(time_ns),
            };
            let mut stream = self.open(part).await?;
            while let Some(Piece::Record(record)) = stream.next().await? {
                if (record.output, record.time_ns) == (output, time_ns) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// When a rotating log was looked at last, and how long that took.
struct Look {
    ended: Instant,
    took: Duration,
}

impl Look {
    /// When it may be looked at again.
    fn next(&self, keeping: Keeping) -> Instant {
        let kept = match keeping {
            Keeping::All => u64::MAX,
            Keeping::Files(bytes) | Keeping::OneFile(bytes) => bytes,
        };
        let lasts = Duration::from_micros(kept / (pace::FAST / 1_000_000) / 2);
        self.ended
            + pace::PAUSE
                .min(lasts)
                .max(self.took * (pace::SHARE - 1))
                .min(pace::ROUND)
    }
}
