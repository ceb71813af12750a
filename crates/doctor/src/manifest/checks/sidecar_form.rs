//! As an ordinary container the server keeps the Job from completing; as an ordinary init container it keeps
//! the training from starting.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "sidecar-form",
    sees: "FAIL: the server as an ordinary container, or an init container without `restartPolicy: Always`",
    fails: "sidecar-as-container.yaml",
    passes: "good-indexed-job.yaml",
    find: Find::Pods(|_, pods| find(pods)),
};

fn find(pods: &Pods) -> Vec<Check> {
    let ends = !matches!(
        pods.maker,
        Maker::StatefulSet | Maker::Deployment | Maker::Pod | Maker::Ray | Maker::Unknown
    );
    let ordinary = pods.containers.iter().filter(|container| container.serves() && ends).map(|container| {
        let evidence = "as an ordinary container the server never ends, and the Job never completes";
        let remedy = "an init container with restartPolicy: Always";
        Check::fail(evidence, remedy).at(pods.at(&container.field))
    });
    let init = pods.init_containers.iter().filter(|it| it.serves() && !it.is_sidecar()).map(|container| {
        let evidence = "as an ordinary init container the server must end before the training can start";
        Check::fail(evidence, "restartPolicy: Always").at(pods.at(&container.at("restartPolicy")))
    });
    ordinary.chain(init).collect()
}
