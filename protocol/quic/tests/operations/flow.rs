//! Credit at work: who waits for whom, how windows grow, and that nothing else is held up. Mostly
//! in simulated time, where "it waits" can be told from "it has not come to it yet".

use std::cell::Cell;
use std::time::Duration;

use bytes::Bytes;
use hub_netsim::LinkConfig;
use hub_protocol::kind::{OperationKind, exec, http};
use hub_quic::endpoint::Transport;
use hub_quic::operation::Operation;
use hub_quic::session::windows;
use hub_quic::transport::RecvStream;
use tokio::io::AsyncReadExt as _;
use tokio::time::{Instant, MissedTickBehavior, timeout};

use crate::raw;
use crate::support::{
    Ends, Pair, Random, Write as _, open_body, read_all, run_simulated, settle, simulated_over_both,
};

const KIB: usize = 1024;
const ONE_WAY: Duration = Duration::from_millis(20);

fn link() -> LinkConfig {
    LinkConfig::perfect().delay(ONE_WAY)
}

/// Sends a byte pattern without end, or up to `most` bytes; counts what was taken.
async fn pour(
    operation: &Operation,
    channel: hub_protocol::frame::Channel,
    most: usize,
    count: &Cell<usize>,
) {
    let mut sender = operation.sender(channel);
    let piece = Bytes::from(vec![7; 1000]);
    while count.get() < most {
        let piece = piece.slice(..piece.len().min(most - count.get()));
        let len = piece.len();
        // Whole pieces are counted; a piece that waits for credit is cut below.
        if sender.send(piece).await.is_err() {
            return;
        }
        count.set(count.get() + len);
    }
    sender.finish();
}

/// As [`pour`], counting bytes one by one: the sender stops at the very byte.
async fn drip(operation: &Operation, channel: hub_protocol::frame::Channel, count: &Cell<usize>) {
    let mut sender = operation.sender(channel);
    while sender.send(Bytes::from_static(b"x")).await.is_ok() {
        count.set(count.get() + 1);
    }
}

#[test]
fn a_sender_stops_at_the_window_and_its_neighbours_do_not_notice() {
    simulated_over_both(&link(), async |ends: Ends| {
        let pair = ends.sessions();
        let mut stalled = Vec::new();
        // Four channels' worth and more, in both directions, with nobody who reads.
        for _ in 0..3 {
            let (hub, agent) = pair.running(OperationKind::Exec).await;
            hub.answer().await.unwrap();
            let counts = [Cell::new(0), Cell::new(0), Cell::new(0)];
            let all = async {
                tokio::join!(
                    drip(&hub, exec::STDIN, &counts[0]),
                    drip(&agent, exec::STDOUT, &counts[1]),
                    drip(&agent, exec::STDERR, &counts[2]),
                )
            };
            assert!(timeout(Duration::from_secs(60), all).await.is_err());
            assert_eq!(counts.map(Cell::into_inner), [64 * KIB; 3]);
            stalled.push((hub, agent));
        }
        // Ten round trips are plenty for an exec beside them: nothing waits for the stalled ones.
        let started = Instant::now();
        for _ in 0..10 {
            pair.assert_works().await;
        }
        let trips = started.elapsed().as_secs_f64() / (2.0 * ONE_WAY.as_secs_f64());
        assert!(trips < 25.0, "{trips} round trips for ten operations");
        // And a stalled one goes on when its reader does.
        let (hub, agent) = &stalled[0];
        let mut reader = hub.receiver(exec::STDOUT);
        let mut got = 0;
        while got < 64 * KIB {
            got += reader.chunk().await.unwrap().unwrap().len();
        }
        assert_eq!(agent.sender(exec::STDOUT).send("more".into()).await, Ok(()));
        assert_eq!(reader.chunk().await, Ok(Some("more".into())));
    });
}

