//! One run, as its traffic or the native rendezvous shows it: facts, and what follows from them.

mod dynamic;
mod ends;
mod facts;
mod fixed;
mod key;
mod limits;
mod memory;
mod native;
mod node;
mod parts;
mod past;
mod time;
mod tracked;
mod workers;
mod world;

pub(super) use self::key::RunKey;
pub(super) use self::limits::{MISSING_SHOWN, MOST_NODES, SETTLE};
pub(super) use self::memory::Room;
pub(super) use self::node::{Membership, NodeId, TrackedNode};
pub use self::past::Past;
pub(super) use self::tracked::TrackedRun;
#[cfg(test)]
pub(super) use self::world::GlooAddress;
pub(super) use self::world::{MOST_RANKS, Meeting, RankInfo, read_gloo, read_nccl_id, with_pid};
