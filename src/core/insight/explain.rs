//! Looking at what is known as time goes by: what has changed, what holds, and what is to be said about it.

use std::time::Duration;

use super::explanation_log::{Subject, Topic};
use super::graph::Graph;
use super::reason::{Names, Reason, Secs, Unit};
use super::run::{Run, RunKey, SETTLE};
use super::{Change, Clash, Insight};
use super::{conditions, gathering};
use crate::api::{Expected, ExpectedFrom, RunKind, RunState, TimelineEvent};
use crate::core::ids::{ConnId, ShownKey, Timestamp, count};
use crate::core::protocol::keys::Role;

/// Two agents' runs in one store are two jobs when both have been there this long.
const SETTLED: Duration = Duration::from_secs(2);
/// A connection that only counted itself is taken for a worker after this long.
const UNDECIDED: Duration = Duration::from_secs(5);

impl Insight {
    /// Lets time pass: to be called some ten times a second.
    pub fn tick(&mut self, now: Timestamp) {
        self.decide_roles(now);
        self.match_agents();
        self.show_gatherings(now);
        for key in self.runs.keys().cloned().collect::<Vec<_>>() {
            self.tick_run(&key, now);
        }
        self.tell_given_up(now);
        self.tell_clashes(now);
        let is_due = self.looked.is_none_or(|looked| now.since(looked) >= Self::LOOK_EVERY);
        if std::mem::take(&mut self.waits_told) || is_due {
            self.looked = Some(now);
            self.look(now);
            self.forget_over(now);
        }
        self.tell_changes(now);
    }

    fn subject(&self, key: &RunKey) -> Subject {
        let name = self.name(key);
        let text = match self.runs.get(key) {
            // The native rendezvous names the round itself.
            Some(run) if run.kind == RunKind::C10d => {
                format!("{name} round {}", run.round)
            }
            _ => name.clone(),
        };
        Subject { run_id: Some(name), text: Some(text) }
    }

    /// Clients of `env://` that only counted themselves are workers that have not got further.
    fn decide_roles(&mut self, now: Timestamp) {
        let undecided: Vec<(u16, ConnId)> = self
            .stores
            .values()
            .flat_map(|store| {
                let is_undecided = |client: &super::Client| {
                    client.role == Role::Unknown && now.since(client.since) >= UNDECIDED
                };
                store
                    .clients
                    .iter()
                    .filter(move |(_, client)| is_undecided(client))
                    .map(|(&conn, _)| (store.port, conn))
            })
            .collect();
        for (store, conn) in undecided {
            self.settle_worker(store, conn, now);
        }
    }

    /// Agents whose own writes have not told their node are found by process id.
    fn match_agents(&mut self) {
        for run in self.runs.values_mut().filter(|run| run.kind == RunKind::C10d) {
            if run.nodes.iter().all(|node| node.conn.is_some()) {
                continue;
            }
            let Some(store) = run.store().and_then(|port| self.stores.get(&port)) else { continue };
            let taken: std::collections::HashSet<ConnId> =
                run.nodes.iter().filter_map(|node| node.conn).collect();
            let free: Vec<ConnId> = run.agents.iter().filter(|conn| !taken.contains(conn)).copied().collect();
            let mut same_pid: std::collections::HashMap<Option<u32>, usize> =
                std::collections::HashMap::new();
            for client in free.iter().filter_map(|conn| store.clients.get(conn)) {
                let clients = same_pid.entry(client.pid).or_default();
                *clients = clients.saturating_add(1);
            }
            for conn in free {
                let Some(client) = store.clients.get(&conn) else { continue };
                if same_pid.get(&client.pid) == Some(&1) {
                    run.match_by_pid(conn, client.pid, Some(client.peer));
                }
            }
        }
    }

