//! The workers' ranks: all of them have met, or some are lost on the way.

use super::{Run, SETTLE};
use crate::core::ids::Timestamp;
use crate::core::insight::reason::{Names, Reason, Secs};

impl Run {
    /// Tells it when all ranks have met.
    pub(in crate::core::insight) fn check_ranks(&mut self) {
        if !self.world.check_complete() {
            return;
        }
        let (Some(at), Some((rank, last))) = (self.world.completed, self.world.last()) else { return };
        let took = Secs(last.joined.since(self.world.started.unwrap_or(at)));
        let (ranks, last) = (self.world.joined(), self.world.label(rank));
        if !self.has_agents() {
            // This line says all that the one of the start would say.
            self.told_start = self.started;
        }
        self.fact(Reason::RanksComplete { ranks, took, last, last_after: took }, format!("{at:?}"), at);
    }

    /// Tells which ranks ended before all had met.
    pub(in crate::core::insight) fn tell_lost_ranks(&mut self, now: Timestamp) {
        let Some(&(_, first)) = self.world.lost.first() else { return };
        if now.since(first) < SETTLE {
            return;
        }
        let lost = std::mem::take(&mut self.world.lost);
        if self.world.connected.is_empty() && !self.has_agents() {
            // Told as the end of the run.
            return;
        }
        let ranks = Names::of(lost.iter().map(|&(rank, _)| self.world.label(rank)));
        let about = ranks.to_string();
        let (joined, world_size) = (self.world.joined(), self.world.size.map(|(size, _)| size));
        self.fact(Reason::RankLost { ranks, joined, world_size }, about, first);
    }
}
