//! The job of plain PyTorch processes: which processes are there, and the launcher that starts all again when
//! one has ended too early.

use super::super::client::{Client, State};
use super::super::jobs::{ADDRESSES, JobFault, JobPlan};
use super::super::plan::{ClientPlan, MILLI, SECOND};
use super::{Checked, Event, World};
use rallypoint_store::testing::Said;
use rallypoint_store::testing::model::Act;

/// A process with a rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Process {
    pub(super) rank: usize,
    pub(super) attempt: u32,
    pub(super) client: usize,
}

#[derive(Default)]
pub(super) struct Job {
    /// All processes so far.
    pub(super) processes: Vec<Process>,
    attempt: u32,
    /// A process has ended too early, and nobody starts the others again.
    pub(super) is_alone: bool,
    is_done: bool,
}

impl Process {
    pub(super) fn host(&self) -> String {
        format!("host{}-{}", self.rank, self.attempt)
    }
}

/// Whether the value that was read is the address of this process.
fn is_address_of(process: &Process, seen: Option<&[Said]>) -> bool {
    let host = process.host();
    let is_it = |said: &Said| {
        let Said::Bytes(bytes) = said else { return false };
        bytes.get(8..8 + host.len()) == Some(host.as_bytes())
    };
    seen.is_some_and(|seen| seen.iter().any(is_it))
}

/// Whether a process may train.
enum Mesh {
    Connected,
    NotYet,
    /// A process whose address it has read is gone, or never belonged to its attempt.
    Broken,
}

impl World {
    pub(super) fn begin_job(&mut self) {
        let Some(plan) = self.plan.job.clone() else { return };
        for (rank, (at, _)) in plan.ranks.iter().enumerate() {
            self.at(*at, Event::RankComes(rank, 0));
        }
        for (n, (at, _)) in plan.faults.iter().enumerate() {
            self.at(*at, Event::JobFault(n));
        }
        self.at(SECOND, Event::Launch);
    }

    pub(super) fn rank_comes(&mut self, rank: usize, attempt: u32) -> Checked {
        if attempt != self.job.attempt {
            return Ok(());
        }
        // Two processes with one rank would be a job that cannot begin: a launcher starts the second one
        // after the first has ended.
        let before: Vec<usize> =
            self.job.processes.iter().filter(|it| it.rank == rank).map(|it| it.client).collect();
        before.into_iter().try_for_each(|client| self.process_ends(client))?;
        let Some(plan) = &self.plan.job else { return Ok(()) };
        let client = self.clients.len();
        let process = Process { rank, attempt, client };
        let steps = plan.steps(rank, &process.host(), 1000 + client as u32);
        let relay = plan.ranks[rank].1;
        trace!(self, "rank {rank} comes as client {client}, attempt {attempt}");
        self.job.processes.push(process);
        self.clients.push(Client::new(ClientPlan { relay, steps }));
        self.reference.add_client();
        self.at(0, Event::Act(client));
        Ok(())
    }

    pub(super) fn job_fault(&mut self, n: usize) -> Checked {
        let Some(plan) = &self.plan.job else { return Ok(()) };
        let (_, fault) = plan.faults[n];
        let victim = |world: &Self, rank: usize| {
            world.job.processes.iter().rfind(|it| it.rank == rank).map(|it| it.client)
        };
        self.befalls(fault, victim)
    }

    /// A fault of a job. `victim` finds the client with a rank.
    pub(super) fn befalls(
        &mut self,
        fault: JobFault,
        victim: impl Fn(&Self, usize) -> Option<usize>,
    ) -> Checked {
        trace!(self, "FAULT {fault:?}");
        match fault {
            JobFault::Die { rank } => match victim(self, rank) {
                Some(client) => self.process_ends(client),
                None => Ok(()),
            },
            JobFault::Server { away } => {
                if self.server.is_some() {
                    self.crash(false)?;
                    self.at(away, Event::Start);
                }
                Ok(())
            }
            JobFault::Partition { relay, lasts } => {
                self.tally.breaks += 1;
                self.relays[relay].partitioned_until = self.now + lasts;
                Ok(())
            }
        }
    }

    pub(super) fn process_ends(&mut self, client: usize) -> Checked {
        if self.clients[client].is_gone() {
            return Ok(());
        }
        trace!(self, "client {client} is killed");
        self.client_closes(client)
    }

    /// The processes of the present attempt.
    fn current(&self) -> impl Iterator<Item = &Process> {
        self.job.processes.iter().filter(|it| it.attempt == self.job.attempt)
    }

