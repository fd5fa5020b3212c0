//! `GET /v1/nodes/{node}/exec`: an exec operation behind a WebSocket.
//!
//! ```text
//! client --WebSocket--> input  --credit--> Sender(stdin)             } one operation,
//! client <--WebSocket-- output <---------- Receiver(stdout, stderr)  } one QUIC stream
//! ```
//!
//! The two pumps know nothing of each other: stdin without credit holds no output back, and a
//! client that does not read holds no stdin back. Each holds one message at a time: the next is
//! taken when the last is with the other side. When the client is gone the operation is dropped,
//! and with it the command is stopped.

use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message as WsMessage, WebSocket, close_code};
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use hub_protocol::kind::exec::{self, Open, Outcome};
use hub_quic::operation::{Ended, Operation, Receiver, Sender};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};

use super::channel::{self, LastWord, Message};
use crate::hangup::Hangup;
use crate::seats::Seat;

/// How often something is said to a client, so that its kernel answers for one that is gone.
const PING: Duration = Duration::from_secs(5);

/// How long a client may take to be told why its exec is given up.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long a client that has had the last word may take to close.
const CLOSING: Duration = Duration::from_secs(5);

/// The same once the hub stops: nothing is under way any more.
const CLOSING_AT_STOP: Duration = Duration::from_millis(250);

/// A query that asks for no exec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum QueryError {
    #[error(
        "the query parameter {0:?} is unknown; there are container, command, env, cwd, user, stdin"
    )]
    Unknown(String),
    #[error("the query parameter {0} may be given once")]
    Repeated(&'static str),
    #[error("the query parameter stdin takes true or false")]
    NotABool,
    #[error("the query parameter env takes NAME=VALUE")]
    NotAVariable,
    #[error("the query parameter command is missing: once for the command and each argument")]
    NoCommand,
}

/// What a query asks for. Errors repeat names only: values may be secret.
pub(super) fn parse_query(query: &str) -> Result<Open, QueryError> {
    let mut open = Open {
        container: None,
        argv: Vec::new(),
        env: Vec::new(),
        cwd: None,
        user: None,
        stdin: false,
        tty: None,
        on_disconnect: exec::OnDisconnect::Kill,
    };
    let mut stdin = None;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let value = value.into_owned();
        match &*name {
            "command" => open.argv.push(value),
            "env" => match value.split_once('=') {
                Some((name, value)) if !name.is_empty() => {
                    open.env.push((name.to_owned(), value.to_owned()));
                }
                _ => return Err(QueryError::NotAVariable),
            },
            "container" => once("container", &mut open.container, value)?,
            "cwd" => once("cwd", &mut open.cwd, value)?,
            "user" => once("user", &mut open.user, value)?,
            "stdin" => {
                let value = value.parse().map_err(|_| QueryError::NotABool)?;
                once("stdin", &mut stdin, value)?;
            }
            unknown => return Err(QueryError::Unknown(unknown.chars().take(40).collect())),
        }
    }
    if open.argv.is_empty() {
        return Err(QueryError::NoCommand);
    }
    open.stdin = stdin.unwrap_or(false);
    Ok(open)
}

fn once<T>(name: &'static str, slot: &mut Option<T>, value: T) -> Result<(), QueryError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(QueryError::Repeated(name)),
    }
}

/// Why the client gets nothing more.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Gone {
    /// The hub stops, and has waited long enough.
    Cut,
    /// It closed, or its connection broke.
    Left,
    /// It broke the subprotocol, which it is told with this close code and text.
    Violated(u16, String),
}

/// Carries an exec that the agent has begun until the command has ended or the client is gone.
/// Dropping the operation early stops the command. Holds the connection's seat meanwhile.
pub(super) async fn run(
    socket: WebSocket,
    operation: Operation,
    node: &str,
    stdin: bool,
    hangup: Hangup,
    seat: &Seat,
) {
    let (mut sink, stream) = socket.split();
    let (refuses, refused) = oneshot::channel();
    let sender = stdin.then(|| operation.sender(exec::STDIN));
    let mut input = std::pin::pin!(input(stream, sender, refuses));
    let gone = tokio::select! {
        gone = &mut input => gone,
        () = hangup.wait() => Gone::Left,
        () = seat.cut() => Gone::Cut,
        ended = output(&mut sink, &operation, node, refused) => match ended {
            Ok(word) => {
                drop(operation);
                tracing::info!(?word, "exec ended");
                // What the client still sends has to be read: a connection that is closed over
                // unread bytes is reset, and takes the last word with it.
                tokio::select! {
                    _ = timeout(CLOSING, input) => {}
                    () = hangup.wait() => {}
                    () = async {
                        seat.stopping().await;
                        sleep(CLOSING_AT_STOP).await;
                    } => {}
                }
                return;
            }
            Err(axum::Error { .. }) => Gone::Left,
        },
    };
    drop(operation);
    match gone {
        Gone::Left => tracing::info!("the client is gone; the command is stopped"),
        Gone::Cut => {
            tracing::info!("the hub stops; the command is stopped");
            let word = LastWord::Unknown(format!(
                "node {node}: the hub is stopping; the command is told to stop, and how it ends \
                 is not waited for"
            ));
            let _ = timeout(FAREWELL, say_last(&mut sink, &word)).await;
        }
        Gone::Violated(code, reason) => {
            tracing::warn!(%reason, "the client broke the protocol; the command is stopped");
            let close = WsMessage::Close(Some(CloseFrame {
                code,
                reason: reason.into(),
            }));
            let _ = timeout(FAREWELL, sink.send(close)).await;
        }
    }
}

