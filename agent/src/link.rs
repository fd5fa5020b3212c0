//! What an agent and its hub say to each other, whatever the connection rides on: Hello, one session,
//! and another when that one is lost.
//!
//! ```text
//! uplink: dials over QUIC ----+
//!                             +--> Line --> Link: Hello, Welcome --> Session --> operations
//! local: within the process --+
//! ```
//!
//! Operations outlive their session for as long as they take to stop what they run. A [`Link`] that
//! is told to stop waits for all of them, whichever session they came with.

use std::time::Duration;

use futures_util::future::BoxFuture;
use hub_protocol::code::CloseCode;
use hub_protocol::kind::OperationKind;
use hub_protocol::limits::Limits;
use hub_protocol::operation::Role;
use hub_protocol::session::{Control, Hello, Lingering, Platform, Refused, Welcome, shown};
use hub_protocol::version::VersionRange;
use hub_protocol::{Deployment, Generation, Incarnation, NodeName};
use hub_quic::session::{ControlError, ControlReceiver, ControlSender, Session, control};
use hub_quic::transport::Connection;
use quinn::{ConnectionError, Endpoint, VarInt};
use rustls::time_provider::TimeProvider;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};
use tracing::Instrument as _;

use crate::backoff::Backoff;
use crate::dial::DialError;
use crate::operations::{self, Tools};
use crate::random::Random;
use crate::runtime::MayStillRun;

/// How long the hub may take to answer a Hello.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(15);

/// How long operations may take to stop what they run when the agent stops: the time between TERM
/// and KILL, and a little.
const STOP_TIMEOUT: Duration = Duration::from_secs(12);

/// How long the hub may take to acknowledge the agent's last words, and the connection to say that
/// it is closed.
const FAREWELL: Duration = Duration::from_secs(1);

/// What an agent says and does in a session.
#[derive(Clone)]
pub(crate) struct Link {
    /// The name of this node.
    pub(crate) name: NodeName,
    /// What it joined.
    pub(crate) deployment: Deployment,
    /// Tells the time of day.
    pub(crate) time: Arc<dyn TimeProvider>,
    /// For jitter and the incarnation.
    pub(crate) random: Random,
    /// SHA-256 of the agent's program, in hex; empty where it cannot be read.
    pub(crate) digest: String,
    /// What it says of the machine.
    pub(crate) platform: Platform,
    /// What operations work with.
    pub(crate) tools: Tools,
}

/// A connection to the hub, before anything was said on it.
pub(crate) struct Line {
    /// The connection.
    pub(crate) connection: Connection,
    /// Where the hub is, for people.
    pub(crate) hub: String,
    /// The endpoint below it, to wait for a farewell to leave.
    pub(crate) endpoint: Option<Endpoint>,
}

/// Makes connections to the hub.
pub(crate) type Connect<'a> =
    dyn Fn() -> BoxFuture<'a, Result<Line, SessionError>> + Send + Sync + 'a;

/// Why a session did not come about, or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("the hub has stopped")]
    NoHub,
    #[error("{0}")]
    Control(#[from] ControlError),
    #[error("the hub did not answer Hello within {} s", WELCOME_TIMEOUT.as_secs())]
    NoWelcome,
    #[error("refused: {0}")]
    Refused(Refused),
    #[error("{0}")]
    Closed(ConnectionError),
}

impl Link {
    /// Serves the hub until `stop` says otherwise, and then until what operations ran has stopped.
    ///
    /// # Errors
    /// The hub refuses for good.
    pub(crate) async fn keep(
        &self,
        connect: &Connect<'_>,
        stop: watch::Receiver<bool>,
    ) -> Result<(), Refused> {
        let mut running = JoinSet::new();
        let ended = self.sessions(connect, &mut running, stop).await;
        // What outlives a session does not outlive the agent.
        let all = async {
            let running = async { while running.join_next().await.is_some() {} };
            tokio::join!(biased; self.tools.kept.close(), running);
        };
        if timeout(STOP_TIMEOUT, all).await.is_err() {
            tracing::warn!(left = running.len(), "operations did not stop in time");
        }
        ended
    }

