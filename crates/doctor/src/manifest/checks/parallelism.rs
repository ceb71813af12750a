//! A Job that runs fewer pods at a time than it needs: the pods that run wait for pods that come after them.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "parallelism",
    sees: "FAIL: completions and parallelism differ, so the pods are never all there",
    examples: ["parallelism.yaml", "good-indexed-job.yaml"],
    find: Find::Pods(|_, pods| find(pods).into_iter().collect()),
};

fn find(pods: &Pods) -> Option<Check> {
    if !matches!(pods.maker, Maker::Job | Maker::IndexedJob | Maker::JobSet) || !pods.train() {
        return None;
    }
    let (completions, parallelism) = (number(pods, "completions")?, number(pods, "parallelism").unwrap_or(1));
    let meet =
        pods.launches().any(|launch| launch.host.is_some() || launch.most_nodes().is_some_and(|it| it > 1));
    let alone = pods.launches().all(|launch| launch.most_nodes() == Some(1));
    if completions == parallelism || !meet || alone {
        return None;
    }
    let evidence = if completions > parallelism {
        format!("{completions} completions, but only {parallelism} pods at the same time: they never meet")
    } else {
        let most = completions;
        format!("{parallelism} pods are asked for, but {most} completions: no more than {most} pods are made")
    };
    Some(Check::fail(evidence, "parallelism equal to completions").at(pods.of_owner("parallelism")))
}

/// A field of the Job. In a JobSet, the Job is below its template.
fn number(pods: &Pods, field: &str) -> Option<u64> {
    if pods.maker != Maker::JobSet {
        return pods.owner_number(field);
    }
    let jobs = pods.owner.get("replicatedJobs").and_then(Value::as_array)?;
    let job = jobs.iter().find(|job| job.get("name").and_then(Value::as_str) == Some(&pods.role))?;
    job.pointer(&format!("/template/spec/{field}")).and_then(Value::as_u64)
}
