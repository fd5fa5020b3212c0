//! The machine's UDP sockets.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, EndpointConfig, Runtime as _, TokioRuntime, UdpPoller};
use quinn_proto::HashedConnectionIdGenerator;
use ring::hmac;
use socket2::{Domain, Protocol, Socket, Type};

use super::Network;

/// The most bytes that the kernel takes in one call, whether as one packet or as many: the
/// largest UDP payload over IPv4.
const MAX_BATCH: usize = 65_507;

/// UDP sockets of the operating system.
#[derive(Clone)]
pub struct UdpNetwork {
    /// Bytes to ask of the kernel for what was received and not yet read, and again for what was
    /// sent and has not left. It grants what its own limits allow.
    pub buffers: usize,
    /// Whether to hand the kernel many packets in one call (GSO). Where the kernel says that it
    /// cannot, that is noticed and left alone; the switch is for those that only claim they can.
    pub segmentation_offload: bool,
    /// What connection ids and stateless resets are made of, if it is to outlive the process: a
    /// program that starts again with it on the same port tells its peers at their next packet that
    /// their connections are gone, instead of leaving them to their idle timeout. A secret.
    pub reset_seed: Option<[u8; 32]>,
}

/// Without the seed.
impl fmt::Debug for UdpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpNetwork")
            .field("buffers", &self.buffers)
            .finish_non_exhaustive()
    }
}

impl Default for UdpNetwork {
    /// 4 MiB each way: 30 ms at 1 Gbit/s, which covers a thread that is late.
    fn default() -> Self {
        Self {
            buffers: 4 << 20,
            segmentation_offload: true,
            reset_seed: None,
        }
    }
}

impl Network for UdpNetwork {
    fn endpoint_config(&self) -> EndpointConfig {
        let Some(seed) = &self.reset_seed else {
            return EndpointConfig::default();
        };
        let key = hmac::Key::new(hmac::HMAC_SHA256, seed);
        let ids = hmac::sign(&key, b"connection ids");
        let (ids, _) = ids.as_ref().split_first_chunk().unwrap_or((&[0; 8], &[]));
        let ids = u64::from_le_bytes(*ids);
        let mut config = EndpointConfig::new(Arc::new(key));
        config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
        config
    }

    fn bind(&self, local: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let socket = Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))?;
        if local.is_ipv6() && local.ip().is_unspecified() {
            // Where the system has no dual stack, IPv6 alone is what there is.
            if let Err(error) = socket.set_only_v6(false) {
                tracing::debug!(%error, "the UDP socket serves IPv6 only");
            }
        }
        for asked in [
            socket.set_recv_buffer_size(self.buffers),
            socket.set_send_buffer_size(self.buffers),
        ] {
            if let Err(error) = asked {
                tracing::debug!(%error, bytes = self.buffers, "the kernel keeps its UDP buffers");
            }
        }
        socket.bind(&local.into())?;
        tracing::debug!(
            address = ?socket.local_addr().ok().and_then(|address| address.as_socket()),
            receive_buffer = socket.recv_buffer_size().ok(),
            send_buffer = socket.send_buffer_size().ok(),
            "UDP socket open"
        );
        let inner = TokioRuntime.wrap_udp_socket(socket.into())?;
        Ok(Arc::new(Batched {
            inner,
            segments: if self.segmentation_offload {
                usize::MAX
            } else {
                1
            },
        }))
    }
}

/// Sends batches that are larger than the kernel takes in several calls. `quinn` counts packets,
/// not bytes, when it fills a batch; with packets beyond 6,550 bytes the kernel would refuse it
/// whole, and `quinn` would take that for loss.
#[derive(Debug)]
struct Batched {
    inner: Arc<dyn AsyncUdpSocket>,
    /// The most packets in one call.
    segments: usize,
}

impl AsyncUdpSocket for Batched {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let whole = transmit.contents.len();
        let batch = match transmit.segment_size {
            Some(segment) if segment > 0 && whole > MAX_BATCH => batch_size(segment),
            _ => return self.inner.try_send(transmit),
        };
        // If a later call would block, `quinn` sends the whole again; the peer drops what it has.
        transmit.contents.chunks(batch).try_for_each(|contents| {
            self.inner.try_send(&Transmit {
                destination: transmit.destination,
                ecn: transmit.ecn,
                contents,
                segment_size: transmit
                    .segment_size
                    .filter(|segment| *segment < contents.len()),
                src_ip: transmit.src_ip,
            })
        })
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments().min(self.segments)
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

/// The most whole segments that fit in one call, in bytes; never less than one segment.
fn batch_size(segment: usize) -> usize {
    segment * (MAX_BATCH / segment).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_hold_whole_segments_and_fit_the_kernel() {
        for segment in [1200, 1452, 6550, 6551, 8972, 32_754, 65_507] {
            let batch = batch_size(segment);
            assert_eq!(batch % segment, 0);
            assert!(
                batch <= MAX_BATCH && batch + segment > MAX_BATCH,
                "{segment}: {batch}"
            );
        }
        assert_eq!(
            batch_size(65_527),
            65_527,
            "the kernel refuses it, as a probe should be"
        );
    }
}
