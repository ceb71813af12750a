//! Rules 2, 3 and 4 under random schedules, compared with a naive model of what they promise: which keys are
//! there.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngAlgorithm;

use super::{Client, World};

/// The kinds of clients. Each kind has keys of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Agent,
    Worker,
    /// A program that is not PyTorch.
    Other,
}

const KINDS: [Kind; 4] = [Kind::Agent, Kind::Agent, Kind::Worker, Kind::Other];

/// A key that client `who` may write.
fn key(who: usize, number: usize) -> String {
    match (KINDS[who], number % 2) {
        (Kind::Agent, run) => format!("/torch.rendezvous.run{run}"),
        (Kind::Worker, 0) => format!("/default_pg/0//store_based_barrier_key:{number}"),
        (Kind::Worker, _) => format!("/default_pg/0//of_the_next_release/{number}"),
        (Kind::Other, _) => format!("/own/{number}"),
    }
}

fn is_of_no_row(key: &str) -> bool {
    key.starts_with("/own/")
}

#[derive(Debug, Clone)]
enum Step {
    Write { who: usize, number: usize },
    Leave(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..KINDS.len(), 0..4_usize).prop_map(|(who, number)| Step::Write { who, number }),
        4 => (0..KINDS.len()).prop_map(Step::Leave),
        3 => (1..45_u64).prop_map(Step::Pass),
    ]
}

/// What the rules promise, second by second.
#[derive(Debug, Default)]
struct Model {
    now: u64,
    keys: BTreeSet<String>,
    /// The connected clients, and the runs that each has used.
    connected: BTreeMap<usize, BTreeSet<String>>,
    /// When the keys of a run without connections go.
    forget_at: BTreeMap<String, u64>,
    /// When the keys of the job go, after its last connection has closed.
    reset_at: Option<u64>,
    /// The job's keys have gone, and the others that were connected have not used the store since.
    rest_goes: bool,
}

impl Model {
    fn count(&self, kind: Kind) -> usize {
        self.connected.keys().filter(|&&who| KINDS[who] == kind).count()
    }

    fn of_job(&self) -> usize {
        self.count(Kind::Agent) + self.count(Kind::Worker)
    }

    fn write(&mut self, who: usize, key: String) {
        let runs = self.connected.entry(who).or_default();
        self.rest_goes = false;
        if KINDS[who] == Kind::Agent {
            runs.insert(key.clone());
            self.forget_at.remove(&key);
        }
        if KINDS[who] != Kind::Other {
            self.reset_at = None;
        }
        self.keys.insert(key);
    }

    fn leave(&mut self, who: usize) {
        let Some(runs) = self.connected.remove(&who) else { return };
        if KINDS[who] == Kind::Worker && self.count(Kind::Worker) == 0 {
            // Rule 2: the last worker is gone, and no client is left that may be one.
            let stays = |key: &String| !key.starts_with("/default_pg/");
            self.keys.retain(stays);
        }
        for run in runs {
            if !self.connected.values().any(|used| used.contains(&run)) {
                self.forget_at.insert(run, self.now + 60);
            }
        }
        if KINDS[who] != Kind::Other && self.of_job() == 0 {
            self.reset_at = Some(self.now + 30);
        }
        if self.connected.is_empty() && std::mem::take(&mut self.rest_goes) {
            self.keys.clear();
        }
    }

    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += 1;
            let now = self.now;
            let due: Vec<String> =
                self.forget_at.extract_if(.., |_, at| *at <= now).map(|(run, _)| run).collect();
            // Rule 3.
            self.keys.retain(|key| !due.contains(key));
            // Rule 4.
            if self.reset_at.take_if(|at| *at <= now).is_some() {
                if self.connected.is_empty() {
                    self.keys.clear();
                } else {
                    self.rest_goes = true;
                    self.keys.retain(|key| is_of_no_row(key));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 600,
        rng_algorithm: RngAlgorithm::XorShift,
        ..ProptestConfig::default()
    })]

    #[test]
    fn keys_go_when_a_rule_says_so_and_not_before(steps in vec(step(), 1..60)) {
        let (world, mut model) = (World::new(), Model::default());
        let mut clients: BTreeMap<usize, Client> = BTreeMap::new();
        for step in &steps {
            match *step {
                Step::Write { who, number } => {
                    let client = clients.entry(who).or_insert_with(|| world.client());
                    client.set(key(who, number), "1");
                    model.write(who, key(who, number));
                }
                Step::Leave(who) => {
                    if let Some(client) = clients.remove(&who) {
                        client.leave();
                    }
                    model.leave(who);
                }
                Step::Pass(seconds) => {
                    world.pass(seconds);
                    model.pass(seconds);
                }
            }
            world.settle();
            let expected: Vec<String> = model.keys.iter().cloned().collect();
            prop_assert_eq!(world.keys(), expected, "after {:?}", step);
        }
    }
}
