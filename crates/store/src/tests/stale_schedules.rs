//! Rule 1 under random schedules of legal jobs: ranks that find each other early or late, end, and are
//! replaced.
//!
//! There are two promises. Where no rank was replaced, the address of a living rank is there for every
//! reader. And a rank that replaces another never gets the address of a process that was paired with its
//! predecessor, or with another such process, and so on: that process belongs to an earlier meeting.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngAlgorithm;

use super::{Client, World};

const RANKS: usize = 5;

/// Keys of a group, by rank: a gloo group, and the roles of agents.
const GROUPS: [fn(usize) -> String; 2] =
    [|rank| format!("/default_pg/0//cpu//0/{rank}"), |rank| format!("/none/torchelastic/role_info/{rank}")];

#[derive(Debug, Clone)]
enum Step {
    /// The rank comes, if it is not there: it writes its address.
    Come(usize),
    /// Two ranks speak to each other for the first time: each reads the other's address.
    Meet(usize, usize),
    /// The rank has done its work, or was killed.
    Leave(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..RANKS).prop_map(Step::Come),
        5 => (0..RANKS, 0..RANKS).prop_map(|(a, b)| Step::Meet(a, b)),
        2 => (0..RANKS).prop_map(Step::Leave),
    ]
}

/// One process: its rank, and the processes that it has met.
#[derive(Debug)]
struct Life {
    rank: usize,
    met: Vec<usize>,
}

/// The processes of all ranks so far, and what the store must answer.
struct Job {
    world: World,
    key: fn(usize) -> String,
    lives: Vec<Life>,
    present: [Option<(usize, Client)>; RANKS],
    /// Whether a process belongs to an earlier meeting than some process that has come since.
    outdated: Vec<bool>,
}

impl Job {
    fn new(key: fn(usize) -> String) -> Self {
        Self {
            world: World::new(),
            key,
            lives: Vec::new(),
            present: Default::default(),
            outdated: Vec::new(),
        }
    }

    fn come(&mut self, rank: usize) {
        if self.present[rank].is_some() {
            return;
        }
        let serial = self.lives.len();
        // Everyone who met an earlier process of this rank, and everyone who met these.
        let mut old: Vec<usize> = (0..serial).filter(|&life| self.lives[life].rank == rank).collect();
        let present: Vec<usize> = self.present.iter().flatten().map(|(life, _)| *life).collect();
        while let Some(life) = old.pop() {
            for &other in &present {
                if self.lives[other].met.contains(&life) && !self.outdated[other] {
                    self.outdated[other] = true;
                    old.push(other);
                }
            }
        }
        self.lives.push(Life { rank, met: Vec::new() });
        self.outdated.push(false);
        let client = self.world.client();
        client.set((self.key)(rank), serial.to_string());
        self.present[rank] = Some((serial, client));
    }

    /// `reader` asks for the address of `rank`. If it is not there, the reader waits in vain.
    fn read(&mut self, reader: usize, rank: usize) {
        let (key, reader) = ((self.key)(rank), self.present[reader].as_ref());
        let Some((reader, client)) = reader.filter(|_| self.present[rank].is_some()) else { return };
        let reader = *reader;
        let found = client.wait(&[&key]).then(|| client.get(&key));
        let live = self.present[rank].as_ref().map(|(serial, _)| *serial).expect("it is there");
        if let Some(value) = found {
            assert_eq!(value, live.to_string(), "the address of a process that is gone");
            assert!(
                !self.outdated[live],
                "life {reader} got the address of life {live}, which is of an earlier meeting"
            );
            self.lives[reader].met.push(live);
        } else {
            client.cancel();
            assert!(self.outdated[live], "the address of life {live} is gone, and nobody took a place");
        }
    }

    fn leave(&mut self, rank: usize) {
        if let Some((_, client)) = self.present[rank].take() {
            client.leave();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        rng_algorithm: RngAlgorithm::XorShift,
        ..ProptestConfig::default()
    })]

    #[test]
    fn addresses_of_live_ranks_stay_and_those_of_earlier_meetings_are_never_read(
        group in 0..GROUPS.len(),
        steps in vec(step(), 1..80),
    ) {
        let mut job = Job::new(GROUPS[group]);
        for step in &steps {
            match *step {
                Step::Come(rank) => job.come(rank),
                Step::Meet(a, b) if a == b => {}
                Step::Meet(a, b) => {
                    job.read(a, b);
                    job.read(b, a);
                }
                Step::Leave(rank) => job.leave(rank),
            }
        }
    }

    /// As above, but every rank first reads the addresses of all other ranks, the lowest first.
    #[test]
    fn a_full_mesh_that_loses_a_rank_meets_again_with_none_of_the_old(
        lost in vec(0..RANKS, 1..4),
        back in Just((0..RANKS).collect::<Vec<_>>()).prop_shuffle(),
        late in vec(any::<bool>(), RANKS),
    ) {
        let mut job = Job::new(GROUPS[0]);
        (0..RANKS).for_each(|rank| job.come(rank));
        for reader in 0..RANKS {
            (0..RANKS).filter(|&rank| rank != reader).for_each(|rank| job.read(reader, rank));
        }
        for &rank in &lost {
            job.leave(rank);
        }
        // The others leave when their place is taken, or some time earlier.
        for &rank in &back {
            if job.present[rank].is_some() && !late[rank] {
                job.leave(rank);
            }
        }
        for &rank in &back {
            let old = job.present[rank].take();
            job.come(rank);
            (0..RANKS).filter(|&other| other != rank).for_each(|other| job.read(rank, other));
            if let Some((_, old)) = old {
                old.leave();
            }
        }
        for reader in 0..RANKS {
            for rank in (0..RANKS).filter(|&rank| rank != reader) {
                job.read(reader, rank);
                let live = job.present[rank].as_ref().map(|(serial, _)| *serial);
                let reader = job.present[reader].as_ref().map(|(serial, _)| *serial).expect("it came back");
                prop_assert!(job.lives[reader].met.contains(&live.expect("it came back")));
            }
        }
    }
}
