//! Agents of the static rendezvous, one job after the other: all have the run id `none`.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::Value;

use super::super::lab::Lab;
use super::complete::{Cause, Due, FACT, LOOKED, named};
use super::{Checked, DELAY, Past, Schedule, World, agree, names, number, play_all, played, text, yes};
use crate::Settings;
use rallypoint_api::Explanation;
use rallypoint_store::StaleKeyConfig;

const HOSTS: usize = 4;
const EXPLAIN_AFTER: f64 = 3.0;
/// Who ended so long before the others came may have been the first of them.
const JUST_BEFORE: f64 = 120.0;
const RUN: &str = "none";

#[derive(Debug, Clone, Copy)]
enum Op {
    /// The agent of this host is started, if none is there.
    Come(usize),
    ComeAll,
    /// The agent of node rank 0 hosts a store of its own, and does nothing else before all have counted themselves here.
    Host,
    Die(usize),
    DieAll,
    /// It acts no more, and its connection stays open.
    Freeze(usize),
    /// One of its workers fails, and it starts them again.
    Restart(usize),
    /// Its workers succeed.
    Finish(usize),
    FinishAll,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// It hosts, and has read that so many have come.
    Counts(u32),
    Exchanges,
    Runs,
    AtExit,
}

#[derive(Debug, Clone)]
struct Agent {
    conn: u32,
    host: usize,
    rank: usize,
    connected: bool,
    acts: bool,
    finished: bool,
    phase: Phase,
    waits: bool,
    /// It came to this job.
    job: usize,
    came: f64,
    ended: f64,
    /// How often it has started its workers again.
    restarts: usize,
}

impl Agent {
    /// It was to host, and is frozen before it did anything that shows who it is.
    const fn is_silent(&self) -> bool {
        !self.acts && matches!(self.phase, Phase::Counts(_))
    }

    const fn joins(&self) -> bool {
        matches!(self.phase, Phase::Counts(_) | Phase::Exchanges)
    }

    fn name(&self) -> String {
        format!("node {} at 10.77.0.{}", self.rank, 10 + self.host)
    }
}

#[derive(Debug, Clone, Default)]
struct Moment {
    agents: Vec<Agent>,
    /// Jobs that have begun; all agents of one have to go before the next can begin.
    job: usize,
    exited: usize,
    /// Those whose roles are in the store.
    roles: BTreeSet<usize>,
    done: bool,
    complete: bool,
    /// When the last attempt of this job was complete.
    completed: f64,
    first_completed: f64,
    /// A node has come again to a job that was complete: now all have to.
    again: bool,
}

impl Moment {
    /// The agent that hosts, and waits until all have come.
    fn host(&self) -> Option<&Agent> {
        self.live().find(|agent| agent.acts && matches!(agent.phase, Phase::Counts(_)))
    }

    fn live(&self) -> impl Iterator<Item = &Agent> {
        self.agents.iter().filter(|agent| agent.connected)
    }

    fn ranks(&self) -> BTreeSet<usize> {
        // One that had finished, and is frozen, is none of the next job.
        let is_of_job = |agent: &&Agent| !agent.finished || agent.job == self.job;
        self.live().filter(is_of_job).map(|agent| agent.rank).collect()
    }
}

struct Truth {
    lab: Lab,
    now: Moment,
    past: Past<Moment>,
    /// The number of nodes that rank 0 was told, and the rank of each host.
    nodes: usize,
    ranks: [usize; HOSTS],
    checked: usize,
    due: Vec<Due>,
}

impl Truth {
    fn new(nodes: usize, ranks: [usize; HOSTS]) -> Self {
        let explain_after = Duration::from_secs_f64(EXPLAIN_AFTER);
        let mut lab = Lab::with(Settings { explain_after, ..Settings::default() }, StaleKeyConfig::default());
        lab.pauses = vec![250];
        Self {
            lab,
            now: Moment::default(),
            past: Past(Vec::new()),
            nodes,
            ranks,
            checked: 0,
            due: Vec::new(),
        }
    }

