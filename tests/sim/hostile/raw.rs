//! The wire by hand, and connections of bare quinn.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use hub_quic::endpoint::Network as _;
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, ReadError, RecvStream, SendStream,
    ServerConfig, TokioRuntime, TransportConfig, VarInt,
};

use crate::world::SimNetwork;

/// The tag of an exec's `Open`, and of `Data`.
pub const EXEC: u8 = 1;
/// The tag of the `Open` of an HTTP request.
pub const HTTP: u8 = 2;

pub const DATA: u64 = 1;
pub const CREDIT: u64 = 2;
pub const END: u64 = 3;
pub const FAILED: u64 = 7;
pub const FINISHED: u64 = 8;

/// `Open` of an exec of `cat` with stdin.
pub const OPEN_CAT: &[u8] = b"\x01\x0c\x00\x01\x03cat\x00\x00\x00\x01\x00\x00";
/// `Open` of an exec of `sleep` with stdin, which it does not read.
pub const OPEN_SLEEP: &[u8] = b"\x01\x0e\x00\x01\x05sleep\x00\x00\x00\x01\x00\x00";
pub const ACCEPTED: &[u8] = b"\x06\x00";
/// `Done` with the outcome "exited with 0".
pub const DONE: &[u8] = b"\x08\x02\x00\x00";
/// `Failed` with code, message and "does not help to try again", all of them zero or empty.
pub const FAIL: &[u8] = b"\x07\x03\x00\x00\x00";

pub const STDIN: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;
pub const MESSAGES: u8 = 0x3f;

/// Bytes that a channel may carry before the first credit.
pub const INITIAL: u64 = 65_536;
/// The largest value that a variable-length integer holds.
pub const MOST: u64 = (1 << 62) - 1;

/// Frames of the control stream.
pub const HELLO: u8 = 0x01;
pub const WELCOME: u8 = 0x02;
pub const REFUSED: u8 = 0x03;
pub const HEARTBEAT: u8 = 0x10;
pub const GO_AWAY: u8 = 0x11;
pub const TARGETS: u8 = 0x12;

/// A variable-length integer as RFC 9000 has it.
pub fn varint(value: u64) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    match value {
        0..64 => vec![bytes[7]],
        64..16_384 => vec![0x40 | bytes[6], bytes[7]],
        16_384..0x4000_0000 => vec![0x80 | bytes[4], bytes[5], bytes[6], bytes[7]],
        _ => [&[0xc0 | bytes[0]], &bytes[1..]].concat(),
    }
}

