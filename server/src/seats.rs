//! TCP connections: accepted while there are seats, and ended in good order.
//!
//! ```text
//! listener --accept--> Seat --> connection --upgrade--> a task of its own, with the same Seat
//! stop: no more are accepted; Seat::stopping; wait for all seats; Seat::cut; wait a moment
//! ```
//!
//! A [`Seat`] is held for as long as anything serves the connection, also after an upgrade has
//! taken it over: it counts against the limit, and is waited for when the hub stops.

use std::fmt;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};

/// How long to wait after a connection could not be accepted, as when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long whoever is cut off may take to say so.
const FAREWELL: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    Stopping,
    Cut,
}

/// What one connection holds of a listener. Clones share it; the last one frees it.
#[derive(Clone)]
pub(crate) struct Seat {
    _permit: Arc<OwnedSemaphorePermit>,
    phase: watch::Receiver<Phase>,
    /// What else is held for as long as the seat.
    _also: Option<Arc<dyn Send + Sync>>,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat")
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

impl Seat {
    /// The same, which holds something more for as long as it is held.
    pub(crate) fn holding(self, also: impl Send + Sync + 'static) -> Self {
        Self {
            _also: Some(Arc::new(also)),
            ..self
        }
    }

    /// Waits until what is under way should come to its end.
    pub(crate) async fn stopping(&self) {
        self.reached(Phase::Stopping).await;
    }

    /// Waits until the time for that is over.
    pub(crate) async fn cut(&self) {
        self.reached(Phase::Cut).await;
    }

    async fn reached(&self, phase: Phase) {
        // An error says that the listener is gone: later than any phase.
        drop(self.phase.clone().wait_for(|now| *now >= phase).await);
    }
}

/// How a listener is served.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Whose connections they are, for the log.
    pub(crate) whose: &'static str,
    /// Connections at once; further ones wait in the kernel.
    pub(crate) connections: u32,
    /// How long what is under way may go on after the stop.
    pub(crate) drain: Duration,
}

/// The seats of a listener.
pub(crate) struct Seats {
    limits: Limits,
    room: Arc<Semaphore>,
    phase: watch::Sender<Phase>,
}

impl Seats {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            room: Arc::new(Semaphore::new(limits.connections as usize)),
            phase: watch::Sender::new(Phase::Serving),
        }
    }

    /// Waits for a free seat, and takes it.
    pub(crate) async fn free(&self) -> Seat {
        let permit = self.room.clone().acquire_owned().await;
        Seat {
            _permit: Arc::new(permit.expect("never closed")),
            phase: self.phase.subscribe(),
            _also: None,
        }
    }

    /// Whether more than half of them are taken.
    pub(crate) fn are_scarce(&self) -> bool {
        self.room.available_permits() < self.limits.connections as usize / 2
    }

    /// Tells all who have a seat that it is time, and waits until they have left; ends what is left
    /// after the time that they have.
    pub(crate) async fn vacate(self) {
        let all_left = || async { drop(self.room.acquire_many(self.limits.connections).await) };
        self.phase.send_replace(Phase::Stopping);
        if timeout(self.limits.drain, all_left()).await.is_err() {
            let whose = self.limits.whose;
            tracing::info!(whose, "what is still under way is cut off");
            self.phase.send_replace(Phase::Cut);
            let _ = timeout(FAREWELL, all_left()).await;
        }
    }
}

/// Gives each connection of `listener` to `connection` until `stop`; then waits for those under
/// way, and ends what is left. Dropping this ends all of them at once.
pub(crate) async fn serve<F>(
    listener: TcpListener,
    limits: Limits,
    stop: impl Future<Output = ()>,
    connection: impl Fn(TcpStream, SocketAddr, Seat) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let seats = Seats::new(limits);
    let mut stop = pin!(stop);
    loop {
        let accept = async {
            let seat = seats.free().await;
            (seat, listener.accept().await)
        };
        let (seat, accepted) = tokio::select! {
            biased;
            () = &mut stop => break,
            accepted = accept => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let served = connection(stream, peer, seat.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = served => {}
                        () = seat.cut() => {}
                    }
                });
            }
            Err(error) => {
                let whose = limits.whose;
                tracing::warn!(whose, %error, "a connection could not be accepted");
                tokio::select! {
                    () = &mut stop => break,
                    () = sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
    drop(listener);
    seats.vacate().await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    const LIMITS: Limits = Limits {
        whose: "nobody",
        connections: 1,
        drain: Duration::from_secs(3600),
    };

    /// A connection whose work goes on in another task counts until that has ended.
    #[tokio::test]
    async fn a_seat_is_held_by_whoever_took_the_connection_over() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (upgrade, mut upgraded) = mpsc::unbounded_channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            let connection = |stream: TcpStream, _, seat: Seat| {
                let upgrade = upgrade.clone();
                async move { upgrade.send((stream, seat)).unwrap() }
            };
            serve(listener, LIMITS, stopped, connection).await;
        });
        let mut first = TcpStream::connect(address).await.unwrap();
        let mut second = TcpStream::connect(address).await.unwrap();
        let (mut stream, seat) = upgraded.recv().await.unwrap();
        stream.write_all(b"x").await.unwrap();
        assert_eq!(first.read(&mut [0]).await.unwrap(), 1);
        assert!(upgraded.try_recv().is_err(), "there is one seat");
        drop((stream, seat));
        let (mut stream, seat) = upgraded.recv().await.unwrap();
        stop.send(()).unwrap();
        seat.stopping().await;
        assert!(!served.is_finished(), "the second one holds it");
        stream.write_all(b"y").await.unwrap();
        drop((stream, seat));
        served.await.unwrap();
        assert_eq!(second.read(&mut [0]).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn what_outlasts_the_drain_is_cut_off() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (taken, mut takes) = mpsc::unbounded_channel();
        let served = tokio::spawn(async move {
            let limits = Limits {
                drain: Duration::ZERO,
                ..LIMITS
            };
            let stopped = async { drop(stopped.await) };
            let connection = |stream: TcpStream, _, seat: Seat| {
                let taken = taken.clone();
                async move {
                    taken.send(()).unwrap();
                    std::future::pending::<()>().await;
                    drop((stream, seat));
                }
            };
            serve(listener, limits, stopped, connection).await;
        });
        let mut client = TcpStream::connect(address).await.unwrap();
        takes.recv().await.unwrap();
        stop.send(()).unwrap();
        served.await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }
}
