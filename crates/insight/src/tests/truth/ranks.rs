//! Ranks without agents: each counts itself, publishes its address, and reads those of all others, one after the other.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::super::lab::Lab;
use super::complete::{Cause, Due, FACT, LOOKED, named};
use super::{Checked, DELAY, Past, Schedule, World, agree, names, number, play_all, played, text, yes};
use crate::Settings;
use rallypoint_api::{Explanation, RunState, Severity};
use rallypoint_store::StaleKeyConfig;

const RANKS: u32 = 4;
/// The largest world size that a process is told.
const MOST: u32 = RANKS + 1;
const EXPLAIN_AFTER: f64 = 3.0;
/// Until a process gives up on the address of another, and ends.
const PATIENCE: f64 = 25.0;
const RUN: &str = "store:29500";

#[derive(Debug, Clone, Copy)]
enum Op {
    /// The rank's process comes and publishes its address, if none is there.
    Come(u32),
    ComeAll,
    /// It connects and counts itself, and is busy with something else.
    Connect(u32),
    /// It goes on.
    Publish(u32),
    /// Rank 0 comes, hosts a store of its own, and publishes nothing before so many have counted themselves here.
    Host(u32),
    /// The same, and it is busy after that.
    HostBusy,
    /// It is told another world size than the others.
    ComeWrong(u32, u32),
    /// Another process comes with this rank, though one is there.
    Duplicate(u32),
    /// A job of so many ranks comes, whoever is there.
    SecondJob(u32),
    /// All that have met with those of this rank end.
    EndJob(u32),
    Die(u32),
    DieAll,
    /// It is killed, and started again at once.
    Restart(u32),
    /// An operator resets the store.
    Reset,
    /// It acts no more, and its connection stays open.
    Freeze(u32),
    /// Once it has met the others, it waits for a key of the program.
    Ask(u32),
    /// It writes that key.
    Answer(u32),
    /// Once it has met the others, it makes a sub-group with another, and waits for that.
    Group(u32, u32),
}

/// A host reads again and again how many have counted themselves.
#[derive(Debug, Clone, Copy)]
struct Counts {
    since: f64,
    read: u32,
    /// The number is not there: an operator reset the store.
    blocked: bool,
}

#[derive(Debug, Clone)]
struct Process {
    /// Its connection; its host has the same number, and its process id is 2000 more.
    conn: u32,
    rank: u32,
    world: u32,
    connected: bool,
    /// It hosts a store of its own…
    hosted: bool,
    /// …and waits until all have come.
    counts: Option<Counts>,
    /// It is busy before it publishes.
    held: bool,
    published: bool,
    /// It has read the addresses of those before this one.
    next: u32,
    /// Since when it waits for that one's.
    waits: Option<f64>,
    /// It acts no more.
    frozen: bool,
    /// What it waits for once it has met the others, and the member of a sub-group that this is.
    asks: Option<(String, Option<u32>)>,
    /// When it published, had met all others, and ended.
    came: f64,
    met: f64,
    ended: f64,
}

impl Process {
    const fn is_rank(&self) -> bool {
        self.connected && self.published
    }

    /// Whether it hosts its job, and waits until all have come.
    fn hosts(&self) -> bool {
        // Whether it is frozen while it waits for the number is not to be seen.
        self.connected && self.counts.is_some_and(|counts| counts.blocked || !self.frozen)
    }

    fn is_silent(&self) -> bool {
        self.connected && !self.published && !self.hosts()
    }

    fn waits_for(&self, rank: u32) -> bool {
        self.connected && self.waits.is_some() && self.next == rank && rank < self.world
    }

    fn asks_for(&self, key: &str) -> bool {
        let is_it = self.asks.as_ref().is_some_and(|(own, _)| own == key);
        is_it && self.connected && self.waits.is_some() && self.next >= self.world
    }

