//! Ranks without agents.

use std::time::Duration;

use proptest::prelude::*;

use super::super::lab::Lab;
use crate::core::insight::Settings;
use crate::core::store::StaleKeyConfig;

const RANKS: u32 = 4;

#[derive(Debug, Clone, Copy)]
enum Op {
    /// The rank's process comes, if none is there: the first, or another after that one's death.
    Come(u32),
    Die(u32),
    /// An operator resets the store.
    Reset,
}

/// The process that has a rank now.
#[derive(Debug, Clone, Copy)]
struct Process {
    conn: u32,
    /// It has read the addresses of those before this one.
    next: u32,
    waits: bool,
}

/// What is true of a job of ranks without agents.
struct Truth {
    lab: Lab,
    now: [Option<Process>; RANKS as usize],
    /// When a process of this rank first came.
    came: [Option<f64>; RANKS as usize],
    /// From when to when a process had this rank.
    lives: [Vec<(f64, f64)>; RANKS as usize],
    conns: u32,
    /// All addresses were there at once.
    met: bool,
}

fn key(rank: u32) -> String {
    format!("/default_pg/0//cpu//0/{rank}")
}

impl Truth {
    fn new() -> Self {
        let settings = Settings { explain_after: Duration::from_secs(3), ..Settings::default() };
        let lab = Lab::with(settings, StaleKeyConfig::default());
        Self {
            lab,
            now: Default::default(),
            came: Default::default(),
            lives: Default::default(),
            conns: 0,
            met: false,
        }
    }

    fn seconds(&self) -> f64 {
        self.lab.now.0.as_secs_f64()
    }

    fn play(&mut self, op: Op) {
        let at = self.seconds();
        match op {
            Op::Come(rank) if self.now[rank as usize].is_none() => {
                let conn = self.conns;
                self.conns += 1;
                self.lab.worker(conn, &format!("10.0.0.{rank}"));
                self.lab.publish(conn, rank, RANKS as usize);
                self.now[rank as usize] = Some(Process { conn, next: 0, waits: false });
                self.came[rank as usize].get_or_insert(at);
                self.lives[rank as usize].push((at, f64::INFINITY));
            }
            Op::Die(rank) => {
                if let Some(process) = self.now[rank as usize].take() {
                    self.lab.leave(process.conn);
                    if let Some((_, to)) = self.lives[rank as usize].last_mut() {
                        *to = at;
                    }
                }
            }
            Op::Come(_) => {}
            Op::Reset => self.lab.reset(),
        }
        self.read_on();
        self.met |= (0..RANKS).all(|rank| self.lab.has(&key(rank)));
        if self.met && self.now.iter().all(Option::is_none) {
            // What comes now is another job.
            (self.met, self.came) = (false, Default::default());
        }
    }

    /// Each process reads the addresses of the others, one after the other, and waits for one that is not there.
    fn read_on(&mut self) {
        for rank in 0..RANKS {
            let Some(mut process) = self.now[rank as usize] else { continue };
            while process.next < RANKS {
                if process.next == rank {
                    process.next += 1;
                } else if self.lab.has(&key(process.next)) {
                    self.lab.get(process.conn, &key(process.next));
                    (process.next, process.waits) = (process.next + 1, false);
                } else {
                    if !process.waits {
                        self.lab.wait_for_rank(process.conn, process.next);
                        process.waits = true;
                    }
                    break;
                }
            }
            self.now[rank as usize] = Some(process);
        }
    }

    fn pass(&mut self, seconds: f64) {
        self.lab.pass(seconds);
        self.read_on();
    }

    /// Whether a text says of a rank that nobody has come.
    fn calls_missing(text: &str, rank: u32) -> bool {
        let missing = text.split("missing: ").nth(1).unwrap_or_default();
        text.contains(&format!("rank {rank}: it has not come"))
            || missing
                .split([',', ' '])
                .collect::<Vec<_>>()
                .windows(2)
                .any(|w| w == ["rank", &rank.to_string()])
    }

    fn check(&self) -> Result<(), TestCaseError> {
        // What is seen is told a moment later.
        const DELAY: f64 = 2.0;
        for (at, said) in &self.lab.said {
            for rank in 0..RANKS {
                let came = self.came[rank as usize].is_some_and(|came| came + DELAY < *at);
                prop_assert!(!(came && Self::calls_missing(&said.text, rank)), "{at}: {}", said.text);
                let is_alive =
                    self.lives[rank as usize].iter().any(|(from, to)| from + DELAY < *at && *at < *to);
                let is_dead = [format!("rank {rank} on host"), ": its connection closed".into()];
                let is_dead = is_dead.iter().all(|part| said.text.contains(part));
                prop_assert!(!(is_alive && is_dead), "{at}: {}", said.text);
            }
            prop_assert!(!said.text.contains("deadlock"), "{at}: {}", said.text);
            prop_assert!(!said.text.contains("finished"), "{at}: {}", said.text);
        }
        let alive = self.now.iter().flatten().count();
        let waits: Vec<u32> =
            self.now.iter().flatten().filter(|process| process.waits).map(|process| process.next).collect();
        let held: Vec<String> = self
            .lab
            .insight
            .list(0, self.lab.now)
            .runs
            .iter()
            .filter_map(|run| self.lab.insight.run(&run.run_id, run.store, None, self.lab.now))
            .flat_map(|run| run.explanations)
            .filter(|said| said.holds && ["waiting_for_rank", "rank_zero_slow"].contains(&said.code.as_str()))
            .map(|said| said.text)
            .collect();
        prop_assert_eq!(
            waits.is_empty(),
            held.is_empty(),
            "{} alive, wait for {:?}: {:?}",
            alive,
            waits,
            held
        );
        // The one whose absence is the cause is named: nobody came, it is dead, or its address is gone.
        for rank in waits {
            let absent = self.now[rank as usize].is_none() && self.came[rank as usize].is_none();
            let of_last_job = format!("rank {rank} on host");
            let is_named = |text: &String| Self::calls_missing(text, rank) || text.contains(&of_last_job);
            let named = held.iter().any(is_named);
            prop_assert!(!absent || named, "rank {} never came: {:?}", rank, held);
        }
        if alive == 0 && self.conns > 0 {
            let run = self.lab.run("store:29500");
            prop_assert!(run.summary.state.is_over(), "{:?}", run.summary.state);
            let ranks = run.summary.ranks.map_or(0, |ranks| ranks.joined - ranks.gone);
            prop_assert_eq!(ranks, 0);
        }
        Ok(())
    }
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..RANKS).prop_map(Op::Come),
        3 => (0..RANKS).prop_map(Op::Die),
        1 => Just(Op::Reset),
    ]
}

proptest! {
    #[test]
    fn nothing_false_is_said_of_ranks(schedule in prop::collection::vec((op(), 0..60_u32), 1..14)) {
        let mut truth = Truth::new();
        for (op, tenths) in schedule {
            truth.play(op);
            truth.pass(f64::from(tenths) / 10.0);
        }
        truth.pass(8.0);
        truth.check()?;
    }
}
