//! Connections to TCP exposures.
//!
//! ```text
//! accept --> bounds --> replicas in turn: Open, Accepted --> pipe, both ways --> Done
//!              `-> reset         `-> reset, if none takes it       `-> reset, if either side broke
//! ```
//!
//! Each direction ends by itself; once both have, the operation's outcome says whether the connection
//! ends well. What ends otherwise is reset: a client must not take it for the end of what it reads.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hub_ledger::ExposureId;
use hub_protocol::kind;
use hub_protocol::kind::tcp::Open;
use hub_protocol::kind::transfer::{Ending, IN, OUT};
use hub_protocol::target::Grant;
use hub_quic::operation::Operation;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::Config;
use super::replicas::{Held, Loads, candidates, key};
use crate::counter::Counter;
use crate::hangup::Hangup;
use crate::hub::begun;
use crate::pipe::{self, Broke, Pulse};
use crate::proxy::{Begins, Kind, LedgerRoutes, Live, Seeing, Track, probe};
use crate::seats::{self, Limits, Seat};

/// How long an agent may take to say that the target is connected: longer than it waits itself for
/// its list of exposures and for the target.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Connections of one exposure at once, those among them that are about to be reset because they are
/// too many: further ones wait to be accepted.
const MAX_CONNECTIONS: u32 = 16_384;

/// How long an agent may take to say how a connection ended, once both directions have.
const LAST_WORD: Duration = Duration::from_secs(10);

/// What the connections of one exposure share.
struct Port {
    exposure: ExposureId,
    routes: LedgerRoutes,
    config: Config,
    seeing: Seeing,
    loads: Loads,
    clients: Counter<IpAddr>,
}

/// Serves an exposure's listener until `stop` holds true; dropped, it ends all connections at once.
pub(super) async fn serve(
    listener: TcpListener,
    exposure: ExposureId,
    routes: LedgerRoutes,
    config: Config,
    seeing: Seeing,
    mut stop: watch::Receiver<bool>,
) {
    let limits = Limits {
        whose: "a TCP exposure",
        connections: MAX_CONNECTIONS,
        drain: config.drain,
    };
    let port = Arc::new(Port {
        exposure,
        routes,
        config,
        seeing,
        loads: Loads::default(),
        clients: Counter::default(),
    });
    let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
    seats::serve(listener, limits, stopped, |stream, peer, seat| {
        let port = port.clone();
        async move { port.connection(stream, peer, seat).await }
    })
    .await;
}

/// A connection that is reset when it is dropped, unless it has ended well.
struct Resetting(TcpStream, bool);

impl Drop for Resetting {
    fn drop(&mut self) {
        if !self.1 {
            // Where this fails it is broken already.
            let _ = self.0.set_zero_linger();
        }
    }
}

impl Port {
    async fn connection(&self, stream: TcpStream, peer: SocketAddr, seat: Seat) {
        let exposure = self.exposure;
        let mut stream = Resetting(stream, false);
        let most = self.config.connections_per_client;
        let Some(_of_client) = self.clients.enter(&peer.ip(), most) else {
            tracing::debug!(%exposure, %peer, "reset: its address has all the connections it may have");
            return;
        };
        // One that is gone already says so soon enough.
        let _ = stream.0.set_nodelay(true);
        let _ = probe(&stream.0);
        let Ok(hangup) = Hangup::watch(&stream.0) else {
            return;
        };
        let track = self.seeing.begin(&Begins {
            kind: Kind::Tcp,
            client: peer.ip(),
            at: self.routes.now(),
            method: None,
            target: None,
            version: None,
        });
        let carried = async {
            let (operation, _held) = self.connect(&track, peer.ip()).await?;
            carry(operation, &mut stream.0, self.config.idle, track).await
        };
        let carried = tokio::select! {
            carried = carried => carried,
            // Also where nothing is read or written because one side waits for the other.
            () = hangup.broken() => Err(Broke),
            () = seat.cut() => Err(Broke),
        };
        stream.1 = carried.is_ok();
    }

    /// A connection to the first replica that takes it.
    async fn connect(&self, track: &Track, client: IpAddr) -> Result<(Operation, Held), Broke> {
        let exposure = self.exposure;
        let most = self.config.connections;
        let found = |exposure: &_| track.exposed(exposure, client);
        let candidates = candidates(&self.routes, exposure, &self.loads, most, found).await;
        let candidates = candidates.map_err(|nobody| {
            tracing::debug!(%exposure, %nobody, "a connection goes nowhere");
            Broke
        })?;
        for live in candidates {
            let held = self.loads.hold(&key(&live));
            track.opening(&live.node_name);
            match open(&live).await {
                Ok(operation) => return Ok((operation, held)),
                Err(why) => {
                    let node = &live.node_name;
                    tracing::debug!(%exposure, %node, %why, "a replica does not take a connection");
                }
            }
        }
        Err(Broke)
    }
}

async fn open(live: &Live) -> Result<Operation, String> {
    let open = Open {
        target: live.target.clone(),
        grant: Grant::Exposed {
            revision: live.revision,
        },
    };
    let operation = live.session.request(&open).await;
    let operation = operation.map_err(|error| error.to_string())?;
    // Nothing was sent yet: whatever becomes of it, another replica may be asked.
    let begun = begun(&operation, ANSWER_TIMEOUT).await;
    begun.map_err(|not_begun| not_begun.to_string())?;
    Ok(operation)
}

/// Carries bytes until both directions have ended.
async fn carry(
    operation: Operation,
    stream: &mut TcpStream,
    idle: Option<Duration>,
    track: Track,
) -> Result<(), Broke> {
    track.accepted();
    let pulse = Pulse::seen(track);
    let (read, mut write) = stream.split();
    let up = pipe::up(read, operation.sender(IN), &pulse);
    let down = async {
        pipe::down(operation.receiver(OUT), &mut write, &pulse).await?;
        // Where all is over already, the channel has ended with it, well or not.
        if let Some(Err(Broke)) = futures_util::FutureExt::now_or_never(ended_well(&operation)) {
            return Err(Broke);
        }
        write.shutdown().await.map_err(|_| Broke)
    };
    tokio::select! {
        carried = async { tokio::try_join!(up, down) } => carried?,
        () = pulse.stopped(idle) => return Err(Broke),
    };
    let ended = timeout(LAST_WORD, ended_well(&operation)).await;
    ended.unwrap_or(Err(Broke))?;
    pulse.ended_well();
    Ok(())
}

async fn ended_well(operation: &Operation) -> Result<(), Broke> {
    let done = operation.done().await.map_err(|_| Broke)?;
    match kind::decode::<Ending<()>>("Done", &done) {
        Ok(Ending::Complete(())) => Ok(()),
        Ok(Ending::Failed(_)) | Err(_) => Err(Broke),
    }
}
