//! An operation behind a WebSocket, whichever it is: the carrier of execs, builds and connections
//! to a Docker socket.
//!
//! ```text
//! client --WebSocket--> input --credit--> Sender                      } one operation,
//!                         `-- sizes, signals --> says                 } one QUIC stream
//! client <--WebSocket-- output <--------- Receivers, then Done        }
//! ```
//!
//! The operation's channels have the same numbers in the WebSocket: see [`channel`]. The pumps know
//! nothing of each other: input without credit holds no output back, and a client that does not
//! read holds no input back. Each holds one message at a time: the next is taken when the last is
//! with the other side. When the client is gone the operation is dropped, and the agent does what
//! its kind demands: it stops what runs, or keeps it.

use std::convert::Infallible;
use std::fmt;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::extract::ws::{
    CloseFrame, Message as WsMessage, WebSocket, WebSocketUpgrade, close_code,
};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use http::request::Parts;
use hub_protocol::frame::Channel;
use hub_protocol::kind;
use hub_protocol::kind::exec;
use hub_protocol::operation::{ChannelSpec, Direction};
use hub_quic::operation::{Ended, Operation, Receiver, Sender};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use tracing::{Instrument as _, Span};

use super::channel::{self, Control, Message, Size};
use super::client::Client;
use super::problem::{Kind, Problem};

/// How often something is said to a client, so that its kernel answers for one that is gone.
const PING: Duration = Duration::from_secs(5);

/// How long a client may take to be told why its operation is given up.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long a client that has had the last word may take to close.
const CLOSING: Duration = Duration::from_secs(5);

/// The same once the hub stops: nothing is under way any more.
const CLOSING_AT_STOP: Duration = Duration::from_millis(250);

/// Signals that may wait for their way to the agent; a client that sends more waits.
const SIGNALS: usize = 4;

/// What a WebSocket may buffer before it reads or writes, in bytes: data waits in its channel.
const READ_BUFFER: usize = 16 * 1024;

/// A WebSocket that a request asks for.
pub(super) struct Upgrade {
    upgrade: WebSocketUpgrade,
    client: Client,
}

impl<S: Send + Sync> FromRequestParts<S> for Upgrade {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let invalid = |detail: String| Problem::new(Kind::InvalidRequest, detail);
        let client = Client::from_request_parts(parts, state).await?;
        let upgrade = WebSocketUpgrade::from_request_parts(parts, state).await;
        let upgrade = upgrade.map_err(|rejection| invalid(rejection.body_text()))?;
        let upgrade = upgrade.protocols([channel::SUBPROTOCOL]);
        if upgrade.selected_protocol().is_none() {
            let protocol = channel::SUBPROTOCOL;
            return Err(invalid(format!(
                "it takes the WebSocket subprotocol {protocol}"
            )));
        }
        Ok(Self { upgrade, client })
    }
}

impl Upgrade {
    /// What `ask` gives, while the client is there.
    pub(super) async fn while_there<T>(&self, ask: impl Future<Output = T>) -> Result<T, Problem> {
        self.client.while_there(ask).await
    }

    /// Carries an operation that the agent has begun; log lines about it are in `span`.
    pub(super) fn carry<C: Carried + 'static>(
        self,
        operation: Operation,
        carried: C,
        span: Span,
    ) -> Response {
        let Self { upgrade, client } = self;
        upgrade
            .read_buffer_size(READ_BUFFER)
            .write_buffer_size(0)
            .max_message_size(channel::MAX_MESSAGE)
            .max_frame_size(channel::MAX_MESSAGE)
            .on_upgrade(move |socket| {
                async move { run(socket, operation, carried, client).await }.instrument(span)
            })
    }
}

/// What is particular about a kind of operation that is carried.
pub(super) trait Carried: Send + Sync {
    /// Its last word.
    type Word: fmt::Debug + Send;

    /// The last word as a `Status`.
    fn json(word: &Self::Word) -> Vec<u8>;

    /// The last word of an operation that ended so.
    fn word(&self, done: Result<Bytes, Ended>) -> Self::Word;

    /// The last word of one that the hub gives up because it stops.
    fn cut(&self) -> Self::Word;

    /// What becomes of it once its client is gone, for the log.
    fn abandoned(&self) -> &'static str;

    /// Whether the client sends on channel 0.
    fn input(&self) -> bool {
        true
    }

    /// Whether sizes of a terminal mean anything.
    fn resizes(&self) -> bool {
        false
    }

