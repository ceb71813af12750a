//! Checks how Jobs and StatefulSets make pods, and the sidecar in them.

use serde_json::Value;

use super::super::Check;
use super::container::Container;
use super::pods::Pods;
use rallypoint_node::makers::{Maker, When};

pub(crate) fn check(pods: &Pods, checks: &mut Vec<Check>) {
    if pods.train() {
        match pods.maker {
            Maker::Job | Maker::IndexedJob | Maker::JobSet => {
                checks.extend(completions(pods));
                if pods.maker != Maker::JobSet {
                    checks.extend(backoff(pods));
                }
            }
            Maker::StatefulSet => checks.extend(ordered(pods)),
            Maker::PyTorchJob => checks.extend(master_is_one(pods)),
            _ => {}
        }
    }
    sidecar(pods, checks);
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

fn completions(pods: &Pods) -> Option<Check> {
    const ID: &str = "parallelism";
    let (completions, parallelism) = (number(pods, "completions")?, number(pods, "parallelism").unwrap_or(1));
    let meet = pods
        .containers
        .iter()
        .flat_map(|container| &container.launches)
        .any(|launch| launch.host.is_some() || launch.most_nodes().is_some_and(|nodes| nodes > 1));
    let alone = pods
        .containers
        .iter()
        .flat_map(|container| &container.launches)
        .all(|launch| launch.most_nodes() == Some(1));
    if completions == parallelism || !meet || alone {
        return None;
    }
    let evidence = if completions > parallelism {
        format!("{completions} completions, but only {parallelism} pods at the same time: they never meet")
    } else {
        format!(
            "{parallelism} pods are asked for, but {completions} completions: no more than {completions} \
             pods are made"
        )
    };
    let check = Check::fail(ID, evidence, "parallelism equal to completions");
    Some(check.at(pods.of_owner("parallelism")))
}

fn backoff(pods: &Pods) -> Option<Check> {
    let launches = || pods.containers.iter().flat_map(|container| &container.launches);
    let fixed = launches().any(|launch| {
        launch
            .nodes
            .as_ref()
            .and_then(|told| told.text.literal())
            .is_some_and(|nodes| nodes.parse::<u32>().is_ok_and(|nodes| nodes > 1))
    });
    let limit = pods.owner_number("backoffLimit");
    let has_policy = pods.owner.get("podFailurePolicy").is_some();
    (pods.are_several() && fixed && !has_policy && limit != Some(0)).then(|| {
        let times = match limit {
            Some(limit) => format!("{limit} times"),
            None => "six times".into(),
        };
        let check = Check::warn(
            "backoff-limit",
            format!(
                "a pod that fails is replaced {times}, and each time the others may hang until a time-out"
            ),
            "backoffLimit: 0, or --nnodes=MIN:MAX with --max-restarts",
        );
        check.at(pods.of_owner("backoffLimit"))
    })
}

fn ordered(pods: &Pods) -> Option<Check> {
    let policy = pods.owner.get("podManagementPolicy").and_then(Value::as_str);
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
    Some(check.at(pods.of_owner("podManagementPolicy")))
}

/// The operator rejects any other number of Masters, and a template without the expected container.
fn master_is_one(pods: &Pods) -> Option<Check> {
    const ID: &str = "operator-rejects";
    if pods.has(When::Master) && pods.role == "master" && pods.count.is_some_and(|count| count != 1) {
        let evidence = format!("{} Masters; the operator accepts one", pods.count.unwrap_or_default());
        return Some(
            Check::fail(ID, evidence, "replicas: 1 for the Master, the others as Worker").at(pods.at("")),
        );
    }
    let named = pods
        .containers
        .iter()
        .any(|container| container.value.get("name").and_then(Value::as_str) == Some("pytorch"));
    (!named).then(|| {
        let evidence = "no container is called `pytorch`; the operator refuses the job";
        Check::fail(ID, evidence, "name: pytorch for the container that trains").at(pods.at("containers"))
    })
}

fn sidecar(pods: &Pods, checks: &mut Vec<Check>) {
    let ends = !matches!(
        pods.maker,
        Maker::StatefulSet | Maker::Deployment | Maker::Pod | Maker::Ray | Maker::Unknown
    );
    for container in pods.containers.iter().filter(|container| container.serves() && ends) {
        let check = Check::fail(
            "sidecar-form",
            "as an ordinary container the server never ends, and the Job never completes",
            "an init container with restartPolicy: Always",
        );
        checks.push(check.at(pods.at(&container.field)));
    }
    for container in pods.init_containers.iter().filter(|container: &&Container| container.serves()) {
        let place = |field: &str| pods.at(&container.at(field));
        if container.value.get("restartPolicy").and_then(Value::as_str) != Some("Always") {
            let evidence = "as an ordinary init container the server must end before the training can start";
            checks.push(
                Check::fail("sidecar-form", evidence, "restartPolicy: Always").at(place("restartPolicy")),
            );
        } else if container.value.get("startupProbe").is_none() {
            let check = Check::warn(
                "sidecar-probe",
                "without a startupProbe the training may start before the store is up",
                "startupProbe: {httpGet: {path: /readyz, port: 29501}, periodSeconds: 1, failureThreshold: \
                 60}",
            );
            checks.push(check.at(place("startupProbe")));
        }
        let told = container.argv.iter().any(|word| word.starts_with("--only-on-index"))
            || container.own.iter().any(|name| name == "RALLYPOINT_ONLY_ON_INDEX");
        if pods.are_several() && !told {
            let evidence = "every pod serves a store of its own";
            checks.push(Check::warn("sidecar-index", evidence, "serve --only-on-index=0").at(place("args")));
        }
    }
}
