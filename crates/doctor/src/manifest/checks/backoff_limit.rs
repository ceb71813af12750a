//! A pod that is replaced alone cannot join a running job of fixed size; the others hang until a time-out.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "backoff-limit",
    sees: "WARN: a Job of fixed size whose pods are replaced",
    examples: ["backoff-limit.yaml", "good-job-static.yaml"],
    find: Find::Pods(|_, pods| find(pods).into_iter().collect()),
};

fn find(pods: &Pods) -> Option<Check> {
    if !matches!(pods.maker, Maker::Job | Maker::IndexedJob) || !pods.train() {
        return None;
    }
    let several = |nodes: &str| nodes.parse::<u32>().is_ok_and(|nodes| nodes > 1);
    let fixed =
        pods.launches().any(|it| it.nodes.as_ref().and_then(|it| it.text.literal()).is_some_and(several));
    let limit = pods.owner_number("backoffLimit");
    let has_policy = pods.owner.get("podFailurePolicy").is_some();
    (pods.are_several() && fixed && !has_policy && limit != Some(0)).then(|| {
        let times = limit.map_or_else(|| "six".into(), |limit| limit.to_string());
        let evidence = format!(
            "a pod that fails is replaced {times} times, and each time the others may hang until a time-out"
        );
        let check = Check::warn(evidence, "backoffLimit: 0, or --nnodes=MIN:MAX with --max-restarts");
        check.at(pods.of_owner("backoffLimit"))
    })
}
