//! Who a connection is: an agent of a run, a rank, or nobody known yet.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::facts::{Client, RunKey, TrackedRun};
use crate::jobs::{Fold, Jobs};
use crate::report::log::Told;
use rallypoint_api::{RunKind, Seen};
use rallypoint_protocol::ids::{ConnId, Timestamp};
use rallypoint_protocol::keys::{KeyPattern, Leftover, RendezvousPart, Role, classify};

/// A connection that only counted itself counts as a worker after this long.
const UNDECIDED: Duration = Duration::from_secs(5);

/// Clients of `env://` that only counted themselves are workers that have not got further. Not those that
/// count others: they may be agents.
pub(crate) fn decide_roles(jobs: &mut Jobs, told: &mut Told, at: Timestamp) {
    let is_undecided = |client: &Client| {
        client.role == Role::Unknown && client.has_counted_itself && at.since(client.since) >= UNDECIDED
    };
    let mut undecided: Vec<(Timestamp, u16, ConnId)> = Vec::new();
    for store in jobs.stores.values() {
        let counts = |conn| store.waits.get(conn).is_some_and(|wait| wait.view.counted.is_some());
        let clients = store.clients.iter().filter(|&(conn, client)| is_undecided(client) && !counts(conn));
        undecided.extend(clients.map(|(&conn, client)| (client.since, store.port, conn)));
    }
    // Agents that gather have no workers yet: it may be one of them.
    let gathers = |run: &TrackedRun| run.kind == RunKind::Static && run.round.completed.is_none();
    undecided.retain(|(_, port, _)| {
        let mut runs = jobs.runs.values().filter(|run| run.store() == Some(*port));
        !runs.any(|run| gathers(run) && !run.agents.is_empty())
    });
    undecided.sort_unstable();
    for (since, port, conn) in undecided {
        Fold { jobs, told, port, at }.settle_worker(conn, since);
    }
}

/// Agents whose own writes have not shown their node are found by process id.
pub(crate) fn match_agents(jobs: &mut Jobs) {
    for run in jobs.runs.values_mut().filter(|run| run.kind == RunKind::C10d) {
        if run.nodes().all(|node| node.conn.is_some()) {
            continue;
        }
        let Some(store) = run.store().and_then(|port| jobs.stores.get(&port)) else { continue };
        let taken: HashSet<ConnId> = run.nodes().filter_map(|node| node.conn).collect();
        let free: Vec<ConnId> = run.agents.iter().filter(|conn| !taken.contains(conn)).copied().collect();
        let mut same_pid: HashMap<Option<u32>, usize> = HashMap::new();
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
        let is_unclear = same_pid.contains_key(&None);
        run.have_agents(|pid| is_unclear || same_pid.contains_key(&pid));
    }
}

