#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::future::poll_fn;
use std::net::{Ipv4Addr, Ipv6Addr};

use futures_util::FutureExt as _;
use http_body_util::{BodyExt as _, Full, StreamBody};
use proptest::prelude::*;
use tokio::sync::mpsc;

use super::*;

fn rate(every: u64, burst: u32) -> Rate {
    Rate {
        every: Duration::from_millis(every),
        burst: NonZeroU32::new(burst).unwrap(),
    }
}

const ALL: [Refusal; Refusal::NAMES.len()] = [
    Refusal::ClientRate(Duration::ZERO),
    Refusal::ClientConnections,
    Refusal::Attempts(Duration::ZERO),
    Refusal::ExposureRequests,
    Refusal::NodeRequests,
    Refusal::ReplicaSessions,
    Refusal::BodySize(0),
    Refusal::UploadIdle(Duration::ZERO),
    Refusal::ResponseIdle(Duration::ZERO),
];

#[test]
fn each_refusal_has_a_name_of_its_own_and_a_status_that_fits() {
    let names: HashSet<_> = ALL.iter().map(|refusal| refusal.name()).collect();
    assert_eq!(names.len(), ALL.len());
    for refusal in ALL {
        let status = refusal.status().map(|status| status.as_u16());
        assert!(
            matches!(status, None | Some(408 | 413 | 429 | 503)),
            "{refusal:?}"
        );
        let again = refusal.retry_after();
        assert!(
            again.is_none_or(|wait| wait >= Duration::from_secs(1) && wait.subsec_nanos() == 0)
        );
        assert_eq!(
            again.is_some(),
            matches!(status, Some(408 | 429 | 503)),
            "{refusal:?}"
        );
        assert!(!refusal.to_string().is_empty());
    }
    let wait = |millis| Refusal::ClientRate(Duration::from_millis(millis)).retry_after();
    assert_eq!(wait(1001), Some(Duration::from_secs(2)));
    assert_eq!(wait(1000), Some(Duration::from_secs(1)));
}

#[test]
fn clients_are_addresses_or_networks_of_one_site() {
    let key = |text: &str| ClientKey::from(text.parse::<IpAddr>().unwrap());
    assert_eq!(key("192.0.2.1"), key("::ffff:192.0.2.1"));
    assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
    assert_eq!(key("2001:db8:0:1::1"), key("2001:db8:0:1:ffff::2"));
    assert_ne!(key("2001:db8:0:1::1"), key("2001:db8:0:2::1"));
    assert_ne!(
        ClientKey::from(IpAddr::from(Ipv4Addr::UNSPECIFIED)),
        ClientKey::from(IpAddr::from(Ipv6Addr::UNSPECIFIED))
    );
}

#[test]
fn a_bucket_gives_its_burst_and_then_fills_again() {
    let (mut buckets, start) = (Buckets::new(8), Instant::now());
    let at = |millis| start + Duration::from_millis(millis);
    for _ in 0..3 {
        assert_eq!(buckets.take('a', rate(100, 3), start), Ok(()));
    }
    assert_eq!(
        buckets.take('a', rate(100, 3), at(40)),
        Err(Duration::from_millis(60))
    );
    assert_eq!(buckets.take('b', rate(100, 3), at(40)), Ok(()));
    assert_eq!(buckets.peek('a', rate(100, 3), at(100)), Ok(()));
    assert_eq!(buckets.take('a', rate(100, 3), at(100)), Ok(()));
    assert!(buckets.take('a', rate(100, 3), at(100)).is_err());
}

