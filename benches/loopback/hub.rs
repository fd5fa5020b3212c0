//! Hub: a hub and an agent, each on a thread of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hub_agent::agent::{self, Joining};
use hub_agent::dial::HubAddress;
use hub_agent::runtime::process::ProcessRuntime;
use hub_ledger::exposure::Protocol;
use hub_protocol::target::Target;
use hub_server::hub::{WantedExposure, WantedReplica};
use hub_server::wires::Listening;
use hub_server::{Config, Parts, Server};
use tokio::sync::{oneshot, watch};

use crate::loads::Way;
use crate::threads::{LOOPBACK, on_its_own};

/// The ways through Hub to the targets: as HTTP, and as TCP.
pub struct Hub {
    /// To the target of long answers.
    pub bulk: Vec<Way>,
    /// To that of short ones.
    pub small: Vec<Way>,
}

/// A hub and an agent, each on a thread of its own, with these targets exposed.
pub fn hub(targets: &[SocketAddr; 2]) -> Hub {
    let ports = targets.map(|target| target.port());
    let dir = Box::leak(Box::new(tempfile::tempdir().unwrap())).path();
    let (joined, is_joined) = oneshot::channel::<()>();
    let (bound, token, paths_asked) = on_its_own("hub", move |ready| async move {
        let config = Config {
            api_listen: None,
            ..Config::loopback(dir.join("hub"))
        };
        let parts = Parts::system(&config).await.unwrap();
        let server = Server::start(config, parts).await.unwrap();
        let fresh = server
            .hub()
            .create_token(1, Duration::from_secs(60))
            .await
            .unwrap();
        let (paths, paths_asked) = oneshot::channel();
        let mut changes = server.hub().sessions().changes();
        ready
            .send((server.bound().clone(), fresh.token, paths_asked))
            .ok()
            .unwrap();
        changes.changed().await.unwrap();
        let mut exposed = Vec::new();
        for port in ports {
            let http = server.hub().expose("bench", port, None).await.unwrap();
            let url = &http.urls[0];
            let path = url[url.find("/v1/").unwrap()..].to_owned();
            let replica = WantedReplica {
                node: "bench".into(),
                target: Target::tcp(port),
            };
            let tcp = WantedExposure {
                replicas: vec![replica],
                protocol: Protocol::Tcp,
                listen: Some(LOOPBACK.into()),
                ..WantedExposure::default()
            };
            let tcp = server.hub().expose_wanted(tcp).await.unwrap();
            let id = tcp.located.exposure.id;
            let Some(Listening::At(listening)) = server.hub().wires().listening(id) else {
                panic!("the hub does not listen");
            };
            exposed.push((path, listening));
        }
        paths.send(exposed).unwrap();
        let _ = is_joined.await;
        std::future::pending::<()>().await;
    });
    let agents = HubAddress::from(bound.agents);
    let (enrollment, pin) = (HubAddress::from(bound.enrollment), bound.ca);
    on_its_own("agent", move |ready| async move {
        let config = agent::Config {
            data_dir: dir.join("agent"),
            hub: agents,
            joining: Some(Joining {
                enrollment,
                pin,
                token,
                name: Some("bench".parse().unwrap()),
            }),
            platform: hub::settings::platform(),
            digest: String::new(),
            policy: Arc::default(),
        };
        let runtime = ProcessRuntime::open(&dir.join("agent")).await.unwrap();
        let parts = hub::settings::system_parts(Arc::new(runtime));
        let (stop, stopping) = watch::channel(false);
        ready.send(()).unwrap();
        agent::run(config, parts, stopping).await.unwrap();
        drop(stop);
    });
    let exposed = paths_asked.blocking_recv().unwrap();
    joined.send(()).unwrap();
    let proxy = bound.proxy.unwrap();
    let [bulk, small] = [0, 1].map(|n| {
        let (path, tcp): &(String, SocketAddr) = &exposed[n];
        let way = |name: &str, address, path: &str| Way {
            name: name.to_owned(),
            address,
            path: path.to_owned(),
        };
        vec![way("Hub, HTTP", proxy, path), way("Hub, TCP", *tcp, "/")]
    });
    Hub { bulk, small }
}
