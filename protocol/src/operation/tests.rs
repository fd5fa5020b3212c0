use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::kind::OperationKind;

const STDIN: Channel = Channel(0);
const STDOUT: Channel = Channel(1);
const STDERR: Channel = Channel(2);

fn pair() -> (OperationState, OperationState) {
    let limits = Limits {
        initial_window: 100,
        max_window: 1000,
    };
    let channels = OperationKind::Exec.channels();
    let hub = OperationState::new(Role::Hub, channels, &limits, &limits);
    let agent = OperationState::new(Role::Agent, channels, &limits, &limits);
    (hub, agent)
}

fn running() -> (OperationState, OperationState) {
    let (mut hub, mut agent) = pair();
    agent.accept();
    hub.receive(&Frame::Accepted(Bytes::new())).unwrap();
    (hub, agent)
}

fn data(channel: Channel, len: usize) -> Frame {
    Frame::Data {
        channel,
        bytes: Bytes::from(vec![0; len]),
    }
}

#[test]
fn each_breach_has_its_name_and_its_code() {
    let (window, protocol) = (ResetCode::WINDOW_VIOLATED, ResetCode::PROTOCOL_VIOLATED);
    let end = Frame::End { channel: STDOUT };
    let stop = Frame::Stop { channel: STDIN };
    let nothing = Frame::Credit {
        channel: STDIN,
        bytes: 0,
    };
    let cases: [(&str, Vec<Frame>, ResetCode); 11] = [
        (
            "beyond_credit",
            vec![data(STDOUT, 100), data(STDOUT, 1)],
            window,
        ),
        (
            "beyond_limit",
            vec![Frame::Credit {
                channel: STDIN,
                bytes: 901,
            }],
            window,
        ),
        ("unknown_channel", vec![data(Channel(9), 1)], protocol),
        // Stdin runs the other way.
        ("unknown_channel", vec![data(STDIN, 1)], protocol),
        ("after_end", vec![end.clone(), data(STDOUT, 1)], protocol),
        ("after_end", vec![end.clone(), end], protocol),
        (
            "after_done",
            vec![Frame::Done(Bytes::new()), data(STDOUT, 0)],
            protocol,
        ),
        ("misplaced", vec![Frame::Accepted(Bytes::new())], protocol),
        ("idle", vec![data(STDOUT, 0)], protocol),
        ("idle", vec![nothing], protocol),
        ("idle", vec![stop.clone(), stop], protocol),
    ];
    for (kind, frames, code) in cases {
        let (mut hub, _) = running();
        let (last, before) = frames.split_last().unwrap();
        for frame in before {
            hub.receive(frame).unwrap();
        }
        let violation = hub.receive(last).unwrap_err();
        assert_eq!(
            (violation.kind(), violation.code()),
            (kind, code),
            "{frames:?}"
        );
    }
}

#[test]
fn an_agent_says_accepted_or_failed_first() {
    for frame in [
        data(STDOUT, 1),
        Frame::Done(Bytes::new()),
        Frame::Message(Bytes::new()),
    ] {
        let (mut hub, _) = pair();
        assert_eq!(
            hub.receive(&frame).unwrap_err().kind(),
            "misplaced",
            "{frame:?}"
        );
    }
    let (mut hub, _) = pair();
    assert_eq!(
        hub.receive(&Frame::Failed(Bytes::new())),
        Ok(Effect::Deliver)
    );
    assert!(hub.is_over());
}

#[test]
fn what_crosses_the_last_frame_is_dropped() {
    let (_, mut agent) = running();
    agent.finish();
    for frame in [
        data(STDIN, 5000),
        Frame::Stop { channel: STDOUT },
        Frame::End { channel: STDIN },
    ] {
        assert_eq!(agent.receive(&frame), Ok(Effect::Drop));
    }
    assert_eq!(agent.receive_fin(), Ok(()));
    assert_eq!(agent.take_credit(STDOUT, 1), 0);
}

#[test]
fn a_fin_before_the_end_is_an_error() {
    let (hub, agent) = running();
    assert_eq!(hub.receive_fin(), Err(Violation::EarlyFin));
    assert_eq!(agent.receive_fin(), Err(Violation::EarlyFin));
}

