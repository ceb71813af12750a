//! The rank is asked of pods that have no index: no pod knows its number, and none is rank 0.

use super::prelude::*;
use crate::manifest::identity::{self, Rank};

pub(super) const RULE: Rule = Rule {
    id: "no-index",
    sees: "FAIL: the rank is asked of pods without an index: a Job without `completionMode: Indexed`, a \
           Deployment",
    fails: "no-index.yaml",
    passes: "good-indexed-job.yaml",
    find: Find::Files(|manifests| {
        let of_launches = manifests.calls().filter_map(|call| find(&call));
        of_launches.chain(manifests.containers().filter_map(|(pods, own)| of_other(pods, own))).collect()
    }),
};

/// A program that is no launch may share out its work by the index.
fn of_other(pods: &Pods, container: &Container) -> Option<Check> {
    let lacks =
        |name: &&String| container.variable(name).is_some_and(|it| it.unset().any(identity::is_index));
    let matters = !container.trains() && pods.maker == Maker::Job && pods.are_several();
    let name = container.own.iter().filter(|_| matters).find(lacks)?;
    let evidence = format!("the pods of a Job have no index: {name} is empty in each of them");
    let remedy = "completionMode: Indexed with completions equal to parallelism";
    Some(Check::fail(evidence, remedy).at(pods.at(&container.at("env"))))
}

fn find(call: &Call<'_>) -> Option<Check> {
    let Call { pods, launch, .. } = call;
    let maker = pods.facts().name;
    let all = call.total().unwrap_or(1);
    let evidence = match identity::rank(call)? {
        Rank::WithoutIndex(name) => {
            format!("the pods of a {maker} have no index: {name} is empty, so no pod knows its rank")
        }
        Rank::Missing if pods.has_index() => return None,
        Rank::Missing if launch.tool == Tool::Program => format!(
            "MASTER_ADDR is set, but nothing tells {all} pods which RANK each has: the pods of a {maker} \
             have no index"
        ),
        Rank::Missing if !matches!(pods.maker, Maker::Unknown | Maker::Slurm) => format!(
            "{} pods use the static backend without --node-rank: each takes itself for node 0, and the pods \
             of a {maker} have no index",
            pods.count.unwrap_or(all)
        ),
        _ => return None,
    };
    Some(Check::fail(evidence, identity::remedy(call)).at(call.at(identity::field(launch))))
}
