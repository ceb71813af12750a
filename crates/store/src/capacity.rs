//! How much one store may hold, and the error for a request that does not fit.

use bytes::Bytes;

use super::Store;
use super::keyspace::{KeySpace, Looked};
use super::stale::StaleKeys;
use super::waiters::Registrations;
use rallypoint_protocol::{List, Pairs};

/// Why a request was refused. The client's connection is closed; other clients are not affected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// ADD or BARRIER on a value that is not a number.
    #[error("{op} on key `{key}`, whose value is not a decimal number")]
    NotANumber {
        /// The operation.
        op: &'static str,
        /// The key, fit for a log line.
        key: String,
    },
    /// The request needs one more name than the store may hold.
    #[error("the store holds {limit} names, its limit; `rallypoint store keys` shows them")]
    TooManyKeys {
        /// The limit.
        limit: usize,
    },
    /// The memory for all stores is used up.
    #[error("the memory for all stores is used up (--max-memory)")]
    OutOfMemory,
}

/// How much one store may hold.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    /// Names, including those that are only waited for.
    pub keys: usize,
    /// Bytes of names, values and waits. The engine lowers this as other stores grow.
    pub bytes: usize,
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "bytes and names in memory, and of one request, whose sums the limits keep far from 2^64"
)]
impl Store {
    /// Bytes that the store holds.
    #[inline]
    pub fn bytes(&self) -> usize {
        let waits = self.registrations.bytes() + self.shared.bytes();
        self.keys.bytes() + waits + self.stale.bytes() + self.unfinished_bytes
    }

    /// Whether `bytes` more in up to `names` more names fit.
    #[inline]
    pub(super) fn room_for(&self, bytes: usize, names: usize) -> Result<(), Refusal> {
        if self.bytes() + bytes + names * KeySpace::SLOT_BYTES > self.capacity.bytes {
            return Err(Refusal::OutOfMemory);
        }
        if self.keys.names() + names > self.capacity.keys {
            return Err(Refusal::TooManyKeys { limit: self.capacity.keys });
        }
        Ok(())
    }

    /// As [`Self::room_for`], for one value that may replace another. Replacing by less always fits.
    #[inline]
    pub(super) fn room_for_value(&self, key: &[u8], looked: Looked, value: usize) -> Result<(), Refusal> {
        let found = looked.id.map(|id| self.keys.slot(id));
        let freed = found.and_then(|slot| slot.value()).map_or(0, Bytes::len);
        match found {
            Some(_) if value <= freed => Ok(()),
            Some(_) => self.room_for(value - freed, 0),
            None => self.room_for_name(key, value),
        }
    }

    /// As [`Self::room_for`], for a new name that holds `value` bytes. Looks at the name only where room is
    /// scarce.
    #[inline]
    pub(super) fn room_for_name(&self, key: &[u8], value: usize) -> Result<(), Refusal> {
        let bytes = key.len() + value;
        self.room_for(bytes + StaleKeys::most_bytes_of(1, key.len()), 1)
            .or_else(|_| self.room_for(bytes + StaleKeys::bytes_of(key), 1))
    }

    /// As [`Self::room_for`], for the registrations of a WAIT. Looks names up only where room is scarce.
    pub(super) fn room_for_wait(&self, keys: List<'_>) -> Result<(), Refusal> {
        let registrations = keys.len() * Registrations::BYTES;
        let at_most = StaleKeys::most_bytes_of(keys.len(), keys.wire_len());
        self.room_for(keys.wire_len() + at_most + registrations, keys.len()).or_else(|_| {
            let unknown = || keys.iter().filter(|key| self.keys.find(key).is_none());
            let bytes = unknown().map(|key| key.len() + StaleKeys::bytes_of(key)).sum::<usize>();
            self.room_for(bytes + registrations, unknown().count())
        })
    }

    /// As [`Self::room_for_value`], for all values of a MULTI_SET together.
    pub(super) fn room_for_pairs(&self, pairs: Pairs<'_>) -> Result<(), Refusal> {
        let at_most = StaleKeys::most_bytes_of(pairs.len(), pairs.wire_len());
        self.room_for(pairs.wire_len() + at_most, pairs.len()).or_else(|_| {
            let (mut bytes, mut names) = (0, 0);
            for (key, value) in pairs.iter() {
                let value = value.as_slice().len();
                if let Some(id) = self.keys.find(key) {
                    bytes += value.saturating_sub(self.keys.slot(id).value().map_or(0, Bytes::len));
                } else {
                    bytes += key.len() + value + StaleKeys::bytes_of(key);
                    names += 1;
                }
            }
            if bytes + names == 0 { Ok(()) } else { self.room_for(bytes, names) }
        })
    }
}
