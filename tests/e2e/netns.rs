//! Hub and agent in two network namespaces with a masquerading router between them: the agent can
//! dial, the hub cannot. Commands run in a real Docker container.

use std::io::Write as _;
use std::process::{Command, Stdio};

use hub_agent::engine::Engine;
use hub_agent::runtime::docker::DockerRuntime;

use crate::programs::{Daemon, Hub, program, stderr, stdout};

fn sh(command: &str) {
    let status = Command::new("sh").args(["-ec", command]).status().unwrap();
    assert!(status.success(), "{command}");
}

/// Three namespaces: `h` for the hub, `r` for the router, `a` for the agent. Removed when dropped.
struct Namespaces {
    tag: String,
}

impl Namespaces {
    fn new() -> Self {
        let tag = format!("hub{}", std::process::id());
        let this = Self { tag };
        let (h, r, a) = (this.name('h'), this.name('r'), this.name('a'));
        sh(&format!(
            "export PATH=$PATH:/usr/sbin:/sbin
            for ns in {h} {r} {a}; do ip netns add $ns; ip -n $ns link set lo up; done
            ip link add hub0 netns {h} type veth peer name out0 netns {r}
            ip link add agent0 netns {a} type veth peer name in0 netns {r}
            ip -n {h} addr add 203.0.113.1/24 dev hub0; ip -n {h} link set hub0 up
            ip -n {r} addr add 203.0.113.2/24 dev out0; ip -n {r} link set out0 up
            ip -n {r} addr add 10.0.0.1/24 dev in0; ip -n {r} link set in0 up
            ip -n {a} addr add 10.0.0.2/24 dev agent0; ip -n {a} link set agent0 up
            ip -n {a} route add default via 10.0.0.1
            ip netns exec {r} sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
            ip netns exec {r} nft 'table ip nat {{ chain post {{ type nat hook postrouting priority 100; oifname \"out0\" masquerade; }}; }}'"
        ));
        this
    }

    fn name(&self, role: char) -> String {
        format!("{}{role}", self.tag)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for role in ['h', 'r', 'a'] {
            let _ = Command::new("ip")
                .args(["netns", "del", &self.name(role)])
                .status();
        }
    }
}

#[test]
#[ignore = "needs root, network namespaces and a Docker daemon"]
fn netns_docker_exec_and_expose_behind_nat() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let container = runtime.block_on(async {
        let engine = Engine::connect().await.unwrap();
        DockerRuntime::new(&engine).demo_container().await.unwrap()
    });
    let namespaces = Namespaces::new();
    let (h, a) = (namespaces.name('h'), namespaces.name('a'));
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "203.0.113.1", Some(&h));
    let _agent = hub.agent("shop", "docker", Some(&a), None);

    // The hub has no way to the agent.
    let route = Command::new("ip")
        .args(["-n", &h, "route", "get", "10.0.0.2"])
        .output()
        .unwrap();
    assert!(stderr(&route).contains("unreachable"), "{}", stdout(&route));

    let target = format!("shop/{}", container.name);
    let mut child = hub
        .cli()
        .args([
            "exec",
            "-i",
            &target,
            "--",
            "sh",
            "-c",
            "cat; echo problem >&2; exit 42",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"from here\n")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output), "from here\n");
    assert_eq!(stderr(&output), "problem\n");
    assert_eq!(output.status.code(), Some(42));

    let pages = dir.path().join("pages");
    std::fs::create_dir(&pages).unwrap();
    std::fs::write(pages.join("index.html"), "behind NAT\n").unwrap();
    let mut httpd = program("busybox", Some(&a));
    httpd
        .args(["httpd", "-f", "-vv", "-p", "127.0.0.1:8080", "-h"])
        .arg(&pages);
    let _httpd = Daemon::start(httpd);
    let exposed = hub.json(&["expose", "shop", "8080"]);
    let url = exposed["urls"][0].as_str().unwrap();
    // Until the server listens the target refuses, and is asked again.
    let mut curl = program("curl", Some(&h));
    curl.args([
        "-s",
        "--fail",
        "--retry",
        "20",
        "--retry-delay",
        "1",
        "--retry-all-errors",
        url,
    ]);
    let output = curl.output().unwrap();
    assert_eq!(stdout(&output), "behind NAT\n", "{}", stderr(&output));

    drop(hub);
    runtime.block_on(container.remove()).unwrap();
}
