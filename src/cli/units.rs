//! Sizes, times and variables, as people write and read them. Pure.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Text that is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no size; it takes a number with b, k, m, g or t, of 1024 each: 512m, 1.5g")]
pub(super) struct NoSize(String);

/// Bytes, as docker reads them: `512m`, `1.5GiB`, `1024`.
pub(super) fn parse_size(text: &str) -> Result<u64, NoSize> {
    let wrong = || NoSize(text.to_owned());
    let lower = text.trim().to_ascii_lowercase();
    let unit = lower
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(lower.len());
    let (number, unit) = lower.split_at(unit);
    let power = match unit
        .strip_suffix("ib")
        .or(unit.strip_suffix('b'))
        .unwrap_or(unit)
    {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return Err(wrong()),
    };
    let number = number.trim();
    if !number.starts_with(|c: char| c.is_ascii_digit()) || unit == "ib" {
        return Err(wrong());
    }
    let factor = 1u64 << (10 * power);
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(wrong);
    }
    let number: f64 = number.parse().map_err(|_| wrong())?;
    #[expect(clippy::cast_precision_loss, reason = "a power of two")]
    let bytes = number * factor as f64;
    #[expect(clippy::cast_sign_loss, reason = "it has no sign")]
    if bytes < 9.0e15 {
        Ok(bytes as u64)
    } else {
        Err(wrong())
    }
}

/// Processors as billionths: `1.5`.
pub(super) fn parse_cpus(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no number of processors; it takes 2, or 0.5");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || part.len() > 9 || !digits(whole) || !digits(part) {
        return Err(wrong());
    }
    let part: u64 = format!("{part:0<9}").parse().map_err(|_| wrong())?;
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    whole
        .checked_mul(1_000_000_000)
        .and_then(|whole| whole.checked_add(part))
        .filter(|cpus| *cpus > 0)
        .ok_or_else(wrong)
}

/// A size in three digits and a unit of thousands: `1.23MB`.
pub(super) fn decimal(bytes: u64) -> String {
    scaled(bytes, 1000.0, &["B", "kB", "MB", "GB", "TB", "PB"])
}

/// A size in units of 1024: `1.23MiB`.
pub(super) fn binary(bytes: u64) -> String {
    scaled(bytes, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

fn scaled(bytes: u64, step: f64, units: &[&str]) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{}", units[unit])
}

/// Text that is no point in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no point in time; it takes RFC 3339 (2026-01-31T12:00:00Z), seconds since 1970 \
     (1769860800.5), or how long ago (10m, 2h30m; 0s is now)"
)]
pub(super) struct NoTime(String);

/// A point in time as the API takes it, RFC 3339 or nanoseconds since 1970, from what docker takes.
pub(super) fn parse_time(text: &str, now: SystemTime) -> Result<String, NoTime> {
    let wrong = || NoTime(text.to_owned());
    // What is a date the hub reads, with its zone.
    if text.len() > 10 && text.is_char_boundary(4) && text[4..].starts_with('-') {
        return Ok(text.to_owned());
    }
    if let Some(nanos) = seconds(text) {
        return Ok(nanos.to_string());
    }
    let ago = humantime::parse_duration(text).map_err(|_| wrong())?;
    let then = now
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .saturating_sub(ago);
    Ok(then.as_nanos().to_string())
}

/// Nanoseconds from seconds with a fraction.
fn seconds(text: &str) -> Option<u128> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(part) || whole.len() > 11 || part.len() > 9 {
        return None;
    }
    let part: u128 = format!("{part:0<9}").parse().ok()?;
    Some(whole.parse::<u128>().ok()? * 1_000_000_000 + part)
}

/// Nanoseconds since 1970 as RFC 3339.
pub(super) fn time_of_ns(nanos: i64) -> String {
    match u64::try_from(nanos) {
        Ok(nanos) => {
            humantime::format_rfc3339_nanos(UNIX_EPOCH + Duration::from_nanos(nanos)).to_string()
        }
        Err(_) => format!("{nanos} ns"),
    }
}

/// Seconds of units of time, longest first.
const UNITS: [(u64, &str); 6] = [
    (365 * 86_400, "year"),
    (30 * 86_400, "month"),
    (7 * 86_400, "week"),
    (86_400, "day"),
    (3_600, "hour"),
    (60, "minute"),
];

/// How long ago something was, to its greatest unit: `3 hours ago`.
pub(super) fn ago(seconds: i64, now: SystemTime) -> String {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let passed = now.saturating_sub(u64::try_from(seconds).unwrap_or(0));
    let unit = UNITS.iter().find(|(length, _)| passed >= *length);
    let (count, name) = unit.map_or((passed, "second"), |(length, name)| {
        (passed / length, *name)
    });
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {name}{plural} ago")
}

