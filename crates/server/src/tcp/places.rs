//! Places within the limits on connections: for all peers together, and for each address.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use dashmap::DashMap;

/// Limits the number of connections, and knows the addresses that have some.
#[derive(Debug)]
pub struct Places {
    most: usize,
    most_each: usize,
    taken: AtomicUsize,
    by_addr: DashMap<IpAddr, usize>,
}

impl Places {
    /// `most` places; one address may have `most_each` of them.
    pub fn new(most: usize, most_each: usize) -> Self {
        Self { most, most_each, taken: AtomicUsize::new(0), by_addr: DashMap::new() }
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// Whether `addr` has a place.
    pub fn has(&self, addr: IpAddr) -> bool {
        self.by_addr.contains_key(&addr)
    }

    /// Takes a place for `addr`. `false` if there is none left.
    pub fn take(&self, addr: IpAddr) -> bool {
        let mut here = self.by_addr.entry(addr).or_default();
        // Listeners on several threads take places at the same time: count first, then compare.
        let fits = *here < self.most_each && self.taken.fetch_add(1, Relaxed) < self.most;
        if fits {
            *here = here.saturating_add(1);
            return true;
        }
        if *here < self.most_each {
            self.taken.fetch_sub(1, Relaxed);
        }
        drop(here);
        self.by_addr.remove_if(&addr, |_, here| *here == 0);
        false
    }

    /// Gives a place back. Returns whether it was the last one of the address.
    pub fn free(&self, addr: IpAddr) -> bool {
        self.taken.fetch_sub(1, Relaxed);
        if let Some(mut here) = self.by_addr.get_mut(&addr) {
            *here = here.saturating_sub(1);
        }
        self.by_addr.remove_if(&addr, |_, here| *here == 0).is_some()
    }
}

/// A place that is given back when this is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    addr: IpAddr,
}

impl Place {
    /// Takes a place for `addr`. `None` if there is none left.
    pub fn take(places: &Arc<Places>, addr: IpAddr) -> Option<Self> {
        places.take(addr).then(|| Self { places: Arc::clone(places), addr })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.free(self.addr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_limit_for_all_and_one_for_each_address() {
        let places = Arc::new(Places::new(3, 2));
        let [one, other] = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
        let mut held: Vec<_> = (0..2).map(|_| Place::take(&places, one).expect("a place")).collect();
        assert!(Place::take(&places, one).is_none(), "its own are taken");
        held.push(Place::take(&places, other).expect("a place"));
        assert!(Place::take(&places, other).is_none(), "all are taken");
        assert_eq!(places.taken(), 3);
        held.clear();
        assert_eq!((places.taken(), places.has(one), places.has(other)), (0, false, false));
        assert!(Place::take(&places, one).is_some());
    }
}
