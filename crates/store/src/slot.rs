//! The id by which the parts of the store know a name.

/// The place of a name's slot. Valid while the slot exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SlotId(u32);

impl SlotId {
    /// The slot at a place among all.
    #[inline]
    pub(super) const fn at(place: u32) -> Self {
        Self(place)
    }

    /// Its place.
    #[inline]
    pub(super) const fn place(self) -> u32 {
        self.0
    }
}
