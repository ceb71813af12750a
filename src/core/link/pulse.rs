//! Signs of life: when each end was heard last, and when it has to say that it is there. The same for both ends.

use super::{BROKEN_AFTER, LinkError, PING_EVERY};
use crate::core::ids::Timestamp;

/// When an end heard of the other, and when it said something, last.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    pub(super) heard: Timestamp,
    pub(super) said: Timestamp,
}

impl Pulse {
    /// A connection begins.
    pub(super) fn at(now: Timestamp) -> Self {
        Self { heard: now, said: now }
    }

    /// Whether it is time to say that this end is there. An error if the other end has been silent for too long.
    pub(super) fn needs_ping(&self, now: Timestamp) -> Result<bool, LinkError> {
        if now.since(self.heard) >= BROKEN_AFTER {
            return Err(LinkError::Silent);
        }
        Ok(now.since(self.said) >= PING_EVERY)
    }
}
