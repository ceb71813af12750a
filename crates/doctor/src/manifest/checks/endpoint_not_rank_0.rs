//! With the static backend rank 0 hosts the store. If the name is another pod's, nobody hosts it.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "endpoint-not-rank-0",
    sees: "FAIL: static backend with `--master-addr=train-1.train`, but rank 0 hosts the store",
    fails: "bad-job-second-pod.yaml",
    passes: "good-job-static.yaml",
    find: Find::Launch(&[Tool::Torchrun, Tool::Accelerate, Tool::Program], find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let Call { pods, launch, .. } = call;
    let (told, Target::Pod { pods: other, is_first: false, index }) = call.meeting()? else { return None };
    // Each child Job may be a separate training.
    let units = pods.in_unit != pods.count;
    if other.object != pods.object
        || !launch.needs_rank()
        || other.serve()
        || units
        || launch.by_rallypoint
        || other.maker == Maker::VolcanoJob
    {
        return None;
    }
    // The pod of rank 0 is known only if the rank is the index.
    let by_index = launch.node_rank.as_ref().is_none_or(|rank| {
        matches!(rank.text.source(), Some(Source::Index | Source::EndOfHostName | Source::EndOfPodName))
    });
    by_index.then(|| {
        let evidence = format!(
            "the endpoint `{}` ({}) is pod {index}, but with the static backend rank 0 hosts the store: all \
             wait for a store that nobody starts",
            told.text, told.by
        );
        Check::fail(evidence, first_pod(pods, &told.by)).at(call.at("command"))
    })
}
