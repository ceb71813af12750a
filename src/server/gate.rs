//! The gates of the runs behind one lock, and the bell that wakes the requests waiting at them.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::limits::RUNS_SHARE;
use crate::config::ServerConfig;
use crate::core::gate::{Announcement, Gate, Gates, PodRefusal, PodStanding, Versions};
use crate::core::ids::Timestamp;
use crate::server::engine::Reservation;

/// Holds pods until all of their run are there.
#[derive(Debug)]
pub struct PodGates {
    gates: Mutex<Gates>,
    /// The memory that they take, and the most that they may take.
    memory: Mutex<Reservation>,
    most_memory: usize,
    bell: watch::Sender<()>,
}

impl PodGates {
    pub(super) fn new(config: &ServerConfig, memory: Reservation) -> Self {
        Self {
            gates: Mutex::new(Gates::new(config.pod_timeout, config.max_runs)),
            memory: Mutex::new(memory),
            most_memory: config.max_memory / RUNS_SHARE,
            bell: watch::Sender::new(()),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Reservation> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of announced pods. Look at it and let go of the lock at once.
    pub fn look(&self) -> MutexGuard<'_, Gates> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rings whenever a gate opens, and when the server stops.
    pub fn bell(&self) -> watch::Receiver<()> {
        self.bell.subscribe()
    }

    /// Takes the announcement of a pod. `finished` tells when its run's training ended; of a pod that waits already it is
    /// not asked.
    pub(super) fn announce(
        &self,
        run_id: &str,
        said: &Announcement,
        finished: impl FnOnce() -> Option<Timestamp>,
        now: Timestamp,
    ) -> Result<PodStanding, PodRefusal> {
        let waits = self.look().is_waiting(run_id, said);
        let finished = if waits { None } else { finished() };
        let standing = {
            let (mut gates, mut memory) = (self.look(), self.memory());
            gates.limit_memory(self.most_memory.min(memory.most()));
            let standing = gates.announce(run_id, said, finished, now);
            memory.set(gates.memory());
            standing?
        };
        if let PodStanding::Go(opened) = &standing
            && opened.just_now
        {
            let secs = opened.after.as_secs_f64();
            tracing::info!(
                run.id = run_id,
                pods = opened.pods,
                last = said.pod,
                "run {run_id}: all pods are there after {secs:.1} s"
            );
            self.ring();
        }
        Ok(standing)
    }

    pub(super) fn ring(&self) {
        self.bell.send_replace(());
    }

    /// The versions of PyTorch of a run's pods, if there are several.
    pub fn differing_versions(&self, run_id: &str) -> Option<Versions> {
        let gates = self.look();
        gates.of(run_id).filter(|gate| gate.has_several_versions()).map(Gate::versions)
    }

    pub(super) fn tick(&self, now: Timestamp, is_connected: impl Fn(IpAddr) -> bool) {
        let (mut gates, mut memory) = (self.look(), self.memory());
        gates.tick(now, is_connected);
        memory.set(gates.memory());
    }
}
