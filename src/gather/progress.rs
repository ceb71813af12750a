//! Who is there, who is missing, and who has another PyTorch: the sentences that the log, the API and `wait` show.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::Run;
use crate::ids::Uptime;
use crate::launch::Nodes;

/// Names in a sentence.
const SHOWN: usize = 10;

/// How far a gathering is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Pods to wait for.
    pub expected: u32,
    /// Pods that are there.
    pub arrived: usize,
    /// Some of the missing, as well as they are known.
    pub missing: Vec<String>,
    /// Since the first announcement.
    pub waited: Duration,
}

impl Progress {
    pub(super) fn of(run: &Run, nodes: Nodes, now: Uptime, timeout: Duration) -> Self {
        let arrived = run.live(now, timeout).count();
        let held: HashMap<u32, bool> = run
            .members()
            .filter_map(|member| Some((member.said.node_rank?, now.since(member.seen) < timeout)))
            .collect();
        let pattern =
            run.members().find_map(|member| NamePattern::of(&member.said.pod, member.said.node_rank?));
        let missing =
            (0..nodes.min).filter(|rank| !held.get(rank).copied().unwrap_or(false)).take(SHOWN).map(|rank| {
                let gone = run.members().find(|member| member.said.node_rank == Some(rank));
                match (gone, &pattern) {
                    // Without a time, so that the sentence is the same until something happens.
                    (Some(gone), _) => format!("{} (node rank {rank}, was there and is gone)", gone.said.pod),
                    (None, Some(pattern)) => format!("{} (node rank {rank})", pattern.name(rank)),
                    (None, None) => format!("node rank {rank}"),
                }
            });
        // Without ranks nobody can be named.
        let missing = if held.is_empty() { Vec::new() } else { missing.collect() };
        Self { expected: nodes.min, arrived, missing, waited: now.since(run.since()) }
    }

    /// How many are missing.
    pub fn missing_count(&self) -> usize {
        (self.expected as usize).saturating_sub(self.arrived)
    }
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} pods are there", self.arrived, self.expected)?;
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
    pub(super) fn of(run: &Run) -> Self {
        let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for member in run.members() {
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
                format!(" and {} more", pods.len() - shown.len())
            } else {
                String::new()
            };
            write!(f, "{}{version} ({}{more})", if n == 0 { "" } else { ", " }, shown.join(", "))?;
        }
        Ok(())
    }
}
