//! Jobs of torchrun's agents: which agents are there, the workers of their rounds, and the launcher that
//! starts agents again.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::super::agent::{Agent, Backend, Doing, Move, Terms, Work};
use super::super::client::Client;
use super::super::plan::{ClientPlan, MILLI, Micros, SECOND};
use super::workers::Starter;
use super::{Checked, Event, World};
use rallypoint_protocol::rendezvous_state::{self, Node, RendezvousState};
use rallypoint_store::testing::model::{Act, Key};

/// The process of an agent.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) job: usize,
    pub(super) node: usize,
    /// How often the job had been started before.
    pub(super) attempt: usize,
    pub(super) client: usize,
    pub(super) agent: Agent,
    /// The rank that the state gave it last, whether it has read that state or not.
    pub(super) rank: Option<usize>,
}

/// The workers of a round.
#[derive(Debug, Default)]
struct Group {
    /// The node that was told each rank.
    ranks: BTreeMap<usize, Node>,
    /// When their work will be done.
    ends: Option<Micros>,
    has_failed: bool,
}

#[derive(Debug, Default)]
struct Job {
    /// The number of the attempt. Unless the plan has one id for all, each attempt has its own run id.
    attempt: usize,
    /// How often the job's work was done.
    done: usize,
    /// Whether the work of this attempt is done.
    is_trained: bool,
    /// When an agent of this attempt failed.
    failed: Option<Micros>,
    /// Nodes whose next agent is about to come.
    coming: BTreeSet<usize>,
    groups: BTreeMap<u64, Group>,
    is_over: bool,
}

#[derive(Debug, Default)]
pub(super) struct Elastic {
    pub(super) processes: Vec<Process>,
    jobs: Vec<Job>,
    /// The states in the store, decoded.
    states: BTreeMap<Key, (String, Rc<RendezvousState>)>,
}

impl World {
    pub(super) fn begin_elastic(&mut self) {
        for (job, plan) in self.plan.elastic.clone().into_iter().enumerate() {
            self.elastic.jobs.push(Job::default());
            for (n, (at, _)) in plan.faults.iter().enumerate() {
                self.at(*at, Event::AgentFault(job, n));
            }
            self.all_agents_come(job);
            self.at(SECOND, Event::LaunchAgents(job));
        }
    }

    fn all_agents_come(&mut self, job: usize) {
        let plan = &self.plan.elastic[job];
        let come = plan.nodes.len() - usize::from(plan.lacks_one);
        let at: Vec<Micros> = plan.nodes.iter().take(come).map(|(at, _)| *at).collect();
        for (node, at) in at.into_iter().enumerate() {
            self.elastic.jobs[job].coming.insert(node);
            self.at(at, Event::AgentComes(job, node));
        }
    }

    /// The terms of a job's present attempt.
    fn terms(&self, job: usize) -> Terms {
        let plan = &self.plan.elastic[job];
        let kind = match plan.backend {
            Backend::C10d => "elastic",
            Backend::Static => "static",
        };
        let attempt = if plan.has_one_id { 0 } else { self.elastic.jobs[job].attempt };
        let run = format!("{kind}-{}", 100 * job + attempt);
        Terms { run, backend: plan.backend, min: plan.min, max: plan.nodes.len() }
    }

    pub(super) fn agent_comes(&mut self, job: usize, node: usize) {
        self.elastic.jobs[job].coming.remove(&node);
        if self.elastic.jobs[job].is_over {
            return;
        }
        let client = self.clients.len();
        let name = Node { addr: format!("box{job}{node}").into(), pid: 1000 + client as u32, local_id: 0 };
        let (agent, rank) = match self.plan.elastic[job].backend {
            Backend::C10d => (Agent::new(self.terms(job), name), None),
            Backend::Static => (Agent::fixed(self.terms(job), name, node), Some(node)),
        };
        let relay = self.plan.elastic[job].nodes[node].1;
        trace!(self, "agent {} of {} comes as client {client}", agent.node, agent.terms.run);
        self.clients.push(Client::new(ClientPlan { relay, steps: agent.first() }));
        self.reference.add_client();
        let attempt = self.elastic.jobs[job].attempt;
        self.elastic.processes.push(Process { job, node, attempt, client, agent, rank });
        self.at(0, Event::Act(client));
    }

    pub(super) fn agent_fault(&mut self, job: usize, n: usize) -> Checked {
        let (_, fault) = self.plan.elastic[job].faults[n];
        let victim = |world: &Self, node: usize| {
            let it = world.elastic.processes.iter().rfind(|it| (it.job, it.node) == (job, node));
            it.map(|it| it.client)
        };
        self.befalls(fault, victim)
    }

