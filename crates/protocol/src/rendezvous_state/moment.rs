//! Points in time as Python's `datetime` pickles them.

use std::fmt;

const DAY: i64 = 86_400_000_000;

/// Microseconds since 1970-01-01 00:00 UTC. Displayed as RFC 3339.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UtcMicros(pub i64);

impl UtcMicros {
    /// Seconds since 1970-01-01 00:00 UTC.
    #[expect(
        clippy::cast_precision_loss,
        reason = "microseconds of years 1 to 9999 are off by 16 at the most"
    )]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Reads the ten bytes of a pickled `datetime`: year (two, big-endian), month, day, hour, minute, second,
    /// and three of microseconds. Without a time zone they mean UTC, because PyTorch before 2.6 wrote them
    /// so.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "no field is outside its bytes, and no year beyond 9999"
    )]
    pub(super) fn from_datetime(bytes: &[u8; 10]) -> Option<Self> {
        let [year_high, year_low, month, day, hour, minute, second, micros @ ..] = *bytes;
        let year = i64::from(u16::from_be_bytes([year_high, year_low]));
        // The high bit is Python's `fold`, which has no meaning in UTC.
        let month = i64::from(month & 0x7f);
        let day = i64::from(day);
        let [hour, minute, second] = [hour, minute, second].map(i64::from);
        let micros = i64::from(u32::from_be_bytes([0, micros[0], micros[1], micros[2]]));
        let valid = (1..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=days_of_month(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60
            && micros < 1_000_000;
        let seconds = (hour * 60 + minute) * 60 + second;
        valid.then(|| Self(days_since_1970(year, month, day) * DAY + seconds * 1_000_000 + micros))
    }

    /// This clock reading in a zone that is `offset` microseconds ahead of UTC.
    pub(super) fn in_zone(self, offset: i64) -> Option<Self> {
        (offset.unsigned_abs() < DAY.unsigned_abs()).then(|| self.0.checked_sub(offset).map(Self))?
    }
}

/// A `timedelta` in microseconds.
pub(super) fn delta(days: i64, seconds: i64, micros: i64) -> Option<i64> {
    days.checked_mul(DAY)?.checked_add(seconds.checked_mul(1_000_000)?)?.checked_add(micros)
}

fn days_of_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days in the proleptic Gregorian calendar. Years count from March, so that a leap day is the last of its
/// year.
#[expect(clippy::arithmetic_side_effects, reason = "years are 1 to 9999")]
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let month = (month + 9) % 12;
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

/// The inverse of [`days_since_1970`]: year, month, day.
#[expect(clippy::arithmetic_side_effects, reason = "an `i64` holds 2^27 days of microseconds")]
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year_of_era + next_year, month, day)
}

impl fmt::Display for UtcMicros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date(self.0.div_euclid(DAY));
        let micros = self.0.rem_euclid(DAY);
        let seconds = micros / 1_000_000;
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let micros = micros % 1_000_000;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(bytes: [u8; 10]) -> Option<UtcMicros> {
        UtcMicros::from_datetime(&bytes)
    }

    #[test]
    fn a_datetime_is_the_microsecond_that_python_says() {
        // The results are those of datetime.timestamp() in Python 3.11.
        let cases = [
            ([0x07, 0xb2, 1, 1, 0, 0, 0, 0, 0, 0], 0, "1970-01-01T00:00:00.000000Z"),
            (
                [0x07, 0xd0, 2, 29, 23, 59, 59, 0x0f, 0x42, 0x3f],
                951_868_799_999_999,
                "2000-02-29T23:59:59.999999Z",
            ),
            (
                [0x07, 0xea, 11, 21, 2, 48, 41, 0x0c, 0x74, 0x46],
                1_795_229_321_816_198,
                "2026-11-21T02:48:41.816198Z",
            ),
            ([0, 1, 1, 1, 0, 0, 0, 0, 0, 0], -62_135_596_800_000_000, "0001-01-01T00:00:00.000000Z"),
            ([0x27, 0x0f, 12, 31, 0, 0, 0, 0, 0, 0], 253_402_214_400_000_000, "9999-12-31T00:00:00.000000Z"),
        ];
        for (bytes, micros, text) in cases {
            assert_eq!(moment(bytes), Some(UtcMicros(micros)));
            assert_eq!(UtcMicros(micros).to_string(), text);
        }
        let folded = [0x07, 0xb2, 0x81, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(moment(folded), Some(UtcMicros(0)), "the fold bit is no part of the month");
        assert_eq!(UtcMicros(0).in_zone(7_200_000_000), Some(UtcMicros(-7_200_000_000)));
        assert_eq!(UtcMicros(0).in_zone(-DAY), None);
    }

    #[test]
    fn dates_that_do_not_exist_are_refused() {
        for (year, month, day) in [
            (2026, 0, 1),
            (2026, 13, 1),
            (2026, 2, 29),
            (1900, 2, 29),
            (2026, 4, 31),
            (0, 1, 1),
            (10_000, 1, 1),
            (2026, 1, 0),
        ] {
            let [high, low] = u16::to_be_bytes(year);
            assert_eq!(moment([high, low, month, day, 0, 0, 0, 0, 0, 0]), None, "{year}-{month}-{day}");
        }
        for (hour, minute, second, micros) in [(24, 0, 0, 0), (0, 60, 0, 0), (0, 0, 60, 0), (0, 0, 0, 0xff)] {
            assert_eq!(moment([0x07, 0xea, 1, 1, hour, minute, second, micros, 0xff, 0xff]), None);
        }
    }

    #[test]
    fn every_day_of_the_calendar_is_displayed_as_itself() {
        let mut days = days_since_1970(1, 1, 1);
        for year in 1..=9999 {
            for month in 1..=12 {
                for day in 1..=days_of_month(year, month) {
                    assert_eq!(days_since_1970(year, month, day), days);
                    assert_eq!(date(days), (year, month, day));
                    days += 1;
                }
            }
        }
        assert_eq!(delta(i64::MAX, 0, 0), None);
        assert_eq!(delta(-1, 86_399, 999_999), Some(-1));
    }
}
