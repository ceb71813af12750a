//! What is known: the stores, the runs that their traffic shows, and what was said about runs from outside.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Settings;
use crate::facts::{
    Client, ForeignClients, Links, Plan, Plans, Room, RunKey, Runs, StoreOwner, StoreWatch, TrackedRun,
};
use crate::report::log::{Change, Told};
use crate::totals::Totals;
use rallypoint_api::{RunGone, RunKind};
use rallypoint_protocol::ids::{ConnId, RunId, Timestamp};
use rallypoint_rendezvous::barrier::OpenBarrier;

/// All that is known of the jobs of one server.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    pub(crate) stores: BTreeMap<u16, StoreWatch>,
    pub(crate) runs: Runs,
    /// The barriers of the native rendezvous at which somebody waits.
    pub(crate) barriers: Vec<OpenBarrier>,
    pub(crate) links: Links,
    pub(crate) foreign: ForeignClients,
    pub(crate) looked: Timestamp,
    /// Since when this server has looked without a long pause: what comes late was not held up here.
    pub(crate) awake_since: Timestamp,
    pub(crate) plans: Plans,
    pub(crate) totals: Totals,
    max_runs: usize,
    /// Bytes that all runs take…
    memory: usize,
    /// …and the most that they may take.
    most_memory: usize,
    /// What came of runs for which there was no room.
    pub(crate) was_short: bool,
    /// So runs that are over are to make room, down to half of it.
    wants_room: bool,
}

impl Jobs {
    pub(crate) fn new(settings: &Settings) -> Self {
        let &Settings { max_runs, nodes, most_memory, link_grace: grace, .. } = settings;
        let (links, plans) = (Links::new(grace), Plans::new(nodes));
        Self { links, plans, max_runs, most_memory, ..Self::default() }
    }

    /// Lets more be known of a run, as far as there is room.
    pub(crate) fn grow(&mut self, key: &RunKey, fold: impl FnOnce(&mut TrackedRun, &mut Room)) {
        let Some(run) = self.runs.get_mut(key) else { return };
        let before = run.memory();
        let mut room = Room { bytes: self.most_memory.saturating_sub(self.memory), was_short: false };
        fold(run, &mut room);
        self.memory = self.memory.saturating_sub(before).saturating_add(run.memory());
        self.was_short |= room.was_short;
        self.wants_room |= room.was_short;
    }

    pub(crate) fn store(&mut self, port: u16) -> &mut StoreWatch {
        self.stores.entry(port).or_insert_with(|| StoreWatch::new(port))
    }

    /// A run's name for people.
    pub(crate) fn name(&self, key: &RunKey) -> String {
        let store = key.port().and_then(|port| self.stores.get(&port));
        key.name(store.and_then(|store| store.owner.as_ref()))
    }

    pub(crate) fn plan(&self, key: &RunKey) -> Arc<Plan> {
        self.plans.of(&self.name(key))
    }

    /// The runs with this name, those that use the store on `port` if one is given.
    pub(crate) fn keys_of(&self, run_id: &str, port: Option<u16>) -> Vec<RunKey> {
        let is_it = |run: &&TrackedRun| {
            port.is_none_or(|port| run.store() == Some(port)) && self.name(&run.key) == run_id
        };
        self.runs.values().filter(is_it).map(|run| run.key.clone()).collect()
    }

    /// Whether a connection's link is away.
    pub(crate) fn is_away(&self, port: u16, conn: ConnId) -> bool {
        let client = self.stores.get(&port).and_then(|store| store.clients.get(&conn));
        client.is_some_and(|client| self.links.is_away(client.peer))
    }

    /// The native run that a store was opened for. Where pods have only announced themselves, their workers
    /// are a run of this name as of any other store, and take its place.
    pub(crate) fn owner_of(&self, port: u16) -> Option<RunKey> {
        let id = match self.stores.get(&port)?.owner.as_ref()? {
            StoreOwner::Round(run) => run.clone(),
            StoreOwner::Run(name) => RunId::new(name.as_bytes()),
        };
        let key = RunKey::Id(id);
        self.runs.get(&key)?.native.as_ref()?;
        Some(key)
    }

