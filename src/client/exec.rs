//! Exec: a command on a node, its streams over a WebSocket.
//!
//! The connection lasts as long as the command. When it ends, however it does, the command is
//! stopped: an [`Exec`] that is dropped, and a process that is killed, leave nothing running.

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, Method, StatusCode, Uri, header};
use http_body_util::Full;
use hub_server::api::channel::{self, LastWord, MAX_MESSAGE, Message, SUBPROTOCOL};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message as WsMessage};

use super::{Client, ClientError};

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// The most bytes of stdin that one message carries.
pub const PIECE: usize = 32 * 1024;

/// What to run, and where. Arguments and variables may be secret: it has no `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    /// The node's name or id.
    pub node: String,
    /// The container's name or id; the machine itself without.
    pub container: Option<String>,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// Variables: name and value.
    pub env: Vec<(String, String)>,
    /// The working directory.
    pub cwd: Option<String>,
    /// The user.
    pub user: Option<String>,
    /// Whether the command reads what [`Input`] sends.
    pub stdin: bool,
}

impl Request {
    fn uri(&self) -> Result<Uri, ClientError> {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let mut optional = |name, value: &Option<String>| {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        };
        optional("container", &self.container);
        optional("cwd", &self.cwd);
        optional("user", &self.user);
        for argument in &self.command {
            query.append_pair("command", argument);
        }
        for (name, value) in &self.env {
            query.append_pair("env", &format!("{name}={value}"));
        }
        if self.stdin {
            query.append_pair("stdin", "true");
        }
        // The encoding of a form writes a space as +, which only a query reads so.
        let node: String = form_urlencoded::byte_serialize(self.node.as_bytes()).collect();
        let node = node.replace('+', "%20");
        let uri = format!("/v1/nodes/{node}/exec?{}", query.finish());
        uri.parse().map_err(|_| {
            ClientError::Request(
                "the command and its variables are too long: 64 KiB in all at most".into(),
            )
        })
    }
}

/// Starts a command: comes back when it runs on the node.
pub(super) async fn start(client: &Client, request: &Request) -> Result<Exec, ClientError> {
    let key = tungstenite::handshake::client::generate_key();
    let upgrade = http::Request::builder()
        .method(Method::GET)
        .uri(request.uri()?)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, &key)
        .header(header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL)
        .body(Full::new(Bytes::new()))
        .map_err(|error| ClientError::Request(error.to_string()))?;
    let broken = |reason: String| ClientError::Broken {
        endpoint: client.endpoint.clone(),
        reason,
    };
    let connection = client.connect().await?;
    connection
        .reset_at_end()
        .map_err(|error| broken(error.to_string()))?;
    let response = client.send(connection, upgrade).await?;
    let status = response.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        let reason = match client.success(response).await {
            Ok(_) => format!("status {status} instead of an upgrade"),
            Err(error) => return Err(error),
        };
        return Err(ClientError::Answer {
            endpoint: client.endpoint.clone(),
            reason,
        });
    }
    if !accepts(response.headers(), &key) {
        let reason = "the upgrade is not the one that was asked for".to_owned();
        return Err(ClientError::Answer {
            endpoint: client.endpoint.clone(),
            reason,
        });
    }
    let upgraded = hyper::upgrade::on(response)
        .await
        .map_err(|error| broken(error.to_string()))?;
    let config = WebSocketConfig::default()
        .read_buffer_size(PIECE)
        .write_buffer_size(0)
        .max_write_buffer_size(4 * PIECE)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    let io = TokioIo::new(upgraded);
    let socket = WebSocketStream::from_raw_socket(io, Role::Client, Some(config)).await;
    Ok(Exec { socket })
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

/// A command that runs on a node.
pub struct Exec {
    socket: Socket,
}

impl Exec {
    /// Its two directions, which do not wait for each other.
    pub fn split(self) -> (Input, Output) {
        let (sink, stream) = self.socket.split();
        (Input { sink }, Output { stream })
    }
}

