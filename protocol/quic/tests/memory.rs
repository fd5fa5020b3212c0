//! Memory of operations whose consumer has stopped, by an allocator that counts all that the
//! process holds: one test, so that nothing else runs beside it.
#![allow(clippy::unwrap_used, unreachable_pub)]

mod support;

use std::alloc::System;
use std::time::Duration;

use bytes::Bytes;
use hub_netsim::LinkConfig;
use hub_protocol::kind::{OperationKind, exec, http};
use hub_quic::operation::{Operation, Receiver};
use hub_quic::transport::{RecvStream, SendStream, memory};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use support::{Ends, Write as _, open_body, run, run_simulated};
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const KIB: usize = 1024;

/// What may be sent at once beside the stalled operation: a window whose last eighth was consumed and
/// not granted again yet.
const BESIDE: usize = 64 * KIB / 8 * 7;

/// What a new exec may have outstanding towards the hub: stdout, stderr and messages.
const WINDOWS: usize = (64 + 64 + 128) * KIB;

fn live() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// A data frame by hand, for a channel beside the first: tag, length, channel, bytes.
fn data(channel: u8, bytes: &[u8]) -> Vec<u8> {
    let len = 0x8000_0000 | (bytes.len() as u32 + 1);
    [&[1], &len.to_be_bytes()[..], &[channel], bytes].concat()
}

/// An operation that is read at once, beside the one that is not.
struct Busy {
    hub: Operation,
    reader: Receiver,
    send: SendStream,
    recv: RecvStream,
}

impl Busy {
    /// The agent sends `len` bytes, which the hub reads and answers with one.
    async fn go(&mut self, len: usize) {
        let frame = data(1, &vec![7; len]);
        self.send.write_all(&frame).await.unwrap();
        drop(frame);
        let mut got = 0;
        while got < len {
            got += self.reader.chunk().await.unwrap().unwrap().len();
        }
        let mut request = self.hub.sender(http::REQUEST);
        request.send(Bytes::from_static(b"x")).await.unwrap();
        // Between credit, which comes in frames of its own, there is the byte.
        while !self.recv.chunk().await.unwrap().unwrap().ends_with(b"x") {}
    }
}

/// What the hub holds of an exec after an agent, on bare streams, has filled all its windows: with
/// frames of one byte, the first of which come in packets full of somebody else's bytes.
async fn filled_by_hand(ends: Ends, sparse: usize) -> usize {
    let hub = ends.hub_session();
    let stalled = hub.open(OperationKind::Exec, &open_body()).await.unwrap();
    let (mut send, _recv) = ends.agent.accept().await.unwrap();
    let operation = hub.open(OperationKind::Http, &open_body()).await.unwrap();
    let (busy_send, busy_recv) = ends.agent.accept().await.unwrap();
    let mut busy = Busy {
        reader: operation.receiver(http::RESPONSE),
        hub: operation,
        send: busy_send,
        recv: busy_recv,
    };
    send.write_all(b"\x06\x00").await.unwrap();
    busy.send.write_all(b"\x06\x00").await.unwrap();
    stalled.answer().await.unwrap();
    // Until packets are as large as they get.
    for _ in 0..100 {
        busy.go(BESIDE).await;
    }
    let before = live();
    let bytes = [data(1, b"x"), data(2, b"x")].concat();
    for _ in 0..sparse {
        for channel in [1, 2] {
            send.write_all(&data(channel, b"x")).await.unwrap();
            busy.go(BESIDE).await;
        }
    }
    let rest = bytes.repeat(64 * KIB - sparse);
    send.write_all(&rest).await.unwrap();
    drop(rest);
    let messages = b"\x05\x00".repeat(128 * KIB / 64);
    send.write_all(&messages).await.unwrap();
    drop(messages);
    // The last frame stops stdin: once that is known, all before it has been read.
    send.write_all(b"\x04\x01\x00").await.unwrap();
    stalled.sender(exec::STDIN).stopped().await;
    // And what the hub says now tells the agent's quinn that it need not keep it either.
    busy.go(1).await;
    let held = live().saturating_sub(before);
    assert_eq!(hub.violations().len(), 0);
    held
}

/// What both sides hold together of an exec whose command prints byte by byte and nobody reads.
async fn filled_by_our_own(ends: Ends) -> usize {
    let pair = ends.sessions();
    let (hub, agent) = pair.running(OperationKind::Exec).await;
    hub.answer().await.unwrap();
    pair.assert_works().await;
    let before = live();
    let print = async |channel| {
        let mut sender = agent.sender(channel);
        while sender.write_all(b"x").await.is_ok() {}
    };
    let printing = async { tokio::join!(print(exec::STDOUT), print(exec::STDERR)) };
    assert!(timeout(Duration::from_secs(60), printing).await.is_err());
    live().saturating_sub(before)
}

#[test]
fn a_stalled_operation_holds_no_more_than_twice_its_windows() {
    let by_hand = run(async { filled_by_hand(Ends::loopback().await, 0).await });
    let sparse = run(async { filled_by_hand(Ends::loopback().await, 64).await });
    let link = LinkConfig::perfect().delay(Duration::from_millis(20));
    let ends = async || Ends::simulated(&link).await;
    let by_our_own = run_simulated(async { filled_by_our_own(ends().await).await });
    println!("windows {WINDOWS}: by hand {by_hand}, sparse {sparse}, by our own {by_our_own}");
    let within = || Ends::memory(memory::Streams::default());
    let by_hand_within = run(async { filled_by_hand(within(), 0).await });
    let by_our_own_within = run_simulated(async { filled_by_our_own(within()).await });
    println!("within the process: by hand {by_hand_within}, by our own {by_our_own_within}");
    for held in [
        by_hand,
        sparse,
        by_our_own,
        by_hand_within,
        by_our_own_within,
    ] {
        // It counts at all, and within the bound.
        assert!((128 * KIB..=2 * WINDOWS).contains(&held), "{held}");
    }
}
