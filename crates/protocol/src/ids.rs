//! Small types that carry meaning between modules. This module uses no other.

mod elapsed;
mod nodes;
mod text;

use std::time::Duration;

pub use elapsed::Elapsed;
pub use nodes::Nodes;
pub use text::{BadLabel, Label, Shown, ShownKey, counted, is_plain};

/// One connection of one client, for as long as the connection lives.
///
/// `slot` is a small index that is reused after the connection is gone; `serial` never repeats, so a `ConnId`
/// kept after its connection closed can never be mistaken for a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    slot: u32,
    serial: u32,
}

impl ConnId {
    /// Names the connection in table position `slot`, the `serial`-th of this server's life.
    pub const fn new(slot: u32, serial: u32) -> Self {
        Self { slot, serial }
    }

    /// The position in per-connection tables.
    pub const fn slot(self) -> usize {
        self.slot as usize
    }

    /// The number shown to people: the n-th connection this store has accepted.
    pub const fn serial(self) -> u32 {
        self.serial
    }
}

/// The length of something in memory, as the number that the API and the views use.
pub fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Monotonic time since the process started. The shell passes it to the core, which never reads a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp(pub Duration);

impl Timestamp {
    /// The time `earlier` lies before this one; zero if it does not.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, pause: Duration) -> Self {
        Self(self.0.saturating_add(pause))
    }
}

/// The id of one job's rendezvous (`--rdzv-id`). Bytes, because clients choose it. It is shown lossily.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(Box<[u8]>);

impl RunId {
    /// Takes the id as it stood in a key.
    pub fn new(id: &[u8]) -> Self {
        Self(id.into())
    }

    /// The raw bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Display for RunId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", ShownKey(&self.0))
    }
}
