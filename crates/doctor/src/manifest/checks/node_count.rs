//! More nodes than pods: all wait for the missing ones. Fewer: some pods never get in, or train alone.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "node-count",
    sees: "FAIL: `--nnodes=8` and 4 pods, or no `--nnodes`. WARN: several pods that train alone",
    fails: "node-count.yaml",
    passes: "good-job-static.yaml",
    find: Find::Launch(&[Tool::Torchrun, Tool::Accelerate], find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let Call { pods, launch, .. } = call;
    let in_batch = pods.step.as_ref().is_some_and(|step| step.by.is_none());
    // Each task of a step is a node for torchrun, even if several are on one.
    let tasks = pods.step.as_ref().and_then(|step| step.size.tasks);
    if launch.by_rallypoint || launch.is_told_elsewhere || in_batch {
        return None;
    }
    let (total, name) = (call.total()?, launch.tool.name());
    let flag = if launch.tool == Tool::Accelerate { "--num_machines" } else { "--nnodes" };
    let check = match &launch.nodes {
        // Nobody sets PET_NNODES for a script.
        None if total < 2 || launch.command.open && pods.step.is_none() || !pods.are_several() => {
            return None;
        }
        None => {
            let evidence =
                format!("{name} is not told how many nodes there are, and takes itself for the only one");
            let remedy = format!("{flag}={total}");
            match &launch.host {
                Some(told) => {
                    let evidence =
                        format!("{evidence}; but {total} pods are to meet at {} ({})", told.text, told.by);
                    Check::fail(evidence, remedy)
                }
                None => Check::warn(format!("{evidence}: each of {total} pods trains alone"), remedy),
            }
        }
        Some(told) => {
            let nodes = Nodes::parse(told.text.literal()?)?;
            let in_unit = pods.in_unit.filter(|_| !pods.is_alone);
            let own = call.manifests.own_nodes(pods);
            let possible = [Some(total), pods.count, in_unit, own, tasks].into_iter().flatten();
            let (min, max) = (u64::from(nodes.min), u64::from(nodes.max));
            let fits = |count: u64| (min..=max).contains(&count) || nodes.fixed().is_none() && count > max;
            if max == 1 || possible.into_iter().any(fits) {
                return None;
            }
            let missing = "they wait for the missing ones until the time-out";
            let then = if min > total { missing } else { "those that are too many never get in" };
            let by = &told.by;
            let evidence = format!("{name} expects {nodes} nodes ({by}), but there are {total} pods: {then}");
            Check::fail(evidence, format!("change both together: the number of pods and {flag}"))
        }
    };
    Some(check.at(call.at("command")))
}
