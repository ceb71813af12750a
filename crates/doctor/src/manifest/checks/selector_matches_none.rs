//! A Service without pods has no address: its name never resolves, and every rank tries until its time-out.

use std::collections::BTreeSet;

use super::prelude::*;
use crate::manifest::pods::LabelIs;

pub(super) const RULE: Rule = Rule {
    id: "selector-matches-none",
    sees: "FAIL: the Service that the pods use selects labels that no pod has. WARN: a Service that selects \
           the operator's label of another object",
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
            checks.extend(of_another(manifests, service));
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

/// A Service that selects the label of a maker with the name of an object that is not in these files.
fn of_another(manifests: &Manifests, service: &Object) -> Option<Check> {
    let selector = selector(service);
    let near = || manifests.pods.iter().filter(|pods| service.shares_namespace(pods.namespace.as_deref()));
    let differs = |(key, value): &(&String, &String)| {
        let mut own =
            near().filter(|pods| !pods.labels.contains_key(*key)).filter_map(|pods| pods.label(key));
        // A TrainJob's pods have its name, and are those of its runtime here.
        let is_named = manifests.objects.iter().any(|it| it.name == **value && it.kind != "Service");
        !is_placeholder(value)
            && !is_named
            && own.any(|own| matches!(own, LabelIs::Text(own) if own != *value))
    };
    let is_name = |(key, _): &(&String, &String)| key.contains('/') && key.ends_with("name");
    let (key, value) = selector.iter().filter(is_name).find(differs)?;
    let names: BTreeSet<&str> = near().map(|pods| pods.name.as_str()).collect();
    let evidence =
        format!("`{key}: {value}` is of another object than `{}`", Vec::from_iter(names).join("`, `"));
    Some(Check::warn(evidence, "the name of the object here").at(service.place("spec.selector")))
}
