//! Points in time as requests write them.

const NANOS: i128 = 1_000_000_000;

/// Nanoseconds since 1970 UTC: of RFC 3339 with any offset, or written as that number.
pub(super) fn parse(text: &str) -> Option<i64> {
    text.parse().ok().or_else(|| rfc3339(text))
}

fn rfc3339(text: &str) -> Option<i64> {
    // Cut at byte positions below.
    if !text.is_ascii() || text.len() < "2026-01-31T09:30:00Z".len() {
        return None;
    }
    let separators = [(4, "-"), (7, "-"), (10, "Tt "), (13, ":"), (16, ":")];
    let separated = separators
        .iter()
        .all(|(at, allowed)| allowed.as_bytes().contains(&text.as_bytes()[*at]));
    if !separated {
        return None;
    }
    let [year, month, day] = [&text[..4], &text[5..7], &text[8..10]].map(digits);
    let [hour, minute, second] = [&text[11..13], &text[14..16], &text[17..19]].map(digits);
    let (year, month, day) = (year?, month?, day?);
    let (hour, minute, second) = (hour?, minute?, second?);
    // 60 is a leap second: the first of the next minute, which is what POSIX makes of it.
    let valid = (1..=12).contains(&month)
        && (1..=days_of(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !valid {
        return None;
    }
    let (nanos, zone) = fraction(&text[19..])?;
    let days = days_since_1970(year, month, day);
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second - offset(zone)?;
    i64::try_from(i128::from(seconds) * NANOS + i128::from(nanos)).ok()
}

fn digits(text: &str) -> Option<i64> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

/// Nanoseconds of what may begin with a fraction of a second, and what follows it. Digits beyond
/// the ninth are cut off.
fn fraction(text: &str) -> Option<(i64, &str)> {
    let Some(rest) = text.strip_prefix('.') else {
        return Some((0, text));
    };
    let end = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (fraction, zone) = rest.split_at(end);
    let nanos = format!("{:0<9}", &fraction[..fraction.len().min(9)]);
    (!fraction.is_empty()).then_some((digits(&nanos)?, zone))
}

/// Seconds by which a zone is ahead of UTC.
fn offset(zone: &str) -> Option<i64> {
    if zone == "Z" || zone == "z" {
        return Some(0);
    }
    let sign = match zone.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = zone[1..].split_once(':')?;
    let (hours, minutes) = match (hours.len(), minutes.len()) {
        (2, 2) => (digits(hours)?, digits(minutes)?),
        _ => return None,
    };
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

fn days_of(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Of a date of the Gregorian calendar. Years are counted from March here, which puts the leap day
/// last; 400 years are 146,097 days.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    const FROM_MARCH_OF_YEAR_0_TO_1970: i64 = 719_468;
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - FROM_MARCH_OF_YEAR_0_TO_1970
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
