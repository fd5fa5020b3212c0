//! quinn's socket trait over a simulated socket. The trait changes with quinn's releases; this file
//! is all that has to follow.
//!
//! Datagrams are handed over one by one in both directions, so that the sizes in a trace are those
//! of datagrams. The socket never fragments, which lets quinn probe for the MTU of the path.

use std::{
    io::{self, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use quinn::{
    AsyncUdpSocket, UdpPoller,
    udp::{EcnCodepoint, RecvMeta, Transmit},
};

use crate::socket::SimSocket;

impl AsyncUdpSocket for SimSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let ecn = transmit.ecn.map_or(0, |codepoint| codepoint as u8);
        let segment = transmit
            .segment_size
            .unwrap_or(transmit.contents.len())
            .max(1);
        transmit
            .contents
            .chunks(segment)
            .try_for_each(|datagram| self.send_marked(transmit.destination, datagram, ecn))
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let datagrams = ready!(self.poll_receive(cx, bufs.len().min(meta.len())))?;
        for ((datagram, buf), meta) in datagrams.iter().zip(bufs).zip(meta) {
            // As recvmsg does, cut off what the buffer cannot hold.
            let len = datagram.payload.len().min(buf.len());
            buf[..len].copy_from_slice(&datagram.payload[..len]);
            *meta = RecvMeta {
                addr: datagram.src,
                len,
                stride: len,
                ecn: EcnCodepoint::from_bits(datagram.ecn),
                dst_ip: Some(datagram.dst.ip()),
            };
        }
        Poll::Ready(Ok(datagrams.len()))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SimSocket::local_addr(self))
    }

    fn max_transmit_segments(&self) -> usize {
        self.config().max_transmit_segments
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

/// Sends never block, so there is nothing to wait for.
#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
