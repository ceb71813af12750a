//! Room for what is known of a run: one that is over is reduced to a summary when memory is short.

use super::node::TrackedNode;
use super::tracked::TrackedRun;
use super::world::RankInfo;
use crate::core::ids::Timestamp;

impl TrackedRun {
    /// Bytes that it takes, roughly.
    pub(in crate::core::insight) fn memory(&self) -> usize {
        /// A short text with its place in a list or a map.
        const TEXT: usize = 128;
        const NODE: usize = size_of::<TrackedNode>() + 2 * TEXT;
        const RANK: usize = size_of::<RankInfo>() + TEXT;
        const RUN: usize = 2 * size_of::<TrackedRun>();
        let nodes = if self.native.is_some() { 0 } else { self.life.nodes.len() };
        let ranks =
            [self.life.world.ranks.len(), self.life.world.former.len()].map(|n| n.saturating_mul(RANK));
        let texts =
            [self.life.earlier.len(), self.life.left.len(), self.round.assigned.len(), self.timeline.len()];
        let history = self.timeline.iter().map(|moment| moment.text.len());
        let sizes = [RUN, nodes.saturating_mul(NODE)].into_iter().chain(ranks);
        sizes.chain(texts.map(|n| n.saturating_mul(TEXT))).chain(history).sum()
    }

    /// Lets go of what may be missed: of a run that is over all but how many they were and how it ended, of another the
    /// history.
    pub(in crate::core::insight) fn make_room(&mut self) {
        if self.can_be_summarized() {
            self.summarize();
        }
        self.shorten_history();
    }

    /// Which of two runs has to make room first.
    pub(in crate::core::insight) fn room_order(&self) -> (bool, Timestamp) {
        (!self.can_be_summarized(), self.round.over_at.unwrap_or(self.state_since))
    }

    fn can_be_summarized(&self) -> bool {
        self.state.is_over() && self.agents.is_empty() && self.life.world.connected.is_empty()
    }

    /// The number of nodes, the times, and how it ended stay.
    fn summarize(&mut self) {
        if self.native.is_none() {
            self.round.let_go = self.joined();
            self.life.nodes = Vec::new();
        }
        self.life.earlier = Vec::new();
        self.life.left.clear();
        self.round.assigned.clear();
        self.life.world.ranks.clear();
        self.life.world.former.clear();
    }

    /// The last events stay.
    fn shorten_history(&mut self) {
        const MOMENTS: usize = 8;
        let old = self.timeline.len().saturating_sub(MOMENTS);
        self.timeline.drain(..old);
        self.timeline.shrink_to_fit();
    }
}