    fn on(&self, host: usize) -> Option<usize> {
        self.now.agents.iter().position(|agent| agent.host == host && agent.connected)
    }

    fn come(&mut self, host: usize, phase: Phase) {
        // Of two with rank 0 of which one hosts nothing is known.
        let hosts = |phase: Phase| matches!(phase, Phase::Counts(_));
        let is_hosted = self.now.live().any(|agent| {
            agent.rank == 0 && (hosts(agent.phase) || hosts(phase) && agent.phase != Phase::Runs)
        });
        if self.on(host).is_some() || self.ranks[host] == 0 && is_hosted {
            return;
        }
        let (conn, rank) = (self.now.agents.len() as u32, self.ranks[host]);
        // Those that host and are not known yet are of the next job.
        let is_host = |agent: &Agent| matches!(agent.phase, Phase::Counts(_));
        if self.now.done || self.now.live().all(is_host) {
            self.now = Moment {
                agents: std::mem::take(&mut self.now.agents),
                job: self.now.job + 1,
                ..Moment::default()
            };
            // Who came too late for the job before is one of this.
            let job = self.now.job;
            let late = self.now.agents.iter_mut().filter(|a| a.connected && a.joins());
            late.for_each(|agent| agent.job = job);
        }
        let is_rival = |agent: &&Agent| agent.rank == rank && agent.phase == Phase::Exchanges;
        if self.now.live().any(|agent| is_rival(&agent)) {
            let (at, name) = (self.seconds(), format!("node rank {rank}"));
            let or: &[_] = if rank < self.nodes { &[] } else { &["join_refused"] };
            self.due.push(Due { at, cause: Cause::Twice, name, or });
        }
        self.lab.connect(conn, &format!("10.77.0.{}", 10 + host), 1000 + conn);
        self.lab.ping(conn);
        self.lab.add(conn, "init/", 1);
        if phase == Phase::Exchanges {
            self.tell_role(conn, rank);
        }
        let (job, came) = (self.now.job, self.seconds());
        let (connected, finished, waits) = (true, false, false);
        let (acts, ended) = (true, 0.0);
        self.now.agents.push(Agent {
            conn,
            host,
            rank,
            connected,
            acts,
            finished,
            phase,
            waits,
            job,
            came,
            ended,
            restarts: 0,
        });
    }

    fn tell_role(&mut self, conn: u32, rank: usize) {
        self.now.again |= self.now.complete && rank < self.nodes;
        self.lab.set(conn, &format!("/{RUN}/torchelastic/role_info/{rank}"), b"{}");
    }

    fn die(&mut self, host: usize) {
        if let Some(n) = self.on(host) {
            self.leave(n);
        }
    }

    fn leave(&mut self, n: usize) {
        self.lab.leave(self.now.agents[n].conn);
        let at = self.seconds();
        let agent = &mut self.now.agents[n];
        (agent.connected, agent.ended) = (false, at);
        let (agent, done) = (agent.clone(), self.now.done);
        let has_rival = self.now.live().any(|other| other.rank == agent.rank);
        // Rank 0 takes no notice of one that it does not count on.
        // A host is known as a node when others have come, and it goes on then.
        let has_met_others =
            || agent.came + DELAY < at && self.now.live().any(|other| other.came + DELAY < at);
        let is_known = !matches!(agent.phase, Phase::Counts(_)) || !agent.is_silent() && has_met_others();
        if !agent.finished && !done && !has_rival && agent.rank < self.nodes && is_known {
            let (cause, name, or) = (Cause::Dead, agent.name(), ["run_ended", "run_finished"].as_slice());
            self.due.push(Due { at, cause, name, or });
        }
    }

