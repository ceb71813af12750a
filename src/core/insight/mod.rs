//! What the traffic says about the jobs: who has joined, who is missing, what everybody waits for, and why.
//!
//! Fed with what the stores observed, the outstanding waits, and the time; tells what changed. It reads no clock, never
//! touches a store, and keeps a bounded state for each run. What the keys mean is in
//! [`crate::core::protocol::keys`]; everything there is to say is a [`Reason`].
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::print_stdout, clippy::print_stderr)]
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

mod conditions;
mod expect;
mod explain;
mod explanation_log;
mod fold;
mod gathering;
mod graph;
mod native;
mod reason;
mod room;
mod run;
mod show;
#[cfg(test)]
mod tests;
mod waits;
mod world;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::api::{Explanation, RunGone, RunKind, RunSummary, TimelineEvent};
use crate::core::ids::{ConnId, RunId, Timestamp};
use crate::core::protocol::keys::Role;
pub use expect::Expectation;
use expect::Plan;
use explanation_log::ExplanationLog;
pub use reason::{Names, Reason, Said, Secs, Unit, Whereabouts};
use run::{Run, RunKey};
pub use show::RunFigures;
use waits::Waiting;

/// How insight is set.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// What is waited for is said when it has lasted this long.
    pub explain_after: Duration,
    /// Runs that are tracked.
    pub max_runs: usize,
    /// Nodes to expect of unmodified jobs: minimum and maximum.
    pub nodes: Option<(u32, u32)>,
    /// Unix time in seconds at [`Timestamp`] zero.
    pub epoch: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { explain_after: Duration::from_secs(30), max_runs: 1000, nodes: None, epoch: 0.0 }
    }
}

/// Something changed.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// An explanation: new, said again, or no longer so. `aloud` for the log.
    Explanation {
        /// What is said.
        explanation: Explanation,
        /// Whether it belongs in the log.
        aloud: bool,
    },
    /// A run is new or has changed.
    Run(RunSummary),
    /// A run is no longer shown.
    RunGone(RunGone),
    /// Something happened.
    TimelineEvent(TimelineEvent),
}

#[derive(Debug)]
struct Client {
    peer: SocketAddr,
    pid: Option<u32>,
    role: Role,
    run: Option<RunKey>,
    rank: Option<u32>,
    since: Timestamp,
}

impl Client {
    fn label(&self) -> String {
        match self.pid {
            Some(pid) => format!("process {pid} at {}", self.peer.ip()),
            None => format!("a process at {}", self.peer.ip()),
        }
    }
}

/// Clients that gave up on one key at about the same time.
#[derive(Debug)]
struct GivenUp {
    at: Timestamp,
    waited: Duration,
    who: Vec<String>,
    more: usize,
    /// Who should have written the key, as it was then.
    writer: Option<String>,
}

/// A clash of two live writers.
#[derive(Debug)]
struct Clash {
    at: Timestamp,
    run: RunKey,
    node: Option<u32>,
    rank: Option<u32>,
    first: String,
    second: String,
}

#[derive(Debug)]
struct Foreign {
    peer: IpAddr,
    protocol: &'static str,
    times: u64,
    last: Timestamp,
}

/// What a store was opened for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreOwner {
    /// A run of this id.
    Run(String),
    /// A round of this native run.
    Round(RunId),
}

#[derive(Debug)]
struct StoreWatch {
    port: u16,
    owner: Option<StoreOwner>,
    clients: HashMap<ConnId, Client>,
    waits: HashMap<ConnId, Waiting>,
    given_up: BTreeMap<(Option<RunKey>, Box<[u8]>), GivenUp>,
    clashes: Vec<Clash>,
    foreign: VecDeque<Foreign>,
}

/// What happened so often, for the metrics.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Totals {
    /// Nodes that died in a round.
    pub node_deaths: u64,
    /// Rounds by how they ended: complete, timeout, closed.
    pub rounds: [u64; 3],
    /// How long complete rounds took from the first join, in seconds, since the start.
    pub join_seconds: Vec<u64>,
    /// Their sum.
    pub join_seconds_sum: f64,
    /// Closed native runs that were started again.
    pub restarted: u64,
    /// Observations that were lost.
    pub lost: u64,
}

