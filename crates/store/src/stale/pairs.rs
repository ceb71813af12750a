//! Rule 1 (c), step by step: a process takes a place in a group, and a group may have a million addresses.
//!
//! A process that has read the address of an earlier holder of that place belongs to an earlier group of
//! processes. So does a process that has read the address of such a process, and so on. The addresses of all
//! of them are spent before the new one is written, and this must not happen earlier: if addresses are read
//! late (lazy gloo), a rank may end while others still have to find each other.
//!
//! Nobody sees it half done: until the new address is written, requests that name an address of the group are
//! put off. So only a process that leaves changes what a search looks at, and the search keeps what it had
//! read.
//!
//! A plain search, all in one critical section, stops every client of the store (release build, a machine
//! with other load): with 10,000 ranks 4 ms for a full mesh, 8 ms for a ring, 50 to 70 ms for a barrier of
//! lazy gloo; with 100,000 ranks 75 ms, 210 ms, 1.5 s. In steps, no critical section took longer than 21 ms
//! there, and the group itself waited 230 ms, 460 ms, 2.3 s (`places` in `benches/store.rs` measures this
//! wait).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::vec::IntoIter;

use super::groups::GroupId;
use super::ranges::RangeSet;
use super::{DropCause, KeyPattern, KeySpace, Kind, Notes, Reads, Record, SlotId, StaleKeys};
use super::{classify, notes_of, record_of};
use rallypoint_protocol::ids::{ConnId, count};

/// Stands for no position.
const NONE: u32 = u32::MAX;

/// Most places that are free at the same time. Each key of a request is looked up among them, so one more
/// place ends the wait for an earlier one.
const MOST_FREE: usize = 64;

/// The place that a connection takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TakenRank {
    group: GroupId,
    rank: u32,
    by: ConnId,
}

/// A place that is free to be taken. Its group does not change until then.
#[derive(Debug)]
pub(super) struct Free {
    place: TakenRank,
    /// How many more requests of others are put off. A connection that does not read its replies comes late.
    patience: usize,
}

/// The search for the addresses that are spent when a place is taken.
#[derive(Debug)]
pub(super) struct Search {
    place: TakenRank,
    /// The name that is to be written.
    keep: SlotId,
    phase: Phase,
    /// The addresses that were there when the search began and are not looked at yet.
    ids: IntoIter<SlotId>,
    addresses: Vec<Written>,
    writers: Vec<Writer>,
    /// Where the writers are, by the places of their connections.
    by_slot: Vec<u32>,
    ranges: Ranges,
    /// Ranks whose readers are not found yet.
    spent: Vec<u32>,
    /// The ranks that writers had read who have left since.
    set_aside: HashMap<ConnId, RangeSet>,
    set_aside_bytes: usize,
    /// The ranks that the writers have read whose addresses stay.
    read: RangeSet,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Finds the writers of the addresses.
    Gather,
    /// Collects what this writer has read, from this range on.
    Collect {
        writer: usize,
        range: usize,
    },
    Sort,
    /// Finds who has read this rank.
    Spend {
        rank: Option<u32>,
        writer: usize,
        address: u32,
    },
    /// Collects what this writer has read. Its addresses stay.
    Keep {
        writer: usize,
        range: usize,
    },
}

/// An address, and the next one of its writer.
#[derive(Debug, Clone, Copy)]
struct Written {
    id: SlotId,
    rank: u32,
    next: u32,
}

#[derive(Debug)]
struct Writer {
    conn: ConnId,
    /// Its first address.
    first: u32,
    is_spent: bool,
}

#[expect(clippy::arithmetic_side_effects, reason = "positions in what is in memory, and its size")]
impl Search {
    fn new(place: TakenRank, keep: SlotId, addresses: Vec<SlotId>) -> Self {
        let mut search = Self {
            place,
            keep,
            phase: Phase::Gather,
            ids: addresses.into_iter(),
            addresses: Vec::new(),
            writers: Vec::new(),
            by_slot: Vec::new(),
            ranges: Ranges::default(),
            spent: vec![place.rank],
            set_aside: HashMap::new(),
            set_aside_bytes: 0,
            read: RangeSet::default(),
        };
        // The process that takes the place is a writer, too.
        search.writer(place.by);
        search
    }

