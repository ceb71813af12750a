//! Times of the server as the documents show them.

use std::time::Duration;

use rallypoint_protocol::ids::Timestamp;

/// Unix time in seconds at [`Timestamp`] zero.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epoch(pub(crate) f64);

impl Epoch {
    pub(crate) fn unix(self, at: Timestamp) -> f64 {
        rounded(self.0 + at.0.as_secs_f64())
    }

    /// The moment of a Unix time; what was before [`Timestamp`] zero is at zero.
    pub(crate) fn at(self, unix: f64) -> Timestamp {
        Timestamp(Duration::try_from_secs_f64(unix - self.0).unwrap_or_default())
    }
}

/// Seconds to the millisecond.
pub(crate) fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}
