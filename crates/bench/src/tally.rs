//! The counts of one thread of the load generator: requests by operation, latencies by name.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of the load test itself")]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;

use rallypoint_protocol::Op;

/// Latencies in nanoseconds, with three significant digits.
pub(super) type Latencies = Histogram<u64>;

/// The longest distinguishable latency in nanoseconds (an hour).
const LONGEST: u64 = 3_600_000_000_000;

/// The counts of one thread. No other thread takes the lock before a section ends.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    counts: Mutex<Counts>,
    /// Finished units, for the display during the test.
    done: AtomicU64,
}

/// The counts since they were last taken.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    sent: [u64; Op::ALL.len()],
    latencies: Vec<(&'static str, Latencies)>,
    facts: BTreeMap<&'static str, u64>,
}

impl Tally {
    /// Counts requests that were sent.
    pub(crate) fn sent(&self, ops: &[Op]) {
        self.with(|counts| ops.iter().for_each(|&op| counts.sent[op as usize] += 1));
    }

    /// Records one latency, and counts it as one thing done.
    pub(crate) fn took(&self, what: &'static str, time: Duration) {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.with(|counts| counts.record(what, time));
    }

    /// Adds to a count of the report.
    pub(crate) fn fact(&self, name: &'static str, count: u64) {
        self.with(|counts| *counts.facts.entry(name).or_default() += count);
    }

    /// Finished units since the start.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Takes the counts.
    pub(crate) fn take(&self) -> Counts {
        self.with(std::mem::take)
    }

    fn with<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        change(&mut self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

impl Counts {
    fn record(&mut self, what: &'static str, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(LONGEST);
        self.histogram(what).saturating_record(nanos.max(1));
    }

    fn histogram(&mut self, what: &'static str) -> &mut Latencies {
        let at = self.latencies.iter().position(|(name, _)| *name == what).unwrap_or_else(|| {
            let bounds = Histogram::new_with_bounds(1, LONGEST, 3).expect("bounds and figures are valid");
            self.latencies.push((what, bounds));
            self.latencies.len() - 1
        });
        &mut self.latencies[at].1
    }

    /// Adds the counts of another thread.
    pub(crate) fn merge(&mut self, other: Self) {
        for (mine, more) in self.sent.iter_mut().zip(other.sent) {
            *mine += more;
        }
        for (what, latencies) in other.latencies {
            // Both histograms have the same bounds.
            let _added = self.histogram(what).add(latencies);
        }
        for (name, count) in other.facts {
            *self.facts.entry(name).or_default() += count;
        }
    }

    /// Sent requests, by the name of their operation.
    pub(crate) fn requests(&self) -> BTreeMap<&'static str, u64> {
        let all = Op::ALL.iter().zip(self.sent);
        all.filter(|(_, count)| *count > 0).map(|(op, count)| (op.name(), count)).collect()
    }

    /// All requests.
    pub(crate) fn total(&self) -> u64 {
        self.sent.iter().sum()
    }

    /// The latencies, by name.
    pub(crate) fn latencies(&self) -> impl Iterator<Item = (&'static str, &Latencies)> {
        self.latencies.iter().map(|(name, latencies)| (*name, latencies))
    }

    /// The other counts.
    pub(crate) fn facts(&self) -> &BTreeMap<&'static str, u64> {
        &self.facts
    }
}
