//! What has happened on this node: a journal of the daemon's events, kept by the agent because the
//! daemon itself remembers few (20.10: the last 256, and none over a restart).
//!
//! ```text
//! dockerd /events ──► watcher ──► Ring ──► one Reader per watch of the hub
//!    ▲   replay, listing  │
//!    └── reconnects ──────┘
//! ```
//!
//! One subscription lasts as long as the agent. Where it breaks, the `watcher` asks again from
//! ten seconds before the last event on and leaves out what it knows already. An event is known by
//! its time and its [fingerprint](Event::fingerprint). If the last event is among those that the
//! daemon still remembers, the daemon has not forgotten anything behind it. If it is not, the daemon
//! was restarted or more happened than it remembers: the journal gets a [`Gap`] with what the
//! containers are then, and every reader sees it.
//!
//! The journal lives in memory. A cursor of an earlier run of the agent goes on at its event if the
//! daemon still remembers that one, and else at its time, behind a gap if the daemon does not reach
//! back so far.
//!
//! Three things can't be known. The daemon drops events for a subscriber that does not read 1,024
//! of them for a tenth of a second; the watcher reads whatever else happens, and the next time it
//! asks what the daemon remembers brings back what that still is. Events that two callers cause
//! within the same microseconds may be replayed in the other order; a cursor of an earlier run
//! between these two may then skip one. And what happens while no agent runs is known as far as the
//! daemon remembers.

mod cursor;
#[cfg(test)]
pub(crate) mod fake;
mod filter;
mod ring;
#[cfg(test)]
mod tests;
mod watcher;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;

pub use cursor::{BadCursor, Cursor};
pub use filter::{Filter, UnknownKey};
pub use ring::{Item, Limits, Reader, Ring, Start};

use crate::engine::Engine;
use crate::random::Random;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When, by the daemon's clock: nanoseconds since 1970 UTC.
    pub time_ns: i64,
    /// What it happened to: `container`, `image`, ….
    pub kind: String,
    /// What: `start`, `die`, ….
    pub action: String,
    /// Its id or name.
    pub id: String,
    /// What the daemon says of it.
    pub attributes: BTreeMap<String, String>,
}

impl Event {
    /// What it says in 64 bits, without its time; never 0. The same in every release, because
    /// cursors hold it.
    pub fn fingerprint(&self) -> u64 {
        // FNV-1a. Whoever could make two events of one nanosecond agree could as well not cause
        // the second.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |text: &str| {
            for byte in text.bytes().chain([0xff]) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        let attributes = self.attributes.iter().flat_map(|(k, v)| [k, v]);
        [&self.kind, &self.action, &self.id]
            .into_iter()
            .chain(attributes)
            .for_each(|text| add(text));
        hash.max(1)
    }

    /// About what it takes in memory.
    fn bytes(&self) -> usize {
        let texts = [&self.kind, &self.action, &self.id].map(String::len);
        size_of::<Self>() + texts.iter().sum::<usize>() + size(&self.attributes)
    }
}

/// What a container is, by a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// `created`, `running`, `exited`, ….
    pub state: String,
    /// The image it was made from.
    pub image: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// Events that are missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// From when on: nanoseconds since 1970 UTC; `None` where that is unknown.
    pub from_ns: Option<i64>,
    /// Until when.
    pub to_ns: i64,
    /// Why, for people.
    pub why: String,
    /// What the containers are at its end.
    pub states: Vec<State>,
}

impl Gap {
    fn bytes(&self) -> usize {
        let state = |state: &State| {
            let texts = [&state.id, &state.name, &state.state, &state.image].map(String::len);
            size_of::<State>() + texts.iter().sum::<usize>() + size(&state.labels)
        };
        size_of::<Self>() + self.why.len() + self.states.iter().map(state).sum::<usize>()
    }
}

fn size(map: &BTreeMap<String, String>) -> usize {
    // Two headers of strings and a share of the tree's node.
    map.iter().map(|(k, v)| k.len() + v.len() + 64).sum()
}

/// The journal of one daemon. Cheap to clone; the watcher ends with the last clone.
#[derive(Debug, Clone)]
pub struct Journal(Arc<Owned>);

#[derive(Debug)]
struct Owned {
    shared: Arc<Shared>,
    settle: mpsc::Sender<oneshot::Sender<i64>>,
    watcher: AbortHandle,
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

#[derive(Debug)]
struct Shared {
    ring: Mutex<Ring>,
    /// Changes when the ring does; true once the watcher has been connected.
    changed: watch::Sender<bool>,
}

impl Shared {
    /// Nothing that holds it can panic half-way through a change.
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal {
    /// Begins to keep the journal of this daemon, in a task of its own.
    pub fn start(engine: Engine, random: Random) -> Self {
        Self::with_limits(engine, random, Limits::default())
    }

    fn with_limits(engine: Engine, random: Random, limits: Limits) -> Self {
        let mut id = [0; 8];
        random(&mut id);
        let shared = Arc::new(Shared {
            ring: Mutex::new(Ring::new(u64::from_le_bytes(id), limits)),
            changed: watch::Sender::new(false),
        });
        let (settle, wishes) = mpsc::channel(16);
        let watcher = watcher::Watcher::new(engine, shared.clone(), random, wishes);
        let watcher = tokio::spawn(watcher.run()).abort_handle();
        Self(Arc::new(Owned {
            shared,
            settle,
            watcher,
        }))
    }

    /// Tells of changes. Whoever reads first has to wait until it is true.
    pub fn changes(&self) -> watch::Receiver<bool> {
        self.0.shared.changed.subscribe()
    }

    /// A reader that begins at `start`.
    ///
    /// # Errors
    /// It is a cursor of this journal for a place that it has never had.
    pub fn reader(&self, start: Start, filter: Filter) -> Result<Reader, BadCursor> {
        self.0.shared.ring().reader(start, filter).ok_or(BadCursor)
    }

    /// What a reader gets next, up to `most` items.
    pub fn read(&self, reader: &mut Reader, most: usize) -> Vec<Item> {
        self.0.shared.ring().read(reader, most)
    }

    /// Makes sure that all that has happened is in the journal. Gives until when, by the daemon's
    /// clock. Without the daemon it waits for it.
    pub async fn settle(&self) -> i64 {
        let (reply, answer) = oneshot::channel();
        // The watcher lives as long as this does.
        let asked = self.0.settle.send(reply).await;
        match (asked, answer.await) {
            (Ok(()), Ok(now_ns)) => now_ns,
            _ => std::future::pending().await,
        }
    }
}