/// From the client to the command, until the client is gone. Takes the next message when there was
/// credit for all of the last.
async fn input(
    mut stream: SplitStream<WebSocket>,
    mut stdin: Option<Sender>,
    refuses: oneshot::Sender<()>,
) -> Gone {
    let mut refuses = Some(refuses);
    loop {
        let message = tokio::select! {
            () = stopped(stdin.as_mut()) => {
                stdin = None;
                // The pump of the output may be gone already.
                let _ = refuses.take().map(|refuses| refuses.send(()));
                continue;
            }
            message = stream.next() => message,
        };
        let message = match message {
            Some(Ok(WsMessage::Binary(message))) => message,
            Some(Ok(WsMessage::Ping(_) | WsMessage::Pong(_))) => continue,
            Some(Ok(WsMessage::Text(_))) => {
                let reason = "text messages are not part of the subprotocol".to_owned();
                return Gone::Violated(close_code::UNSUPPORTED, reason);
            }
            None | Some(Ok(WsMessage::Close(_)) | Err(_)) => return Gone::Left,
        };
        match Message::decode(message) {
            Ok(Message::Stdin(bytes)) => {
                if let Some(sender) = &mut stdin
                    && sender.send(bytes).await.is_err()
                {
                    stdin = None;
                    let _ = refuses.take().map(|refuses| refuses.send(()));
                }
            }
            Ok(Message::Close(channel::STDIN)) => {
                if let Some(mut sender) = stdin.take() {
                    sender.finish();
                }
            }
            // There is no terminal yet whose size could change.
            Ok(Message::Resize(_) | Message::Empty) => {}
            Ok(Message::Close(other)) => {
                let reason = format!("channel {other} is not the client's to close");
                return Gone::Violated(close_code::PROTOCOL, reason);
            }
            Ok(Message::Stdout(_) | Message::Stderr(_) | Message::Status(_)) => {
                let reason = "only the server sends on channels 1 to 3".to_owned();
                return Gone::Violated(close_code::PROTOCOL, reason);
            }
            Err(error) => return Gone::Violated(close_code::PROTOCOL, error.to_string()),
        }
    }
}

async fn stopped(sender: Option<&mut Sender>) {
    match sender {
        Some(sender) => sender.stopped().await,
        None => std::future::pending().await,
    }
}

/// From the command to the client: all it prints, then how it ended.
async fn output(
    sink: &mut SplitSink<WebSocket, WsMessage>,
    operation: &Operation,
    node: &str,
    mut refused: oneshot::Receiver<()>,
) -> Result<LastWord, axum::Error> {
    let mut stdout = Some(operation.receiver(exec::STDOUT));
    let mut stderr = Some(operation.receiver(exec::STDERR));
    let mut takes_stdin = true;
    let mut ping = interval_at(Instant::now() + PING, PING);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let word = loop {
        let message = tokio::select! {
            chunk = chunk(&mut stdout), if stdout.is_some() => match chunk {
                Some(chunk) => channel::encode(channel::STDOUT, &chunk),
                None => continue,
            },
            chunk = chunk(&mut stderr), if stderr.is_some() => match chunk {
                Some(chunk) => channel::encode(channel::STDERR, &chunk),
                None => continue,
            },
            refused = &mut refused, if takes_stdin => {
                takes_stdin = false;
                match refused {
                    Ok(()) => channel::encode(channel::CLOSE, &[channel::STDIN]),
                    Err(_) => continue,
                }
            }
            done = operation.done(), if stdout.is_none() && stderr.is_none() => {
                break last_word(node, done);
            }
            _ = ping.tick() => {
                sink.send(WsMessage::Ping(Bytes::new())).await?;
                continue;
            }
        };
        sink.send(WsMessage::Binary(message)).await?;
    };
    say_last(sink, &word).await?;
    Ok(word)
}

