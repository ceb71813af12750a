//! Whose connection is which process, node or rank, and what was seen of it.

pub(crate) mod processes;
pub(crate) mod sighting;
