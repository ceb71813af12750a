//! Agents of torchrun's c10d backend, as torch 2.15 has them: each does what its copy of the state tells it to.

use std::time::Duration;

use proptest::prelude::*;

use super::super::lab::Lab;
use super::complete::{Cause, Due, LOOKED, named};
use super::{Checked, DELAY, Past, Schedule, World, agree, names, number, play_all, played, text, yes};
use crate::{Expectation, Settings};
use rallypoint_api::{Explanation, Wait};
use rallypoint_store::StaleKeyConfig;

const HOSTS: usize = 4;
const HEARTBEAT: f64 = 5.0;
/// Who has sent no heartbeat for so long is taken out by the next that writes.
const DEAD_AFTER: f64 = 15.0;
const LAST_CALL: f64 = 2.0;
/// Until a node gives up on the join, or on a key of another.
const PATIENCE: f64 = 25.0;
const EXPLAIN_AFTER: f64 = 3.0;

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

#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    Nowhere,
    /// In the round, since the order in which it came.
    In,
    Waits,
    Redundant,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Joins,
    Exchanges { told: bool, since: f64 },
    Runs,
    AtExit { round: u64 },
}

#[derive(Debug, Clone)]
struct Agent {
    conn: u32,
    host: usize,
    nodes: (usize, usize),
    connected: bool,
    acts: bool,
    finished: bool,
    phase: Phase,
    place: Place,
    rank: Option<usize>,
    /// The rank that it had last, with its round and how many nodes that had: it goes by it, even if others take it out.
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

impl Agent {
    /// Two on one host are told apart by their process ids.
    fn name(&self) -> String {
        format!("node{}", self.host)
    }

    /// Whether others have taken it out of this round, in which it has a rank.
    fn is_taken_out(&self, round: &Round) -> bool {
        round.complete
            && self.place == Place::Nowhere
            && self.seat.is_some_and(|seat| seat.round == round.number)
    }
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
    fn there(&self, place: Place) -> impl Iterator<Item = &Agent> {
        self.agents.iter().filter(move |agent| agent.connected && agent.place == place)
    }

    fn count(&self, place: Place) -> usize {
        self.there(place).count()
    }

    /// Whether it is of the round: those that wait at the exit barrier are, also when others have taken them out.
    fn has(&self, agent: &Agent) -> bool {
        agent.place == Place::In || agent.phase == Phase::AtExit { round: self.round.number }
    }

    /// Whether it goes on with the round, although others have taken it out.
    fn goes_on(&self, agent: &Agent) -> bool {
        agent.connected && agent.acts && !self.has(agent) && agent.is_taken_out(&self.round)
    }

    /// Those of the round that are there.
    fn left(&self) -> usize {
        self.agents.iter().filter(|agent| agent.connected && self.has(agent)).count()
    }

    /// Those that have left the round for the next one.
    fn waiting(&self) -> usize {
        self.count(Place::Waits)
    }

    /// How many may be counted with them: one that is frozen gives signs of life for a while, or seems to wait.
    fn taken_out(&self) -> std::ops::RangeInclusive<usize> {
        let goes_on = self.agents.iter().filter(|agent| self.goes_on(agent)).count();
        let is_frozen = |agent: &&Agent| {
            agent.connected && !agent.acts && !self.has(agent) && agent.is_taken_out(&self.round)
        };
        goes_on..=goes_on + self.agents.iter().filter(is_frozen).count()
    }
}

struct Truth {
    lab: Lab,
    now: Moment,
    past: Past<Moment>,
    nodes: [(usize, usize); HOSTS],
    checked: usize,
    due: Vec<Due>,
    /// What insight was told to expect, and whether an operator named the nodes.
    flag: Option<usize>,
    is_named: bool,
    /// The sizes of all rounds that were complete, and of the last one of this job.
    groups: Vec<usize>,
    group_before: Option<usize>,
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
        let now = Moment { round: Round::default(), agents: Vec::new() };
        let past = Past(Vec::new());
        let is_named = expected == Expected::Named;
        if is_named {
            let (min, max) = nodes[0];
            let names = (0..HOSTS).map(|host| format!("node{host}")).collect();
            lab.insight.expect("job", Expectation { min: min as u32, max: max as u32, names });
        }
        let flag = (expected != Expected::Nothing).then_some(nodes[0].0);
        let (due, groups) = (Vec::new(), Vec::new());
        Self { lab, now, past, nodes, checked: 0, due, flag, is_named, groups, group_before: None }
    }

