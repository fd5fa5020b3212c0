//! A TCP port of a node, here: on a port of this machine, or on standard input and output.
//!
//! ```text
//! program --TCP--> listener --> a tunnel for each connection --> the node's port
//! ssh ---- stdin, stdout -----> one tunnel --------------------> the node's port
//! ```

use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use clap::Args;
use hub_protocol::target::{Selector, Target};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;

use super::{CliError, Context, near, say};
use crate::client::Client;

/// The arguments of `hub forward`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hub forward shop-4 5432 --local 15432 &
  psql -h 127.0.0.1 -p 15432
  hub forward shop-4 80 --container web --local 0
  ssh -o ProxyCommand='hub forward shop-4 22 --local -' shop-4

Nothing has to be exposed for it: the connections are yours alone. With --local 0 any free port is
taken, and shown.")]
pub(super) struct ForwardArgs {
    /// The node's name or id
    node: String,
    /// The port on the node
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Where to listen here; - carries one connection on standard input and output
    #[arg(long, value_name = "[ADDRESS:]PORT")]
    local: Local,
    /// The port is that of the container of this name
    #[arg(long, value_name = "NAME", conflicts_with = "label")]
    container: Option<String>,
    /// The port is that of the container with this label that was started last
    #[arg(long, value_name = "KEY[=VALUE]")]
    label: Option<String>,
}

/// The near end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Local {
    /// Connections to this address.
    Listen(SocketAddr),
    /// Standard input and output.
    Standard,
}

/// Text that is no near end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it takes PORT, ADDRESS:PORT, or - for standard input and output")]
struct NoLocal;

impl FromStr for Local {
    type Err = NoLocal;

    fn from_str(text: &str) -> Result<Self, NoLocal> {
        if text == "-" {
            return Ok(Self::Standard);
        }
        let port = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let address = text.parse().map(port).or_else(|_| text.parse());
        address.map(Self::Listen).map_err(|_| NoLocal)
    }
}

pub(super) async fn run(context: &Context, arguments: ForwardArgs) -> Result<i32, CliError> {
    let ForwardArgs {
        node,
        port,
        local,
        container,
        label,
    } = arguments;
    let container = container.map(Selector::Name);
    let target = Target {
        container: container.or(label.map(Selector::Label)),
        ..Target::tcp(port)
    };
    let client = context.client()?;
    match local {
        Local::Standard => standard(&client, &node, &target).await,
        Local::Listen(address) => listen(context, &client, &node, &target, address).await,
    }
}

/// Carries one connection on standard input and output.
async fn standard(client: &Client, node: &str, target: &Target) -> Result<i32, CliError> {
    let tunnel = client.forward(node, target).await?;
    let carried = tunnel.carry(tokio::io::stdin(), tokio::io::stdout(), pending());
    carried.await.map_err(|cut| CliError::Cut {
        node: node.to_owned(),
        cut,
    })?;
    Ok(0)
}

/// Carries every connection to `address`, until told to end.
async fn listen(
    context: &Context,
    client: &Client,
    node: &str,
    target: &Target,
    address: SocketAddr,
) -> Result<i32, CliError> {
    let failed = |error| CliError::Listen { address, error };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    if context.json() {
        context.print_json(&json!({ "listen": address }))?;
    } else {
        say(&format!("{target} of {node} is at {address}"), false);
    }
    let accept = async || Ok(listener.accept().await?.0);
    let carry = |connection| carry(client.clone(), node.to_owned(), target.clone(), connection);
    let serving = LocalSet::new();
    tokio::select! {
        never = serving.run_until(near::serve(accept, carry)) => match never {},
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(0)
}

/// Carries one connection. Where that breaks, so does the connection: its program must not take it
/// for a good end.
async fn carry(
    client: Client,
    node: String,
    target: Target,
    mut connection: TcpStream,
) -> Result<(), String> {
    let carried = async {
        // One that is gone already says so soon enough.
        let _ = connection.set_nodelay(true);
        let tunnel = client.forward(&node, &target).await;
        let tunnel = tunnel.map_err(|error| error.to_string())?;
        let gone = near::reset(&connection).map_err(|error: io::Error| error.to_string())?;
        let (from_here, to_here) = connection.split();
        let carried = tunnel.carry(from_here, to_here, gone).await;
        carried.map_err(|cut| format!("node {node}: {cut}"))
    };
    let carried = carried.await;
    if carried.is_err() {
        let _ = connection.set_zero_linger();
    }
    carried
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_end_is_a_port_an_address_or_the_standard_streams() {
        let listen = |text: &str| text.parse().map(Local::Listen).map_err(|_| NoLocal);
        assert_eq!("-".parse(), Ok(Local::Standard));
        assert_eq!("8080".parse::<Local>(), listen("127.0.0.1:8080"));
        assert_eq!("0".parse::<Local>(), listen("127.0.0.1:0"));
        for address in ["0.0.0.0:1", "[::1]:22"] {
            assert_eq!(address.parse::<Local>(), listen(address));
        }
        for wrong in ["", "65536", ":1", "localhost:1", "::1", "--", "1.2.3.4"] {
            assert_eq!(wrong.parse::<Local>(), Err(NoLocal), "{wrong}");
        }
    }
}
