//! Watches what happens on the node: reads the [`journal`](crate::journal) from where the hub says.
//!
//! ```text
//! Open{since | cursor, filters, until} --> Reader --64 items at a time--> Data(OUT): JSON lines
//! ```
//!
//! A watch that the hub reads slowly keeps its place in the journal and nothing else. If the
//! journal's ring goes on without it, the watch is told how many events of all kinds, wanted or
//! not, were left out.
//!
//! Of events and states the node's policy lets through those of containers that it shows.
//!
//! A gap is told as one piece with the states behind it: the cursors in it lead back to its
//! beginning, but the last, which leads on.

use std::pin::pin;

use bytes::Bytes;
use hub_protocol::kind::records::{EventRecord, Events};
use hub_protocol::kind::transfer::{Ending, OUT};
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_quic::operation::{Operation, Sender};
use tokio::time::{Duration, sleep};

use super::{Tools, no_engine};
use crate::engine::Engine;
use crate::journal::{BadCursor, Cursor, Filter, Item, Journal, Reader, Start, State};
use crate::policy::{Policy, Subject};

/// Items that are taken from the journal at a time.
const BATCH: usize = 64;

/// The longest sleep before the daemon's clock is asked again.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// How long to wait for a daemon that is away.
const AGAIN: Duration = Duration::from_secs(1);

/// The shortest: the clocks of daemon and agent may run apart.
const SHORTEST_SLEEP: Duration = Duration::from_millis(10);

/// Carries out one watch.
pub async fn run(operation: Operation, open: Events, tools: &Tools) {
    let (Some(engine), Some(journal)) = (&tools.engine, &tools.journal) else {
        return operation.fail(&no_engine("watches of events"));
    };
    let until_ns = open.until_ns;
    let (start, filter) = match begin(open) {
        Ok(begin) => begin,
        Err(why) => return operation.fail(&Failure::new(FailureCode::INVALID, why)),
    };
    let begun = tokio::select! {
        biased;
        _ = operation.ended() => return,
        begun = reader(engine, journal, start, filter) => begun,
    };
    let reader = match begun {
        Ok(reader) => reader,
        Err(error) => {
            return operation.fail(&Failure::new(FailureCode::INVALID, error.to_string()));
        }
    };
    operation.accept(Bytes::new());
    let watch = Watch {
        engine,
        journal,
        policy: &tools.policy,
        reader,
        until_ns,
        sender: operation.sender(OUT),
    };
    tokio::select! {
        biased;
        _ = operation.ended() => {}
        _ = watch.run() => operation.finish(kind::encode(&Ending::Complete(()))),
    }
}

/// The reader of a watch, once the journal knows anything.
async fn reader(
    engine: &Engine,
    journal: &Journal,
    mut start: Start,
    filter: Filter,
) -> Result<Reader, BadCursor> {
    let mut changes = journal.changes();
    if !*changes.borrow() {
        // What the journal will begin with is older than now.
        while start == Start::Now {
            match engine.now_ns().await {
                Ok(now) => start = Start::Since(now),
                Err(_) => sleep(AGAIN).await,
            }
        }
        // The journal is there as long as its handle.
        let _ = changes.wait_for(|ready| *ready).await;
    }
    journal.reader(start, filter)
}

/// Where a watch begins and what it wants; or why that makes no sense.
fn begin(open: Events) -> Result<(Start, Filter), String> {
    let filter = Filter::new(open.filters).map_err(|error| error.to_string())?;
    let start = match (open.cursor, open.since_ns) {
        (Some(_), Some(_)) => {
            return Err("a watch begins at a cursor or at a time, not at both".to_owned());
        }
        (Some(cursor), None) => {
            let cursor = cursor.parse::<Cursor>();
            Start::After(cursor.map_err(|error| error.to_string())?)
        }
        (None, Some(since)) => Start::Since(since),
        (None, None) => Start::Now,
    };
    if let (Start::Since(since), Some(until)) = (start, open.until_ns)
        && until < since
    {
        return Err("a watch cannot end before it begins: `until` is before `since`".to_owned());
    }
    Ok((start, filter))
}

