//! The bytes of a command and of its client, and the log between them.
//!
//! ```text
//! client                                            command
//!   stdin  Receiver ──► typed ───────────────────►  stdin
//!   stdout Sender ◄──┐                           ┌─ stdout
//!                    ├── log ◄── while not much ◄┤
//!   stderr Sender ◄──┘      of it waits          └─ stderr
//! ```
//!
//! Five sources and sinks are asked in turns, so that none that is always ready starves another. A
//! client that does not read stops its output, and no other; without a client all is read, and the
//! log forgets.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use hub_protocol::kind::exec::{KEPT_OUTPUT, Offsets, STDERR, STDIN, STDOUT};
use hub_quic::operation::{Operation, Receiver, Sender};
use tokio::io::AsyncWrite as _;

use super::super::kept::log::{Log, Output};
use crate::runtime::{ByteSink, ByteStream, MAX_CHUNK};

/// Bytes of an output that may wait for its client before no more of it is read.
const LAG: u64 = MAX_CHUNK as u64;

/// The way of one output to the client.
struct Way {
    channel: Sender,
    sent: u64,
    /// Nothing more goes there: it had its end, or the client wants no more.
    closed: bool,
}

/// A client's channels.
struct Link {
    stdin: Option<Receiver>,
    ways: [Way; 2],
}

/// What the command reads.
struct Input {
    sink: ByteSink,
    /// Taken from a client and not written yet.
    typed: Bytes,
    /// Written and not flushed.
    unflushed: bool,
    /// A client has ended it.
    ended: bool,
}

/// All of it.
pub(super) struct Streams {
    input: Option<Input>,
    outputs: [Option<ByteStream>; 2],
    broken: [bool; 2],
    log: Log,
    link: Option<Link>,
    keep: bool,
    turn: usize,
}

impl Streams {
    pub(super) fn new(
        stdin: Option<ByteSink>,
        stdout: ByteStream,
        stderr: ByteStream,
        keep: bool,
    ) -> Self {
        let input = stdin.map(|sink| Input {
            sink,
            typed: Bytes::new(),
            unflushed: false,
            ended: false,
        });
        Self {
            input,
            outputs: [Some(stdout), Some(stderr)],
            broken: [false; 2],
            log: Log::new(if keep { KEPT_OUTPUT } else { 0 }),
            link: None,
            keep,
            turn: 0,
        }
    }

    /// Remembers what was sent from now on.
    pub(super) fn keep(&mut self) {
        self.keep = true;
        self.log.set_limit(KEPT_OUTPUT);
    }

    /// Where a client begins that has seen so much; `None` if there never was so much.
    pub(super) fn begin(&self, seen: Option<Offsets>) -> Option<Offsets> {
        let (oldest, end) = (self.log.oldest(), self.log.end());
        let Some(seen) = seen else {
            return Some(oldest);
        };
        let possible = seen.stdout <= end.stdout && seen.stderr <= end.stderr;
        possible.then(|| Offsets {
            stdout: seen.stdout.max(oldest.stdout),
            stderr: seen.stderr.max(oldest.stderr),
        })
    }

    /// Lets a client have the bytes from there on.
    pub(super) fn link(&mut self, operation: &Operation, from: Offsets) {
        let way = |channel, sent| Way {
            channel: operation.sender(channel),
            sent,
            closed: false,
        };
        // Where nothing is read any more, the client learns so: the channel is stopped.
        let stdin = operation.receiver(STDIN);
        let wanted = self.input.as_ref().is_some_and(|input| !input.ended);
        self.link = Some(Link {
            stdin: wanted.then_some(stdin),
            ways: [way(STDOUT, from.stdout), way(STDERR, from.stderr)],
        });
    }

    /// The client is gone.
    pub(super) fn unlink(&mut self) {
        self.link = None;
        self.log.trim(None);
    }

    /// Whether the command prints no more.
    pub(super) fn is_drained(&self) -> bool {
        self.outputs.iter().all(Option::is_none)
    }

    /// Whether the client has all that it wants and is to have; true without one.
    pub(super) fn is_delivered(&self) -> bool {
        let Some(link) = &self.link else {
            return true;
        };
        Output::BOTH.into_iter().all(|output| {
            let way = &link.ways[output.index()];
            way.closed || (self.broken[output.index()] && way.sent == output.of(self.log.end()))
        })
    }

