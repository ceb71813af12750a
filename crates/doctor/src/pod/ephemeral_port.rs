//! An outgoing connection may have the port when rank 0 wants to listen there.

use super::prelude::*;

const ID: &str = "ephemeral-port";

pub(super) const RULE: Rule = Rule {
    id: ID,
    sees: "WARN: outgoing connections may take the store's port",
    remedy: "a port below `ip_local_port_range`",
    find: Find::Machine(|facts, _, _| find(facts)),
};

fn find(facts: &MachineFacts) -> Option<Check> {
    let ((first, last), port) = (facts.outgoing?, facts.listens_on?);
    Some(if (first..=last).contains(&port) {
        let evidence = format!(
            "port {port} is one of {first}-{last}, from which the kernel takes ports for outgoing \
             connections: one of them may have it when the store wants to listen"
        );
        let remedy =
            format!("a port below {first}, such as 29500; or net.ipv4.ip_local_reserved_ports={port}");
        Check::warn(ID, evidence, remedy)
    } else {
        Check::pass(ID, format!("no outgoing connection takes port {port}"))
    })
}