impl Totals {
    /// A round is complete; its nodes gathered for so long.
    fn completed(&mut self, took: Duration) {
        self.rounds[0] = self.rounds[0].saturating_add(1);
        let took = took.as_secs_f64();
        let bucket = JOIN_BUCKETS.iter().position(|&bound| took <= bound).unwrap_or(JOIN_BUCKETS.len());
        self.join_seconds[bucket] = self.join_seconds[bucket].saturating_add(1);
        self.join_seconds_sum += took;
    }
}

/// Upper bounds of [`Totals::join_seconds`] in seconds; the last count is for what exceeds them all.
pub const JOIN_BUCKETS: [f64; 10] = [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0];

/// All that is known of the jobs of one server.
#[derive(Debug)]
pub struct Insight {
    settings: Settings,
    stores: BTreeMap<u16, StoreWatch>,
    runs: BTreeMap<RunKey, Run>,
    plans: BTreeMap<String, Arc<Plan>>,
    /// Of a run of which nothing was said.
    no_plan: Arc<Plan>,
    log: ExplanationLog,
    news: Vec<Change>,
    /// Runs as subscribers know them.
    shown: BTreeMap<RunKey, u64>,
    /// When what holds was last looked at.
    looked: Option<Timestamp>,
    /// The waits were told since then.
    waits_told: bool,
    totals: Totals,
}

impl Insight {
    /// Change kept until they are taken.
    const MOST_NEWS: usize = 16_384;
    /// Runs with plans.
    const MOST_PLANS: usize = 4096;
    /// Connections tracked in one store.
    const MOST_CLIENTS: usize = 300_000;
    /// What holds is looked at whenever the waits are told, so that none is taken for one that still lasts; where
    /// nobody tells them, this often.
    const LOOK_EVERY: Duration = Duration::from_millis(1500);
    /// A run that is over is shown this long.
    const OVER_SHOWN: Duration = Duration::from_hours(1);

    /// Knows nothing yet.
    pub fn new(settings: Settings) -> Self {
        let log = ExplanationLog::new(settings.explain_after, settings.epoch);
        let totals =
            Totals { join_seconds: vec![0; JOIN_BUCKETS.len().saturating_add(1)], ..Totals::default() };
        Self {
            no_plan: Arc::new(Plan::new(settings.nodes)),
            settings,
            stores: BTreeMap::new(),
            runs: BTreeMap::new(),
            plans: BTreeMap::new(),
            log,
            news: Vec::new(),
            shown: BTreeMap::new(),
            looked: None,
            waits_told: false,
            totals,
        }
    }

    /// The store on `port` was opened for a run. To be told before what is observed there.
    pub fn own_store(&mut self, port: u16, owner: StoreOwner) {
        self.store(port).owner = Some(owner);
    }

    /// The store on `port` was closed: its runs are no longer shown.
    pub fn forget_store(&mut self, port: u16) {
        self.stores.remove(&port);
        let gone: Vec<RunKey> = self.runs.keys().filter(|key| key.store == port).cloned().collect();
        for key in &gone {
            self.drop_run(key);
        }
    }

    /// Observations were lost.
    pub fn lost(&mut self, count: u64) {
        self.totals.lost = self.totals.lost.saturating_add(count);
    }

    /// An operator says what to expect of a run. `false` if there are too many such runs.
    pub fn expect(&mut self, run_id: &str, expectation: Expectation) -> bool {
        let Some(plan) = self.plan_mut(run_id) else { return false };
        plan.expectation = Some(expectation);
        plan.version = plan.version.saturating_add(1);
        true
    }

    /// Forgets what is known of a run, but for a native one: that is the rendezvous' to forget. The store it uses keeps
    /// its keys. `false` if it is not known.
    pub fn forget(&mut self, run_id: &str) -> bool {
        let mut keys: Vec<RunKey> = self.keys_of(run_id, None);
        keys.retain(|key| !key.is_native());
        for key in &keys {
            self.drop_run(key);
        }
        self.plans.remove(run_id).is_some() || !keys.is_empty()
    }

