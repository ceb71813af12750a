//! Room for what is known of runs: one that is over is reduced to a summary when memory is short.

use super::Insight;
use super::run::{Node, Run, RunKey};
use super::world::RankInfo;
use crate::core::ids::Timestamp;

impl Insight {
    /// Lets go of what may be missed, until all runs take no more than `most` bytes: of those that are over all but how
    /// many they were and how it ended, the oldest first; of the others the history. Returns what they take then. The
    /// nodes of native runs are the rendezvous' to count.
    pub fn make_room(&mut self, most: usize) -> usize {
        let mut memory: usize = self.runs.values().map(Run::memory).sum();
        if memory <= most {
            return memory;
        }
        let since = |run: &Run| run.over_at.unwrap_or(run.state_since);
        let mut oldest: Vec<(bool, Timestamp, RunKey)> =
            self.runs.values().map(|run| (!run.can_be_summarized(), since(run), run.key.clone())).collect();
        oldest.sort();
        for (goes_on, _, key) in oldest {
            let Some(run) = self.runs.get_mut(&key).filter(|_| memory > most) else { break };
            let before = run.memory();
            if !goes_on {
                run.summarize();
            }
            run.shorten_history();
            let after = run.memory();
            if after != before {
                run.touch();
            }
            memory = memory.saturating_sub(before).saturating_add(after);
        }
        memory
    }
}

impl Run {
    /// Bytes that it takes, about.
    fn memory(&self) -> usize {
        /// A short text with its place in a list or a map.
        const TEXT: usize = 128;
        const NODE: usize = size_of::<Node>() + 2 * TEXT;
        const RANK: usize = size_of::<RankInfo>() + TEXT;
        const RUN: usize = 2 * size_of::<Run>();
        let nodes = if self.native.is_some() { 0 } else { self.nodes.len() };
        let ranks = [self.world.ranks.len(), self.world.former.len()].map(|n| n.saturating_mul(RANK));
        let texts = [self.earlier.len(), self.left.len(), self.assigned.len(), self.timeline.len()];
        let history = self.timeline.iter().map(|(_, _, text)| text.len());
        let sizes = [RUN, nodes.saturating_mul(NODE)].into_iter().chain(ranks);
        sizes.chain(texts.map(|n| n.saturating_mul(TEXT))).chain(history).sum()
    }

    fn can_be_summarized(&self) -> bool {
        self.state.is_over() && self.agents.is_empty() && self.world.connected.is_empty()
    }

    /// How many nodes there were, when, and how it ended stays.
    fn summarize(&mut self) {
        if self.native.is_none() {
            self.let_go = self.joined();
            self.nodes = Vec::new();
        }
        self.earlier = Vec::new();
        self.left.clear();
        self.assigned.clear();
        self.world.ranks.clear();
        self.world.former.clear();
    }

    /// The last moments stay.
    fn shorten_history(&mut self) {
        const MOMENTS: usize = 8;
        let old = self.timeline.len().saturating_sub(MOMENTS);
        self.timeline.drain(..old);
        self.timeline.shrink_to_fit();
    }
}
