//! A map in no order of which a simulation decides the order: where a walk over it decides what happens first, a seed
//! must still be one run. Everywhere else it is the map of the standard library.

/// The map of the standard library.
#[cfg(not(test))]
pub type HashMap<K, V> = std::collections::HashMap<K, V>;
/// The map whose order is that of [`decided::order_by`].
#[cfg(test)]
pub type HashMap<K, V> = std::collections::HashMap<K, V, decided::Hashing>;

#[cfg(test)]
pub(crate) mod decided {
    use std::cell::Cell;
    use std::hash::{BuildHasher, DefaultHasher, Hasher};

    thread_local! {
        static SEED: Cell<u64> = const { Cell::new(0) };
    }

    /// The maps that this thread makes from now on are in the order of this seed.
    pub(crate) fn order_by(seed: u64) {
        SEED.set(seed);
    }

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