    /// Takes what has changed since the last call.
    pub fn take_news(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.news)
    }

    /// What happened so often.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// A foreign client came to a store's port.
    pub fn foreign(&mut self, store: u16, peer: IpAddr, protocol: &'static str, now: Timestamp) {
        const MOST: usize = 64;
        let foreign = &mut self.store(store).foreign;
        if let Some(known) = foreign.iter_mut().find(|known| known.peer == peer && known.protocol == protocol)
        {
            known.times = known.times.saturating_add(1);
            known.last = now;
            return;
        }
        if foreign.len() == MOST {
            foreign.pop_front();
        }
        foreign.push_back(Foreign { peer, protocol, times: 1, last: now });
    }

    fn store(&mut self, port: u16) -> &mut StoreWatch {
        self.stores.entry(port).or_insert_with(|| StoreWatch {
            port,
            owner: None,
            clients: HashMap::new(),
            waits: HashMap::new(),
            given_up: BTreeMap::new(),
            clashes: Vec::new(),
            foreign: VecDeque::new(),
        })
    }

    fn key_of(&mut self, store: u16, id: &[u8]) -> RunKey {
        self.store(store).key_of(&RunId::new(id))
    }

    fn plan_mut(&mut self, run_id: &str) -> Option<&mut Plan> {
        if self.plans.len() >= Self::MOST_PLANS && !self.plans.contains_key(run_id) {
            return None;
        }
        let flag = self.settings.nodes;
        let new = || {
            let mut plan = Plan::new(flag);
            plan.version = 1;
            Arc::new(plan)
        };
        Some(Arc::make_mut(self.plans.entry(run_id.to_owned()).or_insert_with(new)))
    }

    /// What was said about a run from outside.
    fn plan(&self, key: &RunKey) -> Arc<Plan> {
        Arc::clone(self.plans.get(&self.name(key)).unwrap_or(&self.no_plan))
    }

    /// A run's name for people.
    fn name(&self, key: &RunKey) -> String {
        match &key.id {
            Some(id) => id.to_string(),
            None => match self.stores.get(&key.store).and_then(|store| store.owner.as_ref()) {
                Some(StoreOwner::Run(name)) => name.clone(),
                Some(StoreOwner::Round(run)) => run.to_string(),
                None => format!("store:{}", key.store),
            },
        }
    }

    fn keys_of(&self, run_id: &str, store: Option<u16>) -> Vec<RunKey> {
        let is_it =
            |run: &&Run| store.is_none_or(|port| run.store() == Some(port)) && self.name(&run.key) == run_id;
        self.runs.values().filter(is_it).map(|run| run.key.clone()).collect()
    }

    /// The run, made if it is not there. `None` if there are too many that are not over.
    fn run_mut(&mut self, key: &RunKey, kind: RunKind, now: Timestamp) -> Option<&mut Run> {
        if !self.runs.contains_key(key) {
            // The native rendezvous has the same limit on its own runs.
            let watched = || self.runs.values().filter(|run| run.native.is_none());
            if watched().count() >= self.settings.max_runs {
                let oldest = watched().filter(|run| run.over_at.is_some()).min_by_key(|run| run.over_at);
                // Announcements make way for traffic.
                let is_gathering = |run: &&Run| run.kind == RunKind::Gathering && kind != RunKind::Gathering;
                let oldest = oldest.or_else(|| watched().find(is_gathering));
                let oldest = oldest?.key.clone();
                self.drop_run(&oldest);
            }
            self.runs.insert(key.clone(), Run::new(key.clone(), kind, now));
        }
        self.runs.get_mut(key)
    }

    fn drop_run(&mut self, key: &RunKey) {
        let Some(run) = self.runs.remove(key) else { return };
        self.log.forget(key);
        if self.shown.remove(key).is_some() {
            let gone = RunGone { run_id: self.name(key), store: key.port() };
            self.tell(Change::RunGone(gone));
        }
        if let Some(store) = run.store().and_then(|port| self.stores.get_mut(&port)) {
            store.clients.values_mut().filter(|client| client.run.as_ref() == Some(key)).for_each(|client| {
                client.run = None;
                client.rank = None;
            });
        }
    }

    fn tell(&mut self, news: Change) {
        if self.news.len() < Self::MOST_NEWS {
            self.news.push(news);
        }
    }
}

impl StoreWatch {
    /// The key of a run that has an id. Whatever the processes of a round call it, they belong to the round's run.
    fn key_of(&self, id: &RunId) -> RunKey {
        match &self.owner {
            Some(StoreOwner::Round(run)) => RunKey::native(run),
            _ => RunKey { store: self.port, id: Some(id.clone()) },
        }
    }
}
