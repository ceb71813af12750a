//! Who has read the address of a rank: looked up rank by rank, with each reader found once.

use super::ranges::RangeSet;

/// A segment tree: each range of ranks that somebody has read stands at the few nodes that cover it, and the nodes
/// above a rank have everyone who has read it.
#[derive(Debug)]
pub(super) struct Readers {
    /// The ranks that are asked for, sorted.
    ranks: Vec<u32>,
    /// The two below node `n` are `2n` and `2n + 1`; the ranks are the last half.
    nodes: Vec<Vec<usize>>,
}

#[expect(clippy::arithmetic_side_effects, reason = "positions in what is in memory")]
impl Readers {
    pub(super) fn new(mut ranks: Vec<u32>) -> Self {
        ranks.sort_unstable();
        ranks.dedup();
        let nodes = vec![Vec::new(); 2 * ranks.len()];
        Self { ranks, nodes }
    }

    /// `reader` has read the addresses of `read`. Returns the steps that took.
    pub(super) fn add(&mut self, reader: usize, read: &RangeSet) -> usize {
        let mut steps = 0;
        for (first, last) in read.iter() {
            let mut from = self.ranks.partition_point(|&rank| rank < first) + self.ranks.len();
            let mut to = self.ranks.partition_point(|&rank| rank <= last) + self.ranks.len();
            while from < to {
                if from % 2 == 1 {
                    self.nodes[from].push(reader);
                }
                if to % 2 == 1 {
                    self.nodes[to - 1].push(reader);
                }
                (from, to) = (from.div_ceil(2), to / 2);
                steps += 1;
            }
            steps += 1;
        }
        steps
    }

    /// Takes out those who have read the address of `rank`, some of them more than once.
    pub(super) fn take(&mut self, rank: u32) -> Vec<usize> {
        let mut readers = Vec::new();
        if let Ok(at) = self.ranks.binary_search(&rank) {
            let mut node = at + self.ranks.len();
            while node > 0 {
                #[cfg(test)]
                crate::core::store::tests::work::step();
                readers.append(&mut self.nodes[node]);
                node /= 2;
            }
        }
        readers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_reader_is_found_by_what_it_has_read(
            ranks in prop::collection::vec(0_u32..40, 1..30),
            reads in prop::collection::vec(prop::collection::vec(0_u32..40, 0..20), 0..6),
            asked in prop::collection::vec(0_u32..40, 0..10),
        ) {
            let mut readers = Readers::new(ranks.clone());
            for (reader, read) in reads.iter().enumerate() {
                let mut set = RangeSet::default();
                for &rank in read {
                    set.insert(rank);
                }
                readers.add(reader, &set);
            }
            let (mut found, mut expected) = (vec![false; reads.len()], vec![false; reads.len()]);
            for rank in asked {
                readers.take(rank).into_iter().for_each(|reader| found[reader] = true);
                for (reader, read) in reads.iter().enumerate() {
                    expected[reader] |= ranks.contains(&rank) && read.contains(&rank);
                }
                prop_assert_eq!(&found, &expected);
            }
        }
    }
}
