//! One run, as its traffic or the native rendezvous shows it.

mod key;
mod limits;
mod memory;
mod node;
mod round;
mod tracked;
mod world;

pub(crate) use self::key::RunKey;
pub(crate) use self::limits::{LATEST, MISSING_SHOWN, MOST_MOMENTS, MOST_NODES, SETTLE};
pub(crate) use self::memory::Room;
pub(crate) use self::node::{Agent, Membership, NodeId, TrackedNode};
pub(crate) use self::round::{
    AssignedRanks, Dying, Native, Over, Restarting, RoundFacts, Spare, TimelineEntry,
};
pub(crate) use self::tracked::TrackedRun;
pub(crate) use self::world::{
    Ended, Lost, Meeting, Process, RankInfo, Standing, World, rank_label, with_pid,
};