    fn bytes(&self) -> usize {
        self.ids.len() * size_of::<SlotId>()
            + self.addresses.capacity() * size_of::<Written>()
            + self.ranges.bytes()
            + self.set_aside_bytes
    }

    /// The position of the writer `conn`.
    fn writer(&mut self, conn: ConnId) -> usize {
        if self.by_slot.len() <= conn.slot() {
            self.by_slot.resize(conn.slot() + 1, NONE);
        }
        let at = &mut self.by_slot[conn.slot()];
        if *at == NONE {
            *at = count(self.writers.len());
            self.writers.push(Writer { conn, first: NONE, is_spent: false });
        }
        *at as usize
    }

    fn add(&mut self, conn: ConnId, rank: u32, id: SlotId) {
        if id == self.keep {
            return;
        }
        let at = self.writer(conn);
        let writer = &mut self.writers[at];
        if writer.conn == conn {
            let next = std::mem::replace(&mut writer.first, count(self.addresses.len()));
            self.addresses.push(Written { id, rank, next });
        }
    }
}

impl StaleKeys {
    /// Steps for spending an address, beside the one of the search.
    const STEPS_A_SPEND: usize = 3;

    /// Whether some requests have to be put off.
    #[inline]
    pub(crate) fn is_holding(&self) -> bool {
        !(self.searches.is_empty() && self.free.is_empty())
    }

    /// Whether a search is unfinished.
    #[inline]
    pub(crate) fn is_searching(&self) -> bool {
        !self.searches.is_empty()
    }

    /// Whether a request of `conn` that names `key` is put off.
    pub(crate) fn is_held(&mut self, conn: ConnId, key: &[u8]) -> bool {
        if !self.is_holding() {
            return false;
        }
        let Some(KeyPattern::Address(address)) = classify(key) else { return false };
        self.groups.find(address.group).is_some_and(|group| self.is_group_held(conn, group))
    }

    fn is_group_held(&mut self, conn: ConnId, group: GroupId) -> bool {
        if self.searches.iter().any(|search| search.place.group == group) {
            return true;
        }
        let Some(at) = self.free.iter().position(|free| free.place.group == group) else { return false };
        let free = &mut self.free[at];
        if free.place.by == conn {
            return false;
        }
        free.patience = free.patience.saturating_sub(1);
        if free.patience == 0 {
            self.end_free(at);
            return false;
        }
        true
    }

    /// Whether `conn`, which has touched the name `id`, may write it now. If not, a search has to end first.
    pub(crate) fn may_write(&mut self, keys: &KeySpace, conn: ConnId, id: SlotId) -> bool {
        let Some(&Record { kind: Kind::Address { group, rank, is_first }, writer, .. }) = record_of(keys, id)
        else {
            return true;
        };
        let place = TakenRank { group, rank, by: conn };
        if self.is_holding() {
            if let Some(at) = self.free.iter().position(|free| free.place == place) {
                self.end_free(at);
                return true;
            }
            if self.is_group_held(conn, group) {
                return false;
            }
        }
        if writer == Some(conn) {
            return true;
        }
        if let Some(notes) = notes_of(&mut self.notes, conn)
            && let Some(read) = notes.read.get_mut(&group)
        {
            read.noted = self.groups.note_reads(group, &read.ranks, read.noted);
        }
        let may_have_readers =
            is_first && self.groups.was_read(group, &[rank]) && self.has_reader(group, &[rank]);
        if may_have_readers {
            self.groups.hold(group);
            let search = Search::new(place, id, self.groups.addresses(group).to_vec());
            self.bytes = self.bytes.saturating_add(search.bytes());
            self.searches.push_front(search);
        }
        !may_have_readers
    }

    /// Whether anybody may have read the address of one of `spent` in `group`. Where few connections wrote
    /// the addresses, this makes the search unnecessary.
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    fn has_reader(&mut self, group: GroupId, spent: &[u32]) -> bool {
        if self.groups.addresses(group).len() <= self.job_connections {
            return true;
        }
        self.looks += self.notes.len();
        let mut read = self.notes.iter().flatten().filter_map(|notes| notes.read.get(&group));
        read.any(|read| read.ranks.contains_any(spent))
    }

