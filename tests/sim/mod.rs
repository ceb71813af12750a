//! The simulator: a whole cluster in one thread, driven by one number. It runs the real store, engine, conversations, links,
//! journal and insight. Only the clock, the network, the disk and the clients are models. `docs/reliability.md` says what it
//! looks at and what it leaves out.
//!
//! It is a part of the crate's unit tests, although it stands here: it moves what is inside the server, which is not to be
//! public for its sake.

mod agent;
mod client;
mod disk;
mod elastic;
mod jobs;
mod mutants;
mod plan;
mod random;
mod reference;
mod rough;
mod runs;
mod server;
mod tally;
mod truth;
mod world;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use mutants::Mutant;
use plan::{Cast, Plan};
use tally::Tally;
use world::{Failure, World};

/// Runs a plan; a panic of the product is a failure as well.
fn run(plan: &Plan, mutant: Option<Mutant>, with_trace: bool) -> Result<Tally, Failure> {
    catch_unwind(AssertUnwindSafe(|| World::run(plan, mutant, with_trace))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
        Err(Failure { why: format!("panic: {text}"), trace: Vec::new() })
    })
}

/// The beginning of what failed, which tells one kind of failure from another.
fn kind(why: &str) -> String {
    const LONG_ENOUGH: usize = 24;
    why.chars().filter(|char| !char.is_ascii_digit()).take(LONG_ENOUGH).collect()
}

/// Leaves out of a failing plan what is not needed to fail in this way.
fn shrink(plan: Plan, why: &str, mutant: Option<Mutant>) -> Plan {
    /// Runs that this may take.
    const MOST: usize = 2000;
    let mut smallest = plan;
    let mut runs = 0;
    loop {
        let smaller = smallest.smaller().take(MOST - runs).find(|smaller| {
            runs += 1;
            run(smaller, mutant, false).is_err_and(|failure| kind(&failure.why) == kind(why))
        });
        match smaller {
            Some(smaller) if runs < MOST => smallest = smaller,
            Some(smaller) => return smaller,
            None => return smallest,
        }
    }
}

/// What a failing seed is worth to read.
fn tell(seed: u64, why: &str, mutant: Option<Mutant>) -> String {
    let plan = shrink(Plan::new(seed), why, mutant);
    let again = run(&plan, mutant, true).err();
    let trace = again.map_or_else(Vec::new, |failure| failure.trace).join("\n");
    format!("seed {seed}: {why}\n\nThe least that fails:\n{plan:#?}\n\nWhat happens:\n{trace}\n")
}

/// Runs seeds and says what they were worth. Stops after a few that fail.
fn sweep(seeds: Range<u64>, mut progress: impl FnMut(u64, &Tally)) -> Tally {
    const MOST: usize = 5;
    let mut sum = Tally::default();
    let mut failed = Vec::new();
    for seed in seeds {
        match run(&Plan::new(seed), None, false) {
            Ok(tally) => sum.add(&tally),
            Err(failure) => {
                println!("seed {seed} FAILS: {}", failure.why);
                failed.push((seed, failure.why));
                if failed.len() >= MOST {
                    break;
                }
            }
        }
        progress(seed, &sum);
    }
    if let Some((seed, why)) = failed.first() {
        panic!("{}", tell(*seed, why, None));
    }
    sum
}

/// Seeds that showed a bug of the product once. What each was is in `docs/reliability.md`.
const FOUND: [u64; 19] = [
    733, 88, 5714, 5940, 6296, 203, 772, 834, 1_000_290, 1_001_037, 1_004_005, 1_004_132, 1_004_197,
    1_004_380, 1_005_195, 1_005_237, 1_005_627, 2_000_041, 2_000_595,
];

#[test]
fn seeds_that_failed_once_do_not_fail_again() {
    for seed in FOUND {
        if let Err(failure) = run(&Plan::new(seed), None, false) {
            panic!("{}", tell(seed, &failure.why, None));
        }
    }
}

#[test]
fn a_seed_is_one_run_and_always_the_same() {
    // Down to each byte on the disk: what a map leaves to chance shows there first.
    let few = [Cast::Agents, Cast::RunsWithRanks, Cast::AgentsWithRanks, Cast::StaticAgents]
        .into_iter()
        .flat_map(|cast| cast.first()..cast.first() + 5);
    for seed in (0..20).chain(few) {
        let tallies = [(); 2].map(|()| run(&Plan::new(seed), None, false).map_err(|failure| failure.why));
        let [once, again] = tallies;
        assert_eq!(once, again, "seed {seed}");
    }
}

/// Ten thousand schedules, and some hundreds with more in them, in parts that run beside each other.
macro_rules! seeds {
    ($($name:ident: $cast:ident $seeds:expr;)*) => {$(
        #[test]
        fn $name() {
            let first = Cast::$cast.first();
            let _tally = sweep(first + $seeds.start..first + $seeds.end, |_, _| ());
        }
    )*};
}

seeds! {
    nothing_is_lost_or_done_twice_1: Runs 0..1250;
    nothing_is_lost_or_done_twice_2: Runs 1250..2500;
    nothing_is_lost_or_done_twice_3: Runs 2500..3750;
    nothing_is_lost_or_done_twice_4: Runs 3750..5000;
    nothing_is_lost_or_done_twice_5: Runs 5000..6250;
    nothing_is_lost_or_done_twice_6: Runs 6250..7500;
    nothing_is_lost_or_done_twice_7: Runs 7500..8750;
    nothing_is_lost_or_done_twice_8: Runs 8750..10_000;
    agents_of_torchrun_meet_1: Agents 0..100;
    agents_of_torchrun_meet_2: Agents 100..200;
    ranks_of_native_runs_meet_1: RunsWithRanks 0..200;
    ranks_of_native_runs_meet_2: RunsWithRanks 200..400;
    ranks_of_agents_meet: AgentsWithRanks 0..100;
    ranks_of_static_agents_meet: StaticAgents 0..100;
}

#[test]
fn each_planted_bug_is_found() {
    const MOST: u64 = 1000;
    let missed: Vec<_> = Mutant::ALL
        .into_iter()
        .filter(|&mutant| {
            let first = mutant.first_seed();
            let found = (first..first + MOST).find_map(|seed| {
                let failed = run(&Plan::new(seed), Some(mutant), false).err();
                failed.map(|failure| (seed, failure.why))
            });
            match &found {
                Some((seed, why)) => println!("{mutant:?}: seed {seed}: {why}"),
                None => println!("{mutant:?}: not found"),
            }
            found.is_none()
        })
        .collect();
    assert!(missed.is_empty(), "not found within {MOST} seeds: {missed:?}");
}

/// For `scripts/simulate`: the seeds that RALLYPOINT_SEEDS names, as FROM..TO.
#[test]
#[ignore = "run it by scripts/simulate"]
fn simulate() {
    let text = std::env::var("RALLYPOINT_SEEDS").expect("RALLYPOINT_SEEDS is FROM..TO");
    let ends = text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    let (from, to): (u64, u64) = ends.expect("RALLYPOINT_SEEDS is FROM..TO");
    let began = Instant::now();
    let mut said = began;
    let rate = |runs: u64| runs as f64 / began.elapsed().as_secs_f64() * 60.0;
    let tally = sweep(from..to, |seed, tally| {
        if said.elapsed() >= Duration::from_secs(5) {
            said = Instant::now();
            let runs = seed + 1 - from;
            println!("{runs} of {} seeds, {:.0} a minute: {tally}", to - from, rate(runs));
        }
    });
    println!("{} seeds without a failure, {:.0} a minute: {tally}", to - from, rate(to - from));
}
