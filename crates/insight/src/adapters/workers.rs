//! Workers as they come, publish their addresses and leave.

use std::time::Duration;

use crate::facts::{Client, Dying, MOST_NODES, Process, RankInfo, Room, SETTLE, TrackedRun};
use crate::reason::{Evidence, Finding};
use crate::rules::{losses, starts};
use rallypoint_protocol::ids::{ConnId, Timestamp};

/// An agent notices within this time that a worker has ended.
const NOTICED: Duration = Duration::from_secs(5);

impl TrackedRun {
    /// A worker comes. A run without agents that is over begins anew.
    pub(crate) fn worker_came(&mut self, conn: ConnId, process: Option<Process>, at: Timestamp) {
        if self.round.over_at.is_some() && !self.has_agents() {
            self.restart(self.round.number.saturating_add(1));
        }
        self.world.enter(conn, process);
        self.life.has_workers_here = true;
        if !self.has_agents() {
            self.round.started.get_or_insert(at);
        }
        self.touch();
    }

    /// An agent gave up on another node, or a worker on a rank.
    pub(crate) fn gave_up(&mut self, conn: ConnId, at: Timestamp) {
        if self.agents.contains(&conn) || self.world.connected.contains(conn) {
            self.life.gave_up.insert(conn, at);
        }
    }

    /// Whether a process that leaves had given up on another just before. One that does not end soon goes on.
    pub(crate) fn had_given_up(&mut self, conn: ConnId, now: Timestamp) -> bool {
        const ENDS_WITHIN: Duration = Duration::from_secs(10);
        self.life.gave_up.remove(&conn).is_some_and(|at| now.since(at) < ENDS_WITHIN)
    }

    /// A worker's connection closed.
    pub(crate) fn worker_left(&mut self, conn: ConnId, client: &Client, closed: Evidence) {
        let Client { rank, is_cut_off, .. } = *client;
        self.life.was_cut_off |= is_cut_off;
        // The nodes of agents are told.
        let is_told = is_cut_off && !self.has_agents() && self.life.dying.len() < MOST_NODES;
        let known = rank.and_then(|rank| self.world.of(Some(rank), conn).rank(rank));
        let is_rank = known.is_some_and(|info| info.conn == conn);
        let who = || client.rank_label().unwrap_or_else(|| self.process_label(&closed));
        let cut = is_told.then(|| Evidence { who: who(), key: None, ..closed.clone() });
        let gave_up = self.had_given_up(conn, closed.at);
        let was_unnamed = self.world.leave(conn, client, gave_up, closed);
        let cut = cut.filter(|_| is_rank || was_unnamed);
        self.life.dying.extend(cut.map(|closed| Dying {
            closed,
            round: self.round.number,
            in_round: true,
            is_cut_off,
            gave_up,
        }));
        self.touch();
    }

    /// A rank published its address. Who is left of a run that was over may be the first of the next.
    pub(crate) fn publish(&mut self, rank: u32, attempt: Option<u32>, info: RankInfo, room: &mut Room) {
        if !self.takes_rank(rank, room) {
            return;
        }
        if self.round.over_at.is_some() {
            self.worker_came(info.conn, info.process(), info.joined);
        }
        let begins = self.world.publish(rank, attempt, info);
        if begins.is_some() && !self.has_agents() {
            self.round.started = begins;
        }
        self.check_ranks();
    }

    /// The address of a rank was dropped.
    pub(crate) fn unpublish(&mut self, rank: u32, attempt: Option<u32>) {
        // A live writer was paired with a rank that was replaced: it has to publish again.
        if attempt == self.world.attempt {
            self.world.unpublish(&(rank..=rank));
            self.touch();
        }
    }

    /// Reports it when all ranks of a meeting have met.
    pub(crate) fn check_ranks(&mut self) {
        for at in self.world.take_complete() {
            let meeting = &self.world.meetings[at];
            // The last server saw when the first of them came.
            let before = self.round.started.filter(|_| self.world.is_of_before && !self.has_agents());
            let told = meeting.met.zip(starts::ranks_met(meeting, before));
            let Some((met, mut reason)) = told else { continue };
            let is_again = meeting.first_met != meeting.met;
            if !self.has_agents() {
                // This line says everything that the line about the start would say.
                self.told_start = self.round.started;
            }
            if is_again {
                // A program may make its process group a thousand times.
                self.moment(met, reason.code.name(), reason.text);
                continue;
            }
            reason.is_detail = self.has_agents();
            self.found(Finding::new(reason, format!("{met:?}"), met));
        }
    }

    /// Reports which ranks ended before all had met.
    pub(crate) fn tell_lost_ranks(&mut self, now: Timestamp) {
        for at in 0..self.world.meetings.len() {
            let first = self.world.meetings[at].lost.first().map(|lost| lost.closed.at);
            let Some(first) = first.filter(|first| now.since(*first) >= SETTLE) else { continue };
            let lost = self.world.meetings[at].take_lost(&self.world.connected);
            // Strangers beside those who have met are none of them.
            let (meeting, shown) = (&self.world.meetings[at], self.world.shown());
            let is_beside =
                shown.number != meeting.number && shown.met.is_some_and(|met| !meeting.gathered_at(met));
            self.found(if is_beside { None } else { losses::ranks_lost(self, meeting, lost, first) });
        }
    }

    /// The rank that ended first of all that had met, and when: not of nodes that have finished.
    pub(crate) fn first_ended(&self, until: Timestamp) -> Option<(String, Timestamp)> {
        let is_well = |rank| self.node_of_worker(rank).is_some_and(|node| node.finished);
        let ended = self.world.shown().ended_of_met();
        let ended: Vec<_> = ended.filter(|&(rank, _, at)| at <= until && !is_well(rank)).collect();
        // Else they had closed their groups before, and went on.
        ended.iter().map(|&(_, _, at)| at).max().filter(|&at| until.since(at) < NOTICED)?;
        let (rank, info, at) = ended.into_iter().min_by_key(|&(rank, _, at)| (at, rank))?;
        Some((info.label(rank), at))
    }
}
