//! The workers' ranks: all of them have met, or some are lost on the way.

use std::time::Duration;

use crate::facts::run::TrackedRun;
use crate::facts::run::limits::SETTLE;
use crate::rules::{losses, starts};
use rallypoint_api::RunState;
use rallypoint_protocol::ids::{ConnId, Timestamp};

/// An agent notices within this time that a worker has ended.
const NOTICED: Duration = Duration::from_secs(5);

impl TrackedRun {
    /// The process that is rank 0 and counts who comes, or that it is not known.
    pub(crate) fn set_host(&mut self, host: Option<ConnId>) {
        if self.world.host != host {
            self.world.host = host;
            self.touch();
        }
    }

    /// Reports it when all ranks of a meeting have met.
    pub(crate) fn check_ranks(&mut self) {
        for at in self.world.take_complete() {
            self.tell_complete(at);
        }
    }

    fn tell_complete(&mut self, at: usize) {
        let world = &self.world;
        let meeting = &world.meetings()[at];
        let (Some(met), Some(mut reason)) = (meeting.met, starts::ranks_met(meeting)) else { return };
        let is_again = meeting.first_met.is_some();
        if self.state == RunState::Running && world.shown().number == meeting.number {
            self.state_since = met;
        }
        if !self.has_agents() {
            // This line says everything that the line about the start would say.
            self.told.start = self.round.started;
        }
        if is_again {
            // A program may make its process group a thousand times.
            return self.moment(met, reason.code.name(), reason.text);
        }
        reason.is_detail = self.has_agents();
        self.finds(reason, format!("{met:?}"), met);
    }

    /// Reports which ranks ended before all had met.
    pub(crate) fn tell_lost_ranks(&mut self, now: Timestamp) {
        for at in 0..self.world.meetings().len() {
            let first = self.world.meetings()[at].lost.first().map(|lost| lost.closed.at);
            let Some(first) = first.filter(|first| now.since(*first) >= SETTLE) else { continue };
            let lost = self.world.take_lost(at);
            // Strangers beside those who have met are none of them.
            let (meeting, shown) = (&self.world.meetings()[at], self.world.shown());
            let is_beside =
                shown.number != meeting.number && shown.met.is_some_and(|met| !meeting.gathered_at(met));
            let lost = if is_beside { None } else { losses::ranks_lost(self, meeting, lost, first) };
            lost.into_iter().for_each(|lost| self.found(lost));
        }
    }

    /// The rank that ended first of all that had met, and when: not of nodes that have finished.
    pub(crate) fn first_ended(&self, until: Timestamp) -> Option<(String, Timestamp)> {
        let is_well = |rank| self.node_of_worker(rank).is_some_and(|node| node.finished);
        let ended = self.world.shown().ended_of_met();
        let ended: Vec<_> = ended.filter(|&(rank, _, at)| at <= until && !is_well(rank)).collect();
        // Else they had closed their groups before, and went on.
        let last = ended.iter().map(|&(_, _, at)| at).max().filter(|&at| until.since(at) < NOTICED)?;
        let (rank, info, at) = ended.into_iter().min_by_key(|&(rank, _, at)| (at.min(last), rank))?;
        Some((info.label(rank), at))
    }
}