    /// Whether an output could not be read to its end: what came is not all of it.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.contains(&true)
    }

    /// Moves some bytes, or learns of an end; pending when there is nothing to do.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        const WAYS: usize = 5;
        for number in 0..WAYS {
            let turn = (self.turn + number) % WAYS;
            let moved = match turn {
                0 => self.poll_way(Output::Out, cx),
                1 => self.poll_way(Output::Err, cx),
                2 => self.poll_input(cx),
                3 => self.poll_output(Output::Out, cx),
                _ => self.poll_output(Output::Err, cx),
            };
            if moved.is_ready() {
                self.turn = turn + 1;
                self.log.trim(self.sent());
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// What the client was sent of each output. One that wants no more of it counts as having it.
    fn sent(&self) -> Option<Offsets> {
        let ways = &self.link.as_ref()?.ways;
        let end = self.log.end();
        let sent = |output: Output| {
            let way = &ways[output.index()];
            if way.closed { output.of(end) } else { way.sent }
        };
        Some(Offsets {
            stdout: sent(Output::Out),
            stderr: sent(Output::Err),
        })
    }

    fn poll_way(&mut self, output: Output, cx: &mut Context<'_>) -> Poll<()> {
        let index = output.index();
        let Some(way) = self.link.as_mut().map(|link| &mut link.ways[index]) else {
            return Poll::Pending;
        };
        if way.closed {
            return Poll::Pending;
        }
        let stopped = if let Some((_, mut bytes)) = self.log.at(output, way.sent) {
            let before = bytes.len();
            match way.channel.poll_send(cx, &mut bytes) {
                Poll::Ready(Ok(())) => {
                    way.sent += (before - bytes.len()) as u64;
                    return Poll::Ready(());
                }
                Poll::Ready(Err(_)) => true,
                Poll::Pending => false,
            }
        } else if self.outputs[index].is_none() && !self.broken[index] {
            way.channel.finish();
            way.closed = true;
            return Poll::Ready(());
        } else {
            way.channel.poll_stopped(cx).is_ready()
        };
        if !stopped {
            return Poll::Pending;
        }
        way.closed = true;
        if !self.keep {
            // Closed for the command as well, as by a broken pipe.
            self.outputs[index] = None;
        }
        Poll::Ready(())
    }

    fn poll_output(&mut self, output: Output, cx: &mut Context<'_>) -> Poll<()> {
        let index = output.index();
        let sent = self.sent().map(|sent| output.of(sent));
        if sent.is_some_and(|sent| output.of(self.log.end()) - sent >= LAG) {
            return Poll::Pending;
        }
        let Some(stream) = &mut self.outputs[index] else {
            return Poll::Pending;
        };
        match stream.as_mut().poll_next(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Ok(bytes))) => self.log.push(output, bytes),
            Poll::Ready(Some(Err(error))) => {
                tracing::warn!("an output of a command broke off: {error}");
                self.broken[index] = true;
                self.outputs[index] = None;
            }
            Poll::Ready(None) => self.outputs[index] = None,
        }
        Poll::Ready(())
    }

    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Once the outputs are at their end nobody is left to read.
        if self.is_drained() {
            return Poll::Pending;
        }
        let Some(input) = &mut self.input else {
            return Poll::Pending;
        };
        let sink = Pin::new(&mut input.sink);
        let done = if !input.typed.is_empty() {
            match sink.poll_write(cx, &input.typed) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(written)) => {
                    input.typed.advance(written);
                    input.unflushed = true;
                    written == 0
                }
                Poll::Ready(Err(_)) => true,
            }
        } else if input.unflushed {
            match sink.poll_flush(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(flushed) => {
                    input.unflushed = false;
                    flushed.is_err()
                }
            }
        } else if input.ended {
            match sink.poll_shutdown(cx) {
                Poll::Pending => return Poll::Pending,
                // An error says that the command has closed it already.
                Poll::Ready(_) => true,
            }
        } else {
            let Some(receiver) = self.link.as_mut().and_then(|link| link.stdin.as_mut()) else {
                return Poll::Pending;
            };
            match receiver.poll_chunk(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(Some(bytes))) => input.typed = bytes,
                Poll::Ready(Ok(None)) => input.ended = true,
                // The operation has ended early; for a kept command another may come.
                Poll::Ready(Err(_)) => {
                    if let Some(link) = &mut self.link {
                        link.stdin = None;
                    }
                }
            }
            false
        };
        if done {
            self.input = None;
            if let Some(link) = &mut self.link {
                // Tells the client that nobody reads it.
                link.stdin = None;
            }
        }
        Poll::Ready(())
    }
}
