//! Points in time as requests write them.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Nanoseconds since 1970 UTC: of RFC 3339 with any offset, or written as that number. Digits of a
/// second beyond the ninth are cut off. `None` also for times that nanoseconds in 64 bits don't
/// reach.
pub(super) fn parse(text: &str) -> Option<i64> {
    text.parse().ok().or_else(|| rfc3339(text))
}

fn rfc3339(text: &str) -> Option<i64> {
    // The library takes any sign between date and time.
    let separator = text.as_bytes().get(10)?;
    if !b"Tt ".contains(separator) {
        return None;
    }
    let time = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    i64::try_from(time.unix_timestamp_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use hub_ledger::Timestamp;

    use super::*;

    #[test]
    fn what_the_hub_prints_is_read() {
        for day in 0..40_000u64 {
            let millis = day * 86_400_000 * 2 + day * 1_009;
            let text = Timestamp::from_millis(millis).to_string();
            let expected = i64::try_from(u128::from(millis) * 1_000_000).ok();
            assert_eq!(parse(&text), expected, "{text}");
        }
    }

    #[test]
    fn known_times() {
        for (text, nanos) in [
            ("0", 0),
            ("1700000000123456789", 1_700_000_000_123_456_789),
            ("-5", -5),
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01t02:00:00.000000001+02:00", 1),
            ("1969-12-31T23:30:00-00:30", 0),
            ("2023-11-14 22:13:20.1234567899Z", 1_700_000_000_123_456_789),
            ("2024-02-29T00:00:00Z", 1_709_164_800_000_000_000),
        ] {
            assert_eq!(parse(text), Some(nanos), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "yesterday",
            "2026-01-31",
            "2026-01-31T09:30:00",
            "2026-13-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-01-31T24:00:00Z",
            "2026-01-31T09:30:00.Z",
            "2026-01-31T09:30:00+0100",
            "2026-01-31T09:30:00+01:0",
            "+026-01-31T09:30:00Z",
            "2026-01-31T09:30:00ü",
            "9999-12-31T00:00:00Z",
            "99999999999999999999",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
