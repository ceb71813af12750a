//! How a run ends, as a whole at the exit barrier or node by node.

use std::collections::BTreeSet;

use super::facts::{Departure, Dying, FormerNode, LeftNode, Stage};
use super::limits::{MOST_NODES, SETTLE};
use super::node::{Membership, TrackedNode};
use super::tracked::TrackedRun;
use super::world::Meeting;
use crate::reason::{Code, Finding, Loss, Moment, Names, Unit};
use crate::watch::CutOff;
use rallypoint_api::RunKind;
use rallypoint_protocol::ids::{ConnId, Elapsed, Timestamp, count};

impl TrackedRun {
    /// An agent arrived at the exit barrier.
    pub(super) fn arrive_at_exit(&mut self, conn: ConnId, now: Timestamp) {
        self.round.exit.insert(conn);
        self.round.exit_since.get_or_insert(now);
        // Who has finished is of its round, even if others had taken it out.
        let is_of_round = |left: &LeftNode| left.round == self.round.number && left.node.is_participant();
        if self.life.left.get(&conn).is_some_and(is_of_round) {
            self.life.nodes.extend(self.life.left.remove(&conn).map(|left| left.node));
        }
        self.has_finished(conn);
    }

    pub(super) fn has_finished(&mut self, conn: ConnId) {
        if let Some(node) = self.life.nodes.iter_mut().find(|node| node.conn == Some(conn)) {
            node.finished = true;
        }
        self.touch();
    }

    /// All agents arrived there.
    pub(super) fn finish(&mut self, now: Timestamp) {
        // The native rendezvous tells it itself.
        if self.round.exit_done.is_some() || self.native().is_some() {
            return;
        }
        let misses_some = self.misses_exits();
        self.round.exit_done = Some(now);
        // Who left a moment ago left with it.
        self.life.dying.clear();
        // Static: those of the attempt before may go on while one of them comes again.
        let is_of_before = self.round.completed.is_none() && self.not_again().next().is_some();
        let (nodes, completed) = if is_of_before {
            (self.life.earlier_size, self.life.earlier_completed)
        } else {
            (self.round.group, self.round.completed)
        };
        if misses_some && self.kind == RunKind::Static {
            let of_attempt = if is_of_before { Membership::Earlier } else { Membership::Participant };
            let all = self.life.nodes.iter_mut().filter(|node| node.membership == of_attempt);
            all.for_each(|node| node.finished = true);
        }
        let arrived = count(self.round.exit.len());
        let nodes = match self.kind {
            // A node that reads the state when others have been taken out of the round does not wait for
            // those.
            RunKind::C10d if self.round.is_of_before => {
                self.round.exit_counted.unwrap_or_else(|| arrived.max(self.members()))
            }
            RunKind::C10d => arrived,
            _ => nodes.unwrap_or(arrived),
        };
        let ran = Elapsed(now.since(completed.unwrap_or(now)));
        let said = format!("finished: {} after {ran}", Unit::Node.count(nodes));
        let reason = Code::RunFinished.says(said).predicate().fact("nodes", nodes);
        self.finds(reason, format!("round {}", self.round.number), now);
    }

    /// An agent's connection closed.
    pub(crate) fn agent_left(
        &mut self,
        conn: ConnId,
        pid: Option<u32>,
        cut_off: Option<&CutOff>,
        now: Timestamp,
    ) {
        if !self.agents.remove(&conn) {
            return;
        }
        let dying_before = self.life.dying.len();
        self.touch();
        self.settle_static(now);
        self.life.was_cut_off |= cut_off.is_some();
        if self.node_of(conn).is_none() {
            self.match_by_pid(conn, pid, None);
        }
        let has_finished = self.round.exit.contains(&conn);
        let has_left = self.life.left.remove(&conn);
        let has_left = has_left.filter(|left| !has_finished && left.departure != Departure::Finished);
        let is_over = self.round.closed.is_some() || self.round.exit_done.is_some();
        if let Some(left) = has_left.as_ref().filter(|left| !is_over && self.was_to_go_on(left)) {
            let stage = if self.round.completed.is_none() { Stage::Joining } else { Stage::InRound };
            // Its rank was one of the round before.
            let rank = left.node.rank.filter(|_| stage == Stage::InRound);
            let node = TrackedNode { rank, ..left.node.clone() };
            let dying = Dying::of(&node, (self.round.number, stage), cut_off, now);
            self.life.dying.push(dying);
        }
        if let Some(LeftNode { node, round, .. }) = has_left.filter(|_| self.life.earlier.len() < MOST_NODES)
        {
            let is_cut_off = cut_off.is_some();
            let node = TrackedNode { gone: Some(now), is_cut_off, ..node };
            self.life.earlier.push(FormerNode { node, round });
        }
        self.life.strangers.retain(|node| node.conn != Some(conn));
        if let Some(at) = self.life.nodes.iter().position(|node| node.conn == Some(conn)) {
            // Another process that claims its rank is the node from now on.
            let has_heir = self.heir(&self.life.nodes[at]).is_some();
            let node = &mut self.life.nodes[at];
            (node.gone, node.is_cut_off) = (Some(now), cut_off.is_some());
            node.finished |= has_finished;
            let goes_on = node.membership == Membership::Earlier && !node.finished;
            let waits = node.membership == Membership::WaitList && self.kind == RunKind::C10d;
            let stage = match self.round.completed {
                None if !goes_on => Stage::Joining,
                Some(_) if waits => Stage::Waiting,
                _ => Stage::InRound,
            };
            if !is_over
                && !has_finished
                && !has_heir
                && (node.membership == Membership::Participant || goes_on || waits)
                && self.life.dying.len() < MOST_NODES
            {
                self.life.dying.push(Dying::of(node, (self.round.number, stage), cut_off, now));
            }
        }
        let gave_up = self.had_given_up(conn, now);
        self.life.dying.iter_mut().skip(dying_before).for_each(|one| one.gave_up = gave_up);
        self.heir_of(conn);
        if self.agents.is_empty() {
            self.life.all_gone = Some(now);
        }
    }

