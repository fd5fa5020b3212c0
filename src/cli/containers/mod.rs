//! Containers of a node, in docker's habits.

mod spec;

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use clap::{Args, Subcommand};
use hub_protocol::kind::call::Change;
use hub_protocol::kind::call::container::{
    Container, Inspect, List, Port, Remove, Start, State, Stop, Summary, Update,
};

use super::logs;
use super::show::clean;
use super::table::table;
use super::target::ContainerTarget;
use super::units::ago;
use super::{CliError, Context, exec, lines};
use crate::client::Client;
use crate::client::records::Logs;
use spec::{ResourceArgs, SpecArgs};

#[derive(Debug, Subcommand)]
pub(super) enum ContainersCommand {
    /// List the containers of a node
    #[command(after_help = "\
Examples:
  hub ps shop-4                              those that run
  hub ps -a shop-4 --filter label=shop=4     all with a label")]
    Ps {
        /// The node's name or id
        node: String,
        /// Those that do not run, too
        #[arg(short = 'a', long)]
        all: bool,
        /// Only those with label=KEY[=VALUE], or whose names begin with name=PREFIX
        #[arg(short = 'f', long, value_name = "KEY=VALUE", value_parser = parse_filter)]
        filter: Vec<Filter>,
        /// Print ids only
        #[arg(short = 'q', long)]
        quiet: bool,
    },
    /// Create a container; the image is pulled if it is not there
    #[command(after_help = "\
Examples:
  hub create --name web -p 8080:80 -m 512m shop-4 nginx:1.27
  hub create -e TOKEN -v data:/data shop-4 backup -- --every 1h")]
    Create(Box<CreateArgs>),
    /// Create a container, start it and follow its output to its end
    #[command(after_help = "\
Examples:
  hub run shop-4 busybox -- uname -a
  hub run -d --name web -p 8080:80 shop-4 nginx:1.27

Exit codes: that of the container; 125 where Hub itself failed. Ctrl-C leaves the container running.")]
    Run {
        /// Do not follow it: print its id
        #[arg(short = 'd', long)]
        detach: bool,
        /// Remove the container when it has ended
        #[arg(long, conflicts_with = "detach")]
        rm: bool,
        #[command(flatten)]
        create: Box<CreateArgs>,
    },
    /// Start containers
    Start(Targets),
    /// Stop containers: their stop signal, then KILL
    Stop {
        /// Seconds before KILL; a negative number waits for ever
        #[arg(
            short = 't',
            long,
            value_name = "SECONDS",
            allow_negative_numbers = true
        )]
        time: Option<i64>,
        #[command(flatten)]
        targets: Targets,
    },
    /// Remove containers
    Rm {
        /// Kill those that run first; one that is not there is no error
        #[arg(short = 'f', long)]
        force: bool,
        /// Remove their volumes that have no name, too
        #[arg(short = 'v', long)]
        volumes: bool,
        #[command(flatten)]
        targets: Targets,
    },
    /// Show all about containers, as JSON
    Inspect(Targets),
    /// Change what containers may use; what is not named stays as it is
    #[command(after_help = "\
