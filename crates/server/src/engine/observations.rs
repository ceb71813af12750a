//! Observations of a store since the last call, kept under the engine's lock. Their number and bytes are
//! bounded. Of a large rendezvous state only the newest version is kept.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;

use rallypoint_protocol::ids::{ConnId, Timestamp};
use rallypoint_protocol::keys::{KeyPattern, RendezvousPart, classify};
use rallypoint_store::{Observed, WaitView};

/// Observations, oldest first.
#[derive(Debug, Default)]
pub struct Seen {
    /// Each observation with its time.
    pub items: Vec<(Timestamp, Observed)>,
    /// How many observations did not fit.
    pub lost: u64,
    /// The waits that have lasted long enough, unordered, if they were asked for.
    pub waits: Option<Vec<WaitView>>,
    /// When each connection of the question last sent a request.
    pub heard: Vec<(ConnId, Timestamp)>,
}

/// Which waits to show.
#[derive(Debug, Clone, Copy)]
pub struct LongWaits {
    /// Only waits that have lasted at least this long.
    pub at_least: Duration,
    /// Most waits to show.
    pub most: usize,
    /// Most missing keys to show of each wait.
    pub keys_each: usize,
}

/// The buffer of observations.
#[derive(Debug, Default)]
pub(super) struct Observations {
    pub(super) enabled: bool,
    /// While a store is restored, the bounds do not hold: there are no more observations than the store has
    /// entries.
    pub(super) is_restoring: bool,
    seen: Seen,
    bytes: usize,
    /// Where the newest version of each rendezvous state is, and the bytes of all its versions.
    states: HashMap<Box<[u8]>, (usize, usize)>,
}

impl Observations {
    const MOST: usize = 64 * 1024;
    /// Like `MOST`, for disconnections. The bound is higher, because a connection whose end is lost would be
    /// shown for ever.
    const MOST_ENDS: usize = 4 * Self::MOST;
    const MOST_BYTES: usize = 16 << 20;
    /// Up to this many bytes, all versions of one state are kept: each version shows which node wrote what.
    /// Beyond it, a new version replaces its predecessor.
    const STATE_BYTES: usize = 64 * 1024;
    /// Memory of an observation in addition to its bytes, roughly.
    const ITEM_BYTES: usize = 128;

    pub(super) fn new(enabled: bool) -> Self {
        Self { enabled, ..Self::default() }
    }

    pub(super) fn push(&mut self, now: Timestamp, observed: Observed) {
        if let Observed::Wrote { key, value, .. } = &observed
            && is_state(key)
        {
            let next = self.seen.items.len();
            let (at, bytes) = self.states.entry(key.clone()).or_insert((next, 0));
            *bytes = bytes.saturating_add(value.len());
            if *at < next && *bytes > Self::STATE_BYTES {
                self.bytes =
                    self.bytes.saturating_sub(cost(&self.seen.items[*at].1)).saturating_add(cost(&observed));
                self.seen.items[*at] = (now, observed);
                return;
            }
            *at = next;
        }
        let cost = cost(&observed);
        let is_full = match observed {
            Observed::Gone { .. } | Observed::CutOff { .. } => self.seen.items.len() >= Self::MOST_ENDS,
            _ => self.seen.items.len() >= Self::MOST || self.bytes.saturating_add(cost) > Self::MOST_BYTES,
        };
        if is_full && !self.is_restoring {
            self.seen.lost = self.seen.lost.saturating_add(1);
            if let Observed::Wrote { key, .. } = &observed {
                self.states.remove(key);
            }
            return;
        }
        self.bytes = self.bytes.saturating_add(cost);
        self.seen.items.push((now, observed));
    }

    /// Bytes held, roughly.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn take(&mut self) -> Seen {
        self.bytes = 0;
        self.states.clear();
        std::mem::take(&mut self.seen)
    }
}

fn is_state(key: &[u8]) -> bool {
    matches!(classify(key), Some(KeyPattern::Rendezvous { part: RendezvousPart::State, .. }))
}

fn cost(observed: &Observed) -> usize {
    let bytes = match observed {
        Observed::Wrote { key, value, .. } => key.len().saturating_add(value.len()),
        Observed::Published { key, address, .. } => {
            key.len().saturating_add(address.as_ref().map_or(0, Bytes::len))
        }
        Observed::Client { key, .. }
        | Observed::Dropped { key, .. }
        | Observed::GaveUp { key, .. }
        | Observed::TwoWriters { key, .. } => key.len(),
        Observed::CutOff { link, .. } => link.as_ref().map_or(0, |link| link.len()),
        Observed::RunRestarted { run_id } => run_id.as_bytes().len(),
        Observed::Came { .. } | Observed::Gone { .. } | Observed::StoreReset { .. } | Observed::Restored => 0,
    };
    bytes.saturating_add(Observations::ITEM_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rallypoint_protocol::ids::ConnId;

    fn wrote(key: &str, len: usize, conn: u32) -> Observed {
        let value = Bytes::from(vec![b'x'; len]);
        Observed::Wrote { conn: ConnId::new(conn, conn), key: key.as_bytes().into(), value }
    }

    #[test]
    fn a_client_that_goes_is_seen_even_if_all_is_full() {
        let mut observations = Observations::new(true);
        for n in 0..=Observations::MOST as u32 {
            observations.push(Timestamp::default(), wrote("key", 1, n));
        }
        observations
            .push(Timestamp::default(), Observed::Gone { conn: ConnId::new(1, 1), used_own_keys: false });
        let seen = observations.take();
        assert_eq!((seen.lost, seen.items.len()), (1, Observations::MOST + 1));
        assert!(matches!(seen.items.last(), Some((_, Observed::Gone { .. }))));
    }

    #[test]
    fn every_version_of_a_small_state_is_kept_and_only_the_newest_of_a_large_one() {
        let mut observations = Observations::new(true);
        for n in 0..10 {
            observations.push(Timestamp::default(), wrote("/torch.rendezvous.small", 500, n));
            observations.push(Timestamp::default(), wrote("/torch.rendezvous.large", 150_000, n));
        }
        let seen = observations.take();
        let of = |name: &str| -> Vec<u32> {
            let writer = |(_, item): &(Timestamp, Observed)| match item {
                Observed::Wrote { key, conn, .. } if key.ends_with(name.as_bytes()) => Some(conn.serial()),
                _ => None,
            };
            seen.items.iter().filter_map(writer).collect()
        };
        assert_eq!(of("small").len(), 10);
        assert_eq!(of("large"), [9]);
        observations.push(Timestamp::default(), wrote("/torch.rendezvous.large", 150_000, 11));
        assert_eq!(observations.take().items.len(), 1, "a drain starts anew");
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let mut observations = Observations::new(true);
        for n in 0..Observations::MOST as u32 + 5 {
            observations.push(Timestamp::default(), wrote("init/", 1, n));
        }
        let seen = observations.take();
        assert_eq!((seen.items.len(), seen.lost), (Observations::MOST, 5));
        for _ in 0..20 {
            observations.push(Timestamp::default(), wrote("/default_pg/x", 1 << 20, 1));
        }
        let seen = observations.take();
        assert!(seen.items.len() < 17 && seen.lost > 3, "{} {}", seen.items.len(), seen.lost);
        assert_eq!(observations.take().lost, 0);
    }
}
