//! The enrollment endpoint: how strangers become nodes.
//!
//! ```text
//! Endpoint --Incoming--> handshake --one request--> decide --Join--> Store --Joined--> Ca
//!                                                     |                                 |
//!                                                     `<---- record, then the answer ---'
//! ```
//!
//! It has a socket and budgets of its own, so that strangers cannot spend what the fleet needs. A
//! request is checked as far as it can be before the ledger is asked: that it is well formed, and
//! that its sender holds the key. The ledger redeems the token and makes the node in one
//! transaction; the certificate is recorded before it leaves. Whatever is lost on the way, the same
//! request gets the same node again and spends nothing.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hub_ledger::{Join, JoinRefusal, JoinedHow, OutsideRefusal, Serial};
use hub_protocol::code::CloseCode;
use hub_protocol::enroll::{
    self, Der, JoinRequest, JoinResponse, Joined, MAX_REQUEST, MAX_RESPONSE, MessageError, refusal,
};
use hub_protocol::session::Refused;
use hub_protocol::{Fingerprint, NodeId, NodeName};
use hub_quic::endpoint::{self, Handshakes, Network, Transport};
use hub_quic::tls::{HubCertificate, TlsError, enrollment_server};
use quinn::{Connecting, Connection, ConnectionError, Endpoint, ReadToEndError, VarInt};
use rustls::time_provider::TimeProvider;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::ca::{self, Ca, SignError};
use crate::clip;
use crate::clock::Clock;
use crate::secret::Token;
use crate::store::{Store, StoreError};

/// The budgets of the enrollment endpoint, and what new nodes get.
#[derive(Debug, Clone)]
pub struct EnrollConfig {
    /// How many strangers may be in a handshake.
    pub handshakes: Handshakes,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// Connections that are open; more are closed as busy.
    pub connections: usize,
    /// Requests that are decided at a time; more wait.
    pub requests: usize,
    /// How long a connection may take from its handshake to its answer, waiting included.
    pub request_timeout: Duration,
    /// How long an answer may take to be fetched.
    pub answer_timeout: Duration,
    /// How long a node's certificate is valid.
    pub validity: Duration,
    /// Where sessions go, as `HOST:PORT`, for nodes that are told nothing else.
    pub operational: Option<String>,
}

impl Default for EnrollConfig {
    /// 1,024 handshakes of 5 s each, with proof of address from 8; 64 connections of 15 s; 8
    /// requests at a time; 5 s to fetch the answer; certificates for [`ca::NODE_VALIDITY`].
    fn default() -> Self {
        Self {
            handshakes: Handshakes {
                retry_from: 8,
                ..Handshakes::default()
            },
            handshake_timeout: Duration::from_secs(5),
            connections: 64,
            requests: 8,
            request_timeout: Duration::from_secs(15),
            answer_timeout: Duration::from_secs(5),
            validity: ca::NODE_VALIDITY,
            operational: None,
        }
    }
}

/// Why there is no enrollment endpoint.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The socket. Trying again helps if the address is taken for a moment.
    #[error("cannot listen for enrollment on UDP {local}: {source}")]
    Socket {
        /// The address that was asked for.
        local: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Opens the endpoint on `local`, to be given to [`serve`].
///
/// # Errors
/// [`ListenError`].
pub fn listen(
    network: &dyn Network,
    local: SocketAddr,
    certificate: &HubCertificate,
    time: Arc<dyn TimeProvider>,
    config: &EnrollConfig,
) -> Result<Endpoint, ListenError> {
    let transport = Transport::enrollment(1, MAX_RESPONSE as u32);
    let tls = enrollment_server(certificate, time)?;
    let server = endpoint::server_config(network, tls, &transport, &config.handshakes);
    endpoint::listener(network, local, &transport, server)
        .map_err(|source| ListenError::Socket { local, source })
}

#[derive(Debug)]
struct Context {
    store: Store,
    clock: Clock,
    ca: Arc<Ca>,
    config: EnrollConfig,
    /// Handshakes under way.
    handshakes: AtomicUsize,
    connections: Semaphore,
    requests: Semaphore,
}

/// Lets strangers in until the endpoint is closed, and ends when the last of them is gone.
pub async fn serve(
    endpoint: Endpoint,
    store: Store,
    clock: Clock,
    ca: Arc<Ca>,
    config: EnrollConfig,
) {
    let context = Arc::new(Context {
        store,
        clock,
        ca,
        handshakes: AtomicUsize::new(0),
        connections: Semaphore::new(config.connections),
        requests: Semaphore::new(config.requests),
        config,
    });
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = tasks.join_next() => {}
            incoming = endpoint.accept() => {
                let Some(incoming) = incoming else { break };
                let under_way = context.handshakes.load(Ordering::Relaxed);
                let handshakes = &context.config.handshakes;
                if let Some(connecting) = endpoint::admit(incoming, under_way, handshakes) {
                    context.handshakes.fetch_add(1, Ordering::Relaxed);
                    tasks.spawn(connect(context.clone(), connecting));
                }
            }
        }
    }
    while tasks.join_next().await.is_some() {}
}

