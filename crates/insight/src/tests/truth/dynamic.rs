//! Agents of torchrun's c10d backend, as torch 2.15 has them: each does what its copy of the state tells it
//! to.

use std::time::Duration;

use proptest::prelude::*;

use super::super::lab::Lab;
use super::{EXPLAIN_AFTER, Play, Schedule, play_all, played, schedules};
use crate::testing::oracle::{Being, World};
use crate::{Expectation, Settings};
use rallypoint_store::StaleKeyConfig;

const HOSTS: usize = 4;
const HEARTBEAT: f64 = 5.0;
/// Who has sent no heartbeat for so long is taken out by the next that writes.
const DEAD_AFTER: f64 = 15.0;
const LAST_CALL: f64 = 2.0;
/// Until a node gives up on the join, or on a key of another.
const PATIENCE: f64 = 25.0;

#[derive(Debug, Clone, Copy)]
enum Op {
    /// An agent is started on this host, if none is there.
    Come(usize),
    /// It is killed.
    Die(usize),
    Freeze(usize),
    Thaw(usize),
    /// Its host is gone without a word, and another agent with its name is started.
    Replace(usize),
    /// Its workers fail, and it restarts them.
    Restart(usize),
    /// Its workers fail for good.
    Fail(usize),
    /// Its workers succeed.
    Finish(usize),
    FinishAll,
}

/// Who has told the server how many nodes there should be.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Expected {
    Nothing,
    /// `serve --nodes`.
    Flag,
    /// `ctl expect --names`.
    Named,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
enum Place {
    #[default]
    Nowhere,
    /// In the round, since the order in which it came.
    In,
    Waits,
    Redundant,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
enum Phase {
    #[default]
    Joins,
    Exchanges {
        told: bool,
        since: f64,
    },
    Runs,
    AtExit {
        round: u64,
    },
}

#[derive(Debug, Clone, Default)]
struct Agent {
    conn: u32,
    host: usize,
    nodes: (usize, usize),
    connected: bool,
    acts: bool,
    finished: bool,
    phase: Phase,
    place: Place,
    /// The rank that it had last, with its round and how many nodes that had: it goes by it, even if others
    /// take it out.
    seat: Option<Seat>,
    /// What it waits for now.
    waits: bool,
    beat: f64,
    joined: f64,
    until: f64,
}

#[derive(Debug, Clone, Copy)]
struct Seat {
    round: u64,
    rank: usize,
    group: usize,
}

#[derive(Debug, Clone, Default)]
struct Round {
    number: u64,
    complete: bool,
    closed_by: Option<usize>,
    deadline: Option<f64>,
    /// Nodes that it was complete with.
    group: usize,
    exited: usize,
    done: bool,
}

#[derive(Debug, Clone)]
struct Moment {
    round: Round,
    agents: Vec<Agent>,
}

impl Moment {
    /// Whether it is of the round: those that wait at the exit barrier are, also when others have taken them
    /// out.
    fn has(&self, agent: &Agent) -> bool {
        agent.place == Place::In || agent.phase == Phase::AtExit { round: self.round.number }
    }

    /// Whether others have taken it out, and it is there: it goes on with the round, or is frozen.
    fn has_taken_out(&self, agent: &Agent) -> bool {
        let had_rank = agent.seat.is_some_and(|seat| seat.round == self.round.number);
        let is_out = self.round.complete && agent.place == Place::Nowhere && !self.has(agent);
        agent.connected && had_rank && is_out
    }

    fn goes_on(&self, agent: &Agent) -> bool {
        agent.acts && self.has_taken_out(agent)
    }

    fn count(&self, which: impl Fn(&Agent) -> bool) -> usize {
        self.agents.iter().filter(|agent| which(agent)).count()
    }
}

struct Truth {
    lab: Lab,
    now: Moment,
    nodes: [(usize, usize); HOSTS],
}

impl Truth {
    fn new(nodes: [(usize, usize); HOSTS], expected: Expected) -> Self {
        let flag = (expected == Expected::Flag).then_some(nodes[0]);
        let settings = Settings {
            explain_after: Duration::from_secs_f64(EXPLAIN_AFTER),
            nodes: flag.map(|(min, max)| (min as u32, max as u32)),
            ..Settings::default()
        };
        let mut lab = Lab::with(settings, StaleKeyConfig::default());
        lab.pauses = vec![250];
        if expected == Expected::Named {
            let (min, max) = nodes[0];
            let names = (0..HOSTS).map(|host| format!("node{host}")).collect();
            lab.insight.expect("job", Expectation { min: min as u32, max: max as u32, names });
        }
        Self { lab, now: Moment { round: Round::default(), agents: Vec::new() }, nodes }
    }

