//! What changes the facts: one file for each source. They translate, and say nothing themselves.

mod agents;
mod c10d;
mod fixed;
pub(crate) mod gate;
pub(crate) mod journal;
mod keys;
mod native;
pub(crate) mod store;
mod time;
mod workers;
