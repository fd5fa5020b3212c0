//! Exec: a command on a node, its streams over a WebSocket.
//!
//! The connection lasts as long as the command. When it ends, however it does, the command is
//! stopped: an [`Exec`] that is dropped, and a process that is killed, leave nothing running. Where
//! it was asked to be kept it goes on instead, and [`Client::attach`] comes back to it.

use bytes::Bytes;
use form_urlencoded::Serializer;
use http::{HeaderMap, Uri};
use hub_protocol::kind::exec::{Offsets, OnDisconnect, Size};
use hub_server::api::channel::{self, Control, LastWord};
use tokio_tungstenite::tungstenite;

use super::socket::{self, Incoming, Reader, Socket, Writer};
use super::{Client, ClientError, parse, uri};

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
    /// A terminal of this size; none without. Then all it prints is on [`Event::Stdout`].
    pub tty: Option<Size>,
    /// What becomes of it when this client is gone.
    pub on_disconnect: OnDisconnect,
}

impl Request {
    fn uri(&self) -> Result<Uri, ClientError> {
        let mut query = Serializer::new(String::new());
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
        if let Some(size) = self.tty {
            query.append_pair("tty", "true");
            append_size(&mut query, size);
        }
        if self.on_disconnect == OnDisconnect::Keep {
            query.append_pair("on_disconnect", "keep");
        }
        parse(uri(&["nodes", &self.node, "exec"], Some(&query.finish())))
    }
}

/// Adds the sides of a terminal that are known.
fn append_size(query: &mut Serializer<'_, String>, size: Size) {
    for (name, side) in [("cols", size.cols), ("rows", size.rows)] {
        if side > 0 {
            query.append_pair(name, &side.to_string());
        }
    }
}

/// A kept command to come back to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attach {
    /// The node's name or id.
    pub node: String,
    /// The command's id.
    pub id: String,
    /// What was seen of it; without, it begins with the oldest output that is remembered.
    pub seen: Option<Offsets>,
    /// The terminal's size, if the command has one.
    pub size: Option<Size>,
}

impl Attach {
    fn uri(&self) -> Result<Uri, ClientError> {
        let mut query = Serializer::new(String::new());
        if let Some(seen) = self.seen {
            query.append_pair("stdout", &seen.stdout.to_string());
            query.append_pair("stderr", &seen.stderr.to_string());
        }
        if let Some(size) = self.size {
            append_size(&mut query, size);
        }
        let path = ["nodes", &self.node, "execs", &self.id, "attach"];
        parse(uri(&path, Some(&query.finish())))
    }
}

impl Client {
    /// Runs a command on a node: comes back when it runs there.
    pub async fn exec(&self, request: &Request) -> Result<Exec, ClientError> {
        Exec::open(self, request.uri()?).await
    }

    /// Comes back to a kept command. Another client that is attached is let go.
    pub async fn attach(&self, attach: &Attach) -> Result<Exec, ClientError> {
        Exec::open(self, attach.uri()?).await
    }
}

/// A command that runs on a node.
pub struct Exec {
    id: String,
    offsets: Offsets,
    socket: Socket,
}

impl Exec {
    async fn open(client: &Client, uri: Uri) -> Result<Self, ClientError> {
        let (socket, headers) = socket::open(client, uri, HeaderMap::new()).await?;
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let number = |name: &str| text(name).and_then(|text| text.parse().ok()).unwrap_or(0);
        Ok(Self {
            id: text(channel::EXEC_ID_HEADER).unwrap_or_default().to_owned(),
            offsets: Offsets {
                stdout: number(channel::STDOUT_OFFSET_HEADER),
                stderr: number(channel::STDERR_OFFSET_HEADER),
            },
            socket,
        })
    }

    /// What to call it by, on its node.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// How many bytes it printed before those that come now.
    pub fn offsets(&self) -> Offsets {
        self.offsets
    }

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

    /// Says that the terminal has another size.
    ///
    /// # Errors
    /// The connection broke; [`Output`] says more.
    pub async fn resize(&mut self, size: Size) -> Result<(), tungstenite::Error> {
        self.writer
            .message(channel::Size::from(size).encode())
            .await
    }

    /// Signals the command, with a number of [`channel::SIGNALS`].
    ///
    /// # Errors
    /// The connection broke; [`Output`] says more.
    pub async fn signal(&mut self, number: i32) -> Result<(), tungstenite::Error> {
        self.writer.message(Control::Signal(number).encode()).await
    }

    /// Leaves the command to itself, whatever was asked before: it goes on, and the last word is
    /// [`LastWord::Detached`].
    ///
    /// # Errors
    /// The connection broke; [`Output`] says more.
    pub async fn detach(&mut self) -> Result<(), tungstenite::Error> {
        self.writer.message(Control::Detach.encode()).await
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
    /// It ended so, or is left to itself. The last event.
    Ended(LastWord),
    /// The connection ended before the command did, for this reason. The last event: whether the
    /// command is being stopped or goes on is what was asked for.
    Lost(String),
}

/// What the command prints, and how it ends.
pub struct Output {
    reader: Reader,
}

impl Output {
    /// The next event. Whoever does not ask for it makes the command wait.
    pub async fn next(&mut self) -> Event {
        loop {
            return match self.reader.next().await {
                Incoming::Data(channel::STDOUT, bytes) => Event::Stdout(bytes),
                Incoming::Data(channel::STDERR, bytes) => Event::Stderr(bytes),
                Incoming::Closed(channel::STDIN) => Event::StdinClosed,
                Incoming::Data(channel::STATUS, status) => {
                    Event::Ended(LastWord::from_json(&status))
                }
                Incoming::Data(..) | Incoming::Closed(_) => continue,
                Incoming::Lost(why) => Event::Lost(why),
            };
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
            tty: None,
            on_disconnect: OnDisconnect::Kill,
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
    fn golden_terminals_and_returns() {
        let size = Size { cols: 80, rows: 24 };
        let terminal = Request {
            command: vec!["sh".into()],
            env: vec![],
            container: None,
            cwd: None,
            tty: Some(size),
            on_disconnect: OnDisconnect::Keep,
            ..request()
        };
        assert_eq!(
            terminal.uri().unwrap().query().unwrap(),
            "command=sh&stdin=true&tty=true&cols=80&rows=24&on_disconnect=keep"
        );
        let attach = Attach {
            node: "n".into(),
            id: "0f".into(),
            seen: Some(Offsets {
                stdout: 7,
                stderr: 0,
            }),
            size: Some(Size { rows: 0, ..size }),
        };
        assert_eq!(
            attach.uri().unwrap().to_string(),
            "/v1/nodes/n/execs/0f/attach?stdout=7&stderr=0&cols=80"
        );
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