    async fn sessions(
        &self,
        connect: &Connect<'_>,
        running: &mut JoinSet<()>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), Refused> {
        let mut incarnation = [0; 16];
        (self.random)(&mut incarnation);
        let incarnation = Incarnation::from_bytes(incarnation);
        let mut generation = None;
        let mut backoff = Backoff::default();
        let mut last_words = String::new();
        loop {
            let started = Instant::now();
            let line = tokio::select! {
                biased;
                () = is_set(&mut stop) => return Ok(()),
                line = connect() => line,
            };
            let ended = match line {
                Ok(line) => {
                    self.session(line, incarnation, &mut generation, running, stop.clone())
                        .await
                }
                Err(error) => Err(error),
            };
            let mut asked = Duration::ZERO;
            match ended {
                Ok(()) => return Ok(()),
                Err(SessionError::Refused(refused)) if refused.permanent => return Err(refused),
                Err(error) => {
                    if let SessionError::Refused(refused) = &error {
                        asked = Duration::from_millis(refused.retry_after_ms.unwrap_or_default());
                    }
                    let words = error.to_string();
                    // One line per change: a hub that stays away is said once.
                    if words == last_words {
                        tracing::debug!("{words}");
                    } else {
                        tracing::warn!("{words}; dialling again, for ever");
                    }
                    last_words = words;
                }
            }
            let mut random = [0; 4];
            (self.random)(&mut random);
            let wait = backoff.next(started.elapsed(), u32::from_le_bytes(random), asked);
            tokio::select! {
                biased;
                () = is_set(&mut stop) => return Ok(()),
                () = sleep(wait) => {}
            }
        }
    }

    async fn session(
        &self,
        line: Line,
        incarnation: Incarnation,
        generation: &mut Option<Generation>,
        running: &mut JoinSet<()>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), SessionError> {
        let Line {
            connection,
            hub,
            endpoint,
        } = line;
        let stream = connection.open().await.map_err(SessionError::Closed)?;
        let (mut sender, mut receiver) = control(stream);
        sender
            .send(&Control::Hello(Box::new(
                self.hello(incarnation, *generation),
            )))
            .await?;
        let answer = tokio::select! {
            biased;
            () = is_set(&mut stop) => return Ok(()),
            answer = timeout(WELCOME_TIMEOUT, receiver.receive()) => answer,
        };
        let close = |code: CloseCode, reason: &[u8]| {
            connection.close(VarInt::from_u32(code.0), reason);
        };
        let welcome = match answer.map_err(|_| SessionError::NoWelcome)? {
            Ok(Control::Welcome(welcome)) => *welcome,
            Ok(Control::Refused(refused)) => {
                close(CloseCode::DONE, b"refused");
                return Err(SessionError::Refused(refused));
            }
            Ok(other) => {
                close(CloseCode::PROTOCOL_VIOLATED, b"Welcome expected");
                let what = format!("Welcome was expected, not {}", other.name());
                return Err(ControlError::Malformed(what).into());
            }
            Err(error) => {
                close(close_code(&error), b"Welcome expected");
                return Err(error.into());
            }
        };
        *generation = Some(welcome.generation);
        let node = &self.name;
        let span = tracing::info_span!("session", %node, epoch = welcome.epoch.0);
        let session = Session::new(
            connection.clone(),
            Role::Agent,
            Limits::default(),
            welcome.limits,
            span.clone(),
        );
        tracing::info!(hub, epoch = welcome.epoch.0, "connected");
        let ended = self
            .serve(&session, &welcome, (sender, receiver), running, stop)
            .instrument(span)
            .await;
        if let (Ok(()), Some(endpoint)) = (&ended, endpoint) {
            // Let the farewell leave before the socket goes.
            let _ = timeout(FAREWELL, endpoint.wait_idle()).await;
        }
        ended
    }