#[test]
fn messages_wait_for_room_and_cost_what_they_take() {
    simulated_over_both(&link(), async |ends: Ends| {
        let pair = ends.sessions();
        let (hub, agent) = pair.running(OperationKind::Exec).await;
        let sent = Cell::new(0_usize);
        let flood = async {
            while hub.send_message(Bytes::new()).await.is_ok() {
                sent.set(sent.get() + 1);
            }
        };
        assert!(timeout(Duration::from_secs(60), flood).await.is_err());
        assert_eq!(sent.get(), 128 * KIB / 64);
        // Data does not wait for messages, nor one direction for the other.
        hub.sender(exec::STDIN).send("x".into()).await.unwrap();
        assert_eq!(
            agent.receiver(exec::STDIN).chunk().await,
            Ok(Some("x".into()))
        );
        agent.send_message("y".into()).await.unwrap();
        assert_eq!(hub.message().await, Ok(Some("y".into())));
        assert_eq!(hub.try_send_message(&Bytes::new()), Ok(false));
        // An eighth of the room is given back at once.
        for _ in 0..256 {
            assert_eq!(agent.message().await, Ok(Some(Bytes::new())));
        }
        hub.send_message(Bytes::new()).await.unwrap();
        assert_eq!(hub.try_send_message(&Bytes::new()), Ok(true));
        for _ in 2..256 {
            hub.send_message(Bytes::new()).await.unwrap();
        }
        assert_eq!(hub.try_send_message(&Bytes::new()), Ok(false));
        let one_more = hub.send_message(Bytes::new());
        assert!(timeout(Duration::from_secs(60), one_more).await.is_err());
    });
}

/// Reads frames off a raw stream and gives the amounts of all `Credit` frames for a channel until
/// nothing comes for a second.
async fn credits(recv: &mut RecvStream, channel: u8) -> Vec<u64> {
    let mut wire = Vec::new();
    while let Ok(Ok(Some(chunk))) = timeout(Duration::from_secs(1), recv.chunk()).await {
        wire.extend_from_slice(&chunk);
    }
    let mut credits = Vec::new();
    let mut rest = &wire[..];
    while let [2, len, of, amount @ ..] = rest {
        assert_eq!(*of, channel);
        let (amount, tail) = amount.split_at(usize::from(*len) - 1);
        let head = u64::from(amount[0] & 0x3f);
        credits.push(
            amount[1..]
                .iter()
                .fold(head, |n, byte| (n << 8) | u64::from(*byte)),
        );
        rest = tail;
    }
    assert_eq!(rest, b"", "nothing but credit");
    credits
}

#[test]
fn credit_is_given_back_in_eighths() {
    simulated_over_both(&link(), async |ends: Ends| {
        let hub = ends.hub_session();
        let operation = hub.open(OperationKind::Exec, &open_body()).await.unwrap();
        let (mut send, mut recv) = ends.agent.accept().await.unwrap();
        raw::expect(&mut recv, raw::OPEN).await;
        let full = raw::data(raw::STDOUT, &vec![7; 65536]);
        send.write_all(&raw::all(&[raw::ACCEPTED, &full]))
            .await
            .unwrap();
        settle().await;
        // A slow reader, a byte at a time: what it reads is given back in eighths of 64 KiB.
        let mut stdout = operation.receiver(exec::STDOUT);
        let mut byte = [0];
        for _ in 0..65536 {
            stdout.read_exact(&mut byte).await.unwrap();
        }
        let credits = credits(&mut recv, raw::STDOUT).await;
        assert!(credits.iter().all(|amount| *amount >= 8192), "{credits:?}");
        assert!(credits.iter().sum::<u64>() >= 7 * 8192, "{credits:?}");
        assert!(credits.len() <= 8, "{credits:?}");
    });
}

