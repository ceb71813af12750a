//! Runs the core's state machines of the native rendezvous: adds time, locks and parked requests.

mod driver;
mod kept;
mod parking;

pub(super) use driver::RoundNews;
pub use driver::{Ended, Joined, Rounds, SharedRound};
