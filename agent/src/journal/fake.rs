//! A daemon for tests that tells events, forgets them and breaks off on cue.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::watch;

use crate::engine::{Dial, Engine, Socket};

/// What Docker remembers.
const MEMORY: usize = 256;

#[derive(Default)]
struct State {
    /// All that happened, with its number.
    events: VecDeque<(u64, i64, String)>,
    next: u64,
    now_ns: i64,
    containers: Vec<(String, String)>,
    away: bool,
}

/// The daemon. Cheap to clone.
#[derive(Clone)]
pub(crate) struct FakeDaemon {
    state: Arc<Mutex<State>>,
    /// Changes with each event; the number of restarts.
    changed: watch::Sender<u64>,
}

impl FakeDaemon {
    pub(crate) fn new(now_ns: i64) -> Self {
        let state = State {
            now_ns,
            ..State::default()
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            changed: watch::Sender::new(0),
        }
    }

    /// Something happens to the container `id`, one nanosecond after what happened before.
    pub(crate) fn emit(&self, action: &str, id: &str) {
        let mut state = self.state.lock().unwrap();
        state.now_ns += 1;
        let (number, time_ns) = (state.next, state.now_ns);
        let line = serde_json::json!({
            "Type": "container",
            "Action": action,
            "Actor": { "ID": id, "Attributes": { "name": id } },
            "timeNano": time_ns,
        });
        state.next += 1;
        state
            .events
            .push_back((number, time_ns, format!("{line}\n")));
        if state.events.len() > MEMORY {
            state.events.pop_front();
        }
        drop(state);
        self.changed.send_modify(|_| {});
    }

    /// A container for listings.
    pub(crate) fn contain(&self, id: &str, running: &str) {
        let mut state = self.state.lock().unwrap();
        state.containers.push((id.into(), running.into()));
    }

    /// Time passes.
    pub(crate) fn pass(&self, ns: i64) {
        self.state.lock().unwrap().now_ns += ns;
    }

    /// All connections break off.
    pub(crate) fn cut(&self) {
        self.changed.send_modify(|cuts| *cuts += 1);
    }

    /// It cannot be reached, or can again.
    pub(crate) fn go_away(&self, away: bool) {
        self.state.lock().unwrap().away = away;
        self.cut();
    }

    /// It starts again: nothing is remembered.
    pub(crate) fn restart(&self) {
        self.state.lock().unwrap().events.clear();
        self.cut();
    }

    pub(crate) async fn engine(&self) -> Engine {
        let daemon = self.clone();
        let dial: Dial = Arc::new(move || {
            let daemon = daemon.clone();
            async move {
                if daemon.state.lock().unwrap().away {
                    return Err(std::io::ErrorKind::ConnectionRefused.into());
                }
                let (ours, theirs) = duplex(1024 * 1024);
                tokio::spawn(daemon.serve(theirs));
                Ok(Box::new(ours) as Box<dyn Socket>)
            }
            .boxed()
        });
        Engine::over(dial).await.unwrap()
    }

    async fn serve(self, mut stream: DuplexStream) {
        let mut cuts = self.changed.subscribe();
        let before = *cuts.borrow();
        tokio::select! {
            biased;
            _ = cuts.wait_for(|cuts| *cuts != before) => {}
            _ = self.answer(&mut stream) => {}
        }
    }

    async fn answer(&self, stream: &mut DuplexStream) -> Option<()> {
        loop {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.ok()?);
            }
            let head = String::from_utf8(head).unwrap();
            let target = head.split(' ').nth(1).unwrap();
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let body = if path.ends_with("/events") {
                return self.events(stream, query).await;
            } else if path.ends_with("/info") {
                let now = self.state.lock().unwrap().now_ns;
                serde_json::json!({ "SystemTime": rfc3339(now) })
            } else if path.ends_with("/containers/json") {
                let containers = self.state.lock().unwrap().containers.clone();
                containers
                    .iter()
                    .map(|(id, running)| {
                        serde_json::json!({
                            "Id": id, "Names": [format!("/{id}")], "State": running,
                            "Image": "busybox", "Labels": {},
                        })
                    })
                    .collect()
            } else {
                serde_json::json!({ "ApiVersion": "1.41", "Version": "20.10.24" })
            };
            let body = body.to_string();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nApi-Version: 1.41\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await.ok()?;
        }
    }

    async fn events(&self, stream: &mut DuplexStream, query: &str) -> Option<()> {
        let time = |name| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let (_, value) = pairs.find(|(key, _)| *key == name)?;
            let (seconds, ns) = value.split_once('.')?;
            Some(seconds.parse::<i64>().ok()? * 1_000_000_000 + ns.parse::<i64>().ok()?)
        };
        let (since, until) = (time("since")?, time("until"));
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.ok()?;
        let mut changed = self.changed.subscribe();
        let mut next = 0;
        loop {
            let lines: Vec<_> = {
                let state = self.state.lock().unwrap();
                let wanted = state.events.iter().filter(|(number, time, _)| {
                    *number >= next && *time >= since && until.is_none_or(|until| *time <= until)
                });
                let lines = wanted.map(|(_, _, line)| line.clone()).collect();
                next = state.next;
                lines
            };
            for line in lines {
                let chunk = format!("{:x}\r\n{line}\r\n", line.len());
                stream.write_all(chunk.as_bytes()).await.ok()?;
            }
            if until.is_some() {
                stream.write_all(b"0\r\n\r\n").await.ok()?;
                return Some(());
            }
            changed.changed().await.ok()?;
        }
    }
}

/// The times of a test are within the first hour of 1970.
fn rfc3339(ns: i64) -> String {
    let (seconds, ns) = (ns / 1_000_000_000, ns % 1_000_000_000);
    format!(
        "1970-01-01T00:{:02}:{:02}.{ns:09}Z",
        seconds / 60,
        seconds % 60
    )
}
