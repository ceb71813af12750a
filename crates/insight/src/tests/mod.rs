//! Tests of insight: a real store, an invented clock, and everything between them.

mod cases;
mod faults;
mod grammar;
mod healthy;
mod hosts;
mod lab;
mod links;
mod native;
mod outside;
use crate::testing::state;
mod random;
mod reasons;
mod removed;
mod replay;
mod reports;
mod restarts;
mod room;
mod stories;
mod strangers;
pub(crate) mod truth;
mod unnamed;
mod yardstick;
