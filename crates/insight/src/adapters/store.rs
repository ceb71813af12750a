//! Folding one observation into what is known.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use crate::facts::run::{RankInfo, RunKey, TrackedRun};
use crate::facts::store::{Claim, Clash, Client, GivenUp, Poll, Waiting};
use crate::facts::wanted::{ExpectedWriter, wanted};
use crate::jobs::Jobs;
use crate::reason::{Code, Evidence, Names};
use crate::report::told::Told;
use rallypoint_api::{RunKind, Seen};
use rallypoint_protocol::addresses::{read_gloo, read_nccl_id};
use rallypoint_protocol::ids::{ConnId, RunId, ShownKey, Timestamp};
use rallypoint_protocol::keys::{
    Address, AddressKind, KeyPattern, Leftover, RendezvousPart, Role, classify, is_asked_for,
};
use rallypoint_store::{DropCause, KeyPast, Observed, WaitView};

const MOST_CLIENTS: usize = 300_000;

/// What is known, and where and when something was observed.
pub(crate) struct Fold<'i> {
    pub(crate) jobs: &'i mut Jobs,
    pub(crate) told: &'i mut Told,
    /// The store's port.
    pub(crate) port: u16,
    pub(crate) at: Timestamp,
}

impl Fold<'_> {
    pub(crate) fn observe(&mut self, observed: Observed) {
        match observed {
            Observed::Came { conn, peer, pid } => {
                self.came(conn, peer, Some(pid));
            }
            Observed::Client { conn, peer, pid, key } => {
                if let Some(client) = self.came(conn, peer, pid) {
                    client.has_counted_itself |= matches!(classify(&key), Some(KeyPattern::WorkerCount));
                    self.enter(conn, &key);
                }
            }
            Observed::Wrote { conn, key, value } => {
                if Poll::is_promised(&key) {
                    self.jobs.store(self.port).polled.remove(&key);
                }
                self.wrote(conn, &key, &value);
            }
            Observed::Published { conn, key, address } => {
                self.jobs.store(self.port).publishes(conn, &key, address.as_deref());
            }
            Observed::Polls { conn, key, number, waited, past } => {
                self.jobs.store(self.port).polls(conn, key, number, (waited, past), self.at);
            }
            Observed::PollEnds { conn, key } => self.jobs.store(self.port).poll_ends(conn, key.as_deref()),
            Observed::Dropped { key, cause } => self.dropped(&key, cause),
            Observed::GaveUp { conn, key, waited } => self.gave_up(conn, key, waited),
            Observed::Gone { conn, used_own_keys } => self.gone(conn, used_own_keys),
            Observed::CutOff { conn, .. } => {
                self.client(conn).into_iter().for_each(|client| client.is_cut_off = true);
            }
            Observed::TwoWriters { key, first, second } => self.two_writers(&key, first, second),
            Observed::StoreReset { cause } => self.store_reset(cause),
            Observed::RunRestarted { run_id } => self.run_restarted(&run_id),
            Observed::Restored => {
                for run in self.jobs.runs.values_mut().filter(|run| run.store() == Some(self.port)) {
                    run.is_of_before(self.at);
                }
            }
        }
    }

    /// A client is there, unless there are too many.
    fn came(&mut self, conn: ConnId, peer: SocketAddr, pid: Option<u32>) -> Option<&mut Client> {
        let clients = &self.jobs.store(self.port).clients;
        if clients.len() >= MOST_CLIENTS && !clients.contains_key(&conn) {
            self.jobs.totals.add_lost(1);
            return None;
        }
        let client = self.jobs.store(self.port).clients.entry(conn).or_insert(Client {
            peer,
            pid,
            role: Role::Unknown,
            run: None,
            rank: None,
            host: None,
            since: self.at,
            uses_group: false,
            published: None,
            has_counted_itself: false,
            is_cut_off: false,
        });
        client.pid = pid;
        Some(client)
    }

    /// The outstanding waits of the store that have lasted over a second; they replace those told before.
    /// Runs whose waits are others than before have changed. `heard`: when nodes that were taken out of their
    /// rounds asked for something last.
    pub(crate) fn waits(&mut self, waits: Vec<WaitView>, heard: &[(ConnId, Timestamp)]) {
        let shown = self.at;
        let waiting = |view: WaitView| {
            let since = Timestamp(shown.0.saturating_sub(view.waited));
            (view.conn, Waiting { since, view, shown, is_over: false })
        };
        let told = waits.into_iter().map(waiting).collect();
        let store = self.jobs.store(self.port);
        store.heard = heard.iter().copied().collect();
        let before = store.take_waits(told, self.at);
        self.see_exits();
        self.see_hosts();
        let Some(graph) = self.jobs.graph(self.port, self.at) else { return };
        let mut changed: BTreeSet<RunKey> = BTreeSet::new();
        for (these, those) in [(&graph.store.waits, &before), (&before, &graph.store.waits)] {
            let only_these =
                these.iter().filter(|(conn, wait)| !those.get(conn).is_some_and(|w| w.is_for(wait)));
            changed.extend(only_these.filter_map(|(_, wait)| graph.run_waiting(&wait.view)));
        }
        let counted: Vec<(RunKey, u32)> =
            graph.store.waits.values().filter_map(|wait| graph.nodes_asked_for(wait)).collect();
        for key in changed {
            self.jobs.runs.get_mut(&key).into_iter().for_each(TrackedRun::touch);
        }
        let runs = self.jobs.runs.values().filter(|run| run.store() == Some(self.port));
        for key in runs.map(|run| run.key.clone()).collect::<Vec<_>>() {
            self.see_signs_of(&key);
        }
        for (key, nodes) in counted {
            if let Some(run) = self.jobs.runs.get_mut(&key).filter(|run| run.kind == RunKind::Static) {
                run.count_on(nodes, self.at);
            }
        }
    }

    /// What is seen of the agents of a run that others have taken out of its round.
    fn see_signs_of(&mut self, key: &RunKey) {
        let Some(graph) = self.jobs.graph(self.port, self.at) else { return };
        let Some(run) = graph.runs.get(key).filter(|run| run.lingering().next().is_some()) else { return };
        let waiting: BTreeSet<ConnId> = graph.waiting_outside(run).collect();
        let (at, plan) = (self.at, self.jobs.plan(key));
        let Jobs { runs, stores, .. } = &mut *self.jobs;
        let (Some(run), Some(store)) = (runs.get_mut(key), stores.get(&self.port)) else { return };
        run.give_signs(|conn| waiting.contains(&conn), |conn| store.heard.get(&conn).copied(), &plan, at);
    }

    fn key_of(&mut self, run_id: &[u8]) -> RunKey {
        self.jobs.store(self.port).key_of(&RunId::new(run_id))
    }

    fn client(&mut self, conn: ConnId) -> Option<&mut Client> {
        self.jobs.store(self.port).clients.get_mut(&conn)
    }

    /// Sees who waits at an exit barrier: arrivals before a restart of the server were not seen.
    fn see_exits(&mut self) {
        let misses_some = |run: &TrackedRun| run.store() == Some(self.port) && run.misses_exits();
        let store = self.jobs.stores.get(&self.port);
        let Some(store) = store.filter(|_| self.jobs.runs.values().any(misses_some)) else { return };
        let waits = store.waits.values().map(|waiting| &waiting.view);
        let waits = waits.flat_map(|view| view.missing.iter().map(|key| (view.conn, key)));
        let at_exit: Vec<_> = waits.filter_map(|(conn, key)| Some((conn, exit_of(key)?))).collect();
        for (conn, run_id) in at_exit {
            if let Some(run) = self.jobs.runs.get_mut(&store.key_of(&run_id)) {
                run.waits_at_exit(conn, self.at);
            }
        }
    }

    /// Who counts the processes that come is rank 0 of the job, or the agent of node rank 0, if that is known
    /// to be missing in one job only.
    fn see_hosts(&mut self) {
        let port = self.port;
        let Some(store) = self.jobs.stores.get(&port) else { return };
        let mut hosts: Vec<_> = store.waits.values().filter(|wait| wait.view.counted.is_some()).collect();
        hosts.sort_by_key(|wait| (wait.since, wait.view.conn));
        let hosts: Vec<ConnId> = hosts.into_iter().map(|wait| wait.view.conn).collect();
        let mut first_ranks = HashMap::new();
        for conn in hosts {
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
            run.set_host(first_ranks.get(&run.key).copied());
        }
    }

    /// The agent of node rank 0 has come, though it has not written its role.
    fn first_node(&mut self, conn: ConnId, key: &RunKey) {
        let Some(id) = key.id().cloned() else { return };
        let Some(client) = self.client(conn) else { return };
        let (came, process) = (client.since, (client.peer, client.pid));
        if let Some(run) = self.jobs.runs.get_mut(key) {
            run.host_was_there(conn, came);
        }
        self.enter_agent(conn, id.as_bytes(), RunKind::Static);
        let (at, plan) = (self.at, self.jobs.plan(key));
        self.jobs.grow(key, |run, room| run.static_role(0, conn, process, at, &plan, room));
    }

    /// Rank 0 of this run has come, though it has not published its address.
    fn first_rank(&mut self, conn: ConnId) -> Option<RunKey> {
        let run = self.jobs.runs.get(&self.run_of_worker(conn)?)?;
        (!run.state.is_over() && run.world.misses_first()).then(|| self.enter_worker(conn)).flatten()
    }

    fn run_mut(&mut self, key: &RunKey, kind: RunKind) -> Option<&mut TrackedRun> {
        self.jobs.run_mut(self.told, key, kind, self.at)
    }

    /// A connection uses one of PyTorch's keys for the first time.
    fn enter(&mut self, conn: ConnId, key: &[u8]) {
        let Some(pattern) = classify(key) else { return };
        match (pattern.user(), pattern) {
            (Role::Agent, KeyPattern::Rendezvous { run_id, part, round }) => {
                let is_static = !matches!(part, RendezvousPart::State) && round.is_none();
                let kind = if is_static { RunKind::Static } else { RunKind::C10d };
                self.enter_agent(conn, run_id, kind);
            }
            (Role::Agent, KeyPattern::Address(Address { run_id: Some(run_id), .. })) => {
                self.enter_agent(conn, run_id, RunKind::Static);
            }
            (Role::Worker, pattern) => {
                let run = self.enter_worker(conn);
                // Who watches a group looks for reports of failures before it has come to that.
                if matches!(pattern, KeyPattern::AttemptLeftover(Leftover::FailureReport)) {
                    return;
                }
                if let Some(run) = run.and_then(|key| self.jobs.runs.get_mut(&key)) {
                    run.worker_uses_group(conn);
                }
                if let Some(client) = self.client(conn) {
                    client.uses_group = true;
                }
            }
            _ => {}
        }
    }

    fn enter_agent(&mut self, conn: ConnId, run_id: &[u8], kind: RunKind) {
        let (key, at) = (self.key_of(run_id), self.at);
        let came = self.client(conn).map(|client| {
            client.role = Role::Agent;
            client.evidence(Seen::Joined, at)
        });
        // The native rendezvous knows its nodes; what their agents write says nothing new about them.
        if key.port().is_some() {
            let Some(run) = self.run_mut(&key, kind) else { return };
            run.agent_came(conn, kind, came.as_ref(), at);
        }
        if let Some(client) = self.client(conn) {
            client.run = Some(key);
        }
    }

    fn enter_worker(&mut self, conn: ConnId) -> Option<RunKey> {
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
        if !run.takes_workers_of(port) {
            return None;
        }
        if run.worker_came(conn, process, came) {
            self.told.log.forget(&key);
        }
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

    fn wrote(&mut self, conn: ConnId, key: &[u8], value: &Bytes) {
        let at = self.at;
        match classify(key) {
            Some(KeyPattern::Rendezvous { run_id, round, part }) => {
                let run = self.key_of(run_id);
                if part == RendezvousPart::State && run.port().is_some() {
                    let wrote = self.evidence(Seen::Wrote, conn, key);
                    self.wrote_state(&run, conn, &wrote, value);
                    let twin = self.jobs.runs.get(&run).and_then(|run| run.twin_of(conn));
                    let Some((twin, node)) = twin else { return };
                    if self.jobs.store(self.port).may_say(&(Some(run.clone()), key.into()), at) {
                        self.clash(run, Claim::NodeId(node), [twin, conn], key);
                    }
                    return;
                }
                let told_by = self.client(conn).map(|client| (conn, client.peer, client.pid));
                let Some(run) = self.jobs.runs.get_mut(&run) else { return };
                if round.is_none_or(|round| u64::from(round) == run.round.number) {
                    if let (RendezvousPart::RoleInfo(rank), Some(told_by), true) =
                        (part, told_by, run.native.is_some())
                    {
                        run.native_agent_came(rank, told_by);
                    }
                    run.part_written(part, conn, value, at);
                }
            }
            Some(KeyPattern::Address(address)) => self.wrote_address(conn, key, &address, value),
            Some(KeyPattern::AttemptLeftover(Leftover::FailureReport)) => {
                let Some(key) = self.enter_worker(conn) else { return };
                let who = self.jobs.who(self.port, conn);
                if let Some(run) = self.jobs.runs.get_mut(&key) {
                    let reason = Code::GaveUp
                        .says(format!("{who} reported that a collective timed out or failed"))
                        .look_at("look at that rank's log for the collective that timed out")
                        .held(&Names::of([who.clone()]));
                    run.finds(reason, who, at);
                }
            }
            Some(KeyPattern::WorkerCount | KeyPattern::CheckpointAddress(_) | KeyPattern::Published)
            | None => {}
            Some(pattern) => {
                if pattern == KeyPattern::AttemptLeftover(Leftover::BarrierDone) {
                    self.jobs.store(self.port).is_written(key);
                }
                self.enter_worker(conn);
                self.went_on(conn);
            }
        }
    }

    /// A worker writes what none writes before it has reached the others, if they have met.
    fn went_on(&mut self, conn: ConnId) {
        let Some(client) = self.client(conn) else { return };
        let (run, rank) = (client.run.clone(), client.rank);
        if let Some(run) = run.and_then(|key| self.jobs.runs.get_mut(&key)) {
            run.worker_went_on(conn, rank);
        }
    }

    fn wrote_state(&mut self, key: &RunKey, conn: ConnId, wrote: &Evidence, value: &[u8]) {
        let plan = self.jobs.plan(key);
        if self.run_mut(key, RunKind::C10d).is_none() {
            return;
        }
        let again = self.jobs.grow(key, |run, room| run.state_written(value, conn, wrote, &plan, room));
        if again == Some(true) {
            self.told.log.forget(key);
        }
        self.see_signs_of(key);
    }

    fn wrote_address(&mut self, conn: ConnId, written: &[u8], address: &Address<'_>, value: &[u8]) {
        let at = self.at;
        self.jobs.store(self.port).has_counted(conn);
        if let Some(run_id) = address.run_id {
            let key = self.key_of(run_id);
            let plan = self.jobs.plan(&key);
            let Some(client) = self.client(conn) else { return };
            let (peer, pid) = (client.peer, client.pid);
            let node = address.node_rank();
            let again = self.jobs.grow(&key, |run, room| {
                match address.kind {
                    AddressKind::RoleInfo if run.native.is_some() => {}
                    AddressKind::RoleInfo => {
                        return run.static_role(node, conn, (peer, pid), at, &plan, room);
                    }
                    _ => run.part_written(RendezvousPart::AssignedRanks(node), conn, value, at),
                }
                false
            });
            if again == Some(true) {
                self.told.log.forget(&key);
            }
            return;
        }
        let Some(key) = self.enter_worker(conn) else { return };
        if address.kind == AddressKind::RpcWorker
            && let Some(run) = self.jobs.runs.get_mut(&key)
        {
            run.meets_by_rpc();
        }
        if let Some(group) = address.sub_group {
            if let Some(client) = self.client(conn) {
                client.published = Some(group.into());
            }
            return self.went_on(conn);
        }
        let Some(client) = self.client(conn) else { return };
        let (peer, pid, role) = (client.peer, client.pid, client.role);
        let wrote = client.evidence(Seen::Wrote, at);
        let Some(run) = self.jobs.runs.get_mut(&key) else { return };
        run.touch();
        match address.kind {
            AddressKind::NcclId if address.member == 0 => {
                let wrote = Evidence { key: Some(ShownKey(written).to_string()), ..wrote };
                run.publish_nccl_id(conn, read_nccl_id(value), wrote);
            }
            AddressKind::Gloo if role == Role::Worker => {
                let read = read_gloo(value);
                let (host, size) = (read.host, read.size);
                let info = RankInfo {
                    conn,
                    peer,
                    pid,
                    host: host.clone(),
                    listens: read.listens,
                    joined: at,
                    gone: None,
                    is_cut_off: false,
                    size,
                    made_before: address.made_before(),
                    withdrawn: false,
                };
                let (rank, attempt) = (address.member, address.attempt());
                let is_again = self.jobs.grow(&key, |run, room| run.publish(rank, attempt, info, room));
                if is_again == Some(true) {
                    self.told.log.forget(&key);
                }
                if let Some(client) = self.client(conn) {
                    (client.rank, client.published) = (Some(address.member), None);
                    client.host = host;
                }
            }
            _ => {}
        }
    }

    fn dropped(&mut self, key: &[u8], cause: DropCause) {
        match classify(key) {
            Some(KeyPattern::Rendezvous { run_id, part: RendezvousPart::State, .. }) => {
                let key = self.key_of(run_id);
                if let Some(run) = self.jobs.runs.get_mut(&key).filter(|run| run.kind == RunKind::C10d) {
                    run.state_dropped(self.at);
                }
            }
            Some(KeyPattern::Address(address))
                if cause == DropCause::PairedWithGone
                    && address.run_id.is_none()
                    && address.sub_group.is_none() =>
            {
                for run in self.jobs.runs.values_mut().filter(|run| run.store() == Some(self.port)) {
                    run.unpublish(address.member, address.attempt());
                }
            }
            Some(KeyPattern::Published) => self.jobs.store(self.port).unpublishes(key),
            _ => {}
        }
    }

    fn gave_up(&mut self, conn: ConnId, key: Box<[u8]>, waited: Duration) {
        const SHOWN: usize = 8;
        const MOST: usize = 256;
        // The initial barrier waits in slices of 10 s. Elastic's barriers read traces to tell who is missing.
        let is_trace = key.ends_with(b"/TRACE") || key.ends_with(b"/TRACING_GATE");
        if is_trace || matches!(classify(&key), Some(KeyPattern::AttemptLeftover(_))) {
            return;
        }
        if let Some(run_id) = exit_of(&key) {
            // It had arrived there, even if that was before a restart of the server.
            let of = self.key_of(run_id.as_bytes());
            self.jobs.runs.get_mut(&of).into_iter().for_each(|run| run.waits_at_exit(conn, self.at));
        }
        let run = self.client(conn).and_then(|client| client.run.clone());
        let is_for_one = matches!(classify(&key), Some(KeyPattern::Address(_)))
            || matches!(wanted(&key).writer, ExpectedWriter::Node(_));
        if let Some(run) = run.as_ref().and_then(|run| self.jobs.runs.get_mut(run)).filter(|_| is_for_one) {
            run.gave_up(conn, self.at);
        }
        if let Some(wait) = self.jobs.store(self.port).waits.get_mut(&conn) {
            wait.is_over = true;
        }
        if is_asked_for(&key) {
            let past = KeyPast::NotKnown;
            self.jobs.store(self.port).polls(conn, key.clone(), None, (waited, past), self.at);
        }
        let topic = (run, key);
        let given_up = &self.jobs.store(self.port).given_up;
        if given_up.len() >= MOST {
            return;
        }
        // Thousands may give up on one key: what is known of it is looked up for the first of them.
        if !given_up.contains_key(&topic) {
            let graph = self.jobs.graph(self.port, self.at);
            let beside = graph.map(|graph| graph.beside(topic.0.as_ref(), conn, &topic.1));
            let new = GivenUp { at: self.at, beside: beside.unwrap_or_default(), ..GivenUp::default() };
            self.jobs.store(self.port).given_up.insert(topic.clone(), new);
        }
        let Some(entry) = self.jobs.store(self.port).given_up.get_mut(&topic) else { return };
        entry.waited = entry.waited.max(waited);
        if entry.who.iter().any(|(known, _)| *known == conn) {
            entry.again = true;
            return;
        }
        if entry.who.len() >= SHOWN {
            entry.more = entry.more.saturating_add(1);
            return;
        }
        // Its process may be known by another connection.
        let graph = self.jobs.graph(self.port, self.at);
        let known = graph.and_then(|graph| graph.member_of(conn, graph.store.clients.get(&conn)?.process()));
        let who = self.jobs.who(self.port, known.unwrap_or(conn));
        let gave_up = Evidence { who, ..self.evidence(Seen::GaveUp, conn, &topic.1) };
        let Some(entry) = self.jobs.store(self.port).given_up.get_mut(&topic) else { return };
        if !entry.who.iter().any(|(_, known)| known.who == gave_up.who) {
            entry.who.push((conn, gave_up));
        }
    }

    /// A process was seen to do this with a key now.
    fn evidence(&mut self, seen: Seen, conn: ConnId, key: &[u8]) -> Evidence {
        let (peer, pid) = self.client(conn).map(|client| (client.peer, client.pid)).unzip();
        let (who, key) = (self.jobs.who(self.port, conn), Some(ShownKey(key).to_string()));
        Evidence { seen, who, peer, pid: pid.flatten(), key, at: self.at }
    }

    fn gone(&mut self, conn: ConnId, used_own_keys: bool) {
        let watch = self.jobs.store(self.port);
        let waited = watch.waits.remove(&conn).filter(|wait| !wait.is_over);
        let key = waited.and_then(|wait| Some(ShownKey(wait.view.missing.first()?).to_string()));
        let its = watch.publishers.values_mut().filter(|it| it.conn == conn);
        its.for_each(|it| it.gone = Some(self.at));
        watch.clash_ends(conn, self.at);
        watch.answered.remove(&conn);
        watch.polled.retain(|_, poll| poll.is_left_by(conn));
        let Some(client) = watch.clients.remove(&conn) else { return };
        watch.passed_by(&client, used_own_keys, self.at);
        if let (Role::Agent, Some(key @ RunKey::Id(_))) = (client.role, &client.run)
            && let Some(run) = self.jobs.runs.get_mut(key)
        {
            run.native_agent_left(conn);
        }
        for run in self.jobs.runs.values_mut().filter(|run| run.met_at() == Some(self.port)) {
            run.agent_left(conn, client.pid, client.is_cut_off, self.at);
            if client.run.as_ref() == Some(&run.key) && client.role == Role::Worker {
                let closed = Evidence { key: key.clone(), ..client.evidence(Seen::Closed, self.at) };
                run.worker_left(conn, client.rank, client.is_cut_off, closed);
            }
        }
    }

    fn run_restarted(&mut self, run_id: &RunId) {
        let key = self.key_of(run_id.as_bytes());
        if let Some(run) = self.jobs.runs.get_mut(&key).filter(|run| run.native.is_none())
            && run.started_again(self.at)
        {
            self.told.log.forget(&key);
        }
    }

    fn store_reset(&mut self, cause: DropCause) {
        match cause {
            DropCause::StoreIdle => {
                for run in self.jobs.runs.values_mut().filter(|run| run.key.port() == Some(self.port)) {
                    run.state_dropped(self.at);
                    run.touch();
                }
            }
            DropCause::Operator => {
                self.jobs.store(self.port).reset = Some(self.at);
                for run in self.jobs.runs.values_mut().filter(|run| run.store() == Some(self.port)) {
                    run.store_was_reset(self.at);
                }
            }
            _ => {}
        }
    }

    fn two_writers(&mut self, key: &[u8], first: ConnId, second: ConnId) {
        let Some(KeyPattern::Address(address)) = classify(key) else { return };
        let run = match address.run_id {
            Some(run_id) => Some(self.key_of(run_id)),
            None => self.client(first).and_then(|client| client.run.clone()),
        };
        let Some(run) = run else { return };
        let claim = match address.kind {
            AddressKind::RoleInfo => Claim::NodeRank(address.node_rank()),
            // Node rank 0 hands out the ranks of all.
            AddressKind::AssignedRanks => Claim::NodeRank(0),
            AddressKind::Gloo if address.sub_group.is_none() => Claim::Rank(address.member),
            AddressKind::NcclId if address.sub_group.is_none() => Claim::Rank(0),
            AddressKind::Gloo => match wanted(key).writer {
                ExpectedWriter::Group(member) => Claim::Member(member),
                _ => return,
            },
            _ => return,
        };
        self.clash(run, claim, [first, second], key);
    }

    fn clash(&mut self, run: RunKey, claim: Claim, conns: [ConnId; 2], key: &[u8]) {
        const MOST: usize = 256;
        let wrote = conns.map(|conn| {
            let who = self.jobs.claimant(self.port, conn, &claim);
            Evidence { who, ..self.evidence(Seen::Wrote, conn, key) }
        });
        let clashes = &mut self.jobs.store(self.port).clashes;
        if clashes.len() < MOST {
            clashes.push(Clash { at: self.at, run, claim, conns, wrote });
        }
    }
}

/// The run whose exit barrier this key belongs to.
fn exit_of(key: &[u8]) -> Option<RunId> {
    match classify(key)? {
        KeyPattern::Rendezvous {
            run_id,
            part: RendezvousPart::ExitBarrier { .. } | RendezvousPart::ExitBarrierDone { .. },
            ..
        } => Some(RunId::new(run_id)),
        _ => None,
    }
}