    /// The agent of this host that does something.
    fn on(&self, host: usize) -> Option<usize> {
        self.now.agents.iter().position(|agent| agent.host == host && agent.connected && agent.acts)
    }

    fn running(&self, host: usize) -> Option<usize> {
        self.on(host).filter(|&n| self.now.agents[n].phase == Phase::Runs)
    }

    fn frozen_on(&self, host: usize) -> Option<usize> {
        let is_it = |agent: &Agent| agent.host == host && agent.connected && !agent.acts;
        self.now.agents.iter().rposition(is_it)
    }

    fn come(&mut self, host: usize) {
        let conn = self.now.agents.len() as u32;
        self.lab.come(conn, &format!("10.77.0.{}", 10 + host), 1000 + conn);
        if !self.lab.has("/torch.rendezvous.job") {
            // The state of those that have all gone was dropped.
            self.lab.states.remove("job");
            self.now.round = Round::default();
            for agent in &mut self.now.agents {
                (agent.place, agent.phase, agent.seat) = (Place::Nowhere, Phase::Joins, None);
            }
        }
        self.lab.first_cas(conn, "job");
        let at = self.lab.seconds();
        self.now.agents.push(Agent {
            conn,
            host,
            nodes: self.nodes[host],
            connected: true,
            acts: true,
            beat: at,
            joined: at,
            until: at + PATIENCE,
            ..Agent::default()
        });
    }

    fn leave(&mut self, n: usize) {
        self.lab.leave(self.now.agents[n].conn);
        let agent = &mut self.now.agents[n];
        (agent.connected, agent.acts, agent.waits) = (false, false, false);
    }

    fn base(round: u64) -> String {
        format!("/torch.rendezvous.job.{round}")
    }

    fn finish(&mut self, host: usize) {
        let Some(n) = self.running(host) else { return };
        if self.now.agents[n].place != Place::In && !self.now.goes_on(&self.now.agents[n]) {
            return;
        }
        let (conn, round) = (self.now.agents[n].conn, self.now.round.number);
        self.now.round.exited += 1;
        self.now.round.done |= self.now.round.exited == self.now.round.group;
        self.lab.reach_exit(conn, &Self::base(round), self.now.round.exited == self.now.round.group);
        let agent = &mut self.now.agents[n];
        (agent.phase, agent.finished, agent.waits) = (Phase::AtExit { round }, true, true);
    }

    /// Whom this one finds in the state without a heartbeat for too long.
    fn dead(&self, n: usize) -> Vec<usize> {
        let dead = self.lab.seconds() - DEAD_AFTER;
        let is_dead = |agent: &Agent| agent.place != Place::Nowhere && agent.beat < dead;
        (0..self.now.agents.len()).filter(|&other| other != n && is_dead(&self.now.agents[other])).collect()
    }

    /// Writes the state with a change of its own, and without those that are dead by their heartbeats.
    fn write(&mut self, n: usize, own: &str) {
        let at = self.lab.seconds();
        let mut words = String::new();
        let mut removed = false;
        for other in self.dead(n) {
            let agent = &mut self.now.agents[other];
            removed |= agent.place == Place::In;
            agent.place = Place::Nowhere;
            words.extend(["drop:", &agent.conn.to_string(), " "]);
        }
        if removed {
            words += self.after_removal(n);
        }
        for word in own.split_whitespace() {
            words += word;
            words += " ";
            let agent = &mut self.now.agents[n];
            match word {
                "join" => (agent.place, agent.joined, agent.seat) = (Place::In, at, None),
                "wait" => (agent.place, agent.seat) = (Place::Waits, None),
                "redundant" => (agent.place, agent.seat) = (Place::Redundant, None),
                "leave" => {
                    let was_in = agent.place == Place::In;
                    (agent.place, agent.seat) = (Place::Nowhere, None);
                    if was_in {
                        words += self.after_removal(n);
                    }
                }
                "deadline" => self.now.round.deadline = Some(at + LAST_CALL),
                "complete" => self.complete(),
                "close" => self.now.round.closed_by = Some(n),
                _ => unreachable!("{word}"),
            }
        }
        self.now.agents[n].beat = at;
        self.lab.cas(self.now.agents[n].conn, "job", &words);
    }

