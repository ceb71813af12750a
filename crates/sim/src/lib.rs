//! The simulator: a whole cluster in one thread, driven by one number. It runs the real store, engine,
//! conversations, links, journal and insight. Only the clock, the network, the disk and the clients are
//! models. `docs/reliability.md` says what it checks and what it leaves out.
//!
#![cfg(test)]
//! It is a part of the crate's unit tests, although its files are here: it drives inner parts of the server,
//! which are not to become public because of it.

mod agent;
mod client;
mod disk;
mod elastic;
mod flood;
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

use std::iter;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use mutants::Mutant;
use plan::{Cast, Plan};
use tally::Tally;
use world::{Failure, World};

/// Runs a plan. A panic of the product is a failure too.
fn run(plan: &Plan, mutant: Option<Mutant>, with_trace: bool) -> Result<Tally, Failure> {
    catch_unwind(AssertUnwindSafe(|| World::run(plan, mutant, with_trace))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
        Err(Failure { why: format!("panic: {text}"), trace: Vec::new() })
    })
}

/// The beginning of a failure's text, which distinguishes kinds of failures.
fn kind(why: &str) -> String {
    const LONG_ENOUGH: usize = 24;
    why.chars().filter(|char| !char.is_ascii_digit()).take(LONG_ENOUGH).collect()
}

/// Removes from a failing plan everything that the failure does not need.
fn shrink(plan: Plan, why: &str, mutant: Option<Mutant>) -> Plan {
    /// Most runs for this.
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

/// The text about a failing seed: the smallest plan that fails, and what happens in it.
fn tell(seed: u64, why: &str, mutant: Option<Mutant>) -> String {
    let plan = shrink(Plan::new(seed), why, mutant);
    let again = run(&plan, mutant, true).err();
    let trace = again.map_or_else(Vec::new, |failure| failure.trace).join("\n");
    format!("seed {seed}: {why}\n\nThe least that fails:\n{plan:#?}\n\nWhat happens:\n{trace}\n")
}

/// The results of the seeds so far.
#[derive(Default)]
struct Sweep {
    runs: u64,
    tally: Tally,
    /// Seeds that failed, and why.
    failed: Vec<(u64, String)>,
}

/// Runs seeds in several threads, and returns their results. Stops after a few failures.
fn sweep(seeds: impl Iterator<Item = u64> + Send, threads: usize, progress: impl Fn(&Sweep) + Sync) -> Sweep {
    const MOST: usize = 5;
    let seeds = Mutex::new(seeds);
    let sum = Mutex::new(Sweep::default());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let next = seeds.lock().unwrap().next();
                    let Some(seed) = next else { break };
                    let run = run(&Plan::new(seed), None, false);
                    let mut sum = sum.lock().unwrap();
                    sum.runs += 1;
                    match run {
                        Ok(tally) => sum.tally.add(&tally),
                        Err(failure) => {
                            println!("seed {seed} FAILS: {}", failure.why);
                            sum.failed.push((seed, failure.why));
                        }
                    }
                    if sum.failed.len() >= MOST {
                        break;
                    }
                    progress(&sum);
                }
            });
        }
    });
    let sum = sum.into_inner().unwrap();
    if let Some((seed, why)) = sum.failed.first() {
        panic!("{}", tell(*seed, why, None));
    }
    sum
}

/// Seeds that have failed once. The git log says why each one was added.
#[rustfmt::skip]
const FOUND: [u64; 43] = [
    733, 88, 5714, 5940, 6296, 203, 772, 834, 1_000_290, 1_001_037, 1_004_005, 1_004_132, 1_004_197,
    1_004_380, 1_005_195, 1_005_237, 1_005_627, 2_000_041, 2_000_595, 2_023_559, 22435, 28551, 2_000_005,
    2_003_395, 3_004_112, 4_000_137, 3_050_732, 3_053_029, 3_053_237, 4_033_454, 5_003_380, 1_001_773,
    4_503_859, 5_500_136, 4_004_965, 3_000_908, 2_003_006, 6_006_825, 145_515_000_136,
    145_516_002_726, 145_518_004_955, 145_521_008_228, 4_002_051,
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
    // Down to each byte on the disk, because the chance order of a map shows there first.
    for seed in Cast::ALL.into_iter().flat_map(|cast| cast.first()..cast.first() + 8) {
        let tallies = [(); 2].map(|()| run(&Plan::new(seed), None, false).map_err(|failure| failure.why));
        let [once, again] = tallies;
        assert_eq!(once, again, "seed {seed}");
    }
}

