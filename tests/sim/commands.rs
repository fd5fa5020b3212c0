//! Commands that simulated nodes run: streams made of arithmetic, so that every byte can be checked
//! at the other end.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use hub_agent::runtime::{
    ByteStream, ExecError, ExecSpec, ExitStatus, MayStillRun, Process, ProcessHandle, Runtime,
    Stopped, WaitError,
};
use hub_protocol::kind::exec::Size;
use tokio::io::AsyncReadExt as _;
use tokio::sync::watch;

/// `len` bytes that follow from `seed`, from `offset` on.
pub fn pattern(seed: u64, offset: u64, len: usize) -> Bytes {
    let byte = |at: u64| (at.wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (offset..offset + len as u64).map(byte).collect()
}

/// Runs `bytes N SEED CODE`, `drip N SEED CODE`, which prints 1,000 bytes N times, a second apart, `cat`, `endless`, `size`, which prints that of its terminal whenever it
/// changes, and `sleep`, which neither reads nor closes its stdin.
/// The output of `broken N` can't be read to its end, though it exits with 0; whether `lost` has
/// started nobody can say.
#[derive(Debug, Default, Clone)]
pub struct Commands {
    alive: watch::Sender<usize>,
    started: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Commands {
    /// How many run now.
    pub fn alive(&self) -> usize {
        *self.alive.borrow()
    }

    /// Waits until this many run.
    pub async fn until_alive(&self, number: usize) {
        let mut alive = self.alive.subscribe();
        alive.wait_for(|alive| *alive == number).await.unwrap();
    }

    /// How often each exec with this first variable was started.
    pub fn started(&self) -> BTreeMap<String, usize> {
        self.started.lock().unwrap().clone()
    }
}

struct Handle {
    status: watch::Sender<Option<ExitStatus>>,
    alive: watch::Sender<usize>,
    size: watch::Sender<Option<Size>>,
}

impl Handle {
    fn end(&self, status: ExitStatus) -> bool {
        self.status.send_if_modified(|current| {
            if current.is_some() {
                return false;
            }
            *current = Some(status);
            self.alive.send_modify(|alive| *alive -= 1);
            true
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end(ExitStatus::Signal(15));
    }
}

struct Shared(Arc<Handle>);

impl ProcessHandle for Shared {
    fn wait(&self) -> BoxFuture<'_, Result<ExitStatus, WaitError>> {
        let mut status = self.0.status.subscribe();
        async move {
            let ended = status.wait_for(Option::is_some).await;
            ended
                .ok()
                .and_then(|status| *status)
                .ok_or(WaitError { why: "gone".into() })
        }
        .boxed()
    }

    fn stop(&self, _: Duration) -> BoxFuture<'_, Result<Stopped, MayStillRun>> {
        let ended = self.0.end(ExitStatus::Signal(15));
        async move {
            Ok(if ended {
                Stopped::Terminated
            } else {
                Stopped::AlreadyEnded
            })
        }
        .boxed()
    }

    fn resize(&self, size: Size) -> BoxFuture<'_, io::Result<()>> {
        self.0.size.send_replace(Some(size));
        async { Ok(()) }.boxed()
    }

    fn signal(&self, number: i32) -> BoxFuture<'_, io::Result<()>> {
        self.0.end(ExitStatus::Signal(number));
        async { Ok(()) }.boxed()
    }
}

