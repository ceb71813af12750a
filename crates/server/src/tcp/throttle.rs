//! Keeps a hostile or broken peer from flooding the log.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Lets a few lines of each kind pass per interval and counts the rest.
#[derive(Debug)]
pub struct Throttle {
    kinds: Mutex<Vec<Kind>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Kind {
    since: Option<Instant>,
    passed: u32,
    held_back: u64,
}

impl Throttle {
    const INTERVAL: Duration = Duration::from_secs(10);
    const PER_INTERVAL: u32 = 10;

    /// A throttle for this many kinds of lines.
    pub fn new(kinds: usize) -> Self {
        Self { kinds: Mutex::new(vec![Kind::default(); kinds]) }
    }

    /// Whether a line of this kind may be logged now. If so, returns how many were held back before it.
    pub fn pass(&self, kind: usize) -> Option<u64> {
        self.pass_at(kind, Instant::now())
    }

    fn pass_at(&self, kind: usize, now: Instant) -> Option<u64> {
        let mut kinds = self.kinds.lock().ok()?;
        let kind = kinds.get_mut(kind)?;
        if kind.since.is_none_or(|since| now.duration_since(since) >= Self::INTERVAL) {
            kind.since = Some(now);
            kind.passed = 0;
        }
        if kind.passed >= Self::PER_INTERVAL {
            kind.held_back = kind.held_back.saturating_add(1);
            return None;
        }
        kind.passed = kind.passed.saturating_add(1);
        Some(std::mem::take(&mut kind.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_leaves_a_few_lines_and_a_count() {
        let throttle = Throttle::new(2);
        let start = Instant::now();
        let passed = (0..1000).filter(|_| throttle.pass_at(0, start).is_some()).count();
        assert_eq!(passed, 10);
        assert_eq!(throttle.pass_at(1, start), Some(0), "kinds do not share their allowance");
        assert_eq!(throttle.pass_at(0, start + Throttle::INTERVAL), Some(990));
        assert_eq!(throttle.pass_at(0, start + Throttle::INTERVAL), Some(0));
    }
}
