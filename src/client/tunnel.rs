//! A connection to a node's Docker socket, byte for byte over a WebSocket.

use std::time::Duration;

use http::HeaderMap;
use hub_server::api::channel::{self, Finish};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::sleep;

use super::socket::{self, Incoming, PIECE, Reader, Socket, Writer};
use super::{Client, ClientError, uri};

const TO_DOCKER: u8 = 0;
const FROM_DOCKER: u8 = 1;

/// How long Docker may take to end what it was doing for a local side that is gone, before it is
/// cut off.
const FAREWELL: Duration = Duration::from_secs(1);

/// A connection to a node's Docker socket. Dropped, it is cut off there, too.
pub struct Tunnel {
    socket: Socket,
}

/// Why a tunnel was cut off.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the connection to the node's Docker was cut off: {0}")]
pub struct Cut(String);

impl Client {
    /// Connects to a node's Docker socket, if its agent allows it.
    pub async fn docker(&self, node: &str) -> Result<Tunnel, ClientError> {
        let uri = super::parse(uri(&["nodes", node, "docker"], None))?;
        let (socket, _) = socket::open(self, uri, HeaderMap::new()).await?;
        Ok(Tunnel { socket })
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
        let (writer, reader) = self.socket.split();
        tokio::select! {
            ended = outward(reader, to_here) => ended,
            () = inward(writer, from_here, gone) => Ok(()),
        }
    }
}

/// From here to Docker. Comes back only where the local side broke or is gone. A daemon that waits
/// with nothing to say would notice neither, nor would it that only one direction has ended.
async fn inward(
    mut writer: Writer,
    mut from_here: impl AsyncRead + Unpin,
    gone: impl Future<Output = ()>,
) {
    let mut buffer = vec![0; PIECE];
    loop {
        match from_here.read(&mut buffer).await {
            Err(_) => return,
            // What goes wrong with the other side the reader says.
            Ok(0) => {
                let _ = writer.close(TO_DOCKER).await;
                gone.await;
                return sleep(FAREWELL).await;
            }
            Ok(read) => {
                if writer.send(TO_DOCKER, &buffer[..read]).await.is_err() {
                    return std::future::pending().await;
                }
            }
        }
    }
}

/// From Docker to here, until all is said.
async fn outward(mut reader: Reader, mut to_here: impl AsyncWrite + Unpin) -> Result<(), Cut> {
    loop {
        let written = match reader.next().await {
            Incoming::Data(FROM_DOCKER, bytes) => to_here.write_all(&bytes).await,
            Incoming::Closed(FROM_DOCKER) => to_here.shutdown().await,
            Incoming::Data(channel::STATUS, status) => {
                return match Finish::from_json(&status) {
                    Finish::Complete { .. } => Ok(()),
                    Finish::Failed(problem) => Err(Cut(problem.detail)),
                };
            }
            Incoming::Data(..) | Incoming::Closed(_) => continue,
            Incoming::Lost(why) => return Err(Cut(why)),
        };
        if written.is_err() {
            return Ok(());
        }
    }
}