    fn tick_run(&mut self, key: &RunKey, now: Timestamp) {
        let (plan, explain_after) = (self.plan(key), self.settings.explain_after);
        let Some(run) = self.runs.get_mut(key) else { return };
        run.name_nodes(&plan);
        run.settle_static(now);
        let expected = run.expected(&plan);
        run.tell_deaths(now, expected.map(|expected| expected.min));
        if let Some((rank, says, other_rank, other_says)) = run.world.take_different(now) {
            run.fact(Reason::WorldSizesDiffer { rank, says, other_rank, other_says }, "", now);
        }
        run.check_ranks();
        run.tell_lost_ranks(now);
        if run.native.is_none() {
            tell_start(run, expected, now);
        }
        // The agents publish such an address in every launch mode; workers that use this server come soon after.
        let is_elsewhere = run.master.0.is_some()
            && run.assigned_at.is_some_and(|at| now.since(at) >= explain_after)
            && run.world.connected.is_empty()
            && !run.state.is_over();
        if let (false, true, (Some(host), Some(port))) =
            (run.workers_placed, is_elsewhere, run.master.clone())
        {
            run.workers_placed = true;
            let first = run.round == 0;
            let address = format!("{host}:{port}");
            if first {
                run.fact(Reason::WorkersElsewhere { address }, "", now);
            }
        }
        if self.log.says(key, "nodes_missing") {
            tell_late(run, expected, now);
        } else {
            run.told_joined = run.joined();
        }
        let state = run.state_now(now);
        if state != run.state {
            self.change_state(key, state, now);
        }
        let subject = self.subject(key);
        let Some(run) = self.runs.get_mut(key) else { return };
        let facts = std::mem::take(&mut run.facts);
        let moments = std::mem::take(&mut run.new_moments);
        for (at, code, text) in moments {
            let at = super::show::rounded(self.settings.epoch + at.0.as_secs_f64());
            self.tell(Change::TimelineEvent(TimelineEvent {
                at,
                run_id: subject.run_id.clone(),
                code,
                text,
            }));
        }
        for fact in facts {
            self.count(&fact.reason);
            let topic = Topic {
                store: key.store,
                run: Some(key.clone()),
                code: fact.reason.code(),
                about: fact.about,
            };
            let utterance = self.log.fact(topic, subject.clone(), fact.reason, fact.since, now);
            self.say(utterance, now);
        }
    }

    pub(super) fn change_state(&mut self, key: &RunKey, state: RunState, now: Timestamp) {
        let Some(run) = self.runs.get_mut(key) else { return };
        let before = std::mem::replace(&mut run.state, state);
        run.state_since = now;
        run.touch();
        if state.is_over() {
            run.over_at.get_or_insert(now);
        }
        let ranks = count(run.world.ranks.len().max(run.world.connected.len()));
        let members = run.world.completed.and(run.world.size).map_or(ranks, |(size, _)| size);
        if run.native.is_some() {
            // The rendezvous has told why.
            return;
        }
        match (state, run.has_agents()) {
            (RunState::Gone, true) => {
                run.dying.clear();
                let members = run.group.unwrap_or(run.most_joined.max(count(run.nodes.len())));
                let since = run.all_gone.unwrap_or(now);
                run.fact(Reason::AllLeft { members, unit: Unit::Node }, format!("{:?}", run.round), since);
            }
            (RunState::Gone, false) => {
                run.world.lost.clear();
                let since = run.world.ended.unwrap_or(now);
                run.fact(Reason::AllLeft { members, unit: Unit::Process }, format!("{:?}", run.round), since);
            }
            (RunState::Finished, false) if before != RunState::Finished => {
                let ended = run.world.ended.unwrap_or(now);
                let ran = Secs(ended.since(run.world.completed.or(run.started).unwrap_or(ended)));
                run.fact(
                    Reason::RunFinished { members, unit: Unit::Process, ran },
                    format!("{:?}", run.round),
                    ended,
                );
            }
            _ => {}
        }
    }

    fn count(&mut self, reason: &Reason) {
        match reason {
            Reason::RoundComplete { took, .. } => {
                self.totals.completed(took.0);
            }
            Reason::ClosedIncomplete { .. } => {
                self.totals.rounds[1] = self.totals.rounds[1].saturating_add(1);
            }
            Reason::ClosedUnfinished { .. } => {
                self.totals.rounds[2] = self.totals.rounds[2].saturating_add(1);
            }
            Reason::NodeDied { nodes, .. } | Reason::NodeDiedJoining { nodes, .. } => {
                self.totals.node_deaths = self.totals.node_deaths.saturating_add(nodes.count() as u64);
            }
            _ => {}
        }
    }

    fn say(
        &mut self,
        utterance: impl IntoIterator<Item = super::explanation_log::Utterance>,
        now: Timestamp,
    ) {
        for super::explanation_log::Utterance { topic, explanation, aloud } in utterance {
            if let Some(run) = topic.run.as_ref().and_then(|key| self.runs.get_mut(key)) {
                run.touch();
                if aloud {
                    run.remember(now, &explanation.code, explanation.text.clone());
                }
            }
            self.tell(Change::Explanation { explanation, aloud });
        }
    }

