//! Standard streams, on threads of their own: pipes and terminals block.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd;
use std::thread;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::client::PIECE;

/// Pieces of a file.
pub(in crate::cli) type Pieces = mpsc::Receiver<io::Result<Bytes>>;

/// What standard input gives: see [`pieces`].
pub(in crate::cli) fn stdin() -> io::Result<Pieces> {
    pieces(unbuffered(&io::stdin())?)
}

/// What a file gives, piece by piece; the channel holds one. Its end is the end of the file.
pub(in crate::cli) fn pieces(mut file: File) -> io::Result<Pieces> {
    let (pieces, queue) = mpsc::channel(1);
    // Not to be joined: a read may block for ever.
    thread::Builder::new().name("input".into()).spawn(move || {
        let mut buffer = vec![0; PIECE];
        loop {
            let piece = match file.read(&mut buffer) {
                Ok(0) => return,
                Ok(read) => Ok(Bytes::copy_from_slice(&buffer[..read])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let failed = piece.is_err();
            // Nobody takes any more once the command has ended.
            if pieces.blocking_send(piece).is_err() || failed {
                return;
            }
        }
    })?;
    Ok(queue)
}

/// Prints on a thread of its own, one piece after the other.
pub(in crate::cli) struct Printer {
    pieces: Option<mpsc::Sender<Bytes>>,
    ended: oneshot::Receiver<io::Result<()>>,
}

impl Printer {
    pub(in crate::cli) fn new(file: &impl AsFd) -> Self {
        let (pieces, mut queue) = mpsc::channel::<Bytes>(1);
        let (ends, ended) = oneshot::channel();
        let file = unbuffered(file);
        let print = move || {
            let mut file = file?;
            while let Some(piece) = queue.blocking_recv() {
                file.write_all(&piece)?;
            }
            Ok(())
        };
        // Whoever waits is gone only when this process ends. Where there is no thread, the end of
        // both channels tells.
        let _ = thread::Builder::new().spawn(move || drop(ends.send(print())));
        Self {
            pieces: Some(pieces),
            ended,
        }
    }

    /// Waits until there is room for the piece.
    pub(in crate::cli) async fn print(&mut self, piece: Bytes) -> io::Result<()> {
        match &self.pieces {
            Some(pieces) if pieces.send(piece).await.is_ok() => Ok(()),
            _ => self
                .finish()
                .await
                .and(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Waits until everything is printed.
    pub(in crate::cli) async fn finish(&mut self) -> io::Result<()> {
        self.pieces = None;
        match (&mut self.ended).await {
            Ok(printed) => printed,
            Err(_) => Err(io::Error::other("there is no thread to print on")),
        }
    }
}

/// The file without the standard library's buffer: bytes go when they come, lines or not.
fn unbuffered(file: &impl AsFd) -> io::Result<File> {
    file.as_fd().try_clone_to_owned().map(File::from)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn a_printer_prints_everything_or_says_why_not() {
        let mut file = tempfile::tempfile().unwrap();
        let mut printer = Printer::new(&file);
        for _ in 0..100 {
            printer
                .print(Bytes::from_static(b"\x00\xff\n"))
                .await
                .unwrap();
        }
        printer.finish().await.unwrap();
        let mut printed = Vec::new();
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_end(&mut printed).unwrap();
        assert_eq!(printed, b"\x00\xff\n".repeat(100));
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut printer = Printer::new(&writer);
        let error = loop {
            if let Err(error) = printer.print(Bytes::from_static(b"x")).await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
