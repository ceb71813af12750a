//! The stores that this server hosts, and the ports that single runs and rounds lease.

mod host;
mod leases;

pub(super) use host::HostLine;
pub use host::StoreHost;
pub(super) use leases::RoundStore;
pub use leases::{NoStore, Owner, RunStore};
