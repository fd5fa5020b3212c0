//! A UDP socket on a host of the simulated network.
//!
//! Sending never blocks: what does not fit into the up link's queue is dropped there, as by a
//! network card. Receiving is from a bounded queue; what finds it full is dropped.

use std::{
    fmt, io,
    net::SocketAddr,
    task::{Context, Poll},
};

use bytes::Bytes;

use crate::{
    network::Network,
    world::{Datagram, HostId},
};

/// Settings of one socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketConfig {
    /// Bound of the receive queue in bytes of payload.
    pub receive_queue_bytes: usize,
    /// How many datagrams the socket claims to take in one call (GSO). They are separate datagrams
    /// to the network, and to the trace, all the same.
    pub max_transmit_segments: usize,
}

impl Default for SocketConfig {
    /// 1 MiB to receive into, and one datagram at a time.
    fn default() -> Self {
        Self {
            receive_queue_bytes: 1 << 20,
            max_transmit_segments: 1,
        }
    }
}

/// A bound UDP socket, made by [`Network::bind`]. It closes when the last handle is dropped; its
/// port is free again at once.
pub struct SimSocket {
    network: Network,
    host: HostId,
    local: SocketAddr,
    config: SocketConfig,
}

impl SimSocket {
    pub(crate) fn new(
        network: Network,
        host: HostId,
        local: SocketAddr,
        config: SocketConfig,
    ) -> Self {
        Self {
            network,
            host,
            local,
            config,
        }
    }

    /// The address it is bound to, as its own host sees it.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The host it is on.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// Its settings.
    pub fn config(&self) -> SocketConfig {
        self.config
    }

    /// Sends one datagram. Whether it arrives is the network's business.
    ///
    /// Fails with [`io::ErrorKind::InvalidInput`] if `dst` is of another address family than the
    /// socket.
    pub fn send_to(&self, dst: SocketAddr, payload: &[u8]) -> io::Result<()> {
        self.send_marked(dst, payload, 0)
    }

    /// Receives one datagram and its source. Only one task may wait at a time: a second one takes
    /// the place of the first, which is not woken any more.
    ///
    /// Fails with [`io::ErrorKind::NotConnected`] once the host was removed.
    pub async fn recv_from(&self) -> io::Result<(SocketAddr, Bytes)> {
        let mut datagrams = std::future::poll_fn(|cx| self.poll_receive(cx, 1)).await?;
        datagrams
            .pop()
            .map(|datagram| (datagram.src, datagram.payload))
            .ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// Sends one datagram with the given ECN bits.
    pub(crate) fn send_marked(&self, dst: SocketAddr, payload: &[u8], ecn: u8) -> io::Result<()> {
        if dst.is_ipv4() != self.local.is_ipv4() {
            let error = format!(
                "{} cannot send to {dst}: another address family",
                self.local
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        let datagram = Datagram {
            src: self.local,
            dst,
            ecn,
            payload: Bytes::copy_from_slice(payload),
        };
        self.network
            .change(|world, now| world.send(self.host, datagram, now));
        Ok(())
    }

    /// Between one and `max` datagrams.
    pub(crate) fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<io::Result<Vec<Datagram>>> {
        let received = self
            .network
            .look(|world| world.receive(self.host, self.local, max, cx.waker()));
        match received {
            Some(datagrams) if datagrams.is_empty() => Poll::Pending,
            Some(datagrams) => Poll::Ready(Ok(datagrams)),
            None => {
                let error = format!("the host of socket {} was removed", self.local);
                Poll::Ready(Err(io::Error::new(io::ErrorKind::NotConnected, error)))
            }
        }
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        let _reader = self
            .network
            .change(|world, _| world.close(self.host, self.local));
    }
}

impl fmt::Debug for SimSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimSocket")
            .field("host", &self.host)
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}
