//! The ranks of native runs and of torchrun's agents. Each node starts a rank when it knows its round. The
//! rank meets the others in the round's own store, or in the store of the agents.

use super::super::agent::{self, Place, Work};
use super::super::client::Client;
use super::super::jobs::{address_in, steps};
use super::super::plan::{ClientPlan, Keeping, MILLI, Micros, SECOND};
use super::nodes::{Doing, run_id};
use super::{Checked, Event, World};
use rallypoint_rendezvous::{NodeSnapshot, NodeState, RankInRound};
use rallypoint_store::testing::model::{Act, Key};

/// How long ranks wait for each other. torch gives up after half an hour.
const PATIENCE: Micros = 100 * SECOND;

/// The one that has started a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Starter {
    /// A node of a native run.
    Node(usize),
    /// The agent of torchrun with this number.
    Agent(usize),
}

/// The process of a rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Worker {
    pub(super) of: Starter,
    /// The id of its run.
    pub(super) run: Key,
    pub(super) place: RankInRound,
    /// How many ranks are to meet.
    pub(super) size: usize,
    pub(super) client: usize,
    /// How long it waits for the others.
    pub(super) patience: Micros,
    /// Whether its agent has ended it.
    is_ended: bool,
}

impl Worker {
    /// Its host name. No other process has this name.
    pub(super) fn host(&self) -> String {
        format!("worker{}", self.client)
    }
}

impl World {
    /// The rank that this starter has started last, and has not ended.
    pub(super) fn worker_of(&self, of: Starter) -> Option<Worker> {
        self.workers.iter().rfind(|it| it.of == of && !it.is_ended).copied()
    }

    /// A node in a round with a store starts its rank.
    pub(super) fn worker_comes(&mut self, node: usize) {
        let it = &self.runs.nodes[node];
        let Doing::Works { place, size, port: Some(port) } = it.doing else { return };
        if !self.plan.runs.has_workers {
            return;
        }
        let relay = Some(node % (self.plan.relays + 1)).filter(|&relay| relay < self.plan.relays);
        let (run, size) = (agent::key(&format!("run-{}", it.run)), size as usize);
        let worker = Worker {
            of: Starter::Node(node),
            run,
            place,
            size,
            client: self.clients.len(),
            patience: self.now + PATIENCE,
            is_ended: false,
        };
        self.start_worker(worker, 2 * SECOND, relay, Some(port));
    }

    /// An agent in a round starts its rank.
    pub(super) fn worker_of_agent_comes(&mut self, n: usize, place: &Place) {
        let it = &self.elastic.processes[n];
        let (relay, trains) = (self.clients[it.client].plan.relay, self.plan.elastic[it.job].trains);
        let worker = Worker {
            of: Starter::Agent(n),
            run: agent::key(&it.agent.terms.run),
            place: RankInRound { round: place.round, rank: place.rank as u32 },
            size: place.size,
            client: self.clients.len(),
            patience: self.now + PATIENCE,
            is_ended: false,
        };
        self.start_worker(worker, trains, relay, None);
    }

    /// Starts a rank, unless it was already started. It trains for at most this long.
    fn start_worker(&mut self, worker: Worker, trains: Micros, relay: Option<usize>, store: Option<u16>) {
        let Worker { of, run, place, size, client, .. } = worker;
        if self.worker_of(of).is_some_and(|worker| worker.place == place) {
            return;
        }
        let trains = self.runs.random.below(trains + 1);
        let steps = steps(size, place.rank as usize, &worker.host(), 1000 + client as u32, trains);
        trace!(self, "rank {} of {run} round {} comes as client {client}", place.rank, place.round);
        self.workers.push(worker);
        let mut process = Client::new(ClientPlan { relay, steps });
        process.store = store;
        self.clients.push(process);
        self.reference.add_client();
        if store.is_some() {
            // Its store is not in the reference.
            self.excused.insert(client);
        }
        let after = self.runs.random.between(10 * MILLI, 400 * MILLI);
        self.at(after, Event::Act(client));
    }

    /// The starter of a rank ends it.
    pub(super) fn worker_ends(&mut self, of: Starter) -> Checked {
        let of_it = |it: &&mut Worker| it.of == of && !it.is_ended;
        let Some(worker) = self.workers.iter_mut().rfind(of_it) else { return Ok(()) };
        worker.is_ended = true;
        let client = worker.client;
        self.process_ends(client)
    }