impl Runtime for Commands {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn exec(&self, spec: ExecSpec) -> BoxFuture<'_, Result<Process, ExecError>> {
        async move {
            spec.check()?;
            if let Some((name, _)) = spec.env.first() {
                *self
                    .started
                    .lock()
                    .unwrap()
                    .entry(name.clone())
                    .or_default() += 1;
            }
            let number = |at: usize| spec.argv.get(at).and_then(|arg| arg.parse::<u64>().ok());
            self.alive.send_modify(|alive| *alive += 1);
            let handle = Arc::new(Handle {
                status: watch::Sender::new(None),
                alive: self.alive.clone(),
                size: watch::Sender::new(spec.tty),
            });
            let (stdin, input) = tokio::io::duplex(64 * 1024);
            let stdout = match spec.argv[0].as_str() {
                "bytes" => {
                    let (len, seed) = (number(1).unwrap_or(0), number(2).unwrap_or(0));
                    let code = number(3).unwrap_or(0) as i32;
                    bytes(handle.clone(), len, seed, code)
                }
                "drip" => {
                    let (pieces, seed) = (number(1).unwrap_or(0), number(2).unwrap_or(0));
                    let code = number(3).unwrap_or(0) as i32;
                    drip(handle.clone(), pieces, seed, code)
                }
                "endless" => bytes(handle.clone(), u64::MAX, 0, 0),
                "cat" => cat(handle.clone(), input),
                "size" => sizes(&handle),
                "sleep" => sleep(handle.clone(), input),
                "broken" => bytes(handle.clone(), number(1).unwrap_or(0), 0, 0)
                    .chain(stream::once(async {
                        Err(io::ErrorKind::ConnectionReset.into())
                    }))
                    .boxed(),
                "lost" => {
                    handle.end(ExitStatus::Signal(15));
                    return Err(ExecError::Unknown {
                        why: "simulated".into(),
                    });
                }
                other => {
                    handle.end(ExitStatus::Code(127));
                    return Err(ExecError::NotFound {
                        command: other.into(),
                        detail: "simulated".into(),
                    });
                }
            };
            Ok(Process {
                stdin: spec.stdin.then(|| Box::new(stdin) as _),
                stdout: until_ended(stdout, &handle),
                stderr: stream::empty().boxed(),
                handle: Box::new(Shared(handle)),
            })
        }
        .boxed()
    }
}

fn bytes(handle: Arc<Handle>, len: u64, seed: u64, code: i32) -> ByteStream {
    stream::unfold(0u64, move |offset| {
        let handle = handle.clone();
        async move {
            let now = (len - offset).min(16 * 1024) as usize;
            if now == 0 {
                handle.end(ExitStatus::Code(code));
                return None;
            }
            Some((Ok(pattern(seed, offset, now)), offset + now as u64))
        }
    })
    .boxed()
}

fn drip(handle: Arc<Handle>, pieces: u64, seed: u64, code: i32) -> ByteStream {
    stream::unfold(0u64, move |piece| {
        let handle = handle.clone();
        async move {
            if piece == pieces {
                handle.end(ExitStatus::Code(code));
                return None;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok(pattern(seed, piece * 1000, 1000)), piece + 1))
        }
    })
    .boxed()
}

fn cat(handle: Arc<Handle>, input: tokio::io::DuplexStream) -> ByteStream {
    stream::unfold(input, move |mut input| {
        let handle = handle.clone();
        async move {
            let mut chunk = vec![0; 16 * 1024];
            let now = input.read(&mut chunk).await.unwrap_or(0);
            if now == 0 {
                handle.end(ExitStatus::Code(0));
                return None;
            }
            chunk.truncate(now);
            Some((Ok(chunk.into()), input))
        }
    })
    .boxed()
}

/// The sizes of the terminal, the newest of those that came meanwhile; for ever.
fn sizes(handle: &Arc<Handle>) -> ByteStream {
    let size = handle.size.subscribe();
    stream::unfold((size, true), |(mut size, first)| async move {
        if !first {
            size.changed().await.ok()?;
        }
        let line = match *size.borrow_and_update() {
            Some(Size { cols, rows }) => format!("{cols}x{rows}\n"),
            None => "none\n".into(),
        };
        Some((Ok(line.into()), (size, false)))
    })
    .boxed()
}

fn sleep(handle: Arc<Handle>, input: tokio::io::DuplexStream) -> ByteStream {
    stream::once(async move {
        let _ = handle.status.subscribe().wait_for(Option::is_some).await;
        drop(input);
        Ok(Bytes::new())
    })
    .boxed()
}

/// A process that was stopped writes no more.
fn until_ended(output: ByteStream, handle: &Arc<Handle>) -> ByteStream {
    let mut stopped = handle.status.subscribe();
    let stopped = async move {
        let signal = |status: &Option<ExitStatus>| matches!(status, Some(ExitStatus::Signal(_)));
        if stopped.wait_for(signal).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    output.take_until(Box::pin(stopped)).boxed()
}
