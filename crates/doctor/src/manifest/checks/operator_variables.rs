//! Kubeflow's Trainer v2 rejects a TrainJob that sets its variables: no pod is ever made.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "operator-variables",
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
        let remedy = match elastic(container) {
            Some(nodes) => {
                format!("--nnodes={nodes} in spec.trainer.command: a flag wins over what Trainer sets")
            }
            None => "use spec.trainer.numNodes and numProcPerNode".into(),
        };
        Check::fail(evidence, remedy).at(pods.at(&container.at("env")))
    })
}

/// The MIN:MAX that `PET_NNODES` would say.
fn elastic(container: &Container) -> Option<&str> {
    let env = container.value.get("env").and_then(Value::as_array)?;
    let is_nodes = |entry: &&Value| entry.get("name").and_then(Value::as_str) == Some("PET_NNODES");
    env.iter().find(is_nodes)?.get("value")?.as_str().filter(|nodes| nodes.contains(':'))
}
