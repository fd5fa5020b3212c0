//! Exposures of TCP and UDP: what comes to a port of the hub goes to a port behind an agent.
//!
//! ```text
//! ledger --exposures--> plan --> open, close, try again --> a task for each listener
//! TCP client --> listener --> seat --> operation tcp --> agent --> target      one for each connection
//! UDP client --> socket ----> flow --> operation udp --> agent --> target      one for each client
//! ```
//!
//! [`Wires`] is what others know of it: it is told that exposures have changed, and tells where each
//! is listened for. The task behind it compares what the ledger wants with what is open.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `plan` | which listeners to open, close and try again, without I/O |
//! | `replicas` | which replica a connection or flow goes to, and how many each has |
//! | `tcp` | connections |
//! | `flows`, `udp` | the flows of an exposure, without I/O; their packets |

mod flows;
mod plan;
mod replicas;
mod tcp;
mod udp;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hub_ledger::{Exposure, ExposureId};
use hub_protocol::flow::Quota;
use hub_protocol::target::Transport;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use self::plan::{Known, Plan, State, Wanted, plan};
use crate::proxy::{LedgerRoutes, Seeing};
use crate::store::Store;

/// How long to wait after the ledger could not say what is exposed.
const LEDGER_PAUSE: Duration = Duration::from_secs(1);

/// What TCP and UDP exposures are told, all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Connections of one exposure at once, unless it has a bound of its own; more are reset.
    pub connections: u32,
    /// Connections of one exposure from one address at once.
    pub connections_per_client: u32,
    /// How long a connection may be silent in both directions; without, for ever.
    pub idle: Option<Duration>,
    /// How long connections under way may go on once the hub stops.
    pub drain: Duration,
    /// Flows of one exposure at once, unless it has a bound of its own.
    pub flows: u32,
    /// Flows of one exposure from one address at once.
    pub flows_per_client: u32,
    /// How long a flow may be silent in both directions.
    pub flow_idle: Duration,
    /// What one flow may send to the target.
    pub quota: Quota,
}

impl Default for Config {
    /// 1,024 connections, 256 an address, silent as long as they like, 10 s to drain; 1,024 flows, 64
    /// an address, 60 s of silence, [`Quota::default`] each.
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_per_client: 256,
            idle: None,
            drain: Duration::from_secs(10),
            flows: 1024,
            flows_per_client: 64,
            flow_idle: Duration::from_secs(60),
            quota: Quota::default(),
        }
    }
}

/// How an exposure is listened for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listening {
    /// Here.
    At(SocketAddr),
    /// Not at all, for this reason; it is tried again.
    Failed(String),
}

#[derive(Debug, Default)]
struct Inner {
    known: Mutex<BTreeMap<ExposureId, Known>>,
    /// The ledger's exposures have changed.
    changed: Notify,
    /// A listener was opened or closed, or could not be.
    moved: watch::Sender<()>,
}

/// What is listened for. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Wires {
    inner: Arc<Inner>,
}

impl Wires {
    /// Exposures have come, gone or changed in the ledger.
    pub fn changed(&self) {
        self.inner.changed.notify_one();
    }

    /// How an exposure is listened for; nothing, where it is of no kind that is, or the listener is
    /// about to be opened.
    pub fn listening(&self, id: ExposureId) -> Option<Listening> {
        self.known().get(&id).map(|known| match &known.state {
            State::Open(address) => Listening::At(*address),
            State::Failed { error, .. } => Listening::Failed(error.clone()),
        })
    }

