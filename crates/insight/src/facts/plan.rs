//! How many nodes a run should have, and where that number comes from.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use rallypoint_api::{Expected, ExpectedFrom};
use rallypoint_protocol::ids::Timestamp;
use rallypoint_rendezvous::gate::{Announcement, GateSnapshot, GateState};

/// What an operator expects of a run: the body of `PUT /api/v1/runs/{run_id}/expect`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Expectation {
    /// The least number of nodes.
    pub min: u32,
    /// The greatest number of nodes.
    pub max: u32,
    /// The nodes' names, if they are known.
    pub names: Vec<String>,
}

/// What was said about a run from outside its traffic.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    pub(crate) expectation: Option<Expectation>,
    gate: Option<Gate>,
    /// Pods that announced themselves and whose relays are gone, and since when…
    pub(crate) gone: Gone,
    /// …as the links of this version showed.
    links: Option<u64>,
    /// Nothing has been heard of the pods behind the open gate since then, so it was forgotten. They may do
    /// what needs no store.
    passed: Option<Timestamp>,
    /// `serve --nodes`.
    flag: Option<(u32, u32)>,
    /// Goes up with every change.
    pub(crate) version: u64,
}

/// Pods whose relays are gone, and since when.
type Gone = BTreeMap<String, Timestamp>;

/// The pods that announced themselves.
#[derive(Debug, Clone)]
struct Gate {
    snapshot: GateSnapshot,
    /// Pods by the names that their agents may use; `None` if several pods fit a name.
    by_host: HashMap<String, Option<usize>>,
    /// How many pods have a name, whether they still count or not.
    of_name: HashMap<String, usize>,
}

impl Gate {
    fn new(snapshot: GateSnapshot) -> Self {
        let mut by_host: HashMap<String, Option<usize>> = HashMap::new();
        for (at, pod) in snapshot.pods.iter().enumerate() {
            // The host name of a Job's pod: `train-3-x7k2p`, with a random end, is `train-3` there.
            let of_job = pod.pod.rsplit_once('-').filter(|(_, end)| end.len() == 5);
            let of_job = of_job.map(|(host, _)| host.to_owned());
            let hosts = [Some(pod.pod.clone()), of_job, Some(pod.address.to_string())];
            for host in hosts.into_iter().flatten() {
                by_host.entry(host).and_modify(|pod| *pod = None).or_insert(Some(at));
            }
        }
        let mut of_name: HashMap<String, usize> = HashMap::new();
        for pod in snapshot.known() {
            let pods = of_name.entry(pod.name.to_owned()).or_default();
            *pods = pods.saturating_add(1);
        }
        Self { snapshot, by_host, of_name }
    }
}

impl Plan {
    /// The pods that announced themselves, if any did.
    pub(crate) fn gate(&self) -> Option<&GateSnapshot> {
        self.gate.as_ref().map(|gate| &gate.snapshot)
    }

    pub(crate) fn expected(&self) -> Option<Expected> {
        if let Some(expectation) = &self.expectation {
            return Some(Expected { min: expectation.min, max: expectation.max, source: ExpectedFrom::Api });
        }
        if let Some(gate) = self.gate() {
            let (min, max) = (gate.nodes.min, gate.nodes.max);
            return Some(Expected { min, max, source: ExpectedFrom::Announced });
        }
        self.flag.map(|(min, max)| Expected { min, max, source: ExpectedFrom::Flag })
    }

    /// How many ranks the pods count on, if all of them say the same.
    pub(crate) fn world_size(&self) -> Option<u32> {
        let mut all = self.gate()?.pods.iter().map(|pod| pod.world_size);
        let first = all.next()??;
        all.all(|size| size == Some(first)).then_some(first)
    }

    /// The pod behind an agent that calls itself `addr`.
    pub(crate) fn pod_at(&self, addr: &str) -> Option<&Announcement> {
        let gate = self.gate.as_ref()?;
        let at = (*gate.by_host.get(short(addr))?)?;
        gate.snapshot.pods.get(at)
    }

    /// The pod that announced itself with a node rank, whether it still counts or not, and when it was heard
    /// of last if it does not.
    pub(crate) fn announced(&self, rank: u32) -> Option<(&str, Option<Timestamp>)> {
        let silent = || self.gate()?.silent().find(|missing| missing.node_rank == rank);
        match self.pod_of_rank(rank) {
            Some(pod) => Some((&pod.pod, None)),
            None => silent().and_then(|missing| Some((missing.pod.as_deref()?, missing.seen))),
        }
    }

    /// Whether no two of the pods that announced themselves have this name.
    pub(crate) fn is_only(&self, pod: &str) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.of_name.get(pod) == Some(&1))
    }

    pub(crate) fn pod_of_rank(&self, rank: u32) -> Option<&Announcement> {
        self.gate()?.pods.iter().find(|pod| pod.node_rank == Some(rank))
    }
}

/// What was said about all runs.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    of_run: BTreeMap<String, Arc<Plan>>,
    /// For a run about which nothing was said.
    none: Arc<Plan>,
}

impl Plans {
    const MOST: usize = 4096;

