//! Folding one observation into what is known.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;

use crate::facts::{
    Claim, Claimed, Client, GivenUp, Process, Published, RankInfo, RunKey, SETTLE, Standing, TrackedRun,
    Waiting,
};
use crate::identity::processes::Graph;
use crate::jobs::{Fold, Jobs};
use crate::reason::Evidence;
use crate::rules::waiting::given_up;
use rallypoint_api::{RunKind, Seen};
use rallypoint_protocol::addresses::{GlooAddress, read_gloo, read_nccl_id};
use rallypoint_protocol::ids::{ConnId, RunId, ShownKey, Timestamp};
use rallypoint_protocol::keys::{
    Address, AddressKind, ExpectedWriter, KeyPattern, Leftover, RendezvousPart, Role, classify,
    debug_server_of, own_member, wanted,
};
use rallypoint_store::{DropCause, Observed, WaitView};

const MOST_CLIENTS: usize = 300_000;
/// In stores of more connections nobody looks for others of a process.
const FEW: usize = 512;
/// A relay may tell what happened within this time in another order.
const AT_ONCE: Duration = Duration::from_millis(500);

impl Fold<'_> {
    pub(crate) fn observe(&mut self, observed: Observed) {
        match observed {
            Observed::Came { conn, peer, pid } => {
                self.came(conn, peer, Some(pid));
                self.comes_back((peer.ip(), pid));
            }
            Observed::Client { conn, peer, pid, key } => {
                if let Some(client) = self.came(conn, peer, pid) {
                    client.has_counted_itself |= matches!(classify(&key), Some(KeyPattern::WorkerCount));
                    self.enter(conn, &key);
                }
            }
            Observed::Wrote { conn, key, value } => self.wrote(conn, &key, &value),
            Observed::Published { conn, key, address } => {
                self.jobs.store(self.port).publishes(conn, &key, address.as_deref());
            }
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
                self.told.restarted = Some(self.at);
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
        let shares = self.jobs.store(self.port).is_shared(peer, pid);
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
            shares: false,
        });
        (client.pid, client.shares) = (pid, shares);
        Some(client)
    }

    /// The outstanding waits of the store that have lasted over a second; they replace those told before.
    /// Runs whose waits are others than before have changed. `heard`: when nodes that were taken out of their
    /// rounds asked for something last.
    pub(crate) fn waits(&mut self, waits: Vec<WaitView>, heard: &[(ConnId, Timestamp)]) {
        let (shown, store) = (self.at, self.jobs.store(self.port));
        let waiting = |view: WaitView| {
            let since = Timestamp(shown.0.saturating_sub(view.waited));
            Waiting { since, shares: store.is_shared(view.peer, view.pid), view, shown }
        };
        let (asked, told): (Vec<_>, Vec<_>) =
            waits.into_iter().map(waiting).partition(|wait| wait.view.polled.is_some());
        let told = told.into_iter().map(|wait| (wait.view.conn, wait)).collect();
        store.asked = asked;
        store.heard = heard.iter().copied().collect();
        let before = store.take_waits(told, shown);
        for process in store.alike() {
            self.share(process);
        }
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
        let is_of_node = |key| matches!(wanted(key).writer, ExpectedWriter::Node(_));
        let of_nodes = graph.store.waits.values().map(|wait| &wait.view);
        let of_nodes = of_nodes.filter(|wait| wait.missing.first().is_some_and(|key| is_of_node(key)));
        let awaited: BTreeSet<RunKey> = of_nodes.filter_map(|wait| graph.run_waiting(wait)).collect();
        for key in changed {
            self.jobs.runs.get_mut(&key).into_iter().for_each(TrackedRun::touch);
        }
        let runs = self.jobs.runs.values().filter(|run| run.store() == Some(self.port));
        for key in runs.map(|run| run.key.clone()).collect::<Vec<_>>() {
            if let Some(run) = self.jobs.runs.get_mut(&key) {
                run.round.is_awaited = awaited.contains(&key);
            }
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
        let Some(run) = graph.jobs.runs.get(key).filter(|run| run.lingering().next().is_some()) else {
            return;
        };
        let waiting: BTreeSet<ConnId> = graph.waiting_outside(run).collect();
        let (at, plan) = (self.at, self.jobs.plan(key));
        let Jobs { runs, stores, .. } = &mut *self.jobs;
        let (Some(run), Some(store)) = (runs.get_mut(key), stores.get(&self.port)) else { return };
        run.give_signs(&waiting, &store.heard, &plan, at);
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

    fn wrote(&mut self, conn: ConnId, key: &[u8], value: &Bytes) {
        let at = self.at;
        let pattern = classify(key);
        if let Some((run_id, round, part)) = pattern.and_then(|pattern| pattern.of_rendezvous()) {
            let run = self.key_of(run_id);
            return match part {
                RendezvousPart::State if run.port().is_some() => self.wrote_state(&run, conn, key, value),
                _ => self.wrote_part(&run, conn, (round, part), value),
            };
        }
        match pattern {
            Some(KeyPattern::Address(address)) => self.wrote_address(conn, key, &address, value),
            Some(KeyPattern::AttemptLeftover(Leftover::FailureReport)) => {
                let Some(key) = self.enter_worker(conn) else { return };
                let who = self.jobs.who(self.port, conn);
                if let Some(run) = self.jobs.runs.get_mut(&key) {
                    run.found(given_up::reported(&who, at));
                }
            }
            Some(KeyPattern::Unknown) | None if read_gloo(value).size.is_some() => {
                self.joins_own_group(conn, key, value);
            }
            Some(KeyPattern::WorkerCount | KeyPattern::CheckpointAddress(_) | KeyPattern::Published)
            | None => {}
            Some(pattern) => {
                if pattern == KeyPattern::AttemptLeftover(Leftover::BarrierDone) {
                    let waits = &mut self.jobs.store(self.port).waits;
                    waits.retain(|_, wait| !wait.view.missing.iter().any(|missing| **missing == *key));
                }
                self.enter_worker(conn);
                self.went_on(conn);
            }
        }
    }

    /// A process published its address for a group below a prefix of the program's own.
    fn joins_own_group(&mut self, conn: ConnId, key: &[u8], value: &[u8]) {
        let at = self.at;
        let Some((group, prefix, rank)) = own_member(key) else { return };
        let store = self.jobs.store(self.port);
        let Some(client) = store.clients.get(&conn) else { return };
        let (process, run) = (client.process(), client.run.clone());
        let is_it = |other: &Published| other.rank == rank && *other.group == *group;
        let mut others = store.clients.iter().filter(|_| !store.is_large());
        let first = others.find(|(other, it)| {
            let is_another = **other != conn && (process.is_none() || it.process() != process);
            is_another && it.published.as_deref().is_some_and(is_it)
        });
        let first = first.map(|(first, _)| *first);
        if let Some(client) = self.client(conn) {
            client.publishes(group, rank, value, at);
        }
        if let Some(first) = first {
            let claim = Claim::Member(format!("rank {rank} of the group below `{}`", ShownKey(prefix)));
            self.clash(run, claim, [first, conn], key, true);
        }
    }

    /// A worker writes what none writes before it has reached the others, if they have met.
    fn went_on(&mut self, conn: ConnId) {
        let Some(client) = self.client(conn) else { return };
        let (run, rank) = (client.run.clone(), client.rank);
        if let Some(run) = run.and_then(|key| self.jobs.runs.get_mut(&key)) {
            let at = run.world.of_at(rank, conn);
            let meeting = run.world.meetings.get_mut(at);
            if let Some(meeting) = meeting.filter(|meeting| meeting.met.is_some()) {
                meeting.went_on = true;
            }
        }
    }

    fn wrote_state(&mut self, run: &RunKey, conn: ConnId, key: &[u8], value: &[u8]) {
        let wrote = self.evidence(Seen::Wrote, conn, key);
        let plan = self.jobs.plan(run);
        if self.run_mut(run, RunKind::C10d).is_some() {
            self.jobs.grow(run, |run, room| run.state_written(value, conn, &wrote, &plan, room));
            self.see_signs_of(run);
        }
        let twin = self.jobs.runs.get(run).and_then(|run| run.twin_of(conn));
        if let Some((twin, node)) = twin {
            self.clash(Some(run.clone()), Claim::NodeId(node), [twin, conn], key, true);
        }
    }

    /// An agent wrote a key of its rendezvous other than the state.
    fn wrote_part(
        &mut self,
        key: &RunKey,
        conn: ConnId,
        (round, part): (Option<u32>, RendezvousPart),
        value: &[u8],
    ) {
        let (at, plan) = (self.at, self.jobs.plan(key));
        let told_by = self.client(conn).map(|client| (conn, client.peer, client.pid));
        self.jobs.grow(key, |run, room| match (part, told_by) {
            // The agents of a native round name it.
            _ if round.map_or(run.native.is_some(), |round| u64::from(round) != run.round.number) => {}
            (RendezvousPart::RoleInfo(rank), Some(told_by)) if round.is_none() => {
                run.static_role(rank, told_by, at, &plan, room);
            }
            (RendezvousPart::RoleInfo(rank), Some(told_by)) if run.native.is_some() => {
                run.native_agent_came(rank, told_by);
                run.part_written(part, conn, value, at);
            }
            _ => run.part_written(part, conn, value, at),
        });
    }

    fn wrote_address(&mut self, conn: ConnId, written: &[u8], address: &Address<'_>, value: &[u8]) {
        let at = self.at;
        let Some(key) = self.enter_worker(conn) else { return };
        if address.kind == AddressKind::RpcWorker
            && let Some(run) = self.jobs.runs.get_mut(&key)
        {
            run.world.meets_otherwise = true;
            run.touch();
        }
        if let Some(group) = address.sub_group {
            if let Some(client) = self.client(conn) {
                client.publishes(group, address.member, value, at);
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
                run.world.publish_nccl_id(conn, read_nccl_id(value), wrote);
            }
            AddressKind::Gloo if role == Role::Worker => {
                let (rank, attempt) = (address.member, address.attempt());
                let shares = self.is_beside(conn, rank);
                let GlooAddress { host, listens, size, .. } = read_gloo(value);
                let info = RankInfo {
                    conn,
                    peer,
                    pid,
                    host: host.clone(),
                    listens,
                    joined: at,
                    gone: None,
                    is_cut_off: false,
                    size,
                    made_before: address.made_before(),
                    standing: Standing::Published,
                    shares,
                };
                self.jobs.grow(&key, |run, room| run.publish(rank, attempt, info, room));
                let world = self.jobs.runs.get(&key).map(|run| &run.world);
                let first = world.and_then(|world| {
                    let (first, second) = world.claimed_twice(rank)?;
                    // What the first wrote may have been dropped since, so that the store sees no clash.
                    let gathers = world.of(Some(rank), first.conn).met.is_none() && world.last_met.is_none();
                    (second.conn == conn).then_some((first.conn, gathers))
                });
                if let Some((first, gathers)) = first {
                    self.clash(Some(key), Claim::Rank(rank), [first, conn], written, gathers);
                }
                if let Some(client) = self.client(conn) {
                    (client.rank, client.published) = (Some(rank), None);
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
            Some(KeyPattern::Published) if debug_server_of(key) == Some(0) => {
                self.jobs.store(self.port).debug_host = None;
            }
            _ => {}
        }
    }

    fn gave_up(&mut self, conn: ConnId, key: Box<[u8]>, waited: Duration) {
        const SHOWN: usize = 8;
        const MOST: usize = 256;
        // The initial barrier waits in slices of 10 s. Elastic's barriers read traces to tell who is missing.
        let is_trace = key.ends_with(b"/TRACE") || key.ends_with(b"/TRACING_GATE");
        let is_look = classify(&key).is_none() && (waited.as_secs() == 0 || self.client(conn).is_none());
        if is_trace || is_look || matches!(classify(&key), Some(KeyPattern::AttemptLeftover(_))) {
            return;
        }
        let run = self.client(conn).and_then(|client| client.run.clone());
        let is_for_one = matches!(classify(&key), Some(KeyPattern::Address(_)))
            || matches!(wanted(&key).writer, ExpectedWriter::Node(_));
        if let Some(run) = run.as_ref().and_then(|run| self.jobs.runs.get_mut(run)).filter(|_| is_for_one) {
            run.gave_up(conn, self.at);
        }
        let topic = (run, key);
        if self.jobs.store(self.port).given_up.len() >= MOST {
            return;
        }
        let before = self.jobs.store(self.port).given_up.remove(&topic);
        // Thousands may give up on one key: what is known of it is looked up for the first of them.
        let mut given_up = before.unwrap_or_else(|| {
            let graph = self.jobs.graph(self.port, self.at);
            let graph = graph.map(|graph| Graph { is_of_past: true, ..graph });
            let beside = graph.map(|graph| graph.beside(topic.0.as_ref(), conn, &topic.1));
            GivenUp { at: self.at, ..beside.unwrap_or_default() }
        });
        given_up.waited = given_up.waited.max(waited);
        if given_up.who.iter().any(|(known, _)| *known == conn) {
            given_up.again = true;
        } else if given_up.who.len() >= SHOWN {
            given_up.more = given_up.more.saturating_add(1);
        } else {
            // Its process may be known by another connection.
            let process = self.client(conn).and_then(|client| client.process());
            let graph = self.jobs.graph(self.port, self.at);
            let known = graph.and_then(|graph| graph.member_of(conn, process));
            let who = self.jobs.who(self.port, known.unwrap_or(conn));
            let gave_up = Evidence { who, ..self.evidence(Seen::GaveUp, conn, &topic.1) };
            if !given_up.who.iter().any(|(_, known)| known.who == gave_up.who) {
                given_up.who.push((conn, gave_up));
            }
        }
        let store = self.jobs.store(self.port);
        store.waits.remove(&conn);
        store.given_up.insert(topic, given_up);
    }

    /// A process was seen to do this with a key now.
    fn evidence(&mut self, seen: Seen, conn: ConnId, key: &[u8]) -> Evidence {
        let (peer, pid) = self.client(conn).map(|client| (client.peer, client.pid)).unzip();
        let (who, key) = (self.jobs.who(self.port, conn), Some(ShownKey(key).to_string()));
        Evidence { seen, who, peer, pid: pid.flatten(), key, at: self.at }
    }

    fn gone(&mut self, conn: ConnId, used_own_keys: bool) {
        let watch = self.jobs.store(self.port);
        let key =
            watch.waits.remove(&conn).and_then(|wait| Some(ShownKey(wait.view.missing.first()?).to_string()));
        let its = watch.publishers.values_mut().filter(|it| it.conn == conn);
        its.for_each(|it| it.gone = Some(self.at));
        // Where another had just written its key, it was about to go.
        let is_first = |by: &BTreeMap<ConnId, _>| by.keys().next() == Some(&conn);
        watch.claims.retain(|_, it| !is_first(&it.by) || self.at.since(it.since) > AT_ONCE);
        watch.answered.remove(&conn);
        watch.asked.retain(|wait| wait.view.conn != conn);
        let Some(client) = watch.clients.remove(&conn) else { return };
        watch.passed_by(conn, &client, used_own_keys, self.at);
        if let (Role::Agent, Some(key @ RunKey::Id(_))) = (client.role, &client.run)
            && let Some(run) = self.jobs.runs.get_mut(key)
        {
            run.native_agent_left(conn);
        }
        for run in self.jobs.runs.values_mut().filter(|run| run.met_at() == Some(self.port)) {
            run.agent_left(conn, client.pid, client.is_cut_off, self.at);
            if client.run.as_ref() == Some(&run.key) && client.role == Role::Worker {
                let closed = Evidence { key: key.clone(), ..client.evidence(Seen::Closed, self.at) };
                run.worker_left(conn, &client, closed);
            }
        }
        let (at, store) = (self.at, self.jobs.store(self.port));
        let is_rank = client.rank.is_some() && !client.is_cut_off && store.clients.len() < FEW;
        if let Some(process) = client.process().filter(|_| is_rank) {
            store.closed.retain(|_, (.., closed)| at.since(*closed) < AT_ONCE);
            store.closed.insert(process, (conn, client, at));
            self.comes_back(process);
        }
    }

    /// Several processes have this address and process id.
    fn share(&mut self, process: Process) {
        let port = self.port;
        self.jobs.store(port).share(process);
        let runs = self.jobs.runs.values_mut();
        for run in runs.filter(|run| [run.store(), run.met_at()].contains(&Some(port))) {
            run.world.share(process);
            run.touch();
        }
    }

    /// Whether other processes have the address and process id of this one, which publishes as `rank`: one is
    /// another rank, or it is this one and waits. Who makes its group again does not wait meanwhile.
    fn is_beside(&mut self, conn: ConnId, rank: u32) -> bool {
        let store = self.jobs.store(self.port);
        let process = store.clients.get(&conn).filter(|_| !store.is_large()).and_then(Client::process);
        let is_other = |(other, it): (&ConnId, &Client)| {
            let is_another = |of| of != rank || store.waits.contains_key(other);
            *other != conn && it.process() == process && it.rank.is_some_and(is_another)
        };
        if let Some(process) = process.filter(|_| store.clients.iter().any(is_other)) {
            self.share(process);
        }
        self.client(conn).is_some_and(|client| client.shares)
    }

    /// A rank has closed its group, and its process is there with another connection. Not where containers
    /// share its address and process id.
    fn comes_back(&mut self, process: (IpAddr, u32)) {
        let store = self.jobs.store(self.port);
        if !store.closed.contains_key(&process) {
            return;
        }
        let others = || store.clients.iter().filter(|(_, it)| it.process() == Some(process));
        let Some((&conn, _)) = others().min_by_key(|(conn, it)| (it.since, **conn)) else { return };
        let is_clear = !others().any(|(_, it)| it.is_member() || it.has_counted_itself);
        let is_it = |(.., closed): &(_, _, Timestamp)| is_clear && self.at.since(*closed) < AT_ONCE;
        let Some((before, rank, _)) = store.closed.remove(&process).filter(is_it) else { return };
        store.moved.retain(|_, now| store.clients.contains_key(now));
        store.moved.insert(before, conn);
        if let Some(run) = rank.run.as_ref().and_then(|key| self.jobs.runs.get_mut(key)) {
            run.world.returns(before, conn, process);
            run.touch();
        }
        if let Some(client) = self.client(conn) {
            let (published, since) = (client.published.take(), client.since);
            *client = Client { peer: client.peer, published, since, ..rank };
        }
    }

    fn run_restarted(&mut self, run_id: &RunId) {
        let key = self.key_of(run_id.as_bytes());
        if let Some(run) = self.jobs.runs.get_mut(&key).filter(|run| run.native.is_none()) {
            run.started_again(self.at);
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
        self.clash(Some(run), claim, [first, second], key, true);
    }

    /// Both have claimed this, and one misses what it wrote, if `disturbs`.
    fn clash(&mut self, run: Option<RunKey>, claim: Claim, conns: [ConnId; 2], key: &[u8], disturbs: bool) {
        const MOST: usize = 256;
        let wrote = conns.map(|conn| {
            let wrote = self.evidence(Seen::Wrote, conn, key);
            let who = self.jobs.claimant(self.port, conn, &claim, &wrote);
            (conn, Evidence { who, ..wrote })
        });
        let (since, claims) = (self.at, &mut self.jobs.store(self.port).claims);
        if claims.len() < MOST {
            let new = || Claimed { since, due: None, by: BTreeMap::new() };
            let claimed = claims.entry((run, claim)).or_insert_with(new);
            claimed.due = claimed.due.or(disturbs.then_some(since + SETTLE));
            claimed.by.extend(wrote);
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
