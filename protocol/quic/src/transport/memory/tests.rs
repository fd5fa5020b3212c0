#![allow(clippy::unwrap_used)]

use std::task::Waker;

use futures_util::FutureExt as _;
use tokio::time::{Duration, timeout};

use super::*;

const CODE: VarInt = VarInt::from_u32(7);

fn few() -> Streams {
    Streams { hub: 3, agent: 1 }
}

/// Both ends and a stream between them: its opener's halves, then the other's.
async fn stream(
    hub: &Connection,
    agent: &Connection,
) -> ((SendStream, RecvStream), (SendStream, RecvStream)) {
    (hub.open().await.unwrap(), agent.accept().await.unwrap())
}

fn write(send: &mut SendStream, bytes: &[u8]) -> Poll<Result<usize, WriteError>> {
    let mut chunks = [Bytes::copy_from_slice(bytes)];
    send.poll_chunks(&Context::from_waker(Waker::noop()), &mut chunks)
}

fn read(recv: &mut RecvStream) -> Poll<Result<Option<Bytes>, ReadError>> {
    recv.poll_chunk(&Context::from_waker(Waker::noop()), 65536)
}

#[tokio::test]
async fn chunks_go_over_uncopied_and_in_order_and_then_the_end() {
    let (hub, agent) = pair(few());
    let ((mut send, _back), (_answer, mut recv)) = stream(&hub, &agent).await;
    let large = Bytes::from(vec![7; 100_000]);
    let mut chunks = [large.clone(), Bytes::new(), Bytes::from_static(b"end")];
    let cx = Context::from_waker(Waker::noop());
    assert_eq!(send.poll_chunks(&cx, &mut chunks), Poll::Ready(Ok(3)));
    send.finish().unwrap();
    let Poll::Ready(Ok(Some(first))) = read(&mut recv) else {
        panic!("nothing came")
    };
    // No more at once than was asked for, of the very same bytes.
    assert_eq!((first.len(), first.as_ptr()), (65536, large.as_ptr()));
    let Poll::Ready(Ok(Some(second))) = read(&mut recv) else {
        panic!("the rest did not come")
    };
    assert_eq!(second.len(), 100_000 - 65536);
    assert_eq!(read(&mut recv), Poll::Ready(Ok(Some("end".into()))));
    assert_eq!(send.stopped().now_or_never(), None);
    assert_eq!(read(&mut recv), Poll::Ready(Ok(None)));
    assert_eq!(read(&mut recv), Poll::Ready(Ok(None)));
    assert_eq!(send.stopped().await, Ok(None));
    assert_eq!(
        write(&mut send, b"x"),
        Poll::Ready(Err(WriteError::ClosedStream))
    );
    assert!(send.finish().is_err() && send.reset(CODE).is_err() && recv.stop(CODE).is_err());
}

#[tokio::test]
async fn a_writer_waits_for_a_reader_and_tiny_chunks_are_not_free() {
    let (hub, agent) = pair(few());
    let ((mut send, _back), (_answer, mut recv)) = stream(&hub, &agent).await;
    let mut all = [Bytes::from(vec![7; 3 * BUFFER])];
    let cx = Context::from_waker(Waker::noop());
    assert_eq!(send.poll_chunks(&cx, &mut all), Poll::Ready(Ok(0)));
    assert_eq!(all[0].len(), 2 * BUFFER + CHUNK);
    assert_eq!(send.poll_chunks(&cx, &mut all), Poll::Pending);
    let writing = async {
        let mut left = std::mem::take(&mut all[0]);
        while !left.is_empty() {
            let mut chunks = [left];
            poll_fn(|cx| send.poll_chunks(cx, &mut chunks))
                .await
                .unwrap();
            [left] = chunks;
        }
    };
    let reading = async {
        let mut got = 0;
        while got < 3 * BUFFER {
            let chunk = poll_fn(|cx| recv.poll_chunk(cx, 65536)).await;
            got += chunk.unwrap().unwrap().len();
        }
    };
    tokio::join!(writing, reading);
    let mut tiny = 0;
    while write(&mut send, b"x").is_ready() {
        tiny += 1;
    }
    assert!(tiny <= BUFFER / CHUNK, "{tiny}");
    assert_eq!(lock(&send.pipe.state).chunks.len(), tiny);
}

