//! Names in no order. Each name knows its position, so it can be removed without a search.

use crate::slot::SlotId;
use rallypoint_protocol::ids::count;

#[derive(Debug, Default)]
pub(super) struct Members(Vec<SlotId>);

impl Members {
    /// Lists with room for fewer names are not shrunk.
    const SMALL: usize = 1024;

    /// Adds a name and returns its position.
    pub(super) fn add(&mut self, id: SlotId) -> u32 {
        let at = count(self.0.len());
        self.0.push(id);
        at
    }

    /// Removes `id` at position `at`, if it is there. Returns the name that took its position.
    pub(super) fn remove(&mut self, at: u32, id: SlotId) -> Option<SlotId> {
        let at = at as usize;
        if self.0.get(at) != Some(&id) {
            return None;
        }
        self.0.swap_remove(at);
        if self.0.capacity() > Self::SMALL && self.0.len() < self.0.capacity() / 4 {
            self.0.shrink_to(self.0.capacity() / 2);
        }
        self.0.get(at).copied()
    }

    pub(super) fn as_slice(&self) -> &[SlotId] {
        &self.0
    }

    pub(super) fn into_vec(self) -> Vec<SlotId> {
        self.0
    }
}
