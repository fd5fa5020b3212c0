//! Against a daemon that is played, and against this machine's: its containers at their addresses.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};

use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder, StopContainerOptionsBuilder,
};
use futures_util::FutureExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::engine::fake::{self, Asked};
use crate::operations::http::{Connections, Direct};
use crate::policy::{Rules, Source};
use crate::runtime::docker::DockerRuntime;
use crate::targets::Address;

/// What the played daemon knows: by name, a container in its JSON; and how often it was asked.
#[derive(Default, Clone)]
struct Daemon {
    containers: Arc<Mutex<BTreeMap<String, serde_json::Value>>>,
    asked: Arc<AtomicUsize>,
}

impl Daemon {
    fn runs(&self, name: &str, id: &str, ip: &str, started: &str) {
        self.put(
            name,
            serde_json::json!({
                "Id": id, "Name": format!("/{name}"),
                "State": {"Running": true, "StartedAt": started},
                "Config": {"Labels": {"app": "shop", "of": name}},
                "NetworkSettings": {"Networks": {"bridge": {"IPAddress": ip}}},
            }),
        );
    }

    fn put(&self, name: &str, container: serde_json::Value) {
        let mut containers = self.containers.lock().unwrap();
        containers.insert(name.into(), container);
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut serde_json::Value)) {
        change(self.containers.lock().unwrap().get_mut(name).unwrap());
    }

    fn answer(&self, asked: &Asked) -> (u16, String) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let containers = self.containers.lock().unwrap();
        let rest = asked.path.strip_prefix("/containers/").unwrap();
        if rest.starts_with("json?") {
            let listed = containers.iter().map(|(name, container)| {
                let running = container["State"]["Running"] == true;
                serde_json::json!({
                    "Id": container["Id"], "Names": [format!("/{name}")],
                    "Labels": container["Config"]["Labels"],
                    "State": if running { "running" } else { "exited" },
                })
            });
            return (200, listed.collect::<serde_json::Value>().to_string());
        }
        let name = rest.split('/').next().unwrap();
        let mut all = containers.iter();
        match all.find(|(known, container)| *known == name || container["Id"] == name) {
            Some((_, container)) => (200, container.to_string()),
            None => (404, r#"{"message": "No such container"}"#.into()),
        }
    }

    async fn places(&self, rules: Rules) -> Places {
        let daemon = self.clone();
        let engine = fake::engine(move |asked| {
            let answer = daemon.answer(&asked);
            async { answer }.boxed()
        });
        let policy = Policy::new(rules, false, Source::default()).unwrap();
        Places::new(Some(engine.await), Arc::new(policy))
    }
}

fn named(name: &str) -> Target {
    Target {
        container: Some(Selector::Name(name.into())),
        ..Target::tcp(80)
    }
}

fn labelled(label: &str) -> Target {
    Target {
        container: Some(Selector::Label(label.into())),
        ..Target::tcp(80)
    }
}

fn at(ip: &str) -> Vec<Address> {
    vec![Address::At(format!("{ip}:80").parse().unwrap())]
}

async fn address(places: &Places, target: &Target) -> Vec<Address> {
    places.find(target).await.unwrap().addresses().to_vec()
}

async fn refused(places: &Places, target: &Target) -> (FailureCode, String) {
    let failure = places.find(target).await.unwrap_err();
    (failure.code, failure.message)
}

#[tokio::test]
async fn a_container_is_found_where_it_is_now() {
    let daemon = Daemon::default();
    let places = daemon.places(Rules::default()).await;
    let (code, message) = refused(&places, &named("web")).await;
    assert_eq!(code, FailureCode::NO_SUCH_CONTAINER);
    assert!(message.contains("hub ps -a"), "{message}");
    daemon.runs("web", "a1", "172.17.0.2", "2026-01-01T00:00:00Z");
    assert_eq!(address(&places, &named("web")).await, at("172.17.0.2"));
    let before = places.find(&named("web")).await.unwrap();
    // Made anew, and at the address that it had before: another place all the same.
    daemon.runs("web", "b2", "172.17.0.2", "2026-01-01T00:00:05Z");
    assert_ne!(places.find(&named("web")).await.unwrap(), before);
    daemon.runs("web", "b2", "172.17.0.3", "2026-01-01T00:00:06Z");
    assert_eq!(address(&places, &named("web")).await, at("172.17.0.3"));
    daemon.change("web", |web| web["State"]["Running"] = false.into());
    let (code, message) = refused(&places, &named("web")).await;
    assert_eq!(code, FailureCode::NOT_RUNNING);
    assert!(message.contains("container web does not run"), "{message}");
    let nowhere = places.find(&named("../x")).await.unwrap_err();
    assert_eq!(nowhere.code, FailureCode::NO_SUCH_CONTAINER);
    // A node that has no engine has ports all the same.
    let bare = Places::default();
    assert_eq!(
        refused(&bare, &named("web")).await.0,
        FailureCode::UNSUPPORTED
    );
    let port = address(&bare, &Target::tcp(80)).await;
    assert_eq!(port, [Address::Machine(80)]);
}

