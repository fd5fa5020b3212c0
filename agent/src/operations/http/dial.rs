//! Makes connections to targets.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hub_protocol::kind::{Failure, FailureCode};
use hub_protocol::target::Target;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::targets::{Address, Place};

/// How long a target may take to accept a connection, all of its addresses together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection may be silent before the kernel asks whether its other end is there, and
/// how often it asks then. Of a connection that carries nothing nobody else would ever learn that
/// it is dead.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(15));

/// A connection to a target.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {
    /// Has the connection break when it is dropped, where it would end in order: what it carried is
    /// not whole, and must not look so.
    fn break_off(&mut self) {}
}

impl Stream for TcpStream {
    fn break_off(&mut self) {
        // Where this fails the connection is broken already.
        let _ = SockRef::from(&*self).set_linger(Some(Duration::ZERO));
    }
}

impl Stream for DuplexStream {}

/// Makes connections to ports of this machine and of its containers: over TCP, or in a simulation.
pub trait Dial: Send + Sync {
    /// Connects. Dropping the future gives up.
    fn connect(&self, to: Address) -> BoxFuture<'_, io::Result<Box<dyn Stream>>>;
}

/// TCP, from this machine. Its own ports are tried at its loopback addresses, IPv4 first.
#[derive(Debug, Clone, Copy)]
pub struct Direct;

impl Dial for Direct {
    fn connect(&self, to: Address) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let port = match to {
                Address::At(address) => return tcp(address).await,
                Address::Machine(port) => port,
            };
            let first = match tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            // Where there is no IPv6, the first answer says more.
            let second = tcp(SocketAddr::from((Ipv6Addr::LOCALHOST, port))).await;
            second.map_err(|_| first)
        })
    }
}

async fn tcp(address: SocketAddr) -> io::Result<Box<dyn Stream>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_keepalive(&KEEPALIVE)?;
    Ok(Box::new(stream))
}

/// Connects to a place: to the first of its addresses that takes the connection. An address that
/// says nothing has an equal share of the time that is left.
pub(super) async fn connect(
    dial: &dyn Dial,
    place: &Place,
    target: &Target,
) -> Result<Box<dyn Stream>, Failure> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    let addresses = place.addresses();
    let mut failed = None;
    for (nth, address) in addresses.iter().enumerate() {
        let now = Instant::now();
        let share = (deadline - now) / (addresses.len() - nth) as u32;
        let error = match timeout_at(now + share, dial.connect(*address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
        // The first address is the likeliest, but one that refuses says more than silence.
        let says_more = |failed: &io::Error| {
            error.kind() == io::ErrorKind::ConnectionRefused
                && failed.kind() != io::ErrorKind::ConnectionRefused
        };
        if failed.as_ref().is_none_or(says_more) {
            failed = Some(error);
        }
    }
    let error = failed.unwrap_or_else(|| io::ErrorKind::NotFound.into());
    Err(unconnected(target, &error))
}

fn unconnected(target: &Target, error: &io::Error) -> Failure {
    let refused = FailureCode::TARGET_REFUSED;
    let failure = match (error.kind(), &target.container) {
        (io::ErrorKind::TimedOut, _) => Failure::new(
            FailureCode::TARGET_TIMED_OUT,
            format!(
                "the target, {target}, did not accept a connection within {} s",
                CONNECT_TIMEOUT.as_secs()
            ),
        ),
        (io::ErrorKind::ConnectionRefused, None) => {
            Failure::new(refused, format!("nothing listens on {target}"))
        }
        (io::ErrorKind::ConnectionRefused, Some(_)) => Failure::new(
            refused,
            format!(
                "nothing listens on {target}; what listens on the container's own 127.0.0.1 is \
                 not reached from outside of it: let it listen on 0.0.0.0"
            ),
        ),
        _ => Failure::new(refused, format!("{target} can't be connected to: {error}")),
    };
    failure.retry()
}
