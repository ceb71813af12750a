//! Processes of a program, ranks or not: they wait for keys, ask for them again and again, write and delete
//! them. Each part of what is said of a key is held against what was so just before.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::lab::Lab;
use super::super::stories::Stage as _;
use super::{EXPLAIN_AFTER, LOOKED, Play, Schedule, play_all, played, schedules};
use crate::testing::oracle::{Being, World};
use crate::testing::{Checked, Past, held, yes};
use rallypoint_api::Explanation;

const PROCESSES: usize = 5;
const KEYS: [&str; 4] = ["go", "task/1/done", "task/1/doing", "n"];
/// What somebody has begun so lately may not be known to be done.
const NEW: f64 = 5.0;
const CODE: &str = "waiting_for_key";

#[derive(Debug, Clone, Copy, PartialEq)]
enum Verb {
    Come,
    Die,
    Wait,
    /// It waits for a moment, again and again.
    WaitInSlices,
    Ask,
    Stop,
    Set,
    Add,
    Delete,
    /// An operator resets the store.
    Reset,
}

/// What one of them does, with a key.
type Op = (Verb, usize, usize);

#[derive(Debug, Clone, Copy, Default)]
struct Process {
    came: bool,
    connected: bool,
    waits: Option<(Verb, &'static str)>,
    since: f64,
}

impl Process {
    fn waits_for(&self, key: &str) -> bool {
        self.waits.is_some_and(|(_, of)| of == key)
    }

    fn is_blocked(&self) -> bool {
        self.waits.is_some_and(|(verb, _)| verb != Verb::Ask)
    }
}

#[derive(Debug, Clone, Default)]
struct Moment {
    processes: [Process; PROCESSES],
    keys: BTreeMap<&'static str, i64>,
    written: BTreeSet<&'static str>,
    /// Who deleted a key last.
    deleted: BTreeMap<&'static str, usize>,
    was_reset: bool,
}

struct Truth {
    lab: Lab,
    /// So many of them are ranks, which have met.
    ranks: usize,
    now: Moment,
    past: Past<Moment>,
}

impl Truth {
    fn new(ranks: usize) -> Self {
        let (mut lab, mut now) = (Lab::soon(), Moment::default());
        lab.scene.is_free();
        if ranks > 0 {
            lab.play(&format!("rank 0..{ranks} of {ranks}; met 0..{ranks} {ranks}; pass 1"));
        }
        now.processes[..ranks].iter_mut().for_each(|it| (it.came, it.connected) = (true, true));
        Self { lab, ranks, now, past: Past(Vec::new()) }
    }

    fn write(&mut self, key: &'static str, number: i64) {
        self.now.keys.insert(key, number);
        self.now.written.insert(key);
        let those = self.now.processes.iter_mut().filter(|it| it.is_blocked() && it.waits_for(key));
        those.for_each(|it| it.waits = None);
    }

    /// `A and B have waited 3 s for `KEY`, which WHY; PART: NAMES; …`.
    fn check_words(&self, at: f64, said: &Explanation) -> Checked {
        let was = |holds: &dyn Fn(&Moment) -> bool, why: &str| yes(self.past.any(at, holds), why);
        let is = |n: usize, holds: &dyn Fn(&Process) -> bool, why: &str| {
            was(&|moment| holds(&moment.processes[n]), &format!("{n} {why}"))
        };
        let mut parts = said.text.split("; ");
        let first = parts.next().unwrap_or_default();
        let key = first.split('`').nth(1).ok_or("no key")?;
        for (n, _) in listed(&held(&said.facts).join(", ")) {
            is(n, &|it| it.waits_for(key), "does not wait")?;
        }
        let why = first.rsplit_once(", which ").map_or("", |(_, why)| why);
        let is_so = |moment: &Moment| match why {
            "nobody has written" => !moment.written.contains(key),
            "does not exist" => moment.was_reset,
            _ => moment.deleted.get(key).copied() == listed(why).first().map(|(n, _)| *n),
        };
        was(&is_so, why)?;
        for part in parts.filter(|part| !part.starts_with("gone")) {
            let (title, names) = part.split_once(": ").unwrap_or((part, ""));
            for (n, what) in listed(names) {
                let asked = what.split('`').nth(1);
                let does = |it: &Process| {
                    let is_new = at - it.since < NEW;
                    let idles = || it.waits.is_none() || is_new || !what.contains("waits for nothing");
                    asked.map_or_else(idles, |asked| it.waits_for(asked)) && (is_new || !it.waits_for(key))
                };
                is(n, &does, what)?;
            }
            if title.contains("that are connected wait") {
                let asks_too = title.contains("or ask again and again");
                let waits = |moment: &Moment, n: usize| {
                    let waits = moment.processes[n].waits;
                    waits.is_some_and(|(_, key)| asks_too || !moment.keys.contains_key(key))
                };
                let waits = |n: usize| self.past.any(at, |moment| waits(moment, n));
                let all =
                    |moment: &Moment| (0..PROCESSES).all(|n| !moment.processes[n].connected || waits(n));
                was(&all, title)?;
            }
            let is_beside = title.starts_with('`') || title.starts_with("beside");
            for other in title.split('`').skip(1).step_by(2).filter(|_| is_beside) {
                was(&|moment| moment.keys.contains_key(other), &format!("{other} is not there"))?;
            }
        }
        Ok(())
    }
}

impl Play for Truth {
    type Op = Op;
    const RUN: &'static str = "store:29500";

    fn lab(&mut self) -> &mut Lab {
        &mut self.lab
    }

