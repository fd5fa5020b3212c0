//! Times as the daemon writes them, and as it takes them.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A time in RFC 3339. The library takes any sign between date and time.
fn parse(text: &str) -> Option<OffsetDateTime> {
    let separator = text.as_bytes().get(10)?;
    if !b"Tt ".contains(separator) {
        return None;
    }
    OffsetDateTime::parse(text, &Rfc3339).ok()
}

/// Seconds since 1970 UTC of an RFC 3339 time, without its fraction; `None` for anything else.
pub(super) fn seconds(text: &str) -> Option<i64> {
    Some(parse(text)?.unix_timestamp())
}

/// Nanoseconds since 1970 UTC of an RFC 3339 time; `None` for anything else, and for times that
/// nanoseconds in 64 bits don't reach.
pub(crate) fn nanoseconds(text: &str) -> Option<i64> {
    i64::try_from(parse(text)?.unix_timestamp_nanos()).ok()
}

/// A time as the daemon's queries take it.
pub(super) fn query_time(ns: i64) -> String {
    let ns = ns.max(0);
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Whether a time is the daemon's word for "never".
pub(super) fn is_never(text: &str) -> bool {
    text.is_empty() || text.starts_with("0001-01-01T00:00:00")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_from_1970() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2024-12-31T23:59:59.999999999Z", 1_735_689_599),
            ("2019-01-01T00:00:00-07:00", 1_546_326_000),
            ("2019-01-01T00:00:00.5+05:30", 1_546_281_000),
            ("1969-12-31T23:59:59Z", -1),
            ("0001-01-01T00:00:00Z", -62_135_596_800),
        ] {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
        for bad in [
            "",
            "x",
            "2024-13-01T00:00:00Z",
            "2024-01-01",
            "2024-01-01T00:00:00",
            "2024-01-01T00:00:00ä+1:00",
            "2024-01-01T00:00:0-Z",
        ] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
        assert!(is_never("0001-01-01T00:00:00Z") && is_never(""));
        assert!(!is_never("2024-01-01T00:00:00Z"));
    }

    #[test]
    fn times_count_nanoseconds_from_1970() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:00.000000001Z", 1),
            ("2000-02-29T12:00:00Z", 951_825_600_000_000_000),
            ("2024-12-31T23:59:59.999999999Z", 1_735_689_599_999_999_999),
            ("2019-01-01T00:00:00.5+05:30", 1_546_281_000_500_000_000),
            ("2019-01-01T00:00:00.25-07:00", 1_546_326_000_250_000_000),
            ("1969-12-31T23:59:59.5Z", -500_000_000),
        ] {
            assert_eq!(nanoseconds(text), Some(expected), "{text}");
        }
        for bad in [
            "",
            "x",
            "2024-13-01T00:00:00Z",
            "2024-01-01",
            "2024-01-01T00:00:00",
            "2024-01-01T00:00:00Zx",
            "2024-01-01T00:00:00ä+1:00",
            "9999-01-01T00:00:00Z",
        ] {
            assert_eq!(nanoseconds(bad), None, "{bad}");
        }
        assert_eq!(query_time(1_500_000_000), "1.500000000");
        assert_eq!(query_time(-5), "0.000000000");
    }
}
