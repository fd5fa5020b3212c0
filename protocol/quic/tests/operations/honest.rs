//! Two honest sides, mostly over loopback.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hub_netsim::LinkConfig;
use hub_protocol::code::{CloseCode, ResetCode};
use hub_protocol::frame::Channel;
use hub_protocol::kind::{Failure, FailureCode, OperationKind, exec, http};
use hub_protocol::operation::{ChannelSpec, Direction};
use hub_quic::operation::{Answer, Ended, Operation, Receiver, Sender};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use crate::raw::to_end;
use crate::support::{Ends, Random, Write as _, open_body, over_both, read_all, run_simulated};

const EXEC: OperationKind = OperationKind::Exec;

/// One kind of each shape of channels.
const SHAPES: [OperationKind; 4] = [
    OperationKind::Exec,
    OperationKind::Http,
    OperationKind::Build,
    OperationKind::Call,
];
const KIB_64: usize = 64 * 1024;

/// Sends `bytes` in pieces of random sizes up to `most`, now as `Bytes`, now as a writer does.
async fn send_in_pieces(sender: &mut Sender, mut bytes: Bytes, most: usize, random: &mut Random) {
    while !bytes.is_empty() {
        let piece = bytes.split_to((1 + random.below(most)).min(bytes.len()));
        if random.below(2) == 0 {
            sender.send(piece).await.unwrap();
        } else {
            sender.write_all(&piece).await.unwrap();
        }
    }
    sender.shutdown().await.unwrap();
}

/// Reads to the end, now by chunks, now into a small buffer.
async fn read_in_pieces(receiver: &mut Receiver, random: &mut Random) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        if random.below(2) == 0 {
            match receiver.chunk().await.unwrap() {
                Some(chunk) => all.extend_from_slice(&chunk),
                None => return all,
            }
        } else {
            let mut buf = vec![0; 1 + random.below(5000)];
            let n = receiver.read(&mut buf).await.unwrap();
            if n == 0 {
                return all;
            }
            all.extend_from_slice(&buf[..n]);
        }
    }
}

/// One channel carries `len` bytes, in writes of at most `most`.
async fn carry(ends: (&Operation, &Operation), spec: &ChannelSpec, len: usize, most: usize) {
    let (hub, agent) = ends;
    let (from, to) = match spec.direction {
        Direction::ToAgent => (hub, agent),
        Direction::ToHub => (agent, hub),
    };
    let seed = (len * 8 + most) as u64 + u64::from(spec.channel.0);
    let (mut random, mut other) = (Random(seed), Random(seed + 1));
    let sent = random.bytes(len);
    let (mut sender, mut receiver) = (from.sender(spec.channel), to.receiver(spec.channel));
    let ((), got) = tokio::join!(
        send_in_pieces(&mut sender, sent.clone(), most, &mut random),
        read_in_pieces(&mut receiver, &mut other)
    );
    assert!(got == sent, "{} of {len}: {} came", spec.name, got.len());
}

#[test]
fn every_channel_carries_every_byte_and_all_at_once() {
    over_both(async |ends: Ends| {
        let pair = ends.sessions();
        let sizes = [
            (0, 1),
            (1, 1),
            (5000, 1),
            (KIB_64 - 1, KIB_64),
            (KIB_64, KIB_64),
            (KIB_64 + 1, KIB_64 + 1),
            (300_000, 700),
            (5 << 20, 200_000),
        ];
        for (len, most) in sizes {
            for kind in SHAPES {
                let (hub, agent) = pair.running(kind).await;
                let ends = (&hub, &agent);
                let channels = kind.channels();
                let carried = channels.iter().map(|spec| carry(ends, spec, len, most));
                futures_util::future::join_all(carried).await;
                agent.finish("over".into());
                assert_eq!(hub.done().await, Ok("over".into()));
            }
        }
    });
}

/// Windows of full size over a link that loses and reorders: no piece is missing, and
/// quinn does not give up the connection for the gaps.
#[test]
fn a_lossy_link_changes_nothing() {
    run_simulated(async {
        let link = LinkConfig::perfect()
            .delay(Duration::from_millis(20))
            .jitter(Duration::from_millis(5))
            .loss(0.03);
        let pair = Ends::simulated(&link).await.sessions();
        for kind in SHAPES {
            let (hub, agent) = pair.running(kind).await;
            let ends = (&hub, &agent);
            let channels = kind.channels();
            let carried = channels
                .iter()
                .map(|spec| carry(ends, spec, 3 << 20, 100_000));
            futures_util::future::join_all(carried).await;
            agent.finish("over".into());
            assert_eq!(hub.done().await, Ok("over".into()));
        }
    });
}

