//! What is found as time goes by: the line that begins a round, nodes that came late, the state of a run now.

use std::time::Duration;

use crate::facts::plan::Plan;
use crate::facts::run::TrackedRun;
use crate::facts::run::node::{Sign, TrackedNode};
use crate::facts::run::world::MOST_RANKS;
use crate::reason::presence::{Place, Presence, Sighting};
use crate::reason::words::{ended_first, has, if_some, says_who};
use crate::reason::{Code, Finding, Names, Reason};
use rallypoint_api::{Expected, ExpectedFrom, RunKind, RunState, Seen, Severity};
use rallypoint_protocol::ids::{ConnId, Elapsed, Timestamp, count, counted};

/// Whoever connects again to a server that was restarted has done so within this time.
const COMES_BACK: Duration = Duration::from_secs(30);

impl TrackedRun {
    pub(crate) fn pass_time(&mut self, plan: &Plan, explain_after: Duration, now: Timestamp) {
        for (ended, reason) in self.world.settle() {
            if !self.has_agents() {
                self.finds(reason, format!("{ended:?}"), ended);
            }
        }
        self.name_nodes(plan);
        self.settle_static(now);
        self.tell_beyond(now);
        let expected = self.expected(plan);
        self.tell_turned_away(now);
        self.tell_deaths(now, expected.map(|expected| expected.min));
        self.tell_restarts(now);
        self.tell_not_back(now);
        if let Some(differ) = self.world.take_different(now) {
            self.found(differ);
        }
        self.check_ranks();
        self.tell_lost_ranks(now);
        if self.native.is_none() {
            self.tell_start(expected, now);
        }
        self.tell_elsewhere(explain_after, now);
        self.update_state(now);
        // The meeting or the round that counts may be another one now.
        let met = if self.native.is_some() {
            self.round.completed
        } else {
            self.world.shown().met.filter(|_| !self.has_agents())
        };
        let met = met.filter(|_| self.state == RunState::Running);
        if let Some(met) = met.filter(|met| *met != self.state_since) {
            self.state_since = met;
            self.touch();
        }
    }

    /// Nobody of those who were connected to the last server has come to this one.
    fn tell_not_back(&mut self, now: Timestamp) {
        let (Some(may_go_on), Some(restarted)) = (self.life.not_back, self.restored) else { return };
        if !self.is_empty() {
            self.life.not_back = None;
        } else if now.since(restarted) >= COMES_BACK {
            self.life.not_back = None;
            let nodes: Vec<_> = self.participants().map(TrackedNode::told).collect();
            let ranks = self.world.shown().ranks.iter().map(|(&rank, info)| info.label(rank));
            let (who, place) = if self.has_agents() {
                (Names::of(nodes), Place::Node)
            } else {
                (Names::of(ranks), Place::Rank)
            };
            if !who.is_empty() {
                let restarted_ago = Elapsed(now.since(restarted));
                let was = if who.count() == 1 { "was" } else { "were" };
                let reason = Code::NotBack
                    .says(format!(
                        "{who} {was} connected to the last server, and {} not come back since this one was \
                         started {restarted_ago} ago",
                        has(who.count())
                    ))
                    .severe(if may_go_on { Severity::Info } else { Severity::Warning })
                    .misses(place, &who, Sighting::at(Presence::NotBack, restarted));
                self.finds(reason, format!("{restarted:?}"), restarted);
            }
        }
    }

    pub(crate) fn update_state(&mut self, now: Timestamp) {
        let state = self.state_now(now);
        if state != self.state {
            self.enter_state(state, now);
        }
    }

    /// The last process has left, and another comes before that was noticed: the run is over, and begins
    /// anew.
    pub(crate) fn all_have_left(&mut self, now: Timestamp) {
        let state = self.state_now(now);
        let state = if state.is_over() { state } else { RunState::Gone };
        if state != self.state {
            self.enter_state(state, now);
        }
        self.round.over_at.get_or_insert(self.state_since);
    }