async fn connect(context: Arc<Context>, connecting: Connecting) {
    let remote = connecting.remote_address();
    let shaken = timeout(context.config.handshake_timeout, connecting).await;
    context.handshakes.fetch_sub(1, Ordering::Relaxed);
    let connection = match shaken {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            tracing::info!(%remote, "join not begun: the handshake failed: {}", clip::error(&error));
            return;
        }
        Err(_) => {
            tracing::info!(%remote, "join not begun: the handshake took too long");
            return;
        }
    };
    let Ok(_place) = context.connections.try_acquire() else {
        tracing::warn!(%remote, "join not begun: too many strangers are connected");
        close(&connection, CloseCode::BUSY);
        return;
    };
    let code = match timeout(
        context.config.request_timeout,
        exchange(&context, &connection),
    )
    .await
    {
        // The answer has left, or is about to: the agent closes once it has it.
        Ok(Ok(())) => {
            let _ = timeout(context.config.answer_timeout, connection.closed()).await;
            CloseCode::DONE
        }
        Ok(Err(error)) => {
            tracing::info!(%remote, "join not finished: the connection was lost: {}", clip::error(&error));
            CloseCode::DONE
        }
        Err(_) => {
            tracing::info!(%remote, "join not finished: no request came in time");
            CloseCode::TIMED_OUT
        }
    };
    close(&connection, code);
}

fn close(connection: &Connection, code: CloseCode) {
    connection.close(VarInt::from_u32(code.0), b"");
}

/// Reads the one request of a connection and answers it.
async fn exchange(context: &Context, connection: &Connection) -> Result<(), ConnectionError> {
    let remote = connection.remote_address();
    let (mut send, mut receive) = connection.accept_bi().await?;
    let decided = match receive.read_to_end(MAX_REQUEST).await {
        Ok(request) => {
            // Never closed.
            let _turn = context.requests.acquire().await;
            decide(context, &request).await
        }
        Err(ReadToEndError::TooLong) => Err(MessageError::TooLong(MAX_REQUEST).into()),
        Err(ReadToEndError::Read(error)) => {
            tracing::info!(%remote, "join not finished: the request was cut off: {}", clip::error(&error));
            return Ok(());
        }
    };
    let response = match decided {
        Ok((joined, key, how)) => {
            let (node, name) = (joined.node_id, &joined.name);
            tracing::info!(%remote, %node, %name, %key, "joined{how}");
            JoinResponse::Joined(Box::new(joined))
        }
        Err(reason) => {
            let refused = reason.outside();
            tracing::warn!(%remote, code = refused.code, "join refused: {}", clip::error(&reason));
            JoinResponse::Refused(refused)
        }
    };
    // A stranger that is gone has nothing to be told.
    if send.write_all(&response.encode()).await.is_ok() {
        let _ = send.finish();
    }
    Ok(())
}

/// Why a request is refused, as the operator's log says it. Nothing was spent. No text of it holds
/// a token.
#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error("{0}")]
    Message(#[from] MessageError),
    #[error("the request is of version {0}, and this hub knows {known}", known = enroll::VERSION)]
    Version(u32),
    #[error("{0}")]
    Request(SignError),
    #[error("the agent named no name, and its host name {0:?} makes none")]
    NoName(String),
    #[error("{0}")]
    Rule(JoinRefusal),
    #[error("{0}")]
    Ledger(StoreError),
    #[error("{0}")]
    Signing(SignError),
    #[error("no random bytes can be had: {0}")]
    Random(getrandom::Error),
}

