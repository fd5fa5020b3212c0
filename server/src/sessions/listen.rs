//! The operational endpoint: from a connection that comes in to a session that ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hub_ledger::Timestamp;
use hub_protocol::code::CloseCode;
use hub_protocol::session::{Control, Lingering, shown};
use hub_protocol::{Epoch, NodeId};
use hub_quic::endpoint::{self, Handshakes};
use hub_quic::session::{ControlError, ControlReceiver, ControlSender, Session};
use hub_quic::tls;
use hub_quic::transport::Connection;
use quinn::{Connecting, Endpoint, VarInt};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::Instrument as _;

use super::admission::Peer;
use super::{Connected, Context, Sessions, admission, local, shown_address};
use crate::clip;
use crate::clock::Clock;
use crate::store::Store;

/// How sessions come about and what they are held to.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// How many strangers are dealt with at once.
    pub handshakes: Handshakes,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// How long an authenticated peer may take to say Hello, and to take what it is told.
    pub hello_timeout: Duration,
    /// How often an agent sends a heartbeat.
    pub heartbeat: Duration,
    /// How often sightings are written to the ledger, many in one commit.
    pub sightings: Duration,
}

impl Default for SessionConfig {
    /// 1,024 handshakes of 5 s each, 10 s for Hello, a heartbeat every 10 s, a commit every 30 s.
    fn default() -> Self {
        Self {
            handshakes: Handshakes::default(),
            handshake_timeout: Duration::from_secs(5),
            hello_timeout: Duration::from_secs(10),
            heartbeat: Duration::from_secs(10),
            sightings: Duration::from_secs(30),
        }
    }
}

/// Accepts agents until the endpoint is closed: those that dial, and the hub's own machine, whose
/// connections come by `local`.
pub(crate) async fn serve(
    endpoint: Endpoint,
    local: local::Connections,
    store: Store,
    clock: Clock,
    sessions: Sessions,
    config: SessionConfig,
) {
    let context = Context {
        store,
        clock,
        sessions,
        config: Arc::new(config),
    };
    // Side by side: a ledger that is slow to note who is alive holds up nobody who dials.
    tokio::select! {
        biased;
        () = accept(&endpoint, &context) => {}
        () = local::accept(&context, local) => {}
        () = record_sightings(&context) => {}
    }
}

async fn accept(endpoint: &Endpoint, context: &Context) {
    let under_way = Arc::new(AtomicUsize::new(0));
    while let Some(incoming) = endpoint.accept().await {
        let now_under_way = under_way.load(Ordering::Relaxed);
        let handshakes = &context.config.handshakes;
        if let Some(connecting) = endpoint::admit(incoming, now_under_way, handshakes) {
            let ticket = Ticket::take(&under_way);
            tokio::spawn(connect(context.clone(), connecting, ticket));
        }
    }
}

/// Counts a handshake for as long as it is under way.
struct Ticket(Arc<AtomicUsize>);

impl Ticket {
    fn take(under_way: &Arc<AtomicUsize>) -> Self {
        under_way.fetch_add(1, Ordering::Relaxed);
        Self(under_way.clone())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Writes down from time to time when each node was last heard of.
async fn record_sightings(context: &Context) {
    let mut due = interval(context.config.sightings);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        let all = context.sessions.all().into_iter();
        let sightings: Vec<_> = all
            .map(|(node, connected)| (node, connected.epoch, connected.last_heard))
            .collect();
        if sightings.is_empty() {
            continue;
        }
        if let Err(error) = context.store.seen(sightings).await {
            tracing::warn!(%error, "the ledger did not note which nodes are alive");
        }
    }
}

async fn connect(context: Context, connecting: Connecting, ticket: Ticket) {
    let remote = shown_address(connecting.remote_address());
    let connection = match timeout(context.config.handshake_timeout, connecting).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            tracing::info!(%remote, error = clip::error(&error), "a handshake failed");
            return;
        }
        Err(_) => {
            tracing::info!(%remote, "a handshake took too long");
            return;
        }
    };
    drop(ticket);
    let identity = match tls::peer_node(&connection) {
        Ok(identity) => identity,
        Err(error) => {
            // The verifier lets none of these through; it is said here all the same.
            tracing::warn!(%remote, %error, "a peer without a node's certificate");
            connection.close(VarInt::from_u32(CloseCode::PROTOCOL_VIOLATED.0), b"no node");
            return;
        }
    };
    let span = tracing::info_span!("session", id = %identity.node_id);
    register(context, connection.into(), Peer::Certified(identity))
        .instrument(span)
        .await;
}

