//! The wait graph: who waits for which key, who by pattern must write it, and what that one waits for itself.

mod explain;
mod own_keys;
mod processes;
mod root;
mod sighting;
mod wanted;

pub(super) use self::processes::Graph;
pub(super) use self::root::Traced;
pub(super) use self::wanted::{ExpectedWriter, wanted};