    /// What torch does when a participant is taken out.
    fn after_removal(&mut self, n: usize) -> &'static str {
        let left = self.now.count(|agent| agent.place == Place::In);
        if self.now.round.complete {
            if left == 0 {
                let Round { number, closed_by, exited, .. } = self.now.round;
                // Nobody joins a closed run: who has arrived at the exit barrier waits on.
                let exited = if closed_by.is_some() { exited } else { 0 };
                self.now.round = Round { number: number + 1, closed_by, exited, ..Round::default() };
                return "next ";
            }
        } else if left < self.now.agents[n].nodes.0 {
            self.now.round.deadline = None;
            return "patient ";
        }
        ""
    }

    fn complete(&mut self) {
        let mut members: Vec<&mut Agent> =
            self.now.agents.iter_mut().filter(|agent| agent.place == Place::In).collect();
        members.sort_by_key(|agent| (agent.host, agent.conn));
        let (round, group) = (self.now.round.number, members.len());
        self.now.round.group = group;
        for (rank, member) in members.into_iter().enumerate() {
            member.seat = Some(Seat { round, rank, group });
        }
        (self.now.round.complete, self.now.round.deadline) = (true, None);
    }

    fn join_again(&mut self, n: usize) {
        if self.now.agents[n].place == Place::In {
            self.write(n, "leave");
        }
        let until = self.lab.seconds() + PATIENCE;
        let agent = &mut self.now.agents[n];
        (agent.phase, agent.until, agent.seat) = (Phase::Joins, until, None);
    }

    /// It closes the run and ends.
    fn close(&mut self, n: usize) {
        if self.now.round.closed_by.is_none() {
            self.write(n, "close");
        }
        self.leave(n);
    }

    fn beat(&mut self, n: usize) {
        if self.now.agents[n].place == Place::Nowhere {
            // It finds no heartbeat of its own to renew.
            return self.lab.get(self.now.agents[n].conn, "/torch.rendezvous.job");
        }
        if self.now.agents[n].beat + HEARTBEAT <= self.lab.seconds() {
            self.write(n, "");
        }
    }

    fn join(&mut self, n: usize) {
        let at = self.lab.seconds();
        if self.now.round.closed_by.is_none() && !self.dead(n).is_empty() {
            self.write(n, "");
        }
        let Agent { place, nodes: (min, max), until, .. } = self.now.agents[n];
        let there = self.now.count(|agent| agent.place == Place::In);
        let round = &self.now.round;
        if round.closed_by.is_some() {
            return self.leave(n);
        }
        if round.complete && place == Place::In {
            self.now.agents[n].phase = Phase::Exchanges { told: false, since: at };
            return;
        }
        if at > until {
            if place != Place::Nowhere {
                self.write(n, "leave");
            }
            return self.close(n);
        }
        if round.complete {
            return match place {
                Place::Waits => self.beat(n),
                _ if there < max => self.write(n, "wait"),
                Place::Redundant if there == max => self.beat(n),
                Place::Redundant => self.write(n, "leave"),
                _ => self.write(n, "redundant"),
            };
        }
        if place == Place::In {
            if there >= min && there <= max && round.deadline.is_some_and(|deadline| deadline < at) {
                return self.write(n, "complete");
            }
            return self.beat(n);
        }
        let deadline = if there + 1 == min { " deadline" } else { "" };
        let complete = if there + 1 == max { " complete" } else { "" };
        self.write(n, &format!("join{deadline}{complete}"));
    }

    fn exchange(&mut self, n: usize, told: bool, since: f64) {
        let at = self.lab.seconds();
        let Agent { conn, seat, waits, .. } = self.now.agents[n];
        // Others may have taken it out in the meantime.
        let Some(Seat { round, rank, group }) = seat else { return };
        let base = Self::base(round);
        let wanted = Self::wanted(Seat { round, rank, group }, told);
        if !told {
            if rank == 0 {
                self.lab.set(conn, &format!("{base}/MASTER_ADDR"), b"node0");
                self.lab.set(conn, &format!("{base}/MASTER_PORT"), b"41234");
            } else if !self.lab.has(&format!("{base}/MASTER_PORT")) {
                return self.wait(n, waits, since, &wanted);
            }
            self.lab.set(conn, &format!("{base}/torchelastic/role_info/{rank}"), b"{}");
            let agent = &mut self.now.agents[n];
            (agent.phase, agent.waits) = (Phase::Exchanges { told: true, since: at }, false);
            return;
        }
        let is_there = |lab: &mut Lab| wanted.iter().all(|key| lab.has(key));
        if !is_there(&mut self.lab) {
            return self.wait(n, waits, since, &wanted);
        }
        if rank == 0 {
            self.lab.hand_out_ranks(conn, &base, group as u32, 1);
        }
        let agent = &mut self.now.agents[n];
        (agent.phase, agent.waits) = (Phase::Runs, false);
    }

