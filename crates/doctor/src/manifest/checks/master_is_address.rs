//! The address of a pod changes when the pod is rescheduled; the others then connect to nobody.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "master-is-address",
    sees: "WARN: `MASTER_ADDR` is a pod's address",
    examples: ["master-is-address.yaml", "good-job-env.yaml"],
    find: Find::Container(|pods, container| find(pods, container).into_iter().collect()),
};

fn find(pods: &Pods, container: &Container) -> Option<Check> {
    let is_own = container.own.iter().any(|name| name == "MASTER_ADDR") && !container.launches.is_empty();
    let master = container.variable("MASTER_ADDR").filter(|_| is_own)?;
    let addr: std::net::IpAddr = master.literal()?.parse().ok()?;
    (!addr.is_loopback() && !addr.is_unspecified()).then(|| {
        let evidence =
            format!("MASTER_ADDR={addr} is the address of one pod; when that pod is rescheduled it changes");
        let remedy = "use a name: a Service, or pod 0 behind a headless Service";
        Check::warn(evidence, remedy).at(pods.at(&container.at("env")))
    })
}