    fn finish(&mut self, host: usize) {
        let runs = |n: &usize| self.now.agents[*n].phase == Phase::Runs && self.now.agents[*n].acts;
        let Some(n) = self.on(host).filter(runs) else { return };
        let conn = self.now.agents[n].conn;
        self.now.exited += 1;
        self.now.done |= self.now.exited == self.nodes;
        self.lab.exit_static(conn, RUN, self.now.done);
        let agent = &mut self.now.agents[n];
        (agent.phase, agent.finished) = (Phase::AtExit, true);
    }

    /// It tells its role once more. It needs nobody, unless node rank 0 is lost; that one needs all.
    fn restart(&mut self, host: usize) {
        let runs = |n: &usize| self.now.agents[*n].phase == Phase::Runs && self.now.agents[*n].acts;
        let Some(n) = self.on(host).filter(runs) else { return };
        let Agent { conn, rank, .. } = self.now.agents[n];
        let job = self.now.job;
        let is_there = |rank: usize| {
            self.now.agents.iter().any(|a| a.rank == rank && a.job == job && (a.connected || a.finished))
        };
        let needed = if rank == 0 { 0..self.nodes } else { 0..1 };
        self.now.again |= !needed.into_iter().all(is_there);
        self.lab.restart_workers(conn, RUN, rank as u32);
        let agent = &mut self.now.agents[n];
        (agent.phase, agent.came) = (Phase::Exchanges, self.lab.now.0.as_secs_f64());
        agent.restarts += 1;
    }

    /// Whether somebody has gone on.
    fn steps(&mut self) -> bool {
        let mut goes_on = false;
        for n in 0..self.now.agents.len() {
            let Agent { conn, rank, connected, acts, phase, waits, .. } = self.now.agents[n];
            let key = |part: &str, node: usize| format!("/{RUN}/torchelastic/{part}/{node}");
            match phase {
                Phase::Counts(_) if connected && acts => {
                    self.lab.count(conn);
                    self.lab.pass(0.001);
                    let read = self.lab.count(conn);
                    self.now.agents[n].phase = Phase::Counts(read);
                    if read as usize >= self.nodes {
                        self.tell_role(conn, rank);
                        let came = self.seconds();
                        let agent = &mut self.now.agents[n];
                        (agent.phase, agent.came, goes_on) = (Phase::Exchanges, came, true);
                    }
                }
                Phase::Exchanges if connected => {
                    let roles = (0..self.nodes).map(|node| key("role_info", node));
                    let wanted: Vec<String> =
                        if rank == 0 { roles.collect() } else { vec![key("assigned_ranks", rank)] };
                    if !wanted.iter().all(|key| self.lab.has(key)) {
                        if !waits && acts {
                            self.lab.wait(conn, &wanted.iter().map(String::as_str).collect::<Vec<_>>());
                            self.now.agents[n].waits = true;
                        }
                        continue;
                    }
                    if !acts {
                        self.now.agents[n].waits = false;
                        continue;
                    }
                    for key in &wanted {
                        self.lab.get(conn, key);
                    }
                    if rank == 0 {
                        self.lab.assign_static(conn, RUN, self.nodes as u32, 1);
                        if self.now.again || !self.now.complete {
                            self.now.completed = self.seconds();
                        }
                        if !self.now.complete {
                            self.now.first_completed = self.seconds();
                        }
                        (self.now.complete, self.now.again) = (true, false);
                    }
                    let agent = &mut self.now.agents[n];
                    (agent.phase, agent.waits, goes_on) = (Phase::Runs, false, true);
                }
                Phase::AtExit if connected && acts && self.now.done => self.leave(n),
                _ => {}
            }
        }
        goes_on
    }