/// A variable-length integer as postcard has it.
pub fn leb128(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

pub fn frame(tag: u8, payload: &[u8]) -> Vec<u8> {
    [&[tag][..], &varint(payload.len() as u64), payload].concat()
}

pub fn data(channel: u8, bytes: &[u8]) -> Vec<u8> {
    frame(1, &[&[channel], bytes].concat())
}

pub fn credit(channel: u8, bytes: u64) -> Vec<u8> {
    frame(2, &[&[channel][..], &varint(bytes)].concat())
}

pub fn end(channel: u8) -> Vec<u8> {
    frame(3, &[channel])
}

pub fn stop(channel: u8) -> Vec<u8> {
    frame(4, &[channel])
}

pub fn message(bytes: &[u8]) -> Vec<u8> {
    frame(5, bytes)
}

/// What a peer does wrong, once its operation is under way, and what that costs it.
pub struct Breach {
    pub name: &'static str,
    pub wire: Vec<u8>,
    /// Whether it comes in the place of the agent's `Accepted`.
    pub unaccepted: bool,
    /// Whether the peer ends its direction of the stream behind it.
    pub fin: bool,
    /// What the counter of the honest side calls it.
    pub kind: &'static str,
    /// The channel that the honest side names.
    pub channel: &'static str,
    /// The code that the peer is told.
    pub code: u64,
}

/// [`Breach::code`] of a window that was broken, and of any other rule.
pub const WINDOW: u64 = 1;
pub const PROTOCOL: u64 = 2;

pub fn breach(
    name: &'static str,
    (kind, channel, code): (&'static str, &'static str, u64),
    frames: &[&[u8]],
) -> Breach {
    Breach {
        name,
        wire: frames.concat(),
        unaccepted: false,
        fin: false,
        kind,
        channel,
        code,
    }
}

/// Reads frames off a stream.
pub struct Reader {
    pub recv: RecvStream,
    buffer: VecDeque<u8>,
}

impl Reader {
    pub fn new(recv: RecvStream) -> Self {
        Self {
            recv,
            buffer: VecDeque::new(),
        }
    }

    /// The next frame: tag and payload; `None` at a clean end.
    pub async fn frame(&mut self) -> Result<Option<(u64, Bytes)>, ReadError> {
        loop {
            if let Some(frame) = self.take() {
                return Ok(Some(frame));
            }
            let Some(chunk) = self.recv.read_chunk(65_536, true).await? else {
                assert!(self.buffer.is_empty(), "the stream ended inside a frame");
                return Ok(None);
            };
            self.buffer.extend(&chunk.bytes);
        }
    }

    /// The next frame, which has to be there.
    pub async fn expect(&mut self) -> (u64, Bytes) {
        self.frame().await.unwrap().expect("the stream ended")
    }

    fn take(&mut self) -> Option<(u64, Bytes)> {
        let head: Vec<u8> = self.buffer.iter().take(16).copied().collect();
        let (tag, at) = read_varint(&head)?;
        let (len, more) = read_varint(&head[at..])?;
        let (from, to) = (at + more, at + more + len as usize);
        if self.buffer.len() < to {
            return None;
        }
        let frame: Vec<u8> = self.buffer.drain(..to).collect();
        Some((tag, Bytes::from(frame).slice(from..)))
    }

    /// The code with which the peer reset its direction; what comes before is passed over.
    pub async fn reset_code(&mut self) -> u64 {
        loop {
            match self.recv.read_chunk(65_536, true).await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("a clean end"),
                Err(ReadError::Reset(code)) => return code.into_inner(),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A variable-length integer from the front, and how long it is.
fn read_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let len = 1 << (first >> 6);
    let tail = bytes.get(1..len)?;
    let value = tail.iter().fold(u64::from(first & 0x3f), |value, byte| {
        value << 8 | u64::from(*byte)
    });
    Some((value, len))
}

/// Channel and amount of a `Credit`.
pub fn read_credit(payload: &[u8]) -> (u8, u64) {
    (payload[0], read_varint(&payload[1..]).unwrap().0)
}

/// Writes what may make the peer stop the stream at any byte.
pub async fn commit(wire: &[u8], fin: bool, send: &mut SendStream) {
    let _ = send.write_all(wire).await;
    if fin {
        let _ = send.finish();
    }
}

/// The code with which the peer stopped our direction. `None` if it had acknowledged all of it,
/// its end included, before.
pub async fn stop_code(send: &SendStream) -> Option<u64> {
    send.stopped().await.unwrap().map(VarInt::into_inner)
}

/// The code with which the peer closed the connection.
pub async fn close_code(connection: &Connection) -> u64 {
    match connection.closed().await {
        ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
        other => panic!("not closed by the peer: {other}"),
    }
}

/// A bare endpoint.
pub fn endpoint(network: &SimNetwork, port: u16, server: Option<ServerConfig>) -> Endpoint {
    let address = SocketAddr::from(([0, 0, 0, 0], port));
    let socket = network.bind(address).unwrap();
    let config = network.endpoint_config();
    Endpoint::new_with_abstract_socket(config, server, socket, Arc::new(TokioRuntime)).unwrap()
}

/// Keep-alives are sent, so that a peer that says nothing is not taken for a dead one.
pub fn transport() -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport.keep_alive_interval(Some(std::time::Duration::from_secs(5)));
    transport
}

/// Dials a hub with whatever is to be shown there.
pub async fn dial(
    network: &SimNetwork,
    hub: SocketAddr,
    tls: Arc<dyn quinn::crypto::ClientConfig>,
    transport: TransportConfig,
) -> Result<Connection, ConnectionError> {
    let mut client = ClientConfig::new(tls);
    client.transport_config(Arc::new(transport));
    network.seed_client(&mut client);
    let connecting = endpoint(network, 0, None).connect_with(client, hub, "control.hub.internal");
    connecting.unwrap().await
}
