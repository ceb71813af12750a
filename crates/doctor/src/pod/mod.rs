//! The checks of a pod: one check, one file, as with the checks of manifests. The first lines of a file say
//! why the mistake makes a job hang; its `RULE` says what the check sees, what helps, and which function
//! finds it. `docs/doctor.md` is made from the rules.

mod admin_port;
mod backlog;
mod clock_skew;
mod descriptors;
mod dials_other_port;
mod environment_complete;
mod environment_consistent;
mod environment_understood;
pub(crate) mod ephemeral_port;
pub(crate) mod interface;
mod large_answers;
mod latency;
mod loopback_endpoint;
mod name_resolves;
mod one_address;
mod own_name;
mod port_open;
mod prelude;
mod ranks_beside_torchrun;
mod reverse_dns;
mod run_name;
pub(crate) mod run_store_ports;
mod server_version;
mod stale_keys;
mod store_answers;
mod torch_versions;
mod world_size;

use super::Check;
use super::machine::MachineFacts;
use super::network::NetworkFacts;
use super::server::ServerFacts;
use rallypoint_node::launch::{Environment, LaunchEnv, LaunchError, Torchrun};

/// The environment, and what follows from it.
pub(crate) struct Launched<'a> {
    pub(crate) env: &'a Environment,
    pub(crate) launch: &'a Result<LaunchEnv, LaunchError>,
    /// The command, if there is one.
    pub(crate) torchrun: Option<&'a Torchrun>,
}

/// A check of a pod.
#[cfg_attr(not(test), expect(dead_code, reason = "docs/doctor.md is made from these fields"))]
pub(crate) struct Rule {
    pub(crate) id: &'static str,
    /// What it sees, for the documentation.
    pub(crate) sees: &'static str,
    /// What helps, in a few words.
    pub(crate) remedy: &'static str,
    pub(crate) find: Find,
}

/// The function that finds a mistake, by what it looks at.
pub(crate) enum Find {
    /// The environment and the command.
    Launch(fn(&Launched<'_>) -> Vec<Check>),
    /// The way to the store.
    Network(fn(&NetworkFacts) -> Option<Check>),
    /// The server behind the admin port, and the store.
    Server(fn(&ServerFacts) -> Option<Check>),
    /// This host.
    Machine(fn(&MachineFacts, &Environment, Option<&Torchrun>) -> Option<Check>),
}

/// Every check of the environment. `torchrun` is the command, if there is one.
pub fn check_environment(
    env: &Environment,
    launch: &Result<LaunchEnv, LaunchError>,
    torchrun: Option<&Torchrun>,
) -> Vec<Check> {
    let at = Launched { env, launch, torchrun };
    checks(|find| match find {
        Find::Launch(find) => find(&at),
        _ => Vec::new(),
    })
}

/// The checks of the store's name.
pub fn check_name(facts: &NetworkFacts) -> Vec<Check> {
    let of_name = [name_resolves::RULE.id, one_address::RULE.id];
    check_network(facts).into_iter().filter(|check| of_name.contains(&check.id)).collect()
}

/// Every check of the way to the store.
pub fn check_network(facts: &NetworkFacts) -> Vec<Check> {
    checks(|find| match find {
        Find::Network(find) => find(facts).into_iter().collect(),
        _ => Vec::new(),
    })
}

/// Every check of the server.
pub fn check_server(facts: &ServerFacts) -> Vec<Check> {
    checks(|find| match find {
        Find::Server(find) => find(facts).into_iter().collect(),
        _ => Vec::new(),
    })
}

/// Every check of this host.
pub fn check_machine(facts: &MachineFacts, env: &Environment, torchrun: Option<&Torchrun>) -> Vec<Check> {
    checks(|find| match find {
        Find::Machine(find) => find(facts, env, torchrun).into_iter().collect(),
        _ => Vec::new(),
    })
}

/// What the rules find, each check under its rule's name.
fn checks(found: impl Fn(&Find) -> Vec<Check>) -> Vec<Check> {
    let mut checks = Vec::new();
    for rule in RULES {
        checks.extend(found(&rule.find).into_iter().map(|check| check.called(rule.id)));
    }
    checks
}

/// Every check, in the order of `docs/doctor.md`.
#[rustfmt::skip]
pub(crate) const RULES: &[&Rule] = &[
    &environment_consistent::RULE, &environment_complete::RULE, &environment_understood::RULE,
    &world_size::RULE, &ranks_beside_torchrun::RULE, &run_name::RULE, &name_resolves::RULE,
    &one_address::RULE, &loopback_endpoint::RULE, &port_open::RULE, &store_answers::RULE, &latency::RULE,
    &dials_other_port::RULE, &admin_port::RULE, &large_answers::RULE, &run_store_ports::RULE,
    &server_version::RULE, &clock_skew::RULE, &torch_versions::RULE, &stale_keys::RULE, &own_name::RULE,
    &interface::RULE, &reverse_dns::RULE, &descriptors::RULE, &backlog::RULE, &ephemeral_port::RULE,
];

#[cfg(test)]
mod tests;
