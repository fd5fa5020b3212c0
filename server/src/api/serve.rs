//! The API's connections: accepted, secured, watched and handed to the router.
//!
//! Each connection is served by us because handlers need to know when the client hangs up, which
//! only the socket itself tells: see `crate::hangup`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use axum::Router;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::client::Client;
use crate::hangup::Hangup;
use crate::seats::{self, Limits, Seat};
pub use crate::tls::TlsError;
use crate::tls::{Files, Followed, LOOK_EVERY, server_config};

/// How many connections are served at once, execs among them; further ones wait in the kernel.
const MAX_CONNECTIONS: u32 = 1024;
/// How long a TLS handshake, and the head of a request, may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long requests under way may take to end when the hub shuts down.
const GRACE: Duration = Duration::from_secs(5);
/// The most bytes of a request's head: the command of an exec is in its query.
const MAX_HEAD: usize = 128 * 1024;

/// A certificate and its key, ready for the API's connections.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    files: Followed,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(…)")
    }
}

impl Tls {
    /// Reads a certificate chain and a key, both PEM.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let files = Files {
            whose: "the API's",
            certificate: certificate.to_owned(),
            key: key.to_owned(),
        };
        let files = files.load()?;
        let certificate = Arc::new(files.certificate().clone());
        let config = Arc::new(server_config(certificate, &[b"http/1.1"]));
        Ok(Self {
            acceptor: TlsAcceptor::from(config),
            files,
        })
    }
}

/// Serves a router on a listener until `shutdown`, then lets requests under way end for [`GRACE`].
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Option<Tls>,
    shutdown: impl Future<Output = ()>,
) {
    let limits = Limits {
        whose: "operators",
        connections: MAX_CONNECTIONS,
        drain: GRACE,
    };
    let acceptor = tls.as_ref().map(|tls| tls.acceptor.clone());
    let serving = seats::serve(listener, limits, shutdown, |stream, remote, seat| {
        let connection = connection(stream, router.clone(), acceptor.clone(), seat);
        async move {
            if let Err(error) = connection.await {
                tracing::debug!(%remote, %error, "a connection of the API failed");
            }
        }
    });
    match tls {
        None => serving.await,
        Some(tls) => tokio::select! {
            () = serving => {}
            never = tls.files.follow(LOOK_EVERY) => match never {},
        },
    }
}

async fn connection(
    stream: TcpStream,
    router: Router,
    tls: Option<TlsAcceptor>,
    seat: Seat,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10));
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    let hangup = Hangup::watch(&stream)?;
    match tls {
        None => http(stream, router, hangup, seat).await,
        Some(acceptor) => {
            let stream = tokio::select! {
                stream = timeout(PATIENCE, acceptor.accept(stream)) => stream,
                // Nothing was asked yet.
                () = seat.stopping() => return Ok(()),
            };
            let stream = stream.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            http(stream, router, hangup, seat).await
        }
    }
}

async fn http(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    router: Router,
    hangup: Hangup,
    seat: Seat,
) -> io::Result<()> {
    let router = TowerToHyperService::new(router);
    let client = Client {
        hangup,
        seat: seat.clone(),
    };
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(client.clone());
        router.call(request)
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = seat.stopping() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    ended.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn tls_files_are_named_when_they_are_wrong() {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = (
            directory.path().join("cert.pem"),
            directory.path().join("key.pem"),
        );
        let error = Tls::load(&certificate, &key).unwrap_err().to_string();
        assert!(error.contains("cert.pem"), "{error}");
        std::fs::write(&certificate, "no PEM").unwrap();
        let error = Tls::load(&certificate, &key).unwrap_err().to_string();
        assert!(error.contains("no certificate in it"), "{error}");
        let names = vec!["hub.example".to_owned()];
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(names).unwrap();
        std::fs::write(&certificate, cert.pem()).unwrap();
        let error = Tls::load(&certificate, &key).unwrap_err().to_string();
        assert!(error.contains("key.pem"), "{error}");
        std::fs::write(&key, signing_key.serialize_pem()).unwrap();
        assert_eq!(
            format!("{:?}", Tls::load(&certificate, &key).unwrap()),
            "Tls(…)"
        );
        let other = rcgen::generate_simple_self_signed(vec!["x.example".to_owned()]).unwrap();
        std::fs::write(&key, other.signing_key.serialize_pem()).unwrap();
        let error = Tls::load(&certificate, &key).unwrap_err();
        assert!(matches!(error, TlsError::Unusable { .. }), "{error}");
    }
}