    /// The run, made if it is not there. `None` if there are too many that are not over.
    pub(crate) fn run_mut(
        &mut self,
        told: &mut Told,
        key: &RunKey,
        kind: RunKind,
        now: Timestamp,
    ) -> Option<&mut TrackedRun> {
        if !self.runs.contains_key(key) {
            // The native rendezvous has the same limit on its own runs.
            let watched = || self.runs.values().filter(|run| run.native.is_none());
            if watched().count() >= self.max_runs {
                let over = watched().filter(|run| run.round.over_at.is_some());
                let oldest = over.min_by_key(|run| run.round.over_at);
                // Announcements make room for traffic.
                let is_announced =
                    |run: &&TrackedRun| run.kind == RunKind::Announced && kind != RunKind::Announced;
                let oldest = oldest.or_else(|| watched().find(is_announced))?.key.clone();
                self.drop_run(told, &oldest);
            }
            self.runs.insert(key.clone(), TrackedRun::new(key.clone(), kind, now));
        }
        self.runs.get_mut(key)
    }

    pub(crate) fn drop_run(&mut self, told: &mut Told, key: &RunKey) {
        let Some(run) = self.runs.remove(key) else { return };
        told.forget(key);
        if run.shown_version > 0 {
            told.tell(Change::RunGone(RunGone { run_id: self.name(key), store: key.port() }));
        }
        let store = run.store().and_then(|port| self.stores.get_mut(&port)).into_iter();
        let clients = store.flat_map(|store| store.clients.values_mut());
        for client in clients.filter(|client| client.run.as_ref() == Some(key)) {
            (client.run, client.rank) = (None, None);
        }
    }

    /// Lets go of what may be missed, the oldest first, until all runs take no more than `most` bytes.
    /// Returns what they take then. The nodes of native runs are the rendezvous' to count.
    pub(crate) fn make_room(&mut self, most: usize) -> usize {
        let clients = self.stores.values().map(|store| store.clients.len()).sum::<usize>();
        let clients = clients.saturating_mul(StoreWatch::CLIENT_BYTES);
        let memory = self.runs.values().map(TrackedRun::memory).sum();
        self.most_memory = most;
        let goal = if self.wants_room { most / 2 } else { most };
        self.memory = if memory > goal { self.shrink(memory, goal) } else { memory };
        self.wants_room &= self.memory > goal;
        self.memory.saturating_add(clients)
    }

    fn shrink(&mut self, mut memory: usize, most: usize) -> usize {
        let mut oldest: Vec<_> = self.runs.values().collect();
        oldest.sort_by_key(|run| (!run.can_be_summarized(), run.round.over_at.unwrap_or(run.state_since)));
        for key in oldest.into_iter().map(|run| run.key.clone()).collect::<Vec<_>>() {
            let Some(run) = self.runs.get_mut(&key).filter(|_| memory > most) else { break };
            let before = run.memory();
            run.make_room();
            let after = run.memory();
            if after != before {
                run.touch();
            }
            memory = memory.saturating_sub(before).saturating_add(after);
        }
        memory
    }
}

/// What is known, and where and when something was observed.
pub(crate) struct Fold<'i> {
    pub(crate) jobs: &'i mut Jobs,
    pub(crate) told: &'i mut Told,
    /// The store's port.
    pub(crate) port: u16,
    pub(crate) at: Timestamp,
}

impl Fold<'_> {
    pub(crate) fn client(&mut self, conn: ConnId) -> Option<&mut Client> {
        self.jobs.store(self.port).clients.get_mut(&conn)
    }

    pub(crate) fn key_of(&mut self, run_id: &[u8]) -> RunKey {
        self.jobs.store(self.port).key_of(&RunId::new(run_id))
    }

    pub(crate) fn run_mut(&mut self, key: &RunKey, kind: RunKind) -> Option<&mut TrackedRun> {
        self.jobs.run_mut(self.told, key, kind, self.at)
    }
}