    /// The same, once the listener was opened or could not be; at the latest after `patience`.
    pub async fn settled(&self, id: ExposureId, patience: Duration) -> Option<Listening> {
        let mut moved = self.inner.moved.subscribe();
        let wait = async { while self.listening(id).is_none() && moved.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(patience, wait).await;
        self.listening(id)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<ExposureId, Known>> {
        let known = self.inner.known.lock();
        known.unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens for what is exposed until `stop` holds true; then lets connections under way end.
    pub(crate) async fn serve(
        self,
        store: Store,
        routes: LedgerRoutes,
        config: Config,
        seeing: Seeing,
        mut stop: watch::Receiver<bool>,
    ) {
        let started = Instant::now();
        let mut listeners = Listeners {
            routes,
            config,
            seeing,
            stop: stop.clone(),
            tasks: BTreeMap::new(),
        };
        loop {
            let again = match store.exposures().await {
                Ok(exposures) => {
                    let ids: BTreeSet<u64> = exposures.iter().map(|row| row.id.0).collect();
                    listeners.seeing.keep(|id| ids.contains(&id));
                    let wanted = exposures.iter().filter_map(wanted).collect();
                    let todo = plan(&self.known(), &wanted, started.elapsed());
                    self.carry_out(todo, &exposures, &mut listeners, started)
                        .await;
                    self.next_attempt()
                }
                Err(error) => {
                    tracing::warn!(%error, "the ledger does not say what TCP and UDP ports are exposed");
                    Some(started.elapsed() + LEDGER_PAUSE)
                }
            };
            let due = async {
                match again {
                    Some(again) => sleep(again.saturating_sub(started.elapsed())).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                () = self.inner.changed.notified() => {}
                () = due => {}
            }
        }
        for (_, task) in listeners.tasks {
            // Each ends by itself once the hub stops.
            let _ = task.await;
        }
    }

    /// When the next listener that could not be opened is tried again.
    fn next_attempt(&self) -> Option<Duration> {
        let known = self.known();
        let again = known.values().filter_map(|known| match known.state {
            State::Failed { again, .. } => Some(again),
            State::Open(_) => None,
        });
        again.min()
    }

    async fn carry_out(
        &self,
        todo: Plan,
        exposures: &[Exposure],
        listeners: &mut Listeners,
        started: Instant,
    ) {
        if todo.close.is_empty() && todo.open.is_empty() {
            return;
        }
        let mut before = BTreeMap::new();
        for id in todo.close {
            listeners.close(id).await;
            self.known().remove(&id);
        }
        for (id, _) in &todo.open {
            if let Some(known) = self.known().remove(id) {
                before.insert(*id, known.state);
            }
        }
        for (id, wanted) in todo.open {
            let Some(exposure) = exposures.iter().find(|exposure| exposure.id == id) else {
                continue;
            };
            let state = match listeners.open(exposure, wanted).await {
                Ok(address) => {
                    tracing::info!(exposure = %id, %address, "listening");
                    State::Open(address)
                }
                Err(error) => {
                    let Wanted { listen, .. } = wanted;
                    let why = format!("cannot listen on {listen}: {error}");
                    tracing::warn!(exposure = %id, "{why}; it is tried again");
                    State::failed(why, before.get(&id), started.elapsed())
                }
            };
            self.known().insert(id, Known { wanted, state });
        }
        self.inner.moved.send_replace(());
    }
}

/// What an exposure wants to be listened on.
fn wanted(exposure: &Exposure) -> Option<(ExposureId, Wanted)> {
    let listen = exposure.listen?;
    let transport = exposure.protocol.transport();
    (!exposure.protocol.is_http()).then_some((exposure.id, Wanted { transport, listen }))
}

/// The listeners that are open, and what each is served with.
struct Listeners {
    routes: LedgerRoutes,
    config: Config,
    seeing: Seeing,
    stop: watch::Receiver<bool>,
    tasks: BTreeMap<ExposureId, JoinHandle<()>>,
}

impl Listeners {
    /// Closes a listener, with all that came by it.
    async fn close(&mut self, id: ExposureId) {
        if let Some(task) = self.tasks.remove(&id) {
            task.abort();
            // Its address is free once it is gone.
            let _ = task.await;
        }
    }

    async fn open(&mut self, exposure: &Exposure, wanted: Wanted) -> io::Result<SocketAddr> {
        let id = exposure.id;
        let (routes, config, stop) = (self.routes.clone(), self.config, self.stop.clone());
        let seeing = self.seeing.clone();
        let (address, task) = match wanted.transport {
            Transport::Tcp => {
                let listener = TcpListener::bind(wanted.listen).await?;
                let address = listener.local_addr()?;
                (
                    address,
                    tokio::spawn(tcp::serve(listener, id, routes, config, seeing, stop)),
                )
            }
            Transport::Udp => {
                let socket = UdpSocket::bind(wanted.listen).await?;
                let address = socket.local_addr()?;
                (
                    address,
                    tokio::spawn(udp::serve(socket, id, routes, config, seeing, stop)),
                )
            }
        };
        self.tasks.insert(id, task);
        Ok(address)
    }
}

#[cfg(test)]
mod tests;
