//! Kubernetes sets `NAME_PORT=tcp://…` for each Service. For a Service `master` that is torch's own variable.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "service-link",
    sees: "FAIL: a Service `master` makes Kubernetes set `MASTER_PORT=tcp://…`",
    examples: ["service-link.yaml", "good-job-env.yaml"],
    find: Find::Pods(find),
};

fn find(manifests: &Manifests, pods: &Pods) -> Vec<Check> {
    let links = |service: &&Object| {
        matches!(service.name.as_str(), "master" | "pet-master")
            && !is_headless(service)
            && service.shares_namespace(pods.namespace.as_deref())
    };
    let Some(service) = manifests.of_kind("Service").find(links) else { return Vec::new() };
    let variable = format!("{}_PORT", service.name.to_uppercase().replace('-', "_"));
    let off = pods.are_tasks() || pods.spec.get("enableServiceLinks") == Some(&Value::Bool(false));
    let lacks = |container: &&Container| container.trains() && container.variable(&variable).is_none();
    let check = |_: &Container| {
        let evidence =
            format!("the Service `{}` makes Kubernetes set {variable}=tcp://… in every pod", service.name);
        let remedy = "enableServiceLinks: false, or another name for the Service";
        Check::fail(evidence, remedy).at(pods.at("enableServiceLinks"))
    };
    pods.containers.iter().filter(|_| !off).filter(lacks).map(check).collect()
}
