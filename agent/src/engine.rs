//! The Docker Engine of this machine: its API by [`bollard`], and its socket as it is.
//!
//! What it is asked goes through one [`Engine`]; the modules below it turn our words into the
//! daemon's and back: [`Calls`] has a method for each call that the hub can make. Commands in
//! containers are the business of [`runtime`](crate::runtime).

pub(crate) mod archive;
pub(crate) mod build;
mod buildkit;
mod containers;
mod create;
#[cfg(test)]
pub(crate) mod daemon;
#[cfg(test)]
mod differential;
mod error;
pub(crate) mod events;
#[cfg(test)]
pub(crate) mod fake;
mod images;
pub(crate) mod logs;
pub(crate) mod names;
mod networks;
mod raw;
#[cfg(test)]
pub(crate) mod registry;
mod request;
mod stats;
pub(crate) mod stream;
pub(crate) mod time;
mod volumes;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bollard::errors::Error;
use bollard::{BollardRequest, Docker};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::header::HOST;
use hub_protocol::kind::Failure;
use hub_protocol::kind::call::Progress;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::timeout;

pub use self::create::Prepared;
pub(crate) use self::images::archive_failure;

/// Where the daemon listens unless `DOCKER_HOST` says otherwise.
const DEFAULT_SOCKET: &str = "/var/run/docker.sock";

/// How long the daemon may take for the head of any answer, in seconds. A loaded one takes long.
const REQUEST_TIMEOUT: u64 = 120;

/// How long the daemon may take to say that it is there.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to the daemon.
pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

/// Connects to the daemon: its Unix socket, or a simulated one.
pub type Dial = Arc<dyn Fn() -> BoxFuture<'static, io::Result<Box<dyn Socket>>> + Send + Sync>;

/// There is no daemon to speak with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// It does not answer.
    #[error("the Docker daemon does not answer: {0}")]
    Unavailable(String),
    /// `DOCKER_HOST` names no Unix socket.
    #[error("DOCKER_HOST is {0:?}; only unix:///PATH is supported")]
    NotASocket(String),
}

/// The daemon. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    docker: Docker,
    dial: Dial,
    /// Held while a network is made: the daemon's own look for one of that name is no promise.
    making_network: Arc<tokio::sync::Mutex<()>>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    /// Finds the daemon on the socket that `DOCKER_HOST` names, or on the usual one, and agrees on
    /// the newest version of the API that both speak (1.41, of Docker 20.10, is enough).
    ///
    /// # Errors
    /// No daemon answers within 10 s, or `DOCKER_HOST` names no Unix socket.
    pub async fn connect() -> Result<Self, EngineError> {
        let host = std::env::var("DOCKER_HOST").ok();
        let path = socket_path(host.as_deref())?;
        let docker = Docker::connect_with_unix(
            &path.to_string_lossy(),
            REQUEST_TIMEOUT,
            bollard::API_DEFAULT_VERSION,
        );
        let dial: Dial = Arc::new(move || {
            let path = path.clone();
            async move { Ok(Box::new(UnixStream::connect(path).await?) as Box<dyn Socket>) }.boxed()
        });
        Self::agree(docker, dial).await
    }

    /// The daemon at the other end of what `dial` connects to: each request on a connection of its
    /// own.
    ///
    /// # Errors
    /// No daemon answers within 10 s.
    pub async fn over(dial: Dial) -> Result<Self, EngineError> {
        let each = dial.clone();
        let transport = move |mut request: BollardRequest| {
            let host = http::HeaderValue::from_static("docker");
            request.headers_mut().entry(HOST).or_insert(host);
            let connected = each();
            async move {
                let io = TokioIo::new(connected.await?);
                let (mut sender, driver) = hyper::client::conn::http1::handshake(io).await?;
                // Ends with the connection; what goes wrong there, the response tells.
                tokio::spawn(driver.with_upgrades());
                Ok(sender.send_request(request).await?)
            }
        };
        let docker = Docker::connect_with_custom_transport(
            transport,
            Some("http://docker"),
            REQUEST_TIMEOUT,
            bollard::API_DEFAULT_VERSION,
        );
        Self::agree(docker, dial).await
    }

    async fn agree(docker: Result<Docker, Error>, dial: Dial) -> Result<Self, EngineError> {
        let docker = docker
            .map_err(|error| EngineError::Unavailable(error.to_string()))?
            .with_request_modifier(url_safe_credentials);
        match timeout(PING_TIMEOUT, docker.negotiate_version()).await {
            Ok(Ok(docker)) => Ok(Self {
                docker,
                dial,
                making_network: Arc::default(),
            }),
            Ok(Err(error)) => Err(EngineError::Unavailable(error.to_string())),
            Err(_) => {
                let silent = format!("nothing within {} s", PING_TIMEOUT.as_secs());
                Err(EngineError::Unavailable(silent))
            }
        }
    }

    /// The client of its API.
    pub fn docker(&self) -> &Docker {
        &self.docker
    }

    /// The client of its API, without a limit to how long the daemon may take before it begins to
    /// answer: for what takes as long as it takes, and is given up when its operation ends.
    pub fn patient(&self) -> Docker {
        self.docker.clone().with_timeout(Duration::MAX)
    }

    /// The calls of [`kind::call`](hub_protocol::kind::call) to it. What takes long tells `report`
    /// how far it is.
    pub fn calls<'a>(&'a self, report: &'a Report<'a>) -> Calls<'a> {
        Calls {
            engine: self,
            report,
        }
    }

    /// A fresh connection to its socket.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn dial(&self) -> io::Result<Box<dyn Socket>> {
        (self.dial)().await
    }
}

