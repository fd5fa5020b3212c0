//! `hub events`: what happens on nodes, one line each, the node in front.

use std::io::{self, Write as _};
use std::time::SystemTime;

use clap::Args;
use hub_protocol::kind::records::EventRecord;

use super::show::clean;
use super::units::{parse_pair, parse_time, time_of_ns};
use super::{CliError, Context, json_line, said};
use crate::client::records::{Events, NodeEvent};

/// The arguments of `hub events`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hub events                                 of all nodes, also of those that join
  hub events shop-4 --since 1h --filter event=die
  hub --json events --filter label=shop=4

Filters: type, event, container, image, label, volume, network; of one key any value matches.
Where a node's daemon has forgotten events, a line says from when to when, and how each container
is now.")]
pub(super) struct EventsArgs {
    /// From this time on: RFC 3339, seconds since 1970, or how long ago: 10m, 1h30m
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Until this time, written alike: 0s is now
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Only what matches
    #[arg(short = 'f', long = "filter", value_name = "KEY=VALUE", value_parser = parse_pair)]
    filters: Vec<(String, String)>,
    /// The nodes' names or ids; all without
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
}

pub(super) async fn run(context: &Context, arguments: EventsArgs) -> Result<i32, CliError> {
    let now = SystemTime::now();
    let time = |text: Option<String>| text.map(|text| parse_time(&text, now)).transpose();
    let watch = Events {
        nodes: arguments.nodes,
        since: time(arguments.since)?,
        until: time(arguments.until)?,
        filters: arguments.filters,
        cursors: [].into(),
    };
    let mut records = context.client()?.watch(watch);
    while let Some(next) = records.next().await? {
        let Some((json, record)) = said(next) else {
            continue;
        };
        let mut stdout = io::stdout().lock();
        match record {
            _ if context.json() => json_line(&mut stdout, &json)?,
            Some(event) => writeln!(stdout, "{}", line(&event))?,
            None => writeln!(
                stdout,
                "an event that only a later release can read is left out"
            )?,
        }
        stdout.flush()?;
    }
    Ok(0)
}

fn line(event: &NodeEvent) -> String {
    let text = match &event.record {
        EventRecord::Event {
            time_ns,
            kind,
            action,
            id,
            attributes,
            ..
        } => {
            let attributes: Vec<_> = attributes
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            let time = time_of_ns(*time_ns);
            if attributes.is_empty() {
                format!("{time} {kind} {action} {id}")
            } else {
                format!("{time} {kind} {action} {id} ({})", attributes.join(", "))
            }
        }
        EventRecord::Gap {
            from_ns,
            to_ns,
            why,
            ..
        } => {
            let from = from_ns.map_or_else(|| "an unknown time".into(), time_of_ns);
            format!(
                "{} gap: events are missing since {from}: {why}",
                time_of_ns(*to_ns)
            )
        }
        EventRecord::State {
            id, name, state, ..
        } => format!("state: container {id} is {state} (name={name})"),
        EventRecord::Lagged { events, .. } => {
            format!("lagged {events}: so many events were left out, for they were not read in time")
        }
    };
    clean(&format!("{} {text}", event.node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_a_line() {
        let line = |record| {
            line(&NodeEvent {
                node: "shop-4".into(),
                record,
            })
        };
        let cursor = || "c".to_owned();
        let die = EventRecord::Event {
            time_ns: 1_500_000_000,
            kind: "container".into(),
            action: "die".into(),
            id: "0f".into(),
            attributes: [("exitCode", "3"), ("name", "a\nb")]
                .map(|(key, value)| (key.into(), value.into()))
                .into(),
            cursor: cursor(),
        };
        assert_eq!(
            line(die),
            "shop-4 1970-01-01T00:00:01.500000000Z container die 0f (exitCode=3, name=a?b)"
        );
        let gap = EventRecord::Gap {
            from_ns: None,
            to_ns: 0,
            why: "the daemon was away".into(),
            cursor: cursor(),
        };
        assert_eq!(
            line(gap),
            "shop-4 1970-01-01T00:00:00.000000000Z gap: events are missing since an unknown time: \
             the daemon was away"
        );
        let state = EventRecord::State {
            id: "0f".into(),
            name: "web".into(),
            state: "running".into(),
            cursor: cursor(),
        };
        assert_eq!(
            line(state),
            "shop-4 state: container 0f is running (name=web)"
        );
        let lagged = EventRecord::Lagged {
            events: 7,
            cursor: cursor(),
        };
        assert!(line(lagged).starts_with("shop-4 lagged 7: "));
    }
}
