//! The rules of one operation's stream, for both roles: what a peer may send when, and what we may.
//!
//! [`OperationState`] is told of every frame that comes and asked before every frame that goes. It
//! holds windows and phases, never bytes. Whatever a peer does against the rules is a
//! [`Violation`], which ends this operation and no other.
//!
//! ```text
//! hub                                     agent
//!  | Open ------------------------------->  |
//!  | Data within the announced window --->  |
//!  |  <------------------ Accepted | Failed |
//!  | Data, Credit, End, Stop, Message  <-> ..|
//!  |  <-------------------- Done (then FIN) |
//!  | FIN --------------------------------> |
//! ```

use std::time::Duration;

use crate::code::ResetCode;
use crate::frame::{Channel, Frame, FrameError};
use crate::limits::{Limits, MESSAGE_WINDOW};
use crate::window::{RecvWindow, SendWindow, WindowError};

/// What a message costs of its window: its bytes, and what keeping it in a queue takes, so that
/// empty ones are not free.
pub const fn message_cost(len: usize) -> u64 {
    len as u64 + 64
}

/// The two ends of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `hub-server`: opens operations.
    Hub,
    /// `hub-agent`: carries them out.
    Agent,
}

/// Which way a channel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From hub to agent.
    ToAgent,
    /// From agent to hub.
    ToHub,
}

impl Direction {
    fn receiver(self) -> Role {
        match self {
            Self::ToAgent => Role::Agent,
            Self::ToHub => Role::Hub,
        }
    }
}

/// A channel that operations of a kind have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelSpec {
    /// Its number on the wire.
    pub channel: Channel,
    /// Its name, for people.
    pub name: &'static str,
    /// Which way it runs.
    pub direction: Direction,
}

/// A breach of the rules by the peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A window was broken.
    #[error("channel {}: {error}", .channel.0)]
    Window {
        /// Of this channel.
        channel: Channel,
        /// How.
        error: WindowError,
    },
    /// A channel that the operation does not have, or not in this direction.
    #[error("channel {} does not exist in this direction", .0.0)]
    UnknownChannel(Channel),
    /// A frame on a channel that its sender had ended.
    #[error("channel {} goes on after its end", .0.0)]
    AfterEnd(Channel),
    /// A frame that says nothing: no bytes, no credit, a stop of what was stopped. Without an end
    /// of them a peer could keep us busy at no cost to its windows.
    #[error("a frame of kind {0} says nothing")]
    Idle(&'static str),
    /// A frame that has no place in this phase or from this role.
    #[error("a frame of kind {0} has no place here")]
    Misplaced(&'static str),
    /// Anything from an agent after its last word.
    #[error("the operation goes on after its last frame")]
    AfterDone,
    /// A stream that ended before the operation did.
    #[error("the stream ended before the operation did")]
    EarlyFin,
    /// A frame that can't be read.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

impl Violation {
    /// The code with which the stream is reset.
    pub fn code(&self) -> ResetCode {
        match self {
            Self::Window { .. } => ResetCode::WINDOW_VIOLATED,
            _ => ResetCode::PROTOCOL_VIOLATED,
        }
    }

    /// The channel it is about, if it is about one.
    pub fn channel(&self) -> Option<Channel> {
        match self {
            Self::Window { channel, .. }
            | Self::UnknownChannel(channel)
            | Self::AfterEnd(channel) => Some(*channel),
            _ => None,
        }
    }

    /// One word for counters.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Window {
                error: WindowError::BeyondCredit { .. },
                ..
            } => "beyond_credit",
            Self::Window {
                error: WindowError::BeyondLimit { .. },
                ..
            } => "beyond_limit",
            Self::UnknownChannel(_) => "unknown_channel",
            Self::AfterEnd(_) => "after_end",
            Self::Idle(_) => "idle",
            Self::Misplaced(_) => "misplaced",
            Self::AfterDone => "after_done",
            Self::EarlyFin => "early_fin",
            Self::Frame(FrameError::Oversized { .. }) => "oversized",
            Self::Frame(_) => "malformed",
        }
    }
}

