//! How long something took or has lasted, in words: the one way to write it for people.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::{Serialize, Serializer};

/// A length of time as people read it: `40 ms`, `0.4 s`, `41 s`, `2 min 5 s`, `1 h 3 min`, `3 d 2 h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Elapsed(pub Duration);

impl Elapsed {
    /// This number of seconds. An invalid or negative number counts as zero.
    pub fn of_seconds(seconds: f64) -> Self {
        let longest = if seconds > 0.0 { Duration::MAX } else { Duration::ZERO };
        Self(Duration::try_from_secs_f64(seconds).unwrap_or(longest))
    }
}

/// Serialized as seconds, to the millisecond.
impl Serialize for Elapsed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64((self.0.as_secs_f64() * 1000.0).round() / 1000.0)
    }
}

impl Display for Elapsed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let tenths = millis.saturating_add(50) / 100;
        match (millis, tenths / 10, tenths % 10) {
            (0, ..) => return f.write_str("0 s"),
            (1..95, ..) => return write!(f, "{millis} ms"),
            (_, seconds @ 0..10, 0) => return write!(f, "{seconds} s"),
            (_, seconds @ 0..10, tenth) => return write!(f, "{seconds}.{tenth} s"),
            _ => {}
        }
        let whole = self.0.saturating_add(Duration::from_millis(500)).as_secs();
        let (big, small) = match (whole / 86_400, whole / 3600 % 24, whole / 60 % 60, whole % 60) {
            (0, 0, 0, s) => return write!(f, "{s} s"),
            (0, 0, m, s) => ((m, "min"), (s, "s")),
            (0, h, m, _) => ((h, "h"), (m, "min")),
            (d, h, _, _) => ((d, "d"), (h, "h")),
        };
        write!(f, "{} {}", big.0, big.1)?;
        if small.0 == 0 { Ok(()) } else { write!(f, " {} {}", small.0, small.1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_one_or_two_units() {
        let shown = [
            f64::NAN,
            -3.0,
            0.0,
            0.0004,
            0.04,
            0.42,
            3.0,
            9.96,
            41.3,
            59.6,
            125.0,
            3600.0,
            3780.0,
            266_400.0,
            1e300,
        ];
        insta::assert_snapshot!(shown.map(|seconds| Elapsed::of_seconds(seconds).to_string()).join(" | "), @r"
        0 s | 0 s | 0 s | 0 s | 40 ms | 0.4 s | 3 s | 10 s | 41 s | 1 min | 2 min 5 s | 1 h | 1 h 3 min | 3 d 2 h | 213503982334601 d 7 h
        ");
    }
}
