//! The workers' ranks: all of them have met, or some are lost on the way.

use super::limits::SETTLE;
use super::tracked::TrackedRun;
use super::world::Lost;
use crate::api::RunState;
use crate::core::ids::{ConnId, Timestamp};
use crate::core::insight::reason::{Finding, Names, Reason};

impl TrackedRun {
    /// The process that is rank 0 and counts who comes, or that it is not known.
    pub(in crate::core::insight) fn set_host(&mut self, host: Option<ConnId>) {
        if self.life.world.host != host {
            self.life.world.host = host;
            self.touch();
        }
    }

    /// Reports it when all ranks of a meeting have met.
    pub(super) fn check_ranks(&mut self) {
        for at in self.life.world.take_complete() {
            self.tell_complete(at);
        }
    }

    fn tell_complete(&mut self, at: usize) {
        let world = &self.life.world;
        let meeting = &world.meetings()[at];
        let (Some(met), Some((rank, took))) = (meeting.met, meeting.last()) else { return };
        let (ranks, last) = (meeting.joined(), meeting.holder(rank).map(|info| info.label(rank)));
        let is_again = meeting.first_met.is_some();
        if self.state == RunState::Running && world.shown().number == meeting.number {
            self.state_since = met;
        }
        if !self.has_agents() {
            // This line says everything that the line about the start would say.
            self.told.start = self.round.started;
        }
        let reason = Reason::RanksComplete { ranks, took, last: last.unwrap_or_default(), last_after: took };
        if is_again {
            // A program may make its process group a thousand times.
            return self.moment(met, reason.code(), reason.to_string());
        }
        self.finds(reason, format!("{met:?}"), met);
    }

    /// Reports which ranks ended before all had met.
    pub(super) fn tell_lost_ranks(&mut self, now: Timestamp) {
        for at in 0..self.life.world.meetings().len() {
            let world = &mut self.life.world;
            let first = world.meetings()[at].lost.first().map(|lost| lost.closed.at);
            let Some(first) = first.filter(|first| now.since(*first) >= SETTLE) else { continue };
            let lost = world.take_lost(at);
            // Strangers beside those who have met are none of them.
            let meeting = &world.meetings()[at];
            let shown = world.shown();
            let is_beside =
                shown.number != meeting.number && shown.met.is_some_and(|met| !meeting.gathered_at(met));
            if !is_beside {
                self.tell_lost(at, lost, first);
            }
        }
    }

    fn tell_lost(&mut self, at: usize, lost: Vec<Lost>, since: Timestamp) {
        // Agents of a native round that is over end their workers, to join the next one.
        let is_over = self.native.as_ref().is_some_and(|native| native.state != RunState::Running);
        let is_finished = self.round.exit_done.is_some();
        if is_finished || is_over || self.life.world.connected.is_empty() && !self.has_agents() {
            // Reported as the end of the run.
            return;
        }
        let meeting = &self.life.world.meetings()[at];
        let (joined, world_size, go_on) = (meeting.present(), meeting.size, meeting.met.is_some());
        let (victims, others): (Vec<_>, Vec<_>) = lost.into_iter().partition(|lost| lost.gave_up);
        for (lost, gave_up) in [(others, false), (victims, true)] {
            if lost.is_empty() {
                continue;
            }
            let times = lost.iter().map(|lost| lost.times).max().unwrap_or_default();
            let closed: Vec<_> = lost.into_iter().map(|lost| lost.closed).collect();
            let ranks = Names::of(closed.iter().map(|closed| closed.who.clone()));
            let about = ranks.to_string();
            let reason = Reason::RankLost { ranks, joined, world_size, gave_up, times, go_on };
            self.found(Finding::new(reason, about, since).seen(closed));
        }
    }
}
