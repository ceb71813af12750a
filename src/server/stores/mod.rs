//! The stores of single runs and rounds, and the ports that they lease.

mod leases;

pub(super) use leases::RunStores;
pub use leases::{NoStore, RunStore};