impl Fold<'_> {
    /// Who counts the processes that come is rank 0 of the job, or the agent of node rank 0, if that is known
    /// to be missing in one job only.
    pub(crate) fn see_hosts(&mut self) {
        let port = self.port;
        let Some(store) = self.jobs.stores.get(&port) else { return };
        let mut hosts: Vec<_> = store.waits.values().filter(|wait| wait.view.counted.is_some()).collect();
        hosts.sort_by_key(|wait| (wait.since, wait.view.conn));
        let mut first_ranks = HashMap::new();
        for conn in hosts.into_iter().map(|wait| wait.view.conn).collect::<Vec<_>>() {
            if self.client(conn).is_none_or(|client| client.is_member()) {
                continue;
            }
            let misses_node = |run: &&TrackedRun| run.store() == Some(port) && run.misses_first_node();
            let mut without = self.jobs.runs.values().filter(misses_node).map(|run| run.key.clone());
            match (without.next(), without.next()) {
                (Some(key), None) => self.first_node(conn, &key),
                (None, _) => {
                    if let Some(key) = self.first_rank(conn) {
                        first_ranks.entry(key).or_insert(conn);
                    }
                }
                _ => {}
            }
        }
        for run in self.jobs.runs.values_mut().filter(|run| run.met_at() == Some(port)) {
            let host = first_ranks.get(&run.key).copied();
            if std::mem::replace(&mut run.world.host, host) != host {
                run.touch();
            }
        }
    }

    /// The agent of node rank 0 has come, though it has not written its role.
    fn first_node(&mut self, conn: ConnId, key: &RunKey) {
        let Some(id) = key.id().cloned() else { return };
        let Some(client) = self.client(conn) else { return };
        let (came, agent) = (client.since, (conn, client.peer, client.pid));
        let run = self.jobs.runs.get_mut(key);
        // It was left when all others had ended.
        if let Some(run) = run.filter(|run| run.life.all_gone.is_some_and(|gone| came <= gone)) {
            run.agents.insert(conn);
        }
        self.enter_agent(conn, id.as_bytes(), RunKind::Static);
        let (at, plan) = (self.at, self.jobs.plan(key));
        self.jobs.grow(key, |run, room| run.static_role(0, agent, at, &plan, room));
    }

    /// Rank 0 of this run has come, though it has not published its address.
    fn first_rank(&mut self, conn: ConnId) -> Option<RunKey> {
        let run = self.jobs.runs.get(&self.run_of_worker(conn)?)?;
        (!run.state.is_over() && run.world.misses_first()).then(|| self.enter_worker(conn)).flatten()
    }

    /// A connection uses one of PyTorch's keys for the first time.
    pub(crate) fn enter(&mut self, conn: ConnId, key: &[u8]) {
        let Some(pattern) = classify(key) else { return };
        if let Some((run_id, round, part)) = pattern.of_rendezvous() {
            let is_static = part != RendezvousPart::State && round.is_none();
            self.enter_agent(conn, run_id, if is_static { RunKind::Static } else { RunKind::C10d });
        } else if pattern.user() == Role::Worker {
            let run = self.enter_worker(conn);
            // Who watches a group looks for reports of failures before it has come to that.
            if pattern == KeyPattern::AttemptLeftover(Leftover::FailureReport) {
                return;
            }
            if let Some(run) = run.and_then(|key| self.jobs.runs.get_mut(&key)) {
                run.world.connected.uses_group(conn);
            }
            if let Some(client) = self.client(conn) {
                client.uses_group = true;
            }
        }
    }

    fn enter_agent(&mut self, conn: ConnId, run_id: &[u8], kind: RunKind) {
        let (key, at) = (self.key_of(run_id), self.at);
        let Some(client) = self.client(conn) else { return };
        client.role = Role::Agent;
        let came = client.evidence(Seen::Joined, at);
        // The native rendezvous knows its nodes; what their agents write says nothing new about them.
        if key.port().is_some() {
            let Some(run) = self.run_mut(&key, kind) else { return };
            run.agent_came(conn, kind, &came);
        }
        if let Some(client) = self.client(conn) {
            client.run = Some(key);
        }
    }

    pub(crate) fn enter_worker(&mut self, conn: ConnId) -> Option<RunKey> {
        let client = self.client(conn)?;
        match (client.role, &client.run) {
            (Role::Agent, run) | (Role::Worker, run @ Some(_)) => return run.clone(),
            _ => {}
        }
        self.settle_worker(conn, self.at)
    }

    /// A connection that is no agent belongs to the only run whose agents use this store, or to the run
    /// without an id. It came then.
    pub(crate) fn settle_worker(&mut self, conn: ConnId, came: Timestamp) -> Option<RunKey> {
        let (port, at) = (self.port, self.at);
        let process = self.client(conn).and_then(|client| client.process());
        let key = self.run_of_worker(conn)?;
        let run = match key {
            RunKey::Store { .. } => self.run_mut(&key, RunKind::Env),
            RunKey::Id(_) => self.jobs.runs.get_mut(&key),
        }?;
        if !run.has_agents() && run.state_now(at).is_over() {
            // It may not have been noticed yet that no client is there any more.
            run.update_state(at);
        }
        // Workers of the last round use another store.
        if run.native.as_ref().is_some_and(|native| native.store != Some(port)) {
            return None;
        }
        run.worker_came(conn, process, came);
        let client = self.client(conn)?;
        client.role = Role::Worker;
        client.run = Some(key.clone());
        Some(key)
    }

    /// The run whose worker this connection is, if it is one: the keys of workers do not tell.
    fn run_of_worker(&self, conn: ConnId) -> Option<RunKey> {
        let port = self.port;
        let addr = self.jobs.stores.get(&port)?.clients.get(&conn)?.peer.ip();
        if let Some(owner) = self.jobs.owner_of(port) {
            return Some(owner);
        }
        let own = RunKey::Store { port, id: None };
        // Two jobs that meet in one store would meet each other: these ranks have no agents here.
        let is_taken = || self.jobs.runs.get(&own).is_some_and(|run| !run.is_empty());
        let may_be_its = |run: &&TrackedRun| {
            let has_agents_here =
                run.key.port() == Some(port) && run.key.id().is_some() && !run.agents.is_empty();
            has_agents_here && run.may_have_worker_at(addr) && !is_taken()
        };
        let mut runs = self.jobs.runs.values().filter(may_be_its);
        let only = runs.next().filter(|_| runs.next().is_none());
        Some(only.map_or(own, |run| run.key.clone()))
    }
}
