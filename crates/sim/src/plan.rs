//! The plan of a run: the clients, their requests, and the faults with their times. A seed makes it. A
//! failing plan is made smaller until nothing more can be left out.

use super::elastic::{self, ElasticPlan};
use super::jobs::JobPlan;
use super::random::Random;
use super::rough::{self, Rough};
use super::runs::RunsPlan;
use rallypoint_server::journal::faults::Refused;
use rallypoint_store::testing::model::{Act, Key};

/// Microseconds of the invented clock.
pub(super) type Micros = u64;

pub(super) const MILLI: Micros = 1000;
pub(super) const SECOND: Micros = 1_000_000;
/// An hour of the calendar in seconds.
const HOUR: i64 = 3600;

/// Keys with texts, numbers, queues and barriers. They match no pattern of the stale-key rules. Each key has
/// only one use, so the store refuses nothing.
pub(super) const TEXTS: [Key; 3] = ["a", "b", "c"];
pub(super) const NUMBERS: [Key; 2] = ["n", "m"];
pub(super) const QUEUES: [Key; 2] = ["q", "r"];
pub(super) const BARRIERS: [Key; 2] = ["x", "y"];

/// What a schedule contains beside clients. Each million of seeds has one of these kinds, because larger
/// schedules take longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cast {
    /// Runs without ranks, and jobs of PyTorch processes.
    Runs,
    /// Agents of torchrun.
    Agents,
    /// Native runs whose nodes have ranks.
    RunsWithRanks,
    /// Agents of torchrun whose ranks use the same store.
    AgentsWithRanks,
    /// Agents of torchrun with fixed node ranks: its static backend.
    StaticAgents,
    /// Clients and runs, at a server whose memory is used up at times.
    ShortOfMemory,
    /// Clients that write and read several keys, in as many slices, and large values.
    Slices,
}

impl Cast {
    pub(super) const ALL: [Self; 7] = [
        Self::Runs,
        Self::Agents,
        Self::RunsWithRanks,
        Self::AgentsWithRanks,
        Self::StaticAgents,
        Self::ShortOfMemory,
        Self::Slices,
    ];
    /// The number of seeds of one kind, before the next kind follows.
    pub(super) const EACH: u64 = 1_000_000;

    pub(super) const fn of(seed: u64) -> Self {
        Self::ALL[(seed / Self::EACH % Self::ALL.len() as u64) as usize]
    }

    /// The first of its seeds.
    pub(super) const fn first(self) -> u64 {
        self.first_of_day(0)
    }

    /// The first of its seeds for this day, counted from 1970.
    pub(super) const fn first_of_day(self, day: u64) -> u64 {
        (day * Self::ALL.len() as u64 + self as u64) * Self::EACH
    }
}

/// What survives the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeping {
    /// Nothing, because there is no journal.
    Nothing,
    /// Everything that was written.
    Process,
    /// Everything that was synced.
    Disk,
}

/// One request of a client.
#[derive(Debug, Clone)]
pub(super) struct Step {
    /// The pause before it.
    pub(super) think: Micros,
    pub(super) act: Act,
    /// The time after which a wait is cancelled.
    pub(super) patience: Option<Micros>,
}

#[derive(Debug, Clone)]
pub(super) struct ClientPlan {
    /// The relay behind which it is. `None` for a client with its own connection.
    pub(super) relay: Option<usize>,
    pub(super) steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The server is killed and started again.
    Kill { away: Micros },
    /// The disk stops in the middle of one of its next steps, and the server dies.
    KillInWrite { steps: u64, away: Micros },
    /// The machine loses its power.
    PowerCut { away: Micros },
    /// A relay's connection breaks. A part of the bytes in flight arrives.
    Break { relay: usize },
    /// A connection breaks, and only the relay notices.
    HalfOpen { relay: usize },
    /// A connection breaks, and only the server notices.
    HalfOpenAtServer { relay: usize },
    /// No bytes pass, in either direction.
    Partition { relay: usize, lasts: Micros },
    /// A relay dies with its clients and is started again.
    KillRelay { relay: usize, away: Micros },
    /// A client leaves in the middle of its work.
    KillClient { client: usize },
    /// The disk is full for a while. Then it has room again, at once or in steps.
    Full { lasts: Micros },
    /// The disk refuses this operation for a while.
    Refuses { what: Refused, lasts: Micros },
    /// Somebody sets the calendar of the server, so that it is ahead by this many seconds.
    CalendarSet { ahead: i64 },
    /// The memory of the server is used up except for this many bytes (--max-memory).
    MemoryUsedUp { leaves: usize, lasts: Micros },
}

