//! The start gates of all runs behind one lock, the bells that wake waiting requests, and the rows in the
//! journal: one row for each open gate, and one for each of its pods.

mod bells;

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bells::Bells;

use super::limits::RUNS_SHARE;
use super::stores::StoreHost;
use crate::clock::{Clock, deadline_in, within};
use crate::engine::Reservation;
use rallypoint_journal::{Image, Row, Table};
use rallypoint_map::HashMap;
use rallypoint_protocol::ids::Timestamp;
use rallypoint_rendezvous::gate::{
    Announcement, Contact, Gates, KeptChange, Opened, PodKey, PodRefusal, PodStanding,
};

/// How many pods are copied at a time when the journal is tidied.
const COPIED_AT_ONCE: usize = 256;
/// The least time between two checks of one run.
const LEAST_WAIT: Duration = Duration::from_millis(100);

/// Holds pods until all pods of their run are there.
#[derive(Debug)]
pub struct PodGates {
    clock: Clock,
    stores: Arc<StoreHost>,
    gates: Mutex<Gates>,
    /// The memory that the gates use, and the most that they may use.
    memory: Mutex<Reservation>,
    most_memory: usize,
    bells: Bells,
    /// Number of the latest request.
    requests: AtomicU64,
}

/// The request of a held pod. Its drop without an answer means that the connection broke.
struct Held<'g> {
    gates: &'g PodGates,
    run_id: &'g str,
    said: &'g Announcement,
    request: u64,
    is_answered: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let now = self.gates.clock.now();
        if !self.is_answered && self.gates.lock().cut(self.run_id, self.said, self.request, now) {
            // The rank is free for another pod.
            self.gates.bells.ring(self.run_id);
        }
    }
}

/// Why a pod is refused.
#[derive(Debug, thiserror::Error)]
pub enum NotHeld {
    /// The server is about to end.
    #[error("the server is stopping, so nobody is let go here; announce again in a moment")]
    Stopping,
    /// The announcement is refused.
    #[error(transparent)]
    Refused(#[from] PodRefusal),
}

/// The id of a row: a gate's run, or a run and one of its pods.
type RowId = (String, Option<PodKey>);

impl PodGates {
    /// Restores the open gates of the last server.
    pub fn new(stores: Arc<StoreHost>, clock: Clock, before: &Image) -> Self {
        let config = stores.config();
        let mut gates = Gates::new(config.pod_timeout, config.max_runs);
        restore(&mut gates, before, clock.now());
        let mut memory = stores.budget().reservation();
        memory.set(gates.memory());
        Self {
            clock,
            most_memory: config.max_memory / RUNS_SHARE,
            gates: Mutex::new(gates),
            memory: Mutex::new(memory),
            bells: Bells::default(),
            requests: AtomicU64::default(),
            stores,
        }
    }

    fn memory(&self) -> MutexGuard<'_, Reservation> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Gates> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The gates behind their lock. Release it at once.
    pub fn look(&self) -> impl std::ops::Deref<Target = Gates> {
        self.lock()
    }

    /// Takes the announcement of a pod, and holds the pod up to `wait` until all pods of its run are there.
    /// `finished` tells when the run's training ended; it is not called for a pod that already waits.
    pub async fn hold(
        &self,
        run_id: &str,
        said: &Announcement,
        wait: Duration,
        finished: impl Fn() -> Option<Timestamp>,
    ) -> Result<PodStanding, NotHeld> {
        let request = self.requests.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let mut held = Held { gates: self, run_id, said, request, is_answered: false };
        let standing = self.hold_request(&held, wait, finished).await;
        held.is_answered = true;
        standing
    }

    async fn hold_request(
        &self,
        held: &Held<'_>,
        wait: Duration,
        finished: impl Fn() -> Option<Timestamp>,
    ) -> Result<PodStanding, NotHeld> {
        let run_id = held.run_id;
        let deadline = deadline_in(wait);
        loop {
            let bell = self.bells.listen(run_id);
            if self.stores.is_stopping() {
                return Err(NotHeld::Stopping);
            }
            let standing = self.announce(held, &finished)?;
            let until = match &standing {
                PodStanding::Go(_) => return Ok(standing),
                // No bell rings when the holder of a rank disappears.
                PodStanding::Parked { silent, .. } => {
                    let left = self.look().pod_timeout().saturating_sub(*silent);
                    deadline.min(deadline_in(left.max(LEAST_WAIT)))
                }
                PodStanding::Waiting(_) => deadline,
            };
            let rung = within(until, bell.heard()).await.is_some();
            if !rung && until >= deadline {
                // Other pods may have come meanwhile.
                return Ok(self.announce(held, &finished)?);
            }
        }
    }

