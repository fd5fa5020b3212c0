//! Feeds the journal: one subscription to the daemon's events, for ever.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::OptionFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::{Event, Gap, Shared};
use crate::backoff::Backoff;
use crate::engine::Engine;
use crate::engine::stream::StreamError;
use crate::random::Random;

/// How far before the last event the daemon is asked to begin: events of callers at the same time
/// need not come in the order of their times.
const OVERLAP_NS: i64 = 10_000_000_000;

/// How long to wait for the first event of a replay, which proves that the subscription stands.
const REPLAY: Duration = Duration::from_secs(1);

/// The most events that a daemon is believed to remember. Docker's has 256.
const MAX_REPLAY: usize = 65_536;

/// How long the daemon may take to tell what it remembers.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct Watcher {
    engine: Engine,
    shared: Arc<Shared>,
    random: Random,
    wishes: mpsc::Receiver<oneshot::Sender<i64>>,
    /// Whoever waits to be told until when the journal knows all.
    waiting: Vec<oneshot::Sender<i64>>,
    /// Until when it did last: by the daemon's clock.
    settled_ns: Option<i64>,
}

impl Watcher {
    pub(super) fn new(
        engine: Engine,
        shared: Arc<Shared>,
        random: Random,
        wishes: mpsc::Receiver<oneshot::Sender<i64>>,
    ) -> Self {
        Self {
            engine,
            shared,
            random,
            wishes,
            waiting: Vec::new(),
            settled_ns: None,
        }
    }

    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::default();
        let mut last_words = String::new();
        loop {
            let started = Instant::now();
            let words = match self.subscription().await {
                Ok(()) => "the Docker daemon ended its events".to_owned(),
                Err(error) => error.to_string(),
            };
            // One line per change: a daemon that stays away is said once.
            if words == last_words {
                tracing::debug!("{words}");
            } else {
                tracing::warn!("{words}; asking for its events again, for ever");
            }
            last_words = words;
            let mut random = [0; 4];
            (self.random)(&mut random);
            let random = u32::from_le_bytes(random);
            sleep(backoff.next(started.elapsed(), random, Duration::ZERO)).await;
        }
    }

    /// One subscription, until it ends.
    async fn subscription(&mut self) -> Result<(), StreamError> {
        let known = self.shared.ring().newest();
        let since = since(known);
        let mut live = self.engine.events(since, None).await?;
        // The daemon subscribes before it replays. With a first event in hand, what is asked next
        // is asked after that, and nothing can fall between the two.
        let mut held = Vec::new();
        if let Ok(first) = timeout(REPLAY, live.next()).await {
            held.extend(first?);
        }
        let engine = self.engine.clone();
        let start = begin(&engine, known, since, self.settled_ns);
        tokio::pin!(start);
        // Read on meanwhile: what a subscriber leaves lying, the daemon drops.
        let (past, gap) = loop {
            tokio::select! {
                biased;
                start = &mut start => break start?,
                event = live.next() => match event? {
                    Some(event) if held.len() < MAX_REPLAY => held.push(event),
                    _ => return Ok(()),
                },
            }
        };
        if let Some(gap) = gap {
            tracing::info!("events may be missing: {}", gap.why);
            self.shared.ring().gap(gap);
        }
        append(&self.shared, past.events.into_iter().chain(held));
        self.shared.changed.send_replace(true);
        self.tell(past.now_ns);
        let mut settling = None;
        loop {
            tokio::select! {
                biased;
                event = live.next() => match event? {
                    Some(event) => append(&self.shared, [event]),
                    None => return Ok(()),
                },
                Some(past) = OptionFuture::from(settling.as_mut()) => {
                    settling = None;
                    let (known, past): (Option<_>, Past) = past?;
                    // A daemon that has forgotten the newest event is another than the one that
                    // was subscribed to.
                    if known.is_some_and(|known| !past.remembers(known)) {
                        return Err(StreamError::Unreachable("it has forgotten its events".into()));
                    }
                    append(&self.shared, past.events);
                    self.tell(past.now_ns);
                }
                Some(wish) = self.wishes.recv(), if settling.is_none() => {
                    self.waiting.push(wish);
                    let known = self.shared.ring().newest();
                    let engine = self.engine.clone();
                    let asked = async move {
                        Ok::<_, StreamError>((known, Past::of(&engine, self::since(known)).await?))
                    };
                    settling = Some(asked.boxed());
                }
            }
        }
    }

    /// Tells whoever waits that the journal knows all until then.
    fn tell(&mut self, now_ns: i64) {
        self.settled_ns = Some(now_ns);
        for waiting in self.waiting.drain(..) {
            // Whoever waits no more need not be told.
            let _ = waiting.send(now_ns);
        }
    }
}

/// From when on to ask, to get the event that is known last.
fn since(known: Option<(i64, u64)>) -> i64 {
    known.map_or(0, |(time_ns, _)| time_ns.saturating_sub(OVERLAP_NS))
}

fn append(shared: &Shared, events: impl IntoIterator<Item = Event>) {
    let mut ring = shared.ring();
    let mut added = false;
    for event in events {
        added |= ring.append(event);
    }
    drop(ring);
    if added {
        shared.changed.send_modify(|_| {});
    }
}

/// What the daemon remembers, and the gap before it if it does not vouch for what has happened
/// since the event that is `known` last.
async fn begin(
    engine: &Engine,
    known: Option<(i64, u64)>,
    since: i64,
    settled_ns: Option<i64>,
) -> Result<(Past, Option<Gap>), StreamError> {
    let past = Past::of(engine, since).await?;
    if known.is_some_and(|known| past.remembers(known)) {
        return Ok((past, None));
    }
    let from_ns = known.map(|(time_ns, _)| time_ns).or(settled_ns);
    let newer = past.events.iter().map(|event| event.time_ns);
    let newer = newer.filter(|time_ns| from_ns.is_none_or(|from| *time_ns > from));
    let why = match from_ns {
        Some(_) => {
            "the Docker daemon does not remember the last event seen: it was restarted, or more \
             has happened since than it keeps"
        }
        None => "the agent began to watch, and the Docker daemon remembers no older events",
    };
    let gap = Gap {
        from_ns,
        to_ns: newer.min().unwrap_or(past.now_ns),
        why: why.to_owned(),
        states: engine.states().await?,
    };
    Ok((past, Some(gap)))
}

/// What the daemon remembers.
struct Past {
    /// When it was asked, by its clock.
    now_ns: i64,
    events: Vec<Event>,
}

impl Past {
    async fn of(engine: &Engine, since_ns: i64) -> Result<Self, StreamError> {
        let ask = async {
            let now_ns = engine.now_ns().await?;
            // A time that has passed ends the answer where the daemon's memory does. Its clock may
            // have been set back.
            let since_ns = since_ns.min(now_ns);
            let mut replay = engine.events(since_ns, Some(now_ns)).await?;
            let mut events = Vec::new();
            while let Some(event) = replay.next().await? {
                events.push(event);
                if events.len() > MAX_REPLAY {
                    let many = format!("more than {MAX_REPLAY} events remembered");
                    return Err(StreamError::Malformed(many));
                }
            }
            Ok(Self { now_ns, events })
        };
        let late = "it did not tell what it remembers of its events";
        timeout(REPLAY_TIMEOUT, ask)
            .await
            .unwrap_or_else(|_| Err(StreamError::Unreachable(late.into())))
    }

    fn remembers(&self, known: (i64, u64)) -> bool {
        let mut all = self.events.iter();
        all.any(|event| (event.time_ns, event.fingerprint()) == known)
    }
}
