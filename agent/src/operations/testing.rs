//! A node for tests: operations asked for at the hub's end of a real QUIC session over loopback,
//! carried out by [`operations::run`](super::run) at the other.
//!
//! ```ignore
//! let node = Node::new(tools(Some(Engine::connect().await.unwrap()))).await; // any `Tools` do
//! let operation = node.ask(&Build::default()).await; // now `answer`, `sender`, `receiver`, `done`
//! ```
//!
//! Dropping the node ends its session and with it all that runs. It needs a runtime with I/O and
//! real time: `#[tokio::test]` is enough.

#![allow(clippy::unwrap_used)]
#![allow(dead_code, reason = "each test uses its own part of it")]

use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hub_protocol::frame::{Channel, RawFrame};
use hub_protocol::kind::transfer::Ending;
use hub_protocol::kind::{self, Failure, Request};
use hub_protocol::limits::Limits;
use hub_protocol::operation::Role;
use hub_quic::endpoint::{self, Handshakes, Transport, UdpNetwork};
use hub_quic::operation::{Answer, Operation};
use hub_quic::session::{Session, windows};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{Connection, Endpoint};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::time_provider::DefaultTimeProvider;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::exec::Lingering;
use super::http::{Connections, Direct};
use super::kept::Kept;
use super::{Tools, run};
use crate::engine::{Dial, Engine, Socket};
use crate::policy::Policy;
use crate::runtime::docker::DockerRuntime;
use crate::runtime::{ExecError, ExecSpec, Process, Runtime};
use crate::targets::{Places, Targets};

/// The name that the hub's certificate holds.
const NAME: &str = "hub";

/// Tools with this engine, if any, and commands in its containers: replace what the test is about.
pub(crate) fn tools(engine: Option<Engine>) -> Tools {
    let policy = Arc::new(Policy::everything());
    let places = Places::new(engine.clone(), policy.clone());
    Tools {
        runtime: match &engine {
            Some(engine) => Arc::new(DockerRuntime::new(engine)),
            None => Arc::new(NoRuntime),
        },
        engine,
        journal: None,
        targets: Targets::default(),
        connections: Connections::to(places, Arc::new(Direct)),
        kept: Kept::new(
            Arc::new(|bytes| getrandom::fill(bytes).unwrap()),
            Arc::new(DefaultTimeProvider),
        ),
        lingering: Lingering::default(),
        policy,
    }
}

/// Runs nothing.
struct NoRuntime;

impl Runtime for NoRuntime {
    fn name(&self) -> &'static str {
        "none"
    }

    fn exec(&self, _: ExecSpec) -> BoxFuture<'_, Result<Process, ExecError>> {
        let what = "this node of a test runs no commands".into();
        ready(Err(ExecError::Invalid { what })).boxed()
    }
}

/// An agent's operations, and the hub's end of the session to it.
pub(crate) struct Node {
    /// The hub's end.
    pub(crate) session: Session,
    serving: JoinHandle<()>,
    _endpoints: [Endpoint; 2],
}

impl Node {
    /// A node that works with these tools.
    pub(crate) async fn new(tools: Tools) -> Self {
        Self::serving(move |operation, open| run(tools.clone(), operation, open)).await
    }

    /// A node that does this with every operation.
    pub(crate) async fn serving<F>(
        serve: impl Fn(Operation, RawFrame) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (hub, agent, endpoints) = connect().await;
        let session = |connection, role| {
            let limits = Limits::default();
            Session::new(connection, role, limits, limits, tracing::Span::none())
        };
        let agent = session(agent, Role::Agent);
        let serve = Arc::new(serve);
        let serving = tokio::spawn(async move {
            while let Ok(incoming) = agent.accept().await {
                let serve = serve.clone();
                tokio::spawn(async move {
                    if let Some((operation, open)) = incoming.operation().await {
                        serve(operation, open).await;
                    }
                });
            }
        });
        Self {
            session: session(hub, Role::Hub),
            serving,
            _endpoints: endpoints,
        }
    }

    /// Asks for an operation; gives the hub's end of it.
    pub(crate) async fn ask<R: Request>(&self, request: &R) -> Operation {
        self.session.request(request).await.unwrap()
    }

    /// Asks for an operation that the agent takes; gives it and the body of `Accepted`.
    pub(crate) async fn begin<R: Request>(&self, request: &R) -> (Operation, Bytes) {
        let operation = self.ask(request).await;
        match operation.answer().await.unwrap() {
            Answer::Accepted(body) => (operation, body),
            Answer::Failed(failure) => panic!("the agent does not begin: {failure}"),
        }
    }

