//! A headless Service names only Ready pods, and a pod may not be Ready before it has met the others.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "not-ready-addresses",
    sees: "WARN: a readinessProbe, and a headless Service that names only Ready pods",
    fails: "not-ready-addresses.yaml",
    passes: "good-job-c10d.yaml",
    find: Find::Pods(|manifests, pods| find(manifests, pods).into_iter().collect()),
};

fn find(manifests: &Manifests, pods: &Pods) -> Option<Check> {
    let service = manifests.service(pods.subdomain.as_ref().filter(|_| pods.need_own_service())?, pods)?;
    let published = service.value.pointer("/spec/publishNotReadyAddresses") == Some(&Value::Bool(true));
    (is_headless(service) && pods.are_probed() && !published).then(|| {
        let evidence = "with the readinessProbe a pod has no name before it is Ready, and it may not be \
                        Ready before it has met the others";
        let check = Check::warn(evidence, "publishNotReadyAddresses: true");
        check.at(service.place("spec.publishNotReadyAddresses"))
    })
}
