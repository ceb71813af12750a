//! Signs of life, for both ends: when the other end was heard last, and when this end must send one.

use super::{BROKEN_AFTER, LinkError, PING_EVERY};
use rallypoint_protocol::ids::Timestamp;

/// The last times at which an end heard from the other one, and sent something to it.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    pub(super) heard: Timestamp,
    pub(super) said: Timestamp,
}

impl Pulse {
    /// The state when a connection begins.
    pub(super) fn at(now: Timestamp) -> Self {
        Self { heard: now, said: now }
    }

    /// Whether this end must send a sign of life now. An error if the other end has been silent for too long.
    pub(super) fn needs_ping(&self, now: Timestamp) -> Result<bool, LinkError> {
        if now.since(self.heard) >= BROKEN_AFTER {
            return Err(LinkError::Silent);
        }
        Ok(now.since(self.said) >= PING_EVERY)
    }
}