#[tokio::test]
async fn a_reset_and_a_stop_reach_the_other_side_with_their_code() {
    let (hub, agent) = pair(few());
    let ((mut send, mut back), (mut answer, mut recv)) = stream(&hub, &agent).await;
    assert!(write(&mut send, b"lost").is_ready());
    send.finish().unwrap();
    // Also after its end, as long as that was not read.
    send.reset(CODE).unwrap();
    assert!(send.reset(CODE).is_err());
    assert_eq!(read(&mut recv), Poll::Ready(Err(ReadError::Reset(CODE))));
    assert_eq!(send.stopped().await, Ok(None));
    assert!(write(&mut answer, b"unread").is_ready());
    back.stop(CODE).unwrap();
    assert!(back.stop(CODE).is_err());
    assert_eq!(read(&mut back), Poll::Ready(Err(ReadError::ClosedStream)));
    assert_eq!(
        write(&mut answer, b"x"),
        Poll::Ready(Err(WriteError::Stopped(CODE)))
    );
    assert_eq!(answer.stopped().await, Ok(Some(CODE)));
}

#[tokio::test]
async fn whoever_waits_is_woken() {
    let (hub, agent) = pair(few());
    let ((mut send, back), (mut answer, mut recv)) = stream(&hub, &agent).await;
    while write(&mut answer, &[7; 8192]).is_ready() {}
    let mut chunk = [Bytes::from_static(b"x")];
    let (written, got, ()) = tokio::join!(
        biased;
        poll_fn(|cx| answer.poll_chunks(cx, &mut chunk)),
        poll_fn(|cx| recv.poll_chunk(cx, 1)),
        async {
            // Both wait by now.
            drop(back);
            assert!(write(&mut send, b"y").is_ready());
        }
    );
    let stopped = WriteError::Stopped(VarInt::from_u32(0));
    assert_eq!((written, got), (Err(stopped), Ok(Some("y".into()))));
    let (stopped, reset, ()) = tokio::join!(
        biased;
        answer.stopped(),
        poll_fn(|cx| recv.poll_chunk(cx, 1)),
        async { send.reset(CODE).unwrap() }
    );
    let expected = (Ok(Some(VarInt::from_u32(0))), Err(ReadError::Reset(CODE)));
    assert_eq!((stopped, reset), expected);
    let ((mut send, _back), (_answer, mut recv)) = stream(&hub, &agent).await;
    let (stopped, closed, accepted, ()) = tokio::join!(
        biased;
        send.stopped(),
        poll_fn(|cx| recv.poll_chunk(cx, 1)),
        agent.accept(),
        async { agent.close(CODE, b"") }
    );
    assert!(matches!(stopped, Err(StoppedError::ConnectionLost(_))));
    assert!(matches!(closed, Err(ReadError::ConnectionLost(_))));
    assert!(accepted.is_err());
    // Too late to be heard.
    assert!(send.reset(CODE).is_ok());
    assert!(matches!(
        read(&mut recv),
        Poll::Ready(Err(ReadError::ConnectionLost(_)))
    ));
}

