//! Agents as they come, finish and leave.

use std::collections::BTreeMap;

use crate::facts::{Dying, MOST_NODES, Membership, SETTLE, TrackedNode, TrackedRun};
use crate::reason::Evidence;
use crate::rules::{ends, losses};
use rallypoint_api::{RunKind, Seen};
use rallypoint_protocol::ids::{ConnId, Elapsed, Timestamp, count};

impl TrackedRun {
    /// An agent, which is `came`, uses its keys for the first time.
    pub(crate) fn agent_came(&mut self, conn: ConnId, kind: RunKind, came: &Evidence) {
        if self.round.closed.is_some() && self.has_state && kind == RunKind::C10d {
            // Reported together.
            let has_room = self.round.newcomers.len() < MOST_NODES;
            self.round.newcomers.extend(has_room.then(|| came.clone()));
        }
        if self.agents.is_empty() {
            // `none` is the id of all jobs that are given none, whatever their backend.
            let follows_other = kind == RunKind::Static && self.kind == RunKind::C10d;
            if follows_other || self.kind == RunKind::Static && !self.life.nodes.is_empty() {
                // Nobody goes on with what was before, even if that has not been noticed yet.
                self.all_have_left(came.at);
            }
            self.hosts.clear();
        }
        let host = came.peer.filter(|_| self.hosts.len() < MOST_NODES);
        self.hosts.extend(host.map(|host| host.ip()));
        if self.agents.insert(conn) {
            self.touch();
        }
        self.life.all_gone = None;
        self.life.ended_with_server = false;
        if self.has_state && self.round.closed.is_none() && kind == RunKind::C10d {
            self.round.over_at = None;
        }
        if kind == RunKind::C10d && self.kind == RunKind::Static {
            self.give_way();
        }
    }

    /// An agent arrived at the exit barrier.
    pub(crate) fn arrive_at_exit(&mut self, conn: ConnId, now: Timestamp) {
        self.round.exit.insert(conn);
        self.round.exit_since.get_or_insert(now);
        // Who has finished is of its round, even if others had taken it out.
        let round = self.round.number;
        let is_it = |node: &&mut TrackedNode| {
            node.lingers() && node.conn == Some(conn) && node.round == round && node.rank.is_some()
        };
        if let Some(node) = self.life.nodes.iter_mut().find(is_it) {
            node.membership = Membership::Participant;
        }
        self.has_finished(conn);
    }

    pub(crate) fn has_finished(&mut self, conn: ConnId) {
        if let Some(node) = self.life.nodes.iter_mut().find(|node| node.conn == Some(conn)) {
            node.finished = true;
        }
        self.touch();
    }

    /// All agents arrived there.
    pub(crate) fn finish(&mut self, now: Timestamp) {
        // The native rendezvous tells it itself.
        if self.round.exit_done.is_some() || self.native.is_some() {
            return;
        }
        let misses_some = self.misses_exits();
        self.round.exit_done = Some(now);
        // Who left a moment ago left with it.
        self.life.dying.clear();
        // Static: those of the attempt before may go on while one of them comes again.
        let is_of_before = self.round.completed.is_none() && self.not_again().next().is_some();
        let completed = if is_of_before { self.life.earlier_completed } else { self.round.completed };
        if misses_some && self.kind == RunKind::Static {
            let of_attempt = if is_of_before { Membership::Earlier } else { Membership::Participant };
            let all = self.life.nodes.iter_mut().filter(|node| node.membership == of_attempt);
            all.for_each(|node| node.finished = true);
        }
        let nodes = self.round.exit_counted.unwrap_or_else(|| count(self.round.exit.len()));
        let ran = Elapsed(now.since(completed.unwrap_or(now)));
        self.found(ends::finished(self, nodes, ran, now));
    }

    /// An agent's connection closed.
    pub(crate) fn agent_left(&mut self, conn: ConnId, pid: Option<u32>, is_cut_off: bool, now: Timestamp) {
        if !self.agents.remove(&conn) {
            return;
        }
        self.touch();
        self.settle_static(now);
        self.life.was_cut_off |= is_cut_off;
        if self.node_of(conn).is_none() {
            self.match_by_pid(conn, pid, None);
        }
        let gave_up = self.had_given_up(conn, now);
        let is_over = self.round.closed.is_some() || self.round.exit_done.is_some();
        let (round, completed) = (self.round.number, self.round.completed);
        let at = self.life.nodes.iter().position(|node| node.conn == Some(conn) && !node.is_rival());
        let twin = self.twin_of(conn);
        if let (Some(at), Some((twin, _))) = (at, twin) {
            let node = &mut self.life.nodes[at];
            (node.conn, node.peer, node.twin) = (Some(twin), None, None);
        } else if let Some(at) = at {
            // Another process that claims its rank is the node from now on.
            let has_heir = self.heir(&self.life.nodes[at]).is_some();
            let node = &mut self.life.nodes[at];
            (node.gone, node.is_cut_off) = (Some(now), is_cut_off);
            node.finished |= self.round.exit.contains(&conn);
            let waits = node.membership == Membership::WaitList && self.kind == RunKind::C10d;
            let goes_on = node.membership == Membership::Earlier;
            let in_round = goes_on || completed.is_some() && !waits;
            // Others have taken it out of the round, or it is to join the next one.
            let is_of_round =
                node.is_out() && (completed.is_none() || node.round == round && node.rank.is_some());
            let counts = node.is_participant() || goes_on || waits || is_of_round;
            if !is_over && !node.finished && !has_heir && counts && self.life.dying.len() < MOST_NODES {
                // The rank of one that is out was one of the round before.
                let rank = node.rank.filter(|_| !node.is_out() || in_round);
                let closed = TrackedNode { rank, ..node.clone() }.evidence(Seen::Closed, None, now);
                self.life.dying.push(Dying { closed, round, in_round, is_cut_off, gave_up });
            }
            // Nobody misses one that was out of the round and had finished, or that never was a node of it.
            if node.is_out() && node.finished || node.membership == Membership::Stranger {
                self.life.nodes.remove(at);
            }
        }
        self.heir_of(conn);
        if self.agents.is_empty() {
            self.life.all_gone = Some(now);
        }
    }

    /// Reports the deaths that have been collected.
    pub(crate) fn tell_deaths(&mut self, now: Timestamp, expected: Option<u32>) {
        if self.life.dying.first().is_none_or(|first| now.since(first.closed.at) < SETTLE) {
            return;
        }
        let dying = std::mem::take(&mut self.life.dying);
        if self.round.closed.is_some() {
            // The run ended in the meantime: they left with it.
            return;
        }
        let since = dying.iter().map(|one| one.closed.at).min().unwrap_or(now);
        let left = self.left();
        // Reported as the end of the run, unless somebody comes before that.
        let ends_run = |one: &Dying| !one.is_cut_off && self.agents.is_empty();
        let (kept, dying): (Vec<_>, Vec<_>) = dying.into_iter().partition(ends_run);
        self.life.dying = kept;
        // Nodes that gave up on others are victims, and are reported apart from the causes.
        let mut of_kind: BTreeMap<_, Vec<Dying>> = BTreeMap::new();
        for one in dying {
            of_kind.entry((one.is_cut_off, one.in_round, one.gave_up)).or_default().push(one);
        }
        for lost in of_kind.into_values() {
            self.found(losses::gone(self, lost, left, expected, since));
        }
    }
}
