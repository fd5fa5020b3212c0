#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

/// More than any test sends.
const FREE: u64 = 1 << 40;

const LAVISH: Quota = Quota {
    rate: FREE,
    burst: FREE,
    queue: 1 << 20,
};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn packet(len: usize) -> Bytes {
    Bytes::from(vec![0; len])
}

/// Sends all that may be sent at `now`: the flows, in order, and what stopped it.
fn drain(outbox: &mut Outbox, now: Duration) -> (Vec<(u64, usize)>, Next) {
    let mut sent = Vec::new();
    loop {
        match outbox.next(now, usize::MAX) {
            Next::Send { flow, payload } => sent.push((flow, payload.len())),
            stopped => return (sent, stopped),
        }
    }
}

#[test]
fn a_bucket_lets_through_its_rate_and_its_burst() {
    let mut bucket = Bucket::new(1000, 500, ms(0));
    bucket.take(500);
    assert_eq!(bucket.wait(ms(0)), Duration::from_nanos(1));
    assert_eq!(bucket.wait(ms(1)), Duration::ZERO);
    bucket.take(1001);
    let wait = bucket.wait(ms(1));
    assert_eq!(wait, ms(1000) + Duration::from_nanos(1));
    assert_eq!(bucket.wait(ms(1) + wait), Duration::ZERO);
    // A pause does not add up to more than the burst.
    assert_eq!(bucket.wait(ms(1_000_000)), Duration::ZERO);
    bucket.take(500);
    assert!(!bucket.wait(ms(1_000_000)).is_zero());
}

#[test]
fn a_path_is_shared_with_streams_that_want_it() {
    let rtt = ms(100);
    assert_eq!(share(100_000, rtt, true), 500_000);
    assert_eq!(share(100_000, rtt, false), 1_250_000);
    assert_eq!(share(0, rtt, true), 16 * 1024);
    assert_eq!(share(u64::MAX, Duration::ZERO, false), u64::MAX);
}

#[test]
fn a_flood_takes_turns_with_the_others_and_drops_its_own() {
    let mut outbox = Outbox::new(FREE, ms(0));
    for flow in [1, 2] {
        outbox.open(
            flow,
            Quota {
                queue: 10_000,
                ..LAVISH
            },
            ms(0),
        );
    }
    let dropped: u64 = (0..1000).map(|_| outbox.push(1, packet(1200))).sum();
    let kept = 10_000 / (1200 + 64);
    assert_eq!(dropped, 1000 - kept);
    assert_eq!(outbox.push(2, packet(50)), 0);
    let (sent, stopped) = drain(&mut outbox, ms(0));
    assert_eq!(stopped, Next::Idle);
    let at = sent.iter().position(|(flow, _)| *flow == 2).unwrap();
    assert!(at <= 1, "{sent:?}");
    assert_eq!(sent.len() as u64, kept + 1);
}

#[test]
fn who_has_used_up_its_quota_holds_nobody_up() {
    let mut outbox = Outbox::new(FREE, ms(0));
    let quota = Quota {
        rate: 1000,
        burst: 1000,
        queue: 1 << 16,
    };
    outbox.open(1, quota, ms(0));
    outbox.open(2, LAVISH, ms(0));
    for _ in 0..3 {
        outbox.push(1, packet(1000));
        outbox.push(2, packet(1000));
    }
    let (sent, stopped) = drain(&mut outbox, ms(0));
    assert_eq!(sent.iter().filter(|(flow, _)| *flow == 1).count(), 1);
    assert_eq!(sent.iter().filter(|(flow, _)| *flow == 2).count(), 3);
    // One byte of overhead, and a nanosecond.
    assert_eq!(stopped, Next::Wait(ms(1) + Duration::from_nanos(1)));
}

#[test]
fn a_packet_waits_for_room_and_is_not_lost() {
    let mut outbox = Outbox::new(FREE, ms(0));
    outbox.open(1, LAVISH, ms(0));
    outbox.push(1, packet(1200));
    assert_eq!(outbox.next(ms(0), 1200), Next::Full(1201));
    assert!(matches!(
        outbox.next(ms(0), 1201),
        Next::Send { flow: 1, .. }
    ));
    assert_eq!(outbox.next(ms(0), 0), Next::Idle);
}

#[test]
fn what_waits_is_bounded_for_all_flows_together() {
    let mut outbox = Outbox::new(FREE, ms(0));
    for flow in 0..100 {
        outbox.open(flow, LAVISH, ms(0));
        for _ in 0..100 {
            outbox.push(flow, packet(1000));
        }
    }
    assert!(outbox.waiting() <= MAX_WAITING && outbox.waiting() > MAX_WAITING - 2000);
    for flow in 0..100 {
        outbox.close(flow);
    }
    assert_eq!(outbox.waiting(), 0);
    assert_eq!(outbox.push(1, packet(1)), 1, "the flow is over");
}

