//! From a URL to a connection.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::str::FromStr;
use std::task::{Context, Poll};
use std::time::Duration;

use http::HeaderValue;
use http::uri::{Authority, Scheme, Uri};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::ClientError;

/// How long a connection, and its TLS handshake, may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where an API is: scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    https: bool,
    authority: Authority,
    host_header: HeaderValue,
}

impl Endpoint {
    /// Whether it speaks TLS.
    pub fn is_https(&self) -> bool {
        self.https
    }

    pub(super) fn host_header(&self) -> HeaderValue {
        self.host_header.clone()
    }

    /// The host, an IPv6 address without its brackets.
    fn host(&self) -> &str {
        let host = self.authority.host();
        host.strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host)
    }

    fn port(&self) -> u16 {
        self.authority
            .port_u16()
            .unwrap_or(if self.https { 443 } else { 80 })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}://{}",
            if self.https { "https" } else { "http" },
            self.authority
        )
    }
}

impl FromStr for Endpoint {
    type Err = ClientError;

    fn from_str(url: &str) -> Result<Self, ClientError> {
        let wrong = |reason: &str| ClientError::Url {
            // A URL may carry a password.
            url: if url.contains('@') {
                "…@…".into()
            } else {
                url.to_owned()
            },
            reason: reason.to_owned(),
        };
        let uri: Uri = url
            .parse()
            .map_err(|error: http::uri::InvalidUri| wrong(&error.to_string()))?;
        let https = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => {
                return Err(wrong(
                    "the scheme is missing, or another than http and https",
                ));
            }
        };
        let authority = uri
            .authority()
            .ok_or_else(|| wrong("the host is missing"))?
            .clone();
        if authority.as_str().contains('@') {
            return Err(wrong("it takes no user and no password"));
        }
        // The token must not go to another port than the one that was meant.
        let port = &authority.as_str()[authority.host().len()..];
        if !port.is_empty() && authority.port_u16().is_none() {
            return Err(wrong("the port is none: it takes 1 to 65535"));
        }
        if uri
            .path_and_query()
            .is_some_and(|path| path.as_str() != "/")
        {
            return Err(wrong("it takes no path"));
        }
        let host_header = HeaderValue::from_str(authority.as_str())
            .map_err(|_| wrong("the host has characters that no host has"))?;
        Ok(Self {
            https,
            authority,
            host_header,
        })
    }
}

/// A connection to the API.
#[derive(Debug)]
pub(super) enum Connection {
    Clear(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Connects, to the first address that answers.
pub(super) async fn connect(
    endpoint: &Endpoint,
    tls: Option<&TlsConnector>,
) -> Result<Connection, ClientError> {
    let failed = |error| ClientError::Connect {
        endpoint: endpoint.clone(),
        error,
    };
    let addresses = in_time(lookup_host((endpoint.host(), endpoint.port())))
        .await
        .map_err(failed)?;
    let addresses: Vec<SocketAddr> = addresses.collect();
    let on_this_machine = |address: &SocketAddr| address.ip().to_canonical().is_loopback();
    if tls.is_none() && !addresses.iter().all(on_this_machine) {
        return Err(ClientError::ClearText {
            endpoint: endpoint.clone(),
        });
    }
    let stream = in_time(TcpStream::connect(&addresses[..]))
        .await
        .map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let Some(tls) = tls else {
        return Ok(Connection::Clear(stream));
    };
    let name = ServerName::try_from(endpoint.host().to_owned())
        .map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
    let stream = in_time(tls.connect(name, stream)).await.map_err(failed)?;
    Ok(Connection::Tls(Box::new(stream)))
}

async fn in_time<T>(connecting: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = || {
        io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no answer within {PATIENCE:?}"),
        )
    };
    timeout(PATIENCE, connecting)
        .await
        .unwrap_or_else(|_| Err(late()))
}

impl Connection {
    /// Lets the end of this connection, also by the end of this process, reset it: then the hub
    /// hears of it at once, however much it has not read yet.
    pub(super) fn reset_at_end(&self) -> io::Result<()> {
        match self {
            Self::Clear(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
        .set_zero_linger()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Clear(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Clear(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Clear(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Clear(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn urls_name_scheme_host_and_port_and_nothing_else() {
        let endpoint = |url: &str| url.parse::<Endpoint>().unwrap();
        let plain = endpoint("http://127.0.0.1:7445");
        assert_eq!(
            (plain.is_https(), plain.host(), plain.port()),
            (false, "127.0.0.1", 7445)
        );
        let secure = endpoint("https://hub.example/");
        assert_eq!(
            (secure.is_https(), secure.host(), secure.port()),
            (true, "hub.example", 443)
        );
        let v6 = endpoint("http://[::1]:7445");
        assert_eq!(
            (v6.host(), v6.host_header().to_str().unwrap()),
            ("::1", "[::1]:7445")
        );
        assert_eq!(v6.to_string(), "http://[::1]:7445");
        for wrong in [
            "",
            "hub",
            "127.0.0.1:7445",
            "ftp://hub",
            "http://",
            "http://hub/v1",
            "http://h?x",
            "http://127.0.0.1:99999",
            "http://127.0.0.1:",
        ] {
            assert!(
                matches!(wrong.parse::<Endpoint>(), Err(ClientError::Url { .. })),
                "{wrong}"
            );
        }
        let error = "http://me:hunter2@hub".parse::<Endpoint>().unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[tokio::test]
    async fn the_token_does_not_leave_the_machine_in_clear_text() {
        let endpoint = "http://192.0.2.1:7445".parse().unwrap();
        let error = connect(&endpoint, None).await.unwrap_err();
        assert!(matches!(error, ClientError::ClearText { .. }), "{error}");
    }
}