    /// Whether it is a command: there may be sizes and signals.
    fn is_command(&self) -> bool {
        false
    }

    /// Whether the client is told of the end of each channel, not only of all.
    fn says_ends(&self) -> bool {
        false
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

/// Carries an operation that the agent has begun until it has ended or the client is gone. Holds
/// the connection's seat meanwhile.
async fn run<C: Carried>(socket: WebSocket, operation: Operation, carried: C, client: Client) {
    let Client { hangup, seat } = client;
    let (mut sink, stream) = socket.split();
    let (refuses, refused) = oneshot::channel();
    let (says, said) = Says::new();
    let sender = carried.input().then(|| operation.sender(Channel(0)));
    let mut input = pin!(input(stream, &carried, sender, refuses, says));
    let gone = tokio::select! {
        gone = &mut input => gone,
        () = hangup.wait() => Gone::Left,
        () = seat.cut() => Gone::Cut,
        never = said.pass_on(&operation) => match never {},
        ended = output(&mut sink, &operation, &carried, refused) => match ended {
            Ok(word) => {
                drop(operation);
                tracing::info!(?word, "ended");
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
    let becomes = carried.abandoned();
    match gone {
        Gone::Left => tracing::info!("the client is gone; {becomes}"),
        Gone::Cut => {
            tracing::info!("the hub stops; {becomes}");
            let word = C::json(&carried.cut());
            let _ = timeout(FAREWELL, say_last(&mut sink, &word)).await;
        }
        Gone::Violated(code, reason) => {
            tracing::warn!(%reason, "the client broke the protocol; {becomes}");
            let close = WsMessage::Close(Some(CloseFrame {
                code,
                reason: reason.into(),
            }));
            let _ = timeout(FAREWELL, sink.send(close)).await;
        }
    }
}

/// From the client to the agent, until the client is gone. Takes the next message when there was
/// credit for all of the last.
async fn input(
    mut stream: SplitStream<WebSocket>,
    carried: &impl Carried,
    mut sender: Option<Sender>,
    refuses: oneshot::Sender<()>,
    says: Says,
) -> Gone {
    let mut refuses = Some(refuses);
    let violated = |reason: String| Gone::Violated(close_code::PROTOCOL, reason);
    loop {
        let message = tokio::select! {
            () = stopped(sender.as_mut()) => {
                sender = None;
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
            Ok(Message::Data(0, bytes)) => {
                if let Some(open) = &mut sender
                    && open.send(bytes).await.is_err()
                {
                    sender = None;
                    let _ = refuses.take().map(|refuses| refuses.send(()));
                }
            }
            Ok(Message::Close(0)) => {
                if let Some(mut sender) = sender.take() {
                    sender.finish();
                }
            }
            Ok(Message::Empty) => {}
            Ok(Message::Resize(json)) if carried.is_command() => match Size::decode(&json) {
                Ok(size) if carried.resizes() => says.resize(size),
                Ok(_) => {}
                Err(error) => return violated(error.to_string()),
            },
            Ok(Message::Control(json)) if carried.is_command() => match Control::decode(&json) {
                Ok(control) => says.control(control).await,
                Err(error) => return violated(error.to_string()),
            },
            Ok(Message::Resize(_) | Message::Control(_)) => {
                return violated("channels 4 and 5 are those of commands".into());
            }
            Ok(Message::Close(other)) => {
                return violated(format!("channel {other} is not the client's to close"));
            }
            Ok(Message::Data(..) | Message::Status(_)) => {
                return violated("only the server sends on channels 1 to 3".into());
            }
            Err(error) => return violated(error.to_string()),
        }
    }
}

async fn stopped(sender: Option<&mut Sender>) {
    match sender {
        Some(sender) => sender.stopped().await,
        None => pending().await,
    }
}

/// What the client says of its command, on its way into the operation's messages.
struct Says {
    size: watch::Sender<Option<Size>>,
    control: mpsc::Sender<Control>,
}

/// The other end of [`Says`].
struct Said {
    size: watch::Receiver<Option<Size>>,
    control: mpsc::Receiver<Control>,
}

impl Says {
    fn new() -> (Self, Said) {
        let (size, sizes) = watch::channel(None);
        let (control, controls) = mpsc::channel(SIGNALS);
        let says = Self { size, control };
        let said = Said {
            size: sizes,
            control: controls,
        };
        (says, said)
    }

    /// A new size: takes the place of one that still waits.
    fn resize(&self, size: Size) {
        self.size.send_replace(Some(size));
    }

    async fn control(&self, control: Control) {
        // An error says that the operation is over.
        let _ = self.control.send(control).await;
    }
}

impl Said {
    /// Sends what is said as messages, when the agent has room for them; of sizes that wait only
    /// the newest. Does not return: an operation that is over has other ways to say so.
    async fn pass_on(mut self, operation: &Operation) -> Infallible {
        let send = |message: exec::Message| operation.send_message(kind::encode(&message));
        loop {
            let sent = tokio::select! {
                Some(control) = self.control.recv() => send(match control {
                    Control::Signal(number) => exec::Message::Signal(number),
                    Control::Detach => exec::Message::Detach,
                }).await,
                Ok(()) = self.size.changed() => loop {
                    let Some(size) = *self.size.borrow_and_update() else {
                        break Ok(());
                    };
                    tokio::select! {
                        biased;
                        sent = send(exec::Message::Resize(size.into())) => break sent,
                        Ok(()) = self.size.changed() => {}
                    }
                },
                else => pending().await,
            };
            if sent.is_err() {
                pending::<()>().await;
            }
        }
    }
}

/// The channels that bring something, taken from in turn.
struct Outputs {
    open: Vec<(u8, Receiver)>,
    turn: usize,
}

impl Outputs {
    fn new(operation: &Operation) -> Self {
        let channels = operation.kind().channels().iter();
        let outward = channels.filter(|spec| spec.direction == Direction::ToHub);
        let receiver = |spec: &ChannelSpec| (spec.channel.0, operation.receiver(spec.channel));
        Self {
            open: outward.map(receiver).collect(),
            turn: 0,
        }
    }

    /// The next bytes of any channel, or its end, whichever it is: why it ended early is what the
    /// operation itself says. `None` once all have ended.
    async fn next(&mut self) -> Option<(u8, Option<Bytes>)> {
        poll_fn(|cx| {
            if self.open.is_empty() {
                return Poll::Ready(None);
            }
            for n in 0..self.open.len() {
                let at = (self.turn + n) % self.open.len();
                let (channel, receiver) = &mut self.open[at];
                let channel = *channel;
                let Poll::Ready(chunk) = receiver.poll_chunk(cx) else {
                    continue;
                };
                let chunk = chunk.ok().flatten();
                if chunk.is_none() {
                    self.open.remove(at);
                }
                self.turn = at + 1;
                return Poll::Ready(Some((channel, chunk)));
            }
            Poll::Pending
        })
        .await
    }
}

/// From the agent to the client: all that comes, then how it ended.
async fn output<C: Carried>(
    sink: &mut SplitSink<WebSocket, WsMessage>,
    operation: &Operation,
    carried: &C,
    mut refused: oneshot::Receiver<()>,
) -> Result<C::Word, axum::Error> {
    let mut outputs = Outputs::new(operation);
    let mut outputs_ended = false;
    let mut takes_input = true;
    let mut ping = interval_at(Instant::now() + PING, PING);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let word = loop {
        let message = tokio::select! {
            output = outputs.next(), if !outputs_ended => match output {
                Some((channel, Some(bytes))) => channel::encode(channel, &bytes),
                Some((channel, None)) if carried.says_ends() => {
                    channel::encode(channel::CLOSE, &[channel])
                }
                Some((_, None)) => continue,
                None => {
                    outputs_ended = true;
                    continue;
                }
            },
            refused = &mut refused, if takes_input => {
                takes_input = false;
                match refused {
                    Ok(()) => channel::encode(channel::CLOSE, &[channel::STDIN]),
                    Err(_) => continue,
                }
            }
            done = operation.done(), if outputs_ended => break carried.word(done),
            _ = ping.tick() => {
                sink.send(WsMessage::Ping(Bytes::new())).await?;
                continue;
            }
        };
        sink.send(WsMessage::Binary(message)).await?;
    };
    say_last(sink, &C::json(&word)).await?;
    Ok(word)
}

async fn say_last(
    sink: &mut SplitSink<WebSocket, WsMessage>,
    status: &[u8],
) -> Result<(), axum::Error> {
    let status = channel::encode(channel::STATUS, status);
    sink.send(WsMessage::Binary(status)).await?;
    let close = CloseFrame {
        code: close_code::NORMAL,
        reason: "".into(),
    };
    sink.send(WsMessage::Close(Some(close))).await
}