#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) keeping: Keeping,
    pub(super) relays: usize,
    pub(super) clients: Vec<ClientPlan>,
    /// The faults, by time.
    pub(super) faults: Vec<(Micros, Fault)>,
    /// Every other seed has native runs, and so do all seeds of [`Cast::RunsWithRanks`].
    pub(super) runs: RunsPlan,
    /// Every other seed has a job, unless it has agents.
    pub(super) job: Option<JobPlan>,
    /// Seeds of [`Cast::Agents`], [`Cast::AgentsWithRanks`] and [`Cast::StaticAgents`] have them.
    pub(super) elastic: Vec<ElasticPlan>,
    /// Foreign peers, and late frames.
    pub(super) rough: Vec<(Micros, Rough)>,
}

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let keeping = match random.below(8) {
            0 => Keeping::Nothing,
            1..=4 => Keeping::Process,
            _ => Keeping::Disk,
        };
        let relays = random.between(1, 3) as usize;
        let mut clients = (0..random.between(2, 7)).map(|_| client(&mut random, relays)).collect::<Vec<_>>();
        let mut faults: Vec<_> = (0..random.below(6))
            .map(|_| (random.below(600 * MILLI), fault(&mut random, keeping, relays, clients.len())))
            .collect();
        if Cast::of(seed) == Cast::ShortOfMemory {
            let mut random = Random::new(seed ^ 0xf00d);
            faults.extend(
                (0..random.between(1, 3)).map(|_| (random.below(600 * MILLI), shortage(&mut random))),
            );
        }
        if Cast::of(seed) == Cast::Slices {
            let mut random = Random::new(seed ^ 0x511ce);
            for client in &mut clients {
                use_slices(&mut random, client);
            }
            let kill =
                Fault::KillInWrite { steps: random.below(6), away: random.between(20 * MILLI, SECOND) };
            faults.push((random.below(600 * MILLI), kill));
        }
        if seed % 8 == 1 {
            let mut random = Random::new(seed ^ 0xda7e);
            let ahead = *random.pick(&[-1000 * HOUR, -HOUR, -2, 2, HOUR, 1000 * HOUR]);
            faults.push((random.below(600 * MILLI), Fault::CalendarSet { ahead }));
        }
        if keeping != Keeping::Nothing && seed % 16 == 9 {
            faults.extend(refusals(&mut Random::new(seed ^ 0xd15c), keeping));
        }
        faults.sort_by_key(|(at, _)| *at);
        let has_runs = seed.is_multiple_of(2) || Cast::of(seed) == Cast::RunsWithRanks;
        let runs = if has_runs { RunsPlan::new(seed) } else { RunsPlan::default() };
        let elastic = elastic::plan(seed, relays);
        // In a store that agents use too, nobody can tell to whom a rank belongs. And without memory the
        // store does not remember which ranks have read which addresses, so the reference would know more
        // than the store.
        let has_job = elastic.is_empty() && !matches!(Cast::of(seed), Cast::ShortOfMemory | Cast::Slices);
        let job = JobPlan::new(seed, relays).filter(|_| has_job);
        let rough = rough::plan(seed, relays);
        Self { seed, keeping, relays, clients, faults, runs, job, elastic, rough }
    }

    /// How many seconds the calendar of a server is ahead. In one seed of four, the servers run on machines
    /// whose calendars differ.
    pub(super) fn ahead(&self, life: u32) -> i64 {
        let mut random = Random::new(self.seed ^ 0xca1 ^ u64::from(life) << 32);
        if !self.seed.is_multiple_of(4) {
            return 0;
        }
        *random.pick(&[0, 1, -1, 90, -90, HOUR, -HOUR, 1000 * HOUR, -1000 * HOUR])
    }

    /// The plan without one of its parts, for each part. The parts that save most come first.
    pub(super) fn smaller(&self) -> impl Iterator<Item = Self> {
        let faults = (0..self.faults.len()).map(|n| {
            let mut smaller = self.clone();
            smaller.faults.remove(n);
            smaller
        });
        // A client keeps its number and loses its requests, because faults name clients by number.
        let clients = (0..self.clients.len()).filter(|&n| !self.clients[n].steps.is_empty()).map(|n| {
            let mut smaller = self.clone();
            smaller.clients[n].steps.clear();
            smaller
        });
        let steps = self.clients.iter().enumerate().flat_map(move |(n, client)| {
            (0..client.steps.len()).map(move |step| {
                let mut smaller = self.clone();
                smaller.clients[n].steps.remove(step);
                smaller
            })
        });
        let runs = self.runs.smaller().into_iter().map(|runs| Self { runs, ..self.clone() });
        let jobs = self.job.iter().flat_map(|job| {
            let smaller = job.smaller().map(Some);
            [None].into_iter().chain(smaller).map(|job| Self { job, ..self.clone() })
        });
        let elastic = (0..self.elastic.len()).flat_map(move |n| {
            let mut without = self.elastic.clone();
            without.remove(n);
            let smaller = self.elastic[n].smaller().map(move |job| {
                let mut all = self.elastic.clone();
                all[n] = job;
                all
            });
            [without].into_iter().chain(smaller).map(move |elastic| Self { elastic, ..self.clone() })
        });
        let rough = (0..self.rough.len()).map(|n| {
            let mut smaller = self.clone();
            smaller.rough.remove(n);
            smaller
        });
        faults.chain(rough).chain(runs).chain(jobs).chain(elastic).chain(clients).chain(steps)
    }
}

fn client(random: &mut Random, relays: usize) -> ClientPlan {
    let relay = (!random.one_in(8)).then(|| random.below(relays as u64) as usize);
    let steps = (0..random.between(2, 14)).map(|_| step(random)).collect();
    ClientPlan { relay, steps }
}