/// The first seeds of each kind. `scripts/simulate` runs more.
macro_rules! seeds {
    ($($name:ident: $cast:ident $most:expr;)*) => {$(
        #[test]
        fn $name() {
            let first = Cast::$cast.first();
            let _sum = sweep(first..first + $most, 1, |_| ());
        }
    )*};
}

seeds! {
    nothing_is_lost_or_done_twice: Runs 500;
    agents_of_torchrun_meet: Agents 100;
    ranks_of_native_runs_meet: RunsWithRanks 200;
    ranks_of_agents_meet: AgentsWithRanks 100;
    ranks_of_static_agents_meet: StaticAgents 100;
    who_is_refused_for_memory_is_told: ShortOfMemory 300;
    what_is_done_in_slices_is_done_once: Slices 300;
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

/// For `scripts/simulate`, on all cores. RALLYPOINT_SEEDS is FROM..TO, or the number of seeds of each kind. A
/// day before that number chooses the seeds of that day.
#[test]
#[ignore = "run it by scripts/simulate"]
fn simulate() {
    let text = std::env::var("RALLYPOINT_SEEDS").expect("RALLYPOINT_SEEDS is set");
    let ranges = ranges(&text).expect("RALLYPOINT_SEEDS is FROM..TO, N or DAY:N");
    let seeds: Vec<u64> = ranges.into_iter().flatten().collect();
    let all = seeds.len() as u64;
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let began = Instant::now();
    let said = Mutex::new(began);
    let rate = |runs: u64| runs as f64 / began.elapsed().as_secs_f64() * 60.0;
    let sum = sweep(seeds.into_iter(), threads, |Sweep { runs, tally, .. }| {
        let mut said = said.lock().unwrap();
        if said.elapsed() >= Duration::from_secs(5) {
            *said = Instant::now();
            println!("{runs} of {all} seeds, {:.0} a minute: {tally}", rate(*runs));
        }
    });
    println!("{all} seeds without a failure, {:.0} a minute: {}", rate(all), sum.tally);
}

fn ranges(text: &str) -> Option<Vec<Range<u64>>> {
    if let Some((from, to)) = text.split_once("..") {
        return Some(iter::once(from.parse().ok()?..to.parse().ok()?).collect());
    }
    let (day, each) = text.split_once(':').unwrap_or(("0", text));
    let (day, each): (u64, u64) = (day.parse().ok()?, each.parse().ok()?);
    // Each kind has this many seeds for one day.
    (each <= Cast::EACH)
        .then(|| Cast::ALL.map(|cast| cast.first_of_day(day)..cast.first_of_day(day) + each).to_vec())
}

#[test]
fn each_day_has_seeds_of_its_own_of_each_kind() {
    let days = ["0:1000000", "1:1000000", "20783:1000000"].map(|text| ranges(text).expect("seeds"));
    assert_eq!(ranges("1000000").as_ref(), Some(&days[0]));
    let all: Vec<Range<u64>> = days.into_iter().flatten().collect();
    for (n, range) in all.iter().enumerate() {
        let cast = Cast::ALL[n % Cast::ALL.len()];
        assert!([range.start, range.end - 1].map(Cast::of).iter().all(|of| *of == cast), "{range:?}");
        assert!(all[..n].iter().all(|other| other.end <= range.start), "{range:?} has been before");
    }
    assert_eq!(ranges("1:1000001"), None, "these are the next kind's");
}
