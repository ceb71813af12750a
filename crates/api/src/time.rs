//! Times that a peer chooses.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A duration in a request, in seconds. It is bounded when it is read, so that no later calculation can
/// overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(try_from = "f64", into = "f64")]
#[cfg_attr(feature = "openapi", schema(value_type = f64, minimum = 0, maximum = 604_800))]
pub struct PeerDuration(Duration);

/// Why a number is not a [`PeerDuration`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a time must be a number of seconds from 0 to {} (7 days)", PeerDuration::MAX.0.as_secs())]
pub struct BadDuration;

impl PeerDuration {
    /// The longest allowed time. Nobody waits longer.
    pub const MAX: Self = Self(Duration::from_hours(7 * 24));

    /// This many whole seconds; [`Self::MAX`] if that is less.
    pub const fn from_secs(seconds: u64) -> Self {
        let time = Duration::from_secs(seconds);
        if time.as_secs() > Self::MAX.0.as_secs() { Self::MAX } else { Self(time) }
    }

    /// `time`, or [`Self::MAX`] if that is less.
    pub fn at_most(time: Duration) -> Self {
        Self(time.min(Self::MAX.0))
    }

    /// The time.
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl TryFrom<Duration> for PeerDuration {
    type Error = BadDuration;

    fn try_from(time: Duration) -> Result<Self, BadDuration> {
        if time <= Self::MAX.0 { Ok(Self(time)) } else { Err(BadDuration) }
    }
}

impl TryFrom<f64> for PeerDuration {
    type Error = BadDuration;

    fn try_from(seconds: f64) -> Result<Self, BadDuration> {
        Duration::try_from_secs_f64(seconds).map_err(|_| BadDuration)?.try_into()
    }
}

impl From<PeerDuration> for f64 {
    fn from(time: PeerDuration) -> Self {
        time.0.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_somebody_may_wait_is_taken() {
        for good in ["0", "0.0", "-0.0", "15", "1e-300", "604800", "6.048e5"] {
            serde_json::from_str::<PeerDuration>(good).unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        for bad in ["-1", "-1e-300", "604801", "1e19", "1e308", "9223372036854775808", "18446744073709551616"]
        {
            let error = serde_json::from_str::<PeerDuration>(bad).expect_err(bad).to_string();
            assert!(error.contains("from 0 to 604800 (7 days)"), "{bad}: {error}");
        }
        assert_eq!(PeerDuration::try_from(f64::NAN), Err(BadDuration));
        assert_eq!(PeerDuration::try_from(Duration::MAX), Err(BadDuration));
        assert_eq!(PeerDuration::from_secs(u64::MAX), PeerDuration::MAX);
    }
}
