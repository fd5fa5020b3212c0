#![allow(clippy::unwrap_used)]

use hub_protocol::kind::call::container::{Attachment, Gpus};
use hub_protocol::target::Selector;
use proptest::prelude::*;

use super::bind as bind_path;
use super::*;

fn policy(rules: Rules) -> Policy {
    Policy::new(rules, false, Source::default()).unwrap()
}

#[expect(clippy::unnecessary_wraps, reason = "as rules have it")]
fn names(list: &[&str]) -> Option<Vec<String>> {
    Some(list.iter().map(|item| (*item).to_owned()).collect())
}

fn labels(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    list.iter().map(owned).collect()
}

/// A machine on which nothing is a link but `/srv/data/link`, which leads to `/etc`.
fn real(path: &Path) -> io::Result<PathBuf> {
    if path.starts_with("/srv/unreadable") {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(path
        .strip_prefix("/srv/data/link")
        .map_or_else(|_| path.into(), |rest| Path::new("/etc").join(rest)))
}

fn bind(source: &str) -> Mount {
    Mount {
        kind: MountKind::Bind,
        source: source.into(),
        target: "/x".into(),
        read_only: true,
    }
}

fn volume(source: &str) -> Mount {
    Mount {
        kind: MountKind::Volume,
        ..bind(source)
    }
}

fn create() -> Create {
    Create {
        name: "web".into(),
        image: "i".into(),
        ..Create::default()
    }
}

fn rule(policy: &Policy, create: &Create) -> Option<&'static str> {
    let checked = policy.check_create(create, &real, None, false);
    checked.err().map(|refusal| refusal.rule)
}

type Change = fn(&mut Create);

#[test]
fn without_rules_a_node_does_what_it_is_for_and_stays_its_owners() {
    let policy = Policy::default();
    for name in operations() {
        let allowed = policy.check_operation(name).is_ok();
        assert_eq!(allowed, name != "docker-socket", "{name}");
    }
    assert_eq!(policy.check_host_exec(), Ok(()));
    assert!(!policy.chooses_containers() && !policy.allows_docker_api());
    assert_eq!(rule(&policy, &create()), None);
    let refused: [(&str, Change); 9] = [
        ("privileged", |c| c.privileged = true),
        ("capabilities", |c| c.cap_add = vec!["NET_ADMIN".into()]),
        ("gpus", |c| c.gpus = Some(Gpus::default())),
        ("host_network", |c| c.network_mode = Some("host".into())),
        ("host_network", |c| {
            c.network = Some(Attachment {
                name: "host".into(),
                aliases: vec![],
            });
        }),
        ("container_network", |c| {
            c.network_mode = Some("container:web".into());
        }),
        ("container_network", |c| {
            c.network = Some(Attachment {
                name: "container:web".into(),
                aliases: vec![],
            });
        }),
        ("bind_mounts", |c| c.mounts = vec![bind("/srv/data")]),
        // What the daemon would take for a path.
        ("bind_mounts", |c| c.mounts = vec![volume("/srv/data")]),
    ];
    for (rule_name, change) in refused {
        let mut create = create();
        change(&mut create);
        assert_eq!(rule(&policy, &create), Some(rule_name));
        assert_eq!(rule(&Policy::everything(), &create), None);
    }
    let mut create = create();
    create.mounts = vec![volume("data")];
    create.network_mode = Some("none".into());
    assert_eq!(rule(&policy, &create), None);
}

#[test]
fn operations_are_named_one_by_one_or_by_group() {
    let policy = policy(Rules {
        operations: names(&["exec", "container.*", "image.list"]),
        ..Rules::default()
    });
    for (name, allowed) in [
        ("exec", true),
        ("container.create", true),
        ("container.something-new", true),
        ("image.list", true),
        ("image.pull", false),
        ("exec.list", false),
        ("attach", false),
        ("logs", false),
        ("container", false),
    ] {
        assert_eq!(policy.check_operation(name).is_ok(), allowed, "{name}");
    }
    let error = Policy::new(
        Rules {
            operations: names(&["logs", "conatiner.*"]),
            ..Rules::default()
        },
        false,
        Source::default(),
    );
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("conatiner.*") && error.contains("container.start"),
        "{error}"
    );
}

