//! What is found as time goes by: the line that begins a round, nodes that came late, the state of a run now.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::facts::{Plan, SETTLE, TrackedNode, TrackedRun};
use crate::rules::{contradictions, ends, starts};
use rallypoint_api::{Expected, RunState};
use rallypoint_protocol::ids::{ConnId, Elapsed, Timestamp};

impl TrackedRun {
    pub(crate) fn pass_time(&mut self, plan: &Plan, explain_after: Duration, now: Timestamp) {
        for ended in self.world.settle() {
            if !self.has_agents() {
                let others = self.world.processes();
                self.found(ends::all_ended(format!("{:?}", ended.at), ended, others));
            }
        }
        self.name_nodes(plan);
        self.settle_static(now);
        self.tell_beyond(now);
        let expected = self.expected(plan);
        self.tell_turned_away(now);
        self.tell_deaths(now, expected.map(|expected| expected.min));
        self.tell_restarts(now);
        let since = self.world.different().and_then(|(one, other)| one.started.max(other.started));
        let differ = since.is_some_and(|since| now.since(since) >= SETTLE);
        if differ && !self.world.differ {
            self.found(contradictions::world_sizes(&self.world, now));
        }
        self.world.differ = differ;
        self.check_ranks();
        self.tell_lost_ranks(now);
        if self.native.is_none() {
            self.tell_start(expected, now);
        }
        self.tell_elsewhere(explain_after, now);
        self.update_state(now);
        // The meeting or the round that counts may be another one now.
        let since = self.since(self.state).filter(|_| self.state == RunState::Running);
        if let Some(since) = since.filter(|since| *since != self.state_since) {
            self.state_since = since;
            self.touch();
        }
    }

    pub(crate) fn update_state(&mut self, now: Timestamp) {
        self.enter_state(self.state_now(now), now);
    }

    /// The last process has left, and another comes before that was noticed: the run is over, and begins
    /// anew.
    pub(crate) fn all_have_left(&mut self, now: Timestamp) {
        let state = self.state_now(now);
        self.enter_state(if state.is_over() { state } else { RunState::Gone }, now);
        self.round.over_at.get_or_insert(self.state_since);
    }

    fn enter_state(&mut self, state: RunState, now: Timestamp) {
        let before = std::mem::replace(&mut self.state, state);
        if before == state {
            return;
        }
        self.state_since = self.since(state).unwrap_or(now);
        let had_met = !matches!(before, RunState::Joining | RunState::LastCall | RunState::Exchanging);
        if state == RunState::Joining && had_met {
            self.gathers_anew = Some(now);
        }
        self.touch();
        if state.is_over() {
            self.round.over_at.get_or_insert(self.state_since);
        }
        if self.native.is_some() {
            // The rendezvous has said why.
            return;
        }
        self.found(ends::all_gone(self, before, now));
        if state == RunState::Gone && !self.life.was_cut_off {
            // Said with that.
            self.life.dying.clear();
            self.world.meetings.iter_mut().for_each(|meeting| meeting.lost.clear());
        }
    }

    /// When it came to this state: that a run is over is noticed later, but for a native one.
    fn since(&self, state: RunState) -> Option<Timestamp> {
        match state {
            // A round goes on when what began to gather for the next one has given up.
            RunState::Running if self.native.is_some() => self.round.completed,
            _ if self.native.is_some() => None,
            RunState::Running if !self.has_agents() => self.world.shown().met,
            RunState::Finished => self.round.exit_done,
            RunState::Closed => self.round.closed,
            RunState::Gone if self.has_agents() => self.life.all_gone,
            RunState::Gone | RunState::Ended => self.world.ended,
            _ => None,
        }
    }

    /// The line that begins a round, once there is something to say.
    fn tell_start(&mut self, expected: Option<Expected>, now: Timestamp) {
        let Some(started) = self.round.started else { return };
        if self.told_start == Some(started) || now.since(started) < Duration::from_millis(100) {
            return;
        }
        let meeting = self.world.shown();
        if self.round.completed.is_some() || meeting.first_met != meeting.met {
            // The line about its completion says everything, or the run goes on.
            self.told_start = Some(started);
            return;
        }
        let first = if self.has_agents() {
            self.participants().min_by_key(|node| node.joined).map(TrackedNode::told)
        } else {
            let first = self.world.shown().ranks().min_by_key(|(_, info)| info.joined);
            first.map(|(rank, info)| info.label(rank))
        };
        let Some(who) = first else { return };
        self.told_start = Some(started);
        let ended = self.first_ended(started).filter(|_| self.has_agents() && self.round.number > 0);
        // Agents end their ranks when nodes wait to be taken in.
        let was_ended = |at: Timestamp| self.life.awaited_since.is_some_and(|since| since <= at);
        let first_ended = ended.filter(|(_, at)| !was_ended(*at));
        let first_ended = first_ended.map(|(rank, at)| (rank, Elapsed(started.since(at))));
        self.found(starts::started(self, who, expected, first_ended, started));
    }

    /// The workers meet in another store. The agents publish its address in every launch mode; workers that
    /// use this server come soon after.
    fn tell_elsewhere(&mut self, explain_after: Duration, now: Timestamp) {
        let is_elsewhere = !self.life.told_elsewhere
            && self.round.assigned_at.is_some_and(|at| now.since(at) >= explain_after)
            && self.world.connected.is_empty()
            && !self.state.is_over();
        if let (true, Some(address)) = (is_elsewhere, self.workers_store()) {
            self.life.told_elsewhere = true;
            self.found(starts::elsewhere(&address, now));
        }
    }

    /// What is seen of the agents that are in no list of the state. Those are told of that go on with the
    /// round although others have taken them out of it.
    pub(crate) fn give_signs(
        &mut self,
        waiting: &BTreeSet<ConnId>,
        heard: &HashMap<ConnId, Timestamp>,
        plan: &Plan,
        now: Timestamp,
    ) {
        /// Agents read the state of the rendezvous at least each time that a heartbeat would be due.
        const QUIET: Duration = Duration::from_secs(10);
        let quiet = QUIET.max(self.late_after().unwrap_or_default());
        let (mut back, mut has_changed) = (Vec::new(), false);
        for (at, node) in self.life.nodes.iter_mut().enumerate().filter(|(_, node)| node.lingers()) {
            let Some(conn) = node.conn else { continue };
            let was_silent_for = now.since(node.last_heartbeat);
            let asked = heard.get(&conn).copied().filter(|at| *at > node.membership_since);
            node.last_heartbeat = node.last_heartbeat.max(asked.unwrap_or_default());
            let waits = waiting.contains(&conn);
            let asks = asked.is_some_and(|at| now.since(at) < quiet);
            let was_heard = std::mem::replace(&mut node.is_heard, waits || asks);
            has_changed |= was_heard != node.is_heard;
            if !was_heard && asks && !waits {
                back.push((at, was_silent_for));
            }
        }
        if has_changed {
            self.touch();
        }
        back.retain(|(at, _)| self.goes_on_with_round(&self.life.nodes[*at]));
        let Some(after) = back.iter().map(|(_, silent)| *silent).max().map(Elapsed) else { return };
        self.round.back = Some(now);
        let back: Vec<&TrackedNode> = back.iter().map(|(at, _)| &self.life.nodes[*at]).collect();
        let expected = self.expected(plan).map(|expected| expected.min);
        self.found(starts::back(self, &back, after, expected, now));
    }
}