#[test]
fn one_direction_goes_on_after_the_other_has_ended() {
    over_both(async |ends: Ends| {
        let pair = ends.sessions();
        for ends_first in [exec::STDIN, exec::STDOUT] {
            let (hub, agent) = pair.running(EXEC).await;
            let (mut stdin, mut stdout) = (hub.sender(exec::STDIN), agent.sender(exec::STDOUT));
            let mut at_agent = agent.receiver(exec::STDIN);
            let mut at_hub = hub.receiver(exec::STDOUT);
            let (first, second, first_reader, second_reader) = if ends_first == exec::STDIN {
                (&mut stdin, &mut stdout, &mut at_agent, &mut at_hub)
            } else {
                (&mut stdout, &mut stdin, &mut at_hub, &mut at_agent)
            };
            first.send("last".into()).await.unwrap();
            first.finish();
            assert_eq!(read_all(first_reader).await, b"last");
            let sent = Random(3).bytes(1 << 20);
            let sending = async {
                second.send(sent.clone()).await.unwrap();
                second.finish();
            };
            let ((), got) = tokio::join!(sending, read_all(second_reader));
            assert!(got == sent);
            // Nothing can follow on the one that ended.
            assert!(first.is_stopped() || first.send("x".into()).await.is_err());
            agent.finish(Bytes::new());
            hub.done().await.unwrap();
        }
    });
}

#[test]
fn stopping_one_channel_leaves_the_others() {
    over_both(async |ends: Ends| {
        let pair = ends.sessions();
        let (hub, agent) = pair.running(EXEC).await;
        let mut stdout = agent.sender(exec::STDOUT);
        stdout.send("head".into()).await.unwrap();
        let mut reader = hub.receiver(exec::STDOUT);
        assert_eq!(reader.chunk().await, Ok(Some("head".into())));
        drop(reader);
        // An endless producer learns of it, although it waits for credit.
        let endless = async {
            loop {
                if let Err(ended) = stdout.send(vec![0; 10_000].into()).await {
                    break ended;
                }
            }
        };
        assert_eq!(endless.await, Ended::Over);
        stdout.stopped().await;
        assert!(stdout.is_stopped());
        // The rest goes on, in both directions.
        let ends = (&hub, &agent);
        let [stdin, _, stderr] = EXEC.channels() else {
            panic!("exec has three channels")
        };
        tokio::join!(
            carry(ends, stdin, 200_000, 3000),
            carry(ends, stderr, 200_000, 3000)
        );
        agent.finish("0".into());
        assert_eq!(hub.done().await, Ok("0".into()));
    });
}

#[test]
fn the_agent_may_stop_what_the_hub_sends_and_answer_all_the_same() {
    over_both(async |ends: Ends| {
        let pair = ends.sessions();
        let (hub, agent) = pair.running(OperationKind::Http).await;
        let mut request = hub.sender(http::REQUEST);
        drop(agent.receiver(http::REQUEST));
        request.stopped().await;
        assert_eq!(request.send("x".into()).await, Err(Ended::Over));
        agent
            .sender(http::RESPONSE)
            .send("413".into())
            .await
            .unwrap();
        agent.finish(Bytes::new());
        assert_eq!(read_all(&mut hub.receiver(http::RESPONSE)).await, b"413");
        assert_eq!(hub.done().await, Ok(Bytes::new()));
    });
}