    /// The keys that a node waits for in the exchange of its round.
    fn wanted(Seat { round, rank, group }: Seat, told: bool) -> Vec<String> {
        let base = Self::base(round);
        match (told, rank) {
            (false, _) => vec![format!("{base}/MASTER_PORT")],
            (true, 0) => (0..group).map(|rank| format!("{base}/torchelastic/role_info/{rank}")).collect(),
            (true, rank) => vec![format!("{base}/torchelastic/assigned_ranks/{rank}")],
        }
    }

    fn wait(&mut self, n: usize, waits: bool, since: f64, keys: &[String]) {
        let conn = self.now.agents[n].conn;
        if !waits {
            self.lab.wait(conn, &keys.iter().map(String::as_str).collect::<Vec<_>>());
            self.now.agents[n].waits = true;
        } else if self.lab.seconds() > since + PATIENCE {
            self.lab.cancel(conn);
            self.close(n);
        }
    }

    /// What a frozen node waits for may come.
    fn wakes(&mut self, n: usize) {
        if let Agent { phase: Phase::Exchanges { told, .. }, seat: Some(seat), .. } = self.now.agents[n] {
            self.now.agents[n].waits &= !Self::wanted(seat, told).iter().all(|key| self.lab.has(key));
        }
    }

    /// Whom it waits for, and since when.
    fn needs(&self, agent: &Agent) -> Option<(f64, Vec<u32>)> {
        let round = &self.now.round;
        let others =
            |own: usize, group: usize| (0..group).filter(move |rank| *rank != own).map(|rank| rank as u32);
        match (agent.phase, agent.seat) {
            (Phase::Exchanges { since, .. }, Some(Seat { rank: 0, group, .. })) if agent.waits => {
                Some((since, others(0, group).collect()))
            }
            (Phase::Exchanges { since, .. }, Some(_)) if agent.waits => Some((since, vec![0])),
            (Phase::AtExit { .. }, Some(Seat { rank, group, .. })) if !round.done => {
                let finished = |rank: &u32| {
                    let of_rank = |other: &&Agent| other.seat.is_some_and(|seat| seat.rank as u32 == *rank);
                    self.now.agents.iter().filter(of_rank).any(|other| other.finished)
                };
                Some((agent.until, others(rank, group).filter(|rank| !finished(rank)).collect()))
            }
            (Phase::Joins, _) if agent.place == Place::In && !round.complete && round.deadline.is_none() => {
                Some((agent.joined, Vec::new()))
            }
            _ => None,
        }
    }
}

impl Play for Truth {
    type Op = Op;
    const RUN: &'static str = "job";

    fn lab(&mut self) -> &mut Lab {
        &mut self.lab
    }

    fn play(&mut self, op: Op) {
        match op {
            Op::Come(host) => {
                if self.on(host).is_none() && self.frozen_on(host).is_none() {
                    self.come(host);
                }
            }
            Op::Die(host) => {
                self.on(host).or(self.frozen_on(host)).into_iter().for_each(|n| self.leave(n));
            }
            Op::Freeze(host) => {
                if let Some(n) = self.on(host) {
                    self.now.agents[n].acts = false;
                    self.lab.frozen.insert(self.now.agents[n].conn);
                }
            }
            Op::Thaw(host) => {
                if let (None, Some(n)) = (self.on(host), self.frozen_on(host)) {
                    self.now.agents[n].acts = true;
                    self.lab.frozen.remove(&self.now.agents[n].conn);
                }
            }
            Op::Replace(host) => {
                if self.on(host).is_some() {
                    self.play(Op::Freeze(host));
                    self.come(host);
                }
            }
            Op::Restart(host) => self.running(host).into_iter().for_each(|n| self.join_again(n)),
            Op::Fail(host) => self.running(host).into_iter().for_each(|n| self.close(n)),
            Op::Finish(host) => self.finish(host),
            Op::FinishAll => (0..HOSTS).for_each(|host| self.finish(host)),
        }
    }

