//! A server in each pod is a store in each pod.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "sidecar-index",
    sees: "WARN: every pod serves a store of its own",
    fails: "sidecar-in-every-pod.yaml",
    passes: "good-indexed-job.yaml",
    find: Find::Pods(|_, pods| find(pods)),
};

fn find(pods: &Pods) -> Vec<Check> {
    let told = |container: &Container| {
        container.argv.iter().any(|word| word.starts_with("--only-on-index"))
            || container.own.iter().any(|name| name == "RALLYPOINT_ONLY_ON_INDEX")
    };
    let check = |container: &Container| {
        let remedy = "serve --only-on-index=0";
        Check::warn("every pod serves a store of its own", remedy).at(pods.at(&container.at("args")))
    };
    let in_each = |container: &&Container| container.serves() && pods.are_several() && !told(container);
    pods.init_containers.iter().filter(in_each).map(check).collect()
}