async fn say_last(
    sink: &mut SplitSink<WebSocket, WsMessage>,
    word: &LastWord,
) -> Result<(), axum::Error> {
    let status = channel::encode(channel::STATUS, &word.to_json());
    sink.send(WsMessage::Binary(status)).await?;
    let close = CloseFrame {
        code: close_code::NORMAL,
        reason: "".into(),
    };
    sink.send(WsMessage::Close(Some(close))).await
}

/// The next bytes of an output. At its end, whichever, the receiver goes: why it ended early is
/// what the operation itself says.
async fn chunk(receiver: &mut Option<Receiver>) -> Option<Bytes> {
    let chunk = receiver.as_mut()?.chunk().await.ok().flatten();
    if chunk.is_none() {
        *receiver = None;
    }
    chunk
}

fn last_word(node: &str, done: Result<Bytes, Ended>) -> LastWord {
    let unknown = |why: &dyn std::fmt::Display| {
        LastWord::Unknown(format!(
            "node {node}: how the command ended is unknown, and it may still be running: {why}"
        ))
    };
    match done {
        Ok(body) => match hub_protocol::kind::decode("Done", &body) {
            Ok(Outcome::Exited(code)) => LastWord::Exited(code),
            Ok(Outcome::Signaled(signal)) if channel::SIGNALS.contains(&signal) => {
                LastWord::Signaled(signal)
            }
            Ok(Outcome::Signaled(signal)) => unknown(&format_args!("there is no signal {signal}")),
            Ok(Outcome::Unknown) => unknown(&"the node lost track of it"),
            Ok(Outcome::Detached) => unknown(&"it was left to itself"),
            Err(error) => unknown(&error),
        },
        Err(ended) => unknown(&ended),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn queries_are_read() {
        let query = "container=web&command=sh&command=-c&command=echo+%26%3D%20x&env=A=1&env=B=\
                     &env=C=d=e&cwd=%2Ftmp&user=0:0&stdin=true";
        let open = parse_query(query).unwrap();
        assert_eq!(open.container.as_deref(), Some("web"));
        assert_eq!(open.argv, ["sh", "-c", "echo &= x"]);
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            open.env,
            [variable("A", "1"), variable("B", ""), variable("C", "d=e")]
        );
        assert_eq!(
            (open.cwd.as_deref(), open.user.as_deref()),
            (Some("/tmp"), Some("0:0"))
        );
        assert!(open.stdin);
        let least = parse_query("command=true").unwrap();
        assert!(!least.stdin && least.container.is_none() && least.env.is_empty());
    }

    #[test]
    fn queries_that_make_no_sense_are_refused_without_their_values() {
        let refused = [
            ("", QueryError::NoCommand),
            ("stdin=true", QueryError::NoCommand),
            ("command=a&tty=true", QueryError::Unknown("tty".into())),
            ("command=a&stdin=hunter2", QueryError::NotABool),
            ("command=a&env=hunter2", QueryError::NotAVariable),
            ("command=a&env=%3Dhunter2", QueryError::NotAVariable),
            (
                "command=a&user=hunter2&user=hunter2",
                QueryError::Repeated("user"),
            ),
            (
                "command=a&stdin=true&stdin=true",
                QueryError::Repeated("stdin"),
            ),
        ];
        for (query, error) in refused {
            let found = parse_query(query).unwrap_err();
            assert_eq!(found, error);
            assert!(!found.to_string().contains("hunter2"));
        }
    }

    #[test]
    fn silence_is_never_a_code() {
        for done in [
            Err(Ended::Lost("idle".into())),
            Err(Ended::Over),
            Ok(Bytes::new()),
        ] {
            let word = last_word("shop", done);
            let LastWord::Unknown(why) = &word else {
                panic!("{word:?}")
            };
            assert!(
                why.contains("may still be running") && why.contains("shop"),
                "{why}"
            );
        }
        let encode = |outcome: &Outcome| Ok(hub_protocol::kind::encode(outcome));
        assert_eq!(
            last_word("a", encode(&Outcome::Exited(0))),
            LastWord::Exited(0)
        );
        assert_eq!(
            last_word("a", encode(&Outcome::Signaled(15))),
            LastWord::Signaled(15)
        );
        let signal = Outcome::Signaled;
        for outcome in [Outcome::Unknown, signal(0), signal(-9), signal(i32::MAX)] {
            let word = last_word("a", encode(&outcome));
            assert!(matches!(word, LastWord::Unknown(_)), "{outcome:?}");
        }
    }
}