struct Watch<'a> {
    engine: &'a Engine,
    journal: &'a Journal,
    policy: &'a Policy,
    reader: Reader,
    until_ns: Option<i64>,
    sender: Sender,
}

impl Watch<'_> {
    /// Tells all that is wanted; `None` if the hub wants no more of it.
    async fn run(mut self) -> Option<()> {
        let mut changes = self.journal.changes();
        let journal = self.journal;
        let mut end = pin!(passed(journal, self.until_ns));
        let mut ended = false;
        loop {
            changes.borrow_and_update();
            loop {
                let items = journal.read(&mut self.reader, BATCH);
                if items.is_empty() {
                    break;
                }
                for item in items {
                    self.tell(item).await?;
                }
            }
            if ended {
                return Some(());
            }
            tokio::select! {
                biased;
                () = &mut end => ended = true,
                // The journal is there as long as its handle.
                _ = changes.changed() => {}
                () = self.sender.stopped() => return None,
            }
        }
    }

    async fn tell(&mut self, item: Item) -> Option<()> {
        match item {
            Item::Event(event, _)
                if self.until_ns.is_some_and(|until| event.time_ns > until)
                    || !self.policy.shows_event(&event.kind, &event.attributes) =>
            {
                Some(())
            }
            Item::Event(event, cursor) => {
                let record = EventRecord::Event {
                    time_ns: event.time_ns,
                    kind: event.kind.clone(),
                    action: event.action.clone(),
                    id: event.id.clone(),
                    attributes: event.attributes.clone(),
                    cursor: cursor.to_string(),
                };
                self.send(&record).await
            }
            Item::Lagged(events, cursor) => {
                let cursor = cursor.to_string();
                self.send(&EventRecord::Lagged { events, cursor }).await
            }
            Item::Gap {
                from_ns,
                gap,
                listed,
                before,
                after,
            } => {
                // A gap that begins behind the end of the watch is none of it.
                if from_ns.is_some_and(|from| self.until_ns.is_some_and(|until| from > until)) {
                    return Some(());
                }
                let now;
                let all = if listed {
                    &gap.states
                } else {
                    now = self.states().await;
                    &now
                };
                let wanted = all.iter();
                let wanted = wanted.filter(|state| {
                    let subject = Subject {
                        name: &state.name,
                        labels: &state.labels,
                    };
                    self.policy.shows(subject) && self.reader.filter().wants_state(state)
                });
                let wanted: Vec<_> = wanted.cloned().collect();
                let cursor = |last| if last { after } else { before }.to_string();
                let record = EventRecord::Gap {
                    from_ns,
                    to_ns: gap.to_ns,
                    why: gap.why.clone(),
                    cursor: cursor(wanted.is_empty()),
                };
                self.send(&record).await?;
                let count = wanted.len();
                for (index, state) in wanted.into_iter().enumerate() {
                    let record = EventRecord::State {
                        id: state.id,
                        name: state.name,
                        state: state.state,
                        cursor: cursor(index + 1 == count),
                    };
                    self.send(&record).await?;
                }
                Some(())
            }
        }
    }

    /// What the containers are now; asked until the daemon answers.
    async fn states(&self) -> Vec<State> {
        loop {
            match self.engine.states().await {
                Ok(states) => return states,
                Err(error) => tracing::debug!("a listing after a gap has to wait: {error}"),
            }
            // Returns when the daemon is there again.
            self.journal.settle().await;
        }
    }

    async fn send(&mut self, record: &EventRecord) -> Option<()> {
        let mut line = kind::to_json(record).to_vec();
        line.push(b'\n');
        self.sender.send(line.into()).await.ok()
    }
}

/// Returns once the journal knows all until then; never without a time.
async fn passed(journal: &Journal, until_ns: Option<i64>) {
    let Some(until) = until_ns else {
        return std::future::pending().await;
    };
    loop {
        let now = journal.settle().await;
        if now > until {
            return;
        }
        let left = Duration::from_nanos(until.abs_diff(now));
        sleep(left.clamp(SHORTEST_SLEEP, LONGEST_SLEEP)).await;
    }
}

#[cfg(test)]
mod tests;
