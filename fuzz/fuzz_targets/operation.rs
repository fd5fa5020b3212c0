//! The rules of an operation under arbitrary frames of the peer and arbitrary acts of our side:
//! they never panic, what waits is bounded, and what we would send never breaks them.
#![no_main]

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use hub_protocol::frame::{Channel, Frame};
use hub_protocol::kind::OperationKind;
use hub_protocol::limits::{Limits, MESSAGE_WINDOW};
use hub_protocol::operation::{Effect, OperationState, Role, message_cost};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Received {
    Data(u8, u16),
    Credit(u8, u64),
    End(u8),
    Stop(u8),
    Message(u16),
    Accepted,
    Failed,
    Done,
    Fin,
}

#[derive(Debug, Arbitrary)]
enum Step {
    Receive(Received),
    Take(u8, u32),
    End(u8),
    Stop(u8),
    Consume(u8, u32),
    Accept,
    Finish,
    Pay,
    Pass(u8),
}

#[derive(Debug, Arbitrary)]
struct Input {
    hub: bool,
    http: bool,
    ours: (u64, u64),
    theirs: (u64, u64),
    steps: Vec<Step>,
}

fn frame(received: &Received) -> Option<Frame> {
    static ZEROS: [u8; u16::MAX as usize] = [0; u16::MAX as usize];
    let bytes = |len: u16| Bytes::from_static(&ZEROS[..usize::from(len)]);
    Some(match *received {
        Received::Data(channel, len) => Frame::Data {
            channel: Channel(channel),
            bytes: bytes(len),
        },
        Received::Credit(channel, bytes) => Frame::Credit {
            channel: Channel(channel),
            bytes,
        },
        Received::End(channel) => Frame::End {
            channel: Channel(channel),
        },
        Received::Stop(channel) => Frame::Stop {
            channel: Channel(channel),
        },
        Received::Message(len) => Frame::Message(bytes(len)),
        Received::Accepted => Frame::Accepted(Bytes::new()),
        Received::Failed => Frame::Failed(Bytes::new()),
        Received::Done => Frame::Done(Bytes::new()),
        Received::Fin => return None,
    })
}

fn limits((initial_window, max_window): (u64, u64)) -> Limits {
    let limits = Limits {
        initial_window,
        max_window,
    };
    limits.clamped()
}

fuzz_target!(|input: Input| {
    let (ours, theirs) = (limits(input.ours), limits(input.theirs));
    let role = if input.hub { Role::Hub } else { Role::Agent };
    let kind = if input.http {
        OperationKind::Http
    } else {
        OperationKind::Exec
    };
    let mut state = OperationState::new(role, kind.channels(), &ours, &theirs);
    let mut waiting = BTreeMap::<u8, u64>::new();
    let (mut stopped, mut now) = (Vec::new(), Duration::ZERO);
    for step in &input.steps {
        match step {
            Step::Receive(received) => {
                let Some(frame) = frame(received) else {
                    assert_eq!(state.receive_fin().is_ok(), state.is_over());
                    continue;
                };
                let was_over = state.is_over();
                let Ok(effect) = state.receive(&frame) else {
                    assert!(
                        !was_over || role == Role::Hub,
                        "what crosses the end is no violation"
                    );
                    return;
                };
                assert!(!was_over || effect == Effect::Drop);
                match (effect, &frame) {
                    (Effect::Deliver, Frame::Data { channel, bytes }) => {
                        assert!(!bytes.is_empty() && !stopped.contains(&channel.0));
                        *waiting.entry(channel.0).or_default() += bytes.len() as u64;
                    }
                    (Effect::Deliver, Frame::Message(payload)) => {
                        let waits = waiting.entry(Channel::MESSAGES.0).or_default();
                        *waits += message_cost(payload.len());
                    }
                    (Effect::Stopped(channel), _) => {
                        state.end(channel);
                        assert!(state.is_ended(channel));
                    }
                    (Effect::Writable(channel), _) => {
                        assert!(state.credit(channel) <= theirs.max_window.max(MESSAGE_WINDOW));
                    }
                    _ => {}
                }
            }
            Step::Take(channel, wanted) => {
                let channel = Channel(*channel);
                let credit = state.credit(channel);
                let taken = state.take_credit(channel, (*wanted).into());
                let silent = state.is_over() || (role == Role::Agent && !state.is_running());
                let expected = if silent {
                    0
                } else {
                    credit.min((*wanted).into())
                };
                assert_eq!(taken, expected);
            }
            Step::End(channel) => {
                let channel = Channel(*channel);
                let ended = state.is_ended(channel);
                let frame = state.end(channel);
                assert!(frame.is_none() || !ended);
                assert_eq!(state.take_credit(channel, 1), 0);
            }
            Step::Stop(channel) => {
                state.stop(Channel(*channel));
                stopped.push(*channel);
                waiting.remove(channel);
            }
            Step::Consume(channel, bytes) => {
                if let Some(waits) = waiting.get_mut(channel) {
                    let bytes = u64::from(*bytes).min(*waits);
                    *waits -= bytes;
                    let rtt = Duration::from_millis(20);
                    let growth = state.consume(Channel(*channel), bytes, now, rtt);
                    state.grow(Channel(*channel), growth);
                }
            }
            Step::Accept => {
                if role == Role::Agent && !state.is_running() && !state.is_over() {
                    state.accept();
                }
            }
            Step::Finish => {
                if role == Role::Agent {
                    state.finish();
                }
            }
            Step::Pay => {
                let silent = state.is_over() || (role == Role::Agent && !state.is_running());
                // Once all is paid nothing is owed: this ends.
                while state.owes() {
                    assert!(!silent);
                    let frame = state.owed();
                    assert!(matches!(
                        frame,
                        Some(
                            Frame::Credit { bytes: 1.., .. }
                                | Frame::Stop { .. }
                                | Frame::End { .. }
                        )
                    ));
                }
                assert_eq!(state.owed(), None);
            }
            Step::Pass(ms) => now += Duration::from_millis((*ms).into()),
        }
        let data: u64 = waiting
            .iter()
            .filter(|(channel, _)| **channel != Channel::MESSAGES.0)
            .map(|(_, waits)| waits)
            .sum();
        // A share of at least one byte for each channel, however little was announced.
        assert!(
            data <= ours.max_window.max(2),
            "what waits stays within what was announced"
        );
        let messages = waiting.get(&Channel::MESSAGES.0).copied().unwrap_or(0);
        assert!(messages <= MESSAGE_WINDOW);
    }
});