    /// Why the node with this rank is not there for the others, and who that is.
    fn cause_of(&self, rank: usize) -> Option<(Cause, String)> {
        let of_rank = || self.now.agents.iter().filter(|agent| agent.rank == rank);
        let mut name = format!("node {rank}|node rank {rank}");
        // A host may end before it is known as a node.
        let unknown = of_rank().filter(|agent| !agent.connected && matches!(agent.phase, Phase::Counts(_)));
        for agent in unknown {
            name = format!("{name}|process {} at ", 1000 + agent.conn);
        }
        // It may not be known which node it is, or even whether it is a worker of another job.
        if of_rank().any(Agent::is_silent) {
            return None;
        }
        if of_rank().filter(|agent| agent.connected).count() > 1 {
            return Some((Cause::Twice, name));
        }
        if let Some(live) = of_rank().rfind(|agent| agent.connected && agent.job == self.now.job) {
            let has_run = matches!(live.phase, Phase::Runs | Phase::AtExit) || !live.acts && self.now.again;
            return Some((if has_run { Cause::Withdrawn } else { Cause::Busy }, name));
        }
        // One of the job before has nothing to do with this. One that had finished has not waited for the others.
        if of_rank().any(|agent| agent.job == self.now.job) {
            return Some((Cause::Dead, name));
        }
        let came_before = |agent: &Agent| {
            let is_lately = agent.ended + JUST_BEFORE > self.seconds();
            agent.job + 2 >= self.now.job && !agent.finished && agent.joins() && is_lately
        };
        if of_rank().any(came_before) {
            return Some((Cause::CameBefore, name));
        }
        let is_twin = |agent: &Agent| self.now.live().filter(|other| other.rank == agent.rank).count() > 1;
        // One that is beyond the number is told as such.
        let mut of_job = self.now.live().filter(|agent| agent.rank < self.nodes);
        Some((if of_job.any(is_twin) { Cause::AsAnother } else { Cause::NeverCame }, name))
    }

    /// Why somebody has waited for long.
    fn causes(&self) -> Vec<(Cause, String)> {
        let now = self.seconds();
        let is_stuck = |agent: &&Agent| agent.waits && agent.came + EXPLAIN_AFTER + LOOKED < now;
        let mut causes = Vec::new();
        // Some have done their work while another comes again: that can end well for nobody.
        if self.now.again && self.now.exited > 0 {
            return causes;
        }
        let is_here = |rank: usize| self.now.live().any(|agent| agent.rank == rank && agent.waits);
        let rank_zero = self.now.live().find(|agent| agent.rank == 0);
        for agent in self.now.live().filter(is_stuck) {
            let is_first = |other: &Agent| other.conn != agent.conn && other.phase == Phase::Runs;
            if agent.rank == 0 && self.now.live().any(|other| other.rank == 0 && is_first(other)) {
                // A copy of it meets nobody.
                causes.push((Cause::Twice, "node rank 0".to_owned()));
            } else if agent.rank == 0 {
                // Who goes on may not have to tell its role again.
                let is_told = |rank: &usize| is_here(*rank) || self.now.roles.contains(rank);
                let missing = (0..self.nodes).filter(|rank| !is_told(rank));
                causes.extend(missing.filter_map(|rank| self.cause_of(rank)));
            } else if agent.rank >= self.nodes {
                // The number that rank 0 counts on shows when it waits, or when it hands out the ranks.
                let counts = rank_zero.is_some_and(|zero| zero.waits) || self.now.complete;
                let both_came = rank_zero.map_or(agent.came, |zero| zero.came.max(agent.came));
                if counts && both_came + 3.0 + FACT < now {
                    causes.push((Cause::NodeRank, format!("node rank {}", agent.rank)));
                }
            } else if let Some(host) = self.now.host() {
                // The others are known where those with higher ranks have come.
                let highest = self.now.live().map(|agent| agent.rank).filter(|rank| *rank < self.nodes).max();
                let is_known = host.came + LOOKED < now;
                let missing = (1..highest.unwrap_or_default()).filter(|rank| is_known && !is_here(*rank));
                causes.extend(missing.filter_map(|rank| self.cause_of(rank)));
            } else if rank_zero.is_none_or(|zero| !zero.waits) {
                // How many there should be is known to rank 0 only.
                causes.extend(self.cause_of(0));
            }
        }
        causes
    }