#[test]
fn messages_keep_their_order_and_their_bounds_both_ways() {
    over_both(async |ends: Ends| {
        let pair = ends.sessions();
        let (hub, agent) = pair.running(EXEC).await;
        let mut random = Random(9);
        let messages: Vec<Bytes> = (0..3000)
            .map(|n| match n % 100 {
                0 => Bytes::new(),
                // The largest there may be: more than half of what may be outstanding.
                1 => random.bytes(hub_protocol::limits::MAX_MESSAGE),
                _ => {
                    let len = random.below(300);
                    random.bytes(len)
                }
            })
            .collect();
        for (from, to) in [(&hub, &agent), (&agent, &hub)] {
            let send = async {
                for message in &messages {
                    from.send_message(message.clone()).await.unwrap();
                }
            };
            let receive = async {
                for message in &messages {
                    assert_eq!(to.message().await, Ok(Some(message.clone())));
                }
            };
            tokio::join!(send, receive);
        }
        agent.finish(Bytes::new());
        assert_eq!(hub.message().await, Ok(None));
    });
}

#[test]
fn several_tasks_may_send_messages_at_once() {
    over_both(async |ends: Ends| {
        let pair = ends.sessions();
        let (hub, agent) = pair.running(EXEC).await;
        // Each is more than half of the window: only one can be on its way.
        let large = Bytes::from(vec![1; 80_000]);
        let hub = Arc::new(hub);
        let mut sends = JoinSet::new();
        for _ in 0..8 {
            let (hub, large) = (hub.clone(), large.clone());
            sends.spawn(async move { hub.send_message(large).await });
        }
        // All of them wait before there is room again.
        pair.assert_works().await;
        for _ in 0..8 {
            assert_eq!(agent.message().await, Ok(Some(large.clone())));
        }
        assert!(sends.join_all().await.iter().all(Result::is_ok));
    });
}

#[test]
fn the_answer_is_accepted_or_failed() {
    over_both(async |ends: Ends| {
        let pair = ends.sessions();
        let (hub, agent) = pair.open(EXEC).await;
        agent.accept("body".into());
        assert_eq!(hub.answer().await, Ok(Answer::Accepted("body".into())));
        agent.finish("end".into());
        assert_eq!(hub.done().await, Ok("end".into()));
        // The answer is still known afterwards.
        assert_eq!(hub.answer().await, Ok(Answer::Accepted("body".into())));

        let (hub, agent) = pair.open(EXEC).await;
        let failure = Failure {
            code: FailureCode::NO_SUCH_CONTAINER,
            message: "there is no container \"web\"".into(),
            retry: false,
        };
        hub.sender(exec::STDIN).send("unread".into()).await.unwrap();
        agent.fail(&failure);
        assert_eq!(hub.answer().await, Ok(Answer::Failed(failure)));
        assert_eq!(hub.done().await, Err(Ended::Over));
        assert_eq!(hub.message().await, Ok(None));
        assert_eq!(hub.receiver(exec::STDOUT).chunk().await, Ok(None));
    });
}

/// Nothing that the agent does before it accepts may reach the hub before `Accepted`.
#[test]
fn an_agent_may_work_before_it_accepts() {
    over_both(async |ends: Ends| {
        let pair = ends.sessions();
        let (hub, agent) = pair.open(EXEC).await;
        // The hub sends at once, without an answer, as much as was announced.
        let mut stdin = hub.sender(exec::STDIN);
        stdin.send(vec![7; KIB_64].into()).await.unwrap();
        // The agent reads all of it, which makes credit due, ends one channel, and then accepts.
        let mut reader = agent.receiver(exec::STDIN);
        let mut got = 0;
        while got < KIB_64 {
            got += reader.chunk().await.unwrap().unwrap().len();
        }
        agent.sender(exec::STDERR).finish();
        pair.assert_works().await;
        agent.accept(Bytes::new());
        assert_eq!(hub.answer().await, Ok(Answer::Accepted(Bytes::new())));
        // The credit arrives, and so does the end.
        stdin.send(vec![8; KIB_64].into()).await.unwrap();
        let mut got = 0;
        while got < KIB_64 {
            got += reader.chunk().await.unwrap().unwrap().len();
        }
        assert_eq!(hub.receiver(exec::STDERR).chunk().await, Ok(None));
        // A stop is no different.
        let (hub2, agent2) = pair.open(EXEC).await;
        drop(agent2.receiver(exec::STDIN));
        pair.assert_works().await;
        agent2.accept(Bytes::new());
        hub2.sender(exec::STDIN).stopped().await;
        agent2.finish(Bytes::new());
        assert_eq!(hub2.done().await, Ok(Bytes::new()));
        agent.finish(Bytes::new());
        assert_eq!(hub.done().await, Ok(Bytes::new()));
        assert_eq!(pair.hub.violations().len(), 0);
    });
}

