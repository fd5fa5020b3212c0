//! `hub logs`: what a container printed, byte for byte.

use std::io::{self, Write};
use std::time::SystemTime;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clap::Args;
use hub_protocol::kind::records::{LogRecord, Output};

use super::show::clean;
use super::target::ContainerTarget;
use super::units::parse_time;
use super::{CliError, Context, json_line, said, say};
use crate::client::records::{Logs, Records};

/// The arguments of `hub logs`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hub logs -f --tail 20 shop-4/web           go on as it prints
  hub logs --since 1h30m -t shop-4/web       with the time of each line
  hub logs shop-4/web 2>/dev/null            what it printed on standard output

Where the node's daemon has thrown lines away, a line on standard error says so.")]
pub(super) struct LogsArgs {
    /// Go on as it prints
    #[arg(short = 'f', long)]
    follow: bool,
    /// The last lines only: a number, or all
    #[arg(short = 'n', long, value_name = "LINES", value_parser = parse_tail)]
    tail: Option<Tail>,
    /// From this time on: RFC 3339, seconds since 1970, or how long ago: 10m, 1h30m
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Until this time, written alike: 0s is now
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Print the time before each line
    #[arg(short = 't', long)]
    timestamps: bool,
    /// The container
    #[arg(value_name = "NODE/CONTAINER")]
    target: ContainerTarget,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tail {
    All,
    Last(u64),
}

fn parse_tail(text: &str) -> Result<Tail, String> {
    match text {
        "all" => Ok(Tail::All),
        text => text
            .parse()
            .map(Tail::Last)
            .map_err(|_| "it takes a number, or all".into()),
    }
}

pub(super) async fn run(context: &Context, arguments: LogsArgs) -> Result<i32, CliError> {
    let now = SystemTime::now();
    let time = |text: Option<String>| text.map(|text| parse_time(&text, now)).transpose();
    let watch = Logs {
        node: arguments.target.node,
        container: arguments.target.container,
        follow: arguments.follow,
        output: None,
        tail: match arguments.tail {
            Some(Tail::Last(lines)) => Some(lines),
            Some(Tail::All) | None => None,
        },
        since: time(arguments.since)?,
        until: time(arguments.until)?,
        cursor: None,
    };
    let records = context.client()?.watch(watch);
    follow(context, records, arguments.timestamps).await?;
    Ok(0)
}

/// Prints a log to its end: standard output there, standard error there.
pub(super) async fn follow(
    context: &Context,
    mut records: Records<Logs>,
    timestamps: bool,
) -> Result<(), CliError> {
    let mut printer = LogPrinter {
        timestamps,
        begins: [true, true],
    };
    while let Some(next) = records.next().await? {
        let Some((json, record)) = said(next) else {
            continue;
        };
        if context.json() {
            let mut stdout = io::stdout().lock();
            json_line(&mut stdout, &json)?;
            stdout.flush()?;
            continue;
        }
        match record {
            Some(LogRecord::Gap { why }) => {
                say(&format!("lines are missing here: {}", clean(&why)), false);
            }
            Some(line) => {
                let (stdout, stderr) = (&mut io::stdout().lock(), &mut io::stderr().lock());
                printer.print(&line, stdout, stderr)?;
            }
            None => say(
                "a record that only a later release can read is left out",
                false,
            ),
        }
    }
    Ok(())
}

/// Prints lines, which may come in parts.
struct LogPrinter {
    timestamps: bool,
    /// Whether a new line begins: on standard output, on standard error.
    begins: [bool; 2],
}

impl LogPrinter {
    fn print(
        &mut self,
        record: &LogRecord,
        stdout: &mut impl Write,
        stderr: &mut impl Write,
    ) -> io::Result<()> {
        let LogRecord::Line {
            output,
            time,
            text,
            base64,
            ..
        } = record
        else {
            return Ok(());
        };
        let decoded;
        let bytes = match (text, base64) {
            (Some(text), _) => text.as_bytes(),
            (None, Some(base64)) => {
                decoded = BASE64_STANDARD.decode(base64).map_err(io::Error::other)?;
                &decoded[..]
            }
            (None, None) => &[],
        };
        let begins = &mut self.begins[*output as usize];
        let mut line = Vec::with_capacity(bytes.len() + 40);
        if self.timestamps && *begins {
            line.extend_from_slice(time.as_bytes());
            line.push(b' ');
        }
        line.extend_from_slice(bytes);
        *begins = bytes.ends_with(b"\n");
        match output {
            Output::Stdout => {
                stdout.write_all(&line)?;
                stdout.flush()
            }
            Output::Stderr => stderr.write_all(&line),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn line(output: Output, text: Option<&str>, base64: Option<&str>) -> LogRecord {
        LogRecord::Line {
            output,
            time: "T".into(),
            text: text.map(str::to_owned),
            base64: base64.map(str::to_owned),
            cursor: "c".into(),
        }
    }

    #[test]
    fn outputs_are_apart_and_times_stand_before_whole_lines() {
        let records = [
            line(Output::Stdout, Some("a part "), None),
            line(Output::Stderr, Some("err\n"), None),
            line(Output::Stdout, None, Some("/wAK")),
            line(Output::Stdout, Some("b\n"), None),
        ];
        for (timestamps, expected) in [
            (false, (&b"a part \xff\x00\nb\n"[..], &b"err\n"[..])),
            (true, (b"T a part \xff\x00\nT b\n", b"T err\n")),
        ] {
            let mut printer = LogPrinter {
                timestamps,
                begins: [true, true],
            };
            let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
            for record in &records {
                printer.print(record, &mut stdout, &mut stderr).unwrap();
            }
            assert_eq!((&stdout[..], &stderr[..]), expected);
        }
    }

    #[test]
    fn tails_are_numbers_or_all() {
        assert_eq!(parse_tail("all"), Ok(Tail::All));
        assert_eq!(parse_tail("0"), Ok(Tail::Last(0)));
        assert!(parse_tail("-1").is_err() && parse_tail("some").is_err());
    }
}
