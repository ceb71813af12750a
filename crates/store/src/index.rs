//! Finds the place of a name, in many hash tables that grow one by one.
//!
//! One table of a million names would be rebuilt in one go, while all clients wait. The tables here are
//! small, and a rebuild reads no names, because each entry keeps its hash.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

/// One name: its hash and its place.
#[derive(Debug, Clone, Copy)]
struct Entry {
    hash: u32,
    place: u32,
}

impl Entry {
    /// The hash, for a rebuild of the table.
    #[inline]
    fn hash_again(self) -> u64 {
        #[cfg(test)]
        super::tests::work::step();
        spread(self.hash)
    }
}

/// The hash of a name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hashed(u64);

impl Hashed {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the half that an entry keeps")]
    const fn kept(self) -> u32 {
        self.0 as u32
    }

    /// The table of this name. It is chosen by bits that entries do not keep: within one table they are all
    /// alike.
    #[inline]
    const fn table(self) -> usize {
        (self.0 >> u32::BITS) as usize % Index::TABLES
    }
}

/// A table uses the highest and the lowest bits of a hash for different purposes, so both get the kept bits.
#[inline]
const fn spread(kept: u32) -> u64 {
    (kept as u64) << u32::BITS | kept as u64
}

/// Places by name. The caller keeps the names themselves.
#[derive(Debug)]
pub(super) struct Index {
    hasher: DefaultHashBuilder,
    tables: Box<[HashTable<Entry>; Self::TABLES]>,
}

impl Default for Index {
    fn default() -> Self {
        Self { hasher: DefaultHashBuilder::default(), tables: Box::new([const { HashTable::new() }; _]) }
    }
}

impl Index {
    const TABLES: usize = 128;
    /// Tables with room for fewer entries are not shrunk.
    const SMALL: usize = 256;

    #[inline]
    pub(super) fn hash(&self, name: &[u8]) -> Hashed {
        Hashed(self.hasher.hash_one(name))
    }

    /// The place of the name with this hash for which `is_it` holds.
    #[inline]
    pub(super) fn find(&self, hash: Hashed, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let kept = hash.kept();
        let is_it = |entry: &Entry| entry.hash == kept && is_it(entry.place);
        Some(self.tables[hash.table()].find(spread(kept), is_it)?.place)
    }

    /// Adds a name that is not there yet.
    #[inline]
    pub(super) fn insert(&mut self, hash: Hashed, place: u32) {
        let entry = Entry { hash: hash.kept(), place };
        self.tables[hash.table()].insert_unique(spread(entry.hash), entry, |&entry| entry.hash_again());
    }

    /// Removes the name with this hash at `place`.
    #[inline]
    pub(super) fn remove(&mut self, hash: Hashed, place: u32) {
        let table = &mut self.tables[hash.table()];
        if let Ok(entry) = table.find_entry(spread(hash.kept()), |entry| entry.place == place) {
            entry.remove();
        }
        if table.capacity() > Self::SMALL && table.len() < table.capacity() / 4 {
            table.shrink_to(table.capacity() / 2, |&entry| entry.hash_again());
        }
    }
}
