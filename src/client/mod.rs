//! Client of the hub's API: what `hub` is made of, for other programs.
//!
//! ```text
//! Client --connect--> TCP, TLS --hyper--> JSON, problem documents
//!                                  |----> records: JSON lines, see [`records`]
//!                                  |----> archives: bodies of any size
//!                                  `----> WebSocket: see [`exec`], [`build`], [`Tunnel`]
//! ```
//!
//! Every call opens a connection of its own. The API token goes over TLS, or to loopback, and
//! nowhere else.

mod archive;
mod backoff;
pub mod build;
mod call;
mod connect;
mod error;
pub mod exec;
mod lines;
pub mod records;
mod socket;
mod transfer;
mod tunnel;

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hub_server::api::types::{
    CreatedExposure, EditExposure, Exposure, Exposures, NewExposure, NewToken, Nodes, RotateToken,
    Status, Token, Top,
};
use hub_server::api::{ApiToken, Problem};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

pub use backoff::Backoff;
use connect::Connection;
pub use connect::Endpoint;
pub use error::ClientError;
pub(crate) use records::may_pass;
pub use socket::PIECE;
pub use transfer::Download;
pub use tunnel::{Cut, Tunnel};

/// The API of a hub on this machine.
pub const DEFAULT_URL: &str = "http://127.0.0.1:7445";