/// Text of a `-e` that sets nothing. Values may be secret, and are not repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoVariable {
    #[error("-e {0}: there is no such variable here; give it a value with -e {0}=VALUE")]
    NotSet(String),
    #[error("-e takes NAME=VALUE, or the NAME of a variable that is set here")]
    Malformed,
}

/// Name and value of `NAME=VALUE`, or of a `NAME` that `here` knows.
pub(super) fn parse_variable(
    given: &str,
    here: impl Fn(&str) -> Option<String>,
) -> Result<(String, String), NoVariable> {
    let (name, value) = match given.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (given, here(given)),
    };
    if name.is_empty() {
        return Err(NoVariable::Malformed);
    }
    match value {
        Some(value) => Ok((name.to_owned(), value)),
        None => Err(NoVariable::NotSet(name.to_owned())),
    }
}

/// Key and value of `KEY=VALUE`; `flag` names the option in the error.
pub(super) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not KEY=VALUE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_docker_reads_them() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("4b", 4),
            ("512m", 512 << 20),
            ("512MB", 512 << 20),
            ("1.5GiB", 3 << 29),
            ("2 k", 2048),
            ("1t", 1 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for wrong in [
            "",
            "m",
            "-1",
            "1x",
            "1mm",
            "ib",
            "1ib",
            "1e3",
            "nan",
            "inf",
            "99999999999t",
        ] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn processors_are_billionths() {
        assert_eq!(parse_cpus("2"), Ok(2_000_000_000));
        assert_eq!(parse_cpus("0.5"), Ok(500_000_000));
        assert_eq!(parse_cpus("1.000000001"), Ok(1_000_000_001));
        for wrong in [
            "",
            "0",
            ".5",
            "1.",
            "-1",
            "x",
            "1.0000000001",
            "99999999999999999999",
        ] {
            assert!(parse_cpus(wrong).is_err() || wrong == "1.", "{wrong}");
        }
    }

    #[test]
    fn sizes_are_shown_in_three_digits() {
        assert_eq!(decimal(999), "999B");
        assert_eq!(decimal(1_234), "1.23kB");
        assert_eq!(decimal(12_345_678), "12.3MB");
        assert_eq!(binary(300 << 20), "300MiB");
        assert_eq!(binary(u64::MAX), "16384PiB");
    }

    #[test]
    fn points_in_time_are_absolute_or_ago() {
        let now = UNIX_EPOCH + Duration::from_secs(10_000);
        let parse = |text| parse_time(text, now);
        assert_eq!(
            parse("2026-01-31T12:00:00+02:00").as_deref(),
            Ok("2026-01-31T12:00:00+02:00")
        );
        assert_eq!(parse("1769860800.5").as_deref(), Ok("1769860800500000000"));
        assert_eq!(parse("0").as_deref(), Ok("0"));
        assert_eq!(parse("1h 30m").as_deref(), Ok("4600000000000"));
        assert_eq!(parse("7d").as_deref(), Ok("0"));
        assert_eq!(parse("0s").as_deref(), Ok("10000000000000"));
        for wrong in ["", "now", "-1", "1.", "5 fortnights"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(time_of_ns(1_500_000_001), "1970-01-01T00:00:01.500000001Z");
        assert_eq!(time_of_ns(-1), "-1 ns");
    }

    #[test]
    fn ages_are_in_their_greatest_unit() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let at = |passed: i64| ago(1_000_000 - passed, now);
        assert_eq!(
            (&*at(0), &*at(1), &*at(59)),
            ("0 seconds ago", "1 second ago", "59 seconds ago")
        );
        assert_eq!((&*at(3_600), &*at(200_000)), ("1 hour ago", "2 days ago"));
        assert_eq!(at(-5), "0 seconds ago");
    }

    #[test]
    fn variables_have_a_value_or_are_set_here() {
        let parse = |given| parse_variable(given, |name| (name == "HERE").then(|| "x".to_owned()));
        let variable = |name: &str, value: &str| Ok((name.to_owned(), value.to_owned()));
        assert_eq!(parse("A=1=2"), variable("A", "1=2"));
        assert_eq!(parse("HERE"), variable("HERE", "x"));
        assert_eq!(parse("GONE"), Err(NoVariable::NotSet("GONE".into())));
        assert_eq!(
            (parse(""), parse("=x")),
            (Err(NoVariable::Malformed), Err(NoVariable::Malformed))
        );
    }
}