    fn play(&mut self, (verb, n, key): Op) {
        self.lab.pass(0.001);
        let (conn, key, mut it) = (n as u32, KEYS[key], self.now.processes[n]);
        let is_there = self.now.keys.contains_key(key);
        match verb {
            Verb::Reset => {
                self.lab.reset();
                (self.now.was_reset, self.now.keys) = (true, BTreeMap::new());
            }
            Verb::Come if !it.came => {
                self.lab.come(conn, &format!("10.0.0.{n}"), 2000 + conn);
                (it.came, it.connected) = (true, true);
            }
            _ if !it.connected => return,
            Verb::Die => {
                self.lab.leave(conn);
                (it.connected, it.waits) = (false, None);
            }
            Verb::Stop => {
                self.lab.cancel(conn);
                it.waits = None;
            }
            _ if it.is_blocked() => return,
            Verb::Ask => it.waits = Some((verb, key)),
            Verb::Wait | Verb::WaitInSlices if !is_there => {
                self.lab.wait(conn, &[key]);
                it.waits = Some((verb, key));
            }
            Verb::Set => {
                self.lab.set(conn, key, b"1");
                self.write(key, 1);
            }
            Verb::Add => {
                self.lab.add(conn, key, 1);
                self.write(key, self.now.keys.get(key).map_or(1, |number| number + 1));
            }
            Verb::Delete if is_there => {
                self.lab.play(&format!("del {n} {key}"));
                self.now.keys.remove(key);
                self.now.deleted.insert(key, n);
            }
            _ => return,
        }
        self.now.processes[n] = Process { since: self.lab.seconds(), ..it };
    }

    fn act(&mut self) {
        for (n, it) in (0..).zip(self.now.processes) {
            match it.waits {
                Some((Verb::Ask, key)) if self.now.keys.contains_key(key) => {
                    self.lab.get(n, key);
                    self.now.processes[n as usize].waits = None;
                }
                Some((Verb::Ask, key)) => _ = self.lab.asks(n, key),
                Some((Verb::WaitInSlices, key)) => {
                    self.lab.cancel(n);
                    self.lab.wait(n, &[key]);
                }
                _ => {}
            }
        }
        self.past.0.push((self.lab.seconds(), self.now.clone()));
    }

    fn world(&self) -> World {
        let being = |(n, it): (usize, &Process)| Being {
            names: [format!("pid {}", 2000 + n), format!("host{n}"), format!("10.0.0.{n}")].into(),
            place: (n < self.ranks).then_some(n as u32),
            holds: n < self.ranks,
            connected: it.connected,
            acts: true,
            waits: it.waits.map(|_| (it.since, Vec::new())),
            ..Being::default()
        };
        let beings = self.now.processes.iter().enumerate().map(being).collect();
        World { place: "rank", beings, complete: true, ..World::default() }
    }

    fn check(&self, at: f64, said: &Explanation) -> Checked {
        if said.code == CODE { self.check_words(at, said) } else { Ok(()) }
    }

    /// Who waits for a key is told, with all others and what they do, where there is no job.
    fn check_end(&self) -> Checked {
        let (due, shown) = (self.lab.seconds() - EXPLAIN_AFTER - LOOKED, self.lab.shown());
        let all = || self.now.processes.iter().enumerate();
        let (there, is_job) = (|it: &Process| it.connected, self.ranks > 0);
        let all_wait = all().filter(|(_, it)| there(it)).count() > 1
            && all().all(|(_, it)| !there(it) || it.waits.is_some());
        for (n, it) in all().filter(|(_, it)| it.since < due) {
            let Some((_, key)) = it.waits else { continue };
            let is_held = |said: &Explanation| listed(&held(&said.facts).join(", ")).contains(&(n, ""));
            let is_it = |said: &&Explanation| said.text.contains(&format!(" for `{key}`")) && is_held(said);
            let told = shown.iter().find(is_it).ok_or(format!("{n} waits for {key} untold: {shown:?}"))?;
            let is_named = |n: usize, has: &str| {
                listed(&told.text).iter().any(|(who, what)| *who == n && what.contains(has))
            };
            let is_told = |(n, other): (usize, &Process)| {
                let is_nobody = !other.came || !there(other) && other.since <= it.since;
                let what = if there(other) { "waits for" } else { "closed" };
                is_nobody || other.waits_for(key) || is_named(n, what)
            };
            let are_told = !all_wait || told.text.contains("that are connected wait");
            yes(are_told && (is_job || all().all(is_told)), &format!("not all are told: {}", told.text))?;
        }
        Ok(())
    }
}

/// The processes of a list, each with what stands in the brackets after it.
fn listed(names: &str) -> Vec<(usize, &str)> {
    let of_name = |(at, name): (usize, &str)| {
        let number = names[at + name.len()..].split(|c: char| !c.is_ascii_digit()).next()?;
        let what = names[at..].split_once(" (").and_then(|(_, what)| what.split(')').next());
        Some((number.parse::<usize>().ok()? % 2000, what.unwrap_or_default()))
    };
    let all: BTreeMap<_, _> =
        ["process ", "rank "].iter().flat_map(|kind| names.match_indices(kind)).collect();
    all.into_iter().filter_map(of_name).collect()
}

fn schedule() -> impl Strategy<Value = Schedule<Op>> {
    use Verb::{Add, Ask, Come, Delete, Die, Reset, Set, Stop, Wait, WaitInSlices};
    let verbs = [Come, Come, Come, Die, Wait, Wait, WaitInSlices, Ask, Ask, Stop, Set, Add, Delete, Reset];
    schedules((prop::sample::select(verbs.to_vec()), 0..PROCESSES, 0..KEYS.len()), 180)
}

#[test]
fn what_is_said_of_keys_of_programs_is_the_truth() {
    play_all("processes", &schedule(), |schedule| played(Truth::new(0), "", schedule));
    play_all("ranks_of_programs", &schedule(), |schedule| played(Truth::new(2), "two ranks", schedule));
}
