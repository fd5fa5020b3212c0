//! What browsers have under way, once or as it changes.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use clap::Args;
use hub_server::api::types::{Top, Underway};
use tokio::time::{Instant, sleep};

use super::stats::CLEAR;
use super::table::table;
use super::units::decimal;
use super::{CliError, Context};

/// How often a screen is drawn anew.
const PAUSE: Duration = Duration::from_secs(1);

/// The arguments of `hub top`.
#[derive(Debug, Args)]
#[command(after_help = "\
On a terminal the list is drawn anew each second; elsewhere it is printed once. What a stream waits
for is the browser, the target, the network, credit (the agent takes no more), or the hub.

Examples:
  hub top                                    what is under way, until Ctrl-C
  hub top --node shop-4                      the same, of one node
  hub top --json                             once, for programs")]
pub(super) struct TopArgs {
    /// Only what goes to this node
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
}

/// What is counted of each stream: its number, and its bytes in both directions.
type Counted = BTreeMap<u64, u64>;

pub(super) async fn run(context: &Context, arguments: TopArgs) -> Result<i32, CliError> {
    let client = context.client()?;
    let screen = io::stdout().is_terminal() && !context.json();
    let (mut before, mut then) = (Counted::new(), Instant::now());
    loop {
        let mut top = client.top().await?;
        if let Some(node) = &arguments.node {
            let of_node = |stream: &Underway| stream.node.as_ref() == Some(node);
            top.streams.retain(of_node);
        }
        if !screen {
            context.print(&top, |top| show(top, &before, Duration::ZERO))?;
            return Ok(0);
        }
        let text = show(&top, &before, then.elapsed());
        let mut stdout = io::stdout().lock();
        write!(stdout, "{CLEAR}{text}")?;
        stdout.flush()?;
        drop(stdout);
        (before, then) = (counted(&top), Instant::now());
        sleep(PAUSE).await;
    }
}

fn bytes(stream: &Underway) -> u64 {
    stream.bytes_in.saturating_add(stream.bytes_out)
}

fn counted(top: &Top) -> Counted {
    let streams = top.streams.iter();
    streams
        .map(|stream| (stream.number, bytes(stream)))
        .collect()
}

/// Bytes in a second: since the streams were counted, `passed` ago; of those that were not, since
/// they began.
fn rate(stream: &Underway, before: &Counted, passed: Duration) -> u64 {
    let (bytes, millis) = match before.get(&stream.number) {
        Some(before) => (bytes(stream).saturating_sub(*before), passed.as_millis()),
        None => (bytes(stream), u128::from(stream.age_ms)),
    };
    let rate = u128::from(bytes) * 1000 / millis.max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

fn show(top: &Top, before: &Counted, passed: Duration) -> String {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let row = |stream: &Underway| {
        let exposure = stream.name.clone();
        let what = match (&stream.method, stream.status) {
            (Some(method), Some(status)) => format!("{method} {status}"),
            (Some(method), None) => method.clone(),
            (None, _) => "-".into(),
        };
        [
            or_none(exposure.or(stream.exposure.map(|id| id.to_string()))),
            or_none(stream.node.clone()),
            stream.client.clone(),
            stream.kind.as_str().into(),
            what,
            age(stream.age_ms),
            decimal(stream.bytes_in),
            decimal(stream.bytes_out),
            format!("{}/s", decimal(rate(stream, before, passed))),
            stream.waits_for.as_str().into(),
        ]
    };
    let rows: Vec<_> = top.streams.iter().map(row).collect();
    let headings = [
        "EXPOSURE",
        "NODE",
        "CLIENT",
        "KIND",
        "REQUEST",
        "AGE",
        "IN",
        "OUT",
        "RATE",
        "WAITS FOR",
    ];
    table(headings, &rows)
}

/// How long something has been under way, in its two greatest units.
fn age(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0 => format!("{millis}ms"),
        1..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use hub_server::api::types::{StreamKind, WaitsFor};

    use super::*;

    fn stream() -> Underway {
        Underway {
            number: 3,
            exposure: Some(7),
            name: Some("shop".into()),
            node: Some("far".into()),
            kind: StreamKind::Http,
            method: Some("GET".into()),
            status: Some(200),
            client: "192.0.2.1".into(),
            user: None,
            age_ms: 2_000,
            bytes_in: 1_000,
            bytes_out: 5_000,
            waits_for: WaitsFor::Browser,
        }
    }

    #[test]
    fn what_is_under_way_is_a_row() {
        let unknown = Underway {
            number: 4,
            exposure: None,
            name: None,
            node: None,
            method: None,
            status: None,
            kind: StreamKind::Tcp,
            waits_for: WaitsFor::Hub,
            ..stream()
        };
        let top = Top {
            streams: vec![stream(), unknown],
        };
        let before = Counted::from([(3, 4_000)]);
        let expected = "\
EXPOSURE  NODE  CLIENT     KIND  REQUEST  AGE  IN      OUT     RATE      WAITS FOR
shop      far   192.0.2.1  http  GET 200  2s   1.00kB  5.00kB  4.00kB/s  browser
-         -     192.0.2.1  tcp   -        2s   1.00kB  5.00kB  3.00kB/s  hub
";
        assert_eq!(show(&top, &before, Duration::from_millis(500)), expected);
    }

    #[test]
    fn ages_have_two_units_at_most() {
        for (millis, expected) in [
            (0, "0ms"),
            (999, "999ms"),
            (59_999, "59s"),
            (61_000, "1m1s"),
            (3_600_000, "1h0m"),
            (90_000_000, "1d1h"),
        ] {
            assert_eq!(age(millis), expected);
        }
    }
}
