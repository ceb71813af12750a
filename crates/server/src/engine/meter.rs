//! Counts and durations. They are kept under the engine's lock (so they need no atomics) and copied for a
//! scrape.

use std::time::Duration;

use rallypoint_protocol::Op;

/// Upper bounds of the duration buckets in seconds: a quarter of a microsecond to 4 seconds, each four times
/// the one before.
pub const BUCKETS: [f64; 13] = [
    2.5e-7, 1e-6, 4e-6, 1.6e-5, 6.4e-5, 2.56e-4, 1.024e-3, 4.096e-3, 1.6384e-2, 6.5536e-2, 0.262_144,
    1.048_576, 4.194_304,
];

/// The bucket bounds of waits are this many times longer: a quarter of a millisecond to over an hour.
pub const WAIT_BUCKET_FACTOR: u32 = 1000;

/// A histogram with [`BUCKETS`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Histogram {
    /// Observations in each bucket (not cumulative). The last bucket counts observations above every bound.
    pub counts: [u64; BUCKETS.len() + 1],
    /// Sum of all observations in seconds.
    pub sum: f64,
}

impl Histogram {
    /// Counts `times` observations of `duration` each.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "u64 counts more than any server does; bits are at most 64"
    )]
    #[expect(clippy::cast_precision_loss, reason = "a sum of seconds need not be exact")]
    fn record_many(&mut self, nanos: u64, times: u64) {
        // Bounds are 250 ns times powers of 4.
        let quarter_micros = nanos.div_ceil(250).max(1) - 1;
        let bucket = (u64::BITS - quarter_micros.leading_zeros()).div_ceil(2) as usize;
        self.counts[bucket.min(BUCKETS.len())] += times;
        self.sum += nanos as f64 * 1e-9 * times as f64;
    }

    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// A histogram of waits: the same bounds times [`WAIT_BUCKET_FACTOR`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Waits(pub Histogram);

impl Waits {
    /// Counts a finished wait.
    pub fn record(&mut self, waited: Duration) {
        let nanos = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.0.record_many(nanos.checked_div(WAIT_BUCKET_FACTOR.into()).unwrap_or(nanos), 1);
    }
}

/// Everything one engine counts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Meter {
    /// Server time of requests by `Op as usize`, without waits.
    pub requests: [Histogram; Op::ALL.len()],
    /// Outstanding waits that were satisfied or cancelled.
    pub waits: Waits,
    /// Bytes of requests.
    pub received_bytes: u64,
    /// Bytes of replies.
    pub sent_bytes: u64,
}

impl Meter {
    /// Counts the requests of a batch that took `took` in all.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "the divisor is 1 or more")]
    #[expect(clippy::cast_possible_truncation, reason = "nobody holds the lock for centuries")]
    pub fn record(&mut self, ops: impl ExactSizeIterator<Item = Op>, took: Duration) {
        let each = took.as_nanos() as u64 / ops.len().max(1) as u64;
        for op in ops {
            self.requests[op as usize].record_many(each, 1);
        }
    }

    /// Counts the bytes of a request.
    #[inline]
    pub fn received(&mut self, bytes: usize) {
        self.received_bytes = self.received_bytes.wrapping_add(bytes as u64);
    }

    /// Counts the bytes of replies.
    #[inline]
    pub fn sent(&mut self, bytes: usize) {
        self.sent_bytes = self.sent_bytes.wrapping_add(bytes as u64);
    }

    /// Adds the counts of another engine.
    #[expect(clippy::arithmetic_side_effects, reason = "u64 counts more than any server does")]
    pub fn merge(&mut self, other: &Self) {
        let mine = self.requests.iter_mut().chain([&mut self.waits.0]);
        for (mine, other) in mine.zip(other.requests.iter().chain([&other.waits.0])) {
            mine.sum += other.sum;
            mine.counts.iter_mut().zip(other.counts).for_each(|(mine, other)| *mine += other);
        }
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observations_fall_into_the_bucket_whose_bound_they_do_not_exceed() {
        for nanos in [0, 1, 250, 251, 1000, 1001, 4000, 4001, 64_000, 1_024_000, 4_194_304_000, u64::MAX / 2]
        {
            let mut histogram = Histogram::default();
            histogram.record_many(nanos, 1);
            let expected = BUCKETS.iter().position(|bound| nanos as f64 * 1e-9 <= bound * (1.0 + 1e-9));
            let found = histogram.counts.iter().position(|&count| count == 1);
            assert_eq!(found, Some(expected.unwrap_or(BUCKETS.len())), "{nanos} ns");
        }
    }
}
