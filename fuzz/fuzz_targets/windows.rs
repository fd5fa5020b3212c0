//! A sender's and a receiver's window against a model that knows nothing but sums.
#![no_main]

use std::time::Duration;

use hub_protocol::window::{RecvWindow, SendWindow, WindowError};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Step {
    Send(u32),
    /// The oldest bytes on their way arrive.
    Deliver,
    /// Bytes arrive that the sender never took credit for.
    Forge(u64),
    Consume(u32),
    /// The session has this much to lend for what the window wants.
    Lend(u32),
    Refund,
    /// The oldest grant on its way arrives.
    Grant,
    /// A grant arrives that the receiver never made.
    ForgeGrant(u64),
    Pass(u16),
}

#[derive(Debug, Arbitrary)]
struct Input {
    initial: u32,
    limit: u32,
    rtt_ms: u16,
    steps: Vec<Step>,
}

/// Totals since the beginning.
#[derive(Debug, Default)]
struct Model {
    sent: u64,
    received: u64,
    consumed: u64,
    grown: u64,
    granted: u64,
    granted_arrived: u64,
}

fuzz_target!(|input: Input| {
    let (initial, limit) = (u64::from(input.initial), u64::from(input.limit));
    let first = initial.min(limit);
    let rtt = Duration::from_millis(input.rtt_ms.into());
    let mut sender = SendWindow::new(initial, limit);
    let mut receiver = RecvWindow::new(initial, limit);
    let mut model = Model::default();
    let (mut data, mut grants) = (
        std::collections::VecDeque::new(),
        std::collections::VecDeque::new(),
    );
    let (mut now, mut wanted) = (Duration::ZERO, 0);
    for step in input.steps {
        match step {
            Step::Send(n) => {
                let credit = first + model.granted_arrived - model.sent;
                let taken = sender.take(n.into());
                assert_eq!(
                    taken,
                    u64::from(n).min(credit),
                    "all the credit there is, and no more"
                );
                model.sent += taken;
                if taken > 0 {
                    data.push_back(taken);
                }
            }
            Step::Deliver => {
                if let Some(n) = data.pop_front() {
                    assert_eq!(receiver.receive(n), Ok(()), "no overdraft");
                    model.received += n;
                }
            }
            Step::Forge(n) => {
                let credit = first + model.granted - model.received;
                let on_its_way: u64 = data.iter().sum();
                if n > credit {
                    let beyond = WindowError::BeyondCredit { sent: n, credit };
                    assert_eq!(receiver.receive(n), Err(beyond));
                } else if n <= credit - on_its_way {
                    // Within what the receiver allowed: it cannot tell.
                    assert_eq!(receiver.receive(n), Ok(()));
                    model.received += n;
                    model.sent += sender.take(n);
                    if model.sent < model.received + on_its_way {
                        // The grant for it has not arrived: the pair is out of step from here on.
                        return;
                    }
                }
            }
            Step::Consume(n) => {
                let n = u64::from(n).min(model.received - model.consumed);
                wanted = receiver.consume(n, now, rtt);
                model.consumed += n;
                assert!(
                    receiver.target() + wanted <= limit,
                    "never beyond the limit"
                );
            }
            Step::Lend(most) => {
                let growth = wanted.min(most.into());
                receiver.grow(growth);
                model.grown += growth;
                wanted = 0;
            }
            Step::Refund => {
                let owed = model.consumed + model.grown - model.granted;
                let due = owed > 0 && owed >= (first + model.grown) / 8;
                assert_eq!(receiver.refund_due(), due);
                assert_eq!(receiver.refund(), due.then_some(owed));
                if due {
                    model.granted += owed;
                    grants.push_back(owed);
                }
            }
            Step::Grant => {
                if let Some(n) = grants.pop_front() {
                    assert_eq!(sender.grant(n), Ok(()), "no honest grant is refused");
                    model.granted_arrived += n;
                }
            }
            Step::ForgeGrant(n) => {
                let credit = first + model.granted_arrived - model.sent;
                if n > limit - credit {
                    let outstanding = credit.saturating_add(n);
                    let beyond = WindowError::BeyondLimit { outstanding, limit };
                    assert_eq!(sender.grant(n), Err(beyond));
                }
            }
            Step::Pass(ms) => now += Duration::from_millis(ms.into()),
        }
        assert_eq!(sender.credit(), first + model.granted_arrived - model.sent);
        assert_eq!(receiver.credit(), first + model.granted - model.received);
        assert_eq!(receiver.waiting(), model.received - model.consumed);
        assert_eq!(receiver.target(), first + model.grown);
        let on_its_way: u64 = data.iter().sum();
        assert!(
            on_its_way + receiver.waiting() <= receiver.target(),
            "bounded memory"
        );
        assert!(receiver.target() <= limit);
    }
});