    /// `flag`: `serve --nodes`.
    pub(crate) fn new(flag: Option<(u32, u32)>) -> Self {
        Self { of_run: BTreeMap::new(), none: Arc::new(Plan { flag, ..Plan::default() }) }
    }

    pub(crate) fn of(&self, run_id: &str) -> Arc<Plan> {
        Arc::clone(self.of_run.get(run_id).unwrap_or(&self.none))
    }

    /// The gates of all runs that have one.
    pub(crate) fn gates(&self) -> impl Iterator<Item = (&str, &GateSnapshot)> {
        self.of_run.iter().filter_map(|(run_id, plan)| Some((run_id.as_str(), plan.gate()?)))
    }

    /// An operator says what to expect of a run. `false` if there are too many such runs.
    pub(crate) fn expect(&mut self, run_id: &str, expectation: Expectation) -> bool {
        self.change(run_id, |plan| plan.expectation = Some(expectation))
    }

    /// Whether something can be said about a run: of some only.
    pub(crate) fn has_room_for(&self, run_id: &str) -> bool {
        self.of_run.len() < Self::MOST || self.of_run.contains_key(run_id)
    }

    /// The next run of which an operator expects something, behind this one.
    pub(crate) fn next_expectation(&self, after: Option<&str>) -> Option<(&str, &Expectation)> {
        let mut behind = self.of_run.range::<str, _>((after.map_or(Unbounded, Excluded), Unbounded));
        behind.find_map(|(run_id, plan)| Some((run_id.as_str(), plan.expectation.as_ref()?)))
    }

    /// A run's gate has changed; `None`: nothing has been heard of its pods since `heard`. Who has passed an
    /// open gate need not say anything for a while. `false` if that is nothing new, or there are too many
    /// runs.
    pub(crate) fn set_gate(&mut self, run_id: &str, gate: Option<GateSnapshot>, heard: Timestamp) -> bool {
        let plan = self.of_run.get(run_id);
        if gate.is_none() && plan.is_none_or(|plan| plan.passed.is_some()) {
            return false;
        }
        let gate_before = plan.and_then(|plan| plan.gate());
        // Since this server was started.
        let was_open = gate_before.is_some_and(|gate| matches!(gate.state, GateState::Open { .. }));
        if gate.is_none() && was_open {
            return self.change(run_id, |plan| plan.passed = Some(heard));
        }
        self.change_gate(run_id, gate)
    }

    /// Forgets gates whose pods have passed them long ago. Returns their runs.
    pub(crate) fn forget_passed(&mut self, now: Timestamp) -> Vec<String> {
        const KEPT: Duration = Duration::from_mins(10);
        let is_old = |plan: &Plan| plan.passed.is_some_and(|at| now.since(at) >= KEPT);
        let old = self.of_run.iter().filter(|(_, plan)| is_old(plan));
        let old: Vec<String> = old.map(|(run_id, _)| run_id.clone()).collect();
        for run_id in &old {
            self.change_gate(run_id, None);
        }
        old
    }

    /// Looks which of the pods of a run are `gone`, if relays have come or gone since the last look, which
    /// `links` counts.
    pub(crate) fn see_links(&mut self, run_id: &str, links: u64, gone: impl FnOnce(&Plan) -> Gone) {
        let has_news = |plan: &&mut Arc<Plan>| plan.gate.is_some() && plan.links != Some(links);
        let Some(plan) = self.of_run.get_mut(run_id).filter(has_news) else { return };
        let (gone, plan) = (gone(plan), Arc::make_mut(plan));
        plan.version = plan.version.saturating_add(u64::from(plan.gone != gone));
        (plan.links, plan.gone) = (Some(links), gone);
    }

    fn change_gate(&mut self, run_id: &str, gate: Option<GateSnapshot>) -> bool {
        let changed = self.change(run_id, |plan| {
            (plan.gate, plan.passed) = (gate.map(Gate::new), None);
            (plan.gone, plan.links) = (Gone::new(), None);
        });
        // Nothing else is said of some runs.
        if self.of_run.get(run_id).is_some_and(|plan| plan.expectation.is_none() && plan.gate.is_none()) {
            self.of_run.remove(run_id);
        }
        changed
    }

    /// Forgets what was said about a run. `false` if nothing was.
    pub(crate) fn forget(&mut self, run_id: &str) -> bool {
        self.of_run.remove(run_id).is_some()
    }

    fn change(&mut self, run_id: &str, change: impl FnOnce(&mut Plan)) -> bool {
        if !self.has_room_for(run_id) {
            return false;
        }
        let new = || Arc::new(Plan { version: 1, ..Plan::clone(&self.none) });
        let plan = Arc::make_mut(self.of_run.entry(run_id.to_owned()).or_insert_with(new));
        change(plan);
        plan.version = plan.version.saturating_add(1);
        true
    }
}

/// The first label of a host name; an address as it is.
pub(crate) fn short(addr: &str) -> &str {
    if addr.parse::<std::net::IpAddr>().is_ok() {
        return addr;
    }
    addr.split('.').next().unwrap_or(addr)
}