    /// If this client is such a rank that is to send its next request, decides whether it may. Returns
    /// whether it does nothing now.
    pub(super) fn is_worker_held(&mut self, client: usize) -> Result<bool, String> {
        let Some(worker) = self.workers.iter().find(|it| it.client == client).copied() else {
            return Ok(false);
        };
        if self.clients[client].is_gone() {
            return Ok(false);
        }
        let knows = self.clients[client].store;
        let is_told = match worker.of {
            Starter::Node(node) => {
                matches!(self.runs.nodes[node].doing, Doing::Works { port, .. } if port == knows)
            }
            Starter::Agent(_) => true,
        };
        if self.clients[client].issued.is_empty() && !is_told {
            // The store ended with the server that opened it. By now another run may have its port.
            self.process_ends(client)?;
            return Ok(true);
        }
        self.remember();
        let (mut is_connected, mut is_broken) = (true, false);
        let it = &self.clients[client];
        for (act, seen) in it.issued.iter().zip(&it.seen) {
            let (Act::Get(key), Some(seen)) = (act, seen) else { continue };
            let Some((rank, host)) = address_in(key, seen) else { continue };
            let mate = self.workers.iter().find(|mate| mate.host() == host);
            let is_mate = |mate: &&Worker| {
                (mate.run, mate.place.round, mate.place.rank) == (worker.run, worker.place.round, rank as u32)
            };
            let Some(mate) = mate.filter(is_mate).map(|mate| &self.clients[mate.client]) else {
                let is_of_agents = matches!(worker.of, Starter::Agent(_));
                let is_of_another_run = mate.is_some_and(|mate| mate.run != worker.run);
                let has_forgotten = self.plan.keeping == Keeping::Nothing && self.server_life > 1;
                if is_of_agents || (is_of_another_run && has_forgotten) {
                    // The agents' store is shared by all rounds: a rank that reads an address too early finds
                    // nobody there. And a server that forgot its stores assigns their ports again, perhaps
                    // before all clients know it.
                    is_broken = true;
                    continue;
                }
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

    /// What has become of the rank of this starter, if it has one.
    pub(super) fn work_of_worker(&self, of: Starter) -> Option<Work> {
        let client = &self.clients[self.worker_of(of)?.client];
        Some(match (client.has_finished, client.is_gone()) {
            (true, _) => Work::Done,
            (false, true) => Work::Failed,
            (false, false) => Work::Goes,
        })
    }

    /// Whether all ranks that agents have started in a round of this attempt have ended.
    pub(super) fn have_workers_finished(&self, run: &str, attempt: usize) -> bool {
        let is_of_attempt = |it: &&Worker| match it.of {
            Starter::Agent(n) => self.elastic.processes[n].attempt == attempt,
            Starter::Node(_) => false,
        };
        let of_run = || self.workers.iter().filter(|it| it.run == run).filter(is_of_attempt);
        let finished = |round: u64| {
            let has_finished = |it: &&Worker| it.place.round == round && self.clients[it.client].has_finished;
            of_run().filter(has_finished).count()
        };
        of_run().any(|it| finished(it.place.round) == it.size)
    }

    /// Ends the ranks of agents that are gone.
    pub(super) fn end_orphans(&mut self, job: usize) -> Checked {
        let is_orphan = |it: &&Worker| match it.of {
            Starter::Agent(n) => {
                let agent = &self.elastic.processes[n];
                agent.job == job && self.clients[agent.client].is_gone()
            }
            Starter::Node(_) => false,
        };
        let orphans: Vec<Starter> = self.workers.iter().filter(is_orphan).map(|it| it.of).collect();
        orphans.into_iter().try_for_each(|of| self.worker_ends(of))
    }

    /// Runs until all ranks have ended.
    pub(super) fn end_workers(&mut self) -> Checked {
        let until = self.now + Self::RUNS_SETTLE;
        let alive =
            |world: &Self| world.workers.iter().find(|it| !world.clients[it.client].is_gone()).copied();
        while let Some(worker) = alive(self) {
            if self.now >= until {
                return Err(format!("a rank does not meet the others: {worker:?}"));
            }
            self.run_until(self.now + SECOND / 4, |_| false)?;
        }
        Ok(())
    }

    /// Whether the server may close the connection of such a rank: its round is over, or its node was lost.
    pub(super) fn may_lose_worker(&self, client: usize) -> bool {
        let worker = self.workers.iter().find(|it| it.client == client);
        let Some((worker, Starter::Node(node))) = worker.map(|it| (it, it.of)) else { return false };
        let it = &self.runs.nodes[node];
        let goes_on = matches!(it.doing, Doing::Works { place, .. } if place == worker.place);
        let snapshot = self.server.as_ref().and_then(|server| server.rounds.snapshot(&run_id(it.run)));
        let is_in_round = snapshot.is_some_and(|(run, _)| {
            let in_round = |it: &NodeSnapshot| matches!(it.state, NodeState::InRound { .. });
            let label = self.runs.nodes[node].label();
            run.round == worker.place.round && run.nodes.iter().any(|it| it.node == label && in_round(it))
        });
        !goes_on || !is_in_round
    }
}
