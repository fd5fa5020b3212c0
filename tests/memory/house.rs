//! A hub, an agent that runs processes, and a client, over loopback.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Full};
use hub::client::Client;
use hub_agent::agent::{self, AgentError, Joining};
use hub_agent::dial::HubAddress;
use hub_agent::operations::http::Direct;
use hub_agent::runtime::process::ProcessRuntime;
use hub_protocol::session::Platform;
use hub_quic::endpoint::UdpNetwork;
use hub_quic::tls;
use hub_server::api::ApiToken;
use hub_server::{Config, Parts, Server};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

pub const NODE: &str = "node";

/// The page that is exposed, in bytes.
const PAGE: usize = 2000;

/// How many browsers ask at once.
const BROWSERS: usize = 10;

pub struct House {
    pub server: Server,
    pub client: Client,
    pub scratch: tempfile::TempDir,
    /// Host and path of the exposed page.
    path: String,
    stop: watch::Sender<bool>,
    agent: JoinHandle<Result<(), AgentError>>,
}

impl House {
    pub async fn build() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let hub_dir = scratch.path().join("hub");
        let config = Config::loopback(hub_dir.clone());
        let parts = Parts::system(&config).await.unwrap();
        let server = Server::start(config, parts).await.unwrap();
        let token = ApiToken::load(&hub_dir.join("api-token")).unwrap();
        let url = format!("http://{}", server.bound().api.unwrap());
        let client = Client::new(&url, &token, None).unwrap();
        let (stop, agent) = start_agent(&server, &scratch).await;
        let page = serve_page().await;
        let fresh = server.hub().expose(NODE, page, None).await.unwrap();
        let at = fresh.urls[0].find("/v1/").unwrap();
        let path = fresh.urls[0][at..].to_owned();
        Self {
            server,
            client,
            scratch,
            path,
            stop,
            agent,
        }
    }

    /// Operations under way on the node.
    pub fn operations(&self) -> u64 {
        let sessions = self.server.hub().sessions().all();
        sessions
            .iter()
            .map(|(_, node)| node.session.operations())
            .sum()
    }

    /// Asks for the page so often, over a connection each.
    pub async fn requests(&self, number: usize) {
        let mut browsers = JoinSet::new();
        for _ in 0..BROWSERS {
            let (path, proxy) = (self.path.clone(), self.server.bound().proxy.unwrap());
            browsers.spawn(async move {
                for _ in 0..number / BROWSERS {
                    let stream = TcpStream::connect(proxy).await.unwrap();
                    let (mut sender, connection) =
                        hyper::client::conn::http1::handshake(TokioIo::new(stream))
                            .await
                            .unwrap();
                    let connection = tokio::spawn(connection);
                    let request = Request::get(&path).header("host", "hub");
                    let request = request.body(Empty::<Bytes>::new()).unwrap();
                    let response = sender.send_request(request).await.unwrap();
                    assert_eq!(response.status(), 200);
                    let body = response.into_body().collect().await.unwrap();
                    assert_eq!(body.to_bytes(), vec![7; PAGE]);
                    drop(sender);
                    connection.await.unwrap().unwrap();
                }
            });
        }
        browsers.join_all().await;
    }

    /// Stops all of it in good order.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        self.agent.await.unwrap().unwrap();
        self.server.stop().await;
    }
}

async fn start_agent(
    server: &Server,
    scratch: &tempfile::TempDir,
) -> (watch::Sender<bool>, JoinHandle<Result<(), AgentError>>) {
    let ttl = std::time::Duration::from_secs(60);
    let fresh = server.hub().create_token(1, ttl).await.unwrap();
    let bound = server.bound();
    let data_dir = scratch.path().join("agent");
    let config = agent::Config {
        data_dir: data_dir.clone(),
        hub: HubAddress::from(bound.agents),
        joining: Some(Joining {
            enrollment: HubAddress::from(bound.enrollment),
            pin: bound.ca,
            token: fresh.token,
            name: Some(NODE.parse().unwrap()),
        }),
        platform: Platform::default(),
        digest: String::new(),
        policy: Arc::default(),
    };
    let parts = agent::Parts {
        network: Arc::new(UdpNetwork::default()),
        time: tls::system_time(),
        random: Arc::new(|bytes| getrandom::fill(bytes).unwrap()),
        runtime: Arc::new(ProcessRuntime::open(&data_dir).await.unwrap()),
        engine: None,
        dial: Arc::new(Direct),
    };
    let mut changes = server.hub().sessions().changes();
    let (stop, stopping) = watch::channel(false);
    let agent = tokio::spawn(agent::run(config, parts, stopping));
    changes.changed().await.unwrap();
    (stop, agent)
}

/// A page on a port of its own.
async fn serve_page() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let page = async |_| {
        let page = Full::new(Bytes::from_static(&[7; PAGE]));
        Ok::<_, Infallible>(Response::new(page))
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(page));
            tokio::spawn(connection);
        }
    });
    port
}