    /// Goes on with a search for about `most` steps. Returns the addresses that this spends.
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory, and steps")]
    pub(crate) fn search(&mut self, keys: &mut KeySpace, most: usize) -> Vec<(SlotId, DropCause)> {
        let mut drops = Vec::new();
        let Some(mut search) = self.searches.pop_front() else { return drops };
        self.bytes -= search.bytes();
        let most = self.looks + most;
        while self.looks < most {
            #[cfg(test)]
            crate::tests::work::step();
            self.looks += 1;
            if self.search_step(keys, &mut search, &mut drops) {
                self.search_is_over(search);
                return drops;
            }
        }
        self.bytes += search.bytes();
        self.searches.push_back(search);
        drops
    }

    /// One step. Returns whether it was the last.
    #[expect(clippy::arithmetic_side_effects, reason = "positions in what is in memory, and steps")]
    fn search_step(
        &mut self,
        keys: &mut KeySpace,
        search: &mut Search,
        drops: &mut Vec<(SlotId, DropCause)>,
    ) -> bool {
        let TakenRank { group, .. } = search.place;
        search.phase = match search.phase {
            Phase::Gather => match search.ids.next() {
                Some(id) => {
                    if let Some(&Record { kind: Kind::Address { group: of, rank, .. }, writer, .. }) =
                        record_of(keys, id)
                        && let Some(writer) = writer.filter(|_| of == group)
                        && (notes_of(&mut self.notes, writer).is_some()
                            || search.set_aside.contains_key(&writer))
                    {
                        search.add(writer, rank, id);
                    }
                    Phase::Gather
                }
                None => Phase::Collect { writer: 0, range: 0 },
            },
            Phase::Collect { writer, range } => match search.writers.get(writer) {
                Some(&Writer { conn, .. }) => match self.range_read(search, conn, range) {
                    Some((first, last)) => {
                        search.ranges.add(first, last, count(writer));
                        Phase::Collect { writer, range: range + 1 }
                    }
                    None => Phase::Collect { writer: writer + 1, range: 0 },
                },
                None => Phase::Sort,
            },
            Phase::Sort if search.ranges.sort_step() => Phase::Spend { rank: None, writer: 0, address: NONE },
            Phase::Sort => Phase::Sort,
            Phase::Spend { rank, writer, address } => match search.addresses.get(address as usize) {
                Some(&Written { id, rank: its, next }) => {
                    search.spent.push(its);
                    let conn = search.writers[writer].conn;
                    if let Some(&Record { kind: Kind::Address { group: of, .. }, writer: by, .. }) =
                        record_of(keys, id)
                        && (of, by) == (group, Some(conn))
                    {
                        self.on_value_gone(keys, id);
                        drops.push((id, DropCause::PairedWithGone));
                        self.looks += Self::STEPS_A_SPEND;
                    }
                    Phase::Spend { rank, writer, address: next }
                }
                None => match rank {
                    Some(asked) => match search.ranges.take(asked) {
                        Some(reader) => {
                            self.looks += Ranges::STEPS_A_TAKE;
                            let at = reader as usize;
                            let its = &mut search.writers[at];
                            // The writer of the new address alone stays.
                            if its.is_spent || its.first == NONE {
                                Phase::Spend { rank, writer, address: NONE }
                            } else {
                                its.is_spent = true;
                                let (conn, address) = (its.conn, its.first);
                                self.forget_read(search, conn);
                                Phase::Spend { rank, writer: at, address }
                            }
                        }
                        None => Phase::Spend { rank: None, writer, address },
                    },
                    None => match search.spent.pop() {
                        None => Phase::Keep { writer: 0, range: 0 },
                        rank => Phase::Spend { rank, writer, address },
                    },
                },
            },
            Phase::Keep { writer, range } => match search.writers.get(writer) {
                Some(&Writer { conn, is_spent: false, .. }) => match self.range_read(search, conn, range) {
                    Some(read) => {
                        self.looks += RangeSet::STEPS_AN_INSERT;
                        search.read.insert_range(read);
                        Phase::Keep { writer, range: range + 1 }
                    }
                    None => Phase::Keep { writer: writer + 1, range: 0 },
                },
                Some(_) => Phase::Keep { writer: writer + 1, range: 0 },
                None => return true,
            },
        };
        false
    }

