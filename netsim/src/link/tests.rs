#![allow(clippy::unwrap_used, clippy::cast_precision_loss)]

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// What became of `count` packets of `size` bytes, one every `gap`.
fn run(config: LinkConfig, seed: u64, count: u32, size: usize, gap: Duration) -> Vec<Vec<Verdict>> {
    let mut link = Link::new(config, seed);
    (0..count)
        .map(|i| link.transmit(size, gap * i).collect())
        .collect()
}

fn arrivals(verdicts: &[Vec<Verdict>]) -> Vec<Duration> {
    let deliveries = verdicts
        .iter()
        .flatten()
        .filter_map(|verdict| match verdict {
            Verdict::Deliver { at, .. } => Some(*at),
            Verdict::Drop(_) => None,
        });
    deliveries.collect()
}

fn share(count: usize, of: usize) -> f64 {
    count as f64 / of as f64
}

fn lost(verdicts: &[Vec<Verdict>]) -> Vec<bool> {
    verdicts
        .iter()
        .map(|v| matches!(v[0], Verdict::Drop(_)))
        .collect()
}

#[test]
fn a_perfect_link_changes_nothing() {
    let verdicts = run(LinkConfig::perfect(), 1, 1000, 1500, MS);
    let expected: Vec<_> = (0..1000).map(|i| MS * i).collect();
    assert_eq!(arrivals(&verdicts), expected);
}

#[test]
fn delay_is_exact_and_jitter_is_uniform_above_it() {
    let config = LinkConfig::perfect().delay(40 * MS).jitter(10 * MS);
    let arrivals = arrivals(&run(config, 2, 20_000, 100, 100 * MS));
    let extra: Vec<f64> = (arrivals.iter().zip(0..))
        .map(|(at, i)| at.saturating_sub(100 * MS * i).as_secs_f64() * 1e3)
        .collect();
    assert!(extra.iter().all(|ms| (40.0..=50.0).contains(ms)));
    let mean = extra.iter().sum::<f64>() / extra.len() as f64;
    let variance = extra.iter().map(|ms| (ms - mean).powi(2)).sum::<f64>() / extra.len() as f64;
    assert!((mean - 45.0).abs() < 0.1, "mean {mean}");
    assert!((variance - 100.0 / 12.0).abs() < 0.3, "variance {variance}");
}

#[test]
fn random_loss_meets_its_rate_without_memory() {
    for p in [0.0, 0.02, 0.3, 1.0] {
        let lost = lost(&run(LinkConfig::perfect().loss(p), 3, 50_000, 100, MS));
        let measured = share(lost.iter().filter(|l| **l).count(), lost.len());
        assert!((measured - p).abs() < 0.01, "{measured} for {p}");
        let pairs = lost.windows(2).filter(|w| w[0] && w[1]).count();
        assert!(
            (share(pairs, lost.len()) - p * p).abs() < 0.01,
            "pairs for {p}"
        );
    }
}

#[test]
fn gilbert_elliott_meets_its_rate_in_bursts_of_the_mean_length() {
    let model = GilbertElliott::from_mean(0.05, 8.0);
    let lost = lost(&run(
        LinkConfig::perfect().bursty_loss(model),
        4,
        400_000,
        100,
        MS,
    ));
    let losses = lost.iter().filter(|l| **l).count();
    let bursts = lost.windows(2).filter(|w| !w[0] && w[1]).count();
    assert!(
        (share(losses, lost.len()) - 0.05).abs() < 0.004,
        "{losses} lost"
    );
    assert!(
        (share(losses, bursts) - 8.0).abs() < 0.4,
        "{losses} lost in {bursts} bursts"
    );
}

#[test]
fn a_burst_wears_off_in_silence() {
    // One that traffic alone would hardly ever end.
    let model = GilbertElliott {
        to_bad: 1.0,
        to_good: 0.02,
        loss_good: 0.0,
        loss_bad: 1.0,
    };
    let silence = Duration::from_secs(10);
    let lost = lost(&run(
        LinkConfig::perfect().bursty_loss(model),
        6,
        1_000,
        100,
        silence,
    ));
    // After 1,000 steps in silence every packet finds the good state again.
    assert!(lost.iter().all(|lost| !lost));
}

#[test]
fn gilbert_elliott_tells_its_two_states_apart() {
    let model = GilbertElliott {
        to_bad: 0.1,
        to_good: 0.3,
        loss_good: 0.01,
        loss_bad: 0.5,
    };
    let verdicts = run(
        LinkConfig::perfect().bursty_loss(model),
        5,
        200_000,
        100,
        MS,
    );
    let count = |reason| {
        verdicts
            .iter()
            .filter(|v| v[0] == Verdict::Drop(reason))
            .count()
    };
    // In the bad state a quarter of the time: 0.1 / (0.1 + 0.3).
    let (good, bad) = (count(LinkDrop::RandomLoss), count(LinkDrop::BurstLoss));
    assert!(
        (share(good, verdicts.len()) - 0.75 * 0.01).abs() < 0.001,
        "{good}"
    );
    assert!(
        (share(bad, verdicts.len()) - 0.25 * 0.5).abs() < 0.005,
        "{bad}"
    );
}

