//! Against the daemon of this machine: what is judged is what is there, and what goes on to the
//! operation is the id.
#![allow(clippy::unwrap_used)]

use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::CreateContainerOptionsBuilder;
use hub_protocol::kind::call::container::{Mount, MountKind, Start};
use hub_protocol::kind::exec::OnDisconnect;

use super::super::{Rules, Source};
use super::*;
use crate::operations::Tools;
use crate::operations::testing::{Node, tools};
use crate::runtime::docker::DockerRuntime;

fn policy(rules: Rules) -> Policy {
    Policy::new(rules, false, Source::default()).unwrap()
}

fn only(names: &[&str]) -> Rules {
    Rules {
        container_names: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        ..Rules::default()
    }
}

fn command(container: Option<&str>) -> exec::Open {
    exec::Open {
        container: container.map(str::to_owned),
        argv: vec!["true".into()],
        env: vec![],
        cwd: None,
        user: None,
        stdin: false,
        tty: None,
        on_disconnect: OnDisconnect::Kill,
    }
}

fn call<C: Call>(call: &C) -> Bytes {
    call::Open::new(call).to_body()
}

/// The parameters of a call that was admitted.
fn params<C: Call>(body: &Bytes) -> C {
    call::Open::from_body(body).unwrap().params().unwrap()
}

fn code<T>(admitted: Result<T, Failure>) -> FailureCode {
    admitted.err().unwrap().code
}

#[tokio::test]
async fn what_can_be_judged_without_a_daemon_is() {
    let policy = policy(Rules {
        host_exec: Some(false),
        operations: Some(vec!["exec".into(), "container.*".into()]),
        ..Rules::default()
    });
    let guard = Guard {
        policy: &policy,
        engine: None,
    };
    let exec = OperationKind::Exec;
    assert_eq!(
        code(guard.admit(exec, &command(None).to_body()).await),
        FailureCode::FORBIDDEN
    );
    let body = command(Some("web")).to_body();
    assert_eq!(guard.admit(exec, &body).await, Ok(body));
    assert_eq!(
        code(guard.admit(exec, &Bytes::from_static(b"\xff")).await),
        FailureCode::INVALID
    );
    let logs = Logs::default().to_body();
    assert_eq!(
        code(guard.admit(OperationKind::Logs, &logs).await),
        FailureCode::FORBIDDEN
    );
    let pull = call(&call::image::Pull {
        image: "i".into(),
        platform: None,
        registry: None,
    });
    let forbidden = guard.admit(OperationKind::Call, &pull).await.unwrap_err();
    assert!(forbidden.message.contains("image.pull") && forbidden.message.contains("operations"));
    // A method that nobody knows is the call's business.
    let unknown = call::Open {
        method: "container.fly".into(),
        params: "{}".into(),
    };
    let body = unknown.to_body();
    assert_eq!(guard.admit(OperationKind::Call, &body).await, Ok(body));
    let create = Create {
        name: "/web".into(),
        image: "i".into(),
        mounts: vec![Mount {
            kind: MountKind::Bind,
            source: "/".into(),
            target: "/host".into(),
            read_only: true,
        }],
        ..Create::default()
    };
    let refused = guard.admit(OperationKind::Call, &call(&create)).await;
    assert!(refused.unwrap_err().message.contains("policy.bind_mounts"));
}

