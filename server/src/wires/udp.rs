//! Packets to UDP exposures.
//!
//! ```text
//! socket --packet--> table: whose flow? --known--> Line --> FlowSender --> agent --> target
//!                           `--new--> a task: replica, Open; Accepted; then
//! socket <--------------------------- packets <-- FlowReceiver <-- agent <-- target
//! ```
//!
//! A flow belongs to a client's address and lasts until both sides have been silent for some time, the
//! agent ends it, or it has to give way: see [`flows`](super::flows). Its first packets wait, a few,
//! until its operation is opened. Nothing here waits for anybody: what can't go on is dropped, as
//! anywhere in UDP.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hub_ledger::ExposureId;
use hub_protocol::kind::transfer::Ending;
use hub_protocol::kind::udp::{MAX_PAYLOAD, Open};
use hub_protocol::kind::{self, Failure};
use hub_protocol::target::Grant;
use hub_quic::flow::FlowSender;
use hub_quic::operation::Operation;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::Config;
use super::flows::{Bounds, Full, Table};
use super::replicas::{Loads, candidates, key};
use crate::hub::begun;
use crate::proxy::{Begins, Down, Kind, LedgerRoutes, Seeing, Track};

/// How long an agent may take to say that it has a socket for the target.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Packets that wait until a flow's operation is opened; of more the newest are dropped: what begins
/// a conversation is its beginning.
const FIRST: usize = 16;

/// Bytes that they may have together.
const FIRST_BYTES: usize = 16 * 1024;

/// Packets that are taken from the socket before others have their turn.
const TURN: usize = 64;

/// How long to wait after the socket could not be read.
const READ_PAUSE: Duration = Duration::from_millis(100);

/// The way of a flow's packets to the agent.
#[derive(Debug)]
enum Way {
    /// Its operation is not opened yet: its first packets, and their bytes.
    Opening(VecDeque<Bytes>, usize),
    Open(FlowSender),
}

/// A flow, as its socket has it.
#[derive(Debug, Clone)]
struct Line(Arc<Mutex<Way>>, Track);

impl Line {
    fn new(track: Track) -> Self {
        let way = Way::Opening(VecDeque::new(), 0);
        Self(Arc::new(Mutex::new(way)), track)
    }

    fn lock(&self) -> MutexGuard<'_, Way> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, packet: Bytes) {
        self.1.took(packet.len());
        match &mut *self.lock() {
            Way::Open(sender) => {
                // What is dropped is in the session's counts.
                sender.send(packet);
            }
            Way::Opening(first, bytes) => {
                if first.len() < FIRST && *bytes + packet.len() <= FIRST_BYTES {
                    *bytes += packet.len();
                    first.push_back(packet);
                }
            }
        }
    }

    /// Its operation is opened: what has waited goes, in order.
    fn open(&self, sender: FlowSender) {
        let mut way = self.lock();
        if let Way::Opening(first, _) = &mut *way {
            for packet in first.drain(..) {
                sender.send(packet);
            }
        }
        *way = Way::Open(sender);
    }
}

/// A flow in the table. Dropped, it is over: its task ends, and with it the operation.
#[derive(Debug)]
struct Flow {
    line: Line,
    task: Option<AbortHandle>,
}

impl Drop for Flow {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// What the flows of one exposure share.
struct Port {
    exposure: ExposureId,
    routes: LedgerRoutes,
    config: Config,
    seeing: Seeing,
    socket: UdpSocket,
    loads: Loads,
    table: Mutex<Table<Flow>>,
    started: Instant,
    dropped: Mutex<BTreeMap<&'static str, u64>>,
}

/// Serves an exposure's socket until `stop` holds true; dropped, it ends all flows.
pub(super) async fn serve(
    socket: UdpSocket,
    exposure: ExposureId,
    routes: LedgerRoutes,
    config: Config,
    seeing: Seeing,
    mut stop: watch::Receiver<bool>,
) {
    let bounds = Bounds {
        flows: config.flows as usize,
        per_client: config.flows_per_client as usize,
        idle: config.flow_idle,
    };
    let port = Arc::new(Port {
        exposure,
        routes,
        config,
        seeing,
        socket,
        loads: Loads::default(),
        table: Mutex::new(Table::new(bounds)),
        started: Instant::now(),
        dropped: Mutex::default(),
    });
    // The tasks of flows have the port, too: it is they that have to go.
    let _flows = Flows(port.clone());
    let mut buffer = BytesMut::with_capacity(MAX_PAYLOAD);
    loop {
        let read = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = port.silence() => continue,
            read = port.read(&mut buffer) => read,
        };
        if let Err(error) = read {
            tracing::warn!(%exposure, %error, "the socket of a UDP exposure can't be read");
            sleep(READ_PAUSE).await;
        }
        tokio::task::yield_now().await;
    }
}

/// All flows of a port; dropped, they are over.
struct Flows(Arc<Port>);