#[test]
fn stop_ends_one_channel_and_leaves_the_others() {
    let (mut hub, mut agent) = running();
    hub.stop(STDOUT);
    let stop = hub.owed().unwrap();
    hub.stop(STDOUT);
    assert_eq!((hub.owes(), hub.owed()), (false, None));
    assert_eq!(agent.receive(&stop), Ok(Effect::Stopped(STDOUT)));
    // What was on its way is dropped, and costs no violation.
    assert_eq!(hub.receive(&data(STDOUT, 50)), Ok(Effect::Drop));
    let end = agent.end(STDOUT).unwrap();
    assert_eq!(hub.receive(&end), Ok(Effect::Drop));
    assert_eq!(agent.take_credit(STDOUT, 1), 0);
    assert_eq!(agent.take_credit(STDERR, 1), 1);
    assert_eq!(hub.receive(&data(STDERR, 1)), Ok(Effect::Deliver));
}

#[test]
fn an_agent_says_nothing_before_it_accepts() {
    let (_, mut agent) = pair();
    assert_eq!(agent.receive(&data(STDIN, 100)), Ok(Effect::Deliver));
    agent.consume(STDIN, 100, Duration::ZERO, Duration::ZERO);
    assert_eq!(agent.end(STDOUT), None);
    assert_eq!((agent.owes(), agent.owed()), (false, None));
    agent.accept();
    let credit = Frame::Credit {
        channel: STDIN,
        bytes: 100,
    };
    assert_eq!(agent.owed(), Some(Frame::End { channel: STDOUT }));
    assert_eq!((agent.owed(), agent.owes()), (Some(credit), false));

    let (_, mut agent) = pair();
    agent.stop(STDIN);
    assert!(!agent.owes());
    agent.accept();
    assert_eq!(agent.owed(), Some(Frame::Stop { channel: STDIN }));
}

#[test]
fn nothing_is_owed_on_a_channel_that_is_over() {
    let (mut hub, _) = running();
    assert_eq!(hub.receive(&data(STDOUT, 100)), Ok(Effect::Deliver));
    assert_eq!(
        hub.receive(&Frame::End { channel: STDOUT }),
        Ok(Effect::Deliver)
    );
    hub.consume(STDOUT, 50, Duration::ZERO, Duration::ZERO);
    hub.stop(STDOUT);
    assert_eq!((hub.owes(), hub.owed()), (false, None));
    hub.stop(STDERR);
    hub.receive(&Frame::Done(Bytes::new())).unwrap();
    assert_eq!((hub.owes(), hub.owed()), (false, None));
}

/// A consumer that still reads when nothing more can come must not take from what others may grow
/// by.
#[test]
fn a_window_wants_no_growth_once_nothing_comes() {
    let rtt = Duration::from_millis(40);
    for (last, grows) in [
        (None, true),
        (Some(Frame::End { channel: STDOUT }), false),
        (Some(Frame::Done(Bytes::new())), false),
    ] {
        let (mut hub, _) = running();
        hub.receive(&data(STDOUT, 100)).unwrap();
        if let Some(last) = &last {
            hub.receive(last).unwrap();
        }
        hub.consume(STDOUT, 50, rtt, rtt);
        assert_eq!(hub.consume(STDOUT, 50, 2 * rtt, rtt) > 0, grows, "{last:?}");
    }
}

#[test]
fn with_one_byte_of_credit_one_byte_goes() {
    let (_, mut agent) = running();
    assert_eq!(agent.take_credit(STDOUT, 99), 99);
    assert_eq!(agent.take_credit(STDOUT, 50), 1);
    assert_eq!(agent.take_credit(STDOUT, 50), 0);
    let grant = Frame::Credit {
        channel: STDOUT,
        bytes: 1,
    };
    assert_eq!(agent.receive(&grant), Ok(Effect::Writable(STDOUT)));
    assert_eq!(agent.take_credit(STDOUT, 50), 1);
}

#[test]
fn the_limit_is_shared_by_the_channels_of_a_direction() {
    let (_, mut agent) = running();
    // Two channels run to the hub: each may have half of 1000 outstanding.
    let grant = |bytes| Frame::Credit {
        channel: STDERR,
        bytes,
    };
    assert!(agent.receive(&grant(400)).is_ok());
    assert_eq!(agent.receive(&grant(1)).unwrap_err().kind(), "beyond_limit");
}

#[derive(Debug, Clone)]
enum Act {
    Write(Role, u8, u16),
    End(Role, u8),
    Stop(Role, u8),
    Consume(Role, u16),
    Message(Role, u16),
    /// Writes what is owed.
    Pay(Role),
    Deliver(Role),
    Accept,
    Finish,
}

