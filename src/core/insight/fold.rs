//! Folding one observation into what is known.

use bytes::Bytes;

use super::graph::Graph;
use super::reason::{Reason, Secs};
use super::run::{Run, RunKey};
use super::world::{RankInfo, read_gloo};
use super::{Clash, Client, GivenUp, Insight, StoreOwner};
use crate::api::RunKind;
use crate::core::ids::{ConnId, RunId, ShownKey, Timestamp};
use crate::core::protocol::keys::{
    Address, AddressKind, KeyPattern, Leftover, RendezvousPart, Role, classify,
};
use crate::core::protocol::rendezvous_state;
use crate::core::store::{DropCause, Event, Observed};

impl Insight {
    /// Takes in what the store on port `store` observed at `at`.
    pub fn observe(&mut self, store: u16, at: Timestamp, observed: Observed) {
        match observed {
            Observed::Client { conn, peer, pid, key } => {
                let watch = self.store(store);
                if watch.clients.len() >= Self::MOST_CLIENTS && !watch.clients.contains_key(&conn) {
                    self.totals.lost = self.totals.lost.saturating_add(1);
                    return;
                }
                let client = watch.clients.entry(conn).or_insert(Client {
                    peer,
                    pid,
                    role: Role::Unknown,
                    run: None,
                    rank: None,
                    since: at,
                });
                client.pid = pid;
                self.enter(store, conn, &key, at);
            }
            Observed::Wrote { conn, key, value } => self.wrote(store, conn, &key, &value, at),
            Observed::Dropped { key } => self.dropped(store, &key, at),
            Observed::GaveUp { conn, key, waited } => self.gave_up(store, conn, key, waited, at),
            Observed::Gone { conn, .. } => self.gone(store, conn, at),
            Observed::Event(event) => self.event(store, event, at),
        }
    }

    /// A connection uses one of PyTorch's keys for the first time.
    fn enter(&mut self, store: u16, conn: ConnId, key: &[u8], at: Timestamp) {
        let Some(pattern) = classify(key) else { return };
        match (pattern.user(), pattern) {
            (Role::Agent, KeyPattern::Rendezvous { run_id, part, round }) => {
                let is_static = !matches!(part, RendezvousPart::State) && round.is_none();
                let kind = if is_static { RunKind::Static } else { RunKind::C10d };
                self.enter_agent(store, conn, run_id, kind, at);
            }
            (Role::Agent, KeyPattern::Address(Address { run_id: Some(run_id), .. })) => {
                self.enter_agent(store, conn, run_id, RunKind::Static, at);
            }
            (Role::Worker, _) => {
                self.enter_worker(store, conn, at);
            }
            _ => {}
        }
    }

    fn enter_agent(&mut self, store: u16, conn: ConnId, run_id: &[u8], kind: RunKind, at: Timestamp) {
        let key = self.key_of(store, run_id);
        if key.is_native() {
            // The rendezvous knows its nodes; what their agents write says nothing new about them.
            if let Some(client) = self.store(store).clients.get_mut(&conn) {
                client.role = Role::Agent;
                client.run = Some(key);
            }
            return;
        }
        let Some(run) = self.run_mut(&key, kind, at) else { return };
        let closed = run.closed.filter(|_| run.has_state).map(|closed| (closed, run.exit_done.is_some()));
        if run.agents.insert(conn) {
            run.touch();
        }
        run.all_gone = None;
        if run.has_state && run.closed.is_none() {
            run.over_at = None;
        }
        if kind == RunKind::C10d && run.kind == RunKind::Static {
            run.kind = kind;
        }
        let Some(client) = self.store(store).clients.get_mut(&conn) else { return };
        client.role = Role::Agent;
        client.run = Some(key.clone());
        let label = client.label();
        let Some((closed, finished)) = closed else { return };
        let (newcomer, closed_for) = (label.clone(), Secs(at.since(closed)));
        if let Some(run) = self.runs.get_mut(&key) {
            run.fact(Reason::RunIsClosed { newcomer, closed_for, finished }, label, at);
        }
    }

    /// The run whose worker a connection is.
    fn enter_worker(&mut self, store: u16, conn: ConnId, at: Timestamp) -> Option<RunKey> {
        let client = self.store(store).clients.get(&conn)?;
        match (client.role, &client.run) {
            (Role::Agent, run) | (Role::Worker, run @ Some(_)) => return run.clone(),
            _ => {}
        }
        self.settle_worker(store, conn, at)
    }