    /// What is said of the agent of node rank 0 that hosts its job and waits until all have come.
    fn check_host(&self, at: f64, facts: &Value) -> Checked {
        let any = |holds: &dyn Fn(&Moment) -> bool, why: &str| yes(self.past.any(at, holds), why);
        let host = text(facts, "host");
        let connected = number(facts, "connected") as u32;
        let is_called = |agent: &Agent| {
            host == agent.name()
                || host == format!("process {} at 10.77.0.{}", 1000 + agent.conn, 10 + agent.host)
        };
        let has_read = |m: &Moment| {
            m.host().is_some_and(|agent| is_called(agent) && agent.phase == Phase::Counts(connected))
        };
        any(&has_read, "it has not read that number")?;
        let waited = facts["waited"].as_f64().unwrap_or_else(|| panic!("no time in {facts}"));
        any(&|m| m.host().is_some_and(|agent| at - agent.came + 0.5 >= waited), "not for so long")?;
        let ended = number(facts, "ended");
        any(&|m| m.agents.iter().filter(|agent| !agent.connected).count() >= ended, "fewer have ended")?;
        any(&|m| connected as usize <= ended + m.live().count(), "more of them have ended")?;
        let waiters = number(facts, "waiters");
        any(&|m| m.live().filter(|agent| agent.waits).count() >= waiters, "not so many wait")?;
        yes(facts["expected"].is_null() && facts["reset"].is_null(), "nobody tells the number")?;
        for name in names(facts, "missing") {
            let rank = Self::rank_of(&name)?;
            any(&|m| !m.ranks().contains(&rank), &format!("{name} is there"))?;
            let had_come = |m: &Moment| m.agents.iter().any(|agent| agent.rank == rank && agent.job == m.job);
            any(&|m| !had_come(m), &format!("{name} had come"))?;
        }
        self.all(at, &names(facts, "gone"), |m, agent| {
            !agent.connected && agent.job + 1 >= m.job && !m.ranks().contains(&agent.rank)
        })
    }

    /// `node 2 at 10.77.0.12`, or `node rank 2`.
    fn rank_of(name: &str) -> Result<usize, String> {
        let rest = name.trim_start_matches("node ").trim_start_matches("rank ");
        rest.split(' ').next().and_then(|rank| rank.parse().ok()).ok_or(format!("nobody is called {name}"))
    }

    /// Whether several live agents had each of these ranks just before.
    /// Whether an agent with the rank of each of these names was so just before; at its address, if the name has one.
    fn all(&self, at: f64, names: &[String], holds: impl Fn(&Moment, &Agent) -> bool) -> Checked {
        for name in names {
            let rank = Self::rank_of(name)?;
            let is_at = |agent: &Agent| match name.split_once(" at 10.77.0.") {
                Some((_, host)) => (10 + agent.host).to_string() == host,
                None => true,
            };
            let is_so = |moment: &Moment| {
                moment.agents.iter().any(|agent| agent.rank == rank && is_at(agent) && holds(moment, agent))
            };
            yes(self.past.any(at, is_so), &format!("not so of {name}"))?;
        }
        Ok(())
    }
}

impl World for Truth {
    type Op = Op;
    const RUN: &'static str = RUN;

    fn lab(&self) -> &Lab {
        &self.lab
    }

    fn lab_mut(&mut self) -> &mut Lab {
        &mut self.lab
    }

    fn checked(&mut self) -> &mut usize {
        &mut self.checked
    }

