//! Ranks without agents: each counts itself, publishes its address, and reads those of all others.

use proptest::prelude::*;

use super::super::lab::Lab;
use super::super::stories::Stage as _;
use super::{Play, Schedule, play_all, played, schedules};
use crate::testing::oracle::{Being, World};

const RANKS: u32 = 4;
/// The largest world size that a process is told.
const MOST: u32 = RANKS + 1;
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
    /// Rank 0 comes, hosts a store of its own, and publishes nothing before so many have counted themselves
    /// here.
    Host(u32),
    /// As `Host`, and it is busy after that.
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

#[derive(Debug, Clone, Default)]
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
    /// When it had met all others.
    met: f64,
}

impl Process {
    const fn is_rank(&self) -> bool {
        self.connected && self.published
    }
}

struct Truth {
    lab: Lab,
    now: Vec<Process>,
    /// An operator has reset the store.
    was_reset: bool,
    /// How often the key of the program was written.
    answers: u32,
}

fn key(rank: u32) -> String {
    format!("/default_pg/0//cpu//0/{rank}")
}

impl Truth {
    fn new() -> Self {
        let mut lab = Lab::soon();
        lab.pauses = vec![250];
        Self { lab, now: Vec::new(), was_reset: false, answers: 0 }
    }

    /// Beside them is a c10d run of two nodes on other hosts, whose workers meet elsewhere.
    fn beside_a_c10d_run() -> Self {
        let mut truth = Self::new();
        truth.lab.play(
            "joins@beside 200 join; joins@beside 201 join complete
            set@beside 200 c10d/MASTER_ADDR node200; set@beside 200 c10d/MASTER_PORT 41234",
        );
        truth.lab.hand_out_ranks(200, "/torch.rendezvous.beside.0", 2, 1);
        truth.lab.pass(2.0);
        truth
    }

    fn on(&self, rank: u32) -> Option<usize> {
        self.now.iter().position(|process| process.rank == rank && process.connected)
    }

    fn connect(&mut self, rank: u32, world: u32, held: bool) {
        let conn = self.now.len() as u32;
        self.lab.worker(conn, &format!("10.0.{}.{rank}", conn / 100));
        let (connected, met) = (true, f64::INFINITY);
        self.now.push(Process { conn, rank, world, connected, held, met, ..Process::default() });
    }

    fn come(&mut self, rank: u32, world: u32, held: bool) {
        if self.on(rank).is_none() {
            self.connect(rank, world.max(rank + 1), held);
        }
    }

    fn host(&mut self, world: u32, held: bool) {
        if self.on(0).is_none() {
            self.connect(0, world, held);
            let counts = Counts { since: self.lab.seconds(), read: 0, blocked: false };
            let host = self.now.last_mut().expect("it");
            (host.hosted, host.counts) = (true, Some(counts));
        }
    }

    /// It waits until the number is there, and reads it, every 10 ms. Returns whether all have come.
    fn count(&mut self, n: usize, mut counts: Counts) -> bool {
        let Process { conn, world, .. } = self.now[n];
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
        self.now[n].counts = Some(counts).filter(|_| !have_come);
        if !have_come && self.lab.seconds() > counts.since + PATIENCE {
            self.die(n);
        }
        have_come
    }

    fn die(&mut self, n: usize) {
        self.lab.leave(self.now[n].conn);
        self.now[n].connected = false;
    }

    /// Whether all ranks are there that are prepared for so many.
    fn is_whole(&self, world: u32) -> bool {
        let is_there = |rank: u32| self.now.iter().any(|p| p.is_rank() && p.rank == rank && p.world == world);
        (0..world).all(is_there)
    }

