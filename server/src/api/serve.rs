//! The API's connections: accepted, secured, watched and handed to the router.
//!
//! Each connection is served by us because handlers need to know when the client hangs up, which
//! only the socket itself tells: see `crate::hangup`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use axum::Router;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::client::Client;
use crate::hangup::Hangup;
use crate::seats::{self, Limits, Seat};

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
pub struct Tls(TlsAcceptor);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(…)")
    }
}

/// Why there is no TLS for the API.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is missing, or is no PEM of its kind.
    #[error("{what} {}: {reason}", .path.display())]
    File {
        /// What it should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The two do not go together, or the key is of a kind that is not known.
    #[error(
        "the API's certificate {} and key {} can't be used: {reason}",
        .certificate.display(), .key.display()
    )]
    Unusable {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong with them.
        reason: String,
    },
}

impl Tls {
    /// Reads a certificate chain and a key, both PEM.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let file = |what, path: &Path, reason: String| TlsError::File {
            what,
            path: path.to_owned(),
            reason,
        };
        let unreadable = |error: rustls::pki_types::pem::Error| {
            file("the API's certificate", certificate, error.to_string())
        };
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(unreadable)?;
        if chain.is_empty() {
            let reason = "there is no certificate in it".to_owned();
            return Err(file("the API's certificate", certificate, reason));
        }
        let private = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| file("the API's key", key, error.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| {
                builder
                    .with_no_client_auth()
                    .with_single_cert(chain, private)
            });
        let mut config = config.map_err(|error| TlsError::Unusable {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            reason: error.to_string(),
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
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
    seats::serve(listener, limits, shutdown, |stream, remote, seat| {
        let connection = connection(stream, router.clone(), tls.clone(), seat);
        async move {
            if let Err(error) = connection.await {
                tracing::debug!(%remote, %error, "a connection of the API failed");
            }
        }
    })
    .await;
}

async fn connection(
    stream: TcpStream,
    router: Router,
    tls: Option<Tls>,
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
        Some(Tls(acceptor)) => {
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