    /// The agent of this host that does something.
    fn on(&self, host: usize) -> Option<usize> {
        self.now.agents.iter().position(|agent| agent.host == host && agent.connected && agent.acts)
    }

    fn frozen_on(&self, host: usize) -> Option<usize> {
        let is_it = |agent: &Agent| agent.host == host && agent.connected && !agent.acts;
        self.now.agents.iter().rposition(is_it)
    }

    fn come(&mut self, host: usize) {
        let conn = self.now.agents.len() as u32;
        self.lab.connect(conn, &format!("10.77.0.{}", 10 + host), 1000 + conn);
        self.lab.ping(conn);
        if !self.lab.has("/torch.rendezvous.job") {
            // The state of those that have all gone was dropped.
            self.lab.forget_state("job");
            (self.now.round, self.group_before) = (Round::default(), None);
            for agent in &mut self.now.agents {
                (agent.place, agent.rank, agent.phase) = (Place::Nowhere, None, Phase::Joins);
                agent.seat = None;
            }
        }
        self.lab.first_cas(conn, "job");
        let at = self.seconds();
        self.now.agents.push(Agent {
            conn,
            host,
            nodes: self.nodes[host],
            connected: true,
            acts: true,
            finished: false,
            phase: Phase::Joins,
            place: Place::Nowhere,
            rank: None,
            seat: None,
            waits: false,
            beat: at,
            joined: at,
            until: at + PATIENCE,
        });
    }

    fn leave(&mut self, n: usize) {
        self.lab.leave(self.now.agents[n].conn);
        let at = self.seconds();
        let is_taken_out = self.now.agents[n].is_taken_out(&self.now.round);
        let agent = &mut self.now.agents[n];
        (agent.connected, agent.acts, agent.waits) = (false, false, false);
        let agent = agent.clone();
        if (matches!(agent.place, Place::In | Place::Waits) || is_taken_out) && !agent.finished {
            let or = ["run_ended", "run_finished", "run_closed"].as_slice();
            self.due.push(Due { at, cause: Cause::Dead, name: agent.name(), or });
        }
    }

    fn base(round: u64) -> String {
        format!("/torch.rendezvous.job.{round}")
    }

    fn finish(&mut self, host: usize) {
        let Some(n) = self.on(host).filter(|&n| self.now.agents[n].phase == Phase::Runs) else { return };
        if self.now.agents[n].place != Place::In && !self.now.goes_on(&self.now.agents[n]) {
            return;
        }
        let (conn, round) = (self.now.agents[n].conn, self.now.round.number);
        let base = format!("{}/torchelastic/agent/terminal_state", Self::base(round));
        self.lab.add(conn, &format!("{base}/num_members"), 1);
        self.now.round.exited += 1;
        if self.now.round.exited == self.now.round.group {
            self.lab.set(conn, &format!("{base}/last_member"), b"x");
            self.now.round.done = true;
        }
        self.lab.wait(conn, &[&format!("{base}/last_member")]);
        let agent = &mut self.now.agents[n];
        (agent.phase, agent.finished, agent.waits) = (Phase::AtExit { round }, true, true);
    }

    /// Writes the state with a change of its own, and without those that are dead by their heartbeats.
    fn write(&mut self, n: usize, own: &str) {
        let at = self.seconds();
        let mut words = String::new();
        let mut removed = false;
        let leaves = self.now.agents[n].place == Place::In && own.contains("leave");
        for other in 0..self.now.agents.len() {
            let agent = &mut self.now.agents[other];
            if other != n && agent.place != Place::Nowhere && agent.beat < at - DEAD_AFTER {
                removed |= agent.place == Place::In;
                // A member that leaves may begin the next round with that, as if all had left.
                if agent.place == Place::In && agent.connected && !agent.finished && !leaves {
                    let (cause, name) = (Cause::Frozen, agent.name());
                    self.due.push(Due { at, cause, name, or: &["run_closed"] });
                }
                (agent.place, agent.rank) = (Place::Nowhere, None);
                words.extend(["drop:", &agent.conn.to_string(), " "]);
            }
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
                    (agent.place, agent.rank, agent.seat) = (Place::Nowhere, None, None);
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
        let left = self.now.agents.iter().filter(|agent| agent.place == Place::In).count();
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
            (member.rank, member.seat) = (Some(rank), Some(Seat { round, rank, group }));
        }
        (self.now.round.complete, self.now.round.deadline) = (true, None);
        self.groups.push(self.now.round.group);
        self.group_before = Some(self.now.round.group);
    }

