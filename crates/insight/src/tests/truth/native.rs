//! Agents of the plugin: the native rendezvous, which knows its nodes and may be wrong about how they are.

use proptest::prelude::*;

use super::super::lab::Lab;
use super::super::native::{Native, address};
use super::{Play, Schedule, play_all, played, schedules};
use crate::testing::oracle::{Being, World};
use rallypoint_rendezvous::{Action, JoinStanding, LeaveRequest, Outcome, RankInRound};

const HOSTS: usize = 4;
/// How long a request waits at the server before it is sent again.
const POLL: f64 = 5.0;

#[derive(Debug, Clone, Copy)]
enum Op {
    /// An agent is started on this host, if none is there.
    Come(usize),
    ComeAll,
    /// It is killed, and its connections close.
    Die(usize),
    Freeze(usize),
    Thaw(usize),
    /// Its workers fail, and it restarts them.
    Restart(usize),
    /// Its workers fail for good.
    Fail(usize),
    /// Its workers succeed.
    Finish(usize),
    FinishAll,
    /// An operator gives more time.
    Extend,
    Close,
    /// The server is restarted, with its journal.
    Server,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Joins { redundant: bool },
    Runs,
    Finished,
    Failed,
    Refused,
}

#[derive(Debug, Clone)]
struct Agent {
    host: usize,
    id: String,
    joins: u32,
    place: Option<RankInRound>,
    phase: Phase,
    connected: bool,
    acts: bool,
    /// A request of it waits at the server.
    polls: bool,
    /// When it was last heard of.
    heard: f64,
    /// Since when it is in this phase.
    since: f64,
}

impl Agent {
    /// It has a place in the round that forms, as far as it knows.
    const fn joins(&self) -> bool {
        matches!(self.phase, Phase::Joins { redundant: false })
    }

    const fn is_there(&self) -> bool {
        self.connected && matches!(self.phase, Phase::Joins { .. } | Phase::Runs)
    }
}

#[derive(Debug, Clone, Default)]
struct Moment {
    agents: Vec<Agent>,
    round: u64,
    finished: u32,
    size: u32,
}

struct Truth {
    native: Native,
    now: Moment,
}

impl Truth {
    fn new(nodes: (u32, u32)) -> Self {
        let mut native = Native::soon(nodes);
        native.lab.pauses = vec![250];
        Self { native, now: Moment::default() }
    }

    fn on(&self, host: usize) -> Option<usize> {
        self.now.agents.iter().position(|agent| agent.host == host && agent.is_there())
    }

    fn running(&self, host: usize) -> Option<usize> {
        self.on(host).filter(|&n| self.now.agents[n].phase == Phase::Runs && self.now.agents[n].acts)
    }

    fn come(&mut self, host: usize) {
        if self.on(host).is_some() {
            return;
        }
        let since = self.native.lab.seconds();
        self.now.agents.push(Agent {
            host,
            id: format!("h{host}-{}", self.now.agents.len()),
            joins: 0,
            place: None,
            phase: Phase::Joins { redundant: false },
            connected: true,
            acts: true,
            polls: true,
            heard: since,
            since,
        });
        self.join(self.now.agents.len() - 1);
    }

    /// It joins, or joins again.
    fn join(&mut self, n: usize) {
        let now = self.native.lab.seconds();
        let agent = &mut self.now.agents[n];
        agent.joins += 1;
        (agent.phase, agent.heard, agent.since) = (Phase::Joins { redundant: false }, now, now);
        self.ask(n);
        self.look();
    }

    /// Its join is sent, for the first time or as it was.
    fn ask(&mut self, n: usize) {
        let agent = self.now.agents[n].clone();
        let (name, join) = (format!("h{}", agent.host), agent.joins.to_string());
        match self.native.join_as(&agent.id, &name, &address(agent.host as u32), &join, agent.place) {
            Ok(()) => {
                let heard = self.native.lab.seconds();
                (self.now.agents[n].heard, self.now.agents[n].polls) = (heard, true);
            }
            Err(_) => self.refused(n),
        }
    }

    /// Its agent ends, and its connections close.
    fn refused(&mut self, n: usize) {
        self.native.cut(&self.now.agents[n].id.clone());
        let agent = &mut self.now.agents[n];
        (agent.phase, agent.acts, agent.connected) = (Phase::Refused, false, false);
    }

    fn end(&mut self, host: usize, outcome: Outcome) {
        let Some(n) = self.running(host) else { return };
        let id = self.now.agents[n].id.clone();
        // One that was frozen may be of a round that is over.
        let is_of_round = self.now.agents[n].place.is_some_and(|place| place.round == self.now.round);
        if outcome == Outcome::Succeeded && is_of_round {
            self.now.finished += 1;
        }
        // torch's agent closes the run as it ends.
        self.native.close(&format!("node {id}"));
        self.native.leave(&id, LeaveRequest { why: None, outcome: Some(outcome) });
        let agent = &mut self.now.agents[n];
        agent.phase = if outcome == Outcome::Succeeded { Phase::Finished } else { Phase::Failed };
        (agent.connected, agent.acts) = (false, false);
    }

    /// Who has got a place, or an error. One that is frozen has not read it.
    fn look(&mut self) {
        let now = self.native.lab.seconds();
        for n in 0..self.now.agents.len() {
            let agent = &self.now.agents[n];
            if !matches!(agent.phase, Phase::Joins { .. }) {
                continue;
            }
            let (acts, before) = (agent.acts, agent.phase);
            let after = match self.native.standing(&agent.id) {
                Ok(JoinStanding::Complete { round, rank }) => {
                    if round.number > self.now.round {
                        self.now.round = round.number;
                        self.now.size = round.participants.len() as u32;
                        self.now.finished = 0;
                    }
                    if acts {
                        self.now.agents[n].place = Some(RankInRound { round: round.number, rank });
                    }
                    Phase::Runs
                }
                Ok(JoinStanding::Waiting) => Phase::Joins { redundant: false },
                Ok(JoinStanding::Redundant) => Phase::Joins { redundant: true },
                Err(_) if acts => {
                    self.refused(n);
                    continue;
                }
                Err(_) => continue,
            };
            if acts && after != before {
                (self.now.agents[n].phase, self.now.agents[n].since) = (after, now);
            }
        }
    }
}