/// From a connection whose other end is known to a session, and to its end.
pub(super) async fn register(context: Context, connection: Connection, peer: Peer) {
    let node_id = peer.node_id();
    let greeting = timeout(context.config.hello_timeout, admission::hello(&connection)).await;
    let (mut sender, receiver, hello) = match greeting {
        Ok(Ok(greeting)) => greeting,
        Ok(Err(error)) => {
            tracing::info!(error = clip::error(&error), "no Hello came");
            connection.close(
                VarInt::from_u32(CloseCode::PROTOCOL_VIOLATED.0),
                b"Hello expected",
            );
            return;
        }
        Err(_) => {
            tracing::info!("no Hello came in time");
            connection.close(
                VarInt::from_u32(CloseCode::TIMED_OUT.0),
                b"no Hello in time",
            );
            return;
        }
    };
    let admitted = match admission::admit(&context, &connection, &peer, &hello).await {
        Ok(admitted) => admitted,
        Err(refused) => {
            tracing::warn!(
                code = refused.code,
                permanent = refused.permanent,
                "refused: {refused}"
            );
            let told = async {
                if sender.send(&Control::Refused(refused)).await.is_ok() {
                    sender.finish().await;
                }
            };
            // The agent closes once it has read it; one that does not is not waited for.
            let _ = timeout(context.config.hello_timeout, told).await;
            connection.close(VarInt::from_u32(CloseCode::REFUSED.0), b"refused");
            return;
        }
    };
    let (control, queue) = mpsc::channel(64);
    let epoch = admitted.welcome.epoch;
    let now = context.clock.now();
    let connected = Connected {
        session: admitted.session.clone(),
        epoch,
        hello: Arc::new(hello),
        since: now,
        last_heard: now,
        draining: false,
        lingering: Vec::new(),
        control,
    };
    let welcome = Control::Welcome(Box::new(admitted.welcome));
    let targets = Control::Targets(admitted.targets);
    let patience = context.config.hello_timeout;
    let name = &admitted.name;
    let greeted = match say(&mut sender, &welcome, patience).await {
        Ok(()) => say(&mut sender, &targets, patience).await,
        lost => lost,
    };
    if let Err(reason) = greeted {
        tracing::info!(%name, epoch = epoch.0, "gone before it was welcome: {}", clip::error(&reason));
        let session = &admitted.session;
        session.close(CloseCode::TIMED_OUT, "Welcome was not taken");
        mark_away(&context, node_id, epoch, now).await;
        return;
    }
    if !context.sessions.install(node_id, connected) {
        admitted
            .session
            .close(CloseCode::SUPERSEDED, "a newer session of this node stands");
        return;
    }
    let remote = connection.remote_address().map(shown_address);
    let remote = remote.map(tracing::field::display);
    tracing::info!(%name, epoch = epoch.0, remote, "connected");
    let reason = talk(
        &context,
        &admitted.session,
        node_id,
        epoch,
        sender,
        receiver,
        queue,
    )
    .await;
    if let Some(last_heard) = context.sessions.remove(node_id, epoch) {
        tracing::info!(%name, epoch = epoch.0, "away: {}", clip::error(&reason));
        mark_away(&context, node_id, epoch, last_heard).await;
    } else {
        let reason = clip::error(&reason);
        tracing::info!(%name, epoch = epoch.0, "replaced by a newer session: {reason}");
    }
}

/// Notes that the session of this registration ended, unless a newer registration stands.
async fn mark_away(context: &Context, node: NodeId, epoch: Epoch, last_heard: Timestamp) {
    let now = context.clock.now();
    if let Err(error) = context.store.mark_away(node, epoch, last_heard, now).await {
        tracing::warn!(%error, "the ledger did not note that the node is away");
    }
}

/// Sends a frame to an agent that takes it within `patience`; else gives why it did not.
async fn say(
    sender: &mut ControlSender,
    control: &Control,
    patience: Duration,
) -> Result<(), String> {
    match timeout(patience, sender.send(control)).await {
        Ok(sent) => sent.map_err(|error| error.to_string()),
        Err(_) => Err(format!(
            "it did not take {} within {} s",
            control.name(),
            patience.as_secs()
        )),
    }
}

/// Keeps the control stream going until the session ends; gives why it did.
async fn talk(
    context: &Context,
    session: &Session,
    node: NodeId,
    epoch: Epoch,
    mut sender: ControlSender,
    mut receiver: ControlReceiver,
    mut queue: mpsc::Receiver<Control>,
) -> String {
    let patience = context.config.hello_timeout;
    let mut leaving = false;
    loop {
        let words = tokio::select! {
            biased;
            error = session.connection().closed() => return error.to_string(),
            control = receiver.receive() => match control {
                Ok(Control::Heartbeat { .. }) => {
                    context.sessions.heard(node, epoch, context.clock.now());
                    let clock_ms = context.clock.now().as_millis();
                    Control::Heartbeat { clock_ms }
                }
                Ok(Control::GoAway(reason)) => {
                    tracing::info!("the agent is leaving: {}", shown(&reason));
                    context.sessions.drain(node, epoch);
                    leaving = true;
                    continue;
                }
                Ok(Control::Lingering(lingering)) => {
                    for Lingering { what, why } in &lingering {
                        tracing::warn!("{} may still be running: {}", shown(what), shown(why));
                    }
                    context.sessions.lingers(node, epoch, &lingering);
                    continue;
                }
                Ok(Control::Unknown { tag }) => {
                    tracing::debug!(tag, "passed over");
                    continue;
                }
                Ok(other) => {
                    tracing::warn!(frame = other.name(), "has no place on the control stream");
                    session.close(CloseCode::PROTOCOL_VIOLATED, "control");
                    return "it broke the protocol on the control stream".into();
                }
                // An agent that leaves says so and ends the stream; what is under way may finish.
                Err(ControlError::Lost(_)) if leaving => {
                    return session.connection().closed().await.to_string();
                }
                Err(error) => {
                    let code = match error {
                        ControlError::Lost(_) => CloseCode::GOING_AWAY,
                        ControlError::Malformed(_) => CloseCode::PROTOCOL_VIOLATED,
                    };
                    session.close(code, "control");
                    return error.to_string();
                }
            },
            stream = session.accept() => match stream {
                Ok(stream) => {
                    stream.refuse();
                    continue;
                }
                Err(ended) => return ended.to_string(),
            },
            Some(control) = queue.recv() => control,
        };
        if let Err(reason) = say(&mut sender, &words, patience).await {
            session.close(CloseCode::TIMED_OUT, "the control stream is stuck");
            return reason;
        }
    }
}