    /// One of the ranges of ranks that `conn` has read.
    fn range_read(&mut self, search: &Search, conn: ConnId, range: usize) -> Option<(u32, u32)> {
        match notes_of(&mut self.notes, conn).and_then(|notes| notes.read.get(&search.place.group)) {
            Some(read) => read.ranks.get(range),
            None => search.set_aside.get(&conn)?.get(range),
        }
    }

    /// Forgets what `conn` has read: its next address belongs to a new pairing.
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    fn forget_read(&mut self, search: &mut Search, conn: ConnId) {
        let aside = search.set_aside.remove(&conn);
        search.set_aside_bytes -= aside.map_or(0, |read| read.bytes());
        self.forget_reads(conn, search.place.group);
    }

    fn search_is_over(&mut self, search: Search) {
        self.groups.set_reads(search.place.group, search.read);
        if notes_of(&mut self.notes, search.place.by).is_some() {
            // Each of the others may ask again a few times before the owner of the place does.
            let patience = self.job_connections.saturating_mul(8).saturating_add(1024);
            if self.free.len() >= MOST_FREE {
                self.end_free(0);
            }
            self.free.push(Free { place: search.place, patience });
        } else {
            self.groups.leave(search.place.group);
        }
    }

    fn end_free(&mut self, at: usize) {
        let Free { place, .. } = self.free.swap_remove(at);
        self.groups.leave(place.group);
    }

    /// Keeps for the searches what `conn` has read, before it is forgotten.
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    pub(super) fn set_aside(&mut self, conn: ConnId, reads: &mut Reads) {
        for search in &mut self.searches {
            if let Some(read) = reads.remove(&search.place.group) {
                // Its bytes count as those of the search.
                self.bytes -= Notes::READ_BYTES;
                search.set_aside_bytes += read.ranks.bytes();
                search.set_aside.insert(conn, read.ranks);
            }
        }
    }

    /// Tells a search that has not seen it of the address `id` of `group`, which `writer` wrote, before it
    /// goes.
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    pub(super) fn tell_searches(&mut self, writer: ConnId, group: GroupId, rank: u32, id: SlotId) {
        let mut searches = self.searches.iter_mut();
        if let Some(search) = searches.find(|search| search.place.group == group)
            && matches!(search.phase, Phase::Gather)
            && (notes_of(&mut self.notes, writer).is_some() || search.set_aside.contains_key(&writer))
        {
            self.bytes -= search.bytes();
            search.add(writer, rank, id);
            self.bytes += search.bytes();
        }
    }

    /// `conn` does not take the place that was made free for it.
    pub(super) fn give_up_place(&mut self, conn: ConnId) {
        if let Some(at) = self.free.iter().position(|free| free.place.by == conn) {
            self.end_free(at);
        }
    }

    /// The groups that are held.
    #[cfg(test)]
    pub(super) fn held(&self) -> impl Iterator<Item = GroupId> {
        let searched = self.searches.iter().map(|search| search.place);
        searched.chain(self.free.iter().map(|free| free.place)).map(|place| place.group)
    }

    #[cfg(test)]
    pub(super) fn search_bytes(&self) -> usize {
        self.searches.iter().map(Search::bytes).sum()
    }
}

/// Ranges of ranks, each with its reader. A range is found once, by a rank in it.
#[derive(Debug, Default)]
struct Ranges {
    /// Ranges that are not sorted yet.
    run: Vec<Range>,
    runs: Vec<IntoIter<Range>>,
    heads: BinaryHeap<Reverse<(Range, usize)>>,
    is_begun: bool,
    /// Sorted by their first ranks.
    sorted: Vec<Range>,
    /// A tree of the greatest ends: the two halves of part `n` are the parts `2n` and `2n + 1`, and the last
    /// half of the tree are single ranges. 0 where all ranges of a part were taken.
    ends: Vec<u32>,
    /// The next part of the tree to be made.
    next: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    first: u32,
    /// The first rank after the range. The two greatest ranks count as one.
    end: u32,
    reader: u32,
}

#[expect(clippy::arithmetic_side_effects, reason = "positions in what is in memory, and its size")]
impl Ranges {
    /// Ranges that are sorted in one step.
    const RUN: usize = 1024;
    /// Steps for finding a range, beside the one of the search.
    const STEPS_A_TAKE: usize = 2;

    fn bytes(&self) -> usize {
        let unsorted = self.run.len() + self.runs.iter().map(IntoIter::len).sum::<usize>();
        (unsorted + self.sorted.capacity()) * size_of::<Range>() + self.ends.len() * size_of::<u32>()
    }

