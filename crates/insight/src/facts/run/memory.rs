//! Room for what is known of a run: nodes and ranks are taken in as far as there is some, and a run that is
//! over is reduced to a summary when memory is short.

use crate::facts::run::TrackedRun;
use crate::facts::run::limits::MOST_NODES;
use crate::facts::run::node::TrackedNode;
use crate::facts::run::world::RankInfo;

/// A short text with its place in a list or a map.
const TEXT: usize = 128;
/// A list has up to twice the room that it needs.
const NODE: usize = 2 * size_of::<TrackedNode>() + 2 * TEXT;
const RANK: usize = size_of::<RankInfo>() + TEXT;

/// The room that there is for more of a run.
#[derive(Debug, Default)]
pub(crate) struct Room {
    pub(crate) bytes: usize,
    /// It was not enough for all that came.
    pub(crate) was_short: bool,
}

impl Room {
    fn take(&mut self, bytes: usize) -> bool {
        let left = self.bytes.checked_sub(bytes);
        self.was_short |= left.is_none();
        self.bytes = left.unwrap_or(self.bytes);
        left.is_some()
    }
}

impl TrackedRun {
    /// Whether one more node may be remembered. If not, only their number is.
    pub(crate) fn takes_node(&mut self, room: &mut Room) -> bool {
        self.life.nodes.len() < MOST_NODES && room.take(NODE)
    }

    /// Whether the address of `rank` may be remembered.
    pub(crate) fn takes_rank(&mut self, rank: u32, room: &mut Room) -> bool {
        let is_known = self.world.meetings.iter().any(|meeting| meeting.rank(rank).is_some());
        is_known || room.take(RANK)
    }

    /// Bytes that it takes, roughly.
    pub(crate) fn memory(&self) -> usize {
        const RUN: usize = 2 * size_of::<TrackedRun>();
        let nodes = if self.native.is_some() { 0 } else { self.life.nodes.len() };
        let ranks = self.world.len().saturating_mul(RANK);
        let texts = [self.round.assigned.len(), self.timeline.len()];
        let history = self.timeline.iter().map(|moment| moment.text.len());
        let sizes = [RUN, nodes.saturating_mul(NODE), ranks].into_iter();
        sizes.chain(texts.map(|n| n.saturating_mul(TEXT))).chain(history).sum()
    }

    /// Lets go of what may be missed: of a run that is over all but how many they were and how it ended, of
    /// another the history.
    pub(crate) fn make_room(&mut self) {
        const MOMENTS: usize = 8;
        if self.can_be_summarized() {
            if self.native.is_none() {
                self.round.let_go = self.joined();
                self.life.nodes = Vec::new();
            }
            self.round.assigned.clear();
            self.world.summarize();
        }
        // The last events stay.
        let old = self.timeline.len().saturating_sub(MOMENTS);
        self.timeline.drain(..old);
        self.timeline.shrink_to_fit();
    }

    pub(crate) fn can_be_summarized(&self) -> bool {
        self.state.is_over() && self.agents.is_empty() && self.world.connected.is_empty()
    }
}
