//! What the other parts of the store know a name by.

/// Where a name's slot is. Valid while the slot exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SlotId(u32);

impl SlotId {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "2^32 slots need more than 800 GB")]
    pub(super) const fn at(index: usize) -> Self {
        Self(index as u32)
    }

    /// The slot at a place that the index knows.
    #[inline]
    pub(super) const fn of(place: u32) -> Self {
        Self(place)
    }

    /// Its place as the index knows it.
    #[inline]
    pub(super) const fn number(self) -> u32 {
        self.0
    }

    /// Its place among the slots.
    #[inline]
    pub(super) const fn place(self) -> usize {
        self.0 as usize
    }
}

/// How much of `room` that was made for many is left now that there are `len`: little is not worth counting.
pub(super) fn left_behind(room: usize, len: usize) -> usize {
    const LITTLE: usize = 1024;
    room.saturating_sub(len.max(LITTLE))
}