    /// A connection that is no agent belongs to the only run whose agents use this store, or to the run without an id.
    pub(super) fn settle_worker(&mut self, store: u16, conn: ConnId, at: Timestamp) -> Option<RunKey> {
        let key = self.native_of(store).unwrap_or_else(|| {
            let is_live =
                |run: &&Run| run.key.store == store && run.key.id.is_some() && !run.agents.is_empty();
            let mut live = self.runs.values().filter(is_live);
            match (live.next(), live.next()) {
                (Some(only), None) => only.key.clone(),
                _ => RunKey { store, id: None },
            }
        });
        let run =
            if key.is_native() { self.runs.get_mut(&key) } else { self.run_mut(&key, RunKind::Env, at) };
        let run = run?;
        if !run.has_agents() {
            // That nobody is there any more may not have been looked at yet.
            let state = run.state_now(at);
            if state.is_over() && state != run.state {
                self.change_state(&key, state, at);
            }
        }
        let run = self.runs.get_mut(&key)?;
        if let Some(native) = &mut run.native
            && *native.store.get_or_insert(store) != store
        {
            // The last round's.
            return None;
        }
        if run.over_at.is_some() && !run.has_agents() {
            let round = run.round.saturating_add(1);
            run.restart();
            run.round = round;
            self.log.forget(&key);
        }
        let run = self.runs.get_mut(&key)?;
        run.world.connected.insert(conn);
        run.world.ended = None;
        run.workers_placed = true;
        if !run.has_agents() {
            run.started.get_or_insert(at);
        }
        run.touch();
        let client = self.store(store).clients.get_mut(&conn)?;
        client.role = Role::Worker;
        client.run = Some(key.clone());
        Some(key)
    }

    /// The native run whose workers use this store.
    fn native_of(&self, store: u16) -> Option<RunKey> {
        let key = match self.stores.get(&store)?.owner.as_ref()? {
            StoreOwner::Round(run) => RunKey::native(run),
            StoreOwner::Run(name) => RunKey::native(&RunId::new(name.as_bytes())),
        };
        self.runs.contains_key(&key).then_some(key)
    }

    fn wrote(&mut self, store: u16, conn: ConnId, key: &[u8], value: &Bytes, at: Timestamp) {
        match classify(key) {
            Some(KeyPattern::Rendezvous { run_id, round, part }) => {
                let key = self.key_of(store, run_id);
                if part == RendezvousPart::State && !key.is_native() {
                    return self.wrote_state(&key, conn, value, at);
                }
                let Some(run) = self.runs.get_mut(&key) else { return };
                if round.is_some_and(|round| u64::from(round) != run.round) {
                    return;
                }
                wrote_part(run, part, conn, value, at);
            }
            Some(KeyPattern::Address(address)) => self.wrote_address(store, conn, &address, value, at),
            Some(KeyPattern::AttemptLeftover(Leftover::FailureReport)) => {
                let Some(key) = self.enter_worker(store, conn, at) else { return };
                let who = self.who(store, conn);
                if let Some(run) = self.runs.get_mut(&key) {
                    run.fact(Reason::WatchdogFired { who: who.clone() }, who, at);
                }
            }
            Some(KeyPattern::WorkerCount) | None => {}
            Some(_) => {
                self.enter_worker(store, conn, at);
            }
        }
    }

    fn wrote_state(&mut self, key: &RunKey, conn: ConnId, value: &[u8], at: Timestamp) {
        let plan = self.plan(key);
        let Some(run) = self.run_mut(key, RunKind::C10d, at) else { return };
        run.agents.insert(conn);
        if !run.has_state && run.over_at.is_some() {
            run.restart();
            self.log.forget(key);
        }
        let Some(run) = self.runs.get_mut(key) else { return };
        let read = rendezvous_state::read(value);
        let is_known = std::mem::replace(&mut run.unreadable, read.is_err());
        match read {
            Ok(None) => run.touch(),
            Ok(Some(state)) => run.fold_state(&state, conn, at, &plan),
            Err(_) if is_known => {}
            Err(unreadable) => {
                run.fact(Reason::UnreadableState { detail: unreadable.to_string() }, "", at);
            }
        }
        let Some(run) = self.runs.get_mut(key) else { return };
        if run.node_of(conn).is_some() {
            let client = self.stores.get(&key.store).and_then(|store| store.clients.get(&conn));
            if let (Some(client), Some(node)) =
                (client, run.nodes.iter_mut().find(|node| node.conn == Some(conn)))
            {
                node.peer = Some(client.peer);
            }
        }
    }

