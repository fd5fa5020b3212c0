//! Creating containers: what the daemon then says of them, field by field.

use http::{Request, header};
use http_body_util::{BodyExt as _, Full};
use hub_protocol::kind::call::Change;
use hub_protocol::kind::call::container::{
    Create, Gpus, Mount, MountKind, Port, Protocol, Resources, Restart, Variable,
};
use hub_server::api::Problem;
use hub_server::api::problem::Kind;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::calls::Spec;
use super::{Class, Rig, Side, of_daemon, with};
use crate::world::NODE;

const MIB: u64 = 1 << 20;

/// Writes down all that the daemon keeps of a container, a field a step.
async fn fields(side: &Side<'_>, container: &str) {
    let found = side.daemon_s(container).await;
    // Volumes come in any order.
    let mut mounts = found.mounts.unwrap_or_default();
    mounts.sort_by(|a, b| a.destination.cmp(&b.destination));
    for mount in &mut mounts {
        // Where the daemon keeps a volume: its name is in it.
        mount.source = mount.source.take().filter(|_| mount.name.is_none());
    }
    side.step("mounts", mounts);
    side.step("command", (found.path, found.args));
    for (label, part) in [
        ("config", json!(found.config)),
        ("host", json!(found.host_config)),
    ] {
        for (field, value) in part.as_object().unwrap() {
            side.step(&format!("{label}.{field}"), value);
        }
    }
    let networks = found.network_settings.unwrap().networks.unwrap_or_default();
    let mut networks: Vec<_> = networks
        .into_iter()
        .map(|(name, one)| (name, one.aliases))
        .collect();
    networks.sort();
    side.step("networks", networks);
}