    /// Each agent does what it has to do now.
    fn act(&mut self) {
        for n in 0..self.now.agents.len() {
            let agent = &self.now.agents[n];
            if !agent.acts {
                self.wakes(n);
                continue;
            }
            match agent.phase {
                Phase::Joins => self.join(n),
                Phase::Exchanges { told, since } => self.exchange(n, told, since),
                Phase::Runs => {
                    if self.now.agents.iter().any(|other| other.place == Place::Waits) {
                        self.join_again(n);
                    } else {
                        self.beat(n);
                    }
                }
                Phase::AtExit { round } => {
                    let base = format!("{}/torchelastic/agent/terminal_state", Self::base(round));
                    if self.lab.has(&format!("{base}/last_member")) {
                        self.close(n);
                    }
                }
            }
        }
    }

    fn world(&self) -> World {
        let Moment { round, agents } = &self.now;
        let being = |agent: &Agent| Being {
            names: [
                format!("node{}", agent.host),
                format!("node{}_{}", agent.host, 1000 + agent.conn),
                format!("pid {}", 1000 + agent.conn),
                format!("10.77.0.{}", 10 + agent.host),
            ]
            .into(),
            place: agent.seat.map(|seat| seat.rank as u32),
            holds: self.now.has(agent) || self.now.goes_on(agent),
            connected: agent.connected,
            acts: agent.acts,
            finished: agent.finished,
            // Zero stands for nothing that is known.
            heard: agent.beat.max(0.001),
            waits: self.needs(agent).filter(|_| agent.connected),
            ..Being::default()
        };
        let counted = self.now.count(|agent| self.now.has(agent));
        let left = self.now.count(|agent| agent.connected && self.now.has(agent));
        // One that is frozen gives signs of life for a while, or seems to wait.
        let waiting = self.now.count(|agent| agent.connected && agent.place == Place::Waits);
        let others = waiting + self.now.count(|agent| self.now.has_taken_out(agent));
        let is_over = round.done || round.closed_by.is_some() || agents.iter().all(|agent| !agent.connected);
        World {
            place: "node",
            beings: agents.iter().map(being).collect(),
            complete: round.complete,
            over: Some(is_over),
            counts: vec![
                ("joined", left.min(counted), counted + others),
                ("left", left.saturating_sub(2), left + others),
                ("arrived", round.exited, round.exited),
            ],
            ..World::default()
        }
    }
}

fn op() -> impl Strategy<Value = Op> {
    let host = || 0..HOSTS;
    prop_oneof![
        10 => host().prop_map(Op::Come),
        3 => host().prop_map(Op::Die),
        2 => host().prop_map(Op::Freeze),
        2 => host().prop_map(Op::Thaw),
        1 => host().prop_map(Op::Replace),
        2 => host().prop_map(Op::Restart),
        1 => host().prop_map(Op::Fail),
        1 => host().prop_map(Op::Finish),
        1 => Just(Op::FinishAll),
    ]
}

fn nodes() -> impl Strategy<Value = [(usize, usize); HOSTS]> {
    let job = prop::sample::select(vec![(2, 2), (3, 3), (4, 4), (2, 3), (1, 4), (2, 4)]);
    let other = prop::option::weighted(0.25, (0..HOSTS, prop::sample::select(vec![(2, 2), (3, 3), (4, 4)])));
    (job, other).prop_map(|(job, other)| {
        let mut nodes = [job; HOSTS];
        if let Some((host, other)) = other {
            nodes[host] = other;
        }
        nodes
    })
}

fn schedule() -> impl Strategy<Value = ([(usize, usize); HOSTS], Expected, Schedule<Op>)> {
    let expected =
        prop_oneof![2 => Just(Expected::Nothing), 2 => Just(Expected::Flag), 1 => Just(Expected::Named)];
    (nodes(), expected, schedules(op(), 180))
}

#[test]
fn what_is_said_of_c10d_nodes_is_the_truth() {
    play_all("c10d", &schedule(), |(nodes, expected, schedule)| {
        played(Truth::new(nodes, expected), &format!("{nodes:?} {expected:?}"), schedule)
    });
}