#[test]
fn the_serialiser_spaces_packets_and_the_queue_drops_the_tail() {
    // 1000 bytes take 1 ms at 8 Mbit/s; ten of them fit, the one being sent included.
    let mut link = Link::new(LinkConfig::perfect().rate(8_000_000, 10_000), 6);
    let verdicts: Vec<_> = (0..12)
        .flat_map(|_| link.transmit(1000, Duration::ZERO))
        .collect();
    let at = |ms: u32| Verdict::Deliver {
        at: MS * ms,
        corruption: None,
    };
    let mut expected: Vec<_> = (1..=10).map(at).collect();
    expected.extend([Verdict::Drop(LinkDrop::QueueFull); 2]);
    assert_eq!(verdicts, expected);

    // Half way through the third packet seven and a half are left, and it counts whole.
    assert_eq!(link.queued_bytes(MS * 5 / 2), 8000);
    assert_eq!(link.transmit(1000, MS * 5 / 2).next(), Some(at(11)));
}

#[test]
fn goodput_under_overload_is_the_rate() {
    let config = LinkConfig::perfect().rate(10_000_000, 20_000);
    // 1250 bytes every half millisecond are 20 Mbit/s.
    let verdicts = run(config, 7, 20_000, 1250, MS / 2);
    let last = *arrivals(&verdicts).last().unwrap();
    let bits = arrivals(&verdicts).len() as f64 * 1250.0 * 8.0;
    let rate = bits / last.as_secs_f64();
    assert!((rate - 10e6).abs() < 10e3, "{rate} bit/s");
}

#[test]
fn held_back_packets_are_overtaken() {
    let config = LinkConfig::perfect().delay(20 * MS).reorder(0.1, 50 * MS);
    let verdicts = run(config, 8, 20_000, 100, 5 * MS);
    let late: Vec<_> = (arrivals(&verdicts).iter().zip(0..))
        .map(|(at, i)| at.saturating_sub((5 * i + 20) * MS))
        .filter(|late| *late > Duration::ZERO)
        .collect();
    assert!(
        (share(late.len(), 20_000) - 0.1).abs() < 0.01,
        "{} late",
        late.len()
    );
    assert!(late.iter().all(|late| *late <= 50 * MS));
    let overtaken = arrivals(&verdicts)
        .windows(2)
        .filter(|w| w[0] > w[1])
        .count();
    // Held back for more than the gap of 5 ms out of up to 50, and the next one not held as long.
    assert!(
        (0.08..0.1).contains(&share(overtaken, 20_000)),
        "{overtaken} overtaken"
    );
}

#[test]
fn duplicates_and_corruption_meet_their_rates() {
    let config = LinkConfig::perfect().duplicate(0.2).corrupt(0.05);
    let verdicts = run(config, 9, 50_000, 100, MS);
    let copies: Vec<_> = verdicts.iter().flatten().collect();
    let twice = verdicts.iter().filter(|v| v.len() == 2).count();
    let corrupted = (copies.iter())
        .filter(|v| {
            matches!(
                v,
                Verdict::Deliver {
                    corruption: Some(_),
                    ..
                }
            )
        })
        .count();
    assert!((share(twice, 50_000) - 0.2).abs() < 0.01, "{twice} twice");
    assert!(
        (share(corrupted, copies.len()) - 0.05).abs() < 0.005,
        "{corrupted} corrupted"
    );
}

#[test]
fn a_corruption_flips_one_bit_and_spares_the_empty_packet() {
    let mut seen = std::collections::BTreeSet::new();
    for bit in 0..200 {
        let mut payload = [0; 4];
        Corruption(bit).apply(&mut payload);
        let ones: u32 = payload.iter().map(|byte: &u8| byte.count_ones()).sum();
        assert_eq!(ones, 1);
        seen.insert(payload);
    }
    assert_eq!(seen.len(), 32);
    Corruption(7).apply(&mut []);
}

#[test]
fn blackouts_and_the_mtu_drop_with_their_reason() {
    let config = LinkConfig::perfect()
        .mtu(1280)
        .rate(8_000_000, 100_000)
        .blackout(10 * MS..20 * MS);
    let mut link = Link::new(config, 10);
    let mut fate = |size, at| link.transmit(size, at).next().unwrap();
    assert_eq!(fate(1281, Duration::ZERO), Verdict::Drop(LinkDrop::TooBig));
    assert!(matches!(
        fate(1280, Duration::ZERO),
        Verdict::Deliver { .. }
    ));
    // Enters before, and would leave the serialiser within.
    assert_eq!(
        fate(1000, 9 * MS + MS / 2),
        Verdict::Drop(LinkDrop::Blackout)
    );
    assert_eq!(fate(100, 15 * MS), Verdict::Drop(LinkDrop::Blackout));
    assert!(matches!(fate(100, 20 * MS), Verdict::Deliver { .. }));
}