    fn enter_state(&mut self, state: RunState, now: Timestamp) {
        let before = std::mem::replace(&mut self.state, state);
        self.state_since = self.end_of(state).unwrap_or(now);
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
        let world = &self.world;
        let meeting = world.shown();
        let processes = meeting.met.and(meeting.size).unwrap_or_else(|| world.most_processes());
        let ended = world.ended.unwrap_or(now);
        let about = self.round.number.to_string();
        match (state, self.has_agents()) {
            // An earlier explanation said it.
            (RunState::Gone, _) if self.life.was_cut_off => {}
            (RunState::Gone, true) => {
                self.life.dying.clear();
                let known = || self.round.most_joined.max(count(self.nodes().count()));
                let members = self.round.group.unwrap_or_else(known);
                let since = self.life.all_gone.unwrap_or(now);
                let finished = count(self.round.exit.len());
                let first = self.first_to_leave(now);
                let had_finished = match finished {
                    0 => ", and none had finished".to_owned(),
                    _ => format!(", and only {finished} had finished"),
                };
                self.finds(all_left(members, Place::Node, &had_finished, first), about, since);
            }
            // Clients of the store that never were ranks: what they came for is not known.
            (RunState::Gone, false) if meeting.ranks.is_empty() && meeting.former.is_empty() => {}
            // Whether all had met is not known: gloo's lazy addresses do not say how many there are.
            (RunState::Gone, false) if meeting.size.is_none() => {
                let ran = Elapsed(ended.since(self.round.started.unwrap_or(ended)));
                self.finds(Reason::all_ended(processes, ran, None), about, ended);
            }
            (RunState::Gone, false) => {
                self.world.meetings_mut().iter_mut().for_each(|meeting| meeting.lost.clear());
                let at_once = self.world.closed_at_once(processes).filter(|_| processes > 1);
                let at_once = if_some(at_once, |(within, waiting)| {
                    let waited = match waiting {
                        0 => String::new(),
                        all if all >= processes => " while they waited".to_owned(),
                        some => format!(", {some} of them while they waited"),
                    };
                    format!(" within {}{waited}", Elapsed(within.0.max(Duration::from_millis(1))))
                });
                let (world, meeting) = (&self.world, self.world.shown());
                let unseen = (0..meeting.size.unwrap_or_default().min(MOST_RANKS)).filter(|&rank| {
                    world.holder(meeting, rank).is_none() && world.met_elsewhere(meeting, rank).is_none()
                });
                let unseen = Names::of_some(unseen, |rank| format!("rank {rank}"));
                let reason = all_left(processes, Place::Process, &at_once, None);
                let reason = reason.lacks("never published", Place::Rank, &unseen, Presence::NeverSeen);
                self.finds(reason, about, ended);
            }
            (RunState::Ended, false) if before != RunState::Ended => {
                let met = meeting.first_met.or(meeting.met).or(self.round.started);
                let ran = Elapsed(ended.since(met.unwrap_or(ended)));
                let first = meeting.first_to_end();
                self.finds(Reason::all_ended(processes, ran, first), about, ended);
            }
            _ => {}
        }
    }

    /// What ended first of a run whose agents have all left: a rank, where they had met here. Static: or else
    /// a node, of several; the agents of other backends end each other.
    fn first_to_leave(&self, now: Timestamp) -> Option<String> {
        let rank = self.first_ended(now).map(|(rank, _)| rank);
        let mut died: Vec<&TrackedNode> = self.participants().filter(|node| node.is_dead()).collect();
        died.sort_by_key(|node| node.gone);
        let node = || match died[..] {
            [first, second, ..] if self.kind == RunKind::Static && first.gone < second.gone => {
                Some(first.told())
            }
            _ => None,
        };
        rank.or_else(node)
    }