impl Play for Truth {
    type Op = Op;
    const RUN: &'static str = "job";

    fn lab(&mut self) -> &mut Lab {
        &mut self.native.lab
    }

    fn play(&mut self, op: Op) {
        self.native.lab.pass(0.001);
        match op {
            Op::Come(host) => self.come(host),
            Op::ComeAll => (0..HOSTS).for_each(|host| self.come(host)),
            Op::Die(host) => {
                if let Some(n) = self.on(host) {
                    self.native.cut(&self.now.agents[n].id.clone());
                    let at = self.native.lab.seconds();
                    let agent = &mut self.now.agents[n];
                    (agent.connected, agent.acts, agent.since) = (false, false, at);
                }
            }
            Op::Freeze(host) => self.on(host).into_iter().for_each(|n| self.now.agents[n].acts = false),
            Op::Thaw(host) => self.on(host).into_iter().for_each(|n| self.now.agents[n].acts = true),
            Op::Restart(host) => self.running(host).into_iter().for_each(|n| self.join(n)),
            Op::Fail(host) => self.end(host, Outcome::Failed),
            Op::Finish(host) => self.end(host, Outcome::Succeeded),
            Op::FinishAll => (0..HOSTS).for_each(|host| self.end(host, Outcome::Succeeded)),
            Op::Extend => self.native.extend(60),
            Op::Close => self.native.close("an operator"),
            Op::Server => {
                self.native.restart_server();
                let now = self.native.lab.seconds();
                for n in 0..self.now.agents.len() {
                    let agent = &mut self.now.agents[n];
                    if agent.acts && matches!(agent.phase, Phase::Joins { .. }) {
                        self.ask(n);
                    } else if !agent.acts {
                        // All count as heard of then, and no connection of theirs closes.
                        (agent.polls, agent.heard) = (false, now);
                    }
                }
            }
        }
        self.look();
    }

    /// Each agent reads what the server answers, and does it.
    fn act(&mut self) {
        let now = self.native.lab.seconds();
        for n in 0..self.now.agents.len() {
            let agent = self.now.agents[n].clone();
            if !agent.is_there() {
                continue;
            }
            if !agent.acts {
                // Its last request ends, and no other comes.
                if agent.polls && now >= agent.heard + POLL {
                    self.native.unpark(&agent.id);
                    self.now.agents[n].polls = false;
                }
                continue;
            }
            if let (Phase::Runs, Some(place)) = (agent.phase, agent.place) {
                let size = self.now.size;
                let (name, join) = (format!("h{}", agent.host), agent.joins.to_string());
                let heard =
                    self.native.beat_as(&agent.id, &name, &address(agent.host as u32), &join, place, size);
                (self.now.agents[n].heard, self.now.agents[n].polls) = (now, true);
                if heard.is_ok_and(|action| action == Action::Rejoin) {
                    self.join(n);
                }
            } else {
                self.ask(n);
            }
        }
        self.look();
    }

    fn tick(&mut self) {
        self.native.tick();
    }

    fn world(&self) -> World {
        let agents = &self.now.agents;
        let forms = agents.iter().any(Agent::joins);
        let being = |agent: &Agent| Being {
            names: [format!("h{}", agent.host), address(agent.host as u32)].into(),
            place: agent.place.map(|place| place.rank),
            holds: agent.joins() || agent.phase == Phase::Runs && !forms,
            connected: agent.connected,
            acts: agent.acts,
            finished: matches!(agent.phase, Phase::Finished | Phase::Failed | Phase::Refused),
            heard: agent.heard,
            waits: Some((agent.since, Vec::new())).filter(|_| agent.connected && agent.acts && agent.joins()),
            ..Being::default()
        };
        let is_there = |agent: &&Agent| agent.is_there() || !agent.acts;
        let there = agents.iter().filter(is_there).count();
        World {
            place: "node",
            beings: agents.iter().map(being).collect(),
            complete: self.now.size > 0,
            counts: vec![("joined", 0, there), ("left", 0, there)],
            ..World::default()
        }
    }
}

fn schedule() -> impl Strategy<Value = ((u32, u32), Schedule<Op>)> {
    let host = || 0..HOSTS;
    let op = prop_oneof![
        8 => host().prop_map(Op::Come),
        2 => Just(Op::ComeAll),
        3 => host().prop_map(Op::Die),
        2 => host().prop_map(Op::Freeze),
        2 => host().prop_map(Op::Thaw),
        2 => host().prop_map(Op::Restart),
        1 => host().prop_map(Op::Fail),
        1 => host().prop_map(Op::Finish),
        1 => Just(Op::FinishAll),
        1 => Just(Op::Extend),
        1 => Just(Op::Close),
        1 => Just(Op::Server),
    ];
    let nodes = prop::sample::select(vec![(2, 2), (3, 3), (4, 4), (2, 3), (1, 4), (2, 4)]);
    (nodes, schedules(op, 180))
}

#[test]
fn what_is_said_of_native_nodes_is_the_truth() {
    play_all("native", &schedule(), |(nodes, schedule)| {
        played(Truth::new(nodes), &format!("{nodes:?}"), schedule)
    });
}
