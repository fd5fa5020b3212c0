//! UDP flows: packets as datagrams and on streams, over real quinn and within the process.

use std::time::Duration;

use bytes::Bytes;
use hub_netsim::LinkConfig;
use hub_protocol::flow::Quota;
use hub_protocol::kind::udp::{MAX_PAYLOAD, datagram};
use hub_protocol::kind::{OperationKind, exec};
use hub_quic::endpoint::Transport;
use hub_quic::flow::{FlowReceiver, FlowSender};
use hub_quic::operation::Operation;
use hub_quic::session::windows;
use hub_quic::transport::Connection;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{Ends, Pair, over_both, read_all, run_simulated, settle, simulated_over_both};

/// A flow as one side holds it.
struct Side {
    operation: Operation,
    sender: FlowSender,
    receiver: FlowReceiver,
}

impl Side {
    fn new(operation: Operation) -> Self {
        let (sender, receiver) = operation.flow(Quota::default());
        Self {
            operation,
            sender,
            receiver,
        }
    }

    async fn packet(&mut self) -> Bytes {
        self.receiver.packet().await.unwrap().unwrap()
    }
}

impl Pair {
    /// A flow that the agent has accepted, as the hub and as the agent hold it.
    async fn flow(&self) -> (Side, Side) {
        let (hub, agent) = self.running(OperationKind::Udp).await;
        hub.answer().await.unwrap();
        let (hub, agent) = (Side::new(hub), Side::new(agent));
        hub.sender.answered();
        (hub, agent)
    }
}

/// The quinn connection below, for what our own code never does.
fn quinn(connection: &Connection) -> quinn::Connection {
    let Connection::Quic(connection) = connection else {
        panic!("this test is about QUIC");
    };
    connection.clone()
}

#[test]
fn packets_cross_both_ways_and_keep_their_bounds() {
    over_both(async |ends| {
        let pair = ends.sessions();
        let (mut hub, mut agent) = pair.flow().await;
        let mtu = hub.sender.mtu().unwrap();
        for size in [0, 1, 1000, mtu, (mtu + 1).min(MAX_PAYLOAD), 8192, 40_000] {
            let packet = Bytes::from(vec![size as u8; size]);
            assert!(hub.sender.send(packet.clone()), "{size}");
            assert_eq!(agent.packet().await, packet);
            assert!(agent.sender.send(packet.clone()), "{size}");
            assert_eq!(hub.packet().await, packet);
        }
        let sent = pair.hub.flow_counts();
        assert!(sent.datagrams > 0, "{sent:?}");
        assert_eq!((sent.dropped, sent.dropped_here, sent.unknown), (0, 0, 0));
        // Nothing carries a packet that UDP itself does not.
        assert!(!hub.sender.send(vec![0; MAX_PAYLOAD + 1].into()));
        assert!(hub.sender.send(vec![7; MAX_PAYLOAD].into()));
        assert_eq!(agent.packet().await.len(), MAX_PAYLOAD);
        hub.sender.finish();
        assert_eq!(agent.receiver.packet().await, Ok(None));
        agent.operation.finish("over".into());
        assert_eq!(hub.operation.done().await, Ok("over".into()));
    });
}

/// What comes before the answer overtakes nothing: it rides on the stream behind `Open`.
#[test]
fn the_first_packets_go_at_once_and_arrive() {
    simulated_over_both(
        &LinkConfig::perfect().delay(Duration::from_millis(50)),
        async |ends| {
            let pair = ends.sessions();
            let start = Instant::now();
            let ask = async {
                let (hub, agent) = pair.open(OperationKind::Udp).await;
                (Side::new(hub), agent)
            };
            let (mut hub, agent) = ask.await;
            assert!(hub.sender.send("question".into()));
            agent.accept(Bytes::new());
            let mut agent = Side::new(agent);
            assert_eq!(agent.packet().await, "question");
            agent.sender.send("answer".into());
            assert_eq!(hub.packet().await, "answer");
            assert!(
                start.elapsed() < Duration::from_millis(250),
                "{:?}",
                start.elapsed()
            );
            assert_eq!(pair.hub.flow_counts().on_streams, 1);
            assert_eq!(pair.agent.flow_counts().datagrams, 1);
        },
    );
}

