//! Exec: a command on a node, its streams over a WebSocket.
//!
//! The connection lasts as long as the command. When it ends, however it does, the command is
//! stopped: an [`Exec`] that is dropped, and a process that is killed, leave nothing running.

use bytes::Bytes;
use http::Uri;
use hub_server::api::channel::{self, LastWord};
use tokio_tungstenite::tungstenite;

use super::socket::{self, Incoming, Reader, Socket, Writer};
use super::{Client, ClientError};

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
        let uri = super::uri(&["nodes", &self.node, "exec"], Some(&query.finish()));
        uri.parse().map_err(|_| {
            ClientError::Request(
                "the command and its variables are too long: 64 KiB in all at most".into(),
            )
        })
    }
}

/// Starts a command: comes back when it runs on the node.
pub(super) async fn start(client: &Client, request: &Request) -> Result<Exec, ClientError> {
    let (socket, _) = socket::open(client, request.uri()?).await?;
    Ok(Exec { socket })
}

/// A command that runs on a node.
pub struct Exec {
    socket: Socket,
}

impl Exec {
    /// Its two directions, which do not wait for each other.
    pub fn split(self) -> (Input, Output) {
        let (writer, reader) = self.socket.split();
        (Input { writer }, Output { reader })
    }
}

/// What the command reads.
pub struct Input {
    writer: Writer,
}

impl Input {
    /// Sends bytes to the command, as fast as it takes them.
    ///
    /// # Errors
    /// The connection broke; [`Output`] says more.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), tungstenite::Error> {
        self.writer.send(channel::STDIN, bytes).await
    }

    /// Says that nothing follows: the command reads end-of-file.
    ///
    /// # Errors
    /// The connection broke; [`Output`] says more.
    pub async fn finish(&mut self) -> Result<(), tungstenite::Error> {
        self.writer.close(channel::STDIN).await
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
    reader: Reader,
}

impl Output {
    /// The next event. Whoever does not ask for it makes the command wait. A connection that ends
    /// without a last word is an unknown end.
    pub async fn next(&mut self) -> Event {
        loop {
            let unknown = match self.reader.next().await {
                Incoming::Data(channel::STDOUT, bytes) => return Event::Stdout(bytes),
                Incoming::Data(channel::STDERR, bytes) => return Event::Stderr(bytes),
                Incoming::Closed(channel::STDIN) => return Event::StdinClosed,
                Incoming::Data(channel::STATUS, status) => {
                    return Event::Ended(LastWord::from_json(&status));
                }
                Incoming::Data(..) | Incoming::Closed(_) => continue,
                Incoming::Lost(why) => why,
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
}