    /// Whether somebody has gone on.
    fn steps(&mut self) -> bool {
        let mut goes_on = false;
        for n in 0..self.now.len() {
            let Process { conn, rank, world, held, next, waits, asks, .. } = self.now[n].clone();
            let at = self.lab.seconds();
            if !self.now[n].connected || self.now[n].frozen {
                // The store answers the wait of a frozen one, too.
                let awaited = asks.filter(|_| next >= world).map_or_else(|| key(next), |(key, _)| key);
                self.now[n].waits = waits.filter(|_| !self.lab.has(&awaited));
                continue;
            }
            if let Some(counts) = self.now[n].counts {
                goes_on |= self.count(n, counts);
            } else if held {
                // It is busy.
            } else if !self.now[n].published {
                self.lab.publish(conn, rank, world as usize);
                (self.now[n].published, goes_on) = (true, true);
            } else if next == rank {
                (self.now[n].next, goes_on) = (next + 1, true);
            } else if next < world && self.lab.has(&key(next)) {
                self.lab.get(conn, &key(next));
                let process = &mut self.now[n];
                (process.next, process.waits, goes_on) = (next + 1, None, true);
            } else if next < world && waits.is_none() {
                self.lab.wait_for_rank(conn, next);
                self.now[n].waits = Some(at);
            } else if next < world && waits.is_some_and(|since| at > since + PATIENCE) {
                self.lab.cancel(conn);
                self.die(n);
            } else if next >= world && self.now[n].met > at {
                // Ranks whose addresses are made for other world sizes cannot connect to each other.
                if self.is_whole(world) {
                    self.now[n].met = at;
                }
            } else if let Some((key, _)) = asks.filter(|_| next >= world) {
                if self.lab.has(&key) {
                    self.lab.get(conn, &key);
                    (self.now[n].waits, self.now[n].asks) = (None, None);
                } else if waits.is_none() {
                    self.lab.wait(conn, &[&key]);
                    self.now[n].waits = Some(at);
                }
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

    fn disturbs(&self) -> bool {
        self.was_reset
    }

    fn play(&mut self, op: Op) {
        self.lab.pass(0.001);
        match op {
            Op::Come(rank) => self.come(rank, RANKS, false),
            Op::ComeAll => (0..RANKS).for_each(|rank| self.come(rank, RANKS, false)),
            Op::Connect(rank) => self.come(rank, RANKS, true),
            Op::Publish(rank) => self.on(rank).into_iter().for_each(|n| self.now[n].held = false),
            Op::Host(world) => self.host(world, false),
            Op::HostBusy => self.host(RANKS, true),
            Op::ComeWrong(rank, world) => self.come(rank, world, false),
            Op::Duplicate(rank) => self.connect(rank, RANKS, false),
            Op::SecondJob(world) => (0..world).for_each(|rank| self.connect(rank, world, false)),
            Op::EndJob(rank) => {
                let met = |p: &Process| p.connected && p.met.is_finite();
                let world = self.on(rank).map(|n| self.now[n].world);
                (0..self.now.len()).for_each(|n| {
                    if met(&self.now[n]) && Some(self.now[n].world) == world {
                        self.die(n);
                    }
                });
            }
            Op::Die(rank) => self.on(rank).into_iter().for_each(|n| self.die(n)),
            Op::DieAll => (0..self.now.len()).for_each(|n| self.die(n)),
            Op::Restart(rank) => {
                if let Some(n) = self.on(rank) {
                    self.die(n);
                    self.connect(rank, RANKS, false);
                }
            }
            Op::Reset => {
                self.lab.reset();
                self.was_reset = true;
            }
            Op::Freeze(rank) => {
                if let Some(n) = self.on(rank) {
                    self.now[n].frozen = true;
                    self.lab.frozen.insert(self.now[n].conn);
                }
            }
            Op::Ask(rank) => {
                if let Some(n) = self.on(rank) {
                    self.now[n].asks.get_or_insert((format!("go{}", self.answers), None));
                }
            }
            Op::Answer(rank) => {
                let is_idle = |n: &usize| self.now[*n].is_rank() && self.now[*n].waits.is_none();
                if let Some(n) = self.on(rank).filter(is_idle) {
                    self.lab.set(n as u32, &format!("go{}", self.answers), b"x");
                    self.answers += 1;
                }
            }
            Op::Group(rank, other) => {
                if let Some(n) = self.on(rank) {
                    let key = format!("/default_pg/0//1//cpu//0/{other}");
                    self.now[n].asks.get_or_insert((key, Some(other)));
                }
            }
        }
        self.act();
    }

    /// Each goes on as far as it can, at once: who waits in the store is woken by what it waits for.
    fn act(&mut self) {
        while self.steps() {}
        let is_there = self.lab.has("init/");
        let blocked = self.now.iter_mut().filter_map(|process| process.counts.as_mut());
        blocked.for_each(|counts| counts.blocked &= !is_there);
    }

    fn world(&self) -> World {
        let live = || self.now.iter().filter(|process| process.connected);
        let being = |p: &Process| {
            // After a reset it waits in the store for the number to be there, whether it is frozen or not.
            let counts = p.counts.filter(|_| p.connected && (!p.frozen || self.was_reset));
            let hosts = counts.map(|counts| (counts.since, Vec::new()));
            let (rank, group) = (p.rank, p.asks.as_ref().and_then(|(_, member)| *member));
            let others = || (0..p.world).filter(|other| *other != rank).collect();
            let waits = p.waits.map(|since| {
                (
                    since,
                    if p.next < p.world { vec![p.next] } else { group.map_or_else(others, |of| vec![of]) },
                )
            });
            Being {
                names: [
                    format!("pid {}", 2000 + p.conn),
                    format!("host{}", p.conn),
                    format!("10.0.{}.{}", p.conn / 100, p.rank),
                ]
                .into(),
                place: Some(p.rank).filter(|_| p.published),
                holds: p.published,
                connected: p.connected,
                acts: !p.frozen && !p.held,
                waits: waits.filter(|_| p.connected).or(hosts),
                ..Being::default()
            }
        };
        // A host is known as rank 0 for a while after it has counted.
        let joined = live().filter(|p| p.published || p.hosted).count();
        let is_whole = (1..=MOST).any(|world| self.is_whole(world));
        World {
            place: "rank",
            beings: self.now.iter().map(being).collect(),
            complete: is_whole,
            counts: vec![("joined", 0, joined), ("left", 0, joined)],
            ..World::default()
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
    schedules(op, 180)
}

#[test]
fn what_is_said_of_ranks_is_the_truth() {
    play_all("ranks", &schedule(), |schedule| played(Truth::new(), "", schedule));
}

#[test]
fn what_is_said_of_ranks_beside_a_c10d_run_is_the_truth() {
    play_all("ranks_beside", &schedule(), |schedule| played(Truth::beside_a_c10d_run(), "", schedule));
}

#[test]
fn what_was_false_once_is_true() {
    use Op::*;
    let in_group = vec![(ComeAll, 0), (Group(0, 0), 0), (Die(2), 0), (Restart(1), 0), (ComeWrong(2, 2), 180)];
    let dropped = vec![(Host(2), 0), (SecondJob(3), 0), (EndJob(1), 0), (Come(1), 0)];
    let left = vec![(Connect(3), 5), (SecondJob(4), 90), (EndJob(0), 40), (Publish(3), 5), (Come(1), 0)];
    let beside = vec![(ComeAll, 0), (Restart(2), 0), (Duplicate(0), 0), (Come(0), 90), (Reset, 0)];
    let beside = [beside, vec![(Restart(3), 180), (ComeWrong(2, 5), 90)]].concat();
    let back = vec![(ComeAll, 0), (Die(0), 0), (Host(3), 5), (Duplicate(3), 360), (Come(0), 180)];
    for schedule in [in_group, dropped, left, beside, [back, vec![(SecondJob(3), 60)]].concat()] {
        assert_eq!(played(Truth::new(), "", schedule).checked, Ok(()));
    }
}
