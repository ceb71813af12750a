//! Small types that carry meaning between the modules. This module knows no other.

use std::time::Duration;

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

/// Monotonic time since the process started. The core is handed it and never reads a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Uptime(pub Duration);

impl Uptime {
    /// The time `earlier` lies before this one; zero if it does not.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl std::ops::Add<Duration> for Uptime {
    type Output = Self;

    fn add(self, pause: Duration) -> Self {
        Self(self.0.saturating_add(pause))
    }
}

/// The name of one job's rendezvous (`--rdzv-id`). Bytes, because peers choose it; shown lossily.
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

/// Bytes of a key or an id made fit for a log line: lossy UTF-8, control characters escaped, at most 200
/// characters.
#[derive(Debug, Clone, Copy)]
pub struct ShownKey<'a>(pub &'a [u8]);

impl std::fmt::Display for ShownKey<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 200;
        let head = &self.0[..self.0.len().min(4 * SHOWN)];
        let text = String::from_utf8_lossy(head);
        let mut chars = text.chars();
        for c in chars.by_ref().take(SHOWN) {
            if c.is_control() {
                write!(f, "{}", c.escape_default())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        if chars.next().is_some() || head.len() < self.0.len() { write!(f, "…") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_key_is_short_and_has_no_control_characters() {
        assert_eq!(ShownKey(b"/a\nb\x00").to_string(), "/a\\nb\\u{0}");
        let long = ShownKey(&[b'x'; 5000]).to_string();
        assert_eq!(long.chars().count(), 201);
        assert!(long.ends_with('…'));
    }
}