    fn wrote_address(
        &mut self,
        store: u16,
        conn: ConnId,
        address: &Address<'_>,
        value: &[u8],
        at: Timestamp,
    ) {
        if let Some(run_id) = address.run_id {
            let key = self.key_of(store, run_id);
            let plan = self.plan(&key);
            let Some(client) = self.store(store).clients.get(&conn) else { return };
            let (peer, pid) = (client.peer, client.pid);
            let Some(run) = self.runs.get_mut(&key) else { return };
            let node = address.node_rank();
            match address.kind {
                AddressKind::RoleInfo if run.native.is_some() => {}
                AddressKind::RoleInfo => run.static_role(node, conn, peer, pid, at, &plan),
                _ => wrote_part(run, RendezvousPart::AssignedRanks(node), conn, value, at),
            }
            return;
        }
        let Some(key) = self.enter_worker(store, conn, at) else { return };
        if address.sub_group.is_some() {
            return;
        }
        let Some(client) = self.store(store).clients.get(&conn) else { return };
        let (peer, pid, role) = (client.peer, client.pid, client.role);
        let Some(run) = self.runs.get_mut(&key) else { return };
        run.touch();
        if address.kind == AddressKind::NcclId {
            run.world.nccl = true;
            return;
        }
        if address.kind != AddressKind::Gloo || role != Role::Worker {
            return;
        }
        let read = read_gloo(value);
        let info = RankInfo { conn, peer, pid, host: read.host, joined: at, gone: None, size: read.size };
        run.world.publish(address.member, address.attempt(), info);
        run.check_ranks();
        if let Some(client) = self.store(store).clients.get_mut(&conn) {
            client.rank = Some(address.member);
        }
    }

    fn dropped(&mut self, store: u16, key: &[u8], at: Timestamp) {
        match classify(key) {
            Some(KeyPattern::Rendezvous { run_id, part: RendezvousPart::State, .. }) => {
                let key = self.key_of(store, run_id);
                if let Some(run) = self.runs.get_mut(&key).filter(|run| run.native.is_none()) {
                    run.has_state = false;
                    run.over_at.get_or_insert(at);
                }
            }
            Some(KeyPattern::Address(address)) if address.run_id.is_none() && address.sub_group.is_none() => {
                for run in self.runs.values_mut().filter(|run| run.store() == Some(store)) {
                    // Of a live writer that was paired with one that was replaced: it has to publish again.
                    if address.attempt() == run.world.attempt {
                        run.world.unpublish(address.member);
                        run.touch();
                    }
                }
            }
            _ => {}
        }
    }

    fn gave_up(
        &mut self,
        store: u16,
        conn: ConnId,
        key: Box<[u8]>,
        waited: std::time::Duration,
        at: Timestamp,
    ) {
        const SHOWN: usize = 8;
        const MOST: usize = 256;
        // The initial barrier waits in slices of 10 s, each ended by a cancel.
        if matches!(classify(&key), Some(KeyPattern::AttemptLeftover(_))) {
            return;
        }
        let who = self.who(store, conn);
        let run = self.store(store).clients.get(&conn).and_then(|client| client.run.clone());
        let graph = self.stores.get(&store).map(|store| Graph { store, runs: &self.runs, now: at });
        let writer = graph.and_then(|graph| graph.writer_of(run.as_ref(), &key));
        let given_up = &mut self.store(store).given_up;
        if given_up.len() >= MOST {
            return;
        }
        let new = GivenUp { at, waited, who: Vec::new(), more: 0, writer };
        let entry = given_up.entry((run, key)).or_insert(new);
        entry.waited = entry.waited.max(waited);
        if entry.who.len() < SHOWN { entry.who.push(who) } else { entry.more = entry.more.saturating_add(1) }
    }

