//! A set of ranks that is small if ranks come in order, as they do: every rank reads 0, 1, 2, … of the
//! others.

/// A set of numbers as disjoint, sorted, inclusive ranges.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RangeSet {
    ranges: Vec<(u32, u32)>,
}

impl RangeSet {
    /// Beyond this the set covers the gaps between its members too: a peer that reads in a hostile order
    /// costs bounded memory, and at worst has its own addresses dropped early.
    const MAX_RANGES: usize = 4096;
    /// Steps for inserting a range, beside the one of the search: other ranges are moved.
    pub(super) const STEPS_AN_INSERT: usize = 4;

    pub(super) fn insert(&mut self, number: u32) {
        self.insert_range((number, number));
    }

    /// Adds all members of `other`.
    pub(super) fn extend(&mut self, other: &Self) {
        for &range in &other.ranges {
            #[cfg(test)]
            crate::tests::work::step();
            self.insert_range(range);
        }
    }

    /// Adds the members of `other`, except those in `but`, which is sorted.
    pub(super) fn extend_without(&mut self, other: &Self, but: &[u32]) {
        for &(first, last) in &other.ranges {
            let mut from = Some(first);
            let within = but.partition_point(|&number| number < first);
            for &number in but[within..].iter().take_while(|&&number| number <= last) {
                if let Some(from) = from
                    && let Some(to) = number.checked_sub(1)
                    && from <= to
                {
                    self.insert_range((from, to));
                }
                from = number.checked_add(1);
            }
            if let Some(from) = from.filter(|&from| from <= last) {
                self.insert_range((from, last));
            }
        }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`from` and `to` are positions in `ranges`, and `to` is the greater here"
    )]
    pub(super) fn insert_range(&mut self, (first, last): (u32, u32)) {
        // The ranges that overlap or touch the new one become one with it.
        let from = self.ranges.partition_point(|&(_, end)| end < first.saturating_sub(1));
        let to = self.ranges.partition_point(|&(start, _)| start <= last.saturating_add(1));
        if from == to {
            self.ranges.insert(from, (first, last));
            if self.ranges.len() > Self::MAX_RANGES {
                let whole = (self.ranges[0].0, self.ranges[Self::MAX_RANGES].1);
                self.ranges = vec![whole];
            }
            return;
        }
        self.ranges[from] = (first.min(self.ranges[from].0), last.max(self.ranges[to - 1].1));
        self.ranges.drain(from + 1..to);
    }

    /// The range that `number` is in.
    pub(super) fn range_of(&self, number: u32) -> Option<(u32, u32)> {
        let at = self.ranges.partition_point(|&(_, last)| last < number);
        self.ranges.get(at).copied().filter(|&(first, _)| first <= number)
    }

    /// One of the ranges.
    pub(super) fn get(&self, at: usize) -> Option<(u32, u32)> {
        self.ranges.get(at).copied()
    }

    /// Bytes held beside the set itself.
    #[expect(clippy::arithmetic_side_effects, reason = "the capacity is in memory")]
    pub(super) fn bytes(&self) -> usize {
        self.ranges.capacity() * size_of::<(u32, u32)>()
    }

    /// Whether any of `numbers`, which are sorted, is in the set.
    pub(super) fn contains_any(&self, numbers: &[u32]) -> bool {
        // Each of the shorter list is looked up in the longer one.
        if numbers.len() < self.ranges.len() {
            return numbers.iter().any(|&number| {
                #[cfg(test)]
                crate::tests::work::step();
                let at = self.ranges.partition_point(|&(_, last)| last < number);
                self.ranges.get(at).is_some_and(|&(first, _)| first <= number)
            });
        }
        self.ranges.iter().any(|&(first, last)| {
            #[cfg(test)]
            crate::tests::work::step();
            let at = numbers.partition_point(|&number| number < first);
            numbers.get(at).is_some_and(|&number| number <= last)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn ranks_read_in_order_are_one_range() {
        let mut set = RangeSet::default();
        (0..1000).filter(|rank| *rank != 7).for_each(|rank| set.insert(rank));
        assert_eq!(set.ranges, [(0, 6), (8, 999)]);
        set.insert(7);
        assert_eq!(set.ranges, [(0, 999)]);
        set.insert(u32::MAX);
        set.insert(u32::MAX - 1);
        assert_eq!(set.ranges, [(0, 999), (u32::MAX - 1, u32::MAX)]);
    }

    #[test]
    fn a_hostile_order_is_bounded_and_forgets_nothing() {
        let mut set = RangeSet::default();
        (0..20_000).for_each(|n| set.insert(n * 2));
        assert!(set.ranges.len() <= RangeSet::MAX_RANGES);
        assert!((0..20_000).all(|n| set.contains_any(&[n * 2])));
    }

    proptest! {
        #[test]
        fn it_is_a_set(
            numbers in prop::collection::vec(0_u32..60, 0..60),
            others in prop::collection::vec(0_u32..60, 0..60),
            own in prop::collection::vec(0_u32..60, 0..4),
        ) {
            let mut set = RangeSet::default();
            for &number in &numbers {
                set.insert(number);
            }
            let mut other = RangeSet::default();
            for &number in &others {
                other.insert(number);
            }
            let own: BTreeSet<u32> = own.into_iter().collect();
            let mut without = RangeSet::default();
            without.extend_without(&other, &own.iter().copied().collect::<Vec<_>>());
            for number in 0..60 {
                let expected = others.contains(&number) && !own.contains(&number);
                prop_assert_eq!(without.contains_any(&[number]), expected, "{}", number);
            }
            set.extend(&other);
            let model: BTreeSet<u32> = numbers.into_iter().chain(others).collect();
            for number in 0..60 {
                prop_assert_eq!(set.contains_any(&[number]), model.contains(&number));
            }
            prop_assert!(set.ranges.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
        }
    }
}
