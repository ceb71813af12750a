//! One run, as its traffic or the native rendezvous shows it.

mod key;
pub(crate) mod limits;
pub(crate) mod memory;
pub(crate) mod node;
pub(crate) mod round;
mod tracked;
pub(crate) mod world;

pub(crate) use self::key::RunKey;
pub(crate) use self::limits::{MISSING_SHOWN, MOST_NODES, SETTLE};
pub(crate) use self::memory::Room;
pub(crate) use self::node::{Membership, NodeId, TrackedNode};
pub(crate) use self::tracked::TrackedRun;
pub(crate) use self::world::{Meeting, RankInfo, with_pid};
