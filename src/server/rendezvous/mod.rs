//! The native rendezvous at work: time, locks and parked requests around the core's state machines.

mod driver;
mod kept;
mod parking;

pub(super) use driver::RoundNews;
pub use driver::{Ended, Joined, Rounds, SharedRound};
