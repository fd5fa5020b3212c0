//! Carries the packets of one UDP flow to a target, over a socket of its own.
//!
//! ```text
//! FlowReceiver --packets--> socket, connected to the target --packets--> FlowSender
//! ```
//!
//! The flow lasts as long as the hub wants it. A target that says by ICMP that nobody listens ends it;
//! until it has answered once, its other addresses are tried with the packet that was refused. The
//! socket's queues are the kernel's: what does not fit is lost, as anywhere in UDP.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::{Bytes, BytesMut};
use hub_protocol::flow::Quota;
use hub_protocol::kind::transfer::Ending;
use hub_protocol::kind::udp::{MAX_PAYLOAD, Open};
use hub_protocol::kind::{self, Failure, FailureCode};
use hub_protocol::target::{Target, Transport};
use hub_quic::flow::{FlowReceiver, FlowSender};
use hub_quic::operation::{Ended, Operation};
use tokio::net::UdpSocket;

use super::http::Connections;
use crate::targets::{Address, Place, Targets};

/// How much is read from the socket at once, in bytes: a packet of any size fits.
const READ: usize = MAX_PAYLOAD + 1;

/// Carries one flow.
pub async fn run(operation: Operation, open: Open, targets: &Targets, connections: &Connections) {
    let connected = tokio::select! {
        biased;
        _ = operation.ended() => return,
        connected = connect(&open, targets, connections) => connected,
    };
    let (socket, rest) = match connected {
        Ok(connected) => connected,
        Err(failure) => return operation.fail(&failure),
    };
    let (sender, receiver) = operation.flow(Quota::default());
    operation.accept(Bytes::new());
    let mut flow = Flow {
        target: &open.target,
        socket,
        rest,
        last: None,
    };
    let ending = tokio::select! {
        biased;
        _ = operation.ended() => return,
        ending = flow.carry(&sender, receiver) => ending,
    };
    match ending {
        Ok(()) => operation.finish(kind::encode(&Ending::Complete(()))),
        Err(Over::Refused(failure)) => {
            operation.finish(kind::encode(&Ending::<()>::Failed(failure)));
        }
        // There is nobody to tell.
        Err(Over::Ended) => {}
    }
}

/// Why a flow is over before the hub has ended it.
enum Over {
    /// The target refuses, or the socket is of no use.
    Refused(Failure),
    /// The operation has ended early.
    Ended,
}

impl From<Ended> for Over {
    fn from(_: Ended) -> Self {
        Self::Ended
    }
}

struct Flow<'a> {
    target: &'a Target,
    socket: UdpSocket,
    /// The addresses that were not tried yet, the next one last.
    rest: Vec<SocketAddr>,
    /// The last packet to the target, until it has answered.
    last: Option<Bytes>,
}

impl Flow<'_> {
    /// Carries packets until the hub has ended the flow.
    async fn carry(&mut self, sender: &FlowSender, mut receiver: FlowReceiver) -> Result<(), Over> {
        let mut answered = false;
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(READ);
            let failed = tokio::select! {
                packet = receiver.packet() => {
                    let Some(packet) = packet? else { return Ok(()) };
                    let sent = self.socket.send(&packet).await;
                    if !answered {
                        self.last = Some(packet);
                    }
                    sent.err()
                }
                read = self.socket.recv_buf(&mut buffer) => match read {
                    Ok(_) => {
                        answered = true;
                        self.last = None;
                        // Whether it was dropped is in the session's counts.
                        sender.send(packet_of(&mut buffer));
                        None
                    }
                    Err(error) => Some(error),
                },
            };
            if let Some(error) = failed {
                self.failed(error, answered).await?;
            }
        }
    }

    /// What the socket said to one packet.
    async fn failed(&mut self, error: io::Error, answered: bool) -> Result<(), Over> {
        if error.kind() != io::ErrorKind::ConnectionRefused {
            // Too long for the path, no buffer, no route for the moment: one packet is lost.
            tracing::debug!(target = %self.target, %error, "a packet could not be sent");
            return Ok(());
        }
        while !answered && let Some(address) = self.rest.pop() {
            let Ok(socket) = socket(address).await else {
                continue;
            };
            self.socket = socket;
            if let Some(packet) = &self.last
                && self.socket.send(packet).await.is_err()
            {
                continue;
            }
            return Ok(());
        }
        let message = format!("nothing listens on {}", self.target);
        let failure = Failure::new(FailureCode::TARGET_REFUSED, message);
        Err(Over::Refused(failure.retry()))
    }
}

/// The packet that was read. A small one is copied: the buffer is as large as any may be.
fn packet_of(buffer: &mut BytesMut) -> Bytes {
    let packet = Bytes::copy_from_slice(buffer);
    buffer.clear();
    packet
}

/// A socket that is connected to the target, and the addresses to try where that one refuses.
async fn connect(
    open: &Open,
    targets: &Targets,
    connections: &Connections,
) -> Result<(UdpSocket, Vec<SocketAddr>), Failure> {
    targets.allowed(&open.target, open.grant).await?;
    let target = &open.target;
    if target.transport != Transport::Udp {
        let why = format!("{target} is no target of UDP packets");
        return Err(Failure::new(FailureCode::INVALID, why));
    }
    let place = connections.place(target).await?;
    let mut rest = addresses(&place);
    rest.reverse();
    let mut failed = None;
    while let Some(address) = rest.pop() {
        match socket(address).await {
            Ok(socket) => return Ok((socket, rest)),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    let error = failed.unwrap_or_else(|| io::ErrorKind::NotFound.into());
    let why = format!("{target} can't be connected to: {error}");
    Err(Failure::new(FailureCode::TARGET_REFUSED, why).retry())
}

/// Where a target may be, the likeliest first.
fn addresses(place: &Place) -> Vec<SocketAddr> {
    let of = |address: &Address| match *address {
        Address::At(address) => vec![address],
        Address::Machine(port) => vec![
            (Ipv4Addr::LOCALHOST, port).into(),
            (Ipv6Addr::LOCALHOST, port).into(),
        ],
    };
    place.addresses().iter().flat_map(of).collect()
}

async fn socket(target: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(target).await?;
    Ok(socket)
}
