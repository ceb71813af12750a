//! How Jobs and StatefulSets make pods, and the sidecar in them.

use serde_json::Value;

use super::super::Check;
use super::containers::Container;
use super::objects::{Maker, Pods};

pub(super) fn check(pods: &Pods, checks: &mut Vec<Check>) {
    if pods.train() {
        match pods.maker {
            Maker::Job { indexed } => {
                checks.extend(index(pods, indexed));
                checks.extend(completions(pods));
                checks.extend(backoff(pods));
            }
            Maker::StatefulSet => checks.extend(ordered(pods)),
            Maker::Random if pods.are_several() && needs_index(pods) => {
                let check = Check::fail(
                    "no-index",
                    "the pods of a Deployment have no index, so no node rank",
                    "use an Indexed Job, or a StatefulSet",
                );
                checks.push(check.at(pods.of_owner("kind")));
            }
            _ => {}
        }
    }
    sidecar(pods, checks);
}

fn number(pods: &Pods, field: &str) -> Option<u64> {
    pods.owner.pointer(&format!("/spec/{field}")).and_then(Value::as_u64)
}

/// Whether a pod has to know its place: with the static backend. c10d orders the nodes itself, and what a plain program
/// is told, only whoever starts it knows.
fn needs_index(pods: &Pods) -> bool {
    let is_static = |container: &Container| {
        container.torchrun.is_some() && !container.is_run() && !has_backend(container)
    };
    pods.containers.iter().any(is_static)
}

fn has_backend(container: &Container) -> bool {
    container.torchrun.as_ref().is_some_and(|torchrun| torchrun.has("rdzv-backend"))
        || container.value_of("PET_RDZV_BACKEND").is_some()
}

fn index(pods: &Pods, indexed: bool) -> Option<Check> {
    (!indexed && pods.are_several() && needs_index(pods)).then(|| {
        let check = Check::fail(
            "no-index",
            "the Job's pods have no index, so no node rank",
            "completionMode: Indexed, with completions equal to parallelism",
        );
        check.at(pods.of_owner("spec.completionMode"))
    })
}

fn completions(pods: &Pods) -> Option<Check> {
    let (completions, parallelism) = (number(pods, "completions")?, number(pods, "parallelism").unwrap_or(1));
    (completions > parallelism).then(|| {
        let evidence = format!(
            "{completions} completions, but only {parallelism} pods at the same time: they never meet"
        );
        let check = Check::fail("parallelism", evidence, "parallelism equal to completions");
        check.at(pods.of_owner("spec.parallelism"))
    })
}

fn backoff(pods: &Pods) -> Option<Check> {
    let fixed = pods.containers.iter().filter_map(|container| container.torchrun.as_ref());
    let elastic = fixed.filter_map(|torchrun| torchrun.flag("nnodes")).any(|nodes| nodes.contains(':'));
    let limit = number(pods, "backoffLimit");
    let has_policy = pods.owner.pointer("/spec/podFailurePolicy").is_some();
    (pods.are_several() && !elastic && !has_policy && limit != Some(0)).then(|| {
        let evidence = match limit {
            Some(limit) => format!(
                "a pod that fails is replaced {limit} times, and each time the others hang until a time-out"
            ),
            None => "a pod that fails is replaced six times, and each time the others hang until a time-out"
                .into(),
        };
        let check = Check::warn(
            "backoff-limit",
            evidence,
            "backoffLimit: 0, or --nnodes=MIN:MAX with --max-restarts",
        );
        check.at(pods.of_owner("spec.backoffLimit"))
    })
}

fn ordered(pods: &Pods) -> Option<Check> {
    let policy = pods.owner.pointer("/spec/podManagementPolicy").and_then(Value::as_str);
    if policy == Some("Parallel") || !pods.are_several() {
        return None;
    }
    let probed = pods.containers.iter().any(|container| container.value.get("readinessProbe").is_some());
    let evidence = "pods start one after the other, each when the one before is Ready";
    let remedy = "podManagementPolicy: Parallel";
    let check = if probed {
        let evidence =
            format!("{evidence}; with this readinessProbe pod 0 may wait for pods that are not started");
        Check::fail("ordered-ready", evidence, remedy)
    } else {
        Check::warn("ordered-ready", evidence, remedy)
    };
    Some(check.at(pods.of_owner("spec.podManagementPolicy")))
}

fn sidecar(pods: &Pods, checks: &mut Vec<Check>) {
    let is_job = matches!(pods.maker, Maker::Job { .. }) || pods.maker == Maker::Operator;
    for container in pods.containers.iter().filter(|container| container.serves() && is_job) {
        let check = Check::fail(
            "sidecar-form",
            "as an ordinary container the server never ends, and the Job never completes",
            "an init container with restartPolicy: Always",
        );
        checks.push(check.at(pods.at(&container.field)));
    }
    for container in pods.init_containers.iter().filter(|container| container.serves()) {
        let place = |field: &str| pods.at(&format!("{}.{field}", container.field));
        if container.value.get("restartPolicy").and_then(Value::as_str) != Some("Always") {
            let evidence = "as an ordinary init container the server must end before the training can start";
            checks.push(
                Check::fail("sidecar-form", evidence, "restartPolicy: Always").at(place("restartPolicy")),
            );
        } else if container.value.get("startupProbe").is_none() {
            let check = Check::warn(
                "sidecar-probe",
                "without a startupProbe the training may start before the store is up",
                "startupProbe: {httpGet: {path: /readyz, port: 29501}, periodSeconds: 1, failureThreshold: 60}",
            );
            checks.push(check.at(place("startupProbe")));
        }
        let told = container.argv.iter().any(|word| word.starts_with("--only-on-index"))
            || container.env.iter().any(|(name, _)| name == "RALLYPOINT_ONLY_ON_INDEX");
        if pods.are_several() && !told {
            let evidence = "every pod serves a store of its own";
            checks.push(Check::warn("sidecar-index", evidence, "serve --only-on-index=0").at(place("args")));
        }
    }
}