    /// Serves operations until the session ends. What is still running then learns of it, and stops.
    async fn serve(
        &self,
        session: &Session,
        welcome: &Welcome,
        (mut sender, mut receiver): (ControlSender, ControlReceiver),
        running: &mut JoinSet<()>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), SessionError> {
        let heartbeat = Duration::from_millis(welcome.heartbeat_ms.clamp(1_000, 60_000));
        let mut heartbeat = interval(heartbeat);
        let mut lingering = self.tools.lingering.watch();
        if !lingering.borrow().is_empty() {
            lingering.mark_changed();
        }
        let ended = loop {
            tokio::select! {
                biased;
                error = session.connection().closed() => break Err(SessionError::Closed(error)),
                () = is_set(&mut stop) => break Ok(()),
                control = receiver.receive() => match control {
                    Ok(Control::Targets(targets)) => self.tools.targets.update(targets),
                    Ok(Control::GoAway(reason)) => {
                        tracing::info!("the hub is going away: {}", shown(&reason));
                    }
                    Ok(_) => {}
                    Err(error) => {
                        session.close(close_code(&error), "control");
                        break Err(error.into());
                    }
                },
                Ok(()) = lingering.changed() => {
                    let told = told(&lingering.borrow_and_update());
                    if let Err(error) = sender.send(&told).await {
                        break Err(error.into());
                    }
                }
                _ = heartbeat.tick() => {
                    let clock_ms = self.clock_ms();
                    if let Err(error) = sender.send(&Control::Heartbeat { clock_ms }).await {
                        break Err(error.into());
                    }
                }
                incoming = session.accept() => match incoming {
                    Ok(incoming) => {
                        let tools = self.tools.clone();
                        let operation = async move {
                            if let Some((operation, open)) = incoming.operation().await {
                                operations::run(tools, operation, open).await;
                            }
                        };
                        running.spawn(operation.in_current_span());
                    }
                    Err(_) => break Err(SessionError::Closed(session.connection().closed().await)),
                },
                Some(ended) = running.join_next() => {
                    if let Err(error) = ended && error.is_panic() {
                        tracing::error!("an operation failed in a way that is a fault of the agent");
                    }
                }
            }
        };
        if ended.is_ok() {
            let farewell = async {
                let words = Control::GoAway("the agent is stopping".into());
                if sender.send(&words).await.is_ok() {
                    sender.finish().await;
                }
            };
            // Closing a connection drops what was not sent yet.
            let _ = timeout(FAREWELL, farewell).await;
        }
        // Lost or left: every operation learns of it, and stops what it runs.
        session.close(CloseCode::GOING_AWAY, "the agent has ended the session");
        ended
    }

    fn hello(&self, incarnation: Incarnation, last_generation: Option<Generation>) -> Hello {
        // A call is allowed or not by its own name.
        let allowed = |kind: &&OperationKind| {
            **kind == OperationKind::Call || self.tools.policy.check_operation(kind.name()).is_ok()
        };
        let kinds = OperationKind::ALL.iter().filter(allowed);
        let kinds = kinds.map(|kind| kind.name().to_owned());
        let runtime = format!("runtime:{}", self.tools.runtime.name());
        Hello {
            versions: VersionRange::OURS,
            deployment: self.deployment,
            release: env!("CARGO_PKG_VERSION").into(),
            digest: self.digest.clone(),
            incarnation,
            last_generation,
            clock_ms: self.clock_ms(),
            platform: self.platform.clone(),
            capabilities: kinds.chain([runtime]).collect(),
            limits: Limits::default(),
        }
    }

    fn clock_ms(&self) -> u64 {
        self.time
            .current_time()
            .map_or(0, |time| time.as_secs() * 1000)
    }
}

/// How a session is closed whose control stream is of no more use. A hub that ended it broke no
/// rule: the agent leaves, and dials again.
fn close_code(error: &ControlError) -> CloseCode {
    match error {
        ControlError::Lost(_) => CloseCode::GOING_AWAY,
        ControlError::Malformed(_) => CloseCode::PROTOCOL_VIOLATED,
    }
}

/// Waits for the order to stop.
pub(crate) async fn is_set(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        // Nobody is left who could say it.
        std::future::pending::<()>().await;
    }
}

/// What may still be running, as the hub is told. A hub that is older passes it over.
fn told(lingering: &[MayStillRun]) -> Control {
    let tell = |lingering: &MayStillRun| Lingering {
        what: shown(&lingering.what),
        why: shown(&lingering.why),
    };
    Control::Lingering(lingering.iter().map(tell).collect())
}
