//! The near end of tunnels: connections of this machine's programs, each carried by one of its own.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::sleep;

use super::say;

/// How long to wait after a connection could not be accepted, as when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Has every connection carried by a task of its own, in the surrounding `LocalSet`, until dropped.
/// Each thing that goes wrong is said once.
pub(super) async fn serve<C, F>(
    accept: impl AsyncFn() -> io::Result<C>,
    carry: impl Fn(C) -> F,
) -> Infallible
where
    F: Future<Output = Result<(), String>> + 'static,
{
    let said = Rc::new(RefCell::new(BTreeSet::new()));
    let complain = |said: &RefCell<BTreeSet<String>>, error: String| {
        if said.borrow_mut().insert(error.clone()) {
            say(&error, false);
        }
    };
    loop {
        match accept().await {
            Ok(connection) => {
                let (carried, said) = (carry(connection), said.clone());
                tokio::task::spawn_local(async move {
                    if let Err(error) = carried.await {
                        complain(&said, error);
                    }
                });
            }
            Err(error) => {
                complain(
                    &said,
                    format!("a connection could not be accepted: {error}"),
                );
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Waits until the other end has closed a connection, not only for writing.
pub(super) fn closed(connection: &UnixStream) -> io::Result<impl Future<Output = ()> + use<>> {
    // Registered a second time, for its reader and its writer take what is ready from the first.
    let watched = connection.as_fd().try_clone_to_owned()?;
    let watched = UnixStream::from_std(watched.into())?;
    Ok(async move {
        while let Ok(ready) = watched.ready(Interest::WRITABLE).await {
            if ready.is_write_closed() {
                return;
            }
            // That it may be written to is no news.
            let blocks = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
            let _ = watched.try_io(Interest::WRITABLE, blocks);
        }
    })
}

/// Waits until a TCP connection is reset. Of one that the other end has merely closed nobody can say
/// whether it still reads.
pub(super) fn reset(connection: &TcpStream) -> io::Result<impl Future<Output = ()> + use<>> {
    let watched = std::net::TcpStream::from(connection.as_fd().try_clone_to_owned()?);
    let watched = TcpStream::from_std(watched)?;
    Ok(async move {
        // An error means that the runtime ends, and with it everything that waits here.
        let _ = watched.ready(Interest::ERROR).await;
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures_util::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn an_end_that_closed_is_told_from_one_that_writes_no_more() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let mut gone = Box::pin(closed(&here).unwrap());
        there.shutdown().await.unwrap();
        here.readable().await.unwrap();
        assert_eq!(here.try_read(&mut [0; 1]).unwrap(), 0);
        assert!(gone.as_mut().now_or_never().is_none());
        assert_eq!(here.try_write(b"answer").unwrap(), 6);
        there.read_exact(&mut [0; 6]).await.unwrap();
        assert!(gone.as_mut().now_or_never().is_none());
        drop(there);
        gone.await;
    }

    #[tokio::test]
    async fn a_reset_is_told_from_an_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (mut here, mut there) = (listener.accept().await.unwrap().0, there.unwrap());
        let mut gone = Box::pin(reset(&here).unwrap());
        there.shutdown().await.unwrap();
        here.shutdown().await.unwrap();
        assert_eq!(here.read(&mut [0]).await.unwrap(), 0);
        assert!(gone.as_mut().now_or_never().is_none());
        let there = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (here, there) = (listener.accept().await.unwrap().0, there.unwrap());
        let gone = reset(&here).unwrap();
        there.set_zero_linger().unwrap();
        drop(there);
        gone.await;
    }
}
