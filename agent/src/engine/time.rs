//! Times as the daemon writes them.

/// Seconds since 1970 UTC of an RFC 3339 time, without its fraction; `None` for anything else.
pub(super) fn seconds(text: &str) -> Option<i64> {
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        digits
            .bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| digits.parse().ok())?
    };
    let mark = |at: usize, marks: &[u8]| Some(marks.contains(text.as_bytes().get(at)?));
    let marks = mark(4, b"-")? && mark(7, b"-")? && mark(10, b"Tt ")?;
    if !marks || !mark(13, b":")? || !mark(16, b":")? {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let rest = &text[19..];
    let rest = match rest.strip_prefix('.') {
        Some(rest) => rest.trim_start_matches(|c: char| c.is_ascii_digit()),
        None => rest,
    };
    let offset = match rest {
        "Z" | "z" => 0,
        _ if rest.len() == 6 => {
            let at = text.len() - 6;
            let offset = number(at + 1, at + 3)? * 3600 + number(at + 4, at + 6)? * 60;
            match (rest.as_bytes()[0], rest.as_bytes()[3]) {
                (b'+', b':') => offset,
                (b'-', b':') => -offset,
                _ => return None,
            }
        }
        _ => return None,
    };
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    Some(days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset)
}

/// Days from 1970-01-01 to a day of the Gregorian calendar. Years are counted from March, so that a
/// leap day is the last of its year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468
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
}
