//! Ranks that pods hold, as ranges. When all but a few ranks are held there are few ranges, so free ranks are
//! found at once.

use std::collections::BTreeMap;

/// The ranges of held ranks: the first rank of each, and the rank behind its end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HeldRanks(BTreeMap<u32, u32>);

impl HeldRanks {
    /// The range that contains this rank, or the last one before it.
    fn at(&self, rank: u32) -> Option<(u32, u32)> {
        self.0.range(..=rank).next_back().map(|(from, to)| (*from, *to))
    }

    /// Adds a rank below `u32::MAX`.
    pub(super) fn insert(&mut self, rank: u32) {
        let next = rank.saturating_add(1);
        let from = match self.at(rank) {
            Some((_, to)) if to > rank => return,
            Some((from, to)) if to == rank => from,
            _ => rank,
        };
        let to = self.0.remove(&next).unwrap_or(next);
        self.0.insert(from, to);
    }

    /// Removes a rank.
    pub(super) fn remove(&mut self, rank: u32) {
        let Some((from, to)) = self.at(rank).filter(|(_, to)| *to > rank) else { return };
        let next = rank.saturating_add(1);
        if from < rank {
            self.0.insert(from, rank);
        } else {
            self.0.remove(&from);
        }
        if next < to {
            self.0.insert(next, to);
        }
    }

    /// The ranks below `end` that nobody holds.
    pub(super) fn gaps(&self, end: u32) -> impl Iterator<Item = u32> {
        let from = std::iter::once(0).chain(self.0.values().copied());
        let to = self.0.keys().copied().chain([end]);
        from.zip(to).flat_map(move |(from, to)| from..to.min(end))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_hold_what_a_set_holds(
            steps in proptest::collection::vec((0..20_u32, any::<bool>()), 0..200),
            end in 0..25_u32,
        ) {
            let (mut ranges, mut set) = (HeldRanks::default(), BTreeSet::new());
            for (rank, comes) in steps {
                if comes {
                    ranges.insert(rank);
                    set.insert(rank);
                } else {
                    ranges.remove(rank);
                    set.remove(&rank);
                }
            }
            let gaps: Vec<u32> = (0..end).filter(|rank| !set.contains(rank)).collect();
            prop_assert_eq!(ranges.gaps(end).collect::<Vec<_>>(), gaps);
            let touch = |((_, to), (from, _)): ((&u32, &u32), (&u32, &u32))| to >= from;
            let mut pairs = ranges.0.iter().zip(ranges.0.iter().skip(1));
            prop_assert!(!pairs.any(touch), "neighbours are one range");
        }
    }
}