proptest! {
    /// In no stretch of time is more given than its burst and what it fills up by; and whoever
    /// waits as long as it is told is given one.
    #[test]
    fn a_bucket_never_gives_more_than_its_rate(
        gaps in prop::collection::vec(0u64..300, 1..60), every in 1u64..200, burst in 1u32..6,
    ) {
        let (mut buckets, start, rate) = (Buckets::new(1), Instant::now(), rate(every, burst));
        let (mut now, mut given) = (0, Vec::new());
        for gap in gaps {
            now += gap;
            let at = start + Duration::from_millis(now);
            match buckets.take((), rate, at) {
                Ok(()) => given.push(now),
                Err(wait) => prop_assert_eq!(buckets.peek((), rate, at + wait), Ok(())),
            }
        }
        for (i, first) in given.iter().enumerate() {
            for (j, last) in given.iter().enumerate().skip(i) {
                let most = u64::from(burst) + (last - first) / every;
                prop_assert!((j - i + 1) as u64 <= most, "{given:?}");
            }
        }
    }

    /// The table never grows beyond its room, keeps both its views alike, and drops the entry that
    /// was used least lately.
    #[test]
    fn the_table_is_bounded_and_forgets_the_oldest(
        keys in prop::collection::vec(0u8..12, 1..80), room in 1usize..6,
    ) {
        let (mut buckets, start) = (Buckets::new(room), Instant::now());
        let mut order: Vec<u8> = Vec::new();
        for key in keys {
            if buckets.take(key, rate(1_000_000, 1000), start).is_ok() {
                order.retain(|other| *other != key);
                order.push(key);
                if order.len() > room {
                    order.remove(0);
                }
            }
            let held: Vec<u8> = buckets.by_use.values().copied().collect();
            prop_assert_eq!(&held, &order);
            prop_assert_eq!(buckets.by_key.len(), order.len());
        }
    }

    /// A body passes if and only if it is not larger than the limit, wherever it is cut.
    #[test]
    fn a_body_passes_up_to_its_size(
        pieces in prop::collection::vec(0usize..50, 0..10), max in 0u64..200,
    ) {
        let whole: u64 = pieces.iter().map(|piece| *piece as u64).sum();
        let announced = BodySize::new(Some(max), Some(whole));
        prop_assert_eq!(announced.is_ok(), whole <= max);
        let mut size = BodySize::new(Some(max), None).unwrap();
        let taken = pieces.iter().try_for_each(|piece| size.take(*piece));
        prop_assert_eq!(taken.is_ok(), whole <= max);
    }
}

#[tokio::test]
async fn a_body_that_turns_out_too_large_ends_there() {
    let size = BodySize::new(Some(3), None).unwrap();
    let body = Full::new(Bytes::from_static(b"four")).map_err(Into::into);
    let mut body = Guarded::new(body, size, Duration::from_secs(1));
    let error = body.frame().await.unwrap().unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(Refusal::BodySize(3))));
}

type Pieces = mpsc::UnboundedReceiver<Result<Frame<Bytes>, BodyError>>;

fn streamed(mut pieces: Pieces) -> impl Body<Data = Bytes, Error = BodyError> + Unpin {
    StreamBody::new(Box::pin(futures_util::stream::poll_fn(move |cx| {
        pieces.poll_recv(cx)
    })))
}

#[tokio::test(start_paused = true)]
async fn an_upload_may_be_slow_but_not_silent_while_it_is_waited_for() {
    let idle = Duration::from_secs(60);
    let (send, pieces) = mpsc::unbounded_channel();
    let size = BodySize::new(None, None).unwrap();
    let mut body = Guarded::new(streamed(pieces), size, idle);
    let piece = || Ok(Frame::data(Bytes::from_static(b"x")));
    for _ in 0..3 {
        // Nobody waits for it: that the target takes nothing is not the browser's doing.
        sleep(idle * 5).await;
        assert!(body.frame().now_or_never().is_none());
        sleep(Duration::from_secs(59)).await;
        send.send(piece()).unwrap();
        assert!(body.frame().await.unwrap().is_ok());
    }
    let begun = Instant::now();
    let error = body.frame().await.unwrap().unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(Refusal::UploadIdle(_))));
    assert_eq!(begun.elapsed(), idle);
}

#[tokio::test(start_paused = true)]
async fn two_that_stream_may_be_silent() {
    let (send, pieces) = mpsc::unbounded_channel();
    let size = BodySize::new(None, None).unwrap();
    let mut body = Guarded::new(streamed(pieces), size, Duration::from_secs(60));
    let answered = body.answered();
    assert!(body.frame().now_or_never().is_none());
    answered.store(true, Ordering::Relaxed);
    let day = Duration::from_secs(86_400);
    let waited = tokio::time::timeout(day, poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)));
    assert!(waited.await.is_err());
    send.send(Ok(Frame::data(Bytes::from_static(b"x"))))
        .unwrap();
    assert!(body.frame().await.unwrap().is_ok());
}
