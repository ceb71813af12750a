//! Which pods are there, are missing, or have another PyTorch: the sentences of the log, the API and `wait`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Contact, Gate, PodKey};
use rallypoint_protocol::ids::{Nodes, Timestamp, counted};

/// Most names in a sentence.
const SHOWN: usize = 10;
/// Pods whose names are inspected to learn how all are named.
const PATTERN_AMONG: usize = 64;

/// The progress of a gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateProgress {
    /// How many pods are expected.
    pub expected: u32,
    /// How many pods are there.
    pub arrived: usize,
    /// Some of the missing pods, with what is known of them.
    pub missing: Vec<String>,
    /// Time since the first announcement.
    pub waited: Duration,
}

/// A missing pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The node rank that nobody holds.
    pub node_rank: u32,
    /// The pod's name: known if it was there before, else derived from the names of other pods.
    pub pod: Option<String>,
    /// Its last sign of life, if it was there before.
    pub seen: Option<Timestamp>,
    /// Whether it was there before and the link of its relay is away.
    pub is_away: bool,
    /// Whether it was there before and its connection closed.
    pub is_cut: bool,
}

impl Missing {
    /// The first missing pods, by rank. Without ranks no pod can be named.
    pub(super) fn of(gate: &Gate, nodes: Nodes, now: Timestamp, timeout: Duration, most: usize) -> Vec<Self> {
        if !gate.members.has_ranks() {
            return Vec::new();
        }
        let pattern = gate.members().take(PATTERN_AMONG).find_map(|member| {
            let pattern = NamePattern::of(&member.said.pod, member.said.node_rank?)?;
            // If one host has several pods, the host name does not identify a pod.
            gate.members.is_alone(&member.said.pod).then_some(pattern)
        });
        let roll = gate.members.roll(now, timeout);
        let missing = roll.held.gaps(nodes.min).map(|rank| {
            let gone = gate.members.holder(rank);
            let pod = gone.map(|gone| gone.said.pod.clone());
            // A pod whose rank differs from its name is there, and so is a refused pod.
            let is_there = |name: &str| {
                gate.turned_away.values().any(|pod| pod.said.pod == name)
                    || gate.members.is_there(name, now, timeout)
            };
            let by_pattern = || pattern.as_ref().map(|pattern| pattern.name(rank));
            let pod = pod.or_else(|| by_pattern().filter(|name| !is_there(name)));
            let is_away = gone.is_some_and(|gone| gone.contact == Contact::Away);
            let is_cut = gone.is_some_and(|gone| gone.is_cut);
            Self { node_rank: rank, pod, seen: gone.map(|gone| gone.seen), is_away, is_cut }
        });
        missing.take(most).collect()
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { node_rank, pod, seen, is_away, .. } = self;
        match (pod, seen) {
            (Some(pod), Some(_)) if *is_away => {
                write!(f, "{pod} (node rank {node_rank}, was there, and its link is away)")
            }
            // Without a time, so that the sentence stays the same until something happens.
            (Some(pod), Some(_)) => write!(f, "{pod} (node rank {node_rank}, was there and is gone)"),
            (Some(pod), None) => write!(f, "{pod} (node rank {node_rank})"),
            (None, _) => write!(f, "node rank {node_rank}"),
        }
    }
}

impl GateProgress {
    pub(super) fn of(gate: &Gate, nodes: Nodes, now: Timestamp, timeout: Duration) -> Self {
        let arrived = gate.members.roll(now, timeout).there;
        let missing = Missing::of(gate, nodes, now, timeout, SHOWN);
        let missing = missing.iter().map(Missing::to_string).collect();
        Self { expected: nodes.min, arrived, missing, waited: now.since(gate.since()) }
    }

    /// How many pods are missing.
    pub fn missing_count(&self) -> usize {
        (self.expected as usize).saturating_sub(self.arrived)
    }
}

impl std::fmt::Display for GateProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.arrived, counted(self.expected, "pod is there", "pods are there"))?;
        if !self.missing.is_empty() {
            write!(f, "; missing: {}", self.missing.join(", "))?;
            let more = self.missing_count().saturating_sub(self.missing.len());
            if more > 0 {
                write!(f, " and {more} more")?;
            }
        }
        Ok(())
    }
}

/// How the pods of a run are named, to name a pod that never announced itself.
struct NamePattern {
    before: String,
    after: &'static str,
}

impl NamePattern {
    /// `train-3` of a StatefulSet, or `train-3-x7k2p` of a Job.
    fn of(pod: &str, rank: u32) -> Option<Self> {
        let rank = format!("-{rank}");
        if let Some(before) = pod.strip_suffix(&rank) {
            return Some(Self { before: before.into(), after: "" });
        }
        let (name, end) = pod.rsplit_once('-')?;
        let before = name.strip_suffix(&rank).filter(|_| end.len() == 5)?;
        Some(Self { before: before.into(), after: "-…" })
    }

    fn name(&self, rank: u32) -> String {
        format!("{}-{rank}{}", self.before, self.after)
    }
}

impl Gate {
    /// Pods by their version of PyTorch.
    pub fn versions(&self) -> BTreeMap<String, Vec<String>> {
        let pods = |alike: &BTreeSet<Arc<PodKey>>| alike.iter().map(|key| key.0.0.clone()).collect();
        self.members.versions().iter().map(|(version, alike)| (version.clone(), pods(alike))).collect()
    }

    /// The versions of PyTorch, each with some of its pods, if there are several versions.
    pub fn differing_versions(&self) -> Option<String> {
        const SHOWN: usize = 3;
        let versions = self.members.versions();
        let told = versions.iter().map(|(version, alike)| {
            let shown: Vec<&str> = alike.iter().take(SHOWN).map(|key| key.0.0.as_str()).collect();
            let more = match alike.len().saturating_sub(SHOWN) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("{version} ({}{more})", shown.join(", "))
        });
        (versions.len() > 1).then(|| told.collect::<Vec<_>>().join(", "))
    }
}
