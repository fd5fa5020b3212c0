//! Operations over a WebSocket: binary messages that begin with the number of their channel.
//!
//! ```text
//! open --GET, Upgrade--> 101 with headers --split--> Writer: channel + bytes, 255 + channel
//!                    `-> a problem document     `--> Reader: the same, or how the connection ended
//! ```
//!
//! The connection lasts as long as the operation. When it ends, however it does, the hub hears of
//! it at once: a socket that is dropped, and a process that is killed, reset it.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, Method, StatusCode, Uri, header};
use http_body_util::Full;
use hub_server::api::channel::{self, MAX_MESSAGE, SUBPROTOCOL};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};

use super::{Client, ClientError, reason};

type Stream = WebSocketStream<TokioIo<Upgraded>>;

/// The most bytes that one message of ours carries: 32 KiB.
pub const PIECE: usize = 32 * 1024;

/// Opens a WebSocket to this path and query of the API, with these headers beside its own. Gives
/// the headers of the hub's answer, too.
///
/// # Errors
/// Nobody answers, the hub refuses, or the answer is no upgrade.
pub(super) async fn open(
    client: &Client,
    uri: Uri,
    headers: HeaderMap,
) -> Result<(Socket, HeaderMap), ClientError> {
    let key = tungstenite::handshake::client::generate_key();
    let mut upgrade = http::Request::builder()
        .method(Method::GET)
        .uri(uri)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, &key)
        .header(header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL)
        .body(Full::new(Bytes::new()))
        .map_err(|error| ClientError::Request(error.to_string()))?;
    upgrade.headers_mut().extend(headers);
    let mut response = client.send(client.lasting().await?, upgrade).await?;
    let status = response.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        client.success(response).await?;
        return Err(client.senseless(format!("status {status} instead of an upgrade")));
    }
    if !accepts(response.headers(), &key) {
        return Err(client.senseless("the upgrade is not the one that was asked for"));
    }
    let headers = std::mem::take(response.headers_mut());
    let upgraded = hyper::upgrade::on(response)
        .await
        .map_err(|error| client.broken(reason(&error)))?;
    let config = WebSocketConfig::default()
        .read_buffer_size(PIECE)
        .write_buffer_size(0)
        .max_write_buffer_size(4 * PIECE)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    let io = TokioIo::new(upgraded);
    let stream = WebSocketStream::from_raw_socket(io, Role::Client, Some(config)).await;
    Ok((Socket { stream }, headers))
}

fn accepts(headers: &HeaderMap, key: &str) -> bool {
    let is = |name, value: &str| {
        let found = headers.get(name).map(http::HeaderValue::as_bytes);
        found.is_some_and(|found| found.eq_ignore_ascii_case(value.as_bytes()))
    };
    // Base64, unlike names, tells capitals apart.
    let accept = headers
        .get(header::SEC_WEBSOCKET_ACCEPT)
        .map(http::HeaderValue::as_bytes);
    accept == Some(derive_accept_key(key.as_bytes()).as_bytes())
        && is(header::UPGRADE, "websocket")
        && is(header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL)
}

/// An operation's WebSocket.
pub(super) struct Socket {
    stream: Stream,
}

impl Socket {
    /// Its two directions, which do not wait for each other.
    pub(super) fn split(self) -> (Writer, Reader) {
        let (sink, stream) = self.stream.split();
        let reader = Reader {
            stream,
            pings: false,
        };
        (Writer { sink }, reader)
    }
}

/// Messages to the hub.
pub(super) struct Writer {
    sink: SplitSink<Stream, Message>,
}

impl Writer {
    /// Sends bytes on a channel, in messages of [`PIECE`] at most, as fast as they are taken.
    /// Dropped halfway, a whole number of pieces is on its way.
    ///
    /// # Errors
    /// The connection broke; [`Reader`] says more.
    pub(super) async fn send(
        &mut self,
        channel: u8,
        bytes: &[u8],
    ) -> Result<(), tungstenite::Error> {
        for piece in bytes.chunks(PIECE) {
            self.message(channel::encode(channel, piece)).await?;
        }
        Ok(())
    }

    /// Says that nothing follows on a channel.
    ///
    /// # Errors
    /// The connection broke; [`Reader`] says more.
    pub(super) async fn close(&mut self, channel: u8) -> Result<(), tungstenite::Error> {
        self.message(channel::encode(channel::CLOSE, &[channel]))
            .await
    }