/// What the command reads.
pub struct Input {
    sink: SplitSink<Socket, WsMessage>,
}

impl Input {
    /// Sends bytes to the command, as fast as it takes them.
    ///
    /// # Errors
    /// The connection broke; [`Output`] says more.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), tungstenite::Error> {
        for piece in bytes.chunks(PIECE) {
            self.message(channel::STDIN, piece).await?;
        }
        Ok(())
    }

    /// Says that nothing follows: the command reads end-of-file.
    ///
    /// # Errors
    /// The connection broke; [`Output`] says more.
    pub async fn finish(&mut self) -> Result<(), tungstenite::Error> {
        self.message(channel::CLOSE, &[channel::STDIN]).await
    }

    async fn message(&mut self, channel: u8, data: &[u8]) -> Result<(), tungstenite::Error> {
        self.sink
            .send(WsMessage::Binary(channel::encode(channel, data)))
            .await
    }
}

/// What comes from a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It printed this.
    Stdout(Bytes),
    /// It printed this as an error.
    Stderr(Bytes),
    /// It takes no more input.
    StdinClosed,
    /// It ended so. The last event.
    Ended(LastWord),
}

/// What the command prints, and how it ends.
pub struct Output {
    stream: SplitStream<Socket>,
}

impl Output {
    /// The next event. Whoever does not ask for it makes the command wait. A connection that ends
    /// without a last word is an unknown end.
    pub async fn next(&mut self) -> Event {
        loop {
            let unknown = match self.stream.next().await {
                Some(Ok(WsMessage::Binary(message))) => match Message::decode(message) {
                    Ok(Message::Stdout(bytes)) => return Event::Stdout(bytes),
                    Ok(Message::Stderr(bytes)) => return Event::Stderr(bytes),
                    Ok(Message::Close(channel::STDIN)) => return Event::StdinClosed,
                    Ok(Message::Status(status)) => {
                        return Event::Ended(LastWord::from_json(&status));
                    }
                    Ok(_) => continue,
                    Err(error) => error.to_string(),
                },
                Some(Ok(WsMessage::Close(Some(close)))) if !close.reason.is_empty() => {
                    close.reason.to_string()
                }
                None | Some(Ok(WsMessage::Close(_))) => "it was closed".to_owned(),
                Some(Ok(_)) => continue,
                Some(Err(error)) => error.to_string(),
            };
            let why = format!(
                "the connection to the hub ended before the command did ({unknown}); \
                 the command is being stopped, and may still be running"
            );
            return Event::Ended(LastWord::Unknown(why));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use http::HeaderValue;

    use super::*;

    fn request() -> Request {
        Request {
            node: "shop-4".into(),
            container: Some("web".into()),
            command: vec!["sh".into(), "-c".into(), "echo a&b =ü".into()],
            env: vec![("A".into(), "1=2".into())],
            cwd: Some("/t p".into()),
            user: None,
            stdin: true,
        }
    }

    #[test]
    fn golden_request() {
        let uri = request().uri().unwrap();
        assert_eq!(uri.path(), "/v1/nodes/shop-4/exec");
        assert_eq!(
            uri.query().unwrap(),
            "container=web&cwd=%2Ft+p&command=sh&command=-c&command=echo+a%26b+%3D%C3%BC\
             &env=A%3D1%3D2&stdin=true"
        );
        let odd = Request {
            node: "a /?b".into(),
            ..request()
        };
        assert_eq!(odd.uri().unwrap().path(), "/v1/nodes/a%20%2F%3Fb/exec");
    }

    #[test]
    fn what_is_too_long_is_said_before_it_is_sent() {
        let long = Request {
            command: vec!["x".repeat(70_000)],
            ..request()
        };
        assert!(matches!(long.uri(), Err(ClientError::Request(text)) if text.contains("64 KiB")));
    }

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
}