impl Drop for Flows {
    fn drop(&mut self) {
        let none = Bounds {
            flows: 0,
            per_client: 0,
            idle: Duration::ZERO,
        };
        let flows = std::mem::replace(&mut *self.0.table(), Table::new(none));
        drop(flows);
    }
}

impl Port {
    fn table(&self) -> MutexGuard<'_, Table<Flow>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the flows that were silent for too long, once there are some.
    async fn silence(&self) {
        let next = self.table().next();
        match next {
            Some(next) => sleep(next.saturating_sub(self.started.elapsed())).await,
            None => std::future::pending().await,
        }
        let now = self.started.elapsed();
        loop {
            let over = self.table().expired(now);
            if over.is_none() {
                return;
            }
        }
    }

    /// Takes the packets that have come, a turn of them.
    async fn read(self: &Arc<Self>, buffer: &mut BytesMut) -> io::Result<()> {
        self.socket.readable().await?;
        for _ in 0..TURN {
            buffer.clear();
            buffer.reserve(MAX_PAYLOAD);
            match self.socket.try_recv_buf_from(buffer) {
                // Copied: a packet keeps no more than it is.
                Ok((_, client)) => self.packet(Bytes::copy_from_slice(buffer), client),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // What some client's machine said of our packets to it.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A packet of a client.
    fn packet(self: &Arc<Self>, packet: Bytes, client: SocketAddr) {
        let now = self.started.elapsed();
        let mut table = self.table();
        if let Some(flow) = table.heard(client, now) {
            let line = flow.line.clone();
            drop(table);
            return line.send(packet);
        }
        let line = Line::new(self.seeing.begin(&Begins {
            kind: Kind::Udp,
            client: client.ip(),
            at: self.routes.now(),
            method: None,
            target: None,
            version: None,
        }));
        line.send(packet);
        let began = table.begin(client, now, |number| {
            let (port, own) = (self.clone(), line.clone());
            let task = tokio::spawn(async move {
                port.flow(client, number, &own).await;
                // Dropped here, where its task has nothing more to do.
                let over = port.table().end(client, number);
                drop(over);
            });
            Flow {
                line,
                task: Some(task.abort_handle()),
            }
        });
        drop(table);
        match began {
            Ok(began) => drop(began.evicted),
            Err(Full::Exposure) => self.dropped("too many flows"),
            Err(Full::Client) => self.dropped("too many flows of one address"),
        }
    }

    /// Counts a packet that begins no flow; says so now and then.
    fn dropped(&self, why: &'static str) {
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        let count = dropped.entry(why).or_default();
        *count += 1;
        if count.is_power_of_two() {
            tracing::warn!(exposure = %self.exposure, count, "packets were dropped: {why}");
        }
    }

    /// Carries a flow until the agent has ended it.
    async fn flow(&self, client: SocketAddr, number: u64, line: &Line) {
        let exposure = self.exposure;
        match self.carry(client, number, line).await {
            Ok(()) => tracing::debug!(%exposure, %client, "a flow is over"),
            Err(why) => tracing::debug!(%exposure, %client, %why, "a flow is over"),
        }
    }

    async fn carry(&self, client: SocketAddr, number: u64, line: &Line) -> Result<(), String> {
        let candidates = candidates(
            &self.routes,
            self.exposure,
            &self.loads,
            self.config.flows,
            |exposure| line.1.exposed(exposure, client.ip()),
        )
        .await;
        let candidates = candidates.map_err(|nobody| nobody.to_string())?;
        // What was sent to one that then refuses is lost; the next packet begins anew.
        let live = candidates.first().ok_or("no replica")?;
        let _held = self.loads.hold(&key(live));
        let open = Open {
            target: live.target.clone(),
            grant: Grant::Exposed {
                revision: live.revision,
            },
        };
        line.1.opening(&live.node_name);
        let operation = live.session.request(&open).await;
        let operation: Operation = operation.map_err(|error| error.to_string())?;
        let (sender, mut receiver) = operation.flow(self.config.quota);
        line.open(sender.clone());
        let begun = begun(&operation, ANSWER_TIMEOUT).await;
        begun.map_err(|not_begun| not_begun.to_string())?;
        sender.answered();
        line.1.accepted();
        line.1.down(Down::Piece);
        // Its end is that nothing comes any more, which is a good one.
        line.1.whole();
        loop {
            let packet = receiver.packet().await.map_err(|ended| ended.to_string())?;
            let Some(packet) = packet else { break };
            self.table()
                .answered(client, number, self.started.elapsed());
            match self.socket.try_send_to(&packet, client) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.dropped("the socket's buffer is full");
                }
                Err(error) => {
                    tracing::debug!(exposure = %self.exposure, %client, %error, "a packet could not be sent");
                }
                Ok(_) => line.1.gives(packet.len()),
            }
        }
        let done = operation.done().await.map_err(|ended| ended.to_string())?;
        match kind::decode::<Ending<()>>("Done", &done) {
            Ok(Ending::Complete(())) => Ok(()),
            Ok(Ending::Failed(Failure { message, .. })) => Err(message),
            Err(error) => Err(error.to_string()),
        }
    }
}
