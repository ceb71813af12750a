//! The store port: accepting connections, admitting them, and one task for each on a worker.

mod accept;
mod admission;
mod connection;
mod conversation;
mod end;
mod foreign;
mod places;
mod throttle;
mod workers;

pub use accept::{bind, warn_of_small_backlog};
pub use admission::StoreListener;
pub use admission::{KINDS_OF_LINES, Linked, Shared};
pub use conversation::Conversation;
pub use end::End;
pub use end::Outcome;
pub use foreign::{Foreign, ForeignClients, is_hello};
pub use places::{Place, Places};
pub use throttle::Throttle;
pub use workers::Workers;
