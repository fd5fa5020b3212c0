#![allow(clippy::unwrap_used)]

use hub_protocol::kind::call::container::{Attachment, Protocol, Variable};
use serde_json::json;

use super::*;

fn spec() -> Create {
    Create {
        name: "web".into(),
        image: "busybox".into(),
        ..Create::default()
    }
}

fn port(container: u16, host: u16, host_ip: Option<&str>, protocol: Protocol) -> Port {
    Port {
        container,
        host,
        host_ip: host_ip.map(Into::into),
        protocol,
    }
}

fn mount(kind: MountKind, source: &str, target: &str, read_only: bool) -> container::Mount {
    container::Mount {
        kind,
        source: source.into(),
        target: target.into(),
        read_only,
    }
}

#[test]
fn what_is_not_said_is_left_to_the_daemon() {
    assert_eq!(
        serde_json::to_value(body(&spec()).unwrap()).unwrap(),
        json!({"Image": "busybox", "HostConfig": {}})
    );
}

#[test]
fn all_that_is_said_reaches_the_daemon() {
    let full = Create {
        name: "web".into(),
        image: "busybox:1".into(),
        command: Some(vec!["-c".into(), "true".into()]),
        entrypoint: Some(vec![]),
        env: vec![Variable {
            name: "A".into(),
            value: "1=2".into(),
        }],
        working_dir: Some("/w".into()),
        user: Some("1:2".into()),
        hostname: Some("h".into()),
        tty: true,
        open_stdin: true,
        labels: [("k".to_owned(), "v".to_owned())].into(),
        ports: vec![
            port(80, 0, None, Protocol::Tcp),
            port(80, 8080, Some("127.0.0.1"), Protocol::Tcp),
            port(53, 5353, Some("::1"), Protocol::Udp),
        ],
        resources: Resources {
            memory: Some(64 << 20),
            memory_swap: Some(-1),
            nano_cpus: Some(1_500_000_000),
            cpuset: Some("0-1".into()),
        },
        gpus: Some(Gpus {
            count: -1,
            device_ids: vec![],
        }),
        shm_size: Some(1 << 20),
        mounts: vec![
            mount(MountKind::Volume, "data", "/data", true),
            mount(MountKind::Bind, "/srv", "/srv", false),
        ],
        dns: vec!["1.1.1.1".into()],
        network: Some(Attachment {
            name: "net".into(),
            aliases: vec!["a".into()],
        }),
        network_mode: Some("net".into()),
        cap_add: vec!["NET_ADMIN".into()],
        privileged: true,
        restart: Some(Restart::OnFailure),
        registry: None,
        force_pull: false,
    };
    assert_eq!(
        serde_json::to_value(body(&full).unwrap()).unwrap(),
        json!({
            "Image": "busybox:1",
            "Cmd": ["-c", "true"],
            "Entrypoint": [],
            "Env": ["A=1=2"],
            "WorkingDir": "/w",
            "User": "1:2",
            "Hostname": "h",
            "Tty": true,
            "OpenStdin": true,
            "Labels": {"k": "v"},
            "ExposedPorts": {"80/tcp": {}, "53/udp": {}},
            "HostConfig": {
                "PortBindings": {
                    "80/tcp": [
                        {"HostPort": "0"},
                        {"HostIp": "127.0.0.1", "HostPort": "8080"},
                    ],
                    "53/udp": [{"HostIp": "::1", "HostPort": "5353"}],
                },
                "Memory": 64 << 20,
                "MemorySwap": -1,
                "NanoCpus": 1_500_000_000,
                "CpusetCpus": "0-1",
                "DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}],
                "ShmSize": 1 << 20,
                "Mounts": [
                    {"Type": "volume", "Source": "data", "Target": "/data", "ReadOnly": true},
                    {"Type": "bind", "Source": "/srv", "Target": "/srv"},
                ],
                "Dns": ["1.1.1.1"],
                "NetworkMode": "net",
                "CapAdd": ["NET_ADMIN"],
                "Privileged": true,
                "RestartPolicy": {"Name": "on-failure"},
            },
            "NetworkingConfig": {"EndpointsConfig": {"net": {"Aliases": ["a"]}}},
        })
    );
}

#[test]
fn ids_of_graphics_processors_win_over_their_number() {
    let wish = |count, ids: &[&str]| {
        gpus(&Gpus {
            count,
            device_ids: ids.iter().map(ToString::to_string).collect(),
        })
    };
    let one = wish(-1, &["GPU-1"]).unwrap().unwrap().remove(0);
    assert_eq!(
        (one.count, one.device_ids),
        (None, Some(vec!["GPU-1".into()]))
    );
    assert_eq!(wish(2, &[]).unwrap().unwrap()[0].count, Some(2));
    assert_eq!(wish(0, &[]), Ok(None));
    assert_eq!(wish(-2, &[]).unwrap_err().code, FailureCode::INVALID);
}

#[test]
fn what_no_container_can_have_is_refused_by_name() {
    let one = |name: &str, value: &str| Variable {
        name: name.into(),
        value: value.into(),
    };
    let attached = Some(Attachment {
        name: "net".into(),
        aliases: vec![],
    });
    let cases: [(&str, Create); 14] = [
        (
            "name",
            Create {
                name: String::new(),
                ..spec()
            },
        ),
        (
            "name",
            Create {
                name: "../x".into(),
                ..spec()
            },
        ),
        (
            "image",
            Create {
                image: "a b".into(),
                ..spec()
            },
        ),
        (
            "command",
            Create {
                command: Some(vec!["\0".into()]),
                ..spec()
            },
        ),
        (
            "env[1]",
            Create {
                env: vec![one("A", "s3cret"), one("B=", "s3cret")],
                ..spec()
            },
        ),
        (
            "ports[0].container",
            Create {
                ports: vec![port(0, 1, None, Protocol::Tcp)],
                ..spec()
            },
        ),
        (
            "ports[0].host_ip",
            Create {
                ports: vec![port(1, 1, Some("x"), Protocol::Tcp)],
                ..spec()
            },
        ),
        (
            "shm_size",
            Create {
                shm_size: Some(u64::MAX),
                ..spec()
            },
        ),
        (
            "resources.memory",
            Create {
                resources: Resources {
                    memory: Some(u64::MAX),
                    ..Resources::default()
                },
                ..spec()
            },
        ),
        (
            "mounts[0].source",
            Create {
                mounts: vec![mount(MountKind::Bind, "x", "/x", false)],
                ..spec()
            },
        ),
        (
            "mounts[0].target",
            Create {
                mounts: vec![mount(MountKind::Volume, "x", "x", false)],
                ..spec()
            },
        ),
        (
            "dns[0]",
            Create {
                dns: vec!["x".into()],
                ..spec()
            },
        ),
        (
            "network.name",
            Create {
                network: Some(Attachment {
                    name: "container:db".into(),
                    aliases: vec![],
                }),
                ..spec()
            },
        ),
        (
            "network_mode",
            Create {
                network: attached,
                network_mode: Some("host".into()),
                ..spec()
            },
        ),
    ];
    for (field, spec) in cases {
        let refused = body(&spec).unwrap_err();
        assert_eq!(refused.code, FailureCode::INVALID);
        assert!(
            refused.message.starts_with(&format!("{field}: ")),
            "{refused}"
        );
        assert!(!refused.message.contains("s3cret"), "{refused}");
    }
}
