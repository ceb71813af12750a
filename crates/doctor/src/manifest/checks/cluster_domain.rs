//! `cluster.local` is only the usual domain of a cluster. Where the domain is another, the name never
//! resolves.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "cluster-domain",
    sees: "WARN: an endpoint ends in `.svc.cluster.local`",
    examples: ["cluster-domain.yaml", "good-job-env.yaml"],
    find: Find::Container(|pods, container| find(pods, container).into_iter().collect()),
};

fn find(pods: &Pods, container: &Container) -> Option<Check> {
    let host = |launch: &Launch| Some(launch.host.as_ref()?.text.to_string());
    let mut hosts = container.launches.iter().filter_map(host);
    let said = hosts.find(|text| text.ends_with(".svc.cluster.local"))?;
    let check = Check::warn(
        format!("`{said}` ends in .svc.cluster.local, which is only the usual domain of a cluster"),
        "write `name.service` or `name.service.namespace`; the resolver adds the rest",
    );
    Some(check.at(pods.at(&container.at("env"))))
}
