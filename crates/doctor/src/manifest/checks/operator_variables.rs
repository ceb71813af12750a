//! Kubeflow's Trainer v2 rejects a TrainJob that sets its variables: no pod is ever made.

use super::prelude::*;

const ID: &str = "operator-variables";

pub(super) const RULE: Rule = Rule {
    id: ID,
    chapter: Chapter::Agree,
    sees: "FAIL: a TrainJob that sets `PET_*` is rejected",
    fails: "operator-variables.yaml",
    passes: "good-trainjob.yaml",
    find: Find::Container(|pods, container| find(pods, container).into_iter().collect()),
};

fn find(pods: &Pods, container: &Container) -> Option<Check> {
    let its_own = |name: &&String| {
        name.starts_with("PET_") && pods.facts().variables.iter().any(|known| known.name == name.as_str())
    };
    let of_job = pods.maker == Maker::TrainJob && pods.is_container && container.trains();
    let set: Vec<&str> =
        container.own.iter().filter(|_| of_job).filter(its_own).map(String::as_str).collect();
    (!set.is_empty()).then(|| {
        let evidence = format!("a TrainJob that sets {} is rejected", set.join(", "));
        let check = Check::fail(ID, evidence, "use spec.trainer.numNodes and numProcPerNode");
        check.at(pods.at(&container.at("env")))
    })
}
