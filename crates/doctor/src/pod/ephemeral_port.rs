//! An outgoing connection may have the port when a process of the job wants to listen there.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "ephemeral-port",
    sees: "WARN: outgoing connections may take a port on which the job listens",
    remedy: "a port below `ip_local_port_range`",
    find: Find::Machine(|facts, _, _| find(facts)),
};

/// The ports on which the processes of the job listen, each with what names it.
pub fn binds(
    store: Option<u16>,
    admin: Option<u16>,
    env: &Environment,
    torchrun: Option<&Torchrun>,
) -> Vec<(u16, &'static str)> {
    let port_of = |text: &str| text.rsplit(':').next()?.parse().ok();
    let flag = |name| port_of(torchrun?.flag(name)?);
    let variable = |name| port_of(env.get(name)?);
    let named: [(Option<u16>, &str); 7] = [
        (store, "the store"),
        (admin, "the admin port"),
        (flag("rdzv-endpoint"), "--rdzv-endpoint"),
        (flag("master-port"), "--master-port"),
        (variable("PET_RDZV_ENDPOINT"), "PET_RDZV_ENDPOINT"),
        (variable("PET_MASTER_PORT"), "PET_MASTER_PORT"),
        (variable("MASTER_PORT"), "MASTER_PORT"),
    ];
    let mut found: Vec<(u16, &str)> = Vec::new();
    for (port, what) in named.into_iter().filter_map(|(port, what)| Some((port?, what))) {
        if !found.iter().any(|(other, _)| *other == port) {
            found.push((port, what));
        }
    }
    found
}

fn find(facts: &MachineFacts) -> Option<Check> {
    let (first, last) = facts.outgoing.filter(|_| !facts.binds.is_empty())?;
    let taken: Vec<_> = facts.binds.iter().filter(|(port, _)| (first..=last).contains(port)).collect();
    if taken.is_empty() {
        return Some(Check::pass(format!(
            "no port of the job is one of {first}-{last}, for outgoing connections"
        )));
    }
    let shown: Vec<String> = taken.iter().map(|(port, what)| format!("port {port} ({what})")).collect();
    let ports: Vec<String> = taken.iter().map(|(port, _)| port.to_string()).collect();
    let reserve = format!("net.ipv4.ip_local_reserved_ports={}", ports.join(","));
    let remedy = match first {
        ..=29599 => reserve,
        _ => format!("ports below {first}, such as 29500; or {reserve}"),
    };
    let evidence = format!(
        "{}: the kernel takes {first}-{last} for outgoing connections, and one of them may have it when the \
         job wants to listen",
        shown.join(", ")
    );
    Some(Check::warn(evidence, remedy))
}
