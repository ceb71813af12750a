#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )
)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::print_stdout, clippy::print_stderr)]
//! A map without an order of its own. In tests, a seed decides its order: if a walk over the map decides what
//! happens first, one seed must still give one run. Everywhere else it is the map of the standard library.

/// The map of the standard library.
#[cfg(not(feature = "sim"))]
pub type HashMap<K, V> = std::collections::HashMap<K, V>;
/// The map in the order of the seed from [`decided::order_by`].
#[cfg(feature = "sim")]
pub type HashMap<K, V> = std::collections::HashMap<K, V, decided::Hashing>;

/// A map from names to values, in many parts. Each part is small: the map never needs twice its memory to
/// grow, and taking it apart frees the memory of one part after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameMap<V>(Vec<HashMap<Box<[u8]>, V>>);

impl<V> Default for NameMap<V> {
    fn default() -> Self {
        Self(std::iter::repeat_with(HashMap::default).take(Self::PARTS).collect())
    }
}

impl<V> NameMap<V> {
    const PARTS: usize = 256;

    /// The value of a name.
    pub fn get(&self, name: &[u8]) -> Option<&V> {
        self.0[Self::part(name)].get(name)
    }

    /// As [`Self::get`], to change the value.
    pub fn get_mut(&mut self, name: &[u8]) -> Option<&mut V> {
        self.0[Self::part(name)].get_mut(name)
    }

    /// Sets the value of a name.
    pub fn insert(&mut self, name: Box<[u8]>, value: V) {
        self.0[Self::part(&name)].insert(name, value);
    }

    /// Removes a name.
    pub fn remove(&mut self, name: &[u8]) {
        self.0[Self::part(name)].remove(name);
    }

    /// The number of names.
    pub fn len(&self) -> usize {
        self.0.iter().map(HashMap::len).sum()
    }

    /// Whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(HashMap::is_empty)
    }

    /// All names with their values.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], &V)> {
        self.0.iter().flatten().map(|(name, value)| (&**name, value))
    }

    fn part(name: &[u8]) -> usize {
        crc32c::crc32c(name) as usize % Self::PARTS
    }
}

impl<V> IntoIterator for NameMap<V> {
    type Item = (Box<[u8]>, V);
    type IntoIter = std::iter::Flatten<std::vec::IntoIter<HashMap<Box<[u8]>, V>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().flatten()
    }
}

#[cfg(feature = "sim")]
pub mod decided {
    //! The order of maps, by a number of the thread.

    use std::cell::Cell;
    use std::hash::{BuildHasher, DefaultHasher, Hasher};

    thread_local! {
        static SEED: Cell<u64> = const { Cell::new(0) };
    }

    /// Maps that this thread makes from now on have the order of this seed.
    pub fn order_by(seed: u64) {
        SEED.set(seed);
    }

    /// Hashes by the number that was set when its map was made.
    #[derive(Debug, Clone)]
    pub struct Hashing(u64);

    impl Default for Hashing {
        fn default() -> Self {
            Self(SEED.get())
        }
    }

    impl BuildHasher for Hashing {
        type Hasher = DefaultHasher;

        fn build_hasher(&self) -> DefaultHasher {
            let mut hasher = DefaultHasher::new();
            hasher.write_u64(self.0);
            hasher
        }
    }
}