    /// Whether the run loses something with a node that is in no list of the state: others have taken it out
    /// of the round, or it is to join the next one.
    fn was_to_go_on(&self, left: &LeftNode) -> bool {
        let is_of_round = left.round == self.round.number && left.node.is_participant();
        self.round.completed.is_none() || is_of_round
    }

    /// Reports the deaths that have been collected.
    pub(super) fn tell_deaths(&mut self, now: Timestamp, expected: Option<u32>) {
        let Some(first) = self.life.dying.first() else { return };
        if now.since(first.closed.at) < SETTLE {
            return;
        }
        let dying = std::mem::take(&mut self.life.dying);
        if self.round.closed.is_some() {
            // The run ended in the meantime: they left with it.
            return;
        }
        let since = dying.iter().map(|one| one.closed.at).min().unwrap_or(now);
        let left = self.left();
        let (cut_off, mut dying): (Vec<_>, Vec<_>) = dying.into_iter().partition(|one| one.cut_off.is_some());
        let is_with_link = |one: &Dying| one.cut_off.as_ref().is_some_and(|cut_off| cut_off.link().is_some());
        let (with_links, unanswered): (Vec<_>, Vec<_>) = cut_off.into_iter().partition(is_with_link);
        for lost in [with_links, unanswered] {
            self.lose(lost, left, expected, since);
        }
        if self.agents.is_empty() {
            // Reported as the end of the run, unless somebody comes before that.
            self.life.dying.append(&mut dying);
            return;
        }
        for stage in [Stage::Joining, Stage::Waiting, Stage::InRound] {
            // Nodes that gave up on others are victims, and are reported apart from the causes.
            for gave_up in [false, true] {
                let is_one = |one: &mut Dying| (one.stage, one.gave_up) == (stage, gave_up);
                let lost = dying.extract_if(.., is_one).collect();
                self.lose(lost, left, expected, since);
            }
        }
    }

    /// Reports nodes, or processes without agents, whose connections closed, or were given up, in the same
    /// way.
    fn lose(&mut self, lost: Vec<Dying>, left: u32, expected: Option<u32>, since: Timestamp) {
        let Some(first) = lost.first() else { return };
        let (cut_off, gave_up, round) = (first.cut_off.is_some(), first.gave_up, first.round);
        let world = &self.life.world;
        // They may have met in the round before.
        let met = world.shown().met.filter(|met| self.round.completed.is_none_or(|round| *met >= round));
        let moment = match first.stage {
            Stage::Waiting => Moment::Waiting,
            Stage::Joining if self.kind == RunKind::C10d && self.round.completed.is_some() => Moment::Counted,
            Stage::Joining => Moment::Joining,
            Stage::InRound if met.is_some() => Moment::RanksComplete,
            Stage::InRound if !world.shown().ranks.is_empty() => Moment::RanksComing,
            Stage::InRound => Moment::RoundComplete,
        };
        let expected = if first.stage == Stage::Joining { expected } else { self.round.group };
        let (moment, left, expected, unit) = if self.has_agents() {
            (Some(moment), left, expected, Unit::Node)
        } else if world.is_unnamed() {
            (None, world.processes(), world.shown().size, Unit::Process)
        } else {
            let present = world.meetings().iter().map(Meeting::present).sum();
            (Some(moment), present, world.shown().size, Unit::Process)
        };
        let links = lost.iter().filter_map(|one| one.cut_off.as_ref()?.link().map(str::to_owned));
        let links = Names::of(links.collect::<BTreeSet<_>>());
        let nodes = Names::of(lost.iter().map(|one| one.closed.who.clone()));
        let about = nodes.to_string();
        let reason = Loss { nodes, cut_off, links, moment, left, expected, unit, gave_up };
        let closed = lost.into_iter().map(|one| one.closed).filter(|_| !cut_off);
        self.found(Finding::new(reason, about, since).seen(closed).in_round(Some(round)));
    }
}