#[tokio::test]
async fn a_label_means_the_one_that_was_started_last() {
    let daemon = Daemon::default();
    let places = daemon.places(Rules::default()).await;
    let target = labelled("app=shop");
    assert_eq!(
        refused(&places, &target).await.0,
        FailureCode::NO_SUCH_CONTAINER
    );
    daemon.runs("a", "a1", "172.17.0.2", "2026-01-01T00:00:00.2Z");
    daemon.runs("b", "b1", "172.17.0.3", "2026-01-01T00:00:00.3Z");
    daemon.runs("c", "c1", "172.17.0.4", "2026-01-01T00:00:00.1Z");
    assert_eq!(address(&places, &target).await, at("172.17.0.3"));
    daemon.runs("c", "c1", "172.17.0.4", "2026-01-01T00:00:07Z");
    assert_eq!(address(&places, &target).await, at("172.17.0.4"));
    for name in ["a", "b", "c"] {
        daemon.change(name, |one| one["State"]["Running"] = false.into());
    }
    let (code, message) = refused(&places, &target).await;
    assert_eq!(code, FailureCode::NOT_RUNNING);
    assert!(message.contains("there are a, b, c"), "{message}");
    for wrong in ["", "=x"] {
        let (code, _) = refused(&places, &labelled(wrong)).await;
        assert_eq!(code, FailureCode::INVALID, "{wrong:?}");
    }
}

#[tokio::test]
async fn the_policy_judges_what_was_found() {
    let daemon = Daemon::default();
    daemon.runs("web", "a1", "172.17.0.2", "2026-01-01T00:00:00Z");
    daemon.runs("db", "b1", "172.17.0.3", "2026-01-01T00:00:09Z");
    let rules = Rules {
        container_names: Some(vec!["web*".into()]),
        ..Rules::default()
    };
    let places = daemon.places(rules).await;
    assert_eq!(address(&places, &named("web")).await, at("172.17.0.2"));
    // By its id it is the same container.
    for name in ["db", "b1"] {
        let (code, message) = refused(&places, &named(name)).await;
        assert_eq!(code, FailureCode::FORBIDDEN);
        assert!(message.contains("policy.container_names"), "{message}");
    }
    // Of those with a label, one that may be touched, though another is newer.
    assert_eq!(
        address(&places, &labelled("app=shop")).await,
        at("172.17.0.2")
    );
    daemon.containers.lock().unwrap().remove("web");
    assert_eq!(
        refused(&places, &labelled("app=shop")).await.0,
        FailureCode::FORBIDDEN
    );
    // Nor is the network of another a way around.
    daemon.put(
        "web-1",
        serde_json::json!({
            "Id": "c1", "Name": "/web-1", "State": {"Running": true},
            "HostConfig": {"NetworkMode": "container:b1"},
        }),
    );
    let (code, message) = refused(&places, &named("web-1")).await;
    assert_eq!(code, FailureCode::FORBIDDEN);
    assert!(message.contains("\"db\""), "{message}");
}

