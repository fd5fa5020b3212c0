//! Connections and packets through the real programs: what is forwarded and what is exposed as TCP
//! and UDP.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::programs::{Hub, program, stderr, stdout};

/// A target that reads to the end of what comes and only then answers: with its length and itself.
fn counting() -> u16 {
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = target.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in target.incoming() {
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut all = Vec::new();
                // A client that breaks off is no matter.
                if stream.read_to_end(&mut all).is_ok() {
                    let _ = write!(stream, "{} ", all.len());
                    let _ = stream.write_all(&all);
                }
            });
        }
    });
    port
}

/// A port where nothing listens.
fn nothing() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Sends all, ends that direction, and reads to the end of the other.
fn ask(address: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    let mut writer = stream.try_clone()?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = writer.write_all(question);
            let _ = writer.shutdown(Shutdown::Write);
        });
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    })
}

/// `hub forward`, killed when dropped.
struct Forward {
    child: Child,
    address: SocketAddr,
}

impl Forward {
    fn start(hub: &Hub, port: u16) -> Self {
        let mut command = hub.cli();
        command.args(["forward", "n1", &port.to_string(), "--local", "0", "--json"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.as_mut().unwrap();
        let mut values = serde_json::Deserializer::from_reader(stdout).into_iter::<Value>();
        let said = values.next().unwrap().unwrap();
        let address = said["listen"].as_str().unwrap().parse().unwrap();
        Self { child, address }
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_port_is_forwarded_and_each_direction_ends_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let _agent = hub.agent("n1", "process", None, None);
    let port = counting();
    let forward = Forward::start(&hub, port);
    assert_eq!(ask(forward.address, b"hi").unwrap(), b"2 hi");
    assert_eq!(ask(forward.address, b"").unwrap(), b"0 ");
    let large = vec![7; 3 << 20];
    let answer = ask(forward.address, &large).unwrap();
    assert!(answer == [b"3145728 ".as_slice(), &large].concat());

    // A target that refuses is a connection that is reset, not one that says nothing.
    let refusing = Forward::start(&hub, nothing());
    let refused = ask(refusing.address, b"hi").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionReset);

    // The standard streams, as ssh's ProxyCommand has them.
    let mut command = hub.cli();
    command.args(["forward", "n1", &port.to_string(), "--local", "-"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"hello").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output), "5 hello");
    assert_eq!(output.status.code(), Some(0));
    let port = nothing().to_string();
    let output = hub.run(&["forward", "n1", &port, "--local", "-"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&port), "{}", stderr(&output));
}

/// busybox's nc, as any client.
#[test]
fn nc_talks_through_a_forwarded_port() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let _agent = hub.agent("n1", "process", None, None);
    let forward = Forward::start(&hub, counting());
    let mut command = program("busybox", None);
    let port = forward.address.port().to_string();
    command.args(["nc", "127.0.0.1", &port]);
    let mut nc = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    nc.stdin.take().unwrap().write_all(b"from nc").unwrap();
    let output = nc.wait_with_output().unwrap();
    assert_eq!(stdout(&output), "7 from nc");
}

#[test]
fn tcp_and_udp_ports_are_exposed_at_ports_of_the_hub() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Hub::start(dir.path(), "127.0.0.1", None);
    let _agent = hub.agent("n1", "process", None, None);
    let expose = |port: u16, flag: &str, listen: &str| {
        hub.json(&["expose", "n1", &port.to_string(), flag, "--listen", listen])
    };
    let address = |exposed: &Value| exposed["listening"].as_str().unwrap().to_owned();

    let exposed = expose(counting(), "--tcp", "127.0.0.1:0");
    let answer = ask(address(&exposed).parse().unwrap(), b"hi").unwrap();
    assert_eq!(answer, b"2 hi");

    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = target.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((read, from)) = target.recv_from(&mut buffer) {
            let _ = target.send_to(&buffer[..read], from);
        }
    });
    let exposed = expose(port, "--udp", "127.0.0.1:0");
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(address(&exposed)).unwrap();
    let patience = Some(std::time::Duration::from_secs(30));
    client.set_read_timeout(patience).unwrap();
    let mut buffer = vec![0; 65_536];
    for size in [1, 1200, 8192] {
        client.send(&vec![7; size]).unwrap();
        assert_eq!(client.recv(&mut buffer).unwrap(), size);
    }

    // An address that somebody else has is shown as such.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let exposed = expose(port, "--tcp", &listen);
    let why = exposed["listen_error"].as_str().unwrap();
    assert!(why.contains(&listen), "{why}");
    let list = hub.run(&["exposures"]);
    assert!(
        stdout(&list).contains("(not listening)"),
        "{}",
        stdout(&list)
    );
}
