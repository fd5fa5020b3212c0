//! Commands that outlive their clients.
//!
//! ```text
//! exec ──► Place ◄── orders: attach, stop ── Kept ◄── attach, exec.list, exec.status, exec.stop
//! (one task)   └── attached, ended ────────►  (the list)
//! ```
//!
//! The list holds what is known of each and how to reach its task, which owns everything else: the
//! command, what it printed last (`log`), and its client, if there is one. It outlives sessions.
//! Whoever drops the last handle of the list, as an agent that ends does, ends the tasks, and their
//! commands with them.

pub(crate) mod list;
pub(crate) mod log;

use std::fmt::Write as _;
use std::future::{Ready, pending, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hub_protocol::kind::call::Change;
use hub_protocol::kind::call::exec::{Kept as Info, KeptState, List as ListCall, Status, Stop};
use hub_protocol::kind::exec::{Attach, ExecId};
use hub_protocol::kind::{Failure, FailureCode};
use hub_quic::operation::Operation;
use rustls::time_provider::TimeProvider;
use tokio::sync::{mpsc, oneshot, watch};

use self::list::{Found, Full, List, MAX};
use crate::random::Random;

/// How many kept commands an error names at most.
const MAX_NAMED: usize = 10;

/// What a command's task is told.
pub(super) enum Order {
    /// A client comes.
    Attach(Operation, Attach),
    /// Stop the command; the answer comes once that is seen, or says why it is not.
    Stop(oneshot::Sender<Result<Change, Failure>>),
    /// Forget it: it has ended.
    Forget,
    /// Stop the command and end: the agent does so.
    Close,
}

struct Shared {
    list: Mutex<List<mpsc::Sender<Order>>>,
    random: Random,
    time: Arc<dyn TimeProvider>,
}

impl Shared {
    /// The list. Nothing that holds it can panic half-way through a change.
    fn list(&self) -> MutexGuard<'_, List<mpsc::Sender<Order>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kept commands of an agent. Cheap to clone.
#[derive(Clone)]
pub struct Kept {
    shared: Arc<Shared>,
    closing: Arc<watch::Sender<bool>>,
    tasks: watch::Sender<usize>,
}

/// A command's place in the list; leaves it when dropped.
pub(super) struct Place {
    id: ExecId,
    shared: Weak<Shared>,
    orders: mpsc::Receiver<Order>,
    closing: watch::Receiver<bool>,
    tasks: watch::Sender<usize>,
}

impl Kept {
    /// None yet. Ids come from `random`, the time of day from `time`.
    pub fn new(random: Random, time: Arc<dyn TimeProvider>) -> Self {
        let shared = Shared {
            list: Mutex::default(),
            random,
            time,
        };
        Self {
            shared: Arc::new(shared),
            closing: Arc::new(watch::Sender::new(false)),
            tasks: watch::Sender::new(0),
        }
    }

    /// An id for a command.
    pub(super) fn new_id(&self) -> ExecId {
        let mut random = [0; 8];
        (self.shared.random)(&mut random);
        let mut id = String::with_capacity(16);
        for byte in random {
            // Writing to a string does not fail.
            let _ = write!(id, "{byte:02x}");
        }
        ExecId(id)
    }

    /// The time of day, in milliseconds since 1970.
    pub(super) fn now_ms(&self) -> i64 {
        let now = self.shared.time.current_time();
        now.map_or(0, |now| now.as_secs().cast_signed() * 1000)
    }

    /// Takes a place for a command with a client.
    ///
    /// # Errors
    /// There is none, or the agent is stopping.
    pub(super) fn place(&self, info: Info) -> Result<Place, Failure> {
        if *self.closing.borrow() {
            let message = "the agent is stopping and keeps no commands";
            return Err(Failure::new(FailureCode::BUSY, message).retry());
        }
        let (orders, received) = mpsc::channel(4);
        let id = ExecId(info.id.clone());
        self.shared.list().add(info, orders).map_err(|Full| {
            let message = format!(
                "this node keeps {MAX} commands, all of them running: stop one of them, or run this \
                 one without keeping it"
            );
            Failure::new(FailureCode::BUSY, message).retry()
        })?;
        self.tasks.send_modify(|tasks| *tasks += 1);
        Ok(Place {
            id,
            shared: Arc::downgrade(&self.shared),
            orders: received,
            closing: self.closing.subscribe(),
            tasks: self.tasks.clone(),
        })
    }

    /// Brings a client to the command that it names.
    pub(super) async fn attach(&self, operation: Operation, open: Attach) {
        let task = match self.shared.list().find(&open.id.0) {
            Found::One((info, _, task)) if info.id == open.id.0 => Some(task.clone()),
            _ => None,
        };
        let Some(task) = task else {
            return operation.fail(&self.not_found(&open.id.0));
        };
        let id = open.id.0.clone();
        if let Err(mpsc::error::SendError(Order::Attach(operation, _))) =
            task.send(Order::Attach(operation, open)).await
        {
            operation.fail(&self.not_found(&id));
        }
    }

    /// `exec.list`.
    ///
    /// # Errors
    /// None.
    pub fn exec_list(&self, _: ListCall) -> Ready<Result<Vec<Info>, Failure>> {
        ready(Ok(self.shared.list().all().cloned().collect()))
    }

    /// `exec.status`.
    ///
    /// # Errors
    /// Several ids begin so.
    pub fn exec_status(&self, call: Status) -> Ready<Result<Option<Info>, Failure>> {
        let Status { id } = call;
        ready(match self.shared.list().find(&id) {
            Found::One((info, ..)) => Ok(Some(info.clone())),
            Found::None => Ok(None),
            Found::Many => Err(ambiguous(&id)),
        })
    }

    /// `exec.stop`.
    ///
    /// # Errors
    /// Several ids begin so, or the command could not be seen to stop.
    pub async fn exec_stop(&self, call: Stop) -> Result<Change, Failure> {
        let task = {
            let mut list = self.shared.list();
            let (id, ended, task) = match list.find(&call.id) {
                Found::One((info, ended, task)) => (info.id.clone(), ended, task.clone()),
                Found::None => return Ok(Change::NotFound),
                Found::Many => return Err(ambiguous(&call.id)),
            };
            if ended {
                list.remove(&id);
                return Ok(Change::Changed);
            }
            task
        };
        let (answer, answered) = oneshot::channel();
        // Both fail once the command has ended and its outcome was taken.
        if task.send(Order::Stop(answer)).await.is_err() {
            return Ok(Change::NotFound);
        }
        answered.await.unwrap_or(Ok(Change::NotFound))
    }

    /// Stops all of them, for good: an agent that ends does this. Returns once all have stopped.
    pub async fn close(&self) {
        self.closing.send_replace(true);
        let mut tasks = self.tasks.subscribe();
        // The sender is here.
        let _ = tasks.wait_for(|tasks| *tasks == 0).await;
    }

    fn not_found(&self, id: &str) -> Failure {
        let list = self.shared.list();
        let named: Vec<_> = list
            .all()
            .take(MAX_NAMED)
            .map(|info| format!("{} ({})", info.id, shortened(&info.command)))
            .collect();
        let there = match (named.len(), list.all().count()) {
            (0, _) => "none is kept here".into(),
            (some, all) if some == all => format!("kept: {}", named.join(", ")),
            (some, all) => format!("kept: {} and {} more", named.join(", "), all - some),
        };
        let message = format!(
            "there is no kept command {:?}; {there}. They end with their agent, and are forgotten an \
             hour after their own end",
            shortened(id)
        );
        Failure::new(FailureCode::NOT_FOUND, message)
    }
}

/// The beginning of a text whose length nobody promises.
fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

fn ambiguous(id: &str) -> Failure {
    let message = format!(
        "several kept commands have an id that begins with {:?}: give more of it",
        shortened(id)
    );
    Failure::new(FailureCode::INVALID, message)
}

impl Place {
    async fn order(&mut self) -> Order {
        tokio::select! {
            biased;
            // Without a sender there is no agent any more.
            _ = self.closing.wait_for(|closing| *closing) => Order::Close,
            order = self.orders.recv() => order.unwrap_or(Order::Forget),
        }
    }

    pub(super) fn set_attached(&self, attached: bool) {
        if let Some(shared) = self.shared.upgrade() {
            shared.list().set_attached(&self.id.0, attached);
        }
    }

    pub(super) fn set_ended(&self, state: KeptState) {
        if let Some(shared) = self.shared.upgrade() {
            shared.list().set_ended(&self.id.0, state);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.list().remove(&self.id.0);
        }
        self.tasks.send_modify(|tasks| *tasks -= 1);
    }
}

/// The next order of a command that may have a place; waits for ever without.
pub(super) async fn order(place: &mut Option<Place>) -> Order {
    match place {
        Some(place) => place.order().await,
        None => pending().await,
    }
}
