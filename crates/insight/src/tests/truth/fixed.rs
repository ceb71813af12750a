//! Agents of the static rendezvous, one job after the other: all have the run id `none`.

use proptest::prelude::*;

use super::super::lab::Lab;
use super::{Play, Schedule, play_all, played, schedules};
use crate::testing::oracle::{Being, World};

const HOSTS: usize = 4;
const RUN: &str = "none";

#[derive(Debug, Clone, Copy)]
enum Op {
    /// The agent of this host is started, if none is there.
    Come(usize),
    ComeAll,
    /// The agent of node rank 0 hosts a store of its own, and does nothing else before all have counted
    /// themselves here.
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
}

#[derive(Debug, Clone, Default)]
struct Moment {
    agents: Vec<Agent>,
    /// Jobs that have begun; all agents of one have to go before the next can begin.
    job: usize,
    exited: usize,
    done: bool,
    complete: bool,
    /// A node has come again to a job that was complete: now all have to.
    again: bool,
}

impl Moment {
    fn live(&self) -> impl Iterator<Item = &Agent> {
        self.agents.iter().filter(|agent| agent.connected)
    }
}

struct Truth {
    lab: Lab,
    now: Moment,
    /// The number of nodes that rank 0 was told, and the rank of each host.
    nodes: usize,
    ranks: [usize; HOSTS],
}

impl Truth {
    fn new(nodes: usize, ranks: [usize; HOSTS]) -> Self {
        let mut lab = Lab::soon();
        lab.pauses = vec![250];
        Self { lab, now: Moment::default(), nodes, ranks }
    }

    fn on(&self, host: usize) -> Option<usize> {
        self.now.agents.iter().position(|agent| agent.host == host && agent.connected)
    }

    fn come(&mut self, host: usize, phase: Phase) {
        // Where two have rank 0 and one hosts, nothing is known of them.
        let hosts = |phase: Phase| matches!(phase, Phase::Counts(_));
        let is_hosted = self.now.live().any(|agent| {
            agent.rank == 0 && (hosts(agent.phase) || hosts(phase) && agent.phase != Phase::Runs)
        });
        if self.on(host).is_some() || self.ranks[host] == 0 && is_hosted {
            return;
        }
        let (conn, rank) = (self.now.agents.len() as u32, self.ranks[host]);
        // Hosts that are not known yet belong to the next job.
        if self.now.done || self.now.live().all(|agent| hosts(agent.phase)) {
            self.now = Moment {
                agents: std::mem::take(&mut self.now.agents),
                job: self.now.job + 1,
                ..Moment::default()
            };
            // Who came too late for the job before is one of this.
            let job = self.now.job;
            let joins = |a: &Agent| hosts(a.phase) || a.phase == Phase::Exchanges;
            let late = self.now.agents.iter_mut().filter(|a| a.connected && joins(a));
            late.for_each(|agent| agent.job = job);
        }
        self.lab.come(conn, &format!("10.77.0.{}", 10 + host), 1000 + conn);
        self.lab.add(conn, "init/", 1);
        if phase == Phase::Exchanges {
            self.tell_role(conn, rank);
        }
        let (job, came) = (self.now.job, self.lab.seconds());
        let (connected, acts, finished, waits) = (true, true, false, false);
        self.now.agents.push(Agent { conn, host, rank, connected, acts, finished, phase, waits, job, came });
    }

    fn tell_role(&mut self, conn: u32, rank: usize) {
        self.now.again |= self.now.complete && rank < self.nodes;
        self.lab.set(conn, &format!("/{RUN}/torchelastic/role_info/{rank}"), b"{}");
    }

    fn leave(&mut self, n: usize) {
        self.lab.leave(self.now.agents[n].conn);
        self.now.agents[n].connected = false;
    }

    fn running(&self, host: usize) -> Option<usize> {
        self.on(host).filter(|&n| self.now.agents[n].phase == Phase::Runs && self.now.agents[n].acts)
    }