    /// If this client is a rank that is to send its next request, decides whether it may. It connects to the
    /// others as it reads their addresses, and trains when all are connected. Returns whether it does nothing
    /// now.
    pub(super) fn is_held(&mut self, client: usize) -> Result<bool, String> {
        let Some(plan) = &self.plan.job else { return Ok(false) };
        let is_it = |it: &&Process| it.client == client;
        let Some(process) = self.job.processes.iter().find(is_it).copied() else { return Ok(false) };
        if self.clients[client].is_gone() {
            return Ok(false);
        }
        let (mesh, is_last) =
            (self.mesh(plan, process), self.clients[client].next_step() == plan.last_step());
        self.remember();
        match mesh {
            Mesh::NotYet if is_last => self.at(50 * MILLI, Event::Act(client)),
            Mesh::NotYet | Mesh::Connected => return Ok(false),
            Mesh::Broken => {
                trace!(self, "client {client} cannot connect to another rank");
                self.process_ends(client)?;
            }
        }
        Ok(true)
    }

    fn mesh(&self, plan: &JobPlan, process: Process) -> Mesh {
        let it = &self.clients[process.client];
        let read = it.issued.iter().zip(&it.seen).filter(|(act, _)| matches!(act, Act::Get(_)));
        let mut is_connected = true;
        for (act, seen) in read {
            let Act::Get(key) = act else { continue };
            let Some(rank) = ADDRESSES.iter().position(|address| address == key) else { continue };
            let mate = self.job.processes.iter().find(|it| (it.rank, it.attempt) == (rank, process.attempt));
            let Some(mate) = mate.filter(|mate| is_address_of(mate, seen.as_deref())) else {
                return Mesh::Broken;
            };
            let mate = &self.clients[mate.client];
            let has_read_all = mate.next_step() > plan.last_step()
                || mate.next_step() == plan.last_step() && mate.state == State::Thinking;
            if mate.is_gone() && !mate.has_finished {
                return Mesh::Broken;
            }
            is_connected &= has_read_all;
        }
        if is_connected { Mesh::Connected } else { Mesh::NotYet }
    }

    /// The launcher checks its processes.
    pub(super) fn launch(&mut self) {
        let Some(plan) = &self.plan.job else { return };
        let (size, leaves_alone) = (plan.ranks.len(), plan.is_left_alone);
        if self.job.is_done {
            return;
        }
        self.at(400 * MILLI, Event::Launch);
        let has_died = |it: &Process| {
            let client = &self.clients[it.client];
            client.is_gone() && !client.has_finished
        };
        let finished = self.current().filter(|it| self.clients[it.client].has_finished).count();
        if finished == size {
            trace!(self, "the job has ended well");
            self.job.is_done = true;
            return;
        }
        if !self.current().any(has_died) || self.job.is_alone {
            return;
        }
        if leaves_alone {
            self.job.is_alone = true;
            return;
        }
        let alive: Vec<usize> = self.alive().collect();
        self.job.attempt += 1;
        trace!(self, "the job is started again, attempt {}", self.job.attempt);
        for client in alive {
            let after = self.random.below(800 * MILLI);
            self.at(after, Event::ProcessEnds(client));
        }
        for rank in 0..size {
            let earliest = if self.is_calm { SECOND } else { 300 * MILLI };
            let after = self.random.between(earliest, 2 * SECOND);
            self.at(after, Event::RankComes(rank, self.job.attempt));
        }
    }

    fn alive(&self) -> impl Iterator<Item = usize> {
        self.job.processes.iter().map(|it| it.client).filter(|&client| !self.clients[client].is_gone())
    }

    /// A healthy job ends. A job that is left alone must be told why it does not end, and is then killed.
    pub(super) fn end_job(&mut self) -> Checked {
        const UNTIL_TOLD: u64 = 12 * SECOND;
        if self.plan.job.is_none() {
            return Ok(());
        }
        let until = self.now + 150 * SECOND;
        while !self.job.is_done && !self.job.is_alone {
            if self.now >= until {
                return Err("a healthy job does not end".into());
            }
            self.run_until(self.now + SECOND / 2, |_| false)?;
        }
        if self.job.is_alone {
            // Links may come back in the meantime, and the waits behind them begin only then.
            let until = self.now + 2 * UNTIL_TOLD;
            self.run_until(self.now + UNTIL_TOLD, |_| false)?;
            while self.check_told().is_err() && self.now < until {
                self.run_until(self.now + SECOND, |_| false)?;
            }
            self.check_told()?;
            let alive: Vec<usize> = self.alive().collect();
            alive.into_iter().try_for_each(|client| self.process_ends(client))?;
            self.job.is_done = true;
        }
        Ok(())
    }
}