#[test]
fn a_switch_takes_its_whole_group_along() {
    let off = Some(false);
    let policy = policy(Rules {
        exec: off,
        build: off,
        volumes: off,
        host_exec: off,
        ..Rules::default()
    });
    let rule_of = |name| {
        policy
            .check_operation(name)
            .err()
            .map(|refusal| refusal.rule)
    };
    for (name, expected) in [
        ("exec", Some("exec")),
        ("attach", Some("exec")),
        ("exec.stop", Some("exec")),
        ("build", Some("build")),
        ("volume.list", Some("volumes")),
        ("container.start", None),
        ("logs", None),
    ] {
        assert_eq!(rule_of(name), expected, "{name}");
    }
    assert_eq!(policy.check_host_exec().unwrap_err().rule, "host_exec");
    let mut create = create();
    create.mounts = vec![volume("data")];
    assert_eq!(rule(&policy, &create), Some("volumes"));
}

#[test]
fn containers_are_chosen_by_name_or_label() {
    let policy = policy(Rules {
        container_names: names(&["web-?", "shop"]),
        container_labels: names(&["hub", "team=a*"]),
        ..Rules::default()
    });
    let shows = |name: &str, list: &[(&str, &str)]| {
        policy.shows(Subject {
            name,
            labels: &labels(list),
        })
    };
    assert!(shows("web-1", &[]) && shows("shop", &[]) && shows("x", &[("hub", "")]));
    assert!(shows("x", &[("team", "ab")]));
    assert!(!shows("web-10", &[]) && !shows("x", &[]) && !shows("x", &[("team", "b")]));
    // A new one has to be one of them, by what the request itself says.
    let mut create = create();
    assert_eq!(rule(&policy, &create), Some("container_names"));
    create.labels = labels(&[("hub", "1")]);
    assert_eq!(rule(&policy, &create), None);
    // Events show what they are about in their attributes.
    let event = |kind: &str, list: &[(&str, &str)]| policy.shows_event(kind, &labels(list));
    assert!(event("container", &[("name", "web-1"), ("image", "i")]));
    assert!(event("container", &[("name", "x"), ("team", "a")]));
    assert!(!event("container", &[("name", "x"), ("image", "i")]));
    assert!(event("image", &[("name", "x")]) && event("network", &[("name", "n")]));
    assert!(!event("network", &[("name", "n"), ("container", "0123")]));
    // Lists that are empty match nothing.
    let nobody = Policy::new(
        Rules {
            container_names: names(&[]),
            ..Rules::default()
        },
        false,
        Source::default(),
    );
    let subject = Subject {
        name: "web",
        labels: &labels(&[]),
    };
    assert!(!nobody.unwrap().shows(subject));
}

#[test]
fn mounts_stay_below_their_directories_wherever_links_lead() {
    let policy = policy(Rules {
        bind_mounts: Some(vec!["/srv/data".into(), "/srv/unreadable".into()]),
        ..Rules::default()
    });
    for (source, allowed) in [
        ("/srv/data", true),
        ("/srv/data/", true),
        ("/srv/data/a/./b", true),
        ("/srv/database", false),
        ("/srv", false),
        ("/", false),
        ("/srv/data/link", false),
        ("/srv/data/link/passwd", false),
        ("/srv/data/../data", false),
        ("/srv/data/..", false),
        ("/srv/unreadable/x", false),
        ("srv/data", false),
        ("", false),
    ] {
        let mut create = create();
        create.mounts = vec![volume("v"), bind(source)];
        let expected = (!allowed).then_some("bind_mounts");
        assert_eq!(rule(&policy, &create), expected, "{source}");
    }
    for relative in ["srv/data", "/srv/../etc"] {
        let rules = Rules {
            bind_mounts: Some(vec![relative.into()]),
            ..Rules::default()
        };
        let error = Policy::new(rules, false, Source::default()).unwrap_err();
        assert!(error.to_string().contains(relative), "{error}");
    }
}

#[test]
fn capabilities_go_by_any_of_their_names() {
    let policy = policy(Rules {
        capabilities: names(&["cap_net_admin", "SYS_TIME"]),
        ..Rules::default()
    });
    for (name, allowed) in [
        ("NET_ADMIN", true),
        ("CAP_NET_ADMIN", true),
        ("Cap_Sys_Time", true),
        ("SYS_ADMIN", false),
        ("ALL", false),
    ] {
        let mut create = create();
        create.cap_add = vec![name.into()];
        assert_eq!(rule(&policy, &create).is_none(), allowed, "{name}");
    }
}