    /// When it came to this state: that a run is over is noticed later, but for a native one.
    fn end_of(&self, state: RunState) -> Option<Timestamp> {
        match state {
            // A round goes on when what began to gather for the next one has given up.
            RunState::Running if self.native.is_some() => self.round.completed,
            _ if self.native.is_some() => None,
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
        if self.told.start == Some(started) || now.since(started) < Duration::from_millis(100) {
            return;
        }
        if self.round.completed.is_some() || self.world.shown().first_met.is_some() {
            // The line about its completion says everything, or the run goes on.
            self.told.start = Some(started);
            return;
        }
        let first = if self.has_agents() {
            self.participants().min_by_key(|node| node.joined).map(TrackedNode::told)
        } else {
            let first = self.world.shown().ranks.iter().min_by_key(|(_, info)| info.joined);
            first.map(|(&rank, info)| info.label(rank))
        };
        let Some(who) = first else { return };
        self.told.start = Some(started);
        let ended = self.first_ended(started).filter(|_| self.has_agents() && self.round.number > 0);
        // Agents end their ranks when nodes wait to be taken in.
        let was_ended = |at: Timestamp| self.life.awaited_since.is_some_and(|since| since <= at);
        let first_ended = ended.filter(|(_, at)| !was_ended(*at));
        let first_ended = first_ended.map(|(rank, at)| (rank, Elapsed(started.since(at))));
        let (expected, from) = expected.map(|known| (known.min, known.source)).unzip();
        let expects = if_some(expected.zip(from), |(n, from)| match from {
            ExpectedFrom::EarlierRound => format!("; the round before had {}", Place::Node.count(n)),
            from => format!("; {} expected ({})", counted(n, "node is", "nodes are"), says_who(from)),
        });
        let reason = Code::RunStarted
            .says(format!("started: {who} is the first{expects}{}", ended_first(first_ended)))
            .predicate()
            .expects(expected)
            .from(from)
            .held(&Names::of([who]));
        self.finds(reason, format!("round {}", self.round.number), started);
    }

    /// The workers meet in another store. The agents publish its address in every launch mode; workers that
    /// use this server come soon after.
    fn tell_elsewhere(&mut self, explain_after: Duration, now: Timestamp) {
        let is_elsewhere = !self.life.workers_placed
            && self.round.assigned_at.is_some_and(|at| now.since(at) >= explain_after)
            && self.world.connected.is_empty()
            && !self.state.is_over();
        if let (true, Some(address)) = (is_elsewhere, self.workers_store()) {
            self.life.workers_placed = true;
            let text = format!(
                "the workers meet at {address}, a store that rank 0 hosts itself; their ranks cannot be seen \
                 here"
            );
            self.finds(Code::WorkersElsewhere.says(text), "", now);
        }
    }

    /// What is seen of the agents that are in no list of the state. Those are told of that go on with the
    /// round although others have taken them out of it.
    pub(crate) fn give_signs(
        &mut self,
        waits: impl Fn(ConnId) -> bool,
        heard: impl Fn(ConnId) -> Option<Timestamp>,
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
            let asked = heard(conn).filter(|at| *at > node.membership_since);
            node.last_heartbeat = node.last_heartbeat.max(asked.unwrap_or_default());
            let sign = if waits(conn) {
                Sign::Waits
            } else if asked.is_some_and(|at| now.since(at) < quiet) {
                Sign::Asks
            } else {
                Sign::None
            };
            let before = std::mem::replace(&mut node.sign, sign);
            has_changed |= before != sign;
            if sign == Sign::Asks && before == Sign::None {
                back.push((at, was_silent_for));
            }
        }
        if has_changed {
            self.touch();
        }
        back.retain(|(at, _)| self.goes_on_with_round(&self.life.nodes[*at]));
        let Some(after) = back.iter().map(|(_, silent)| *silent).max().map(Elapsed) else { return };
        let back: Vec<&TrackedNode> = back.iter().map(|(at, _)| &self.life.nodes[*at]).collect();
        let heard = back.iter().map(|node| node.evidence(Seen::Heard, None, now)).collect::<Vec<_>>();
        let nodes = Names::of(back.iter().map(|node| node.label()));
        let expected = self.expected(plan).map(|expected| expected.min);
        let about = nodes.to_string();
        let (have, joined) = (has(nodes.count()), self.joined());
        let there = Place::Node.of(joined, expected);
        let reason = Code::NodeBack
            .says(format!("{nodes} {have} been heard from again after {after}: {there} there"))
            .joined(Place::Node, joined, expected)
            .held(&nodes);
        self.found(Finding::new(reason, about, now).seen(heard));
    }
}

/// All connections of the run closed, and it had not finished. `first`: what ended first, if known.
fn all_left(members: u32, of: Place, how: &str, first: Option<String>) -> Reason {
    let (whose, first) = (of.connections_of(members), if_some(first, |first| format!("; first: {first}")));
    Code::RunEnded
        .says(format!("{whose} closed{how}{first}"))
        .severe(Severity::Warning)
        .look_at(
            "if the job was not stopped on purpose, look at the pods' logs and events, at the log of what \
             ended first before all",
        )
        .expects(Some(members))
}
