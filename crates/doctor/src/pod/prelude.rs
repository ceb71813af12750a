//! What most checks use.

pub(crate) use std::net::{IpAddr, SocketAddr};
pub(crate) use std::time::Duration;

pub(crate) use super::super::Check;
pub(crate) use super::super::machine::MachineFacts;
pub(crate) use super::super::network::{Answer, Failure, NetworkFacts, RELAYS_ONLY, RELAYS_ONLY_REMEDY};
pub(crate) use super::super::server::{RunStores, ServerFacts};
pub(crate) use super::{Find, Launched, Rule};
pub(crate) use rallypoint_node::client::Step;
pub(crate) use rallypoint_node::launch::{Backend, Environment, LaunchEnv, Processes, Torchrun};
pub(crate) use rallypoint_protocol::ids::{Elapsed, counted};

/// The first addresses of a name.
pub(crate) fn list(addrs: &[SocketAddr]) -> String {
    let shown: Vec<String> = addrs.iter().take(4).map(|addr| addr.ip().to_string()).collect();
    let more =
        if addrs.len() > 4 { format!(" and {} more", addrs.len().saturating_sub(4)) } else { String::new() };
    format!("{}{more}", shown.join(", "))
}
