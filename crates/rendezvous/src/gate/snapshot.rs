//! One run's gate at one moment, for insight, which explains it.

use std::time::Duration;

use super::{Announcement, Gate, Member, Missing};
use rallypoint_protocol::ids::Nodes;
use rallypoint_protocol::ids::Timestamp;

/// Most missing pods in the list.
const MOST_MISSING: usize = 1024;

/// Whether a gate is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateState {
    /// The gate holds its pods.
    Gathers,
    /// The gate is open.
    Open {
        /// When it opened.
        since: Timestamp,
    },
    /// The gate was already open when the server was restarted: its pods may have met before.
    OpenBefore,
}

/// A pod that announced itself.
#[derive(Debug, Clone, Copy)]
pub struct KnownPod<'g> {
    /// Its name.
    pub name: &'g str,
    /// Its node rank, if it has one.
    pub node_rank: Option<u32>,
    /// Its announcement, if it lives.
    pub said: Option<&'g Announcement>,
}

/// A pod that was refused, and has not been taken in since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnedAway {
    /// Its last announcement.
    pub said: Announcement,
    /// Its last sign of life, if it is gone.
    pub gone: Option<Timestamp>,
}

/// One run's gate at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateSnapshot {
    /// When the first pod announced itself.
    pub since: Timestamp,
    /// How many nodes the run has.
    pub nodes: Nodes,
    /// Whether it is open.
    pub state: GateState,
    /// The announced pods that are there.
    pub pods: Vec<Announcement>,
    /// The missing pods, with what is known of them.
    pub missing: Vec<Missing>,
    /// Pods that were refused: a live pod has their node rank, or they expect another number of nodes.
    pub turned_away: Vec<TurnedAway>,
    /// Pods that came again and again, each with how often it has gone.
    pub in_a_loop: Vec<(String, u32)>,
    /// The versions of PyTorch, each with some of its pods, if there are several.
    pub versions: Option<String>,
}

impl GateSnapshot {
    /// Pods that announced themselves and do not count any more, if they had ranks. At an open gate they may
    /// still run, because a pod that has passed need not announce itself again.
    pub fn silent(&self) -> impl Iterator<Item = &Missing> {
        self.missing.iter().filter(|missing| missing.seen.is_some())
    }

    /// The living pods, and the [silent](Self::silent) ones.
    pub fn known(&self) -> impl Iterator<Item = KnownPod<'_>> {
        let live = self.pods.iter();
        let live = live.map(|said| KnownPod { name: &said.pod, node_rank: said.node_rank, said: Some(said) });
        let silent = self.silent().filter_map(|silent| {
            Some(KnownPod { name: silent.pod.as_deref()?, node_rank: Some(silent.node_rank), said: None })
        });
        live.chain(silent)
    }

    /// Whether it has let its pods pass.
    pub fn is_open(&self) -> bool {
        self.state != GateState::Gathers
    }

    /// How many pods have passed the gate, or are held by it.
    pub fn announced(&self) -> usize {
        let known = self.pods.len().saturating_add(self.silent().count());
        // Silent pods without ranks are not in any list: it is only known that they were there.
        if self.is_open() { known.max(self.nodes.min as usize) } else { self.pods.len() }
    }
}

impl Gate {
    /// A pod that has gone so often is started again and again.
    const LOOP: u32 = 3;

    /// The gate as it is now. `None` if it has no pods.
    pub fn snapshot(&self, now: Timestamp, timeout: Duration) -> Option<GateSnapshot> {
        let nodes = self.nodes()?;
        let said = |member: &Member| member.said.clone();
        let turned_away = self.turned_away.values().filter_map(|pod| {
            let gone = (!pod.is_live(now, timeout)).then_some(pod.seen);
            let has_come = gone.is_some() && self.members.is_there(&pod.said.pod, now, timeout);
            (!has_come).then(|| TurnedAway { said: pod.said.clone(), gone })
        });
        let in_a_loop = self.members.values().filter(|pod| pod.gone >= Self::LOOP);
        Some(GateSnapshot {
            since: self.since,
            nodes,
            state: match self.opened {
                None => GateState::Gathers,
                Some(_) if self.is_restored => GateState::OpenBefore,
                Some(opened) => GateState::Open { since: self.since + opened.after },
            },
            pods: self.there(now, timeout).map(said).collect(),
            missing: Missing::of(self, nodes, now, timeout, MOST_MISSING),
            turned_away: turned_away.collect(),
            in_a_loop: in_a_loop.map(|pod| (pod.said.pod.clone(), pod.gone)).collect(),
            versions: self.differing_versions(),
        })
    }
}
