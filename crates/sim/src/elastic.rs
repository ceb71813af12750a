//! The plan of a job of torchrun: its agents, and the faults that happen to them.

use super::agent::Backend;
use super::jobs::{JobFault, fault};
use super::plan::{Cast, MILLI, Micros, SECOND};
use super::random::Random;

#[derive(Debug, Clone)]
pub(super) struct ElasticPlan {
    /// When each node's agent comes, and behind which relay it is.
    pub(super) nodes: Vec<(Micros, Option<usize>)>,
    /// The least number of nodes in a round. The greatest is the number of all nodes.
    pub(super) min: usize,
    pub(super) backend: Backend,
    /// Whether each node has a rank that meets the other ranks in the store of the agents.
    pub(super) has_ranks: bool,
    /// How long the workers of a round train.
    pub(super) trains: Micros,
    /// How often the job is run.
    pub(super) times: usize,
    /// Whether all attempts have one run id, as torchrun's static backend does by default.
    pub(super) has_one_id: bool,
    /// Whether the last node never comes.
    pub(super) lacks_one: bool,
    /// The faults, by time. A rank is a node here.
    pub(super) faults: Vec<(Micros, JobFault)>,
}

/// The jobs of a schedule: one, or two at the same time. They last longer than everything else together.
pub(super) fn plan(seed: u64, relays: usize) -> Vec<ElasticPlan> {
    let random = &mut Random::new(seed ^ 0xe1a5);
    match Cast::of(seed) {
        Cast::Agents => (0..random.between(1, 2)).map(|_| job(random, relays)).collect(),
        // If two jobs use one store, nobody can tell to which job a rank belongs.
        Cast::AgentsWithRanks => vec![ElasticPlan { has_ranks: true, ..job(random, relays) }],
        Cast::StaticAgents => {
            let job = job(random, relays);
            let has_one_id = seed % 4 == 3;
            let min = job.nodes.len();
            vec![ElasticPlan { backend: Backend::Static, has_ranks: true, has_one_id, min, ..job }]
        }
        Cast::Runs | Cast::RunsWithRanks | Cast::ShortOfMemory | Cast::Slices => Vec::new(),
    }
}

fn job(random: &mut Random, relays: usize) -> ElasticPlan {
    let size = random.between(2, 4);
    let longest = if random.one_in(3) { 6 * SECOND } else { 100 * MILLI };
    let nodes = (0..size).map(|_| {
        let relay = (!random.one_in(8)).then(|| random.below(relays as u64) as usize);
        (random.below(longest), relay)
    });
    let nodes = nodes.collect();
    let mut faults: Vec<_> =
        (0..random.below(4)).map(|_| (random.below(10 * SECOND), fault(random, size, relays))).collect();
    faults.sort_by_key(|(at, _)| *at);
    let lacks_one = random.one_in(6);
    let least = if lacks_one || random.one_in(2) { size } else { random.between(1, size) };
    ElasticPlan {
        nodes,
        min: least as usize,
        backend: Backend::C10d,
        has_ranks: false,
        trains: random.below(6 * SECOND),
        times: random.between(1, 2) as usize,
        has_one_id: false,
        lacks_one,
        faults,
    }
}

impl ElasticPlan {
    /// The plan without one of its parts, for each part.
    pub(super) fn smaller(&self) -> impl Iterator<Item = Self> {
        let once = (self.times > 1).then(|| Self { times: 1, ..self.clone() });
        let faults = (0..self.faults.len()).map(|n| {
            let mut smaller = self.clone();
            smaller.faults.remove(n);
            smaller
        });
        once.into_iter().chain(faults)
    }
}