#[tokio::test]
async fn a_network_that_is_shared_is_followed_to_its_owner() {
    let daemon = Daemon::default();
    let joined = |id: &str, mode: &str| {
        serde_json::json!({
            "Id": id, "Name": format!("/{id}"), "State": {"Running": true},
            "HostConfig": {"NetworkMode": mode},
        })
    };
    daemon.runs("db", "b1", "172.17.0.3", "2026-01-01T00:00:00Z");
    daemon.put("one", joined("one", "container:b1"));
    daemon.put("two", joined("two", "container:one"));
    daemon.put("host", joined("host", "host"));
    daemon.put("three", joined("three", "container:host"));
    daemon.put("orphan", joined("orphan", "container:gone"));
    daemon.put("circle", joined("circle", "container:circle"));
    let places = daemon.places(Rules::default()).await;
    assert_eq!(address(&places, &named("two")).await, at("172.17.0.3"));
    for name in ["host", "three"] {
        assert_eq!(address(&places, &named(name)).await, [Address::Machine(80)]);
    }
    for name in ["orphan", "circle"] {
        let (code, message) = refused(&places, &named(name)).await;
        assert_eq!(code, FailureCode::TARGET_REFUSED, "{message}");
    }
    // A port of the machine is one, whoever has it.
    let rules: Rules = serde_json::from_str(r#"{"ports": [8080]}"#).unwrap();
    let places = daemon.places(rules).await;
    for name in ["host", "three"] {
        let (code, message) = refused(&places, &named(name)).await;
        assert_eq!(code, FailureCode::FORBIDDEN);
        assert!(message.contains("policy.ports"), "{message}");
    }
    assert_eq!(address(&places, &named("two")).await, at("172.17.0.3"));
}

#[tokio::test(start_paused = true)]
async fn for_a_kept_connection_the_daemon_is_asked_once_a_second() {
    let daemon = Daemon::default();
    daemon.runs("web", "a1", "172.17.0.2", "2026-01-01T00:00:00Z");
    let places = daemon.places(Rules::default()).await;
    for _ in 0..50 {
        places.find_kept(&named("web")).await.unwrap();
    }
    assert_eq!(daemon.asked.load(Ordering::Relaxed), 1);
    places.find(&named("web")).await.unwrap();
    assert_eq!(daemon.asked.load(Ordering::Relaxed), 2);
    tokio::time::advance(RECENT).await;
    places.find_kept(&named("web")).await.unwrap();
    assert_eq!(daemon.asked.load(Ordering::Relaxed), 3);
    assert_eq!(places.shared.recent.lock().unwrap().len(), 1);
}

/// Asks for a page, and reads the answer to the connection's end.
async fn page(connections: &Connections, target: &Target) -> Result<String, Failure> {
    let mut stream = connections.connect(target).await?;
    let get = b"GET /cgi-bin/id HTTP/1.0\r\n\r\n";
    stream.write_all(get).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    Ok(answer)
}

/// Containers in the bridge network, on the machine's network, in another's and in none, and one
/// that is made anew meanwhile.
#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_containers_are_reached_wherever_they_are() {
    let engine = Engine::connect().await.unwrap();
    let bridge = engine.docker().inspect_network("bridge", None).await;
    if bridge.is_err() {
        #[allow(clippy::print_stderr, reason = "a test that is left out says so")]
        {
            eprintln!("skipped: this machine's daemon has no bridge network");
        }
        return;
    }
    let demo = DockerRuntime::new(&engine).demo_container().await.unwrap();
    let web = format!("{}-web", demo.name);
    let serve = async |name: &str, says: &str, mode: &str, port: u16| {
        let script = format!(
            "mkdir -p /www/cgi-bin; printf '#!/bin/sh\\necho; echo {says}' > /www/cgi-bin/id; \
             chmod +x /www/cgi-bin/id; exec httpd -f -p {port} -h /www"
        );
        let config = ContainerCreateBody {
            image: Some(demo.image.clone()),
            cmd: Some(["/bin/sh", "-c", &script].map(String::from).to_vec()),
            labels: Some(HashMap::from([("hub.places".into(), demo.name.clone())])),
            host_config: Some(HostConfig {
                network_mode: Some(mode.into()),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let options = CreateContainerOptionsBuilder::new().name(name).build();
        let docker = engine.docker();
        docker
            .create_container(Some(options), config)
            .await
            .unwrap();
        docker.start_container(name, None).await.unwrap();
    };
    let remove = async |name: &str| {
        let options = RemoveContainerOptionsBuilder::new().force(true).build();
        let docker = engine.docker();
        docker.remove_container(name, Some(options)).await.unwrap();
    };
    let places = Places::new(Some(engine.clone()), Arc::new(Policy::everything()));
    let connections = Connections::to(places.clone(), Arc::new(Direct));
    // Until it listens: a container runs before its program does.
    let until = async |target: &Target| loop {
        match page(&connections, target).await {
            Ok(page) => return page,
            Err(failure) => assert_eq!(failure.code, FailureCode::TARGET_REFUSED, "{failure}"),
        }
    };
    serve(&web, "first", "bridge", 80).await;
    assert!(until(&named(&web)).await.contains("first"));
    let closed = Target {
        port: 81,
        ..named(&web)
    };
    let refused = connections.connect(&closed).await.err().unwrap();
    assert!(refused.message.contains("nothing listens"), "{refused}");
    let before = places.find(&named(&web)).await.unwrap();
    remove(&web).await;
    let (code, _) = self::refused(&places, &named(&web)).await;
    assert_eq!(code, FailureCode::NO_SUCH_CONTAINER);
    serve(&web, "second", "bridge", 80).await;
    assert!(until(&named(&web)).await.contains("second"));
    assert_ne!(places.find(&named(&web)).await.unwrap(), before);

    let newer = format!("{web}-newer");
    serve(&newer, "newer", &format!("container:{web}"), 82).await;
    let label = Target {
        port: 82,
        ..labelled(&format!("hub.places={}", demo.name))
    };
    assert!(until(&label).await.contains("newer"));

    // A free port of the machine; whoever takes it in between fails this test and nothing else.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let on_host = format!("{web}-host");
    serve(&on_host, "host", "host", port).await;
    let target = Target {
        port,
        ..named(&on_host)
    };
    assert!(until(&target).await.contains("host"));

    let alone = format!("{web}-alone");
    serve(&alone, "alone", "none", 80).await;
    let (code, message) = self::refused(&places, &named(&alone)).await;
    assert_eq!(code, FailureCode::TARGET_REFUSED);
    assert!(message.contains("hub network connect"), "{message}");
    let stop = StopContainerOptionsBuilder::new().t(0).build();
    let docker = engine.docker();
    docker.stop_container(&alone, Some(stop)).await.unwrap();
    let (code, _) = self::refused(&places, &named(&alone)).await;
    assert_eq!(code, FailureCode::NOT_RUNNING);
    for name in [&alone, &on_host, &newer, &web] {
        remove(name).await;
    }
    demo.remove().await.unwrap();
}
