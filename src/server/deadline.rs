//! Moments until which something is waited for.

use std::time::Duration;

use tokio::time::Instant;

/// Longer than anything waits.
const FAR: Duration = Duration::from_hours(10 * 365 * 24);

/// When `wait` is over, from now. Peers and operators choose it, so it may be longer than any clock counts.
#[expect(clippy::arithmetic_side_effects, reason = "the clock of a computer counts further than ten years")]
pub fn deadline_in(wait: Duration) -> Instant {
    Instant::now() + wait.min(FAR)
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
