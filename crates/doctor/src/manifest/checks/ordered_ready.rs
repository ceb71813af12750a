//! Pod 0 must be Ready before pod 1 is started, and may wait for pod 1 to become Ready. Without a
//! readinessProbe it is Ready as soon as it runs.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "ordered-ready",
    sees: "FAIL: a StatefulSet that starts its pods one after the other, with a readinessProbe",
    examples: ["ordered-ready.yaml", "good-statefulset.yaml"],
    find: Find::Pods(|_, pods| find(pods).into_iter().collect()),
};

fn find(pods: &Pods) -> Option<Check> {
    (pods.train() && pods.are_ordered() && pods.are_probed()).then(|| {
        let evidence = "pods start one after the other, each when the one before is Ready; with this \
                        readinessProbe pod 0 may wait for pods that are not started";
        Check::fail(evidence, "podManagementPolicy: Parallel").at(pods.of_owner("podManagementPolicy"))
    })
}
