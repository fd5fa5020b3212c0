//! `hub demo`: a hub and a node on this machine, a command on the node, a page behind it.
//!
//! All of it is real and runs in this process: two QUIC endpoints on loopback, a CA, a join with a
//! token, mutual TLS. Only the commands that it shows are run as a user would: as `hub …`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::Full;
use hub_agent::agent::{self, AgentError, Joining};
use hub_agent::dial::HubAddress;
use hub_agent::engine::Engine;
use hub_agent::runtime::Runtime;
use hub_agent::runtime::docker::{DemoContainer, DockerRuntime};
use hub_server::{Config, Parts, Server};
use hyper::service::service_fn;
use hyper::{Response, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::settings::{self, RuntimeKind};

/// The name of the demo's node.
const NODE: &str = "demo";

/// How long the agent may take to join and connect, on loopback.
const JOIN_TIMEOUT: Duration = Duration::from_secs(20);

/// What the page says.
const PAGE: &str = include_str!("demo.html");

/// What `hub demo` can be told.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct DemoArgs {
    /// Stop after the demonstration instead of staying up until Ctrl-C.
    #[arg(long)]
    pub once: bool,
    /// What runs commands on the node [default: docker where it answers, else process]
    #[arg(long, value_name = "RUNTIME")]
    pub runtime: Option<RuntimeKind>,
}

/// What the node runs commands with.
struct Workplace {
    runtime: Arc<dyn Runtime>,
    engine: Option<Engine>,
    container: Option<DemoContainer>,
    /// How it came to be this one, for people.
    why: String,
}