fn step(random: &mut Random) -> Step {
    let act = act(random);
    let waits = matches!(act, Act::Wait(_) | Act::Barrier(..));
    Step {
        // Sometimes without a pause, so that requests share a frame.
        think: if random.one_in(3) { 0 } else { random.below(50 * MILLI) },
        patience: (waits && !random.one_in(4)).then(|| match random.below(4) {
            0 => random.below(5 * MILLI),
            1 => random.below(SECOND),
            _ => random.between(SECOND, 4 * SECOND),
        }),
        act,
    }
}

fn value(random: &mut Random) -> String {
    let len = if random.one_in(20) { random.below(3000) } else { random.below(4) };
    (0..len).map(|_| *random.pick(&['u', 'v', 'w'])).collect()
}

/// Changes half of a client's requests: they take several slices, or have a large value.
fn use_slices(random: &mut Random, client: &mut ClientPlan) {
    for step in &mut client.steps {
        let text = *random.pick(&TEXTS);
        let large: String = (0..random.between(1000, 3000)).map(|_| *random.pick(&['u', 'v', 'w'])).collect();
        let several = random.between(2, 6);
        let act = match random.below(12) {
            0..=2 => Act::MultiSet((0..several).map(|_| (*random.pick(&TEXTS), value(random))).collect()),
            3 => Act::MultiGet((0..several).map(|_| *random.pick(&TEXTS)).collect()),
            4 => Act::Set(text, large),
            5 => Act::Append(text, value(random)),
            _ => continue,
        };
        (step.act, step.patience) = (act, None);
    }
}

fn act(random: &mut Random) -> Act {
    let text = *random.pick(&TEXTS);
    let number = *random.pick(&NUMBERS);
    let queue = *random.pick(&QUEUES);
    let barrier = *random.pick(&BARRIERS);
    let plain = *random.pick(&[text, number]);
    let any = *random.pick(&[plain, queue]);
    match random.below(30) {
        0..=4 => Act::Set(text, value(random)),
        5..=8 => Act::Add(number, random.between(1, 3) as i64),
        9 => {
            Act::CompareSet(text, if random.one_in(2) { String::new() } else { value(random) }, value(random))
        }
        10..=11 => Act::Get(plain),
        12 => Act::Append(text, value(random)),
        13 => Act::MultiSet(vec![(text, value(random)), (*random.pick(&TEXTS), value(random))]),
        14 => Act::MultiGet(vec![text, number]),
        15 => Act::Delete(plain),
        16 => Act::Check(vec![any, text]),
        17..=20 => Act::Wait(if random.one_in(3) { vec![any, text] } else { vec![any] }),
        21..=22 => Act::Push(queue, value(random)),
        23..=24 => Act::Pop(queue),
        25 => Act::Len(queue),
        26..=27 => Act::Barrier(barrier, random.between(1, 3) as i64),
        28 => Act::List,
        _ => {
            if random.one_in(2) {
                Act::NumKeys
            } else {
                Act::Ping(random.next() as u32)
            }
        }
    }
}

fn fault(random: &mut Random, keeping: Keeping, relays: usize, clients: usize) -> Fault {
    let relay = random.below(relays as u64) as usize;
    let away = if random.one_in(8) { 12 * SECOND } else { random.between(20 * MILLI, 2 * SECOND) };
    match random.below(20) {
        0..=3 => Fault::Kill { away },
        4..=6 => Fault::KillInWrite { steps: random.below(6), away },
        7..=8 if keeping == Keeping::Disk => Fault::PowerCut { away },
        7..=11 => Fault::Break { relay },
        12 => Fault::HalfOpen { relay },
        13 => Fault::HalfOpenAtServer { relay },
        14..=15 => {
            let long = random.one_in(6);
            let lasts =
                if long { random.between(10 * SECOND, 20 * SECOND) } else { random.below(8 * SECOND) };
            Fault::Partition { relay, lasts }
        }
        16 => Fault::KillRelay { relay, away },
        17 => Fault::KillClient { client: random.below(clients as u64) as usize },
        _ => Fault::Full { lasts: random.below(12 * SECOND) },
    }
}

/// The disk refuses something or is full, and the server dies.
fn refusals(random: &mut Random, keeping: Keeping) -> Vec<(Micros, Fault)> {
    let what = *random.pick(&[Refused::Sync, Refused::Create, Refused::Remove]);
    let away = random.between(20 * MILLI, SECOND);
    let dies = if keeping == Keeping::Disk { Fault::PowerCut { away } } else { Fault::Kill { away } };
    let mut at = || random.below(600 * MILLI);
    vec![
        (at(), Fault::Refuses { what, lasts: at() * 4 }),
        (at(), Fault::Full { lasts: at() }),
        (at(), dies),
        (at() + SECOND, dies),
    ]
}

fn shortage(random: &mut Random) -> Fault {
    let leaves = if random.one_in(3) { 0 } else { random.below(4000) as usize };
    Fault::MemoryUsedUp { leaves, lasts: random.between(MILLI, 4 * SECOND) }
}
