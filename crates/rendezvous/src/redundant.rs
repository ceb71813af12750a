//! Nodes without a place: which node gets the next place, and which nodes wait for a rank that another node
//! holds. The time for either question does not grow with the number of nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::Label;

/// Nodes without a place, in the order of their joins.
#[derive(Debug, Default)]
pub(super) struct Redundant {
    /// Nodes that take any rank.
    any_rank: BTreeMap<u64, Label>,
    /// Nodes that ask for a rank, by that rank.
    by_rank: BTreeMap<(u32, u64), Label>,
    /// Requested ranks that nobody holds, each with the node that has waited the longest for it.
    free: BTreeSet<(u64, u32)>,
}

impl Redundant {
    pub(super) fn len(&self) -> usize {
        self.any_rank.len().saturating_add(self.by_rank.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a node. `is_held` says that another node holds its rank.
    pub(super) fn insert(&mut self, serial: u64, rank: Option<u32>, is_held: bool, node: Label) {
        match rank {
            None => drop(self.any_rank.insert(serial, node)),
            Some(rank) => self.change(rank, is_held, |by_rank| drop(by_rank.insert((rank, serial), node))),
        }
    }

    pub(super) fn remove(&mut self, serial: u64, rank: Option<u32>) {
        match rank {
            None => drop(self.any_rank.remove(&serial)),
            Some(rank) => {
                let is_held = self.first_of(rank).is_none_or(|first| !self.free.contains(&(first, rank)));
                self.change(rank, is_held, |by_rank| drop(by_rank.remove(&(rank, serial))));
            }
        }
    }

    /// From now on, the rank is held, or is free.
    pub(super) fn rank_changed(&mut self, rank: u32, is_held: bool) {
        self.change(rank, is_held, |_| ());
    }

    /// The node that gets the next place: among the nodes that can have one, it has waited the longest.
    pub(super) fn next(&self) -> Option<&Label> {
        super::looks::look();
        let any = self.any_rank.first_key_value();
        let free = self.free.first().and_then(|&(serial, rank)| self.by_rank.get_key_value(&(rank, serial)));
        match (any, free) {
            (Some((serial, _)), Some(((_, other), node))) if other < serial => Some(node),
            (Some((_, node)), _) | (None, Some((_, node))) => Some(node),
            (None, None) => None,
        }
    }

    /// The nodes that ask for this rank.
    pub(super) fn of_rank(&self, rank: u32) -> impl Iterator<Item = &Label> {
        self.by_rank.range((rank, 0)..=(rank, u64::MAX)).map(|(_, node)| node)
    }

    fn first_of(&self, rank: u32) -> Option<u64> {
        self.by_rank.range((rank, 0)..=(rank, u64::MAX)).next().map(|(&(_, serial), _)| serial)
    }

    fn change(&mut self, rank: u32, is_held: bool, change: impl FnOnce(&mut BTreeMap<(u32, u64), Label>)) {
        if let Some(first) = self.first_of(rank) {
            self.free.remove(&(first, rank));
        }
        change(&mut self.by_rank);
        if let Some(first) = self.first_of(rank).filter(|_| !is_held) {
            self.free.insert((first, rank));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn label(serial: u64) -> Label {
        Label::new(&format!("n{serial}")).expect("a label")
    }

    proptest! {
        #[test]
        fn the_next_is_the_first_whose_rank_is_free(
            acts in prop::collection::vec((0_u64..20, prop::option::of(0_u32..3), 0..4), 0..60),
        ) {
            let mut redundant = Redundant::default();
            let mut model: BTreeMap<u64, Option<u32>> = BTreeMap::new();
            let mut held = HashSet::new();
            for (serial, rank, kind) in acts {
                match (kind, rank) {
                    (0, _) if !model.contains_key(&serial) => {
                        let is_held = rank.is_some_and(|rank| held.contains(&rank));
                        redundant.insert(serial, rank, is_held, label(serial));
                        model.insert(serial, rank);
                    }
                    (1, _) => {
                        if let Some(rank) = model.remove(&serial) {
                            redundant.remove(serial, rank);
                        }
                    }
                    (2, Some(rank)) => {
                        held.insert(rank);
                        redundant.rank_changed(rank, true);
                    }
                    (3, Some(rank)) => {
                        held.remove(&rank);
                        redundant.rank_changed(rank, false);
                    }
                    _ => {}
                }
                let next = model.iter().find(|(_, rank)| rank.is_none_or(|rank| !held.contains(&rank)));
                prop_assert_eq!(redundant.next().cloned(), next.map(|(&serial, _)| label(serial)));
                prop_assert_eq!(redundant.len(), model.len());
                for rank in 0..3 {
                    let asks = |(_, asked): &(&u64, &Option<u32>)| **asked == Some(rank);
                    let of_rank: Vec<Label> =
                        model.iter().filter(asks).map(|(&serial, _)| label(serial)).collect();
                    prop_assert_eq!(redundant.of_rank(rank).cloned().collect::<Vec<_>>(), of_rank);
                }
            }
        }
    }
}