fn act() -> impl Strategy<Value = Act> {
    let role = || prop_oneof![Just(Role::Hub), Just(Role::Agent)];
    prop_oneof![
        4 => (role(), 0..3u8, 1..400u16).prop_map(|(r, c, n)| Act::Write(r, c, n)),
        1 => (role(), 0..3u8).prop_map(|(r, c)| Act::End(r, c)),
        1 => (role(), 0..3u8).prop_map(|(r, c)| Act::Stop(r, c)),
        3 => (role(), 1..400u16).prop_map(|(r, n)| Act::Consume(r, n)),
        1 => (role(), 1..400u16).prop_map(|(r, n)| Act::Message(r, n)),
        3 => role().prop_map(Act::Pay),
        6 => role().prop_map(Act::Deliver),
        2 => Just(Act::Accept),
        1 => Just(Act::Finish),
    ]
}

proptest! {
    /// Named invariants: *two honest sides never see a violation*, whatever crosses whatever;
    /// *nothing comes after the agent's last frame*; *what waits stays within the limit*.
    #[test]
    fn honest_sides_never_violate(acts in vec(act(), 0..400)) {
        let (mut hub, mut agent) = pair();
        let mut to_hub: Vec<Frame> = Vec::new();
        let mut to_agent: Vec<Frame> = Vec::new();
        let mut waiting = std::collections::BTreeMap::<(bool, u8), u64>::new();
        for act in acts {
            match act {
                Act::Write(role, channel, n) => {
                    let (side, wire) = match role {
                        Role::Hub => (&mut hub, &mut to_agent),
                        Role::Agent => (&mut agent, &mut to_hub),
                    };
                    let taken = side.take_credit(Channel(channel), n.into());
                    if taken > 0 { wire.push(data(Channel(channel), taken as usize)); }
                }
                Act::End(role, channel) => match role {
                    Role::Hub => to_agent.extend(hub.end(Channel(channel))),
                    Role::Agent => to_hub.extend(agent.end(Channel(channel))),
                },
                Act::Stop(role, channel) => match role {
                    Role::Hub => hub.stop(Channel(channel)),
                    Role::Agent => agent.stop(Channel(channel)),
                },
                Act::Message(role, n) => {
                    let (side, wire) = match role {
                        Role::Hub => (&mut hub, &mut to_agent),
                        Role::Agent => (&mut agent, &mut to_hub),
                    };
                    let cost = message_cost(n.into());
                    let fits = side.credit(Channel::MESSAGES) >= cost;
                    if fits && side.take_credit(Channel::MESSAGES, cost) == cost {
                        wire.push(Frame::Message(Bytes::from(vec![0; n.into()])));
                    }
                }
                Act::Consume(role, n) => {
                    let side = match role {
                        Role::Hub => &mut hub,
                        Role::Agent => &mut agent,
                    };
                    for ((at_hub, channel), waiting) in &mut waiting {
                        if *at_hub == (role == Role::Hub) {
                            let n = u64::from(n).min(*waiting);
                            *waiting -= n;
                            let channel = Channel(*channel);
                            let growth = side.consume(channel, n, Duration::ZERO, Duration::ZERO);
                            side.grow(channel, growth);
                        }
                    }
                }
                Act::Deliver(role) => {
                    let (side, other_wire, wire) = match role {
                        Role::Hub => (&mut hub, &mut to_hub, &mut to_agent),
                        Role::Agent => (&mut agent, &mut to_agent, &mut to_hub),
                    };
                    if other_wire.is_empty() { continue }
                    let frame = other_wire.remove(0);
                    let effect = side.receive(&frame);
                    prop_assert!(effect.is_ok(), "two honest sides never see a violation: {:?} {:?}", frame, effect);
                    match (effect.unwrap(), &frame) {
                        (Effect::Deliver, Frame::Data { channel, bytes }) => {
                            let waits = waiting.entry((role == Role::Hub, channel.0)).or_default();
                            *waits += bytes.len() as u64;
                            prop_assert!(*waits <= 1000, "what waits stays within the limit");
                        }
                        (Effect::Deliver, Frame::Message(payload)) => {
                            let key = (role == Role::Hub, Channel::MESSAGES.0);
                            *waiting.entry(key).or_default() += message_cost(payload.len());
                        }
                        (Effect::Stopped(channel), _) => wire.extend(side.end(channel)),
                        _ => {}
                    }
                }
                Act::Pay(role) => {
                    let (side, wire) = match role {
                        Role::Hub => (&mut hub, &mut to_agent),
                        Role::Agent => (&mut agent, &mut to_hub),
                    };
                    while side.owes() {
                        wire.push(side.owed().expect("what is owed can be paid"));
                    }
                    prop_assert_eq!(side.owed(), None);
                }
                Act::Accept => if !agent.is_running() && !agent.is_over() {
                    agent.accept();
                    to_hub.push(Frame::Accepted(Bytes::new()));
                },
                Act::Finish => if agent.is_running() {
                    agent.finish();
                    to_hub.push(Frame::Done(Bytes::new()));
                },
            }
        }
    }
}
