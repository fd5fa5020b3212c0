//! A Docker daemon of a test's own, which it can stop, kill and start again.

#![allow(clippy::unwrap_used)]

use std::process::{Child, Command, Stdio};

use bollard::Docker;
use futures_util::FutureExt as _;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::time::{Duration, sleep};

use super::{Dial, Engine, Socket};

/// The daemon; it ends with this, and its data go.
pub(crate) struct OwnDaemon {
    dir: TempDir,
    child: Option<Child>,
}

impl OwnDaemon {
    /// A daemon without containers; `None`, said aloud, where none can be started.
    pub(crate) async fn start() -> Option<Self> {
        let has = |program| Command::new(program).arg("--version").output().is_ok();
        let there = has("dockerd") && has("unshare");
        if !there || !rustix::process::geteuid().is_root() {
            #[allow(clippy::print_stderr, reason = "a test that is left out says so")]
            {
                eprintln!("left out: this test needs to be root and to have dockerd");
            }
            return None;
        }
        let dir = tempfile::Builder::new()
            .prefix("hub-dockerd-")
            .tempdir()
            .unwrap();
        let mut daemon = Self { dir, child: None };
        daemon.run().await;
        Some(daemon)
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Starts it, and waits until it answers.
    pub(crate) async fn run(&mut self) {
        // In a network of its own: without a bridge it would remove that of the machine's daemon.
        let child = Command::new("unshare")
            .args(["--net", "dockerd"])
            .args(["--host", &format!("unix://{}", self.path("socket"))])
            .args([
                "--data-root",
                &self.path("data"),
                "--exec-root",
                &self.path("exec"),
            ])
            .args(["--pidfile", &self.path("pid"), "--bridge", "none"])
            .args(["--iptables=false", "--live-restore"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(child.unwrap());
        for _ in 0..600 {
            // Before it listens, there is no socket to make a client for.
            if UnixStream::connect(self.path("socket")).await.is_ok()
                && self.docker().ping().await.is_ok()
            {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        panic!("dockerd does not answer within a minute");
    }

    /// Stops it; its containers go on.
    pub(crate) async fn stop(&mut self) {
        self.end(rustix::process::Signal::TERM).await;
    }

    async fn end(&mut self, signal: rustix::process::Signal) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        let pid = rustix::process::Pid::from_child(&child);
        let _ = rustix::process::kill_process(pid, signal);
        tokio::task::spawn_blocking(move || child.wait())
            .await
            .unwrap()
            .unwrap();
    }

    pub(crate) fn docker(&self) -> Docker {
        let version = bollard::API_DEFAULT_VERSION;
        Docker::connect_with_unix(&self.path("socket"), 60, version).unwrap()
    }

    pub(crate) async fn engine(&self) -> Engine {
        let path = self.path("socket");
        let dial: Dial = std::sync::Arc::new(move || {
            let path = path.clone();
            async move { Ok(Box::new(UnixStream::connect(path).await?) as Box<dyn Socket>) }.boxed()
        });
        Engine::over(dial).await.unwrap()
    }
}

impl Drop for OwnDaemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let pid = rustix::process::Pid::from_child(&child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = child.wait();
        }
        // With containers that are to go on, it leaves its data mounted.
        let data = self.path("data");
        let _ = Command::new("umount").args(["--recursive", &data]).status();
    }
}