/// The most bytes of an answer that is taken: 64 MiB, far more than a list of nodes has.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// How long a call may take, from its name look-up to the last byte of its answer; an exec may take
/// as long as it takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Speaks to one hub. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    endpoint: Endpoint,
    authorization: HeaderValue,
    tls: Option<TlsConnector>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A client of the API at `url` (`http://HOST:PORT`, or `https://HOST:PORT` with `ca`, a file
    /// of PEM certificates: nothing else is trusted). Connects with the first call.
    pub fn new(url: &str, token: &ApiToken, ca: Option<&Path>) -> Result<Self, ClientError> {
        let endpoint: Endpoint = url.parse()?;
        let tls = match (endpoint.is_https(), ca) {
            (true, Some(ca)) => Some(TlsConnector::from(Arc::new(trusting(ca)?))),
            (true, None) => return Err(ClientError::NoCa),
            (false, _) => None,
        };
        let mut authorization = HeaderValue::try_from(format!("Bearer {}", token.expose()))
            .map_err(|_| ClientError::Request("the API token is no header value".into()))?;
        authorization.set_sensitive(true);
        Ok(Self {
            endpoint,
            authorization,
            tls,
        })
    }

    /// Where the API is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// How the hub is.
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.ask(Method::GET, "/v1/status", None::<&()>).await
    }

    /// All nodes, by name.
    pub async fn nodes(&self) -> Result<Nodes, ClientError> {
        self.ask(Method::GET, "/v1/nodes", None::<&()>).await
    }

    /// What browsers have under way, the longest first.
    pub async fn top(&self) -> Result<Top, ClientError> {
        self.ask(Method::GET, "/v1/top", None::<&()>).await
    }

    /// Makes a join token.
    pub async fn create_token(&self, new: &NewToken) -> Result<Token, ClientError> {
        self.ask(Method::POST, "/v1/tokens", Some(new)).await
    }

    /// Exposes what stands behind a node.
    pub async fn expose(&self, new: &NewExposure) -> Result<CreatedExposure, ClientError> {
        self.ask(Method::POST, "/v1/exposures", Some(new)).await
    }

    /// All exposures, oldest first.
    pub async fn exposures(&self) -> Result<Exposures, ClientError> {
        self.ask(Method::GET, "/v1/exposures", None::<&()>).await
    }

    /// One exposure.
    pub async fn exposure(&self, id: u64) -> Result<Exposure, ClientError> {
        let path = format!("/v1/exposures/{id}");
        self.ask(Method::GET, &path, None::<&()>).await
    }

    /// Changes an exposure. Answers it as it is then.
    pub async fn change_exposure(
        &self,
        id: u64,
        edit: &EditExposure,
    ) -> Result<Exposure, ClientError> {
        let path = format!("/v1/exposures/{id}");
        self.ask(Method::PATCH, &path, Some(edit)).await
    }

    /// Gives an exposure a new token.
    pub async fn rotate_exposure_token(
        &self,
        id: u64,
        rotate: &RotateToken,
    ) -> Result<CreatedExposure, ClientError> {
        let path = format!("/v1/exposures/{id}/token");
        self.ask(Method::POST, &path, Some(rotate)).await
    }

    /// Takes an exposure its token: nobody gets in by it any more.
    pub async fn revoke_exposure_token(&self, id: u64) -> Result<(), ClientError> {
        let path = format!("/v1/exposures/{id}/token");
        let answer = self.answer(Method::DELETE, &path, None::<&()>).await;
        answer.map(drop)
    }

    /// Removes an exposure.
    pub async fn unexpose(&self, id: u64) -> Result<(), ClientError> {
        let path = format!("/v1/exposures/{id}");
        self.answer(Method::DELETE, &path, None::<&()>)
            .await
            .map(drop)
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        let answer = self.answer(method, path, body).await?;
        serde_json::from_slice(&answer).map_err(|error| self.senseless(error.to_string()))
    }

    async fn answer(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Bytes, ClientError> {
        let mut request = Request::builder().method(method).uri(path);
        let body = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                serde_json::to_vec(body).map_err(|error| ClientError::Request(error.to_string()))?
            }
            None => Vec::new(),
        };
        let request = request
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| ClientError::Request(error.to_string()))?;
        let answered = async {
            let response = self.send(self.connect().await?, request).await?;
            self.success(response).await
        };
        timeout(PATIENCE, answered)
            .await
            .unwrap_or_else(|_| Err(self.late()))
    }

    fn broken(&self, reason: impl Into<String>) -> ClientError {
        ClientError::Broken {
            endpoint: self.endpoint.clone(),
            reason: reason.into(),
        }
    }

    fn late(&self) -> ClientError {
        self.broken(format!("no answer within {} s", PATIENCE.as_secs()))
    }

    fn senseless(&self, reason: impl Into<String>) -> ClientError {
        ClientError::Answer {
            endpoint: self.endpoint.clone(),
            reason: reason.into(),
        }
    }

    async fn connect(&self) -> Result<Connection, ClientError> {
        connect::connect(&self.endpoint, self.tls.as_ref()).await
    }

    /// A connection for what may take long: its end, also by the end of this process, cancels what
    /// was asked at once.
    async fn lasting(&self) -> Result<Connection, ClientError> {
        let connection = self.connect().await?;
        match connection.reset_at_end() {
            Ok(()) => Ok(connection),
            Err(error) => Err(self.broken(error.to_string())),
        }
    }

    /// Sends a request on a fresh connection and waits for the head of the response.
    async fn send<B>(
        &self,
        connection: Connection,
        mut request: Request<B>,
    ) -> Result<Response<Incoming>, ClientError>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let headers = request.headers_mut();
        headers.insert(header::AUTHORIZATION, self.authorization.clone());
        headers.insert(header::HOST, self.endpoint.host_header());
        let broken = |error: hyper::Error| match error.source() {
            // The body itself failed, and not its way to the hub.
            Some(source) if error.is_user() => ClientError::Request(source.to_string()),
            _ => self.broken(reason(&error)),
        };
        let (mut sender, driver) = http1::handshake(TokioIo::new(connection))
            .await
            .map_err(broken)?;
        // Ends with the connection; what goes wrong there, the response tells.
        tokio::spawn(driver.with_upgrades());
        sender.send_request(request).await.map_err(broken)
    }

    /// A response that says yes; the problem of any other.
    async fn granted(
        &self,
        response: Response<Incoming>,
    ) -> Result<Response<Incoming>, ClientError> {
        if response.status().is_success() {
            return Ok(response);
        }
        match self.success(response).await {
            Ok(_) => Err(self.senseless("it changed its mind")),
            Err(error) => Err(error),
        }
    }

    /// The body of a response that says yes; the problem of any other.
    async fn success(&self, response: Response<Incoming>) -> Result<Bytes, ClientError> {
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await;
        let body = body.map_err(|error| self.broken(reason(&*error)))?;
        let body = body.to_bytes();
        if head.status.is_success() {
            return Ok(body);
        }
        Err(self.refusal(head.status, &body))
    }

    fn refusal(&self, status: StatusCode, body: &[u8]) -> ClientError {
        match serde_json::from_slice::<Problem>(body) {
            Ok(problem) => ClientError::Refused(Box::new(problem)),
            Err(_) => self.senseless(format!(
                "status {status} without a problem document; is it a hub at all?"
            )),
        }
    }
}

/// Path and query of something in the API: each part of the path becomes one segment of it,
/// whatever is in it.
fn uri(path: &[&str], query: Option<&str>) -> String {
    let mut uri = String::from("/v1");
    for part in path {
        // The encoding of a form writes a space as +, which only a query reads so.
        let part: String = form_urlencoded::byte_serialize(part.as_bytes()).collect();
        uri.push('/');
        uri.push_str(&part.replace('+', "%20"));
    }
    if let Some(query) = query.filter(|query| !query.is_empty()) {
        uri.push('?');
        uri.push_str(query);
    }
    uri
}

/// Such a path and query, ready to be sent.
fn parse(uri: String) -> Result<Uri, ClientError> {
    Uri::try_from(uri)
        .map_err(|_| ClientError::Request("the request is too long: 64 KiB at most".into()))
}

/// An error with what is behind it.
fn reason(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

/// TLS that trusts the certificates of one file and no others.
fn trusting(ca: &Path) -> Result<rustls::ClientConfig, ClientError> {
    let unusable = |reason: String| ClientError::Ca {
        path: ca.to_owned(),
        reason,
    };
    let mut roots = rustls::RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(ca).map_err(|e| unusable(e.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| unusable(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(unusable("there is no certificate in it".into()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(error.to_string()))?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
