//! Points in time, as the ledger stores them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point in time: milliseconds since 1970-01-01 00:00 UTC, leap seconds not counted.
///
/// It ends with the year 9999, where X.509 and RFC 3339 end too; arithmetic stops there instead
/// of wrapping, so that every value can be stored, printed and put into a certificate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "u64", into = "u64")]
pub struct Timestamp(u64);

impl Timestamp {
    /// 9999-12-31T23:59:59.999Z.
    pub const MAX: Self = Self(253_402_300_799_999);

    /// This many milliseconds after 1970-01-01 00:00 UTC, [`Self::MAX`] at most.
    pub const fn from_millis(millis: u64) -> Self {
        if millis > Self::MAX.0 {
            Self::MAX
        } else {
            Self(millis)
        }
    }

    /// Milliseconds since 1970-01-01 00:00 UTC.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Whole seconds since 1970-01-01 00:00 UTC.
    pub const fn as_secs(self) -> u64 {
        self.0 / 1000
    }

    /// The same, less its fraction of a second.
    #[must_use]
    pub const fn floor_to_second(self) -> Self {
        Self(self.0 - self.0 % 1000)
    }

    /// This much later, [`Self::MAX`] at most.
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self::from_millis(self.0.saturating_add(whole_millis(duration)))
    }

    /// This much earlier, 1970 at least.
    #[must_use]
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(whole_millis(duration)))
    }

    /// How long ago `earlier` was; zero if it lies ahead.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl From<u64> for Timestamp {
    fn from(millis: u64) -> Self {
        Self::from_millis(millis)
    }
}

impl From<Timestamp> for u64 {
    fn from(timestamp: Timestamp) -> Self {
        timestamp.0
    }
}

/// RFC 3339 in UTC with milliseconds: `2026-01-31T09:30:00.000Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.0 / 1000, self.0 % 1000);
        let (year, month, day) = civil_date(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        f.pad(&format!(
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z"
        ))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Year, month and day of the Gregorian calendar, so many days after 1970-01-01.
///
/// Years are counted from March here, which puts the leap day last; 400 years are 146,097 days.
fn civil_date(days: u64) -> (u64, u64, u64) {
    const FROM_MARCH_OF_YEAR_0_TO_1970: u64 = 719_468;
    let days = days + FROM_MARCH_OF_YEAR_0_TO_1970;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_since_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_since_march + 2) / 5 + 1;
    let month = if months_since_march < 10 {
        months_since_march + 3
    } else {
        months_since_march - 9
    };
    (400 * era + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_known_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_164_800, "2024-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Timestamp::from_millis(seconds * 1000).to_string(), text);
        }
        assert_eq!(Timestamp::MAX.to_string(), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut previous = civil_date(0);
        for days in 1..=200_000 {
            let date = civil_date(days);
            let (year, month, day) = previous;
            let next_is = |expected| date == expected;
            assert!(
                next_is((year, month, day + 1))
                    || (day >= 28 && next_is((year, month + 1, 1)))
                    || (day == 31 && month == 12 && next_is((year + 1, 1, 1))),
                "{previous:?} is followed by {date:?}"
            );
            previous = date;
        }
    }

    #[test]
    fn arithmetic_stops_at_the_ends() {
        let now = Timestamp::from_millis(5_500);
        assert_eq!(now.saturating_sub(Duration::from_secs(9)).as_millis(), 0);
        assert_eq!(now.saturating_add(Duration::MAX), Timestamp::MAX);
        assert_eq!(now.floor_to_second().as_millis(), 5_000);
        assert_eq!(
            now.since(Timestamp::from_millis(5_000)),
            Duration::from_millis(500)
        );
        assert_eq!(now.since(Timestamp::MAX), Duration::ZERO);
    }
}