    fn add(&mut self, first: u32, last: u32, reader: u32) {
        let first = first.min(u32::MAX - 1);
        self.run.push(Range { first, end: last.saturating_add(1), reader });
        if self.run.len() == Self::RUN {
            self.end_run();
        }
    }

    fn end_run(&mut self) {
        self.run.sort_unstable();
        self.runs.push(std::mem::take(&mut self.run).into_iter());
    }

    /// One step of sorting. Returns whether it was the last.
    fn sort_step(&mut self) -> bool {
        if !self.is_begun {
            self.is_begun = true;
            self.end_run();
            let heads = self.runs.iter_mut().enumerate();
            self.heads = heads.filter_map(|(run, its)| Some(Reverse((its.next()?, run)))).collect();
            return false;
        }
        if let Some(Reverse((range, run))) = self.heads.pop() {
            self.sorted.push(range);
            if let Some(next) = self.runs[run].next() {
                self.heads.push(Reverse((next, run)));
            }
            return false;
        }
        if self.ends.is_empty() {
            self.runs = Vec::new();
            let leaves = self.sorted.len().next_power_of_two();
            self.ends = vec![0; 2 * leaves];
            self.next = 2 * leaves;
        }
        self.next -= 1;
        let leaves = self.ends.len() / 2;
        self.ends[self.next] = if self.next >= leaves {
            self.sorted.get(self.next - leaves).map_or(0, |range| range.end)
        } else {
            self.ends[2 * self.next].max(self.ends[2 * self.next + 1])
        };
        self.next == 1
    }

    /// Takes out a range that `rank` is in, and returns who has read it.
    fn take(&mut self, rank: u32) -> Option<u32> {
        let rank = rank.min(u32::MAX - 1);
        let leaves = self.ends.len() / 2;
        // Among the ranges that begin early enough, finds one that ends late enough.
        let (mut from, mut to) = (leaves, leaves + self.sorted.partition_point(|range| range.first <= rank));
        let mut node = loop {
            if from >= to {
                return None;
            }
            if from % 2 == 1 && self.ends[from] > rank {
                break from;
            }
            if to % 2 == 1 && self.ends[to - 1] > rank {
                break to - 1;
            }
            (from, to) = (from.div_ceil(2), to / 2);
        };
        while node < leaves {
            node = 2 * node + usize::from(self.ends[2 * node] <= rank);
        }
        let reader = self.sorted[node - leaves].reader;
        self.ends[node] = 0;
        while node > 1 {
            node /= 2;
            self.ends[node] = self.ends[2 * node].max(self.ends[2 * node + 1]);
        }
        Some(reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_reader_is_found_by_what_it_has_read(
            reads in prop::collection::vec(prop::collection::vec(0_u32..40, 0..20), 0..6),
            asked in prop::collection::vec(0_u32..40, 0..10),
        ) {
            let mut ranges = Ranges::default();
            for (reader, read) in reads.iter().enumerate() {
                let mut set = RangeSet::default();
                for &rank in read {
                    set.insert(rank);
                }
                for (first, last) in (0..).map_while(|at| set.get(at)) {
                    ranges.add(first, last, count(reader));
                }
            }
            while !ranges.sort_step() {}
            let (mut found, mut expected) = (vec![false; reads.len()], vec![false; reads.len()]);
            for rank in asked {
                while let Some(reader) = ranges.take(rank) {
                    found[reader as usize] = true;
                }
                for (reader, read) in reads.iter().enumerate() {
                    expected[reader] |= read.contains(&rank);
                }
                prop_assert_eq!(&found, &expected);
            }
        }
    }

    #[test]
    fn many_ranges_are_sorted_and_the_greatest_rank_is_found() {
        let mut ranges = Ranges::default();
        for n in 0..5000_u32 {
            ranges.add(n.wrapping_mul(7919) % 5000, 5000, n);
        }
        ranges.add(u32::MAX, u32::MAX, 5000);
        while !ranges.sort_step() {}
        assert!(ranges.sorted.is_sorted());
        assert_eq!((ranges.take(u32::MAX), ranges.take(u32::MAX)), (Some(5000), None));
        assert_eq!(std::iter::from_fn(|| ranges.take(2499)).count(), 2500);
    }
}
