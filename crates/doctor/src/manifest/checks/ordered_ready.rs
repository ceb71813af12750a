//! Pod 0 must be Ready before pod 1 is started, and may wait for pod 1 to become Ready.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "ordered-ready",
    sees: "FAIL: a StatefulSet that starts its pods one after the other, with a readinessProbe. WARN without",
    examples: ["ordered-ready.yaml", "good-statefulset.yaml"],
    find: Find::Pods(|_, pods| find(pods).into_iter().collect()),
};

fn find(pods: &Pods) -> Option<Check> {
    if !pods.train() || !pods.are_ordered() {
        return None;
    }
    let evidence = "pods start one after the other, each when the one before is Ready";
    let remedy = "podManagementPolicy: Parallel";
    let check = if pods.are_probed() {
        let evidence =
            format!("{evidence}; with this readinessProbe pod 0 may wait for pods that are not started");
        Check::fail(evidence, remedy)
    } else {
        Check::warn(evidence, remedy)
    };
    Some(check.at(pods.of_owner("podManagementPolicy")))
}