    fn join_again(&mut self, n: usize) {
        if self.now.agents[n].place == Place::In {
            self.write(n, "leave");
        }
        let until = self.seconds() + PATIENCE;
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
        if self.now.agents[n].beat + HEARTBEAT <= self.seconds() {
            self.write(n, "");
        }
    }

    /// Somebody in the state has sent no heartbeat for too long.
    fn some_are_dead(&self, n: usize) -> bool {
        let dead = self.seconds() - DEAD_AFTER;
        let is_dead = |(other, agent): (usize, &Agent)| {
            other != n && agent.place != Place::Nowhere && agent.beat < dead
        };
        self.now.agents.iter().enumerate().any(is_dead)
    }

    fn join(&mut self, n: usize) {
        let at = self.seconds();
        if self.now.round.closed_by.is_none() && self.some_are_dead(n) {
            self.write(n, "");
        }
        let Agent { place, nodes: (min, max), until, .. } = self.now.agents[n];
        let there = self.now.agents.iter().filter(|agent| agent.place == Place::In).count();
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
        let at = self.seconds();
        let Agent { conn, seat, waits, .. } = self.now.agents[n];
        // Others may have taken it out in the meantime.
        let Some(Seat { round, rank, group }) = seat else { return };
        let base = Self::base(round);
        let role = |rank: usize| format!("{base}/torchelastic/role_info/{rank}");
        let ranks = |rank: usize| format!("{base}/torchelastic/assigned_ranks/{rank}");
        if !told {
            if rank == 0 {
                self.lab.set(conn, &format!("{base}/MASTER_ADDR"), b"node0");
                self.lab.set(conn, &format!("{base}/MASTER_PORT"), b"41234");
            } else if !self.lab.has(&format!("{base}/MASTER_PORT")) {
                return self.wait(n, waits, since, &[format!("{base}/MASTER_PORT")]);
            }
            self.lab.set(conn, &role(rank), b"{}");
            let agent = &mut self.now.agents[n];
            (agent.phase, agent.waits) = (Phase::Exchanges { told: true, since: at }, false);
            return;
        }
        let wanted: Vec<String> = if rank == 0 { (0..group).map(role).collect() } else { vec![ranks(rank)] };
        let is_there = |lab: &mut Lab| wanted.iter().all(|key| lab.has(key));
        if !is_there(&mut self.lab) {
            return self.wait(n, waits, since, &wanted);
        }
        if rank == 0 {
            let pairs: Vec<_> =
                (0..group).map(|node| (ranks(node), format!("[{node}, {group}, {node}, {group}]"))).collect();
            self.lab.multi_set(conn, &pairs);
        }
        let agent = &mut self.now.agents[n];
        (agent.phase, agent.waits) = (Phase::Runs, false);
    }

    fn wait(&mut self, n: usize, waits: bool, since: f64, keys: &[String]) {
        let conn = self.now.agents[n].conn;
        if !waits {
            self.lab.wait(conn, &keys.iter().map(String::as_str).collect::<Vec<_>>());
            self.now.agents[n].waits = true;
        } else if self.seconds() > since + PATIENCE {
            self.lab.cancel(conn);
            self.close(n);
        }
    }

    /// What a frozen node waits for may come.
    fn wakes(&mut self, n: usize) {
        let Agent { phase: Phase::Exchanges { told, .. }, seat: Some(seat), .. } = self.now.agents[n] else {
            return;
        };
        self.now.agents[n].waits &= told || !self.lab.has(&format!("{}/MASTER_PORT", Self::base(seat.round)));
    }

    /// Why those of the round wait for each other.
    fn causes(&self) -> Vec<(Cause, String)> {
        let (now, round) = (self.seconds(), &self.now.round);
        let since = |agent: &Agent| match agent.phase {
            Phase::Exchanges { since, .. } if agent.waits => Some(since),
            Phase::Joins if agent.place == Place::In && !round.complete => Some(agent.joined),
            _ => None,
        };
        let is_stuck = |agent: &&Agent| {
            let has_waited = |since| since + EXPLAIN_AFTER + LOOKED < now;
            agent.connected && agent.acts && since(agent).is_some_and(has_waited)
        };
        let mut causes = Vec::new();
        for stuck in self.now.agents.iter().filter(is_stuck) {
            match stuck.seat {
                Some(seat) if stuck.phase != Phase::Joins => causes.extend(self.causes_in_exchange(seat)),
                // The round that it waits in is over otherwise.
                _ if stuck.phase == Phase::Joins && round.deadline.is_none() => {
                    causes.extend(self.causes_in_join());
                }
                _ => {}
            }
        }
        causes
    }

