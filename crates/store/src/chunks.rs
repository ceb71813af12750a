//! A table whose entries are known by their place: names, registrations, groups.
//!
//! It grows in chunks. So a store of a million names grows without copying the other names, and each chunk
//! gives its memory back when its last entry leaves.

use std::ops::{Index, IndexMut};

use slab::Slab;

use rallypoint_protocol::ids::count;

/// Entries by place. The place of a removed entry is used again.
#[derive(Debug)]
pub(super) struct Chunks<T> {
    all: Vec<Slab<T>>,
    /// The chunk that new entries go into. It keeps its memory when it is empty.
    open: usize,
    /// The other chunks with free places, in the order in which they are to be filled, the last one first.
    roomy: Vec<usize>,
    len: usize,
    /// Places for which memory is allocated.
    room: usize,
    /// Bytes of free places between used ones, if there are many. Kept, because it is asked for with each
    /// request.
    left_bytes: usize,
}

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Self { all: vec![Slab::new()], open: 0, roomy: Vec::new(), len: 0, room: 0, left_bytes: 0 }
    }
}

#[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
impl<T> Chunks<T> {
    /// Places in a chunk: a power of two, because the room of a slab doubles.
    pub(super) const CHUNK: usize = 1024;

    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// An exclusive upper bound of all places.
    pub(super) fn end(&self) -> u32 {
        count(self.all.len() * Self::CHUNK)
    }

    /// Bytes of free places between used ones, if there are many.
    #[inline]
    pub(super) fn left_bytes(&self) -> usize {
        self.left_bytes
    }

    fn count_left(&mut self) {
        self.left_bytes = left_behind(self.room, self.len) * size_of::<T>();
    }

    /// Adds the entry that `make` makes of its place, and returns the place.
    #[inline]
    pub(super) fn add(&mut self, make: impl FnOnce(u32) -> T) -> u32 {
        if self.all[self.open].len() == Self::CHUNK {
            self.open_another();
        }
        let chunk = &mut self.all[self.open];
        let room = chunk.capacity();
        let place = Self::join(self.open, chunk.vacant_key());
        chunk.insert(make(place));
        self.room += chunk.capacity() - room;
        self.len += 1;
        self.count_left();
        place
    }

    #[cold]
    fn open_another(&mut self) {
        self.open = self.roomy.pop().unwrap_or_else(|| {
            self.all.push(Slab::new());
            self.all.len() - 1
        });
    }

    /// Removes and returns the entry at `place`.
    #[inline]
    pub(super) fn remove(&mut self, place: u32) -> T {
        let (at, within) = Self::split(place);
        let chunk = &mut self.all[at];
        let gone = chunk.remove(within);
        self.len -= 1;
        if at != self.open {
            if chunk.len() == Self::CHUNK - 1 {
                self.roomy.push(at);
            } else if chunk.is_empty() {
                self.room -= std::mem::take(chunk).capacity();
            }
        }
        self.count_left();
        gone
    }

    #[inline]
    pub(super) fn get(&self, place: u32) -> Option<&T> {
        let (at, within) = Self::split(place);
        self.all.get(at)?.get(within)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        let (at, within) = Self::split(place);
        self.all.get_mut(at)?.get_mut(within)
    }

    /// All entries with their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let chunks = self.all.iter().enumerate();
        chunks.flat_map(|(at, chunk)| chunk.iter().map(move |(within, it)| (Self::join(at, within), it)))
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "2^32 of them need more than 100 GB")]
    const fn join(at: usize, within: usize) -> u32 {
        (at * Self::CHUNK + within) as u32
    }

    /// Recounts everything, and returns what [`Self::left_bytes`] must be.
    #[cfg(test)]
    pub(super) fn check(&self) -> usize {
        assert_eq!(self.len, self.iter().count());
        let room: usize = self.all.iter().map(Slab::capacity).sum();
        assert_eq!(self.room, room);
        let has_room = |at: &usize| *at != self.open && self.all[*at].len() < Self::CHUNK;
        let mut roomy = self.roomy.clone();
        roomy.sort_unstable();
        assert_eq!(roomy, (0..self.all.len()).filter(has_room).collect::<Vec<_>>());
        let emptied = roomy.into_iter().filter(|&at| self.all[at].is_empty());
        assert_eq!(emptied.map(|at| self.all[at].capacity()).sum::<usize>(), 0, "room is given back");
        left_behind(room, self.len) * size_of::<T>()
    }

    #[inline]
    const fn split(place: u32) -> (usize, usize) {
        (place as usize / Self::CHUNK, place as usize % Self::CHUNK)
    }
}

impl<T> Index<u32> for Chunks<T> {
    type Output = T;

    #[inline]
    fn index(&self, place: u32) -> &T {
        let (at, within) = Self::split(place);
        &self.all[at][within]
    }
}

impl<T> IndexMut<u32> for Chunks<T> {
    #[inline]
    fn index_mut(&mut self, place: u32) -> &mut T {
        let (at, within) = Self::split(place);
        &mut self.all[at][within]
    }
}

/// How many places of `room` are free when there are `len` entries. A few free places are not worth counting.
pub(super) fn left_behind(room: usize, len: usize) -> usize {
    const LITTLE: usize = 1024;
    room.saturating_sub(len.max(LITTLE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    type Small = Chunks<[u64; 4]>;

    proptest! {
        #[test]
        fn what_is_put_somewhere_is_found_there(
            steps in prop::collection::vec((0_usize..5000, 0_usize..3000), 0..12),
        ) {
            let (mut places, mut model) = (Small::default(), HashMap::new());
            for (add, take) in steps {
                for n in 0..add {
                    let place = places.add(|place| [u64::from(place), n as u64, 0, 0]);
                    prop_assert_eq!(model.insert(place, n as u64), None, "two at one place");
                }
                for place in model.keys().copied().take(take).collect::<Vec<_>>() {
                    prop_assert_eq!(places.get_mut(place).map(|it| it[0]), Some(u64::from(place)));
                    prop_assert_eq!(places.remove(place)[1], model.remove(&place).unwrap());
                    prop_assert!(places.get(place).is_none());
                }
                prop_assert_eq!(places.check(), places.left_bytes());
                prop_assert!(places.iter().all(|(place, it)| place < places.end() && it[1] == model[&place]));
                prop_assert_eq!(places.len(), model.len());
            }
        }
    }
}
