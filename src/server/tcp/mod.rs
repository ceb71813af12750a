//! The store port: accepting connections, admitting them, and one task for each on a worker.

mod accept;
mod connection;
mod places;
mod throttle;
mod workers;

pub(in crate::server) use accept::{ENOUGH_BACKLOG, KINDS_OF_LINES, Shared};
pub use accept::{Outcome, StoreListener, bind};
pub use places::{Place, Places};
pub use throttle::Throttle;
pub(in crate::server) use workers::Workers;