/// The guard looks for a container by the name of the field, so fields have to have names.
#[tokio::test]
async fn a_call_names_its_container_by_the_field_or_is_none() {
    let policy = policy(only(&["web"]));
    let guard = Guard {
        policy: &policy,
        engine: None,
    };
    for params in [r#"["db"]"#, r#" ["db",true,true]"#, r#""db""#, "null", "1"] {
        for method in call::METHODS {
            let open = call::Open {
                method: (*method).into(),
                params: params.into(),
            };
            let admitted = guard.admit(OperationKind::Call, &open.to_body()).await;
            assert_eq!(code(admitted), FailureCode::INVALID, "{method} {params}");
        }
    }
    // Of a name that is there twice the call gets the one that was judged.
    let open = call::Open {
        method: Start::METHOD.into(),
        params: r#"{"container":"web","container":"db"}"#.into(),
    };
    let admitted = guard.admit(OperationKind::Call, &open.to_body()).await;
    assert_eq!(params::<Start>(&admitted.unwrap()).container, NOBODY);
    for kind in [
        OperationKind::Logs,
        OperationKind::Stats,
        OperationKind::CopyOut,
    ] {
        let list = Bytes::from_static(br#"["db"]"#);
        assert_eq!(code(guard.admit(kind, &list).await), FailureCode::INVALID);
    }
}

/// Every call that there is names its container where the guard looks for it, or names none.
#[test]
fn every_call_that_names_a_container_is_known() {
    const NAME_ONE: &[&str] = &[
        "container.start",
        "container.stop",
        "container.remove",
        "container.update",
        "container.inspect",
        "container.state",
        "network.connect",
        "network.disconnect",
        "stats.get",
    ];
    const NAME_NONE: &[&str] = &[
        // Judged by themselves.
        "container.create",
        "network.remove",
        // Its reply is filtered.
        "container.list",
        "image.list",
        "image.inspect",
        "image.pull",
        "image.remove",
        "volume.ensure",
        "volume.list",
        "volume.remove",
        "network.ensure",
        "network.list",
        // Kept commands were judged when they began.
        "exec.list",
        "exec.status",
        "exec.stop",
    ];
    let mut known = [NAME_ONE, NAME_NONE].concat();
    known.sort_unstable();
    let mut all = call::METHODS.to_vec();
    all.sort_unstable();
    assert_eq!(known, all);
}

#[test]
fn names_that_could_mean_anything_else_in_a_path_are_none() {
    for name in ["web", "/web", "a1_.-b", &"0".repeat(64)] {
        assert_eq!(names::container(name), Some(name.trim_start_matches('/')));
    }
    for name in [
        "", "/", "a/b", "a?x", "a#x", "a%2f", "..", ".a", "a b", "-a", "\u{fc}",
    ] {
        assert_eq!(names::container(name), None, "{name}");
    }
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_name_is_judged_as_the_container_that_it_means_and_goes_on_as_its_id() {
    let engine = Engine::connect().await.unwrap();
    let container = DockerRuntime::new(&engine).demo_container().await.unwrap();
    let name = container.name.clone();
    let found = engine.docker().inspect_container(&name, None).await;
    let id = found.unwrap().id.unwrap();
    let chosen = policy(only(&[&name]));
    let guard = Guard {
        policy: &chosen,
        engine: Some(&engine),
    };
    let exec = OperationKind::Exec;
    for called in [&*name, &format!("/{name}"), &id, &id[..12]] {
        let body = command(Some(called)).to_body();
        let admitted = guard.admit(exec, &body).await.unwrap();
        let open = exec::Open::from_body(&admitted).unwrap();
        assert_eq!(open.container.as_deref(), Some(&*id));
        let start = Start {
            container: called.to_owned(),
        };
        let admitted = guard.admit(OperationKind::Call, &call(&start)).await;
        assert_eq!(params::<Start>(&admitted.unwrap()).container, id);
    }
    // One that is not there is not there for the call either, whoever makes it meanwhile.
    let nobody = Start {
        container: "hub-no-such".into(),
    };
    let admitted = guard.admit(OperationKind::Call, &call(&nobody)).await;
    assert_eq!(params::<Start>(&admitted.unwrap()).container, NOBODY);
    assert_eq!(
        code(
            guard
                .admit(exec, &command(Some("hub-no-such")).to_body())
                .await
        ),
        FailureCode::NO_SUCH_CONTAINER
    );
    // Labels are those of the container, not of whoever asks.
    let labelled = policy(Rules {
        container_labels: Some(vec!["hub.demo=true".into()]),
        ..Rules::default()
    });
    let other = policy(only(&["something-else"]));
    let admit = async |policy: &Policy| {
        let engine = Some(&engine);
        let guard = Guard { policy, engine };
        guard.admit(exec, &command(Some(&name)).to_body()).await
    };
    assert!(admit(&labelled).await.is_ok());
    let refused = admit(&other).await.unwrap_err();
    assert_eq!(refused.code, FailureCode::FORBIDDEN);
    assert!(refused.message.contains(&name) && refused.message.contains("policy.container_names"));
    // And the whole way, through an operation.
    for (policy, allowed) in [(labelled, true), (other, false)] {
        let node = Node::new(Tools {
            policy: policy.into(),
            ..tools(Some(engine.clone()))
        })
        .await;
        let operation = node.ask(&command(Some(&name))).await;
        match operation.answer().await.unwrap() {
            hub_quic::operation::Answer::Accepted(_) => assert!(allowed),
            hub_quic::operation::Answer::Failed(failure) => {
                assert!(
                    !allowed && failure.code == FailureCode::FORBIDDEN,
                    "{failure}"
                );
            }
        }
    }
    container.remove().await.unwrap();
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_the_machines_network_is_known_by_every_name() {
    let engine = Engine::connect().await.unwrap();
    let demo = DockerRuntime::new(&engine).demo_container().await.unwrap();
    let image = demo.image.clone();
    let on_host = format!("{}-on-host", demo.name);
    let joined = format!("{}-joined", demo.name);
    let make = async |name: &str, mode: String| {
        let config = ContainerCreateBody {
            image: Some(image.clone()),
            cmd: Some(vec!["true".into()]),
            host_config: Some(HostConfig {
                network_mode: Some(mode),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let options = CreateContainerOptionsBuilder::new().name(name).build();
        let made = engine
            .docker()
            .create_container(Some(options), config)
            .await;
        made.unwrap().id
    };
    make(&on_host, "host".into()).await;
    let joined_id = make(&joined, format!("container:{on_host}")).await;
    let host = engine.docker().inspect_network("host", None).await.unwrap();
    let host_id = host.id.unwrap();
    let rules = Rules {
        container_network: Some(true),
        ..Rules::default()
    };
    let careful = policy(rules.clone());
    let wide = policy(Rules {
        host_network: Some(true),
        ..rules
    });
    let admit = async |policy: &Policy, mode: &str| {
        let create = Create {
            name: "x".into(),
            image: "i".into(),
            network_mode: Some(mode.into()),
            ..Create::default()
        };
        let engine = Some(&engine);
        let guard = Guard { policy, engine };
        let body = guard.admit(OperationKind::Call, &call(&create)).await?;
        Ok::<_, Failure>(params::<Create>(&body).network_mode.unwrap())
    };
    for mode in [
        "host",
        &host_id,
        &host_id[..12],
        &format!("container:{on_host}"),
        &format!("container:{joined}"),
    ] {
        let refused = admit(&careful, mode).await.unwrap_err();
        assert!(refused.message.contains("policy.host_network"), "{refused}");
        assert!(admit(&wide, mode).await.is_ok(), "{mode}");
    }
    // By the id of what was judged.
    let mode = admit(&wide, &format!("container:{joined}")).await;
    assert_eq!(mode.unwrap(), format!("container:{joined_id}"));
    for mode in ["none", "bridge", "hub-no-such-network"] {
        assert_eq!(admit(&careful, mode).await.unwrap(), mode);
    }
    for name in [&joined, &on_host] {
        engine.docker().remove_container(name, None).await.unwrap();
    }
    demo.remove().await.unwrap();
}

/// What a network is detached from when it is removed is judged, whether it runs or not, and whatever
/// the network is called.
#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_a_network_is_not_taken_from_a_container_out_of_bounds() {
    let engine = Engine::connect().await.unwrap();
    let demo = DockerRuntime::new(&engine).demo_container().await.unwrap();
    // Blanks, and a first letter that no container has.
    let network = format!("_{} of several words", demo.name);
    let request = bollard::models::NetworkCreateRequest {
        name: network.clone(),
        internal: Some(true),
        ..Default::default()
    };
    let made = match engine.docker().create_network(request).await {
        Ok(made) => made.id,
        Err(error) => {
            eprintln!("skipped, this daemon makes no networks: {error}");
            return demo.remove().await.unwrap();
        }
    };
    let name = format!("{}-stopped", demo.name);
    let config = ContainerCreateBody {
        image: Some(demo.image.clone()),
        cmd: Some(vec!["true".into()]),
        host_config: Some(HostConfig {
            network_mode: Some(network.clone()),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let options = CreateContainerOptionsBuilder::new().name(&name).build();
    let stopped = engine
        .docker()
        .create_container(Some(options), config)
        .await
        .unwrap();
    let admit = async |allowed: &str, network: &str| {
        let policy = policy(only(&[allowed]));
        let guard = Guard {
            policy: &policy,
            engine: Some(&engine),
        };
        let remove = Remove {
            network: network.into(),
        };
        guard.admit(OperationKind::Call, &call(&remove)).await
    };
    for network in [&*network, &made, &made[..12]] {
        assert_eq!(
            code(admit("something-else", network).await),
            FailureCode::FORBIDDEN
        );
        assert!(admit(&name, network).await.is_ok());
    }
    let remaining = engine.docker().remove_container(&stopped.id, None).await;
    remaining.unwrap();
    engine.docker().remove_network(&made).await.unwrap();
    demo.remove().await.unwrap();
}