fn full(side: &Side<'_>) -> Spec {
    let (volume, target) = (side.named("data"), |target: &str| target.to_owned());
    let port = |container, host, host_ip: Option<&str>, protocol| Port {
        container,
        host,
        host_ip: host_ip.map(Into::into),
        protocol,
    };
    Spec {
        ours: Create {
            name: side.named("full"),
            image: side.rig.image.clone(),
            command: Some(vec!["-c".into(), "sleep 3600".into()]),
            entrypoint: Some(vec!["sh".into()]),
            env: vec![
                Variable {
                    name: "SECRET".into(),
                    value: "s3cret=1 ü\n".into(),
                },
                Variable {
                    name: "EMPTY".into(),
                    value: String::new(),
                },
            ],
            working_dir: Some("/tmp".into()),
            user: Some("65534:65534".into()),
            hostname: Some("box".into()),
            tty: true,
            open_stdin: true,
            labels: [
                ("hub.k".into(), "v=1 ü".into()),
                ("empty".into(), String::new()),
            ]
            .into(),
            ports: vec![
                port(80, 0, Some("127.0.0.1"), Protocol::Tcp),
                port(80, 0, None, Protocol::Tcp),
                port(53, 0, Some("::1"), Protocol::Udp),
                port(99, 0, None, Protocol::Sctp),
            ],
            resources: Resources {
                memory: Some(64 * MIB),
                memory_swap: Some(-1),
                nano_cpus: Some(1_500_000_000),
                cpuset: Some("0".into()),
            },
            gpus: None,
            shm_size: Some(MIB),
            mounts: vec![
                Mount {
                    kind: MountKind::Volume,
                    source: volume.clone(),
                    target: target("/data"),
                    read_only: true,
                },
                Mount {
                    kind: MountKind::Bind,
                    source: target("/etc"),
                    target: target("/host"),
                    read_only: false,
                },
            ],
            dns: vec!["192.0.2.1".into(), "2001:db8::1".into()],
            network: None,
            network_mode: Some("none".into()),
            cap_add: vec!["NET_ADMIN".into(), "SYS_TIME".into()],
            privileged: true,
            restart: Some(Restart::UnlessStopped),
            registry: None,
            force_pull: false,
        },
        theirs: json!({
            "Image": side.rig.image,
            "Cmd": ["-c", "sleep 3600"],
            "Entrypoint": ["sh"],
            "Env": ["SECRET=s3cret=1 ü\n", "EMPTY="],
            "WorkingDir": "/tmp",
            "User": "65534:65534",
            "Hostname": "box",
            "Tty": true,
            "OpenStdin": true,
            "Labels": {"hub.k": "v=1 ü", "empty": ""},
            "ExposedPorts": {"80/tcp": {}, "53/udp": {}, "99/sctp": {}},
            "HostConfig": {
                "PortBindings": {
                    "80/tcp": [
                        {"HostIp": "127.0.0.1", "HostPort": "0"},
                        {"HostPort": "0"},
                    ],
                    "53/udp": [{"HostIp": "::1", "HostPort": "0"}],
                    "99/sctp": [{"HostPort": "0"}],
                },
                "Memory": 64 * MIB,
                "MemorySwap": -1,
                "NanoCpus": 1_500_000_000,
                "CpusetCpus": "0",
                "ShmSize": MIB,
                "Mounts": [
                    {"Type": "volume", "Source": volume, "Target": "/data", "ReadOnly": true},
                    {"Type": "bind", "Source": "/etc", "Target": "/host"},
                ],
                "Dns": ["192.0.2.1", "2001:db8::1"],
                "NetworkMode": "none",
                "CapAdd": ["NET_ADMIN", "SYS_TIME"],
                "Privileged": true,
                "RestartPolicy": {"Name": "unless-stopped"},
            },
        }),
    }
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_what_is_created_is_the_same() {
    with(async |rig| {
        rig.script(async |side| {
            side.create(full(side)).await.unwrap();
            fields(side, &side.named("full")).await;
            side.create(side.idle("plain")).await.unwrap();
            fields(side, &side.named("plain")).await;
            for (restart, name) in [
                (Restart::No, "no"),
                (Restart::Always, "always"),
                (Restart::OnFailure, "on-failure"),
            ] {
                let mut spec = side.idle(name);
                spec.ours.restart = Some(restart);
                spec.theirs["HostConfig"]["RestartPolicy"] = json!({"Name": name});
                side.create(spec).await.unwrap();
                fields(side, &side.named(name)).await;
            }
            let mut spec = side.spec("entry", &[]);
            spec.ours.entrypoint = Some(vec!["sleep".into(), "3600".into()]);
            spec.theirs["Entrypoint"] = json!(["sleep", "3600"]);
            side.create(spec).await.unwrap();
            fields(side, &side.named("entry")).await;
            // A host's own network, and another container's.
            let mut spec = side.idle("joined");
            let other = format!("container:{}", side.named("plain"));
            spec.ours.network_mode = Some(other.clone());
            spec.theirs["HostConfig"]["NetworkMode"] = json!(other);
            side.create(spec).await.unwrap();
            let mode = side
                .daemon_s(&side.named("joined"))
                .await
                .host_config
                .unwrap();
            side.step("network of another", mode.network_mode);
        })
        .await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_what_is_not_created_is_the_same() {
    with(async |rig| {
        rig.script(async |side| {
            let none = async |what: &str| {
                let docker = &side.rig.docker;
                let gone = docker.inspect_container(&side.named(what), None).await;
                let refusal = of_daemon(gone.unwrap_err());
                side.expect("nothing was made", refusal.class, &Class::Missing);
            };
            let mut spec = side.idle("small");
            spec.ours.resources.memory = Some(1);
            spec.theirs["HostConfig"]["Memory"] = json!(1);
            side.refused("too little memory", side.create(spec).await, Class::Invalid);
            none("small").await;
            let mut spec = side.idle("cpus");
            spec.ours.resources.nano_cpus = Some(4_000_000_000_000);
            spec.theirs["HostConfig"]["NanoCpus"] = json!(4_000_000_000_000_i64);
            side.refused(
                "too many processors",
                side.create(spec).await,
                Class::Invalid,
            );
            none("cpus").await;
            let mut spec = side.idle("bind");
            let source = "/no/such/directory";
            spec.ours.mounts = vec![Mount {
                kind: MountKind::Bind,
                source: source.into(),
                target: "/x".into(),
                read_only: false,
            }];
            spec.theirs["HostConfig"]["Mounts"] =
                json!([{"Type": "bind", "Source": source, "Target": "/x"}]);
            side.refused("nothing to bind", side.create(spec).await, Class::Invalid);
            none("bind").await;
            let mut spec = side.idle("capable");
            spec.ours.cap_add = vec!["NO_SUCH".into()];
            spec.theirs["HostConfig"]["CapAdd"] = json!(["NO_SUCH"]);
            side.refused(
                "no such capability",
                side.create(spec).await,
                Class::Invalid,
            );
            none("capable").await;
            let mut spec = side.idle("dir");
            spec.ours.working_dir = Some("not/absolute".into());
            spec.theirs["WorkingDir"] = json!("not/absolute");
            side.refused(
                "a relative directory",
                side.create(spec).await,
                Class::Invalid,
            );
            none("dir").await;
            // Where it is only found out when it starts.
            let mut spec = side.idle("user");
            spec.ours.user = Some("nobody-of-that-name".into());
            spec.theirs["User"] = json!("nobody-of-that-name");
            let id = side.create(spec).await.unwrap();
            let refused = side.start(&id).await;
            side.refused_as("no such user", refused, Kind::NodeFailed, 500);
            let mut spec = side.idle("network");
            spec.ours.network_mode = Some("hub-no-such-network".into());
            spec.theirs["HostConfig"]["NetworkMode"] = json!("hub-no-such-network");
            let id = side.create(spec).await.unwrap();
            let refused = side.start(&id).await;
            side.refused("no such network", refused, Class::Missing);
            gpus(side).await;
        })
        .await;
    })
    .await;
}

/// Of a machine without graphics processors; on one that has them it runs both ways.
async fn gpus(side: &Side<'_>) {
    let mut spec = side.idle("gpus");
    spec.ours.gpus = Some(Gpus {
        count: -1,
        device_ids: vec![],
    });
    spec.theirs["HostConfig"]["DeviceRequests"] = json!([{"Count": -1, "Capabilities": [["gpu"]]}]);
    let id = side.create(spec).await.unwrap();
    let host = side.daemon_s(&id).await.host_config.unwrap();
    side.step("the request", host.device_requests);
    match side.start(&id).await {
        Ok(change) => side.expect("graphics processors", change, &Change::Changed),
        refused => side.refused_as("no graphics processors", refused, Kind::Unsupported, 500),
    }
    let mut spec = side.idle("gpu");
    spec.ours.gpus = Some(Gpus {
        count: 0,
        device_ids: vec!["GPU-1".into()],
    });
    spec.theirs["HostConfig"]["DeviceRequests"] =
        json!([{"DeviceIDs": ["GPU-1"], "Capabilities": [["gpu"]]}]);
    let id = side.create(spec).await.unwrap();
    let host = side.daemon_s(&id).await.host_config.unwrap();
    side.step("the request of one", host.device_requests);
}

/// What the hub answers to a call as it stands.
async fn post(rig: &Rig, method: &str, params: &Value) -> Result<Value, Problem> {
    let stream = TcpStream::connect(rig.world.api()).await.unwrap();
    let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(driver);
    let request = Request::post(format!("/v1/nodes/{NODE}/call/{method}"))
        .header(header::HOST, "hub")
        .header(header::CONTENT_TYPE, "application/json")
        .header(
            header::AUTHORIZATION,
            format!("Bearer {}", rig.world.token.expose()),
        )
        .body(Full::new(Bytes::from(params.to_string())))
        .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    let good = answer.status().is_success();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    if good {
        Ok(serde_json::from_slice(&body).unwrap())
    } else {
        Err(serde_json::from_slice(&body).unwrap())
    }
}

/// The daemon passes over what it does not know. Through the hub nothing is lost in silence.
#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_what_is_not_known_is_refused_by_name_and_nothing_is_made() {
    with(async |rig| {
        let name = rig.named("odd");
        let spec = |more: Value| {
            let mut spec = json!({"name": name, "image": rig.image, "command": ["true"], "network_mode": "none"});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec
        };
        for (more, field) in [
            (json!({"s3cret_field": 1}), "s3cret_field"),
            (json!({"resources": {"memroy": 1}}), "memroy"),
            (json!({"ports": [{"container": 1, "hots": 2}]}), "hots"),
            (json!({"mounts": [{"type": "volume", "source": "a", "target": "/a", "ro": true}]}), "ro"),
        ] {
            let problem = post(rig, "container.create", &spec(more)).await.unwrap_err();
            assert_eq!(problem.kind(), Some(Kind::InvalidRequest));
            assert!(problem.detail.contains(&format!("`{field}`")), "{problem}");
            let gone = rig.docker.inspect_container(&name, None).await;
            assert_eq!(of_daemon(gone.unwrap_err()).class, Class::Missing);
        }
        let made = post(rig, "container.create", &spec(json!({}))).await.unwrap();
        let found = rig.docker.inspect_container(&name, None).await.unwrap();
        assert_eq!(made["id"].as_str(), found.id.as_deref());
        let shown = post(rig, "container.inspect", &json!({"container": name})).await;
        assert_eq!(shown.unwrap()["id"], made["id"]);
    })
    .await;
}
