//! A name that nothing has never resolves; every rank tries until its time-out.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "endpoint-names-nothing",
    sees: "FAIL: `--master-addr=trainer-0.train`, but the pods are called `train-0`, …; or no subdomain",
    fails: "bad-job-host-typo.yaml",
    passes: "good-job-static.yaml",
    find: Find::Files(find),
};

fn find(manifests: &Manifests) -> Vec<Check> {
    let of_launch = |call: Call<'_>| {
        let (told, Target::Nothing(why)) = call.meeting()? else { return None };
        let evidence = format!("the endpoint `{}` ({}) names nothing: {why}", told.text, told.by);
        Some(Check::fail(evidence, first_pod(call.pods, &told.by)).at(call.at("command")))
    };
    let of_rallypoint = |(pods, container): (&Pods, &Container)| {
        let (host, _) = container.rallypoint_endpoint()?;
        let Target::Nothing(why) = resolve(&host, pods, manifests) else { return None };
        let evidence = format!("the endpoint `{host}` (RALLYPOINT_ENDPOINT) names nothing: {why}");
        Some(Check::fail(evidence, first_pod(pods, "RALLYPOINT_ENDPOINT")).at(pods.at(&container.at("env"))))
    };
    manifests.calls().filter_map(of_launch).chain(manifests.containers().filter_map(of_rallypoint)).collect()
}