/// Simulated time for `len` bytes of a response, and how many were outstanding at most.
async fn transfer(pair: &Pair, len: usize, pause: Duration) -> Duration {
    let (hub, agent) = pair.running(OperationKind::Http).await;
    hub.answer().await.unwrap();
    let sent = Random(5).bytes(len);
    let started = Instant::now();
    let send = async {
        let mut response = agent.sender(http::RESPONSE);
        response.send(sent.clone()).await.unwrap();
        response.finish();
        agent.finish(Bytes::new());
    };
    let read = async {
        let mut response = hub.receiver(http::RESPONSE);
        let mut got = Vec::with_capacity(len);
        while let Some(chunk) = response.chunk().await.unwrap() {
            got.extend_from_slice(&chunk);
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
        got
    };
    let ((), got) = tokio::join!(biased; send, read);
    assert!(got == sent);
    started.elapsed()
}

#[test]
fn the_window_of_a_fast_consumer_grows_and_the_throughput_follows() {
    run_simulated(async {
        let pair = Pair::simulated(ONE_WAY).await;
        let len = 32 << 20;
        let took = transfer(&pair, len, Duration::ZERO).await;
        // 64 KiB in each round trip of 40 ms would take 20 s, 768 KiB 1.7 s.
        println!("32 MiB in {took:?} of simulated time");
        assert!(took < Duration::from_secs(3), "{took:?}");
    });
}

/// Growth is lent: what one operation's windows took is there for the next.
#[test]
fn what_windows_grew_by_is_given_back() {
    run_simulated(async {
        let pair = Pair::simulated(ONE_WAY).await;
        // Each grows to 768 KiB, and 64 MiB may be lent: kept, they would be gone before long.
        let len = 3 << 19;
        let first = transfer(&pair, len, Duration::ZERO).await;
        for _ in 0..110 {
            let took = transfer(&pair, len, Duration::ZERO).await;
            assert!(took <= first, "{first:?}, then {took:?}");
        }
    });
}

/// What a reader takes when its operation is gone borrows nothing: there is nobody to return it.
#[test]
fn a_reader_borrows_nothing_after_the_end() {
    simulated_over_both(&link(), async |ends: Ends| {
        let pair = ends.sessions();
        let len = 3 << 20;
        let first = transfer(&pair, len, Duration::ZERO).await;
        // Each would want to grow by some 56 KiB, where 64 MiB may be lent.
        for _ in 0..1300 {
            let (hub, agent) = pair.running(OperationKind::Http).await;
            let bytes = Bytes::from(vec![7; 64 * KIB]);
            let mut sender = agent.sender(http::RESPONSE);
            sender.send(bytes).await.unwrap();
            // The reset must not overtake the data.
            tokio::time::sleep(10 * ONE_WAY).await;
            drop(agent);
            hub.ended().await;
            let mut reader = hub.receiver(http::RESPONSE);
            let mut part = vec![0; 40 * KIB];
            reader.read_exact(&mut part).await.unwrap();
            tokio::time::sleep(2 * ONE_WAY).await;
            part.truncate(24 * KIB);
            reader.read_exact(&mut part).await.unwrap();
        }
        let last = transfer(&pair, len, Duration::ZERO).await;
        assert!(last <= first, "{first:?}, then {last:?}");
    });
}

#[test]
fn the_window_of_a_slow_consumer_stays() {
    run_simulated(async {
        let pair = Pair::simulated(ONE_WAY).await;
        let (hub, agent) = pair.running(OperationKind::Http).await;
        let count = Cell::new(0_usize);
        let read = async {
            let mut response = hub.receiver(http::RESPONSE);
            let mut ticks = tokio::time::interval(ONE_WAY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // Eight KiB in half a round trip, where 64 are allowed for a whole one.
            let mut piece = [0; 8 * KIB];
            for got in (0..1 << 20).step_by(8 * KIB) {
                ticks.tick().await;
                response.read_exact(&mut piece).await.unwrap();
                let ahead = count.get().saturating_sub(got);
                assert!(
                    ahead <= 64 * KIB + 8 * KIB,
                    "{ahead} bytes ahead of its reader"
                );
            }
        };
        tokio::select! {
            biased;
            () = read => {}
            () = pour(&agent, http::RESPONSE, usize::MAX, &count) => {}
        }
    });
}

/// A peer that sends in step with our reader and never takes the credit for it off its stream: it
/// gets no more than the stream holds, and nothing piles up for it.
#[test]
fn a_peer_that_takes_no_credit_gets_none() {
    run_simulated(async {
        let transport = Transport {
            stream_receive_window: 100,
            ..Transport::agent(windows())
        };
        let ends = Ends::simulated_with(&LinkConfig::perfect(), &transport).await;
        let hub = ends.hub_session();
        let operation = hub.open(OperationKind::Exec, &open_body()).await.unwrap();
        let (mut send, _recv) = ends.agent.accept().await.unwrap();
        send.write_all(raw::ACCEPTED).await.unwrap();
        let mut stdout = operation.receiver(exec::STDOUT);
        let piece = raw::data(raw::STDOUT, &[7; 8 * KIB]);
        let mut pieces = 0;
        loop {
            raw::write_what_goes(&mut send, &piece).await;
            settle().await;
            let mut got = 0;
            while got < 8 * KIB
                && let Ok(Some(chunk)) = stdout.chunk().await
            {
                got += chunk.len();
            }
            if got < 8 * KIB {
                break;
            }
            pieces += 1;
        }
        // 88 bytes behind Open hold seventeen frames of five bytes; the first window holds eight
        // pieces, and one frame may be on its way into the stream.
        assert!((8..=8 + 17 + 1).contains(&pieces), "{pieces}");
        assert_eq!(hub.violations(), [("beyond_credit", 1)].into());
    });
}

/// A peer that lets the connection have nothing more keeps operations from being carried out, and
/// not from being given up.
#[test]
fn an_operation_that_quic_never_took_can_be_dropped() {
    run_simulated(async {
        let transport = Transport {
            receive_window: 100_000,
            ..Transport::agent(windows())
        };
        let ends = Ends::simulated_with(&LinkConfig::perfect(), &transport).await;
        let hub = ends.hub_session();
        let mut stalled = Vec::new();
        for _ in 0..2 {
            let operation = hub.open(OperationKind::Exec, &open_body()).await.unwrap();
            let filler = Bytes::from(vec![7; 64 * KIB]);
            operation.sender(exec::STDIN).send(filler).await.unwrap();
            stalled.push((operation, ends.agent.accept().await.unwrap()));
        }
        settle().await;
        let late = hub.open(OperationKind::Exec, &open_body()).await.unwrap();
        settle().await;
        drop(late);
        settle().await;
        assert_eq!(hub.operation_counts(), (3, 1));
    });
}

/// A peer that does not read what we send cannot keep us from giving up the operation.
#[test]
fn an_operation_can_be_dropped_while_its_stream_is_full() {
    simulated_over_both(&LinkConfig::perfect(), async |ends: Ends| {
        let hub = ends.hub_session();
        let operation = hub.open(OperationKind::Exec, &open_body()).await.unwrap();
        let (mut send, mut recv) = ends.agent.accept().await.unwrap();
        // It grants all it may, twice, and takes nothing of it: the stream's own window of 1 MiB is full.
        send.write_all(raw::ACCEPTED).await.unwrap();
        let grants = async {
            for _ in 0..2 {
                let most = raw::credit(raw::STDIN, 704 * 1024);
                send.write_all(&most).await.unwrap();
                settle().await;
            }
        };
        let count = Cell::new(0_usize);
        let pouring = async {
            let poured = pour(&operation, exec::STDIN, 4 << 20, &count);
            assert!(timeout(Duration::from_secs(60), poured).await.is_err());
        };
        tokio::join!(biased; grants, pouring);
        assert!(count.get() > 1 << 20);
        settle().await;
        drop(operation);
        settle().await;
        // The reset is there, at the latest when the peer looks.
        assert_eq!(raw::reset_code(&mut recv).await, 0);
        assert_eq!(raw::stop_code(&send).await, Some(0));
        assert_eq!(hub.operation_counts(), (1, 1));
    });
}

#[test]
fn what_was_read_but_not_given_back_is_still_there_after_the_outcome() {
    simulated_over_both(&link(), async |ends: Ends| {
        let pair = ends.sessions();
        let (hub, agent) = pair.running(OperationKind::Http).await;
        let sent = Random(6).bytes(64 * KIB);
        agent
            .sender(http::RESPONSE)
            .send(sent.clone())
            .await
            .unwrap();
        agent.finish(Bytes::new());
        hub.done().await.unwrap();
        settle().await;
        // Read long after the stream is gone.
        assert_eq!(pair.hub.operation_counts(), (1, 1));
        assert!(read_all(&mut hub.receiver(http::RESPONSE)).await == sent);
    });
}

/// The last frame and all before it are on their way for 20 s: as long as it takes to end an
/// operation whose peer says nothing more, twice over.
#[test]
fn what_a_slow_path_has_not_delivered_is_not_given_up() {
    const WHOLE: usize = 64 * KIB;
    run_simulated(async {
        let slow = link().rate(8 * WHOLE as u64 / 20, 2 * WHOLE);
        let pair = Ends::simulated(&slow).await.sessions();
        let (hub, agent) = pair.running(OperationKind::Exec).await;
        let mut stdout = agent.sender(exec::STDOUT);
        let started = Instant::now();
        // Within the first window, so that nothing has to come back.
        let share = Bytes::from(vec![7; WHOLE]);
        stdout.send(share.clone()).await.unwrap();
        stdout.finish();
        agent.finish("over".into());
        assert!(read_all(&mut hub.receiver(exec::STDOUT)).await == share);
        assert_eq!(hub.done().await, Ok("over".into()));
        assert!(started.elapsed() > Duration::from_secs(15));
    });
}