/// Whom to tell how far something is.
pub type Report<'a> = dyn Fn(Progress) + Send + Sync + 'a;

/// The calls of [`kind::call`](hub_protocol::kind::call), each a method of its name that takes the
/// parameters and gives the reply. What can't be, because it is not there, is a value; a
/// [`Failure`] says what went wrong in the daemon's own words. Unless it says otherwise a method can
/// be given up at any point, and the daemon with it.
#[derive(Clone, Copy)]
pub struct Calls<'a> {
    engine: &'a Engine,
    report: &'a Report<'a>,
}

impl fmt::Debug for Calls<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").finish_non_exhaustive()
    }
}

/// How long the daemon may take to answer a question.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// What the daemon answers to a question, within 10 s.
pub(crate) async fn look<T>(
    question: impl Future<Output = Result<T, Error>>,
) -> Result<T, Failure> {
    match timeout(LOOK_TIMEOUT, question).await {
        Ok(answer) => answer.map_err(|error| error::failure(&error)),
        Err(_) => Err(error::silent(LOOK_TIMEOUT)),
    }
}

/// The same of what may not be there.
pub(crate) async fn find<T>(
    question: impl Future<Output = Result<T, Error>>,
) -> Result<Option<T>, Failure> {
    let question = async {
        match question.await {
            Err(error) if error::status(&error) == Some(404) => Ok(None),
            answer => answer.map(Some),
        }
    };
    look(question).await
}

/// The daemon reads credentials in the alphabet of base64 that is safe in URLs, and takes what it
/// can't read for none; the client writes the other alphabet.
fn url_safe_credentials(mut request: BollardRequest) -> BollardRequest {
    for name in ["x-registry-auth", "x-registry-config"] {
        if let Some(value) = request.headers_mut().get_mut(name) {
            let safe = value.as_bytes().iter().map(|byte| match byte {
                b'+' => b'-',
                b'/' => b'_',
                byte => *byte,
            });
            // Both alphabets are plain ASCII.
            if let Ok(mut safe) = http::HeaderValue::from_bytes(&safe.collect::<Vec<_>>()) {
                safe.set_sensitive(true);
                *value = safe;
            }
        }
    }
    request
}

/// The path of the socket that a `DOCKER_HOST` means.
fn socket_path(host: Option<&str>) -> Result<PathBuf, EngineError> {
    match host {
        None | Some("") => Ok(DEFAULT_SOCKET.into()),
        Some(host) => match host.strip_prefix("unix://") {
            Some(path) if path.starts_with('/') => Ok(path.into()),
            _ => Err(EngineError::NotASocket(host.into())),
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn docker_host_names_a_socket_or_is_refused() {
        let path = |host| socket_path(host).unwrap();
        assert_eq!(path(None), PathBuf::from(DEFAULT_SOCKET));
        assert_eq!(path(Some("")), PathBuf::from(DEFAULT_SOCKET));
        assert_eq!(
            path(Some("unix:///run/x.sock")),
            PathBuf::from("/run/x.sock")
        );
        for bad in ["tcp://localhost:2375", "/run/x.sock", "unix://run/x.sock"] {
            let refused = socket_path(Some(bad)).unwrap_err();
            assert!(refused.to_string().contains(bad));
        }
    }
}