#[test]
fn credit_never_overtakes_accepted() {
    over_both(async |ends: Ends| {
        let pair = ends.sessions();
        for _ in 0..50 {
            let (hub, agent) = pair.open(EXEC).await;
            hub.sender(exec::STDIN)
                .send(vec![7; KIB_64].into())
                .await
                .unwrap();
            pair.assert_works().await;
            // All in one go, before the task that writes has had its turn.
            agent.accept(Bytes::new());
            let mut reader = agent.receiver(exec::STDIN);
            while let Some(Ok(Some(_))) = futures_util::FutureExt::now_or_never(reader.chunk()) {}
            drop(reader);
            assert_eq!(hub.answer().await, Ok(Answer::Accepted(Bytes::new())));
            agent.finish(Bytes::new());
            hub.done().await.unwrap();
        }
        assert_eq!(pair.hub.violations().len(), 0);
    });
}

#[test]
fn the_outcome_comes_after_all_data() {
    over_both(async |ends: Ends| {
        let pair = ends.sessions();
        for len in [0, 1, 1000, KIB_64] {
            let (hub, agent) = pair.running(EXEC).await;
            let (out, err) = (Random(1).bytes(len), Random(2).bytes(len));
            agent.sender(exec::STDOUT).send(out.clone()).await.unwrap();
            agent.sender(exec::STDERR).send(err.clone()).await.unwrap();
            // No channel was ended: they end with the operation.
            agent.finish("0".into());
            assert_eq!(hub.done().await, Ok("0".into()));
            assert!(read_all(&mut hub.receiver(exec::STDOUT)).await == out);
            assert!(read_all(&mut hub.receiver(exec::STDERR)).await == err);
            let mut stdin = hub.sender(exec::STDIN);
            assert_eq!(stdin.send("late".into()).await, Err(Ended::Over));
            assert_eq!(hub.send_message("late".into()).await, Err(Ended::Over));
        }
        assert_eq!(pair.agent.violations().len(), 0);
    });
}

/// What the hub sends while the outcome is on its way to it is dropped by the agent.
#[test]
fn frames_that_cross_the_outcome_are_no_violation() {
    over_both(async |ends: Ends| {
        let pair = ends.sessions();
        for _ in 0..100 {
            let (hub, agent) = pair.running(EXEC).await;
            hub.answer().await.unwrap();
            agent.finish(Bytes::new());
            let mut stdin = hub.sender(exec::STDIN);
            for _ in 0..10 {
                stdin.send(vec![0; 5000].into()).await.unwrap();
            }
            stdin.finish();
            drop(hub.receiver(exec::STDOUT));
            hub.done().await.unwrap();
        }
        pair.assert_works().await;
        assert_eq!(
            (pair.hub.violations().len(), pair.agent.violations().len()),
            (0, 0)
        );
    });
}

#[test]
fn a_dropped_operation_is_cancelled_at_the_other_side() {
    over_both(async |ends: Ends| {
        let pair = ends.sessions();
        for hub_drops in [true, false] {
            let (hub, agent) = pair.running(EXEC).await;
            hub.answer().await.unwrap();
            let (dropped, other, channel) = if hub_drops {
                (hub, agent, exec::STDIN)
            } else {
                (agent, hub, exec::STDOUT)
            };
            let mut sender = dropped.sender(channel);
            sender.send("part".into()).await.unwrap();
            let mut receiver = other.receiver(channel);
            assert_eq!(receiver.chunk().await, Ok(Some("part".into())));
            drop(dropped);
            let reset = Ended::Reset(ResetCode::CANCELLED);
            assert_eq!(receiver.chunk().await, Err(reset.clone()));
            let mut buf = [0];
            let error = receiver.read(&mut buf).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            assert_eq!(other.ended().await, reset);
            assert_eq!(other.done().await, Err(reset.clone()));
            assert_eq!(other.message().await, Err(reset));
            // And the handles that are left here say why.
            assert_eq!(sender.send("x".into()).await, Err(Ended::Cancelled));
        }
        pair.assert_works().await;
    });
}