    fn announce(
        &self,
        held: &Held<'_>,
        finished: impl FnOnce() -> Option<Timestamp>,
    ) -> Result<PodStanding, PodRefusal> {
        let Held { run_id, said, request, .. } = *held;
        let now = self.clock.now();
        let waits = self.look().is_waiting(run_id, said);
        let finished = if waits { None } else { finished() };
        let (standing, has_successor) = {
            let (mut gates, mut memory) = (self.lock(), self.memory());
            gates.limit_memory(self.most_memory.min(memory.most()));
            let before = gates.replaced(run_id);
            let standing = gates.announce(run_id, said, finished, now);
            gates.park(run_id, said, request);
            memory.set(gates.memory());
            self.keep(&mut gates);
            (standing?, gates.replaced(run_id) > before)
        };
        if has_successor {
            // A request of the replaced pod may still be waiting. If so, both pods run, and that one
            // announces itself again.
            self.bells.ring(run_id);
        }
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
            self.bells.ring(run_id);
        }
        Ok(standing)
    }

    /// Wakes all waiting requests: the server is about to end.
    pub(super) fn stop(&self) {
        self.bells.ring_all();
    }

    /// Updates which pods are connected (directly or through a relay) and which are silent. `relays` has the
    /// address of each relay, and whether its link is up.
    pub fn tick(&self, now: Timestamp, relays: &HashMap<IpAddr, bool>) {
        let (mut gates, mut memory) = (self.lock(), self.memory());
        gates.tick(now, |addr| match relays.get(&addr) {
            Some(true) => Contact::Connected,
            // A relay without a link may hold connections of processes that died with it, so they do not
            // count.
            _ if self.stores.is_connected_directly(addr) => Contact::Connected,
            Some(false) => Contact::Away,
            None => Contact::None,
        });
        memory.set(gates.memory());
        self.keep(&mut gates);
        self.bells.tidy();
    }

    /// Appends the changes to the journal.
    fn keep(&self, gates: &mut Gates) {
        let changes = gates.take_kept();
        if let Some(journal) = self.stores.journal().filter(|_| !changes.is_empty()) {
            let mut rows = Vec::new();
            for change in &changes {
                put(change, &mut rows);
            }
            journal.commit(|out| out.append(&mut rows));
        }
    }

    /// Copies the gates into the journal again, some pods at a time.
    pub async fn copy(&self) {
        let Some(journal) = self.stores.journal() else { return };
        let open = self.look().open_runs();
        for run_id in open {
            let mut last = None;
            loop {
                {
                    // Under the lock: a stale copy must not follow a newer change in the journal.
                    let gates = self.lock();
                    let Some(change) = gates.kept(&run_id, last.as_ref(), COPIED_AT_ONCE) else { break };
                    journal.commit(|out| put(&change, out));
                    last = change.pods.into_iter().next_back().map(|(key, _)| key);
                }
                journal.write_queued();
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Appends the rows of a change.
fn put(change: &KeptChange, out: &mut Vec<u8>) {
    let KeptChange { run_id, opened, pods } = change;
    put_row(&(run_id.clone(), None), opened.as_ref(), out);
    for (pod, said) in pods {
        put_row(&(run_id.clone(), Some(pod.clone())), said.as_ref(), out);
    }
}

fn put_row(id: &RowId, record: Option<&impl serde::Serialize>, out: &mut Vec<u8>) {
    // The records are structs of numbers and texts; they always have a JSON form.
    if let (Ok(id), Ok(body)) = (serde_json::to_vec(id), record.map(serde_json::to_vec).transpose()) {
        Row::Entry(Table::Announcement, &id, body.as_deref()).encode(out);
    }
}

/// Restores the gates from the journal.
fn restore(gates: &mut Gates, before: &Image, now: Timestamp) {
    let mut open = HashMap::<String, (Option<Opened>, Vec<Announcement>)>::default();
    for (id, body) in before.entries.get(&Table::Announcement).into_iter().flatten() {
        let Ok((run_id, pod)) = serde_json::from_slice::<RowId>(id) else { continue };
        let (opened, pods) = open.entry(run_id).or_default();
        match pod {
            None => *opened = serde_json::from_slice(body).ok(),
            Some(_) => pods.extend(serde_json::from_slice::<Announcement>(body)),
        }
    }
    for (run_id, (opened, pods)) in open {
        if let Some(opened) = opened {
            gates.restore(&run_id, opened, &pods, now);
        }
    }
}