#[derive(Debug, Clone)]
enum Step {
    Push(u64, usize),
    Pass(u64),
    Send,
    Close(u64),
    Open(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4u64, 0..9000usize).prop_map(|(flow, len)| Step::Push(flow, len)),
        2 => (0..20u64).prop_map(Step::Pass),
        6 => Just(Step::Send),
        1 => (0..4u64).prop_map(Step::Close),
        2 => (0..4u64).prop_map(Step::Open),
    ]
}

proptest! {
    /// Every packet is sent once, in the order of its flow, or counted as dropped; neither a quota
    /// nor the share nor the bounds of memory are exceeded; and whoever waits as long as it is told
    /// to gets on.
    #[test]
    fn packets_are_sent_or_counted(steps in prop::collection::vec(step(), 0..300)) {
        const QUOTA: Quota = Quota { rate: 200_000, burst: 10_000, queue: 30_000 };
        const SHARE: u64 = 500_000;
        let mut now = Duration::ZERO;
        let mut outbox = Outbox::new(SHARE, now);
        // The lengths that wait of each open flow, as the model has them.
        let mut flows: BTreeMap<u64, (VecDeque<usize>, Duration, u64)> = BTreeMap::new();
        let mut sent_in_all = 0;
        for step in steps {
            match step {
                Step::Open(flow) => {
                    if let std::collections::btree_map::Entry::Vacant(entry) = flows.entry(flow) {
                        outbox.open(flow, QUOTA, now);
                        entry.insert((VecDeque::new(), now, 0));
                    }
                }
                Step::Close(flow) => {
                    let gone = outbox.close(flow);
                    let waited = flows.remove(&flow).map_or(0, |(waiting, ..)| waiting.len() as u64);
                    prop_assert!(gone >= waited);
                }
                Step::Push(flow, len) => {
                    let dropped = outbox.push(flow, packet(len));
                    let Some((waiting, ..)) = flows.get_mut(&flow) else {
                        prop_assert_eq!(dropped, 1);
                        continue;
                    };
                    waiting.push_back(len);
                    for _ in 0..dropped {
                        waiting.pop_front();
                    }
                    let held: usize = waiting.iter().map(|len| len + 64).sum();
                    prop_assert!(held <= QUOTA.queue);
                }
                Step::Pass(passed) => now += ms(passed),
                Step::Send => match outbox.next(now, usize::MAX) {
                    Next::Send { flow, payload } => {
                        let (waiting, since, sent) = flows.get_mut(&flow).unwrap();
                        prop_assert_eq!(waiting.pop_front(), Some(payload.len()));
                        let size = payload.len() as u64 + 1;
                        let allowed = |rate: u64, burst: u64, since: Duration| {
                            burst + rate * now.saturating_sub(since).as_micros() as u64 / 1_000_000 + 1
                        };
                        prop_assert!(*sent <= allowed(QUOTA.rate, QUOTA.burst, *since));
                        prop_assert!(sent_in_all <= allowed(SHARE, BURST, Duration::ZERO));
                        *sent += size;
                        sent_in_all += size;
                    }
                    Next::Wait(wait) => {
                        now += wait;
                        let on = matches!(outbox.next(now, 0), Next::Full(_) | Next::Wait(_));
                        prop_assert!(on, "something waits");
                    }
                    Next::Full(_) => prop_assert!(false, "there is room"),
                    Next::Idle => {
                        prop_assert!(flows.values().all(|(waiting, ..)| waiting.is_empty()));
                    }
                },
            }
            let held: usize = flows.values().flat_map(|(waiting, ..)| waiting).map(|len| len + 64).sum();
            prop_assert_eq!(outbox.waiting(), held);
        }
    }

    /// Flows that always have something to send get the same, whatever their packets' sizes.
    #[test]
    fn flows_share_fairly(sizes in prop::collection::vec(1..9000usize, 2..6)) {
        let mut outbox = Outbox::new(FREE, ms(0));
        let mut sent = vec![0usize; sizes.len()];
        for flow in 0..sizes.len() {
            outbox.open(flow as u64, LAVISH, ms(0));
        }
        let mut total = 0;
        while total < 2_000_000 {
            for (flow, size) in sizes.iter().enumerate() {
                while outbox.flows[&(flow as u64)].packets.len() < 2 {
                    outbox.push(flow as u64, packet(*size));
                }
            }
            let Next::Send { flow, payload } = outbox.next(ms(total as u64), usize::MAX) else {
                panic!("all have packets");
            };
            sent[flow as usize] += payload.len() + 1;
            total += payload.len() + 1;
        }
        let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
        prop_assert!(most - least <= 2 * (9000 + QUANTUM), "{:?}", sent);
    }
}