    fn play(&mut self, op: Op) {
        self.lab.pass(0.001);
        match op {
            Op::Come(host) => self.come(host, Phase::Exchanges),
            Op::ComeAll => (0..HOSTS).for_each(|host| self.come(host, Phase::Exchanges)),
            Op::Host => {
                if let Some(host) = self.ranks.iter().position(|rank| *rank == 0) {
                    self.come(host, Phase::Counts(0));
                }
            }
            Op::Die(host) => self.die(host),
            Op::DieAll => (0..HOSTS).for_each(|host| self.die(host)),
            Op::Freeze(host) => {
                if let Some(n) = self.on(host) {
                    self.now.agents[n].acts = false;
                }
            }
            Op::Restart(host) => self.restart(host),
            Op::Finish(host) => self.finish(host),
            Op::FinishAll => (0..HOSTS).for_each(|host| self.finish(host)),
        }
        self.act();
    }

    /// Each goes on as far as it can, at once: who waits in the store is woken by what it waits for.
    fn act(&mut self) {
        while self.steps() {}
        let role = |rank: &usize| format!("/{RUN}/torchelastic/role_info/{rank}");
        self.now.roles = (0..HOSTS).filter(|rank| self.lab.has(&role(rank))).collect();
    }

    fn remember(&mut self) {
        self.past.0.push((self.seconds(), self.now.clone()));
    }