    /// Tells who gave up on which key, together for one key.
    fn tell_given_up(&mut self, now: Timestamp) {
        let mut told = Vec::new();
        for store in self.stores.values_mut() {
            let port = store.port;
            let due: Vec<_> = store
                .given_up
                .iter()
                .filter(|(_, given_up)| now.since(given_up.at) >= SETTLE)
                .map(|(key, _)| key.clone())
                .collect();
            for key in due {
                if let Some(given_up) = store.given_up.remove(&key) {
                    told.push((port, key, given_up));
                }
            }
        }
        for (store, (run, key), given_up) in told {
            let writer = given_up.writer.unwrap_or_default();
            let who = Names { shown: given_up.who, more: given_up.more };
            let key = ShownKey(&key).to_string();
            let reason = Reason::GaveUp { who, key: key.clone(), waited: Secs(given_up.waited), writer };
            let subject = run.as_ref().map(|run| self.subject(run)).unwrap_or_default();
            let topic = Topic { store, run, code: reason.code(), about: key };
            let utterance = self.log.fact(topic, subject, reason, given_up.at, now);
            self.say(utterance, now);
        }
    }

    /// Tells whether clashes are of two nodes or of two jobs, when all of them should be known.
    fn tell_clashes(&mut self, now: Timestamp) {
        for (key, ranks, first, second) in self
            .runs
            .iter_mut()
            .filter_map(|(key, run)| {
                let (ranks, first, second) = run.world.take_second_job()?;
                Some((key.clone(), ranks, first, second))
            })
            .collect::<Vec<_>>()
        {
            let Some(store) = self.stores.get_mut(&key.store) else { continue };
            store.clashes.retain(|clash| clash.run != key);
            let who =
                |conn| store.clients.get(&conn).map_or_else(|| "a process".to_owned(), super::Client::label);
            let (first, second) = (who(first), who(second));
            let evidence = format!("both write the addresses of all {ranks} ranks");
            let reason = Reason::TwoJobs { first, second, evidence };
            let subject = self.subject(&key);
            let topic = Topic { store: key.store, run: Some(key), code: reason.code(), about: String::new() };
            let utterance = self.log.fact(topic, subject, reason, now, now);
            self.say(utterance, now);
        }
        let mut due: Vec<(u16, Vec<Clash>)> = Vec::new();
        for store in self.stores.values_mut() {
            if store.clashes.first().is_some_and(|clash| now.since(clash.at) >= SETTLE) {
                due.push((store.port, std::mem::take(&mut store.clashes)));
            }
        }
        for (store, clashes) in due {
            let ranks: std::collections::BTreeSet<u32> =
                clashes.iter().filter_map(|clash| clash.rank).collect();
            let Some(first) = clashes.first() else { continue };
            let since = first.at;
            let what = match (first.node, clashes.len()) {
                (Some(node), _) => format!("node rank {node}"),
                (None, 1) => format!("rank {}", first.rank.unwrap_or(0)),
                (None, _) => format!("ranks {}", Names::of(ranks.iter().map(ToString::to_string))),
            };
            let reason =
                Reason::DuplicateRank { what, first: first.first.clone(), second: first.second.clone() };
            let subject = self.subject(&first.run);
            let about = first.node.map_or(String::new(), |node| format!("node {node}"));
            let topic = Topic { store, run: Some(first.run.clone()), code: reason.code(), about };
            let utterance = self.log.fact(topic, subject, reason, since, now);
            self.say(utterance, now);
        }
    }

    /// Looks at everything that holds at the moment.
    fn look(&mut self, now: Timestamp) {
        let mut held: Vec<(u16, Option<RunKey>, String, Reason, Timestamp)> = Vec::new();
        for (key, run) in &self.runs {
            let plan = self.plan(key);
            if !run.state.is_over() {
                let told = conditions::of_run(run, &plan, now).into_iter();
                for (about, reason, since) in told.chain(gathering::conditions(run, &plan, now)) {
                    held.push((key.store, Some(key.clone()), about, reason, since));
                }
            }
        }
        for store in self.stores.values() {
            let graph = Graph { store, runs: &self.runs, now };
            for (key, about, reason, since) in graph.explain() {
                // Said already, with more names.
                if self.runs.get(&key).is_some_and(|run| run.state.is_over()) {
                    continue;
                }
                let is_joining = self.runs.get(&key).is_some_and(|run| run.state == RunState::Joining);
                if is_joining
                    && matches!(reason, Reason::WaitingForNode { .. })
                    && self.log.says(&key, "nodes_missing")
                {
                    continue;
                }
                held.push((store.port, Some(key), about, reason, since));
            }
            for foreign in &store.foreign {
                let reason = Reason::ForeignClient {
                    peer: foreign.peer.to_string(),
                    protocol: foreign.protocol.to_owned(),
                    port: store.port,
                    times: foreign.times,
                };
                let about = format!("{} {}", foreign.peer, foreign.protocol);
                held.push((store.port, None, about, reason, foreign.last));
            }
            held.extend(self.two_jobs(store.port, now));
        }
        for (store, run, about, reason, since) in held {
            let subject = run.as_ref().map(|run| self.subject(run)).unwrap_or_default();
            let topic = Topic { store, run, code: reason.code(), about };
            self.log.hold(topic, subject, reason, since);
        }
        for store in self.stores.values_mut() {
            const FOREIGN_SHOWN: Duration = Duration::from_mins(5);
            store.foreign.retain(|foreign| now.since(foreign.last) < FOREIGN_SHOWN);
        }
        let utterances = self.log.settle(now);
        self.say(utterances, now);
    }