impl Reason {
    /// What the stranger is told.
    fn outside(&self) -> Refused {
        let (code, message) = match self {
            Self::Message(_) | Self::Version(_) => (refusal::BAD_REQUEST, self.to_string()),
            Self::Request(_) => (refusal::BAD_CSR, self.to_string()),
            Self::NoName(_) => (
                refusal::BAD_REQUEST,
                "this host's name is none for a node; give one".to_owned(),
            ),
            Self::Rule(rule) => {
                let outside = rule.outside();
                let code = match outside {
                    OutsideRefusal::InvalidToken => refusal::INVALID_TOKEN,
                    OutsideRefusal::ApprovalNeeded => refusal::APPROVAL_NEEDED,
                    OutsideRefusal::NameTaken => refusal::NAME_TAKEN,
                    OutsideRefusal::KeyTaken => refusal::KEY_TAKEN,
                    OutsideRefusal::Revoked => refusal::REVOKED,
                };
                (code, outside.to_string())
            }
            Self::Ledger(_) | Self::Signing(_) | Self::Random(_) => (
                refusal::TRY_LATER,
                "the hub cannot decide now; its log says why".to_owned(),
            ),
        };
        // An approval may still come.
        let permanent = !matches!(code, refusal::TRY_LATER | refusal::APPROVAL_NEEDED);
        let retry_after_ms = (!permanent).then_some(10_000);
        Refused {
            permanent,
            code: code.to_owned(),
            message,
            retry_after_ms,
        }
    }
}

impl From<StoreError> for Reason {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Join(rule) => Self::Rule(rule),
            error => Self::Ledger(error),
        }
    }
}

/// Admits the sender of a request, or the node that it is already.
async fn decide(
    context: &Context,
    request: &[u8],
) -> Result<(Joined, Fingerprint, &'static str), Reason> {
    let request = JoinRequest::decode(request)?;
    if request.version != enroll::VERSION {
        return Err(Reason::Version(request.version));
    }
    let key = ca::request_key(&request.csr.0).map_err(Reason::Request)?;
    let name = match request.name {
        Some(name) => name,
        None => host_name(&request.platform.hostname)
            .ok_or_else(|| Reason::NoName(request.platform.hostname.chars().take(80).collect()))?,
    };
    let now = context.clock.now();
    let join = Join {
        token: Token::from_bytes(*request.token.as_bytes()).join_hash(),
        name,
        key,
        new_id: NodeId::from_bytes(random()?),
    };
    let joined = context.store.join(join, now).await?;
    let node = joined.node;
    let serial = Serial::from_random(random()?);
    let issued = context
        .ca
        .sign_node(
            &request.csr.0,
            node.id,
            serial,
            now,
            context.config.validity,
        )
        .map_err(Reason::Signing)?;
    context.store.record_certificate(issued.record, now).await?;
    let how = match joined.how {
        JoinedHow::Admitted(_) => "",
        JoinedHow::Repeated => " again; nothing was spent",
    };
    let answer = Joined {
        node_id: node.id,
        name: node.name,
        deployment: context.store.deployment(),
        chain: vec![Der(issued.der.to_vec())],
        trust: vec![Der(context.ca.certificate_der().to_vec())],
        operational: context.config.operational.clone(),
    };
    Ok((answer, key, how))
}

fn random() -> Result<[u8; 16], Reason> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(Reason::Random)?;
    Ok(bytes)
}

/// The name that a node gets from its host's: the same with `-` for what no name has.
fn host_name(host: &str) -> Option<NodeName> {
    let allowed = |c: char| {
        if c.is_ascii_alphanumeric() || "._-".contains(c) {
            c
        } else {
            '-'
        }
    };
    let name: String = host.chars().map(allowed).collect();
    let name = name.trim_start_matches(['-', '.']);
    name[..name.len().min(NodeName::MAX_LEN)].parse().ok()
}

#[cfg(test)]
mod tests;
