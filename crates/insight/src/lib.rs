//! What the traffic says about the jobs: who has joined, who is missing, what everybody waits for, and why.
//!
//! Fed with what the stores observed, the outstanding waits, and the time; tells what changed. It reads no
//! clock, never touches a store, and keeps a bounded state for each run. What the keys mean is in
//! [`rallypoint_protocol::keys`]; the rules are in [`RULES`].
// Numbers come from peers, files and the environment. A file that has only its own says so.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )
)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::print_stdout, clippy::print_stderr)]

mod adapters;
mod epoch;
mod facts;
mod identity;
mod jobs;
mod look;
mod reason;
mod report;
mod rules;
#[cfg(any(test, feature = "sim"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod totals;

use std::net::IpAddr;
use std::time::Duration;

use crate::adapters::gate;
use crate::adapters::journal::Pasts;
use crate::epoch::Epoch;
use crate::facts::{Foreign, RunKey, TrackedRun};
use crate::identity::roles;
use crate::jobs::{Fold, Jobs};
use crate::report::log::Told;
use rallypoint_api::{LinkCounts, RunKind, RunState};
use rallypoint_protocol::ids::{ConnId, RunId, Timestamp};
use rallypoint_rendezvous::barrier::OpenBarrier;
use rallypoint_rendezvous::gate::{Announcement, GateSnapshot};
use rallypoint_rendezvous::{Fact, RunSnapshot};
use rallypoint_store::{Observed, WaitView};

pub use crate::adapters::journal::{Past, PastRow};
pub use crate::facts::{AwayLink, Expectation, LinkEvent, LinkNews, StoreOwner};
pub use crate::reason::{Code, RULES, Rule};
pub use crate::report::documents::{Documents, RunFigures};
pub use crate::report::log::Change;
pub use crate::totals::{JOIN_BUCKETS, RoundEnds, Totals};

/// How insight is set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// What is waited for is said when it has lasted this long.
    pub explain_after: Duration,
    /// Runs that are tracked.
    pub max_runs: usize,
    /// Nodes to expect of unmodified jobs: minimum and maximum.
    pub nodes: Option<(u32, u32)>,
    /// Bytes that all runs may take, before [`Insight::make_room`] says another number.
    pub most_memory: usize,
    /// For how long the clients of a relay stay while its link is away.
    pub link_grace: Duration,
    /// Unix time in seconds at [`Timestamp`] zero.
    pub epoch: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            explain_after: Duration::from_secs(30),
            max_runs: 1000,
            nodes: None,
            most_memory: usize::MAX,
            link_grace: Duration::from_secs(10),
            epoch: 0.0,
        }
    }
}

/// All that is known of the jobs of one server, and what is said of them.
#[derive(Debug)]
pub struct Insight {
    jobs: Jobs,
    told: Told,
    pasts: Pasts,
    /// When what holds was last looked at; none: it is to be looked at anew.
    looked: Option<Timestamp>,
}

