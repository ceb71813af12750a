//! The store of a run, or of a round, is on a port of its own.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "run-store-ports",
    sees: "FAIL: the ports of the stores of runs cannot be reached; WARN where relays can do without them",
    remedy: "open 29510-29599, or a [relay](relay.md)",
    find: Find::Server(|facts| facts.run_stores.as_ref().map(find)),
};

/// Checks the ports of run stores.
pub fn run_stores(stores: &RunStores) -> Check {
    find(stores).called(RULE.id)
}

fn find(stores: &RunStores) -> Check {
    let RunStores { tried, ports: (first, last), .. } = stores;
    let Some(why) = &stores.blocked else {
        return Check::pass(if stores.is_open {
            format!("the store of a run is reached on {tried}")
        } else {
            format!("{tried} is closed now, and says so at once, so a store of a run will be reached")
        });
    };
    let evidence =
        format!("runs and rounds get their stores on ports {first}-{last} of {}: {why}", tried.host());
    let remedy = format!(
        "open {first}-{last} beside 29500 and 29501 from this pod, in the NetworkPolicy and in firewalls"
    );
    if stores.takes_relays {
        Check::warn(
            evidence,
            format!("{remedy}; or use a relay on this node, which needs the admin port alone"),
        )
    } else {
        Check::fail(evidence, remedy)
    }
}