/// A peer that takes no datagrams has its flows on streams, by the same rules.
#[test]
fn without_datagrams_all_rides_on_streams() {
    run_simulated(async {
        let link = LinkConfig::perfect().delay(Duration::from_millis(20));
        let transport = Transport {
            datagrams: false,
            ..Transport::agent(windows())
        };
        let pair = Ends::simulated_with(&link, &transport).await.sessions();
        let (mut hub, mut agent) = pair.flow().await;
        assert_eq!((hub.sender.mtu(), agent.sender.mtu()), (None, None));
        for n in 0..10u8 {
            assert!(hub.sender.send(Bytes::from(vec![n; 1000])));
            assert!(agent.sender.send(Bytes::from(vec![n; 1000])));
        }
        for n in 0..10u8 {
            assert_eq!(agent.packet().await, vec![n; 1000]);
            assert_eq!(hub.packet().await, vec![n; 1000]);
        }
        // Nobody takes what follows: what has no credit is dropped, not gathered.
        let sent = (0..200).filter(|_| hub.sender.send(Bytes::from(vec![0; 1000])));
        let sent = sent.count();
        assert!((50..150).contains(&sent), "{sent}");
        assert_eq!(pair.hub.flow_counts().dropped, 200 - sent as u64);
        assert!(pair.hub.violations().is_empty() && pair.agent.violations().is_empty());
    });
}

/// What a flow that nobody reads holds is bounded, and the oldest of it gives way.
#[test]
fn a_reader_that_is_behind_gets_the_newest() {
    run_simulated(async {
        let pair = Pair::simulated(Duration::from_millis(5)).await;
        let (hub, mut agent) = pair.flow().await;
        for n in 0..1000u32 {
            hub.sender.send(Bytes::copy_from_slice(
                &[n.to_be_bytes().as_slice(), &[0; 996]].concat(),
            ));
            sleep(Duration::from_millis(2)).await;
        }
        settle().await;
        let first = u32::from_be_bytes(agent.packet().await[..4].try_into().unwrap());
        assert!(first > 900, "{first}");
        let counts = pair.agent.flow_counts();
        assert_eq!(counts.dropped_here, u64::from(first));
    });
}

#[test]
fn what_nobody_knows_is_counted_and_harms_nobody() {
    run_simulated(async {
        let pair = Pair::simulated(Duration::from_millis(5)).await;
        let (mut hub, agent) = pair.flow().await;
        let hostile = quinn(&pair.ends.agent);
        for n in 0..1000u64 {
            let unknown = datagram(1 << (n % 62), b"who?");
            hostile.send_datagram(unknown).unwrap();
            // A flow that ends before it is whole, and none at all.
            hostile
                .send_datagram(Bytes::from_static(b"\xc0\x00"))
                .unwrap();
            hostile.send_datagram(Bytes::new()).unwrap();
            sleep(Duration::from_millis(1)).await;
        }
        settle().await;
        let counts = pair.hub.flow_counts();
        assert!(counts.unknown >= 2900, "{counts:?}");
        assert!(pair.hub.violations().is_empty());
        agent.sender.send("still here".into());
        // One of the thousand was for this flow.
        while hub.packet().await != "still here" {}
        pair.assert_works().await;
        // The same once the flow is over.
        drop((hub, agent));
        settle().await;
        for _ in 0..100 {
            hostile.send_datagram(datagram(0, b"late")).unwrap();
        }
        settle().await;
        assert!(pair.hub.violations().is_empty());
        pair.assert_works().await;
    });
}

#[test]
fn a_session_that_is_lost_ends_its_flows() {
    over_both(async |ends| {
        let pair = ends.sessions();
        let (mut hub, agent) = pair.flow().await;
        pair.agent
            .close(hub_protocol::code::CloseCode::GOING_AWAY, "a test");
        assert!(hub.receiver.packet().await.is_err());
        hub.sender.send("nobody hears it".into());
        drop(agent);
    });
}