/// What a frame that kept the rules means for the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Hand the frame's content on to whoever waits for it.
    Deliver,
    /// Data for a channel that we stopped, or a frame that crossed our last one: drop it.
    Drop,
    /// The channel has credit again: a sender that waits may go on.
    Writable(Channel),
    /// The peer wants no more of a channel we send on: drop what waits, send `End`.
    Stopped(Channel),
}

#[derive(Debug)]
struct Sending {
    channel: Channel,
    window: SendWindow,
    ended: bool,
    /// We owe the peer its `End`.
    end_owed: bool,
    /// The peer has sent `Stop`.
    stopped: bool,
}

#[derive(Debug)]
struct Receiving {
    channel: Channel,
    window: RecvWindow,
    ended: bool,
    stopped: bool,
    /// We owe the peer a `Stop`.
    stop_owed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Before `Accepted`.
    Opening,
    Running,
    /// After `Done` or `Failed`.
    Over,
}

/// One side's view of one operation.
#[derive(Debug)]
pub struct OperationState {
    role: Role,
    phase: Phase,
    sending: Vec<Sending>,
    receiving: Vec<Receiving>,
}

impl OperationState {
    /// An operation with these channels, seen by `role`. `ours` is what we announced for what we
    /// receive, `theirs` what the peer announced.
    pub fn new(role: Role, channels: &[ChannelSpec], ours: &Limits, theirs: &Limits) -> Self {
        let of = |receiver: Role| {
            channels
                .iter()
                .filter(move |spec| spec.direction.receiver() == receiver)
        };
        let other = match role {
            Role::Hub => Role::Agent,
            Role::Agent => Role::Hub,
        };
        let (inbound, outbound) = (of(role).count(), of(other).count());
        let receiving = of(role)
            .map(|spec| {
                (
                    spec.channel,
                    ours.initial_per_channel(inbound),
                    ours.max_per_channel(inbound),
                )
            })
            .chain([(Channel::MESSAGES, MESSAGE_WINDOW, MESSAGE_WINDOW)])
            .map(|(channel, initial, limit)| Receiving {
                channel,
                window: RecvWindow::new(initial, limit),
                ended: false,
                stopped: false,
                stop_owed: false,
            });
        let sending = of(other)
            .map(|spec| {
                (
                    spec.channel,
                    theirs.initial_per_channel(outbound),
                    theirs.max_per_channel(outbound),
                )
            })
            .chain([(Channel::MESSAGES, MESSAGE_WINDOW, MESSAGE_WINDOW)])
            .map(|(channel, initial, limit)| Sending {
                channel,
                window: SendWindow::new(initial, limit),
                ended: false,
                end_owed: false,
                stopped: false,
            });
        Self {
            role,
            phase: Phase::Opening,
            sending: sending.collect(),
            receiving: receiving.collect(),
        }
    }

