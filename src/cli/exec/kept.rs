//! Commands that outlive their clients: list them, come back, ask how they ended, stop them.

use std::io::{self, IsTerminal as _};

use clap::Subcommand;
use hub_protocol::kind::call::Change;
use hub_protocol::kind::call::exec::{Kept, KeptState, List, Status, Stop};

use super::person::Person;
use super::session::Session;
use super::{HUB_FAILED, KeyArgs, terminal};
use crate::cli::show::time_of_ms;
use crate::cli::table::table;
use crate::cli::{CliError, Context, fail, finish};
use crate::client::exec::Attach;

/// The exit code where nobody knows how a command ended.
const NOT_KNOWN: i32 = 1;

#[derive(Debug, Subcommand)]
pub(super) enum KeptCommand {
    /// List the kept commands of a node
    Ls {
        /// The node's name or id
        node: String,
    },
    /// Come back to a kept command: its output goes on where its node remembers it
    Attach {
        /// Send it nothing
        #[arg(long)]
        no_stdin: bool,
        #[command(flatten)]
        keys: KeyArgs,
        /// The node's name or id
        node: String,
        /// The command's id, or the beginning of it
        id: String,
    },
    /// Show how a kept command is, or ended; exit code 1 where nobody knows
    Status {
        /// The node's name or id
        node: String,
        /// The command's id, or the beginning of it
        id: String,
    },
    /// Stop a kept command, or forget one that has ended
    Stop {
        /// The node's name or id
        node: String,
        /// The command's id, or the beginning of it
        id: String,
    },
}

pub(super) async fn run(context: &Context, command: KeptCommand) -> i32 {
    let result = match command {
        KeptCommand::Ls { node } => ls(context, &node).await.map(|()| 0),
        KeptCommand::Attach {
            no_stdin,
            keys,
            node,
            id,
        } => attach(context, node, id, !no_stdin, keys).await,
        KeptCommand::Status { node, id } => status(context, &node, id).await,
        KeptCommand::Stop { node, id } => stop(context, &node, id).await.map(|()| 0),
    };
    finish(result, HUB_FAILED)
}

async fn ls(context: &Context, node: &str) -> Result<(), CliError> {
    let kept = context.client()?.call(node, &List {}).await?;
    context.print(&kept, |kept| {
        if kept.is_empty() {
            return format!("No command is kept on {node}.\n");
        }
        let rows: Vec<_> = kept.iter().map(row).collect();
        let headings = [
            "ID",
            "CONTAINER",
            "COMMAND",
            "TTY",
            "STARTED",
            "ATTACHED",
            "STATE",
        ];
        table(headings, &rows)
    })
}

fn row(kept: &Kept) -> [String; 7] {
    let yes = |yes| if yes { "yes" } else { "no" }.to_owned();
    [
        kept.id.clone(),
        kept.container.clone().unwrap_or_else(|| "-".into()),
        kept.command.clone(),
        yes(kept.tty),
        time_of_ms(kept.started_ms),
        yes(kept.attached),
        state(kept.state),
    ]
}

fn state(state: KeptState) -> String {
    match state {
        KeptState::Running => "running".into(),
        KeptState::Exited { code } => format!("exited with code {code}"),
        KeptState::Signaled { signal } => format!("killed by signal {signal}"),
        KeptState::Unknown => "unknown".into(),
    }
}

async fn find(context: &Context, node: &str, id: String) -> Result<Kept, CliError> {
    let found = context
        .client()?
        .call(node, &Status { id: id.clone() })
        .await?;
    found.ok_or_else(|| no_such(node, &id))
}

fn no_such(node: &str, id: &str) -> CliError {
    CliError::NotThere(format!(
        "node {node} keeps no command {id}; `hub exec ls {node}` lists those it keeps, and one \
         ends with the agent's process"
    ))
}

async fn status(context: &Context, node: &str, id: String) -> Result<i32, CliError> {
    let kept = find(context, node, id).await?;
    context.print(&kept, |kept| state(kept.state))?;
    Ok(match kept.state {
        KeptState::Unknown => NOT_KNOWN,
        _ => 0,
    })
}

async fn stop(context: &Context, node: &str, id: String) -> Result<(), CliError> {
    let change = context
        .client()?
        .call(node, &Stop { id: id.clone() })
        .await?;
    match change {
        Change::NotFound => Err(no_such(node, &id)),
        Change::Changed | Change::Unchanged => context.print(&change, |_| id.clone()),
    }
}

async fn attach(
    context: &Context,
    node: String,
    id: String,
    stdin: bool,
    keys: KeyArgs,
) -> Result<i32, CliError> {
    let kept = find(context, &node, id).await?;
    if kept.tty && stdin && !io::stdin().is_terminal() {
        let text = "standard input is no terminal, and the command has one: give --no-stdin";
        return Ok(fail(text, HUB_FAILED));
    }
    let mut person = Person::new(true, kept.tty)?;
    let client = context.client()?;
    let wanted = Attach {
        node,
        id: kept.id,
        seen: None,
        size: terminal::size().filter(|_| kept.tty),
    };
    let exec = tokio::select! {
        left = person.leaves.next() => return Ok(left.code()),
        attached = client.attach(&wanted) => attached?,
    };
    let session = Session {
        client,
        node: wanted.node,
        id: wanted.id,
        kept: true,
        stdin,
        tty: kept.tty,
        detach_keys: keys.detach_keys,
    };
    Ok(session.run(exec, person).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_said_in_words() {
        let states = [
            (KeptState::Running, "running"),
            (KeptState::Exited { code: 3 }, "exited with code 3"),
            (KeptState::Signaled { signal: 9 }, "killed by signal 9"),
            (KeptState::Unknown, "unknown"),
        ];
        for (is, text) in states {
            assert_eq!(state(is), text);
        }
    }
}