    /// Sends a message that is ready.
    ///
    /// # Errors
    /// The connection broke; [`Reader`] says more.
    pub(super) async fn message(&mut self, message: Bytes) -> Result<(), tungstenite::Error> {
        self.sink.send(Message::Binary(message)).await
    }
}

/// What comes from the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Incoming {
    /// Bytes on a channel, at least one.
    Data(u8, Bytes),
    /// Nothing more comes, or is taken, on this channel.
    Closed(u8),
    /// The connection has ended, for this reason. Nothing follows.
    Lost(String),
}

/// How long a hub that says it is there may be silent: six of its pings.
const SILENCE: Duration = Duration::from_secs(30);

/// Messages from the hub.
pub(super) struct Reader {
    stream: SplitStream<Stream>,
    /// Whether the hub pings: only then silence means that it is gone.
    pings: bool,
}

impl Reader {
    /// The next message. Whoever does not ask for it makes the other side wait. May be dropped and
    /// asked again.
    pub(super) async fn next(&mut self) -> Incoming {
        loop {
            let Ok(next) = self.heard().await else {
                return Incoming::Lost(format!("nothing came for {} s", SILENCE.as_secs()));
            };
            let lost = match next {
                Some(Ok(Message::Binary(message))) => match read(message) {
                    Ok(Some(incoming)) => return incoming,
                    Ok(None) => continue,
                    Err(error) => error,
                },
                Some(Ok(Message::Close(Some(close)))) if !close.reason.is_empty() => {
                    close.reason.to_string()
                }
                None | Some(Ok(Message::Close(_))) => "it was closed".to_owned(),
                Some(Ok(other)) => {
                    self.pings |= matches!(other, Message::Ping(_));
                    continue;
                }
                Some(Err(error)) => error.to_string(),
            };
            return Incoming::Lost(lost);
        }
    }

    async fn heard(&mut self) -> Result<Option<Result<Message, tungstenite::Error>>, Elapsed> {
        let next = self.stream.next();
        if self.pings {
            timeout(SILENCE, next).await
        } else {
            Ok(next.await)
        }
    }
}

/// What a binary message says; nothing, where it merely announces a channel.
fn read(mut message: Bytes) -> Result<Option<Incoming>, String> {
    if message.is_empty() {
        return Ok(None);
    }
    let channel = message.split_to(1)[0];
    match (channel, &message[..]) {
        (channel::CLOSE, [channel]) => Ok(Some(Incoming::Closed(*channel))),
        (channel::CLOSE, _) => Err(format!(
            "a close message takes one channel number, not {} bytes",
            message.len()
        )),
        (_, []) => Ok(None),
        _ => Ok(Some(Incoming::Data(channel, message))),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_the_upgrade_that_was_asked_for_counts() {
        // The key and its answer are those of RFC 6455, section 1.3.
        let key = "dGhlIHNhbXBsZSBub25jZQ==";
        let mut headers = HeaderMap::new();
        let set = |headers: &mut HeaderMap, name, value: &'static str| {
            headers.insert(name, HeaderValue::from_static(value));
        };
        set(&mut headers, header::UPGRADE, "WebSocket");
        set(&mut headers, header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL);
        assert!(!accepts(&headers, key));
        set(
            &mut headers,
            header::SEC_WEBSOCKET_ACCEPT,
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
        );
        assert!(accepts(&headers, key));
        assert!(!accepts(&headers, "AAAAAAAAAAAAAAAAAAAAAA=="));
        set(
            &mut headers,
            header::SEC_WEBSOCKET_PROTOCOL,
            "v4.channel.k8s.io",
        );
        assert!(!accepts(&headers, key));
    }

    #[test]
    fn messages_begin_with_their_channel() {
        let read = |bytes: &'static [u8]| read(Bytes::from_static(bytes));
        let data = Incoming::Data(7, Bytes::from_static(b"x\x00"));
        assert_eq!(read(b"\x07x\x00"), Ok(Some(data)));
        assert_eq!(read(b"\xff\x01"), Ok(Some(Incoming::Closed(1))));
        assert_eq!((read(b""), read(b"\x01")), (Ok(None), Ok(None)));
        assert!(read(b"\xff").is_err() && read(b"\xff\x01\x02").is_err());
    }
}
