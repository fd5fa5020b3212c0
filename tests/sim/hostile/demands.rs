//! What a hostile hub asks of an agent: more than it may have, more than there is, and things that
//! do not exist.

use std::time::Duration;

use tokio::time::timeout;

use super::hub::{Greeted, HostileHub, works};
use super::log::Log;
use super::raw::*;
use crate::world::run;

/// Codes of `Failed`.
const UNSUPPORTED: u64 = 1;
const INVALID: u64 = 2;
const NOT_EXPOSED: u64 = 10;

/// The most operations that an agent allows at once.
const ALLOWED: usize = 4096;

/// `Open` of a `GET` that needs this revision of the list.
fn get(port: u16, revision: u64) -> Vec<u8> {
    let (port, revision) = (leb128(port.into()), leb128(revision));
    // A TCP port of the machine, exposed at the revision, which speaks HTTP/1.1; method, target, no
    // headers, no upgrade, no body.
    frame(
        HTTP,
        &[
            b"\0",
            &port[..],
            b"\0\0",
            &revision,
            b"\0\x03GET\x0b/bytes/10/1\0\0\0",
        ]
        .concat(),
    )
}

/// A list of exposed ports.
fn targets(revision: u64, ports: &[u16]) -> Vec<u8> {
    let mut list = [leb128(revision), leb128(ports.len() as u64)].concat();
    for port in ports {
        list.push(0);
        list.extend(leb128(u64::from(*port)));
        list.push(0);
    }
    frame(TARGETS, &list)
}

/// The code with which the agent does not begin an operation.
async fn refusal(session: &Greeted, open: &[u8]) -> u64 {
    let (mut send, mut reader) = session.open(open).await;
    let (tag, failure) = reader.expect().await;
    assert_eq!(tag, FAILED, "{failure:?}");
    assert_eq!(reader.frame().await.unwrap(), None);
    send.finish().unwrap();
    u64::from(failure[0])
}

/// Whether the agent connects to what is behind a port.
async fn connects(session: &Greeted, port: u16, revision: u64) -> bool {
    let (_send, mut reader) = session.open(&get(port, revision)).await;
    match reader.expect().await {
        (FAILED, failure) => {
            assert_eq!(u64::from(failure[0]), NOT_EXPOSED);
            false
        }
        (tag, _) => {
            assert_eq!(tag, u64::from(ACCEPTED[0]));
            loop {
                match reader.expect().await {
                    (FINISHED, outcome) => break assert_eq!(outcome[..], [0]),
                    (DATA, payload) => assert_eq!(payload.len(), 11),
                    _ => {}
                }
            }
            true
        }
    }
}

#[test]
fn only_what_is_on_the_newest_list_is_connected_to() {
    run(async {
        let hub = HostileHub::new(51).await;
        let mut session = hub.session().await;
        // Before there is a list, nothing is exposed.
        assert!(!connects(&session, 80, 0).await);
        session
            .control
            .write_all(&targets(5, &[80, 8080]))
            .await
            .unwrap();
        assert!(connects(&session, 80, 5).await);
        for port in [0, 22, 81, 65_535] {
            assert!(!connects(&session, port, 5).await);
        }
        // Older lists say nothing any more.
        for (revision, ports) in [(3, &[81][..]), (4, &[]), (0, &[22])] {
            session
                .control
                .write_all(&targets(revision, ports))
                .await
                .unwrap();
        }
        session
            .control
            .write_all(&targets(6, &[8080]))
            .await
            .unwrap();
        assert!(connects(&session, 8080, 6).await);
        for (port, revision) in [(80, 5), (81, 3), (22, 0)] {
            assert!(!connects(&session, port, revision).await);
        }
        // One that never comes is not waited for without an end.
        assert!(!connects(&session, 8080, u64::MAX).await);
    });
}

#[test]
fn what_an_agent_does_not_know_it_says() {
    run(async {
        let log = Log::hear();
        let hub = HostileHub::new(52).await;
        let session = hub.session().await;
        for tag in [0, 0x2f, 0x3f] {
            let open = [&[tag][..], &varint(70_000), &vec![0xa5; 70_000]].concat();
            assert_eq!(refusal(&session, &open).await, UNSUPPORTED);
        }
        // Bodies without sense are refused, too, and break no rule of the stream.
        for body in [
            &b""[..],
            b"\x00",
            b"\x00\xff\xff\xff\xff\x0f",
            &[0xa5; 1000],
        ] {
            for tag in [EXEC, HTTP] {
                assert_eq!(refusal(&session, &frame(tag, body)).await, INVALID);
            }
        }
        // Nor is there an exec of nothing.
        let nothing = frame(EXEC, b"\x00\x00\x00\x00\x00\x00\x00\x00");
        assert_eq!(refusal(&session, &nothing).await, INVALID);
        assert_eq!(log.breaches(), []);
        assert_eq!(hub.agent.commands.alive(), 0);
        works(session.accepted(OPEN_CAT).await, 1).await;
    });
}

#[test]
fn a_stream_that_brings_no_open_is_a_breach_or_times_out() {
    run(async {
        let log = Log::hear();
        let hub = HostileHub::new(53).await;
        let session = hub.session().await;
        let neighbour = session.accepted(OPEN_CAT).await;
        for wire in [&[0xa5; 64][..], &[&b"\x01"[..], &varint(1 << 30)].concat()] {
            let (send, mut reader) = session.open(wire).await;
            assert_eq!(reader.reset_code().await, PROTOCOL);
            assert_eq!(stop_code(&send).await, Some(PROTOCOL));
        }
        let lines = log.breaches();
        assert_eq!(lines.len(), 2);
        for line in lines {
            assert_eq!((&*line.node, &*line.operation), ("victim", "unopened"));
        }
        let (_send, mut reader) = session.open(b"\x01\x0a\x00").await;
        assert_eq!(reader.reset_code().await, 0);
        assert_eq!(log.breaches().len(), 2);
        works(neighbour, 1).await;
    });
}

/// However many a hub opens, an agent carries out what it allows at once; the others wait at the
/// hub. None of it is a breach.
#[test]
fn a_flood_of_operations_is_bounded() {
    run(async {
        let log = Log::hear();
        let hub = HostileHub::new(54).await;
        let session = hub.session().await;
        let commands = &hub.agent.commands;
        let mut open = Vec::new();
        while open.len() < 5000 {
            let opened = session.open(OPEN_SLEEP);
            match timeout(Duration::from_secs(60), opened).await {
                Ok(opened) => open.push(opened),
                Err(_) => break,
            }
        }
        assert_eq!(open.len(), ALLOWED);
        commands.until_alive(ALLOWED).await;
        // Some end, one begins: QUIC gives streams back in eighths of what is allowed.
        for (mut send, _) in open.drain(..=ALLOWED / 8) {
            send.reset(0u32.into()).unwrap();
        }
        open.push(session.accepted(OPEN_SLEEP).await);
        commands.until_alive(open.len()).await;
        for (send, _) in &mut open {
            send.reset(0u32.into()).unwrap();
        }
        commands.until_alive(0).await;
        works(session.accepted(OPEN_CAT).await, 1).await;
        assert_eq!(log.breaches(), []);
    });
}
