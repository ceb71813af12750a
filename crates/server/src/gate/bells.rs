//! One bell for each run: an opening gate wakes only the requests of its own run. Other requests, perhaps ten
//! thousand, would only ask again in vain.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The bells that have a listener. A bell rings once, when it is dropped.
#[derive(Debug, Default)]
pub(super) struct Bells(Mutex<HashMap<String, watch::Sender<()>>>);

/// Waits for the next ring of a run's bell.
#[derive(Debug)]
pub(super) struct Ring(watch::Receiver<()>);

impl Bells {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Call this before the question, so that no ring is missed.
    pub(super) fn listen(&self, run_id: &str) -> Ring {
        let mut bells = self.lock();
        if let Some(bell) = bells.get(run_id) {
            return Ring(bell.subscribe());
        }
        let (bell, ring) = watch::channel(());
        bells.insert(run_id.to_owned(), bell);
        Ring(ring)
    }

    /// Wakes the listeners of this run.
    pub(super) fn ring(&self, run_id: &str) {
        self.lock().remove(run_id);
    }

    /// Wakes all listeners.
    pub(super) fn ring_all(&self) {
        self.lock().clear();
    }

    /// Drops the bells without a listener.
    pub(super) fn tidy(&self) {
        self.lock().retain(|_, bell| bell.receiver_count() > 0);
    }
}

impl Ring {
    /// Waits for the ring.
    pub(super) async fn heard(mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_rung(ring: &Ring) -> bool {
        ring.0.has_changed().is_err()
    }

    #[test]
    fn a_bell_is_heard_by_those_of_its_run_only() {
        let bells = Bells::default();
        let own = [bells.listen("a"), bells.listen("a")];
        let other = bells.listen("b");
        bells.ring("a");
        assert!(own.iter().all(has_rung) && !has_rung(&other));
        let later = bells.listen("a");
        assert!(!has_rung(&later), "a ring is over for those who come after it");
        bells.ring_all();
        assert!(has_rung(&later) && has_rung(&other));
    }

    #[test]
    fn no_bell_stays_that_nobody_hears() {
        let bells = Bells::default();
        let waiting = bells.listen("a");
        drop(bells.listen("b"));
        bells.tidy();
        assert_eq!(bells.lock().len(), 1);
        assert!(!has_rung(&waiting));
    }
}
