//! The workers' ranks: all of them have met, or some are lost on the way.

use super::limits::SETTLE;
use super::tracked::TrackedRun;
use crate::api::RunState;
use crate::core::ids::{Elapsed, Timestamp};
use crate::core::insight::reason::{Finding, Names, Reason};

impl TrackedRun {
    /// Reports it when all ranks have met.
    pub(super) fn check_ranks(&mut self) {
        if !self.life.world.check_complete() {
            return;
        }
        let (Some(at), Some((rank, last))) = (self.life.world.completed, self.life.world.last()) else {
            return;
        };
        let took = Elapsed(last.joined.since(self.life.world.started.unwrap_or(at)));
        let (ranks, last) = (self.life.world.joined(), self.life.world.label(rank));
        if self.state == RunState::Running {
            self.state_since = at;
        }
        if !self.has_agents() {
            // This line says everything that the line about the start would say.
            self.told.start = self.round.started;
        }
        let reason = Reason::RanksComplete { ranks, took, last, last_after: took };
        if self.life.world.first_met.is_some() {
            // A program may make its process group a thousand times.
            return self.moment(at, reason.code(), reason.to_string());
        }
        self.finds(reason, format!("{at:?}"), at);
    }

    /// Reports which ranks ended before all had met.
    pub(super) fn tell_lost_ranks(&mut self, now: Timestamp) {
        let Some(first) = self.life.world.lost.first().map(|lost| lost.closed.at) else { return };
        if now.since(first) < SETTLE {
            return;
        }
        let world = &mut self.life.world;
        let mut lost = std::mem::take(&mut world.lost);
        // A process may try again on another connection.
        lost.retain(|lost| !world.has_come_again(&lost.closed));
        if lost.is_empty() || world.goes_on().is_some() {
            // Or it was a stranger beside those who had met.
            return;
        }
        // Agents of a native round that is over end their workers, to join the next one.
        let is_over = self.native.as_ref().is_some_and(|native| native.state != RunState::Running);
        let is_finished = self.round.exit_done.is_some();
        if is_finished || is_over || self.life.world.connected.is_empty() && !self.has_agents() {
            // Reported as the end of the run.
            return;
        }
        let (joined, world_size) = (self.life.world.present(), self.life.world.size());
        let (victims, others): (Vec<_>, Vec<_>) = lost.into_iter().partition(|lost| lost.gave_up);
        for (lost, gave_up) in [(others, false), (victims, true)] {
            if lost.is_empty() {
                continue;
            }
            let closed: Vec<_> = lost.into_iter().map(|lost| lost.closed).collect();
            let ranks = Names::of(closed.iter().map(|closed| closed.who.clone()));
            let about = ranks.to_string();
            let reason = Reason::RankLost { ranks, joined, world_size, gave_up };
            self.found(Finding::new(reason, about, first).seen(closed));
        }
    }
}