    /// Whether the operation has had its `Done` or `Failed`.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Whether the agent has accepted it (and not finished it yet).
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Checks a frame that has come.
    pub fn receive(&mut self, frame: &Frame) -> Result<Effect, Violation> {
        if self.phase == Phase::Over {
            // What the hub sent before it saw our last frame crossed it; an agent has no excuse.
            return match self.role {
                Role::Agent => Ok(Effect::Drop),
                Role::Hub => Err(Violation::AfterDone),
            };
        }
        match (self.role, self.phase, frame) {
            (Role::Hub, Phase::Opening, Frame::Accepted(_)) => {
                self.phase = Phase::Running;
                return Ok(Effect::Deliver);
            }
            (Role::Hub, Phase::Opening, Frame::Failed(_))
            | (Role::Hub, Phase::Running, Frame::Done(_)) => {
                self.phase = Phase::Over;
                return Ok(Effect::Deliver);
            }
            (_, _, Frame::Accepted(_)) => return Err(Violation::Misplaced("Accepted")),
            (_, _, Frame::Failed(_)) => return Err(Violation::Misplaced("Failed")),
            (_, _, Frame::Done(_)) => return Err(Violation::Misplaced("Done")),
            (Role::Hub, Phase::Opening, _) => return Err(Violation::Misplaced("before Accepted")),
            _ => {}
        }
        match frame {
            Frame::Data { channel, bytes } => {
                let receiving = self.open_channel(*channel)?;
                let (channel, len) = (*channel, bytes.len() as u64);
                if len == 0 {
                    return Err(Violation::Idle("Data"));
                }
                receiving
                    .window
                    .receive(len)
                    .map_err(|error| Violation::Window { channel, error })?;
                Ok(if receiving.stopped {
                    Effect::Drop
                } else {
                    Effect::Deliver
                })
            }
            Frame::End { channel } => {
                let receiving = self.open_channel(*channel)?;
                receiving.ended = true;
                Ok(if receiving.stopped {
                    Effect::Drop
                } else {
                    Effect::Deliver
                })
            }
            Frame::Credit { channel, bytes } => {
                let channel = *channel;
                let window = &mut self.sending_mut(channel)?.window;
                if *bytes == 0 {
                    return Err(Violation::Idle("Credit"));
                }
                window
                    .grant(*bytes)
                    .map_err(|error| Violation::Window { channel, error })?;
                Ok(Effect::Writable(channel))
            }
            Frame::Stop { channel } => {
                if *channel == Channel::MESSAGES {
                    return Err(Violation::UnknownChannel(*channel));
                }
                let sending = self.sending_mut(*channel)?;
                if std::mem::replace(&mut sending.stopped, true) {
                    return Err(Violation::Idle("Stop"));
                }
                Ok(if sending.ended {
                    Effect::Drop
                } else {
                    Effect::Stopped(*channel)
                })
            }
            Frame::Message(payload) => {
                let (channel, len) = (Channel::MESSAGES, message_cost(payload.len()));
                self.receiving_mut(channel)?
                    .window
                    .receive(len)
                    .map_err(|error| Violation::Window { channel, error })?;
                Ok(Effect::Deliver)
            }
            Frame::Accepted(_) | Frame::Failed(_) | Frame::Done(_) => Ok(Effect::Drop),
        }
    }

    /// The peer has sent FIN.
    pub fn receive_fin(&self) -> Result<(), Violation> {
        if self.is_over() {
            Ok(())
        } else {
            Err(Violation::EarlyFin)
        }
    }

    /// How many of `wanted` bytes may go on a channel now; they count as sent. Nothing may go on a
    /// channel that we ended, nor before an operation that we carry out was accepted, nor after.
    pub fn take_credit(&mut self, channel: Channel, wanted: u64) -> u64 {
        if self.is_silent() {
            return 0;
        }
        match self
            .sending
            .iter_mut()
            .find(|sending| sending.channel == channel)
        {
            Some(sending) if !sending.ended => sending.window.take(wanted),
            _ => 0,
        }
    }

    /// Credit left for a channel.
    pub fn credit(&self, channel: Channel) -> u64 {
        let sending = self
            .sending
            .iter()
            .find(|sending| sending.channel == channel);
        sending
            .filter(|sending| !sending.ended)
            .map_or(0, |sending| sending.window.credit())
    }

    /// Bytes that we have sent and that are known not to have been consumed yet: on the channel
    /// where they are most. See [`SendWindow::spent`].
    pub fn spent(&self) -> u64 {
        let spent = self.sending.iter().map(|sending| sending.window.spent());
        spent.max().unwrap_or(0)
    }

    /// Whether we have ended a channel that we send on, or never had it.
    pub fn is_ended(&self, channel: Channel) -> bool {
        let mut sending = self.sending.iter();
        sending
            .find(|sending| sending.channel == channel)
            .is_none_or(|sending| sending.ended)
    }

    /// We end a channel that we send on: the frame to send behind its data, unless it was ended
    /// before or the frame has to wait until the operation is accepted (see [`owed`](Self::owed)).
    pub fn end(&mut self, channel: Channel) -> Option<Frame> {
        let (silent, over) = (self.is_silent(), self.is_over());
        let mut sending = self.sending.iter_mut();
        let sending = sending.find(|sending| sending.channel == channel)?;
        if std::mem::replace(&mut sending.ended, true) || over {
            return None;
        }
        sending.end_owed = silent;
        (!silent).then_some(Frame::End { channel })
    }

    /// We want no more of a channel: we owe its sender a `Stop`, unless the channel is over anyway.
    pub fn stop(&mut self, channel: Channel) {
        let mut receiving = self.receiving.iter_mut();
        if let Some(receiving) = receiving.find(|receiving| receiving.channel == channel) {
            receiving.stop_owed |= !std::mem::replace(&mut receiving.stopped, true);
        }
    }