    /// If this client is an agent that is to send its next request, asks the agent what to send. Returns
    /// whether it does nothing now.
    pub(super) fn is_agent_held(&mut self, client: usize) -> Result<bool, String> {
        let Some(n) = self.elastic.processes.iter().position(|it| it.client == client) else {
            return Ok(false);
        };
        let it = &self.clients[client];
        let gave_up = matches!(it.issued.last(), Some(Act::Cancel));
        if it.is_gone() || it.waits().is_some() || it.next_step() < it.plan.steps.len() && !gave_up {
            return Ok(false);
        }
        self.look_at_workers();
        let work = self.work_of(n);
        let it = &mut self.clients[client];
        it.plan.steps.truncate(it.next_step());
        let (Some(act), Some(Some(said))) = (it.issued.last(), it.seen.last()) else { return Ok(false) };
        let goes_on = self.elastic.processes[n].agent.goes_on(self.now, (act, said), work)?;
        let rests = matches!(goes_on, Move::Rest(_));
        match goes_on {
            Move::Ask(steps) => self.clients[client].plan.steps.extend(steps),
            Move::Rest(after) => self.at(after, Event::Act(client)),
            Move::End => {}
        }
        self.is_told_rank(n)?;
        self.looks_after_rank(n)?;
        self.remember();
        Ok(rests)
    }

    /// Each rank of a round is told to only one node.
    fn is_told_rank(&mut self, n: usize) -> Checked {
        let Process { job, agent, .. } = &self.elastic.processes[n];
        let Some(place) = agent.place.as_ref().filter(|_| agent.doing == Doing::Exchanges) else {
            return Ok(());
        };
        self.tally.rounds += 1;
        let ranks = &mut self.elastic.jobs[*job].groups.entry(place.round).or_default().ranks;
        let node = ranks.entry(place.rank).or_insert_with(|| agent.node.clone());
        if *node == agent.node || agent.terms.backend == Backend::Static || self.has_lost {
            return Ok(());
        }
        Err(format!("rank {} of round {} is told to {} and to {node}", place.rank, place.round, agent.node))
    }

    fn is_there(&self, process: &Process) -> bool {
        !self.clients[process.client].is_gone()
    }

    /// An agent starts its rank when it knows its round, and ends it when it leaves that round.
    fn looks_after_rank(&mut self, n: usize) -> Checked {
        let Process { job, agent, .. } = &self.elastic.processes[n];
        if !self.plan.elastic[*job].has_ranks {
            return Ok(());
        }
        match (agent.doing, agent.place.clone()) {
            (Doing::Trains, Some(place)) => {
                self.worker_of_agent_comes(n, &place);
                let late = self.worker_of(Starter::Agent(n)).filter(|worker| worker.patience <= self.now);
                if let Some(worker) = late.filter(|worker| !self.clients[worker.client].has_finished) {
                    self.process_ends(worker.client)?;
                }
            }
            (Doing::AtExit, _) => {}
            _ => self.worker_ends(Starter::Agent(n))?,
        }
        Ok(())
    }

    fn work_of(&self, n: usize) -> Work {
        let process = &self.elastic.processes[n];
        if self.plan.elastic[process.job].has_ranks {
            return self.work_of_worker(Starter::Agent(n)).unwrap_or(Work::Goes);
        }
        let job = &self.elastic.jobs[process.job];
        let round = process.agent.place.as_ref().map(|place| place.round);
        match round.and_then(|round| job.groups.get(&round)) {
            Some(group) if group.has_failed => Work::Failed,
            Some(group) if group.ends.is_some_and(|ends| ends <= self.now) => Work::Done,
            _ => Work::Goes,
        }
    }

    /// The workers of a round begin when all its agents are there, and fail if one of the agents does.
    fn look_at_workers(&mut self) {
        let mut seen = Vec::new();
        for job in 0..self.elastic.jobs.len() {
            let (run, attempt) = (self.terms(job).run, self.elastic.jobs[job].attempt);
            let is_trained = self.have_workers_finished(&run, attempt);
            self.elastic.jobs[job].is_trained |= is_trained;
        }
        for it in self.elastic.processes.iter().filter(|it| !self.plan.elastic[it.job].has_ranks) {
            let Some(place) = it.agent.place.as_ref().filter(|_| it.agent.doing == Doing::Trains) else {
                continue;
            };
            if !self.is_there(it) || it.attempt != self.elastic.jobs[it.job].attempt {
                continue;
            }
            let mates = || {
                let of_job = self.elastic.processes.iter().filter(|mate| mate.job == it.job);
                of_job.filter(|mate| place.nodes.contains(&mate.agent.node))
            };
            let has_left = |mate: &Process| {
                let was_told = mate.agent.place.as_ref().is_some_and(|told| told.round >= place.round);
                let works = matches!(mate.agent.doing, Doing::Exchanges | Doing::Trains);
                !self.is_there(mate) || was_told && !works
            };
            let is_ready = mates().all(|mate| mate.agent.doing == Doing::Trains);
            seen.push((it.job, place.round, mates().any(has_left), is_ready));
        }
        for (job, round, has_failed, is_ready) in seen {
            let trains = self.plan.elastic[job].trains;
            let it = &mut self.elastic.jobs[job];
            let group = it.groups.entry(round).or_default();
            if group.ends.is_some_and(|ends| ends <= self.now) {
                it.is_trained = true;
            } else if has_failed {
                (group.has_failed, group.ends) = (true, None);
            } else if is_ready && group.ends.is_none() {
                group.ends = Some(self.now + trains);
            }
        }
    }