#[tokio::test]
async fn closing_reaches_everything_and_takes_nothing_that_was_written() {
    let (hub, agent) = pair(few());
    let ((mut send, _back), (mut answer, mut recv)) = stream(&hub, &agent).await;
    assert!(write(&mut send, b"last").is_ready());
    let opened_and_not_accepted = hub.open().await.unwrap();
    let waits = async { agent.closed().await };
    let closes = async { hub.close(CODE, b"enough") };
    let (reason, ()) = tokio::join!(biased; waits, closes);
    let ConnectionError::ApplicationClosed(close) = &reason else {
        panic!("{reason}")
    };
    assert_eq!(
        (close.error_code, &close.reason[..]),
        (CODE, &b"enough"[..])
    );
    assert_eq!(read(&mut recv), Poll::Ready(Ok(Some("last".into()))));
    let lost = ReadError::ConnectionLost(reason.clone());
    assert_eq!(read(&mut recv), Poll::Ready(Err(lost)));
    let lost = WriteError::ConnectionLost(reason.clone());
    assert_eq!(write(&mut answer, b"x"), Poll::Ready(Err(lost)));
    let lost = WriteError::ConnectionLost(ConnectionError::LocallyClosed);
    assert_eq!(write(&mut send, b"x"), Poll::Ready(Err(lost)));
    assert_eq!(agent.open().await.err(), Some(reason.clone()));
    assert_eq!(hub.open().await.err(), Some(ConnectionError::LocallyClosed));
    // A second time changes nothing, and the reason stays that of the first.
    agent.close(VarInt::from_u32(9), b"other");
    assert_eq!(agent.close_reason(), Some(reason.clone()));
    assert!(agent.accept().await.is_ok());
    assert_eq!(agent.accept().await.err(), Some(reason));
    drop(opened_and_not_accepted);
}

#[tokio::test]
async fn the_last_handle_of_an_end_closes_the_connection() {
    let (hub, agent) = pair(few());
    let (halves, _kept) = stream(&hub, &agent).await;
    drop(hub);
    assert_eq!(agent.close_reason(), None);
    drop(halves);
    let reason = agent.closed().await;
    assert!(
        matches!(&reason, ConnectionError::ApplicationClosed(close) if close.reason.is_empty()),
        "{reason}"
    );
}

#[tokio::test]
async fn an_end_that_goes_away_inside_a_queue_is_gone() {
    let (hub, agent) = pair(few());
    let halves = hub.open().await.unwrap();
    // Never accepted: what waits for an end does not keep it alive.
    drop(agent);
    assert!(hub.close_reason().is_some());
    drop(halves);
}

#[tokio::test(start_paused = true)]
async fn an_end_that_opens_and_drops_for_ever_holds_no_more_than_it_may() {
    let (hub, agent) = pair(few());
    let more = || timeout(Duration::from_secs(1), hub.open());
    for _ in 0..3 {
        let (mut send, _recv) = hub.open().await.unwrap();
        write(&mut send, b"x").is_ready().then_some(()).unwrap();
        send.reset(CODE).unwrap();
    }
    // Nobody has looked at them yet.
    assert!(more().await.is_err());
    assert_eq!(lock(&agent.ours().incoming).len(), 3);
    for _ in 0..1000 {
        drop(agent.accept().await.unwrap());
        let (send, recv) = more().await.unwrap().unwrap();
        drop((send, recv));
    }
    assert!(more().await.is_err());
    assert!(lock(&hub.0.shared.pipes).all.len() <= 128);
}

#[tokio::test(start_paused = true)]
async fn a_stream_counts_until_both_directions_are_over() {
    let (hub, agent) = pair(Streams { hub: 1, agent: 1 });
    let more = || timeout(Duration::from_secs(1), hub.open());
    let ((mut send, mut back), (mut answer, mut recv)) = stream(&hub, &agent).await;
    send.finish().unwrap();
    answer.finish().unwrap();
    assert!(more().await.is_err());
    assert_eq!(read(&mut recv), Poll::Ready(Ok(None)));
    assert!(more().await.is_err());
    let (opened, ()) = tokio::join!(biased; more(), async {
        assert_eq!(read(&mut back), Poll::Ready(Ok(None)));
    });
    let _held = opened.unwrap().unwrap();
    assert!(more().await.is_err());
    // More are allowed, and never fewer again.
    agent.allow_streams(2);
    agent.allow_streams(1);
    let _second = more().await.unwrap().unwrap();
    assert!(more().await.is_err());
    // What one end may open is nothing to the other.
    let _other = agent.open().await.unwrap();
}
