//! A Service without pods has no address: its name never resolves, and every rank tries until its time-out.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "selector-matches-none",
    sees: "FAIL: the Service that the pods use selects labels that no pod has",
    examples: ["selector-matches-none.yaml", "good-job-c10d.yaml"],
    find: Find::Files(find),
};

fn find(manifests: &Manifests) -> Vec<Check> {
    let mut checks = Vec::new();
    let strange = manifests.pods.iter().any(|pods| pods.maker == Maker::Unknown);
    for service in manifests.of_kind("Service") {
        let selector = selector(service);
        let taken = manifests.pods.iter().any(|pods| takes(service, pods) != Taken::None);
        if selector.is_empty() || taken || strange {
            continue;
        }
        let name = &service.name;
        let uses = |pods: &&Pods| {
            let hosts = pods.launches().filter_map(|launch| Some(launch.host.as_ref()?.text.to_string()));
            let told = hosts.into_iter().any(|host| host.split('.').take(2).any(|label| label == name));
            let is_near = service.shares_namespace(pods.namespace.as_deref());
            is_near && (told && pods.train() || pods.subdomain.as_ref() == Some(name))
        };
        if manifests.pods.iter().find(uses).is_none() {
            continue;
        }
        // The selected pods may be in another file: a store, a server.
        let of_own = |pods: &Pods| {
            pods.subdomain.as_ref() == Some(name)
                || pods.labels.iter().any(|(key, value)| selector.get(key) == Some(value))
        };
        if !is_headless(service) && !manifests.pods.iter().any(of_own) {
            continue;
        }
        let shown: Vec<String> = selector.iter().map(|(label, value)| format!("{label}={value}")).collect();
        let evidence =
            format!("no pod in these files has the labels {}: the name never resolves", shown.join(", "));
        let remedy = "make the selector equal to the pods' labels (spec.template.metadata.labels)";
        let check = Check::fail(evidence, remedy);
        checks.push(check.at(service.place("spec.selector")));
    }
    checks
}
