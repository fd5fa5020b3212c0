//! Programs of the same trade: rathole, and OpenSSH's `-R`. Each listens on a port of loopback and
//! carries connections to the target. One that is not installed is left out, and said.
//!
//! rathole comes with `cargo install rathole`, OpenSSH with Debian's `openssh-server`.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A way to the target, as its processes run.
pub struct Peer {
    /// What it is called in the tables.
    pub name: &'static str,
    /// Where it takes connections.
    pub address: SocketAddr,
    _processes: Vec<Process>,
    _dir: tempfile::TempDir,
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(command: &mut Command) -> Option<Process> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null()).spawn().ok().map(Process)
}

fn free_port() -> u16 {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().port()
}

/// Waits until the way is through: `false` if it is not within half a minute.
fn is_up(port: u16) -> bool {
    let patience = Instant::now() + Duration::from_secs(30);
    while Instant::now() < patience {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

fn openssl(dir: &Path, args: &[&str]) -> bool {
    let mut openssl = Command::new("openssl");
    let run = openssl.args(args).current_dir(dir).output();
    run.is_ok_and(|output| output.status.success())
}

/// How rathole's two ends are to talk: a transport for each.
fn tls(dir: &Path) -> Option<(String, String)> {
    let made = openssl(
        dir,
        &[
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-keyout",
            "key.pem",
            "-out",
            "certificate.pem",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
        ],
    ) && openssl(
        dir,
        &[
            "pkcs12",
            "-export",
            "-out",
            "identity.pfx",
            "-inkey",
            "key.pem",
            "-in",
            "certificate.pem",
            "-passout",
            "pass:bench",
            "-keypbe",
            "PBE-SHA1-3DES",
            "-certpbe",
            "PBE-SHA1-3DES",
            "-macalg",
            "sha1",
        ],
    );
    made.then(|| {
        let dir = dir.display();
        (
            format!(
                "type = \"tls\"\n[server.transport.tls]\npkcs12 = \"{dir}/identity.pfx\"\n\
                 pkcs12_password = \"bench\"\n"
            ),
            format!(
                "type = \"tls\"\n[client.transport.tls]\nhostname = \"localhost\"\n\
                 trusted_root = \"{dir}/certificate.pem\"\n"
            ),
        )
    })
}

fn noise(_: &Path) -> Option<(String, String)> {
    let keys = Command::new("rathole").arg("--genkey").output().ok()?;
    let text = String::from_utf8(keys.stdout).ok()?;
    let mut lines = text.lines().filter(|line| line.len() > 40);
    let (private, public) = (lines.next()?, lines.next()?);
    Some((
        format!("type = \"noise\"\n[server.transport.noise]\nlocal_private_key = \"{private}\"\n"),
        format!("type = \"noise\"\n[client.transport.noise]\nremote_public_key = \"{public}\"\n"),
    ))
}

fn rathole(
    name: &'static str,
    target: SocketAddr,
    transport: fn(&Path) -> Option<(String, String)>,
) -> Option<Peer> {
    let dir = tempfile::tempdir().unwrap();
    let (server, client) = transport(dir.path())?;
    let (control, port) = (free_port(), free_port());
    let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
    write(
        "server.toml",
        format!(
            "[server]\nbind_addr = \"127.0.0.1:{control}\"\ndefault_token = \"bench\"\n\
             [server.transport]\n{server}[server.services.web]\nbind_addr = \"127.0.0.1:{port}\"\n"
        ),
    );
    write(
        "client.toml",
        format!(
            "[client]\nremote_addr = \"127.0.0.1:{control}\"\ndefault_token = \"bench\"\n\
             [client.transport]\n{client}[client.services.web]\nlocal_addr = \"{target}\"\n"
        ),
    );
    let run = |file: &str| start(Command::new("rathole").arg(dir.path().join(file)));
    let processes = vec![run("server.toml")?, run("client.toml")?];
    is_up(port).then(|| Peer {
        name,
        address: SocketAddr::from(([127, 0, 0, 1], port)),
        _processes: processes,
        _dir: dir,
    })
}

/// `ssh -tt -R` with a cipher that the processor helps with. The terminal keeps it from waiting
/// 40 ms for more to send.
fn openssh(target: SocketAddr) -> Option<Peer> {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    for key in ["host", "user"] {
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)]);
        keygen
            .status()
            .ok()
            .filter(std::process::ExitStatus::success)?;
    }
    let (control, port) = (free_port(), free_port());
    let config = format!(
        "ListenAddress 127.0.0.1:{control}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\n\
         PidFile none\nUsePAM no\nPermitRootLogin yes\n",
        path("host"),
        path("user.pub"),
    );
    std::fs::write(path("sshd_config"), config).unwrap();
    std::fs::create_dir_all("/run/sshd").ok()?;
    let sshd = start(Command::new("/usr/sbin/sshd").args(["-D", "-f", &path("sshd_config")]))?;
    is_up(control).then_some(())?;
    let ssh = start(
        Command::new("ssh")
            .args([
                "-tt",
                "-F",
                "none",
                "-i",
                &path("user"),
                "-p",
                &control.to_string(),
            ])
            .args([
                "-o",
                "StrictHostKeyChecking=no",
                "-o",
                "UserKnownHostsFile=/dev/null",
            ])
            .args(["-o", "Ciphers=aes128-gcm@openssh.com"])
            .args([
                "-R",
                &format!("127.0.0.1:{port}:{target}"),
                "root@127.0.0.1",
            ])
            .arg("sleep 86400"),
    )?;
    is_up(port).then(|| Peer {
        name: "ssh -R",
        address: SocketAddr::from(([127, 0, 0, 1], port)),
        _processes: vec![sshd, ssh],
        _dir: dir,
    })
}

/// All that this machine has, as ways to `target`, and the names of what it has not.
pub fn all(target: SocketAddr) -> (Vec<Peer>, Vec<&'static str>) {
    let (mut peers, mut missing) = (Vec::new(), Vec::new());
    for (name, peer) in [
        ("rathole, TLS", rathole("rathole, TLS", target, tls)),
        ("rathole, Noise", rathole("rathole, Noise", target, noise)),
        ("ssh -R", openssh(target)),
    ] {
        match peer {
            Some(peer) => peers.push(peer),
            None => missing.push(name),
        }
    }
    (peers, missing)
}