/// Questions and answers of a few hundred bytes, each on a flow of its own, and packets of 8 KiB, on
/// a path that loses 2 %: the small ones are lost as on any such path, the large ones ride on streams,
/// which lose nothing.
#[test]
fn questions_and_large_packets_cross_a_path_that_loses() {
    run_simulated(async {
        let link = LinkConfig::perfect()
            .delay(Duration::from_millis(40))
            .loss(0.02);
        let pair = Ends::simulated(&link).await.sessions();
        let mut answered = 0;
        for n in 0..200u32 {
            let (mut hub, mut agent) = pair.flow().await;
            hub.sender.send(Bytes::copy_from_slice(&n.to_be_bytes()));
            let answers = async {
                let question = agent.packet().await;
                agent.sender.send(question.repeat(75).into());
                std::future::pending::<()>().await;
            };
            let answer = tokio::select! {
                () = answers => None,
                answer = timeout(Duration::from_secs(1), hub.packet()) => answer.ok(),
            };
            if let Some(answer) = answer {
                assert_eq!(answer, n.to_be_bytes().repeat(75));
                answered += 1;
            }
        }
        println!("{answered} of 200 questions were answered");
        assert!((160..=200).contains(&answered), "{answered}");
        let (hub, mut agent) = pair.flow().await;
        for n in 0..100u8 {
            assert!(hub.sender.send(Bytes::from(vec![n; 8192])));
            assert_eq!(agent.packet().await, vec![n; 8192]);
        }
        assert!(pair.hub.violations().is_empty() && pair.agent.violations().is_empty());
    });
}

/// How long an exec takes to bring `size` bytes from the agent, in simulated time.
async fn exec_takes(pair: &Pair, size: usize) -> Duration {
    let start = Instant::now();
    let (hub, agent) = pair.running(OperationKind::Exec).await;
    let mut stdout = agent.sender(exec::STDOUT);
    let bytes = async move {
        stdout.send(Bytes::from(vec![7; size])).await.unwrap();
        agent.finish("0".into());
    };
    let mut receiver = hub.receiver(exec::STDOUT);
    let ((), read) = tokio::join!(bytes, read_all(&mut receiver));
    assert_eq!(read.len(), size);
    hub.done().await.unwrap();
    start.elapsed()
}

/// A flow that floods from the agent gets its share and no more: an exec's output beside it takes at
/// most three times as long as alone, and its keystrokes a fraction of a second.
#[test]
fn a_flood_leaves_streams_their_part_of_the_path() {
    run_simulated(async {
        // An uplink of 2 Mbit/s.
        let link = LinkConfig::perfect()
            .delay(Duration::from_millis(40))
            .rate(2_000_000, 32 * 1024);
        let pair = Ends::simulated(&link).await.sessions();
        let alone = exec_takes(&pair, 1 << 20).await;
        let key_alone = exec_takes(&pair, 1).await;
        let (mut hub, agent) = pair.flow().await;
        let flood = async {
            loop {
                // Four times what the path carries.
                agent.sender.send(Bytes::from(vec![0; 1000]));
                sleep(Duration::from_millis(1)).await;
            }
        };
        let mut arrived = 0;
        let reader = async {
            loop {
                hub.packet().await;
                arrived += 1;
            }
        };
        let timed = async {
            settle().await;
            let beside = exec_takes(&pair, 1 << 20).await;
            settle().await;
            settle().await;
            (beside, exec_takes(&pair, 1).await)
        };
        let (beside, key) = tokio::select! {
            never = flood => never,
            never = reader => never,
            timed = timeout(Duration::from_secs(300), timed) => timed.unwrap(),
        };
        println!(
            "1 MiB of an exec: {alone:?} alone, {beside:?} beside a flood, ratio {:.2}; \
             one byte: {key_alone:?} and {key:?}; {arrived} packets of the flood arrived",
            beside.as_secs_f64() / alone.as_secs_f64()
        );
        assert!(beside < 3 * alone, "{beside:?}, {alone:?} alone");
        assert!(key < key_alone + Duration::from_millis(500), "{key:?}");
        assert!(arrived > 100, "the flood has a share, too: {arrived}");
    });
}
