//! The workers' ranks: all of them have met, or some are lost on the way.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::facts::run::TrackedRun;
use crate::facts::run::limits::SETTLE;
use crate::facts::run::world::{Lost, MOST_RANKS, Meeting, with_pid};
use crate::reason::presence::{Place, Presence, Sighting};
use crate::reason::words::all;
use crate::reason::{Code, Finding, Names, Reason};
use rallypoint_api::{RunState, Severity};
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
        let last = last.unwrap_or_default();
        let published = match ranks {
            1 => format!("{last} is its only rank, and has published its address"),
            n => format!(
                "{} have published their addresses in {took}; last: {last} (+{took})",
                all(n, "ranks")
            ),
        };
        let reason = Code::RoundComplete.says(published);
        if is_again {
            // A program may make its process group a thousand times.
            return self.moment(met, reason.code.name(), reason.text);
        }
        let mut reason = reason.joined(Place::Rank, ranks, Some(ranks));
        reason.is_detail = self.has_agents();
        self.finds(reason, format!("{met:?}"), met);
    }

    /// Reports which ranks ended before all had met.
    pub(crate) fn tell_lost_ranks(&mut self, now: Timestamp) {
        for at in 0..self.world.meetings().len() {
            let world = &mut self.world;
            let first = world.meetings()[at].lost.first().map(|lost| lost.closed.at);
            let Some(first) = first.filter(|first| now.since(*first) >= SETTLE) else { continue };
            let lost = world.take_lost(at);
            // Strangers beside those who have met are none of them.
            let meeting = &world.meetings()[at];
            let shown = world.shown();
            let is_beside =
                shown.number != meeting.number && shown.met.is_some_and(|met| !meeting.gathered_at(met));
            // All may be there again, on other connections.
            if !is_beside && !lost.is_empty() {
                self.tell_lost(at, lost, first);
            }
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

    fn tell_lost(&mut self, at: usize, lost: Vec<Lost>, since: Timestamp) {
        // Agents of a native round that is over end their workers, to join the next one.
        let is_over = self.native.as_ref().is_some_and(|native| native.state != RunState::Running);
        let is_finished = self.round.exit_done.is_some();
        if is_finished || is_over || self.world.connected.is_empty() && !self.has_agents() {
            // Reported as the end of the run.
            return;
        }
        let meeting = &self.world.meetings()[at];
        let (world_size, go_on) = (meeting.size, meeting.met.is_some());
        let hosts = self.world.host.is_some() && self.world.misses_first();
        let joined = meeting.present().saturating_add(u32::from(hosts));
        let ranks = Names::of(lost.iter().map(|lost| lost.closed.who.clone()));
        let about = ranks.to_string();
        let unseen = self.unseen_beside(meeting, &lost);
        let gave_up = lost.iter().all(|lost| lost.gave_up);
        let again = Names::of(lost.iter().filter_map(|Lost { rank, .. }| {
            let live = meeting.holder(*rank).filter(|info| info.is_live())?;
            Some(with_pid(live.label(*rank), live.pid))
        }));
        let how = match (world_size, ranks.count()) {
            (None, _) => Presence::Closed.words(),
            (_, 1) => "connection closed before all ranks had published",
            _ => "connections closed, in this order, before all ranks had published",
        };
        let seen = Sighting::at(Presence::Closed, since);
        let reason = Reason::lost(Place::Rank, &ranks, how, seen, joined, world_size)
            .look_at(
                "look at the log of what ended first: torchrun ends the other ranks of its node then; the \
                 ranks of other nodes wait for them until their time-outs",
            )
            .lacks("of their nodes not published", Place::Rank, &unseen, Presence::NeverSeen)
            .when(gave_up, Reason::of_victims)
            .and("place taken by", &again)
            // Nobody waits for it where those who had met before go on.
            .when(go_on, |reason| reason.then("; others had met before").severe(Severity::Warning))
            .when(world_size.is_none(), |reason| reason.severe(Severity::Info));
        let closed = lost.into_iter().map(|lost| lost.closed);
        self.found(Finding::new(reason, about, since).seen(closed));
    }

    /// Ranks that have not come of the nodes of these: an agent ends its other workers when one fails, which
    /// may have been one of those. Not where the agent has gone, too.
    fn unseen_beside(&self, meeting: &Meeting, lost: &[Lost]) -> Names {
        let Some((first, last)) = lost.first().zip(lost.last()) else { return Names::default() };
        let is_of_round = self.round.completed.is_some_and(|completed| completed <= first.closed.at);
        let ended: BTreeSet<u32> = lost.iter().map(|lost| lost.rank).collect();
        let gone = self.participants().filter(|node| node.gone.is_some());
        let gone: BTreeSet<u32> = gone.filter_map(|node| node.rank).collect();
        let assigned = self.round.assigned.iter().filter(|_| is_of_round);
        let mut nodes: Vec<_> = assigned.map(|(node, ranks)| (ranks.base, ranks.world_size, node)).collect();
        nodes.sort_unstable();
        let next = nodes.iter().skip(1).map(|(base, ..)| Some(*base)).chain([None]);
        let ranks = nodes.iter().zip(next).filter(|((.., node), _)| !gone.contains(node));
        let ranks =
            ranks.map(|(&(base, size, _), next)| base..next.unwrap_or(size).min(MOST_RANKS).max(base));
        let beside = ranks.filter(|ranks| ended.range(ranks.clone()).next().is_some()).flatten();
        let unseen = beside.filter(|rank| !ended.contains(rank) && !meeting.had_come(*rank, last.closed.at));
        Names::of_some(unseen, |rank| self.rank_label_in(meeting, rank))
    }
}