    fn check(&self, at: f64, said: &Explanation) -> Checked {
        let facts = &said.facts;
        let any = |holds: &dyn Fn(&Moment) -> bool, why: &str| yes(self.past.any(at, holds), why);
        let gone_of = |rank: usize| move |m: &Moment| !m.ranks().contains(&rank);
        match said.code.as_str() {
            "run_started" => self.all(at, &[text(facts, "who").into()], |m, agent| agent.job == m.job),
            "round_complete" => {
                let nodes = number(facts, "nodes");
                yes(nodes == self.nodes, "not so many")?;
                any(&|m| m.complete, "not complete")?;
                self.all(at, &[text(facts, "last").into()], |m, agent| agent.job == m.job)
            }
            "nodes_missing" => {
                let (joined, expected) = (number(facts, "joined"), number(facts, "expected"));
                yes(expected == self.nodes, "others are expected")?;
                any(&|m| m.ranks().iter().filter(|rank| **rank < expected).count() == joined, "not so many")?;
                let missing = names(facts, "missing");
                yes(missing.len() <= expected - joined, "more are missing than are")?;
                for name in missing {
                    any(&gone_of(Self::rank_of(&name)?), &format!("{name} is there"))?;
                }
                Ok(())
            }
            "node_came_late" => {
                let joined = number(facts, "joined");
                any(&|m| m.ranks().iter().filter(|rank| **rank < self.nodes).count() == joined, "not so many")
            }
            "lost" => {
                let left = number(facts, "left");
                let nodes = names(facts, "nodes");
                let joining = ["waiting", "joining", "counted"].contains(&text(facts, "moment"));
                let was_there = |m: &Moment, agent: &Agent| {
                    agent.connected && (m.again || !agent.acts || agent.joins() == joining)
                };
                self.all(at, &nodes, was_there)?;
                self.all(at, &nodes, |_, agent| !agent.connected && !agent.finished)?;
                let so_many = |m: &Moment| {
                    m.ranks().len() == left
                        || m.live().count() == left
                        || m.live().filter(|agent| agent.job == m.job && !agent.is_silent()).count() == left
                        || m.ranks().iter().filter(|rank| **rank < self.nodes).count() == left
                };
                any(&so_many, "not so many left")
            }
            "round_over" => {
                let times = number(facts, "times");
                self.all(at, &names(facts, "nodes"), |_, agent| (1..=times).contains(&agent.restarts))
            }
            "run_ended" => {
                // Who hosts has told nothing before it is known.
                let is_new =
                    |agent: &Agent| matches!(agent.phase, Phase::Counts(_)) && agent.came + DELAY > at;
                any(&|m| m.live().all(|agent| agent.is_silent() || is_new(agent)), "some are there")
            }
            "run_finished" => {
                let nodes = number(facts, "nodes");
                let ran = facts["ran"].as_f64().unwrap_or_else(|| panic!("{facts}"));
                // Since its last attempt, or since the first: to that not all come again.
                let is_so_long = |since: f64| ran <= at - since && at - since <= ran + DELAY;
                let has_run = |m: &Moment| is_so_long(m.completed) || is_so_long(m.first_completed);
                any(&|m| m.done && nodes == self.nodes && has_run(m), "it has not")
            }
            "exit_barrier" => {
                let arrived = number(facts, "arrived");
                // Those of the attempt before are not counted.
                any(&|m| m.exited >= arrived && !m.done, "not so many")?;
                self.all(at, &names(facts, "running"), |_, agent| agent.connected && !agent.finished)?;
                self.all(at, &names(facts, "dead"), |_, agent| !agent.connected && !agent.finished)
            }
            "waiting" if facts["host"].is_string() => self.check_host(at, facts),
            "waiting" => {
                let rank = Self::rank_of(text(facts, "who"))?;
                // One of the job before may be frozen.
                let candidates = names(facts, "candidates");
                let is_silent = |m: &Moment, name: &String| {
                    m.live().any(|agent| {
                        name.starts_with(&format!("process {} at ", 1000 + agent.conn))
                            && matches!(agent.phase, Phase::Counts(_))
                            && !agent.acts
                    })
                };
                any(&|m| candidates.iter().all(|name| is_silent(m, name)), "it is not silent")?;
                let is_it = |m: &Moment, agent: &Agent| agent.rank == rank && agent.job == m.job;
                match (text(&facts["presence"], "is"), facts["but"]["why"].as_str()) {
                    ("never_seen" | "closed", None) if !candidates.is_empty() => Ok(()),
                    ("never_seen" | "closed", None) => {
                        any(&|m| !m.live().any(|agent| is_it(m, agent)), "it is there")
                    }
                    ("closed", Some("met_before")) => any(&gone_of(rank), "it is there"),
                    ("connected", Some("dropped" | "met_before")) => {
                        any(&|m| m.ranks().contains(&rank), "it is not there")
                    }
                    ("connected", None) => any(&|m| m.live().any(|a| a.rank == rank && !a.waits), "it waits"),
                    other => Err(format!("cannot be: {other:?}")),
                }
            }
            "duplicate_rank" => {
                let rank = Self::rank_of(text(facts, "what"))?;
                any(&|m| m.live().filter(|agent| agent.rank == rank).count() > 1, "there is one")
            }
            "join_refused" => {
                let rank = number(facts, "rank");
                yes(rank >= self.nodes && number(facts, "nodes") == self.nodes, "it is counted on")?;
                any(&|m| m.ranks().contains(&rank), "it is not there")
            }
            "ranks_ended" => {
                let was_host = |name: &String| {
                    let is_it =
                        |agent: &Agent| name.starts_with(&format!("process {} at ", 1000 + agent.conn));
                    let ended = |agent: &&Agent| !agent.connected && matches!(agent.phase, Phase::Counts(_));
                    self.now.agents.iter().filter(ended).any(is_it)
                };
                yes(names(facts, "processes").iter().all(was_host), "they told their roles")
            }
            // A job that follows another is nothing strange.
            _ => Err("that cannot be".into()),
        }
    }