/// What it is fed with.
impl Insight {
    /// Knows nothing yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            jobs: Jobs::new(&settings),
            told: Told::new(settings.explain_after, Epoch(settings.epoch)),
            pasts: Pasts::default(),
            looked: None,
        }
    }

    /// The store on `port` was opened for a run. To be told before what is observed there.
    pub fn own_store(&mut self, port: u16, owner: StoreOwner) {
        if let StoreOwner::Run(name) = &owner
            && let Some(run) = self.jobs.runs.get_mut(&RunKey::Id(RunId::new(name.as_bytes())))
        {
            run.workers_meet_at(port);
        }
        self.jobs.store(port).owner = Some(owner);
    }

    /// The store on `port` was closed: its runs are no longer shown.
    pub fn forget_store(&mut self, port: u16) {
        self.jobs.stores.remove(&port);
        self.jobs.foreign.0.retain(|foreign| foreign.port != port);
        self.jobs.runs.values_mut().for_each(|run| run.store_was_closed(port));
        let gone = self.jobs.runs.keys().filter(|key| key.port() == Some(port));
        for key in &gone.cloned().collect::<Vec<_>>() {
            self.jobs.drop_run(&mut self.told, key);
        }
    }

    /// Takes in what the store on `port` observed at `at`.
    pub fn observe(&mut self, port: u16, at: Timestamp, observed: Observed) {
        self.fold(port, at).observe(observed);
    }

    /// The connections to the store on `port` of which insight wants to know when they asked for something
    /// last.
    pub fn asks_for(&self, port: u16) -> Vec<ConnId> {
        let of_store = self.jobs.runs.values().filter(|run| run.key.port() == Some(port));
        let asked = of_store.flat_map(|run| {
            let late = run.late_nodes(self.jobs.looked).filter_map(|node| node.conn);
            run.lingering().filter_map(|node| node.conn).chain(late)
        });
        let store = self.jobs.stores.get(&port).into_iter();
        let idle = store.flat_map(|store| store.idle.iter().chain(store.answered.keys()).copied());
        asked.chain(idle).collect()
    }

    /// The outstanding waits of the store on `port` that have lasted over a second, which replace those told
    /// before, and when the connections asked for something last that insight [asks for](Self::asks_for).
    pub fn waits(&mut self, port: u16, waits: Vec<WaitView>, heard: &[(ConnId, Timestamp)], now: Timestamp) {
        self.looked = None;
        self.fold(port, now).waits(waits, heard);
    }

    fn fold(&mut self, port: u16, at: Timestamp) -> Fold<'_> {
        Fold { jobs: &mut self.jobs, told: &mut self.told, port, at }
    }

    /// The barriers of the native rendezvous at which somebody waits.
    pub fn barriers(&mut self, open: Vec<OpenBarrier>) {
        self.jobs.barriers = open;
    }

    /// The links: how many there are, those that are away now, and what happened since the last call.
    pub fn links(&mut self, counts: LinkCounts, away: Vec<AwayLink>, news: Vec<LinkNews>, now: Timestamp) {
        if std::mem::replace(&mut self.jobs.links.counts, counts) != counts {
            self.told.tell(Change::Links(counts));
        }
        if self.jobs.links.are_away(away, now) {
            self.jobs.runs.values_mut().for_each(TrackedRun::touch);
        }
        self.jobs.links.hear(news);
    }

    /// A foreign client came to a port. If it is the admin port, `stores` are those that are open for all.
    pub fn foreign(
        &mut self,
        port: u16,
        stores: Option<Vec<u16>>,
        peer: IpAddr,
        protocol: &'static str,
        now: Timestamp,
    ) {
        self.jobs.foreign.came(Foreign { port, peer, protocol, stores, times: 1, last: now });
    }

    /// Observations were lost.
    pub fn lost(&mut self, count: u64) {
        self.jobs.totals.add_lost(count);
    }

    /// The gate of a run has changed; `None`: nothing has been heard of its pods since `heard`.
    pub fn gate(&mut self, run_id: &str, gate: Option<GateSnapshot>, heard: Timestamp) {
        if self.jobs.plans.set_gate(run_id, gate, heard) {
            gate::touch(&mut self.jobs, run_id);
        }
    }

    /// A pod came to the gate of a run that has finished, and was turned away.
    pub fn came_late(&mut self, run_id: &str, pod: &Announcement, at: Timestamp) {
        for key in self.jobs.keys_of(run_id, None) {
            if let Some(run) = self.jobs.runs.get_mut(&key).filter(|run| run.state == RunState::Finished) {
                run.found(rules::gate::came_late(run, pod, at));
            }
        }
    }

    /// An operator says what to expect of a run. `false` if there are too many such runs.
    pub fn expect(&mut self, run_id: &str, expectation: Expectation) -> bool {
        // What was said of the number before does not hold any more.
        self.looked = None;
        self.jobs.plans.expect(run_id, expectation)
    }

    /// Whether something can be expected of this run, too.
    pub fn has_room_to_expect(&self, run_id: &str) -> bool {
        self.jobs.plans.has_room_for(run_id)
    }

    /// The next run, by id, of which an operator expects something, behind this one.
    pub fn next_expectation(&self, after: Option<&str>) -> Option<(&str, &Expectation)> {
        self.jobs.plans.next_expectation(after)
    }

    /// The native rendezvous shows a run that has changed, with the port of its round's store.
    pub fn observe_native(&mut self, snapshot: &RunSnapshot, store: Option<u16>) {
        let owner = Some(StoreOwner::Run(snapshot.run_id.to_string()));
        let its_own = || self.jobs.stores.values().find(|store| store.owner == owner);
        let store = store.or_else(|| Some(its_own()?.port));
        let new = |key: &RunKey| TrackedRun::new(key.clone(), RunKind::Native, snapshot.at);
        let run = self.jobs.runs.entry(RunKey::Id(snapshot.run_id.clone())).or_insert_with_key(new);
        if run.native.is_none() {
            // It takes the place of its announcements: what was said of its pods stays.
            let TrackedRun { version, shown_version, .. } = *run;
            *run = TrackedRun { version, shown_version, ..new(&run.key) };
        }
        run.fold_native(snapshot, store);
        run.touch();
        run.update_state(snapshot.at);
    }

    fn native_run(&mut self, id: &RunId) -> Option<&mut TrackedRun> {
        self.jobs.runs.get_mut(&RunKey::Id(id.clone())).filter(|run| run.native.is_some())
    }

    /// Takes in when the nodes of a run were last heard from. That alone is no change.
    pub fn refresh_native(&mut self, snapshot: &RunSnapshot) {
        if let Some(run) = self.native_run(&snapshot.run_id) {
            run.refresh_native(snapshot);
        }
    }

    /// The native rendezvous tells something about a run.
    pub fn tell_native(&mut self, run: &RunId, fact: &Fact, at: Timestamp) {
        if let Some(run) = self.native_run(run) {
            let mut finding = run.takes_fact(fact.clone(), at);
            // Counted at once: who reads the metrics does not wait for the next look.
            let tally = finding.reason.tally.take();
            run.found(finding);
            self.jobs.totals.count(tally);
        }
    }

    /// The native rendezvous has forgotten a run.
    pub fn forget_native(&mut self, run: &RunId) {
        if self.native_run(run).is_some() {
            self.jobs.drop_run(&mut self.told, &RunKey::Id(run.clone()));
        }
    }

    /// Forgets what is known of a run, but for a native one: that is the rendezvous' to forget. The store it
    /// uses keeps its keys. `false` if it is not known.
    pub fn forget(&mut self, run_id: &str) -> bool {
        let mut keys = self.jobs.keys_of(run_id, None);
        keys.retain(|key| key.port().is_some());
        for key in &keys {
            self.jobs.drop_run(&mut self.told, key);
        }
        self.jobs.plans.forget(run_id) || !keys.is_empty()
    }

    /// Lets go of what may be missed, until all runs take no more than `most` bytes: of those that are over
    /// all but how many they were and how it ended, the oldest first; of the others the history. Returns what
    /// they take then. The nodes of native runs are the rendezvous' to count.
    pub fn make_room(&mut self, most: usize) -> usize {
        self.jobs.make_room(most)
    }

    /// Whether there was no room for some nodes or ranks since the last call: of them only the number is
    /// known.
    pub fn was_short_of_room(&mut self) -> bool {
        std::mem::take(&mut self.jobs.was_short)
    }

    /// The pasts of runs that the last server knew. To be told before the first tick.
    pub fn remember(&mut self, pasts: impl Iterator<Item = PastRow>) {
        self.pasts.restore(pasts);
    }

    /// What the next server is to be told of the runs, as far as it has changed since the last call.
    pub fn take_pasts(&mut self) -> Vec<PastRow> {
        self.pasts.take_changed(&mut self.jobs.runs, self.told.epoch)
    }

    /// Again what the next server is to be told: of the next runs, up to `most`, behind the row with this id.
    pub fn pasts(&self, after: Option<&[u8]>, most: usize) -> Vec<PastRow> {
        self.pasts.some(&self.jobs.runs, after, most, self.told.epoch)
    }

    /// Lets time pass: to be called some ten times a second.
    pub fn tick(&mut self, now: Timestamp) {
        /// What holds is looked at whenever the waits are told, so that none is taken for one that still
        /// lasts; where nobody tells them, this often.
        const LOOK_EVERY: Duration = Duration::from_millis(1500);
        const PAUSE: Duration = Duration::from_secs(2);
        let Self { jobs, told, .. } = self;
        let before = std::mem::replace(&mut jobs.looked, now);
        if now.since(before) >= PAUSE {
            jobs.awake_since = now;
        }
        roles::decide_roles(jobs, told, now);
        roles::match_agents(jobs);
        gate::show(jobs, told, now);
        self.pasts.recall(&mut jobs.runs, told.epoch, now);
        self.pass_time(now);
        self.tell_of_stores(before, now);
        if self.looked.is_none_or(|looked| now.since(looked) >= LOOK_EVERY) {
            self.looked = Some(now);
            self.look(now);
            self.forget_over(now);
        }
        self.tell_changes();
    }
}

/// What it tells.
impl Insight {
    /// Takes what has changed since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.told.changes)
    }

    /// What happened so often.
    pub fn totals(&self) -> &Totals {
        &self.jobs.totals
    }

    /// When the run finished: all its nodes came to the exit barrier or left as they had done their work, and
    /// it was not started again.
    pub fn finished(&self, run_id: &str) -> Option<Timestamp> {
        let id = RunId::new(run_id.as_bytes());
        let is_it = |run: &&TrackedRun| run.key.id() == Some(&id) && run.kind != RunKind::Announced;
        let of_id = self.jobs.runs.values().filter(is_it);
        let last = of_id.max_by_key(|run| (!run.state.is_over(), run.first_seen))?;
        last.round.over_at.filter(|_| last.round.exit_done.is_some() && last.state.is_over())
    }

    /// The documents of the API and what the metrics show, as they are now.
    pub fn documents(&self, now: Timestamp) -> Documents<'_> {
        Documents { jobs: &self.jobs, log: &self.told, now }
    }
}