    fn finish(&mut self, host: usize) {
        let Some(n) = self.running(host) else { return };
        let conn = self.now.agents[n].conn;
        self.now.exited += 1;
        self.now.done |= self.now.exited == self.nodes;
        self.lab.reach_exit(conn, &format!("/{RUN}"), self.now.done);
        let agent = &mut self.now.agents[n];
        (agent.phase, agent.finished) = (Phase::AtExit, true);
    }

    /// It tells its role once more. It needs nobody, unless node rank 0 is lost; that one needs all.
    fn restart(&mut self, host: usize) {
        let Some(n) = self.running(host) else { return };
        let Agent { conn, rank, .. } = self.now.agents[n];
        let job = self.now.job;
        let is_there = |rank: usize| {
            self.now.agents.iter().any(|a| a.rank == rank && a.job == job && (a.connected || a.finished))
        };
        let needed = if rank == 0 { 0..self.nodes } else { 0..1 };
        self.now.again |= !needed.into_iter().all(is_there);
        self.lab.restart_workers(conn, RUN, rank as u32);
        let agent = &mut self.now.agents[n];
        (agent.phase, agent.came) = (Phase::Exchanges, self.lab.seconds());
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
                        let came = self.lab.seconds();
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
                        self.lab.hand_out_ranks(conn, &format!("/{RUN}"), self.nodes as u32, 1);
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
}

impl Play for Truth {
    type Op = Op;
    const RUN: &'static str = RUN;

    fn lab(&mut self) -> &mut Lab {
        &mut self.lab
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
            Op::Die(host) => self.on(host).into_iter().for_each(|n| self.leave(n)),
            Op::DieAll => (0..self.now.agents.len()).for_each(|n| self.leave(n)),
            Op::Freeze(host) => {
                if let Some(n) = self.on(host) {
                    self.now.agents[n].acts = false;
                    self.lab.frozen.insert(self.now.agents[n].conn);
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
    }

    fn world(&self) -> World {
        let now = &self.now;
        let is_here = |agent: &&Agent| agent.connected && agent.job == now.job;
        let needs = |agent: &Agent| match (agent.phase, agent.rank) {
            (Phase::Counts(_), _) => Some((agent.came, Vec::new())).filter(|_| agent.acts),
            (_, 0) => Some((agent.came, (1..self.nodes as u32).collect())).filter(|_| agent.waits),
            _ => Some((agent.came, vec![0])).filter(|_| agent.waits),
        };
        let being = |agent: &Agent| Being {
            names: [format!("pid {}", 1000 + agent.conn), format!("10.77.0.{}", 10 + agent.host)].into(),
            // One that was frozen before it counted is known by nothing.
            place: Some(agent.rank as u32).filter(|_| agent.phase != Phase::Counts(0) || agent.acts),
            holds: agent.job == now.job && !matches!(agent.phase, Phase::Counts(_)),
            connected: agent.connected,
            acts: agent.acts,
            finished: agent.finished,
            waits: needs(agent).filter(|_| agent.connected),
            ..Being::default()
        };
        let joined = now.agents.iter().filter(is_here).count();
        World {
            place: "node",
            beings: now.agents.iter().map(being).collect(),
            complete: now.complete && !now.again,
            counts: vec![("joined", 0, joined), ("left", 0, now.live().count()), ("arrived", 0, now.exited)],
            ..World::default()
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
    let wrong = prop::option::weighted(0.2, (0..HOSTS, 0..HOSTS));
    // Rank 0 may have been told a smaller number than there are nodes.
    (prop_oneof![4 => Just(HOSTS), 1 => 2..HOSTS], wrong, schedules(op, 90))
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

#[test]
fn what_was_false_once_is_true() {
    let again = vec![(Op::ComeAll, 0), (Op::Freeze(2), 105), (Op::FinishAll, 105), (Op::Host, 40)];
    let waits_on =
        vec![(Op::Host, 90), (Op::ComeAll, 0), (Op::ComeAll, 45), (Op::FinishAll, 110), (Op::Come(1), 40)];
    for (ranks, schedule) in [([0, 1, 2, 2], again), ([0, 1, 2, 0], waits_on)] {
        assert_eq!(played(Truth::new(3, ranks), "", schedule).checked, Ok(()));
    }
}
