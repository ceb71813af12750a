//! The ranks of native runs: as the plugin's agents, each node starts one when it knows its round, and it meets the others in
//! the round's own store.

use super::super::client::Client;
use super::super::jobs::{address_in, steps};
use super::super::plan::{ClientPlan, MILLI, SECOND};
use super::nodes::{Doing, run_id};
use super::{Checked, Event, World};
use crate::core::rendezvous::RankInRound;
use crate::core::store::tests::model::Act;

/// The process of a rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Worker {
    pub(super) node: usize,
    pub(super) run: usize,
    pub(super) place: RankInRound,
    pub(super) client: usize,
    /// Its agent has ended it.
    is_ended: bool,
}

impl Worker {
    /// What it calls its host: no other process has this name.
    pub(super) fn host(&self) -> String {
        format!("worker{}", self.client)
    }
}

impl World {
    /// Whether this is the one that a node has started last, and not ended.
    fn worker_of(&self, node: usize) -> Option<Worker> {
        self.runs.workers.iter().rfind(|it| it.node == node && !it.is_ended).copied()
    }

    /// A node that is in a round with a store starts its rank.
    pub(super) fn worker_comes(&mut self, node: usize) {
        let it = &self.runs.nodes[node];
        let Doing::Works { place, size, port: Some(port) } = it.doing else { return };
        if !self.plan.runs.has_workers || self.worker_of(node).is_some_and(|worker| worker.place == place) {
            return;
        }
        let client = self.clients.len();
        let worker = Worker { node, run: it.run, place, client, is_ended: false };
        let relay = Some(node % (self.plan.relays + 1)).filter(|&relay| relay < self.plan.relays);
        let trains = self.runs.random.below(2 * SECOND);
        let steps = steps(size as usize, place.rank as usize, &worker.host(), 1000 + client as u32, trains);
        trace!(self, "rank {} of run {} round {} comes as client {client}", place.rank, it.run, place.round);
        self.runs.workers.push(worker);
        let mut process = Client::new(ClientPlan { relay, steps });
        process.store = Some(port);
        self.clients.push(process);
        self.reference.add_client();
        // Its store is no part of the reference.
        self.excused.insert(client);
        let after = self.runs.random.between(10 * MILLI, 400 * MILLI);
        self.at(after, Event::Act(client));
    }

    /// A node ends its rank.
    pub(super) fn worker_ends(&mut self, node: usize) -> Checked {
        let of_node = |it: &&mut Worker| it.node == node && !it.is_ended;
        let Some(worker) = self.runs.workers.iter_mut().rfind(of_node) else { return Ok(()) };
        worker.is_ended = true;
        let client = worker.client;
        self.process_ends(client)
    }

    /// A client that is to send its next request may be such a rank. Returns whether it does nothing now.
    pub(super) fn is_worker_held(&mut self, client: usize) -> Result<bool, String> {
        let Some(worker) = self.runs.workers.iter().find(|it| it.client == client).copied() else {
            return Ok(false);
        };
        if self.clients[client].is_gone() {
            return Ok(false);
        }
        let knows = self.clients[client].store;
        let is_told =
            matches!(self.runs.nodes[worker.node].doing, Doing::Works { port, .. } if port == knows);
        if self.clients[client].issued.is_empty() && !is_told {
            // The server that opened its store is gone with it. Another run may have that port now.
            self.process_ends(client)?;
            return Ok(true);
        }
        self.remember();
        let (mut is_connected, mut is_broken) = (true, false);
        let it = &self.clients[client];
        for (act, seen) in it.issued.iter().zip(&it.seen) {
            let (Act::Get(key), Some(seen)) = (act, seen) else { continue };
            let Some((rank, host)) = address_in(key, seen) else { continue };
            let mate = self.runs.workers.iter().find(|mate| mate.host() == host);
            let is_mate = |mate: &&Worker| {
                (mate.run, mate.place.round, mate.place.rank) == (worker.run, worker.place.round, rank as u32)
            };
            let Some(mate) = mate.filter(is_mate).map(|mate| &self.clients[mate.client]) else {
                return Err(format!(
                    "{worker:?} has read {host} as the address of rank {rank}: another round's"
                ));
            };
            is_broken |= mate.is_gone() && !mate.has_finished;
            is_connected &= mate.has_done_all_but_one();
        }
        if is_broken {
            trace!(self, "client {client} cannot connect to another rank");
            self.process_ends(client)?;
            return Ok(true);
        }
        let waits = !is_connected && it.has_done_all_but_one();
        if waits {
            self.at(50 * MILLI, Event::Act(client));
        }
        Ok(waits)
    }

    /// Whether the rank of a node has not come to its end by itself.
    pub(super) fn has_unfinished_worker(&self, node: usize) -> bool {
        self.worker_of(node).is_some_and(|worker| !self.clients[worker.client].has_finished)
    }

    /// Whether the rank of a node has failed.
    pub(super) fn has_lost_worker(&self, node: usize) -> bool {
        let is_gone = |worker: Worker| self.clients[worker.client].is_gone();
        self.has_unfinished_worker(node) && self.worker_of(node).is_some_and(is_gone)
    }

    /// All ranks come to their end.
    pub(super) fn end_workers(&mut self) -> Checked {
        let until = self.now + Self::RUNS_SETTLE;
        let alive =
            |world: &Self| world.runs.workers.iter().find(|it| !world.clients[it.client].is_gone()).copied();
        while let Some(worker) = alive(self) {
            if self.now >= until {
                return Err(format!("a rank does not meet the others: {worker:?}"));
            }
            self.run_until(self.now + SECOND / 4, |_| false)?;
        }
        Ok(())
    }

    /// Whether the server may close the connection of such a rank: its round is over, or it is lost with its link.
    pub(super) fn may_lose_worker(&self, client: usize) -> bool {
        let Some(worker) = self.runs.workers.iter().find(|it| it.client == client) else { return false };
        let run = &run_id(worker.run);
        let round = self.server.as_ref().and_then(|server| server.rounds.snapshot(run)).map(|it| it.0.round);
        let goes_on = match self.runs.nodes[worker.node].doing {
            Doing::Works { place, .. } => place == worker.place,
            _ => false,
        };
        !goes_on || round != Some(worker.place.round)
    }
}
