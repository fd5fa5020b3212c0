//! A connection to a node's Docker socket or to one of its ports, byte for byte over a WebSocket.

use std::io;
use std::time::Duration;

use bytes::{BufMut as _, BytesMut};
use form_urlencoded::Serializer;
use http::HeaderMap;
use hub_protocol::target::{Selector, Target};
use hub_server::api::channel::{self, Finish};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::sleep;

use super::socket::{self, Incoming, PIECE, Reader, Socket, Writer};
use super::{Client, ClientError, uri};

const TO_THERE: u8 = 0;
const FROM_THERE: u8 = 1;

/// How long the far side may take to end what it was doing for a local side that is gone, before it
/// is cut off.
const FAREWELL: Duration = Duration::from_secs(1);

/// A connection to something on a node. Dropped, it is cut off there, too.
pub struct Tunnel {
    socket: Socket,
    to: String,
}

/// Why a tunnel was cut off.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the connection to {to} was cut off: {why}")]
pub struct Cut {
    to: String,
    why: String,
}

impl Client {
    /// Connects to a node's Docker socket, if its agent allows it.
    pub async fn docker(&self, node: &str) -> Result<Tunnel, ClientError> {
        let uri = uri(&["nodes", node, "docker"], None);
        self.tunnel(uri, "the node's Docker".into()).await
    }

    /// Connects to a TCP port of a node or of a container on it, if its agent allows it.
    pub async fn forward(&self, node: &str, target: &Target) -> Result<Tunnel, ClientError> {
        let mut query = Serializer::new(String::new());
        query.append_pair("port", &target.port.to_string());
        match &target.container {
            Some(Selector::Name(name)) => query.append_pair("container", name),
            Some(Selector::Label(label)) => query.append_pair("label", label),
            None => &mut query,
        };
        let uri = uri(&["nodes", node, "forward"], Some(&query.finish()));
        self.tunnel(uri, target.to_string()).await
    }

    async fn tunnel(&self, uri: String, to: String) -> Result<Tunnel, ClientError> {
        let (socket, _) = socket::open(self, super::parse(uri)?, HeaderMap::new()).await?;
        Ok(Tunnel { socket, to })
    }
}

impl Tunnel {
    /// Carries a local connection until both directions have ended. Each may end before the
    /// other, and each waits for its own reader. `gone` tells an end that closed from one that only
    /// writes no more; it is asked once all that came from there is on its way.
    ///
    /// # Errors
    /// The node, the hub or the network cut it off. That the local side went away is no error.
    pub async fn carry(
        self,
        from_here: impl AsyncRead + Unpin,
        to_here: impl AsyncWrite + Unpin,
        gone: impl Future<Output = ()>,
    ) -> Result<(), Cut> {
        let Self { socket, to } = self;
        let (writer, reader) = socket.split();
        tokio::select! {
            ended = outward(reader, to_here) => ended.map_err(|why| Cut { to, why }),
            () = inward(writer, from_here, gone) => Ok(()),
        }
    }
}

/// From here to there. Comes back only where the local side broke or is gone. A far side that waits
/// with nothing to say would notice neither, nor would it that only one direction has ended.
async fn inward(
    mut writer: Writer,
    mut from_here: impl AsyncRead + Unpin,
    gone: impl Future<Output = ()>,
) {
    let mut buffer = BytesMut::new();
    loop {
        // A message of its own, so that nothing is copied into one.
        buffer.reserve(1 + PIECE);
        buffer.put_u8(TO_THERE);
        match from_here.read_buf(&mut (&mut buffer).limit(PIECE)).await {
            Err(_) => return,
            // What goes wrong with the other side the reader says.
            Ok(0) => {
                let _ = writer.close(TO_THERE).await;
                gone.await;
                return sleep(FAREWELL).await;
            }
            Ok(_) => {
                if writer.message(buffer.split().freeze()).await.is_err() {
                    return std::future::pending().await;
                }
            }
        }
    }
}

/// From there to here, until all is said; or why it ended before.
async fn outward(mut reader: Reader, mut to_here: impl AsyncWrite + Unpin) -> Result<(), String> {
    loop {
        let written = match reader.next().await {
            Incoming::Data(FROM_THERE, bytes) => write(&mut to_here, &bytes).await,
            Incoming::Closed(FROM_THERE) => to_here.shutdown().await,
            Incoming::Data(channel::STATUS, status) => {
                return match Finish::from_json(&status) {
                    Finish::Complete { .. } => Ok(()),
                    Finish::Failed(problem) => Err(problem.detail),
                };
            }
            Incoming::Data(..) | Incoming::Closed(_) => continue,
            Incoming::Lost(why) => return Err(why),
        };
        if written.is_err() {
            return Ok(());
        }
    }
}

/// Standard output keeps a line until its end is there, and is written on a thread that a shutdown
/// does not wait for: what came has to leave now.
async fn write(to_here: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    to_here.write_all(bytes).await?;
    to_here.flush().await
}
