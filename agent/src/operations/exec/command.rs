//! One running command, its client, and what becomes of it when the client is gone.
//!
//! One task owns all of it: it moves bytes ([`Streams`]), does what the client's messages and the
//! agent's own [`Order`]s say, and asks for the exit status once the outputs are at their end.

use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Either};
use hub_protocol::kind::call::Change;
use hub_protocol::kind::call::exec::{Kept as Info, KeptState};
use hub_protocol::kind::exec::{Accepted, Attach, Message, Offsets, Outcome, Size};
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_quic::operation::{Ended, Operation};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::super::kept::{self, Kept, Order, Place};
use super::Lingering;
use super::streams::Streams;
use crate::kill::{self, Point};
use crate::runtime::{
    DEFAULT_GRACE, ExitStatus, MayStillRun, Process, ProcessHandle, Stopped, WaitError,
};

/// How long a kept command that has ended is remembered: one hour.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The most messages of a client that wait for the one that is being done; beyond, they wait at the
/// client.
const MAX_ERRANDS: usize = 16;

/// What is to be done about the command, one after the other.
enum Errand {
    Resize(Size),
    Signal(i32),
}

/// A stop that is under way, and who waits for it.
struct Stopping {
    stopped: BoxFuture<'static, Result<Stopped, MayStillRun>>,
    answers: Vec<oneshot::Sender<Result<Change, Failure>>>,
}

/// The command.
pub(super) struct Command {
    info: Info,
    handle: Arc<dyn ProcessHandle>,
    streams: Streams,
    kept: Kept,
    place: Option<Place>,
    lingering: Lingering,
    client: Option<Operation>,
    errands: VecDeque<Errand>,
    errand: Option<BoxFuture<'static, ()>>,
    status: Option<BoxFuture<'static, Result<ExitStatus, WaitError>>>,
    stopping: Option<Stopping>,
    outcome: Option<Outcome>,
    /// When it ended.
    ended: Option<Instant>,
}

/// What happened.
enum Event {
    Order(Order),
    Ended(Ended),
    Message(Message),
    ErrandDone,
    Stopped(Result<Stopped, MayStillRun>),
    Status(Result<ExitStatus, WaitError>),
    Expired,
    Moved,
}

impl Command {
    /// A command that was started, with the client that asked for it. One with a place is kept.
    pub(super) fn new(
        info: Info,
        process: Process,
        client: Operation,
        place: Option<Place>,
        kept: &Kept,
        lingering: &Lingering,
    ) -> Self {
        let Process {
            stdin,
            stdout,
            stderr,
            handle,
        } = process;
        let mut streams = Streams::new(stdin, stdout, stderr, place.is_some());
        streams.link(&client, Offsets::default());
        Self {
            info,
            handle: handle.into(),
            streams,
            kept: kept.clone(),
            place,
            lingering: lingering.clone(),
            client: Some(client),
            errands: VecDeque::new(),
            errand: None,
            status: None,
            stopping: None,
            outcome: None,
            ended: None,
        }
    }

    /// Carries it until there is nothing left to do for it.
    pub(super) async fn run(mut self) {
        loop {
            // One that always has more must leave the thread to others.
            tokio::task::coop::consume_budget().await;
            if self.streams.is_drained() && self.outcome.is_none() && self.status.is_none() {
                kill::at(Point::ExecDrained);
                // The outputs may end long before the process does.
                let handle = self.handle.clone();
                self.status = Some(async move { handle.wait().await }.boxed());
            }
            if let Some(outcome) = self.outcome
                && self.streams.is_delivered()
                && let Some(client) = self.client.take()
            {
                kill::at(Point::ExecExited);
                let body = kind::encode(&outcome);
                let Some(place) = &self.place else {
                    return client.finish(body);
                };
                if client.finish_seen(body).await {
                    return;
                }
                place.set_attached(false);
                self.streams.unlink();
            }
            match self.event().await {
                Event::Moved => {}
                Event::Order(Order::Attach(client, open)) => self.attach(client, &open),
                Event::Order(Order::Stop(answer)) => self.begin_stop(answer),
                Event::Order(Order::Forget | Order::Close) => {
                    if self.outcome.is_none() {
                        tracing::info!(command = self.info.command, "stopping it with the agent");
                        self.stop().await;
                    }
                    return;
                }
                Event::Ended(ended) if self.place.is_none() => {
                    tracing::info!(command = self.info.command, "stopping it: {ended}");
                    return self.stop().await;
                }
                Event::Ended(ended) => {
                    tracing::info!(command = self.info.command, "it goes on: {ended}");
                    self.leave();
                }
                Event::Message(message) => self.take(&message),
                Event::ErrandDone => self.errand = None,
                Event::Stopped(stopped) => self.answer_stop(&stopped),
                Event::Status(status) => self.end(status),
                Event::Expired => return,
            }
            self.begin_errand();
        }
    }

    async fn event(&mut self) -> Event {
        let forgotten = self.ended.filter(|_| self.client.is_none());
        let messages = self.errands.len() < MAX_ERRANDS;
        let client = self.client.as_ref();
        let (ended, message) = match client {
            Some(client) => (
                Either::Left(client.ended()),
                Either::Left(message(client, messages)),
            ),
            None => (Either::Right(pending()), Either::Right(pending())),
        };
        tokio::select! {
            biased;
            order = kept::order(&mut self.place) => Event::Order(order),
            ended = ended => Event::Ended(ended),
            message = message => Event::Message(message),
            () = running(&mut self.errand) => Event::ErrandDone,
            stopped = async {
                match &mut self.stopping {
                    Some(stopping) => (&mut stopping.stopped).await,
                    None => pending().await,
                }
            } => Event::Stopped(stopped),
            status = running(&mut self.status) => Event::Status(status),
            () = poll_fn(|cx| self.streams.poll(cx)) => Event::Moved,
            () = async {
                match forgotten {
                    Some(ended) => sleep_until(ended + REMEMBERED).await,
                    None => pending().await,
                }
            } => Event::Expired,
        }
    }