#[test]
fn an_operation_dropped_before_its_answer_is_cancelled() {
    over_both(async |ends: Ends| {
        let pair = ends.sessions();
        let (hub, agent) = pair.open(EXEC).await;
        drop(agent);
        let reset = Ended::Reset(ResetCode::CANCELLED);
        assert_eq!(hub.answer().await, Err(reset.clone()));
        let (hub, agent) = pair.open(EXEC).await;
        drop(hub);
        assert_eq!(agent.ended().await, reset);
        // Accepting what is gone does nothing.
        agent.accept(Bytes::new());
        agent.finish(Bytes::new());
        pair.assert_works().await;
    });
}

#[test]
fn a_lost_connection_is_told_to_every_handle() {
    over_both(async |ends: Ends| {
        let pair = ends.sessions();
        let (hub, agent) = pair.running(EXEC).await;
        hub.answer().await.unwrap();
        let waiting = pair.open(EXEC).await;
        let mut stdin = hub.sender(exec::STDIN);
        let mut stdout = hub.receiver(exec::STDOUT);
        let reason = "the agent shuts down";
        let close = async { pair.agent.close(CloseCode::GOING_AWAY, reason) };
        let fill = async {
            loop {
                if let Err(ended) = stdin.send(vec![0; 10_000].into()).await {
                    break ended;
                }
            }
        };
        let (chunk, ended, done, answer, sent, ()) = tokio::join!(
            stdout.chunk(),
            hub.ended(),
            hub.done(),
            waiting.0.answer(),
            fill,
            close
        );
        let Ended::Lost(reason) = ended else {
            panic!("{ended:?}")
        };
        assert!(reason.contains("the agent shuts down"), "{reason}");
        let lost = Ended::Lost(reason);
        assert_eq!((chunk, done), (Err(lost.clone()), Err(lost.clone())));
        assert_eq!((answer, sent), (Err(lost.clone()), lost.clone()));
        assert_eq!(hub.message().await, Err(lost.clone()));
        assert_eq!(hub.send_message("x".into()).await, Err(lost));
        assert!(matches!(agent.ended().await, Ended::Lost(_)));
        let opened = pair.hub.open(EXEC, &open_body()).await;
        assert!(opened.is_err_and(|error| error.to_string().contains("the agent shuts down")));
        assert!(pair.agent.accept().await.is_err());
    });
}

/// An operation that this release does not know is answered, whatever follows its `Open`.
#[test]
fn an_unknown_operation_is_unsupported() {
    over_both(async |ends: Ends| {
        let agent = ends.agent_session();
        let serve = async {
            let incoming = agent.accept().await.unwrap();
            assert!(incoming.operation().await.is_none());
        };
        let ask = async {
            let (mut send, mut recv) = ends.hub.open().await.unwrap();
            // Tag 0x3e, a body of one byte, then data, all at once.
            send.write_all(b"\x3e\x01?\x01\x03\x00hi").await.unwrap();
            let answer = to_end(&mut recv).await.unwrap();
            // Failed, a length of two bytes, and postcard's form of the code.
            assert_eq!((answer[0], answer[3]), (0x07, 0x01));
            assert!(String::from_utf8_lossy(&answer).contains("0x3e"));
            // What was sent behind is read and dropped: it is not stopped, because a stop could
            // overtake the answer and be taken for the end of it.
            send.write_all(&[0; 10_000]).await.unwrap();
            send.finish().unwrap();
            assert_eq!(send.stopped().await, Ok(None));
        };
        tokio::join!(serve, ask);
        assert_eq!(agent.violations().len(), 0);
    });
}

#[test]
fn channels_that_do_not_exist_carry_nothing() {
    over_both(async |ends: Ends| {
        let pair = ends.sessions();
        let (hub, agent) = pair.running(EXEC).await;
        let nowhere = Channel(9);
        assert_eq!(hub.sender(nowhere).send("x".into()).await, Err(Ended::Over));
        assert_eq!(hub.receiver(nowhere).chunk().await, Ok(None));
        // Nor does one in the wrong direction.
        assert_eq!(
            hub.sender(exec::STDOUT).send("x".into()).await,
            Err(Ended::Over)
        );
        assert_eq!(agent.receiver(exec::STDOUT).chunk().await, Ok(None));
        agent.finish("0".into());
        assert_eq!(hub.done().await, Ok("0".into()));
    });
}
