//! `--max-memory`: a common limit for all stores, large buffers, admin connections and runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// A limit on bytes, and how many are in use. Bytes are counted, not allocated: the true footprint is
/// somewhat larger.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: usize,
    used: AtomicUsize,
    lent: Mutex<Borrowers>,
}

/// How many borrowers each lent value has, by its place in memory and its length.
type Borrowers = HashMap<(usize, usize), usize>;

/// A large value on its way to a peer.
#[derive(Debug)]
struct Lent {
    value: Bytes,
    budget: Arc<MemoryBudget>,
}

impl Lent {
    fn place(value: &Bytes) -> (usize, usize) {
        (value.as_ptr().addr(), value.len())
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.value
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut lent = self.budget.lent();
        let place = Self::place(&self.value);
        if let Some(borrowers) = lent.get_mut(&place) {
            *borrowers = borrowers.saturating_sub(1);
            if *borrowers == 0 {
                lent.remove(&place);
                self.budget.adjust(self.value.len(), 0);
            }
        }
    }
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0), lent: Mutex::default() })
    }

    fn lent(&self) -> MutexGuard<'_, Borrowers> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends a value for sending; it counts here until its last borrower drops it. Many connections may send
    /// one value at the same time, and the store may have replaced it meanwhile: the value counts once.
    /// `None` if there is no room for it.
    pub fn lend(self: &Arc<Self>, value: &Bytes) -> Option<Bytes> {
        let mut lent = self.lent();
        let place = Lent::place(value);
        let borrowers = lent.get(&place).copied().unwrap_or(0);
        if borrowers == 0 {
            if value.len() > self.room() {
                return None;
            }
            self.adjust(0, value.len());
        }
        lent.insert(place, borrowers.saturating_add(1));
        drop(lent);
        Some(Bytes::from_owner(Lent { value: value.clone(), budget: Arc::clone(self) }))
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

    /// Replaces a share of `before` bytes by a share of `after` bytes.
    #[expect(clippy::arithmetic_side_effects, reason = "the larger less the smaller")]
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
    /// Bytes of this share.
    #[cfg(any(test, feature = "sim"))]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The size to which this share could grow.
    pub fn most(&self) -> usize {
        self.bytes.saturating_add(self.budget.room())
    }

    /// Changes the share to `bytes`. `false`, with nothing changed, if the budget has no room for a larger
    /// share.
    #[must_use]
    pub fn resize(&mut self, bytes: usize) -> bool {
        if bytes.saturating_sub(self.bytes) > self.budget.room() {
            return false;
        }
        self.set(bytes);
        true
    }

    /// Changes the share to bytes that are in use already, even if the budget has no room for them.
    pub fn set(&mut self, bytes: usize) {
        self.budget.adjust(self.bytes, bytes);
        self.bytes = bytes;
    }
}

/// The buffers of one connection. All of them count in the memory. Its unfinished requests also count in a
/// share for all connections of one address.
#[derive(Debug)]
pub struct BufferReservation {
    all: Reservation,
    unfinished: Reservation,
}

impl BufferReservation {
    /// Empty shares.
    pub fn new(all: &Arc<MemoryBudget>, of_address: &Arc<MemoryBudget>) -> Self {
        Self { all: all.reservation(), unfinished: of_address.reservation() }
    }

    /// Bytes of the unfinished request.
    pub fn unfinished(&self) -> usize {
        self.unfinished.bytes
    }

    /// Changes both shares. `false`, with nothing changed, if there is no room for more.
    #[must_use]
    pub fn resize(&mut self, unfinished: usize, replies: usize) -> bool {
        let before = self.unfinished.bytes;
        if !self.unfinished.resize(unfinished) {
            return false;
        }
        let fits = self.all.resize(unfinished.saturating_add(replies));
        if !fits {
            self.unfinished.set(before);
        }
        fits
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

    #[test]
    fn a_value_that_many_send_counts_once_until_the_last_has_sent_it() {
        let budget = MemoryBudget::new(100);
        let [one, other] = [7_u8, 8].map(|byte| Bytes::from(vec![byte; 60]));
        let lent: Vec<_> = (0..8).map(|_| budget.lend(&one).expect("room")).collect();
        assert!(lent.iter().all(|lent| *lent == one));
        assert_eq!(budget.used(), 60);
        assert_eq!(budget.lend(&other), None, "for another one there is no room");
        // The store has replaced the value by now.
        drop(one);
        let mut last = None;
        for lent in lent {
            last = Some(lent.slice(10..20));
            assert_eq!(budget.used(), 60, "a part of it keeps all");
        }
        drop(last);
        assert_eq!(budget.used(), 0);
        assert!(budget.lend(&other).is_some());
    }

    #[test]
    fn unfinished_requests_have_a_share_and_replies_have_not() {
        let (all, share) = (MemoryBudget::new(100), MemoryBudget::new(50));
        let mut buffers = BufferReservation::new(&all, &share);
        assert!(buffers.resize(40, 50));
        assert!(!buffers.resize(51, 0), "beyond the share");
        assert!(!buffers.resize(50, 51), "beyond all");
        assert_eq!((all.used(), share.used()), (90, 40), "nothing has changed");
        assert!(buffers.resize(0, 100));
        drop(buffers);
        assert_eq!((all.used(), share.used()), (0, 0));
    }
}
