//! Programs that speak no HTTP: PostgreSQL and a name server as TCP and UDP exposures, SSH through
//! a port that an operator forwards.

use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::house::{House, Running, free_port};
use crate::programs::{stderr, stdout};

/// Where Debian has PostgreSQL's programs.
fn postgres_bin() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").unwrap();
    let newest = versions.map(|entry| entry.unwrap().path()).max().unwrap();
    newest.join("bin")
}

/// PostgreSQL with a superuser `postgres` that needs no password.
fn postgres(dir: &Path) -> Running {
    let run = |program: &str| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=postgres", "--regid=postgres", "--init-groups"])
            .arg(postgres_bin().join(program));
        command
    };
    // It does not run as root, and looks into what is its own alone.
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd.lines().find(|line| line.starts_with("postgres:"));
    let ids: Vec<&str> = line.unwrap().split(':').collect();
    let data = dir.join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    chown(&data, ids[2].parse().ok(), ids[3].parse().ok()).unwrap();
    let made = run("initdb")
        .args(["--auth=trust", "--username=postgres", "--no-sync", "-D"])
        .arg(&data)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    let port = free_port();
    let mut server = run("postgres");
    server
        .args(["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"])
        .args(["-c", "unix_socket_directories=", "-p", &port.to_string()])
        .arg("-D")
        .arg(&data);
    Running::start(server, port)
}

#[test]
#[ignore = "needs PostgreSQL"]
fn postgres_benchmark_runs_through_a_tcp_exposure() {
    let dir = tempfile::tempdir().unwrap();
    let server = postgres(dir.path());
    let house = House::new();
    let listen = house.expose_raw(server.port, "--tcp");
    let (address, port) = listen.rsplit_once(':').unwrap();
    let bench = |args: &[&str]| {
        let output = Command::new(postgres_bin().join("pgbench"))
            .args(["-h", address, "-p", port, "-U", "postgres"])
            .args(args)
            .arg("postgres")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    bench(&["-i", "-q", "-s", "2"]);
    let told = bench(&["-c", "8", "-t", "250", "-P", "60"]);
    assert!(told.contains("actually processed: 2000/2000"), "{told}");
    assert!(!told.contains("failed transactions: 1"), "{told}");
    eprintln!("{told}");
    // What came in is whole: a dump of the same data by the same way and straight.
    let dump = |address: &str, port: &str| {
        let output = Command::new(postgres_bin().join("pg_dump"))
            .args(["-h", address, "-p", port, "-U", "postgres", "postgres"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        // A word that is made up for each dump stands in two of its lines.
        let text = stdout(&output);
        let lines = text.lines().filter(|line| !line.contains("restrict "));
        lines.collect::<Vec<_>>().join("\n")
    };
    let direct = dump("127.0.0.1", &server.port.to_string());
    assert!(direct.len() > 1 << 20, "{} bytes", direct.len());
    assert!(dump(address, port) == direct, "the dumps differ");
}

#[test]
#[ignore = "needs OpenSSH's server"]
fn ssh_works_through_a_forwarded_port() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    for key in ["host", "user"] {
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)])
            .status();
        assert!(made.unwrap().success());
    }
    let port = free_port();
    let config = format!(
        "ListenAddress 127.0.0.1:{port}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\n\
         PidFile none\nPasswordAuthentication no\nUsePAM no\nPermitRootLogin yes\n",
        path("host"),
        path("user.pub"),
    );
    std::fs::write(path("sshd_config"), config).unwrap();
    // Its privilege separation wants this directory, which a service would make.
    std::fs::create_dir_all("/run/sshd").unwrap();
    let mut sshd = Command::new("/usr/sbin/sshd");
    sshd.args(["-D", "-e", "-f", &path("sshd_config")]);
    let sshd = Running::start(sshd, port);
    let house = House::new();
    let proxy = format!(
        "ProxyCommand={} forward far {} --local -",
        env!("CARGO_BIN_EXE_hub"),
        sshd.port
    );
    let ssh = |command: &str| {
        let mut ssh = Command::new("ssh");
        ssh.envs(house.environment())
            .args(["-F", "none", "-i", &path("user"), "-o", &proxy])
            .args(["-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"])
            .args(["-o", "UserKnownHostsFile=/dev/null", "root@far", command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        ssh.spawn().unwrap()
    };
    // 4 MiB there and back, and the command's own exit code.
    let data: Vec<u8> = (0..4_u32 << 20)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut echo = ssh("cat; exit 7");
    let (mut stdin, sent) = (echo.stdin.take().unwrap(), data.clone());
    let feeder = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let output = echo.wait_with_output().unwrap();
    feeder.join().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(output.stdout == data, "{} bytes", output.stdout.len());
}

#[test]
#[ignore = "needs dnsmasq and dig"]
fn dns_answers_through_a_udp_exposure() {
    let port = free_port();
    let mut server = Command::new("dnsmasq");
    server.env("PATH", "/usr/sbin:/usr/bin:/bin");
    // Ten strings of 250 bytes: an answer that no packet on the way to the hub can carry whole.
    let long: Vec<String> = (0..10).map(|n| n.to_string().repeat(250)).collect();
    let long = format!("--txt-record=long.test,{}", long.join(","));
    server
        .args([
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--no-resolv",
        ])
        .args([
            "--no-hosts",
            "--bind-interfaces",
            "--listen-address=127.0.0.1",
        ])
        .args([
            "--address=/short.test/192.0.2.7",
            &long,
            "--edns-packet-max=4096",
        ])
        .args(["--user=root", "--pid-file=", &format!("--port={port}")]);
    // It listens on TCP as well, which is how its start is seen.
    let server = Running::start(server, port);
    let house = House::new();
    let listen = house.expose_raw(server.port, "--udp");
    let (address, port) = listen.rsplit_once(':').unwrap();
    let dig = |args: &[&str]| {
        let output = Command::new("dig")
            .args([&format!("@{address}"), "-p", port, "+notcp", "+ignore"])
            .args(["+bufsize=4096", "+short"])
            .args(args)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stdout(&output));
        stdout(&output)
    };
    for _ in 0..50 {
        assert_eq!(dig(&["short.test", "A"]), "192.0.2.7\n");
    }
    let long = dig(&["long.test", "TXT"]);
    assert!(
        long.len() > 2500 && long.contains(&"9".repeat(250)),
        "{long}"
    );
}
