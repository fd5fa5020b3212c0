//! The bytes of a command: parting the daemon's one stream into two, and half-closing the input.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bollard::container::LogOutput;
use bollard::errors::Error;
use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt, stream};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::{ByteStream, MAX_CHUNK};
use super::exec::Exec;

/// What the daemon sends of a command's outputs.
pub(super) type Frames = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;

/// While a reader is away, how often to see whether the command has ended meanwhile. The daemon
/// forgets the code of an ended command after five minutes or more.
const NOTE: Duration = Duration::from_secs(60);

/// The reason of a command that did not start: its size at most, and how long to wait for it.
const TEXT: (usize, Duration) = (4096, Duration::from_secs(2));

/// Starts the task that parts the outputs. It holds one frame, at most 32 KiB as the daemon makes
/// them, and each output one chunk more.
pub(super) fn part(frames: Frames, exec: Arc<Exec>) -> (ByteStream, ByteStream) {
    let (stdout, out) = mpsc::channel(1);
    let (stderr, err) = mpsc::channel(1);
    tokio::spawn(
        Parting {
            frames,
            stdout,
            stderr,
            exec,
        }
        .run(),
    );
    (receiver(out), receiver(err))
}

fn receiver(mut chunks: mpsc::Receiver<io::Result<Bytes>>) -> ByteStream {
    Box::pin(stream::poll_fn(move |cx| chunks.poll_recv(cx)))
}

struct Parting {
    frames: Frames,
    stdout: mpsc::Sender<io::Result<Bytes>>,
    stderr: mpsc::Sender<io::Result<Bytes>>,
    exec: Arc<Exec>,
}

impl Parting {
    async fn run(mut self) {
        loop {
            let frame = tokio::select! {
                frame = self.frames.next() => frame,
                // Nobody wants any of it.
                _ = async { tokio::join!(self.stdout.closed(), self.stderr.closed()) } => return,
            };
            match frame {
                None => return,
                Some(Ok(LogOutput::StdOut { message })) => {
                    pass(&self.stdout, &self.exec, message).await;
                }
                Some(Ok(LogOutput::StdErr { message })) => {
                    pass(&self.stderr, &self.exec, message).await;
                }
                Some(Ok(LogOutput::Console { .. } | LogOutput::StdIn { .. })) => {
                    return fail(
                        [self.stdout, self.stderr],
                        "the daemon's output ended in the middle of a frame",
                    )
                    .await;
                }
                Some(Err(error)) => {
                    return fail([self.stdout, self.stderr], &error.to_string()).await;
                }
            }
        }
    }
}

async fn pass(to: &mpsc::Sender<io::Result<Bytes>>, exec: &Exec, mut message: Bytes) {
    while !message.is_empty() {
        let chunk = message.split_to(message.len().min(MAX_CHUNK));
        let permit = loop {
            match timeout(NOTE, to.reserve()).await {
                Ok(permit) => break permit,
                Err(_) => exec.note_end().await,
            }
        };
        match permit {
            Ok(permit) => permit.send(Ok(chunk)),
            // Dropped: the rest of this output is thrown away.
            Err(_) => return,
        }
    }
}

async fn fail(outputs: [mpsc::Sender<io::Result<Bytes>>; 2], why: &str) {
    for to in outputs {
        // An output that was dropped needs no error.
        let _ = to
            .send(Err(io::Error::new(
                io::ErrorKind::BrokenPipe,
                why.to_owned(),
            )))
            .await;
    }
}

/// The daemon's words about a command that did not start.
pub(super) async fn text(frames: &mut Frames) -> String {
    let mut text = Vec::new();
    let read = async {
        while let Some(Ok(frame)) = frames.next().await {
            text.extend_from_slice(&frame.into_bytes());
            if text.len() >= TEXT.0 {
                break;
            }
        }
    };
    // What came within the time is all there is to say.
    let _ = timeout(TEXT.1, read).await;
    text.truncate(TEXT.0);
    String::from_utf8_lossy(&text).into_owned()
}

/// The input's end of the connection. Shutting it down closes that half alone.
pub(super) struct Stdin(pub(super) Option<Pin<Box<dyn AsyncWrite + Send>>>);

impl AsyncWrite for Stdin {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Some(input) => input.as_mut().poll_write(cx, data),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Some(input) => input.as_mut().poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(input) = &mut self.0 {
            ready!(input.as_mut().poll_shutdown(cx))?;
        }
        self.0 = None;
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stdin {
    fn drop(&mut self) {
        // The other half keeps the connection open, so dropping alone would not be EOF. Shutting
        // down a Unix socket does not wait.
        if let Some(mut input) = self.0.take() {
            let _ = input.shutdown().now_or_never();
        }
    }
}
