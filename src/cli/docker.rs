//! A node's Docker socket, here: for one run of docker, or for whoever connects.
//!
//! ```text
//! docker --unix socket--> listener --> a tunnel for each connection --> the node's Docker
//! ```

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;

use super::exec::HUB_FAILED;
use super::{CliError, Context, fail, near, say};
use crate::client::Client;

/// The arguments of `hub docker`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hub docker shop-4 -- ps -a
  hub docker shop-4 -- run -it --rm busybox sh

The agent has to allow it: hub-agent --allow-docker-api. Exit codes: those of docker; 125 where Hub
itself failed.")]
pub(super) struct DockerArgs {
    /// The node's name or id
    node: String,
    /// The arguments of docker
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    arguments: Vec<OsString>,
}

/// The arguments of `hub docker-socket`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  hub docker-socket shop-4 --listen unix:///tmp/shop-4.sock &
  DOCKER_HOST=unix:///tmp/shop-4.sock docker-compose up

The agent has to allow it: hub-agent --allow-docker-api. The socket is for this user alone.")]
pub(super) struct DockerSocketArgs {
    /// The node's name or id
    node: String,
    /// Where the socket is to be
    #[arg(long, value_name = "unix:///PATH", value_parser = parse_listen)]
    listen: PathBuf,
}

fn parse_listen(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("unix://") {
        Some(path) if path.starts_with('/') && path.len() > 1 => Ok(PathBuf::from(path)),
        _ => Err("it takes unix:// and an absolute path".into()),
    }
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub(super) enum SocketError {
    #[error("{}: somebody listens there; choose another path, or end that", .0.display())]
    Live(PathBuf),
    #[error("{}: there is something that is no socket; choose another path", .0.display())]
    NoSocket(PathBuf),
    #[error("cannot listen at {}: {}", .0.display(), .1)]
    Listen(PathBuf, io::Error),
}

/// A socket that is there as long as this.
struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Listens, for this user alone, in place of a socket that nobody listens at any more.
    fn bind(path: PathBuf) -> Result<Self, SocketError> {
        let failed = |error| SocketError::Listen(path.clone(), error);
        if let Ok(found) = fs::symlink_metadata(&path) {
            if !found.file_type().is_socket() {
                return Err(SocketError::NoSocket(path));
            }
            match StdUnixStream::connect(&path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    fs::remove_file(&path).map_err(failed)?;
                }
                Ok(_) => return Err(SocketError::Live(path)),
                Err(error) => return Err(failed(error)),
            }
        }
        // It is never open to others: it gets its mode under a name that nobody knows, in a
        // directory that nobody else enters.
        let directory = path.parent().unwrap_or(Path::new("/"));
        let private = tempfile::Builder::new()
            .prefix(".hub-")
            .tempdir_in(directory)
            .map_err(failed)?;
        let first = private.path().join("s");
        let listener = UnixListener::bind(&first).map_err(failed)?;
        fs::set_permissions(&first, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        fs::rename(&first, &path).map_err(failed)?;
        Ok(Self { listener, path })
    }

    /// Tunnels every connection to the node, until dropped.
    async fn serve(&self, client: &Client, node: &str) -> Infallible {
        let accept = async || Ok(self.listener.accept().await?.0);
        near::serve(accept, |connection| {
            tunnel(client.clone(), node.to_owned(), connection)
        })
        .await
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Carries one connection.
async fn tunnel(client: Client, node: String, mut connection: UnixStream) -> Result<(), String> {
    let tunnel = client.docker(&node).await;
    let tunnel = tunnel.map_err(|error| error.to_string())?;
    let gone = near::closed(&connection).map_err(|error| error.to_string())?;
    let (from_here, to_here) = connection.split();
    let carried = tunnel.carry(from_here, to_here, gone).await;
    carried.map_err(|cut| format!("node {node}: {cut}"))
}

pub(super) async fn listen(
    context: &Context,
    arguments: DockerSocketArgs,
) -> Result<i32, CliError> {
    let client = context.client()?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let socket = Socket::bind(arguments.listen)?;
    say(
        &format!(
            "the Docker of {} is at unix://{}",
            arguments.node,
            socket.path.display()
        ),
        false,
    );
    let serving = LocalSet::new();
    tokio::select! {
        never = serving.run_until(socket.serve(&client, &arguments.node)) => match never {},
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(0)
}

/// Runs docker and gives its exit code.
pub(super) async fn run(context: &Context, arguments: DockerArgs) -> i32 {
    match docker(context, arguments).await {
        Ok(code) => code,
        Err(error) => fail(&error.to_string(), HUB_FAILED),
    }
}

async fn docker(context: &Context, arguments: DockerArgs) -> Result<i32, CliError> {
    let client = context.client()?;
    // What makes it impossible is said once, by us, and not by docker of a socket that it can't read.
    drop(client.docker(&arguments.node).await?);
    // Others can't enter it.
    let directory = tempfile::Builder::new().prefix("hub-docker-").tempdir()?;
    let socket = Socket::bind(directory.path().join("docker.sock"))?;
    // The terminal sends these to docker, too, which knows what to do.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut quit = signal(SignalKind::quit())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut child = Command::new("docker")
        .args(&arguments.arguments)
        .env("DOCKER_HOST", format!("unix://{}", socket.path.display()))
        .env_remove("DOCKER_CONTEXT")
        .env_remove("DOCKER_TLS")
        .env_remove("DOCKER_TLS_VERIFY")
        .env_remove("DOCKER_CERT_PATH")
        .kill_on_drop(true)
        .spawn()
        .map_err(CliError::Docker)?;
    let serving = LocalSet::new();
    let waiting = async {
        loop {
            let number = tokio::select! {
                status = child.wait() => return status,
                _ = interrupt.recv() => continue,
                _ = quit.recv() => continue,
                _ = terminate.recv() => SignalKind::terminate(),
                _ = hangup.recv() => SignalKind::hangup(),
            };
            pass_on(&child, number);
        }
    };
    let status = tokio::select! {
        status = waiting => status?,
        never = serving.run_until(socket.serve(&client, &arguments.node)) => match never {},
    };
    let killed = status.signal().map(|number| 128 + number);
    Ok(status.code().or(killed).unwrap_or(HUB_FAILED))
}

/// Sends a signal to docker that came to us alone.
fn pass_on(child: &Child, kind: SignalKind) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok());
    let pid = pid.and_then(rustix::process::Pid::from_raw);
    let signal = rustix::process::Signal::from_named_raw(kind.as_raw_value());
    if let (Some(pid), Some(signal)) = (pid, signal) {
        // It may have ended this moment.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_place_to_listen_is_an_absolute_path() {
        assert_eq!(parse_listen("unix:///a/b"), Ok(PathBuf::from("/a/b")));
        for wrong in ["", "/a", "unix://a", "unix:///", "tcp://127.0.0.1:1"] {
            assert!(parse_listen(wrong).is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_socket_replaces_a_stale_one_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let socket = Socket::bind(path.clone()).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(matches!(
            Socket::bind(path.clone()),
            Err(SocketError::Live(_))
        ));
        StdUnixStream::connect(&path).unwrap();
        drop(socket);
        assert!(!path.exists());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        fs::write(&path, "x").unwrap();
        assert!(matches!(
            Socket::bind(path.clone()),
            Err(SocketError::NoSocket(_))
        ));
        assert!(path.exists());
    }
}
