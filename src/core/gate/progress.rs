//! Which pods are there, are missing, or have another PyTorch: the sentences that the log, the API and `wait` show.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::{Gate, Member};
use crate::core::ids::{Nodes, Timestamp, counted};

/// Most names in a sentence.
const SHOWN: usize = 10;

/// The progress of a gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateProgress {
    /// Pods to wait for.
    pub expected: u32,
    /// Pods that are there.
    pub arrived: usize,
    /// Some of the missing pods, with what is known of them.
    pub missing: Vec<String>,
    /// Since the first announcement.
    pub waited: Duration,
}

/// A pod that should be there and is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The node rank that nobody holds.
    pub node_rank: u32,
    /// The pod's name: its own if it was there, else the name that follows from those of the others.
    pub pod: Option<String>,
    /// Its last sign of life, if it was there.
    pub seen: Option<Timestamp>,
}

impl Missing {
    /// The first missing pods, by rank. Without ranks no pod can be named.
    pub(super) fn of(gate: &Gate, nodes: Nodes, now: Timestamp, timeout: Duration, most: usize) -> Vec<Self> {
        let by_rank: HashMap<u32, &Member> =
            gate.members().filter_map(|member| Some((member.said.node_rank?, member))).collect();
        if by_rank.is_empty() {
            return Vec::new();
        }
        let is_live = |member: &Member| now.since(member.seen) < timeout;
        let pattern = gate.members().find_map(|member| {
            let pattern = NamePattern::of(&member.said.pod, member.said.node_rank?)?;
            // The name of a host with several pods does not name one of them.
            let of_name = gate.members().filter(|other| other.said.pod == member.said.pod);
            (of_name.take(2).count() == 1).then_some(pattern)
        });
        let missing = (0..nodes.min).filter_map(|rank| match by_rank.get(&rank) {
            Some(member) if is_live(member) => None,
            Some(gone) => {
                Some(Self { node_rank: rank, pod: Some(gone.said.pod.clone()), seen: Some(gone.seen) })
            }
            None => {
                let pod = pattern.as_ref().map(|pattern| pattern.name(rank));
                Some(Self { node_rank: rank, pod, seen: None })
            }
        });
        missing.take(most).collect()
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { node_rank, pod, seen } = self;
        match (pod, seen) {
            // It has no time, so that the sentence stays the same until something happens.
            (Some(pod), Some(_)) => write!(f, "{pod} (node rank {node_rank}, was there and is gone)"),
            (Some(pod), None) => write!(f, "{pod} (node rank {node_rank})"),
            (None, _) => write!(f, "node rank {node_rank}"),
        }
    }
}

impl GateProgress {
    pub(super) fn of(gate: &Gate, nodes: Nodes, now: Timestamp, timeout: Duration) -> Self {
        let arrived = gate.live(now, timeout).count();
        let missing = Missing::of(gate, nodes, now, timeout, SHOWN);
        let missing = missing.iter().map(Missing::to_string).collect();
        Self { expected: nodes.min, arrived, missing, waited: now.since(gate.since()) }
    }

    /// How many are missing.
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

/// How the pods of a run are named, so that one that never announced itself can be.
struct NamePattern {
    before: String,
    after: &'static str,
}

impl NamePattern {
    /// `train-3` of a StatefulSet, `train-3-x7k2p` of a Job.
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

/// Pods by their version of PyTorch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Versions(pub BTreeMap<String, Vec<String>>);

impl Versions {
    pub(super) fn of(gate: &Gate) -> Self {
        let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for member in gate.members() {
            if let Some(torch) = &member.said.torch {
                versions.entry(torch.clone()).or_default().push(member.said.pod.clone());
            }
        }
        Self(versions)
    }
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, (version, pods)) in self.0.iter().enumerate() {
            let shown: Vec<&str> = pods.iter().take(3).map(String::as_str).collect();
            let more = if pods.len() > shown.len() {
                format!(" and {} more", pods.len().saturating_sub(shown.len()))
            } else {
                String::new()
            };
            write!(f, "{}{version} ({}{more})", if n == 0 { "" } else { ", " }, shown.join(", "))?;
        }
        Ok(())
    }
}
