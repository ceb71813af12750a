//! The plan around the native rendezvous: nodes, pods and participants of barriers, and what happens to them.

use super::plan::{Cast, MILLI, Micros, SECOND};
use super::random::Random;

/// One run of the native rendezvous.
#[derive(Debug, Clone)]
pub(super) struct RunPlan {
    pub(super) min: u32,
    pub(super) max: u32,
    /// Whether each round has a store.
    pub(super) store: bool,
    /// When each of its nodes comes.
    pub(super) nodes: Vec<Micros>,
}

/// A barrier of the HTTP API.
#[derive(Debug, Clone)]
pub(super) struct BarrierPlan {
    /// How often it is used.
    pub(super) uses: u32,
    /// When each participant comes.
    pub(super) participants: Vec<Micros>,
}

/// A gate at which all pods of a run meet.
#[derive(Debug, Clone)]
pub(super) struct GatePlan {
    /// When each pod comes.
    pub(super) pods: Vec<Micros>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeFault {
    /// The node's process dies. Another process takes its place, perhaps with the same id.
    Die { node: usize, back: Option<Micros>, same_id: bool },
    /// The node says that it leaves.
    Leave { node: usize, failed: bool },
    /// The node is stopped, and continues later as if nothing had happened.
    Stop { node: usize, lasts: Micros },
    /// The connection of its request breaks.
    Cut { node: usize },
    /// The server dies at the moment at which it has told this node, or any other, its rank.
    KillAtAnswer { node: usize, away: Micros },
}

/// An operator expects this many nodes in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) run: usize,
    pub(super) nodes: u32,
    /// The server dies when it has confirmed this, and is away for this long.
    pub(super) dies: Option<Micros>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct RunsPlan {
    pub(super) runs: Vec<RunPlan>,
    pub(super) barriers: Vec<BarrierPlan>,
    pub(super) gates: Vec<GatePlan>,
    /// Whether nodes have ranks, which meet in the store of their round.
    pub(super) has_workers: bool,
    /// The faults, by time.
    pub(super) faults: Vec<(Micros, NodeFault)>,
    /// Every eighth seed has some.
    pub(super) wishes: Vec<(Micros, Wish)>,
}

impl RunsPlan {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x0dd5);
        let comes = |random: &mut Random| {
            let longest = if random.one_in(4) { 4 * SECOND } else { 100 * MILLI };
            random.below(longest)
        };
        let runs: Vec<_> = (0..random.between(1, 2))
            .map(|_| {
                let min = random.between(1, 3) as u32;
                let max = min + random.below(2) as u32;
                let nodes = (0..u64::from(min) + random.below(3)).map(|_| comes(&mut random)).collect();
                RunPlan { min, max, store: !random.one_in(3), nodes }
            })
            .collect();
        let barriers = (0..random.below(2))
            .map(|_| {
                let participants = (0..random.between(1, 3)).map(|_| comes(&mut random)).collect();
                BarrierPlan { uses: random.between(1, 3) as u32, participants }
            })
            .collect();
        let gates = (0..random.below(2))
            .map(|_| GatePlan { pods: (0..random.between(1, 3)).map(|_| comes(&mut random)).collect() })
            .collect();
        let nodes = runs.iter().map(|run| run.nodes.len()).sum::<usize>() as u64;
        let mut faults: Vec<_> =
            (0..random.below(5)).map(|_| (random.below(4 * SECOND), fault(&mut random, nodes))).collect();
        faults.sort_by_key(|(at, _)| *at);
        let has_workers = Cast::of(seed) == Cast::RunsWithRanks;
        let has_wishes = seed % 8 == 6 && Cast::of(seed) == Cast::Runs;
        let wishes = if has_wishes { wishes(seed, &runs) } else { Vec::new() };
        Self { runs, barriers, gates, has_workers, faults, wishes }
    }

    /// The plan without one of its parts, for each part.
    pub(super) fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut without = |change: &dyn Fn(&mut Self)| {
            let mut smaller = self.clone();
            change(&mut smaller);
            all.push(smaller);
        };
        for n in 0..self.faults.len() {
            without(&|it| {
                it.faults.remove(n);
            });
        }
        for n in 0..self.wishes.len() {
            without(&|it| {
                it.wishes.remove(n);
            });
        }
        for n in 0..self.barriers.len() {
            without(&|it| drop(it.barriers.remove(n)));
        }
        for n in 0..self.gates.len() {
            without(&|it| drop(it.gates.remove(n)));
        }
        // Faults name nodes by number, so only the last run can be left out.
        if let Some(last) = self.runs.last() {
            let first = self.nodes() - last.nodes.len();
            without(&|it| {
                it.runs.pop();
                it.faults.retain(|(_, fault)| fault.node() < first);
                it.wishes.retain(|(_, wish)| wish.run < it.runs.len());
            });
        }
        all
    }

    pub(super) fn nodes(&self) -> usize {
        self.runs.iter().map(|run| run.nodes.len()).sum()
    }
}

impl NodeFault {
    pub(super) fn node(self) -> usize {
        match self {
            Self::Die { node, .. }
            | Self::Leave { node, .. }
            | Self::Stop { node, .. }
            | Self::Cut { node }
            | Self::KillAtAnswer { node, .. } => node,
        }
    }
}

fn wishes(seed: u64, runs: &[RunPlan]) -> Vec<(Micros, Wish)> {
    let mut random = Random::new(seed ^ 0x0b055);
    let wish = |random: &mut Random| {
        let run = random.below(runs.len() as u64) as usize;
        // Some of these numbers are impossible for the run.
        let nodes = random.between(1, u64::from(runs[run].max) + 1) as u32;
        let dies = random.one_in(2).then(|| random.between(20 * MILLI, SECOND));
        (random.below(5 * SECOND), Wish { run, nodes, dies })
    };
    (0..random.between(1, 4)).map(|_| wish(&mut random)).collect()
}

fn fault(random: &mut Random, nodes: u64) -> NodeFault {
    let node = random.below(nodes) as usize;
    match random.below(12) {
        0..=3 => {
            let back = (!random.one_in(4)).then(|| random.between(50 * MILLI, 4 * SECOND));
            NodeFault::Die { node, back, same_id: random.one_in(2) }
        }
        4..=5 => NodeFault::Leave { node, failed: random.one_in(2) },
        6..=7 => NodeFault::Stop { node, lasts: random.between(100 * MILLI, 6 * SECOND) },
        8..=9 => NodeFault::Cut { node },
        _ => NodeFault::KillAtAnswer { node, away: random.between(20 * MILLI, SECOND) },
    }
}