    /// Our consumer took `bytes` from a channel; gives the growth that its window wants (see
    /// [`RecvWindow::consume`]), which [`grow`](Self::grow) answers. We may owe credit afterwards.
    pub fn consume(&mut self, channel: Channel, bytes: u64, now: Duration, rtt: Duration) -> u64 {
        let over = self.is_over();
        let mut receiving = self.receiving.iter_mut();
        let receiving = receiving.find(|receiving| receiving.channel == channel);
        receiving.map_or(0, |receiving| {
            let growth = receiving.window.consume(bytes, now, rtt);
            // Where nothing more comes, growth would be of no use.
            if over || receiving.ended || receiving.stopped {
                0
            } else {
                growth
            }
        })
    }

    /// The window of a channel grows by `growth`.
    pub fn grow(&mut self, channel: Channel, growth: u64) {
        let mut receiving = self.receiving.iter_mut();
        if let Some(receiving) = receiving.find(|receiving| receiving.channel == channel) {
            receiving.window.grow(growth);
        }
    }

    /// Whether there is a frame that we owe the peer.
    pub fn owes(&self) -> bool {
        let owes = |receiving: &Receiving| {
            let due = !receiving.stopped && receiving.window.refund_due();
            !receiving.ended && (receiving.stop_owed || due)
        };
        !self.is_silent()
            && (self.receiving.iter().any(owes) || self.sending.iter().any(|s| s.end_owed))
    }

    /// The next frame that we owe the peer: a `Stop`, or a `Credit` that is worth a frame. They go
    /// before all data, and none before an operation that we carry out is accepted. To be asked
    /// when the frame can be written and not before: what is granted counts from then on, so that
    /// a peer that does not read gets no credit, and nothing piles up for it.
    pub fn owed(&mut self) -> Option<Frame> {
        if self.is_silent() {
            return None;
        }
        for Sending {
            channel, end_owed, ..
        } in &mut self.sending
        {
            if std::mem::take(end_owed) {
                return Some(Frame::End { channel: *channel });
            }
        }
        let open = |receiving: &&mut Receiving| !receiving.ended;
        for receiving in self.receiving.iter_mut().filter(open) {
            let channel = receiving.channel;
            if std::mem::take(&mut receiving.stop_owed) {
                return Some(Frame::Stop { channel });
            }
            if !receiving.stopped
                && let Some(bytes) = receiving.window.refund()
            {
                return Some(Frame::Credit { channel, bytes });
            }
        }
        None
    }

    /// We accept the operation.
    pub fn accept(&mut self) {
        debug_assert_eq!((self.role, self.phase), (Role::Agent, Phase::Opening));
        self.phase = Phase::Running;
    }

    /// We send our last frame, `Done` or `Failed`.
    pub fn finish(&mut self) {
        debug_assert_eq!(self.role, Role::Agent);
        self.phase = Phase::Over;
    }

    /// Whether we may send nothing: not before an operation that we carry out is accepted, and not
    /// after the last frame.
    fn is_silent(&self) -> bool {
        self.is_over() || (self.role == Role::Agent && self.phase == Phase::Opening)
    }

    fn sending_mut(&mut self, channel: Channel) -> Result<&mut Sending, Violation> {
        self.sending
            .iter_mut()
            .find(|sending| sending.channel == channel)
            .ok_or(Violation::UnknownChannel(channel))
    }

    fn receiving_mut(&mut self, channel: Channel) -> Result<&mut Receiving, Violation> {
        self.receiving
            .iter_mut()
            .find(|receiving| receiving.channel == channel)
            .ok_or(Violation::UnknownChannel(channel))
    }

    /// A channel that the peer may send `Data` or `End` on.
    fn open_channel(&mut self, channel: Channel) -> Result<&mut Receiving, Violation> {
        if channel == Channel::MESSAGES {
            return Err(Violation::UnknownChannel(channel));
        }
        let receiving = self.receiving_mut(channel)?;
        if receiving.ended {
            Err(Violation::AfterEnd(channel))
        } else {
            Ok(receiving)
        }
    }
}

#[cfg(test)]
mod tests;