Example:
  hub update -m 1g --cpus 2 shop-4/web")]
    Update {
        #[command(flatten)]
        resources: ResourceArgs,
        #[command(flatten)]
        targets: Targets,
    },
}

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    #[command(flatten)]
    spec: SpecArgs,
    /// The node's name or id
    node: String,
    /// The image's name or id
    image: String,
    /// The arguments; the image's own without
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct Targets {
    /// The containers
    #[arg(required = true, value_name = "NODE/CONTAINER")]
    targets: Vec<ContainerTarget>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Filter {
    Label(String, Option<String>),
    Name(String),
}

fn parse_filter(text: &str) -> Result<Filter, String> {
    match text.split_once('=') {
        Some(("label", label)) if !label.is_empty() && !label.starts_with('=') => {
            Ok(match label.split_once('=') {
                Some((key, value)) => Filter::Label(key.to_owned(), Some(value.to_owned())),
                None => Filter::Label(label.to_owned(), None),
            })
        }
        Some(("name", prefix)) => Ok(Filter::Name(prefix.to_owned())),
        _ => Err(format!(
            "{text:?}: it takes label=KEY, label=KEY=VALUE or name=PREFIX"
        )),
    }
}

/// Adds a label to those that are wanted. One that has to have two values has neither.
fn add_label(
    labels: &mut BTreeMap<String, Option<String>>,
    key: String,
    value: Option<String>,
) -> Result<(), CliError> {
    let wanted = labels.entry(key).or_default();
    match value {
        Some(value) if wanted.as_ref().is_some_and(|wanted| *wanted != value) => {
            let text = "a label has one value: two filters give it two, and no container has both";
            Err(CliError::Usage(text.into()))
        }
        Some(value) => {
            *wanted = Some(value);
            Ok(())
        }
        None => Ok(()),
    }
}

pub(super) async fn run(context: &Context, command: ContainersCommand) -> Result<i32, CliError> {
    match command {
        ContainersCommand::Ps {
            node,
            all,
            filter,
            quiet,
        } => {
            let mut list = List {
                all,
                ..List::default()
            };
            for filter in filter {
                match filter {
                    Filter::Label(key, value) => add_label(&mut list.labels, key, value)?,
                    Filter::Name(prefix) => list.prefix = Some(prefix),
                }
            }
            let found = context.client()?.call(&node, &list).await?;
            let now = std::time::SystemTime::now();
            context.print(&found, |found| {
                if quiet {
                    lines(found.iter().map(|container| &container.id))
                } else {
                    containers(found, now)
                }
            })?;
        }
        ContainersCommand::Create(arguments) => {
            let client = context.client()?;
            let (_, created) = create(&client, *arguments).await?;
            context.print(&created, |created| created.id.clone())?;
        }
        ContainersCommand::Run { detach, rm, create } => {
            return follow(context, *create, detach, rm)
                .await
                .or_else(|error| match error {
                    CliError::Output(error) => Err(CliError::Output(error)),
                    error => Ok(super::fail(&error.to_string(), exec::HUB_FAILED)),
                });
        }
        ContainersCommand::Start(targets) => {
            let start = async |client: &Client, at: &ContainerTarget| {
                let container = at.container.clone();
                client.call(&at.node, &Start { container }).await
            };
            return each(context, targets, false, start).await;
        }
        ContainersCommand::Stop { time, targets } => {
            let stop = async |client: &Client, at: &ContainerTarget| {
                let stop = Stop {
                    container: at.container.clone(),
                    timeout_s: time,
                };
                client.call(&at.node, &stop).await
            };
            return each(context, targets, false, stop).await;
        }
        ContainersCommand::Rm {
            force,
            volumes,
            targets,
        } => {
            let remove = async |client: &Client, at: &ContainerTarget| {
                let remove = Remove {
                    container: at.container.clone(),
                    force,
                    volumes,
                };
                client.call(&at.node, &remove).await
            };
            return each(context, targets, force, remove).await;
        }
        ContainersCommand::Update { resources, targets } => {
            let update = async |client: &Client, at: &ContainerTarget| {
                let update = Update {
                    container: at.container.clone(),
                    resources: resources.clone().into(),
                };
                client.call(&at.node, &update).await
            };
            return each(context, targets, false, update).await;
        }
        ContainersCommand::Inspect(targets) => {
            let client = context.client()?;
            let mut found: Vec<Container> = Vec::new();
            for at in &targets.targets {
                let container = at.container.clone();
                let container = client.call(&at.node, &Inspect { container }).await?;
                found.push(container.ok_or_else(|| no_such(at))?);
            }
            context.print_json(&found)?;
        }
    }
    Ok(0)
}

fn no_such(at: &ContainerTarget) -> CliError {
    CliError::NotThere(format!(
        "there is no container {} on node {}; `hub ps -a {}` lists those there are",
        at.container, at.node, at.node
    ))
}

/// Does the same to each: prints those that it is done to, says what fails, and goes on.
async fn each(
    context: &Context,
    targets: Targets,
    absence_is_fine: bool,
    change: impl AsyncFn(&Client, &ContainerTarget) -> Result<Change, crate::client::ClientError>,
) -> Result<i32, CliError> {
    let client = context.client()?;
    let (mut done, mut code) = (Vec::new(), 0);
    for at in targets.targets {
        match change(&client, &at).await {
            Ok(Change::NotFound) if !absence_is_fine => {
                code = super::fail(&no_such(&at).to_string(), super::FAILED);
            }
            Ok(change) => {
                if !context.json() {
                    writeln!(io::stdout(), "{at}")?;
                }
                done.push(serde_json::json!({ "container": at.to_string(), "change": change }));
            }
            Err(error) => code = super::fail(&format!("{at}: {error}"), super::FAILED),
        }
    }
    if context.json() {
        context.print_json(&done)?;
    }
    Ok(code)
}

/// Creates a container. Gives its place, too.
async fn create(
    client: &Client,
    arguments: CreateArgs,
) -> Result<
    (
        ContainerTarget,
        hub_protocol::kind::call::container::Created,
    ),
    CliError,
> {
    let registry = arguments.spec.registry.credentials(&arguments.image)?;
    let here = |name: &str| std::env::var(name).ok();
    let create = arguments
        .spec
        .create(
            arguments.image,
            arguments.command,
            registry,
            spare_name,
            here,
        )
        .map_err(|error| CliError::Usage(error.to_string()))?;
    let created = super::images::with_progress(client, &arguments.node, &create).await?;
    for warning in &created.warnings {
        super::fail(&format!("the daemon warns: {}", clean(warning)), 0);
    }
    let at = ContainerTarget {
        node: arguments.node,
        container: create.name,
    };
    Ok((at, created))
}

/// A name that nobody else has.
fn spare_name() -> String {
    let mut bytes = [0; 8];
    // Without dice the node says that the name is taken.
    let _ = getrandom::fill(&mut bytes);
    format!("hub-{:012x}", u64::from_be_bytes(bytes) >> 16)
}

async fn follow(
    context: &Context,
    arguments: CreateArgs,
    detach: bool,
    rm: bool,
) -> Result<i32, CliError> {
    let client = context.client()?;
    let (at, created) = create(&client, arguments).await?;
    let container = created.id.clone();
    client
        .call(
            &at.node,
            &Start {
                container: container.clone(),
            },
        )
        .await?;
    if detach {
        context.print(&created, |created| created.id.clone())?;
        return Ok(0);
    }
    let watch = Logs {
        node: at.node.clone(),
        container: container.clone(),
        follow: true,
        ..Logs::default()
    };
    logs::follow(context, client.watch(watch), false).await?;
    let state = client
        .call(
            &at.node,
            &State {
                container: container.clone(),
            },
        )
        .await?;
    if rm {
        let remove = Remove {
            container,
            force: false,
            volumes: true,
        };
        client.call(&at.node, &remove).await?;
    }
    match state.and_then(|state| state.exit_code) {
        Some(code) => Ok(i32::try_from(code & 0xff).unwrap_or(exec::HUB_FAILED)),
        None => Err(CliError::NotThere(format!(
            "nobody knows how {at} ended; `hub inspect {at}` says how it is"
        ))),
    }
}

fn containers(found: &[Summary], now: std::time::SystemTime) -> String {
    let rows: Vec<_> = found
        .iter()
        .map(|container| {
            [
                container.id.chars().take(12).collect(),
                container.image.clone(),
                ago(container.created_s, now),
                container.status.clone(),
                ports(&container.ports),
                container.name.clone(),
            ]
        })
        .collect();
    let headings = [
        "CONTAINER ID",
        "IMAGE",
        "CREATED",
        "STATUS",
        "PORTS",
        "NAME",
    ];
    table(headings, &rows)
}

fn ports(ports: &[Port]) -> String {
    let port = |port: &Port| {
        let inside = format!("{}/{}", port.container, port.protocol.name());
        match (&port.host_ip, port.host) {
            (_, 0) => inside,
            (Some(ip), host) if ip.contains(':') => format!("[{ip}]:{host}->{inside}"),
            (Some(ip), host) => format!("{ip}:{host}->{inside}"),
            (None, host) => format!("{host}->{inside}"),
        }
    };
    ports.iter().map(port).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use hub_protocol::kind::call::container::Protocol;

    use super::*;

    #[test]
    fn containers_are_a_table() {
        let port = |host, ip: Option<&str>| Port {
            container: 80,
            host,
            host_ip: ip.map(str::to_owned),
            protocol: Protocol::Tcp,
        };
        let found = [Summary {
            id: "0123456789abcdef".into(),
            name: "web".into(),
            image: "nginx".into(),
            state: "running".into(),
            status: "Up 3 minutes".into(),
            created_s: 0,
            labels: [].into(),
            ports: vec![
                port(0, None),
                port(8080, Some("0.0.0.0")),
                port(8080, Some("::")),
            ],
        }];
        let expected = "\
CONTAINER ID  IMAGE  CREATED        STATUS        PORTS                                            NAME
0123456789ab  nginx  3 minutes ago  Up 3 minutes  80/tcp, 0.0.0.0:8080->80/tcp, [::]:8080->80/tcp  web
";
        assert_eq!(
            containers(&found, UNIX_EPOCH + Duration::from_secs(180)),
            expected
        );
    }

    #[test]
    fn filters_are_labels_and_names() {
        let label =
            |key: &str, value: Option<&str>| Filter::Label(key.into(), value.map(Into::into));
        assert_eq!(parse_filter("label=a=b=c"), Ok(label("a", Some("b=c"))));
        assert_eq!(parse_filter("label=a="), Ok(label("a", Some(""))));
        assert_eq!(parse_filter("label=a"), Ok(label("a", None)));
        assert_eq!(parse_filter("name=web"), Ok(Filter::Name("web".into())));
        assert!(parse_filter("label=").is_err() && parse_filter("status=up").is_err());
        assert!(parse_filter("label==b").is_err());
        let mut labels = BTreeMap::new();
        for value in [None, Some("b"), None, Some("b")] {
            add_label(&mut labels, "a".into(), value.map(Into::into)).unwrap();
        }
        assert_eq!(labels, [("a".to_owned(), Some("b".to_owned()))].into());
        assert!(add_label(&mut labels, "a".into(), Some("c".into())).is_err());
    }
}
