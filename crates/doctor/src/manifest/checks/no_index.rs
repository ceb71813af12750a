//! The rank is asked of pods that have no index: no pod knows its number, and none is rank 0.

use super::prelude::*;
use crate::manifest::identity::{self, Rank};

pub(super) const RULE: Rule = Rule {
    id: "no-index",
    sees: "FAIL: the rank is asked of pods without an index: a Job without `completionMode: Indexed`, a \
           Deployment",
    fails: "no-index.yaml",
    passes: "good-indexed-job.yaml",
    find: Find::Launch(Tool::ALL, find),
};

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
            "WORLD_SIZE and MASTER_ADDR are set, but nothing tells {all} pods which RANK each has: the pods \
             of a {maker} have no index"
        ),
        Rank::Missing if pods.maker != Maker::Unknown => format!(
            "{} pods use the static backend without --node-rank: each takes itself for node 0, and the pods \
             of a {maker} have no index",
            pods.count.unwrap_or(all)
        ),
        _ => return None,
    };
    Some(Check::fail(evidence, identity::remedy(call)).at(call.at(identity::field(launch))))
}