    /// Node rank 0 waits for the roles of all, and the others for its address and for the ranks that it hands out.
    fn causes_in_exchange(&self, seat: Seat) -> Vec<(Cause, String)> {
        let others = self.now.agents.iter();
        let counts = |other: &&Agent| {
            let of_round = other.seat.filter(|other| other.round == seat.round);
            of_round.is_some_and(|other| if seat.rank == 0 { other.rank != 0 } else { other.rank == 0 })
        };
        let cause = |other: &Agent| match other.phase {
            _ if !other.connected && other.finished => None,
            _ if !other.connected => Some((Cause::Dead, other.name())),
            // Node rank 0 waits for the roles of the others.
            Phase::Exchanges { told: true, .. } if seat.rank == 0 => None,
            Phase::Exchanges { .. } | Phase::Joins if !other.acts && !other.waits => {
                Some((Cause::Busy, other.name()))
            }
            _ => None,
        };
        // Of several in a row the first is waited for.
        let mut others: Vec<&Agent> = others.filter(counts).collect();
        others.sort_by_key(|other| other.seat.map(|seat| seat.rank));
        let is_past = seat.round != self.now.round.number;
        let mut causes: Vec<_> = others.into_iter().filter_map(cause).collect();
        causes.truncate(if is_past { 1 } else { HOSTS });
        // All dead ones are told with it.
        let mut is_first = true;
        causes.retain(|(cause, _)| std::mem::take(&mut is_first) || *cause == Cause::Dead);
        causes
    }

    fn causes_in_join(&self) -> Vec<(Cause, String)> {
        let there = self.now.count(Place::In);
        let is_back = |host: usize| self.now.there(Place::In).any(|agent| agent.host == host);
        let mut causes = Vec::new();
        let dead = self.now.agents.iter().filter(|agent| agent.place == Place::In && !agent.connected);
        causes.extend(dead.filter(|dead| !is_back(dead.host)).map(|dead| (Cause::Dead, dead.name())));
        let expected = self.flag.or(self.group_before);
        if expected.is_some_and(|expected| there >= expected) {
            causes = vec![(Cause::Nnodes, String::new())];
        } else if self.is_named && self.flag == Some(HOSTS) {
            let has_come = |host: usize| self.now.agents.iter().any(|agent| agent.host == host);
            // One that is frozen takes the place of another, as far as can be seen.
            if self.now.agents.iter().any(|agent| agent.connected && !agent.acts) {
                return causes;
            }
            let nobody = (0..HOSTS).filter(|host| !has_come(*host));
            causes.extend(nobody.map(|host| (Cause::NeverCame, format!("node{host}"))));
        }
        causes
    }

    /// The agents that a name may mean.
    fn called(&self, name: &str) -> Result<Vec<usize>, String> {
        let name = name.split(" (node rank").next().unwrap_or_default();
        let all = || self.now.agents.iter().enumerate();
        let process = name.strip_prefix("process ").and_then(|rest| rest.split(' ').next());
        let pid = process.or_else(|| Some(name.split_once('_')?.1));
        let is_it = |agent: &Agent| match pid {
            Some(pid) => (1000 + agent.conn).to_string() == pid,
            None => format!("node{}", agent.host) == name,
        };
        let found: Vec<usize> = all().filter(|(_, agent)| is_it(agent)).map(|(n, _)| n).collect();
        // An operator may have named it before it came.
        let is_named = self.is_named && (0..HOSTS).any(|host| format!("node{host}") == name);
        if found.is_empty() && !is_named { Err(format!("nobody is called {name}")) } else { Ok(found) }
    }

    /// Whether this held of each of the names at some moment just before, at the same for all.
    fn all(&self, at: f64, names: &[String], holds: impl Fn(&Moment, &Agent) -> bool) -> Checked {
        let called: Vec<Vec<usize>> = names.iter().map(|name| self.called(name)).collect::<Result<_, _>>()?;
        let is_so = |moment: &Moment| {
            let one = |which: &Vec<usize>| {
                which.iter().filter_map(|&n| moment.agents.get(n)).any(|agent| holds(moment, agent))
            };
            called.iter().all(one)
        };
        yes(self.past.any(at, is_so), &format!("not so of {names:?}"))
    }
}

