//! Without a startupProbe the training may start before the store is up.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "sidecar-probe",
    sees: "WARN: a sidecar without startupProbe",
    fails: "sidecar-without-probe.yaml",
    passes: "good-indexed-job.yaml",
    find: Find::Pods(|_, pods| find(pods)),
};

fn find(pods: &Pods) -> Vec<Check> {
    let unprobed = |it: &&Container| it.serves() && it.is_sidecar() && it.value.get("startupProbe").is_none();
    let check = |container: &Container| {
        let evidence = "without a startupProbe the training may start before the store is up";
        let remedy =
            "startupProbe: {httpGet: {path: /readyz, port: 29501}, periodSeconds: 1, failureThreshold: 60}";
        Check::warn(evidence, remedy).at(pods.at(&container.at("startupProbe")))
    };
    pods.init_containers.iter().filter(unprobed).map(check).collect()
}
