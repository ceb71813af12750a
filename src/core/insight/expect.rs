//! How many nodes a run should have, and who says so.

use std::collections::HashMap;

use crate::api::{Expected, ExpectedFrom};
use crate::core::gate::{Announcement, GateSnapshot};

/// What an operator expects of a run: the body of `PUT /api/v1/runs/{run_id}/expect`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Expectation {
    /// At least so many nodes.
    pub min: u32,
    /// At most so many nodes.
    pub max: u32,
    /// The nodes' names, where they are known.
    pub names: Vec<String>,
}

/// What was said about a run from outside its traffic.
#[derive(Debug, Clone, Default)]
pub(super) struct Plan {
    pub(super) expectation: Option<Expectation>,
    gate: Option<Gate>,
    /// `serve --nodes`.
    pub(super) flag: Option<(u32, u32)>,
    /// Goes up with every change.
    pub(super) version: u64,
}

/// The pods that announced themselves.
#[derive(Debug, Clone)]
struct Gate {
    snapshot: GateSnapshot,
    /// Pods by what their agents may call themselves; `None` where that is several.
    by_host: HashMap<String, Option<usize>>,
}

impl Gate {
    fn new(snapshot: GateSnapshot) -> Self {
        let mut by_host: HashMap<String, Option<usize>> = HashMap::new();
        for (at, pod) in snapshot.pods.iter().enumerate() {
            let hosts = [Some(pod.pod.clone()), host_of_job(&pod.pod), Some(pod.address.to_string())];
            for host in hosts.into_iter().flatten() {
                by_host.entry(host).and_modify(|pod| *pod = None).or_insert(Some(at));
            }
        }
        Self { snapshot, by_host }
    }
}

/// The host name of a Job's pod: `train-3-x7k2p` is `train-3` there.
fn host_of_job(pod: &str) -> Option<String> {
    const RANDOM: usize = 5;
    let (host, end) = pod.rsplit_once('-')?;
    (end.len() == RANDOM).then(|| host.to_owned())
}

impl Plan {
    pub(super) fn new(flag: Option<(u32, u32)>) -> Self {
        Self { flag, ..Self::default() }
    }

    /// The pods as they are now.
    pub(super) fn set_gate(&mut self, snapshot: Option<GateSnapshot>) {
        self.gate = snapshot.map(Gate::new);
        self.version = self.version.saturating_add(1);
    }

    /// The pods that announced themselves, if somebody did.
    pub(super) fn gate(&self) -> Option<&GateSnapshot> {
        self.gate.as_ref().map(|gate| &gate.snapshot)
    }

    /// Whether nothing is said any more.
    pub(super) fn is_empty(&self) -> bool {
        self.expectation.is_none() && self.gate.is_none()
    }

    /// The expectation from outside.
    pub(super) fn expected(&self) -> Option<Expected> {
        if let Some(expectation) = &self.expectation {
            return Some(Expected { min: expectation.min, max: expectation.max, source: ExpectedFrom::Api });
        }
        if let Some(gate) = self.gate() {
            let (min, max) = (gate.nodes.min, gate.nodes.max);
            return Some(Expected { min, max, source: ExpectedFrom::Announced });
        }
        self.flag.map(|(min, max)| Expected { min, max, source: ExpectedFrom::Flag })
    }

    /// The pod behind an agent that calls itself `addr`.
    pub(super) fn pod_at(&self, addr: &str) -> Option<&Announcement> {
        let gate = self.gate.as_ref()?;
        let at = (*gate.by_host.get(short(addr))?)?;
        gate.snapshot.pods.get(at)
    }

    /// The pod with a node rank.
    pub(super) fn pod_of_rank(&self, rank: u32) -> Option<&Announcement> {
        self.gate()?.pods.iter().find(|pod| pod.node_rank == Some(rank))
    }
}

/// The first label of a host name; an address as it is.
pub(super) fn short(addr: &str) -> &str {
    if addr.parse::<std::net::IpAddr>().is_ok() {
        return addr;
    }
    addr.split('.').next().unwrap_or(addr)
}