#[test]
fn another_containers_network_is_judged_as_what_it_is() {
    let mut create = create();
    create.network_mode = Some("container:db".into());
    let peer = |name: &str, on_host| Peer {
        name: name.into(),
        labels: BTreeMap::new(),
        on_host,
    };
    let rules = Rules {
        container_network: Some(true),
        container_names: names(&["web", "db"]),
        ..Rules::default()
    };
    let policy = policy(rules);
    let rule = |peer: &Peer| {
        let checked = policy.check_create(&create, &real, Some(peer), false);
        checked.err().map(|refusal| refusal.rule)
    };
    assert_eq!(rule(&peer("db", false)), None);
    assert_eq!(rule(&peer("other", false)), Some("container_names"));
    assert_eq!(rule(&peer("db", true)), Some("host_network"));
    // Of one that nobody has looked at, anything is possible.
    let unseen = policy.check_create(&create, &real, None, false);
    assert_eq!(unseen.unwrap_err().rule, "host_network");
}

#[test]
fn the_docker_api_and_narrower_rules_do_not_go_together() {
    let new = |rules| Policy::new(rules, true, Source::default());
    assert!(new(Rules::default()).unwrap().allows_docker_api());
    let wide = Rules {
        operations: names(&["*"]),
        exec: Some(true),
        privileged: Some(true),
        ..Rules::default()
    };
    assert!(new(wide).is_ok());
    let narrow = Rules {
        exec: Some(false),
        bind_mounts: Some(vec!["/srv".into()]),
        ..Rules::default()
    };
    let error = new(narrow).unwrap_err().to_string();
    for part in [
        "allow_docker_api",
        "policy.exec",
        "policy.bind_mounts",
        "around",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_refusal_names_the_rule_and_the_file() {
    let source = Source {
        file: Some("/etc/hub/agent.toml".into()),
        ..Source::default()
    };
    let policy = Policy::new(Rules::default(), false, source).unwrap();
    let mut create = create();
    create.privileged = true;
    let refusal = policy
        .check_create(&create, &real, None, false)
        .unwrap_err();
    let failure = policy.refused(&refusal);
    assert_eq!(
        failure,
        Failure::new(
            FailureCode::FORBIDDEN,
            "this node does not allow a privileged container: see `policy.privileged` in \
             /etc/hub/agent.toml on the node"
        )
    );
    let refusal = policy.check_operation("docker-socket").unwrap_err();
    let message = policy.refused(&refusal).message;
    assert!(message.contains("see `allow_docker_api` in"), "{message}");
}

#[test]
fn ports_of_the_machine_are_chosen_and_forwarding_is_a_switch() {
    let exposed = Grant::Exposed { revision: 1 };
    let read = |text: &str| {
        let rules: Result<Rules, _> = serde_json::from_str(text);
        rules.map(policy)
    };
    let chosen = read(r#"{"ports": [8080, "9000-9002"]}"#).unwrap();
    let rule = |policy: &Policy, target: &Target, grant| {
        let checked = policy.check_target(target, grant);
        checked.err().map(|refusal| refusal.rule)
    };
    for (port, allowed) in [
        (8080, true),
        (8081, false),
        (8999, false),
        (9000, true),
        (9002, true),
        (9003, false),
    ] {
        for transport in [Transport::Tcp, Transport::Udp] {
            let target = Target {
                transport,
                ..Target::tcp(port)
            };
            let expected = (!allowed).then_some("ports");
            for grant in [exposed, Grant::Operator] {
                assert_eq!(rule(&chosen, &target, grant), expected, "{target}");
            }
        }
    }
    let of_container = Target {
        container: Some(Selector::Name("web".into())),
        ..Target::tcp(80)
    };
    assert_eq!(rule(&chosen, &of_container, exposed), None);
    let message = chosen
        .refused(&chosen.check_port(Transport::Tcp, 22).unwrap_err())
        .message;
    assert!(
        message.contains("port 22 of the machine: see `policy.ports`"),
        "{message}"
    );

    let closed = read(r#"{"forward": false}"#).unwrap();
    for target in [&of_container, &Target::tcp(80)] {
        assert_eq!(rule(&closed, target, Grant::Operator), Some("forward"));
        assert_eq!(rule(&closed, target, exposed), None);
        assert_eq!(rule(&Policy::everything(), target, Grant::Operator), None);
    }
    assert!(!Policy::default().chooses_targets());
    for wrong in [
        "0", "65536", "-1", "\"\"", "\"9-8\"", "\"x\"", "\"1-\"", "1.5",
    ] {
        let error = read(&format!("{{\"ports\": [{wrong}]}}")).unwrap_err();
        assert!(error.to_string().contains("range of them"), "{error}");
    }
}

/// One request of any kind, with what the machine and the daemon know about it.
#[derive(Debug, Clone)]
enum Asked {
    Operation(String),
    HostExec,
    Container(String, BTreeMap<String, String>),
    Target(Target, Grant),
    Create(Box<Create>, Option<Peer>, bool),
}

fn allows(policy: &Policy, asked: &Asked) -> bool {
    match asked {
        Asked::Operation(name) => policy.check_operation(name).is_ok(),
        Asked::HostExec => policy.check_host_exec().is_ok(),
        Asked::Container(name, labels) => policy.check_container(Subject { name, labels }).is_ok(),
        // A container may turn out to be in the machine's network.
        Asked::Target(target, grant) => {
            policy.check_target(target, *grant).is_ok()
                && policy.check_port(target.transport, target.port).is_ok()
        }
        Asked::Create(create, peer, on_host) => policy
            .check_create(create, &real, peer.as_ref(), *on_host)
            .is_ok(),
    }
}

fn some_names() -> impl Strategy<Value = Vec<String>> {
    let name = prop_oneof!["[abw*?]{1,3}", Just("*".to_owned())];
    prop::collection::vec(name, 0..3)
}

fn some_labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map("[kl]", "[ab]{0,2}", 0..3)
}

fn some_operations() -> impl Strategy<Value = Vec<String>> {
    let all: Vec<_> = operations().map(str::to_owned).collect();
    let groups = ["*", "container.*", "image.*", "exec*"].map(str::to_owned);
    let name = prop_oneof![
        prop::sample::select(all),
        prop::sample::select(groups.to_vec())
    ];
    prop::collection::vec(name, 0..4)
}

fn some_paths() -> impl Strategy<Value = String> {
    let paths = [
        "/srv/data",
        "/srv",
        "/",
        "/etc",
        "/srv/data/link/x",
        "/srv/data/a",
        "/srv/data/..",
        "x",
    ];
    prop::sample::select(paths.map(str::to_owned).to_vec())
}

fn capabilities() -> impl Strategy<Value = Vec<String>> {
    let names = ["ALL", "NET_ADMIN", "CAP_SYS_TIME", "sys_admin"].map(str::to_owned);
    prop::collection::vec(prop::sample::select(names.to_vec()), 0..3)
}

fn rules() -> impl Strategy<Value = Rules> {
    let label = prop_oneof!["[kl]", "[kl]=[ab*]{0,2}"];
    let lists = (
        prop::option::of(some_operations()),
        prop::option::of(some_names()),
        prop::option::of(prop::collection::vec(label, 0..3)),
        prop::option::of(prop::collection::vec(some_paths(), 0..3)),
        prop::option::of(capabilities()),
    );
    let ports = prop::option::of(prop::collection::vec(some_ports(), 0..3));
    let switches = prop::array::uniform9(any::<Option<bool>>());
    (lists, ports, switches).prop_map(|(lists, ports, switches)| {
        let (operations, container_names, container_labels, mounts, capabilities) = lists;
        let [
            exec,
            host_exec,
            build,
            volumes,
            privileged,
            host_network,
            container_network,
            gpus,
            forward,
        ] = switches;
        let mounts = mounts.map(|paths| {
            let paths = paths.into_iter().map(PathBuf::from);
            paths.filter(|path| bind_path::is_plain(path)).collect()
        });
        Rules {
            operations,
            container_names,
            container_labels,
            exec,
            host_exec,
            build,
            volumes,
            bind_mounts: mounts,
            privileged,
            capabilities,
            host_network,
            container_network,
            gpus,
            ports,
            forward,
        }
    })
}

fn some_ports() -> impl Strategy<Value = Ports> {
    (1..9_u16, 0..3_u16).prop_map(|(first, more)| Ports {
        first,
        last: first + more,
    })
}

fn some_target() -> impl Strategy<Value = (Target, Grant)> {
    let selector = prop_oneof![
        "[abw]{1,3}".prop_map(Selector::Name),
        "[kl]".prop_map(Selector::Label)
    ];
    let grant = prop_oneof![Just(Grant::Operator), Just(Grant::Exposed { revision: 1 })];
    (1..12_u16, any::<bool>(), prop::option::of(selector), grant).prop_map(
        |(port, udp, container, grant)| {
            let transport = if udp { Transport::Udp } else { Transport::Tcp };
            let target = Target {
                transport,
                port,
                container,
            };
            (target, grant)
        },
    )
}

fn asked() -> impl Strategy<Value = Asked> {
    let operation = prop::sample::select(operations().map(str::to_owned).collect::<Vec<_>>());
    let name = "[abw]{1,3}";
    let modes = ["", "host", "none", "bridge", "net", "container:a"].map(str::to_owned);
    let mount = (some_paths(), any::<bool>()).prop_map(|(source, is_volume)| {
        if is_volume {
            volume(&source)
        } else {
            bind(&source)
        }
    });
    let create = (
        (name, some_labels(), any::<bool>(), any::<bool>()),
        prop::option::of(prop::sample::select(modes.to_vec())),
        prop::option::of(prop::sample::select(vec!["host", "net", "container:a"])),
        prop::collection::vec(mount, 0..3),
        capabilities(),
    );
    let create = create.prop_map(|(first, network_mode, network, mounts, cap_add)| {
        let (name, labels, privileged, gpus) = first;
        Create {
            name,
            labels,
            privileged,
            gpus: gpus.then(Gpus::default),
            network_mode,
            network: network.map(|name| Attachment {
                name: name.into(),
                aliases: vec![],
            }),
            mounts,
            cap_add,
            ..create_base()
        }
    });
    let peer = (name, some_labels(), any::<bool>()).prop_map(|(name, labels, on_host)| Peer {
        name,
        labels,
        on_host,
    });
    prop_oneof![
        operation.prop_map(Asked::Operation),
        Just(Asked::HostExec),
        (name, some_labels()).prop_map(|(name, labels)| Asked::Container(name, labels)),
        some_target().prop_map(|(target, grant)| Asked::Target(target, grant)),
        (create, prop::option::of(peer), any::<bool>())
            .prop_map(|(create, peer, on_host)| Asked::Create(create.into(), peer, on_host)),
    ]
}

fn create_base() -> Create {
    create()
}

/// The same rules with one of them wider: something more in a list, a switch on, or a list or switch
/// as it is at its widest.
fn widened(rules: &Rules, which: u8, more: &str, path: &str) -> Rules {
    let mut wide = rules.clone();
    let add = |list: &mut Option<Vec<String>>, item: &str| {
        if let Some(list) = list {
            list.push(item.to_owned());
        }
    };
    match which {
        0 => add(&mut wide.operations, "logs"),
        1 => add(&mut wide.operations, "*"),
        2 => wide.operations = None,
        // More names, where some are given: where only labels are, names would be a choice more.
        3 => add(&mut wide.container_names, more),
        4 => add(&mut wide.container_labels, "k"),
        5 => (wide.container_names, wide.container_labels) = (None, None),
        6 => wide.exec = Some(true),
        7 => wide.host_exec = None,
        8 => wide.build = Some(true),
        9 => wide.volumes = None,
        10 => {
            let dir = Path::new(path);
            let dirs = wide.bind_mounts.get_or_insert_default();
            dirs.extend(bind_path::is_plain(dir).then(|| dir.to_owned()));
        }
        11 => wide.privileged = Some(true),
        12 => wide
            .capabilities
            .get_or_insert_default()
            .push("NET_ADMIN".into()),
        13 => wide.capabilities = names(&["ALL"]),
        14 => wide.host_network = Some(true),
        15 => wide.container_network = Some(true),
        16 => wide.gpus = Some(true),
        17 => wide.forward = Some(true),
        18 => wide.ports = None,
        19 => {
            if let Some(ports) = &mut wide.ports {
                let first = path.len() as u16;
                let last = first + more.len() as u16;
                ports.push(Ports { first, last });
            }
        }
        _ => add(&mut wide.container_names, "*"),
    }
    wide
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// What a policy allows, a wider one allows as well.
    #[test]
    fn wider_rules_forbid_nothing_more(
        rules in rules(),
        steps in prop::collection::vec((0..21_u8, "[abw*?]{1,3}", some_paths()), 1..4),
        asked in asked(),
    ) {
        let narrow = policy(rules.clone());
        let wide = steps.iter().fold(rules, |rules, (which, more, path)| {
            widened(&rules, *which, more, path)
        });
        let wide = policy(wide);
        prop_assert!(!allows(&narrow, &asked) || allows(&wide, &asked));
        prop_assert!(allows(&Policy::everything(), &asked));
        // And to be asked changes neither.
        let before = narrow.clone();
        let _ = allows(&narrow, &asked);
        prop_assert!(narrow == before);
    }
}