    /// The client is gone and the command is kept.
    fn leave(&mut self) {
        self.client = None;
        self.streams.unlink();
        if let Some(place) = &self.place {
            place.set_attached(false);
        }
    }

    /// A client comes; where there is one, it takes its place.
    fn attach(&mut self, client: Operation, open: &Attach) {
        let Some(offsets) = self.streams.begin(open.seen) else {
            let message = format!(
                "{:?} has not printed as much as its client says that it has seen",
                self.info.command
            );
            return client.fail(&Failure::new(FailureCode::INVALID, message));
        };
        if let Some(before) = self.client.take() {
            before.finish(kind::encode(&Outcome::Detached));
        }
        client.accept(kind::encode(&Accepted {
            id: open.id.clone(),
            offsets,
        }));
        self.streams.link(&client, offsets);
        self.client = Some(client);
        if let Some(place) = &self.place {
            place.set_attached(true);
        }
        if let Some(size) = open.size.filter(|_| self.info.tty) {
            self.take(&Message::Resize(size));
        }
    }

    /// Does what a client says.
    fn take(&mut self, message: &Message) {
        match message {
            &Message::Resize(size) => {
                // Only the newest counts.
                if let Some(Errand::Resize(waiting)) = self.errands.back_mut() {
                    *waiting = size;
                } else {
                    self.errands.push_back(Errand::Resize(size));
                }
            }
            &Message::Signal(number) => self.errands.push_back(Errand::Signal(number)),
            Message::Detach => {
                if self.place.is_none() {
                    let mut info = self.info.clone();
                    info.attached = false;
                    match self.kept.place(info) {
                        Ok(place) => self.place = Some(place),
                        Err(error) => {
                            // The client is still there, and learns so by getting no answer.
                            tracing::warn!("a client cannot leave its command: {error}");
                            return;
                        }
                    }
                    self.streams.keep();
                }
                if let Some(client) = self.client.take() {
                    client.finish(kind::encode(&Outcome::Detached));
                }
                self.leave();
            }
        }
    }

    fn begin_errand(&mut self) {
        if self.errand.is_some() {
            return;
        }
        let Some(errand) = self.errands.pop_front() else {
            return;
        };
        let (handle, command) = (self.handle.clone(), self.info.command.clone());
        let work = async move {
            let (what, done) = match errand {
                Errand::Resize(size) => ("resized", handle.resize(size).await),
                Errand::Signal(number) => ("signalled", handle.signal(number).await),
            };
            if let Err(error) = done {
                tracing::warn!(command, "it could not be {what}: {error}");
            }
        };
        self.errand = Some(work.boxed());
    }

    fn begin_stop(&mut self, answer: oneshot::Sender<Result<Change, Failure>>) {
        let handle = self.handle.clone();
        let stopping = self.stopping.get_or_insert_with(|| Stopping {
            stopped: async move { handle.stop(DEFAULT_GRACE).await }.boxed(),
            answers: Vec::new(),
        });
        stopping.answers.push(answer);
    }

    fn answer_stop(&mut self, stopped: &Result<Stopped, MayStillRun>) {
        let answer = match stopped {
            Ok(_) => Ok(Change::Changed),
            Err(left) => {
                tracing::warn!("{left}");
                self.lingering.add(left.clone());
                Err(Failure::new(FailureCode::INTERNAL, left.to_string()).retry())
            }
        };
        let stopping = self.stopping.take();
        for waiting in stopping.into_iter().flat_map(|stopping| stopping.answers) {
            // Whoever asked may have gone meanwhile.
            let _ = waiting.send(answer.clone());
        }
    }

    /// Stops the command, whose task ends with it.
    async fn stop(&mut self) {
        kill::at(Point::ExecStopping);
        if let Err(error) = self.handle.stop(DEFAULT_GRACE).await {
            tracing::warn!("{error}");
            self.lingering.add(error);
        }
    }

    fn end(&mut self, status: Result<ExitStatus, WaitError>) {
        self.status = None;
        let outcome = match status {
            // With a real status, what is left of the output would pass for all of it.
            _ if self.streams.is_broken() => Outcome::Unknown,
            Ok(ExitStatus::Code(code)) => Outcome::Exited(code),
            Ok(ExitStatus::Signal(signal)) => Outcome::Signaled(signal),
            Err(error) => {
                tracing::warn!(command = self.info.command, "{error}");
                Outcome::Unknown
            }
        };
        self.outcome = Some(outcome);
        self.ended = Some(Instant::now());
        if let Some(place) = &self.place {
            place.set_ended(match outcome {
                Outcome::Exited(code) => KeptState::Exited { code },
                Outcome::Signaled(signal) => KeptState::Signaled { signal },
                Outcome::Unknown | Outcome::Detached => KeptState::Unknown,
            });
        }
    }
}

/// The next message of a client that makes sense.
async fn message(client: &Operation, wanted: bool) -> Message {
    if !wanted {
        return pending().await;
    }
    loop {
        match client.message().await {
            Ok(Some(body)) => match kind::decode("exec message", &body) {
                Ok(message) => return message,
                Err(error) => tracing::warn!("a message to a command is left out: {error}"),
            },
            // It says no more, or its end is told elsewhere.
            Ok(None) | Err(_) => return pending().await,
        }
    }
}

/// What something under way comes to; waits for ever when there is none.
async fn running<T>(work: &mut Option<BoxFuture<'static, T>>) -> T {
    match work {
        Some(work) => work.await,
        None => pending().await,
    }
}