    fn label(&self) -> String {
        if self.published {
            format!("rank {} on host{}", self.rank, self.conn)
        } else {
            format!("process {} at ", 2000 + self.conn)
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Moment {
    processes: Vec<Process>,
    /// The addresses that are in the store.
    there: BTreeSet<u32>,
    /// Others have come after all of a job had met, while all of these were there.
    beside: bool,
}

impl Moment {
    fn live(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(|process| process.connected)
    }

    /// The ranks of which a process is there that has published.
    fn ranks(&self) -> BTreeSet<u32> {
        self.processes.iter().filter(|process| process.is_rank()).map(|process| process.rank).collect()
    }

    /// The same, where of two that claim one rank the last counts.
    fn last_of_ranks(&self) -> BTreeSet<u32> {
        let of = |rank: u32| self.processes.iter().filter(move |p| p.published && p.rank == rank);
        let last = |rank: &u32| of(*rank).max_by(|a, b| a.came.total_cmp(&b.came));
        (0..MOST).filter(|rank| last(rank).is_some_and(Process::is_rank)).collect()
    }

    fn has(&self, rank: u32) -> bool {
        self.ranks().contains(&rank)
    }

    /// Whether all ranks of a job have met, and are there. Others may be beside them.
    fn goes_on(&self) -> bool {
        let met = || self.live().filter(|process| process.met.is_finite());
        let is_met = |rank: u32, world: u32| met().any(|p| p.rank == rank && p.world == world);
        met().next().is_some_and(|first| (0..first.world).all(|rank| is_met(rank, first.world)))
    }

    fn has_met(&self, world: u32) -> bool {
        (0..world).all(|rank| self.has(rank))
    }

    /// Whether all ranks are there that are prepared for so many.
    fn is_whole(&self, world: u32) -> bool {
        (0..world).all(|rank| self.live().any(|p| p.is_rank() && p.rank == rank && p.world == world))
    }

    /// Whether jobs of several sizes are there.
    fn has_several(&self) -> bool {
        self.live().filter(|p| p.published).map(|p| p.world).collect::<BTreeSet<_>>().len() > 1
    }
}

struct Truth {
    lab: Lab,
    now: Moment,
    past: Past<Moment>,
    checked: usize,
    /// When nobody was there last.
    empty: f64,
    /// The same but for one that hosts.
    hosted_alone: f64,
    /// When an operator reset the store last, and the addresses that were there.
    reset: f64,
    were_there: BTreeSet<u32>,
    /// How many had come before.
    came_before_reset: u32,
    /// How often the key of the program was written.
    answers: u32,
    due: Vec<Due>,
    /// Second jobs have come.
    mixed: bool,
}

/// The c10d run beside them.
const BESIDE: &str = "beside";

/// The process that a name means, or only its rank.
enum Named {
    Process(usize),
    Rank(u32),
}

fn key(rank: u32) -> String {
    format!("/default_pg/0//cpu//0/{rank}")
}

impl Truth {
    fn new() -> Self {
        let explain_after = Duration::from_secs_f64(EXPLAIN_AFTER);
        let mut lab = Lab::with(Settings { explain_after, ..Settings::default() }, StaleKeyConfig::default());
        lab.pauses = vec![250];
        let (now, past, due) = (Moment::default(), Past(Vec::new()), Vec::new());
        Self {
            lab,
            now,
            past,
            checked: 0,
            empty: 0.0,
            hosted_alone: 0.0,
            reset: -1.0,
            were_there: BTreeSet::new(),
            came_before_reset: 0,
            answers: 0,
            due,
            mixed: false,
        }
    }

    /// Beside them is a c10d run of two nodes on other hosts, whose workers meet elsewhere.
    fn beside_a_c10d_run() -> Self {
        const AGENTS: [u32; 2] = [200, 201];
        let mut truth = Self::new();
        let lab = &mut truth.lab;
        for (n, change) in AGENTS.into_iter().zip(["join", "join complete"]) {
            lab.agent(n, BESIDE);
            lab.cas(n, BESIDE, change);
        }
        let key = |part: &str| format!("/torch.rendezvous.{BESIDE}.0/{part}");
        lab.set(AGENTS[0], &key("MASTER_ADDR"), b"node200");
        lab.set(AGENTS[0], &key("MASTER_PORT"), b"41234");
        let ranks =
            [0, 1].map(|n| (key(&format!("torchelastic/assigned_ranks/{n}")), format!("[{n}, 2, {n}, 2]")));
        lab.multi_set(AGENTS[0], &ranks);
        lab.pass(2.0);
        truth
    }

    fn on(&self, rank: u32) -> Option<usize> {
        self.now.processes.iter().position(|process| process.rank == rank && process.connected)
    }

    fn connect(&mut self, rank: u32, world: u32, held: bool) {
        let conn = self.now.processes.len() as u32;
        self.lab.worker(conn, &format!("10.0.{}.{rank}", conn / 100));
        let (connected, published, next, waits, asks) = (true, false, 0, None, None);
        let (frozen, came, met, ended) = (false, 0.0, f64::INFINITY, 0.0);
        let (hosted, counts) = (false, None);
        self.now.processes.push(Process {
            conn,
            rank,
            world,
            connected,
            hosted,
            counts,
            held,
            published,
            next,
            waits,
            frozen,
            asks,
            came,
            met,
            ended,
        });
    }

    fn come(&mut self, rank: u32, world: u32, held: bool) {
        if self.on(rank).is_none() {
            self.connect(rank, world.max(rank + 1), held);
        }
    }

    fn host(&mut self, world: u32, held: bool) {
        if self.on(0).is_none() {
            self.connect(0, world, held);
            let counts = Counts { since: self.seconds(), read: 0, blocked: false };
            let host = self.now.processes.last_mut().expect("it");
            (host.hosted, host.counts) = (true, Some(counts));
        }
    }

    /// It waits until the number is there, and reads it, every 10 ms. Returns whether all have come.
    fn count(&mut self, n: usize, mut counts: Counts) -> bool {
        let Process { conn, world, .. } = self.now.processes[n];
        if self.lab.has("init/") {
            // It reads it again at once.
            self.lab.count(conn);
            self.lab.pass(0.001);
            (counts.read, counts.blocked) = (self.lab.count(conn), false);
        } else {
            if !counts.blocked {
                self.lab.wait(conn, &["init/"]);
            }
            (counts.read, counts.blocked) = (0, true);
        }
        let have_come = !counts.blocked && counts.read >= world;
        self.now.processes[n].counts = Some(counts).filter(|_| !have_come);
        if !have_come && self.seconds() > counts.since + PATIENCE {
            self.die(n);
        }
        have_come
    }

    fn die(&mut self, n: usize) {
        self.lab.leave(self.now.processes[n].conn);
        let at = self.seconds();
        let process = &mut self.now.processes[n];
        (process.connected, process.ended) = (false, at);
        if self.is_missed(n) {
            let process = &self.now.processes[n];
            let (cause, name, or) = (Cause::Dead, process.label(), ["run_ended", "run_ended"].as_slice());
            self.due.push(Due { at, cause, name, or });
        }
        if self.now.live().next().is_none() {
            self.empty = self.seconds();
        }
        if self.now.live().all(Process::hosts) {
            self.hosted_alone = self.seconds();
        }
        let (met, others): (Vec<_>, Vec<_>) =
            self.now.live().filter(|process| process.published).partition(|process| process.met.is_finite());
        let both_are_there = !met.is_empty() && !others.is_empty();
        self.now.beside &= both_are_there;
    }

    /// Whether the end of this process has to be said: it had met, or others miss it who have not.
    fn is_missed(&self, n: usize) -> bool {
        let dead = &self.now.processes[n];
        let others = || self.now.live().filter(|other| other.published);
        let gathers = |other: &Process| other.met.is_infinite();
        let is_of_it = |other: &Process| gathers(other) && other.world == dead.world;
        // Another process goes on as this rank.
        let has_twin = others().any(|other| is_of_it(other) && other.rank == dead.rank);
        let lacks_it =
            |other: &Process| gathers(other) && dead.rank < other.world && !self.now.has(dead.rank);
        let nobody_has_met = others().all(gathers);
        let had_met = |other: &Process| other.met.is_finite() && other.met <= dead.came;
        let is_stranger = gathers(dead) && (self.now.beside || others().any(had_met));
        dead.published
            && !is_stranger
            && (dead.met.is_finite()
                || others().next().is_none()
                || !has_twin && others().any(is_of_it)
                || nobody_has_met && others().any(lacks_it))
    }

    /// Whether somebody has gone on.
    fn steps(&mut self) -> bool {
        let mut goes_on = false;
        for n in 0..self.now.processes.len() {
            let Process {
                conn,
                rank,
                world,
                connected,
                counts,
                held,
                published,
                next,
                waits,
                frozen,
                ref asks,
                ..
            } = self.now.processes[n];
            let (asks, at) = (asks.clone(), self.seconds());
            if !connected || frozen {
                continue;
            }
            if let Some(counts) = counts {
                goes_on |= self.count(n, counts);
            } else if held {
                // It is busy.
            } else if !published {
                self.expect_conflicts(n);
                self.lab.publish(conn, rank, world as usize);
                let process = &mut self.now.processes[n];
                (process.published, process.came, goes_on) = (true, at, true);
            } else if next == rank {
                (self.now.processes[n].next, goes_on) = (next + 1, true);
            } else if next < world && self.lab.has(&key(next)) {
                self.lab.get(conn, &key(next));
                let process = &mut self.now.processes[n];
                (process.next, process.waits, goes_on) = (next + 1, None, true);
            } else if next < world && waits.is_none() {
                self.lab.wait_for_rank(conn, next);
                self.now.processes[n].waits = Some(at);
            } else if next < world && waits.is_some_and(|since| at > since + PATIENCE) {
                self.lab.cancel(conn);
                self.die(n);
            } else if next >= world && self.now.processes[n].met > at {
                // Those whose addresses are made for other world sizes cannot connect to each other.
                if self.now.is_whole(world) {
                    self.now.processes[n].met = at;
                }
            } else if let Some((key, _)) = asks.filter(|_| next >= world) {
                if self.lab.has(&key) {
                    self.lab.get(conn, &key);
                    (self.now.processes[n].waits, self.now.processes[n].asks) = (None, None);
                } else if waits.is_none() {
                    self.lab.wait(conn, &[&key]);
                    self.now.processes[n].waits = Some(at);
                }
            }
        }
        goes_on
    }

    /// A process is about to publish, and others are there that it contradicts.
    fn expect_conflicts(&mut self, n: usize) {
        let (at, new) = (self.seconds(), self.now.processes[n].clone());
        self.now.beside |= self.now.goes_on();
        let is_there = self.lab.has(&key(new.rank));
        let mut others = self.now.processes.iter().filter(|other| other.is_rank());
        if is_there && others.clone().any(|other| other.rank == new.rank) {
            let name = format!("rank {}", new.rank);
            self.due.push(Due { at, cause: Cause::Twice, name, or: &["two_jobs"] });
        }
        // Those that have met may be about to meet again as more or fewer.
        if others.any(|other| other.world != new.world && other.met.is_infinite()) {
            // It is said once of a meeting, of the two that were seen first.
            self.due.push(Due { at, cause: Cause::WorldSize, name: String::new(), or: &[] });
        }
    }

    /// Why nobody can read the address of this rank, and who that is.
    fn causes_of(&self, rank: u32) -> Vec<(Cause, String)> {
        let holders =
            || self.now.processes.iter().filter(|process| process.published && process.rank == rank);
        // Of several that claim it the last that is there counts: that they do is said.
        let last = holders()
            .max_by(|a, b| (a.connected, a.came).partial_cmp(&(b.connected, b.came)).expect("numbers"));
        if let Some(live) = last.filter(|process| process.connected) {
            let has_lost = self.reset > live.came && self.reset < live.met && self.were_there.contains(&rank);
            return vec![(if has_lost { Cause::Reset } else { Cause::Withdrawn }, live.label())];
        }
        if rank == 0 && self.now.live().any(Process::hosts) {
            return Vec::new();
        }
        let is_of_job = |dead: &Process| self.now.live().any(|p| p.published && p.world == dead.world);
        if let Some(dead) = last.filter(|process| process.ended > self.empty && is_of_job(process)) {
            let is_new = dead.ended + FACT > self.seconds();
            let dead: Vec<String> =
                holders().filter(|other| other.ended > self.empty).map(Process::label).collect();
            return if is_new { Vec::new() } else { vec![(Cause::Dead, dead.join("|"))] };
        }
        let silent = || self.now.processes.iter().filter(|process| process.is_silent());
        let mut causes: Vec<_> = silent().map(|process| (Cause::Silent, process.label())).collect();
        // One of the job before may be told of instead, and of one that not all count on it is not sure.
        let agreed = self.agreed().is_none_or(|agreed| rank < agreed);
        if !agreed {
            causes.push((Cause::WorldSize, String::new()));
        } else if last.is_none() {
            causes.push((Cause::NeverCame, format!("rank {rank}")));
            // One of those that came by may have been it.
            let came_by = |process: &&Process| {
                let ago = self.seconds() - process.ended;
                !process.connected && !process.published && (FACT..50.0).contains(&ago)
            };
            let came_by = self.now.processes.iter().filter(came_by);
            causes.extend(came_by.map(|process| (Cause::Passed, process.label())));
        }
        causes
    }

    /// The number of ranks that all who are there count on.
    fn agreed(&self) -> Option<u32> {
        self.now.live().filter(|process| process.published).map(|process| process.world).min()
    }

    /// Why somebody has waited for long.
    fn causes(&self) -> Vec<(Cause, String)> {
        // Of jobs that find each other's addresses only what is said is looked at.
        if self.mixed {
            return Vec::new();
        }
        // Of one that is frozen only the server knows whether its wait was answered.
        let has_waited = |since| since + EXPLAIN_AFTER + LOOKED < self.seconds();
        let is_stuck = |process: &&Process| !process.frozen && process.waits.is_some_and(has_waited);
        let stuck: Vec<&Process> = self.now.live().filter(is_stuck).collect();
        let mut causes = self.causes_of_hosts();
        for process in &stuck {
            if process.next < process.world {
                // Of jobs of several sizes each finds addresses of the other.
                if self.now.has_several() {
                    continue;
                }
                if self.now.beside {
                    let holders = || self.now.live().filter(|p| p.published && p.rank == process.next);
                    if holders().next().is_some() && holders().all(|p| p.met.is_finite()) {
                        let names: Vec<String> = holders().map(Process::label).collect();
                        causes.push((Cause::Met, names.join("|")));
                    }
                    continue;
                }
                if process.next == 0 && self.now.live().any(Process::hosts) {
                    // What that waits for is why.
                    continue;
                }
                causes.extend(self.causes_of(process.next));
                let others = (0..self.agreed().unwrap_or_default()).filter(|rank| !self.now.has(*rank));
                // Who is silent is said where that may be the one that is waited for.
                let others = others.flat_map(|rank| self.causes_of(rank));
                causes.extend(others.filter(|(cause, _)| *cause != Cause::Silent));
                continue;
            }
            let Some((key, _)) = &process.asks else { continue };
            if self.now.live().any(|p| p.published && p.rank == process.rank && p.conn != process.conn) {
                continue;
            }
            let is_of_job =
                |other: &Process| other.world == process.world && (!self.now.beside || other.met.is_finite());
            let others = self.now.live().filter(|other| other.is_rank() && !other.asks_for(key));
            let others = others.filter(|other| is_of_job(other));
            // Where some wait in no sub-group, or have ended, those that wait in another one are victims as well.
            let all_wait = self.now.processes.iter().filter(|p| p.published).all(|p| p.asks.is_some());
            let others = others.filter(|other| other.asks.is_none() || all_wait);
            let is_last = |other: &&Process| {
                let claims = |p: &&Process| p.published && p.rank == other.rank;
                !self.now.processes.iter().filter(claims).any(|p| p.came > other.came)
            };
            let claimants = |rank: u32| self.now.live().filter(move |p| p.published && p.rank == rank);
            let names = |rank: u32| claimants(rank).map(Process::label).collect::<Vec<_>>().join("|");
            causes.extend(others.filter(is_last).map(|other| (Cause::Elsewhere, names(other.rank))));
        }
        causes
    }

    /// Why rank 0 has hosted its job for long without going on.
    fn causes_of_hosts(&self) -> Vec<(Cause, String)> {
        let mut causes = Vec::new();
        // Nobody waits for what comes when the others have met.
        let have_met = self.now.live().any(|process| process.met.is_finite());
        if have_met || self.now.beside || self.now.has_several() {
            return causes;
        }
        let Some(agreed) = self.agreed().filter(|_| !self.now.has(0)) else { return causes };
        for host in self.now.live().filter(|host| self.has_counted_for_long(host)) {
            let Some(counts) = host.counts else { continue };
            if self.reset > 0.0 && self.now.live().any(|other| other.conn < self.came_before_reset) {
                causes.push((Cause::Reset, host.label()));
            } else if counts.read >= agreed {
                causes.push((Cause::WorldSize, host.label()));
            } else {
                let missing = (1..agreed).filter(|rank| !self.now.has(*rank));
                // Those that are silent have come.
                let causes_of = missing.flat_map(|rank| self.causes_of(rank));
                causes.extend(causes_of.filter(|(cause, _)| *cause != Cause::Silent));
            }
        }
        causes
    }

    /// Whether rank 0 was there before the others ended, and is known by what it reads.
    fn is_hosted(moment: &Moment, at: f64) -> bool {
        let ended = moment.processes.iter().filter(|p| p.published).map(|p| p.ended).fold(0.0, f64::max);
        let is_known = |counts: Counts| counts.since + DELAY < at && counts.since < ended;
        moment.live().any(|p| p.hosts() && p.counts.is_some_and(is_known))
    }

    fn has_counted_for_long(&self, process: &Process) -> bool {
        let since = process.counts.filter(|_| process.hosts()).map(|counts| counts.since);
        since.is_some_and(|since| since + EXPLAIN_AFTER + LOOKED < self.seconds())
    }

    /// `rank 2 on host7`, `process 2007 at 10.0.0.2`, or `rank 2` of whom nothing else is known.
    fn called(&self, name: &str) -> Result<Named, String> {
        let number = |part: &str| part.split(' ').next().and_then(|number| number.parse::<u32>().ok());
        let nobody = || format!("nobody is called {name}");
        let conn = match (name.split_once(" on host"), name.strip_prefix("process ")) {
            (Some((_, host)), _) => number(host).ok_or_else(nobody)?,
            (_, Some(pid)) => number(pid).and_then(|pid| pid.checked_sub(2000)).ok_or_else(nobody)?,
            _ => {
                return name.strip_prefix("rank ").and_then(number).map(Named::Rank).ok_or_else(nobody);
            }
        };
        let found = self.now.processes.get(conn as usize).ok_or_else(nobody)?;
        match name.strip_prefix("rank ").and_then(number) {
            Some(rank) if rank != found.rank => Err(format!("{name} is rank {}", found.rank)),
            _ => Ok(Named::Process(conn as usize)),
        }
    }

    fn process(&self, name: &str) -> Result<usize, String> {
        match self.called(name)? {
            Named::Process(n) => Ok(n),
            Named::Rank(_) => Err(format!("which process is {name}?")),
        }
    }

    /// Whether this held of each of these processes just before, at the same time.
    fn all(&self, at: f64, names: &[String], holds: impl Fn(&Moment, &Process) -> bool) -> Checked {
        let called: Vec<usize> = names.iter().map(|name| self.process(name)).collect::<Result<_, _>>()?;
        let is_so = |m: &Moment| called.iter().all(|&n| m.processes.get(n).is_some_and(|p| holds(m, p)));
        yes(self.past.any(at, is_so), &format!("not so of {names:?}"))
    }

    /// Whether somebody who was there was told this world size.
    fn is_world(&self, at: f64, facts: &serde_json::Value) -> Checked {
        let Some(world) = facts["world_size"].as_u64() else { return Ok(()) };
        let is_told = |m: &Moment| m.processes.iter().any(|p| p.published && u64::from(p.world) == world);
        yes(self.past.any(at, is_told), "nobody was told this world size")
    }

    /// Processes that are said to have ended.
    fn check_ended(&self, at: f64, facts: &serde_json::Value) -> Checked {
        for name in names(facts, "ended") {
            let n = self.process(name.split(" (").next().unwrap_or_default())?;
            let is_rank = name.starts_with("rank ");
            let has_ended =
                |m: &Moment| m.processes.get(n).is_some_and(|p| !p.connected && p.published == is_rank);
            yes(self.past.any(at, has_ended), &format!("{name} has not"))?;
        }
        Ok(())
    }

    /// What is said of rank 0 that hosts its job and waits until all have come.
    fn check_host(&self, at: f64, facts: &serde_json::Value) -> Checked {
        let any = |holds: &dyn Fn(&Moment) -> bool, why: &str| yes(self.past.any(at, holds), why);
        let host = text(facts, "host");
        let name = host.strip_prefix("rank 0 (").and_then(|name| name.strip_suffix(')')).unwrap_or(host);
        let n = self.process(name)?;
        yes(host == name || self.now.processes[n].rank == 0, "it is no rank 0")?;
        let connected = number(facts, "connected") as u32;
        let has_read = |m: &Moment| m.processes.get(n).filter(|p| p.hosts()).and_then(|p| p.counts);
        any(&|m| has_read(m).is_some_and(|counts| counts.read == connected), "it has not read that number")?;
        let waited = facts["waited"].as_f64().unwrap_or_else(|| panic!("no time in {facts}"));
        let since = |m: &Moment| has_read(m).map_or(f64::INFINITY, |counts| counts.since);
        any(&|m| at - since(m) + 0.5 >= waited, "it has not waited for so long")?;
        let ended = number(facts, "ended") as u32;
        any(&|m| connected <= ended + m.live().count() as u32, "more of them have ended")?;
        any(&|m| m.processes.iter().filter(|p| !p.connected).count() as u32 >= ended, "fewer have ended")?;
        let waiters = number(facts, "waiters");
        any(&|m| m.live().filter(|p| p.waits_for(0)).count() >= waiters, "not so many wait for it")?;
        if let Some(expected) = facts["expected"].as_u64() {
            let is_told = |m: &Moment| m.live().any(|p| p.published && u64::from(p.world) == expected);
            any(&is_told, "nobody counts on so many")?;
        }
        if !facts["reset"].is_null() {
            yes(self.reset > 0.0, "nobody has reset the store")?;
        }
        let silent = names(facts, "silent");
        self.all(at, &silent, |_, process| process.is_silent())?;
        for name in names(facts, "missing") {
            let Named::Rank(rank) = self.called(&name)? else { return Err(format!("{name} has come")) };
            let is_there =
                |m: &Moment| if silent.is_empty() { m.live().any(|p| p.rank == rank) } else { m.has(rank) };
            any(&|m| self.mixed || !is_there(m), &format!("{name} is there"))?;
        }
        self.all(at, &names(facts, "gone"), |m, process| {
            !process.connected && process.published && !m.has(process.rank)
        })
    }

    /// What is said of the rank that others wait for.
    fn check_wait(&self, at: f64, facts: &serde_json::Value, who: &str) -> Checked {
        let any = |holds: &dyn Fn(&Moment) -> bool, why: &str| yes(self.past.any(at, holds), why);
        let waiters = number(facts, "waiters");
        any(&|m| m.live().filter(|p| p.waits.is_some()).count() >= waiters, "not so many wait")?;
        let rank = match self.called(who)? {
            Named::Process(n) => self.now.processes[n].rank,
            Named::Rank(rank) => rank,
        };
        any(&|m| m.live().any(|p| p.waits_for(rank)), "nobody waits for it")?;
        // Whether one published it since nobody was there, and is not there any more.
        let had_come = |m: &Moment| m.processes.iter().any(|p| p.rank == rank && p.published);
        let is_there = |m: &Moment| m.live().any(|p| p.rank == rank);
        let silent = names(facts, "candidates");
        self.all(at, &silent, |_, process| process.is_silent())?;
        match (text(&facts["presence"], "is"), facts["but"]["why"].as_str()) {
            ("never_seen" | "closed", None) if !silent.is_empty() => {
                any(&|m| !m.last_of_ranks().contains(&rank) || self.mixed, "it has published")?;
            }
            // That of another job is none of them; a silent one may be it.
            ("never_seen", None) => any(
                &|m| !is_there(m) || self.mixed || !m.last_of_ranks().contains(&rank),
                "its process is there",
            )?,
            ("closed", None) => {
                let is_of = |m: &Moment, p: &Process| m.live().any(|q| q.rank == rank && q.world == p.world);
                let has_ended = |m: &Moment| match self.called(who) {
                    Ok(Named::Process(n)) => {
                        m.processes.get(n).is_some_and(|p| !p.connected && (self.mixed || !is_of(m, p)))
                    }
                    _ => false,
                };
                any(&|m| !m.last_of_ranks().contains(&rank) || has_ended(m), "it is there")?;
                any(&had_come, "it never came")?;
            }
            ("connected", Some("dropped")) => {
                any(&|m| m.has(rank) && !m.there.contains(&rank), "its address is there")?;
            }
            // All had published, and it may have ended before it read that.
            ("connected" | "closed", Some("met_before")) => any(
                &|m| {
                    let met = |world: u32| m.processes.iter().any(|p| p.world == world && p.met.is_finite());
                    m.has(rank) || m.processes.iter().any(|p| p.rank == rank && p.published && met(p.world))
                },
                "it has not met the others",
            )?,
            ("connected", None) => any(&|m| m.has(rank), "it is not there")?,
            other => return Err(format!("cannot be: {other:?}")),
        }
        for name in names(facts, "missing") {
            let rank = match self.called(name.split(" (").next().unwrap_or_default())? {
                Named::Rank(rank) => rank,
                Named::Process(n) => {
                    any(&|m| m.processes.get(n).is_some_and(|p| !p.connected), &format!("{name} is there"))?;
                    continue;
                }
            };
            any(&|m| self.mixed || !m.has(rank), &format!("{name} has published"))?;
        }
        self.check_ended(at, facts)?;
        if facts.get("connected").is_some() {
            let (joined, connected) = (number(facts, "joined"), number(facts, "connected"));
            // Those of another job are none of them.
            any(&|m| (joined..=m.live().count()).contains(&connected), "not so many are connected")?;
            // Those that met before and stay have published as well, but not for the ranks that come now.
            any(&|m| joined <= m.ranks().len(), "not so many have published")?;
            self.is_world(at, facts)?;
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
            Op::Come(rank) => self.come(rank, RANKS, false),
            Op::ComeAll => (0..RANKS).for_each(|rank| self.come(rank, RANKS, false)),
            Op::Connect(rank) => self.come(rank, RANKS, true),
            Op::Publish(rank) => {
                if let Some(n) = self.on(rank) {
                    self.now.processes[n].held = false;
                }
            }
            Op::Host(world) => self.host(world, false),
            Op::HostBusy => self.host(RANKS, true),
            Op::ComeWrong(rank, world) => self.come(rank, world, false),
            Op::Duplicate(rank) => self.connect(rank, RANKS, false),
            Op::SecondJob(world) => {
                self.mixed = true;
                (0..world).for_each(|rank| self.connect(rank, world, false));
            }
            Op::EndJob(rank) => {
                self.mixed = true;
                let met = |p: &Process| p.connected && p.met.is_finite();
                let world = self.on(rank).map(|n| self.now.processes[n].world);
                (0..self.now.processes.len()).for_each(|n| {
                    if met(&self.now.processes[n]) && Some(self.now.processes[n].world) == world {
                        self.die(n);
                    }
                });
            }
            Op::Die(rank) => {
                if let Some(n) = self.on(rank) {
                    self.die(n);
                }
            }
            Op::DieAll => (0..self.now.processes.len()).for_each(|n| {
                if self.now.processes[n].connected {
                    self.die(n);
                }
            }),
            Op::Restart(rank) => {
                if let Some(n) = self.on(rank) {
                    self.die(n);
                    self.connect(rank, RANKS, false);
                }
            }
            Op::Reset => {
                self.were_there.clone_from(&self.now.there);
                self.lab.reset();
                self.reset = self.seconds();
                self.came_before_reset = self.now.processes.len() as u32;
            }
            Op::Freeze(rank) => {
                if let Some(n) = self.on(rank) {
                    self.now.processes[n].frozen = true;
                }
            }
            Op::Ask(rank) => {
                if let Some(n) = self.on(rank) {
                    self.now.processes[n].asks.get_or_insert((format!("go{}", self.answers), None));
                }
            }
            Op::Answer(rank) => {
                let is_idle =
                    |n: &usize| self.now.processes[*n].is_rank() && self.now.processes[*n].waits.is_none();
                if let Some(n) = self.on(rank).filter(is_idle) {
                    self.lab.set(n as u32, &format!("go{}", self.answers), b"x");
                    self.answers += 1;
                }
            }
            Op::Group(rank, other) => {
                if let Some(n) = self.on(rank) {
                    let key = format!("/default_pg/0//1//cpu//0/{other}");
                    self.now.processes[n].asks.get_or_insert((key, Some(other)));
                }
            }
        }
        self.act();
    }

    /// Each goes on as far as it can, at once: who waits in the store is woken by what it waits for.
    fn act(&mut self) {
        while self.steps() {}
        let is_there = self.lab.has("init/");
        let blocked = self.now.processes.iter_mut().filter_map(|process| process.counts.as_mut());
        blocked.for_each(|counts| counts.blocked &= !is_there);
        self.now.there = (0..MOST).filter(|&rank| self.lab.has(&key(rank))).collect();
    }

    fn remember(&mut self) {
        self.past.0.push((self.seconds(), self.now.clone()));
    }

    fn check(&self, at: f64, said: &Explanation) -> Checked {
        let facts = &said.facts;
        let any = |holds: &dyn Fn(&Moment) -> bool, why: &str| yes(self.past.any(at, holds), why);
        let ever = |holds: &dyn Fn(&Moment) -> bool, why: &str| yes(self.past.any_since(0.0, at, holds), why);
        if said.run_id.as_deref() == Some(BESIDE) {
            let was_reset = self.reset > 0.0;
            return yes(
                was_reset || said.severity == Severity::Info,
                "nothing happens to the run beside them",
            );
        }
        match said.code.as_str() {
            "run_started" => self.all(at, &[text(facts, "who").into()], |_, process| process.published),
            "round_complete" => {
                let ranks = number(facts, "ranks") as u32;
                any(&|m| m.has_met(ranks), "they have not")?;
                let is_told = |_: &Moment, process: &Process| process.published && process.world == ranks;
                self.all(at, &[text(facts, "last").into()], is_told)
            }
            "run_ended" if facts["processes"].is_u64() => {
                let processes = number(facts, "processes") as u32;
                // Others may be beside them.
                let ended = |p: &&Process| !p.connected && p.published && p.world == processes;
                let have_ended = |m: &Moment| m.processes.iter().filter(ended).count() >= processes as usize;
                any(&|m| m.live().next().is_none() || have_ended(m), "some are there")?;
                ever(&|m| m.has_met(processes), "so many have never met")
            }
            "run_ended" => {
                // Another may have connected meanwhile, of which nothing is known yet.
                any(&|m| m.ranks().is_empty() && !Self::is_hosted(m, at), "some are there")?;
                let members = number(facts, "members");
                ever(
                    &|m| m.live().count() >= members || m.processes.len() >= members,
                    "not so many were there",
                )
            }
            "wait_cycle" => {
                let members = names(facts, "members");
                let members: Vec<usize> =
                    members.iter().map(|name| self.process(name)).collect::<Result<_, _>>()?;
                let waits_for_one = |m: &Moment, n: usize| {
                    let is_asked = |&other: &usize| m.processes[n].waits_for(m.processes[other].rank);
                    m.processes[n].connected && members.iter().any(is_asked)
                };
                any(
                    &|m| members.iter().all(|&n| n < m.processes.len() && waits_for_one(m, n)),
                    "they do not wait for each other",
                )
            }
            "lost" => {
                let (ranks, joined) = (names(facts, "ranks"), number(facts, "joined"));
                self.all(at, &ranks, |_, process| !process.connected && process.published)?;
                for rank in &ranks {
                    self.all(at, std::slice::from_ref(rank), |_, process| process.connected)?;
                }
                any(&|m| !m.beside || self.mixed, "the others have met without it")?;
                let of_world = |m: &Moment| {
                    let fits = |p: &&Process| p.published && facts["world_size"] == p.world || p.hosts();
                    m.live().filter(fits).map(|p| p.rank).collect::<BTreeSet<_>>().len()
                };
                any(
                    &|m| {
                        // Some have been counted twice, so it may have gone on.
                        let hosts = usize::from(m.live().any(|p| p.hosted && !p.published));
                        let there = [m.ranks().len() + hosts, m.last_of_ranks().len() + hosts, of_world(m)];
                        there.contains(&joined) || self.mixed && joined <= m.ranks().len()
                    },
                    "not so many are there",
                )?;
                self.is_world(at, facts)
            }
            "ranks_ended" if facts["ranks"].is_object() => {
                let (ranks, left) = (names(facts, "ranks"), number(facts, "left"));
                self.all(at, &ranks, |_, process| !process.connected && process.published)?;
                // Strangers are none of them. Who is frozen may not have read the last addresses.
                let met = |m: &Moment, world| {
                    let met = m.live().filter(|p| p.met.is_finite() && p.world == world);
                    met.map(|p| p.rank).collect::<BTreeSet<_>>().len()
                };
                let are = |m: &Moment, world| m.live().filter(|p| p.published && p.world == world).count();
                let is_it =
                    |m: &Moment| (2..=MOST).any(|n| met(m, n) <= left + ranks.len() && left <= are(m, n));
                yes(left > 0, "it is over")?;
                any(&is_it, "not so many are left")
            }
            "store_reset" => self.all(at, &names(facts, "ranks"), |_, process| process.is_rank()),
            "ranks_ended" => {
                any(&|m| m.ranks().is_empty(), "ranks are there")?;
                let ended = names(facts, "processes");
                let ended: Vec<String> =
                    ended.iter().filter_map(|it| Some(it.split(" (").next()?.into())).collect();
                self.all(at, &ended, |_, process| !process.connected && !process.published)
            }
            "waiting" if facts["host"].is_string() => self.check_host(at, facts),
            "waiting" if facts["presence"].is_object() => self.check_wait(at, facts, text(facts, "who")),
            "duplicate_rank" | "two_jobs" => {
                let name = |field| text(facts, field).trim_start_matches("that of ").to_owned();
                let mut both = vec![name("first"), name("second")];
                both.extend(names(facts, "more"));
                let others = names(facts, "others").into_iter().map(|other| {
                    let who = other
                        .strip_suffix(')')
                        .and_then(|it| Some(it.split_once(" (")?.1))
                        .unwrap_or_default();
                    who.split(" and ").flat_map(|who| who.split(", ")).map(str::to_owned).collect()
                });
                for claims in std::iter::once(both).chain(others.collect::<Vec<Vec<_>>>()) {
                    let of = |name: &String| Ok::<_, String>(self.now.processes[self.process(name)?].rank);
                    let ranks = claims.iter().map(of).collect::<Result<BTreeSet<_>, _>>()?;
                    yes(claims.len() > 1 && ranks.len() == 1, "they have two ranks")?;
                    self.all(at, &claims, |_, process| process.is_rank())?;
                }
                if said.code == "two_jobs" {
                    let twice =
                        |m: &Moment, rank| m.live().filter(|p| p.published && p.rank == rank).count() > 1;
                    let is_whole = |m: &Moment| m.live().any(|p| (0..p.world).all(|rank| twice(m, rank)));
                    return any(&is_whole, "not all ranks are there twice");
                }
                Ok(())
            }
            "world_sizes_differ" => {
                let told = |rank: &str, says: &str| {
                    let (rank, says) = (number(facts, rank) as u32, number(facts, says) as u32);
                    move |m: &Moment| m.live().any(|p| p.published && p.rank == rank && p.world == says)
                };
                let (one, other) = (told("rank", "says"), told("other_rank", "other_says"));
                any(&|m| one(m) && other(m), "they do not")
            }
            "waiting_for_key" => {
                let key = text(facts, "key");
                self.all(at, &names(facts, "who"), |_, process| process.asks_for(key))?;
                self.all(at, &names(facts, "others"), |_, process| {
                    process.is_rank() && !process.asks_for(key)
                })?;
                self.check_ended(at, facts)
            }
            "waiting" => {
                let waiters = number(facts, "waiters");
                let what = text(facts, "what");
                let named = what.split("rank ").skip(1).filter_map(|rest| rest.split(' ').next());
                let mut members: Vec<String> = named.map(str::to_owned).collect();
                if what.contains(" more members") {
                    members = (0..MOST).map(|member| member.to_string()).collect();
                }
                let keys: Vec<String> =
                    members.iter().map(|member| format!("/default_pg/0//1//cpu//0/{member}")).collect();
                let asks = |process: &Process| keys.iter().any(|key| process.asks_for(key));
                any(&|m| m.live().filter(|p| asks(p)).count() >= waiters, "not so many wait")?;
                self.all(at, &names(facts, "others"), |_, process| process.is_rank() && !asks(process))?;
                self.check_ended(at, facts)
            }
            "gave_up" => {
                self.all(at, &names(facts, "who"), |_, process| !process.connected)?;
                let rank = text(facts, "key").rsplit('/').next().and_then(|rank| rank.parse::<u32>().ok());
                if text(facts, "writer").is_empty() {
                    let beyond =
                        |m: &Moment| m.processes.iter().any(|p| p.published && Some(p.world) <= rank);
                    // It had written it before.
                    let had_met =
                        |m: &Moment| m.processes.iter().any(|p| Some(p.rank) == rank && p.met.is_finite());
                    let had_written = |m: &Moment| rank.is_some_and(|rank| m.has(rank)) || had_met(m);
                    let is_none =
                        |m: &Moment| beyond(m) || had_written(m) || m.beside || m.live().any(Process::hosts);
                    return any(&is_none, "all counted on it");
                }
                let of = match self.called(text(facts, "writer"))? {
                    Named::Process(n) => self.now.processes[n].rank,
                    Named::Rank(rank) => rank,
                };
                yes(Some(of) == rank, "another should have")
            }
            _ => Err("that cannot be".into()),
        }
    }

    /// Those who wait are told why, and the numbers are right.
    fn check_end(&self) -> Checked {
        for host in self.now.live().filter(|host| !self.mixed && self.has_counted_for_long(host)) {
            let is_it = |said: &Explanation| said.code == "waiting" && said.text.contains(&host.label());
            yes(self.lab.said.iter().any(|(_, said)| is_it(said)), "nobody says that it hosts")?;
        }
        let Some(run) = self.lab.insight.run(RUN, None, None, self.lab.now) else { return Ok(()) };
        let (moment, state) = (&self.now, run.summary.state);
        // A job has ended, whoever else is connected.
        let is_it = |m: &Moment| {
            let have_left = m.ranks().is_empty() && !Self::is_hosted(m, self.seconds());
            m.live().next().is_none() == state.is_over() || state.is_over() && have_left
        };
        yes(self.past.any(self.seconds(), is_it), &format!("its state is {state:?}"))?;
        let have_all_met = || moment.live().all(|process| !process.published || process.met.is_finite());
        let goes_on = moment.goes_on() && (moment.beside || have_all_met());
        yes(
            !goes_on || self.mixed || state == RunState::Running,
            &format!("all have met and go on: {state:?}"),
        )?;
        let ranks = run.summary.ranks.as_ref();
        let connected = ranks.map_or(0, |ranks| ranks.connected as usize);
        let live = moment.live().count();
        // A host that no rank has met may be that of agents.
        let hosts = moment.live().filter(|process| process.hosts()).count();
        yes((live - hosts..=live).contains(&connected), &format!("{connected} are connected, not {live}"))?;
        let there = ranks.map_or(0, |ranks| ranks.joined as usize);
        yes(there <= moment.ranks().len(), &format!("{there} ranks are there"))?;
        let expected = ranks.and_then(|ranks| ranks.expected);
        let is_told = |n: u32| moment.processes.iter().any(|p| p.published && p.world == n);
        yes(expected.is_none_or(is_told), &format!("{expected:?} are expected"))?;
        agree(&self.lab, &run)?;
        let fits = |process: &&Process| expected.is_none_or(|expected| process.world == expected);
        let fits = |rank: &u32| moment.live().filter(fits).any(|p| p.is_rank() && p.rank == *rank);
        // Of two that claimed a rank the first may be there still, as one of those who have met.
        let most = moment.ranks().iter().filter(|rank| fits(rank)).count();
        let ranks: Vec<u32> = moment.last_of_ranks().into_iter().filter(fits).collect();
        // Those whose addresses were dropped may have to come again.
        let is_there = |rank: &&u32| moment.there.contains(rank) && !moment.live().any(|p| p.frozen);
        let published = ranks.iter().filter(is_there).count();
        let ranks = ranks.len();
        yes(
            (published <= there || moment.beside || moment.has_several() || self.mixed) && there <= most
                || ranks == 0,
            &format!("{there} ranks are there, and not {ranks}"),
        )?;
        for (cause, name) in self.causes() {
            named(&run.explanations, cause, &name)?;
        }
        let is_wait = |said: &&Explanation| said.holds && said.facts.get("waiters").is_some();
        let held = run.explanations.iter().find(is_wait);
        let somebody = |m: &Moment| m.live().any(|process| process.waits.is_some() || process.hosts());
        let waited = self.past.any(self.seconds(), somebody);
        yes(waited || held.is_none(), &format!("nobody waits: {held:?}"))
    }

    fn due(&mut self) -> &mut Vec<Due> {
        &mut self.due
    }

    fn is_settled(&self, due: &Due) -> bool {
        let soon = due.at..due.at + FACT;
        match due.cause {
            // Another has taken its place.
            Cause::Dead => {
                let mut processes = self.now.processes.iter();
                let Some(dead) = processes.clone().find(|process| process.label() == due.name) else {
                    return true;
                };
                let is_next =
                    |other: &Process| other.published && other.rank == dead.rank && other.conn > dead.conn;
                // The others meet again: it may have left them for that, or as it had done its work.
                let have_begun = |other: &Process| other.published && other.came > dead.met;
                // All had left, and a new job came before that was noticed.
                let is_new_job = soon.contains(&self.hosted_alone);
                // Who was left had told nothing of itself, and then one came that is prepared for others.
                let is_of_job = |other: &Process| other.is_rank() && other.world == dead.world;
                let is_follower = |other: &Process| {
                    other.published && other.world != dead.world && soon.contains(&other.came)
                };
                let is_followed = !processes.clone().any(is_of_job) && processes.clone().any(is_follower);
                is_new_job || is_followed || processes.any(|other| is_next(other) || have_begun(other))
            }
            // One of the two was about to go.
            Cause::Twice | Cause::WorldSize => {
                let live = || self.now.live().filter(|process| process.published);
                let is_one_of_two = |process: &Process| {
                    live().any(|other| other.rank == process.rank && other.conn != process.conn)
                };
                // Or all that have not met are told as those that claim a rank with others.
                let are_told = due.cause == Cause::WorldSize
                    && live().filter(|process| process.met.is_infinite()).all(is_one_of_two);
                are_told
                    || self
                        .now
                        .processes
                        .iter()
                        .any(|process| !process.connected && soon.contains(&process.ended))
            }
            _ => false,
        }
    }
}

fn schedule() -> impl Strategy<Value = Schedule<Op>> {
    let rank = || 0..RANKS;
    let op = prop_oneof![
        8 => rank().prop_map(Op::Come),
        2 => Just(Op::ComeAll),
        3 => rank().prop_map(Op::Connect),
        2 => rank().prop_map(Op::Publish),
        2 => prop_oneof![3 => Just(RANKS), 1 => 2..=MOST].prop_map(Op::Host),
        1 => Just(Op::HostBusy),
        1 => (rank(), 2..=MOST).prop_map(|(rank, world)| Op::ComeWrong(rank, world)),
        1 => rank().prop_map(Op::Duplicate),
        1 => (2..=MOST).prop_map(Op::SecondJob),
        1 => rank().prop_map(Op::EndJob),
        4 => rank().prop_map(Op::Die),
        1 => Just(Op::DieAll),
        2 => rank().prop_map(Op::Restart),
        1 => Just(Op::Reset),
        1 => rank().prop_map(Op::Freeze),
        2 => rank().prop_map(Op::Ask),
        1 => rank().prop_map(Op::Answer),
        1 => (rank(), rank()).prop_map(|(rank, other)| Op::Group(rank, other)),
    ];
    let pause = prop::sample::select(vec![0, 2, 5, 10, 40, 90, 180_u32]);
    prop::collection::vec((op, pause), 1..16)
}

#[test]
fn what_is_said_of_ranks_is_the_truth() {
    play_all("ranks", &schedule(), |schedule| played(Truth::new(), "", schedule));
}

#[test]
fn what_is_said_of_ranks_beside_a_c10d_run_is_the_truth() {
    play_all("ranks_beside", &schedule(), |schedule| played(Truth::beside_a_c10d_run(), "", schedule));
}
