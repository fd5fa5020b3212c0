//! What stands behind everything that is measured.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::threads::{LOOPBACK, on_its_own};

/// Bytes of the long answer.
pub const BULK: u64 = 1 << 30;

/// A server that answers every connection's first request with [`BULK`] bytes.
pub fn bulk_target() -> SocketAddr {
    on_its_own("target", |ready| async move {
        let listener = TcpListener::bind(SocketAddr::from(LOOPBACK)).await.unwrap();
        ready.send(listener.local_addr().unwrap()).unwrap();
        let block = vec![0x5a; 256 << 10];
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let block = block.clone();
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {BULK}\r\n\r\n");
                let _ = stream.write_all(head.as_bytes()).await;
                let mut left = BULK as usize;
                while left > 0 {
                    let now = left.min(block.len());
                    if stream.write_all(&block[..now]).await.is_err() {
                        return;
                    }
                    left -= now;
                }
            });
        }
    })
}

/// nginx, if it is installed, with a page of a few bytes.
pub struct Nginx {
    child: Child,
    _dir: tempfile::TempDir,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn nginx() -> Option<(Nginx, SocketAddr)> {
    let dir = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind(SocketAddr::from(LOOPBACK))
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let root = dir.path().display();
    std::fs::write(dir.path().join("index.html"), "hello from nginx\n").unwrap();
    let user = if rustix::process::getuid().is_root() {
        "user root;"
    } else {
        ""
    };
    let config = format!(
        "{user} daemon off; master_process off; pid {root}/pid; error_log {root}/error.log;\
         events {{ worker_connections 1024; }}\
         http {{ access_log off; keepalive_requests 1000000; server {{ listen 127.0.0.1:{port}; root {root}; }}\
         client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c;\
         uwsgi_temp_path {root}/d; scgi_temp_path {root}/e; }}"
    );
    let path = dir.path().join("nginx.conf");
    std::fs::write(&path, config).unwrap();
    let nginx = ["nginx", "/usr/sbin/nginx"]
        .into_iter()
        .find_map(|program| {
            Command::new(program)
                .arg("-c")
                .arg(&path)
                .arg("-p")
                .arg(dir.path())
                .stdout(Stdio::null())
                .spawn()
                .ok()
        })?;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    while std::net::TcpStream::connect(address).is_err() {
        thread::sleep(Duration::from_millis(10));
    }
    Some((
        Nginx {
            child: nginx,
            _dir: dir,
        },
        address,
    ))
}