    /// Two static runs in one store write the same workers' keys.
    fn two_jobs(
        &self,
        store: u16,
        now: Timestamp,
    ) -> Option<(u16, Option<RunKey>, String, Reason, Timestamp)> {
        let is_live = |run: &&Run| {
            run.key.store == store
                && run.kind == RunKind::Static
                && !run.agents.is_empty()
                && !run.roles.is_empty()
                && now.since(run.first_seen) >= SETTLED
        };
        let mut live = self.runs.values().filter(is_live);
        let (one, other) = (live.next()?, live.next()?);
        let reason = Reason::TwoJobs {
            first: format!("run {}", self.name(&one.key)),
            second: format!("run {}", self.name(&other.key)),
            evidence: "their workers write the same keys".into(),
        };
        let (older, newer) = if one.first_seen <= other.first_seen { (one, other) } else { (other, one) };
        Some((store, Some(older.key.clone()), String::new(), reason, newer.first_seen))
    }

    fn forget_over(&mut self, now: Timestamp) {
        let is_old = |run: &&Run| {
            run.state.is_over()
                && run.native.is_none()
                && run.agents.is_empty()
                && run.world.connected.is_empty()
                && run.over_at.is_some_and(|at| now.since(at) >= Self::OVER_SHOWN)
        };
        let old: Vec<RunKey> = self.runs.values().filter(is_old).map(|run| run.key.clone()).collect();
        for key in &old {
            self.drop_run(key);
        }
    }

    /// Sends the runs that have changed to whoever follows.
    fn tell_changes(&mut self, now: Timestamp) {
        let changed: Vec<RunKey> = self
            .runs
            .values()
            .filter(|run| self.shown.get(&run.key) != Some(&run.version))
            .map(|run| run.key.clone())
            .collect();
        if changed.is_empty() {
            return;
        }
        let headlines = self.log.headlines();
        for key in changed {
            let Some(run) = self.runs.get(&key) else { continue };
            let version = run.version;
            let summary = self.summary(run, headlines.get(&key).cloned(), now);
            self.shown.insert(key, version);
            self.tell(Change::Run(summary));
        }
    }
}

/// The line that begins a round, once there is something of it.
fn tell_start(run: &mut Run, expected: Option<Expected>, now: Timestamp) {
    let Some(started) = run.started else { return };
    if run.told_start == Some(started) || now.since(started) < Duration::from_millis(100) {
        return;
    }
    if run.completed.is_some() {
        // The line that it is complete says it all.
        run.told_start = Some(started);
        return;
    }
    let first = if run.has_agents() {
        run.participants().min_by_key(|node| node.joined).map(super::run::Node::told)
    } else {
        let first = run.world.ranks.iter().min_by_key(|(_, info)| info.joined);
        first.map(|(&rank, _)| run.world.label(rank))
    };
    let Some(who) = first else { return };
    run.told_start = Some(started);
    let known = expected.filter(|expected| {
        matches!(
            expected.source,
            ExpectedFrom::Api | ExpectedFrom::Announced | ExpectedFrom::Flag | ExpectedFrom::Join
        )
    });
    let reason = Reason::RunStarted { who, expected: known.map(|e| e.min), from: known.map(|e| e.source) };
    run.fact(reason, format!("round {}", run.round), started);
}

/// Nodes that were missed and have come.
fn tell_late(run: &mut Run, expected: Option<Expected>, now: Timestamp) {
    let joined = run.joined();
    let come = joined.saturating_sub(run.told_joined) as usize;
    if come == 0 {
        return;
    }
    run.told_joined = joined;
    let Some(started) = run.started else { return };
    let mut nodes: Vec<_> = run.participants().collect();
    nodes.sort_by_key(|node| std::cmp::Reverse(node.joined));
    let after = Secs(nodes.first().map_or(now, |node| node.joined).since(started));
    let node = Names::of(nodes.into_iter().take(come).map(super::run::Node::told)).to_string();
    let expected = expected.map(|expected| expected.min);
    run.fact(Reason::NodeCameLate { node: node.clone(), after, joined, expected }, node, now);
}