    /// Asks for an operation that the agent does not take; gives its reason.
    pub(crate) async fn refused<R: Request>(&self, request: &R) -> Failure {
        match self.ask(request).await.answer().await.unwrap() {
            Answer::Failed(failure) => failure,
            Answer::Accepted(_) => panic!("the agent begins"),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.serving.abort();
        self.session.connection().close(0u32.into(), b"");
    }
}

/// The body of `Done` of an operation that ends with an [`Ending`].
pub(crate) async fn ending<T: DeserializeOwned>(operation: &Operation) -> Ending<T> {
    kind::decode("ending", &operation.done().await.unwrap()).unwrap()
}

/// All that comes on a channel, up to its end or the operation's.
pub(crate) async fn read_all(operation: &Operation, channel: Channel) -> Bytes {
    let mut receiver = operation.receiver(channel);
    let mut all = BytesMut::new();
    while let Some(chunk) = receiver.chunk().await.unwrap() {
        all.extend_from_slice(&chunk);
    }
    all.freeze()
}

/// Sends all of `bytes` on a channel and ends it; less where the agent wants no more. Gives how many
/// bytes found credit.
pub(crate) async fn send_all(operation: &Operation, channel: Channel, bytes: Bytes) -> usize {
    let mut sender = operation.sender(channel);
    let mut sent = 0;
    for at in (0..bytes.len()).step_by(16 * 1024) {
        let chunk = bytes.slice(at..bytes.len().min(at + 16 * 1024));
        let len = chunk.len();
        if sender.send(chunk).await.is_err() {
            return sent;
        }
        sent += len;
    }
    sender.finish();
    sent
}

/// An engine whose daemon is the test: it answers the question that every
/// engine begins with, and hands over each later connection.
pub(crate) async fn played() -> (Engine, mpsc::UnboundedReceiver<DuplexStream>) {
    let (connections, mut accepted) = mpsc::unbounded_channel();
    let dial: Dial = Arc::new(move || {
        let (ours, theirs) = tokio::io::duplex(16 * 1024);
        connections.send(theirs).unwrap();
        async move { Ok(Box::new(ours) as Box<dyn Socket>) }.boxed()
    });
    let daemon = async {
        let mut first = accepted.recv().await.unwrap();
        head(&mut first).await;
        let version = r#"{"ApiVersion":"1.41","MinAPIVersion":"1.12"}"#;
        answer(&mut first, "200 OK", version).await;
        accepted
    };
    let (engine, accepted) = tokio::join!(Engine::over(dial), daemon);
    (engine.unwrap(), accepted)
}

/// The head of a request to a played daemon.
pub(crate) async fn head(connection: &mut DuplexStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(connection.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// A played daemon's answer, in JSON.
pub(crate) async fn answer(connection: &mut DuplexStream, status: &str, body: &str) {
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(answer.as_bytes()).await.unwrap();
}

/// A connection over loopback: the hub's end, the agent's, and the endpoints it lives on.
async fn connect() -> (Connection, Connection, [Endpoint; 2]) {
    let udp = UdpNetwork::default();
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let (server, client) = tls();
    let (hub, agent) = (Transport::hub(windows()), Transport::agent(windows()));
    let server = endpoint::server_config(&udp, server, &hub, &Handshakes::default());
    let listener = endpoint::listener(&udp, local, &hub, server).unwrap();
    let dialler = endpoint::dialler(&udp, local, &agent).unwrap();
    let client = endpoint::client_config(&udp, client, &agent);
    let address = listener.local_addr().unwrap();
    let dial = async { dialler.connect_with(client, address, NAME).unwrap().await };
    let accept = async { listener.accept().await.unwrap().accept().unwrap().await };
    let (agent, hub) = tokio::join!(dial, accept);
    (hub.unwrap(), agent.unwrap(), [listener, dialler])
}

/// TLS with a certificate made for the occasion; who the agent is does not matter here.
fn tls() -> (Arc<QuicServerConfig>, Arc<QuicClientConfig>) {
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    let certificate: CertificateDer<'static> = params.self_signed(&key).unwrap().der().clone();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = [&rustls::version::TLS13];
    let server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (
        Arc::new(QuicServerConfig::try_from(server).unwrap()),
        Arc::new(QuicClientConfig::try_from(client).unwrap()),
    )
}

mod tests {
    use hub_protocol::kind::FailureCode;
    use hub_protocol::kind::exec::{OnDisconnect, Open};

    use super::*;

    #[tokio::test]
    async fn an_operation_reaches_what_carries_it_out() {
        let node = Node::new(tools(None)).await;
        let open = Open {
            container: None,
            argv: vec!["true".into()],
            env: vec![],
            cwd: None,
            user: None,
            stdin: false,
            tty: None,
            on_disconnect: OnDisconnect::Kill,
        };
        let refused = node.refused(&open).await;
        assert_eq!(refused.code, FailureCode::INVALID);
        assert!(refused.message.contains("runs no commands"));
    }
}
