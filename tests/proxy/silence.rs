//! Browsers that say nothing, or say it slowly: they cost a connection each, for a time, and
//! nobody else anything.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::time::{Instant, sleep};

use crate::peers::{fetch, read_head};
use crate::world::{InMemory, World, run_simulated};

async fn world() -> World {
    let target = |mut stream: DuplexStream| {
        tokio::spawn(async move {
            while read_head(&mut stream).await.is_some() {
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
                stream.write_all(answer).await.unwrap();
            }
        });
        Ok(())
    };
    World::simulated(Arc::new(InMemory(target))).await
}

/// How long a request takes, in simulated time.
async fn time_of_a_request(world: &World) -> Duration {
    let began = Instant::now();
    let request = format!("GET {}/ HTTP/1.1\r\nHost: hub\r\n\r\n", world.prefix());
    let (_, body) = fetch(&mut world.browser_in_memory(), &request).await;
    assert_eq!(body, "hi");
    began.elapsed()
}

#[test]
fn a_thousand_silent_browsers() {
    run_simulated(async {
        let world = world().await;
        time_of_a_request(&world).await;
        let alone = time_of_a_request(&world).await;
        let mut silent: Vec<_> = (0..1000).map(|_| world.browser_in_memory()).collect();
        for (n, browser) in silent.iter_mut().enumerate() {
            // Some have said something, each another part of a request.
            let begun = format!("POST {}/ HTTP/1.1\r\nHost: hub\r\nX: ", world.prefix());
            let begun = &begun.as_bytes()[..n % begun.len()];
            browser.write_all(begun).await.unwrap();
        }
        let began = Instant::now();
        assert_eq!(time_of_a_request(&world).await, alone);
        for browser in &mut silent {
            assert_eq!(browser.read(&mut [0]).await.unwrap(), 0);
        }
        assert_eq!(began.elapsed().as_secs(), 10);
        assert_eq!(world.hub.operations(), 0);
    });
}

/// One byte a second is not fast enough: the time is for the head as a whole.
#[test]
fn a_head_in_drops() {
    run_simulated(async {
        let world = world().await;
        let mut browser = world.browser_in_memory();
        let request = format!("GET {}/ HTTP/1.1\r\nHost: hub\r\n", world.prefix());
        fetch(&mut browser, &format!("{request}\r\n")).await;
        // Between requests there is more time.
        sleep(Duration::from_secs(50)).await;
        let began = Instant::now();
        let (mut read, mut write) = tokio::io::split(browser);
        let drops = async {
            for byte in request.as_bytes() {
                if write.write_all(&[*byte]).await.is_err() {
                    break;
                }
                sleep(Duration::from_secs(1)).await;
            }
        };
        let closed = async {
            assert_eq!(read.read(&mut [0]).await.unwrap(), 0);
            began.elapsed().as_secs()
        };
        let ((), after) = tokio::join!(drops, closed);
        assert_eq!(after, 10);
    });
}

#[test]
fn a_connection_between_requests() {
    run_simulated(async {
        let world = world().await;
        let mut browser = world.browser_in_memory();
        let request = format!("GET {}/ HTTP/1.1\r\nHost: hub\r\n\r\n", world.prefix());
        for _ in 0..3 {
            fetch(&mut browser, &request).await;
            sleep(Duration::from_secs(59)).await;
        }
        fetch(&mut browser, &request).await;
        let began = Instant::now();
        assert_eq!(browser.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(began.elapsed().as_secs(), 60);
    });
}

/// A body of which nothing comes any more is given up, and so is its request.
#[test]
fn a_body_that_stalls() {
    run_simulated(async {
        let world = world().await;
        let mut browser = world.browser_in_memory();
        let request = format!(
            "POST {}/ HTTP/1.1\r\nHost: hub\r\nContent-Length: 10\r\n\r\n",
            world.prefix()
        );
        browser.write_all(request.as_bytes()).await.unwrap();
        let began = Instant::now();
        // The target has answered long ago, without a look at the body.
        assert_eq!(read_head(&mut browser).await.unwrap().status(), 200);
        let mut rest = Vec::new();
        browser.read_to_end(&mut rest).await.unwrap();
        assert!(began.elapsed() >= Duration::from_secs(600));
        assert!(began.elapsed() <= Duration::from_secs(1240));
        assert_eq!(world.hub.operations(), 0);
    });
}