    fn gone(&mut self, store: u16, conn: ConnId, at: Timestamp) {
        let watch = self.store(store);
        watch.waits.remove(&conn);
        let Some(client) = watch.clients.remove(&conn) else { return };
        for run in self.runs.values_mut().filter(|run| run.store() == Some(store)) {
            run.agent_left(conn, client.pid, at);
            if client.run.as_ref() == Some(&run.key) && client.role == Role::Worker {
                run.world.leave(conn, client.rank, at);
                run.touch();
            }
        }
    }

    fn event(&mut self, store: u16, event: Event, at: Timestamp) {
        match event {
            Event::TwoWriters { key, first, second } => {
                const MOST: usize = 256;
                let Some(KeyPattern::Address(address)) = classify(&key) else { return };
                let run = match address.run_id {
                    Some(run_id) => Some(self.key_of(store, run_id)),
                    None => self.store(store).clients.get(&first).and_then(|client| client.run.clone()),
                };
                let (first, second) = (self.who(store, first), self.who(store, second));
                let Some(run) = run else { return };
                let (node, rank) = match address.kind {
                    AddressKind::RoleInfo | AddressKind::AssignedRanks => (Some(address.node_rank()), None),
                    AddressKind::Gloo if address.sub_group.is_none() => (None, Some(address.member)),
                    AddressKind::NcclId if address.sub_group.is_none() => (None, Some(0)),
                    _ => return,
                };
                let clashes = &mut self.store(store).clashes;
                if clashes.len() < MOST {
                    clashes.push(Clash { at, run, node, rank, first, second });
                }
            }
            Event::StaleRead { key, reader, writer_gone_for } => {
                let run = self.store(store).clients.get(&reader).and_then(|client| client.run.clone());
                let reader = self.who(store, reader);
                let key = ShownKey(&key).to_string();
                if let Some(run) = run.and_then(|run| self.runs.get_mut(&run)) {
                    let gone_for = Secs(writer_gone_for);
                    run.fact(Reason::StaleAddress { reader, key: key.clone(), gone_for }, key, at);
                }
            }
            Event::RunRestarted { run_id } => {
                let key = self.key_of(store, run_id.as_bytes());
                if let Some(run) = self.runs.get_mut(&key).filter(|run| run.native.is_none()) {
                    let has_begun = run.over_at.is_none() && run.exit_done.is_none() && run.closed.is_none();
                    if !has_begun {
                        run.restart();
                        run.has_state = false;
                    }
                    run.fact(Reason::RunRestarted {}, "", at);
                }
            }
            Event::StoreReset { cause: DropCause::Operator | DropCause::StoreIdle, .. } => {
                for run in self.runs.values_mut().filter(|run| run.key.store == store) {
                    run.has_state = false;
                    run.over_at.get_or_insert(at);
                    run.touch();
                }
            }
            Event::StoreReset { .. } | Event::KeysDropped { .. } | Event::KeysStay { .. } => {}
        }
    }

    fn who(&mut self, store: u16, conn: ConnId) -> String {
        let now = Timestamp::default();
        match self.stores.get(&store) {
            Some(watch) => Graph { store: watch, runs: &self.runs, now }.who(conn),
            None => "a process".into(),
        }
    }
}

/// A key of a run's rendezvous other than its state.
fn wrote_part(run: &mut Run, part: RendezvousPart, conn: ConnId, value: &[u8], at: Timestamp) {
    let text = || ShownKey(value).to_string();
    match part {
        RendezvousPart::MasterAddr => run.master.0 = Some(text()),
        RendezvousPart::MasterPort => {
            run.master.1 = Some(text());
            run.workers_placed = false;
        }
        RendezvousPart::RoleInfo(node) => {
            if run.roles.len() < super::run::MOST_NODES {
                run.roles.insert(node);
            }
            // A node of the round that has told its role is the one with this rank.
            if let Some(known) =
                run.nodes.iter_mut().find(|known| known.rank == Some(node) && known.conn.is_none())
            {
                known.conn = Some(conn);
            }
        }
        RendezvousPart::AssignedRanks(node) => {
            // `[base_rank, world_size, base_role_rank, role_world_size]`
            if let Ok([base, world_size, ..]) = serde_json::from_slice::<[u32; 4]>(value) {
                run.assign(node, base, world_size, at);
            }
        }
        RendezvousPart::ExitBarrier { .. } => run.arrive_at_exit(conn, at),
        RendezvousPart::ExitBarrierDone { .. } => run.finish(at),
        RendezvousPart::State | RendezvousPart::Other => {}
    }
    run.touch();
}