    fn check_end(&self) -> Checked {
        let moment = &self.now;
        if let Some(host) = moment.host().filter(|host| host.came + EXPLAIN_AFTER + LOOKED < self.seconds()) {
            let is_it = |(at, said): &&(f64, Explanation)| *at > host.came && said.code == "waiting";
            yes(self.lab.said.iter().any(|said| is_it(&said)), "nobody says that it hosts")?;
        }
        let Some(run) = self.lab.insight.run(RUN, None, None, self.lab.now) else { return Ok(()) };
        let is_over = moment.done || moment.live().next().is_none();
        let state = run.summary.state;
        // A host that came when all others had gone is none of them.
        let others_ended = moment.agents.iter().map(|agent| agent.ended).fold(0.0, f64::max);
        let are_hosts =
            moment.live().all(|agent| matches!(agent.phase, Phase::Counts(_)) && agent.came > others_ended);
        if are_hosts && state.is_over() {
            return Ok(());
        }
        yes(state.is_over() == is_over, &format!("its state is {state:?}"))?;
        if is_over {
            return Ok(());
        }
        let is_here =
            |agent: &&Agent| agent.job == moment.job && (agent.connected || agent.finished && !moment.again);
        let here: BTreeSet<usize> = moment.agents.iter().filter(is_here).map(|agent| agent.rank).collect();
        let counted = here.into_iter().filter(|rank| *rank < self.nodes).count();
        let (joined, waiting) = (run.summary.nodes.joined as usize, run.summary.nodes.earlier as usize);
        let knows = run.summary.nodes.expected.is_some();
        yes(
            joined + waiting == counted || !knows,
            &format!("{joined} and {waiting} are there, not {counted}"),
        )?;
        let missing = run.summary.nodes.missing.map_or(0, |missing| missing as usize);
        yes(
            !knows || missing == self.nodes - counted,
            &format!("{missing} are missing, {counted} are there"),
        )?;
        for missing in run.missing.iter().filter_map(|missing| missing.rank) {
            // A host that is frozen before it is known has told no rank.
            // One of the job before may be frozen.
            let is_of_job = |agent: &Agent| agent.job == moment.job && !agent.is_silent();
            let is_it = |agent: &Agent| agent.rank == missing as usize && is_of_job(agent);
            yes(!moment.live().any(is_it), &format!("{missing} is missing"))?;
        }
        agree(&self.lab, &run)?;
        for (cause, name) in self.causes() {
            named(&run.explanations, cause, &name)?;
        }
        Ok(())
    }

    fn due(&mut self) -> &mut Vec<Due> {
        &mut self.due
    }

    fn is_settled(&self, due: &Due) -> bool {
        let soon = due.at..due.at + FACT;
        match due.cause {
            Cause::Twice => self.now.agents.iter().any(|agent| soon.contains(&agent.ended)),
            // It was started again at once.
            Cause::Dead => {
                let came = |agent: &Agent| (due.at..due.at + 1.0).contains(&agent.came);
                self.now.agents.iter().any(|agent| agent.name() == due.name && came(agent))
            }
            _ => false,
        }
    }
}

fn schedule() -> impl Strategy<Value = (usize, Option<(usize, usize)>, Schedule<Op>)> {
    let host = || 0..HOSTS;
    let op = prop_oneof![
        6 => host().prop_map(Op::Come),
        3 => Just(Op::ComeAll),
        2 => Just(Op::Host),
        3 => host().prop_map(Op::Die),
        1 => Just(Op::DieAll),
        1 => host().prop_map(Op::Freeze),
        1 => host().prop_map(Op::Restart),
        1 => host().prop_map(Op::Finish),
        3 => Just(Op::FinishAll),
    ];
    let pause = prop::sample::select(vec![0, 2, 5, 10, 40, 90_u32]);
    let wrong = prop::option::weighted(0.2, (0..HOSTS, 0..HOSTS));
    // Rank 0 may have been told a smaller number than there are nodes.
    (prop_oneof![4 => Just(HOSTS), 1 => 2..HOSTS], wrong, prop::collection::vec((op, pause), 1..16))
}

#[test]
fn what_is_said_of_static_nodes_is_the_truth() {
    play_all("static", &schedule(), |(nodes, wrong, schedule)| {
        let mut ranks = [0, 1, 2, 3];
        if let Some((host, rank)) = wrong {
            ranks[host] = rank;
        }
        played(Truth::new(nodes, ranks), &format!("{nodes} nodes, ranks {ranks:?}"), schedule)
    });
}