impl World for Truth {
    type Op = Op;
    const RUN: &'static str = "job";

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
        match op {
            Op::Come(host) => {
                if self.on(host).is_none() && self.frozen_on(host).is_none() {
                    self.come(host);
                }
            }
            Op::Die(host) => {
                if let Some(n) = self.on(host).or(self.frozen_on(host)) {
                    self.leave(n);
                }
            }
            Op::Freeze(host) => {
                if let Some(n) = self.on(host) {
                    self.now.agents[n].acts = false;
                }
            }
            Op::Thaw(host) => {
                if let (None, Some(n)) = (self.on(host), self.frozen_on(host)) {
                    self.now.agents[n].acts = true;
                }
            }
            Op::Replace(host) => {
                if let Some(n) = self.on(host) {
                    self.now.agents[n].acts = false;
                    self.come(host);
                }
            }
            Op::Restart(host) => {
                if let Some(n) = self.on(host).filter(|&n| self.now.agents[n].phase == Phase::Runs) {
                    self.join_again(n);
                }
            }
            Op::Fail(host) => {
                if let Some(n) = self.on(host).filter(|&n| self.now.agents[n].phase == Phase::Runs) {
                    self.close(n);
                }
            }
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

    fn remember(&mut self) {
        self.past.0.push((self.seconds(), self.now.clone()));
    }

    fn check(&self, at: f64, said: &Explanation) -> Checked {
        let facts = &said.facts;
        let any = |holds: &dyn Fn(&Moment) -> bool, why: &str| yes(self.past.any(at, holds), why);
        let is_in = |_: &Moment, agent: &Agent| agent.connected && agent.place == Place::In;
        match said.code.as_str() {
            "run_started" if facts["who"].is_string() => {
                self.all(at, &[text(facts, "who").into()], |_, agent| agent.place == Place::In)
            }
            "round_complete" => {
                let nodes = number(facts, "nodes");
                any(&|m| m.round.complete && m.round.group == nodes, "not complete with so many")?;
                let dead = names(facts, "dead");
                self.all(at, &dead, |_, agent| agent.place == Place::In && !agent.connected)?;
                let all_dead = |m: &Moment| {
                    let is_dead = |agent: &&Agent| agent.place == Place::In && !agent.connected;
                    m.round.complete && m.agents.iter().filter(is_dead).count() >= dead.len()
                };
                any(&all_dead, "not so many are dead")?;
                self.all(at, &[text(facts, "last").into()], |_, agent| agent.place == Place::In)
            }
            "nodes_missing" => {
                let (joined, present) = (number(facts, "joined"), names(facts, "present"));
                any(&|m| !m.round.complete && m.count(Place::In) == joined, "not so many")?;
                self.all(at, &present, is_in)?;
                self.all(at, &names(facts, "gone"), |_, agent| !agent.connected || !agent.acts)?;
                let is_beside = |_: &Moment, agent: &Agent| agent.connected && agent.place != Place::In;
                self.all(at, &names(facts, "connected"), is_beside)?;
                let first = facts["first"].as_f64().unwrap_or_default();
                let has_waited = |m: &Moment| m.there(Place::In).any(|a| a.joined <= at - first + DELAY);
                any(&has_waited, "nobody has waited for so long")?;
                let missing = names(facts, "missing");
                for name in &missing {
                    let called = self.called(name)?;
                    // Where a host was replaced, its name may mean the agent before.
                    let is_in = |agent: &Agent| agent.connected && agent.place == Place::In;
                    let is_out = |m: &Moment| {
                        called.iter().any(|&n| m.agents.get(n).is_none_or(|agent| !is_in(agent)))
                    };
                    if !called.is_empty() {
                        any(&is_out, &format!("{name} is there"))?;
                    }
                }
                let Some(expected) = facts["expected"].as_u64().map(|n| n as usize) else { return Ok(()) };
                let others = names(facts, "gone").len() + names(facts, "connected").len();
                yes(missing.len() + others <= expected - joined, "more are missing than are")?;
                match text(facts, "from") {
                    "flag" | "api" => yes(self.flag == Some(expected), "not expected"),
                    _ => yes(self.groups.contains(&expected), "no round had so many"),
                }
            }
            "nnodes_differ" if facts["who"].is_object() => {
                yes(self.nodes.iter().any(|nodes| *nodes != self.nodes[0]), "all have the same nnodes")?;
                let joined = number(facts, "joined");
                let expected = number(facts, "expected");
                self.all(at, &names(facts, "who"), |_, agent| agent.nodes.0 != expected)?;
                any(&|m| !m.round.complete && m.count(Place::In) == joined, "not so many")
            }
            "node_came_late" => {
                let joined = number(facts, "joined");
                // torch counts those that have died, too, until it notices.
                let so_many = |m: &Moment| {
                    let (least, most) = m.taken_out().into_inner();
                    let all = m.agents.iter().filter(|agent| m.has(agent)).count();
                    (m.left() + least..=all + most).contains(&joined)
                };
                any(&so_many, "not so many")?;
                let who: Vec<String> = text(facts, "node")
                    .split(" and ")
                    .flat_map(|n| n.split(", "))
                    .map(str::to_owned)
                    .collect();
                if facts["arrival"] == "back" {
                    return self.all(at, &who, Moment::goes_on);
                }
                self.all(at, &who, |_, agent| agent.place == Place::In)
            }
            "lost" if facts["by"].is_null() => {
                let (nodes, left) = (names(facts, "nodes"), number(facts, "left"));
                self.all(at, &nodes, |_, agent| !agent.connected && !agent.finished)?;
                // It was alive not long before.
                for node in &nodes {
                    self.all(at - 1.0, std::slice::from_ref(node), |_, agent| agent.connected)?;
                }
                let (least, most) = (left.saturating_sub(HOSTS), left);
                let is_so = |m: &Moment| {
                    let others = m.taken_out();
                    let is_left =
                        |n: usize| (n..=n + m.waiting()).contains(&left) || others.contains(&(left - n));
                    (least..=most).any(|n| m.left() == n && is_left(n))
                };
                any(&is_so, "not so many left")
            }
            "lost" => {
                let (nodes, left) = (names(facts, "nodes"), number(facts, "left"));
                let is_silent = |_: &Moment, agent: &Agent| {
                    agent.connected && agent.beat < at - DEAD_AFTER + 2.0 && !agent.finished
                };
                self.all(at, &nodes, is_silent)?;
                self.all(at, &[text(facts, "by").into()], |_, agent| agent.acts || !agent.connected)?;
                // The one that wrote it may join with that, and another after it.
                let is_so = |m: &Moment| {
                    (left..=left + 2).contains(&m.left())
                        || (m.left()..=m.left() + m.waiting()).contains(&left)
                };
                any(&is_so, "not so many left")
            }
            "node_silent" => {
                let is_silent = |_: &Moment, agent: &Agent| {
                    agent.connected && agent.beat < at - 2.0 * HEARTBEAT + 2.0 && !agent.finished
                };
                self.all(at, &names(facts, "nodes"), is_silent)
            }
            "run_ended" => any(&|m| m.agents.iter().all(|agent| !agent.connected), "some are there"),
            "run_finished" => {
                let nodes = number(facts, "nodes");
                any(&|m| m.round.done && m.round.group == nodes, "it has not")
            }
            "run_closed" => {
                let by = self.called(text(facts, "by"))?;
                any(&|m| m.round.closed_by.is_some_and(|n| by.contains(&n)), "not by that one")?;
                if facts["finished"].is_u64() {
                    let finished = number(facts, "finished");
                    let runs = |m: &Moment, agent: &Agent| {
                        agent.connected && (m.has(agent) || agent.is_taken_out(&m.round))
                    };
                    self.all(at, &names(facts, "running"), runs)?;
                    return any(&|m| m.round.exited == finished, "not so many have");
                }
                let is_missing = |_: &Moment, agent: &Agent| agent.place != Place::In;
                let missing = names(facts, "missing").into_iter();
                let have_come = missing.filter(|name| self.called(name).is_ok_and(|who| !who.is_empty()));
                self.all(at, &have_come.collect::<Vec<_>>(), is_missing)
            }
            "join_refused" => {
                for newcomer in names(facts, "newcomers") {
                    self.called(&newcomer)?;
                }
                let by = facts["by"].as_str().map(|by| self.called(by)).transpose()?;
                let is_by = |n: &usize| by.as_ref().is_none_or(|by| by.contains(n));
                any(&|m| m.round.closed_by.as_ref().is_some_and(is_by), "not by that one")
            }
            "nnodes_differ" if facts["newcomers"].is_object() => {
                let other = self.called(text(facts, "other"))?;
                let other = other.iter().map(|&n| self.now.agents[n].nodes.1).max();
                self.all(at, &names(facts, "newcomers"), |_, agent| Some(agent.nodes.1) > other)
            }
            "stands_by" => {
                let group = number(facts, "group");
                any(&|m| m.round.complete && m.round.group == group, "no such round")?;
                let place = if facts["redundant"] == true { Place::Redundant } else { Place::Waits };
                // One that is frozen while it waits, between two signs of life or two writes of its own, cannot be told from
                // one that is not.
                let stays = |m: &Moment, agent: &Agent| {
                    agent.place == Place::In || agent.connected && agent.is_taken_out(&m.round)
                };
                let is_beside = |m: &Moment, agent: &Agent| {
                    // It puts itself on the list and takes itself off, again and again.
                    let comes_and_goes = place == Place::Redundant
                        && agent.place == Place::Nowhere
                        && agent.nodes.1 < m.round.group;
                    agent.connected && (agent.place == place || comes_and_goes)
                };
                self.all(at, &names(facts, "staying"), stays)?;
                self.all(at, &names(facts, "dead"), |_, agent| agent.place == Place::In && !agent.connected)?;
                self.all(at, &names(facts, "left_over"), is_beside)
            }
            "nnodes_differ" if facts["formed"].is_u64() => {
                let (formed, expected) = (number(facts, "formed"), number(facts, "expected"));
                yes(self.flag == Some(expected) && formed < expected, "not expected")?;
                any(&|m| m.round.complete && m.round.group == formed, "not so many")
            }
            "exit_barrier" => {
                let arrived = number(facts, "arrived");
                any(&|m| m.round.exited == arrived && !m.round.done, "not so many")?;
                self.all(at, &names(facts, "running"), |_, agent| agent.connected && !agent.finished)?;
                self.all(at, &names(facts, "taken_out"), |_, agent| agent.connected && !agent.finished)?;
                yes(names(facts, "silent").is_empty(), "no agent is missed here, and no link is away")?;
                self.all(at, &names(facts, "dead"), |_, agent| !agent.connected && !agent.finished)
            }
            "waiting" => {
                self.all(at, &names(facts, "ended"), |_, agent| !agent.connected)?;
                let rank = rank_in(text(facts, "who"));
                let holds = |m: &Moment, is_it: &dyn Fn(&Agent) -> bool| {
                    let has_rank = |agent: &&Agent| agent.seat.map(|seat| seat.rank) == rank;
                    m.agents.iter().filter(has_rank).any(is_it)
                };
                if facts["but"]["why"] == "round_over" {
                    return Ok(());
                }
                match text(&facts["presence"], "is") {
                    "never_seen" => any(&|m| !holds(m, &|agent| agent.connected), "it is there"),
                    "connected" => any(
                        &|m| holds(m, &|agent| agent.connected && !(agent.waits && agent.acts)),
                        "it is not connected, or waits",
                    ),
                    "closed" => any(&|m| holds(m, &|agent| !agent.connected), "it is not gone"),
                    "left" => any(
                        &|m| {
                            let is_of_round = |seat: Seat| seat.round == m.round.number;
                            m.round.complete && !holds(m, &|agent| agent.seat.is_some_and(is_of_round))
                        },
                        "it is in the round, or died in it",
                    ),
                    "unknown" => Ok(()),
                    other => Err(format!("cannot be: {other}")),
                }
            }
            "gave_up" => {
                self.all(at, &names(facts, "who"), |_, agent| !agent.connected)?;
                let Some(rank) = rank_in(text(facts, "writer")) else { return Ok(()) };
                let key = text(facts, "key");
                let of_key = key.rsplit('/').next().and_then(|end| end.parse().ok()).unwrap_or(0);
                let of_key = if key.contains("assigned_ranks") { 0 } else { of_key };
                yes(rank == of_key, "another should have")
            }
            "run_started" => yes(self.past.0.iter().any(|(_, m)| m.round.done), "it never finished"),
            "workers_elsewhere" => Ok(()),
            _ => Err("that cannot be".into()),
        }
    }

    /// Those who cannot go on are told why, and the numbers are right.
    fn check_end(&self) -> Checked {
        let Some(run) = self.lab.insight.run("job", None, None, self.lab.now) else { return Ok(()) };
        let (moment, nodes) = (&self.now, &run.summary.nodes);
        let is_over = moment.round.done
            || moment.round.closed_by.is_some()
            || moment.agents.iter().all(|agent| !agent.connected);
        let state = run.summary.state;
        yes(state.is_over() == is_over, &format!("its state is {state:?}"))?;
        if is_over {
            return Ok(());
        }
        let joined = nodes.joined as usize;
        // Who has finished has left nobody alone.
        let is_counted = |agent: &&Agent| moment.has(agent) && (agent.connected || agent.finished);
        let counted = moment.agents.iter().filter(is_counted).count();
        let (least, most) = moment.taken_out().into_inner();
        yes((counted + least..=counted + most).contains(&joined), &format!("{joined} are joined"))?;
        let is_lost = |agent: &&Agent| agent.place == Place::In && !agent.connected && !agent.finished;
        let is_back = |host: usize| moment.agents.iter().any(|agent| agent.connected && agent.host == host);
        let lost = moment.agents.iter().filter(is_lost);
        let (all, for_good) = (lost.clone().count(), lost.filter(|lost| !is_back(lost.host)).count());
        let gone = nodes.gone as usize;
        yes((for_good..=all).contains(&gone), &format!("{gone} are gone"))?;
        let waits = |agent: &&Agent| agent.connected && matches!(agent.phase, Phase::AtExit { .. });
        for waiting in moment.agents.iter().filter(waits) {
            let is_it = |wait: &&Wait| wait.pid == Some(1000 + waiting.conn);
            let who = run.waits.iter().find(is_it).and_then(|wait| wait.who.as_deref()).unwrap_or_default();
            yes(!who.starts_with("process"), &format!("who waits at the exit barrier is called {who}"))?;
        }
        for missing in run.missing.iter().filter_map(|missing| missing.name.as_ref()) {
            let called = self.called(missing)?;
            let is_there = |&n: &usize| {
                let agent = &moment.agents[n];
                agent.connected && agent.place == Place::In
            };
            yes(called.is_empty() || !called.iter().all(is_there), &format!("{missing} is missing"))?;
            let goes_on = |&n: &usize| moment.goes_on(&moment.agents[n]);
            yes(
                called.is_empty() || !called.iter().all(goes_on),
                &format!("{missing} is missing, and goes on"),
            )?;
        }
        // Who died in the complete round is named, as long as somebody is missing.
        let waits = |host: usize| moment.there(Place::Waits).any(|agent| agent.host == host);
        let died = |agent: &&Agent| {
            let is_of_round = |seat: Seat| seat.round == moment.round.number;
            !agent.connected && !agent.finished && agent.seat.is_some_and(is_of_round) && !waits(agent.host)
        };
        let dead = moment.agents.iter().filter(|_| moment.round.complete).filter(died).count();
        let missing = nodes.missing.unwrap_or_default() as usize;
        let are_named = run.missing.iter().filter(|missing| missing.name.is_some()).count();
        yes(are_named >= dead.min(missing), &format!("of {missing} that are missing {are_named} are named"))?;
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
        // It waited for a place, and the next round was complete without it at once.
        let before = self.past.0.iter().rev().find(|(at, _)| *at < due.at).map(|(_, moment)| moment);
        let waited = |moment: &&Moment| moment.there(Place::Waits).any(|agent| agent.name() == due.name);
        let is_next = |round: u64| {
            self.past.0.iter().any(|(_, moment)| moment.round.complete && moment.round.number == round)
        };
        let next = |round: &Round| round.number + u64::from(round.complete);
        let went_on = before.filter(waited).is_some_and(|moment| is_next(next(&moment.round)));
        // The run ended in the meantime, and they with it.
        went_on || self.now.round.done || self.now.round.closed_by.is_some()
    }
}

fn rank_in(label: &str) -> Option<usize> {
    label.split("node rank ").nth(1)?.trim_end_matches(')').parse().ok()
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
    let pause = prop::sample::select(vec![0, 2, 5, 10, 40, 90, 180_u32]);
    let expected =
        prop_oneof![2 => Just(Expected::Nothing), 2 => Just(Expected::Flag), 1 => Just(Expected::Named)];
    (nodes(), expected, prop::collection::vec((op(), pause), 1..16))
}

#[test]
fn what_is_said_of_c10d_nodes_is_the_truth() {
    play_all("c10d", &schedule(), |(nodes, expected, schedule)| {
        played(Truth::new(nodes, expected), &format!("{nodes:?} {expected:?}"), schedule)
    });
}
