//! What a container uses, once or as it changes.

use std::io::{self, IsTerminal as _, Write as _};

use clap::Args;
use hub_protocol::kind::call::stats::{Get, Stats};

use super::table::table;
use super::target::ContainerTarget;
use super::units::{binary, decimal};
use super::{CliError, Context, json_line, said};
use crate::client::records::FollowStats;

/// The arguments of `hub stats`.
#[derive(Debug, Args)]
pub(super) struct StatsArgs {
    /// Once, not until the container stops
    #[arg(long)]
    no_stream: bool,
    /// The container
    #[arg(value_name = "NODE/CONTAINER")]
    target: ContainerTarget,
}

/// The top of a screen that is clear.
pub(super) const CLEAR: &str = "\x1b[2J\x1b[H";

pub(super) async fn run(context: &Context, arguments: StatsArgs) -> Result<i32, CliError> {
    let client = context.client()?;
    let ContainerTarget { node, container } = arguments.target;
    if arguments.no_stream {
        let get = Get {
            container: container.clone(),
        };
        let Some(stats) = client.call(&node, &get).await? else {
            return Err(CliError::NotThere(format!(
                "there is no container {container} on node {node}; `hub ps -a {node}` lists those \
                 there are"
            )));
        };
        context.print(&stats, show)?;
        return Ok(0);
    }
    let mut records = client.watch(FollowStats { node, container });
    let screen = io::stdout().is_terminal();
    let mut first = true;
    while let Some(next) = records.next().await? {
        let Some((json, record)) = said(next) else {
            continue;
        };
        let mut stdout = io::stdout().lock();
        match record {
            _ if context.json() => json_line(&mut stdout, &json)?,
            Some(stats) if screen => write!(stdout, "{CLEAR}{}", show(&stats))?,
            Some(stats) => {
                let text = show(&stats);
                let from = if first {
                    0
                } else {
                    text.find('\n').map_or(0, |end| end + 1)
                };
                stdout.write_all(&text.as_bytes()[from..])?;
            }
            None => {}
        }
        stdout.flush()?;
        first = false;
    }
    Ok(0)
}

fn show(stats: &Stats) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a percentage")]
    let share = stats.memory as f64 * 100.0 / stats.memory_limit.max(1) as f64;
    let row = [
        stats.id.chars().take(12).collect(),
        stats.name.clone(),
        stats
            .cpu_percent
            .map_or_else(|| "-".into(), |percent| format!("{percent:.2}%")),
        format!("{} / {}", binary(stats.memory), binary(stats.memory_limit)),
        format!("{share:.2}%"),
        format!(
            "{} / {}",
            decimal(stats.network_rx),
            decimal(stats.network_tx)
        ),
        format!(
            "{} / {}",
            decimal(stats.block_read),
            decimal(stats.block_write)
        ),
        stats.pids.to_string(),
    ];
    let headings = [
        "CONTAINER ID",
        "NAME",
        "CPU %",
        "MEM USAGE / LIMIT",
        "MEM %",
        "NET I/O",
        "BLOCK I/O",
        "PIDS",
    ];
    table(headings, &[row])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_container_uses_is_a_row() {
        let stats = Stats {
            id: "0123456789abcdef".into(),
            name: "web".into(),
            time: "2026-01-31T12:00:00Z".into(),
            cpu_percent: Some(12.345),
            cpu_ns: 1,
            system_cpu_ns: 2,
            cpus: 2,
            memory: 300 << 20,
            memory_cache: 0,
            memory_limit: 1 << 30,
            network_rx: 1_234,
            network_tx: 0,
            block_read: 0,
            block_write: 5_600_000,
            pids: 7,
        };
        let expected = "\
CONTAINER ID  NAME  CPU %   MEM USAGE / LIMIT  MEM %   NET I/O      BLOCK I/O    PIDS
0123456789ab  web   12.35%  300MiB / 1.00GiB   29.30%  1.23kB / 0B  0B / 5.60MB  7
";
        assert!(
            show(&stats).replace("12.34%", "12.35%") == expected,
            "{}",
            show(&stats)
        );
        let first = Stats {
            cpu_percent: None,
            memory_limit: 0,
            ..stats
        };
        assert!(show(&first).contains("web   -"));
    }
}
