//! The plan of a job of plain PyTorch processes: `env://`, each with its rank.

use super::plan::{MILLI, Micros, SECOND, Step};
use super::random::Random;
use rallypoint_store::testing::Said;
use rallypoint_store::testing::model::{Act, Key};

/// The keys in which ranks publish their addresses, as in gloo's first process group.
pub(super) const ADDRESSES: [Key; 4] = [
    "/default_pg/0//cpu//0/0",
    "/default_pg/0//cpu//0/1",
    "/default_pg/0//cpu//0/2",
    "/default_pg/0//cpu//0/3",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobFault {
    /// The process with this rank dies.
    Die { rank: usize },
    /// The server dies, and is away for this long.
    Server { away: Micros },
    /// No bytes pass between a relay and the server, in either direction.
    Partition { relay: usize, lasts: Micros },
}

#[derive(Debug, Clone)]
pub(super) struct JobPlan {
    /// When each rank's process comes, and behind which relay it is.
    pub(super) ranks: Vec<(Micros, Option<usize>)>,
    /// How long the ranks train.
    pub(super) trains: Micros,
    /// What happens after a process has ended too early: the others are left alone, or all are started again.
    pub(super) is_left_alone: bool,
    /// The faults, by time.
    pub(super) faults: Vec<(Micros, JobFault)>,
}

impl JobPlan {
    /// Every other seed has a job; half of these jobs run beside native runs.
    pub(super) fn new(seed: u64, relays: usize) -> Option<Self> {
        if !matches!(seed % 8, 1 | 3 | 6 | 7) {
            return None;
        }
        let mut random = Random::new(seed ^ 0x70bc);
        let size = random.between(2, ADDRESSES.len() as u64);
        let longest = if random.one_in(3) { 6 * SECOND } else { 100 * MILLI };
        let ranks = (0..size).map(|_| {
            let relay = (!random.one_in(8)).then(|| random.below(relays as u64) as usize);
            (random.below(longest), relay)
        });
        let ranks = ranks.collect();
        let mut faults: Vec<_> = (0..random.below(4))
            .map(|_| (random.below(10 * SECOND), fault(&mut random, size, relays)))
            .collect();
        faults.sort_by_key(|(at, _)| *at);
        let (trains, is_left_alone) = (random.below(8 * SECOND), random.one_in(3));
        Some(Self { ranks, trains, is_left_alone, faults })
    }

    /// The plan without one of its faults, for each fault.
    pub(super) fn smaller(&self) -> impl Iterator<Item = Self> {
        (0..self.faults.len()).map(|n| {
            let mut smaller = self.clone();
            smaller.faults.remove(n);
            smaller
        })
    }

    /// The requests of the process with this rank: it publishes its address, reads the addresses of all
    /// others, and trains. Its last request only marks the end of the training.
    pub(super) fn steps(&self, rank: usize, host: &str, pid: u32) -> Vec<Step> {
        steps(self.ranks.len(), rank, host, pid, self.trains)
    }

    /// The step that ends the training.
    pub(super) fn last_step(&self) -> usize {
        2 * self.ranks.len()
    }
}

/// The requests of a rank in a job of `size` ranks that train for this long.
pub(super) fn steps(size: usize, rank: usize, host: &str, pid: u32, trains: Micros) -> Vec<Step> {
    let step = |think, act| Step { think, act, patience: None };
    let mut steps =
        vec![step(0, Act::Ping(pid)), step(5 * MILLI, Act::Set(ADDRESSES[rank], gloo(host, size)))];
    for other in (0..size).filter(|&other| other != rank) {
        steps.push(step(MILLI, Act::Wait(vec![ADDRESSES[other]])));
        steps.push(step(0, Act::Get(ADDRESSES[other])));
    }
    steps.push(step(trains, Act::Ping(pid)));
    steps
}

/// The rank and the host in an address that was read.
pub(super) fn address_in(key: Key, seen: &[Said]) -> Option<(usize, String)> {
    let rank = ADDRESSES.iter().position(|address| *address == key)?;
    let [Said::Bytes(bytes)] = seen else { return None };
    let host = bytes.get(8..8 + usize::from(*bytes.first()?))?;
    Some((rank, String::from_utf8_lossy(host).into_owned()))
}

/// The host's name, an address, and eight bytes for each rank.
fn gloo(host: &str, size: usize) -> String {
    const ADDRESS: usize = 16;
    let number = |number: usize| format!("{}\0\0\0\0\0\0\0", char::from(number as u8));
    number(host.len()) + host + &number(ADDRESS) + &"\0".repeat(ADDRESS + 8 * size)
}

pub(super) fn fault(random: &mut Random, size: u64, relays: usize) -> JobFault {
    match random.below(8) {
        0..=2 => JobFault::Die { rank: random.below(size) as usize },
        3..=4 => JobFault::Server {
            away: if random.one_in(6) { 60 * SECOND } else { random.between(20 * MILLI, 5 * SECOND) },
        },
        _ => {
            let longest = if random.one_in(4) { 14 * SECOND } else { 7 * SECOND };
            let relay = random.below(relays as u64) as usize;
            JobFault::Partition { relay, lasts: random.between(SECOND, longest) }
        }
    }
}