/// Runs the demo until Ctrl-C, and removes what it made however it ends.
///
/// # Errors
/// Something that it shows does not work here.
pub async fn run(args: DemoArgs) -> anyhow::Result<()> {
    let scratch = tempfile::Builder::new().prefix("hub-demo-").tempdir()?;
    let agent_dir = scratch.path().join("agent");
    let workplace = workplace(args.runtime, &agent_dir).await?;
    let shown = tokio::select! {
        biased;
        shown = show(scratch.path(), &workplace) => shown.map(Some),
        told = settings::told_to_stop() => told.map(|()| None),
    };
    let ended = match shown {
        Ok(Some(running)) => running.stay(args.once).await,
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Some(container) = workplace.container {
        container
            .remove()
            .await
            .context("cannot remove the demo container")?;
    }
    ended
}

/// The hub and the agent of the demo.
struct Running {
    server: Server,
    stop: watch::Sender<bool>,
    agent: JoinHandle<Result<(), AgentError>>,
}

impl Running {
    /// Stays up until told to stop, or not at all, and stops in good order.
    #[expect(clippy::print_stdout, reason = "it talks to a person")]
    async fn stay(self, once: bool) -> anyhow::Result<()> {
        if !once {
            println!("\nCtrl-C stops it all and removes what it made.");
            settings::told_to_stop().await?;
        }
        println!("\nstopping");
        self.stop.send_replace(true);
        self.agent.await.context("the agent")??;
        self.server.stop().await;
        Ok(())
    }
}

/// Shows it all, one step after the other.
#[expect(clippy::print_stdout, reason = "it talks to a person")]
async fn show(scratch: &Path, workplace: &Workplace) -> anyhow::Result<Running> {
    let hub_dir = scratch.join("hub");
    let program = std::env::current_exe().context("cannot find this program")?;

    println!("1. A hub starts on loopback, with a ledger and a certificate authority of its own,");
    println!("   on ports chosen for this run (7443, 7444, 7445 and 7480 are the usual ones).");
    let server = start_hub(&hub_dir).await?;
    let bound = server.bound().clone();
    let (Some(api), Some(browsers)) = (bound.api, bound.proxy) else {
        bail!("the hub has no API")
    };
    println!(
        "     agents dial     {} (UDP, QUIC, client certificate demanded)",
        bound.agents
    );
    println!("     machines join   {} (UDP)", bound.enrollment);
    println!("     operators use   http://{api}");
    println!("     browsers use    http://{browsers}");
    println!("     its CA is       {}", bound.ca);

    println!("\n2. An agent joins as node {NODE:?}, with a token that holds for one machine.");
    println!("     commands run with {}", workplace.why);
    let (stop, agent) = start_agent(&server, &scratch.join("agent"), workplace).await?;
    println!("     joined, connected; from here on the hub never dials: it only answers");

    let target = match &workplace.container {
        Some(container) => format!("{NODE}/{}", container.name),
        None => NODE.to_owned(),
    };
    let shown = Shown {
        program,
        api,
        token_file: hub_dir.join("api-token"),
    };
    println!("\n3. A command runs on the node, and its output and exit code come back.");
    let script = "echo hello from $(uname -n), which runs $(uname -sm); exit 7";
    shown
        .run(&["exec", &target, "--", "sh", "-c", script])
        .await?;

    println!("\n4. A page that only the node can reach is exposed to browsers.");
    let page = serve_page().await?;
    let fresh = server.hub().expose(NODE, page.port(), None).await?;
    println!("     the page listens on {page}, behind the agent");
    println!("     open this in a browser:\n\n       {}\n", fresh.urls[0]);

    println!("5. In another terminal, first this line, then any of those below it:\n");
    println!(
        "     export HUB_API=http://{api} HUB_TOKEN_FILE={}",
        shown.token_file.display()
    );
    for command in [
        "node ls".to_owned(),
        format!("exec -it {target} -- sh"),
        format!("exec -i {target} -- wc -c < /etc/services"),
        format!("expose {NODE} {}", page.port()),
    ] {
        println!("     {} {command}", shown.program.display());
    }
    Ok(Running {
        server,
        stop,
        agent,
    })
}

async fn start_hub(data_dir: &Path) -> anyhow::Result<Server> {
    let config = Config::loopback(data_dir.to_owned());
    let parts = Parts::system(&config).await?;
    Ok(Server::start(config, parts).await?)
}

/// Docker if the daemon answers and a container can be had; else processes, with the reason.
async fn workplace(asked: Option<RuntimeKind>, data_dir: &Path) -> anyhow::Result<Workplace> {
    let docker = match asked {
        Some(RuntimeKind::Process) => Err("asked for".to_owned()),
        _ => docker().await.map_err(|error| format!("{error:#}")),
    };
    match docker {
        Ok((engine, docker, container)) => Ok(Workplace {
            why: format!(
                "Docker: container {} of image {}",
                container.name, container.image
            ),
            runtime: Arc::new(docker.keeping_records(data_dir).await?),
            engine: Some(engine),
            container: Some(container),
        }),
        Err(reason) if asked == Some(RuntimeKind::Docker) => {
            bail!("Docker can't be used: {reason}")
        }
        Err(reason) => Ok(Workplace {
            runtime: settings::runtime(RuntimeKind::Process, data_dir).await?.0,
            engine: None,
            container: None,
            why: format!("plain processes, as this user, without containers ({reason})"),
        }),
    }
}

async fn docker() -> anyhow::Result<(Engine, DockerRuntime, DemoContainer)> {
    let engine = Engine::connect().await?;
    let docker = DockerRuntime::new(&engine);
    let container = docker.demo_container().await?;
    Ok((engine, docker, container))
}

async fn start_agent(
    server: &Server,
    data_dir: &Path,
    workplace: &Workplace,
) -> anyhow::Result<(watch::Sender<bool>, JoinHandle<Result<(), AgentError>>)> {
    let fresh = server
        .hub()
        .create_token(1, Duration::from_secs(60))
        .await?;
    let bound = server.bound();
    let config = agent::Config {
        data_dir: data_dir.to_owned(),
        hub: HubAddress::from(bound.agents),
        joining: Some(Joining {
            enrollment: HubAddress::from(bound.enrollment),
            pin: bound.ca,
            token: fresh.token,
            name: Some(NODE.parse()?),
        }),
        platform: settings::platform(),
        digest: settings::program_digest(),
        policy: Arc::default(),
    };
    let parts = agent::Parts {
        engine: workplace.engine.clone(),
        ..settings::system_parts(workplace.runtime.clone())
    };
    let (stop, stopping) = watch::channel(false);
    let mut changes = server.hub().sessions().changes();
    let mut agent = tokio::spawn(agent::run(config, parts, stopping));
    tokio::select! {
        connected = timeout(JOIN_TIMEOUT, changes.changed()) => {
            connected.context("the agent did not connect in time")??;
        }
        ended = &mut agent => {
            ended.context("the agent")??;
            bail!("the agent ended before it was connected");
        }
    }
    Ok((stop, agent))
}

/// Shows a command as a user types it, and runs it.
struct Shown {
    program: PathBuf,
    api: SocketAddr,
    token_file: PathBuf,
}

impl Shown {
    #[expect(clippy::print_stdout, reason = "it talks to a person")]
    async fn run(&self, args: &[&str]) -> anyhow::Result<()> {
        let quoted = |arg: &&str| {
            if arg.contains(' ') {
                format!("'{arg}'")
            } else {
                (*arg).to_owned()
            }
        };
        println!(
            "     $ hub {}",
            args.iter().map(quoted).collect::<Vec<_>>().join(" ")
        );
        let output = Command::new(&self.program)
            .args(args)
            .env("HUB_API", format!("http://{}", self.api))
            .env("HUB_TOKEN_FILE", &self.token_file)
            .stdin(Stdio::null())
            .output()
            .await
            .context("cannot run this program again")?;
        for line in String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).lines() {
            println!("     {line}");
        }
        let code = output.status.code().context("the command was killed")?;
        println!("     (exit code {code})");
        Ok(())
    }
}

async fn serve_page() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let page = || async {
        let page = Response::builder().header(header::CONTENT_TYPE, "text/html; charset=utf-8");
        Ok::<_, Infallible>(
            page.body(Full::new(Bytes::from_static(PAGE.as_bytes())))
                .unwrap_or_default(),
        )
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(move |_| page()));
            tokio::spawn(connection);
        }
    });
    Ok(address)
}