#[test]
fn a_shorter_path_is_faster_at_once() {
    let mut link = Link::new(LinkConfig::perfect().delay(1000 * MS), 11);
    assert!(
        matches!(link.transmit(100, MS).next(), Some(Verdict::Deliver { at, .. }) if at == 1001 * MS)
    );
    link.reconfigure(LinkConfig::perfect());
    assert!(
        matches!(link.transmit(100, 2 * MS).next(), Some(Verdict::Deliver { at, .. }) if at == 2 * MS)
    );
}

#[test]
fn one_knob_does_not_reshuffle_another() {
    let lost_with = |config: LinkConfig| lost(&run(config.loss(0.1), 12, 2000, 100, MS));
    let plain = lost_with(LinkConfig::perfect());
    let more = LinkConfig::perfect()
        .jitter(5 * MS)
        .duplicate(0.5)
        .reorder(0.5, MS);
    assert_eq!(plain, lost_with(more));
}

fn any_config() -> impl Strategy<Value = LinkConfig> {
    let p = || prop_oneof![Just(0.0), Just(1.0), 0.0..1.0];
    let ms = || (0..100_u32).prop_map(|n| MS * n);
    let loss = prop_oneof![
        Just(Loss::None),
        p().prop_map(Loss::Random),
        (p(), p(), p(), p()).prop_map(|(to_bad, to_good, loss_good, loss_bad)| {
            Loss::Bursty(GilbertElliott {
                to_bad,
                to_good,
                loss_good,
                loss_bad,
            })
        }),
    ];
    let rate = proptest::option::of((1_000..100_000_000_u64, 0..100_000_usize));
    let blackouts = proptest::collection::vec((ms(), ms()).prop_map(|(a, b)| a..b), 0..3);
    (
        (ms(), ms(), loss),
        (p(), ms(), p(), p()),
        (rate, 0..2000_usize, blackouts),
    )
        .prop_map(
            |(
                (delay, jitter, loss),
                (reorder, reorder_by, duplicate, corrupt),
                (rate, mtu, dark),
            )| {
                LinkConfig {
                    delay,
                    jitter,
                    loss,
                    reorder,
                    reorder_by,
                    duplicate,
                    corrupt,
                    rate: rate.map(|(bits_per_second, queue_bytes)| Rate {
                        bits_per_second,
                        queue_bytes,
                    }),
                    mtu,
                    blackouts: dark,
                }
            },
        )
}

fn any_packets() -> impl Strategy<Value = Vec<(usize, Duration)>> {
    let packet = (
        0..1600_usize,
        (0..5_000_u64).prop_map(Duration::from_micros),
    );
    proptest::collection::vec(packet, 1..100).prop_map(|packets| {
        let mut now = Duration::ZERO;
        let enter = packets.into_iter().map(|(size, gap)| {
            now += gap;
            (size, now)
        });
        enter.collect()
    })
}

proptest! {
    #[test]
    fn every_packet_meets_one_fate_in_time(config in any_config(), packets in any_packets(), seed: u64) {
        let mut link = Link::new(config.clone(), seed);
        for (size, now) in packets {
            let verdicts: Vec<_> = link.transmit(size, now).collect();
            let delivered = verdicts.iter().filter(|v| matches!(v, Verdict::Deliver { .. })).count();
            prop_assert!((1..=2).contains(&verdicts.len()));
            prop_assert!(verdicts.len() == 1 || delivered == 2);
            for verdict in verdicts {
                if let Verdict::Deliver { at, .. } = verdict {
                    prop_assert!(at >= now + config.delay);
                    prop_assert!(size <= config.mtu);
                    prop_assert!(!config.is_dark(now));
                }
            }
            let bound = config.rate.map_or(0, |rate| rate.queue_bytes);
            prop_assert!(link.queued_bytes(now) <= bound);
        }
    }

    #[test]
    fn order_is_kept_unless_asked_otherwise(
        config in any_config(),
        packets in any_packets(),
        seed: u64,
    ) {
        let mut link = Link::new(config.reorder(0.0, Duration::ZERO), seed);
        let verdicts: Vec<_> = packets.iter().map(|(s, now)| link.transmit(*s, *now).collect()).collect();
        prop_assert!(arrivals(&verdicts).is_sorted());
    }

    #[test]
    fn the_same_seed_gives_the_same_verdicts(
        config in any_config(),
        packets in any_packets(),
        seed: u64,
    ) {
        let run = || -> Vec<Verdict> {
            let mut link = Link::new(config.clone(), seed);
            packets.iter().flat_map(|(size, now)| link.transmit(*size, *now)).collect()
        };
        prop_assert_eq!(run(), run());
    }
}
