//! The process's time: timestamps for the core, deadlines of waits, and the calendar.

#[cfg(any(test, feature = "sim"))]
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{Instant, timeout_at};

use rallypoint_protocol::ids::Timestamp;

/// The process's monotonic clock. The only place where the server reads time for the core.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    zero: std::time::Instant,
    start: std::time::Instant,
}

/// How far zero precedes the start. A journal remembers moments before the start, and these need timestamps,
/// too.
const REMEMBERED: Duration = Duration::from_hours(365 * 24);

impl Clock {
    /// Starts the clock now, a year after zero.
    pub fn start() -> Self {
        let start = moment();
        Self { zero: start.checked_sub(REMEMBERED).unwrap_or(start), start }
    }

    /// Time since zero.
    pub fn now(&self) -> Timestamp {
        Timestamp(moment().saturating_duration_since(self.zero))
    }

    /// Unix time at zero, in seconds.
    pub fn epoch(&self) -> f64 {
        unix().saturating_sub(self.now().0).as_secs_f64()
    }

    /// Time since the start.
    pub fn up(&self) -> Duration {
        moment().saturating_duration_since(self.start)
    }
}

#[cfg(not(any(test, feature = "sim")))]
#[inline]
fn moment() -> std::time::Instant {
    std::time::Instant::now()
}

fn unix() -> Duration {
    #[cfg(any(test, feature = "sim"))]
    if let Some(invented) = invented::unix() {
        return invented;
    }
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(any(test, feature = "sim"))]
pub use invented::moment;

/// The time of a simulation. It stands still until it is set.
#[cfg(any(test, feature = "sim"))]
pub mod invented {
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    /// The calendar at the start of a simulation.
    const BEGINS: Duration = Duration::from_secs(1_700_000_000);

    thread_local! {
        static NOW: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
        static AHEAD: Cell<i64> = const { Cell::new(0) };
    }

    /// This moment of the thread; the real one if none was set.
    pub fn moment() -> Instant {
        NOW.get().and_then(|(start, passed)| start.checked_add(passed)).unwrap_or_else(Instant::now)
    }

    pub(super) fn unix() -> Option<Duration> {
        let now = NOW.get().map(|(_, passed)| BEGINS.saturating_add(passed))?;
        let ahead = Duration::from_secs(AHEAD.get().unsigned_abs());
        Some(if AHEAD.get() < 0 { now.saturating_sub(ahead) } else { now.saturating_add(ahead) })
    }

    /// From here on this thread's calendar is this many seconds ahead of the true one.
    pub fn calendar_is_ahead(seconds: i64) {
        AHEAD.set(seconds);
    }

    /// Whether this thread's time is invented.
    pub(super) fn is_set() -> bool {
        NOW.get().is_some()
    }

    /// From here on this thread's time is `start` plus `passed`.
    pub fn set(start: Instant, passed: Duration) {
        NOW.set(Some((start, passed)));
    }
}

/// Longer than anything waits.
const FAR: Duration = Duration::from_hours(10 * 365 * 24);

/// This moment, for timers.
pub fn now() -> Instant {
    Instant::from_std(moment())
}

/// The moment when `wait` is over. Peers and operators choose `wait`, so it may be longer than any clock
/// counts.
#[expect(clippy::arithmetic_side_effects, reason = "the clock of a computer counts further than ten years")]
pub fn deadline_in(wait: Duration) -> Instant {
    now() + wait.min(FAR)
}

/// Waits until `done` is complete, or until the deadline.
pub async fn within<T>(until: Instant, done: impl Future<Output = T>) -> Option<T> {
    #[cfg(any(test, feature = "sim"))]
    if invented::is_set() {
        // Whoever invents the time also polls this future again when the deadline is over.
        let mut done = std::pin::pin!(done);
        return std::future::poll_fn(|cx| match done.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if now() >= until => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await;
    }
    timeout_at(until, done).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wait_is_too_long_for_the_clock() {
        assert!(deadline_in(Duration::MAX) > deadline_in(Duration::from_hours(24 * 365)));
        assert!(deadline_in(Duration::ZERO) <= Instant::now());
    }
}