    /// The launcher of a job checks its agents.
    pub(super) fn launch_agents(&mut self, job: usize) -> Checked {
        const UNTIL_KILLED: Micros = 5 * SECOND;
        if self.elastic.jobs[job].is_over {
            return Ok(());
        }
        self.at(400 * MILLI, Event::LaunchAgents(job));
        self.end_orphans(job)?;
        self.look_at_workers();
        let terms = self.terms(job);
        let attempt = self.elastic.jobs[job].attempt;
        let of_attempt = || self.elastic.processes.iter().filter(|it| (it.job, it.attempt) == (job, attempt));
        let alive: Vec<(usize, usize)> =
            of_attempt().filter(|it| self.is_there(it)).map(|it| (it.client, it.node)).collect();
        let is_static = terms.backend == Backend::Static;
        // Only the c10d backend can replace an agent that is gone.
        let has_failed = of_attempt().any(|it| match it.agent.doing {
            Doing::Over { well } => !well,
            _ => is_static && !self.is_there(it),
        });
        let plan = &self.plan.elastic[job];
        let it = &mut self.elastic.jobs[job];
        let is_settled = it.is_trained || has_failed;
        if is_settled && alive.is_empty() && it.coming.is_empty() {
            it.done += usize::from(it.is_trained);
            it.is_over = it.done >= plan.times;
            (it.is_trained, it.failed) = (false, None);
            it.groups.clear();
            if it.is_over {
                trace!(self, "job {job} has ended well");
                return Ok(());
            }
            it.attempt += 1;
            self.all_agents_come(job);
            return Ok(());
        }
        if has_failed {
            let failed = *it.failed.get_or_insert(self.now);
            if self.now > failed + UNTIL_KILLED {
                return alive.into_iter().try_for_each(|(client, _)| self.process_ends(client));
            }
            // As with Kubernetes, which starts agents again although a static run cannot take them.
            if !is_static || self.now > failed + 2 * SECOND {
                return Ok(());
            }
        }
        let come = plan.nodes.len() - usize::from(plan.lacks_one);
        let is_away = |node: &usize| !alive.iter().any(|(_, of)| of == node) && !it.coming.contains(node);
        let away: Vec<usize> = (0..come).filter(is_away).collect();
        if !it.is_trained {
            for node in away {
                self.elastic.jobs[job].coming.insert(node);
                let after = self.random.between(300 * MILLI, 3 * SECOND);
                self.at(after, Event::AgentComes(job, node));
            }
        }
        Ok(())
    }

    /// The states of all runs in the store.
    pub(super) fn states(&mut self) -> BTreeMap<Key, Rc<RendezvousState>> {
        let mut states = BTreeMap::new();
        let keys: BTreeSet<Key> =
            self.elastic.processes.iter().map(|it| it.agent.terms.state_key()).collect();
        for key in keys {
            let Some(value) = self.reference.value(key) else { continue };
            if let Some((_, known)) = self.elastic.states.get(key).filter(|(text, _)| text == value) {
                states.insert(key, Rc::clone(known));
                continue;
            }
            let Ok(Some(state)) = rendezvous_state::read(value.as_bytes()) else { continue };
            for (node, rank) in state.participants.iter().filter(|_| state.complete) {
                if let Some(it) = self.elastic.processes.iter_mut().find(|it| it.agent.node == *node) {
                    it.rank = Some(*rank as usize);
                }
            }
            let state = Rc::new(state);
            self.elastic.states.insert(key, (value.to_owned(), Rc::clone(&state)));
            states.insert(key, state);
        }
        states
    }

    /// Healthy jobs end. In a job whose last node never comes, the waiting agents must be told so, and are
    /// then killed.
    pub(super) fn end_elastic(&mut self) -> Checked {
        /// Agents give up after a while, and come again.
        const UNTIL_TOLD: Micros = 60 * SECOND;
        let until = self.now + 200 * SECOND;
        let lacks_one = |world: &Self, job: usize| world.plan.elastic[job].lacks_one;
        let jobs = self.elastic.jobs.len();
        while let Some(job) = (0..jobs).find(|&job| !lacks_one(self, job) && !self.elastic.jobs[job].is_over)
        {
            if self.now >= until {
                return Err(format!("a healthy job of torchrun does not end: {:?}", self.elastic.jobs[job]));
            }
            self.run_until(self.now + SECOND / 2, |_| false)?;
        }
        let waiting: Vec<usize> = (0..jobs).filter(|&job| lacks_one(self, job)).collect();
        for job in waiting {
            let mut until = self.now + UNTIL_TOLD;
            while !self.is_told_of_agents(job) {
                if self.server.is_none() {
                    until = self.now + UNTIL_TOLD;
                }
                if self.now >= until {
                    return Err(format!("nobody says why job {job} does not begin"));
                }
                self.run_until(self.now + SECOND / 2, |_| false)?;
            }
            self.elastic.jobs[job].is_over = true;
            let clients: Vec<usize> =
                self.elastic.processes.iter().filter(|it| it.job == job).map(|it| it.client).collect();
            clients.into_iter().try_for_each(|client| self.process_ends(client))?;
        }
        Ok(())
    }
}
