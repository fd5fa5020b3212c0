//! The operational endpoint: from a connection that comes in to a session that ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hub_protocol::code::CloseCode;
use hub_protocol::session::Control;
use hub_quic::endpoint::{self, Handshakes};
use hub_quic::session::{ControlReceiver, ControlSender, Session};
use hub_quic::tls;
use quinn::{Connecting, Connection, Endpoint, VarInt};
use tokio::sync::mpsc;
use tokio::time::{interval, timeout};
use tracing::Instrument as _;

use super::{Connected, Context, Sessions, admission};
use crate::clock::Clock;
use crate::store::Store;

/// How sessions come about and what they are held to.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// How many strangers are dealt with at once.
    pub handshakes: Handshakes,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// How long an authenticated peer may take to say Hello.
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

/// Accepts agents until the endpoint is closed.
pub async fn serve(
    endpoint: Endpoint,
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
    let under_way = Arc::new(AtomicUsize::new(0));
    let mut sightings = interval(context.config.sightings);
    loop {
        tokio::select! {
            biased;
            incoming = endpoint.accept() => {
                let Some(incoming) = incoming else { return };
                let now_under_way = under_way.load(Ordering::Relaxed);
                let handshakes = &context.config.handshakes;
                if let Some(connecting) = endpoint::admit(incoming, now_under_way, handshakes) {
                    let ticket = Ticket::take(&under_way);
                    tokio::spawn(connect(context.clone(), connecting, ticket));
                }
            }
            _ = sightings.tick() => record_sightings(&context).await,
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

async fn record_sightings(context: &Context) {
    let sightings: Vec<_> = context
        .sessions
        .all()
        .into_iter()
        .map(|(node, connected)| (node, connected.epoch))
        .collect();
    if sightings.is_empty() {
        return;
    }
    if let Err(error) = context.store.seen(sightings, context.clock.now()).await {
        tracing::warn!(%error, "the ledger did not note which nodes are alive");
    }
}

async fn connect(context: Context, connecting: Connecting, ticket: Ticket) {
    let remote = connecting.remote_address();
    let connection = match timeout(context.config.handshake_timeout, connecting).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            tracing::info!(%remote, %error, "a handshake failed");
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
    register(context, connection, identity)
        .instrument(span)
        .await;
}

async fn register(context: Context, connection: Connection, identity: tls::PeerIdentity) {
    let greeting = timeout(context.config.hello_timeout, admission::hello(&connection)).await;
    let (mut sender, receiver, hello) = match greeting {
        Ok(Ok(greeting)) => greeting,
        Ok(Err(error)) => {
            tracing::info!(%error, "no Hello came");
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
    let admitted = match admission::admit(&context, &connection, &identity, &hello).await {
        Ok(admitted) => admitted,
        Err(refused) => {
            tracing::warn!(
                code = refused.code,
                permanent = refused.permanent,
                "refused: {refused}"
            );
            if sender.send(&Control::Refused(refused)).await.is_ok() {
                // The agent closes once it has read it; one that does not is not waited for.
                let _ = timeout(context.config.hello_timeout, sender.finish()).await;
            }
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
        control,
    };
    let welcome = Control::Welcome(Box::new(admitted.welcome));
    let targets = Control::Targets(admitted.targets);
    let greeted = match sender.send(&welcome).await {
        Ok(()) => sender.send(&targets).await,
        lost => lost,
    };
    if greeted.is_err() || !context.sessions.install(identity.node_id, connected) {
        admitted
            .session
            .close(CloseCode::SUPERSEDED, "a newer session of this node stands");
        return;
    }
    let name = &admitted.name;
    tracing::info!(%name, epoch = epoch.0, remote = %connection.remote_address(), "connected");
    let reason = talk(
        &context,
        &admitted.session,
        identity.node_id,
        epoch,
        sender,
        receiver,
        queue,
    )
    .await;
    if let Some(last_heard) = context.sessions.remove(identity.node_id, epoch) {
        tracing::info!(%name, epoch = epoch.0, "away: {reason}");
        let now = context.clock.now();
        if let Err(error) = context
            .store
            .mark_away(identity.node_id, epoch, last_heard, now)
            .await
        {
            tracing::warn!(%error, "the ledger did not note that the node is away");
        }
    } else {
        tracing::info!(%name, epoch = epoch.0, "replaced by a newer session: {reason}");
    }
}

/// Keeps the control stream going until the session ends; gives why it did.
async fn talk(
    context: &Context,
    session: &Session,
    node: hub_protocol::NodeId,
    epoch: hub_protocol::Epoch,
    mut sender: ControlSender,
    mut receiver: ControlReceiver,
    mut queue: mpsc::Receiver<Control>,
) -> String {
    loop {
        tokio::select! {
            biased;
            error = session.connection().closed() => return error.to_string(),
            control = receiver.receive() => match control {
                Ok(Control::Heartbeat { .. }) => {
                    context.sessions.heard(node, epoch, context.clock.now());
                    let clock_ms = context.clock.now().as_millis();
                    if let Err(error) = sender.send(&Control::Heartbeat { clock_ms }).await {
                        return error.to_string();
                    }
                }
                Ok(Control::GoAway(reason)) => tracing::info!("the agent is leaving: {reason}"),
                Ok(Control::Unknown { tag }) => tracing::debug!(tag, "passed over"),
                Ok(other) => {
                    tracing::warn!(?other, "has no place on the control stream");
                    session.close(CloseCode::PROTOCOL_VIOLATED, "control");
                    return "it broke the protocol on the control stream".into();
                }
                Err(error) => {
                    session.close(CloseCode::PROTOCOL_VIOLATED, "control");
                    return error.to_string();
                }
            },
            stream = session.accept() => match stream {
                Ok(stream) => stream.refuse(),
                Err(ended) => return ended.to_string(),
            },
            Some(control) = queue.recv() => {
                if let Err(error) = sender.send(&control).await {
                    return error.to_string();
                }
            }
        }
    }
}
