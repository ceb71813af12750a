//! `--max-memory`: what all stores and large connection buffers may hold together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A limit on bytes and how much of it is used. Counted, not allocated: the true footprint is somewhat larger.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: usize,
    used: AtomicUsize,
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0) })
    }

    /// The limit in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Bytes left.
    #[inline]
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.used())
    }

    /// Replaces a share of `before` bytes by one of `after`.
    pub(super) fn adjust(&self, before: usize, after: usize) {
        if after >= before {
            self.used.fetch_add(after - before, Relaxed);
        } else {
            self.used.fetch_sub(before - after, Relaxed);
        }
    }

    /// An empty share that a buffer can grow.
    pub fn reservation(self: &Arc<Self>) -> Reservation {
        Reservation { budget: Arc::clone(self), bytes: 0 }
    }
}

/// One buffer's share of the budget, given back on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<MemoryBudget>,
    bytes: usize,
}

impl Reservation {
    /// Changes the share to `bytes`. `false`, with nothing changed, if the budget has no room for a larger one.
    #[must_use]
    pub fn resize(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes && bytes - self.bytes > self.budget.room() {
            return false;
        }
        self.budget.adjust(self.bytes, bytes);
        self.bytes = bytes;
        true
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.adjust(self.bytes, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_never_exceeds_the_budget_and_is_given_back() {
        let budget = MemoryBudget::new(100);
        let mut one = budget.reservation();
        assert!(one.resize(80));
        let mut other = budget.reservation();
        assert!(!other.resize(21));
        assert!(other.resize(20));
        assert!(one.resize(10), "shrinking always works");
        assert_eq!((budget.used(), budget.room()), (30, 70));
        drop(one);
        drop(other);
        assert_eq!(budget.used(), 0);
    }
}
