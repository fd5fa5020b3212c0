//! What comes before HTTP on a connection.
//!
//! ```text
//! TCP --> header of the PROXY protocol, where it is spoken --> TLS, where there are certificates
//!     --> the version of HTTP: by ALPN over TLS, by its first bytes in the clear
//! ```
//!
//! All of it has the time that a request's head has.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::error::Elapsed;
use tokio::time::{Duration, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::Config;
use super::client::{Client, Scheme, Trusted};
use super::proxy_protocol::{self, LONGEST, Malformed, Progress};
use crate::tls::server_config;

/// What a connection that speaks TLS begins with: a record of its handshake.
const HANDSHAKE: u8 = 0x16;

/// What a connection of HTTP/2 begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    Http1,
    Http2,
}

/// Why a connection gets no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("the PROXY protocol is spoken here, and the peer is not among the trusted proxies")]
    Stranger,
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("it took too long to begin")]
    Silent(#[from] Elapsed),
    #[error("it broke off before it began: {0}")]
    Io(#[from] io::Error),
}

/// What is done with connections before they are served.
pub(super) struct Entry {
    patience: Duration,
    /// Who speaks the PROXY protocol, if it is spoken.
    proxies: Option<Trusted>,
    tls: Option<TlsAcceptor>,
}

impl Entry {
    pub(super) fn new(config: &Config) -> Self {
        let tls = config.certificates.as_ref().map(|certificates| {
            let config = server_config(certificates.clone(), &[b"h2", b"http/1.1"]);
            TlsAcceptor::from(Arc::new(config))
        });
        Self {
            patience: config.head_timeout,
            proxies: config.proxy_protocol.then(|| config.trusted.clone()),
            tls,
        }
    }

    /// Finds out who is at the other end of a connection, and how to speak with it.
    pub(super) async fn enter(
        &self,
        stream: TcpStream,
        client: Client,
    ) -> Result<(Stream, Client, Version), Refused> {
        timeout(self.patience, self.entered(stream, client)).await?
    }

    async fn entered(
        &self,
        mut stream: TcpStream,
        mut client: Client,
    ) -> Result<(Stream, Client, Version), Refused> {
        if let Some(proxies) = &self.proxies {
            // Without exception: who comes without the header may have found a way around the
            // proxy.
            if !proxies.contains(client.peer.ip()) {
                return Err(Refused::Stranger);
            }
            let header = header(&mut stream).await?;
            client.peer = header.source.unwrap_or(client.peer);
            if header.secure {
                client.scheme = Scheme::Https;
            }
        }
        if let Some(tls) = &self.tls {
            let mut first = [0];
            stream.peek(&mut first).await?;
            if first[0] == HANDSHAKE {
                let stream = tls.accept(stream).await?;
                client.scheme = Scheme::Https;
                let version = match stream.get_ref().1.alpn_protocol() {
                    Some(b"h2") => Version::Http2,
                    _ => Version::Http1,
                };
                return Ok((Stream::Secured(Box::new(stream)), client, version));
            }
        }
        let (early, version) = sniff(&mut stream).await?;
        Ok((Stream::Clear(stream, early), client, version))
    }
}

/// Reads as far as the connection may be one of HTTP/2, and gives what was read.
async fn sniff(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(Bytes, Version)> {
    let (mut start, mut len) = ([0; PREFACE.len()], 0);
    while len < start.len() && start[..len] == PREFACE[..len] {
        let read = stream.read(&mut start[len..]).await?;
        if read == 0 {
            break;
        }
        len += read;
    }
    let version = if start == *PREFACE {
        Version::Http2
    } else {
        Version::Http1
    };
    Ok((Bytes::copy_from_slice(&start[..len]), version))
}

/// Reads the header of the PROXY protocol, and not one byte behind it.
async fn header(stream: &mut TcpStream) -> Result<proxy_protocol::Header, Refused> {
    let mut bytes = Vec::new();
    loop {
        match proxy_protocol::read(&bytes)? {
            Progress::Whole(header) => return Ok(header),
            Progress::More(more) => {
                let read = bytes.len();
                bytes.resize((read + more).min(LONGEST), 0);
                stream.read_exact(&mut bytes[read..]).await?;
            }
        }
    }
}

/// A browser's connection.
pub(super) enum Stream {
    /// With what was read of it already.
    Clear(TcpStream, Bytes),
    Secured(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// The connection below TLS.
    pub(super) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Clear(stream, _) => stream,
            Self::Secured(stream) => stream.get_ref().0,
        }
    }
}

macro_rules! whichever {
    ($self:expr, $stream:ident => $do:expr) => {
        match $self.get_mut() {
            Self::Clear($stream, _) => {
                let $stream = Pin::new($stream);
                $do
            }
            Self::Secured($stream) => {
                let $stream = Pin::new(&mut **$stream);
                $do
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Self::Clear(_, early) = &mut *self
            && !early.is_empty()
        {
            let read = early.len().min(buffer.remaining());
            buffer.put_slice(&early.split_to(read));
            return Poll::Ready(Ok(()));
        }
        whichever!(self, stream => stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        whichever!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        whichever!(self, stream => stream.poll_write_vectored(cx, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Clear(stream, _) => stream.is_write_vectored(),
            Self::Secured(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        whichever!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        whichever!(self, stream => stream.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// However the first bytes are cut, none is lost.
    #[tokio::test]
    async fn the_version_is_told_by_the_first_bytes() {
        let http2 = [&PREFACE[..], b"rest"].concat();
        for (bytes, version) in [
            (&http2[..], Version::Http2),
            (b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", Version::Http1),
            (b"PROPFIND / HTTP/1.1\r\n\r\n", Version::Http1),
            (b"GET / HTTP/1.1\r\nHost: hub.test\r\n\r\n", Version::Http1),
            (b"PRI * HTTP/2", Version::Http1),
            (b"", Version::Http1),
        ] {
            for cut in 0..=bytes.len() {
                let (mut browser, mut hub) = tokio::io::duplex(64);
                let send = async {
                    browser.write_all(&bytes[..cut]).await.unwrap();
                    tokio::task::yield_now().await;
                    browser.write_all(&bytes[cut..]).await.unwrap();
                    drop(browser);
                };
                let receive = async {
                    let (early, found) = sniff(&mut hub).await.unwrap();
                    let mut all = early.to_vec();
                    hub.read_to_end(&mut all).await.unwrap();
                    (all, found)
                };
                let (got, ()) = tokio::join!(receive, send);
                assert_eq!(got, (bytes.to_vec(), version));
            }
        }
    }
}
